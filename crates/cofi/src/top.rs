//! `cofi top`: the functions in which most ran, of one recording or several.

use crate::args::{TopArgs, TopOrder};
use crate::calls::{is_wanted, nanoseconds, trace};
use crate::check::duration;
use crate::digits::{counted, grouped};
use crate::json::Line;
use crate::output::{Stdout, stdout};
use crate::progress::Printing;
use crate::report::file_name;
use crate::select::{Found, Window};
use crate::table::{Column, fitted, width_of};
use crate::{Ended, input};
use anyhow::Result;
use cofi_analysis::{Call, CallEnd, CallNames, CallVisitor, FunctionId, Left};
use cofi_session::{Session, Task};
use console::Term;
use rustc_hash::FxHashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Runs the command.
pub(crate) fn run(args: &TopArgs) -> Result<Ended> {
    let mut functions = Functions::default();
    let mut errors = false;
    let mut flow = args.flow.clone();
    let first = flow.input.file.clone();
    for file in std::iter::once(&first).chain(&args.more) {
        flow.input.file.clone_from(file);
        let bytes = input::map(file)?;
        let session = input::open_flow(&flow, &bytes)?;
        input::require_trace(file, &session)?;
        let window = Window::of_range(&args.range, &session)?;
        errors |= input::report(&session);
        let mut found = Found::default();
        let mut progress = Printing::of(window.streams(&session));
        for stream in window.streams(&session) {
            let mut counts = Counts::new(args, &session);
            let traced = trace(&session, stream, &window, false, &mut counts, |at| {
                progress.reached(at)
            })?;
            errors |= traced.errors;
            found |= traced.found;
            functions.add(&counts, &traced.names);
            progress.finish(stream);
        }
        drop(progress);
        if !window.is_all() {
            window.report_missed(found);
        }
        errors |= input::report_code(&session);
    }
    let mut out = stdout();
    let rows = functions.sorted(args.by);
    if args.json {
        json(&rows, args.number, &mut out)?;
    } else {
        text(&rows, args.number.unwrap_or(TextRows::MOST), &mut out)?;
    }
    out.flush()?;
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// What a function came to.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    self_insns: u64,
    /// With what it called. What a recursion calls again counts once.
    insns: u64,
    calls: u64,
    /// Nanoseconds from its beginning to its end; none if those of a call are not known.
    lasted: Option<u64>,
}

impl Count {
    fn add(&mut self, other: &Self) {
        self.self_insns += other.self_insns;
        self.insns += other.insns;
        self.calls += other.calls;
        self.lasted = match (self.lasted, other.lasted) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
    }
}

/// Counts the calls of a stream by function.
struct Counts<'a, 's> {
    args: &'a TopArgs,
    session: &'a Session<'s>,
    functions: FxHashMap<FunctionId, Count>,
    /// How often a function is open in a thread.
    open: FxHashMap<(Task, FunctionId), u64>,
}

impl<'a, 's> Counts<'a, 's> {
    fn new(args: &'a TopArgs, session: &'a Session<'s>) -> Self {
        Self {
            args,
            session,
            functions: FxHashMap::default(),
            open: FxHashMap::default(),
        }
    }
}

impl CallVisitor for Counts<'_, '_> {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        if is_wanted(&self.args.range, call.task) {
            *self.open.entry((call.task, call.function)).or_default() += 1;
        }
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        if !is_wanted(&self.args.range, call.task) {
            return;
        }
        // (A call that was open before the trace may never have been seen to begin.)
        let open = self.open.entry((call.task, call.function)).or_default();
        *open = open.saturating_sub(1);
        let is_outermost = *open == 0;
        let count = self.functions.entry(call.function).or_default();
        count.self_insns += end.self_insns;
        count.calls += 1;
        if !is_outermost {
            return;
        }
        count.insns += end.insns;
        // Of what was still open nobody knows the end.
        if !matches!(end.left, Left::End | Left::Gap)
            && let Some(begin) = nanoseconds(self.session, call.begin.tsc)
            && let Some(over) = nanoseconds(self.session, end.end.tsc)
        {
            *count.lasted.get_or_insert(0) += over.saturating_sub(begin);
        }
    }

    fn all_left(&mut self, task: Task, _: &CallNames) {
        self.open.retain(|(of, _), _| *of != task);
    }
}

/// The functions of all recordings, by name and file.
#[derive(Debug, Default)]
struct Functions(FxHashMap<(Option<String>, Option<PathBuf>), Count>);

/// A function and what it came to.
#[derive(Debug)]
struct Row {
    name: Option<String>,
    file: Option<PathBuf>,
    count: Count,
}

impl Functions {
    fn add(&mut self, counts: &Counts<'_, '_>, names: &CallNames) {
        for (function, count) in &counts.functions {
            let name = names.name(*function).map(str::to_owned);
            let file = names.file(*function).map(Path::to_owned);
            self.0.entry((name, file)).or_default().add(count);
        }
    }

    fn sorted(self, by: TopOrder) -> Vec<Row> {
        let row = |((name, file), count)| Row { name, file, count };
        let mut rows: Vec<Row> = self.0.into_iter().map(row).collect();
        rows.sort_by(|a, b| {
            let key = |row: &Row| match by {
                TopOrder::Own => row.count.self_insns,
                TopOrder::Total => row.count.insns,
                TopOrder::Calls => row.count.calls,
            };
            let names = (&a.name, &a.file).cmp(&(&b.name, &b.file));
            key(b).cmp(&key(a)).then(names)
        });
        rows
    }
}

fn json(rows: &[Row], number: Option<usize>, out: &mut Stdout) -> Result<()> {
    let mut line = Line::default();
    for row in rows.iter().take(number.unwrap_or(usize::MAX)) {
        line.begin();
        match &row.name {
            Some(name) => line.text("function", name),
            None => line.null("function"),
        };
        match &row.file {
            Some(file) => line.text("file", &file.to_string_lossy()),
            None => line.null("file"),
        };
        line.number("self_insns", row.count.self_insns)
            .number("insns", row.count.insns)
            .number("calls", row.count.calls);
        match row.count.lasted {
            Some(time) => line.number("time", time),
            None => line.null("time"),
        };
        out.write_all(line.end())?;
    }
    Ok(())
}

/// The table for people.
struct TextRows;

impl TextRows {
    /// So many functions, unless another number is asked for.
    const MOST: usize = 25;
}

fn text(rows: &[Row], number: usize, out: &mut Stdout) -> Result<()> {
    let columns = [
        Column::number("self"),
        Column::number("share"),
        Column::number("with callees"),
        Column::number("calls"),
        Column::spare("time", 1),
        Column::name("function"),
        Column::name("file"),
    ];
    let all = rows.iter().map(|row| row.count.self_insns).sum::<u64>();
    let shown: Vec<_> = rows
        .iter()
        .take(number)
        .map(|Row { name, file, count }| {
            vec![
                grouped(count.self_insns),
                format!(
                    "{:.1} %",
                    100.0 * count.self_insns as f64 / all.max(1) as f64
                ),
                grouped(count.insns),
                grouped(count.calls),
                count.lasted.map(duration).unwrap_or_default(),
                name.clone().unwrap_or_else(|| "?".to_owned()),
                file.as_deref().map(file_name).unwrap_or_default(),
            ]
        })
        .collect();
    let width = width_of(&Term::stdout());
    writeln!(out, "{}", fitted(&columns, &shown, width))?;
    let more = rows.len().saturating_sub(number) as u64;
    if more > 0 {
        writeln!(out, " … and {}", counted(more, "more function"))?;
    }
    Ok(())
}
