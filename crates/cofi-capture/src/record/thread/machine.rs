//! A machine's processor, which is traced at every privilege level.

use super::{Thread, VirtualClock};
use crate::ProcessorState;
use cofi_insn::Insn;
use cofi_packet::Ip;
use cofi_unit::{At, Capabilities, Context, Ctl, Fault};

impl From<ProcessorState> for Context {
    fn from(state: ProcessorState) -> Self {
        Self {
            cpl: state.cpl,
            cr3: state.cr3,
            mode: state.mode,
            ..Self::default()
        }
    }
}

impl Thread {
    /// A processor that is about to run the instruction at `ip`; otherwise as [`Self::start`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) fn start_processor(
        ids: (u32, u32, u32, u64),
        ctl: Ctl,
        caps: Capabilities,
        core_bus_ratio: u8,
        clock: VirtualClock,
        (ip, state): (Ip, ProcessorState),
    ) -> Result<Self, Fault> {
        Self::start_in(
            ids,
            ctl,
            caps,
            core_bus_ratio,
            clock,
            state.into(),
            Some(ip),
        )
    }

    /// A far transfer that the code shows.
    pub(crate) fn far_to(&mut self, clock: VirtualClock, to: Ip, state: ProcessorState) {
        self.buffer.clock = clock.0;
        self.ip = Some(to);
        self.context = state.into();
        self.unit.far_transfer(&mut self.buffer, to, self.context);
    }

    /// An interrupt or exception.
    pub(crate) fn event_to(
        &mut self,
        clock: VirtualClock,
        from: Ip,
        to: Ip,
        state: ProcessorState,
    ) {
        self.buffer.clock = clock.0;
        self.ip = Some(to);
        self.context = state.into();
        self.unit.event(&mut self.buffer, from, to, self.context);
    }

    /// MOV to CR3.
    pub(crate) fn mov_cr3(&mut self, clock: VirtualClock, ip: Ip, insn: &Insn, next: Ip, cr3: u64) {
        self.buffer.clock = clock.0;
        self.ip = Some(next);
        let at = At {
            ip,
            next: insn.next_ip(ip, self.context.mode),
        };
        self.context = Context {
            cr3,
            ..self.context
        };
        self.unit.mov_cr3(&mut self.buffer, at, cr3);
    }

    /// What lies between here and `to` is not known: tracing stops here, and goes on there.
    pub(crate) fn gap_to(&mut self, clock: VirtualClock, to: Ip, state: ProcessorState) {
        self.buffer.clock = clock.0;
        self.set_trace_en(false);
        self.ip = Some(to);
        self.context = state.into();
        self.unit.far_transfer(&mut self.buffer, to, self.context);
        self.set_trace_en(true);
    }
}
