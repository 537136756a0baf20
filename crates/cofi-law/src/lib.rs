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

pub use cofi_test::Rng;
pub use execution::{Config, Execution, Step, run};
pub use program::{Block, End, Program};
use units::Units;
