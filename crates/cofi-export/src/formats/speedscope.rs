//! speedscope's own format, with an event for each call and each end of one.

use std::io::{self, Write};

use cofi_analysis::FinishedCall;
use serde_json::json;

use super::{CREATOR, quoted, text};
use crate::{Exporter, FrameId, Frames, Track, Weight};

/// Writes a profile for each thread. A thread between whose parts others come has several.
pub(super) struct Speedscope<W> {
    out: W,
    weight: Weight,
    /// The thread of the profile that is being written, and where that ends.
    track: Option<(Track, u64)>,
    begin: u64,
    is_first_profile: bool,
    is_first_event: bool,
    /// The event that is being made.
    event: Vec<u8>,
}

impl<W: Write> Speedscope<W> {
    pub(super) fn new(weight: Weight, out: W) -> Self {
        Self {
            out,
            weight,
            track: None,
            begin: 0,
            is_first_profile: true,
            is_first_event: true,
            event: Vec::new(),
        }
    }

    fn head(&mut self) -> io::Result<()> {
        let begin = std::mem::take(&mut self.is_first_profile);
        if !begin {
            return self.out.write_all(b",\n");
        }
        let name = format!("calls by {}", self.weight.unit());
        writeln!(
            self.out,
            "{{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\
             \"exporter\":{},\"name\":{},\"profiles\":[",
            quoted(CREATOR),
            quoted(&name)
        )
    }

    fn end_profile(&mut self) -> io::Result<()> {
        let Some((_, end)) = self.track.take() else {
            return Ok(());
        };
        write!(
            self.out,
            "],\"startValue\":{},\"endValue\":{end}}}",
            self.begin
        )
    }

    fn event(&mut self, kind: u8, frame: FrameId, at: u64) -> io::Result<()> {
        let event = &mut self.event;
        event.clear();
        if !std::mem::take(&mut self.is_first_event) {
            event.push(b',');
        }
        event.extend_from_slice(b"{\"type\":\"");
        event.push(kind);
        event.extend_from_slice(b"\",\"frame\":");
        text::decimal(event, frame.0.into());
        event.extend_from_slice(b",\"at\":");
        text::decimal(event, at);
        event.extend_from_slice(b"}\n");
        self.out.write_all(event)
    }
}

impl<W: Write> Exporter for Speedscope<W> {
    fn begin_part(&mut self, track: &Track, at: u64) -> io::Result<()> {
        if let Some((last, end)) = &self.track
            && last == track
            && *end <= at
        {
            return Ok(());
        }
        self.end_profile()?;
        self.head()?;
        let unit = match self.weight {
            Weight::Time => "nanoseconds",
            Weight::Instructions => "none",
        };
        writeln!(
            self.out,
            "{{\"type\":\"evented\",\"name\":{},\"unit\":\"{unit}\",\"events\":[",
            quoted(&track.name)
        )?;
        self.track = Some((track.clone(), at));
        self.begin = at;
        self.is_first_event = true;
        Ok(())
    }

    fn enter(
        &mut self,
        frame: FrameId,
        at: u64,
        _: Option<&FinishedCall>,
        _: &Frames,
    ) -> io::Result<()> {
        self.event(b'O', frame, at)
    }

    fn leave(&mut self, frame: FrameId, at: u64) -> io::Result<()> {
        self.event(b'C', frame, at)
    }

    fn end_part(&mut self, at: u64) -> io::Result<()> {
        if let Some((_, end)) = &mut self.track {
            *end = at;
        }
        Ok(())
    }

    fn finish(&mut self, frames: &Frames) -> io::Result<()> {
        self.end_profile()?;
        if self.is_first_profile {
            self.head()?;
        }
        self.out.write_all(b"\n],\"shared\":{\"frames\":[\n")?;
        for (number, frame) in frames.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            let mut object = json!({ "name": frame.name });
            if let Some(file) = &frame.file {
                object["file"] = file.to_string_lossy().into();
            }
            writeln!(self.out, "{comma}{object}")?;
        }
        self.out.write_all(b"]}}\n")?;
        self.out.flush()
    }
}
