//! What the recorder makes of a whole machine: a trace unit for each of its processors, and the pages of code that they ran.

use super::thread::{Thread, VirtualClock};
use super::{CHUNK, RecordError, Recorder, write_error};
use crate::{CodePage, MachineObserver, Moment, Pid, ProcessorState, Step};
use cofi_insn::{Checksum, Insn};
use cofi_packet::Ip;
use cofi_perf::{Mmap2, Subject, Task};
use std::os::unix::ffi::OsStrExt;

impl MachineObserver for Recorder {
    fn processor(&mut self, pid: Pid, cpu: Pid, ip: Ip, state: ProcessorState) {
        self.begin();
        let task = Task { pid, tid: cpu };
        let name = format!("CPU {}", cpu.saturating_sub(1));
        let clock = self.clock;
        let result = self.file.comm(task, &name, false, clock).and_then(|()| {
            let pid = state.address_space();
            self.file.itrace_start(Task { pid, tid: cpu }, clock)
        });
        self.keep(result);
        self.told_space.insert(cpu, state.address_space());
        self.clock.pause();
        if self.error.is_some() {
            return;
        }
        let index = self.streams;
        self.streams += 1;
        let thread = Thread::start_processor(
            (pid, cpu, index, 0),
            self.settings.setup(),
            self.clock,
            (ip, state),
        );
        if let Some(thread) = self.keep(thread.map_err(RecordError::from)) {
            self.threads.insert(thread);
        }
        if let Some(truth) = &mut self.truth {
            let result = truth
                .begin(index, cpu)
                .map_err(write_error(&self.settings.file));
            self.keep(result);
        }
    }

    fn ran_block(&mut self, cpu: Pid, steps: &[Step], checksum: Checksum, next: Ip) {
        self.clock.ticks(steps.len() as u64);
        let Some(thread) = self.threads.get_mut(cpu) else {
            return;
        };
        thread.ran_block(self.clock, steps, checksum, next);
        // What runs at a level that is not traced comes here too.
        if !thread.is_traced() {
            return;
        }
        self.instructions += steps.len() as u64;
        let (index, is_full) = (thread.index, thread.waiting() >= CHUNK);
        if let Some(truth) = &mut self.truth {
            let result = steps.iter().try_for_each(|step| truth.push(index, step.ip));
            self.keep(result.map_err(write_error(&self.settings.file)));
        }
        if is_full {
            self.after_step(cpu);
        }
    }

    fn far(&mut self, cpu: Pid, step: &Step, to: Ip, state: ProcessorState) {
        self.clock.tick();
        self.tell_space(cpu, state);
        let clock = self.clock;
        self.truth(cpu, step.ip);
        if let Some(thread) = self.threads.get_mut(cpu) {
            thread.far_to(clock, step, to, state);
            self.tell_mode_of(cpu, state);
            self.after_step(cpu);
        }
    }

    fn event(&mut self, cpu: Pid, from: Ip, to: Ip, state: ProcessorState) {
        self.tell_space(cpu, state);
        let clock = self.clock;
        if let Some(thread) = self.threads.get_mut(cpu) {
            thread.event_to(clock, from, to, state);
            self.tell_mode_of(cpu, state);
            self.after_step(cpu);
        }
    }

    fn software_interrupt(&mut self, cpu: Pid, step: &Step, to: Ip, state: ProcessorState) {
        let thread = self.threads.get_mut(cpu);
        if !thread.is_some_and(|thread| thread.is_rtit()) {
            return self.event(cpu, step.ip, to, state);
        }
        self.clock.tick();
        self.tell_space(cpu, state);
        let clock = self.clock;
        self.truth(cpu, step.ip);
        if let Some(thread) = self.threads.get_mut(cpu) {
            thread.software_interrupt_to(clock, step, to, state);
            self.tell_mode_of(cpu, state);
            self.after_step(cpu);
        }
    }

    fn mov_cr3(&mut self, cpu: Pid, ip: Ip, insn: &Insn, next: Ip, cr3: u64) {
        self.clock.tick();
        let clock = self.clock;
        self.truth(cpu, ip);
        if let Some(thread) = self.threads.get_mut(cpu) {
            thread.mov_cr3(clock, ip, insn, next, cr3);
            self.after_step(cpu);
        }
    }

    fn gap(&mut self, cpu: Pid, to: Ip, state: ProcessorState) {
        self.clock.pause();
        self.tell_space(cpu, state);
        let clock = self.clock;
        if let Some(thread) = self.threads.get_mut(cpu) {
            thread.gap_begin(clock);
            let mut result = self.file.announce_loss(thread, clock);
            if thread.is_rtit() {
                // No packet tells these where tracing begins.
                thread.mode_told(state.mode);
                let pid = state.address_space();
                let told = self.file.itrace_start(Task { pid, tid: cpu }, clock);
                result = result.and(told);
            }
            thread.gap_end(clock, to, state);
            self.keep(result);
            self.after_step(cpu);
        }
    }

    fn code_changes(&mut self, pid: Pid) -> Moment {
        let mut moment = self.clock;
        self.mark(pid, |_, clock| {
            moment = clock;
            Ok(())
        });
        Moment(moment)
    }

    fn code_page(&mut self, page: CodePage<'_>) {
        let saved = self.saved.save_page(page.bytes);
        let Some((path, offset)) = self.keep(saved.map_err(write_error(self.saved.folder())))
        else {
            return;
        };
        let task = Task {
            pid: page.space,
            tid: page.space,
        };
        let record = Mmap2 {
            start: page.start,
            len: page.bytes.len() as u64,
            pgoff: offset,
            device: (0, 0),
            inode: 0,
            prot: 5,
            path: path.as_os_str().as_bytes(),
        };
        let result = self.file.mmap2(task, &record, page.since.0);
        self.keep(result);
    }
}

impl Recorder {
    /// See [`Self::tell_mode`]. Where nothing is traced, no code is read.
    fn tell_mode_of(&mut self, cpu: Pid, state: ProcessorState) {
        let thread = self.threads.get_mut(cpu);
        if thread.is_some_and(|thread| thread.is_traced()) {
            self.tell_mode(cpu, state.mode);
        }
    }

    /// Where the operating system is not traced there are no PIP packets: records say in which address space a processor is that
    /// is about to run a program.
    fn tell_space(&mut self, cpu: Pid, state: ProcessorState) {
        let Subject::Guest { os: false, .. } = self.settings.subject else {
            return;
        };
        let space = state.address_space();
        if state.cpl == 0 || self.told_space.get(&cpu) == Some(&space) {
            return;
        }
        self.told_space.insert(cpu, space);
        let Some(machine) = self.threads.get_mut(cpu).map(|thread| thread.pid) else {
            return;
        };
        let task = Task {
            pid: space,
            tid: cpu,
        };
        self.mark(machine, |file, clock| file.itrace_start(task, clock));
    }
}

impl Moment {
    /// Before anything ran.
    #[must_use]
    pub const fn beginning() -> Self {
        Self(VirtualClock::new())
    }
}
