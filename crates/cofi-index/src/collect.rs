//! What the index keeps of calls, gathered as they begin and are left.

use cofi_analysis::{
    BriefCall, Call, CallEnd, CallKind, CallMoment, CallNames, CallTracer, CallVisitor, FunctionId,
    Left, PiecePlaces,
};
use cofi_flow::Event;
use cofi_image::CodeChange;
use cofi_insn::Class;
use cofi_packet::{StreamOffset, Tsc};
use cofi_session::{Task, compact};

use crate::calls::{KeptCall, KeptCalls, NO_TIME, kind_number, left_number};
use crate::clock::Timeline;
use crate::counts::{Counts, most};
use crate::explore::{EventKind, kind_of};
use crate::local::{PieceRan, Stretch};
use crate::row::{Bins, FunctionNumber, Knot, NO_FUNCTION};
use crate::stacks::Stacks;
use crate::sums::{ChunkSums, FunctionSum};

/// At first, a bin has so many instructions, as a power of two.
const FIRST_SHIFT: u32 = 8;

/// An open call.
#[derive(Clone, Copy, Debug)]
struct Open {
    function: FunctionNumber,
    begin: u64,
    begin_time: u64,
}

/// Gathers what the index keeps of a stream's calls.
pub(crate) struct Collector {
    timeline: Timeline,
    pub(crate) kept: KeptCalls,
    pub(crate) bins: Bins,
    pub(crate) knots: Vec<Knot>,
    pub(crate) calls: u64,
    open: Stacks<Open>,
    /// The function of the innermost call, which need not be among those.
    innermost: FunctionNumber,
    counts: Counts,
    /// What a moment's instructions are more than those of the stream.
    ahead: u64,
    /// The place up to which what ran was counted.
    at: u64,
    /// The size of pieces. They begin anew with each chunk, so that they are those of whoever follows its calls without knowing where it stands.
    piece: u64,
    piece_begin: u64,
    piece_end: u64,
    /// What ran in the bin at hand, by function.
    bin: Vec<(FunctionNumber, u64)>,
    /// The least distance of knots.
    between_knots: u64,
    /// The last place whose time is known, if it is no knot.
    no_knot: Option<Knot>,
}

/// Where a stretch of a part stands.
#[derive(Clone, Debug)]
pub(crate) struct StretchAt {
    /// How many instructions of the thread ran before it.
    pub(crate) insns: u64,
    /// Of its calls around which there are no others of it.
    pub(crate) depth: i32,
    pub(crate) stack: u32,
    pub(crate) tid: u32,
    /// Of the beginnings and ends of its calls.
    pub(crate) times: Vec<Option<Tsc>>,
}

impl Collector {
    /// So many knots are kept.
    const KNOTS: usize = 1 << 17;
    /// Time that passes while next to nothing runs is told by two knots.
    const PAUSE: u64 = 20_000;

    /// Nothing yet of a stream in which this thread runs first. What ran most is worked out by pieces of so many instructions.
    pub(crate) fn new(task: Task, timeline: Timeline, piece: u64) -> Self {
        Self {
            timeline,
            kept: KeptCalls::new(),
            bins: Bins {
                shift: FIRST_SHIFT,
                event_shift: FIRST_SHIFT,
                ..Bins::default()
            },
            knots: Vec::new(),
            calls: 0,
            open: Stacks::of(task),
            innermost: NO_FUNCTION,
            counts: Counts::default(),
            ahead: 0,
            at: 0,
            piece,
            piece_begin: 0,
            piece_end: piece,
            bin: Vec::new(),
            between_knots: 1 << 8,
            no_knot: None,
        }
    }

    /// Before each piece of the flow: which thread runs, and how its instructions and those of the stream go together.
    pub(crate) fn follow(&mut self, tracer: &CallTracer<'_>) {
        self.follow_at(tracer.running(), tracer.instructions());
    }

    /// The same, where so many instructions of the stream ran before.
    pub(crate) fn follow_at(&mut self, (task, insns): (Task, u64), instructions: u64) {
        self.ahead = insns.wrapping_sub(instructions);
        if task == self.open.task() {
            return;
        }
        self.count_to(instructions);
        for open in self.open.iter() {
            self.counts.close(open.function, self.at);
        }
        self.open.switch_to(task);
        self.innermost = self.last_open();
        for open in self.open.iter() {
            self.counts.open(open.function, self.at);
        }
    }

    /// The function of the innermost call of those that are not told of in brief.
    fn last_open(&self) -> FunctionNumber {
        self.open.last().map_or(NO_FUNCTION, |open| open.function)
    }

    #[inline]
    fn place(&self, moment: &CallMoment) -> u64 {
        moment.insns.wrapping_sub(self.ahead)
    }

    /// What ran up to a place ran in the innermost call.
    #[inline]
    fn count_to(&mut self, at: u64) {
        if at >= self.piece_end {
            self.count_pieces_to(at);
        }
        if at > self.at {
            self.counts.ran(self.innermost, at - self.at);
            self.at = at;
        }
    }

    #[cold]
    #[inline(never)]
    fn count_pieces_to(&mut self, at: u64) {
        while at >= self.piece_end {
            let ran = self.piece_end - self.at;
            if ran > 0 {
                self.counts.ran(self.innermost, ran);
            }
            self.at = self.piece_end;
            self.end_piece();
        }
    }

    /// The piece at hand ends: what ran most in it stands for all of it.
    fn end_piece(&mut self) {
        let found = most(self.counts.end_piece());
        let function = found.map_or(NO_FUNCTION, |(function, _)| function);
        let mut from = self.piece_begin;
        (self.piece_begin, self.piece_end) = (self.at, self.at + self.piece);
        while from < self.at {
            let to = self.bins.end().min(self.at);
            match self.bin.iter_mut().find(|(of, _)| *of == function) {
                Some((_, ran)) => *ran += to - from,
                None => self.bin.push((function, to - from)),
            }
            if to == self.bins.end() {
                self.end_bin();
            }
            from = to;
        }
    }

    fn end_bin(&mut self) {
        let found = most(self.bin.drain(..));
        let (function, ran) = found.unwrap_or((NO_FUNCTION, 0));
        self.bins.push(function, ran);
    }

    /// Pieces begin, of which this is the time.
    pub(crate) fn mark(&mut self, places: PiecePlaces, tsc: Option<Tsc>) {
        if let Some(time) = self.timeline.at(tsc) {
            places.for_each(|at| self.mark_one(at, time));
        }
    }

    fn mark_one(&mut self, at: u64, time: u64) {
        let knot = Knot { at, time };
        if self.is_near_knot(at, time) {
            self.no_knot = Some(knot);
            return;
        }
        // What ran before a long pause is told apart from that.
        if let Some(before) = self.no_knot.take()
            && time.saturating_sub(before.time) >= Self::PAUSE
        {
            self.add_knot(before);
        }
        self.add_knot(knot);
    }

    /// Whether a place is told well enough by the last knot.
    fn is_near_knot(&self, at: u64, time: u64) -> bool {
        self.knots.last().is_some_and(|last| {
            let (ran, passed) = (at.saturating_sub(last.at), time.saturating_sub(last.time));
            ran < self.between_knots && (passed < Self::PAUSE || passed < ran * 16)
        })
    }

    #[cold]
    fn add_knot(&mut self, Knot { at, time }: Knot) {
        let last = self.knots.last().copied();
        let (at, time) = match last {
            Some(last) => (at.max(last.at), time.max(last.time)),
            None => (at, time),
        };
        if last != Some(Knot { at, time }) {
            self.knots.push(Knot { at, time });
        }
        if self.knots.len() >= Self::KNOTS {
            self.between_knots *= 2;
            let mut kept: Option<Knot> = None;
            let between = self.between_knots;
            self.knots.retain(|knot| {
                let is_far = kept.is_none_or(|kept| {
                    knot.at - kept.at >= between || knot.time - kept.time >= 50 * Self::PAUSE
                });
                if is_far {
                    kept = Some(*knot);
                }
                is_far
            });
            // Wherever time passes so unevenly that this is not enough, every other one goes.
            if self.knots.len() >= Self::KNOTS / 2 {
                let mut number = 0;
                self.knots.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
            }
        }
    }

    /// Takes what was counted of a stretch of a part.
    pub(crate) fn stretch(&mut self, stretch: &Stretch, place: &StretchAt) {
        let begin = place.insns.wrapping_sub(self.ahead);
        self.count_to(begin);
        let at = |at: u64| begin + (at - stretch.begin);
        if self.innermost != NO_FUNCTION && stretch.around > 0 {
            self.counts.of(self.innermost).own += stretch.around;
        }
        for (function, sum) in &stretch.sums {
            self.counts.add(*function, sum);
        }
        self.calls += stretch.calls;
        for ((call, end, _), times) in stretch.kept.iter().zip(place.times.chunks(2)) {
            let [begin_time, end_time] = times else {
                break;
            };
            self.keep(KeptCall {
                begin: at(call.begin),
                end: at(*end),
                begin_time: raw(*begin_time),
                end_time: raw(*end_time),
                insns: end - call.begin,
                function: call.function.index() as FunctionNumber,
                depth: place.depth.saturating_add_unsigned(call.depth),
                tid: place.tid,
                stack: place.stack,
                kind: kind_number(call.kind),
                left: left_number(Some(call.left)),
            });
        }
        let around = self.innermost;
        let innermost = |function| match function {
            NO_FUNCTION => around,
            function => function,
        };
        let mut shares = stretch.shares.iter();
        for piece in &stretch.pieces {
            let end = at(piece.at);
            match piece.ran {
                PieceRan::Most(function) => {
                    let ran = end - self.at;
                    self.counts.ran_in_piece(innermost(function), ran);
                }
                PieceRan::Shares(count) => {
                    for (function, ran) in shares.by_ref().take(count as usize) {
                        self.counts.ran_in_piece(innermost(*function), *ran);
                    }
                }
            }
            self.at = end;
            if end >= self.piece_end {
                self.end_piece();
            }
        }
    }

    /// A call is open that began in the stretch that was told of last.
    pub(crate) fn opened(&mut self, call: &Call) {
        let open = self.open_of(call, raw(call.begin.tsc));
        self.counts.open(open.function, open.begin);
        self.open.push(call, open);
        self.innermost = open.function;
    }

    fn open_of(&self, call: &Call, begin_time: u64) -> Open {
        Open {
            function: call.function.index() as FunctionNumber,
            begin: self.place(&call.begin),
            begin_time,
        }
    }

    /// A call may be kept, of which the times are ticks yet.
    fn keep(&mut self, mut call: KeptCall) {
        if call.len() < self.kept.shortest {
            return;
        }
        let time = |ticks| match ticks {
            NO_TIME => NO_TIME,
            ticks => self.timeline.of(Tsc(ticks)).unwrap_or(NO_TIME),
        };
        (call.begin_time, call.end_time) = (time(call.begin_time), time(call.end_time));
        // Where the counter was set back meanwhile, it has no length.
        if call.begin_time != NO_TIME {
            call.end_time = call.end_time.max(call.begin_time);
        }
        self.kept.push(call);
    }

    /// The thread goes on upon another stack.
    pub(crate) fn switch_stack(&mut self, innermost: Option<i64>, at: &CallMoment) {
        self.count_to(self.place(at));
        self.open.stand_on(innermost);
        self.innermost = self.last_open();
    }

    /// Something of these kinds happened.
    pub(crate) fn note_event(&mut self, at: &CallMoment, bits: u16) {
        let place = self.place(at);
        self.bins.note_event(place, bits);
    }

    /// The chunk ends here, of which this is the time: what is counted of it by function.
    pub(crate) fn end_chunk(&mut self, at: u64, time: Option<u64>) -> ChunkSums {
        self.count_to(at);
        if self.at > self.piece_begin {
            self.end_piece();
        }
        if let Some(time) = time {
            let time = self.timeline.reach(time);
            self.add_knot(Knot { at, time });
        }
        let sums = self.counts.take(at).into_iter();
        let mut sums: Vec<FunctionSum> = sums
            .map(|(function, counted)| FunctionSum {
                function,
                own: counted.own,
                total: counted.total,
                calls: counted.calls,
            })
            .collect();
        compact::sort_by_key(&mut sums, |sum| sum.function);
        ChunkSums(sums)
    }

    /// Whether calls of a function are parts of others.
    pub(crate) fn is_inlined(&self, function: usize) -> bool {
        let counted = self.counts.get(function);
        counted.is_some_and(|counted| counted.is_inlined)
    }

    /// The stream ends.
    pub(crate) fn finish(&mut self) {
        if !self.bin.is_empty() {
            self.end_bin();
        }
        self.kept.finish();
    }
}

/// The ticks of a time.
fn raw(tsc: Option<Tsc>) -> u64 {
    tsc.map_or(NO_TIME, |tsc| tsc.0)
}

impl CallVisitor for Collector {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        let open = self.open_of(call, raw(call.begin.tsc));
        // One that was open before the trace began when the first place was reached.
        self.count_to(open.begin);
        let is_inlined = call.kind == CallKind::Inline;
        self.calls += u64::from(!is_inlined);
        let since = self.at.max(open.begin);
        self.counts.call(open.function, is_inlined, since);
        self.open.push(call, open);
        self.innermost = open.function;
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        let over = self.place(&end.end);
        self.count_to(over);
        let Some(open) = self.open.remove(call) else {
            return;
        };
        self.innermost = self.last_open();
        self.counts.close(open.function, self.at.max(over));
        self.keep(KeptCall {
            begin: open.begin,
            end: over.max(open.begin),
            begin_time: open.begin_time,
            end_time: raw(end.end.tsc),
            insns: end.insns,
            function: open.function,
            depth: call.depth,
            tid: call.task.tid,
            stack: call.stack,
            kind: kind_number(call.kind),
            left: left_number(Some(end.left)),
        });
    }

    #[inline(always)]
    fn takes_brief(&self) -> bool {
        true
    }

    #[inline]
    fn enter_briefly(&mut self, function: FunctionId, kind: CallKind, begin: &CallMoment) -> u64 {
        let at = self.place(begin);
        self.count_to(at);
        let function = function.index() as FunctionNumber;
        let is_inlined = kind == CallKind::Inline;
        self.calls += u64::from(!is_inlined);
        let since = self.at.max(at);
        self.counts.call(function, is_inlined, since);
        self.innermost = function;
        raw(begin.tsc)
    }

    #[inline]
    fn leave_briefly(&mut self, call: &BriefCall, end: &CallMoment, outer: Option<FunctionId>) {
        let at = self.place(end);
        self.count_to(at);
        let function = call.function.index() as FunctionNumber;
        self.counts.close(function, self.at.max(at));
        self.innermost = match outer {
            Some(outer) => outer.index() as FunctionNumber,
            None => self.last_open(),
        };
        if end.insns - call.begin >= self.kept.shortest {
            self.keep(KeptCall {
                begin: call.begin.wrapping_sub(self.ahead),
                end: at,
                begin_time: call.noted,
                end_time: raw(end.tsc),
                insns: end.insns - call.begin,
                function,
                depth: call.depth,
                tid: call.task.tid,
                stack: call.stack,
                kind: kind_number(call.kind),
                left: left_number(Some(Left::Return)),
            });
        }
    }

    fn settled(&mut self, call: &Call, noted: u64) {
        let open = self.open_of(call, noted);
        self.open.push(call, open);
    }

    fn switched(&mut self, innermost: Option<i64>, at: &CallMoment) {
        self.switch_stack(innermost, at);
    }

    fn event(&mut self, event: &Event, at: &CallMoment, _: StreamOffset, by: Option<Class>) {
        if let Some(kind) = kind_of(event, by) {
            self.note_event(at, kind.bit());
        }
    }

    fn code_changed(&mut self, _: &CodeChange, at: &CallMoment, _: StreamOffset) {
        self.note_event(at, EventKind::Code.bit());
    }
}
