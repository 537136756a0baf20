//! A function as a person reads it: the source on the left, the instructions on the right.

use super::{Listing, Row};
use crate::coverage::percent;
use crate::source_text::SourceText;
use crate::table::begin_of;
use cofi_text::digits::{counted, grouped};
use std::io::{Result, Write};
use std::rc::Rc;

/// How it is printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) is_coloured: bool,
    /// How many columns there are, if that matters.
    pub(super) width: Option<usize>,
}

/// The source is no wider than this. Where there is no room for so much, it stands above the instructions and not beside them.
const WIDEST: usize = 52;
const NARROWEST: usize = 32;

/// How much of the columns belongs to instructions.
const INSNS: usize = 78;

/// What stands in front of the instructions of a line.
struct Left {
    count: String,
    /// The line's number, if the text is the line.
    number: Option<u32>,
    text: String,
}

impl Style {
    /// A text in the colour of how hot it is: `times` of `most`.
    fn heat(self, text: &str, times: u64, most: u64) -> String {
        let code = match times {
            _ if !self.is_coloured => return text.to_owned(),
            0 => "2",
            _ if times >= most / 2 => "1;31",
            _ if times >= most / 10 => "33",
            _ => return text.to_owned(),
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    fn bold(self, text: &str) -> String {
        match self.is_coloured {
            true => format!("\x1b[1m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// Prints a function. `all` is how many instructions ran in all.
pub(super) fn print(
    listing: &Listing<'_>,
    all: u64,
    texts: &mut SourceText,
    style: Style,
    out: &mut impl Write,
) -> Result<()> {
    head(listing, all, style, out)?;
    let rows = &listing.rows;
    let most = rows.iter().map(|row| row.count.times).max().unwrap_or(0);
    let has_lines = rows.iter().any(|row| row.line.is_some());
    let beside = style
        .width
        .map_or(WIDEST, |width| width.saturating_sub(INSNS).min(WIDEST));
    if has_lines && beside < NARROWEST {
        return print_above(listing, most, texts, style, out);
    }
    let width = beside;
    let mut last: Option<&(Rc<str>, u32)> = None;
    let mut missing: Vec<Rc<str>> = Vec::new();
    if has_lines {
        let heads = format!(
            "{:>13}  {:<width$}  {:>13}  {:>8}",
            "line ran", "source", "ran", "address"
        );
        writeln!(out, "{}", style.bold(&format!("{heads}  instruction")))?;
    } else {
        let heads = format!("{:>13}  {:>8}  instruction", "ran", "address");
        writeln!(out, "{}", style.bold(&heads))?;
    }
    for row in rows {
        let is_new = row.line.is_some() && row.line.as_ref() != last;
        last = row.line.as_ref();
        let left = match &row.line {
            Some(line) if is_new => left_of(listing, line, texts, &mut missing),
            _ => Left {
                count: String::new(),
                number: None,
                text: String::new(),
            },
        };
        if has_lines {
            let text = match left.number {
                Some(number) => format!("{number:>4}  {}", left.text),
                None => left.text,
            };
            let text = begin_of(&text, width);
            let pad = width - text.chars().count();
            write!(out, "{:>13}  {text}{:pad$}  ", left.count, "")?;
        }
        writeln!(out, "{}", insn_line(row, most, style))?;
    }
    report_missing(&missing, out)
}

/// How often an instruction ran, where it stands, and what it is.
fn insn_line(row: &Row, most: u64, style: Style) -> String {
    let count = format!("{:>13}", times(row.count.times));
    let count = style.heat(&count, row.count.times, most);
    let text = instruction(row);
    let text = match row.count.times {
        0 => style.heat(&text, 0, most),
        _ => text,
    };
    let line = format!("{count}  {:>8x}  {text}", row.address);
    line.trim_end().to_owned()
}

fn report_missing(missing: &[Rc<str>], out: &mut impl Write) -> Result<()> {
    for file in missing {
        writeln!(out, "(The source is not there: {file}.)")?;
    }
    Ok(())
}

/// Prints each line of the source above its instructions: for a terminal that is too narrow for both beside each other.
fn print_above(
    listing: &Listing<'_>,
    most: u64,
    texts: &mut SourceText,
    style: Style,
    out: &mut impl Write,
) -> Result<()> {
    let mut last: Option<&(Rc<str>, u32)> = None;
    let mut missing: Vec<Rc<str>> = Vec::new();
    let heads = format!("{:>13}  {:>8}  source, instruction", "ran", "address");
    writeln!(out, "{}", style.bold(&heads))?;
    for row in &listing.rows {
        if let Some(line) = row.line.as_ref().filter(|line| last != Some(*line)) {
            let left = left_of(listing, line, texts, &mut missing);
            let text = match left.number {
                Some(number) => format!("{:>13}  {number:>8}: {}", left.count, left.text),
                None => format!("{:>13}  {}", left.count, left.text),
            };
            let text = begin_of(&text, style.width.unwrap_or(usize::MAX));
            writeln!(out, "{}", style.bold(text.trim_end()))?;
        }
        last = row.line.as_ref();
        writeln!(out, "{}", insn_line(row, most, style))?;
    }
    report_missing(&missing, out)
}

fn head(listing: &Listing<'_>, all: u64, style: Style, out: &mut impl Write) -> Result<()> {
    let function = listing.function;
    let source = function.declared.and_then(|(file, line)| {
        let file = listing.cover.files.get(file as usize)?;
        Some(format!("  {file}:{line}"))
    });
    let ran = match function.insns {
        0 => "never ran".to_owned(),
        insns => format!(
            "came to {}, {} ({} % of all)",
            counted(function.calls, "time"),
            counted(insns, "instruction"),
            percent(insns, all)
        ),
    };
    let name = style.bold(&function.name);
    let source = source.unwrap_or_default();
    let file = format!("  in {}", listing.code.path().display());
    let len = [&function.name, &source, &file].map(|text| text.chars().count());
    // One below the other where there is no room.
    let is_long = style
        .width
        .is_some_and(|width| len.iter().sum::<usize>() > width);
    match is_long {
        false => writeln!(out, "{name}{source}{file}")?,
        true if source.is_empty() => writeln!(out, "{name}\n{file}")?,
        true => writeln!(out, "{name}\n{source}\n{file}")?,
    }
    writeln!(out, "{ran}\n")
}

/// The line with which instructions begin that were compiled from it.
fn left_of(
    listing: &Listing<'_>,
    (file, number): &(Rc<str>, u32),
    texts: &mut SourceText,
    missing: &mut Vec<Rc<str>>,
) -> Left {
    let name = file.rsplit('/').next().unwrap_or_default();
    let (known, text) = match texts.line(file, *number) {
        // A tab would move what stands behind it.
        Some(text) => (Some(*number), text.replace('\t', "    ")),
        None => (None, format!("{name}:{number}")),
    };
    if texts.is_missing(file) && !missing.contains(file) {
        missing.push(file.clone());
    }
    let files = &listing.cover.files;
    let index = files.iter().position(|known| **known == **file);
    let place = index.map(|index| (index as u32, *number));
    let count = place.and_then(|place| listing.cover.lines.get(&place));
    Left {
        count: times(count.map_or(0, |line| line.count)),
        number: known,
        text,
    }
}

/// A count; what never ran shows at a glance.
fn times(count: u64) -> String {
    match count {
        0 => "never".into(),
        count => grouped(count),
    }
}

/// The instruction, where it leads, and how often.
fn instruction(row: &Row) -> String {
    let mut text = row.text.clone();
    if let Some(to) = &row.to {
        text = format!("{text} <{to}>");
    }
    let count = &row.count;
    if !count.is_conditional() || count.times == 0 {
        return text;
    }
    let taken = match (count.taken, count.not_taken()) {
        (0, _) => "never taken".to_owned(),
        (_, 0) if count.unknown == 0 => "always taken".to_owned(),
        (taken, not_taken) => format!(
            "taken {} ({} %), not {}",
            grouped(taken),
            percent(taken, count.times),
            grouped(not_taken)
        ),
    };
    let unknown = match count.unknown {
        0 => String::new(),
        unknown => format!(", unknown {}", grouped(unknown)),
    };
    format!("{text:<28}  {taken}{unknown}")
}
