//! An observer that keeps what it is told, as text.

use crate::{
    CodePage, Entry, MachineObserver, Mapping, Moment, Observer, Pid, ProcessCause, ProcessorState,
    SavedCode, Step,
};
use cofi_insn::Insn;
use cofi_packet::{ExecMode, Ip};

/// What was told, a line each; addresses in hexadecimal.
#[derive(Debug, Default)]
pub(super) struct Log {
    lines: Vec<String>,
    /// Changes of code so far: the time of the last one.
    changes: u64,
}

impl Log {
    /// What was told since the last call.
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    fn tell(&mut self, line: String) {
        self.lines.push(line);
    }
}

/// The state but for the mode, which is mostly 64 bits.
fn text(state: ProcessorState) -> String {
    let ProcessorState { cpl, mode, cr3 } = state;
    match mode {
        ExecMode::Bits64 => format!("at {cpl} in {cr3:x}"),
        _ => format!("at {cpl} in {cr3:x}, {} bits", mode.bits()),
    }
}

impl Observer for Log {
    fn process(&mut self, _: Pid, _: Option<Pid>, _: ProcessCause, _: &str) {
        self.tell("a process".into());
    }

    fn thread_start(&mut self, _: Pid, _: Pid, _: Option<Pid>) {
        self.tell("a thread".into());
    }

    fn thread_exit(&mut self, _: Pid, cpu: Pid) {
        self.tell(format!("exit {cpu}"));
    }

    fn comm(&mut self, _: Pid, _: Pid, _: &str) {
        self.tell("a name".into());
    }

    fn mapped(&mut self, _: Pid, _: Pid, _: &[Mapping]) {
        self.tell("a mapping".into());
    }

    fn code(&mut self, _: Pid, _: Pid, _: SavedCode<'_>) {
        self.tell("code of a process".into());
    }

    fn resume_user(&mut self, _: Pid, _: Ip, _: ExecMode) {
        self.tell("user space".into());
    }

    fn retired(&mut self, _: Pid, ip: Ip, _: &Insn, next: Ip) {
        self.tell(format!("{:x} to {:x}", ip.0, next.0));
    }

    fn far_branch(&mut self, _: Pid, _: Ip, _: &Insn, _: Ip, _: ExecMode) {
        self.tell("a far branch of a program".into());
    }

    fn enter_kernel(&mut self, _: Pid, _: Entry) {
        self.tell("the kernel".into());
    }
}

impl MachineObserver for Log {
    fn processor(&mut self, _: Pid, cpu: Pid, ip: Ip, state: ProcessorState) {
        self.tell(format!("cpu {cpu} begins {:x} {}", ip.0, text(state)));
    }

    fn far(&mut self, _: Pid, step: &Step, to: Ip, state: ProcessorState) {
        self.tell(format!("far {:x} to {:x} {}", step.ip.0, to.0, text(state)));
    }

    fn event(&mut self, _: Pid, from: Ip, to: Ip, state: ProcessorState) {
        self.tell(format!("event {:x} to {:x} {}", from.0, to.0, text(state)));
    }

    fn mov_cr3(&mut self, _: Pid, ip: Ip, _: &Insn, next: Ip, cr3: u64) {
        self.tell(format!("cr3 {cr3:x} {:x} to {:x}", ip.0, next.0));
    }

    fn gap(&mut self, _: Pid, to: Ip, state: ProcessorState) {
        self.tell(format!("gap {:x} {}", to.0, text(state)));
    }

    fn code_changes(&mut self, _: Pid) -> Moment {
        self.changes += 1;
        self.tell(format!("change {}", self.changes));
        let mut clock = Moment::beginning().0;
        clock.ticks(self.changes);
        Moment(clock)
    }

    fn code_page(&mut self, page: CodePage<'_>) {
        // A tick is two units.
        let since = (page.since.0.tsc().0 - Moment::beginning().0.tsc().0) / 2;
        let known: Vec<String> = page
            .bytes
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte != 0)
            .map(|(at, byte)| format!("{at:x}:{byte:x}"))
            .collect();
        let (space, start) = (page.space, page.start);
        self.tell(format!(
            "page {start:x} of {space:x} since {since} {}",
            known.join(" ")
        ));
    }
}
