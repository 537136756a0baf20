//! Whether a trace is whole: all its gaps, found by several threads at once.
//!
//! Of Intel PT nothing needs to be known across a PSB, so a stream is cut at PSBs into segments, which are decoded apart. Only where a gap
//! reaches from one into the next does decoding not come to the cut as it does in the whole stream (damage may hide the PSB): there the
//! segments are decoded again in one piece, so that what is found does not depend on the cuts. A PSB of RTIT tells nothing of where
//! control is: such a stream is decoded in one piece.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use cofi_flow::{Item, TimeJump, TraceFormat};
use cofi_packet::intel::IntelPt;
use cofi_packet::rtit::Rtit;
use cofi_packet::{Format, StreamOffset};
use cofi_session::{SealCount, Session, Stream};

use crate::clock::each_jump;
use crate::gap::{Gap, GapFinder, Step};
use crate::joined::{self, Found, Segment};
use crate::proof::Proof;
use crate::segments::{SegmentStart, ended_with_segment};

/// How a trace is checked.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CheckOptions {
    /// How many threads decode.
    pub threads: NonZeroUsize,
    /// Of about how many bytes the segments are, into which streams are cut for that.
    pub segment: NonZeroUsize,
}

impl Default for CheckOptions {
    /// As many threads as there are processors, segments of a mebibyte.
    fn default() -> Self {
        const ONE: NonZeroUsize = NonZeroUsize::MIN;
        Self {
            threads: std::thread::available_parallelism().unwrap_or(ONE),
            segment: NonZeroUsize::new(1 << 20).unwrap_or(ONE),
        }
    }
}

/// How whole a stream is.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StreamCheck {
    /// Instructions that could be told.
    pub instructions: u64,
    /// Bytes of packets.
    pub bytes: u64,
    /// Bytes before the first PSB, where it is not known where packets begin.
    pub head: u64,
    /// Bytes that are there but could not be used: `head`, and those of the gaps.
    pub lost_bytes: u64,
    /// How long the gaps lasted together, in TSC ticks, as far as that is known.
    pub lost_ticks: u64,
    /// What proves that it was decoded as it ran.
    pub proof: Proof,
    /// How many gaps there are, by the word for their cause.
    pub kinds: BTreeMap<&'static str, u64>,
    /// The first gaps, at most [`StreamCheck::LISTED`].
    pub gaps: Vec<Gap>,
    /// Where the time stamp counter was set back, the first ones: times before and after cannot be compared.
    pub jumps: Vec<(StreamOffset, TimeJump)>,
}

impl StreamCheck {
    /// How many gaps are listed one by one.
    pub const LISTED: usize = 10_000;

    /// How many gaps there are.
    #[must_use]
    pub fn gap_count(&self) -> u64 {
        self.kinds.values().sum()
    }

    /// Whether nothing is known to be missing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.gap_count() == 0 && self.proof.seals.broken == 0
    }

    fn add(&mut self, gap: Gap) {
        *self.kinds.entry(gap.cause.word()).or_default() += 1;
        self.lost_bytes += gap.bytes;
        self.lost_ticks = self.lost_ticks.saturating_add(gap.ticks().unwrap_or(0));
        if self.gaps.len() < Self::LISTED {
            self.gaps.push(gap);
        }
    }

    fn take(&mut self, part: Stretch) {
        self.instructions += part.instructions;
        self.proof.seals.add(part.seals);
        for gap in part.gaps {
            self.add(gap);
        }
        self.lost_bytes += part.more.lost_bytes;
        self.lost_ticks = self.lost_ticks.saturating_add(part.more.lost_ticks);
        for (word, count) in part.more.kinds {
            *self.kinds.entry(word).or_default() += count;
        }
    }
}

/// Checks all streams of a session; in their order, what came of each. `progress` is called with the bytes decoded since it was
/// called last.
#[must_use]
pub fn check(
    session: &Session<'_>,
    options: CheckOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Vec<StreamCheck> {
    let streams = session.streams().iter().enumerate();
    let all: Vec<Segment<'_, '_>> = streams
        .flat_map(|(number, stream)| {
            Segment::of(
                session,
                number,
                stream,
                options.segment,
                SegmentStart::Plain,
            )
        })
        .collect();
    let streams = session.streams().iter();
    let mut checks: Vec<_> = streams.map(|stream| begin(session, stream)).collect();
    // Where the time goes back is looked for in each stream from its beginning to its end: by the first threads that are there.
    let (next, jumps) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let worker = || {
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && let Some(stream) = session.streams().get(number)
        {
            let found = jumps_of(session, stream);
            // A panic elsewhere ends the scope of the threads with a panic anyway.
            let mut jumps = jumps.lock().unwrap_or_else(PoisonError::into_inner);
            jumps.insert(number, found);
        }
        |segment: &Segment<'_, '_>| decode(session, segment)
    };
    joined::decode(&all, options.threads, worker, progress, |number, found| {
        if let Some(check) = checks.get_mut(number) {
            check.take(found);
        }
    });
    for (number, found) in jumps.into_inner().unwrap_or_else(PoisonError::into_inner) {
        if let Some(check) = checks.get_mut(number) {
            check.jumps = found;
        }
    }
    checks
}

/// What was found in a segment.
struct Stretch {
    instructions: u64,
    seals: SealCount,
    gaps: Vec<Gap>,
    /// Gaps beyond those, which are counted only.
    more: StreamCheck,
    /// Whether decoding came to the end of the segment as it does when the stream is decoded in one go: no gap is open there or
    /// reaches further.
    is_clean: bool,
}

impl Found for Stretch {
    fn leads_to(&self, _: &Self) -> bool {
        self.is_clean
    }
}

fn decode(session: &Session<'_>, segment: &Segment<'_, '_>) -> Stretch {
    let (stream, range) = (segment.stream, segment.range.clone());
    let mut flow = session.decode_within(stream, range.clone());
    let mut finder = GapFinder::new(session, stream);
    let mut found = Stretch {
        instructions: 0,
        seals: SealCount::default(),
        gaps: Vec::new(),
        more: StreamCheck::default(),
        is_clean: true,
    };
    loop {
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
        });
        if let (true, Some((ip, offset))) = (finder.is_open(), first) {
            let step = Step::Run(ip, offset);
            finder.step(&step, &mut flow, |gap| found.add(gap, range.end));
        }
        let step = match item {
            Some(Item::Event(event)) => Step::Event(event),
            Some(Item::Error(error)) => Step::Error(error),
            // Blocks hold all instructions.
            Some(Item::Insn(_)) => continue,
            None => break,
        };
        finder.step(&step, &mut flow, |gap| found.add(gap, range.end));
    }
    if let Some(gap) = finder.take_open() {
        found.add(gap, range.end);
        found.is_clean = false;
    }
    found.is_clean &= ended_with_segment(stream, flow.offset(), range.end);
    found.seals = flow.seals();
    found
}

impl Stretch {
    fn add(&mut self, gap: Gap, end: StreamOffset) {
        let resumed = gap.resumed.map(|resumed| resumed.offset);
        self.is_clean &= gap.offset < end && resumed.is_none_or(|resumed| resumed < end);
        if self.gaps.len() < StreamCheck::LISTED {
            self.gaps.push(gap);
        } else {
            self.more.add(gap);
            self.more.gaps.clear();
        }
    }
}

/// Where in a stream the time goes back.
fn jumps_of(session: &Session<'_>, stream: &Stream<'_>) -> Vec<(StreamOffset, TimeJump)> {
    let mut jumps = Vec::new();
    each_jump(stream.bytes(), &session.flow_config(), |offset, jump| {
        jumps.push((offset, jump));
        jumps.len() < StreamCheck::LISTED
    });
    jumps
}

/// How many bytes a stream has before its first PSB, where it is not known where packets begin. (Where there is no PSB at all, that is a gap, and this is 0.)
#[must_use]
pub fn bytes_before_first_psb(session: &Session<'_>, stream: &Stream<'_>) -> u64 {
    let head = match session.flow_config().format {
        TraceFormat::IntelPt => IntelPt::find_psb(stream.bytes()),
        TraceFormat::Rtit(_) => Rtit::find_psb(stream.bytes()),
    };
    head.unwrap_or(0) as u64
}

/// What is known of a stream before anything is decoded.
fn begin(session: &Session<'_>, stream: &Stream<'_>) -> StreamCheck {
    let head = bytes_before_first_psb(session, stream);
    StreamCheck {
        bytes: stream.len() as u64,
        head,
        lost_bytes: head,
        proof: Proof::of(stream),
        ..StreamCheck::default()
    }
}
