#![doc = include_str!("../README.md")]
//! # Parts
//!
//! - [`Writer`] writes a file record by record, without keeping
//!   them in memory.
//! - [`File`] reads a file that lies in memory or is mapped: its events ([`Attr`]), features, and [`Records`].
//! - [`PtConfig`] is the trace's configuration in the form of Linux's `intel_pt` PMU, as bits and as text; [`RtitConfig`] that
//!   of RTIT, of which Linux and perf know nothing ([`TraceInfo::rtit`]).
//! - [`TimeConv`] is the one place where the timestamp counter becomes perf's time, and back.
//!
//! # What reading promises
//!
//! No input panics, hangs or takes memory out of proportion to its size: packets and paths are slices of the
//! input (or of what it holds compressed), whatever a size field claims. A fault is an [`Error`] with its file offset and the value found. What is
//! complete before a fault is read, and so is what follows it wherever its place is known:
//!
//! - [`File::parse`] fails only when the header or the events cannot be read.
//! - [`File::problems`] tells what is wrong with the file as a whole: cut off, not finished, features missing.
//! - [`Records`] yields an error in the place of each record that cannot be read.
//! - An AUXTRACE record whose payload is cut off is yielded with what is there; its `stated` size tells.
//!
//! # What the caller must know
//!
//! - Records are in file order, which is not that of time: sort them (stably) by [`SampleId::time`]. Records without
//!   a time, or with the time 0, describe what was there before.
//! - A stream of packets is in pieces ([`Body::Auxtrace`]): join those of the same thread or CPU by their offsets. perf
//!   pads a piece to a multiple of eight bytes, so that up to seven zeros may overlap the next piece; longer overlaps are
//!   those of snapshots.
//! - Files written to a pipe (`perf record -o -`) and compressed ones (`perf record -z`) are read like others. What is
//!   compressed is decompressed when the file is opened, up to a limit, and its records come where the first of the
//!   compressed ones stands.
//! - Files by a big-endian machine are not supported: the error says so.

mod config;
mod constants;
mod error;
mod reader;
mod remark;
mod time;
mod writer;

pub use config::{ConfigError, PtConfig, RtitConfig, TraceConfig};
pub use constants::{CpuMode, Feature, Misc, RecordKind, SampleType};
pub use error::{Error, ErrorKind, WriteError};
pub use reader::{
    Attr, AuxFlags, Body, BuildIdEntry, File, IdEntry, Record, Records, RtitInfo, SampleId,
    ShortClock, TraceInfo,
};
pub use remark::{MissingRemark, Remark, Seal, SignalRemark};
pub use time::{PerfTime, TimeConv};
pub use writer::{
    IdPlace, KernelEvent, KernelTrace, KernelWriter, Mark, Mmap2, StreamPlace, Subject, Task,
    Writer, WriterOptions,
};
