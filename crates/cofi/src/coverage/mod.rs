//! `cofi coverage`: which lines, functions and branches of the source ran, and how often.

mod cobertura;
pub(crate) mod counting;
pub(crate) mod lcov;
pub(crate) mod sources;

use crate::Ended;
use crate::args::CoverageArgs;
use crate::output::{self, stdout, tell};
use crate::table::{Column, end_of, fitted, shortened, width_of};
use anyhow::{Context, Result};
use cofi_analysis::InsnCount;
use cofi_text::Line;
use cofi_text::digits::{counted, grouped};
use console::Term;
use counting::Counted;
use sources::{Source, Sources};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// What is said where there are no lines.
pub(crate) const NO_LINES: &str = "nothing that ran has debugging information: compile with -g";

/// Of more source files than this it is said how to see less of them.
const MANY: usize = 50;

/// How many functions that never ran are listed.
const LISTED: usize = 15;

/// Runs the command.
pub(crate) fn run(args: &CoverageArgs) -> Result<Ended> {
    let edges: Option<fn(&Path) -> bool> = match (&args.afl, args.all) {
        (None, _) => None,
        (Some(_), true) => Some(|_| true),
        (Some(_), false) => Some(|path| !sources::is_of_system(path)),
    };
    let counted = Counted::of(&args.counting, edges)?;
    if let Some(path) = &args.afl {
        write(path, |out| out.write_all(&counted.edges.bytes()))?;
    }
    let sources = Sources::of(&counted.files, &args.source, args.all);
    if let Some(path) = &args.lcov {
        write(path, |out| lcov::write(&sources, out))?;
    }
    if let Some(path) = &args.cobertura {
        write(path, |out| cobertura::write(&sources, out))?;
    }
    let mut out = stdout();
    if args.json {
        json(&sources, &counted, &mut out)?;
    } else if args.lcov.is_none() && args.cobertura.is_none() && args.afl.is_none() {
        let width = width_of(&Term::stdout());
        print(&sources, &counted, args.never, width, &mut out)?;
    }
    out.flush()?;
    if sources.list.is_empty() && args.afl.is_none() {
        match args.source.is_empty() {
            true => tell(format_args!("{NO_LINES}")),
            false => tell(format_args!("{NO_LINES} (of such a source file)")),
        }
    }
    Ok(match counted.has_errors {
        true => Ended::WithErrors,
        false => Ended::Well,
    })
}

fn write(
    path: &Path,
    print: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let mut out = BufWriter::new(output::create(path)?);
    print(&mut out)
        .and_then(|()| out.flush())
        .with_context(cannot)
}

/// A part of a whole, in percent; nothing of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "–".into(),
        // Only all of it is 100 %.
        _ if part == whole => "100".into(),
        _ => format!("{:.1}", (part as f64 * 100.0 / whole as f64).min(99.9)),
    }
}

/// How many there are of something, and how many of them ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) ran: u64,
    pub(crate) all: u64,
}

impl Share {
    fn add(&mut self, ran: bool) {
        self.ran += u64::from(ran);
        self.all += 1;
    }

    fn join(&mut self, other: Self) {
        self.ran += other.ran;
        self.all += other.all;
    }

    fn cells(self) -> [String; 3] {
        [
            grouped(self.ran),
            grouped(self.all),
            percent(self.ran, self.all),
        ]
    }
}

/// What of a source file ran.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) lines: Share,
    pub(crate) functions: Share,
    /// Outcomes of conditional branches: two of each.
    pub(crate) outcomes: Share,
}

impl Totals {
    pub(crate) fn of(source: &Source) -> Self {
        let mut totals = Self::default();
        for line in source.lines.values() {
            totals.lines.add(line.count > 0);
            for outcome in line.branches.iter().flat_map(outcomes) {
                totals.outcomes.add(outcome > 0);
            }
        }
        for function in &source.functions {
            totals.functions.add(function.calls > 0);
        }
        totals
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.lines.join(other.lines);
        self.functions.join(other.functions);
        self.outcomes.join(other.outcomes);
    }

    fn put(self, line: &mut Line) {
        line.number("lines", self.lines.all)
            .number("lines_ran", self.lines.ran)
            .number("functions", self.functions.all)
            .number("functions_ran", self.functions.ran)
            .number("branches", self.outcomes.all)
            .number("branches_ran", self.outcomes.ran);
    }
}

/// How often a branch was taken, and how often not.
pub(crate) const fn outcomes(branch: &InsnCount) -> [u64; 2] {
    [branch.taken, branch.not_taken()]
}

/// Prints everything as JSON Lines.
fn json(sources: &Sources, counted: &Counted, out: &mut impl Write) -> Result<()> {
    let mut line = Line::default();
    let mut all = Totals::default();
    for source in &sources.list {
        all.join(Totals::of(source));
        for (number, count) in &source.lines {
            line.begin()
                .text("file", &source.path)
                .number("line", *number)
                .number("count", count.count)
                .number("insns", count.insns);
            if !count.branches.is_empty() {
                line.list("branches", &count.branches, |line, branch| {
                    line.number("taken", branch.taken)
                        .number("not_taken", branch.not_taken());
                    if branch.unknown > 0 {
                        line.number("unknown", branch.unknown);
                    }
                });
            }
            out.write_all(line.end())?;
        }
        for function in &source.functions {
            line.begin()
                .text("function", &function.name)
                .text("file", &source.path)
                .number("line", function.line)
                .number("calls", function.calls)
                .number("insns", function.insns);
            out.write_all(line.end())?;
        }
    }
    for binary in &sources.bare {
        line.begin()
            .text("binary", &binary.path)
            .number("functions", binary.functions.all)
            .number("functions_ran", binary.functions.ran)
            .number("insns", binary.insns);
        out.write_all(line.end())?;
    }
    line.begin().object("summary", |line| {
        all.put(line);
        line.number("insns", counted.instructions())
            .number("recordings", counted.summaries.len() as u64)
            .number("gaps", counted.gaps());
    });
    out.write_all(line.end())?;
    Ok(())
}

/// Prints what a person wants to know first.
fn print(
    sources: &Sources,
    counted: &Counted,
    all_never: bool,
    width: Option<usize>,
    out: &mut impl Write,
) -> Result<()> {
    let mut all = Totals::default();
    let row = |name: &str, totals: Totals| {
        let mut row = vec![name.to_owned()];
        row.extend(totals.lines.cells());
        row.extend(totals.functions.cells());
        row.extend(totals.outcomes.cells());
        row
    };
    let mut rows = Vec::new();
    for source in &sources.list {
        let totals = Totals::of(source);
        all.join(totals);
        rows.push(row(&source.path, totals));
    }
    if rows.len() > 1 {
        rows.push(row("all", all));
    }
    if !rows.is_empty() {
        let columns = [
            Column::path("source file"),
            Column::number("lines ran"),
            Column::number("of"),
            Column::number("%"),
            Column::spare("functions", 3),
            Column::spare("of", 3),
            Column::spare("%", 3),
            Column::spare("outcomes", 4),
            Column::spare("of", 4),
            Column::spare("%", 4),
        ];
        writeln!(out, "{}\n", fitted(&columns, &rows, width))?;
    }
    let rows: Vec<_> = sources
        .bare
        .iter()
        .map(|binary| {
            let mut row = vec![binary.path.clone()];
            row.extend(binary.functions.cells());
            row.push(grouped(binary.insns));
            row
        })
        .collect();
    if !rows.is_empty() {
        let columns = [
            Column::path("without lines"),
            Column::number("functions ran"),
            Column::number("of"),
            Column::number("%"),
            Column::number("instructions"),
        ];
        writeln!(out, "{}\n", fitted(&columns, &rows, width))?;
    }
    never(sources, all_never, width, out)?;
    if sources.list.len() > MANY {
        let all = grouped(sources.list.len() as u64);
        writeln!(
            out,
            "{all} source files; --source TEXT shows those with TEXT in their path."
        )?;
    }
    if !sources.left_out.is_empty() {
        let names = sources.left_out.join(", ");
        writeln!(
            out,
            "Left out: {names};\n  --all shows libraries of the system, too."
        )?;
    }
    let of = match counted.summaries.len() {
        1 => String::new(),
        count => format!(" in {count} recordings"),
    };
    writeln!(
        out,
        "{} counted{of}.",
        self::counted(counted.instructions(), "instruction")
    )?;
    if counted.gaps() > 0 {
        let gaps = self::counted(counted.gaps(), "gap");
        writeln!(
            out,
            "{gaps}: what ran there is not counted; `cofi check` lists them."
        )?;
    }
    Ok(())
}

/// Lists functions that never ran.
fn never(sources: &Sources, all: bool, width: Option<usize>, out: &mut impl Write) -> Result<()> {
    let never = sources.list.iter().flat_map(|source| {
        let functions = source.functions.iter();
        let functions = functions.filter(|function| function.calls == 0);
        functions.map(move |function| (source, function))
    });
    let never: Vec<_> = never.collect();
    if never.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "{} never ran:",
        counted(never.len() as u64, "function")
    )?;
    let most = if all { never.len() } else { LISTED };
    for (source, function) in never.iter().take(most) {
        let place = format!("{}:{}", source.path, function.line);
        let (name, place) = match width {
            Some(width) => {
                // Of both as much as there is room for, of the name half at least.
                let room = width.saturating_sub(5);
                let name = room.saturating_sub(place.chars().count()).max(room / 2);
                let name = shortened(&function.name, name);
                let place = end_of(&place, room.saturating_sub(name.chars().count()));
                (name, place)
            }
            None => (function.name.clone(), place),
        };
        writeln!(out, "  {name}  {place}")?;
    }
    if never.len() > most {
        let more = grouped((never.len() - most) as u64);
        writeln!(out, "  … and {more} more; --never lists all")?;
    }
    writeln!(out)?;
    Ok(())
}
