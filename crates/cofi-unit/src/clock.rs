//! When timing packets are due: MTC, CYC, TSC with TMA (33.3.6, 33.4.2.11–14).

use crate::client::Clock;
use crate::event::GuestTsc;
use crate::spec::{CrystalRatio, Ctl};
use crate::state::{Reader, RestoreError, Writer};
use cofi_packet::intel::{Packet, Uint};
use core::ops::Range;

/// What the passing of time asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    Nothing,
    /// The watched bit range of the ART changed: an MTC with this payload.
    Mtc(u8),
    /// So much time passed unseen that MTCs can no longer tell it: TSC, TMA and CBR.
    Resync,
}

/// The state behind the timing packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Timing {
    /// ART >> MTCFreq when last looked at.
    mtc_count: u64,
    /// The TSC values in which it is that: so most looks need no division.
    mtc_span: (u64, u64),
    /// Core cycles at the last CYC, or when counting began.
    cyc_origin: u64,
    /// A CYC was sent in the cycle `cyc_origin`.
    cyc_sent: bool,
    /// The last CYC stood alone: the next eligible packet has one of its own, whatever the threshold (33.4.2.14).
    cyc_owed: bool,
}

/// So many MTCs may be dropped in a row before a resync: half of what their 8-bit payload can tell.
const MAX_DROPPED_MTC: u64 = 128;

impl Timing {
    /// TriggerEn was set: counting begins, from zero, as the cycle counter was reset when TriggerEn was cleared (33.3.6.1).
    pub(crate) fn start(&mut self, clock: Clock, ctl: Ctl, crystal: CrystalRatio) {
        self.resume(clock, ctl, crystal);
        // If the last CYC came in this very cycle, there is no other (Table 33-33).
        self.cyc_sent &= self.cyc_origin == clock.cycles;
        (self.cyc_origin, self.cyc_owed) = (clock.cycles, false);
    }

    /// The clocks had stopped, and run again: no MTC is owed for what they missed.
    pub(crate) fn resume(&mut self, clock: Clock, ctl: Ctl, crystal: CrystalRatio) {
        self.mtc_count = crystal.art(clock.tsc).0 >> ctl.mtc_freq();
        self.mtc_span = (0, 0);
    }

    /// What the cycle counter holds (33.3.6.1).
    pub(crate) fn cycles(&self, clock: Clock) -> u64 {
        clock.cycles.wrapping_sub(self.cyc_origin)
    }

    /// A CYC was sent in this cycle, and there is no other in it (Table 33-33): the cycle counter holds nothing.
    pub(crate) fn has_cyc(&self, clock: Clock) -> bool {
        self.cyc_sent && self.cycles(clock) == 0
    }

    /// What the cycle counter held, at most `limit`, from which on it counts anew: a stand-alone CYC tells it.
    pub(crate) fn take_cycles(&mut self, clock: Clock, limit: u64) -> u64 {
        let cycles = self.cycles(clock).min(limit);
        self.cyc_origin = self.cyc_origin.wrapping_add(cycles);
        // It is the CYC of whatever comes in the same cycle, and whatever comes later has its own (33.4.2.14).
        (self.cyc_sent, self.cyc_owed) = (true, true);
        cycles
    }

    /// Whether [`Self::advance`] would find nothing due.
    #[inline]
    pub(crate) fn is_quiet(&self, clock: Clock, ctl: Ctl) -> bool {
        let (from, until) = self.mtc_span;
        !ctl.mtc_en() || (from..until).contains(&clock.tsc)
    }

    /// The TSC values in which [`Self::advance`] finds nothing due.
    pub(crate) fn quiet(&self, ctl: Ctl) -> Range<u64> {
        let (from, until) = self.mtc_span;
        if ctl.mtc_en() {
            from..until
        } else {
            0..u64::MAX
        }
    }

    /// Time went on to `clock`. An MTC is due whenever the watched bits change; where the client's clock jumps over
    /// several, only the last is sent (33.4.2.12 lets MTCs be dropped).
    pub(crate) fn advance(&mut self, clock: Clock, ctl: Ctl, crystal: CrystalRatio) -> Due {
        if self.is_quiet(clock, ctl) {
            return Due::Nothing;
        }
        let count = crystal.art(clock.tsc).0 >> ctl.mtc_freq();
        let passed = count.wrapping_sub(core::mem::replace(&mut self.mtc_count, count));
        let next = count.wrapping_add(1).checked_mul(1 << ctl.mtc_freq());
        let until = next.and_then(|art| crystal.tsc(art)).unwrap_or(0);
        self.mtc_span = (clock.tsc, until);
        match passed {
            0 => Due::Nothing,
            1..=MAX_DROPPED_MTC => Due::Mtc(count as u8),
            _ if ctl.tsc_en() => Due::Resync,
            _ => Due::Mtc(count as u8),
        }
    }

    /// A CYC-eligible packet is about to be sent: the cycle count to send before it, if one is due.
    pub(crate) fn cyc(&mut self, clock: Clock, ctl: Ctl) -> Option<u64> {
        let cycles = self.cycles(clock);
        let threshold = match ctl.cyc_thresh() {
            0 => 0,
            n => 1 << (n - 1),
        };
        if !ctl.cyc_en() || self.has_cyc(clock) || cycles < threshold && !self.cyc_owed {
            return None;
        }
        self.cyc_origin = clock.cycles;
        (self.cyc_sent, self.cyc_owed) = (true, false);
        Some(cycles)
    }
}

impl Timing {
    pub(crate) fn save(&self, writer: &mut Writer) {
        // The span follows from the count, when time is looked at next.
        let Self {
            mtc_count,
            mtc_span: _,
            cyc_origin,
            cyc_sent,
            cyc_owed,
        } = *self;
        writer.u64(mtc_count);
        writer.u64(cyc_origin);
        // Here stood the count at the end of tracing, which is no more.
        writer.u64(0);
        writer.bool(cyc_sent);
        writer.bool(cyc_owed);
    }

    pub(crate) fn restore(reader: &mut Reader<'_>) -> Result<Self, RestoreError> {
        let mtc_count = reader.u64("the MTC count")?;
        let cyc_origin = reader.u64("the origin of the cycle counter")?;
        reader.u64("the count that is no more")?;
        Ok(Self {
            mtc_count,
            mtc_span: (0, 0),
            cyc_origin,
            cyc_sent: reader.bool("CYC sent")?,
            cyc_owed: reader.bool("CYC owed")?,
        })
    }
}

/// The TSC packet for a moment, and its TMA where MTCs are on too.
pub(crate) fn tsc_tma(
    clock: Clock,
    guest: GuestTsc,
    ctl: Ctl,
    crystal: CrystalRatio,
) -> (Packet, Option<Packet>) {
    let tsc = Packet::Tsc {
        // With the offset and scaling of VMX non-root operation; the crystal clock has none (33.8.3.3).
        tsc: Uint::truncate(guest.apply(clock.tsc)),
    };
    let (art, fast) = crystal.art(clock.tsc);
    let tma = Packet::Tma {
        ctc: art as u16,
        fc: Uint::truncate(fast),
    };
    (tsc, ctl.mtc_en().then_some(tma))
}
