//! `cofi asm`: packets from text.

use crate::args::{AsmArgs, PacketFormat};
use crate::output::tell;
use crate::{Ended, input};
use anyhow::{Context, Result, bail};
use cofi_packet::intel::IntelPt;
use cofi_packet::rtit::Rtit;
use cofi_packet::{AssembleError, Assembler, Collected, Format};
use cofi_text::digits::counted;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::Path;

/// A longer line is not shown below a message about it.
const LONGEST_SHOWN: usize = 160;

/// Runs the command.
pub(crate) fn run(args: &AsmArgs) -> Result<Ended> {
    if args.output.is_none() && std::io::stdout().is_terminal() {
        bail!("packets are no text for a terminal: name a file with -o, or redirect the output");
    }
    let is_stdin = args.input == Path::new("-");
    let name = if is_stdin {
        "<stdin>".into()
    } else {
        args.input.display().to_string()
    };
    let cannot_read = || format!("cannot read {name}");
    let mut input: Box<dyn BufRead> = if is_stdin {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(BufReader::with_capacity(
            1 << 16,
            File::open(&args.input).with_context(cannot_read)?,
        ))
    };
    let mut source = Source::new(name.clone());
    input::check_mode(args.cycle_accurate, args.format == PacketFormat::Rtit);
    let bytes = match args.format {
        PacketFormat::Pt => source.assemble::<IntelPt>(&mut input, Default::default()),
        PacketFormat::Rtit => {
            source.assemble::<Rtit>(&mut input, cofi_archive::rtit_mode(args.cycle_accurate))
        }
    }
    .with_context(cannot_read)?;
    if source.bad_lines > 0 {
        tell(format_args!(
            "nothing was written: {} of {} cannot be assembled",
            source.bad_lines,
            counted(source.number, "line")
        ));
        return Ok(Ended::WithErrors);
    }
    match &args.output {
        Some(path) => std::fs::write(path, &bytes)
            .with_context(|| format!("cannot write {}", path.display()))?,
        None => {
            let mut out = std::io::stdout().lock();
            out.write_all(&bytes)?;
            out.flush()?;
        }
    }
    match &args.labels {
        None => {}
        Some(None) => std::io::stderr().write_all(source.list.as_bytes())?,
        Some(Some(path)) => std::fs::write(path, &source.list)
            .with_context(|| format!("cannot write {}", path.display()))?,
    }
    Ok(Ended::Well)
}

/// Whether a label is an offset as `cofi dump` prints it, and not somebody's name for a place.
fn is_offset(label: &str) -> bool {
    !label.is_empty()
        && label
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A text under assembly.
struct Source {
    name: String,
    /// The number of the line just read, from 1.
    number: u64,
    bad_lines: u64,
    /// Which line has this label.
    labels: HashMap<String, u64>,
    /// The labels and their offsets, as `--labels` writes them.
    list: String,
}

impl Source {
    fn new(name: String) -> Self {
        Self {
            name,
            number: 0,
            bad_lines: 0,
            labels: HashMap::new(),
            list: String::new(),
        }
    }

    /// Assembles all lines, and reports those that are wrong.
    fn assemble<F: Format>(
        &mut self,
        input: &mut dyn BufRead,
        context: F::Context,
    ) -> std::io::Result<Vec<u8>> {
        let mut assembler = Assembler::<F, _>::in_context(Collected(Vec::new()), context);
        let mut line = Vec::new();
        loop {
            line.clear();
            if input.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            self.number += 1;
            while let Some(b'\n' | b'\r') = line.last() {
                line.pop();
            }
            let line = match std::str::from_utf8(&line) {
                Ok(line) => line,
                Err(error) => {
                    let lossy = String::from_utf8_lossy(&line);
                    // What stands before the first wrong byte is the same in both.
                    self.wrong(&lossy, error.valid_up_to(), "", "the line is not UTF-8");
                    continue;
                }
            };
            match assembler.line(line) {
                Ok(assembled) => {
                    if let Some(label) = assembled.label {
                        self.label(label, assembled.offset.0, line);
                    }
                }
                Err(AssembleError::Text(error)) => {
                    let (column, word) = error.within(line);
                    self.wrong(line, column, word, &error.to_string());
                }
                Err(AssembleError::Sink(never)) => match never {},
            }
        }
        Ok(assembler.into_sink().0)
    }

    fn label(&mut self, label: &str, offset: u64, line: &str) {
        if is_offset(label) {
            return;
        }
        let column = line.len() - line.trim_start().len();
        if label.is_empty() {
            return self.wrong(line, column, ":", "there is no name before the colon");
        }
        if let Some(first) = self.labels.get(label) {
            let told = format!("line {first} has this label already");
            return self.wrong(line, column, label, &told);
        }
        self.labels.insert(label.to_owned(), self.number);
        let _ = writeln!(self.list, "{label} {offset:x}");
    }

    /// Reports a line of which the word at `column` (from 0, in bytes) is wrong.
    fn wrong(&mut self, line: &str, column: usize, word: &str, what: &str) {
        self.bad_lines += 1;
        let before = &line[..column];
        let mut told = format!(
            "{}:{}:{}: {what}\n",
            self.name,
            self.number,
            before.chars().count() + 1
        );
        if line.len() <= LONGEST_SHOWN {
            let shown = |letter: char| {
                if letter.is_control() && letter != '\t' {
                    '?'
                } else {
                    letter
                }
            };
            let blank = |letter| if letter == '\t' { '\t' } else { ' ' };
            told.push_str("    ");
            told.extend(line.chars().map(shown));
            told.push_str("\n    ");
            told.extend(before.chars().map(blank));
            told.extend(std::iter::repeat_n('^', word.chars().count().max(1)));
            told.push('\n');
        }
        // If standard error is closed, nobody wants to hear it.
        let _ = std::io::stderr().write_all(told.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::is_offset;

    #[test]
    fn offsets_and_names() {
        assert!(["0", "1f0", "add"].into_iter().all(is_offset));
        assert!(!["", "main", "1F0", "0x10"].into_iter().any(is_offset));
    }
}
