//! What the index keeps of calls, gathered as they begin and are left.

use cofi_analysis::{
    BriefCall, Call, CallEnd, CallKind, CallMoment, CallNames, CallTracer, CallVisitor, FunctionId,
    Left,
};
use cofi_flow::Event;
use cofi_image::CodeChange;
use cofi_insn::Class;
use cofi_packet::{StreamOffset, Tsc};
use cofi_session::Task;

use crate::calls::{KeptCall, KeptCalls, NO_TIME, kind_number, left_number};
use crate::clock::Timeline;
use crate::explore::{EventKind, kind_of};
use crate::local::Stretch;
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

/// What is counted of a function in the chunk at hand.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    own: u64,
    total: u64,
    calls: u64,
    /// The instructions in the bin at hand.
    in_bin: u64,
    /// How many calls of it are open, and since when, of those that count.
    open: u32,
    since: u64,
    is_noted: bool,
    /// Its code was inlined wherever it ran.
    is_inlined: bool,
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
    functions: Vec<Counted>,
    /// Those of which something is counted.
    noted: Vec<FunctionNumber>,
    /// What a moment's instructions are more than those of the stream.
    ahead: u64,
    /// The place up to which what ran was counted.
    at: u64,
    /// The bin at hand, where it ends, what ran in it, and in which functions.
    bin: u64,
    bin_end: u64,
    in_bin: u64,
    of_bin: Vec<FunctionNumber>,
    /// The least distance of knots.
    between_knots: u64,
    quiet: Quiet,
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
    /// Of its pieces, and then of the beginnings and ends of its calls.
    pub(crate) times: Vec<Option<Tsc>>,
}

/// As long as no time passes, there is nothing to note up to a place.
#[derive(Clone, Copy, Debug, Default)]
struct Quiet {
    until: u64,
    tsc: Option<Tsc>,
    time: u64,
}

impl Collector {
    /// So many knots are kept.
    const KNOTS: usize = 1 << 17;
    /// Time that passes while next to nothing runs is told by two knots.
    const PAUSE: u64 = 20_000;

    pub(crate) fn new(task: Task, timeline: Timeline) -> Self {
        Self {
            timeline,
            kept: KeptCalls::new(),
            bins: Bins {
                shift: FIRST_SHIFT,
                ..Bins::default()
            },
            knots: Vec::new(),
            calls: 0,
            open: Stacks::of(task),
            innermost: NO_FUNCTION,
            functions: Vec::new(),
            noted: Vec::new(),
            ahead: 0,
            at: 0,
            bin: 0,
            bin_end: 1 << FIRST_SHIFT,
            in_bin: 0,
            of_bin: Vec::new(),
            between_knots: 1 << 8,
            quiet: Quiet::default(),
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
            close(&mut self.functions, open.function, self.at);
        }
        self.open.switch_to(task);
        self.innermost = self.last_open();
        let again: Vec<FunctionNumber> = self.open.iter().map(|open| open.function).collect();
        let at = self.at;
        for function in again {
            self.counted(function).reopen(at);
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

    #[inline]
    fn counted(&mut self, function: FunctionNumber) -> &mut Counted {
        let index = function as usize;
        let is_noted = |counted: &Counted| counted.is_noted;
        if !self.functions.get(index).is_some_and(is_noted) {
            self.note_function(function);
        }
        &mut self.functions[index]
    }

    #[cold]
    fn note_function(&mut self, function: FunctionNumber) {
        let index = function as usize;
        if index >= self.functions.len() {
            self.functions.resize(index + 1, Counted::default());
        }
        self.functions[index].is_noted = true;
        self.noted.push(function);
    }

    /// What ran up to a place ran in the innermost call.
    #[inline]
    fn count_to(&mut self, at: u64) {
        if at <= self.at {
            return;
        }
        if at >= self.bin_end {
            self.count_bins_to(at);
        }
        if at > self.at {
            self.fill(self.innermost, at - self.at);
            self.at = at;
        }
    }

    #[cold]
    fn count_bins_to(&mut self, at: u64) {
        while at >= self.bin_end {
            self.fill(self.innermost, self.bin_end - self.at);
            self.at = self.bin_end;
            self.end_bin();
        }
    }

    #[inline]
    fn fill(&mut self, function: FunctionNumber, ran: u64) {
        if function != NO_FUNCTION {
            self.counted(function).own += ran;
        }
        self.fill_bin(function, ran);
    }

    #[inline]
    fn fill_bin(&mut self, function: FunctionNumber, ran: u64) {
        self.in_bin += ran;
        if function != NO_FUNCTION {
            let counted = self.counted(function);
            let is_first = counted.in_bin == 0;
            counted.in_bin += ran;
            if is_first {
                self.of_bin.push(function);
            }
        }
    }

    #[cold]
    fn end_bin(&mut self) {
        // Of functions that ran as much, the one that came last; code in no known call is one more.
        let mut most = (NO_FUNCTION, 0);
        let mut others = std::mem::take(&mut self.in_bin);
        for function in self.of_bin.drain(..) {
            if let Some(counted) = self.functions.get_mut(function as usize) {
                let ran = std::mem::take(&mut counted.in_bin);
                others -= ran;
                if ran >= most.1 {
                    most = (function, ran);
                }
            }
        }
        if others > most.1 {
            most = (NO_FUNCTION, others);
        }
        let (function, sum) = most;
        self.bins
            .list
            .push((function, u32::try_from(sum).unwrap_or(u32::MAX)));
        self.bin += 1;
        if self.bins.list.len() >= Bins::MOST {
            self.bins.halve();
            self.bin = self.bins.list.len() as u64;
        }
        self.bin_end = (self.bin + 1) << self.bins.shift;
    }

    /// Notes the time at a place.
    #[inline]
    fn note(&mut self, at: u64, tsc: Option<Tsc>) -> u64 {
        if at < self.quiet.until && tsc == self.quiet.tsc {
            return self.quiet.time;
        }
        self.note_new(at, tsc)
    }

    #[inline(never)]
    fn note_new(&mut self, at: u64, tsc: Option<Tsc>) -> u64 {
        self.quiet.until = 0;
        let Some(time) = self.timeline.at(tsc) else {
            return NO_TIME;
        };
        if !self.is_near_knot(at, time) {
            self.add_knot(at, time);
        }
        if let Some(last) = self.knots.last()
            && self.is_near_knot(at, time)
        {
            // While time does not pass, the more has run, the less a knot is needed; until there are enough instructions between.
            let until = last.at.saturating_add(self.between_knots);
            self.quiet = Quiet { until, tsc, time };
        }
        time
    }

    /// Whether a place is told well enough by the last knot.
    fn is_near_knot(&self, at: u64, time: u64) -> bool {
        self.knots.last().is_some_and(|last| {
            let (ran, passed) = (at.saturating_sub(last.at), time.saturating_sub(last.time));
            ran < self.between_knots && (passed < Self::PAUSE || passed < ran * 16)
        })
    }

    #[cold]
    fn add_knot(&mut self, at: u64, time: u64) {
        self.quiet.until = 0;
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
            self.counted(self.innermost).own += stretch.around;
        }
        for sum in &stretch.sums {
            let counted = self.counted(sum.function);
            counted.own += sum.own;
            counted.calls += sum.calls;
            counted.is_inlined |= sum.is_inlined;
            // What ran while it was open around the stretch is counted there.
            if counted.open == 0 {
                counted.total += sum.total;
            }
        }
        self.calls += stretch.calls;
        let (of_pieces, of_calls) = place.times.split_at(
            stretch
                .pieces
                .iter()
                .filter(|piece| piece.offset.is_some())
                .count()
                .min(place.times.len()),
        );
        let time = |tsc: &Option<Tsc>| self.timeline.not_before(*tsc).unwrap_or(NO_TIME);
        for ((call, end, _), times) in stretch.kept.iter().zip(of_calls.chunks(2)) {
            let [begin_time, end_time] = times else {
                break;
            };
            if end - call.begin < self.kept.shortest {
                continue;
            }
            self.kept.push(KeptCall {
                begin: at(call.begin),
                end: at(*end),
                begin_time: time(begin_time),
                end_time: time(end_time),
                insns: end - call.begin,
                function: call.function.index() as FunctionNumber,
                depth: place.depth.saturating_add_unsigned(call.depth),
                tid: place.tid,
                stack: place.stack,
                kind: kind_number(call.kind),
                left: left_number(Some(call.left)),
            });
        }
        let mut times = of_pieces.iter();
        for piece in &stretch.pieces {
            let function = match piece.function {
                NO_FUNCTION => self.innermost,
                function => function,
            };
            let end = at(piece.at);
            while end >= self.bin_end {
                self.fill_bin(function, self.bin_end - self.at);
                self.at = self.bin_end;
                self.end_bin();
            }
            self.fill_bin(function, end - self.at);
            self.at = end;
            if piece.offset.is_some()
                && let Some(tsc) = times.next()
            {
                self.note(end, *tsc);
            }
        }
    }

    /// A call is open that began in the stretch that was told of last.
    pub(crate) fn opened(&mut self, call: &Call) {
        let begin = self.place(&call.begin);
        let time = self.timeline.not_before(call.begin.tsc);
        let function = call.function.index() as FunctionNumber;
        self.counted(function).reopen(begin);
        let open = Open {
            function,
            begin,
            begin_time: time.unwrap_or(NO_TIME),
        };
        self.open.push(call, open);
        self.innermost = function;
    }

    /// Something of these kinds happened.
    pub(crate) fn note_event(&mut self, at: &CallMoment, bits: u16) {
        let place = self.place(at);
        self.bins.note_event(place, bits);
    }

    /// The chunk ends here, of which this is the time: what is counted of it by function.
    pub(crate) fn end_chunk(&mut self, at: u64, time: Option<u64>) -> ChunkSums {
        self.count_to(at);
        if let Some(time) = time {
            let time = self.timeline.reach(time);
            self.add_knot(at, time);
        }
        let mut sums = Vec::with_capacity(self.noted.len());
        let noted = std::mem::take(&mut self.noted);
        for function in noted {
            let Some(counted) = self.functions.get_mut(function as usize) else {
                continue;
            };
            if counted.open > 0 {
                counted.total += at.saturating_sub(counted.since);
                counted.since = at;
            }
            sums.push(FunctionSum {
                function,
                own: counted.own,
                total: counted.total,
                calls: counted.calls,
            });
            (counted.own, counted.total, counted.calls) = (0, 0, 0);
            counted.is_noted = counted.open > 0;
            if counted.is_noted {
                self.noted.push(function);
            }
        }
        sums.sort_unstable_by_key(|sum| sum.function);
        ChunkSums(sums)
    }

    /// Whether calls of a function are parts of others.
    pub(crate) fn is_inlined(&self, function: usize) -> bool {
        let counted = self.functions.get(function);
        counted.is_some_and(|counted| counted.is_inlined)
    }

    /// The stream ends.
    pub(crate) fn finish(&mut self) {
        if self.in_bin > 0 {
            self.end_bin();
        }
        self.kept.finish();
    }
}

impl Counted {
    #[inline]
    fn reopen(&mut self, at: u64) {
        if self.open == 0 {
            self.since = at;
        }
        self.open += 1;
    }
}

#[inline]
fn close(functions: &mut [Counted], function: FunctionNumber, at: u64) {
    if let Some(counted) = functions.get_mut(function as usize)
        && counted.open > 0
    {
        counted.open -= 1;
        if counted.open == 0 {
            counted.total += at.saturating_sub(counted.since);
        }
    }
}

impl CallVisitor for Collector {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        let at = self.place(&call.begin);
        self.count_to(at);
        let begin_time = self.note(at, call.begin.tsc);
        let function = call.function.index() as FunctionNumber;
        let is_inlined = call.kind == CallKind::Inline;
        self.calls += u64::from(!is_inlined);
        let since = self.at.max(at);
        let counted = self.counted(function);
        counted.calls += 1;
        counted.is_inlined |= is_inlined;
        counted.reopen(since);
        let open = Open {
            function,
            begin: at,
            begin_time,
        };
        self.open.push(call, open);
        self.innermost = self.last_open();
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        let at = self.place(&end.end);
        self.count_to(at);
        let end_time = self.note(at, end.end.tsc);
        let function = call.function.index() as FunctionNumber;
        let Some(open) = self.open.remove(call) else {
            return;
        };
        self.innermost = self.last_open();
        let (begin, begin_time) = (open.begin, open.begin_time);
        close(&mut self.functions, function, self.at.max(at));
        let over = at.max(begin);
        if over - begin >= self.kept.shortest {
            self.kept.push(KeptCall {
                begin,
                end: over,
                begin_time,
                end_time,
                insns: end.insns,
                function,
                depth: call.depth,
                tid: call.task.tid,
                stack: call.stack,
                kind: kind_number(call.kind),
                left: left_number(Some(end.left)),
            });
        }
    }

    #[inline(always)]
    fn takes_brief(&self) -> bool {
        true
    }

    #[inline]
    fn enter_briefly(&mut self, function: FunctionId, kind: CallKind, begin: &CallMoment) -> u64 {
        let at = self.place(begin);
        self.count_to(at);
        let begin_time = self.note(at, begin.tsc);
        let function = function.index() as FunctionNumber;
        let is_inlined = kind == CallKind::Inline;
        self.calls += u64::from(!is_inlined);
        let since = self.at.max(at);
        let counted = self.counted(function);
        counted.calls += 1;
        counted.is_inlined |= is_inlined;
        counted.reopen(since);
        self.innermost = function;
        begin_time
    }

    #[inline]
    fn leave_briefly(&mut self, call: &BriefCall, end: &CallMoment, outer: Option<FunctionId>) {
        let at = self.place(end);
        self.count_to(at);
        let end_time = self.note(at, end.tsc);
        let function = call.function.index() as FunctionNumber;
        close(&mut self.functions, function, self.at.max(at));
        self.innermost = match outer {
            Some(outer) => outer.index() as FunctionNumber,
            None => self.last_open(),
        };
        if end.insns - call.begin >= self.kept.shortest {
            self.kept.push(KeptCall {
                begin: call.begin.wrapping_sub(self.ahead),
                end: at,
                begin_time: call.noted,
                end_time,
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
        let open = Open {
            function: call.function.index() as FunctionNumber,
            begin: self.place(&call.begin),
            begin_time: noted,
        };
        self.open.push(call, open);
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
