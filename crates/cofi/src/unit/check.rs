//! The output of a scenario against what its file expects.

use super::expect::expected;
use super::matching::{Wanted, compared, is_met};
use super::reader::Read;
use super::record::{Note, Output, Record};
use super::registers::{Traced, register_name};
use super::scenario::Expected;
use super::show::{Entry, hex, line, walk};
use cofi_packet::{Listed, Value, extent};
use std::fmt::{self, Write as _};

/// Of bytes that form no packet, so many are shown.
const MOST_SHOWN: usize = 16;

/// What differs between the output and what is expected; `None` if nothing does.
pub(super) fn difference<F: Traced>(record: &Record<F>, expect: &Expected) -> Read<Option<String>> {
    let mut got = lines(&record.listed());
    let begun = got.partition_point(|line| line.op == 0);
    let operations = got.split_off(begun);
    let mut told = String::new();
    let mut compare = |part: &str, want: &[Wanted], got: &[Shown]| {
        if !is_met(want, got) {
            let list = compared(want, got);
            let gap = if told.is_empty() { "" } else { "\n" };
            let _ = write!(told, "{gap}- expected{part}\n+ came out{part}\n\n{list}");
        }
    };
    if let Some(expect) = &expect.start {
        compare(" of [start]", &expected(&[], record, expect)?, &got);
    }
    if let Some(expect) = &expect.operations {
        compare("", &expected(&got, record, expect)?, &operations);
    }
    Ok((!told.is_empty()).then_some(told))
}

/// The operands that say in which form an address was sent.
const FORM: [&str; 3] = ["ipc=", "cnt=", "zext="];

pub(super) fn is_form(word: &str) -> bool {
    FORM.iter().any(|key| word.starts_with(key))
}

/// One line of an output.
#[derive(Clone)]
pub(super) struct Shown {
    /// Where the packet stands; nothing for a note.
    pub(super) offset: Option<u64>,
    /// The operation; of a note that is expected, its line.
    pub(super) op: u64,
    /// The text, without the form of an address.
    text: String,
    /// The form of the address.
    pub(super) form: Option<String>,
    /// A register that was read, its value, and which bits of it count.
    read: Option<(u32, u64, u64)>,
}

impl Shown {
    /// Whether `got` is what is expected here. The form of an address counts only where it is, and of registers the bits that do.
    pub(super) fn is(&self, got: &Self) -> bool {
        let is_same = match (self.read, got.read) {
            (Some((msr, value, mask)), Some((other, was, _))) => {
                msr == other && (value ^ was) & mask == 0
            }
            _ => self.text == got.text,
        };
        is_same && (self.form.is_none() || self.form == got.form)
    }

    fn plain(op: u64, text: String) -> Self {
        Self {
            offset: None,
            op,
            text,
            form: None,
            read: None,
        }
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

fn packet<F: Traced>(op: u64, offset: u64, listed: &Listed<F>) -> Shown {
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
        offset: Some(offset),
        form: (!form.is_empty()).then_some(form),
        ..Shown::plain(op, words.join(" "))
    }
}

fn note<F: Traced>(op: u64, note: &Note) -> Option<Shown> {
    let mut shown = Shown::plain(op, line::<F>(note)?);
    if let Note::Read { msr, value, mask } = *note {
        shown.read = Some((msr, value, mask));
        debug_assert!(shown.text.contains(&register_name::<F>(msr)));
    }
    Some(shown)
}

/// All lines of an output.
pub(super) fn lines<F: Traced>(output: &Output<'_, F>) -> Vec<Shown> {
    let mut lines = Vec::new();
    // Nothing is written, so nothing fails.
    let _ = walk(output, |op, entry| {
        lines.extend(match entry {
            Entry::Note(it) => note::<F>(op, it),
            Entry::Packet(Ok(located), Some(listed)) => Some(packet(op, located.offset.0, &listed)),
            Entry::Packet(Ok(_), None) => None,
            Entry::Packet(item @ Err(error), _) => {
                let (offset, size) = extent(item);
                let from = usize::try_from(offset.0).unwrap_or(usize::MAX);
                let bytes = output.stream.get(from..).unwrap_or_default();
                let bytes = &bytes[..size.min(bytes.len())];
                let shown = hex(&bytes[..bytes.len().min(MOST_SHOWN)]);
                let more = if bytes.len() > MOST_SHOWN { " …" } else { "" };
                Some(Shown {
                    offset: Some(offset.0),
                    ..Shown::plain(op, format!("error: {}: {shown}{more}", error.error))
                })
            }
        });
        Ok(())
    });
    lines
}
