//! Counts as the flow goes by.
//!
//! What runs is counted by blocks, which are few and repeat (see [`BlockTable`]). Classes and functions are worked out once for each
//! distinct run of instructions in them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cofi_flow::Part;
use cofi_packet::{Ip, StreamOffset};
use cofi_session::compact;
use cofi_session::{Session, Stream, ThreadFlow};

use crate::count::Counts;
use crate::counter::{Piece, StreamCounter};
use crate::coverage::{CodeCounts, EdgeMap};
use crate::functions::Functions;
use crate::joined::{self, Segment};
use crate::proof::Proof;
use crate::segments::SegmentStart;
use crate::stretch::StretchCount;
use crate::summary::{SpaceCount, Summary, ThreadSummary};

/// Of how many bytes the segments of a stream are: enough of them for many threads, and each large enough that what is worked out anew for it
/// costs little. The same for any number of threads, since estimates of the time begin anew with each segment.
fn segment_size(stream: usize) -> NonZeroUsize {
    const LEAST: usize = 256 << 10;
    const MOST: usize = 4 << 20;
    NonZeroUsize::new((stream / 32).clamp(LEAST, MOST)).unwrap_or(NonZeroUsize::MIN)
}

/// Whether steps between blocks of a file are counted.
type IsWanted = fn(&Path) -> bool;

/// Counts what streams did.
#[derive(Debug, Default)]
pub struct Tally {
    threads: Vec<ThreadSummary>,
    functions: Functions,
    /// Instructions by page tables.
    spaces: BTreeMap<Option<u64>, u64>,
    trace_bytes: u64,
    proof: Proof,
    /// Of about how many bytes the segments are, if that was said.
    segment: Option<NonZeroUsize>,
    /// How often which instruction ran, if that is wanted.
    code: Option<CodeCounts>,
    /// Steps between blocks, and of which files, if they are wanted.
    edges: Option<(IsWanted, EdgeMap)>,
    cancel: Option<Arc<AtomicBool>>,
}

impl Tally {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With streams cut into segments of about so many bytes. It makes no difference to what is counted, but for estimates of the time from cycle
    /// counts, which begin anew with each segment.
    #[must_use]
    pub const fn with_segments(mut self, size: NonZeroUsize) -> Self {
        self.segment = Some(size);
        self
    }

    /// Counting ends early once `cancel` is set: what was counted is then of no use.
    #[must_use]
    pub fn with_cancel(mut self, cancel: &Arc<AtomicBool>) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }

    /// How often each instruction ran is counted, too: see [`take_code`](Self::take_code).
    #[must_use]
    pub fn with_code(mut self) -> Self {
        self.code = Some(CodeCounts::default());
        self
    }

    /// How often each instruction ran; nothing without [`with_code`](Self::with_code).
    pub fn take_code(&mut self) -> CodeCounts {
        self.code.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Steps between blocks are counted, too, of the files that are wanted: see [`take_edges`](Self::take_edges).
    #[must_use]
    pub fn with_edges(mut self, is_wanted: fn(&Path) -> bool) -> Self {
        self.edges = Some((is_wanted, EdgeMap::default()));
        self
    }

    /// How often control went from one block to another; nothing without [`with_edges`](Self::with_edges).
    pub fn take_edges(&mut self) -> EdgeMap {
        let edges = self.edges.as_mut();
        edges
            .map(|(_, edges)| std::mem::take(edges))
            .unwrap_or_default()
    }

    /// Decodes a stream of `session` to its end and counts what it did.
    pub fn add<'t>(&mut self, session: &Session<'t>, stream: &Stream<'t>) {
        self.add_all(session, &[stream], NonZeroUsize::MIN, &|_| {});
    }

    /// Adds streams of `session` in their order, which several threads decode by segments. What is counted does not depend on how many. `progress`
    /// is called with the bytes decoded since it was called last.
    pub fn add_all<'t>(
        &mut self,
        session: &Session<'t>,
        streams: &[&Stream<'t>],
        threads: NonZeroUsize,
        progress: &(dyn Fn(u64) + Sync),
    ) {
        self.add_segments(session, streams, threads, progress);
    }

    fn add_segments<'s, 't>(
        &mut self,
        session: &'s Session<'t>,
        streams: &[&'s Stream<'t>],
        threads: NonZeroUsize,
        progress: &(dyn Fn(u64) + Sync),
    ) {
        let wanted = self.segment;
        let segments = streams.iter().enumerate().flat_map(|(number, stream)| {
            // What a processor's stream is about follows from what stands before.
            if stream.key().cpu().is_some() {
                return vec![Segment::whole(number, stream)];
            }
            let size = wanted.unwrap_or_else(|| segment_size(stream.len()));
            Segment::of(session, number, stream, size, SegmentStart::Traced)
        });
        let segments: Vec<_> = segments.collect();
        let with_code = self.code.is_some();
        let of_edges = self.edges.as_ref().map(|(is_wanted, _)| *is_wanted);
        let cancel = self.cancel.clone();
        let worker = || {
            let counter = StreamCounter::new(session).with_code(with_code);
            let mut counter = counter.with_edges(of_edges);
            let cancel = cancel.clone();
            move |segment: &Segment<'s, 't>| counter.count(segment, cancel.as_deref())
        };
        // The stream whose stretches come now, and what was counted of it.
        let mut last: Option<(usize, StretchCount)> = None;
        let mut take = |(number, count): (usize, StretchCount)| {
            if let Some(stream) = streams.get(number) {
                let mut proof = Proof::of(stream);
                proof.seals = count.seals;
                self.proof.add(proof);
                self.take(session, stream, stream.len() as u64, count);
            }
        };
        joined::decode(
            &segments,
            threads,
            worker,
            progress,
            |number, count| match &mut last {
                Some((known, before)) if *known == number => before.join(count),
                last => {
                    if let Some(before) = last.replace((number, count)) {
                        take(before);
                    }
                }
            },
        );
        if let Some(last) = last {
            take(last);
        }
    }

    /// Decodes a part of a stream, from the packets at `start` on, and counts of it what `gate` lets in: it is asked of each piece
    /// of the flow, with the addresses of the instructions that it holds.
    pub fn add_part(
        &mut self,
        session: &Session<'_>,
        stream: &Stream<'_>,
        start: StreamOffset,
        mut gate: impl FnMut(&mut ThreadFlow<'_>, &[Ip]) -> TallyGate,
    ) {
        let mut flow = session.decode_from(stream, start);
        let known = StreamCounter::new(session).with_code(self.code.is_some());
        let mut known = known.with_edges(self.edges.as_ref().map(|(is_wanted, _)| *is_wanted));
        let mut counter = known.begin(&Segment::whole(0, stream));
        let mut begin = None;
        let mut ips = Vec::new();
        loop {
            ips.clear();
            counter.place(&mut flow);
            let piece = match flow.next_part() {
                None => break,
                Some(part) => {
                    if let Part::Run(run) = &part {
                        ips.extend(run.iter().map(|insn| insn.ip));
                    }
                    Piece::of(&part)
                }
            };
            let is_last = match gate(&mut flow, &ips) {
                TallyGate::Outside => {
                    // Other code or another thread may be in place.
                    counter.leave(&mut flow);
                    continue;
                }
                TallyGate::End => break,
                TallyGate::Inside => false,
                TallyGate::Last => true,
            };
            if begin.is_none() {
                begin = Some(flow.offset());
                counter.enter(&mut flow);
            }
            counter.piece(&piece, &mut flow);
            if is_last {
                break;
            }
        }
        let end = flow.offset();
        let bytes = begin.map_or(0, |begin| end.0.saturating_sub(begin.0));
        if begin.is_some() {
            counter.tick(None, &mut flow);
        }
        let mut count = counter.end(&mut flow);
        if begin.is_none() {
            count.tasks.clear();
        }
        self.take(session, stream, bytes, count);
    }

    /// Takes over what was counted of a stream.
    fn take(
        &mut self,
        session: &Session<'_>,
        stream: &Stream<'_>,
        mut bytes: u64,
        mut count: StretchCount,
    ) {
        count.finish();
        if let Some(code) = &mut self.code {
            code.merge(count.code);
        }
        if let (Some((_, edges)), Some(counted)) = (&mut self.edges, count.edges) {
            edges.merge(&counted.finish());
        }
        self.trace_bytes += bytes;
        self.functions.merge(count.functions);
        for (cr3, instructions) in count.spaces.list() {
            if *instructions > 0 {
                *self.spaces.entry(*cr3).or_default() += instructions;
            }
        }
        for (task, count) in count.tasks {
            // A processor's stream belongs to all its threads and is counted once.
            let trace_bytes = std::mem::take(&mut bytes);
            let comm = session.comm_of(task.tid).map(str::to_owned);
            self.threads.push(ThreadSummary {
                stream: stream.key(),
                task,
                comm,
                counts: count.counts,
                trace_bytes,
                times: count.times,
                gaps: count.gaps,
            });
        }
    }

    /// Puts what another tally counted to this one's.
    pub fn merge(&mut self, other: Tally) {
        self.proof.add(other.proof);
        self.threads.extend(other.threads);
        self.trace_bytes += other.trace_bytes;
        self.functions.merge(other.functions);
        if let Some(code) = other.code {
            self.code.get_or_insert_default().merge(code);
        }
        if let Some((is_wanted, more)) = other.edges {
            let edges = self.edges.get_or_insert((is_wanted, EdgeMap::default()));
            edges.1.merge(&more);
        }
        for (cr3, instructions) in other.spaces {
            *self.spaces.entry(cr3).or_default() += instructions;
        }
    }

    /// What was counted.
    #[must_use]
    pub fn finish(self) -> Summary {
        let mut total = Counts::default();
        for thread in &self.threads {
            total += thread.counts;
        }
        let (functions, files) = self.functions.finish();
        let mut spaces: Vec<SpaceCount> = self
            .spaces
            .into_iter()
            .map(|(cr3, instructions)| SpaceCount { cr3, instructions })
            .collect();
        compact::sort_by_key(&mut spaces, |space| {
            (Reverse(space.instructions), space.cr3)
        });
        Summary {
            spaces,
            total,
            trace_bytes: self.trace_bytes,
            proof: self.proof,
            threads: self.threads,
            functions,
            files,
        }
    }
}

/// Whether a piece of the flow is counted by [`Tally::add_part`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TallyGate {
    /// It is not.
    Outside,
    /// It is.
    Inside,
    /// It is, and nothing behind it.
    Last,
    /// It is not, and nothing behind it.
    End,
}
