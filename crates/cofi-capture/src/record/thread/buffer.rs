//! What a trace unit has sent, until it is written to the file.

use super::Chunk;
use super::ring::Ring;
use super::seals::Seals;
use cofi_packet::{StreamOffset, Tsc, intel, rtit};
use cofi_unit::{Client, Clock, PhysAddr, rtit as unit};

/// Packet bytes that have not been written to the file yet.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) clock: u64,
    pub(super) bytes: Vec<u8>,
    /// Offset in the stream of `bytes[0]`.
    pub(super) start: u64,
    /// The clock when `bytes[0]` was sent.
    pub(super) start_tsc: u64,
    /// Index of the last PSB in `bytes` but for one at its start, and the clock when it was sent.
    pub(super) cut: Option<(usize, u64)>,
    /// What ran.
    pub(super) seals: Seals,
    /// Where packets wait for the end of the recording, if only the last are kept.
    pub(super) ring: Option<Ring>,
}

impl Buffer {
    /// Of a stream that goes on at `start`.
    pub(super) const fn new(clock: u64, start: u64) -> Self {
        Self {
            clock,
            bytes: Vec::new(),
            start,
            start_tsc: 0,
            cut: None,
            seals: Seals::new(start),
            ring: None,
        }
    }

    /// Hands everything on to the ring, if there is one. A PSB follows, or the stream ends here. A stretch ends too, so that a seal
    /// begins with each piece: those of the pieces that are kept cover all of them.
    #[cold]
    pub(super) fn hold(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        if self.bytes.is_empty() {
            return;
        }
        let end = self.start + self.bytes.len() as u64;
        self.seals.close(end);
        ring.push(Chunk {
            offset: StreamOffset(self.start),
            tsc: Tsc(self.start_tsc),
            bytes: core::mem::take(&mut self.bytes),
            seals: self.seals.take(),
        });
        (self.start, self.start_tsc, self.cut) = (end, self.clock, None);
    }
}

impl Client for Buffer {
    fn now(&mut self) -> Clock {
        Clock {
            tsc: self.clock,
            cycles: self.clock,
        }
    }

    // The unit's region stands for a trace port: what is stored there is taken away at once (33.2.7.1).
    fn store(&mut self, _address: PhysAddr, bytes: &[u8]) {
        if self.bytes.is_empty() {
            self.start_tsc = self.clock;
        } else if bytes == intel::PSB {
            self.cut = Some((self.bytes.len(), self.clock));
            self.seals.place(self.start + self.bytes.len() as u64);
            if let Some(ring) = &self.ring
                && self.bytes.len() >= ring.chunk
            {
                self.hold();
            }
        }
        match *bytes {
            // Most packets have one of these sizes: a call of `memcpy` takes longer than the copy.
            [a] => self.bytes.push(a),
            [a, b] => self.bytes.extend_from_slice(&[a, b]),
            [a, b, c] => self.bytes.extend_from_slice(&[a, b, c]),
            [a, b, c, d, e] => self.bytes.extend_from_slice(&[a, b, c, d, e]),
            _ => self.bytes.extend_from_slice(bytes),
        }
    }

    #[inline]
    fn store_short(&mut self, address: PhysAddr, word: u128, len: usize) {
        if self.bytes.is_empty() {
            return self.store(address, &word.to_le_bytes()[..len]);
        }
        // No PSB comes this way. How many bytes count does not make a copy of sixteen any longer.
        let end = self.bytes.len() + len;
        self.bytes.extend_from_slice(&word.to_le_bytes());
        self.bytes.truncate(end);
    }
}

impl unit::Client for Buffer {
    fn now(&mut self) -> Clock {
        Client::now(self)
    }

    fn store(&mut self, _address: PhysAddr, bytes: &[u8]) {
        if self.bytes.is_empty() {
            self.start_tsc = self.clock;
        }
        self.bytes.extend_from_slice(bytes);
        // Where a line ends, a PSB is stored in two parts.
        if bytes.last() == Some(&0)
            && let Some(at) = self.bytes.len().checked_sub(rtit::PSB.len())
            && at > 0
            && self.bytes.ends_with(&rtit::PSB)
        {
            self.cut = Some((at, self.clock));
        }
    }
}
