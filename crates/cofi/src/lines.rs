//! `cofi lines`: RTIT output, captured as it was written, back in the order of its bytes (2.3.2).

use crate::args::LinesArgs;
use crate::output::tell;
use crate::{Ended, input};
use anyhow::{Context, Result, anyhow, bail, ensure};
use cofi_flow::lines::{Lines, Piece};
use cofi_text::digits::counted;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What a line of a capture tells.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// Bytes were written at this address.
    Write(u64, Vec<u8>),
    /// Software has written RTIT_OFFSET.
    Offset(u32),
    /// Nothing: an empty line or a remark.
    Nothing,
}

fn number(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// Hexadecimal bytes, with or without blanks between them.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits: String = text.split_whitespace().collect();
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [_, _] if pair.iter().all(u8::is_ascii_hexdigit) => {
                u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()
            }
            _ => None,
        })
        .collect()
}

fn seen(line: &str) -> Option<Seen> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Some(Seen::Nothing);
    }
    let offset = |text: &str| Some(Seen::Offset(u32::try_from(number(text)?).ok()?));
    if line.starts_with('{') {
        let value: Value = serde_json::from_str(line).ok()?;
        if let Some(text) = value["offset"].as_str() {
            return offset(text);
        }
        let address = number(value["address"].as_str()?)?;
        return Some(Seen::Write(address, bytes(value["bytes"].as_str()?)?));
    }
    let (word, rest) = line.split_once(char::is_whitespace)?;
    match word {
        "offset" => offset(rest),
        _ => Some(Seen::Write(number(word)?, bytes(rest)?)),
    }
}

/// The files so far, and the one that is being put together.
struct Files {
    output: PathBuf,
    number: u32,
    bytes: Vec<u8>,
    /// So many bytes are missing behind these.
    missing: u64,
}

impl Files {
    /// The file with what follows the gap of this number.
    fn path(&self) -> PathBuf {
        if self.number == 0 {
            return self.output.clone();
        }
        let mut name = self.output.clone().into_os_string();
        name.push(format!(".{}", self.number));
        name.into()
    }

    fn write(&self) -> Result<()> {
        let path = self.path();
        std::fs::write(&path, &self.bytes)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Something stands behind what is missing, if anything is: it goes to the next file.
    fn end_gap(&mut self) -> Result<()> {
        let len = std::mem::take(&mut self.missing);
        if len == 0 {
            return Ok(());
        }
        self.write()?;
        let (at, before) = (self.bytes.len(), self.path());
        self.number += 1;
        self.bytes.clear();
        let (missing, after) = (counted(len, "byte"), self.path());
        tell(format_args!(
            "{missing} missing, or whole iterations more, behind the {at} of {}; what follows is in {}",
            before.display(),
            after.display()
        ));
        Ok(())
    }

    fn take(&mut self, pieces: &mut Vec<Kept>) -> Result<()> {
        for piece in pieces.drain(..) {
            match piece {
                Kept::Bytes(bytes) => {
                    self.end_gap()?;
                    self.bytes.extend_from_slice(&bytes);
                }
                Kept::Gap(len) => self.missing += len,
            }
        }
        Ok(())
    }
}

/// A [`Piece`] that is kept until it can be written.
enum Kept {
    Bytes(Vec<u8>),
    Gap(u64),
}

impl From<Piece<'_>> for Kept {
    fn from(piece: Piece<'_>) -> Self {
        match piece {
            Piece::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            Piece::Gap { bytes } => Self::Gap(bytes),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &LinesArgs) -> Result<Ended> {
    let narrow = |name: &str, value: u64| {
        u32::try_from(value).map_err(|_| anyhow!("{name} {value:#x}: the register has 32 bits"))
    };
    let (mask, start) = (narrow("--mask", args.mask)?, narrow("--start", args.start)?);
    let mut lines = Lines::new(args.base, mask, start);
    if let Some(count) = args.at_most {
        lines = lines.at_most(count);
    }
    let text = input::read(&args.capture)?;
    let text = String::from_utf8(text)
        .with_context(|| format!("{} is no text", args.capture.display()))?;
    let mut files = Files {
        output: args.output.clone(),
        number: 0,
        bytes: Vec::new(),
        missing: 0,
    };
    let mut pieces = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let place = || place(&args.capture, number + 1);
        let Some(seen) = seen(line) else {
            bail!(
                "{}: neither `0xADDRESS BYTES` nor `offset 0x…`, nor an object of these",
                place()
            );
        };
        match seen {
            Seen::Nothing => {}
            Seen::Offset(offset) => lines.restart(offset, |piece| pieces.push(piece.into())),
            Seen::Write(address, bytes) => {
                ensure!(!bytes.is_empty(), "{}: no bytes were written", place());
                lines
                    .write(address, &bytes, |piece| pieces.push(piece.into()))
                    .with_context(place)?;
            }
        }
        files.take(&mut pieces)?;
    }
    lines.finish(|piece| pieces.push(piece.into()));
    files.take(&mut pieces)?;
    files.end_gap()?;
    files.write()?;
    Ok(match files.number {
        0 => Ended::Well,
        _ => Ended::WithErrors,
    })
}

fn place(path: &Path, line: usize) -> String {
    format!("{}:{line}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_capture() {
        let write = |address, bytes: &[u8]| Some(Seen::Write(address, bytes.to_vec()));
        assert_eq!(
            seen("0xfdc00040 c000 0a"),
            write(0xfdc0_0040, &[0xc0, 0, 10])
        );
        assert_eq!(
            seen(r#"{"address":"0x40","bytes":"ff"}"#),
            write(0x40, &[0xff])
        );
        assert_eq!(seen("offset 0x80"), Some(Seen::Offset(0x80)));
        assert_eq!(seen(r#"{"offset":"0x80"}"#), Some(Seen::Offset(0x80)));
        assert_eq!(seen(" # a remark"), Some(Seen::Nothing));
        assert_eq!(seen(""), Some(Seen::Nothing));
        for wrong in [
            "0x40",
            "40 ff",
            "0x40 f",
            "0x40 +f",
            "0x40 gg",
            "{",
            "{}",
            "offset 12",
            "offset",
            "offset 0x100000000",
            r#"{"address":64,"bytes":"ff"}"#,
        ] {
            assert_eq!(seen(wrong), None, "{wrong}");
        }
    }
}
