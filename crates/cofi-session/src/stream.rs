//! One packet stream, put together from the pieces in which it was written.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::compact;
use cofi_packet::StreamOffset;

use crate::Task;
use crate::bytes::{Bytes, JoinPieces};
use crate::overlap;

/// Whose packets a stream holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamKey {
    /// The only stream of a file that says nothing of threads: bare packets.
    Only,
    /// One thread's.
    Thread(u32),
    /// One processor's, which ran one thread after the other.
    Cpu(u32),
}

impl StreamKey {
    /// The thread, for a thread's stream.
    #[must_use]
    pub const fn tid(self) -> Option<u32> {
        match self {
            Self::Thread(tid) => Some(tid),
            _ => None,
        }
    }

    /// The processor, for a processor's stream.
    #[must_use]
    pub const fn cpu(self) -> Option<u32> {
        match self {
            Self::Cpu(cpu) => Some(cpu),
            _ => None,
        }
    }
}

/// A piece of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Piece<'t> {
    /// Where in the stream it begins.
    pub(crate) offset: u64,
    pub(crate) bytes: Bytes<'t>,
    /// Whose packets these are, where the piece itself tells it.
    pub(crate) task: Option<Task>,
}

impl<'t> Piece<'t> {
    /// A piece that does not tell whose it is.
    pub(crate) fn new(offset: u64, bytes: impl Into<Bytes<'t>>) -> Self {
        Self {
            offset,
            bytes: bytes.into(),
            task: None,
        }
    }

    /// Takes bytes away from the beginning and the end.
    pub(crate) fn narrow(&mut self, range: Range<usize>) {
        self.bytes.narrow(range);
    }
}

/// The pieces of a stream, as a file has them.
#[derive(Debug, Default)]
pub(crate) struct RawStream<'t> {
    pub(crate) pieces: Vec<Piece<'t>>,
    /// The pieces are of a ring that was overwritten: their offsets mean nothing, and they may overlap.
    pub(crate) snapshots: bool,
    /// Behind which bytes packets were lost.
    pub(crate) lost_at: Vec<u64>,
}

impl<'t> From<Vec<Piece<'t>>> for RawStream<'t> {
    fn from(pieces: Vec<Piece<'t>>) -> Self {
        Self {
            pieces,
            ..Self::default()
        }
    }
}

/// What was wrong with the pieces of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seam {
    /// Bytes are missing.
    Gap { at: u64, len: u64 },
    /// Bytes other than padding are there twice; the later ones are used.
    Overlap { at: u64, len: u64 },
}

/// A part of a stream that nothing is missing from. It is decoded for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Where in the joined bytes it begins.
    pub(crate) start: u64,
    /// How many bytes are missing before it, if that is known.
    pub(crate) missing: Option<u64>,
    /// Whose packets these are, where the segment itself tells it.
    pub(crate) task: Option<Task>,
}

/// The pieces of one stream in order, without what they have twice.
#[derive(Debug)]
pub(crate) struct Pieces<'t> {
    pieces: Vec<Piece<'t>>,
    /// Where each piece begins in the joined bytes.
    starts: Vec<usize>,
    segments: Vec<Segment>,
    join: Option<JoinPieces>,
    joined: OnceLock<Bytes<'static>>,
}

impl<'t> Pieces<'t> {
    /// Orders the pieces and tells what does not fit.
    pub(crate) fn new(raw: RawStream<'t>, join: Option<JoinPieces>) -> (Self, Vec<Seam>) {
        let (mut this, seams) = if raw.snapshots {
            (Self::snapshots(raw.pieces), Vec::new())
        } else {
            Self::in_order(raw.pieces, raw.lost_at)
        };
        this.join = join;
        (this, seams)
    }

    /// Pieces whose offsets tell how they follow each other.
    ///
    /// A piece may be padded to a multiple of eight bytes and so reach into the next one.
    fn in_order(mut pieces: Vec<Piece<'t>>, lost_at: Vec<u64>) -> (Self, Vec<Seam>) {
        compact::sort_by_key(&mut pieces, |piece| piece.offset);
        let mut seams = Vec::new();
        // Before which pieces something is missing, and how much.
        let mut gaps = Vec::new();
        for index in 1..pieces.len() {
            let (before, after) = pieces.split_at_mut(index);
            let (Some(piece), Some(next)) = (before.last_mut(), after.first()) else {
                continue;
            };
            let keep = next.offset - piece.offset;
            let len = piece.bytes.len() as u64;
            if keep > len {
                let at = piece.offset + len;
                seams.push(Seam::Gap {
                    at,
                    len: keep - len,
                });
                gaps.push((index, Some(keep - len)));
                continue;
            }
            // `keep` is no more than a length in memory.
            let keep = keep as usize;
            let rest = &piece.bytes[keep..];
            if rest.len() >= 8 || rest.iter().any(|byte| *byte != 0) {
                let (at, len) = (next.offset, rest.len() as u64);
                seams.push(Seam::Overlap { at, len });
                // Two stories of the same bytes: nothing is known of how one goes on in the other.
                let common = rest.len().min(next.bytes.len());
                if rest[..common] != next.bytes[..common] {
                    gaps.push((index, None));
                }
            }
            piece.narrow(0..keep);
        }
        let mut this = Self::joined(pieces);
        let mut segments: Vec<_> = gaps
            .into_iter()
            .map(|(index, missing)| Segment {
                start: this.starts[index] as u64,
                missing,
                task: None,
            })
            .collect();
        segments.extend(lost_at.into_iter().map(|at| Segment {
            start: this.place(at).0,
            missing: None,
            task: None,
        }));
        // Where two say the same, the one that knows more comes first and counts.
        compact::sort_by_key(&mut segments, |segment| {
            (segment.start, segment.missing.is_none())
        });
        segments.dedup_by_key(|segment| segment.start);
        segments.retain(|segment| segment.start > 0 && segment.start < this.len() as u64);
        this.segments.extend(segments);
        (this, seams)
    }

    /// Pieces of a ring, in the order in which they were saved.
    fn snapshots(mut pieces: Vec<Piece<'t>>) -> Self {
        pieces.retain(|piece| !piece.bytes.is_empty());
        // For each piece whether it goes on where the one before ended.
        let mut continues = vec![false; pieces.len()];
        // What the piece before held, before anything was taken from it, in bytes before its present beginning.
        let mut whole: Option<Bytes<'t>> = None;
        for index in 0..pieces.len() {
            let this = pieces[index].bytes.clone();
            let found = whole
                .and_then(|whole| overlap::join(&whole, &this).map(|join| (join, whole.len())));
            if let Some((join, len)) = found {
                continues[index] = true;
                pieces[index].narrow(join.skip..this.len());
                let before = &mut pieces[index - 1];
                let left = before.bytes.len().saturating_sub(len - join.keep);
                before.narrow(0..left);
            }
            whole = Some(this);
        }
        let mut this = Self::joined(pieces);
        let starts = this.starts.iter().zip(&this.pieces).zip(continues);
        let segments = starts
            .filter(|(_, continues)| !continues)
            .map(|((start, piece), _)| Segment {
                start: *start as u64,
                missing: None,
                task: piece.task,
            });
        let mut segments: Vec<_> = segments.collect();
        // A piece that held nothing new has the place of the next.
        segments.dedup_by_key(|segment| segment.start);
        this.segments = segments;
        this
    }

    /// Puts pieces one behind the other.
    fn joined(pieces: Vec<Piece<'t>>) -> Self {
        let mut end = 0;
        let starts = pieces
            .iter()
            .map(|piece| {
                let start = end;
                end += piece.bytes.len();
                start
            })
            .collect();
        let first = Segment {
            start: 0,
            missing: None,
            task: None,
        };
        Self {
            pieces,
            starts,
            segments: vec![first],
            join: None,
            joined: OnceLock::new(),
        }
    }

    /// The parts that are decoded each for itself, in order; the first begins at 0.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// All bytes. If there are several pieces, they are put together once.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.pieces.as_slice() {
            [] => &[],
            [piece] => &piece.bytes,
            pieces => self.joined.get_or_init(|| {
                let pieces: Vec<&[u8]> = pieces.iter().map(|piece| &*piece.bytes).collect();
                let joined = self.join.and_then(|join| join(&pieces));
                let joined = joined.filter(|joined| (**joined).as_ref().len() == self.len());
                joined.map_or_else(|| Bytes::shared(Arc::new(pieces.concat())), Bytes::shared)
            }),
        }
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        self.starts
            .last()
            .zip(self.pieces.last())
            .map_or(0, |(start, piece)| start + piece.bytes.len())
    }

    /// Where in the joined bytes the stream's byte `offset` is: for one that is missing, where the next one is.
    pub(crate) fn place(&self, offset: u64) -> StreamOffset {
        let Some(index) = self
            .pieces
            .partition_point(|piece| piece.offset <= offset)
            .checked_sub(1)
        else {
            return StreamOffset(0);
        };
        let inside =
            (offset - self.pieces[index].offset).min(self.pieces[index].bytes.len() as u64);
        StreamOffset(self.starts[index] as u64 + inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, bytes: &[u8]) -> Piece<'_> {
        Piece::new(offset, bytes)
    }

    #[test]
    fn one_piece_is_not_copied() {
        let bytes = [1, 2, 3];
        let (pieces, seams) = Pieces::new(vec![piece(100, &bytes)].into(), None);
        assert!(seams.is_empty());
        assert!(std::ptr::eq(pieces.bytes(), bytes.as_slice()));
        assert_eq!(pieces.place(100), StreamOffset(0));
        assert_eq!(pieces.place(102), StreamOffset(2));
        assert_eq!(pieces.place(500), StreamOffset(3));
        assert_eq!(pieces.place(0), StreamOffset(0));
    }

    #[test]
    fn padding_is_cut_and_order_restored() {
        let raw = vec![piece(5, &[6, 7, 8]), piece(0, &[1, 2, 3, 4, 5, 0, 0, 0])];
        let (pieces, seams) = Pieces::new(raw.into(), None);
        assert_eq!(pieces.segments().len(), 1);
        assert!(seams.is_empty());
        assert_eq!(pieces.bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(pieces.len(), 8);
        assert_eq!(pieces.place(5), StreamOffset(5));
    }

    #[test]
    fn gaps_and_overlaps_are_told() {
        let raw = vec![
            piece(0, &[1; 4]),
            piece(10, &[2; 4]),
            piece(12, &[3; 4]),
            piece(16, &[4; 2]),
        ];
        let (pieces, seams) = Pieces::new(raw.into(), None);
        let cuts: Vec<_> = pieces
            .segments()
            .iter()
            .map(|segment| (segment.start, segment.missing))
            .collect();
        assert_eq!(cuts, [(0, None), (4, Some(6)), (6, None)]);
        assert_eq!(
            seams,
            [
                Seam::Gap { at: 4, len: 6 },
                Seam::Overlap { at: 12, len: 2 }
            ]
        );
        assert_eq!(pieces.bytes(), [1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4]);
        assert_eq!(pieces.place(4), StreamOffset(4));
        assert_eq!(pieces.place(9), StreamOffset(4));
        assert_eq!(pieces.place(13), StreamOffset(7));
        let (none, seams) = Pieces::new(RawStream::default(), None);
        assert_eq!((none.len(), none.bytes().len(), seams.len()), (0, 0, 0));
    }
}
