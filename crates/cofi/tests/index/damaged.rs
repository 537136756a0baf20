//! What is told of recordings that cannot all be decoded does not depend on how they were read either.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use cofi_analysis::{
    Call, CallEnd, CallKind, CallMoment, CallNames, CallStates, CallTracer, CallVisitor,
    CheckOptions, FunctionId, Left, LocalCall, LocalSum, LocalVisitor, PartVisitor, PiecePlaces,
    StretchPlace, survey_calls,
};
use cofi_flow::Event;
use cofi_index::{Index, IndexOptions};
use cofi_insn::Class;
use cofi_packet::{StreamOffset, Tsc};
use cofi_session::{Session, SessionOptions, Stream};

use super::common::Scratch;
use super::common::index::{CALLS, recording_of};

fn longest<'s>(session: &'s Session<'_>) -> &'s Stream<'s> {
    let streams = session.streams().iter();
    streams.max_by_key(|stream| stream.len()).expect("a stream")
}

/// Opens so many copies of a recording, in each of which some of the packets of the longest stream are others.
fn each_damaged(data: &Path, cases: usize, mut test: impl FnMut(usize, &Session<'_>)) {
    let whole = std::fs::read(data).expect("the recording");
    let options = SessionOptions::beside(data);
    let (at, len) = {
        let session = Session::new(&whole, &options).expect("a session");
        let packets = longest(&session).bytes();
        let some = &packets[..256.min(packets.len())];
        let found = whole.windows(some.len()).position(|window| window == some);
        let at = found.expect("they are in the file as they are");
        (at, packets.len())
    };
    let mut seed = 3_u64;
    for case in 0..cases {
        let mut bytes = whole.clone();
        for _ in 0..1 + case % 3 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let place = at + (seed >> 24) as usize % (len - 64);
            match case % 4 {
                0 => bytes[place] = 0xaa,
                1 => bytes[place..place + 40].fill(0xff),
                2 => bytes[place] ^= 1 << (seed >> 21 & 7),
                // A TSC of a time to come.
                _ => bytes[place..place + 8].copy_from_slice(&[0x19, 0, 0, 0, 0, 0, 0, 0x7f]),
            }
        }
        test(case, &Session::new(&bytes, &options).expect("a session"));
    }
}

#[test]
fn the_same_index_is_built_of_damaged_recordings() {
    let scratch = Scratch::new();
    let Some(data) = recording_of(&scratch, CALLS) else {
        return;
    };
    let mut with_gaps = 0;
    each_damaged(&data, 60, |case, session| {
        let build = |threads: usize, waiting: usize| {
            let mut options = IndexOptions::default();
            options.chunk = NonZeroUsize::new(700).expect("a size");
            options.threads = NonZeroUsize::new(threads).expect("some");
            options.waiting = waiting;
            let never = AtomicBool::new(false);
            Index::build(session, &options, &never, &|_| {}).expect("an index")
        };
        let wanted = build(1, 0);
        with_gaps += usize::from(wanted.rows().iter().any(|row| row.gap_count > 0));
        let found = build(3, 1 << 30);
        assert_eq!(found.rows().len(), wanted.rows().len(), "{case}");
        for (found, wanted) in found.rows().iter().zip(wanted.rows()) {
            assert_eq!(format!("{found:?}"), format!("{wanted:?}"), "{case}");
        }
        assert_eq!(found.functions(), wanted.functions(), "{case}");
    });
    assert!(with_gaps > 10, "{with_gaps}");
}

/// Counts nothing: wants the time of pieces of so few instructions.
struct Nothing;

/// Three instructions: a piece begins nearly everywhere.
const PIECE: u64 = 3;

impl LocalVisitor for Nothing {
    type Stretch = ();

    fn begin(&mut self) -> u64 {
        PIECE
    }
    fn size((): &()) -> usize {
        0
    }
    fn enter(&mut self, _: FunctionId, _: CallKind, _: u64) {}
    fn leave(&mut self, _: &LocalCall, _: (u64, StreamOffset), _: Option<FunctionId>) {}
    const LONG: u64 = 0;
    fn sum(&mut self, _: &LocalSum) {}
    fn ran(&mut self, _: u64) {}
    fn take(&mut self, _: u64, _: &mut dyn Iterator<Item = FunctionId>) {}
    fn skip(&mut self, _: u64) {}
}

/// Places, and when.
#[derive(Debug, Default, PartialEq)]
struct Times {
    pieces: Vec<(u64, Option<Tsc>)>,
    /// Calls that were left as trace is missing, and events.
    others: Vec<(u64, Option<Tsc>, u64)>,
}

impl CallVisitor for Times {
    fn enter(&mut self, _: &Call, _: &CallNames) {}
    fn leave(&mut self, _: &Call, CallEnd { end, left, .. }: &CallEnd, _: &CallNames) {
        if *left == Left::Gap {
            self.others.push((end.insns, end.tsc, end.cycles));
        }
    }
    fn event(&mut self, _: &Event, at: &CallMoment, _: StreamOffset, _: Option<Class>) {
        self.others.push((at.insns, at.tsc, at.cycles));
    }
}

impl PartVisitor<()> for Times {
    fn mark(&mut self, places: PiecePlaces, tsc: Option<Tsc>) {
        self.pieces.extend(places.map(|at| (at, tsc)));
    }
    fn times(&self, (): &(), _: &mut dyn FnMut(StreamOffset)) {}
    fn stretch(&mut self, (): (), _: &StretchPlace<'_>) {}
    fn opened(&mut self, _: &Call) {}
}

/// The times of a stream, where parts of so many bytes are kept. How many were.
fn times<'s>(session: &'s Session<'_>, stream: &'s Stream<'s>, memory: usize) -> (Times, usize) {
    let mut options = CheckOptions::default();
    (options.segment, options.threads) = (NonZeroUsize::MIN, NonZeroUsize::MIN);
    let mut times = Times::default();
    let mut tracer = CallTracer::new(session, stream);
    let mut states = CallStates::default();
    let (mut count, mut fit) = (0, 0);
    survey_calls(
        session,
        stream,
        (options, false, memory),
        &AtomicBool::new(false),
        &|_| {},
        || Nothing,
        |mut chunk| {
            if count > 0 {
                tracer.go_on();
            }
            count += 1;
            tracer.adopt(&mut chunk.calls);
            let state = states.push(&tracer).expect("a state");
            let marks = chunk.calls.marks().to_vec();
            let (mark, before) = (tracer.mark(), (times.pieces.len(), times.others.len()));
            if tracer.follow_part(chunk.calls, &mut times).is_ok() {
                fit += 1;
                return;
            }
            times.pieces.truncate(before.0);
            times.others.truncate(before.1);
            assert!(tracer.go_back(mark, &states, state, chunk.range.start));
            tracer.tell_marks(&marks, |places, tsc| times.mark(places, tsc));
            let mut flow = session.decode_within(stream, chunk.range.clone());
            while tracer.follow(&mut flow, &mut times) {}
        },
    );
    tracer.finish(&mut times);
    (times, fit)
}

/// When what cannot be decoded was met is known as well to whoever follows parts: wherever pieces begin.
#[test]
fn times_of_parts_are_those_of_the_flow() {
    let scratch = Scratch::new();
    let Some(data) = recording_of(&scratch, CALLS) else {
        return;
    };
    let (mut left, mut kept) = (0, 0);
    each_damaged(&data, 24, |case, session| {
        let stream = longest(session);
        let (wanted, none) = times(session, stream, 0);
        let (found, some) = times(session, stream, 1 << 30);
        assert_eq!(none, 0);
        kept += some;
        assert!(wanted.pieces.len() > 10_000, "{case}");
        let others = found.others.iter().zip(&wanted.others);
        let differs = others.enumerate().find(|(_, (a, b))| a != b);
        assert_eq!(differs, None, "{case}");
        let pieces = found.pieces.iter().zip(&wanted.pieces);
        let differs = pieces.enumerate().find(|(_, (a, b))| a != b);
        assert_eq!(differs, None, "{case}");
        assert!(found == wanted, "{case}");
        left += wanted.others.len();
    });
    assert!(left > 100 && kept > 40, "{left} {kept}");
}
