//! perf.data: read and write, with Processor Trace and its sideband.
//!
//! perf.data is the file of Linux's `perf record`. This crate knows the part of it that a trace of the control flow
//! needs, and knows nothing of packets: those are bytes that it carries.
//!
//! - [`Writer`] writes a file that stock perf decodes (`perf script --itrace=i1i`), record by record, without keeping
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
//!
//! # Example
//!
//! ```
//! use cofi_packet::StreamOffset;
//! use cofi_perf::{Body, File, Mmap2, Options, PerfTime, PtConfig, Task, TimeConv, Writer};
//!
//! let mut bytes = std::io::Cursor::new(Vec::new());
//! let options = Options {
//!     config: PtConfig::default().into(),
//!     time: TimeConv { shift: 31, mult: 1 << 30, zero: 0 },
//!     tsc_ctc_ratio: (80, 1),
//!     max_nonturbo_ratio: 20,
//!     command_line: vec!["true".into()],
//!     subject: cofi_perf::Subject::Processes,
//! };
//! let task = Task { pid: 7, tid: 7 };
//! let code = Mmap2 {
//!     start: 0x40_1000, len: 0x1000, pgoff: 0x1000, device: (8, 1), inode: 99, prot: 5, path: b"/bin/true",
//! };
//! let mut writer = Writer::new(&mut bytes, options)?;
//! writer.comm(task, b"true", true, PerfTime(100))?;
//! writer.mmap2(task, &code, PerfTime(110))?;
//! writer.auxtrace(0, task.tid, StreamOffset(0), 300, &[0x02, 0x82])?;
//! writer.finished_round()?;
//! writer.finish()?;
//!
//! let bytes = bytes.into_inner();
//! let file = File::parse(&bytes)?;
//! let mapped = file.records().find_map(|record| match record.ok()?.body {
//!     Body::Mmap { path, .. } => Some(path),
//!     _ => None,
//! });
//! assert_eq!(mapped, Some(b"/bin/true".as_slice()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
    Attr, AuxFlags, Body, BuildId, File, IdEntry, Record, Records, RtitInfo, SampleId, ShortClock,
    TraceInfo,
};
pub use remark::{Missing, Remark, Seal, Signal};
pub use time::{PerfTime, TimeConv};
pub use writer::{
    IdPlace, KernelEvent, KernelTrace, KernelWriter, Mark, Mmap2, Options, StreamPlace, Subject,
    Task, Writer,
};
