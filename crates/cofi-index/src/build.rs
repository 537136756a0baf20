//! Building an index: the streams are cut into chunks first, by all threads together; then each stream's calls are followed.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cofi_analysis::{
    CallDictionary, CallNames, CallSource, CallStates, CallTracer, CheckOptions,
    Chunk as FoundChunk, FlowAhead, Gap, survey,
};
use cofi_packet::StreamOffset;
use cofi_session::{Session, Stream};

use crate::clock::Timeline;
use crate::collect::Collector;
use crate::explore::EventKind;
use crate::index::{FunctionInfo, Index};
use crate::row::{Axis, Chunk, FunctionNumber, GapSpan, Knot, NO_FUNCTION, Row};
use crate::sums::ChunkSums;

/// How an index is built.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct IndexOptions {
    /// How many threads work.
    pub threads: NonZeroUsize,
    /// Calls of inlined functions are wanted, where DWARF tells of them.
    pub inlined: bool,
    /// What can be decoded apart has about so many bytes of packets, or more in large recordings.
    pub chunk: NonZeroUsize,
}

impl Default for IndexOptions {
    /// As many threads as there are processors, with inlined functions.
    fn default() -> Self {
        let threads = std::thread::available_parallelism();
        Self {
            threads: threads.unwrap_or(NonZeroUsize::MIN),
            inlined: true,
            chunk: NonZeroUsize::new(CHUNK).unwrap_or(NonZeroUsize::MIN),
        }
    }
}

/// What is known of a recording while its index is built.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Partial {
    /// The bytes of packets that were decoded; all are, twice.
    pub done_bytes: u64,
    /// The bytes of packets that there are, twice.
    pub all_bytes: u64,
    /// The rows, as far as they are known: without calls and functions.
    pub rows: Arc<[Row]>,
}

/// About so many chunks there are at most.
const CHUNKS: usize = 1 << 14;
/// A chunk has about so many bytes.
const CHUNK: usize = 1 << 16;
/// What is known so far is told no more often.
const OFTEN: Duration = Duration::from_millis(250);

/// What came of a stream.
struct Built {
    row: Row,
    functions: Vec<FunctionInfo>,
    /// The address of each, to tell apart those of one name.
    addresses: Vec<Option<u64>>,
    dictionary: CallDictionary,
    states: CallStates,
}

/// Builds the index of a session; none if `cancel` was set meanwhile.
pub(crate) fn build(
    session: &Session<'_>,
    options: &IndexOptions,
    cancel: &AtomicBool,
    publish: &(dyn Fn(Partial) + Sync),
) -> Option<Index> {
    let streams: Vec<&Stream<'_>> = session.streams().iter().collect();
    let bytes: usize = streams.iter().map(|stream| stream.len()).sum();
    let size = options.chunk.get().max(bytes / CHUNKS);
    let mut check = CheckOptions::default();
    check.threads = options.threads;
    check.segment = NonZeroUsize::new(size).unwrap_or(check.segment);
    let done = AtomicU64::new(0);
    let all_bytes = 2 * bytes as u64;
    let timeline = Timeline::new(session);
    let rows: Vec<Row> = streams.iter().map(|stream| begin(stream)).collect();
    let mut surveys: Vec<Survey> = rows
        .into_iter()
        .map(|row| Survey::new(row, timeline))
        .collect();
    let tell = |rows| {
        publish(Partial {
            done_bytes: done.load(Ordering::Relaxed),
            all_bytes,
            rows,
        });
    };
    let mut next = Instant::now() + OFTEN;
    let progress = |bytes| {
        done.fetch_add(bytes, Ordering::Relaxed);
    };
    survey(session, &streams, check, &progress, |number, chunk| {
        if let Some(survey) = surveys.get_mut(number) {
            survey.take(chunk);
        }
        let begin = Instant::now();
        if begin >= next {
            tell(surveys.iter().map(Survey::so_far).collect());
            // What there is to tell of many rows takes a small part of the time, whatever their number.
            next = Instant::now() + OFTEN.max(begin.elapsed() * 16);
        }
    });
    let rows: Arc<[Row]> = surveys.into_iter().map(|survey| survey.row).collect();
    tell(rows.clone());
    let told = Mutex::new(Instant::now());
    let built = follow_all(session, options, cancel, &rows, &|bytes| {
        progress(bytes);
        // Who finds another telling need not tell.
        if let Ok(mut told) = told.try_lock()
            && told.elapsed() >= OFTEN
        {
            tell(rows.clone());
            *told = Instant::now();
        }
    })?;
    Some(put_together(session, options, built))
}

fn begin(stream: &Stream<'_>) -> Row {
    let task = stream.task();
    Row {
        cpu: stream.key().cpu(),
        pid: task.pid,
        tid: task.tid,
        comm: stream.comm().map(str::to_owned),
        bytes: stream.len() as u64,
        ..Row::default()
    }
}

/// What is known of a stream before its calls are.
struct Survey {
    row: Row,
    timeline: Timeline,
}

impl Survey {
    const fn new(row: Row, timeline: Timeline) -> Self {
        Self { row, timeline }
    }

    fn take(&mut self, chunk: FoundChunk) {
        let at = self.row.insns;
        self.row.chunks.push(Chunk {
            offset: chunk.range.start.0,
            at,
            state: None,
        });
        self.knot(at, chunk.begin);
        self.row.insns += chunk.instructions;
        self.knot(self.row.insns, chunk.end);
        self.row.gap_count += chunk.gap_count;
        for (before, gap) in chunk.gaps {
            if self.row.gaps.len() < Row::GAPS {
                self.row.gaps.push(span(&self.timeline, at + before, &gap));
            }
        }
    }

    fn knot(&mut self, at: u64, tsc: Option<cofi_packet::Tsc>) {
        let Some(time) = self.timeline.at(tsc) else {
            return;
        };
        let knot = Knot { at, time };
        if self.row.knots.last() != Some(&knot) {
            self.row.knots.push(knot);
        }
        self.row.begin.get_or_insert(time);
        self.row.end = Some(time);
    }

    fn so_far(&self) -> Row {
        self.row.clone()
    }
}

fn span(timeline: &Timeline, at: u64, gap: &Gap) -> GapSpan {
    let resumed = gap.resumed.and_then(|resumed| resumed.time);
    GapSpan {
        at,
        offset: gap.offset.0,
        from: gap.time.and_then(|tsc| timeline.of(tsc)),
        to: resumed.and_then(|tsc| timeline.of(tsc)),
        bytes: gap.bytes,
        what: gap.cause.to_string(),
    }
}

/// Follows the calls of all streams, those of each on one thread.
fn follow_all(
    session: &Session<'_>,
    options: &IndexOptions,
    cancel: &AtomicBool,
    rows: &[Row],
    progress: &(dyn Fn(u64) + Sync),
) -> Option<Vec<Built>> {
    let count = rows.len();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(HashMap::new()));
    // The longest first: what begins last is short, so that no thread works alone for long.
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|number| rows.get(*number).map(|row| Reverse(row.bytes)));
    std::thread::scope(|scope| {
        for _ in 0..options.threads.get().min(count) {
            scope.spawn(|| {
                while let Some(number) = order.get(next.fetch_add(1, Ordering::Relaxed))
                    && let (Some(stream), Some(row)) =
                        (session.streams().get(*number), rows.get(*number))
                {
                    let row = row.clone();
                    let Some(built) = follow(session, stream, row, options, cancel, progress)
                    else {
                        return;
                    };
                    // A panic elsewhere ends the scope with a panic anyway.
                    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                    results.insert(*number, built);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    (0..count).map(|number| results.remove(&number)).collect()
}

/// A shorter stream is decoded by the thread that follows its calls.
const AHEAD: u64 = 1 << 20;

/// Follows the calls of a stream. Of a long one, another thread decodes ahead.
fn follow<'s>(
    session: &'s Session<'_>,
    stream: &'s Stream<'s>,
    row: Row,
    options: &IndexOptions,
    cancel: &AtomicBool,
    progress: &(dyn Fn(u64) + Sync),
) -> Option<Built> {
    let parts: Vec<_> = (0..row.chunks.len())
        .map(|number| row.bytes_of(number))
        .map(|bytes| StreamOffset(bytes.start)..StreamOffset(bytes.end))
        .collect();
    let mut follower = Follower::new(session, stream, row, options);
    if options.threads.get() == 1 || follower.row.bytes < AHEAD {
        for (number, part) in parts.into_iter().enumerate() {
            if cancel.load(Ordering::Relaxed) {
                return None;
            }
            follower.part(number, &mut session.decode_within(stream, part), progress);
        }
    } else {
        std::thread::scope(|scope| {
            let (mut flow, decoder) = FlowAhead::new();
            let count = parts.len();
            scope.spawn(move || decoder.run(session, stream, parts.into_iter()));
            for number in 0..count {
                if cancel.load(Ordering::Relaxed) {
                    return None;
                }
                follower.part(number, &mut flow, progress);
            }
            Some(())
        })?;
    }
    Some(follower.finish(stream))
}

/// What follows the calls of a stream, part by part.
struct Follower<'s> {
    row: Row,
    timeline: Timeline,
    collector: Collector,
    tracer: CallTracer<'s>,
    states: CallStates,
    sums: Vec<ChunkSums>,
    /// Bytes that were decoded since that was told, and when it was.
    waiting: u64,
    told: Instant,
}

impl<'s> Follower<'s> {
    fn new(
        session: &'s Session<'_>,
        stream: &'s Stream<'s>,
        row: Row,
        options: &IndexOptions,
    ) -> Self {
        let timeline = Timeline::new(session);
        let mut tracer = CallTracer::new(session, stream);
        if options.inlined {
            tracer = tracer.with_inlined();
        }
        Self {
            row,
            timeline,
            collector: Collector::new(stream.task(), timeline),
            tracer,
            states: CallStates::default(),
            sums: Vec::new(),
            waiting: 0,
            told: Instant::now(),
        }
    }

    /// Takes the next part, which is this one.
    fn part(
        &mut self,
        number: usize,
        flow: &mut impl CallSource<'s>,
        progress: &(dyn Fn(u64) + Sync),
    ) {
        let Self {
            row,
            timeline,
            collector,
            tracer,
            ..
        } = self;
        if number > 0 {
            tracer.go_on();
        }
        let state = self.states.push(tracer);
        if let Some(chunk) = row.chunks.get_mut(number) {
            chunk.state = state.map(|state| state as u32);
        }
        let range = row.bytes_of(number);
        let is_last = number + 1 == row.chunks.len();
        self.waiting += range.end.min(row.bytes) - range.start;
        collector.follow(tracer);
        while tracer.follow(flow, collector) {
            collector.follow(tracer);
        }
        if is_last {
            tracer.finish(collector);
        }
        let time = flow.end_time().map(|time| time.tsc);
        let time = time.and_then(|tsc| timeline.of(tsc));
        self.sums
            .push(collector.end_chunk(tracer.instructions(), time));
        if self.told.elapsed() >= OFTEN || is_last {
            progress(self.waiting);
            (self.waiting, self.told) = (0, Instant::now());
        }
    }

    /// All parts were taken.
    fn finish(self, stream: &Stream<'_>) -> Built {
        let Self {
            mut row,
            mut collector,
            tracer,
            states,
            sums,
            ..
        } = self;
        collector.finish();
        let names = tracer.names();
        let functions = functions(names, &collector);
        let addresses = ids(names).map(|id| names.address(id)).collect();
        row.calls = collector.calls;
        (row.bins, row.kept, row.sums) = (collector.bins, collector.kept, sums);
        if !collector.knots.is_empty() {
            row.knots = collector.knots;
            row.begin = row.knots.first().map(|knot| knot.time);
            row.end = row.knots.last().map(|knot| knot.time);
        }
        for signal in stream.signals() {
            let at = row.at(Axis::Offset, signal.offset.0);
            row.bins.note_event(at, EventKind::Signal.bit());
        }
        Built {
            row,
            functions,
            addresses,
            dictionary: tracer.dictionary(),
            states,
        }
    }
}

fn ids(names: &CallNames) -> impl Iterator<Item = cofi_analysis::FunctionId> {
    (0..names.len()).filter_map(|index| names.id(index))
}

fn functions(names: &CallNames, collector: &Collector) -> Vec<FunctionInfo> {
    let all = ids(names);
    all.map(|id| FunctionInfo {
        name: names.describe(id).to_owned(),
        file: names
            .file(id)
            .map(|file| file.to_string_lossy().into_owned()),
        is_named: names.name(id).is_some(),
        is_inlined: collector.is_inlined(id.index()),
        ..FunctionInfo::default()
    })
    .collect()
}

/// Gives functions numbers that hold for all rows.
fn put_together(session: &Session<'_>, options: &IndexOptions, built: Vec<Built>) -> Index {
    let mut index = Index::empty(options.inlined, session.time_conversion().is_none());
    let mut numbers = HashMap::new();
    for built in built {
        let Built {
            mut row,
            functions,
            addresses,
            dictionary,
            states,
        } = built;
        let with_addresses = functions.into_iter().zip(addresses);
        let of_row: Vec<FunctionNumber> = with_addresses
            .map(|(function, address)| {
                let key = (function.name.clone(), function.file.clone(), address);
                let key = (key, function.is_named, function.is_inlined);
                *numbers.entry(key).or_insert_with(|| {
                    index.functions.push(function);
                    index.functions.len() as FunctionNumber - 1
                })
            })
            .collect();
        let number = |function: FunctionNumber| {
            let known = of_row.get(function as usize);
            known.copied().unwrap_or(NO_FUNCTION)
        };
        for (function, _) in &mut row.bins.list {
            *function = number(*function);
        }
        row.kept.each_function(number);
        for sums in &mut row.sums {
            for sum in &mut sums.0 {
                sum.function = number(sum.function);
                if let Some(info) = index.functions.get_mut(sum.function as usize) {
                    info.instructions += sum.own;
                    info.calls += sum.calls;
                }
            }
            sums.0.sort_unstable_by_key(|sum| sum.function);
        }
        index.rows.push(row);
        index.numbers.push(of_row);
        index.dictionaries.push(dictionary);
        index.states.push(states);
    }
    index
}
