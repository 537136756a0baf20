//! The world around the unit: clocks, and a collector that puts lines in order.

use cofi_flow::lines::{Lines, Piece};
use cofi_unit::rtit::Client;
use cofi_unit::{Clock, PhysAddr};

/// The ratio of the TSC's frequency to the bus clock.
pub const TSC_RATIO: u8 = 20;

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) clock: Clock,
    pub(super) trace: Vec<u8>,
    /// Core clock to bus clock.
    pub(super) ratio: u8,
    /// What is left of a core cycle, in parts of [`TSC_RATIO`].
    rest: u64,
    /// None where addresses are not looked at.
    pub(super) lines: Option<Lines>,
    /// The writes of lines that did not come in order.
    pub(super) gaps: usize,
}

impl World {
    pub(super) fn new(start: u64, lines: Option<Lines>) -> Self {
        let clock = Clock {
            tsc: start,
            cycles: start,
        };
        Self {
            clock,
            trace: Vec::new(),
            ratio: TSC_RATIO,
            rest: 0,
            lines,
            gaps: 0,
        }
    }

    pub(super) fn pass(&mut self, ticks: u64) {
        self.clock.tsc += ticks;
        let parts = self.rest + ticks * u64::from(self.ratio);
        self.clock.cycles += parts / u64::from(TSC_RATIO);
        self.rest = parts % u64::from(TSC_RATIO);
    }

    /// Time passes while the core's clock stands still.
    pub(super) fn sleep(&mut self, ticks: u64) {
        self.clock.tsc += ticks;
    }

    /// Software has written RTIT_OFFSET.
    pub(super) fn restart(&mut self, offset: u32) {
        let (trace, gaps) = (&mut self.trace, &mut self.gaps);
        if let Some(lines) = &mut self.lines {
            lines.restart(offset, |piece| collect(trace, gaps, piece));
        }
    }
}

fn collect(trace: &mut Vec<u8>, gaps: &mut usize, piece: Piece<'_>) {
    match piece {
        Piece::Bytes(bytes) => trace.extend(bytes),
        Piece::Gap { .. } => *gaps += 1,
    }
}

impl Client for World {
    fn now(&mut self) -> Clock {
        self.clock
    }
    fn store(&mut self, address: PhysAddr, bytes: &[u8]) {
        let (trace, gaps) = (&mut self.trace, &mut self.gaps);
        match &mut self.lines {
            Some(lines) => lines
                .write(address.0, bytes, |piece| collect(trace, gaps, piece))
                .expect("the unit writes to its region only"),
            None => trace.extend(bytes),
        }
    }
}
