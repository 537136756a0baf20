//! The world around the unit: a clock, and memory that keeps everything.

use cofi_packet::Tsc;
use cofi_unit::{Client, Clock, PhysAddr};

#[derive(Clone, Debug, Default)]
pub(super) struct World {
    pub(super) clock: Clock,
    pub(super) trace: Vec<u8>,
}

impl World {
    pub(super) fn pass(&mut self, ticks: u64) {
        self.clock.tsc += ticks;
        self.clock.cycles += ticks;
    }

    /// Time passes while the processor sleeps.
    pub(super) fn sleep(&mut self, ticks: u64) {
        self.clock.tsc += ticks;
    }

    #[allow(dead_code)]
    pub(super) fn tsc(&self) -> Tsc {
        Tsc(self.clock.tsc)
    }
}

impl Client for World {
    fn now(&mut self) -> Clock {
        self.clock
    }
    fn store(&mut self, _address: PhysAddr, bytes: &[u8]) {
        self.trace.extend(bytes);
    }
}
