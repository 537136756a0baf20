//! ContextEn, FilterEn and TraceStop (2.1, 2.4, 3.3.5, 4.2.11).

use super::Unit;
use super::overflow::HeldStop;
use crate::rtit::event::Client;
use crate::rtit::msr::Events;
use cofi_packet::Ip;
use cofi_packet::rtit::Packet;

/// CR3[35:5], which RTIT_CR3_MATCH compares (3.3.8).
const CR3_BITS: u64 = 0xf_ffff_ffe0;

/// Bits 47:0, at the top.
const fn lip(address: u64) -> u64 {
    address << 16
}

impl Unit {
    /// ContextEn by the present registers and context (2.1.2).
    pub(super) const fn context_en(&self) -> bool {
        let ctl = self.regs.ctl;
        let by_cpl = if self.context.cpl == 0 {
            ctl.os()
        } else {
            ctl.user()
        };
        let differing = (self.regs.cr3_match.0 ^ self.context.cr3) & CR3_BITS;
        let by_cr3 = !ctl.cr3_en() || differing == 0;
        by_cpl && by_cr3 && !self.smm && !self.vmx_root
    }

    /// Whether `ip` is the base or the limit of a range.
    #[inline]
    pub(super) fn is_end_of_range(&self, ip: Ip) -> bool {
        self.regs.lips.iter().any(|end| lip(end.0) == lip(ip.0))
    }

    /// Whether `ip` is in the ranges of this event id; `None` for the ids that are none.
    fn in_ranges(&self, id: u64, ip: Ip) -> Option<bool> {
        let [base0, base1, limit0, limit1] = self.regs.lips;
        let in_range = |base: u64, limit: u64| (lip(base)..lip(limit)).contains(&lip(ip.0));
        let in_range0 = in_range(base0.0, limit0.0);
        let in_range1 = in_range(base1.0, limit1.0);
        match id {
            Events::RANGE0 => Some(in_range0),
            Events::RANGE1 => Some(in_range1),
            Events::RANGE0_OR_1 => Some(in_range0 || in_range1),
            _ => None,
        }
    }

    /// Whether a taken branch to `to` changes neither FilterEn nor meets a TraceStop.
    #[inline]
    pub(super) fn stays(&self, to: Ip) -> bool {
        let (events, status) = (self.regs.events, self.regs.status);
        let is_filtered = self.in_ranges(events.filter(), to);
        let is_stop = self.in_ranges(events.trace_stop(), to);
        !status.context_en()
            || is_filtered.is_none_or(|inside| inside == status.filter_en())
                && is_stop != Some(true)
    }

    /// Whether going straight ahead to `ip` comes to an end of the ranges of this event id.
    fn at_end(&self, id: u64, ip: Ip) -> bool {
        let [base0, base1, limit0, limit1] = self.regs.lips;
        let is = |end: u64| lip(end) == lip(ip.0);
        let (at0, at1) = (is(base0.0) || is(limit0.0), is(base1.0) || is(limit1.0));
        match id {
            Events::RANGE0 => at0,
            Events::RANGE1 => at1,
            Events::RANGE0_OR_1 => at0 || at1,
            _ => false,
        }
    }

    /// Control goes to `to`, by a taken branch or event or straight ahead, in the context that holds there: FilterEn and the other
    /// enables follow. Whether a TraceStop is met; one in a buffer overflow is held, and not returned. Who has changed registers or
    /// context before has refreshed the unit.
    ///
    /// An end of a range counts as what it is for the ranges of the event id as a whole: the limit of one within the other does not
    /// clear FilterEn.
    pub(super) fn arrive(&mut self, to: Ip, is_taken: bool) -> bool {
        let events = self.regs.events;
        let context_en = self.regs.status.context_en();
        if self.regs.ctl.trace_en() && context_en {
            let id = events.filter();
            let filter_en = match self.in_ranges(id, to) {
                Some(inside) if is_taken || self.at_end(id, to) => inside,
                Some(_) => self.regs.status.filter_en(),
                None => id == Events::ALWAYS_ON,
            };
            if filter_en != self.regs.status.filter_en() {
                self.regs.status = self.regs.status.with_filter_en(filter_en);
                self.refresh();
            }
        }
        if !(self.regs.status.trigger_en() && context_en) {
            return false;
        }
        let id = events.trace_stop();
        let stops = match self.in_ranges(id, to) {
            Some(inside) => inside && (is_taken || self.at_end(id, to)),
            None => id == Events::ALWAYS_ON,
        };
        if stops && self.regs.status.buffer_overflow() {
            self.hold_stop();
            return false;
        }
        stops
    }

    /// A TraceStop is met in a buffer overflow: it waits for its end.
    pub(super) fn hold_stop(&mut self) {
        let is_lost = self.choices.errata.e4 && self.sometimes();
        self.held_stop.get_or_insert(match is_lost {
            true => HeldStop::PacketOnly,
            false => HeldStop::Whole,
        });
    }

    /// The TraceStop action (4.2.11). What is in RTIT_TNT_BUFF stays there.
    pub(super) fn trace_stop(&mut self, client: &mut impl Client) {
        let len = self.put_stop(client);
        self.regs.ctl = self.regs.ctl.with_trace_active(false);
        self.regs.status = self.regs.status.with_filter_en(false);
        self.refresh();
        // Tracing is off: no PSB follows.
        self.count_packet(client, len);
    }

    /// The TraceStop packet alone; tracing goes on (E4).
    pub(super) fn stop_packet(&mut self, client: &mut impl Client) {
        let len = self.put_stop(client);
        self.count_packet(client, len);
    }

    /// The TraceStop packet, and its length; it is not counted yet. It drains what came before it, so there is always room for it, and it
    /// is written where Dest says.
    fn put_stop(&mut self, client: &mut impl Client) -> u64 {
        self.drain_buffer(client);
        let raw = Packet::TraceStop.encode();
        let bytes = &raw.bytes()[..raw.len()];
        self.output
            .store_stop(&mut self.regs, &mut self.dice, client, bytes);
        bytes.len() as u64
    }
}
