//! The open calls of a thread, as they begin and are left.

use cofi_image::{ImageView, LandingPads};
use cofi_insn::Class;
use cofi_packet::{Ip, StreamOffset};
use cofi_session::Task;

use super::clock::StreamClock;
use super::inlines::{InlineFrame, Inlines, Span};
use super::names::{CallNames, Location};
use super::shapes::{Hop, Shape, Transfer};
use super::stack::{Frame, Stack};
use super::tracks::{Known, Step, StepKind, Track};
use super::undecided::Undecided;
use super::{Call, CallEnd, CallKind, CallMoment, CallVisitor, FunctionId, Left, OpenCall};

/// So many calls may be open on a stack: code may push calls that never return. Of more than that, the outer half is forgotten.
pub(super) const DEEPEST: usize = 1 << 18;

/// How control came to where the next block begins.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum Coming {
    /// The thread begins, or goes on behind a gap.
    Anew,
    /// The instructions before went on here.
    Straight,
    /// By an instruction.
    By(Transfer),
    /// By an event before an instruction.
    Struck(Ip),
    /// Tracing was off.
    Back {
        /// The instruction at which it went off.
        by: Option<Transfer>,
        /// Where that led, if the trace may tell.
        went: Option<Ip>,
        /// Where it would have gone on.
        expected: Option<Ip>,
        /// How many signals the recorder had told of by then; none if it does not tell of them.
        signals: Option<u64>,
    },
    /// The stream ends here, as far as is known.
    Ending,
}

/// What is needed beside the stacks.
pub(crate) struct Around<'a, 's, V: ?Sized> {
    pub(crate) visitor: &'a mut V,
    pub(crate) clock: &'a mut StreamClock<'s>,
    pub(crate) names: &'a CallNames,
    pub(crate) pads: &'a mut LandingPads,
    /// The code in place, if it is known.
    pub(crate) view: Option<&'a ImageView<'s>>,
    /// The packet that led to where the thread is.
    pub(crate) offset: StreamOffset,
}

impl<V: CallVisitor + ?Sized> Around<'_, '_, V> {
    fn enter(&mut self, call: &Call) {
        self.visitor.enter_with_code(call, self.names, self.view);
    }
}

impl<V: ?Sized> Around<'_, '_, V> {
    /// The byte of code there, if it is known.
    pub(super) fn byte_at(&self, ip: Ip) -> Option<u8> {
        let place = self.view?.place(ip)?;
        let mut byte = [0];
        (place.file.read_at(place.offset, &mut byte) == 1).then_some(byte[0])
    }

    #[inline]
    pub(super) fn moment(&mut self, insns: u64) -> CallMoment {
        let (tsc, cycles) = self.clock.at(self.offset);
        CallMoment { tsc, cycles, insns }
    }
}

/// The open calls of a thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(super) task: Task,
    /// The stack in use, and those that were switched away from, the latest last.
    pub(super) stack: Stack,
    pub(super) others: Vec<Stack>,
    pub(super) undecided: Option<Undecided>,
    pub(crate) coming: Coming,
    /// How control came to an instruction before which tracing went off.
    pub(crate) off_at: Option<(Coming, Ip)>,
    /// How it came to one before which something else came, which is to be taken account of first.
    pub(crate) struck_at: Option<(Coming, Ip)>,
    /// The instructions so far.
    pub(super) total: u64,
    /// The instructions of other threads that ran in the same stream by now.
    pub(super) of_others: u64,
    /// Those up to which the innermost call has them.
    pub(super) counted: u64,
    /// When it is, of what is told later than it was.
    pub(super) moment: Option<CallMoment>,
    pub(super) next: i64,
    /// The number of the next stack.
    pub(super) stacks: u32,
    /// The last number of a call that was open before.
    pub(super) outer: i64,
    /// How much mismatched returns may still search: the calls pay for it, so that no code makes it cost more than they do.
    pub(super) credit: usize,
    /// How many signals the recorder has told of, and how many handlers have begun.
    pub(super) signals: u64,
    pub(super) handlers: u64,
    /// Other threads have run on the processor meanwhile, and this one perhaps elsewhere.
    pub(crate) was_away: bool,
    pub(super) last_ip: Option<Ip>,
}

impl Thread {
    pub(crate) fn new(task: Task) -> Self {
        Self {
            task,
            stack: Stack::default(),
            others: Vec::new(),
            undecided: None,
            coming: Coming::Anew,
            off_at: None,
            struck_at: None,
            total: 0,
            of_others: 0,
            counted: 0,
            moment: None,
            next: 0,
            stacks: 1,
            outer: 0,
            credit: 1 << 12,
            signals: 0,
            handlers: 0,
            was_away: false,
            last_ip: None,
        }
    }

    /// A block has run.
    #[inline]
    pub(crate) fn block<V: CallVisitor + ?Sized>(
        &mut self,
        shape: &Shape,
        hops: &[Hop],
        inlined: Option<(&[Span], &Inlines)>,
        around: &mut Around<'_, '_, V>,
    ) {
        match self.coming {
            Coming::Straight => {}
            Coming::By(by) if shape.goes_on_from(&by) => {}
            coming => self.arrive(coming, shape.ip, shape.first, around),
        }
        let mut done = 0;
        if let Some((spans, inlines)) = inlined {
            done = self.inlined_and_hops(spans, hops, inlines, around);
        } else {
            for hop in hops {
                self.total += u64::from(hop.insns - done);
                done = hop.insns;
                self.hop(hop, around);
            }
        }
        self.total += u64::from(shape.insns - done);
        self.coming = shape.end.map_or(Coming::Straight, Coming::By);
        self.last_ip = Some(shape.last_ip());
    }

    /// Paths have run that do nothing to the stack, of so many instructions, this one last: most only follow conditional branches.
    pub(crate) fn pass(&mut self, last: &Track, insns: u64) {
        self.run_to_end(last, self.total + insns - u64::from(last.insns));
    }

    /// A path has run that began after so many instructions.
    #[inline]
    pub(super) fn run_to_end(&mut self, track: &Track, total: u64) {
        self.total = total + u64::from(track.insns);
        self.coming = track.coming();
        self.last_ip = Some(track.last_ip);
    }

    /// The blocks of a path have run, of which the last packet is at `offset`. `around` has the packet before.
    pub(crate) fn path<V: CallVisitor + ?Sized>(
        &mut self,
        Known { track, steps, .. }: Known<'_>,
        offset: StreamOffset,
        inlines: &Inlines,
        around: &mut Around<'_, '_, V>,
    ) {
        match self.coming {
            Coming::Straight => {}
            Coming::By(by) if track.goes_on_from(&by) => {}
            coming => self.arrive(coming, track.ip, track.at, around),
        }
        let (total, before) = (self.total, around.offset);
        let after = |insns: u32| total + u64::from(insns);
        for step in steps {
            around.offset = step.offset(offset, before);
            self.total = after(step.insns);
            self.step(step, inlines, around);
        }
        self.run_to_end(track, total);
    }

    /// What happens along a path.
    #[inline]
    pub(super) fn step<V: CallVisitor + ?Sized>(
        &mut self,
        step: &Step,
        inlines: &Inlines,
        around: &mut Around<'_, '_, V>,
    ) {
        match &step.kind {
            StepKind::Arrive(by, to, at) => self.arrive(Coming::By(*by), *to, *at, around),
            StepKind::Hop(hop) => self.hop(hop, around),
            StepKind::Inline(ip, chain) => self.inline(*ip, *chain, inlines, around),
        }
    }

    /// Control follows a direct branch within a block.
    #[inline]
    pub(super) fn hop<V: CallVisitor + ?Sized>(
        &mut self,
        hop: &Hop,
        around: &mut Around<'_, '_, V>,
    ) {
        if self.undecided.is_some() {
            if self.narrow_by_hop(hop, around) {
                return;
            }
            self.decide(around);
        }
        match hop.transfer.class {
            Class::DirectCall => self.call(hop.transfer, hop.to, hop.target, around),
            _ => self.jump(hop.transfer, hop.to, hop.target, around),
        }
    }

    /// The instruction that ran last, if it leads elsewhere.
    pub(crate) const fn last(&self) -> Option<Transfer> {
        match self.coming {
            Coming::By(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// The instruction that ran last, or that the last block began with.
    pub(super) const fn last_ip(&self) -> Option<Ip> {
        self.last_ip
    }

    /// The open calls of the stack in use, outermost first.
    pub(crate) fn open(&self) -> impl Iterator<Item = OpenCall> {
        Self::open_of(&self.stack)
    }

    /// The same of all stacks, those in use last.
    pub(crate) fn all_open(&self) -> impl Iterator<Item = OpenCall> {
        let stacks = self.others.iter().chain([&self.stack]);
        stacks.flat_map(Self::open_of)
    }

    fn open_of(stack: &Stack) -> impl Iterator<Item = OpenCall> {
        let Stack {
            frames, inlines, ..
        } = stack;
        let mut inlines = inlines.iter().peekable();
        let with_inlined = move |(index, frame): (usize, &Frame)| {
            let mut calls = vec![OpenCall {
                call: frame.call,
                returns_to: frame.ret.or(frame.resume),
                at: frame.at,
                is_told: !frame.is_stub,
            }];
            while let Some(inline) = inlines.next_if(|inline| inline.owner == index) {
                calls.push(OpenCall {
                    call: inline.call,
                    returns_to: None,
                    at: inline.at,
                    is_told: true,
                });
            }
            calls
        };
        frames.iter().enumerate().flat_map(with_inlined)
    }

    /// Control comes to an instruction.
    pub(crate) fn arrive<V: CallVisitor + ?Sized>(
        &mut self,
        coming: Coming,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        if self.undecided.is_some() {
            if self.narrow(coming, to, at, around) {
                return;
            }
            self.decide(around);
        }
        match coming {
            Coming::Straight => {}
            Coming::Anew => self.begin(to, at, around),
            Coming::Ending => {
                self.leave_all(Left::Gap, around);
                self.begin(to, at, around);
            }
            Coming::By(by) => self.follow(by, to, at, around),
            Coming::Struck(from) => {
                let here = self.function();
                if here == Some(at.function) {
                    return;
                }
                self.interrupt(CallKind::Entry, from, to, at, around);
            }
            Coming::Back {
                by,
                expected,
                signals,
                ..
            } => self.back((by, expected, signals), to, at, around),
        }
    }

    /// When it is, or was, if what happens now is told later than it was.
    #[inline]
    pub(super) fn now<V: ?Sized>(&self, around: &mut Around<'_, '_, V>) -> CallMoment {
        self.moment.unwrap_or_else(|| around.moment(self.total))
    }

    /// The function of the innermost call.
    pub(super) fn function(&self) -> Option<FunctionId> {
        self.stack.top().map(|frame| frame.call.function)
    }

    /// Gives the innermost call what has run since this was done last.
    #[inline]
    pub(super) fn count(&mut self) {
        let frames = self.stack.frames.len();
        match (self.stack.inlines.last_mut(), self.stack.frames.last_mut()) {
            (Some(inline), _) if inline.owner + 1 == frames => {
                inline.self_insns += self.total - self.counted;
            }
            (_, Some(top)) => top.self_insns += self.total - self.counted,
            (_, None) => {}
        }
        self.counted = self.total;
    }

    /// The first call of the thread, or behind a gap.
    pub(super) fn begin<V: CallVisitor + ?Sized>(
        &mut self,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        let begin = self.now(around);
        self.counted = self.total;
        self.stack.first = Some((begin, self.stack.own(begin.insns)));
        self.assume(to, at, 0, begin, around);
    }

    /// Control is in a function that nothing is known to have called. One that stands at its beginning has begun.
    pub(super) fn assume<V: CallVisitor + ?Sized>(
        &mut self,
        to: Ip,
        at: Location,
        depth: i32,
        begin: CallMoment,
        around: &mut Around<'_, '_, V>,
    ) {
        let (kind, ip) = match at.is_first {
            true => (CallKind::Entry, to),
            false => (CallKind::Assumed, at.start.unwrap_or(to)),
        };
        let frame = self.frame((kind, None), (ip, at), depth, begin);
        self.enter(frame, around);
    }

    #[inline(always)]
    pub(super) fn frame(
        &self,
        (kind, from): (CallKind, Option<Ip>),
        (ip, at): (Ip, Location),
        depth: i32,
        begin: CallMoment,
    ) -> Frame {
        Frame {
            call: Call {
                function: at.function,
                ..self.call_of((kind, from), ip, depth, begin)
            },
            ret: None,
            resume: None,
            ghost: None,
            filled_at: None,
            saved: None,
            saves: false,
            throws: false,
            is_handler: false,
            go: None,
            jumper: None,
            is_inner: false,
            is_stub: false,
            begin: self.stack.own(begin.insns),
            at: begin.insns.wrapping_add(self.of_others),
            self_insns: 0,
        }
    }

    /// A call on the stack in use, of which the function and the number are not known yet.
    #[inline(always)]
    pub(super) fn call_of(
        &self,
        (kind, from): (CallKind, Option<Ip>),
        ip: Ip,
        depth: i32,
        begin: CallMoment,
    ) -> Call {
        Call {
            task: self.task,
            number: 0,
            parent: None,
            stack: self.stack.number,
            function: FunctionId(0),
            ip,
            depth,
            kind,
            from,
            begin,
        }
    }

    /// Opens a call. (Inlined, as frames are large, and calls are many.)
    #[inline(always)]
    pub(super) fn enter<V: CallVisitor + ?Sized>(
        &mut self,
        mut frame: Frame,
        around: &mut Around<'_, '_, V>,
    ) {
        self.tell_stub(around);
        let around_it = self.stack.innermost();
        frame.call.parent = around_it.or(frame.call.parent);
        if !frame.is_stub {
            frame.call.number = self.number();
            around.enter(&frame.call);
        }
        self.stack.frames.push(frame);
        if self.stack.frames.len() > DEEPEST {
            self.forget_outer(around);
        }
    }

    /// A call pays for what searches by mismatched returns cost.
    #[inline]
    pub(super) fn earn(&mut self) {
        self.earn_of(1);
    }

    /// The same of several calls.
    #[inline]
    pub(super) fn earn_of(&mut self, calls: usize) {
        self.credit = self
            .credit
            .saturating_add(calls.saturating_mul(8))
            .min(1 << 24);
    }

    #[inline]
    pub(super) fn number(&mut self) -> i64 {
        self.next += 1;
        self.next - 1
    }

    /// Tells of the innermost call, if nobody was told because it might be a stub.
    pub(super) fn tell_stub<V: CallVisitor + ?Sized>(&mut self, around: &mut Around<'_, '_, V>) {
        if self.stack.top().is_some_and(|top| top.is_stub) {
            let number = self.number();
            if let Some(top) = self.stack.frames.last_mut() {
                top.is_stub = false;
                top.call.number = number;
                around.enter(&top.call);
            }
        }
    }

    /// Leaves the innermost call, if there is one. (It is not given: frames are large, and calls are many.)
    pub(super) fn leave<V: CallVisitor + ?Sized>(
        &mut self,
        left: Left,
        around: &mut Around<'_, '_, V>,
    ) {
        self.tell_stub(around);
        self.count();
        let Some(last) = self.stack.frames.len().checked_sub(1) else {
            return;
        };
        self.leave_inlines(last, left, around);
        if let Some(frame) = self.stack.frames.last() {
            self.tell_left(frame, left, around);
        }
        self.stack.frames.truncate(last);
    }

    pub(super) fn tell_left<V: CallVisitor + ?Sized>(
        &self,
        frame: &Frame,
        left: Left,
        around: &mut Around<'_, '_, V>,
    ) {
        let end = CallEnd {
            end: self.now(around),
            insns: self.stack.own(self.total).wrapping_sub(frame.begin),
            self_insns: frame.self_insns,
            left,
        };
        around.visitor.leave(&frame.call, &end, around.names);
    }

    /// Leaves calls until there are so many.
    pub(super) fn leave_down_to<V: CallVisitor + ?Sized>(
        &mut self,
        len: usize,
        left: Left,
        around: &mut Around<'_, '_, V>,
    ) {
        while self.stack.frames.len() > len {
            self.leave(left, around);
        }
    }

    /// The outer half of the calls was never left: that is not to be expected any more.
    pub(super) fn forget_outer<V: CallVisitor + ?Sized>(&mut self, around: &mut Around<'_, '_, V>) {
        const HALF: usize = DEEPEST / 2;
        let outer: Vec<Frame> = self.stack.frames.drain(..HALF).collect();
        self.stack.forgotten += HALF as u64;
        let inlines = &mut self.stack.inlines;
        let inner = inlines.partition_point(|inline| inline.owner < HALF);
        let mut outer_inlines: Vec<InlineFrame> = inlines.drain(..inner).collect();
        for inline in inlines {
            inline.owner -= HALF;
        }
        for (index, frame) in outer.iter().enumerate().rev() {
            while let Some(inline) = outer_inlines.pop_if(|inline| inline.owner == index) {
                self.tell_inline_left(&inline, Left::Unwound, around);
            }
            self.tell_left(frame, Left::Unwound, around);
        }
    }

    /// Leaves all calls: there is a gap, or the end.
    pub(crate) fn leave_all<V: CallVisitor + ?Sized>(
        &mut self,
        left: Left,
        around: &mut Around<'_, '_, V>,
    ) {
        self.decide(around);
        self.leave_down_to(0, left, around);
        while let Some(last) = self.others.pop() {
            // What ran since then did not run on it.
            let mut stack = last;
            stack.elsewhere = stack
                .elsewhere
                .wrapping_add(self.total.wrapping_sub(stack.since));
            self.stack = stack;
            self.counted = self.total;
            self.leave_down_to(0, left, around);
        }
        self.stack = Stack::default();
        if (self.next, self.outer) != (0, 0) {
            around.visitor.all_left(self.task, around.names);
        }
        (self.next, self.outer) = (0, 0);
        (self.off_at, self.struck_at) = (None, None);
        self.handlers = self.signals;
        self.coming = Coming::Anew;
    }

    #[inline]
    pub(super) fn depth(&self) -> i32 {
        let inlined = self.stack.inlined().map(|inline| inline.call.depth);
        let top = || self.stack.top().map(|top| top.call.depth);
        inlined.or_else(top).unwrap_or(-1)
    }

    /// Control goes back to a function that was open before the trace, or the last gap.
    pub(super) fn assume_outer<V: CallVisitor + ?Sized>(
        &mut self,
        to: Ip,
        at: Location,
        depth: i32,
        around: &mut Around<'_, '_, V>,
    ) {
        let Some((begin, own)) = self.stack.first else {
            // Calls that lie within others have told already where they are.
            let begin = self.now(around);
            return self.assume(to, at, depth + 1, begin, around);
        };
        let ip = at.start.unwrap_or(to);
        let mut frame = self.frame((CallKind::Assumed, None), (ip, at), depth, begin);
        // What has run on other stacks since then has not run in it.
        frame.begin = own;
        self.outer -= 1;
        frame.call.number = self.outer;
        around.enter(&frame.call);
        self.stack.frames.push(frame);
    }
}
