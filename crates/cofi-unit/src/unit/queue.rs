//! Bytes on their way from one end to the other.

use alloc::vec::Vec;

/// A queue whose bytes lie one behind the other, so that they leave in one piece.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    bytes: Vec<u8>,
    /// Those before have left.
    start: usize,
}

impl Queue {
    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.bytes.len().saturating_sub(self.start)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The oldest `count` bytes leave, which are there.
    #[inline]
    pub(super) fn remove(&mut self, count: usize) {
        self.start += count;
        if self.start >= self.bytes.len() {
            self.clear();
        } else if self.start > self.bytes.len() / 2 {
            // No more bytes are moved than have left.
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }
}

/// What has left makes no difference.
impl PartialEq for Queue {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Queue {}
