//! The world around the unit: a clock, and memory that keeps everything.

use cofi_packet::Tsc;
use cofi_unit::{Client, Clock, PhysAddr};

#[derive(Clone, Debug, Default)]
pub(super) struct World {
    pub(super) clock: Clock,
    pub(super) trace: Vec<u8>,
    /// Core:bus ratio.
    pub(super) ratio: u8,
    /// What is left of a core cycle, in parts of [`TSC_RATIO`].
    rest: u64,
}

/// The ratio of the TSC's frequency to the bus clock.
pub(super) const TSC_RATIO: u8 = 20;

impl World {
    pub(super) fn pass(&mut self, ticks: u64) {
        self.clock.tsc += ticks;
        let parts = self.rest + ticks * u64::from(self.ratio);
        self.clock.cycles += parts / u64::from(TSC_RATIO);
        self.rest = parts % u64::from(TSC_RATIO);
    }

    /// Time passes while the processor's clocks stand still.
    pub(super) fn sleep(&mut self, ticks: u64) {
        self.clock.tsc += ticks;
    }

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
