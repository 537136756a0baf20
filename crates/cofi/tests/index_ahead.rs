//! Who is told of calls that were followed in parts, or is told of them in brief, is told the same.

mod common;

use common::index::{recording, with_session};
use common::{STATIC, Scratch, cofi, has_qemu, run};

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use cofi_analysis::{
    BriefCall, Call, CallEnd, CallKind, CallMoment, CallNames, CallStates, CallTracer, CallVisitor,
    CheckOptions, Chunk, FunctionId, Left, LocalCall, LocalSum, LocalVisitor, PartVisitor,
    SegmentStart, StretchPlace, TracedPart, segments, survey_calls,
};
use cofi_flow::Event;
use cofi_image::CodeChange;
use cofi_insn::Class;
use cofi_packet::StreamOffset;
use cofi_session::{Session, Stream};

/// What a visitor is told who is not told in brief.
#[derive(Default)]
struct Told {
    /// The functions of the open calls.
    functions: Vec<FunctionId>,
    /// The calls in the order in which they were left: function, begin, end and depth.
    left: Vec<(FunctionId, u64, u64, i32)>,
}

impl CallVisitor for Told {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        self.functions.push(call.function);
    }
    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        self.functions.pop();
        let (begin, end) = (call.begin.insns, end.end.insns);
        self.left.push((call.function, begin, end, call.depth));
    }
}

/// A call that was left: function, begin, end, depth, kind, how it was left, and what ran in itself, if that was told.
type LeftCall = (String, u64, u64, i32, CallKind, Left, Option<u64>);

/// What calls of a function come to: what ran in them, and how many there were.
type Sum = (u64, u64);

/// What a worker is told of parts; calls of less than `LONG` instructions may be told of as sums.
#[derive(Default)]
struct Locally<const LONG: u64> {
    left: Vec<(LocalCall, u64)>,
    sums: HashMap<FunctionId, Sum>,
    open: Vec<FunctionId>,
    begin: u64,
}

/// What is noted of a stretch: where it begins and ends, the calls that were left in it, each with where that was, and the sums.
struct Noted(u64, u64, Vec<(LocalCall, u64)>, HashMap<FunctionId, Sum>);

impl<const LONG: u64> LocalVisitor for Locally<LONG> {
    type Stretch = Noted;

    fn begin(&mut self) -> u64 {
        assert!(self.left.is_empty() && self.open.is_empty() && self.sums.is_empty());
        self.begin = 0;
        u64::MAX
    }
    fn size(stretch: &Noted) -> usize {
        stretch.2.len() * size_of::<(LocalCall, u64)>()
    }
    fn enter(&mut self, function: FunctionId, _: CallKind, _: u64) {
        self.open.push(function);
    }
    fn leave(
        &mut self,
        call: &LocalCall,
        (end, _): (u64, StreamOffset),
        outer: Option<FunctionId>,
    ) {
        assert_eq!(self.open.pop(), Some(call.function));
        // One that might be a stub is not told of yet.
        assert!(self.open.is_empty() || outer.is_some());
        self.left.push((*call, end));
    }
    const LONG: u64 = LONG;

    fn sum(&mut self, sum: &LocalSum) {
        let (own, total) = (u64::from(sum.own), u64::from(sum.total));
        assert!(own <= total && sum.calls > 0);
        // Each of its calls is short.
        assert!(total < LONG * u64::from(sum.calls), "{sum:?}");
        let of = self.sums.entry(sum.function).or_default();
        *of = (of.0 + own, of.1 + u64::from(sum.calls));
    }
    fn ran(&mut self, _: u64) {}
    fn take(&mut self, at: u64, open: &mut dyn Iterator<Item = FunctionId>) -> Noted {
        assert!(open.eq(self.open.drain(..)), "the open calls are those");
        let begin = std::mem::replace(&mut self.begin, at);
        let sums = std::mem::take(&mut self.sums);
        Noted(begin, at, std::mem::take(&mut self.left), sums)
    }
    fn skip(&mut self, at: u64) {
        assert!(self.left.is_empty() && self.sums.is_empty());
        self.begin = at;
    }
}

/// What is told of parts, by whatever way.
#[derive(Default)]
struct OfParts {
    left: Vec<LeftCall>,
    others: Vec<String>,
    /// The functions, for those calls of which only the numbers are told.
    local: Vec<(usize, u64, u64, i32, CallKind, Left)>,
    /// Those that were told of as sums.
    sums: Vec<(usize, Sum)>,
    briefly: usize,
}

impl OfParts {
    /// It does not count.
    fn take_back(&mut self, before: [usize; 4]) {
        let [left, others, local, sums] = before;
        self.left.truncate(left);
        self.others.truncate(others);
        self.local.truncate(local);
        self.sums.truncate(sums);
    }

    fn len(&self) -> [usize; 4] {
        let Self {
            left,
            others,
            local,
            sums,
            ..
        } = self;
        [left.len(), others.len(), local.len(), sums.len()]
    }

    /// All calls that were left, in the order of their ends, the inner ones first.
    fn finish(mut self, names: &CallNames) -> Vec<LeftCall> {
        for (function, begin, end, depth, kind, left) in self.local {
            let id = names.id(function).expect("a function");
            let name = names.describe(id).to_owned();
            self.left.push((name, begin, end, depth, kind, left, None));
        }
        sorted(self.left)
    }

    /// What ran while calls were open, and how many there were, by function: of those that were told of as sums, what ran in themselves.
    fn calls(&self, names: &CallNames) -> HashMap<String, u64> {
        let mut calls = HashMap::<String, u64>::new();
        let name = |function: usize| {
            let id = names.id(function).expect("a function");
            names.describe(id).to_owned()
        };
        for (name, ..) in &self.left {
            *calls.entry(name.clone()).or_default() += 1;
        }
        for (function, ..) in &self.local {
            *calls.entry(name(*function)).or_default() += 1;
        }
        for (function, (_, count)) in &self.sums {
            *calls.entry(name(*function)).or_default() += count;
        }
        calls
    }
}

fn sorted(mut calls: Vec<LeftCall>) -> Vec<LeftCall> {
    calls.sort_by(|a, b| (a.2, -a.3, a.1, &a.0).cmp(&(b.2, -b.3, b.1, &b.0)));
    calls
}

impl CallVisitor for OfParts {
    fn enter(&mut self, _: &Call, _: &CallNames) {}
    fn leave(&mut self, call: &Call, end: &CallEnd, names: &CallNames) {
        let name = names.describe(call.function).to_owned();
        let (begin, kind) = (call.begin.insns, call.kind);
        let (over, own) = (end.end.insns, Some(end.self_insns));
        self.left
            .push((name, begin, over, call.depth, kind, end.left, own));
    }
    fn event(&mut self, event: &Event, at: &CallMoment, offset: StreamOffset, by: Option<Class>) {
        self.others
            .push(format!("{event:?} {at:?} {offset:?} {by:?}"));
    }
}

impl PartVisitor<Noted> for OfParts {
    fn times(&self, _: &Noted, _: &mut dyn FnMut(StreamOffset)) {}
    fn stretch(&mut self, stretch: Noted, place: &StretchPlace<'_>) {
        let Noted(begin, end, calls, sums) = stretch;
        assert!(begin <= end);
        let at = |at: u64| place.insns + (at - begin);
        for (call, end) in calls {
            let function = place.functions[call.function.index()].index();
            let depth = place.depth.saturating_add_unsigned(call.depth);
            let (from, to) = (at(call.begin), at(end));
            self.local
                .push((function, from, to, depth, call.kind, call.left));
        }
        for (function, sum) in sums {
            let function = place.functions[function.index()].index();
            self.sums.push((function, sum));
        }
    }
    fn opened(&mut self, _: &Call) {
        self.briefly += 1;
    }
}

/// Who follows parts of which the calls were followed before it was known which are open where they begin, or the flow itself where too much was to be
/// written down, is told the same calls as who follows the flow, and the same ones are open wherever a part ends.
#[test]
fn calls_of_parts_are_those_of_the_flow() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let (mut most_parts, mut in_brief, mut inlined) = (0, 0, 0);
        let (mut kept, mut of) = (0, 0);
        for stream in session.streams() {
            for with_inlined in [false, true] {
                let (parts, some) = parts_are_the_flow(session, stream, with_inlined);
                most_parts = most_parts.max(parts);
                (kept, of) = (kept + some.0, of + some.1);
            }
            let parts = segments(session, stream, NonZeroUsize::MIN, SegmentStart::Traced);
            in_brief += told_in_brief(session, stream, &parts, false).0;
            inlined += told_in_brief(session, stream, &parts, true).1;
        }
        assert!(most_parts > 2);
        assert!(0 < kept && kept < of, "{kept} of {of}");
        assert!(in_brief > 100, "{in_brief}");
        assert!(inlined > 100, "{inlined}");
    });
}

fn tracer<'s>(
    session: &'s Session<'_>,
    stream: &'s Stream<'s>,
    with_inlined: bool,
) -> CallTracer<'s> {
    let tracer = CallTracer::new(session, stream);
    match with_inlined {
        true => tracer.with_inlined(),
        false => tracer,
    }
}

/// A tracer, and of its calls all that later ones depend on and who shows them is shown.
fn open(tracer: &CallTracer<'_>) -> Vec<String> {
    let names = tracer.names();
    let shown = tracer.all_open_calls().map(|open| {
        let (call, name) = (open.call, names.describe(open.call.function));
        let function = FunctionId::default();
        let call = Call { function, ..call };
        format!("{call:?} {name} {:?} {}", open.returns_to, open.at)
    });
    shown.collect()
}

/// How many parts there are; and, where some of them were kept, how many those were, and of how many.
fn parts_are_the_flow<'s>(
    session: &'s Session<'_>,
    stream: &'s Stream<'s>,
    with_inlined: bool,
) -> (usize, (usize, usize)) {
    let parts = segments(session, stream, NonZeroUsize::MIN, SegmentStart::Traced);
    let mut wanted = OfParts::default();
    let mut in_full = tracer(session, stream, with_inlined);
    let mut open_then = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            in_full.go_on();
        }
        let mut flow = session.decode_within(stream, part.clone());
        while in_full.follow(&mut flow, &mut wanted) {}
        open_then.push(open(&in_full));
    }
    in_full.finish(&mut wanted);
    assert!(wanted.left.len() > 500, "{}", wanted.left.len());
    let others = std::mem::take(&mut wanted.others);
    let by_function = wanted.calls(in_full.names());
    let wanted = sorted(wanted.left);
    // What a part may have, of as many as are there with so many threads: nothing, some, and all; each size with another number of threads.
    let some_kept = [1 << 14, 1 << 16, 1 << 17, 1 << 18].map(|share| (share, 3, 1));
    let all_kept = [(ALL, 2, 1), (ALL, 2, 4096)];
    let mut some = (0, 0);
    for (share, threads, size) in [(1, 1, 1)].into_iter().chain(some_kept).chain(all_kept) {
        let mut options = CheckOptions::default();
        options.segment = NonZeroUsize::new(size).expect("some");
        options.threads = NonZeroUsize::new(threads).expect("some");
        let mut found = OfParts::default();
        let mut tracer = tracer(session, stream, with_inlined);
        let mut states = CallStates::default();
        let (mut count, mut fit, mut insns) = (0, 0, 0);
        let never = AtomicBool::new(false);
        survey_calls(
            session,
            stream,
            (options, with_inlined, share * (4 * threads + 1)),
            &never,
            &|_| {},
            Locally::<0>::default,
            |chunk| {
                insns += chunk.instructions;
                let end = chunk.range.end;
                let follows = (&mut tracer, &mut states, &mut found);
                fit += usize::from(follow_chunk(session, stream, chunk, count == 0, follows));
                count += 1;
                assert_eq!(tracer.instructions(), insns);
                let part = parts.iter().position(|part| part.end == end);
                assert_eq!(open(&tracer), open_then[part.expect("it is one")]);
            },
        );
        match share {
            1 => assert_eq!(fit, 0),
            ALL => assert!(fit * 2 > count, "{fit} of {count}"),
            _ => some = (some.0 + fit, some.1 + count),
        }
        tracer.finish(&mut found);
        assert_eq!(fit > 0, !found.local.is_empty());
        assert!(found.others == others, "{share}");
        assert!(found.sums.is_empty(), "no call is short enough");
        let found = found.finish(tracer.names());
        // Of calls that began and were left in a stretch, it is not told what ran in them alone.
        let is_other = |(found, wanted): &(&LeftCall, &LeftCall)| {
            let own = found.6.or(wanted.6);
            let found = ((*found).clone(), own);
            (
                found.0.0, found.0.1, found.0.2, found.0.3, found.0.4, found.0.5, found.1,
            ) != **wanted
        };
        let first = found.iter().zip(&wanted).find(is_other);
        assert!(
            first.is_none() && found.len() == wanted.len(),
            "{share}: {first:?}"
        );
    }
    sums_are_the_calls(session, stream, with_inlined, &by_function, &wanted);
    shares_are_of_all(session, stream, with_inlined);
    (parts.len(), some)
}

/// No part has as many bytes.
const ALL: usize = 1 << 30;

/// Follows the next chunk of a stream: as a part, if it fits; whether it does.
fn follow_chunk<'s>(
    session: &'s Session<'_>,
    stream: &'s Stream<'s>,
    mut chunk: Chunk<TracedPart<'s, Noted>>,
    is_first: bool,
    (tracer, states, found): (&mut CallTracer<'s>, &mut CallStates, &mut OfParts),
) -> bool {
    if !is_first {
        tracer.go_on();
    }
    tracer.adopt(&mut chunk.calls);
    let state = states.push(tracer).expect("a state");
    let (mark, before) = (tracer.mark(), found.len());
    let is_fit = tracer.follow_part(chunk.calls, found).is_ok();
    if !is_fit {
        found.take_back(before);
        assert!(tracer.go_back(mark, states, state, chunk.range.start));
        let mut flow = session.decode_within(stream, chunk.range);
        while tracer.follow(&mut flow, found) {}
    }
    is_fit
}

/// Follows parts whose short calls may be told of as sums: of those, what ran in themselves and how many there were.
fn followed<'s, const LONG: u64>(
    session: &'s Session<'_>,
    stream: &'s Stream<'s>,
    (with_inlined, memory, threads): (bool, usize, usize),
) -> (OfParts, CallTracer<'s>, usize, usize) {
    let mut options = CheckOptions::default();
    options.segment = NonZeroUsize::MIN;
    options.threads = NonZeroUsize::new(threads).expect("some");
    let mut found = OfParts::default();
    let mut tracer = tracer(session, stream, with_inlined);
    let mut states = CallStates::default();
    let (mut count, mut fit) = (0, 0);
    survey_calls(
        session,
        stream,
        (options, with_inlined, memory),
        &AtomicBool::new(false),
        &|_| {},
        Locally::<LONG>::default,
        |chunk| {
            let follows = (&mut tracer, &mut states, &mut found);
            fit += usize::from(follow_chunk(session, stream, chunk, count == 0, follows));
            count += 1;
        },
    );
    tracer.finish(&mut found);
    (found, tracer, fit, count)
}

/// What calls come to that are told of as sums is what they come to one by one.
fn sums_are_the_calls<'s>(
    session: &'s Session<'_>,
    stream: &'s Stream<'s>,
    with_inlined: bool,
    by_function: &HashMap<String, u64>,
    wanted: &[LeftCall],
) {
    let all = (with_inlined, ALL, 2);
    let (found, tracer, ..) = followed::<1024>(session, stream, all);
    let summed: u64 = found.sums.iter().map(|(_, (_, calls))| calls).sum();
    assert!(summed > 100, "{summed}");
    assert_eq!(&found.calls(tracer.names()), by_function);
    // What is told of one by one is among the calls; of the others, by function, what ran in themselves is that of the sums.
    let mut own = HashMap::<String, i64>::new();
    for (function, (ran, _)) in &found.sums {
        let id = tracer.names().id(*function).expect("a function");
        let name = tracer.names().describe(id).to_owned();
        *own.entry(name).or_default() += *ran as i64;
    }
    let found = found.finish(tracer.names());
    let mut left = found.iter().peekable();
    for call in wanted {
        let is_it = |found: &&LeftCall| {
            (&found.0, found.1, found.2, found.3) == (&call.0, call.1, call.2, call.3)
        };
        if left.next_if(is_it).is_none() {
            let ran = call.6.expect("it was told");
            *own.entry(call.0.clone()).or_default() -= ran as i64;
        }
    }
    assert_eq!(left.next(), None, "each is a call");
    own.retain(|_, own| *own != 0);
    assert!(own.is_empty(), "{own:?}");
}

/// However many threads there are, a part may have its share of what all may have together, and no more.
fn shares_are_of_all<'s>(session: &'s Session<'_>, stream: &'s Stream<'s>, with_inlined: bool) {
    let (mut of_one, mut of_less) = (0, 0);
    for share in [1 << 14, 1 << 16, 1 << 18, 1 << 20] {
        let fit = |memory, threads| {
            let (.., fit, _) = followed::<0>(session, stream, (with_inlined, memory, threads));
            fit
        };
        let one = fit(share * 5, 1);
        assert_eq!(one, fit(share * 33, 8), "{share}");
        (of_one, of_less) = (of_one + one, of_less + fit(share * 5, 8));
    }
    assert!(of_less < of_one, "{of_less} of {of_one}");
}

/// Whoever goes back to where a part begins is told again of all that happens in it: also that code changed before anything ran.
#[test]
fn who_goes_back_is_told_the_same() {
    if !has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    let mut changes = 0;
    for file in ["smc.c", "jit_rwx.c", "jit_wx.c"] {
        let Some(program) = scratch.program(file, STATIC) else {
            return;
        };
        let data = scratch.path("changes");
        let mut command = cofi();
        command.args(["record", "--engine", "qemu", "--config", "psb_period=0"]);
        let ran = run(command.arg("-o").arg(&data).arg("--").arg(&program));
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        with_session(&data, |session, _| {
            for stream in session.streams() {
                let parts = segments(session, stream, NonZeroUsize::MIN, SegmentStart::Traced);
                let mut tracer = tracer(session, stream, false);
                let mut states = CallStates::default();
                for (number, part) in parts.iter().enumerate() {
                    if number > 0 {
                        tracer.go_on();
                    }
                    let state = states.push(&tracer).expect("a state");
                    let mark = tracer.mark();
                    let mut told = [Changes::default(), Changes::default()];
                    let mut flow = session.decode_within(stream, part.clone());
                    while tracer.follow(&mut flow, &mut told[0]) {}
                    assert!(tracer.go_back(mark, &states, state, part.start));
                    let mut flow = session.decode_within(stream, part.clone());
                    while tracer.follow(&mut flow, &mut told[1]) {}
                    assert_eq!(told[0], told[1], "{file}, part {number}");
                    changes += told[0].0.len();
                }
            }
        });
    }
    assert!(changes > 10, "{changes}");
}

/// Where code changed.
#[derive(Debug, Default, PartialEq)]
struct Changes(Vec<String>);

impl CallVisitor for Changes {
    fn enter(&mut self, _: &Call, _: &CallNames) {}
    fn leave(&mut self, _: &Call, _: &CallEnd, _: &CallNames) {}
    fn code_changed(&mut self, change: &CodeChange, at: &CallMoment, offset: StreamOffset) {
        self.0.push(format!("{change:?} {at:?} {offset:?}"));
    }
}

/// What is told of calls in brief is what is told of them otherwise.
#[derive(Default)]
struct Briefly {
    /// Each call that was told of in brief and neither left nor settled yet, by what was noted of it: of what function, of what kind, when it began.
    open: HashMap<u64, (FunctionId, CallKind, CallMoment)>,
    noted: u64,
    /// How many of them were of inlined functions.
    inlined: u64,
    /// The functions of the open calls, as `enter`, `settled` and `leave` tell of them.
    functions: Vec<FunctionId>,
    briefly: u64,
    left: Vec<(FunctionId, u64, u64, i32)>,
}

impl CallVisitor for Briefly {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        assert!(
            self.open.is_empty(),
            "what was told of in brief is settled before"
        );
        self.functions.push(call.function);
    }
    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        assert!(self.open.is_empty());
        self.functions.pop();
        let (begin, end) = (call.begin.insns, end.end.insns);
        self.left.push((call.function, begin, end, call.depth));
    }
    fn takes_brief(&self) -> bool {
        true
    }
    fn enter_briefly(&mut self, function: FunctionId, kind: CallKind, begin: &CallMoment) -> u64 {
        self.noted += 1;
        self.open.insert(self.noted, (function, kind, *begin));
        self.inlined += u64::from(kind == CallKind::Inline);
        self.noted
    }
    fn leave_briefly(&mut self, call: &BriefCall, end: &CallMoment, outer: Option<FunctionId>) {
        let (function, kind, begin) = self.open.remove(&call.noted).expect("it began");
        let left = (call.function, call.kind, call.begin);
        assert_eq!((function, kind, begin.insns), left);
        // The innermost of those that are open began last.
        let last = self.open.iter().max_by_key(|(noted, _)| **noted);
        assert_eq!(outer, last.map(|(_, (function, ..))| *function));
        self.briefly += 1;
        self.left
            .push((function, call.begin, end.insns, call.depth));
    }
    fn settled(&mut self, call: &Call, noted: u64) {
        let first = self.open.keys().min().copied();
        assert_eq!(first, Some(noted), "the outermost comes first");
        let begun = self.open.remove(&noted).expect("it began");
        assert_eq!(begun, (call.function, call.kind, call.begin));
        let function = call.function;
        self.functions.push(function);
    }
}

/// Follows the calls of a stream in brief, and compares with what is told otherwise. How many were told of in brief, and how many of them were of
/// inlined functions.
fn told_in_brief<'s>(
    session: &'s Session<'_>,
    stream: &'s Stream<'s>,
    parts: &[std::ops::Range<StreamOffset>],
    with_inlined: bool,
) -> (u64, u64) {
    let tracer = || tracer(session, stream, with_inlined);
    let (mut briefly, mut in_brief) = (Briefly::default(), tracer());
    let (mut told, mut in_full) = (Told::default(), tracer());
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            in_brief.go_on();
            in_full.go_on();
        }
        let mut flow = session.decode_within(stream, part.clone());
        while in_brief.follow(&mut flow, &mut briefly) {}
        let mut flow = session.decode_within(stream, part.clone());
        while in_full.follow(&mut flow, &mut told) {}
        assert!(briefly.open.is_empty(), "all are settled");
        assert_eq!(briefly.functions, told.functions);
        assert!(in_brief.all_open_calls().eq(in_full.all_open_calls()));
    }
    in_brief.finish(&mut briefly);
    in_full.finish(&mut told);
    assert!(briefly.left == told.left);
    (briefly.briefly, briefly.inlined)
}
