//! Trace events as JSON, as `chrome://tracing` and Perfetto read them.

use std::io::{self, Write};

use cofi_analysis::FinishedCall;

use super::{CREATOR, quoted};
use crate::{Exporter, FrameId, Frames, Track, Weight};

/// Writes an event for each call and each end of one. Time is in microseconds there; an instruction is shown as one.
pub(super) struct Chrome<W> {
    out: W,
    weight: Weight,
    /// Process and thread, as each event has them.
    of: String,
    is_first: bool,
}

impl<W: Write> Chrome<W> {
    pub(super) fn new(weight: Weight, out: W) -> Self {
        Self {
            out,
            weight,
            of: String::new(),
            is_first: true,
        }
    }

    /// What comes before an event.
    fn next(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.is_first) {
            true => self.out.write_all(b"{\"traceEvents\":[\n"),
            false => self.out.write_all(b",\n"),
        }
    }

    fn at(&self, at: u64) -> String {
        match self.weight {
            Weight::Instructions => at.to_string(),
            Weight::Time => format!("{}.{:03}", at / 1000, at % 1000),
        }
    }
}

impl<W: Write> Exporter for Chrome<W> {
    fn begin_part(&mut self, track: &Track, _: u64) -> io::Result<()> {
        self.of = format!("\"pid\":{},\"tid\":{}", track.task.pid, track.task.tid);
        self.next()?;
        write!(
            self.out,
            "{{\"ph\":\"M\",\"name\":\"thread_name\",{},\"args\":{{\"name\":{}}}}}",
            self.of,
            quoted(&track.name)
        )
    }

    fn enter(
        &mut self,
        frame: FrameId,
        at: u64,
        call: Option<&FinishedCall>,
        frames: &Frames,
    ) -> io::Result<()> {
        self.next()?;
        write!(
            self.out,
            "{{\"ph\":\"B\",\"name\":{},{},\"ts\":{}",
            quoted(frames.name(frame)),
            self.of,
            self.at(at)
        )?;
        if let Some(FinishedCall { call, end, .. }) = call {
            write!(
                self.out,
                ",\"args\":{{\"kind\":\"{}\",\"insns\":{},\"self_insns\":{},\"left\":\"{}\"}}",
                call.kind.name(),
                end.insns,
                end.self_insns,
                end.left.name()
            )?;
        }
        self.out.write_all(b"}")
    }

    fn leave(&mut self, _: FrameId, at: u64) -> io::Result<()> {
        self.next()?;
        write!(
            self.out,
            "{{\"ph\":\"E\",{},\"ts\":{}}}",
            self.of,
            self.at(at)
        )
    }

    fn end_part(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Frames) -> io::Result<()> {
        if std::mem::take(&mut self.is_first) {
            self.out.write_all(b"{\"traceEvents\":[")?;
        }
        writeln!(
            self.out,
            "\n],\"displayTimeUnit\":\"ns\",\"otherData\":{{\"creator\":{},\"unit\":{}}}}}",
            quoted(CREATOR),
            quoted(self.weight.unit())
        )?;
        self.out.flush()
    }
}
