//! The ptrace engine: an unmodified program, stopped at every few branches or at every instruction, told to an observer.
//!
//! Works on any x86-64 Linux without privileges. Where debug registers work, a stop tells which way was taken through a tree of instructions;
//! what such a stop cannot tell for sure is stepped.

mod block;
mod branch_target;
mod breakpoints;
mod code;
mod cursor;
mod engine;
pub(crate) mod launch;
pub(crate) mod maps;
mod mend;
mod plan;
mod probe_breakpoints;
mod sigtrap;
mod special;
mod stop;
pub(crate) mod sys;
mod syscall;
mod thread;

pub use block::{BlockStep, block_step};
pub use engine::{run, run_by};
pub(crate) use maps::{is_shared as is_shared_mapping, parse as parse_mapping};
pub use mend::take_breakpoints_away;

pub use launch::{Command, EngineError, Options, Outcome, Stops, Target};
pub use probe_breakpoints::{BreakpointStop, breakpoint_stop, possible_stops};
