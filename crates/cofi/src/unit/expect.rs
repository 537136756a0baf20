//! The keys `expect` and `expect_start` of a scenario: what each line asks for.

use super::check::{Shown, is_form, lines};
use super::matching::{MOST_ANY_ORDER, MOST_OPTIONAL, Want, Wanted};
use super::reader::{Mistake, Read};
use super::record::{Mark, Note, Output, Record, Where};
use super::registers::{Traced, register_named};
use super::scenario::Expect;
use cofi_packet::{AssembleError, Assembler};
use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;

/// The faults that a line `fault NAME` can name.
const FAULTS: [&str; 4] = ["#GP", "#UD", "shutdown", "vm-entry"];

/// How a line is to be met.
#[derive(Clone, Copy, Default)]
struct Manner {
    optional: bool,
    /// The form of its address counts.
    form: bool,
    /// The lines in any order to which it belongs.
    group: Option<usize>,
}

/// The lines of an expected output, the packets read behind those of `before`.
pub(super) fn expected<F: Traced>(
    before: &[Shown],
    record: &Record<F>,
    expect: &Expect,
) -> Read<Vec<Wanted>> {
    let bytes = RefCell::new(Vec::new());
    let sink = |packet: &[u8]| -> Result<(), Infallible> {
        bytes.borrow_mut().extend_from_slice(packet);
        Ok(())
    };
    let mut assembler = Assembler::<F, _>::in_context(sink, record.context);
    // What was sent before says how the addresses that follow are compressed.
    for line in before {
        // It was just listed, so it can be assembled; if it is no packet, it is nothing to the assembler.
        let _ = assembler.line(&line.to_string());
    }
    let begin = bytes.borrow().len();
    let (mut marks, mut cuts) = (Vec::new(), Vec::new());
    let mut manners = HashMap::new();
    let (mut group, mut groups, mut optional) = (None, 0, 0);
    for (index, line) in expect.text.lines().enumerate() {
        let wrong = |what: &str| {
            let (key, number) = (expect.key, index + 1);
            Mistake::new(expect.at, format!("`{key}`, line {number}: {what}"))
        };
        let mut manner = Manner {
            group,
            ..Manner::default()
        };
        let mut text = line.trim();
        match (words_of(text).as_slice(), group) {
            (["{"], None) => {
                group = Some(groups);
                groups += 1;
                continue;
            }
            (["}"], Some(_)) => {
                group = None;
                continue;
            }
            (["{"], Some(_)) => return Err(wrong("`{` within `{`")),
            (["}"], None) => return Err(wrong("`}` without `{`")),
            _ => {}
        }
        if let Some(rest) = text.strip_prefix('?') {
            (manner.optional, text) = (true, rest.trim_start());
            optional += 1;
            if optional > MOST_OPTIONAL {
                return Err(wrong(&format!(
                    "more than {MOST_OPTIONAL} lines are optional"
                )));
            }
        }
        let offset = bytes.borrow().len();
        let words = words_of(text);
        if let Some(note) = note::<F>(&words, record.lists_stores).map_err(|what| wrong(&what))? {
            manners.insert(Place::Line(index as u64), manner);
            marks.push(Mark {
                offset,
                op: index as u64,
                note,
            });
            continue;
        }
        if record.lists_stores && !words.is_empty() {
            return Err(wrong(&format!("`{text}`: no packets are listed")));
        }
        let (cut, packet) = match words.as_slice() {
            ["cut", number, ..] => {
                let number = number.parse::<usize>().ok();
                let rest = text
                    .split_once("cut")
                    .map_or("", |(_, rest)| rest.trim_start());
                let packet = rest.split_once(char::is_whitespace).map_or("", |it| it.1);
                (Some(number), packet)
            }
            _ => (None, text),
        };
        manner.form = words.iter().any(|word| is_form(word));
        match assembler.line(packet) {
            Ok(_) => {}
            Err(AssembleError::Text(error)) => {
                return Err(wrong(&format!("`{packet}`: {error}")));
            }
            Err(AssembleError::Sink(never)) => match never {},
        }
        let end = bytes.borrow().len();
        if let Some(kept) = cut {
            let size = end - offset;
            let kept = kept
                .filter(|kept| (1..size).contains(kept))
                .ok_or_else(|| {
                    wrong("expected `cut BYTES PACKET`, with fewer bytes than the packet has")
                })?;
            bytes.borrow_mut().truncate(offset + kept);
            cuts.push(offset + kept);
        }
        if bytes.borrow().len() > offset {
            manners.insert(Place::Byte(offset as u64), manner);
        }
    }
    if group.is_some() {
        return Err(Mistake::new(
            expect.at,
            format!("`{}`: `{{` without `}}`", expect.key),
        ));
    }
    let stream = bytes.into_inner();
    let shown = lines(&Output::<F> {
        stream: &stream,
        context: record.context,
        cuts: &cuts,
        marks: &marks,
    });
    let is_new = |line: &Shown| line.offset.is_none_or(|offset| offset >= begin as u64);
    let shown = shown.into_iter().filter(is_new);
    arranged(shown, &manners)
        .map_err(|what| Mistake::new(expect.at, format!("`{}`: {what}", expect.key)))
}

/// What a line came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    /// A packet: its offset.
    Byte(u64),
    /// A note: the index of its line.
    Line(u64),
}

/// The lines with how they are to be met.
fn arranged(
    shown: impl Iterator<Item = Shown>,
    manners: &HashMap<Place, Manner>,
) -> Result<Vec<Wanted>, String> {
    let mut wanted = Vec::new();
    let mut last = None;
    for mut shown in shown {
        let place = shown.offset.map_or(Place::Line(shown.op), Place::Byte);
        let manner = manners.get(&place).copied().unwrap_or_default();
        if !manner.form {
            shown.form = None;
        }
        let want = Want {
            shown,
            optional: manner.optional,
        };
        match (manner.group, wanted.last_mut()) {
            (Some(group), Some(Wanted::AnyOrder(wants))) if last == Some(group) => wants.push(want),
            (Some(_), _) => wanted.push(Wanted::AnyOrder(vec![want])),
            (None, _) => wanted.push(Wanted::One(want)),
        }
        if let Some(Wanted::AnyOrder(wants)) = wanted.last()
            && wants.len() > MOST_ANY_ORDER
        {
            return Err(format!("more than {MOST_ANY_ORDER} lines in any order"));
        }
        last = manner.group;
    }
    Ok(wanted)
}

/// The words of a line, without its comment.
fn words_of(line: &str) -> Vec<&str> {
    let is_comment = |word: &&str| word.starts_with([';', '#']);
    let fault = line.split_ascii_whitespace().next() == Some("fault");
    let mut words: Vec<_> = line.split_ascii_whitespace().collect();
    // `#GP` is no comment.
    let from = if fault { 2 } else { 0 };
    let end = words.iter().skip(from).position(is_comment);
    if let Some(end) = end {
        words.truncate(from + end);
    }
    words
}

/// What a line asks for, if it is no packet.
fn note<F: Traced>(words: &[&str], lists_stores: bool) -> Result<Option<Note>, String> {
    let note = match words {
        ["fault", rest @ ..] => {
            let name = rest.first().copied().unwrap_or_default();
            let name = FAULTS.into_iter().find(|fault| *fault == name);
            let name = name.ok_or_else(|| format!("`fault` needs one of {}", FAULTS.join(", ")))?;
            if rest.len() > 1 {
                return Err(format!("`{}`: there is too much", words.join(" ")));
            }
            let rule = String::new();
            Note::Fault { name, rule }
        }
        ["pmi"] => Note::Pmi,
        ["pmi", ..] => return Err(format!("`{}`: there is too much", words.join(" "))),
        ["msr", rest @ ..] => read::<F>(rest).ok_or(
            "expected `msr NAME = VALUE` or `msr NAME & MASK = VALUE`, with a known register",
        )?,
        [word @ ("store" | "dropped" | "transport:"), ..] if lists_stores => {
            let form = match *word {
                "transport:" => "transport: BYTES",
                "store" => "store ADDRESS: BYTES",
                _ => "dropped ADDRESS: BYTES",
            };
            store(words).ok_or_else(|| format!("expected `{form}`, in hexadecimal"))?
        }
        _ => return Ok(None),
    };
    Ok(Some(note))
}

/// `store ADDRESS: BYTE BYTE …`, `dropped ADDRESS: BYTE …`, `transport: BYTE …`.
fn store(words: &[&str]) -> Option<Note> {
    let (to, bytes) = match words {
        ["transport:", bytes @ ..] => (Where::Transport, bytes),
        [word, address, bytes @ ..] => {
            let digits = address.strip_suffix(':')?.strip_prefix("0x")?;
            let address = u64::from_str_radix(digits, 16).ok()?;
            let to = match *word {
                "store" => Where::Memory(address),
                _ => Where::Dropped(address),
            };
            (to, bytes)
        }
        _ => return None,
    };
    let bytes = bytes.iter().map(|byte| u8::from_str_radix(byte, 16));
    let bytes = bytes.collect::<Result<_, _>>().ok()?;
    Some(Note::Store { to, bytes })
}

/// `NAME = VALUE`, `NAME & MASK = VALUE`.
fn read<F: Traced>(words: &[&str]) -> Option<Note> {
    let (msr, mask, value) = match *words {
        [msr, "=", value] => (msr, u64::MAX, value),
        [msr, "&", mask, "=", value] => (msr, number(mask)?, value),
        _ => return None,
    };
    let msr = match msr.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => register_named::<F>(msr)?,
    };
    let value = number(value)?;
    Some(Note::Read { msr, value, mask })
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
