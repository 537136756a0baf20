//! One processor: from the blocks that it entered to what it did.
//!
//! A record says that a block was entered. Whether it was finished, and how, the next records tell: where control went, and by
//! which interrupts.

#[cfg(test)]
mod tests;

use super::blocks::{Block, Blocks, may_follow};
use super::pages::Pages;
use crate::{MachineObserver, Pid, ProcessorState, Step};
use cofi_insn::Class;
use cofi_packet::{ExecMode, Ip};

/// An instruction that did not come to run, because of an interrupt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interrupted {
    pub(super) ip: Ip,
    pub(super) mode: ExecMode,
    pub(super) cpl: u8,
}

/// One processor.
#[derive(Debug)]
pub(super) struct Processor {
    machine: Pid,
    /// Its number for the observer.
    cpu: Pid,
    /// The block that was entered last, and the address space that it is in.
    entered: Option<(u32, Pid)>,
    /// That block is known to have run to its end.
    is_complete: bool,
    /// It was left before its last instruction began.
    is_unfinished: bool,
    /// Interrupts that came one before the other's handler began: from where to where.
    hops: Vec<(Interrupted, Ip)>,
    /// What the last interrupt came before.
    interrupted: Option<Interrupted>,
    cr3: u64,
    /// CR3 has changed since the last block was entered.
    cr3_changed: bool,
    /// How often control went where nothing explains.
    pub(super) unexplained: u64,
}

impl Processor {
    pub(super) const fn new(machine: Pid, cpu: Pid) -> Self {
        Self {
            machine,
            cpu,
            entered: None,
            is_complete: false,
            is_unfinished: false,
            hops: Vec::new(),
            interrupted: None,
            cr3: 0,
            cr3_changed: false,
            unexplained: 0,
        }
    }

    pub(super) fn cpu(&self) -> Pid {
        self.cpu
    }

    pub(super) fn cr3(&mut self, cr3: u64) {
        self.cr3 = cr3;
        self.cr3_changed = true;
    }

    pub(super) fn interrupt_to(&mut self, from: Interrupted, to: Ip) {
        self.hops.push((from, to));
    }

    pub(super) fn interrupt(&mut self, from: Interrupted) {
        self.interrupted = Some(from);
    }

    pub(super) fn unfinished(&mut self) {
        self.is_unfinished = true;
    }

    /// The processor waits: what it entered last has run to its end.
    pub(super) fn idle(
        &mut self,
        observer: &mut dyn MachineObserver,
        blocks: &mut Blocks,
        pages: &mut Pages,
    ) {
        if !self.is_complete {
            self.place(observer, blocks, pages);
        }
        let block = self.entered.and_then(|(number, _)| blocks.get(number));
        // A machine that is being switched off or stopped has its processors wait anywhere: where a branch led, its next block tells.
        if let (Some(block), false) = (block, self.is_complete)
            && let Some(last) = blocks.steps(block).last()
            && matches!(last.insn.class, Class::Other | Class::Wait)
        {
            self.is_complete = true;
            let after = last.insn.next_ip(last.ip, block.mode);
            self.retire(observer, blocks.steps(block), after);
        }
    }

    /// Nothing has happened since the last block was entered but what its code says.
    #[inline]
    const fn is_plain(&self) -> bool {
        !self.is_complete
            && !self.is_unfinished
            && !self.cr3_changed
            && self.interrupted.is_none()
            && self.hops.is_empty()
    }

    /// Hands on what is simple at the beginning of these records; what is left of them.
    pub(super) fn run<'r>(
        &mut self,
        observer: &mut dyn MachineObserver,
        blocks: &Blocks,
        records: &'r [u32],
    ) -> &'r [u32] {
        let Some((before, _)) = self.entered.filter(|_| self.is_plain()) else {
            return records;
        };
        let Some(mut runs) = blocks.runs(before, records) else {
            return records;
        };
        observer.ran(self.cpu, &mut runs);
        let (ran, rest) = records.split_at(records.len() - runs.left());
        if let Some(number) = ran.last() {
            self.enters(blocks, *number);
        }
        rest
    }

    fn enters(&mut self, blocks: &Blocks, number: u32) {
        let space = |block: &Block| block.state(self.cr3).space_of(block.start);
        let space = blocks.get(number).map_or(0, space);
        self.entered = Some((number, space));
    }

    /// A block was entered. What the one before it has done is told now, and so is its code: QEMU runs what it has translated while
    /// other processors change the code, and translates before any of them runs that.
    #[inline]
    pub(super) fn enter(
        &mut self,
        observer: &mut dyn MachineObserver,
        blocks: &mut Blocks,
        pages: &mut Pages,
        number: u32,
    ) {
        let is_plain = self.is_plain();
        if !self.is_complete {
            self.place(observer, blocks, pages);
        }
        if is_plain
            && let Some((before, _)) = self.entered
            && let (Some(before), Some(next)) = (blocks.get(before), blocks.get(number))
            && before.simply_leads_to(next)
            && let Some(checksum) = blocks.checksum(before)
        {
            observer.ran_block(self.cpu, blocks.steps(before), checksum, next.start);
        } else {
            self.arrive(observer, blocks, number);
        }
        self.enters(blocks, number);
    }

    /// Makes sure that the observer knows the code of the block that was entered last.
    #[inline]
    fn place(&self, observer: &mut dyn MachineObserver, blocks: &mut Blocks, pages: &mut Pages) {
        let Some((number, space)) = self.entered else {
            return;
        };
        let Some(block) = blocks.get(number) else {
            return;
        };
        if block.placed == (space, pages.epoch) {
            return;
        }
        let start = block.start.0;
        pages.place(observer, self.machine, space, start, blocks.code(block));
        blocks.set_placed(number, space, pages.epoch);
    }

    fn arrive(&mut self, observer: &mut dyn MachineObserver, blocks: &Blocks, number: u32) {
        let interrupted = self.interrupted.take();
        let hops = core::mem::take(&mut self.hops);
        let is_complete = core::mem::take(&mut self.is_complete);
        let is_unfinished = core::mem::take(&mut self.is_unfinished);
        self.cr3_changed = false;
        let Some(block) = blocks.get(number) else {
            self.unexplained += 1;
            return;
        };
        let (to, state) = (block.start, block.state(self.cr3));
        let Some(before) = self.entered.and_then(|(number, _)| blocks.get(number)) else {
            return observer.processor(self.machine, self.cpu, to, state);
        };
        let steps = blocks.steps(before);
        let first = hops.first().map(|(from, _)| *from).or(interrupted);
        let from = first.map(|from| from.ip);
        let explained = match from {
            _ if is_complete => {
                let Some(last) = steps.last() else {
                    return;
                };
                let after = last.insn.next_ip(last.ip, before.mode);
                // A processor that waits for it begins where a start-up interrupt (SIPI) says: at a page, in real mode.
                let is_start =
                    from.is_none() && block.mode == ExecMode::Bits16 && to.0 & 0xfff == 0;
                if is_start && after != to {
                    return observer.event(self.cpu, after, to, state);
                }
                after == from.unwrap_or(to)
            }
            Some(_) => first
                .is_some_and(|from| self.left_for(observer, before, steps, from, is_unfinished)),
            None => self.went_on(observer, before, steps, (to, state), is_unfinished),
        };
        if !explained {
            self.unexplained += 1;
            return observer.gap(self.cpu, to, state);
        }
        for (from, to) in hops {
            observer.event(self.cpu, from.ip, to, state);
        }
        if let Some(from) = interrupted {
            observer.event(self.cpu, from.ip, to, state);
        }
    }

    /// The block ran up to an interrupt before `from`; whether that can be.
    fn left_for(
        &self,
        observer: &mut dyn MachineObserver,
        before: &Block,
        steps: &[Step],
        interrupted: Interrupted,
        is_unfinished: bool,
    ) -> bool {
        let from = interrupted.ip;
        let Some((last, body)) = steps.split_last() else {
            // A block without an instruction: #UD.
            return from == before.start;
        };
        let place = steps.iter().position(|step| step.ip == from);
        // A direct branch cannot fault: it has led to itself.
        let is_direct = matches!(
            last.insn.class,
            Class::Conditional | Class::DirectJump | Class::DirectCall
        );
        let has_ended = before.is_marked && !is_unfinished && (from != last.ip || is_direct);
        if let Some(place) = place
            && !has_ended
        {
            self.retire(observer, &steps[..place], from);
            return true;
        }
        if is_unfinished || !may_follow(last, from, before.mode) {
            return false;
        }
        self.retire(observer, body, last.ip);
        let state = ProcessorState {
            cpl: interrupted.cpl,
            mode: interrupted.mode,
            cr3: self.cr3,
        };
        self.end_block(observer, before, last, (from, state));
        true
    }

    /// Control went from the block to `next` without an interrupt; whether that can be.
    fn went_on(
        &self,
        observer: &mut dyn MachineObserver,
        before: &Block,
        steps: &[Step],
        (next, state): (Ip, ProcessorState),
        is_unfinished: bool,
    ) -> bool {
        let Some((last, body)) = steps.split_last() else {
            return false;
        };
        // Only a far transfer leads to another mode or privilege level: else it was an interrupt of which nothing is known.
        let stays = (state.mode, state.cpl) == (before.mode, before.cpl);
        if !(stays || last.insn.class.is_far() || last.insn.class == Class::Into) {
            return false;
        }
        // A repeated string instruction enters its block anew for its rounds.
        if last.insn.repeats && next == last.ip && !is_unfinished {
            self.retire(observer, body, last.ip);
            return true;
        }
        if is_unfinished || !may_follow(last, next, before.mode) {
            // QEMU stops in the middle of a block to run one instruction alone: one that writes to this code, for example.
            let place = steps.iter().position(|step| step.ip == next);
            return place
                .map(|place| self.retire(observer, &steps[..place], next))
                .is_some();
        }
        self.retire(observer, body, last.ip);
        self.end_block(observer, before, last, (next, state));
        true
    }

    /// The last instruction of a block ran, and control went to `next`.
    fn end_block(
        &self,
        observer: &mut dyn MachineObserver,
        before: &Block,
        last: &Step,
        (next, state): (Ip, ProcessorState),
    ) {
        let after = last.insn.next_ip(last.ip, before.mode);
        match last.insn.class {
            Class::FarCall
            | Class::FarJump
            | Class::FarReturn
            | Class::Syscall
            | Class::VmEntry => observer.far(self.cpu, last, next, state),
            Class::SoftwareInterrupt => {
                observer.software_interrupt(self.cpu, last, next, state);
            }
            Class::Into if next != after => {
                observer.software_interrupt(self.cpu, last, next, state);
            }
            Class::MovCr3 => observer.mov_cr3(self.cpu, last.ip, &last.insn, next, self.cr3),
            _ => observer.retired(self.cpu, last.ip, &last.insn, next),
        }
    }

    /// These instructions ran, one after the other, and `next` after them.
    fn retire(&self, observer: &mut dyn MachineObserver, steps: &[Step], next: Ip) {
        for (i, step) in steps.iter().enumerate() {
            let next = steps.get(i + 1).map_or(next, |step| step.ip);
            observer.retired(self.cpu, step.ip, &step.insn, next);
        }
    }

    /// Whether all that the processor has done so far is told.
    pub(super) fn is_told(&self) -> bool {
        self.entered.is_none() || self.is_complete
    }
}
