//! The lines in which most ran.

use super::callees::{Callees, Caller, Lines, Ran, count};
use super::{MOST, share};
use crate::Ended;
use crate::args::{TopArgs, TopOrder};
use crate::coverage::counting::Counted;
use crate::output::{Stdout, stdout};
use crate::report::file_name;
use crate::source_text::SourceText;
use crate::table::{Column, fitted, width_of};
use anyhow::Result;
use cofi_analysis::{FileCode, SourceCover, SourceLines, SourcePlace};
use cofi_image::Symbol;
use cofi_session::compact;
use cofi_text::Line;
use cofi_text::digits::grouped;
use console::Term;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A line, or what of a function has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Line(Rc<str>, u32),
    Function(PathBuf, Option<String>),
}

/// A line of a file of code, and where the function begins.
type Part = (Option<SourcePlace>, Option<u64>);

/// What it came to.
#[derive(Clone, Debug, Default)]
struct Row {
    /// How often control came to it.
    times: u64,
    self_insns: u64,
    /// The file of code, and the function, in which most of it ran.
    file: PathBuf,
    function: Option<String>,
    most: u64,
    /// How many functions have code of it.
    functions: u64,
    callees: Option<Callees>,
}

impl Row {
    /// With what it called, if that is known: what a line has of its own within its own calls nobody tells apart. There is none if all its code is
    /// of one function, which was not called again meanwhile.
    fn insns(&self) -> Option<u64> {
        let callees = self.callees?;
        let is_apart = self.functions < 2 && callees.nested == 0 && !callees.is_entered;
        (is_apart || callees.insns == 0).then_some(self.self_insns + callees.insns)
    }

    fn key(&self, by: TopOrder) -> u64 {
        match by {
            TopOrder::Own => self.self_insns,
            TopOrder::Calls => self.times,
            TopOrder::Total => {
                let callees = self.callees.map_or(0, |callees| callees.insns);
                self.insns().unwrap_or(callees.max(self.self_insns))
            }
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &TopArgs) -> Result<Ended> {
    let Ran {
        counted,
        callees,
        mut lines,
    } = count(args, true)?;
    let mut rows: Vec<(Place, Row)> = rows(&counted, &mut lines).into_iter().collect();
    for (place, row) in &mut rows {
        row.callees = callees.as_ref().map(|callees| match place {
            Place::Line(source, line) => {
                let caller = Caller::Line(source.to_string(), *line);
                callees.get(&caller).copied().unwrap_or_default()
            }
            // (What a function has called, `--of functions` tells.)
            Place::Function(..) => Callees::default(),
        });
    }
    compact::sort_by(&mut rows, |(a, row), (b, other)| {
        let (key, others) = (row.key(args.by), other.key(args.by));
        others.cmp(&key).then_with(|| a.cmp(b))
    });
    let mut out = stdout();
    if args.json {
        json(&rows, args.number, &mut out)?;
    } else {
        let number = args.number.unwrap_or(MOST);
        text(&rows, number, counted.instructions(), &mut out)?;
    }
    out.flush()?;
    Ok(match counted.has_errors {
        true => Ended::WithErrors,
        false => Ended::Well,
    })
}

/// The function, or the stub, that holds an offset of a file.
fn symbol_at(code: &FileCode, offset: u64) -> Option<Symbol<'_>> {
    let file = code.file();
    file.symbol_at(offset).or_else(|| file.stub_at(offset))
}

/// All lines of which something ran. The lines are used up of files that have been read.
fn rows(counted: &Counted, lines: &mut Lines) -> HashMap<Place, Row> {
    let mut rows: HashMap<Place, Row> = HashMap::new();
    for code in &counted.files {
        let read = lines.remove(code.key());
        let read = read.map_or_else(
            || SourceLines::of_code(code.file(), &code.addresses()),
            |(_, read)| read,
        );
        let cover = read.map(|read| SourceCover::of_ran(code, read));
        let cover = cover.unwrap_or_default();
        let sources: Vec<Rc<str>> = cover
            .files
            .iter()
            .map(|file| file.as_str().into())
            .collect();
        // By line and function: what ran there.
        let mut parts: HashMap<Part, u64> = HashMap::new();
        for insn in code.insns() {
            let address = code.file().address_of_offset(insn.offset);
            let line = address.and_then(|address| cover.line_at(address));
            let function = symbol_at(code, insn.offset).map(|symbol| insn.offset - symbol.offset);
            *parts.entry((line, function)).or_default() += insn.times;
        }
        let mut parts: Vec<_> = parts.into_iter().collect();
        compact::sort_by(&mut parts, Ord::cmp);
        for ((line, function), insns) in parts {
            let name = || Some(symbol_at(code, function?)?.demangled());
            let source = line.and_then(|(file, _)| sources.get(file as usize));
            let place = match (line, source) {
                (Some((_, line)), Some(source)) => Place::Line(source.clone(), line),
                _ => Place::Function(code.path().to_owned(), name()),
            };
            let row = rows.entry(place).or_default();
            row.self_insns += insns;
            row.functions += 1;
            if line.is_none() {
                let first = function.and_then(|start| code.at(start));
                row.times += first.map_or(0, |insn| insn.times);
            }
            if insns > row.most {
                row.most = insns;
                row.file = code.path().to_owned();
                row.function = name();
            }
        }
        for ((file, line), count) in &cover.lines {
            let source = sources.get(*file as usize);
            let place = source.map(|source| Place::Line(source.clone(), *line));
            if let Some(row) = place.and_then(|place| rows.get_mut(&place)) {
                row.times += count.count;
            }
        }
    }
    rows
}

fn json(rows: &[(Place, Row)], number: Option<usize>, out: &mut Stdout) -> Result<()> {
    let mut line = Line::default();
    for (place, row) in rows.iter().take(number.unwrap_or(usize::MAX)) {
        line.begin();
        match place {
            Place::Line(source, at) => line.text("source", source).number("line", *at),
            Place::Function(..) => line.null("source").null("line"),
        };
        match &row.function {
            Some(name) => line.text("function", name),
            None => line.null("function"),
        };
        line.text("file", &row.file.to_string_lossy())
            .number("self_insns", row.self_insns)
            .number("count", row.times);
        if let (Some(callees), Place::Line(..)) = (row.callees, place) {
            line.number("callee_insns", callees.insns);
            match row.insns() {
                Some(insns) => line.number("insns", insns),
                None => line.null("insns"),
            };
        }
        out.write_all(line.end())?;
    }
    Ok(())
}

fn text(rows: &[(Place, Row)], number: usize, all: u64, out: &mut Stdout) -> Result<()> {
    let has_callees = rows.iter().any(|(_, row)| row.callees.is_some());
    let mut columns = vec![Column::number("self"), Column::number("share")];
    if has_callees {
        columns.push(Column::number("in its calls"));
    }
    columns.extend([
        Column::number("times"),
        Column::name("line"),
        Column::name("source"),
    ]);
    let mut texts = SourceText::default();
    let shown = rows.iter().take(number).map(|(place, row)| {
        let mut cells = vec![grouped(row.self_insns), share(row.self_insns, all)];
        if has_callees {
            let callees = row.callees.filter(|_| matches!(place, Place::Line(..)));
            cells.push(callees.map_or_else(String::new, |callees| grouped(callees.insns)));
        }
        // Of a function whose first instruction no symbol shows, nobody knows.
        let is_known = row.times > 0 || matches!(place, Place::Line(..));
        cells.push(match is_known {
            true => grouped(row.times),
            false => String::new(),
        });
        let function = || match &row.function {
            Some(name) => format!("in {name}"),
            None => "(code without a symbol)".into(),
        };
        let (at, text) = match place {
            Place::Line(source, line) => {
                let text = texts.line(source, *line);
                let text = text.map(|text| text.trim().replace('\t', " "));
                let at = format!("{}:{line}", file_name(Path::new(&**source)));
                (at, text.unwrap_or_else(function))
            }
            Place::Function(file, _) => (file_name(file), function()),
        };
        cells.extend([at, text]);
        cells
    });
    let shown: Vec<_> = shown.collect();
    let width = width_of(&Term::stdout());
    writeln!(out, "{}", fitted(&columns, &shown, width))?;
    super::more(rows.len(), number, ["line", "lines"], out)
}
