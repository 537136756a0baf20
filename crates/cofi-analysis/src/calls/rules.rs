//! The rules by which calls are reconstructed: how control came to an address says what it does to the stack.

use cofi_insn::Class;
use cofi_packet::Ip;

use super::names::{GoRole, Location, Thunk};
use super::shapes::Transfer;
use super::stack::Frame;
use super::thread::{Around, Thread};
use super::{CallKind, CallVisitor, FunctionId, Left};

/// What a mismatched return may always look at.
const LEAST_SEARCH: usize = 64;

/// A stub jumps within so many instructions.
pub(super) const STUB: u64 = 8;

/// The instruction of one byte.
const INT3: u8 = 0xcc;

/// From such a call to the return that jumps by it: the address is put in its place, and perhaps a jump leads to the return.
const REPLACES: u64 = 4;

/// A byte of code that never ran, in what a machine's recorder saw of it.
const NEVER_RAN: u8 = 0;

impl Thread {
    pub(super) fn follow<V: CallVisitor + ?Sized>(
        &mut self,
        by: Transfer,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        match by.class {
            Class::DirectCall | Class::IndirectCall => self.call(by, to, at, around),
            Class::Return => self.ret(by, to, at, around),
            Class::FarReturn => self.ret_far(to, at, around),
            Class::Syscall | Class::SoftwareInterrupt | Class::FarCall | Class::Into
                if to != by.after =>
            {
                self.interrupt(CallKind::Entry, by.after, to, at, around);
            }
            Class::DirectJump | Class::Conditional | Class::IndirectJump | Class::FarJump => {
                self.jump(by, to, at, around);
            }
            _ => {}
        }
    }

    /// A call instruction.
    pub(super) fn call<V: CallVisitor + ?Sized>(
        &mut self,
        by: Transfer,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        self.earn();
        self.count();
        let is_within = at.is_named && !at.is_first && at.function == by.source;
        // A kernel fills the processor's stack of return addresses by calls past an INT3, which nothing returns to. In its thunks what stands
        // between is longer, in older ones.
        let is_past_int3 = to.0 == by.after.0.wrapping_add(1)
            && is_within
            && matches!(around.byte_at(by.after), Some(INT3 | NEVER_RAN));
        let is_filling =
            is_past_int3 || is_within && around.names.thunk(at.function) == Some(Thunk::Indirect);
        if to == by.after || is_filling {
            // It reads the instruction pointer.
            if let Some(top) = self.stack.frames.last_mut() {
                top.ghost = Some(by.after);
                top.filled_at = is_filling.then_some(self.total);
            }
            return;
        }
        let depth = self.depth() + 1;
        let begin = self.now(around);
        let mut frame = self.frame((CallKind::Call, Some(by.from)), (to, at), depth, begin);
        frame.ret = Some(by.after);
        let traits = around.names.traits(at.function);
        frame.is_stub = !at.is_named || traits.thunk == Some(Thunk::Indirect);
        frame.is_inner = is_within;
        frame.saves = traits.saves_jump;
        frame.throws = traits.throws;
        frame.go = traits.go;
        self.enter(frame, around);
    }

    /// What interrupts: a signal's handler, or the kernel.
    pub(super) fn interrupt<V: CallVisitor + ?Sized>(
        &mut self,
        kind: CallKind,
        resume: Ip,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        self.count();
        let begin = self.now(around);
        let mut frame = self.frame((kind, Some(resume)), (to, at), self.depth() + 1, begin);
        frame.resume = Some(resume);
        frame.is_handler = kind == CallKind::Signal;
        self.enter(frame, around);
    }

    /// A jump.
    pub(super) fn jump<V: CallVisitor + ?Sized>(
        &mut self,
        by: Transfer,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        let Some(top) = self.stack.top() else {
            return self.begin(to, at, around);
        };
        let is_indirect = matches!(by.class, Class::IndirectJump | Class::FarJump);
        if at.is_first && around.names.thunk(at.function) == Some(Thunk::Return) {
            // The function returns by it.
            return;
        }
        if top.is_stub {
            let ran = top.self_insns + (self.total - self.counted);
            if ran > STUB {
                self.tell_stub(around);
            } else {
                if is_indirect || at.is_named {
                    self.leave_stub(to, at, around);
                }
                return;
            }
        }
        let Some(top) = self.stack.top() else {
            return;
        };
        if is_indirect && top.go == Some(GoRole::Resumes) {
            return self.resume_goroutine(to, at, around);
        }
        if is_indirect && top.returns_to(to) {
            // `pop` and a jump there.
            self.leave_returning(to, around);
            return;
        }
        if at.function == by.source || at.function == top.call.function {
            return;
        }
        if at.is_first || !at.is_named && is_indirect {
            let jumper = is_indirect.then_some(by.source);
            self.tail(by, to, at, jumper, around);
            return;
        }
        if is_indirect && at.is_named {
            self.jump_into(by, to, at, around);
        }
    }

    /// A stub jumps on: what it jumps to is what was called. Stubs jump to stubs.
    pub(super) fn leave_stub<V: CallVisitor + ?Sized>(
        &mut self,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        let Some(top) = self.stack.frames.last_mut() else {
            return;
        };
        top.call.function = at.function;
        top.call.ip = to;
        top.saves |= around.names.saves_jump(at.function);
        top.throws |= around.names.throws(at.function);
        if at.is_named && around.names.thunk(at.function).is_none() {
            self.tell_stub(around);
        }
    }

    /// A function takes the place of the innermost call.
    pub(super) fn tail<V: CallVisitor + ?Sized>(
        &mut self,
        by: Transfer,
        to: Ip,
        at: Location,
        jumper: Option<FunctionId>,
        around: &mut Around<'_, '_, V>,
    ) {
        let Some(left) = self.stack.top().copied() else {
            return self.begin(to, at, around);
        };
        self.leave(Left::Tail, around);
        let begin = self.now(around);
        let from = (CallKind::Tail, Some(by.from));
        let mut frame = self.frame(from, (to, at), left.call.depth, begin);
        frame.ret = left.ret;
        frame.resume = left.resume;
        frame.is_handler = left.is_handler;
        frame.jumper = jumper;
        frame.saves = left.saves || around.names.saves_jump(at.function);
        frame.throws = left.throws || around.names.throws(at.function);
        frame.go = around.names.go_role(at.function).or(left.go);
        frame.is_stub = Self::is_stub(at, around);
        self.enter(frame, around);
    }

    /// Whether a call of this may be one of what it jumps to.
    fn is_stub<V: ?Sized>(at: Location, around: &Around<'_, '_, V>) -> bool {
        !at.is_named || around.names.thunk(at.function) == Some(Thunk::Indirect)
    }

    /// An indirect jump into the midst of another function.
    pub(super) fn jump_into<V: CallVisitor + ?Sized>(
        &mut self,
        by: Transfer,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        if self.switch_to(to, around) {
            return;
        }
        if let Some(index) = self.find(|frame| frame.returns_to(to)) {
            let is_switch = self
                .stack
                .frames
                .get(index)
                .is_some_and(|frame| frame.jumper == Some(by.source));
            if is_switch {
                self.split(index, around);
            } else {
                self.leave_down_to(index, Left::Unwound, around);
            }
            return;
        }
        let mut index = self.find(|frame| frame.saved == Some(to));
        if index.is_none() {
            index = self.catcher(to, at, around);
        }
        if index.is_none() {
            index = self.find(|frame| frame.call.function == at.function);
        }
        if let Some(index) = index {
            self.leave_down_to(index + 1, Left::Unwound, around);
        }
    }

    /// A return.
    pub(super) fn ret<V: CallVisitor + ?Sized>(
        &mut self,
        by: Transfer,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        let Some(top) = self.stack.top() else {
            return self.begin(to, at, around);
        };
        if top.returns_to(to) {
            self.leave_returning(to, around);
            return;
        }
        if top.ghost == Some(to) {
            // A call to the next instruction was one, after all.
            if let Some(top) = self.stack.frames.last_mut() {
                top.ghost = None;
            }
            return;
        }
        self.ret_elsewhere(by, to, at, around);
    }

    /// The innermost call returns to where it came from.
    pub(super) fn leave_returning<V: CallVisitor + ?Sized>(
        &mut self,
        to: Ip,
        around: &mut Around<'_, '_, V>,
    ) {
        let saves = self.stack.top().is_some_and(|top| top.saves);
        self.leave(Left::Return, around);
        if saves && let Some(top) = self.stack.frames.last_mut() {
            top.saved = Some(to);
        }
    }

    /// A return that does not lead to where the innermost call came from.
    #[inline(never)]
    pub(super) fn ret_elsewhere<V: CallVisitor + ?Sized>(
        &mut self,
        by: Transfer,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        let Some(top) = self.stack.top().copied() else {
            return;
        };
        if self.others.iter().any(|stack| stack.waits_for(to)) {
            if self.stack.is_coroutine && self.stack.frames.len() == 1 {
                // The coroutine's own function returned: nobody comes back to it.
                self.leave(Left::Return, around);
            }
            self.switch_to(to, around);
            return;
        }
        if let Some(index) = self.find(|frame| frame.returns_to(to)) {
            // A function that returns is left so; what it has called was never left.
            let is_own = self
                .stack
                .frames
                .get(index)
                .is_some_and(|frame| frame.call.function == by.source);
            self.leave_down_to(index + 1, Left::Unwound, around);
            let left = if is_own { Left::Return } else { Left::Unwound };
            self.leave(left, around);
            return;
        }
        if top.is_handler {
            // A handler returns to what goes back to where the signal came.
            self.leave(Left::Return, around);
            let begin = self.now(around);
            let kind = (CallKind::Tail, Some(by.from));
            let mut frame = self.frame(kind, (to, at), top.call.depth, begin);
            frame.resume = top.resume;
            self.enter(frame, around);
            return;
        }
        let is_replaced = top
            .filled_at
            .is_some_and(|at| self.total.wrapping_sub(at) <= REPLACES);
        if is_replaced && top.is_stub {
            self.leave_stub(to, at, around);
            return;
        }
        if at.is_first && at.is_named && (top.is_inner || is_replaced) {
            // The address that was called from was replaced by a function's: a jump.
            if top.is_inner {
                self.leave(Left::Tail, around);
            }
            self.tail(by, to, at, None, around);
            return;
        }
        let is_outermost = self.stack.frames.len() == 1;
        let is_exit = || around.names.go_role(at.function) == Some(GoRole::Exit);
        if is_outermost && self.stack.is_coroutine && (at.is_first || is_exit()) {
            self.leave(Left::Return, around);
            let begin = self.now(around);
            let kind = (CallKind::Tail, Some(by.from));
            let frame = self.frame(kind, (to, at), top.call.depth, begin);
            self.enter(frame, around);
            return;
        }
        if is_outermost && top.ret.is_none() {
            self.leave(Left::Return, around);
            self.assume_outer(to, at, top.call.depth - 1, around);
            return;
        }
        if at.is_first && at.is_named {
            self.coroutine(by, to, at, around);
            return;
        }
        let below = self.stack.frames.len() - 1;
        let caller = below
            .checked_sub(1)
            .and_then(|at| self.stack.frames.get(at));
        let is_within = at.is_named && at.function == by.source && at.function == top.call.function;
        if is_within && caller.is_none_or(|caller| caller.call.function != at.function) {
            // A jump within the function, by a return.
            return;
        }
        if let Some(index) = self.catcher(to, at, around) {
            self.leave_down_to(index + 1, Left::Unwound, around);
            return;
        }
        if let Some(index) = self.find_below(below, |frame| frame.call.function == at.function) {
            // To another place in what called it, or in something further out.
            let left = if index + 1 == below {
                Left::Return
            } else {
                Left::Unwound
            };
            self.leave_down_to(index + 1, left, around);
            return;
        }
        self.unknown(to, at, around);
    }

    /// A far return: to what was interrupted.
    pub(super) fn ret_far<V: CallVisitor + ?Sized>(
        &mut self,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        if let Some(index) = self.find(|frame| frame.resume == Some(to)) {
            self.leave_down_to(index + 1, Left::Unwound, around);
            self.leave(Left::Return, around);
            return;
        }
        self.relocate(to, at, around);
    }

    /// Tracing was off, and goes on here.
    pub(super) fn back<V: CallVisitor + ?Sized>(
        &mut self,
        (by, expected, signals): (Option<Transfer>, Option<Ip>, Option<u64>),
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        let Some(top) = self.stack.top().copied() else {
            return self.begin(to, at, around);
        };
        if std::mem::take(&mut self.was_away) && expected != Some(to) {
            self.leave_all(Left::Gap, around);
            return self.begin(to, at, around);
        }
        if signals.is_some_and(|signals| signals > self.handlers) && expected != Some(to) {
            self.handlers += 1;
            return self.interrupt(CallKind::Signal, expected.unwrap_or(to), to, at, around);
        }
        if expected == Some(to)
            && !matches!(by, Some(by) if top.resume == Some(to) && by.class == Class::Syscall)
        {
            return;
        }
        let Some(by) = by else {
            if signals.is_none() && at.is_first {
                let from = expected.unwrap_or(to);
                return self.interrupt(CallKind::Signal, from, to, at, around);
            }
            return self.relocate(to, at, around);
        };
        match by.class {
            Class::Syscall | Class::SoftwareInterrupt | Class::FarCall => {
                if top.resume.is_some() {
                    // `rt_sigreturn`. The handler may have changed where it goes.
                    self.leave(Left::Return, around);
                    if top.resume == Some(to) {
                        return;
                    }
                    if let Some(resume) = top.resume
                        && at.is_named
                        && at.is_first
                        && self.function() != Some(at.function)
                    {
                        // The handler has a function called there, as Go's does to take the processor from a goroutine.
                        self.interrupt(CallKind::Signal, resume, to, at, around);
                        if let Some(called) = self.stack.frames.last_mut() {
                            (called.ret, called.resume) = (Some(resume), None);
                            called.is_handler = false;
                        }
                    } else {
                        self.relocate(to, at, around);
                    }
                } else if by.class == Class::Syscall
                    && around.names.starts_program(at.function)
                    && at.is_first
                {
                    // Another program.
                    self.leave_all(Left::End, around);
                    self.begin(to, at, around);
                } else if signals.is_none() && at.is_first {
                    self.interrupt(CallKind::Signal, by.after, to, at, around);
                } else {
                    self.relocate(to, at, around);
                }
            }
            // From what is traced to what is not, which returns to where the innermost call came from, or one further out.
            Class::Return | Class::IndirectJump | Class::DirectJump | Class::Conditional => {
                match self.find(|frame| frame.returns_to(to)) {
                    Some(index) => {
                        self.leave_down_to(index + 1, Left::Unwound, around);
                        self.leave_returning(to, around);
                    }
                    None => self.relocate(to, at, around),
                }
            }
            Class::DirectCall | Class::IndirectCall if at.is_first => {
                self.call(by, to, at, around);
            }
            _ => self.relocate(to, at, around),
        }
    }

    /// Control is in a function, and nothing is known of how it came there.
    pub(super) fn relocate<V: CallVisitor + ?Sized>(
        &mut self,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        if self.function() == Some(at.function) || self.switch_to(to, around) {
            return;
        }
        if let Some(index) = self.find(|frame| frame.call.function == at.function) {
            self.leave_down_to(index + 1, Left::Unwound, around);
            return;
        }
        self.unknown(to, at, around);
    }

    /// The innermost call out of which an exception lands at `to`, as compilers' tables have it.
    pub(super) fn catcher<V: ?Sized>(
        &mut self,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) -> Option<usize> {
        let view = around.view?;
        let frames = &self.stack.frames;
        let most = self.credit.max(LEAST_SEARCH);
        let pairs = frames.windows(2).rev().take(most);
        let mut looked = 0;
        let found = pairs.into_iter().position(|pair| {
            looked += 1;
            let [frame, callee] = pair else {
                return false;
            };
            // The call instruction ends before where it would return to.
            let call = callee.ret.map(|ret| Ip(ret.0.wrapping_sub(1)));
            frame.call.function == at.function
                && call.is_some_and(|call| around.pads.leads(view, to, call) == Some(true))
        });
        self.credit = self.credit.saturating_sub(looked);
        found.map(|found| frames.len() - 2 - found)
    }

    /// The innermost call of which `is_it` holds.
    pub(super) fn find(&mut self, is_it: impl Fn(&Frame) -> bool) -> Option<usize> {
        self.find_below(self.stack.frames.len(), is_it)
    }

    /// The same of the outermost so many calls.
    pub(super) fn find_below(
        &mut self,
        len: usize,
        is_it: impl Fn(&Frame) -> bool,
    ) -> Option<usize> {
        let frames = self.stack.frames.get(..len)?;
        let most = self.credit.max(LEAST_SEARCH);
        let found = frames.iter().rev().take(most).position(is_it);
        let looked = found.map_or(frames.len().min(most), |found| found + 1);
        self.credit = self.credit.saturating_sub(looked);
        found.map(|found| frames.len() - 1 - found)
    }
}
