//! A machine's processor, which is traced at every privilege level.

use super::{Thread, VirtualClock};
use crate::ProcessorState;
use cofi_insn::Insn;
use cofi_packet::Ip;
use cofi_unit::{At, Capabilities, Context, Ctl, Event, Fault, msr};

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
        self.transfer(None, to);
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
        self.transfer(Some(from), to);
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
        self.unit.event(&mut self.buffer, Event::MovCr3 { at, cr3 });
    }

    /// Whether an instruction that retires now is in the trace: its privilege level is traced.
    pub(crate) const fn is_traced(&self) -> bool {
        self.unit.packet_en()
    }

    /// What comes now is not known: tracing stops, until [`Self::gap_end`].
    pub(crate) fn gap_begin(&mut self, clock: VirtualClock) {
        self.buffer.clock = clock.0;
        self.set_trace_en(false);
    }

    /// The processor is known to be at `to`. Tracing begins with a PSB, as CR3 may have changed, of which PSB+ tells.
    pub(crate) fn gap_end(&mut self, clock: VirtualClock, to: Ip, state: ProcessorState) {
        self.buffer.clock = clock.0;
        self.ip = Some(to);
        self.context = state.into();
        self.transfer(None, to);
        let result = self.write(msr::IA32_RTIT_STATUS, 0);
        debug_assert_eq!(result, Ok(()), "TraceEn is clear");
        self.set_trace_en(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Settings;
    use cofi_packet::ExecMode;
    use cofi_packet::intel::{Cr3, Packet};
    use cofi_perf::PtConfig;

    #[test]
    fn after_a_gap_the_address_space_is_told() {
        let state = |cr3| ProcessorState {
            cpl: 0,
            mode: ExecMode::Bits64,
            cr3,
        };
        let ctl = Ctl(PtConfig::default().bits() & !1)
            .with_os(true)
            .with_user(true);
        let mut thread = Thread::start_processor(
            (1, 1, 0, 0),
            ctl,
            Settings::capabilities(),
            20,
            VirtualClock::new(),
            (Ip(0x1000), state(0x5000)),
        )
        .unwrap();
        let mut clock = VirtualClock::new();
        for cr3 in [0x6000, 0x7000] {
            clock.pause();
            let begin = thread.buffer.bytes.len();
            thread.gap_begin(clock);
            thread.gap_end(clock, Ip(0x2000), state(cr3));
            let told = Packet::Pip {
                cr3: Cr3::truncate(cr3),
                nr: false,
            };
            let told = told.encode();
            let bytes = &thread.buffer.bytes[begin..];
            let found = bytes
                .windows(told.len())
                .any(|part| *part == told.bytes()[..told.len()]);
            assert!(found, "{cr3:x}: {bytes:x?}");
        }
    }
}
