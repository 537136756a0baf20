#![doc = include_str!("../README.md")]
//! # Parts
//!
//! [`CallExporter`] is a [`CallVisitor`](cofi_analysis::CallVisitor). It puts the calls of each thread in order and shows them to a format as one
//! timeline a thread, on which calls nest. A format either keeps what each distinct stack weighs ([`StackTree`]), or writes what it is shown
//! at once. So memory grows with the depth of the calls, or with the number of distinct stacks, and not with the number of calls.

mod formats;
mod frames;
mod open;
mod timeline;
mod tree;

pub use formats::{ExportFormat, open};
pub use frames::{Frame, FrameId, Frames};
pub use timeline::{CallExporter, Exporter, Track};
pub use tree::StackTree;

/// What a call weighs, and along what a timeline runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Nanoseconds of perf's clock.
    Time,
    /// Instructions of the thread.
    Instructions,
}

impl Weight {
    /// One unit, in the plural.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Time => "nanoseconds",
            Self::Instructions => "instructions",
        }
    }
}
