#![doc = include_str!("../README.md")]
//! # Parts
//!
//! [`Session::new`] reads the file; [`Session::decode`] yields the [flow](cofi_flow) of a stream.
//! A `Session` can be shared between threads, each of which decodes another stream, or another part of the same.
//!
//! # The recorder's convention
//!
//! Code that no file holds (generated at run time, or the kernel's own vDSO) is saved into files in the folder
//! `FILE.code` beside the trace FILE and mapped from there. When such a path is gone because the trace was moved, its
//! last name is looked for in the folder beside the trace: [`SessionOptions::beside`]. The code of an earlier trace, FILE.old,
//! is in `FILE.code.old`.

mod apply_sideband;
mod aux_records;
mod bpf;
mod bytes;
mod clock;
mod code;
#[cfg(test)]
mod code_tests;
pub mod compact;
mod error;
mod events;
mod fingerprint;
mod flow;
mod lldb;
mod overlap;
mod owned;
mod parts;
mod perf;
mod recording;
mod sched;
mod seals;
mod session;
mod signal;
mod stream;
#[cfg(test)]
mod tests;
mod timeline;

pub use bytes::{FileBytes, JoinPieces, OpenFile};
pub use code::{CodeOptions, PackedCode, TraceFile};
pub use cofi_perf::Task;
pub use error::{Diagnostic, SessionError};
pub use events::StreamEvents;
pub use fingerprint::Fingerprint;
pub use flow::ThreadFlow;
pub use owned::{OwnedFlow, OwnedSession};
pub use recording::{Missing, Recording};
pub use seals::SealCount;
pub use session::{FileFormat, Session, SessionOptions, Stream};
pub use signal::{Signal, Signals};
pub use stream::StreamKey;
