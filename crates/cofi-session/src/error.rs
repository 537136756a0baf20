//! What can be wrong with a session.

use std::path::PathBuf;

use cofi_flow::Errata;
use cofi_image::ImageError;
use cofi_packet::{agreeing, counted};
use cofi_perf::PerfTime;

use crate::stream::StreamKey;

/// Why nothing can be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The file is not a well-formed perf.data file.
    #[error("not a readable perf.data file: {0}")]
    Perf(#[from] cofi_perf::Error),
    /// A file of code that was asked for cannot be loaded.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The description of an LLDB bundle (`trace.json`) is not as its schema says.
    #[error("not a usable trace bundle of LLDB: {place}: {reason}")]
    Bundle {
        /// Where in the description.
        place: String,
        /// What is wrong there.
        reason: String,
    },
    /// The trace cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        #[source]
        error: std::io::Error,
    },
    /// There is no workaround of this name.
    #[error("no erratum is called {0:?}; those known are {known}", known = known_errata())]
    Erratum(String),
}

/// The names of all errata, in one sentence.
fn known_errata() -> String {
    let names: Vec<&str> = Errata::ALL.iter().map(|erratum| erratum.name).collect();
    names.join(", ")
}

/// Something that is wrong with a trace but does not keep the rest of it from being decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Diagnostic {
    /// The file is damaged at one place.
    #[error("{0}")]
    Perf(String),
    /// A file in which a process told what code it generated cannot be read, or not as a whole.
    #[error("{0}")]
    Code(String),
    /// A part of a stream is not in the file.
    #[error(
        "{}: {bytes} of trace {are} missing at offset {at}",
        Of(*stream),
        bytes = counted(*len, "byte"),
        are = agreeing(*len, "is", "are")
    )]
    Gap {
        /// The stream.
        stream: StreamKey,
        /// Where in the stream.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// A part of a stream is in the file twice.
    #[error(
        "{}: {bytes} of trace at offset {at} {are} there twice",
        Of(*stream),
        bytes = counted(*len, "byte"),
        are = agreeing(*len, "is", "are")
    )]
    Overlap {
        /// The stream.
        stream: StreamKey,
        /// Where in the stream.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// What happened from here on was not traced for a while: the recorder could not keep up, or did not know it.
    #[error("{}: trace was lost at offset {at}, says the recorder", Of(*stream))]
    Truncated {
        /// The stream.
        stream: StreamKey,
        /// Where in the stream.
        at: u64,
    },
    /// The recorder did not say when a part of a stream was made: the record of it was lost. The part itself is there.
    #[error(
        "{}: the record of {bytes} at offset {at} was lost; changes of code may be placed wrongly there",
        Of(*stream),
        bytes = counted(*len, "byte")
    )]
    Unannounced {
        /// The stream.
        stream: StreamKey,
        /// Where in the stream.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// The kernel says of a part of a stream that it may not be whole.
    #[error(
        "{}: {what} within the {bytes} at offset {at}, says the kernel",
        Of(*stream),
        bytes = counted(*len, "byte")
    )]
    Doubtful {
        /// The stream.
        stream: StreamKey,
        /// Where in the stream.
        at: u64,
        /// How many bytes.
        len: u64,
        /// What may have happened.
        what: &'static str,
    },
    /// Records of what happened beside the trace were lost; code may be unknown or wrong.
    #[error(
        "{records} of mappings and threads {were} lost while recording{}",
        At(*cpu, *time),
        records = counted(*count, "record"),
        were = agreeing(*count, "was", "were")
    )]
    Lost {
        /// How many.
        count: u64,
        /// On which processor, if that is told.
        cpu: Option<u32>,
        /// Before when, if that is told.
        time: Option<PerfTime>,
    },
    /// Samples were lost, and the packets with them if they were to hold any.
    #[error(
        "{samples} {were} lost while recording{}",
        At(*cpu, *time),
        samples = counted(*count, "sample"),
        were = agreeing(*count, "was", "were")
    )]
    LostSamples {
        /// How many.
        count: u64,
        /// On which processor, if that is told.
        cpu: Option<u32>,
        /// Before when, if that is told.
        time: Option<PerfTime>,
    },
    /// Only what guests of the recorded machine did was traced (`intel_pt//G`). What they ran is in none of its files.
    #[error(
        "only guests of the recorded machine were traced; their code is not in the file, so no instruction can be told"
    )]
    OnlyGuests,
    /// What the file tells of guests' code is left out: it is not known which guest ran when.
    #[error(
        "{records} of guests' mappings {are} not used: guests are not decoded",
        records = counted(*count, "record"),
        are = agreeing(*count, "is", "are")
    )]
    GuestCode {
        /// How many.
        count: u64,
    },
    /// The file is of a trace other than Intel PT or RTIT.
    #[error("the file holds no trace of Intel PT or RTIT")]
    NoTrace,
}

/// Where and when something happened, in a message.
struct At(Option<u32>, Option<PerfTime>);

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(cpu) = self.0 {
            write!(f, " on processor {cpu}")?;
        }
        self.1.map_or(Ok(()), |time| write!(f, ", before {time} s"))
    }
}

/// Names a stream in a message.
struct Of(StreamKey);

impl std::fmt::Display for Of {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            StreamKey::Only => f.write_str("the stream"),
            StreamKey::Thread(tid) => write!(f, "thread {tid}"),
            StreamKey::Cpu(cpu) => write!(f, "processor {cpu}"),
        }
    }
}
