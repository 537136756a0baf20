//! Many instructions at a time: the same packets as one by one, for less.
//!
//! Between two timing packets nearly all that a unit does is to gather TNT results and return addresses. It does so for several
//! TNT packets at a time here, without asking at each instruction what else may be due; everything else goes through
//! [`Unit::retire`].

use super::Unit;
use crate::client::Client;
use crate::compress::Results;
use crate::event::{Branch, Retired};
use cofi_packet::Ip;

/// So many results are gathered at most.
const MOST_RESULTS: u32 = 60;

/// A unit while many instructions retire, one after the other. The packets are those that [`Unit::retire`] would make; but TNTs
/// may be stored a little later.
#[derive(Debug)]
pub struct Gathering<'u> {
    unit: &'u mut Unit,
    results: Results,
    /// So many can be gathered before anything has to be done; with one more they are whole packets, and no more than up to the
    /// next PSB.
    most: Results,
    /// From this TSC value on something else may be due.
    until: u64,
}

impl Unit {
    /// Begins to gather what instructions from `tsc` on do.
    #[inline]
    pub fn gather(&mut self, tsc: u64) -> Gathering<'_> {
        let mut gathering = Gathering {
            unit: self,
            results: Results::new(),
            most: Results::new(),
            until: 0,
        };
        gathering.resume(tsc);
        gathering
    }

    /// The TSC value from which on an instruction that retires, after one at `tsc`, may make another packet than a TNT or a TIP, or
    /// a CYC before these.
    #[inline]
    fn quiet_until(&self, tsc: u64) -> u64 {
        // A CYC may be due before the first result of a TNT.
        let waits_for_cyc = self.regs.ctl.cyc_en() && self.tnt.is_empty();
        let quiet = self.timing.quiet(self.regs.ctl);
        if !self.cached.plain
            || !self.packet_en()
            || self.psb_due()
            || waits_for_cyc
            || !quiet.contains(&tsc)
        {
            return 0;
        }
        quiet.end
    }

    #[inline]
    fn room_for_results(&self) -> Results {
        let size = self.tnt_size();
        if self.long_tnt() || self.regs.ctl.cyc_en() {
            return Results::zeros(size - 1);
        }
        let until_psb = self.psb_at().saturating_sub(self.byte_count);
        let packets = until_psb.clamp(1, u64::from(MOST_RESULTS / size));
        Results::zeros(size * packets as u32 - 1)
    }
}

impl Gathering<'_> {
    /// At `tsc` an instruction retired that is no branch, a direct jump, or (`conditional`) a conditional branch, `taken` or not.
    /// `false`, and nothing is done, if that asks for [`Self::retire`].
    #[inline(always)]
    #[must_use]
    pub fn direct(&mut self, tsc: u64, conditional: bool, taken: bool) -> bool {
        if tsc >= self.until || self.results.reach(self.most) {
            return false;
        }
        let result = conditional & taken;
        self.results.push(conditional.into(), result.into());
        true
    }

    /// As [`Unit::retire`]. Where the kind of branch is known to the compiler, little of this is left.
    #[inline(always)]
    pub fn retire(&mut self, client: &mut impl Client, insn: Retired) {
        if client.now().tsc >= self.until {
            return self.retire_alone(client, insn);
        }
        match insn.branch {
            Branch::None | Branch::DirectJump(_) => {}
            Branch::DirectCall(target) if target == insn.at.next => {}
            Branch::DirectCall(_) => self.unit.call(insn.at.next),
            Branch::Conditional(target) => self.push(client, target.is_some(), insn.destination()),
            Branch::Return(target) => {
                if self.unit.pop_return(target) {
                    self.push(client, true, target);
                } else {
                    self.tip(client, target);
                }
            }
            Branch::IndirectJump(target) => self.tip(client, target),
            Branch::IndirectCall(target) => {
                self.unit.call(insn.at.next);
                self.tip(client, target);
            }
        }
    }

    #[inline(never)]
    fn retire_alone(&mut self, client: &mut impl Client, insn: Retired) {
        self.pause(client);
        self.unit.retire(client, insn);
        self.resume(client.now().tsc);
    }

    #[inline(always)]
    fn push(&mut self, client: &mut impl Client, taken: bool, ip: Ip) {
        let is_last = self.results.reach(self.most);
        self.results.push(1, taken.into());
        if is_last {
            self.pause(client);
            self.end(client, ip);
        }
    }

    #[inline(never)]
    fn tip(&mut self, client: &mut impl Client, target: Ip) {
        self.unit.tnt = self.results;
        self.unit.tip(client, target);
        self.end(client, target);
    }

    /// Packets were sent; and if need be, a PSB+.
    #[inline]
    fn end(&mut self, client: &mut impl Client, ip: Ip) {
        if self.unit.psb_due() || self.unit.regs.ctl.cyc_en() || !self.unit.packet_en() {
            self.unit.end(client, ip);
            self.resume(client.now().tsc);
        } else {
            self.results = self.unit.tnt;
            self.most = self.unit.room_for_results();
        }
    }

    /// Hands over what was gathered, and sends what fills packets.
    #[inline]
    fn pause(&mut self, client: &mut impl Client) {
        self.unit.tnt = self.results;
        self.unit.send_full_tnt(client);
        self.results = self.unit.tnt;
    }

    #[inline]
    fn resume(&mut self, tsc: u64) {
        self.results = self.unit.tnt;
        self.most = self.unit.room_for_results();
        self.until = self.unit.quiet_until(tsc);
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        self.unit.tnt = self.results;
    }
}
