//! The trace unit of a thread, of either format.

use super::buffer::Buffer;
use super::pt::Pt;
use super::rtit::Rtit;
use super::{Transfer, VirtualClock};
use crate::{ProcessorState, Runs};
use cofi_packet::Ip;
use cofi_unit::{At, Capabilities, Ctl, Fault, Retired, rtit};

/// How trace units are set up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Setup {
    /// Intel PT.
    Pt {
        /// IA32_RTIT_CTL, without TraceEn.
        ctl: Ctl,
        /// What the processor has.
        caps: Capabilities,
        /// The ratio of the core's clock to the bus clock.
        core_bus_ratio: u8,
    },
    /// RTIT.
    Rtit {
        /// RTIT_CTL, without Trace_En and TraceActive.
        ctl: rtit::Ctl,
        /// RTIT_PKT_CNT.
        pkt_cnt: u64,
        /// The ratio of the core's clock to the bus clock.
        core_bus_ratio: u8,
    },
}

/// A trace unit.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a thread has one, and most are of the large kind, which must be fast"
)]
pub(super) enum TraceUnit {
    /// Intel PT's.
    Pt(Pt),
    /// RTIT's.
    Rtit(Rtit),
}

impl TraceUnit {
    /// A unit that traces from now on.
    ///
    /// # Errors
    /// The #GP of the first register write that the unit refuses.
    pub(super) fn start(
        setup: Setup,
        state: ProcessorState,
        ip: Option<Ip>,
        buffer: &mut Buffer,
    ) -> Result<Self, Fault> {
        match setup {
            Setup::Pt {
                ctl,
                caps,
                core_bus_ratio,
            } => Pt::start((ctl, caps), core_bus_ratio, state, ip, buffer).map(Self::Pt),
            Setup::Rtit {
                ctl,
                pkt_cnt,
                core_bus_ratio,
            } => Rtit::start((ctl, pkt_cnt), core_bus_ratio, state, ip, buffer).map(Self::Rtit),
        }
    }

    /// Ends tracing at `ip` or begins it there, in a way that packets tell the place.
    pub(super) fn set_tracing(&mut self, buffer: &mut Buffer, on: bool, ip: Option<Ip>) {
        match self {
            Self::Pt(unit) => unit.set_tracing(buffer, on, ip),
            Self::Rtit(unit) => unit.set_tracing(buffer, on, ip),
        }
    }

    /// Tracing is off, and what happened since is not known.
    pub(super) fn forget(&mut self, buffer: &mut Buffer) {
        match self {
            Self::Pt(unit) => unit.forget(buffer),
            // Its packets tell no state that could have changed.
            Self::Rtit(_) => {}
        }
    }

    pub(super) fn retire(&mut self, buffer: &mut Buffer, retired: Retired) {
        match self {
            Self::Pt(unit) => unit.retire(buffer, retired),
            Self::Rtit(unit) => unit.retire(buffer, retired),
        }
    }

    /// These blocks ran; `clock` goes on with them.
    pub(super) fn ran(
        &mut self,
        buffer: &mut Buffer,
        clock: &mut VirtualClock,
        runs: &mut Runs<'_>,
    ) {
        match self {
            Self::Pt(unit) => unit.ran(buffer, clock, runs),
            Self::Rtit(unit) => unit.ran(buffer, clock, runs),
        }
    }

    /// Control goes to `to`, where `state` holds already.
    pub(super) fn transfer(
        &mut self,
        buffer: &mut Buffer,
        how: Transfer,
        to: Ip,
        state: ProcessorState,
    ) {
        match self {
            Self::Pt(unit) => unit.transfer(buffer, how, to, state),
            Self::Rtit(unit) => unit.transfer(buffer, how, to, state),
        }
    }

    pub(super) fn mov_cr3(&mut self, buffer: &mut Buffer, at: At, cr3: u64) {
        match self {
            Self::Pt(unit) => unit.mov_cr3(buffer, at, cr3),
            Self::Rtit(unit) => unit.mov_cr3(buffer, at, cr3),
        }
    }

    /// Sends the time.
    pub(super) fn tell_time(&mut self, buffer: &mut Buffer) {
        match self {
            Self::Pt(unit) => unit.tell_time(buffer),
            Self::Rtit(unit) => unit.tell_time(buffer),
        }
    }

    /// Sends the time, now that tracing is on, if it could not be sent before.
    pub(super) fn tell_time_late(&mut self, buffer: &mut Buffer) {
        match self {
            Self::Pt(_) => {}
            Self::Rtit(unit) => unit.tell_time_late(buffer),
        }
    }

    /// Whether an instruction that retires now is in the trace.
    pub(super) const fn packet_en(&self) -> bool {
        match self {
            Self::Pt(unit) => unit.packet_en(),
            Self::Rtit(unit) => unit.packet_en(),
        }
    }
}
