//! Packet by packet over a stream of bytes, and how to find the first.

use super::{DecodeError, PSB, Packet, decode};
use crate::StreamOffset;
use memchr::memmem;

/// Offset of the first PSB in `bytes`.
///
/// A run of `02 82` longer than one PSB ends with the PSB: the sixteen bytes before are what another packet (or a
/// lost one) left there, so the last full PSB of a run is the one that counts.
#[must_use]
pub fn find_psb(bytes: &[u8]) -> Option<usize> {
    let mut at = memmem::find(bytes, &PSB)?;
    while bytes[at + 2..].starts_with(&PSB) {
        at += 2;
    }
    Some(at)
}

/// Offset of the first PSB at or after `from`, for going on after an error.
#[must_use]
pub fn sync_forward(bytes: &[u8], from: usize) -> Option<usize> {
    Some(from + find_psb(bytes.get(from..)?)?)
}

/// A packet, or bytes that form none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    /// Where it begins.
    pub offset: StreamOffset,
    /// How many bytes it takes; after an error, up to the next PSB or the end of the input.
    pub size: usize,
    /// The packet, or why there is none.
    pub result: Result<Packet, DecodeError>,
}

/// Iterates over the packets of a byte slice; the items tile it without gap or overlap.
///
/// Decoding begins at the slice's first byte. After an error it goes on at the next PSB.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Packets<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Reads from `offset` (at most the slice's length).
    #[must_use]
    pub fn starting_at(bytes: &'a [u8], offset: StreamOffset) -> Self {
        Self {
            bytes,
            at: usize::try_from(offset.0).map_or(bytes.len(), |at| at.min(bytes.len())),
        }
    }

    /// Where the next packet begins.
    #[must_use]
    pub const fn offset(&self) -> StreamOffset {
        StreamOffset(self.at as u64)
    }
}

impl Iterator for Packets<'_> {
    type Item = Item;

    #[inline]
    fn next(&mut self) -> Option<Item> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let offset = self.offset();
        let (size, result) = match decode(rest) {
            Ok(decoded) => (decoded.raw.len(), Ok(decoded.packet)),
            // At least one byte is passed over, so that a PSB at this very place cannot hold us.
            Err(error) => (sync_forward(rest, 1).unwrap_or(rest.len()), Err(error)),
        };
        self.at += size;
        Some(Item {
            offset,
            size,
            result,
        })
    }
}
