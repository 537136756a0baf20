//! Who follows calls that were decoded ahead, or is told of them in brief, is told the same.

mod common;

use common::Scratch;
use common::index::{recording, with_session};

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use cofi_analysis::{
    BriefCall, Call, CallEnd, CallKind, CallMoment, CallNames, CallTracer, CallVisitor,
    CheckOptions, FlowAhead, FunctionId, SegmentStart, segments, survey_keeping,
};
use cofi_flow::Event;
use cofi_insn::Class;
use cofi_packet::StreamOffset;
use cofi_session::{Session, Stream};

/// All that a visitor is told who wants no blocks.
#[derive(Default)]
struct Told {
    all: Vec<String>,
    /// The functions of the open calls.
    functions: Vec<FunctionId>,
    /// The calls in the order in which they were left: function, begin, end and depth.
    left: Vec<(FunctionId, u64, u64, i32)>,
}

impl CallVisitor for Told {
    fn enter(&mut self, call: &Call, names: &CallNames) {
        let name = names.describe(call.function);
        self.all.push(format!("{call:?} {name}"));
        self.functions.push(call.function);
    }
    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        self.all.push(format!("{call:?} {end:?}"));
        self.functions.pop();
        let (begin, end) = (call.begin.insns, end.end.insns);
        self.left.push((call.function, begin, end, call.depth));
    }
    fn event(&mut self, event: &Event, at: &CallMoment, offset: StreamOffset, by: Option<Class>) {
        self.all.push(format!("{event:?} {at:?} {offset:?} {by:?}"));
    }
}

/// However little is kept of paths, who follows a flow that was decoded ahead, or the flow itself where too much ran to be kept, is told what the flow itself
/// tells.
#[test]
fn a_flow_decoded_ahead_tells_the_same_calls() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let (mut most_parts, mut in_brief, mut inlined) = (0, 0, 0);
        for stream in session.streams() {
            let size = NonZeroUsize::MIN;
            let parts = segments(session, stream, size, SegmentStart::Traced);
            most_parts = most_parts.max(parts.len());
            let mut wanted = Told::default();
            let mut tracer = CallTracer::new(session, stream).with_inlined();
            for (number, part) in parts.iter().enumerate() {
                if number > 0 {
                    tracer.go_on();
                }
                let mut flow = session.decode_within(stream, part.clone());
                while tracer.follow(&mut flow, &mut wanted) {}
            }
            tracer.finish(&mut wanted);
            assert!(wanted.all.len() > 1000);
            // About as many as there are paths in a part: all of some parts are kept, and nothing of others.
            let some = (1..16).map(|times| (200 * times, 1));
            for (most, threads) in [(1, 1), (500, 3), (usize::MAX, 2)].into_iter().chain(some) {
                let mut found = Told::default();
                let mut tracer = CallTracer::new(session, stream).with_inlined();
                let mut flow = FlowAhead::new();
                let mut options = CheckOptions::default();
                options.segment = size;
                options.threads = NonZeroUsize::new(threads).expect("some");
                let (mut count, mut whole, mut insns) = (0, 0, 0);
                let never = AtomicBool::new(false);
                let (streams, progress) = ([stream], |_| {});
                survey_keeping(
                    session,
                    &streams,
                    options,
                    most,
                    &never,
                    &progress,
                    |_, chunk| {
                        if count > 0 {
                            tracer.go_on();
                        }
                        count += 1;
                        insns += chunk.instructions;
                        if flow.take(chunk.decoded) {
                            whole += 1;
                            while tracer.follow(&mut flow, &mut found) {}
                        } else {
                            let mut flow = session.decode_within(stream, chunk.range);
                            while tracer.follow(&mut flow, &mut found) {}
                        }
                        assert_eq!(tracer.instructions(), insns);
                    },
                );
                assert_eq!(count, parts.len());
                match most {
                    1 => assert_eq!(whole, 0),
                    usize::MAX => assert_eq!(whole, count),
                    _ => {}
                }
                tracer.finish(&mut found);
                assert!(
                    found.all == wanted.all,
                    "{most}: {:?}",
                    found.all.iter().zip(&wanted.all).find(|(a, b)| a != b)
                );
            }
            in_brief += told_in_brief(session, stream, &parts, false).0;
            inlined += told_in_brief(session, stream, &parts, true).1;
        }
        assert!(most_parts > 2);
        assert!(in_brief > 100, "{in_brief}");
        assert!(inlined > 100, "{inlined}");
    });
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
    let tracer = || {
        let tracer = CallTracer::new(session, stream);
        match with_inlined {
            true => tracer.with_inlined(),
            false => tracer,
        }
    };
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
