//! The law at the heart of the project, as a test bench: decode(trace(execution)) = execution.
//!
//! [`Program`] is a random control-flow graph in real machine code; [`run`] walks it at random, feeds what happens to a
//! [`cofi_unit::Unit`] and keeps the truth beside the trace. The tests of this crate decode the trace with
//! `cofi-flow` and compare. The unit and the decoder meet nowhere else.

mod execution;
pub mod machine;
mod program;
pub mod rtit;
mod units;

pub use execution::{Config, Execution, Step, run};
pub use program::{Block, End, Program};
use units::Units;

/// A small deterministic generator (SplitMix64): the same seed gives the same program and walk everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`, which must not be zero.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}
