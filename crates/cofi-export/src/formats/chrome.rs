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
    /// Events that are not written yet.
    events: Vec<u8>,
    /// Many events have the same time: the last one, as it is written.
    at: (Option<u64>, Vec<u8>),
}

/// So many bytes of events are written at once.
const FULL: usize = 1 << 16;

impl<W: Write> Chrome<W> {
    pub(super) fn new(weight: Weight, out: W) -> Self {
        Self {
            out,
            weight,
            of: String::new(),
            is_first: true,
            names: Vec::new(),
            end: Vec::new(),
            events: Vec::new(),
            at: (None, Vec::new()),
        }
    }

    /// What comes before an event.
    fn next(&mut self) {
        let text: &[u8] = match std::mem::take(&mut self.is_first) {
            true => b"{\"traceEvents\":[\n",
            false => b",\n",
        };
        self.events.extend_from_slice(text);
    }

    fn at(&mut self, at: u64) {
        let (known, text) = &mut self.at;
        if known.replace(at) != Some(at) {
            text.clear();
            match self.weight {
                Weight::Instructions => text::decimal(text, at),
                Weight::Time => text::microseconds(text, at),
            }
        }
        self.events.extend_from_slice(text);
    }

    /// Ends an event, and writes those that there are if they are many.
    fn end_event(&mut self) -> io::Result<()> {
        self.events.push(b'}');
        if self.events.len() >= FULL {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.events)?;
        self.events.clear();
        Ok(())
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
        self.events.extend_from_slice(&self.names[number]);
    }
}

impl<W: Write> Exporter for Chrome<W> {
    fn begin_part(&mut self, track: &Track, _: u64) -> io::Result<()> {
        self.of = format!("\"pid\":{},\"tid\":{}", track.task.pid, track.task.tid);
        self.names.clear();
        self.end = format!("{{\"ph\":\"E\",{},\"ts\":", self.of).into();
        self.next();
        write!(
            self.events,
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
        self.next();
        self.name(frame, frames);
        self.at(at);
        let event = &mut self.events;
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
        self.end_event()
    }

    fn leave(&mut self, _: FrameId, at: u64) -> io::Result<()> {
        self.next();
        self.events.extend_from_slice(&self.end);
        self.at(at);
        self.end_event()
    }

    fn end_part(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Frames) -> io::Result<()> {
        if std::mem::take(&mut self.is_first) {
            self.events.extend_from_slice(b"{\"traceEvents\":[");
        }
        self.flush()?;
        writeln!(
            self.out,
            "\n],\"displayTimeUnit\":\"ns\",\"otherData\":{{\"creator\":{},\"unit\":{}}}}}",
            quoted(CREATOR),
            quoted(self.weight.unit())
        )?;
        self.out.flush()
    }
}
