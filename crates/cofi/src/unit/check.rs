//! The output of a scenario against what its file expects.

use super::reader::{Mistake, Read};
use super::scenario::Expect;
use super::show::{Entry, line, walk};
use super::values::register_named;
use super::world::{Mark, Note, World};
use cofi_packet::intel::{Assembler, IntelPt};
use cofi_packet::{AssembleError, Listed, Value};
use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt::{self, Write as _};

/// Longer lists are compared only up to the first difference.
const MOST_COMPARED: usize = 2000;

/// The faults that a line `fault NAME` can name.
const FAULTS: [&str; 4] = ["#GP", "#UD", "shutdown", "vm-entry"];

/// What differs between the output, without that of `[start]`, and what is expected; `None` if nothing does.
pub(super) fn difference(world: &World, expect: &Expect) -> Read<Option<String>> {
    // What `[start]` sent says how the addresses that follow are compressed.
    let started = world
        .marks
        .iter()
        .find(|mark| mark.op > 0)
        .map_or(world.stream.len(), |mark| mark.offset);
    let start = lines(&world.stream[..started], &[]);
    let expected = expected(&start, expect)?;
    let mut want = lines(&expected.stream, &expected.marks);
    for line in &mut want {
        line.form = line.form.filter(|_| expected.forms.contains(&line.offset));
    }
    let got = lines(&world.stream, &world.marks);
    let skip = start.len();
    let (want, got) = (&want[skip.min(want.len())..], &got[skip.min(got.len())..]);
    let same = want.len() == got.len() && want.iter().zip(got).all(|(want, got)| want.is(got));
    Ok((!same).then(|| compared(want, got)))
}

/// One line of an output.
#[derive(Clone)]
struct Shown {
    offset: u64,
    /// The text, without the form of an address.
    text: String,
    /// The form of the address.
    form: Option<u64>,
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
        match self.form {
            Some(form) => write!(f, " ipc={form}"),
            None => Ok(()),
        }
    }
}

fn packet(offset: u64, listed: &Listed<IntelPt>) -> Shown {
    let mut form = None;
    listed.visit(&mut |key, value| {
        if let ("ipc", Value::Number(number) | Value::Named(number, _)) = (key, value) {
            form = Some(number);
        }
    });
    let text = listed.to_string();
    let words: Vec<_> = text
        .split(' ')
        .filter(|word| !word.starts_with("ipc="))
        .collect();
    Shown {
        offset,
        text: words.join(" "),
        form,
    }
}

/// All lines of an output.
fn lines(stream: &[u8], marks: &[Mark]) -> Vec<Shown> {
    let mut lines = Vec::new();
    // Nothing is written, so nothing fails.
    let _ = walk(stream, marks, |_, entry| {
        let plain = |text| Shown {
            offset: 0,
            text,
            form: None,
        };
        lines.extend(match entry {
            Entry::Note(note) => line(note).map(plain),
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
fn expected(start: &[Shown], expect: &Expect) -> Read<Expected> {
    let mut bytes = Vec::new();
    let mut marks = Vec::new();
    let mut forms = HashSet::new();
    let mut assembler = Assembler::new(|packet: &[u8]| -> Result<(), Infallible> {
        bytes.extend_from_slice(packet);
        Ok(())
    });
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
            Some("msr") => read(&mut words)
                .ok_or_else(|| wrong("expected `msr NAME = VALUE`, with a known register"))?,
            _ => {
                if words.any(|word| word.starts_with("ipc=")) {
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
        if words
            .next()
            .is_some_and(|word| !word.starts_with([';', '#']))
        {
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

/// `NAME = VALUE`.
fn read<'t>(words: &mut impl Iterator<Item = &'t str>) -> Option<Note> {
    let msr = words.next()?;
    let msr = match msr.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => register_named(msr)?,
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
            "  {same} lines are the same\n- {}\n+ {}",
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
