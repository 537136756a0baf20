//! Opening a trace: recognised by content, as the contract says.

use crate::args::{Format, Input};
use crate::json::Line;
use anyhow::{Context, Result, bail};
use std::borrow::Cow;
use std::path::Path;

const PERF_MAGIC: &[u8] = b"PERFILE2";

/// One packet stream.
pub(crate) struct Stream<'a> {
    /// The packets.
    pub(crate) bytes: Cow<'a, [u8]>,
    /// The thread it belongs to, if the file says.
    pub(crate) tid: Option<u32>,
    /// The processor it belongs to, if the file says.
    pub(crate) cpu: Option<u32>,
}

impl Stream<'_> {
    /// A heading for text output.
    pub(crate) fn title(&self) -> String {
        match (self.tid, self.cpu) {
            (Some(tid), _) => format!("thread {tid}"),
            (None, Some(cpu)) => format!("cpu {cpu}"),
            (None, None) => "stream".into(),
        }
    }

    /// Adds `tid` and `cpu`.
    pub(crate) fn tag(&self, line: &mut Line) {
        if let Some(tid) = self.tid {
            line.number("tid", tid);
        }
        if let Some(cpu) = self.cpu {
            line.number("cpu", cpu);
        }
    }
}

/// An opened trace.
pub(crate) struct Trace<'a> {
    /// Its packet streams, one a thread or processor.
    pub(crate) streams: Vec<Stream<'a>>,
    /// What could not be read, in sentences.
    pub(crate) problems: Vec<String>,
}

/// The whole of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The format of `bytes`, as told or as recognised.
pub(crate) fn format(input: &Input, bytes: &[u8]) -> Format {
    input.format.unwrap_or(if bytes.starts_with(PERF_MAGIC) {
        Format::Perf
    } else {
        Format::Pt
    })
}

/// The packet streams in `bytes`.
pub(crate) fn open<'a>(input: &Input, bytes: &'a [u8]) -> Result<Trace<'a>> {
    match format(input, bytes) {
        Format::Pt => Ok(Trace {
            streams: vec![Stream {
                bytes: bytes.into(),
                tid: None,
                cpu: None,
            }],
            problems: Vec::new(),
        }),
        Format::Perf => open_perf(input, bytes),
        Format::Rtit => bail!("RTIT packets cannot be read yet; this version reads Intel PT"),
    }
}

/// Prints problems to standard error; whether there were any.
pub(crate) fn report(problems: &[String]) -> bool {
    for problem in problems {
        eprintln!("cofi: {problem}");
    }
    !problems.is_empty()
}

fn open_perf<'a>(_input: &Input, _bytes: &'a [u8]) -> Result<Trace<'a>> {
    bail!("waiting for the reader")
}
