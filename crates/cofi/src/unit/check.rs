//! The output of a scenario against what its file expects.

use super::reader::{Mistake, Read};
use super::record::{Mark, Note, Record};
use super::registers::{Traced, register_named};
use super::scenario::Expect;
use super::show::{Entry, line, walk};
use cofi_packet::{AssembleError, Assembler, Listed, Value};
use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt::{self, Write as _};

/// Longer lists are compared only up to the first difference.
const MOST_COMPARED: usize = 2000;

/// The faults that a line `fault NAME` can name.
const FAULTS: [&str; 4] = ["#GP", "#UD", "shutdown", "vm-entry"];

/// What differs between the output, without that of `[start]`, and what is expected; `None` if nothing does.
pub(super) fn difference<F: Traced>(record: &Record<F>, expect: &Expect) -> Read<Option<String>> {
    let stream = record.packets();
    let begun = record.marks.partition_point(|mark| mark.op == 0);
    let marks = &record.marks[begun..];
    // What `[start]` sent says how the addresses that follow are compressed.
    let started = marks.first().map_or(stream.len(), |mark| mark.offset);
    let start = lines::<F>(
        stream.get(..started).unwrap_or_default(),
        record.context,
        &[],
    );
    let expected = expected(&start, record, expect)?;
    let mut want = lines::<F>(&expected.stream, record.context, &expected.marks);
    for line in &mut want {
        if !expected.forms.contains(&line.offset) {
            line.form = None;
        }
    }
    let got = lines::<F>(stream, record.context, marks);
    let skip = start.len();
    let (want, got) = (&want[skip.min(want.len())..], &got[skip.min(got.len())..]);
    let same = want.len() == got.len() && want.iter().zip(got).all(|(want, got)| want.is(got));
    Ok((!same).then(|| compared(want, got)))
}

/// The operands that say in which form an address was sent.
const FORM: [&str; 3] = ["ipc=", "cnt=", "zext="];

fn is_form(word: &str) -> bool {
    FORM.iter().any(|key| word.starts_with(key))
}

/// One line of an output.
#[derive(Clone)]
struct Shown {
    offset: u64,
    /// The text, without the form of an address.
    text: String,
    /// The form of the address.
    form: Option<String>,
}

impl Shown {
    /// Whether `got` is what is expected here. The form of an address counts only where it is.
    fn is(&self, got: &Self) -> bool {
        self.text == got.text && (self.form.is_none() || self.form == got.form)
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match &self.form {
            Some(form) => f.write_str(form),
            None => Ok(()),
        }
    }
}

fn packet<F: Traced>(offset: u64, listed: &Listed<F>) -> Shown {
    let mut form = String::new();
    listed.visit(&mut |key, value| {
        let number = match value {
            Value::Number(number) | Value::Named(number, _) => number,
            Value::Bool(flag) => flag.into(),
            _ => return,
        };
        if is_form(&format!("{key}=")) {
            let _ = write!(form, " {key}={number}");
        }
    });
    let text = listed.to_string();
    let words: Vec<_> = text.split(' ').filter(|word| !is_form(word)).collect();
    Shown {
        offset,
        text: words.join(" "),
        form: (!form.is_empty()).then_some(form),
    }
}

/// All lines of an output.
fn lines<F: Traced>(stream: &[u8], context: F::Context, marks: &[Mark]) -> Vec<Shown> {
    let mut lines = Vec::new();
    // Nothing is written, so nothing fails.
    let _ = walk::<F>(stream, context, marks, |_, entry| {
        let plain = |text| Shown {
            offset: 0,
            text,
            form: None,
        };
        lines.extend(match entry {
            Entry::Note(note) => line::<F>(note).map(plain),
            Entry::Packet(Ok(located), Some(listed)) => Some(packet(located.offset.0, &listed)),
            Entry::Packet(Err(error), _) => Some(plain(format!("error: {}", error.error))),
            Entry::Packet(Ok(_), None) => None,
        });
        Ok(())
    });
    lines
}

/// An expected output.
struct Expected {
    stream: Vec<u8>,
    marks: Vec<Mark>,
    /// Where packets are that say the form of their address.
    forms: HashSet<u64>,
}

/// The packets and notes of an expected output, behind the packets of `[start]`.
fn expected<F: Traced>(start: &[Shown], record: &Record<F>, expect: &Expect) -> Read<Expected> {
    let mut bytes = Vec::new();
    let mut marks = Vec::new();
    let mut forms = HashSet::new();
    let sink = |packet: &[u8]| -> Result<(), Infallible> {
        bytes.extend_from_slice(packet);
        Ok(())
    };
    let mut assembler = Assembler::<F, _>::in_context(sink, record.context);
    for line in start {
        // It was just listed, so it can be assembled.
        let _ = assembler.line(&line.to_string());
    }
    for (index, line) in expect.text.lines().enumerate() {
        let wrong = |what: &str| {
            let number = index + 1;
            Mistake::new(expect.at, format!("`expect`, line {number}: {what}"))
        };
        let offset = assembler.offset().0;
        let mut words = line.split_ascii_whitespace();
        let note = match words.next() {
            Some("fault") => {
                let name = words.next().unwrap_or_default();
                let name = FAULTS.into_iter().find(|fault| *fault == name);
                let name = name
                    .ok_or_else(|| wrong(&format!("`fault` needs one of {}", FAULTS.join(", "))))?;
                let rule = String::new();
                Note::Fault { name, rule }
            }
            Some("pmi") => Note::Pmi,
            Some("msr") => read::<F>(&mut words)
                .ok_or_else(|| wrong("expected `msr NAME = VALUE`, with a known register"))?,
            Some("store") if record.lists_stores => store(&mut words)
                .ok_or_else(|| wrong("expected `store ADDRESS: BYTES`, in hexadecimal"))?,
            Some(word) if record.lists_stores && !is_comment(word) => {
                return Err(wrong(&format!("`{}`: no packets are listed", line.trim())));
            }
            _ => {
                if words.any(is_form) {
                    forms.insert(offset);
                }
                match assembler.line(line) {
                    Ok(_) => {}
                    Err(AssembleError::Text(error)) => {
                        return Err(wrong(&format!("`{}`: {error}", line.trim())));
                    }
                    Err(AssembleError::Sink(never)) => match never {},
                }
                continue;
            }
        };
        if words.next().is_some_and(|word| !is_comment(word)) {
            return Err(wrong(&format!("`{}`: there is too much", line.trim())));
        }
        marks.push(Mark {
            offset: usize::try_from(offset).unwrap_or(usize::MAX),
            op: 1,
            note,
        });
    }
    Ok(Expected {
        stream: bytes,
        marks,
        forms,
    })
}

fn is_comment(word: &str) -> bool {
    word.starts_with([';', '#'])
}

/// `ADDRESS: BYTE BYTE …`.
fn store<'t>(words: &mut impl Iterator<Item = &'t str>) -> Option<Note> {
    let address = words.next()?.strip_suffix(':')?.strip_prefix("0x")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let mut bytes = Vec::new();
    for word in words.take_while(|word| !is_comment(word)) {
        bytes.push(u8::from_str_radix(word, 16).ok()?);
    }
    Some(Note::Store { address, bytes })
}

/// `NAME = VALUE`.
fn read<'t, F: Traced>(words: &mut impl Iterator<Item = &'t str>) -> Option<Note> {
    let msr = words.next()?;
    let msr = match msr.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => register_named::<F>(msr)?,
    };
    if words.next()? != "=" {
        return None;
    }
    let value = words.next()?;
    let value = match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => value.parse().ok()?,
    };
    Some(Note::Read { msr, value })
}

/// Both lists side by side: `-` is expected and missing, `+` came and was not expected.
fn compared(want: &[Shown], got: &[Shown]) -> String {
    let mut told = String::from("- expected\n+ came out\n\n");
    if want.len().max(got.len()) > MOST_COMPARED {
        let same = want
            .iter()
            .zip(got)
            .take_while(|(want, got)| want.is(got))
            .count();
        let of = |list: &[Shown]| match list.get(same) {
            Some(line) => line.to_string(),
            None => "nothing".into(),
        };
        let _ = writeln!(
            told,
            "  {} {} the same\n- {}\n+ {}",
            cofi_packet::counted(same as u64, "line"),
            cofi_packet::agreeing(same as u64, "is", "are"),
            of(want),
            of(got)
        );
        return told;
    }
    // Lengths of the longest common subsequences of what is left of both.
    let width = got.len() + 1;
    let mut common = vec![0_u32; (want.len() + 1) * width];
    for i in (0..want.len()).rev() {
        for j in (0..got.len()).rev() {
            common[i * width + j] = if want[i].is(&got[j]) {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < want.len() || j < got.len() {
        if i < want.len() && j < got.len() && want[i].is(&got[j]) {
            let _ = writeln!(told, "  {}", want[i]);
            (i, j) = (i + 1, j + 1);
        } else if j == got.len()
            || i < want.len() && common[(i + 1) * width + j] >= common[i * width + j + 1]
        {
            let _ = writeln!(told, "- {}", want[i]);
            i += 1;
        } else {
            let _ = writeln!(told, "+ {}", got[j]);
            j += 1;
        }
    }
    told
}
