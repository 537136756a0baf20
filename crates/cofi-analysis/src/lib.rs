#![doc = include_str!("../README.md")]
//! # Parts
//!
//! [`Tally`] counts what the streams of a [session](cofi_session) did; [`Summary`] is what comes of it: instructions,
//! branches and system calls by thread, the functions that ran most, and where the trace was lost. [`check()`] finds nothing but the
//! gaps, by several threads at once.

mod block_index;
mod block_table;
mod block_texts;
mod calls;
mod check;
mod clock;
mod count;
mod counter;
mod coverage;
pub mod diff;
mod flow_state;
mod functions;
mod gap;
mod joined;
mod parallel;
mod path_bytes;
mod proof;
mod segments;
mod stretch;
mod summary;
mod survey;
mod tally;
#[cfg(test)]
mod tests;

pub use block_index::BlockIndex;
pub use block_texts::BlockTexts;
pub use calls::{
    BriefCall, ByTask, Call, CallDictionary, CallEnd, CallKind, CallMoment, CallNames, CallPart,
    CallParts, CallStates, CallTracer, CallVisitor, CallsInOrder, FinishedCall, FunctionId, Left,
    LocalCall, LocalSum, LocalVisitor, OpenCall, PartMark, PartVisitor, PieceMark, PiecePlaces,
    RanBlock, RanPath, SavedClock, StreamClock, StretchPlace, TracedPart, Unfit,
};
pub use check::{CheckOptions, StreamCheck, bytes_before_first_psb, check};
pub use count::{Counts, Gaps, Times};
pub use coverage::{
    CodeCounts, EdgeMap, FileCode, FileKey, FunctionCover, InsnCount, LineCount, SourceCover,
    SourceLines, SourcePlace,
};
pub use flow_state::FlowState;
pub use gap::{Gap, GapCause, Resumed};
pub use proof::Proof;
pub use segments::{SegmentStart, ended_with_segment, segments};
pub use summary::{FileCount, FunctionCount, SpaceCount, Summary, ThreadSummary};
pub use survey::{Chunk, survey, survey_calls};
pub use tally::{Tally, TallyGate};
