//! What the passing of time does: MTC, stand-alone CYC, TSC with TMA and CBR (33.3.6, 33.4.2.10–14).

use super::Unit;
use crate::client::{Client, Clock};
use crate::clock::{Due, tsc_tma};
use crate::event::GuestTsc;
use cofi_packet::Ip;
use cofi_packet::intel::{Kind, Packet};

/// So many wraps of the cycle counter are told at once.
const MAX_WRAPS: u32 = 1024;

impl Unit {
    /// Time goes on to the present instruction or event, at `ip`; whether the unit is tracing at all.
    #[inline]
    pub(super) fn begin(&mut self, client: &mut impl Client, ip: Ip) -> bool {
        if !self.regs.status.trigger_en() {
            return false;
        }
        let now = client.now();
        if self.cached.restless || !self.is_quiet_at(now) {
            self.time_goes_on(client, now, Some(ip));
            return self.regs.status.trigger_en();
        }
        true
    }

    /// As [`Self::begin`], for what happens at no known place.
    pub(super) fn begin_anywhere(&mut self, client: &mut impl Client) -> bool {
        if self.regs.status.trigger_en() {
            let now = client.now();
            self.time_goes_on(client, now, None);
        }
        self.regs.status.trigger_en()
    }

    /// The instruction or event is complete, and control stands at `ip`: a PSB+ if one is due.
    #[inline]
    pub(super) fn end(&mut self, client: &mut impl Client, ip: Ip) {
        if self.psb_due() {
            self.psb_in_flow(client, ip);
        }
    }

    #[cold]
    pub(super) fn psb_in_flow(&mut self, client: &mut impl Client, ip: Ip) {
        if self.regs.status.trigger_en() && !self.is_overflowing() {
            self.psb_plus(client, self.packet_en().then_some(ip));
        }
    }

    /// Time has passed, and nothing has happened: timing packets that are due are sent, and the internal buffer drains.
    /// Time passes with every instruction and event, too; this is for stretches without any.
    pub fn clock(&mut self, client: &mut impl Client) {
        self.begin_anywhere(client);
    }

    #[cold]
    #[inline(never)]
    fn time_goes_on(&mut self, client: &mut impl Client, now: Clock, ip: Option<Ip>) {
        if self.buffer.is_some() {
            self.drain_until(client, now, ip);
            if !self.cached.restless && self.timing.is_quiet(now, self.regs.ctl) {
                return;
            }
        }
        if self.asleep || !self.regs.status.trigger_en() {
            return;
        }
        // Whatever is sent now comes after the wraps.
        self.tell_wraps(client, now);
        match self.timing.advance(now, self.regs.ctl, self.caps.crystal) {
            Due::Nothing => {}
            Due::Mtc(ctc) => {
                self.emit_eligible(client, Packet::Mtc { ctc });
            }
            Due::Resync => self.resync_time(client),
        }
    }

    /// Stand-alone CYCs, before the cycle counter wraps (33.3.6).
    fn tell_wraps(&mut self, client: &mut impl Client, now: Clock) {
        let Some(bits) = self.choices.cycle_counter_bits else {
            return;
        };
        let limit = (1 << bits.clamp(6, 63)) - 1;
        for sent in 0..=MAX_WRAPS {
            if !self.regs.ctl.cyc_en() || self.timing.cycles(now) <= limit {
                return;
            }
            // Nobody looked for so long: the last one tells all that is left.
            let limit = if sent == MAX_WRAPS { u64::MAX } else { limit };
            if !self.stand_alone_cyc(client, now, limit) {
                return;
            }
        }
    }

    /// A CYC that belongs to no other packet (33.4.2.14), of `limit` cycles at most. Whether it was sent.
    pub(super) fn stand_alone_cyc(
        &mut self,
        client: &mut impl Client,
        now: Clock,
        limit: u64,
    ) -> bool {
        self.flush(client);
        if self.is_overflowing() || !self.regs.status.trigger_en() {
            return false;
        }
        let before = self.timing;
        let cycles = self.timing.take_cycles(now, limit);
        let is_sent = self.emit_cyc(client, cycles);
        if !is_sent {
            self.timing = before;
        }
        is_sent
    }

    /// TSC and TMA as far as they are enabled, and CBR (Table 33-55, case 25).
    pub(super) fn resync_time(&mut self, client: &mut impl Client) {
        let ctl = self.regs.ctl;
        if ctl.tsc_en() {
            let guest = if self.vmx.non_root {
                self.vmx.tsc
            } else {
                GuestTsc::default()
            };
            let clock = client.packet_time(Kind::Tsc);
            // What comes behind a TSC is younger.
            self.tell_wraps(client, clock);
            let (tsc, tma) = tsc_tma(clock, guest, ctl, self.caps.crystal);
            self.emit_eligible(client, tsc);
            if let Some(tma) = tma {
                self.emit(client, tma);
            }
        }
        self.cbr(client);
    }

    pub(super) fn cbr(&mut self, client: &mut impl Client) {
        self.emit(client, Packet::Cbr { ratio: self.ratio });
    }

    /// The clocks behind MTC and CYC had stopped, and run again.
    pub(super) fn time_resumed(&mut self, client: &mut impl Client) {
        if self.regs.status.trigger_en() {
            let now = client.now();
            if self.buffer.is_some() {
                self.drain_until(client, now, None);
            }
            self.timing.resume(now, self.regs.ctl, self.caps.crystal);
            self.resync_time(client);
        }
    }
}
