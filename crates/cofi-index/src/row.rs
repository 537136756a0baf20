//! What is known of a stream as a whole: how its places, its time and its bytes go together, and what ran where.

use std::ops::Range;

use cofi_session::StreamKey;
use serde::{Deserialize, Serialize};

use crate::calls::KeptCalls;
use crate::sums::ChunkSums;

/// A function, by its number in [`Index::functions`](crate::Index::functions).
pub type FunctionNumber = u32;

/// No function, no time.
pub(crate) const NO_FUNCTION: FunctionNumber = u32::MAX;

/// What a picture's abscissa shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Nanoseconds on perf's clock, or TSC ticks where nothing tells how to convert them.
    Time,
    /// Instructions of the row.
    Instructions,
    /// Bytes of the row's packets.
    Offset,
}

/// A stream: a thread, or a processor.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Row {
    /// The processor, if it is the stream of one.
    pub cpu: Option<u32>,
    /// The process, as far as known; 0 of a processor.
    pub pid: u32,
    /// The thread, as far as known; 0 of a processor.
    pub tid: u32,
    /// The thread's name.
    pub comm: Option<String>,
    /// How many instructions ran.
    pub insns: u64,
    /// How many bytes of packets there are.
    pub bytes: u64,
    /// How many calls began, without those of inlined functions.
    pub calls: u64,
    /// When its first instruction ran, as far as packets tell.
    pub begin: Option<u64>,
    /// When its last one did.
    pub end: Option<u64>,
    /// Where trace is missing, at most [`Row::GAPS`].
    pub gaps: Vec<GapSpan>,
    /// How many such places there are.
    pub gap_count: u64,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) knots: Vec<Knot>,
    pub(crate) bins: Bins,
    pub(crate) kept: KeptCalls,
    pub(crate) sums: Vec<ChunkSums>,
}

/// A place at which trace is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GapSpan {
    /// How many instructions of the row ran before it.
    pub at: u64,
    /// The packet that was lost or does not fit.
    pub offset: u64,
    /// The last time known before it.
    pub from: Option<u64>,
    /// The first time known behind it.
    pub to: Option<u64>,
    /// Bytes that are there but could not be used.
    pub bytes: u64,
    /// What is missing, and why.
    pub what: String,
}

/// What can be decoded apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chunk {
    /// Where it begins, in bytes and in instructions.
    pub(crate) offset: u64,
    pub(crate) at: u64,
    /// Which of the states of the stream's calls holds there; none if it is not known.
    pub(crate) state: Option<u32>,
}

/// A place of which the time is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Knot {
    pub(crate) at: u64,
    pub(crate) time: u64,
}

/// What ran most in equal parts of the instructions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Bins {
    /// Each has 2^shift instructions.
    pub(crate) shift: u32,
    /// The function, and how many instructions of it ran, as far as that is known.
    pub(crate) list: Vec<(FunctionNumber, u32)>,
    /// Of events, each has 2^event_shift instructions.
    pub(crate) event_shift: u32,
    /// Which kinds of events were in each, up to the last that had any.
    pub(crate) events: Vec<u16>,
}

/// A part of a row as a picture shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StripBin {
    /// How many instructions ran there. Within what packets tell no time of, they are spread evenly.
    pub insns: u64,
    /// The function that ran most, of itself.
    pub function: Option<FunctionNumber>,
    /// Trace is missing there.
    pub has_gap: bool,
    /// The bits of the kinds of events that were there ([`EventKind::bit`](crate::EventKind::bit)), gaps apart. They are known to one of 65,536 parts
    /// of the row, and told of where that begins.
    pub events: u16,
}

/// Parts of several rows together, as a picture shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StripSum {
    /// How many instructions ran in each part.
    pub insns: Vec<u64>,
    /// Whether trace is missing there.
    pub gaps: Vec<bool>,
}

impl StripSum {
    /// Nothing yet, in so many parts.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self {
            insns: vec![0; count],
            gaps: vec![false; count],
        }
    }
}

impl Row {
    /// So many gaps are listed.
    pub const GAPS: usize = 10_000;

    /// The key of the stream, as a session has it.
    #[must_use]
    pub fn is_of(&self, key: StreamKey) -> bool {
        self.cpu == key.cpu() && (self.cpu.is_some() || key.tid().is_none_or(|tid| tid == self.tid))
    }

    /// The place at a value of an axis: how many instructions ran before it.
    #[must_use]
    pub fn at(&self, axis: Axis, value: u64) -> u64 {
        match axis {
            Axis::Instructions => value.min(self.insns),
            Axis::Time => {
                let next = self.knots.partition_point(|knot| knot.time < value);
                let before = next.checked_sub(1).and_then(|n| self.knots.get(n));
                match (before, self.knots.get(next)) {
                    (_, None) => self.insns,
                    (_, Some(last)) if last.time == value && self.end == Some(value) => self.insns,
                    (None, Some(_)) => 0,
                    (Some(a), Some(b)) => between(value, (a.time, b.time), (a.at, b.at)),
                }
            }
            Axis::Offset => {
                let next = self.chunks.partition_point(|chunk| chunk.offset <= value);
                let Some(chunk) = next.checked_sub(1).and_then(|n| self.chunks.get(n)) else {
                    return 0;
                };
                let after = self.chunks.get(next);
                let end = after.map_or((self.bytes, self.insns), |next| (next.offset, next.at));
                between(value, (chunk.offset, end.0), (chunk.at, end.1))
            }
        }
    }

    /// The value of an axis at a place; none of [`Axis::Time`] if no packet tells any time. Between what packets tell, it is interpolated.
    #[must_use]
    pub fn value(&self, axis: Axis, at: u64) -> Option<u64> {
        match axis {
            Axis::Instructions => Some(at),
            Axis::Time => {
                let next = self.knots.partition_point(|knot| knot.at <= at);
                let before = next.checked_sub(1).and_then(|n| self.knots.get(n));
                match (before, self.knots.get(next)) {
                    (None, None) => None,
                    (None, Some(only)) | (Some(only), None) => Some(only.time),
                    (Some(a), Some(b)) => Some(between(at, (a.at, b.at), (a.time, b.time))),
                }
            }
            Axis::Offset => {
                let next = self.chunks.partition_point(|chunk| chunk.at <= at);
                let Some(chunk) = next.checked_sub(1).and_then(|n| self.chunks.get(n)) else {
                    return Some(0);
                };
                let after = self.chunks.get(next);
                let end = after.map_or((self.insns, self.bytes), |next| (next.at, next.offset));
                Some(between(at, (chunk.at, end.0), (chunk.offset, end.1)))
            }
        }
    }

    /// The first place whose time is `time` or later, as [`Row::value`] tells it; behind the last one if there is none.
    pub(crate) fn first_from(&self, time: u64) -> u64 {
        let (mut from, mut to) = (0, self.insns);
        while from < to {
            let middle = from + (to - from) / 2;
            let is_before = self
                .value(Axis::Time, middle)
                .is_some_and(|value| value < time);
            match is_before {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        from
    }

    /// The row's part of an axis; none of [`Axis::Time`] if no packet tells any time.
    #[must_use]
    pub fn range(&self, axis: Axis) -> Option<Range<u64>> {
        match axis {
            Axis::Instructions => Some(0..self.insns),
            Axis::Time => Some(self.begin?..self.end?.max(self.begin?)),
            Axis::Offset => Some(0..self.bytes),
        }
    }

    /// The parts of a range of an axis, `count` equal ones.
    #[must_use]
    pub fn strip(&self, axis: Axis, range: &Range<u64>, count: usize) -> Vec<StripBin> {
        let mut bins = vec![StripBin::default(); count];
        self.each_bin(axis, range, count, |index, places| {
            let (from, to) = (places.start, places.end);
            if let Some(bin) = bins.get_mut(index) {
                bin.insns = to - from;
                bin.function = self.bins.most(from..to);
                // What happened behind the last instruction, too.
                bin.events = self.bins.events(from..to + u64::from(to == self.insns));
            }
        });
        self.each_gap(axis, range, count, |index| {
            if let Some(bin) = bins.get_mut(index) {
                bin.has_gap = true;
            }
        });
        bins
    }

    /// Adds how much ran in parts of a range of an axis, and where trace is missing.
    pub fn add_to(&self, axis: Axis, range: &Range<u64>, sum: &mut StripSum) {
        let count = sum.insns.len();
        self.each_bin(axis, range, count, |index, places| {
            if let Some(insns) = sum.insns.get_mut(index) {
                *insns = insns.saturating_add(places.end - places.start);
            }
        });
        self.each_gap(axis, range, count, |index| {
            if let Some(has_gap) = sum.gaps.get_mut(index) {
                *has_gap = true;
            }
        });
    }

    /// Shows the places of each of `count` equal parts of a range of an axis in which something ran.
    fn each_bin(
        &self,
        axis: Axis,
        range: &Range<u64>,
        count: usize,
        mut visit: impl FnMut(usize, Range<u64>),
    ) {
        let len = u128::from(range.end.saturating_sub(range.start));
        let own = self.range(axis).unwrap_or(0..0);
        let edge = |index: usize| range.start + (len * index as u128 / count.max(1) as u128) as u64;
        let bin = |value: u64| match u128::from(value.saturating_sub(range.start)) {
            ahead if len == 0 || ahead >= len => count,
            ahead => (ahead * count as u128 / len) as usize,
        };
        // Before and behind these the row has nothing. Of the parts to which the same edges belong, one is as good as another.
        let first = match len {
            0 => 0,
            _ => bin(own.start).saturating_sub(1),
        };
        let last = bin(own.end).saturating_add(2).min(count);
        let mut from = self.at(axis, range.start.max(own.start));
        for index in first..last {
            let (start, end) = (edge(index), edge(index + 1));
            let to = if end <= own.start {
                from
            } else {
                self.at(axis, end)
            };
            let is_within = start < own.end.max(own.start + 1) && (end > own.start || start == end);
            if is_within && to > from {
                visit(index, from..to);
            }
            from = to.max(from);
        }
    }

    /// Shows which of `count` equal parts of a range of an axis miss trace.
    fn each_gap(&self, axis: Axis, range: &Range<u64>, count: usize, mut visit: impl FnMut(usize)) {
        let len = range.end.saturating_sub(range.start);
        if len == 0 {
            return;
        }
        for gap in &self.gaps {
            let (from, to) = self.span(axis, gap);
            let place = |value: u64| {
                (u128::from(value - range.start) * count as u128 / u128::from(len)) as usize
            };
            if to < range.start || from >= range.end {
                continue;
            }
            let first = place(from.max(range.start));
            let last = place(to.min(range.end - 1)).max(first);
            (first..=last.min(count.saturating_sub(1))).for_each(&mut visit);
        }
    }

    /// The part of an axis that a gap takes.
    #[must_use]
    pub fn span(&self, axis: Axis, gap: &GapSpan) -> (u64, u64) {
        match axis {
            Axis::Instructions => (gap.at, gap.at),
            Axis::Offset => (gap.offset, gap.offset.saturating_add(gap.bytes)),
            Axis::Time => {
                let at = self.value(axis, gap.at).unwrap_or(0);
                let from = gap.from.unwrap_or(at);
                (from, gap.to.unwrap_or(from).max(from))
            }
        }
    }

    /// Which chunk a place lies in.
    pub(crate) fn chunk_at(&self, at: u64) -> usize {
        let next = self.chunks.partition_point(|chunk| chunk.at <= at);
        next.saturating_sub(1)
    }

    /// The bytes of a chunk.
    pub(crate) fn bytes_of(&self, chunk: usize) -> Range<u64> {
        let start = self.chunks.get(chunk).map_or(0, |chunk| chunk.offset);
        let end = self
            .chunks
            .get(chunk + 1)
            .map_or(u64::MAX, |next| next.offset);
        start..end
    }

    /// The places of a chunk.
    pub(crate) fn places_of(&self, chunk: usize) -> Range<u64> {
        let start = self.chunks.get(chunk).map_or(self.insns, |chunk| chunk.at);
        let end = self
            .chunks
            .get(chunk + 1)
            .map_or(self.insns, |next| next.at);
        start..end
    }

    /// Whether all that was read from a file fits together, with so many functions and states.
    pub(crate) fn is_sound(&self, functions: usize, states: usize) -> bool {
        let knows = |function: FunctionNumber| (function as usize) < functions;
        let chunks = self.chunks.windows(2).all(|pair| {
            pair[0].offset < pair[1].offset && pair[0].at <= pair[1].at && pair[1].at <= self.insns
        });
        let first = self.chunks.first();
        first.is_none_or(|first| first.offset == 0 && first.at == 0)
            && chunks
            && self
                .chunks
                .iter()
                .all(|chunk| chunk.state.is_none_or(|state| (state as usize) < states))
            && self
                .knots
                .windows(2)
                .all(|pair| pair[0].at <= pair[1].at && pair[0].time <= pair[1].time)
            && self.bins.shift.max(self.bins.event_shift) < 64
            && self
                .bins
                .list
                .iter()
                .all(|(function, _)| *function == NO_FUNCTION || knows(*function))
            && self.kept.is_sound(functions)
            && (self.sums.is_empty() || self.sums.len() == self.chunks.len())
            && self.sums.iter().all(|sums| sums.is_sound(functions))
    }
}

/// Where in one range a value is that lies in another.
fn between(value: u64, (from, to): (u64, u64), (first, last): (u64, u64)) -> u64 {
    if to <= from {
        return first;
    }
    let part = value.clamp(from, to) - from;
    let len = last.saturating_sub(first);
    first + (u128::from(part) * u128::from(len) / u128::from(to - from)) as u64
}

impl Bins {
    /// So many are kept.
    pub(crate) const MOST: usize = 1 << 16;

    /// The function that ran most in a range of places, as far as the bins tell.
    fn most(&self, range: Range<u64>) -> Option<FunctionNumber> {
        let first = (range.start >> self.shift) as usize;
        let last = (range.end.saturating_sub(1) >> self.shift) as usize;
        let bins = self
            .list
            .get(first..=last.min(self.list.len().checked_sub(1)?))?;
        let found = match bins {
            [one] => one.0,
            bins => {
                let mut sums: Vec<(FunctionNumber, u64)> = Vec::new();
                for (function, count) in bins {
                    let known = sums.iter().position(|(known, _)| known == function);
                    match known {
                        Some(known) => sums[known].1 += u64::from(*count),
                        // Of so many functions, none runs much more than the others.
                        None if sums.len() < 64 => sums.push((*function, u64::from(*count))),
                        None => {}
                    }
                }
                sums.into_iter().max_by_key(|(_, sum)| *sum)?.0
            }
        };
        (found != NO_FUNCTION).then_some(found)
    }

    /// The kinds of events in the bins that begin in a range of places.
    fn events(&self, range: Range<u64>) -> u16 {
        let begin = |place: u64| {
            let whole = place >> self.event_shift;
            let is_behind = whole << self.event_shift < place;
            ((whole + u64::from(is_behind)) as usize).min(self.events.len())
        };
        let bins = self.events.get(begin(range.start)..begin(range.end));
        bins.into_iter().flatten().fold(0, |all, bits| all | bits)
    }

    /// An event was at a place.
    pub(crate) fn note_event(&mut self, at: u64, bit: u16) {
        while at >> self.event_shift >= Self::MOST as u64 {
            let pairs = self.events.chunks(2);
            self.events = pairs
                .map(|pair| pair.iter().fold(0, |all, bits| all | bits))
                .collect();
            self.event_shift += 1;
        }
        let bin = (at >> self.event_shift) as usize;
        if bin >= self.events.len() {
            self.events.resize(bin + 1, 0);
        }
        self.events[bin] |= bit;
    }

    /// Where the bin at hand ends.
    pub(crate) const fn end(&self) -> u64 {
        (self.list.len() as u64 + 1) << self.shift
    }

    /// The bin at hand ends: this function ran most.
    pub(crate) fn push(&mut self, function: FunctionNumber, ran: u64) {
        let ran = u32::try_from(ran).unwrap_or(u32::MAX);
        self.list.push((function, ran));
        if self.list.len() >= Self::MOST {
            self.halve();
        }
    }

    /// Half as many, each of twice the size.
    fn halve(&mut self) {
        let pairs = self.list.chunks(2).map(|pair| match pair {
            [(one, a), (other, b)] if one == other => (*one, a.saturating_add(*b)),
            [a, b] => *if a.1 >= b.1 { a } else { b },
            one => one.first().copied().unwrap_or((NO_FUNCTION, 0)),
        });
        self.list = pairs.collect();
        self.shift += 1;
    }
}
