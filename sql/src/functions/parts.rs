//! The parts of a stream that are decoded apart, with the times that they may have.
//!
//! A stream is cut at PSBs, always at the same ones, so that a row is the same whatever else is decoded: its time is what packets tell from the
//! beginning of its part on. To know which parts may hold a time, their timing packets are read once (and no code), and what they tell is kept:
//! in memory, and beside the recording if anything is.

use std::ops::{Range, RangeInclusive};

use cofi_analysis::{SegmentStart, StreamClock, segments};
use cofi_flow::{FlowConfig, TraceFormat};
use cofi_packet::intel::Packets;
use cofi_packet::{StreamOffset, Tsc};
use cofi_session::{Session, Stream};
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::kept::is_about_code;
use crate::limits::Limits;
use crate::recording::Recording;
use crate::table::{Pick, Unit, Units};

/// Parts have about so many bytes at least, and there are no more than so many of a stream.
const LEAST: usize = 4 << 10;
const MOST_PARTS: usize = 4096;

/// From which time to which the rows of a part are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Times {
    /// No packet tells the time.
    None,
    /// In ticks of the time stamp counter.
    Known(u64, u64),
    /// That is not known before it is decoded.
    Any,
}

/// How many bytes of a stream's packets a part has at least.
pub(crate) fn part_size(stream: &Stream<'_>) -> NonZeroUsize {
    let size = (stream.len() / MOST_PARTS).max(LEAST);
    NonZeroUsize::new(size).unwrap_or(NonZeroUsize::MIN)
}

/// The times of a stream's parts, as they are kept in a file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PartTimes {
    starts: Vec<u64>,
    times: Vec<Times>,
}

impl PartTimes {
    /// Reads the timing packets of a stream, by so many threads.
    pub(crate) fn read(session: &Session<'_>, stream: &Stream<'_>, threads: NonZeroUsize) -> Self {
        let parts = StreamParts::of(session, stream, None);
        let config = session.flow_config();
        let next = AtomicUsize::new(0);
        let read = || {
            let mut told = Vec::new();
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= parts.count() {
                    return told;
                }
                told.push((part, times_of(stream.bytes(), parts.range(part), &config)));
            }
        };
        // A part of which nothing was told is one that may hold any time.
        let mut times = vec![Times::Any; parts.count()];
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads.get()).map(|_| scope.spawn(read)).collect();
            let others = others.into_iter().filter_map(|other| other.join().ok());
            for (part, told) in std::iter::once(read()).chain(others).flatten() {
                if let Some(times) = times.get_mut(part) {
                    *times = told;
                }
            }
        });
        Self {
            starts: parts.starts.iter().map(|start| start.0).collect(),
            times,
        }
    }

    /// Whether these can be the parts of a stream of so many bytes.
    pub(crate) fn is_sound(&self, len: u64) -> bool {
        are_starts(self.starts.iter().copied(), len) && self.times.len() == self.starts.len()
    }
}

/// Whether a stream of so many bytes can be cut at these places.
pub(crate) fn are_starts(starts: impl Iterator<Item = u64> + Clone, len: u64) -> bool {
    let mut pairs = starts.clone().zip(starts.clone().skip(1));
    starts.clone().next() == Some(0)
        && starts.clone().all(|start| start == 0 || start < len)
        && pairs.all(|(one, other)| one < other)
}

/// The parts of a stream.
#[derive(Debug)]
pub(crate) struct StreamParts {
    /// Where each begins.
    starts: Vec<StreamOffset>,
    times: OnceLock<Vec<Times>>,
}

impl StreamParts {
    /// Of a stream that is not there.
    pub(crate) const fn none() -> Self {
        Self {
            starts: Vec::new(),
            times: OnceLock::new(),
        }
    }

    /// Those of a stream, or what is kept of them: to find where parts begin takes a look at each of them, all over the file.
    pub(crate) fn of(session: &Session<'_>, stream: &Stream<'_>, kept: Option<&PartTimes>) -> Self {
        if let Some(kept) = kept {
            return Self {
                starts: kept.starts.iter().copied().map(StreamOffset).collect(),
                times: OnceLock::from(kept.times.clone()),
            };
        }
        // What a processor's stream is about follows from what stands before.
        let starts = match stream.key().cpu() {
            None => {
                let parts = segments(session, stream, part_size(stream), SegmentStart::Traced);
                parts.into_iter().map(|part| part.start).collect()
            }
            Some(_) => vec![StreamOffset(0)],
        };
        Self {
            starts,
            times: OnceLock::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.starts.len()
    }

    /// Where a part begins and the next one does.
    fn range(&self, part: usize) -> Range<StreamOffset> {
        let at = |part: usize| self.starts.get(part).copied();
        at(part).unwrap_or_default()..at(part + 1).unwrap_or(StreamOffset(u64::MAX))
    }

    /// How many parts a range has that begins with one.
    pub(crate) fn count_in(&self, range: &Range<StreamOffset>) -> usize {
        let before = |offset: StreamOffset| self.starts.partition_point(|start| *start < offset);
        before(range.end).saturating_sub(before(range.start))
    }

    /// The part that holds a byte of the stream.
    pub(crate) fn part_at(&self, offset: StreamOffset) -> usize {
        let behind = self.starts.partition_point(|start| *start <= offset);
        behind.saturating_sub(1)
    }

    /// Where a part begins.
    pub(crate) fn start(&self, part: usize) -> StreamOffset {
        self.range(part).start
    }

    /// From which time to which the rows of a part are, in ticks, if its packets tell.
    pub(crate) fn times_of(
        &self,
        part: usize,
        stream: &Stream<'_>,
        config: &FlowConfig,
    ) -> Option<(u64, u64)> {
        match self.times(stream, config).get(part)? {
            Times::Known(least, most) => Some((*least, *most)),
            Times::None | Times::Any => None,
        }
    }

    fn times(&self, stream: &Stream<'_>, config: &FlowConfig) -> &[Times] {
        self.times.get_or_init(|| {
            let parts = 0..self.count();
            parts
                .map(|part| times_of(stream.bytes(), self.range(part), config))
                .collect()
        })
    }

    /// From which part to which rows within the limits may be; none if there are none.
    fn within(
        &self,
        recording: &Recording,
        stream: &Stream<'_>,
        limits: &Limits,
    ) -> Option<Range<usize>> {
        let session = recording.session();
        let (by_tsc, by_time) = (limits.range("tsc"), limits.range("time_ns"));
        let mut parts = 0..self.count();
        if let Some(offsets) = limits.range("stream_offset") {
            let at = |offset: i128| StreamOffset(u64::try_from(offset.max(0)).unwrap_or(u64::MAX));
            if offsets.is_empty() {
                return None;
            }
            parts = self.part_at(at(*offsets.start()))..self.part_at(at(*offsets.end())) + 1;
        }
        if by_tsc.is_some() || by_time.is_some() {
            let times = self.times(stream, &session.flow_config());
            let may_hold = |part: &usize| {
                let (least, most) = match times.get(*part) {
                    Some(Times::Known(least, most)) => (*least, *most),
                    Some(Times::Any) => return true,
                    Some(Times::None) | None => return false,
                };
                let overlaps = |wanted: &RangeInclusive<i128>, least: u64, most: u64| {
                    *wanted.start() <= most.into() && *wanted.end() >= least.into()
                };
                let nanoseconds = |tsc| recording.nanoseconds(Some(Tsc(tsc)));
                let by_time = by_time.as_ref().is_none_or(|wanted| {
                    match (nanoseconds(least), nanoseconds(most)) {
                        // (Perf's arithmetic wraps.)
                        (Some(least), Some(most)) => least > most || overlaps(wanted, least, most),
                        _ => false,
                    }
                });
                by_time && by_tsc.as_ref().is_none_or(|w| overlaps(w, least, most))
            };
            let first = parts.clone().find(may_hold)?;
            let last = parts.rev().find(may_hold)?;
            parts = first..last + 1;
        }
        (!parts.is_empty()).then_some(parts)
    }
}

/// From which time to which the rows of a part are, by the packets that tell the time.
fn times_of(bytes: &[u8], range: Range<StreamOffset>, config: &FlowConfig) -> Times {
    if config.format != TraceFormat::IntelPt {
        // RTIT's times are known to who has read all that stands before.
        return Times::Any;
    }
    let mut clock = StreamClock::new(bytes, range.start, config);
    let mut times = Times::None;
    for item in Packets::starting_at(bytes, range.start) {
        // Where bytes form no packet, what the flow makes of the time is not told by them alone.
        let Ok(located) = item else {
            return Times::Any;
        };
        if located.offset >= range.end {
            break;
        }
        if let Some(Tsc(now)) = clock.at(located.offset).0 {
            times = match times {
                Times::Known(least, most) => Times::Known(least.min(now), most.max(now)),
                _ => Times::Known(now, now),
            };
        }
    }
    times
}

/// The parts of all streams that may hold rows within the limits, those of a stream that follow each other as one.
pub(super) fn units(recording: &Arc<Recording>, limits: &Limits) -> Units {
    let mut units = Units::default();
    let all = Units::streams(recording, &Limits::default()).list;
    let wanted = Units::streams(recording, limits).list;
    for unit in all {
        let Some((index, stream)) = unit.stream.zip(unit.stream()) else {
            continue;
        };
        let parts = recording.parts(index);
        let is_wanted = wanted.iter().any(|unit| unit.stream == Some(index));
        let within = is_wanted
            .then(|| parts.within(recording, stream, limits))
            .flatten();
        let Some(within) = within else {
            units.skipped += parts.count();
            continue;
        };
        // What runs at the end of a part may be told by the PSB+ with which the next begins.
        let first = within.start.saturating_sub(1);
        let range = parts.start(first)..parts.range(within.end - 1).end;
        let kept = recording.kept().and_then(|kept| kept.stream(index));
        if let Some(kept) = kept.filter(|_| is_about_code(limits)) {
            let picks = kept.code(limits, &range);
            units.add(picked(&unit, picks, parts));
            continue;
        }
        units.skipped += parts.count() - (within.end - first);
        units.list.push(Unit {
            range,
            parts: within.end - first,
            ..unit.clone()
        });
    }
    units
}

/// Of all of a stream what is picked.
pub(crate) fn picked(unit: &Unit, picks: Vec<Pick>, parts: &StreamParts) -> Units {
    let mut units = Units::default();
    let count: usize = picks.iter().map(|pick| parts.count_in(&pick.range)).sum();
    units.skipped = parts.count().saturating_sub(count);
    if let (Some(first), Some(last)) = (picks.first(), picks.last()) {
        units.list.push(Unit {
            range: first.range.start..last.range.end,
            parts: count,
            picks: Some(picks.into()),
            ..unit.clone()
        });
    }
    units
}

/// A piece of a stream that is decoded elsewhere has at least so many parts: what stands before it is decoded for it, too.
const LEAST_PIECE: usize = 8;
/// So many parts are decoded before a piece. That the second is a part of the flow is certain if nothing is missing in the first, and what
/// is true behind it does not depend on what stood before, if nothing is missing in it either.
const LEAD: usize = 2;

/// Units of what is picked, for each group one.
pub(crate) fn grouped(unit: &Unit, groups: Vec<Vec<Pick>>) -> Vec<Unit> {
    let index = unit.stream.unwrap_or_default();
    let parts = unit.recording.parts(index);
    let mut units: Vec<Unit> = Vec::new();
    let mut counted = StreamOffset(0);
    for picks in groups {
        for mut grouped in picked(unit, picks, parts).list {
            // What stands before a group may be of the one before, where it was counted.
            grouped.parts = 0;
            for pick in grouped.picks.iter().flat_map(|picks| picks.iter()) {
                let start = pick.range.start.max(counted);
                grouped.parts += parts.count_in(&(start..pick.range.end));
                counted = pick.range.end;
            }
            units.push(grouped);
        }
    }
    units
}

/// Cuts what is decoded of a stream into pieces, each of which begins with a part.
pub(super) fn cut(unit: Unit, pieces: usize) -> Vec<Unit> {
    let Some(index) = unit.stream else {
        return vec![unit];
    };
    if let Some(picks) = &unit.picks {
        let kept = unit.recording.kept();
        return match kept.and_then(|kept| kept.stream(index)) {
            Some(kept) => grouped(&unit, kept.divide_code(picks, pieces)),
            None => vec![unit],
        };
    }
    let parts = unit.recording.parts(index);
    let first = parts.part_at(unit.range.start);
    let pieces = pieces.min(unit.parts / LEAST_PIECE).max(1);
    let start = |piece: usize| first + unit.parts * piece / pieces;
    let pieces = (0..pieces).map(|piece| {
        let (begin, end) = (start(piece), start(piece + 1));
        let mut rows = unit.rows.clone();
        if piece > 0 {
            rows.start = parts.start(begin);
        }
        if piece + 1 < pieces {
            rows.end = parts.start(end);
        }
        Unit {
            rows,
            parts: end - begin,
            ..unit.clone()
        }
    });
    pieces.collect()
}

/// Where decoding begins for the rows of a unit: some parts before them.
pub(super) fn lead(unit: &Unit, parts: &StreamParts) -> StreamOffset {
    let part = parts.part_at(unit.rows.start).saturating_sub(LEAD);
    parts.start(part).max(unit.range.start)
}

/// Of the rows of a stream those that belong to a unit: from the first that is told by a packet of its rows on, up to the first that is told by
/// one behind them. (Where something is missing, rows do not come in the order of their packets.)
#[derive(Clone, Debug)]
pub(super) struct Window {
    rows: Range<StreamOffset>,
    has_begun: bool,
    is_over: bool,
    /// So many rows were taken before.
    skip: usize,
    /// So many were taken, those before included.
    taken: usize,
}

impl Window {
    /// That of a unit, of which so many rows were taken.
    pub(super) fn new(unit: &Unit, skip: usize) -> Self {
        Self {
            rows: unit.rows.clone(),
            has_begun: false,
            is_over: false,
            skip,
            taken: 0,
        }
    }

    /// Whether the row that comes next, told by the packet there, is to be taken.
    pub(super) fn takes(&mut self, offset: StreamOffset) -> bool {
        self.has_begun |= offset >= self.rows.start;
        self.is_over |= self.has_begun && offset >= self.rows.end;
        if !self.has_begun || self.is_over {
            return false;
        }
        self.taken += 1;
        self.taken > self.skip
    }

    /// Whether something at this place is before the end of the unit's rows.
    pub(super) fn may_hold(&self, offset: StreamOffset) -> bool {
        !self.is_over && offset < self.rows.end
    }

    /// Whether the first of the rows has come.
    pub(super) const fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether all rows have come.
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// How many rows were taken.
    pub(super) const fn taken(&self) -> usize {
        self.taken
    }
}

/// The time at places of a stream that come one after the other, as each part tells it.
pub(super) struct PartClock<'s> {
    parts: &'s StreamParts,
    bytes: &'s [u8],
    config: FlowConfig,
    clock: StreamClock<'s>,
    /// The part in which the clock is.
    part: usize,
}

impl<'s> PartClock<'s> {
    /// From the place on where decoding begins.
    pub(super) fn new(
        unit: &'s Unit,
        stream: &'s Stream<'_>,
        parts: &'s StreamParts,
        start: StreamOffset,
    ) -> Self {
        let config = unit.recording.session().flow_config();
        let part = parts.part_at(start);
        let bytes = stream.bytes();
        Self {
            clock: StreamClock::new(bytes, parts.start(part), &config),
            parts,
            bytes,
            config,
            part,
        }
    }

    /// The time when the packet at `offset` was made.
    pub(super) fn at(&mut self, offset: StreamOffset) -> Option<Tsc> {
        let part = self.parts.part_at(offset).max(self.part);
        if part != self.part {
            self.part = part;
            self.clock = StreamClock::new(self.bytes, self.parts.start(part), &self.config);
        }
        self.clock.at(offset).0
    }
}
