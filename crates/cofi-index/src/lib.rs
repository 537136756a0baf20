//! The index of a recording, and what can be asked with it.
//!
//! A trace can only be read from front to back. An [`Index`] is what one reading leaves behind, so that any place of a trace of 10^9 instructions is
//! at hand: the parts that can be decoded apart, with how many instructions ran before and which calls are open; which functions ran in each;
//! how time goes on; the longest calls. It is kept in a file beside the recording ([`Index::save`]), and belongs to this recording and this code
//! alone ([`Fingerprint`]).
//!
//! An [`Explorer`] answers questions: it decodes the few parts that the index cannot answer for.

mod build;
mod calls;
mod clock;
mod collect;
mod explore;
mod index;
mod row;
mod stacks;
mod store;
mod sums;

pub use build::{IndexOptions, Partial};
pub use calls::FlameCall;
pub use cofi_image::SourceLine;
pub use explore::{
    Code, CodeInsn, CodeLine, EventInfo, EventKind, Events, Explorer, ExplorerPool, Flame,
    FunctionTable, Hit, InsnInfo, Merged, MergedNode, Neighbours, PacketInfo, PlaceInfo, Places,
    StackFrame, Step, Target,
};
pub use index::{FunctionInfo, Index};
pub use row::{Axis, FunctionNumber, GapSpan, Row, StripBin, StripSum};
pub use store::{Fingerprint, IndexError, Origin};
pub use sums::FunctionSum;
