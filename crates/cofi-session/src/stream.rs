//! One packet stream, put together from the pieces in which it was written.

use std::borrow::Cow;
use std::sync::OnceLock;

use cofi_packet::StreamOffset;

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
    pub(crate) bytes: Cow<'t, [u8]>,
}

/// What was wrong with the pieces of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seam {
    /// Bytes are missing.
    Gap { at: u64, len: u64 },
    /// Bytes other than padding are there twice; the later ones are used.
    Overlap { at: u64, len: u64 },
}

/// The pieces of one stream in order, without what they have twice.
#[derive(Debug)]
pub(crate) struct Pieces<'t> {
    pieces: Vec<Piece<'t>>,
    /// Where each piece begins in the joined bytes.
    starts: Vec<usize>,
    joined: OnceLock<Vec<u8>>,
}

impl<'t> Pieces<'t> {
    /// Orders the pieces and tells what does not fit.
    ///
    /// A piece may be padded to a multiple of eight bytes and so reach into the next one.
    pub(crate) fn new(mut pieces: Vec<Piece<'t>>) -> (Self, Vec<Seam>) {
        pieces.sort_by_key(|piece| piece.offset);
        let mut seams = Vec::new();
        for index in 1..pieces.len() {
            let next = pieces[index].offset;
            let piece = &mut pieces[index - 1];
            let keep = next - piece.offset;
            let len = piece.bytes.len() as u64;
            if keep > len {
                seams.push(Seam::Gap {
                    at: piece.offset + len,
                    len: keep - len,
                });
            } else {
                // `keep` is no more than a length in memory.
                let (kept, rest) = piece.bytes.split_at(keep as usize);
                if rest.len() >= 8 || rest.iter().any(|byte| *byte != 0) {
                    seams.push(Seam::Overlap {
                        at: next,
                        len: len - keep,
                    });
                }
                let kept = kept.len();
                match &mut piece.bytes {
                    Cow::Borrowed(bytes) => *bytes = &bytes[..kept],
                    Cow::Owned(bytes) => bytes.truncate(kept),
                }
            }
        }
        let mut end = 0;
        let starts = pieces
            .iter()
            .map(|piece| {
                let start = end;
                end += piece.bytes.len();
                start
            })
            .collect();
        (
            Self {
                pieces,
                starts,
                joined: OnceLock::new(),
            },
            seams,
        )
    }

    /// All bytes. They are copied if there are several pieces, once.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.pieces.as_slice() {
            [] => &[],
            [piece] => &piece.bytes,
            pieces => self.joined.get_or_init(|| {
                pieces
                    .iter()
                    .flat_map(|piece| piece.bytes.iter())
                    .copied()
                    .collect()
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
        Piece {
            offset,
            bytes: bytes.into(),
        }
    }

    #[test]
    fn one_piece_is_not_copied() {
        let bytes = [1, 2, 3];
        let (pieces, seams) = Pieces::new(vec![piece(100, &bytes)]);
        assert!(seams.is_empty());
        assert!(std::ptr::eq(pieces.bytes(), bytes.as_slice()));
        assert_eq!(pieces.place(100), StreamOffset(0));
        assert_eq!(pieces.place(102), StreamOffset(2));
        assert_eq!(pieces.place(500), StreamOffset(3));
        assert_eq!(pieces.place(0), StreamOffset(0));
    }

    #[test]
    fn padding_is_cut_and_order_restored() {
        let (pieces, seams) = Pieces::new(vec![
            piece(5, &[6, 7, 8]),
            piece(0, &[1, 2, 3, 4, 5, 0, 0, 0]),
        ]);
        assert!(seams.is_empty());
        assert_eq!(pieces.bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(pieces.len(), 8);
        assert_eq!(pieces.place(5), StreamOffset(5));
    }

    #[test]
    fn gaps_and_overlaps_are_told() {
        let (pieces, seams) = Pieces::new(vec![
            piece(0, &[1; 4]),
            piece(10, &[2; 4]),
            piece(12, &[3; 4]),
            piece(16, &[4; 2]),
        ]);
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
        let (none, seams) = Pieces::new(Vec::new());
        assert_eq!((none.len(), none.bytes().len(), seams.len()), (0, 0, 0));
    }
}
