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
    /// What is the same of all calls of a site, by the site's number: the fields behind the depth.
    sites: Vec<Box<[u8]>>,
    /// Time passes at packets: many calls begin and end at the same moment. The last one, and its field.
    moment: (Option<Tsc>, Vec<u8>),
    /// Rows that are not written yet.
    rows: Vec<u8>,
}

/// So many bytes of rows are written at once.
const FULL: usize = 1 << 16;

impl<'a, W: Write> Table<'a, W> {
    pub(super) fn new(time: Time<'a>, out: W) -> Self {
        Self {
            out,
            time,
            task: Vec::new(),
            has_head: false,
            sites: Vec::new(),
            moment: (None, Vec::new()),
            rows: Vec::new(),
        }
    }

    /// The fields of the calls of a site.
    fn site(finished: &FinishedCall, frame: FrameId, frames: &Frames) -> io::Result<Box<[u8]>> {
        let call = &finished.call;
        let file = frames.get(frame).and_then(|frame| frame.file.as_ref());
        let file = file.map_or_else(Cow::default, |file| file.to_string_lossy());
        let mut text = vec![b','];
        text.extend(fields(&[frames.name(frame), &file])?);
        text.push(b',');
        text::hex(&mut text, call.ip.0);
        text.push(b',');
        text.extend_from_slice(call.kind.name().as_bytes());
        text.push(b',');
        if let Some(from) = call.from {
            text::hex(&mut text, from.0);
        }
        Ok(text.into())
    }

    /// Appends the field of a moment to the row.
    fn time(&mut self, tsc: Option<Tsc>) {
        self.rows.push(b',');
        let Some(tsc) = tsc else { return };
        let (known, text) = &mut self.moment;
        if known.replace(tsc) != Some(tsc) {
            text.clear();
            if let Some(time) = (self.time)(tsc) {
                text::decimal(text, time);
            }
        }
        self.rows.extend_from_slice(text);
    }

    /// Writes the rows that there are, if they are so many bytes.
    fn flush(&mut self, most: usize) -> io::Result<()> {
        if self.rows.len() >= most {
            self.out.write_all(&self.rows)?;
            self.rows.clear();
        }
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
        self.sites.clear();
        self.head()
    }

    fn enter(
        &mut self,
        frame: FrameId,
        _: u64,
        call: Option<&FinishedCall>,
        frames: &Frames,
    ) -> io::Result<()> {
        let Some(finished) = call else {
            return Ok(());
        };
        let FinishedCall { call, end, .. } = finished;
        let site = finished.site as usize;
        if self.sites.get(site).is_none_or(|known| known.is_empty()) {
            if self.sites.len() <= site {
                self.sites.resize(site + 1, Box::default());
            }
            self.sites[site] = Self::site(finished, frame, frames)?;
        }
        self.rows.extend_from_slice(&self.task);
        text::signed(&mut self.rows, call.depth);
        self.rows.extend_from_slice(&self.sites[site]);
        // Of what was still open nobody knows the end.
        let is_over = !matches!(end.left, Left::End | Left::Gap);
        self.time(call.begin.tsc);
        self.time(end.end.tsc.filter(|_| is_over));
        let rows = &mut self.rows;
        for insns in [end.insns, end.self_insns] {
            rows.push(b',');
            text::decimal(rows, insns);
        }
        rows.push(b',');
        rows.extend_from_slice(end.left.name().as_bytes());
        rows.push(b',');
        text::decimal(rows, call.stack.into());
        rows.push(b'\n');
        self.flush(FULL)
    }

    fn leave(&mut self, _: FrameId, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn end_part(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_nested(&self) -> bool {
        false
    }

    fn finish(&mut self, _: &Frames) -> io::Result<()> {
        self.head()?;
        self.flush(0)?;
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
