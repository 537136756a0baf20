//! A stream in the text form that `cofi asm` reads: `OFFSET: packet ; comment`.

use super::known::{Family, Known, Name};
use crate::digits::{self, counted};
use cofi_packet::{Listed, PacketKind, StreamItem, extent};
use std::io::{Result, Write};

/// How many bytes stand in a line of `.byte`.
const BYTES_IN_LINE: usize = 16;
/// More bytes than these are not all shown, unless told so.
const MANY_BYTES: usize = 256;
/// How many of many bytes are shown.
const FIRST_BYTES: usize = 32;

const ERROR: &[u8] = b"\x1b[1;31m";
const COMMENT: &[u8] = b"\x1b[2m";
const PLAIN: &[u8] = b"\x1b[0m";

const fn colour(family: Family) -> &'static [u8] {
    match family {
        Family::Padding => b"\x1b[2m",
        Family::Boundary => b"\x1b[1m",
        Family::Loss => b"\x1b[31m",
        Family::Branch => b"\x1b[32m",
        Family::Address => b"\x1b[36m",
        Family::Time => b"\x1b[34m",
        Family::Context => b"\x1b[35m",
        Family::Data => b"\x1b[33m",
    }
}

/// Prints items as text.
#[derive(Debug)]
pub struct Text {
    line: Vec<u8>,
    /// Whether lines have colours.
    colour: bool,
    /// Whether all bytes that form no packet are shown, however many there are.
    all_bytes: bool,
}

impl Text {
    /// Lines in colours or not; with all bytes that form no packet, or only the first of many.
    #[must_use]
    pub fn new(colour: bool, all_bytes: bool) -> Self {
        Self {
            line: Vec::new(),
            colour,
            all_bytes,
        }
    }

    /// Prints one item of the stream `bytes`.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn item<F: Known>(
        &mut self,
        item: &StreamItem<F>,
        listed: Option<&Listed<F>>,
        name: Option<Name>,
        bytes: &[u8],
        out: &mut impl Write,
    ) -> Result<()> {
        let (offset, size) = extent(item);
        self.begin(offset.0);
        if let Some(listed) = listed {
            self.packet(listed)?;
            if let Some(name) = name {
                self.comment(COMMENT, format_args!(" ; {name}"))?;
            }
        }
        match item {
            Ok(_) => self.end(out),
            Err(error) if listed.is_some() => {
                self.comment(ERROR, format_args!(" ; error: {}", error.error))?;
                self.end(out)
            }
            Err(error) => {
                let passed = counted(size as u64, "byte");
                let told = format_args!("; error: {}; {passed} passed over", error.error);
                self.comment(ERROR, told)?;
                self.end(out)?;
                let start = usize::try_from(offset.0).unwrap_or(usize::MAX);
                let passed = bytes.get(start..).unwrap_or_default();
                self.bytes(offset.0, &passed[..size.min(passed.len())], out)
            }
        }
    }

    fn begin(&mut self, offset: u64) {
        self.line.clear();
        digits::hex_padded(&mut self.line, offset, 8);
        self.line.extend_from_slice(b": ");
    }

    fn end(&mut self, out: &mut impl Write) -> Result<()> {
        self.line.push(b'\n');
        out.write_all(&self.line)
    }

    fn packet<F: Known>(&mut self, listed: &Listed<F>) -> Result<()> {
        let start = self.line.len();
        if !F::write_short(listed.packet(), &mut self.line) {
            write!(self.line, "{listed}")?;
        }
        if self.colour {
            let kind = listed.raw().kind();
            let end = start + kind.name().len();
            self.line.splice(end..end, PLAIN.iter().copied());
            let colour = colour(F::family(kind)).iter().copied();
            self.line.splice(start..start, colour);
        }
        Ok(())
    }

    fn comment(&mut self, colour: &[u8], text: std::fmt::Arguments<'_>) -> Result<()> {
        if self.colour {
            self.line.extend_from_slice(colour);
        }
        self.line.write_fmt(text)?;
        if self.colour {
            self.line.extend_from_slice(PLAIN);
        }
        Ok(())
    }

    /// Prints bytes that form no packet.
    fn bytes(&mut self, offset: u64, bytes: &[u8], out: &mut impl Write) -> Result<()> {
        let shown = if self.all_bytes || bytes.len() <= MANY_BYTES {
            bytes.len()
        } else {
            FIRST_BYTES
        };
        let mut offset = offset;
        for part in bytes[..shown].chunks(BYTES_IN_LINE) {
            self.begin(offset);
            self.line.extend_from_slice(b".byte");
            for byte in part {
                write!(self.line, " {byte:02x}")?;
            }
            self.end(out)?;
            offset += part.len() as u64;
        }
        if shown < bytes.len() {
            self.begin(offset);
            let more = counted((bytes.len() - shown) as u64, "more byte");
            let told = format_args!("; {more}, which --bytes would show");
            self.comment(COMMENT, told)?;
            self.end(out)?;
        }
        Ok(())
    }
}
