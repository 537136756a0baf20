//! How fast an internal buffer drains by itself.

use crate::client::Clock;

/// So many bytes in so many core cycles, and up to when that has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drain {
    bytes: u32,
    cycles: u32,
    /// Up to these core cycles what drains by itself has drained.
    pub(crate) until: u64,
}

impl Drain {
    /// With zero cycles nothing drains by itself.
    pub(crate) const fn new(bytes: u32, cycles: u32) -> Self {
        Self {
            bytes,
            cycles,
            until: 0,
        }
    }

    /// The core cycle in which the next bytes can drain.
    pub(crate) const fn next(&self) -> u64 {
        match self.cycles {
            0 => u64::MAX,
            cycles => self.until.saturating_add(cycles as u64),
        }
    }

    /// So many bytes can drain by now.
    pub(crate) fn due(&mut self, now: Clock) -> usize {
        if self.cycles == 0 {
            return 0;
        }
        let cycles = u64::from(self.cycles);
        let passed = now.cycles.saturating_sub(self.until);
        // Who looks often need not wait for a division.
        let steps = match passed.checked_sub(cycles) {
            None => return 0,
            Some(more) if more < cycles => 1,
            Some(_) => passed / cycles,
        };
        self.until += steps * cycles;
        usize::try_from(steps.saturating_mul(self.bytes.into())).unwrap_or(usize::MAX)
    }
}
