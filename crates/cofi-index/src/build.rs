//! Building an index: the chunks of a stream are decoded by all threads, and its calls are followed chunk by chunk meanwhile.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cofi_analysis::{
    CallDictionary, CallNames, CallStates, CallTracer, CheckOptions, Chunk as FoundChunk, Gap,
    TracedPart, Unfit, survey_calls,
};
use cofi_packet::{StreamOffset, Tsc};
use cofi_session::compact;
use cofi_session::{Session, Stream, ThreadFlow};

use crate::clock::Timeline;
use crate::collect::Collector;
use crate::explore::EventKind;
use crate::index::{FunctionInfo, Index};
use crate::journal::Journal;
use crate::local::{LocalCounter, Stretch};
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
    /// What is found of the calls of chunks takes about so many bytes, until it is known which calls are open around them. A chunk of which there is more than its share
    /// is decoded twice.
    pub waiting: usize,
}

impl Default for IndexOptions {
    /// As many threads as there are processors, with inlined functions.
    fn default() -> Self {
        let threads = std::thread::available_parallelism();
        Self {
            threads: threads.unwrap_or(NonZeroUsize::MIN),
            inlined: true,
            chunk: NonZeroUsize::new(CHUNK).unwrap_or(NonZeroUsize::MIN),
            waiting: WAITING,
        }
    }
}

/// What is known of a recording while its index is built.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Partial {
    /// The bytes of packets that were decoded.
    pub done_bytes: u64,
    /// The bytes of packets that there are.
    pub all_bytes: u64,
    /// The rows, as far as they are known: without calls and functions.
    pub rows: Arc<[Row]>,
}

/// About so many chunks there are at most.
const CHUNKS: usize = 1 << 14;
/// A chunk has about so many bytes.
const CHUNK: usize = 1 << 16;
/// What waits to be put in order takes so many bytes.
const WAITING: usize = 1 << 26;
/// What ran most, and when, is known of pieces of so many instructions; of streams of so many bytes, of larger ones: they are small beside the parts of which it is kept.
const PIECES: [(usize, u64); 3] = [(0, 1 << 8), (1 << 23, 1 << 10), (1 << 27, 1 << 12)];
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
    let builder = Builder::new(session, options, cancel, publish);
    let built = builder.all()?;
    Some(put_together(session, options, built))
}

/// Builds rows, and tells how far it is.
struct Builder<'b, 's> {
    session: &'b Session<'s>,
    options: &'b IndexOptions,
    cancel: &'b AtomicBool,
    publish: &'b (dyn Fn(Partial) + Sync),
    bytes: u64,
    done: AtomicU64,
    /// What is known of each row.
    surveys: Vec<Mutex<Survey>>,
    /// When it may be told how far it is.
    next: Mutex<Instant>,
}

impl<'b, 's> Builder<'b, 's> {
    fn new(
        session: &'b Session<'s>,
        options: &'b IndexOptions,
        cancel: &'b AtomicBool,
        publish: &'b (dyn Fn(Partial) + Sync),
    ) -> Self {
        let timeline = Timeline::new(session);
        let streams = session.streams().iter();
        let surveys = streams.map(|stream| Mutex::new(Survey::new(begin(stream), timeline)));
        Self {
            session,
            options,
            cancel,
            publish,
            bytes: session.streams().iter().map(|s| s.len() as u64).sum(),
            done: AtomicU64::new(0),
            surveys: surveys.collect(),
            next: Mutex::new(Instant::now() + OFTEN),
        }
    }

    /// Builds all rows. All threads decode a long stream; of the others, each thread has one at a time.
    fn all(&self) -> Option<Vec<Built>> {
        let threads = self.options.threads;
        let streams = self.session.streams();
        let mut results: HashMap<usize, Built> = HashMap::new();
        // Two thirds of all: of others, it takes less time to follow the calls side by side.
        let is_long = |stream: &Stream<'_>| stream.len() as u64 * 3 > self.bytes * 2;
        for (number, stream) in streams.iter().enumerate() {
            if is_long(stream) {
                results.insert(number, self.row(number, stream, threads)?);
            }
        }
        // The longest first: what begins last is short, so that no thread works alone for long.
        let mut order: Vec<(usize, &Stream<'_>)> = streams.iter().enumerate().collect();
        order.retain(|(_, stream)| !is_long(stream));
        compact::sort_by_key(&mut order, |(_, stream)| Reverse(stream.len()));
        let (next, results) = (AtomicUsize::new(0), Mutex::new(results));
        std::thread::scope(|scope| {
            for _ in 0..threads.get().min(order.len()) {
                scope.spawn(|| {
                    while let Some((number, stream)) =
                        order.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let Some(built) = self.row(*number, stream, NonZeroUsize::MIN) else {
                            return;
                        };
                        locked(&results).insert(*number, built);
                    }
                });
            }
        });
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        (0..streams.len())
            .map(|number| results.remove(&number))
            .collect()
    }

    /// Builds the row of a stream, with so many threads.
    fn row(&self, number: usize, stream: &Stream<'_>, threads: NonZeroUsize) -> Option<Built> {
        let size = self.options.chunk.get().max(self.bytes as usize / CHUNKS);
        let mut check = CheckOptions::default();
        check.threads = threads;
        check.segment = NonZeroUsize::new(size).unwrap_or(check.segment);
        let is_cancelled = || self.cancel.load(Ordering::Relaxed);
        let progress = |bytes| {
            self.done.fetch_add(bytes, Ordering::Relaxed);
        };
        let known = self.surveys.get(number)?;
        let fits = |(bytes, _): &&(usize, u64)| stream.len() >= *bytes;
        let piece = PIECES
            .iter()
            .rfind(fits)
            .map_or(1 << 8, |(_, piece)| *piece);
        let mut follower = Follower::new(self.session, stream, self.options, piece);
        // Other threads have others.
        let waiting = self.options.waiting / self.options.threads.get() * threads.get();
        survey_calls(
            self.session,
            stream,
            (check, self.options.inlined, waiting),
            self.cancel,
            &progress,
            || LocalCounter::new(piece),
            |chunk| {
                if is_cancelled() {
                    return;
                }
                locked(known).take(&chunk);
                follower.chunk(self.session, stream, chunk);
                self.tell();
            },
        );
        if is_cancelled() {
            return None;
        }
        let row = locked(known).row.clone();
        Some(follower.finish(stream, row))
    }

    /// Tells what is known so far, now and then.
    fn tell(&self) {
        // Who finds another telling need not tell.
        let Ok(mut next) = self.next.try_lock() else {
            return;
        };
        let begin = Instant::now();
        if begin >= *next {
            let rows = self.surveys.iter().map(|survey| locked(survey).row.clone());
            (self.publish)(Partial {
                done_bytes: self.done.load(Ordering::Relaxed),
                all_bytes: self.bytes,
                rows: rows.collect(),
            });
            // What there is to tell of many rows takes a small part of the time, whatever their number.
            *next = Instant::now() + OFTEN.max(begin.elapsed() * 16);
        }
    }
}

/// A panic elsewhere ends all with a panic anyway.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn take<P>(&mut self, chunk: &FoundChunk<P>) {
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
        for (before, gap) in &chunk.gaps {
            if self.row.gaps.len() < Row::GAPS {
                self.row.gaps.push(span(&self.timeline, at + before, gap));
            }
        }
    }

    fn knot(&mut self, at: u64, tsc: Option<Tsc>) {
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

/// What follows the calls of a stream, chunk by chunk.
struct Follower<'s> {
    timeline: Timeline,
    collector: Collector,
    journal: Journal,
    tracer: CallTracer<'s>,
    states: CallStates,
    /// Which state holds where each chunk begins.
    begins: Vec<Option<u32>>,
    sums: Vec<ChunkSums>,
}

impl<'s> Follower<'s> {
    fn new(
        session: &'s Session<'_>,
        stream: &'s Stream<'s>,
        options: &IndexOptions,
        piece: u64,
    ) -> Self {
        let timeline = Timeline::new(session);
        let mut tracer = CallTracer::new(session, stream);
        if options.inlined {
            tracer = tracer.with_inlined();
        }
        Self {
            timeline,
            collector: Collector::new(stream.task(), timeline, piece),
            journal: Journal::default(),
            tracer,
            states: CallStates::default(),
            begins: Vec::new(),
            sums: Vec::new(),
        }
    }

    /// Takes the next chunk.
    fn chunk(
        &mut self,
        session: &'s Session<'_>,
        stream: &'s Stream<'s>,
        chunk: FoundChunk<TracedPart<'s, Stretch>>,
    ) {
        let FoundChunk {
            range,
            mut calls,
            end,
            ..
        } = chunk;
        if !self.begins.is_empty() {
            self.tracer.go_on();
        }
        let state = self.states.push(&self.tracer);
        self.begins.push(state.map(|state| state as u32));
        self.tracer.adopt(&mut calls);
        let start = range.start;
        let is_last = range.end.0 == u64::MAX;
        let marks = calls.marks().to_vec();
        if !self.part(calls, state, start) {
            let Self {
                tracer, collector, ..
            } = self;
            tracer.tell_marks(&marks, |places, tsc| collector.mark(places, tsc));
            self.follow(&mut session.decode_within(stream, range));
        }
        if is_last {
            self.tracer.finish(&mut self.collector);
        }
        let time = end.and_then(|tsc| self.timeline.of(tsc));
        let sums = self.collector.end_chunk(self.tracer.instructions(), time);
        self.sums.push(sums);
    }

    /// Takes account of the calls of a chunk that were followed as far as possible. Whether it could; else the chunk has to be decoded.
    fn part(
        &mut self,
        part: TracedPart<'s, Stretch>,
        state: Option<usize>,
        start: StreamOffset,
    ) -> bool {
        // Where it is not known on which of several stacks control is, a part is of no use.
        let Some(state) = state else {
            return false;
        };
        let mark = self.tracer.mark();
        match self.tracer.follow_part(part, &mut self.journal) {
            Ok(()) => {
                let names = self.tracer.names();
                self.journal.apply(&mut self.collector, names);
                true
            }
            Err(Unfit) => {
                self.journal.clear();
                self.tracer.go_back(mark, &self.states, state, start);
                false
            }
        }
    }

    /// Follows the calls of a chunk.
    fn follow(&mut self, flow: &mut ThreadFlow<'s>) {
        let Self {
            collector, tracer, ..
        } = self;
        collector.follow(tracer);
        while tracer.follow(flow, collector) {
            collector.follow(tracer);
        }
    }

    /// All chunks were taken, of which this row was made.
    fn finish(self, stream: &Stream<'_>, mut row: Row) -> Built {
        let Self {
            mut collector,
            tracer,
            states,
            begins,
            sums,
            ..
        } = self;
        collector.finish();
        for (chunk, state) in row.chunks.iter_mut().zip(begins) {
            chunk.state = state;
        }
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
            compact::sort_by_key(&mut sums.0, |sum| sum.function);
        }
        index.rows.push(row);
        index.numbers.push(of_row);
        index.dictionaries.push(dictionary);
        index.states.push(states);
    }
    index
}
