//! What can be wrong with a perf.data file, and where.

use crate::constants::RecordKind;
use cofi_packet::{agreeing, counted};

/// A fault in a perf.data file: where it stands and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind} (at file offset {offset:#x})")]
#[non_exhaustive]
pub struct Error {
    /// Where in the file the offending bytes begin.
    pub offset: u64,
    /// What is wrong there.
    pub kind: ErrorKind,
}

impl Error {
    pub(crate) fn new(offset: u64, kind: ErrorKind) -> Self {
        Self { offset, kind }
    }
}

/// The kinds of faults in a perf.data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file does not begin with the magic of perf.data.
    #[error("not a perf.data file: it begins with the bytes {magic:02x?}")]
    NotPerfData {
        /// The first bytes of the file.
        magic: [u8; 8],
    },
    /// The file was written by a big-endian machine.
    #[error("big-endian perf.data files are not supported (Intel PT machines are little-endian)")]
    BigEndian,
    /// The file has the magic of perf before Linux 3.2.
    #[error("this perf.data has the format of perf before Linux 3.2, which is not supported")]
    OldFormat,
    /// The size field of the file header has no known meaning.
    #[error("file header size {size} is not one of a known format")]
    HeaderSize {
        /// The size found.
        size: u64,
    },
    /// Something needs more bytes than there are.
    #[error(
        "{what} needs {bytes}, {available} {are} left",
        bytes = counted(*needed, "byte"),
        are = agreeing(*available, "is", "are")
    )]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Its size.
        needed: u64,
        /// The bytes there are.
        available: u64,
    },
    /// A section that the header names lies outside of the file.
    #[error(
        "the {section} section of {bytes} is not inside the file of {whole}",
        bytes = counted(*size, "byte"),
        whole = counted(*file_size, "byte")
    )]
    SectionOutside {
        /// The section's name.
        section: &'static str,
        /// The section's stated size.
        size: u64,
        /// The size of the file.
        file_size: u64,
    },
    /// The size of an event attribute is impossible.
    #[error(
        "event attribute size {size} does not fit its entry of {bytes}",
        bytes = counted(*entry, "byte")
    )]
    AttrSize {
        /// The stated size of the attribute.
        size: u64,
        /// The size of the entry that holds it and its id section.
        entry: u64,
    },
    /// The id sections of the events together are larger than the file.
    #[error("the events name {count} ids, more than the file can hold")]
    TooManyIds {
        /// The count so far.
        count: u64,
    },
    /// A record's size field is smaller than a record's header.
    #[error("{kind} record with size {size}, smaller than a record header")]
    RecordSize {
        /// The record's kind.
        kind: RecordKind,
        /// The size found.
        size: u16,
    },
    /// The data end in the middle of a record.
    #[error(
        "{kind} record of {bytes} is cut off after {available}",
        bytes = counted((*size).into(), "byte")
    )]
    RecordTruncated {
        /// The record's kind.
        kind: RecordKind,
        /// The record's size.
        size: u16,
        /// The bytes there are.
        available: u64,
    },
    /// A record is too small for the fields of its kind.
    #[error(
        "{kind} record of {bytes} is too small for its fields",
        bytes = counted((*size).into(), "byte")
    )]
    RecordShort {
        /// The record's kind.
        kind: RecordKind,
        /// The record's size.
        size: u16,
    },
    /// The program that wrote the file ended before it could complete it.
    #[error(
        "the recording program did not complete the file: {bytes} at its end {were} not read",
        bytes = counted(*unread, "byte"),
        were = agreeing(*unread, "was", "were")
    )]
    Unfinished {
        /// The bytes behind the data that the header tells of; 0 when it tells no size and all were read.
        unread: u64,
    },
    /// The data section ends before the size that the header states.
    #[error(
        "the data section states {bytes}, the file holds {available} of them",
        bytes = counted(*stated, "byte")
    )]
    DataTruncated {
        /// The stated size.
        stated: u64,
        /// The bytes there are.
        available: u64,
    },
    /// A record carries an event id that no event of the file has, and the events' layouts differ.
    #[error("{kind} record of unknown event id {id}")]
    UnknownEventId {
        /// The record's kind.
        kind: RecordKind,
        /// The id found.
        id: u64,
    },
    /// What compressed records (`perf record -z`) hold is damaged; what comes before is read.
    #[error("compressed records: {what} is not sound zstd; the records behind it are lost")]
    Zstd {
        /// What is damaged.
        what: &'static str,
    },
    /// Compressed records hold more than any recorder writes: the rest is left alone.
    #[error(
        "compressed records hold more than {limit} bytes, far more than perf's ever do; the rest of them is not read"
    )]
    ZstdTooMuch {
        /// How many bytes are read of such.
        limit: usize,
    },
    /// The AUXTRACE_INFO record is of another kind of trace.
    #[error("AUXTRACE_INFO of type {found}: neither Intel PT (type 1) nor RTIT")]
    OtherTrace {
        /// The type found.
        found: u32,
    },
}

/// Why a perf.data file could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The output failed.
    #[error("cannot write the perf.data file: {0}")]
    Io(#[from] std::io::Error),
    /// A record would be larger than the format allows.
    #[error("{kind} record of {size} bytes is larger than the format's 65535")]
    RecordTooLong {
        /// The record's kind.
        kind: RecordKind,
        /// Its size.
        size: usize,
    },
    /// A path is longer than perf's readers accept or holds a NUL.
    #[error("path of {len} bytes: perf.data takes at most 4095, and no NUL among them")]
    Path {
        /// The path's length.
        len: usize,
    },
    /// An AUXTRACE chunk without the time it was taken at, in a trace with time stamps.
    #[error(
        "AUXTRACE chunk at stream offset {offset}: its reference (a TSC value) must not be 0 while TSC packets are on: perf would silently decode nothing"
    )]
    ZeroReference {
        /// The chunk's offset in its stream.
        offset: u64,
    },
}
