//! Takes account of parts whose calls were followed before it was known which calls are open where they begin.

use cofi_image::ImageView;
use cofi_insn::Class;
use cofi_packet::{Ip, StreamOffset, Tsc};
use cofi_session::Task;

use super::inlines::{Chain, InlineFrame};
use super::local::{LocalFrame, NewNumbers, Op, OpKind, Piece, StretchEnd, TracedPart};
use super::marks::{Marks, PieceMark, PiecePlaces};
use super::names::{GoRole, Location};
use super::shapes::{Hop, Transfer};
use super::thread::{Around, Coming, DEEPEST, Thread};
use super::tracks::{Step, StepKind};
use super::{
    Call, CallKind, CallMoment, CallStates, CallTracer, CallVisitor, FunctionId, StreamClock,
};

/// What was taken to be true of the calls beneath a part is not: it has to be decoded, with these calls known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit;

/// Where a stretch of a part stands.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StretchPlace<'a> {
    /// How many instructions of the thread ran before it.
    pub insns: u64,
    /// How many calls are around those of it.
    pub depth: i32,
    /// As in [`Call`].
    pub stack: u32,
    /// The thread.
    pub task: Task,
    /// The times that were [asked](PartVisitor::times) for, first of all, in that order; each with the core cycles told of by then.
    pub times: &'a [(Option<Tsc>, u64)],
    /// What the worker's numbers of functions mean.
    pub functions: &'a [FunctionId],
}

/// Is told of what is left of parts, and of what [was noted](super::LocalVisitor) of their stretches.
///
pub trait PartVisitor<S>: CallVisitor {
    /// Before what ran between two events: the thread that runs, how many instructions of it ran so far, and how many of the stream.
    fn piece(&mut self, running: (Task, u64), instructions: u64) {
        let _ = (running, instructions);
    }

    /// When pieces of the [worker](super::LocalVisitor::begin) begin, before each of which so many instructions of the stream ran.
    fn mark(&mut self, places: PiecePlaces, tsc: Option<Tsc>) {
        let _ = (places, tsc);
    }

    /// Asks for the times at packets of a stretch that it is told of next.
    fn times(&self, stretch: &S, ask: &mut dyn FnMut(StreamOffset));

    /// What was noted of a stretch.
    fn stretch(&mut self, stretch: S, place: &StretchPlace<'_>);

    /// A call is open at the end of the stretch that was told of last, of which its beginning was noted. It is [left](CallVisitor::leave) as others are.
    fn opened(&mut self, call: &Call);
}

/// What the numbers of a worker mean.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    functions: Vec<FunctionId>,
    chains: Vec<Chain>,
}

impl Numbers {
    fn function(&self, number: FunctionId) -> FunctionId {
        let known = self.functions.get(number.index());
        known.copied().unwrap_or_default()
    }

    fn chain(&self, number: Chain) -> Chain {
        let index = (number as usize).checked_sub(1);
        let known = index.and_then(|index| self.chains.get(index));
        known.copied().unwrap_or(0)
    }

    fn location(&self, at: Location) -> Location {
        Location {
            function: self.function(at.function),
            ..at
        }
    }

    fn transfer(&self, by: Transfer) -> Transfer {
        Transfer {
            source: self.function(by.source),
            ..by
        }
    }

    fn step(&self, kind: StepKind) -> StepKind {
        match kind {
            StepKind::Arrive(by, to, at) => {
                StepKind::Arrive(self.transfer(by), to, self.location(at))
            }
            StepKind::Hop(hop) => StepKind::Hop(Hop {
                transfer: self.transfer(hop.transfer),
                target: self.location(hop.target),
                ..hop
            }),
            StepKind::Inline(ip, chain) => StepKind::Inline(ip, self.chain(chain)),
        }
    }
}

/// What has to be known to take a part back.
#[derive(Debug)]
pub struct PartMark<'s> {
    clock: StreamClock<'s>,
    errors: Option<(cofi_flow::FlowError, u64)>,
}

impl<'s> CallTracer<'s> {
    /// Before a part: what has to be known to go [back](Self::go_back) to where it begins.
    #[must_use]
    pub fn mark(&self) -> PartMark<'s> {
        PartMark {
            clock: self.clock.clone(),
            errors: self.errors,
        }
    }

    /// A part is to be followed anew, before which this was marked and this state was kept: by a flow that begins where it begins. Whether there is such a
    /// state.
    pub fn go_back(
        &mut self,
        mark: PartMark<'s>,
        states: &CallStates,
        state: usize,
        start: StreamOffset,
    ) -> bool {
        let is_known = states.restore(state, self);
        self.clock = mark.clock;
        self.go_on_at(start);
        self.errors = mark.errors;
        is_known
    }

    /// When the pieces of a part begin, which is followed next, and not as a part: each with how many instructions of the stream ran before.
    pub fn tell_marks(&self, marks: &[PieceMark], mut tell: impl FnMut(PiecePlaces, Option<Tsc>)) {
        let mut clock = self.clock.clone();
        for mark in marks {
            let tsc = clock.at(mark.offset()).0;
            tell(mark.places_behind(self.instructions), tsc);
        }
    }

    /// Takes note of what the numbers of a part mean, which is the next of its stream. This is to be done of all parts, in their order.
    pub fn adopt<S>(&mut self, part: &mut TracedPart<'s, S>) {
        for new in std::mem::take(&mut part.replaced) {
            self.adopt_numbers(new);
        }
        let worker = part.numbers.worker;
        self.adopt_numbers(std::mem::take(&mut part.numbers));
        part.numbers.worker = worker;
    }

    fn adopt_numbers(&mut self, new: NewNumbers) {
        if self.workers.len() <= new.worker {
            self.workers.resize_with(new.worker + 1, Numbers::default);
        }
        let Some(numbers) = self.workers.get_mut(new.worker) else {
            return;
        };
        numbers.functions.extend(self.names.adopt(new.names));
        for (outer, function, instance) in new.chains {
            let key = (numbers.chain(outer), numbers.function(function), instance);
            numbers.chains.push(self.code.inlines.number(key));
        }
    }

    /// Takes account of a part that was [adopted](Self::adopt), instead of following its flow.
    ///
    /// # Errors
    ///
    /// If it does not fit to the calls that are open. What the visitor was told of it does not count then, and the tracer has to [go back](Self::go_back).
    pub fn follow_part<S>(
        &mut self,
        part: TracedPart<'s, S>,
        visitor: &mut impl PartVisitor<S>,
    ) -> Result<(), Unfit> {
        if !part.is_whole {
            return Err(Unfit);
        }
        let worker = part.numbers.worker;
        let numbers = self.workers.get_mut(worker).map(std::mem::take);
        let numbers = numbers.unwrap_or_default();
        let followed = self.follow_pieces(part, &numbers, visitor);
        if let Some(of_worker) = self.workers.get_mut(worker) {
            *of_worker = numbers;
        }
        followed
    }

    fn follow_pieces<S>(
        &mut self,
        part: TracedPart<'s, S>,
        numbers: &Numbers,
        visitor: &mut impl PartVisitor<S>,
    ) -> Result<(), Unfit> {
        let TracedPart {
            ops,
            stretches,
            pieces,
            marks,
            ..
        } = part;
        let mut stretches = stretches.into_iter();
        let mut marks = Marks::new(&marks, self.instructions);
        let mut view: Option<ImageView<'s>> = None;
        let (mut first, mut begin) = (0, 0);
        for mut piece in pieces {
            if let Some(new) = piece.view.take() {
                view = Some(new);
            }
            if let (None, Some(view)) = (&self.code.now, &view) {
                self.code.settle_in(view);
            }
            visitor.piece(self.running(), self.instructions);
            self.tell_changes(visitor);
            self.arrive(visitor);
            let of_piece = ops.get(first..piece.ops).unwrap_or_default();
            let noted = (&mut stretches, &mut marks);
            self.take_piece((of_piece, begin), &piece, noted, numbers, visitor)?;
            (first, begin) = (piece.ops, piece.at);
            match piece.item {
                Some(item) => self.item(&item, piece.stand, visitor),
                None => self.arrive_at_end(visitor),
            }
        }
        Ok(())
    }

    /// Takes what ran between two events: what was written down of it, and how many instructions of the part ran before.
    fn take_piece<S>(
        &mut self,
        (ops, begin): (&[Op], u64),
        piece: &Piece<'s>,
        (stretches, marks): (&mut impl Iterator<Item = S>, &mut Marks<'_>),
        numbers: &Numbers,
        visitor: &mut impl PartVisitor<S>,
    ) -> Result<(), Unfit> {
        let Some((_, view)) = &self.code.now else {
            return Err(Unfit);
        };
        let before = self.thread.total;
        // A place of the part, as the thread counts it.
        let place = |at: u64| before + (at - begin);
        // A mark where this ends begins behind what happens there, and the time there may be a later one.
        let last = piece.at.checked_sub(1);
        let mut asked = Asked::default();
        let mut in_stretch = Vec::new();
        // The number of the first call of the stretch at hand.
        let mut first = 0;
        for (index, op) in ops.iter().enumerate() {
            // (Those of a stretch are among what is asked for together.)
            if let (OpKind::Arrive(..) | OpKind::Step(_), Some(last)) = (&op.kind, last) {
                marks.tell(op.at.min(last), &mut self.clock, visitor);
            }
            let mut around = Around {
                visitor: &mut *visitor,
                clock: &mut self.clock,
                names: &self.names,
                pads: &mut self.pads,
                view: Some(view),
                offset: op.offset.max(self.offset),
            };
            match &op.kind {
                OpKind::Arrive(to, at) => {
                    self.thread.total = place(op.at);
                    let at = numbers.location(*at);
                    self.thread.arrive_in_part(*to, at, &mut around);
                }
                OpKind::Step(kind) => {
                    self.thread.total = place(op.at);
                    let step = Step::of(numbers.step(*kind));
                    self.thread.step(&step, &self.code.inlines, &mut around);
                }
                OpKind::Stretch(end) => {
                    if end.tells {
                        self.thread.total = place(end.begin);
                        self.thread.tell_stub(&mut around);
                    }
                    if !self.thread.carries(end) {
                        return Err(Unfit);
                    }
                    let noted = match end.is_noted {
                        true => stretches.next(),
                        false => None,
                    };
                    asked.begin();
                    if let Some(noted) = &noted {
                        visitor.times(noted, &mut |offset| asked.ask(offset));
                    }
                    let open = ops.get(index + 1..).unwrap_or_default().iter();
                    let before = asked.offsets.len();
                    for op in open.take_while(|op| matches!(op.kind, OpKind::Open(_))) {
                        asked.ask(op.offset);
                    }
                    asked.next = before;
                    let before = asked.offsets.len();
                    in_stretch.clear();
                    while let Some(mark) = last.and_then(|last| marks.next_to(op.at.min(last))) {
                        asked.ask(mark.offset());
                        in_stretch.push(mark);
                    }
                    asked.answer(&mut self.clock, self.offset);
                    let times = asked.times.get(before..).unwrap_or_default();
                    for (mark, (tsc, _)) in in_stretch.iter().zip(times) {
                        visitor.mark(mark.places_behind(marks.begin), *tsc);
                    }
                    if let Some(noted) = noted {
                        let of_stretch = StretchPlace {
                            insns: place(end.begin),
                            depth: self.thread.depth() + 1,
                            stack: self.thread.stack.number,
                            task: self.task,
                            times: &asked.times,
                            functions: &numbers.functions,
                        };
                        visitor.stretch(noted, &of_stretch);
                    }
                    self.thread.total = place(end.begin);
                    first = self.thread.take_stretch(end, place(op.at));
                }
                OpKind::Open(frame) => {
                    let (tsc, cycles) = asked.take();
                    let begin = CallMoment {
                        tsc,
                        cycles,
                        insns: place(frame.begin),
                    };
                    let frame = LocalFrame {
                        function: numbers.function(frame.function),
                        chain: numbers.chain(frame.chain),
                        jumper: frame.jumper.map(|jumper| numbers.function(jumper)),
                        ..*frame
                    };
                    if let Some(call) = self.thread.open_local(&frame, begin, first) {
                        visitor.opened(&call);
                    }
                }
            }
        }
        let ran = piece.at - begin;
        if let Some(last) = last {
            marks.tell(last, &mut self.clock, visitor);
        }
        self.thread.total = before + ran;
        if let Some((coming, last_ip, offset)) = piece.end {
            self.thread.coming = match coming {
                Coming::By(by) => Coming::By(numbers.transfer(by)),
                other => other,
            };
            self.thread.last_ip = Some(last_ip);
            self.offset = self.offset.max(offset);
        }
        self.instructions += ran;
        // Behind the PSB+ it is another event that says so.
        if ran > 0 {
            self.continue_from(false);
        }
        Ok(())
    }
}

/// Packets of which the time is to be known.
#[derive(Debug, Default)]
struct Asked {
    /// Each with the how-manieth it is.
    offsets: Vec<(StreamOffset, usize)>,
    times: Vec<(Option<Tsc>, u64)>,
    next: usize,
}

impl Asked {
    fn begin(&mut self) {
        self.offsets.clear();
        self.times.clear();
    }

    fn ask(&mut self, offset: StreamOffset) {
        self.offsets.push((offset, self.offsets.len()));
    }

    /// Asks a clock, which goes forward only; what stands before `least` is taken to stand there.
    fn answer(&mut self, clock: &mut StreamClock<'_>, least: StreamOffset) {
        self.offsets.sort_unstable();
        self.times.resize(self.offsets.len(), (None, 0));
        for (offset, number) in &self.offsets {
            if let Some(time) = self.times.get_mut(*number) {
                *time = clock.at(least.max(*offset));
            }
        }
    }

    /// The next of the times that are not taken.
    fn take(&mut self) -> (Option<Tsc>, u64) {
        let time = self.times.get(self.next).copied().unwrap_or_default();
        self.next += 1;
        time
    }
}

impl Thread {
    /// Control comes to the first instruction of what follows in a part.
    fn arrive_in_part<V: CallVisitor>(
        &mut self,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) {
        match self.coming {
            Coming::Straight => {}
            Coming::By(by) if by.class == Class::Conditional && by.source == at.function => {}
            coming => self.arrive(coming, to, at, around),
        }
    }

    /// Whether what was taken to be true of the calls beneath a stretch is so.
    fn carries(&self, end: &StretchEnd) -> bool {
        self.undecided.is_none()
            && self.stack.frames.len() + end.deepest < DEEPEST
            && self.stack.top().is_some_and(|top| {
                let is_left = |ret: Ip| end.jumps.contains(&ret);
                !top.is_stub && top.go != Some(GoRole::Resumes) && !top.ret.is_some_and(is_left)
            })
    }

    /// The calls of a stretch, which begins where the thread stands, took numbers, and paid; and the innermost call ran. The number of the first.
    fn take_stretch(&mut self, end: &StretchEnd, total: u64) -> i64 {
        let first = self.next;
        self.next += i64::from(end.numbers);
        self.earn_of(end.earned as usize);
        self.count();
        // So that it is what ran in the innermost call.
        self.total += end.around;
        self.count();
        (self.total, self.counted) = (total, total);
        first
    }

    /// A call of a stretch is open, of which the first has that number. It, unless it may be a stub.
    fn open_local(&mut self, local: &LocalFrame, begin: CallMoment, first: i64) -> Option<Call> {
        let (from, depth) = ((local.kind, Some(local.from)), self.depth() + 1);
        let mut call = Call {
            function: local.function,
            parent: self.stack.innermost(),
            ..self.call_of(from, local.to, depth, begin)
        };
        if !local.is_stub {
            call.number = first + i64::from(local.number);
        }
        if local.kind == CallKind::Inline {
            self.stack.inlines.push(InlineFrame {
                call,
                chain: local.chain,
                owner: self.stack.frames.len().saturating_sub(1),
                begin: self.stack.own(begin.insns),
                at: begin.insns.wrapping_add(self.of_others),
                self_insns: local.self_insns,
            });
            return Some(call);
        }
        let at = Location {
            function: local.function,
            is_first: true,
            is_named: true,
            start: None,
        };
        let mut frame = self.frame(from, (local.to, at), depth, begin);
        (frame.call, frame.ret) = (call, Some(local.ret));
        (frame.jumper, frame.is_stub) = (local.jumper, local.is_stub);
        frame.self_insns = local.self_insns;
        self.stack.frames.push(frame);
        (!local.is_stub).then_some(call)
    }
}
