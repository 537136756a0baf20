//! WRMSR: how tracing is configured, enabled and disabled.

use super::{BASE, Ending, Features, SPACES, Walk};
use crate::rtit::{Record, enables::Enables};
use cofi_packet::Ip;
use cofi_unit::At;
use cofi_unit::rtit::{Event, Events, msr};

impl Walk<'_> {
    /// A WRMSR that stands in nobody's code, or (`at`) here.
    fn wrmsr(&mut self, at: At, address: u32, value: u64, then: impl FnOnce(&mut Enables)) {
        self.act(
            |unit, world| unit.wrmsr(world, at, address, value),
            |enables| {
                then(enables);
                enables.come_to(at.next, false)
            },
        )
        .expect("the configuration is legal");
    }

    fn set(&mut self, address: u32, value: u64) {
        self.wrmsr(self.here(), address, value, |_| {});
    }

    fn here(&self) -> At {
        let ip = self.ip();
        At { ip, next: ip }
    }

    /// RTIT_CTL, with Trace_En and TraceActive.
    fn set_ctl(&mut self, at: At, trace_en: bool, trace_active: bool) {
        let ctl = self.ctl;
        self.cr3_filter |= ctl.cr3_en() && trace_active;
        let value = ctl
            .with_trace_en(trace_en)
            .with_trace_active(trace_active)
            .0;
        self.wrmsr(at, msr::RTIT_CTL, value, |enables| {
            (enables.trace_en, enables.trace_active) = (trace_en, trace_active);
            (enables.os, enables.user) = (ctl.os(), ctl.user());
            enables.cr3 = ctl.cr3_en().then_some(SPACES[0]);
        });
    }

    pub(super) fn start(&mut self) {
        // Unlocks the others (3.3.1).
        self.unit.rdmsr(msr::RTIT_CTL).expect("it exists");
        self.set(msr::RTIT_BASE_ADDR, BASE);
        self.set(msr::RTIT_LIMIT_MASK, self.setup.limit_mask.into());
        self.set(msr::RTIT_CR3_MATCH, SPACES[0]);
        self.ask_for_psbs();
        let event = Event::Frequency {
            actual: self.world.ratio,
            effective: self.world.ratio,
        };
        self.act(|unit, world| unit.event(world, event), |_| false);
        self.configure_ranges();
        self.enable(self.here());
        self.act(|unit, world| unit.event(world, event), |_| false);
    }

    /// RTIT_PKT_CNT: with a count that begins high, PSBs come more often than Pkt_Mask can have it.
    fn ask_for_psbs(&mut self) {
        let mask = self.setup.pkt_mask.min(3);
        let count = match self.setup.pkt_mask {
            4 => (1 << (11 + mask)) - 1 - self.rng.index(200) as u64,
            5 => (1 << (11 + mask)) - 1 - self.rng.index(20) as u64,
            _ => 0,
        };
        self.set(msr::RTIT_PKT_CNT, mask << 16 | count & 0x3fff);
    }

    fn configure_ranges(&mut self) {
        let filters = self.has(Features::RANGES) && !self.rng.one_in(3);
        let stops = self.has(Features::STOPS) && !self.rng.one_in(3);
        let mut ends: Vec<Ip> = Vec::new();
        let code = self.rng.index(self.codes.len());
        for _ in 0..2 {
            // Mostly two ranges in one program, perhaps one behind the other.
            let code = match self.rng.one_in(3) {
                true => self.rng.index(self.codes.len()),
                false => code,
            };
            let insns = &self.codes[code].insns;
            let (a, b) = (self.rng.index(insns.len()), self.rng.index(insns.len()));
            let (a, b) = (a.min(b), a.max(b));
            // One that stops the trace does so too often to be large.
            let b = if stops { b.min(a + 3) } else { b };
            let (from, mut to) = (insns[a].ip, insns[b].ip.wrapping_add(insns[b].len.into()));
            if a != b && self.rng.one_in(8) {
                to = Ip(to.0 - 1);
            }
            ends.extend([from, to]);
        }
        let [a, b, c, d] = [ends[0], ends[1], ends[2], ends[3]];
        let overlap = a < d && c < b;
        let lips = match overlap {
            // The same, cut in two.
            true if a < c && c < b => [a, c, c, b],
            true => [a, Ip(0), b, Ip(0)],
            false => [a, c, b, d],
        };
        let both = lips[1] != Ip(0);
        let id = |walk: &mut Self| match walk.rng.index(3) {
            0 => Events::RANGE0,
            1 if both => Events::RANGE1,
            _ if both => Events::RANGE0_OR_1,
            _ => Events::RANGE0,
        };
        let filter = match filters {
            true => id(self),
            false => Events::ALWAYS_ON,
        };
        let stop = match stops {
            true => id(self),
            false => Events::ALWAYS_OFF,
        };
        for (lip, address) in lips.into_iter().zip(msr::RTIT_LIP0..) {
            self.set(address, lip.0);
        }
        let events = Events(0).with_filter(filter).with_trace_stop(stop);
        self.wrmsr(self.here(), msr::RTIT_EVENTS, events.0, |enables| {
            enables.set_events(events, lips);
        });
    }

    /// Trace_En, then TraceActive (3.3.2), which is the instruction at `at`.
    fn enable(&mut self, at: At) {
        if !self.enables.trace_en {
            self.set_ctl(self.here(), true, false);
        }
        self.set_ctl(at, true, true);
    }

    /// TraceActive, which is the instruction at `at`, then perhaps Trace_En.
    fn disable(&mut self, at: At, both: bool) {
        if self.enables.trace_active {
            self.set_ctl(at, true, false);
        }
        if both && self.enables.trace_en {
            let next = At {
                ip: at.next,
                next: at.next,
            };
            self.set_ctl(next, false, false);
        }
    }

    /// A WRMSR in the code.
    pub(super) fn write(&mut self, at: At) {
        match self.rng.index(6) {
            0 => {
                self.shown(false);
                if self.enables.trigger_en() {
                    let both = self.rng.one_in(2);
                    self.disable(at, both);
                } else {
                    self.reconfigure();
                    self.enable(at);
                }
            }
            // What is traced, while it is.
            1 if self.enables.trigger_en() => {
                self.shown(false);
                self.choose_context();
                self.set_ctl(at, true, true);
            }
            2 => {
                self.shown(false);
                let count = 0x3fff & self.rng.next_u64() as u32;
                let value = u64::from(count) | self.setup.pkt_mask.min(3) << 16;
                self.wrmsr(at, msr::RTIT_PKT_CNT, value, |_| {});
            }
            _ => return self.near(at, cofi_unit::Branch::None, self.at.1 + 1),
        }
        self.at.1 += 1;
    }

    fn choose_context(&mut self) {
        let (user, both) = (self.rng.one_in(2), self.rng.one_in(2));
        self.ctl = self
            .ctl
            .with_user(user || both)
            .with_os(!user || both)
            .with_cr3_en(self.rng.one_in(4));
    }

    /// Tracing is disabled, reconfigured and enabled between two instructions.
    pub(super) fn toggle(&mut self) {
        let here = self.here();
        if self.enables.trigger_en() {
            let both = !self.rng.one_in(3);
            self.disable(here, both);
        }
        self.pass_time();
        self.reconfigure();
        self.pass_time();
        if !self.rng.one_in(4) {
            self.enable(here);
        }
    }

    /// While TriggerEn is clear.
    fn reconfigure(&mut self) {
        // As 4.2.1 has it; who does not do it either knows why, or does not.
        if self.rng.one_in(2) && !self.unit.is_overflowing() {
            self.wrmsr(self.here(), msr::RTIT_STATUS, 0, |enables| {
                enables.filter_en = false;
            });
        }
        if self.has(Features::SILENCE) && self.rng.one_in(2) {
            self.loses_results();
            self.set(msr::RTIT_TNT_BUFF, 1);
        }
        for address in [msr::RTIT_CNTP, msr::RTIT_LAST_LIP, msr::RTIT_LAST_CALL_NLIP] {
            if self.rng.one_in(2) {
                self.set(address, 0);
            }
        }
        if self.rng.one_in(2) {
            self.ask_for_psbs();
        }
        if self.rng.one_in(2) {
            self.choose_context();
            self.ctl = self
                .ctl
                .with_mtc_en(self.rng.one_in(2))
                .with_less_pkts(self.rng.one_in(2))
                .with_mtc_range(self.rng.index(4) as u64);
        }
        if self.world.lines.is_some() && self.rng.one_in(4) {
            self.move_output();
        }
    }

    /// Software writes RTIT_OFFSET, where what was buffered before has gone out.
    fn move_output(&mut self) {
        if self.unit.buffered() != 0 {
            return;
        }
        let sent = self.sent();
        let size = u64::from(self.setup.limit_mask) + 1;
        let offset = self.rng.next_u64() % size;
        self.set(msr::RTIT_OFFSET, offset);
        self.moved = offset.wrapping_sub(sent);
        self.world.restart(offset as u32);
    }

    pub(super) fn finish(mut self) -> Record {
        self.note_place();
        let here = self.here();
        if self.setup.ending == Ending::Told && self.enables.trigger_en() {
            self.ctl = self.ctl.with_os(false).with_user(false);
            self.set_ctl(here, true, true);
        }
        self.disable(here, true);
        let tnt_buff = self.unit.rdmsr(msr::RTIT_TNT_BUFF).expect("it exists");
        if self.setup.ending != Ending::Buffered {
            self.loses_results();
        }
        let trace = match self.world.lines.take() {
            Some(lines) => {
                let mut trace = core::mem::take(&mut self.world.trace);
                lines.finish(|piece| match piece {
                    cofi_flow::lines::Piece::Bytes(bytes) => trace.extend(bytes),
                    cofi_flow::lines::Piece::Gap { .. } => self.world.gaps += 1,
                });
                trace
            }
            None => self.world.trace,
        };
        assert_eq!(self.world.gaps, 0, "every line has come");
        let [filter, stops] = self.enables.ranges();
        Record {
            trace,
            truth: self.truth,
            stretches: self.stretches,
            tnt_buff: (self.setup.ending == Ending::Buffered).then_some(tnt_buff as u8),
            filter,
            stops,
            cr3_filter: self.cr3_filter,
            trace_stops: self.trace_stops,
            codes: self.codes,
        }
    }
}
