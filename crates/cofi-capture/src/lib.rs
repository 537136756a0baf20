#![doc = include_str!("../README.md")]
//! # Parts
//!
//! An engine ([`ptrace`], [`qemu`]) runs a program and tells an [`Observer`] what it did: every instruction, every way into the
//! kernel and back, every change of code. The [`record::Recorder`] is such an observer; it drives a trace unit for
//! each thread and writes a perf.data file.

pub mod child;
pub mod hardware;
mod machine;
mod missing;
mod notice;
mod observer;
pub mod ptrace;
pub mod qemu;
pub mod record;
mod runs;

pub use machine::{CodePage, MachineObserver, Moment, ProcessorState, SHARED_SPACE};
pub use missing::Missing;
pub use notice::{Change, Notice};
pub use observer::{
    Entry, Lane, Mapping, MappingKind, Observer, Pid, ProcessCause, SavedCode, Signal,
};
pub use runs::{Run, Runs, Step, Steps};
