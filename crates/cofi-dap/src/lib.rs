//! The Debug Adapter Protocol (DAP) over a recording: `cofi dap`.
//!
//! An editor starts it, talks to it by standard input and output, and steps through what ran: forward and back, by instruction, line and call, to
//! breakpoints on lines, functions and instructions. What a trace does not hold, registers and memory, is said not to be there.

mod adapter;
mod breakpoints;
mod message;

pub use adapter::{Open, Recorded, run};
pub use message::MessageError;
