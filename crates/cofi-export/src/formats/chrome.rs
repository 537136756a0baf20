//! Trace events as JSON, as `chrome://tracing` and Perfetto read them.

use std::io::{self, Write};

use cofi_analysis::FinishedCall;

use super::{CREATOR, quoted, text};
use crate::{Exporter, FrameId, Frames, Track, Weight};

/// Writes an event for each call and each end of one. Time is in microseconds there; an instruction is shown as one.
pub(super) struct Chrome<W> {
    out: W,
    weight: Weight,
    /// Process and thread, as each event has them.
    of: String,
    is_first: bool,
    /// How an event begins that enters a function, by its number.
    names: Vec<Vec<u8>>,
    /// How one begins that leaves it.
    end: Vec<u8>,
    /// The event that is being made.
    event: Vec<u8>,
}

impl<W: Write> Chrome<W> {
    pub(super) fn new(weight: Weight, out: W) -> Self {
        Self {
            out,
            weight,
            of: String::new(),
            is_first: true,
            names: Vec::new(),
            end: Vec::new(),
            event: Vec::new(),
        }
    }

    /// What comes before an event.
    fn next(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.is_first) {
            true => self.out.write_all(b"{\"traceEvents\":[\n"),
            false => self.out.write_all(b",\n"),
        }
    }

    fn at(&mut self, at: u64) {
        match self.weight {
            Weight::Instructions => text::decimal(&mut self.event, at),
            Weight::Time => text::microseconds(&mut self.event, at),
        }
    }

    /// Begins an event that enters a function.
    fn name(&mut self, frame: FrameId, frames: &Frames) {
        let number = frame.0 as usize;
        if self.names.get(number).is_none_or(Vec::is_empty) {
            if self.names.len() <= number {
                self.names.resize(number + 1, Vec::new());
            }
            let name = quoted(frames.name(frame));
            let text = format!("{{\"ph\":\"B\",\"name\":{name},{},\"ts\":", self.of);
            self.names[number] = text.into();
        }
        self.event.extend_from_slice(&self.names[number]);
    }
}

impl<W: Write> Exporter for Chrome<W> {
    fn begin_part(&mut self, track: &Track, _: u64) -> io::Result<()> {
        self.of = format!("\"pid\":{},\"tid\":{}", track.task.pid, track.task.tid);
        self.names.clear();
        self.end = format!("{{\"ph\":\"E\",{},\"ts\":", self.of).into();
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
        self.event.clear();
        self.name(frame, frames);
        self.at(at);
        let event = &mut self.event;
        if let Some(FinishedCall { call, end, .. }) = call {
            event.extend_from_slice(b",\"args\":{\"kind\":\"");
            event.extend_from_slice(call.kind.name().as_bytes());
            event.extend_from_slice(b"\",\"insns\":");
            text::decimal(event, end.insns);
            event.extend_from_slice(b",\"self_insns\":");
            text::decimal(event, end.self_insns);
            event.extend_from_slice(b",\"left\":\"");
            event.extend_from_slice(end.left.name().as_bytes());
            event.extend_from_slice(b"\"}");
        }
        event.push(b'}');
        self.out.write_all(event)
    }

    fn leave(&mut self, _: FrameId, at: u64) -> io::Result<()> {
        self.next()?;
        self.event.clear();
        self.event.extend_from_slice(&self.end);
        self.at(at);
        self.event.push(b'}');
        self.out.write_all(&self.event)
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
