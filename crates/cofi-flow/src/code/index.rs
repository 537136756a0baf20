//! Finding decoded code by its address.

use alloc::vec::Vec;

use cofi_packet::{ExecMode, Ip};

/// No number.
pub(crate) const NONE: u32 = u32::MAX;

/// Open addressing by address and mode. What is found are numbers; the keys are kept by whoever gave the numbers.
///
/// Invariant: the numbers in it are 0 to `count` - 1, each once; its size is a power of two, at most half of it used.
#[derive(Debug, Default)]
pub(crate) struct Index {
    slots: Vec<u32>,
    count: u32,
}

impl Index {
    pub(crate) fn clear(&mut self) {
        self.slots.fill(NONE);
        self.count = 0;
    }

    /// Forgets all numbers from `count` on; `key` gives the key of a number.
    pub(crate) fn truncate(&mut self, count: u32, key: impl Fn(u32) -> (Ip, ExecMode)) {
        self.slots.fill(NONE);
        self.count = self.count.min(count);
        for id in 0..self.count {
            self.place(id, key(id));
        }
    }

    /// How much memory it uses.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<u32>()
    }

    fn slot(&self, (ip, mode): (Ip, ExecMode)) -> usize {
        let key = ip.0 ^ (u64::from(mode.bits()) << 58);
        // The high bits count, too: a trace may have addresses that differ in nothing else.
        let key = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (key ^ (key >> 29)) as usize & (self.slots.len() - 1)
    }

    /// The number with this key; `key` gives that of a number.
    #[inline]
    pub(crate) fn find(
        &self,
        ip: Ip,
        mode: ExecMode,
        key: impl Fn(u32) -> Option<(Ip, ExecMode)>,
    ) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let mut slot = self.slot((ip, mode));
        loop {
            let id = self.slots[slot];
            if key(id)? == (ip, mode) {
                return Some(id);
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// Takes in the next number, which is `id`.
    pub(crate) fn insert(&mut self, id: u32, key: impl Fn(u32) -> (Ip, ExecMode)) {
        debug_assert_eq!(id, self.count, "numbers come one after the other");
        if self.slots.len() <= self.count as usize * 2 {
            let len = (self.slots.len() * 2).max(1 << 12);
            self.slots.clear();
            self.slots.resize(len, NONE);
            for id in 0..self.count {
                self.place(id, key(id));
            }
        }
        self.place(id, key(id));
        self.count += 1;
    }

    fn place(&mut self, id: u32, key: (Ip, ExecMode)) {
        let mut slot = self.slot(key);
        while self.slots[slot] != NONE {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = id;
    }
}
