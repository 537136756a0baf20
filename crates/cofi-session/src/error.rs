//! What can be wrong with a session.

use std::path::PathBuf;

use cofi_flow::Errata;
use cofi_image::ImageError;

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
    #[error("{}: {len} bytes of trace are missing at offset {at}", Of(*stream))]
    Gap {
        /// The stream.
        stream: StreamKey,
        /// Where in the stream.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// A part of a stream is in the file twice.
    #[error("{}: {len} bytes of trace at offset {at} are there twice", Of(*stream))]
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
    /// Records of what happened beside the trace were lost; code may be unknown or wrong.
    #[error("{count} records of mappings and threads were lost while recording")]
    Lost {
        /// How many.
        count: u64,
    },
    /// The file is of a trace other than Intel PT.
    #[error("the file holds no Intel PT trace")]
    NoTrace,
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
