//! One thread: from the blocks that it entered to what it did.
//!
//! A record says that a block was entered. Whether it was finished, and how, the next record tells: control went to a place
//! where the block can lead, or a signal's handler began, which says what was interrupted.

use super::blocks::{Blocks, is_vsyscall, may_follow};
use super::death::is_fault;
use crate::runs::Block;
use crate::{Change, Entry, Lane, Observer, Pid, Step};
use cofi_insn::Class;
use cofi_packet::{ExecMode, Ip};
use cofi_qemu_plugin::layout::record;

/// A signal whose handler is about to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signal {
    /// Where it interrupted.
    pub(super) ip: Ip,
    pub(super) number: u32,
    pub(super) code: i32,
    /// What stands in the place of `si_addr`.
    pub(super) address: u64,
}

impl Signal {
    /// Whether an instruction raised it, the one at `ip`, which did not retire.
    const fn is_fault(&self) -> bool {
        is_fault(self.number as i32, self.code)
    }

    /// As it is reported: a handler runs.
    fn reported(&self) -> crate::Signal {
        let is_code_known = self.code as u32 != record::NO_CODE;
        let has_address = crate::Signal::has_address(self.number as i32, self.code);
        crate::Signal {
            number: self.number,
            code: if is_code_known { self.code } else { 0 },
            ip: Some(self.ip),
            address: has_address.then_some(self.address),
            is_fatal: false,
        }
    }
}

/// One thread.
#[derive(Debug)]
pub(super) struct Thread {
    pid: Pid,
    pub(super) tid: Pid,
    /// The block that was entered last, until it is known how it ended.
    entered: Option<u32>,
    signal: Option<Signal>,
    /// The system call that the last block ended with has begun.
    in_system_call: bool,
    /// How often control went where nothing explains.
    pub(super) unexplained: u64,
    /// The instructions of a block that is told one by one; memory for them, so that none is asked for each time.
    steps: Vec<Step>,
}

impl Thread {
    pub(super) const fn new(pid: Pid, tid: Pid) -> Self {
        Self {
            pid,
            tid,
            entered: None,
            signal: None,
            in_system_call: false,
            unexplained: 0,
            steps: Vec::new(),
        }
    }

    /// A signal's handler begins with the next block.
    pub(super) fn signal(&mut self, signal: Signal) {
        self.signal = Some(signal);
    }

    /// A system call begins.
    pub(super) fn system_call(&mut self) {
        self.in_system_call = true;
    }

    /// Hands on what is simple at the beginning of these records; what is left of them.
    pub(super) fn run<'r>(
        &mut self,
        lane: &mut (impl Lane + ?Sized),
        blocks: &Blocks,
        records: &'r [u32],
    ) -> &'r [u32] {
        let (Some(before), None) = (self.entered, self.signal) else {
            return records;
        };
        let Some(mut runs) = blocks.runs(before, records) else {
            return records;
        };
        lane.ran(self.tid, &mut runs);
        let (ran, rest) = records.split_at(records.len() - runs.left());
        self.entered = ran.last().copied().or(self.entered);
        rest
    }

    /// Hands on what these records say, up to the first for which it takes more than this thread: something is to be told of its process, or
    /// is not known yet. What is left of them.
    pub(super) fn run_apart<'r>(
        &mut self,
        lane: &mut (impl Lane + ?Sized),
        blocks: &Blocks,
        mut records: &'r [u32],
    ) -> &'r [u32] {
        loop {
            records = self.run(lane, blocks, records);
            records = match *records {
                [record::SYSCALL, number, ref rest @ ..] if Change::by_call(number).is_none() => {
                    self.system_call();
                    rest
                }
                [number, ref rest @ ..]
                    if number < record::SPECIAL
                        && self.signal.is_none()
                        && self.entered.is_none_or(|before| blocks.is_told(before))
                        && blocks.get(number).is_some() =>
                {
                    self.go_on(lane, blocks, number);
                    rest
                }
                _ => return records,
            };
        }
    }

    /// A block was entered.
    pub(super) fn enter(&mut self, observer: &mut dyn Observer, blocks: &mut Blocks, number: u32) {
        let Some(block) = blocks.get(number) else {
            self.unexplained += 1;
            return;
        };
        let start = block.start();
        if let Some(before) = self.entered {
            blocks.tell(observer, self.pid, before);
        }
        let Some(signal) = self.signal.take() else {
            return self.go_on(observer, blocks, number);
        };
        self.in_system_call = false;
        let before = self.entered.replace(number);
        if let Some(before) = before
            && let Some(block) = blocks.get(before)
        {
            self.interrupted(observer, block, &blocks.steps(before), signal);
            observer.signal(self.tid, signal.reported());
        }
        observer.resume_user(self.tid, start, ExecMode::Bits64);
    }

    /// A block was entered that there is, and not because of a signal; all is told that ran until then.
    fn go_on(&mut self, lane: &mut (impl Lane + ?Sized), blocks: &Blocks, number: u32) {
        let before = self.entered.replace(number);
        self.in_system_call = false;
        let Some(block) = blocks.get(number) else {
            return;
        };
        let Some((before, known)) = before.and_then(|before| Some((before, blocks.get(before)?)))
        else {
            return lane.resume_user(self.tid, block.start());
        };
        let mut steps = std::mem::take(&mut self.steps);
        steps.clear();
        steps.extend(blocks.kept_steps(before));
        self.completed(lane, known, &steps, block);
        self.steps = steps;
    }

    /// A block ran to its end, and control went to `block`.
    fn completed(
        &mut self,
        lane: &mut (impl Lane + ?Sized),
        before: &Block,
        steps: &[Step],
        block: &Block,
    ) {
        let next = block.start();
        let Some((last, body)) = steps.split_last() else {
            // A call that QEMU carries out in the kernel's place, or a block without an instruction that could be read: #UD.
            self.unexplained += u64::from(!is_vsyscall(before.start()));
            lane.enter_kernel(
                self.tid,
                Entry::Event {
                    from: before.start(),
                },
            );
            return lane.resume_user(self.tid, next);
        };
        // A repeated string instruction enters its block anew for each round.
        let goes_round = last.insn.repeats && next == last.ip;
        let follows = goes_round || may_follow(last, next, ExecMode::Bits64);
        if (!follows || block.is_resumed())
            && !before.is_resumed()
            && let Some(place) = steps.iter().position(|step| step.ip == next)
        {
            // QEMU stopped in the middle, and goes on from there with a block of one instruction.
            return self.retire(lane, &steps[..place], next);
        }
        if !follows {
            // QEMU does not tell why. What is certain is that the block was entered.
            self.unexplained += 1;
            lane.enter_kernel(self.tid, Entry::Event { from: steps[0].ip });
            return lane.resume_user(self.tid, next);
        }
        self.retire(lane, body, last.ip);
        if goes_round {
            return;
        }
        match last.insn.class {
            Class::Syscall => {
                self.leave(lane, last);
                lane.resume_user(self.tid, next);
            }
            Class::SoftwareInterrupt => {
                let (ip, insn) = (last.ip, last.insn);
                lane.enter_kernel(self.tid, Entry::SoftwareInterrupt { ip, insn });
                lane.resume_user(self.tid, next);
            }
            Class::FarCall | Class::FarJump | Class::FarReturn => {
                lane.far_branch(self.tid, last.ip, &last.insn, next);
            }
            _ => lane.retired(self.tid, last.ip, &last.insn, next),
        }
    }

    /// A signal interrupted a block, or what came behind it.
    fn interrupted(
        &mut self,
        observer: &mut dyn Observer,
        before: &Block,
        steps: &[Step],
        signal: Signal,
    ) {
        let Some((last, body)) = steps.split_last() else {
            let from = before.start();
            return observer.enter_kernel(self.tid, Entry::Event { from });
        };
        // In the middle: at an instruction that faults, or where QEMU stopped to let one run alone. A system call that is to
        // be made again stands in its block, too, but was made.
        let place = steps.iter().position(|step| {
            step.ip == signal.ip
                && step.insn.class != Class::Syscall
                && (signal.is_fault()
                    || !(step.insn.repeats || may_follow(last, signal.ip, ExecMode::Bits64)))
        });
        let from = match (last.insn.class, place) {
            (_, Some(place)) => {
                self.retire(observer, &steps[..place], signal.ip);
                signal.ip
            }
            (Class::SoftwareInterrupt, _) => {
                self.retire(observer, body, last.ip);
                let (ip, insn) = (last.ip, last.insn);
                let entry = Entry::SoftwareInterrupt { ip, insn };
                return observer.enter_kernel(self.tid, entry);
            }
            (Class::Syscall, _) => {
                self.retire(observer, body, last.ip);
                return self.leave(observer, last);
            }
            _ => {
                self.retire(observer, body, last.ip);
                if !last.insn.repeats || signal.ip != last.ip {
                    observer.retired(self.tid, last.ip, &last.insn, signal.ip);
                }
                signal.ip
            }
        };
        observer.enter_kernel(self.tid, Entry::Event { from });
    }

    fn leave(&self, lane: &mut (impl Lane + ?Sized), step: &Step) {
        let (ip, insn) = (step.ip, step.insn);
        lane.enter_kernel(self.tid, Entry::Instruction { ip, insn });
    }

    /// These instructions ran, one after the other, and `next` after them.
    fn retire(&self, lane: &mut (impl Lane + ?Sized), steps: &[Step], next: Ip) {
        for (i, step) in steps.iter().enumerate() {
            let next = steps.get(i + 1).map_or(next, |step| step.ip);
            lane.retired(self.tid, step.ip, &step.insn, next);
        }
    }

    /// A signal has ended the thread, perhaps at `ip`. Where that was, as far as its last block agrees, and whether that is known.
    pub(super) fn die(
        &mut self,
        observer: &mut dyn Observer,
        blocks: &mut Blocks,
        ip: Option<Ip>,
    ) -> (Option<Ip>, bool) {
        let Some(number) = self.entered else {
            return (None, true);
        };
        blocks.tell(observer, self.pid, number);
        let steps = blocks.steps(number);
        if self.in_system_call {
            let after = |last: &Step| last.insn.next_ip(last.ip, ExecMode::Bits64);
            let ip = steps.last().map(after);
            return (ip, self.end(observer, blocks));
        }
        let Some(place) = ip.and_then(|ip| steps.iter().position(|step| step.ip == ip)) else {
            return (None, self.end(observer, blocks));
        };
        let from = steps[place].ip;
        self.entered = None;
        self.retire(observer, &steps[..place], from);
        observer.enter_kernel(self.tid, Entry::Event { from });
        (Some(from), true)
    }

    /// The thread has ended. In a system call, as most do, or else somewhere in its last block: of that nothing is told.
    /// Whether its last block is known.
    pub(super) fn end(&mut self, observer: &mut dyn Observer, blocks: &mut Blocks) -> bool {
        let Some(number) = self.entered.take() else {
            return true;
        };
        if self.in_system_call {
            blocks.tell(observer, self.pid, number);
        }
        match blocks.steps(number).split_last() {
            Some((last, body)) if last.insn.class == Class::Syscall && self.in_system_call => {
                self.retire(observer, body, last.ip);
                self.leave(observer, last);
                true
            }
            _ => false,
        }
    }
}
