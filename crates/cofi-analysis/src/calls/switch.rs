//! Several stacks of one thread: coroutines, and what is not known better.

use cofi_packet::Ip;

use super::names::Location;
use super::shapes::Transfer;
use super::stack::Stack;
use super::thread::{Around, Thread};
use super::{CallKind, CallVisitor, Left};

/// So many stacks are kept that were switched away from.
const STACKS: usize = 1 << 10;

impl Thread {
    /// Control is on a stack of which nothing is known.
    pub(super) fn unknown<V: CallVisitor + ?Sized>(
        &mut self,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        let depth = self.depth() + 1;
        self.suspend(around);
        let begin = self.now(around);
        self.assume(to, at, depth, begin, around);
    }

    /// A function begins on a stack of its own, by a return.
    pub(super) fn coroutine<V: CallVisitor + ?Sized>(
        &mut self,
        by: Transfer,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        let depth = self.depth() + 1;
        self.tell_stub(around);
        let parent = self.stack.innermost();
        self.suspend(around);
        self.stack.is_coroutine = true;
        let begin = self.now(around);
        let mut frame = self.frame((CallKind::Call, Some(by.from)), (to, at), depth, begin);
        frame.call.parent = parent;
        self.enter(frame, around);
    }

    /// Switches away from the stack in use, to an empty one.
    pub(super) fn suspend<V: CallVisitor + ?Sized>(&mut self, around: &mut Around<'_, '_, V>) {
        self.tell_stub(around);
        self.count();
        self.make_room(around);
        let new = Stack {
            elsewhere: self.total,
            number: self.next_stack(),
            ..Stack::default()
        };
        let mut old = std::mem::replace(&mut self.stack, new);
        old.since = self.total;
        if !old.frames.is_empty() {
            self.others.push(old);
        }
        self.tell_switched(around);
    }

    /// Tells which stack is in use now.
    pub(super) fn tell_switched<V: CallVisitor + ?Sized>(&self, around: &mut Around<'_, '_, V>) {
        let at = self.now(around);
        around.visitor.switched(self.stack.innermost(), &at);
    }

    /// Forgets the stack that waits for longest, if there are as many as may be.
    pub(super) fn make_room<V: CallVisitor + ?Sized>(&mut self, around: &mut Around<'_, '_, V>) {
        if self.others.len() < STACKS {
            return;
        }
        self.count();
        let oldest = self.others.remove(0);
        let mut forgotten = std::mem::replace(&mut self.stack, oldest);
        self.resume_clock();
        self.leave_down_to(0, Left::Unwound, around);
        std::mem::swap(&mut self.stack, &mut forgotten);
        self.counted = self.total;
    }

    pub(super) const fn next_stack(&mut self) -> u32 {
        self.stacks += 1;
        self.stacks - 1
    }

    /// The stack in use was switched to just now.
    pub(super) fn resume_clock(&mut self) {
        let away = self.total.wrapping_sub(self.stack.since);
        self.stack.elsewhere = self.stack.elsewhere.wrapping_add(away);
        self.counted = self.total;
    }

    /// Goes back to the stack whose innermost call returns to `to`, and leaves that.
    pub(super) fn switch_to<V: CallVisitor + ?Sized>(
        &mut self,
        to: Ip,
        around: &mut Around<'_, '_, V>,
    ) -> bool {
        self.tell_stub(around);
        self.make_room(around);
        let waits = |(index, stack): (usize, &Stack)| stack.waits_for(to).then_some(index);
        let candidates: Vec<usize> = self.others.iter().enumerate().filter_map(waits).collect();
        if candidates.is_empty() {
            return false;
        }
        // What is switched away from comes last in the list.
        self.suspend(around);
        self.choose(candidates, to, around);
        true
    }

    /// What began at `index` by a jump was a coroutine: it goes on a stack of its own, and what the jump seemed to end goes on here.
    pub(super) fn split<V: CallVisitor + ?Sized>(
        &mut self,
        index: usize,
        around: &mut Around<'_, '_, V>,
    ) {
        self.tell_stub(around);
        self.count();
        let mut frames = self.stack.frames.split_off(index);
        let inlines = &mut self.stack.inlines;
        let first = inlines.partition_point(|inline| inline.owner < index);
        let mut inlines = inlines.split_off(first);
        for inline in &mut inlines {
            inline.owner -= index;
        }
        if let Some(first) = frames.first_mut() {
            first.ret = None;
        }
        let number = self.next_stack();
        self.others.push(Stack {
            frames,
            inlines,
            elsewhere: self.stack.elsewhere,
            since: self.total,
            number,
            first: None,
            is_coroutine: true,
            forgotten: 0,
        });
        self.tell_switched(around);
        // What ran on the new stack did not run here: so far it is counted for the callers, which called it.
    }
}
