//! Streams in chunks that can be decoded apart, each with what is to be known before it is decoded: how much ran before it.
//!
//! A chunk begins at a PSB behind which tracing is on, and where whoever begins there knows all that whoever has read what stands before knows.
//! So what is decoded of a chunk alone is what is decoded of it within the whole stream. Where that does not hold (a gap reaches across the cut,
//! or damage hides the PSB), two chunks are one.

use cofi_flow::{Item, Part};
use cofi_packet::{StreamOffset, Tsc};
use cofi_session::{Session, Stream};
use std::ops::Range;

use crate::check::CheckOptions;
use crate::flow_state::FlowState;
use crate::gap::{Gap, GapFinder, Step};
use crate::joined::{self, Found, Segment};
use crate::segments::{SegmentStart, ended_with_segment};

/// A part of a stream that can be decoded apart.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Chunk {
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
    start_state: FlowState,
    end_state: FlowState,
    is_clean: bool,
}

impl Chunk {
    /// How many gaps of a chunk are listed one by one.
    pub const LISTED: usize = 10_000;

    fn add(&mut self, gap: Gap) {
        let end = self.range.end;
        let resumed = gap.resumed.map(|resumed| resumed.offset);
        self.is_clean &= gap.offset < end && resumed.is_none_or(|resumed| resumed < end);
        self.gap_count += 1;
        if self.gaps.len() < Self::LISTED {
            self.gaps.push((self.instructions, gap));
        }
    }
}

impl Found for Chunk {
    fn leads_to(&self, next: &Self) -> bool {
        self.is_clean && self.end_state.is_on() && self.end_state == next.start_state
    }
}

/// Cuts streams into chunks of about `options.segment` bytes. Each is given to `take` with the number of its stream among `streams`, in their order. `progress` is
/// called with the bytes decoded since it was called last.
pub fn survey(
    session: &Session<'_>,
    streams: &[&Stream<'_>],
    options: CheckOptions,
    progress: &(dyn Fn(u64) + Sync),
    take: impl FnMut(usize, Chunk) + Send,
) {
    let numbered = streams.iter().enumerate();
    let all: Vec<Segment<'_, '_>> = numbered
        .flat_map(|(number, stream)| {
            Segment::of(
                session,
                number,
                stream,
                options.segment,
                SegmentStart::Traced,
            )
        })
        .collect();
    let worker = || |segment: &Segment<'_, '_>| decode(session, segment);
    joined::decode(&all, options.threads, worker, progress, take);
}

fn decode(session: &Session<'_>, segment: &Segment<'_, '_>) -> Chunk {
    let (stream, range) = (segment.stream, segment.range.clone());
    let mut flow = session.decode_within(stream, range.clone());
    let mut finder = GapFinder::new(session, stream);
    let mut found = Chunk {
        range,
        instructions: 0,
        gaps: Vec::new(),
        gap_count: 0,
        begin: None,
        end: None,
        start_state: FlowState::default(),
        end_state: FlowState::default(),
        is_clean: true,
    };
    let (mut state, mut step) = if segment.is_first {
        (FlowState::default(), None)
    } else {
        // What a PSB+ tells is no event to whoever has read what stands before.
        FlowState::at_beginning(&mut flow, |part| {
            part.map(|part| match part {
                Part::Run(run) => {
                    found.instructions += run.len() as u64;
                    Step::Run(run.ip(), run.offset())
                }
                Part::Event(event) => Step::Event(event),
                Part::Error(error) => Step::Error(error),
            })
        })
    };
    if segment.is_first {
        state.note_code(&mut flow);
    }
    found.start_state = state;
    found.begin = flow.time().map(|time| time.tsc);
    let mut ended = Vec::new();
    loop {
        if let Some(step) = step.take() {
            if let Step::Event(event) = &step {
                state.note(event);
            }
            if finder.is_open() || !matches!(step, Step::Run(..)) {
                finder.step(&step, &mut flow, |gap| ended.push(gap));
            }
            for gap in ended.drain(..) {
                found.add(gap);
            }
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
        });
        if let (true, Some((ip, offset))) = (finder.is_open(), first) {
            finder.step(&Step::Run(ip, offset), &mut flow, |gap| ended.push(gap));
            for gap in ended.drain(..) {
                found.add(gap);
            }
        }
        step = match item {
            Some(Item::Event(event)) => Some(Step::Event(event)),
            Some(Item::Error(error)) => Some(Step::Error(error)),
            // Blocks hold all instructions.
            Some(Item::Insn(_)) => None,
            None => break,
        };
    }
    if let Some(gap) = finder.take_open() {
        found.add(gap);
        found.is_clean = false;
    }
    found.is_clean &= ended_with_segment(stream, flow.offset(), found.range.end);
    found.end = flow.time().map(|time| time.tsc);
    state.note_code(&mut flow);
    found.end_state = state;
    found
}
