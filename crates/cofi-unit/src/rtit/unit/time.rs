//! Cycle counts, FUP.PCC, MTC and STS (3.3.4, 4.2.6, 4.2.12–15).

use super::Unit;
use crate::client::Clock;
use crate::rtit::event::Client;
use cofi_packet::Ip;
use cofi_packet::rtit::{CycleCount, Kind, Packet};
use cofi_packet::{Uint, rtit};

/// RTIT_CNTP has 22 bits.
const CNTP_MASK: u64 = (1 << 22) - 1;
/// With this bit set a FUP.PCC is due.
const HALF_FULL: u64 = 1 << 21;

/// Where more changes of the watched bits were missed, MTCs could not tell how many: their payload has 8 bits.
const MOST_MTCS: u64 = 255;

/// The state behind timing packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    /// The last moment that is known.
    pub(super) now: Clock,
    /// RTIT_CNTP counts.
    counts: bool,
    /// The core cycles at which RTIT_CNTP was what the register file holds.
    counted_at: u64,
    /// The TSC from the watched bits on, when it was last looked at.
    pub(super) mtc: u64,
    /// First TSC value in which it is that, and how many there are.
    mtc_span: (u64, u64),
    /// The first MTC is to come at the wrong time: at once (E7).
    pub(super) mtc_early: bool,
    /// So many cycles after `counted_at` a FUP.PCC is due.
    count_room: u64,
}

impl Timing {
    /// As it was saved, with RTIT_CNTP as it is now; what follows from the rest comes when it is asked for.
    pub(super) fn restored(now: Clock, mtc: u64, mtc_early: bool) -> Self {
        Self {
            now,
            mtc,
            mtc_early,
            ..Self::default()
        }
    }
}

impl Unit {
    /// The moment of what happens.
    pub(super) const fn now(&self) -> Clock {
        self.timing.now
    }

    /// Whether nothing is due by the passing of time, which is noted then.
    #[inline]
    pub(super) fn is_quiet(&mut self, now: Clock) -> bool {
        let (from, len) = self.timing.mtc_span;
        let is_quiet = now.tsc.wrapping_sub(from) < len
            && now.cycles.wrapping_sub(self.timing.counted_at) < self.timing.count_room;
        if is_quiet {
            self.timing.now = now;
        }
        is_quiet
    }

    /// Time has gone on: RTIT_CNTP has counted, the internal buffer has drained, and an MTC may be due.
    pub(super) fn look_at_time(&mut self, client: &mut impl Client) {
        let before = self.timing.now;
        self.timing.now = client.now();
        self.settle_cycles();
        if self.asleep || !self.regs.status.trigger_en() && self.is_drained() {
            return;
        }
        let (from, len) = self.timing.mtc_span;
        let is_same = self.now().tsc.wrapping_sub(from) < len;
        if is_same || !self.regs.status.trigger_en() {
            return self.drain_due(client);
        }
        let told = self.timing.mtc;
        let is_early = self.timing.mtc_early;
        self.note_tsc();
        if !self.regs.ctl.mtc_en() || !self.sends_time() {
            return self.drain_due(client);
        }
        let now = self.timing.mtc;
        match now.wrapping_sub(told) {
            0 => {
                self.drain_due(client);
                if is_early {
                    self.mtc(client, now);
                }
            }
            1 => {
                self.drain_due(client);
                self.mtc(client, now);
            }
            passed @ 2..=MOST_MTCS => self.mtcs(client, before, told, passed),
            _ => {
                self.drain_due(client);
                self.mtc(client, now);
                self.sts(client);
            }
        }
    }

    /// Since `before` the watched TSC bits, which were `told`, have changed so many times: each MTC is sent at its own time, as far as
    /// it follows from the two moments between which it was.
    fn mtcs(&mut self, client: &mut impl Client, before: Clock, told: u64, passed: u64) {
        let after = self.now();
        let shift = 7 + 2 * self.regs.ctl.mtc_range();
        let ticks = u128::from(after.tsc.wrapping_sub(before.tsc)).max(1);
        let cycles = u128::from(after.cycles.wrapping_sub(before.cycles));
        // RTIT_CNTP has been taken up to the later moment: it counts again, from the earlier one on.
        let counted = if self.timing.counts { cycles as u64 } else { 0 };
        self.regs.cntp.0 = self.regs.cntp.0.wrapping_sub(counted) & CNTP_MASK;
        self.timing.counted_at = before.cycles;
        for since in 1..=passed {
            let bits = told.wrapping_add(since);
            let at = u128::from((bits << shift).wrapping_sub(before.tsc)).min(ticks);
            self.timing.now = Clock {
                tsc: before.tsc.wrapping_add(at as u64),
                cycles: before.cycles.wrapping_add((cycles * at / ticks) as u64),
            };
            self.settle_cycles();
            self.drain_due(client);
            self.mtc(client, bits);
        }
        self.timing.now = after;
        self.settle_cycles();
        self.drain_due(client);
    }

    fn mtc(&mut self, client: &mut impl Client, bits: u64) {
        let packet = Packet::Mtc {
            range: Uint::truncate(self.regs.ctl.mtc_range()),
            tsc: bits as u8,
            cycles: self.cycle_count(),
        };
        self.emit(client, &packet);
    }

    /// The watched TSC bits are as they are now, without an MTC.
    pub(super) fn note_tsc(&mut self) {
        let shift = 7 + 2 * self.regs.ctl.mtc_range();
        let tsc = self.now().tsc;
        self.timing.mtc = tsc >> shift;
        self.timing.mtc_early = false;
        self.timing.mtc_span = match self.regs.ctl.mtc_en() {
            true => (tsc >> shift << shift, 1 << shift),
            false => (0, u64::MAX),
        };
    }

    /// The first MTC comes at the wrong time (E7).
    pub(super) fn spoil_mtc(&mut self) {
        self.timing.mtc_early = true;
        self.timing.mtc_span = (0, 0);
    }

    /// Whether MTC and STS are sent in the present state (Table 17).
    pub(super) const fn sends_time(&self) -> bool {
        self.regs.status.trigger_en() && (!self.regs.ctl.less_pkts() || self.cached.packet_en)
    }

    /// RTIT_CNTP at the last moment that is known.
    pub(super) const fn cycles(&self) -> u64 {
        let passed = match self.timing.counts {
            true => self.now().cycles.wrapping_sub(self.timing.counted_at),
            false => 0,
        };
        self.regs.cntp.0.wrapping_add(passed) & CNTP_MASK
    }

    /// RTIT_CNTP counts up to now.
    pub(super) fn settle_cycles(&mut self) {
        self.regs.cntp.0 = self.cycles();
        self.timing.counted_at = self.now().cycles;
        self.plan_half_full();
    }

    /// Whether RTIT_CNTP counts from now on (Table 17, as it stands: with Less_Pkts clear, only where FilterEn is set, too).
    pub(super) fn plan_counts(&mut self) {
        let status = self.regs.status;
        self.timing.counts = status.trigger_en()
            && status.context_en()
            && (self.regs.ctl.less_pkts() || status.filter_en())
            && !self.asleep;
        self.plan_half_full();
    }

    fn plan_half_full(&mut self) {
        self.timing.count_room = if self.regs.ctl.cycle_acc() {
            HALF_FULL.saturating_sub(self.regs.cntp.0)
        } else {
            u64::MAX
        };
    }

    /// What is appended to a packet now: RTIT_CNTP in cycle-accurate mode, one less with E6.
    pub(super) fn cycle_count(&self) -> Option<CycleCount> {
        if !self.regs.ctl.cycle_acc() {
            return None;
        }
        let count = self.regs.cntp.0 as u32;
        CycleCount::new(count.saturating_sub(self.choices.errata.e6.into()))
    }

    /// A packet with a cycle count was sent: RTIT_CNTP begins anew.
    pub(super) fn restart_count(&mut self) {
        self.regs.cntp.0 = 0;
        self.plan_half_full();
    }

    /// At the beginning of an instruction: FUP.PCC, if it is due (4.2.6). It does not wait for another packet of the instruction, as it
    /// may.
    pub(super) fn periodic_count(&mut self, client: &mut impl Client, next: Ip) {
        let (ctl, status) = (self.regs.ctl, self.regs.status);
        let is_due = ctl.cycle_acc() && self.regs.cntp.0 & HALF_FULL != 0;
        let is_sent = if ctl.less_pkts() {
            self.cached.packet_en
        } else {
            status.trigger_en() && status.context_en()
        };
        if is_due && is_sent {
            self.lip(client, Kind::FupPcc, next);
        }
    }

    /// STS, where STS packets are sent (4.2.13).
    pub(super) fn sts(&mut self, client: &mut impl Client) {
        if !(self.regs.ctl.sts_en() && self.sends_time()) {
            return;
        }
        let (actual, effective) = self.ratios;
        let packet = rtit::Packet::Sts {
            acbr: Uint::truncate(actual.into()),
            ecbr: Uint::truncate(effective.into()),
            tsc: Uint::truncate(self.now().tsc),
            cycles: self.cycle_count(),
        };
        self.emit(client, &packet);
    }
}
