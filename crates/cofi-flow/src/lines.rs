//! Lines of RTIT output put back in order, for collectors that see them as they are written (2.3.2).
//!
//! RTIT writes its packets in lines of 64 bytes, and a younger line may be written before an older one. Who reads memory after a drain (a
//! write to RTIT_CTL) need not care; who sees the writes themselves, as a trace hub does, must put them back in order:
//!
//! ```
//! use cofi_flow::lines::{Lines, Piece};
//!
//! let mut stream = Vec::new();
//! let mut lines = Lines::new(0xfdc0_0000, 0xff, 0);
//! for (line, byte) in [(1, b'b'), (0, b'a'), (2, b'c')] {
//!     lines
//!         .write(0xfdc0_0000 + 64 * line, &[byte; 64], |piece| match piece {
//!             Piece::Bytes(bytes) => stream.extend_from_slice(bytes),
//!             Piece::Gap { .. } => unreachable!("every line has come"),
//!         })
//!         .unwrap();
//! }
//! assert_eq!((stream.len(), stream[0], stream[64], stream[128]), (192, b'a', b'b', b'c'));
//! ```
//!
//! # What is relied upon
//!
//! Of a region of n lines, before a line is seen up to n - 1 younger ones may be: the others of the same iteration, and those before it of
//! the next. So at any time there is only one iteration of which a line that comes can be. Writes may hold parts of lines, since fences send on what
//! there is; together they are contiguous and do not overlap, as long as nobody writes RTIT_OFFSET ([`Lines::restart`]).
//!
//! # What cannot be told
//!
//! A line that never comes looks like one that comes late, and what is written in its place in the next iteration is taken for it. Where the trace
//! hub promises more than 2.3.2 does, say so with [`Lines::at_most`]: if fewer than half of the region's lines can come before a line, one
//! that never comes is always told as a gap, as soon as more younger ones have come. Whole iterations that are missing leave no sign, so a gap may be
//! longer by any number of them.

use alloc::collections::BTreeMap;

/// How long a line is.
const LINE: u64 = 64;

/// What comes next in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// Bytes that were not seen; the packet in which they begin is cut.
    Gap {
        /// How many, if no whole iteration is missing.
        bytes: u64,
    },
}

/// A write that is none of RTIT's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutsideError {
    /// The address of the first byte that lies outside of the output region.
    pub address: u64,
}

impl core::fmt::Display for OutsideError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "{:#x} lies outside of the RTIT output region",
            self.address
        )
    }
}

impl core::error::Error for OutsideError {}

/// What has been seen of a line.
#[derive(Clone, Debug)]
struct Held {
    bytes: [u8; LINE as usize],
    /// A bit for each byte that is there.
    there: u64,
}

/// Puts lines in order. It holds no more than the output region does.
#[derive(Clone, Debug)]
pub struct Lines {
    base: u64,
    /// How many lines the region has.
    count: u64,
    /// How many younger lines may come before a line.
    late: u64,
    /// The byte that comes next: a count of all bytes since the region's start was first written.
    next: u64,
    /// By the number of the line, counted likewise.
    held: BTreeMap<u64, Held>,
}

impl Lines {
    /// For the region that RTIT_BASE_ADDR and RTIT_LIMIT_MASK describe, RTIT_OFFSET being `offset` when tracing began.
    ///
    /// Bits of `base` that are set in `mask` count as zero (2.3). Of `mask`, bits 5:0 count as set; bits 31:22, and those above a zero, as
    /// clear.
    #[must_use]
    pub const fn new(base: u64, mask: u32, offset: u32) -> Self {
        let mask = mask as u64 & 0x3f_ffff | (LINE - 1);
        let mask = (1 << mask.trailing_ones()) - 1;
        let count = (mask + 1) / LINE;
        Self {
            base: base & !mask,
            count,
            late: count - 1,
            next: offset as u64 & mask,
            held: BTreeMap::new(),
        }
    }

    /// No younger line comes before a line, other than the `lines` that follow it. More than 2.3.2 allows is taken as that.
    #[must_use]
    pub fn at_most(mut self, lines: u64) -> Self {
        self.late = lines.min(self.count - 1);
        self
    }

    /// A write was seen, of a line or a part of one. `sink` is given what is complete now, in order; mostly that is this very write.
    ///
    /// # Errors
    /// [`OutsideError`] for a write outside of the region, of which nothing is taken.
    pub fn write(
        &mut self,
        address: u64,
        bytes: &[u8],
        mut sink: impl FnMut(Piece<'_>),
    ) -> Result<(), OutsideError> {
        let size = self.count * LINE;
        let from = address.wrapping_sub(self.base);
        if from >= size {
            return Err(OutsideError { address });
        }
        if bytes.len() as u64 > size - from {
            let address = self.base.wrapping_add(size);
            return Err(OutsideError { address });
        }
        let (mut from, mut rest) = (from, bytes);
        while !rest.is_empty() {
            let here = rest.len().min((LINE - from % LINE) as usize);
            let (part, behind) = rest.split_at(here);
            self.part(from / LINE, from % LINE, part, &mut sink);
            (from, rest) = (from + here as u64, behind);
        }
        Ok(())
    }

    /// Software has written RTIT_OFFSET, or nothing more comes: `sink` is given all that is held, and what is missing in between is missing.
    pub fn restart(&mut self, offset: u32, mut sink: impl FnMut(Piece<'_>)) {
        self.flush(&mut sink);
        self.next = u64::from(offset) & (self.count * LINE - 1);
    }

    /// Nothing more comes.
    pub fn finish(mut self, mut sink: impl FnMut(Piece<'_>)) {
        self.flush(&mut sink);
    }

    fn flush(&mut self, sink: &mut impl FnMut(Piece<'_>)) {
        if let Some((line, held)) = self.held.last_key_value() {
            let end = (line + 1) * LINE - u64::from(held.there.leading_zeros());
            self.give_up(end, sink);
        }
    }

    /// `bytes` were written to the line with this index, from `offset` on.
    fn part(&mut self, index: u64, offset: u64, bytes: &[u8], sink: &mut impl FnMut(Piece<'_>)) {
        let head = self.next / LINE;
        let ahead = (index + self.count - head % self.count) % self.count;
        let mut line = head + ahead;
        let there = (u64::MAX >> (LINE - bytes.len() as u64)) << offset;
        let is_given = line * LINE + offset < self.next;
        let held = self.held.get(&line).map_or(0, |held| held.there);
        if is_given || held & there != 0 {
            // This part has been seen, so it is of the next iteration; and nothing older will come.
            line += self.count;
        }
        if line > head + self.late {
            self.give_up((line - self.late) * LINE, sink);
        }
        if line * LINE + offset == self.next && !self.held.contains_key(&line) {
            self.next += bytes.len() as u64;
            sink(Piece::Bytes(bytes));
        } else {
            let held = self.held.entry(line).or_insert(Held {
                bytes: [0; LINE as usize],
                there: 0,
            });
            held.there |= there;
            held.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        self.give(sink);
    }

    /// Gives out what is complete.
    fn give(&mut self, sink: &mut impl FnMut(Piece<'_>)) {
        while let Some(mut entry) = self.held.first_entry() {
            let (line, offset) = (self.next / LINE, self.next % LINE);
            if *entry.key() != line {
                return;
            }
            let held = entry.get_mut();
            let len = (held.there >> offset).trailing_ones() as usize;
            if len == 0 {
                return;
            }
            sink(Piece::Bytes(&held.bytes[offset as usize..][..len]));
            self.next += len as u64;
            if held.there >> offset >> (len - 1) == 1 {
                entry.remove();
            }
        }
    }

    /// Gives out all that stands before `end`: what of it is missing will not come.
    fn give_up(&mut self, end: u64, sink: &mut impl FnMut(Piece<'_>)) {
        loop {
            self.give(sink);
            if self.next >= end {
                return;
            }
            let (head, offset) = (self.next / LINE, self.next % LINE);
            let seen = self
                .held
                .iter()
                .map(|(line, held)| {
                    let skipped = if *line == head { offset } else { 0 };
                    let there = held.there >> skipped;
                    line * LINE + skipped + u64::from(there.trailing_zeros())
                })
                .next();
            let to = seen.map_or(end, |seen| seen.min(end));
            let bytes = to - self.next;
            sink(Piece::Gap { bytes });
            self.next = to;
        }
    }
}

#[cfg(test)]
mod tests;
