//! What a trace was about.

use std::path::PathBuf;

use cofi_session::{Session, StreamKey, Task};

use crate::count::{Counts, Gaps, Times};
use crate::proof::Proof;
use crate::tally::Tally;

/// What a trace was about.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// All threads together.
    pub total: Counts,
    /// Bytes of packets in all streams.
    pub trace_bytes: u64,
    /// What proves that the trace was decoded as it ran.
    pub proof: Proof,
    /// Each stream; of a processor's stream, each thread that ran in it.
    pub threads: Vec<ThreadSummary>,
    /// The functions that were executed, the one with the most instructions of its own first.
    pub functions: Vec<FunctionCount>,
    /// The address spaces that packets tell of, the one with the most instructions first. In a trace without such packets one
    /// that is not known.
    pub spaces: Vec<SpaceCount>,
    /// The files whose code was executed, the one with the most instructions first.
    pub files: Vec<FileCount>,
}

/// One thread in one stream.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ThreadSummary {
    /// The stream.
    pub stream: StreamKey,
    /// The thread and its process.
    pub task: Task,
    /// What the thread was called last.
    pub comm: Option<String>,
    /// What it did.
    pub counts: Counts,
    /// Bytes of the stream; zero for all but the first thread of a processor's stream.
    pub trace_bytes: u64,
    /// When it was traced.
    pub times: Times,
    /// Where its flow is missing.
    pub gaps: Gaps,
}

impl ThreadSummary {
    /// Bytes of trace for 1,000 instructions; none if there were no instructions.
    #[must_use]
    pub fn bytes_per_1000(&self) -> Option<f64> {
        per_1000(self.trace_bytes, self.counts.instructions)
    }
}

/// A function's own instructions.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct FunctionCount {
    /// Its name; code outside of any function goes by the name of its file.
    pub name: String,
    /// The file its code is in, `[generated]` for code that the process made and the recorder saved, or `[kernel]` or `[MODULE]` where the kernel's own list names it; none for code that is in
    /// no mapping.
    #[serde(with = "crate::path_bytes::optional")]
    pub file: Option<PathBuf>,
    /// Its first address in the file's own terms; none for code outside of any function, and for generated code, which may have
    /// several pieces.
    pub address: Option<u64>,
    /// Whether it is a function; else it is code outside of any.
    pub is_named: bool,
    /// How many instructions of it were executed.
    pub instructions: u64,
    /// How many times its first instruction was.
    pub entries: u64,
}

/// A file's executed instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileCount {
    /// The file, as its mapping names it; `[kernel]` or `[MODULE]` for what the kernel's own list names.
    pub file: PathBuf,
    /// How many of its instructions were executed.
    pub instructions: u64,
}

/// What was executed with the same page tables, in all privilege levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceCount {
    /// Where they are, as CR3 says, without the bits below the page; none as long as no packet tells.
    pub cr3: Option<u64>,
    /// How many instructions were.
    pub instructions: u64,
}

fn per_1000(bytes: u64, instructions: u64) -> Option<f64> {
    (instructions != 0).then(|| bytes as f64 * 1000.0 / instructions as f64)
}

impl Summary {
    /// Decodes all streams of a session, one after the other.
    #[must_use]
    pub fn of(session: &Session<'_>) -> Self {
        let mut tally = Tally::new();
        for stream in session.streams() {
            tally.add(session, stream);
        }
        tally.finish()
    }

    /// Bytes of trace for 1,000 instructions, in all streams together; none if there were no instructions.
    #[must_use]
    pub fn bytes_per_1000(&self) -> Option<f64> {
        per_1000(self.trace_bytes, self.total.instructions)
    }

    /// Where the flow is missing, in all streams together, how often.
    #[must_use]
    pub fn gaps(&self) -> u64 {
        self.threads.iter().map(|thread| thread.gaps.count()).sum()
    }
}
