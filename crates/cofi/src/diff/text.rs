//! The differences as people read them.

use super::counts::FunctionCounts;
use super::spots::{self, Reader, Step};
use super::{DiffArgs, DiffLevel, Outcome, Thread};
use crate::check::no_gaps;
use crate::input;
use crate::output::{Stdout, is_coloured};
use crate::report::file_name;
use crate::table::{Column, fitted, shortened, width_of};
use anyhow::Result;
use cofi_analysis::diff::{FileMatch, Frame, Parting, PartingCause, ThreadDiff, Turn};
use cofi_session::Stream;
use cofi_text::digits::{counted, grouped};
use console::{Style, Term};
use std::io::Write;

/// So many steps are shown of what comes.
const STEPS: usize = 6;

/// So many functions, and lines.
const ROWS: usize = 15;

/// The names of the two sides.
const SIDES: [&str; 2] = ["A", "B"];

/// How it is printed.
struct Look {
    width: usize,
    table: Option<usize>,
    bold: Style,
    dim: Style,
    /// One for each side.
    sides: [Style; 2],
}

impl Look {
    fn of(args: &DiffArgs) -> Self {
        let is_coloured = is_coloured(args.color);
        let table = width_of(&Term::stdout());
        Self {
            width: table.unwrap_or(usize::MAX),
            table,
            bold: Style::new().bold().force_styling(is_coloured),
            dim: Style::new().dim().force_styling(is_coloured),
            sides: [Style::new().red(), Style::new().green()]
                .map(|style| style.force_styling(is_coloured)),
        }
    }
}

pub(super) fn print(outcome: &Outcome<'_, '_>, args: &DiffArgs, out: &mut Stdout) -> Result<()> {
    let look = Look::of(args);
    files(outcome, out)?;
    match outcome.is_same() {
        Some(true) | None => same(outcome, args, &look, out)?,
        Some(false) => differences(outcome, args, &look, out)?,
    }
    Ok(())
}

/// Says of files that are not the same in both how they were compared.
fn files(outcome: &Outcome<'_, '_>, out: &mut Stdout) -> Result<()> {
    let mut any = false;
    for file in outcome.files.list() {
        let name = file_name(&file.path);
        let other = file
            .other
            .as_deref()
            .map(file_name)
            .filter(|other| *other != name);
        let both = other.map_or_else(
            || name.clone(),
            |other| format!("{name} (A) and {other} (B)"),
        );
        if let FileMatch::Rebuilt {
            alike,
            by_line,
            by_offset,
        } = file.how
        {
            writeln!(out, "Two builds of {both}, compared function by function:")?;
            for (count, how) in [
                (alike, "by offset: they are alike in both"),
                (by_line, "by line"),
                (
                    by_offset,
                    "by offset: they are not alike, and no lines are known",
                ),
            ] {
                if count > 0 {
                    writeln!(out, "  {} {how}", counted(count, "function"))?;
                }
            }
            any = true;
        }
    }
    if any {
        writeln!(out)?;
    }
    Ok(())
}

/// No difference was found.
fn same(outcome: &Outcome<'_, '_>, args: &DiffArgs, look: &Look, out: &mut Stdout) -> Result<()> {
    let [a, b] = outcome.equal();
    let threads = counted(outcome.threads.len() as u64, "thread");
    let insns = match a == b {
        true => counted(a, "instruction"),
        false => format!("{} of A and {} of B", counted(a, "instruction"), grouped(b)),
    };
    let how = match args.by {
        DiffLevel::Insns => "",
        DiffLevel::Lines => " line by line",
        DiffLevel::Functions => " function by function",
    };
    writeln!(out, "No difference{how}: {insns} of {threads}.")?;
    if outcome.sides.iter().any(|side| !side.window.is_all()) {
        writeln!(out, "Only what lies between the points was compared.")?;
    }
    if let Some(only) = &args.only {
        writeln!(
            out,
            "Only code of files with \"{only}\" in their paths was compared."
        )?;
    }
    aside(outcome, look, out)?;
    gaps(outcome, out)?;
    if outcome.is_same().is_none() {
        writeln!(
            out,
            "What is missing was not compared: whether it differs, nobody knows."
        )?;
        return Ok(());
    }
    for (name, side) in SIDES.into_iter().zip(outcome.sides) {
        if side.window.is_all() {
            let words = no_gaps(side.session, &side.summary.proof).replace('\n', "\n   ");
            writeln!(out, "{name}: {words}")?;
        }
    }
    Ok(())
}

/// What was set aside, and what else is to be known of the comparison.
fn aside(outcome: &Outcome<'_, '_>, look: &Look, out: &mut Stdout) -> Result<()> {
    let (mut count, mut insns, mut by_bytes) = (0, [0, 0], 0);
    let mut left_out = [0, 0];
    for (_, diff) in outcome.diffs() {
        count += diff.aside;
        by_bytes += diff.by_bytes;
        for (sum, more) in left_out.iter_mut().zip(diff.left_out) {
            *sum += more;
        }
        for (sum, more) in insns.iter_mut().zip(diff.aside_insns) {
            *sum += more;
        }
    }
    if left_out.iter().any(|count| *count > 0) {
        let text = format!(
            "Not compared: {} of A and {} of B, in code that was left out, or that has neither a function nor a line to go by.",
            counted(left_out[0], "instruction"),
            grouped(left_out[1]),
        );
        write_words(text.split(' '), "", look, out)?;
    }
    if count > 0 {
        let text = format!(
            "Set aside: {} through string functions, which go by where data lies and how much it is ({} of A, {} of B). With --strict they are differences.",
            counted(count, "other way"),
            counted(insns[0], "instruction"),
            grouped(insns[1]),
        );
        write_words(text.split(' '), "", look, out)?;
    }
    if by_bytes > 0 {
        writeln!(
            out,
            "Generated code that has no name was compared by its bytes, without addresses."
        )?;
    }
    Ok(())
}

/// What is missing in either recording.
fn gaps(outcome: &Outcome<'_, '_>, out: &mut Stdout) -> Result<()> {
    for (index, name) in SIDES.into_iter().enumerate() {
        for (thread, diff) in outcome.diffs() {
            let Some((cause, offset)) = diff.missing[index].first() else {
                continue;
            };
            let stream = [thread.pair.a, thread.pair.b][index];
            let title = stream.map(input::title).unwrap_or_default();
            writeln!(
                out,
                "{name}, {title}: {}, the first at offset {:#x}: {cause}.",
                counted(diff.gaps[index], "gap"),
                offset.0,
            )?;
        }
        for missing in &outcome.missing[index] {
            writeln!(out, "{name}: missing: {missing}.")?;
        }
    }
    Ok(())
}

fn differences(
    outcome: &Outcome<'_, '_>,
    args: &DiffArgs,
    look: &Look,
    out: &mut Stdout,
) -> Result<()> {
    let mut reader = Reader::default();
    let partings = outcome.partings();
    for (number, (thread, parting)) in partings.iter().take(args.number).enumerate() {
        let is_only = outcome.threads.len() == 1;
        part(
            number + 1,
            (thread, parting, is_only),
            look,
            &mut reader,
            out,
        )?;
    }
    let shown = partings.len().min(args.number) as u64;
    let more = outcome.partings_count() - shown;
    if more > 0 {
        writeln!(
            out,
            "… and {}; -n N shows N.\n",
            counted(more, "more place")
        )?;
    }
    threads(outcome, look, out)?;
    functions(&outcome.counts.functions, look, out)?;
    aside(outcome, look, out)?;
    gaps(outcome, out)
}

/// A thread's number and name, short.
fn tag(stream: Option<&Stream<'_>>) -> String {
    let Some(stream) = stream else {
        return "–".to_owned();
    };
    match stream.key().tid() {
        Some(tid) => format!(
            "{tid}{}",
            stream.comm().map(input::called).unwrap_or_default()
        ),
        None => input::title(stream),
    }
}

/// What became of each thread.
fn threads(outcome: &Outcome<'_, '_>, look: &Look, out: &mut Stdout) -> Result<()> {
    let rows: Vec<Vec<String>> = outcome
        .threads
        .iter()
        .map(|thread| {
            let diff = thread.diff.as_ref();
            let number =
                |of: fn(&ThreadDiff) -> u64| diff.map(of).map_or_else(|| "–".to_owned(), grouped);
            vec![
                tag(thread.pair.a),
                tag(thread.pair.b),
                number(|diff| diff.insns[0]),
                number(|diff| diff.insns[1]),
                number(|diff| diff.equal[0]),
                number(|diff| diff.count),
            ]
        })
        .collect();
    let columns = [
        Column::name("thread of A"),
        Column::name("of B"),
        Column::number("instructions"),
        Column::number("of B"),
        Column::number("equal"),
        Column::number("places"),
    ];
    Ok(writeln!(out, "{}\n", fitted(&columns, &rows, look.table))?)
}

/// A place where two threads part.
fn part(
    number: usize,
    (thread, parting, is_only): (&Thread<'_, '_>, &Parting, bool),
    look: &Look,
    reader: &mut Reader,
    out: &mut Stdout,
) -> Result<()> {
    let streams = [thread.pair.a, thread.pair.b];
    let title = SIDES.map(|side| (side, streams[usize::from(side == "B")]));
    let title = title.map(|(side, stream)| format!("{side}'s {}", tag(stream)));
    let equal = counted(parting.index, "equal instruction");
    let head = format!("{number}. After {equal}");
    // Which thread it is matters where there are others.
    let head = match is_only {
        true => vec![format!("{head}:")],
        false => vec![
            head,
            format!("of {}", title[0]),
            format!("and {}:", title[1]),
        ],
    };
    for line in lines_of_words(&head, "   ", look) {
        writeln!(out, "{}", look.bold.apply_to(line))?;
    }
    let [a, b] = &parting.turns;
    let names =
        |turn: &Turn| -> Vec<String> { turn.frames.iter().map(|f| f.name.clone()).collect() };
    if names(a) == names(b) {
        stack("  in", &a.frames, look, out)?;
    } else {
        stack("  in A:", &a.frames, look, out)?;
        stack("  in B:", &b.frames, look, out)?;
    }
    if parting.cause == PartingCause::Lock {
        writeln!(
            out,
            "  (Waits for other threads or wakes them: its way depends on who comes first.)"
        )?;
    }
    if let Some([last, _]) = &parting.last {
        let source = reader
            .source(last)
            .map(|source| format!(" ({})", spots::short(&source)));
        let text = spots::disassembled(last).unwrap_or_default();
        let line = format!(
            "  both: {}{}  {text}",
            spots::unversioned(&spots::place(last)),
            source.unwrap_or_default()
        );
        writeln!(out, "{}", cut(&line, look.width))?;
    }
    let steps = parting
        .turns
        .each_ref()
        .map(|turn| reader.steps(&turn.coming, STEPS, true));
    let widths = widths(steps.iter().flatten());
    for (side, turn) in parting.turns.iter().enumerate() {
        go_on(side, turn, parting.cause, (&steps[side], widths), look, out)?;
    }
    match (&parting.together, parting.cause) {
        (Some([a, _]), _) => {
            let mut place = vec![
                "  Together again at".to_owned(),
                spots::unversioned(&spots::place(a)),
            ];
            if let Some(source) = reader.source(a) {
                place.push(format!("({})", spots::short(&source)));
            }
            if let Some(last) = place.last_mut() {
                last.push(',');
            }
            let skipped = parting.turns.each_ref().map(|turn| turn.skipped);
            place.push(format!(
                "after {} and {}.",
                counted(skipped[0], "instruction"),
                grouped(skipped[1])
            ));
            write_words(&place, "    ", look, out)?;
        }
        (None, PartingCause::End(_)) => {}
        (None, _) => writeln!(
            out,
            "  They do not come together again:\n    {} of A and {} of B were not compared.",
            counted(parting.turns[0].skipped, "instruction"),
            grouped(parting.turns[1].skipped)
        )?,
    }
    Ok(writeln!(out)?)
}

/// The open calls, on as many lines as it takes.
fn stack(head: &str, frames: &[Frame], look: &Look, out: &mut Stdout) -> Result<()> {
    const MOST: usize = 12;
    /// Templates have long names.
    const LONGEST: usize = 40;
    if frames.is_empty() {
        return Ok(());
    }
    let mut names: Vec<String> = frames
        .iter()
        .take(MOST)
        .map(|frame| match frame.is_named {
            true => shortened(&spots::unversioned(&frame.name), LONGEST),
            false => format!(
                "[{}]",
                shortened(frame.name.rsplit('/').next().unwrap_or_default(), LONGEST)
            ),
        })
        .collect();
    if frames.len() > MOST {
        names.push("…".into());
    }
    let words = names
        .into_iter()
        .enumerate()
        .map(|(index, name)| match index {
            0 => format!("{head} {name}"),
            _ => format!("← {name}"),
        });
    write_words(words, "     ", look, out)
}

/// Words on as many lines as it takes, of which the second and those behind it are indented.
fn write_words<W: AsRef<str>>(
    words: impl IntoIterator<Item = W>,
    indent: &str,
    look: &Look,
    out: &mut Stdout,
) -> Result<()> {
    for line in lines_of_words(words, indent, look) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn lines_of_words<W: AsRef<str>>(
    words: impl IntoIterator<Item = W>,
    indent: &str,
    look: &Look,
) -> Vec<String> {
    let width = look.width.min(80);
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        let word = word.as_ref();
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() < width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("{indent}{word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// What one side does next.
fn go_on(
    side: usize,
    turn: &Turn,
    cause: PartingCause,
    (steps, widths): (&[Step], (usize, usize)),
    look: &Look,
    out: &mut Stdout,
) -> Result<()> {
    let name = SIDES[side];
    let style = &look.sides[side];
    if cause == PartingCause::End(side) {
        writeln!(out, "  {} ends here.", style.apply_to(name))?;
        return Ok(());
    }
    if let Some((cause, offset)) = turn.missing.first() {
        writeln!(
            out,
            "  {}: something is missing at offset {:#x}: {cause}.",
            style.apply_to(name),
            offset.0
        )?;
    }
    let mut about = String::new();
    if cause == PartingCause::Signal(side) {
        about = " (the handler of a signal)".into();
    } else if let PartingCause::End(_) = cause {
        about = format!(" ({} more)", counted(turn.skipped, "instruction"));
    }
    if steps.is_empty() {
        writeln!(out, "  {} has nothing more.", style.apply_to(name))?;
        return Ok(());
    }
    writeln!(out, "  {} goes on{about}:", style.apply_to(name))?;
    for step in steps {
        writeln!(out, "{}", one_step(step, widths, look))?;
    }
    let called: Vec<String> = turn
        .entered
        .iter()
        .filter(|frame| frame.is_named)
        .map(|frame| spots::unversioned(&frame.name))
        .collect();
    if !called.is_empty() {
        let line = format!("      calls {}", called.join(", "));
        writeln!(out, "{}", look.dim.apply_to(cut(&line, look.width)))?;
    }
    Ok(())
}

/// How wide functions and places are.
fn widths<'s>(steps: impl Iterator<Item = &'s Step> + Clone) -> (usize, usize) {
    const MOST: usize = 20;
    let names = steps.clone().map(|step| step.function.chars().count());
    let places = steps.filter_map(|step| step.source.as_ref());
    let places = places.map(|source| spots::short(source).chars().count());
    let widest = |width: Option<usize>| width.unwrap_or(0).min(MOST);
    (widest(names.max()), widest(places.max()))
}

fn one_step(step: &Step, (names, places): (usize, usize), look: &Look) -> String {
    let place = step.source.as_ref().map(spots::short).unwrap_or_default();
    let function = shortened(&step.function, names);
    let place = shortened(&place, places.max(1));
    let text = match &step.text {
        Some(text) => text.clone(),
        None => counted(step.insns, "instruction"),
    };
    let line = format!("      {function:<names$}  {place:<places$}  {text}");
    cut(line.trim_end(), look.width)
}

/// A text of at most so many letters: what comes first says most.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// What ran oftener in one of them.
fn functions(list: &[FunctionCounts], look: &Look, out: &mut Stdout) -> Result<()> {
    if list.is_empty() {
        return Ok(());
    }
    let name = |function: &FunctionCounts| {
        let file = function.file.as_deref().map(file_name).unwrap_or_default();
        function.name.clone().unwrap_or_else(|| format!("[{file}]"))
    };
    let rows: Vec<Vec<String>> = list
        .iter()
        .take(ROWS)
        .map(|function| {
            vec![
                grouped(function.insns[0]),
                grouped(function.insns[1]),
                grouped(function.calls[0]),
                grouped(function.calls[1]),
                name(function),
                function.file.as_deref().map(file_name).unwrap_or_default(),
            ]
        })
        .collect();
    let columns = [
        Column::number("A"),
        Column::number("B"),
        Column::spare("calls A", 2),
        Column::spare("B", 2),
        Column::name("function: instructions"),
        Column::name("file"),
    ];
    writeln!(out, "{}", fitted(&columns, &rows, look.table))?;
    more(list.len(), "function", out)?;
    let lines: Vec<_> = list
        .iter()
        .flat_map(|function| function.lines.iter().map(move |line| (function, line)))
        .collect();
    if lines.is_empty() {
        return Ok(());
    }
    let rows: Vec<Vec<String>> = lines
        .iter()
        .take(ROWS)
        .map(|(function, line)| {
            let file = line.file.rsplit('/').next().unwrap_or_default();
            let numbers = match line.lines {
                [Some(a), Some(b)] if a != b => format!("{a} (B: {b})"),
                [a, b] => a.or(b).map(|line| line.to_string()).unwrap_or_default(),
            };
            vec![
                grouped(line.counts[0]),
                grouped(line.counts[1]),
                format!("{file}:{numbers}"),
                name(function),
            ]
        })
        .collect();
    let columns = [
        Column::number("A"),
        Column::number("B"),
        Column::name("line: times"),
        Column::name("function"),
    ];
    writeln!(out, "{}", fitted(&columns, &rows, look.table))?;
    more(lines.len(), "line", out)
}

fn more(all: usize, what: &str, out: &mut Stdout) -> Result<()> {
    let more = all.saturating_sub(ROWS) as u64;
    if more > 0 {
        writeln!(
            out,
            " … and {}; --json lists all",
            counted(more, &format!("more {what}"))
        )?;
    }
    Ok(writeln!(out)?)
}
