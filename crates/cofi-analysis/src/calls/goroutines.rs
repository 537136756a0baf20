//! Goroutines: Go's runtime switches between their stacks by jumps of its own.
//!
//! A goroutine that waits has called `runtime.mcall`, or `runtime.morestack` where its stack was too small. These go on upon the scheduler's
//! stack, which here lies on the goroutine's: what the scheduler called is left once `runtime.gogo` jumps to the goroutine that is to run next, be it
//! the same. Where that jumps to is where the goroutine's call of `mcall` returns to, or the first instruction of a new one.

use cofi_packet::Ip;

use super::names::{GoRole, Location};
use super::stack::Stack;
use super::thread::{Around, Thread};
use super::{CallKind, CallVisitor, Left};

impl Thread {
    /// The scheduler goes on with a goroutine.
    #[inline(never)]
    pub(super) fn resume_goroutine<V: CallVisitor + ?Sized>(
        &mut self,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        let mut is_over = false;
        let mut recovers = false;
        // The thread's first scheduler was called by none.
        if let Some(parked) = self.find(|frame| frame.go == Some(GoRole::Parks)) {
            for frame in self.stack.frames.iter().skip(parked) {
                is_over |= frame.go == Some(GoRole::Ends);
                recovers |= frame.go == Some(GoRole::Recovers);
            }
            self.leave_down_to(parked + 1, Left::Unwound, around);
        }
        if is_over {
            self.leave_down_to(0, Left::Unwound, around);
        }
        if recovers && let Some(index) = self.find(|frame| frame.call.function == at.function) {
            // The function that deferred what recovered goes on, to return.
            self.leave_down_to(index + 1, Left::Unwound, around);
            return;
        }
        self.make_room(around);
        self.suspend(around);
        if at.is_first && at.is_named {
            self.stack.is_coroutine = true;
            let begin = self.now(around);
            let frame = self.frame((CallKind::Entry, None), (to, at), 0, begin);
            self.enter(frame, around);
            return;
        }
        let waits = |stack: &Stack| {
            let top = stack.top();
            top.is_some_and(|top| top.go == Some(GoRole::Parks) && top.returns_to(to))
        };
        let candidates = self.others.iter().enumerate();
        let candidates = candidates.filter_map(|(index, stack)| waits(stack).then_some(index));
        let candidates: Vec<usize> = candidates.collect();
        if candidates.is_empty() {
            // It has run on another thread so far, or before the trace.
            let begin = self.now(around);
            return self.assume(to, at, 0, begin, around);
        }
        self.choose(candidates, to, around);
    }
}
