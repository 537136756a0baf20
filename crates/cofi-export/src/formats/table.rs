//! A table of calls: comma-separated values.

use std::borrow::Cow;
use std::io::{self, Write};

use cofi_analysis::{FinishedCall, Left};
use cofi_packet::Tsc;

use super::text;
use crate::{Exporter, FrameId, Frames, Track};

/// What converts the time stamp counter.
pub(super) type Time<'a> = Box<dyn Fn(Tsc) -> Option<u64> + 'a>;

const COLUMNS: [&str; 14] = [
    "pid",
    "tid",
    "depth",
    "call",
    "file",
    "ip",
    "kind",
    "from",
    "begin",
    "end",
    "insns",
    "self_insns",
    "left",
    "stack",
];

/// Writes a row a call, in the order in which they began.
pub(super) struct Table<'a, W: Write> {
    out: W,
    time: Time<'a>,
    /// The first fields of all rows of a thread.
    task: Vec<u8>,
    has_head: bool,
    /// The name and the file of each function, quoted as they need to be.
    names: Vec<Vec<u8>>,
    /// The row that is being made.
    row: Vec<u8>,
}

impl<'a, W: Write> Table<'a, W> {
    pub(super) fn new(time: Time<'a>, out: W) -> Self {
        Self {
            out,
            time,
            task: Vec::new(),
            has_head: false,
            names: Vec::new(),
            row: Vec::new(),
        }
    }

    /// Appends the name and the file of a function to the row.
    fn name(&mut self, frame: FrameId, frames: &Frames) -> io::Result<()> {
        let number = frame.0 as usize;
        if self.names.get(number).is_none_or(Vec::is_empty) {
            if self.names.len() <= number {
                self.names.resize(number + 1, Vec::new());
            }
            let file = frames.get(frame).and_then(|frame| frame.file.as_ref());
            let file = file.map_or_else(Cow::default, |file| file.to_string_lossy());
            self.names[number] = fields(&[frames.name(frame), &file])?;
        }
        self.row.extend_from_slice(&self.names[number]);
        Ok(())
    }

    fn head(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.has_head, true) {
            true => Ok(()),
            false => writeln!(self.out, "{}", COLUMNS.join(",")),
        }
    }
}

impl<W: Write> Exporter for Table<'_, W> {
    fn begin_part(&mut self, track: &Track, _: u64) -> io::Result<()> {
        self.task = format!("{},{},", track.task.pid, track.task.tid).into();
        self.head()
    }

    fn enter(
        &mut self,
        frame: FrameId,
        _: u64,
        call: Option<&FinishedCall>,
        frames: &Frames,
    ) -> io::Result<()> {
        let Some(FinishedCall { call, end, .. }) = call else {
            return Ok(());
        };
        self.row.clear();
        self.row.extend_from_slice(&self.task);
        text::signed(&mut self.row, call.depth);
        self.row.push(b',');
        self.name(frame, frames)?;
        let Self { row, time, .. } = self;
        row.push(b',');
        text::hex(row, call.ip.0);
        row.push(b',');
        row.extend_from_slice(call.kind.name().as_bytes());
        row.push(b',');
        if let Some(from) = call.from {
            text::hex(row, from.0);
        }
        // Of what was still open nobody knows the end.
        let is_over = !matches!(end.left, Left::End | Left::Gap);
        for tsc in [call.begin.tsc, end.end.tsc.filter(|_| is_over)] {
            row.push(b',');
            if let Some(time) = tsc.and_then(&*time) {
                text::decimal(row, time);
            }
        }
        for insns in [end.insns, end.self_insns] {
            row.push(b',');
            text::decimal(row, insns);
        }
        row.push(b',');
        row.extend_from_slice(end.left.name().as_bytes());
        row.push(b',');
        text::decimal(row, call.stack.into());
        row.push(b'\n');
        self.out.write_all(row)
    }

    fn leave(&mut self, _: FrameId, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn end_part(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Frames) -> io::Result<()> {
        self.head()?;
        self.out.flush()
    }
}

/// Some fields of a row, each quoted if it needs to be.
fn fields(list: &[&str]) -> io::Result<Vec<u8>> {
    let mut row = csv::Writer::from_writer(Vec::new());
    row.write_record(list).map_err(io::Error::other)?;
    let mut text = row.into_inner().map_err(io::Error::other)?;
    // The end of a row.
    text.pop();
    Ok(text)
}
