#![doc = include_str!("../README.md")]
//! # Parts
//!
//! An [`Index`] is kept in a file beside the recording ([`Index::save`]), and belongs to this recording and this code alone ([`Fingerprint`](cofi_session::Fingerprint)).
//!
//! An [`Explorer`] answers questions: it decodes the few parts that the index cannot answer for.

mod build;
mod calls;
mod clock;
mod collect;
mod counts;
mod explore;
mod index;
mod journal;
mod local;
mod row;
mod stacks;
mod store;
mod sums;

pub use build::{IndexOptions, Partial};
pub use calls::FlameCall;
pub use cofi_image::SourceLine;
pub use explore::{
    Code, CodeInsn, CodeLine, EventInfo, EventKind, Events, Explorer, ExplorerPool, Flame,
    FunctionTable, Hit, InsnInfo, Merged, MergedNode, Neighbours, PacketInfo, PlaceInfo,
    PlaceRange, StackFrame, Step, Target,
};
pub use index::{FunctionInfo, Index};
pub use row::{Axis, FunctionNumber, GapSpan, Row, StripBin, StripSum};
pub use store::{IndexError, Origin};
pub use sums::FunctionSum;
