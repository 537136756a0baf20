//! What is gathered for compression: TNT results (33.4.2.1), and the stack of call return addresses (33.4.2.2).

use cofi_packet::Ip;
use cofi_packet::intel::Tnt;

/// TNT results in their order, at most 63.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Results {
    /// A stop bit, and below it the results, the youngest in bit 0.
    stopped: u64,
}

impl Results {
    pub(crate) const fn new() -> Self {
        Self::zeros(0)
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.stopped == 1
    }

    #[inline]
    pub(crate) const fn len(self) -> u32 {
        63 - self.stopped.leading_zeros()
    }

    /// Whether there are at least `count`.
    #[inline]
    pub(crate) const fn has(self, count: u32) -> bool {
        self.stopped >= 1 << count
    }

    /// Whether there are at least as many as in `other`, which are all zero.
    #[inline]
    pub(crate) const fn reach(self, other: Self) -> bool {
        self.stopped >= other.stopped
    }

    /// So many, all zero.
    #[inline]
    pub(crate) const fn zeros(count: u32) -> Self {
        Self {
            stopped: 1 << count,
        }
    }

    /// Appends the low `count` bits of `results`; the others are zero.
    #[inline]
    pub(crate) const fn push(&mut self, count: u32, results: u64) {
        self.stopped = self.stopped << count | results;
    }

    /// Takes the oldest, as many as a packet holds; `None` when there are none.
    #[inline]
    pub(crate) const fn take<const MAX: usize>(&mut self) -> Option<Tnt<MAX>> {
        let len = self.len();
        let count = if len < MAX as u32 { len } else { MAX as u32 };
        let left = len - count;
        let taken = Tnt::from_bits(self.stopped >> left, count as usize);
        self.stopped = self.stopped & ((1 << left) - 1) | 1 << left;
        taken
    }
}

impl Results {
    /// Takes those that fill packets, the oldest first.
    #[inline]
    pub(crate) fn take_full<const MAX: usize>(
        &mut self,
    ) -> impl DoubleEndedIterator<Item = Tnt<MAX>> + use<MAX> {
        let (stopped, len) = (self.stopped, self.len() as usize);
        let rest = 1 << (len % MAX);
        self.stopped = stopped & (rest - 1) | rest;
        (1..=len / MAX).filter_map(move |i| Tnt::from_bits(stopped >> (len - i * MAX), MAX))
    }
}

impl Results {
    /// The results, the youngest in bit 0, below a stop bit.
    pub(crate) const fn stopped(self) -> u64 {
        self.stopped
    }

    /// The inverse of [`Self::stopped`]; `None` without a stop bit, or if there are more than `most` results.
    pub(crate) const fn from_stopped(stopped: u64, most: u32) -> Option<Self> {
        if stopped != 0 && 63 - stopped.leading_zeros() <= most {
            Some(Self { stopped })
        } else {
            None
        }
    }
}

impl Default for Results {
    fn default() -> Self {
        Self::new()
    }
}

/// The targets of TIPs that wait until their TNT packet is sent (33.4.2.3), in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deferred {
    targets: [Ip; Self::MOST],
    len: usize,
}

impl Deferred {
    /// So many wait at most ("any number of TIP packets may be accumulated").
    pub(crate) const MOST: usize = 16;

    pub(crate) const fn new() -> Self {
        Self {
            targets: [Ip(0); Self::MOST],
            len: 0,
        }
    }

    pub(crate) const fn clear(&mut self) {
        self.len = 0;
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Those that wait, the oldest first.
    pub(crate) fn targets(&self) -> &[Ip] {
        &self.targets[..self.len]
    }

    /// Adds one, and says whether there is no room for another.
    pub(crate) const fn push(&mut self, target: Ip) -> bool {
        self.targets[self.len] = target;
        self.len += 1;
        self.len == Self::MOST
    }

    /// Takes them all.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Ip> + use<> {
        let targets = self.targets;
        targets.into_iter().take(core::mem::take(&mut self.len))
    }
}

/// The next IPs of the 64 youngest near calls; older ones fall off the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReturnStack {
    entries: [Ip; Self::DEPTH],
    /// Index after the youngest entry.
    top: usize,
    len: usize,
}

impl ReturnStack {
    /// How many calls it remembers.
    pub const DEPTH: usize = 64;

    /// An empty stack.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: [Ip(0); Self::DEPTH],
            top: 0,
            len: 0,
        }
    }

    /// Forgets everything, as a PSB, an overflow and the clearing of PacketEn demand.
    pub const fn clear(&mut self) {
        self.len = 0;
    }

    /// The remembered next IPs, the oldest first.
    pub(crate) fn oldest_first(&self) -> impl ExactSizeIterator<Item = Ip> + '_ {
        let oldest = self.top + Self::DEPTH - self.len;
        (0..self.len).map(move |n| self.entries[(oldest + n) % Self::DEPTH])
    }

    /// A near call, which is to return to `next`, retired.
    #[inline]
    pub const fn push(&mut self, next: Ip) {
        self.entries[self.top] = next;
        self.top = (self.top + 1) % Self::DEPTH;
        if self.len < Self::DEPTH {
            self.len += 1;
        }
    }

    /// Where a near return is expected to go, if its call is remembered.
    #[must_use]
    #[inline]
    pub const fn expected(&self) -> Option<Ip> {
        match self.len {
            0 => None,
            _ => Some(self.entries[(self.top + Self::DEPTH - 1) % Self::DEPTH]),
        }
    }

    /// A near return retired: where it was expected to go, if its call is remembered.
    #[inline]
    pub const fn pop(&mut self) -> Option<Ip> {
        let expected = self.expected();
        if expected.is_some() {
            self.len -= 1;
            self.top = (self.top + Self::DEPTH - 1) % Self::DEPTH;
        }
        expected
    }
}

impl Default for ReturnStack {
    fn default() -> Self {
        Self::new()
    }
}
