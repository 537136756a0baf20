//! RET compression: the stack of call return addresses (33.4.2.2).

use cofi_packet::Ip;

/// The next IPs of the 64 youngest near calls; older ones fall off the end.
#[derive(Clone, Debug)]
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

    /// A near call, which is to return to `next`, retired.
    pub const fn push(&mut self, next: Ip) {
        self.entries[self.top] = next;
        self.top = (self.top + 1) % Self::DEPTH;
        if self.len < Self::DEPTH {
            self.len += 1;
        }
    }

    /// A near return retired: where it was expected to go, if its call is remembered.
    pub const fn pop(&mut self) -> Option<Ip> {
        if self.len == 0 {
            return None;
        }
        self.len -= 1;
        self.top = (self.top + Self::DEPTH - 1) % Self::DEPTH;
        Some(self.entries[self.top])
    }
}

impl Default for ReturnStack {
    fn default() -> Self {
        Self::new()
    }
}
