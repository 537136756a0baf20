//! A table of calls: comma-separated values.

use std::io::{self, Write};

use cofi_analysis::{FinishedCall, Left};
use cofi_packet::Tsc;
use cofi_session::Task;

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
    out: csv::Writer<W>,
    time: Time<'a>,
    task: Task,
    has_head: bool,
}

impl<'a, W: Write> Table<'a, W> {
    pub(super) fn new(time: Time<'a>, out: W) -> Self {
        Self {
            out: csv::Writer::from_writer(out),
            time,
            task: Task { pid: 0, tid: 0 },
            has_head: false,
        }
    }

    fn head(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.has_head, true) {
            true => Ok(()),
            false => self.out.write_record(COLUMNS).map_err(as_output),
        }
    }
}

impl<W: Write> Exporter for Table<'_, W> {
    fn begin_part(&mut self, track: &Track, _: u64) -> io::Result<()> {
        self.task = track.task;
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
        let time = |tsc: Option<Tsc>| {
            let time = tsc.and_then(|tsc| (self.time)(tsc));
            time.map(|time| time.to_string()).unwrap_or_default()
        };
        // Of what was still open nobody knows the end.
        let is_over = !matches!(end.left, Left::End | Left::Gap);
        let file = frames.get(frame).and_then(|frame| frame.file.as_ref());
        let file = file.map(|file| file.to_string_lossy().into_owned());
        let row = [
            self.task.pid.to_string(),
            self.task.tid.to_string(),
            call.depth.to_string(),
            frames.name(frame).to_owned(),
            file.unwrap_or_default(),
            format!("{:#x}", call.ip.0),
            call.kind.name().to_owned(),
            call.from
                .map(|from| format!("{:#x}", from.0))
                .unwrap_or_default(),
            time(call.begin.tsc),
            time(end.end.tsc.filter(|_| is_over)),
            end.insns.to_string(),
            end.self_insns.to_string(),
            end.left.name().to_owned(),
            call.stack.to_string(),
        ];
        self.out.write_record(row).map_err(as_output)
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

/// What is wrong with the output, told as such.
fn as_output(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        kind => io::Error::other(format!("{kind:?}")),
    }
}
