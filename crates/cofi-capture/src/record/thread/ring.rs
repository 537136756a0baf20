//! A flight recorder's packets: the last of a stream, which wait in memory until the recording ends.

use super::Chunk;
use cofi_packet::StreamOffset;
use cofi_perf::{PerfTime, Task};
use std::collections::VecDeque;

/// Pieces are no larger than it takes to forget them one by one.
const LARGEST: u64 = 1 << 20;
/// Nor are they smaller, as each has an AUXTRACE record.
const SMALLEST: u64 = 1 << 10;

/// How far a stream had got at a time: an AUX record that waits with the packets it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    pub(crate) task: Task,
    pub(crate) offset: StreamOffset,
    pub(crate) size: u64,
    pub(crate) flags: u64,
    pub(crate) time: PerfTime,
}

impl Growth {
    /// What of it is behind `start`: no record promises what is not kept.
    fn from(self, start: u64) -> Option<Self> {
        let end = self.offset.0 + self.size;
        let offset = self.offset.0.max(start);
        let size = end.checked_sub(offset).filter(|size| *size > 0)?;
        let offset = StreamOffset(offset);
        Some(Self {
            offset,
            size,
            ..self
        })
    }
}

/// The last `size` bytes of a stream, and as many before them as it takes to begin at a PSB.
#[derive(Debug)]
pub(crate) struct Ring {
    size: u64,
    /// The stream is cut at the first PSB behind so many bytes.
    pub(super) chunk: usize,
    chunks: VecDeque<Chunk>,
    /// How many bytes they have.
    held: u64,
    growths: VecDeque<Growth>,
    /// Before this offset everything has been dropped.
    start: u64,
}

impl Ring {
    pub(crate) fn new(size: u64) -> Self {
        Self {
            size,
            chunk: (size / 8).clamp(SMALLEST, LARGEST) as usize,
            chunks: VecDeque::new(),
            held: 0,
            growths: VecDeque::new(),
            start: 0,
        }
    }

    /// Takes in what comes next, which begins at a PSB, and drops what is too old.
    pub(super) fn push(&mut self, mut chunk: Chunk) {
        chunk.bytes.shrink_to_fit();
        self.held += chunk.bytes.len() as u64;
        self.chunks.push_back(chunk);
        while let Some(first) = self.chunks.front()
            && self.held - first.bytes.len() as u64 >= self.size
        {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let Some(first) = self.chunks.pop_front() else {
            return;
        };
        let len = first.bytes.len() as u64;
        self.held -= len;
        self.start = first.offset.0 + len;
        while let Some(growth) = self.growths.pop_front() {
            if let Some(rest) = growth.from(self.start) {
                self.growths.push_front(rest);
                break;
            }
        }
    }

    /// Drops the oldest until no more than `room` bytes are left; how many are dropped.
    pub(crate) fn shrink(&mut self, room: u64) -> u64 {
        let before = self.held;
        while self.held > room {
            self.drop_first();
        }
        before - self.held
    }

    /// How many bytes of packets are held.
    pub(crate) const fn held(&self) -> u64 {
        self.held
    }

    /// How many bytes of a file they take at most, with the records about them.
    pub(crate) fn size_in_file(&self) -> u64 {
        let records = self.chunks.len() + self.growths.len();
        self.held + 256 * (1 + records as u64)
    }

    /// The stream has got so far.
    pub(crate) fn grew(&mut self, growth: Growth) {
        self.growths.extend(growth.from(self.start));
    }

    /// How many bytes of the stream are not kept: all before this offset.
    pub(crate) const fn dropped(&self) -> u64 {
        self.start
    }

    /// The oldest piece.
    pub(crate) fn first(&self) -> Option<&Chunk> {
        self.chunks.front()
    }

    /// The oldest piece has been written.
    pub(crate) fn first_written(&mut self) {
        if let Some(first) = self.chunks.pop_front() {
            self.held -= first.bytes.len() as u64;
        }
    }

    /// The oldest AUX record.
    pub(crate) fn first_growth(&self) -> Option<&Growth> {
        self.growths.front()
    }

    /// It has been written.
    pub(crate) fn growth_written(&mut self) {
        self.growths.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofi_packet::Tsc;

    fn growth(offset: u64, size: u64) -> Growth {
        Growth {
            task: Task { pid: 1, tid: 1 },
            offset: StreamOffset(offset),
            size,
            flags: 0,
            time: PerfTime(offset),
        }
    }

    fn push(ring: &mut Ring, offset: u64, len: usize) {
        ring.push(Chunk {
            offset: StreamOffset(offset),
            tsc: Tsc(1),
            bytes: vec![0; len],
            seals: Vec::new(),
        });
    }

    #[test]
    fn the_last_bytes_are_kept_and_no_record_promises_more() {
        let mut ring = Ring::new(100);
        ring.grew(growth(0, 30));
        push(&mut ring, 0, 60);
        push(&mut ring, 60, 60);
        // Without the first piece it would be less than was asked for.
        assert_eq!((ring.held, ring.dropped()), (120, 0));
        ring.grew(growth(30, 100));
        push(&mut ring, 120, 60);
        assert_eq!((ring.held, ring.dropped()), (120, 60));
        assert_eq!(
            ring.first_growth(),
            Some(&Growth {
                time: PerfTime(30),
                ..growth(60, 70)
            })
        );
        assert_eq!(
            ring.first().map(|chunk| chunk.offset),
            Some(StreamOffset(60))
        );
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let mut ring = Ring::new(1000);
        for at in 0..10 {
            push(&mut ring, at * 50, 50);
        }
        assert_eq!(ring.shrink(120), 400);
        assert_eq!((ring.held, ring.dropped()), (100, 400));
        assert_eq!(ring.shrink(0), 100);
        assert_eq!((ring.first(), ring.held), (None, 0));
        assert_eq!(ring.shrink(0), 0);
    }
}
