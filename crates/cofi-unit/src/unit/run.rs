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

/// So many results a short TNT holds.
pub(super) const SHORT: u32 = 6;
/// So many results are gathered at most.
pub(super) const MOST_RESULTS: u32 = 10 * SHORT;

/// A unit while many instructions retire, one after the other. The packets are those that [`Unit::retire`] would make; but TNTs
/// may be stored a little later. (So where the output stops between two of them, PacketByteCnt may count some that were lost.)
#[derive(Debug)]
pub struct Gathering<'u> {
    unit: &'u mut Unit,
    results: Results,
    /// So many can be gathered before anything has to be done; with one more they are whole packets, and no more than up to the
    /// next PSB.
    most: Results,
    /// From this TSC value on something else may be due.
    quiet_until: u64,
    /// The same for what is told by its time alone.
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
            quiet_until: 0,
            until: 0,
        };
        gathering.resume(tsc);
        gathering
    }

    /// The TSC value from which on an instruction that retires, after one at `tsc`, may make another packet than a TNT or a TIP, or
    /// a CYC before these.
    #[inline]
    fn quiet_until(&self, tsc: u64) -> u64 {
        let quiet = self.timing.quiet(self.regs.ctl);
        if !self.cached.plain_inside || !self.packet_en() || self.psb_due() || !quiet.contains(&tsc)
        {
            return 0;
        }
        quiet.end
    }

    #[inline]
    fn room_for_results(&self) -> Results {
        let size = self.tnt_size();
        if self.regs.ctl.cyc_en() && self.tnt.is_empty() {
            // A CYC may be due before the first result of a TNT.
            return Results::zeros(0);
        }
        // From the internal buffer they drain one after the other; and TraceStop may come at any branch.
        let one_by_one = self.regs.ctl.cyc_en() || self.buffer.is_some() || self.cached.has_ranges;
        if self.long_tnt() || one_by_one {
            return Results::zeros(size - 1);
        }
        if self.is_far_from_psb() {
            return Results::zeros(MOST_RESULTS - 1);
        }
        let until_psb = self.psb_at().saturating_sub(self.byte_count);
        Results::zeros(SHORT * until_psb.max(1) as u32 - 1)
    }
}

impl Gathering<'_> {
    /// At `tsc` an instruction retired that is no branch, a direct jump, or (`conditional`) a conditional branch, `taken` or not.
    /// `false`, and nothing is done, if that asks for [`Self::retire`]: with address ranges always, and while an internal buffer
    /// drains by itself.
    #[inline(always)]
    #[must_use]
    pub fn direct(&mut self, tsc: u64, conditional: bool, taken: bool) -> bool {
        tsc < self.until && self.result(conditional, taken)
    }

    /// From this TSC value on [`Self::direct`] says `false`: 0 where the short ways are never to be taken. It changes with each
    /// [`Self::retire`].
    #[inline(always)]
    #[must_use]
    pub fn until(&self) -> u64 {
        self.until
    }

    /// As [`Self::direct`], of an instruction that retired before [`Self::until`].
    #[inline(always)]
    #[must_use]
    pub fn result(&mut self, conditional: bool, taken: bool) -> bool {
        debug_assert!(self.until != 0, "nothing is before `until`");
        let has_room = !self.results.reach(self.most);
        if has_room {
            let result = conditional & taken;
            self.results.push(conditional.into(), result.into());
        }
        has_room
    }

    /// Before [`Self::until`] a direct near call retired, to another place than the instruction behind it, which is at `next`.
    #[inline(always)]
    pub fn call(&mut self, next: Ip) {
        debug_assert!(self.until != 0, "nothing is before `until`");
        self.unit.call(next);
    }

    /// Before [`Self::until`] a near return to `target` retired. `false`, and nothing is done, if that asks for [`Self::retire`]: as when it
    /// makes a TIP (33.4.2.2).
    #[inline(always)]
    #[must_use]
    pub fn compressed_return(&mut self, target: Ip) -> bool {
        debug_assert!(self.until != 0, "nothing is before `until`");
        if self.results.reach(self.most) || !self.unit.is_expected_return(target) {
            return false;
        }
        self.unit.returns.pop();
        self.results.push(1, 1);
        true
    }

    /// As [`Unit::retire`].
    #[inline(always)]
    pub fn retire(&mut self, client: &mut impl Client, insn: Retired) {
        let now = client.now();
        let is_quiet = now.tsc < self.quiet_until && now.cycles < self.unit.cached.buffer_due;
        if is_quiet && self.unit.cached.plain {
            self.retire_quietly(client, insn);
        } else {
            self.retire_inside(client, insn, is_quiet);
        }
    }

    #[inline(always)]
    fn retire_quietly(&mut self, client: &mut impl Client, insn: Retired) {
        match insn.branch {
            Branch::Conditional(target) => self.push(client, target.is_some(), insn.destination()),
            Branch::None | Branch::DirectJump(_) => {}
            _ => self.retire_elsewhere(client, insn),
        }
    }

    /// A call, an indirect branch or a return. (One `match` of all branches would be a jump through a table, which many a processor
    /// predicts badly.)
    #[inline(never)]
    fn retire_elsewhere(&mut self, client: &mut impl Client, insn: Retired) {
        match insn.branch {
            Branch::None | Branch::DirectJump(_) | Branch::Conditional(_) => {}
            Branch::DirectCall(target) if target == insn.at.next => {}
            Branch::DirectCall(_) => self.unit.call(insn.at.next),
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

    /// As [`Self::retire`] where address ranges ask for one more look, or where something is due.
    #[inline(never)]
    fn retire_inside(&mut self, client: &mut impl Client, insn: Retired, is_quiet: bool) {
        if is_quiet && self.unit.stays(insn) {
            return self.retire_quietly(client, insn);
        }
        self.pause(client);
        self.unit.retire(client, insn);
        self.resume(client.now().tsc);
    }

    #[inline(always)]
    fn push(&mut self, client: &mut impl Client, taken: bool, ip: Ip) {
        if self.results.reach(self.most) {
            return self.push_last(client, taken, ip);
        }
        self.results.push(1, taken.into());
    }

    /// A packet becomes full, or one begins for which a CYC may be due.
    #[inline(never)]
    fn push_last(&mut self, client: &mut impl Client, taken: bool, ip: Ip) {
        self.unit.tnt = self.results;
        self.unit.push_tnt(client, taken);
        self.end(client, ip);
    }

    #[inline(never)]
    fn tip(&mut self, client: &mut impl Client, target: Ip) {
        self.unit.tnt = self.results;
        if !self.unit.tip_quietly(client, target) {
            self.unit.tip(client, target);
        } else if self.unit.is_far_from_psb() && self.unit.packet_en() {
            // As mostly: nothing waits, and there is all the room.
            (self.results, self.most) = (Results::new(), Results::zeros(MOST_RESULTS - 1));
            return;
        }
        self.end(client, target);
    }

    /// Packets were sent; and if need be, a PSB+.
    #[inline]
    fn end(&mut self, client: &mut impl Client, ip: Ip) {
        if self.unit.psb_due() || self.unit.buffer.is_some() || !self.unit.packet_en() {
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
        self.quiet_until = self.unit.quiet_until(tsc);
        // Without a target nobody knows of ranges, and without the core cycles not when the internal buffer drains.
        let is_enough = self.unit.cached.plain && self.unit.cached.buffer_due == u64::MAX;
        self.until = if is_enough { self.quiet_until } else { 0 };
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        self.unit.tnt = self.results;
    }
}
