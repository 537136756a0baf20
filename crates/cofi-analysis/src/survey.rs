//! Streams in chunks that can be decoded apart, each with what is to be known before it is decoded: how much ran before it.
//!
//! A chunk begins at a PSB behind which tracing is on, and where whoever begins there knows all that whoever has read what stands before knows.
//! So what is decoded of a chunk alone is what is decoded of it within the whole stream. Where that does not hold (a gap reaches across the cut,
//! or damage hides the PSB), two chunks are one.

use cofi_flow::{Item, Path};
use cofi_packet::{StreamOffset, Tsc};
use cofi_session::{Session, Stream, ThreadFlow};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::calls::{LocalVisitor, PartRun, PartTracer, TracedPart};
use crate::check::CheckOptions;
use crate::flow_state::{Beginning, FlowState};
use crate::gap::{Gap, GapFinder, Step};
use crate::joined::{self, Found, Segment};
use crate::parallel::waiting;
use crate::segments::{SegmentStart, ended_with_segment};

/// A part of a stream that can be decoded apart.
#[derive(Debug)]
#[non_exhaustive]
pub struct Chunk<P = ()> {
    /// The part; the last one of a stream reaches to `u64::MAX`.
    pub range: Range<StreamOffset>,
    /// The instructions that ran in it.
    pub instructions: u64,
    /// Its gaps, at most [`Chunk::LISTED`], with how many instructions of the chunk ran before each.
    pub gaps: Vec<(u64, Gap)>,
    /// How many gaps there are.
    pub gap_count: u64,
    /// The time at its beginning, as far as packets tell.
    pub begin: Option<Tsc>,
    /// The time at its end, as far as packets tell.
    pub end: Option<Tsc>,
    /// Its calls, if they were followed.
    pub calls: P,
    start_state: FlowState,
    end_state: FlowState,
    is_clean: bool,
}

impl Chunk {
    /// How many gaps of a chunk are listed one by one.
    pub const LISTED: usize = 10_000;
}

/// What is found of the calls of a part.
trait Calls: Send {
    fn replace(&mut self, other: Self);
}

impl Calls for () {
    fn replace(&mut self, (): Self) {}
}

impl<S: Send> Calls for TracedPart<'_, S> {
    fn replace(&mut self, other: Self) {
        TracedPart::replace(self, other);
    }
}

impl<P: Calls> Found for Chunk<P> {
    fn replace(&mut self, other: Self) {
        self.calls.replace(other.calls);
    }

    fn leads_to(&self, next: &Self) -> bool {
        self.is_clean && self.end_state.is_on() && self.end_state == next.start_state
    }
}

/// Cuts streams into chunks of about `options.segment` bytes. Each is given to `take` with the number of its stream among `streams`, in their order. `progress` is
/// called with the bytes decoded since it was called last. Once `cancel` is set, chunks hold less than they should.
pub fn survey<'s>(
    session: &'s Session<'_>,
    streams: &[&'s Stream<'s>],
    options: CheckOptions,
    cancel: &AtomicBool,
    progress: &(dyn Fn(u64) + Sync),
    take: impl FnMut(usize, Chunk),
) {
    let all = segments_of(session, streams, options);
    let worker = || |segment: &Segment<'s, 's>| decode(session, segment, NoCalls, cancel);
    joined::decode(&all, options.threads, worker, progress, take);
}

/// The same of one stream, with the calls of each chunk, as far as they can be followed without knowing which are open where it begins: for
/// [`CallTracer::follow_part`](crate::CallTracer::follow_part). They are followed on several threads; `visitor` makes what is told of them on each.
/// All chunks that wait to be taken have no more than about `memory` bytes of what was found of calls: one of which there is more than its share has none.
pub fn survey_calls<'s, V: LocalVisitor>(
    session: &'s Session<'_>,
    stream: &'s Stream<'s>,
    (options, with_inlined, memory): (CheckOptions, bool, usize),
    cancel: &AtomicBool,
    progress: &(dyn Fn(u64) + Sync),
    visitor: impl Fn() -> V + Sync,
    mut take: impl FnMut(Chunk<TracedPart<'s, V::Stretch>>),
) {
    // (What a worker's numbers mean is told once, to one tracer.)
    let all = segments_of(session, &[stream], options);
    let workers = AtomicUsize::new(0);
    // One more waits to be joined with the next.
    let most = memory / waiting(options.threads).saturating_add(1);
    let worker = || {
        let number = workers.fetch_add(1, Ordering::Relaxed);
        let mut tracer = PartTracer::new(number, with_inlined, most, visitor());
        move |segment: &Segment<'s, 's>| decode(session, segment, tracer.begin(), cancel)
    };
    joined::decode(&all, options.threads, worker, progress, |_, chunk| {
        take(chunk)
    });
}

fn segments_of<'s>(
    session: &'s Session<'_>,
    streams: &[&'s Stream<'s>],
    options: CheckOptions,
) -> Vec<Segment<'s, 's>> {
    let numbered = streams.iter().enumerate();
    let all = numbered.flat_map(|(number, stream)| {
        Segment::of(
            session,
            number,
            stream,
            options.segment,
            SegmentStart::Traced,
        )
    });
    all.collect()
}

/// What takes the paths of a chunk as they are decoded.
trait Recorder<'s> {
    type Calls;
    fn begin_piece(&mut self, flow: &mut ThreadFlow<'s>);
    fn path(&mut self, path: &Path<'_>);
    fn end_piece(&mut self, item: Option<Item>, flow: &mut ThreadFlow<'s>, wants_task: bool);
    fn finish(self) -> Self::Calls;
}

struct NoCalls;

impl<'s> Recorder<'s> for NoCalls {
    type Calls = ();
    fn begin_piece(&mut self, _: &mut ThreadFlow<'s>) {}
    fn path(&mut self, _: &Path<'_>) {}
    fn end_piece(&mut self, _: Option<Item>, _: &mut ThreadFlow<'s>, _: bool) {}
    fn finish(self) {}
}

impl<'s, V: LocalVisitor> Recorder<'s> for PartRun<'_, 's, V> {
    type Calls = TracedPart<'s, V::Stretch>;
    fn begin_piece(&mut self, flow: &mut ThreadFlow<'s>) {
        PartRun::begin_piece(self, flow);
    }
    #[inline]
    fn path(&mut self, path: &Path<'_>) {
        PartRun::path(self, path);
    }
    fn end_piece(&mut self, item: Option<Item>, flow: &mut ThreadFlow<'s>, wants_task: bool) {
        PartRun::end_piece(self, item, flow, wants_task);
    }
    fn finish(self) -> Self::Calls {
        PartRun::finish(self)
    }
}

fn decode<'s, R: Recorder<'s>>(
    session: &'s Session<'_>,
    segment: &Segment<'s, 's>,
    mut recorder: R,
    cancel: &AtomicBool,
) -> Chunk<R::Calls> {
    let (stream, range) = (segment.stream, segment.range.clone());
    let wants_task = stream.key().cpu().is_some();
    let mut flow = session.decode_within(stream, range.clone());
    let mut finder = GapFinder::new(session, stream);
    let mut found = Counted {
        range,
        instructions: 0,
        gaps: Vec::new(),
        gap_count: 0,
        is_clean: true,
    };
    let mut state = FlowState::default();
    if segment.is_first {
        state.note_code(&mut flow);
    }
    // What a PSB+ tells is no event to whoever has read what stands before.
    let mut beginning = (!segment.is_first).then(Beginning::default);
    let (mut start_state, mut begin) = (state, None);
    let mut ended = Vec::new();
    while !cancel.load(Ordering::Relaxed) {
        recorder.begin_piece(&mut flow);
        if beginning.is_some() {
            state.note_code(&mut flow);
            start_state = state;
            begin = flow.time().map(|time| time.tsc);
        }
        let mut first = None;
        let item = flow.paths(|path| {
            found.instructions += path.len() as u64;
            first.get_or_insert_with(|| {
                let mut offset = None;
                path.for_each(|block| {
                    offset.get_or_insert(block.offset());
                });
                (path.ip(), offset.unwrap_or(path.offset()))
            });
            recorder.path(path);
        });
        recorder.end_piece(item, &mut flow, wants_task);
        if let (true, Some((ip, offset))) = (finder.is_open(), first) {
            finder.step(&Step::Run(ip, offset), &mut flow, |gap| ended.push(gap));
            for gap in ended.drain(..) {
                found.add(gap);
            }
        }
        let step = match item {
            Some(Item::Event(event)) => Step::Event(event),
            Some(Item::Error(error)) => Step::Error(error),
            // Blocks hold all instructions.
            Some(Item::Insn(_)) => continue,
            None => break,
        };
        if first.is_some() {
            beginning = None;
        }
        if let Step::Event(event) = &step {
            let is_of_psb = beginning
                .as_mut()
                .is_some_and(|beginning| beginning.holds(event, flow.offset()));
            state.note(event);
            if is_of_psb {
                continue;
            }
        }
        beginning = None;
        finder.step(&step, &mut flow, |gap| ended.push(gap));
        for gap in ended.drain(..) {
            found.add(gap);
        }
    }
    if let Some(gap) = finder.take_open() {
        found.add(gap);
        found.is_clean = false;
    }
    let Counted {
        range,
        instructions,
        gaps,
        gap_count,
        is_clean,
    } = found;
    let is_clean = is_clean && ended_with_segment(stream, flow.offset(), range.end);
    let end = flow.time().map(|time| time.tsc);
    state.note_code(&mut flow);
    Chunk {
        range,
        instructions,
        gaps,
        gap_count,
        begin,
        end,
        calls: recorder.finish(),
        start_state,
        end_state: state,
        is_clean,
    }
}

/// What is counted of a chunk while it is decoded.
struct Counted {
    range: Range<StreamOffset>,
    instructions: u64,
    gaps: Vec<(u64, Gap)>,
    gap_count: u64,
    is_clean: bool,
}

impl Counted {
    fn add(&mut self, gap: Gap) {
        let end = self.range.end;
        let resumed = gap.resumed.map(|resumed| resumed.offset);
        self.is_clean &= gap.offset < end && resumed.is_none_or(|resumed| resumed < end);
        self.gap_count += 1;
        if self.gaps.len() < Chunk::LISTED {
            self.gaps.push((self.instructions, gap));
        }
    }
}
