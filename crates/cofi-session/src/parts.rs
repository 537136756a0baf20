//! The parts of a stream between which something is missing. Each is decoded for itself.

use std::ops::Range;

use cofi_flow::{FlowError, FlowErrorKind};
use cofi_packet::StreamOffset;

use crate::Task;
use crate::stream::{Pieces, Segment};

/// Those of a stream, or of a range of it, that have not been begun.
#[derive(Clone, Debug)]
pub(crate) struct Parts<'s> {
    bytes: &'s [u8],
    all: &'s [Segment],
    rest: &'s [Segment],
    range: Range<StreamOffset>,
    /// Where the one begun last begins.
    begun: StreamOffset,
}

/// A part: it is what of `bytes` lies in `range`.
#[derive(Clone, Debug)]
pub(crate) struct Part<'s> {
    /// The stream up to the part's end.
    pub(crate) bytes: &'s [u8],
    pub(crate) range: Range<StreamOffset>,
    /// Whose packets these are, where the part itself tells it.
    pub(crate) task: Option<Task>,
    /// What is missing before it.
    pub(crate) missing: FlowError,
}

impl<'s> Parts<'s> {
    pub(crate) fn new(pieces: &'s Pieces<'_>) -> Self {
        Self {
            bytes: pieces.bytes(),
            all: pieces.segments(),
            rest: pieces.segments(),
            range: StreamOffset(0)..StreamOffset(u64::MAX),
            begun: StreamOffset(0),
        }
    }

    /// Begins anew, with a range of the stream. Whether something is missing at its very beginning.
    pub(crate) fn restrict(&mut self, range: Range<StreamOffset>) -> bool {
        let begun = |part: &Segment| part.start <= range.start.0;
        let first = self.all.partition_point(begun).saturating_sub(1);
        self.rest = &self.all[first..];
        let gap = |part: &Segment| part.start > 0 && part.start == range.start.0;
        let gap = self.rest.first().is_some_and(gap);
        self.range = range;
        gap
    }

    /// Where the part begun last begins.
    pub(crate) const fn begun(&self) -> StreamOffset {
        self.begun
    }

    /// Whether the part begun last ends at `offset`, and another follows.
    pub(crate) fn is_followed_at(&self, offset: StreamOffset) -> bool {
        self.rest.first().is_some_and(|next| next.start == offset.0)
    }

    pub(crate) fn next(&mut self) -> Option<Part<'s>> {
        let (first, rest) = self.rest.split_first()?;
        if first.start > 0 && first.start >= self.range.end.0 {
            return None;
        }
        self.rest = rest;
        self.begun = StreamOffset(first.start);
        let len = self.bytes.len() as u64;
        let end = rest.first().map_or(len, |next| next.start);
        let start = StreamOffset(first.start.max(self.range.start.0));
        Some(Part {
            // No more than a length in memory.
            bytes: &self.bytes[..end.min(len) as usize],
            range: start..self.range.end,
            task: first.task,
            missing: FlowError::new(
                self.begun,
                FlowErrorKind::Missing {
                    bytes: first.missing,
                },
            ),
        })
    }
}
