//! The longest calls of a row: enough of them for any picture that shows more of it than can be decoded at once.

use std::ops::Range;

use cofi_analysis::{CallKind, Left};
use serde::{Deserialize, Serialize};

use crate::row::FunctionNumber;

/// A call, as a picture shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlameCall {
    /// The function.
    pub function: FunctionNumber,
    /// How many calls are around it; negative where it was open before the trace.
    pub depth: i32,
    /// Where it begins: how many instructions of the row ran before.
    pub begin: u64,
    /// Where it ends; where what was decoded ends, if it was open there.
    pub end: u64,
    /// When it begins, as far as packets tell.
    pub begin_time: Option<u64>,
    /// When it ends.
    pub end_time: Option<u64>,
    /// How it began.
    pub kind: CallKind,
    /// How it was left; none if that is not known here.
    pub left: Option<Left>,
    /// The thread.
    pub tid: u32,
    /// Which stack of the thread it runs on: see [`cofi_analysis::Call::stack`].
    pub stack: u32,
}

/// The same, as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptCall {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) begin_time: u64,
    pub(crate) end_time: u64,
    /// The instructions of its own thread alone.
    pub(crate) insns: u64,
    pub(crate) function: FunctionNumber,
    pub(crate) depth: i32,
    pub(crate) tid: u32,
    pub(crate) stack: u32,
    pub(crate) kind: u8,
    pub(crate) left: u8,
}

/// No time is known.
pub(crate) const NO_TIME: u64 = u64::MAX;

const KINDS: [CallKind; 6] = [
    CallKind::Call,
    CallKind::Tail,
    CallKind::Signal,
    CallKind::Entry,
    CallKind::Assumed,
    CallKind::Inline,
];

const LEFT: [Left; 5] = [
    Left::Return,
    Left::Tail,
    Left::Unwound,
    Left::End,
    Left::Gap,
];

pub(crate) fn kind_number(kind: CallKind) -> u8 {
    let number = KINDS.iter().position(|known| *known == kind);
    number.unwrap_or(0) as u8
}

pub(crate) fn left_number(left: Option<Left>) -> u8 {
    let number = left.and_then(|left| LEFT.iter().position(|known| *known == left));
    number.map_or(u8::MAX, |number| number as u8)
}

impl KeptCall {
    pub(crate) fn len(&self) -> u64 {
        self.end - self.begin
    }

    pub(crate) fn shown(&self) -> FlameCall {
        let time = |time| (time != NO_TIME).then_some(time);
        FlameCall {
            function: self.function,
            depth: self.depth,
            begin: self.begin,
            end: self.end,
            begin_time: time(self.begin_time),
            end_time: time(self.end_time),
            kind: *KINDS.get(self.kind as usize).unwrap_or(&CallKind::Call),
            left: LEFT.get(self.left as usize).copied(),
            tid: self.tid,
            stack: self.stack,
        }
    }
}

/// All calls of a row that are of so many instructions or longer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct KeptCalls {
    pub(crate) shortest: u64,
    /// In the order in which they begin, the outer ones first.
    list: Vec<KeptCall>,
    /// Where the last call ends of each block of them.
    #[serde(skip)]
    latest: Vec<u64>,
}

impl KeptCalls {
    /// So many are kept.
    const MOST: usize = 1 << 19;
    /// Shorter ones never are.
    pub(crate) const SHORTEST: u64 = 1 << 10;
    const BLOCK: usize = 1 << 10;

    pub(crate) fn new() -> Self {
        Self {
            shortest: Self::SHORTEST,
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, call: KeptCall) {
        if call.len() >= self.shortest {
            self.keep(call);
        }
    }

    fn keep(&mut self, call: KeptCall) {
        self.list.push(call);
        while self.list.len() >= Self::MOST {
            self.shortest *= 2;
            let shortest = self.shortest;
            self.list.retain(|call| call.len() >= shortest);
            // However deep calls are, memory is bounded: those too deep go last.
            if self.shortest > 1 << 62 {
                self.list.truncate(Self::MOST / 2);
            }
        }
    }

    /// All are there, or were read from a file.
    pub(crate) fn finish(&mut self) {
        let key = |call: &KeptCall| (call.begin, call.depth, std::cmp::Reverse(call.end));
        self.list.sort_by_key(key);
        let blocks = self.list.chunks(Self::BLOCK);
        let last = |block: &[KeptCall]| block.iter().map(|call| call.end).max().unwrap_or(0);
        self.latest = blocks.map(last).collect();
    }

    /// Those that overlap a range and are so long.
    pub(crate) fn within(&self, range: &Range<u64>, shortest: u64) -> Vec<FlameCall> {
        let found = self.each_within(range).into_iter();
        let found = found.filter(|call| call.len() >= shortest);
        found.map(KeptCall::shown).collect()
    }

    /// Those that overlap a range, in the order in which they begin, the outer ones first.
    pub(crate) fn each_within(&self, range: &Range<u64>) -> Vec<&KeptCall> {
        let first = self.list.partition_point(|call| call.begin < range.start);
        let mut found: Vec<&KeptCall> = Vec::new();
        let before = self.list.get(..first).unwrap_or_default();
        for (block, latest) in before.chunks(Self::BLOCK).zip(&self.latest) {
            if *latest > range.start {
                found.extend(block.iter().filter(|call| call.end > range.start));
            }
        }
        let behind = self.list.get(first..).unwrap_or_default().iter();
        found.extend(behind.take_while(|call| call.begin < range.end));
        found
    }

    /// Gives their functions other numbers.
    pub(crate) fn each_function(&mut self, number: impl Fn(FunctionNumber) -> FunctionNumber) {
        for call in &mut self.list {
            call.function = number(call.function);
        }
    }

    /// The call that begins there.
    pub(crate) fn get(
        &self,
        begin: u64,
        depth: i32,
        function: FunctionNumber,
    ) -> Option<&KeptCall> {
        let first = self.list.partition_point(|call| call.begin < begin);
        let all = self.list.get(first..).unwrap_or_default().iter();
        all.take_while(|call| call.begin == begin)
            .find(|call| (call.depth, call.function) == (depth, function))
    }

    /// Whether what was read from a file means something, with so many functions.
    pub(crate) fn is_sound(&self, functions: usize) -> bool {
        let mut all = self.list.iter();
        self.list.is_sorted_by_key(|call| call.begin)
            && all.all(|call| call.begin <= call.end && (call.function as usize) < functions)
    }
}
