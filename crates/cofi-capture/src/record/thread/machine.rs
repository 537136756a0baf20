//! A machine's processor, which is traced at every privilege level.

use super::{Setup, Thread, Transfer, VirtualClock};
use crate::{ProcessorState, Step};
use cofi_insn::{Checksum, Insn};
use cofi_packet::Ip;
use cofi_unit::{At, Fault};

impl Thread {
    /// A processor that is about to run the instruction at `ip`; otherwise as [`Self::start`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) fn start_processor(
        ids: (u32, u32, u32, u64),
        setup: Setup,
        clock: VirtualClock,
        (ip, state): (Ip, ProcessorState),
    ) -> Result<Self, Fault> {
        Self::start_in(ids, setup, clock, state, Some(ip))
    }

    /// These instructions ran one after the other, of which only the last may be a branch, and no far one.
    pub(crate) fn ran_block(
        &mut self,
        clock: VirtualClock,
        steps: &[Step],
        checksum: Checksum,
        next: Ip,
    ) {
        if let Some(last) = steps.last() {
            self.count(checksum);
            self.last_retired(clock, last.ip, &last.insn, next);
        }
    }

    /// A far transfer that the code shows.
    pub(crate) fn far_to(
        &mut self,
        clock: VirtualClock,
        step: &Step,
        to: Ip,
        state: ProcessorState,
    ) {
        self.count_one(step.ip, &step.insn);
        self.buffer.clock = clock.0;
        let at = self.at(step.ip, &step.insn);
        self.ip = Some(to);
        self.state = state;
        self.transfer(Transfer::Branch(at), to);
    }

    /// A software interrupt that is an instruction.
    pub(crate) fn software_interrupt_to(
        &mut self,
        clock: VirtualClock,
        step: &Step,
        to: Ip,
        state: ProcessorState,
    ) {
        self.count_one(step.ip, &step.insn);
        self.buffer.clock = clock.0;
        let at = self.at(step.ip, &step.insn);
        self.ip = Some(to);
        self.state = state;
        self.transfer(Transfer::Software(at), to);
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
        self.state = state;
        self.transfer(Transfer::Event(from), to);
    }

    /// MOV to CR3.
    pub(crate) fn mov_cr3(&mut self, clock: VirtualClock, ip: Ip, insn: &Insn, next: Ip, cr3: u64) {
        self.count_one(ip, insn);
        self.buffer.clock = clock.0;
        self.ip = Some(next);
        let at = self.at(ip, insn);
        self.state.cr3 = cr3;
        self.unit.mov_cr3(&mut self.buffer, at, cr3);
    }

    /// Whether an instruction that retires now is in the trace: its privilege level is traced.
    pub(crate) const fn is_traced(&self) -> bool {
        self.unit.packet_en()
    }

    /// What comes now is not known: tracing stops, until [`Self::gap_end`].
    pub(crate) fn gap_begin(&mut self, clock: VirtualClock) {
        self.buffer.clock = clock.0;
        self.set_tracing(false);
    }

    /// The processor is known to be at `to`. Tracing begins with a PSB, as CR3 may have changed, of which PSB+ tells.
    pub(crate) fn gap_end(&mut self, clock: VirtualClock, to: Ip, state: ProcessorState) {
        self.buffer.clock = clock.0;
        self.ip = Some(to);
        self.state = state;
        self.transfer(Transfer::Branch(At::default()), to);
        self.unit.forget(&mut self.buffer);
        self.set_tracing(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Settings;
    use cofi_packet::ExecMode;
    use cofi_packet::intel::{Cr3, Packet};
    use cofi_perf::{Subject, TraceConfig};
    use std::path::PathBuf;

    #[test]
    fn after_a_gap_the_address_space_is_told() {
        let state = |cr3| ProcessorState {
            cpl: 0,
            mode: ExecMode::Bits64,
            cr3,
        };
        let settings = Settings {
            file: PathBuf::new(),
            raw_output: None,
            config: TraceConfig::default(),
            command_line: Vec::new(),
            subject: Subject::Guest {
                os: true,
                user: true,
            },
            engine: "ptrace".into(),
            patience: Settings::PATIENCE,
            last: None,
            window: None,
        };
        let mut thread = Thread::start_processor(
            (1, 1, 0, 0),
            settings.setup(),
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
