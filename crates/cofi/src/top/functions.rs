//! The functions in which most ran.

use super::MOST;
use crate::Ended;
use crate::args::{Counting, TopArgs, TopOrder};
use crate::calls::{is_wanted, nanoseconds, trace};
use crate::check::duration;
use crate::output::{Stdout, stdout};
use crate::progress::Printing;
use crate::recordings::{Visited, for_each};
use crate::report::file_name;
use crate::table::{Column, fitted, width_of};
use anyhow::Result;
use cofi_analysis::{Call, CallEnd, CallNames, CallVisitor, FunctionId, Left};
use cofi_packet::Ip;
use cofi_session::compact;
use cofi_session::{Session, Task};
use cofi_text::Line;
use cofi_text::digits::grouped;
use console::Term;
use rustc_hash::FxHashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Runs the command.
pub(super) fn run(args: &TopArgs) -> Result<Ended> {
    let mut functions = Functions::default();
    let Counting {
        flow, more, range, ..
    } = &args.counting;
    let errors = for_each(flow, more, range, |session, window| {
        let mut visited = Visited::nothing();
        let mut progress = Printing::of(window.streams(session));
        for stream in window.streams(session) {
            let mut counts = Counts::new(args, session);
            let traced = trace(session, stream, window, false, &mut counts, |at| {
                progress.reached(at)
            })?;
            visited.has_errors |= traced.errors;
            visited.found |= traced.found;
            functions.add(&counts, &traced.names);
            progress.finish(stream);
        }
        Ok(visited)
    })?;
    let mut out = stdout();
    let rows = functions.sorted(args.by);
    if args.json {
        json(&rows, args.number, &mut out)?;
    } else {
        text(&rows, args.number.unwrap_or(MOST), &mut out)?;
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

/// A function of a stream; of code that nothing names, by where it was entered.
type Key = (FunctionId, Option<Ip>);

/// Counts the calls of a stream by function.
struct Counts<'a, 's> {
    args: &'a TopArgs,
    session: &'a Session<'s>,
    functions: FxHashMap<Key, Count>,
    /// How often a function is open on a stack of a thread. What ran on other stacks meanwhile did not run in it.
    open: FxHashMap<(Task, u32, Key), u64>,
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
    fn enter(&mut self, call: &Call, names: &CallNames) {
        if is_wanted(&self.args.counting.range, call.task) {
            let key = (call.function, names.entry(call));
            *self.open.entry((call.task, call.stack, key)).or_default() += 1;
        }
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, names: &CallNames) {
        if !is_wanted(&self.args.counting.range, call.task) {
            return;
        }
        // (A call that was open before the trace may never have been seen to begin.)
        let key = (call.function, names.entry(call));
        let open = self.open.entry((call.task, call.stack, key)).or_default();
        *open = open.saturating_sub(1);
        let is_outermost = *open == 0;
        let count = self.functions.entry(key).or_default();
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
        self.open.retain(|(of, ..), _| *of != task);
    }
}

/// A function, in whichever recording.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Function {
    name: Option<String>,
    file: Option<PathBuf>,
    /// Where in the file it was entered, if it has no name.
    entry: Option<Ip>,
}

/// The functions of all recordings.
#[derive(Debug, Default)]
struct Functions(FxHashMap<Function, Count>);

/// A function and what it came to.
#[derive(Debug)]
struct Row {
    function: Function,
    count: Count,
}

impl Functions {
    fn add(&mut self, counts: &Counts<'_, '_>, names: &CallNames) {
        for ((function, entry), count) in &counts.functions {
            let function = Function {
                name: names.name(*function).map(str::to_owned),
                file: names.file(*function).map(Path::to_owned),
                entry: *entry,
            };
            self.0.entry(function).or_default().add(count);
        }
    }

    fn sorted(self, by: TopOrder) -> Vec<Row> {
        let row = |(function, count)| Row { function, count };
        let mut rows: Vec<Row> = self.0.into_iter().map(row).collect();
        compact::sort_by(&mut rows, |a, b| {
            let key = |row: &Row| match by {
                TopOrder::Own => row.count.self_insns,
                TopOrder::Total => row.count.insns,
                TopOrder::Calls => row.count.calls,
            };
            key(b).cmp(&key(a)).then(a.function.cmp(&b.function))
        });
        rows
    }
}

fn json(rows: &[Row], number: Option<usize>, out: &mut Stdout) -> Result<()> {
    let mut line = Line::default();
    for row in rows.iter().take(number.unwrap_or(usize::MAX)) {
        line.begin();
        match &row.function.name {
            Some(name) => line.text("function", name),
            None => line.null("function"),
        };
        if let Some(entry) = row.function.entry {
            line.hex("address", entry.0);
        }
        match &row.function.file {
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
        .map(|Row { function, count }| {
            let entry = function.entry.map(|entry| entry.to_string());
            vec![
                grouped(count.self_insns),
                format!(
                    "{:.1} %",
                    100.0 * count.self_insns as f64 / all.max(1) as f64
                ),
                grouped(count.insns),
                grouped(count.calls),
                count.lasted.map(duration).unwrap_or_default(),
                function.name.clone().or(entry).unwrap_or_default(),
                function.file.as_deref().map(file_name).unwrap_or_default(),
            ]
        })
        .collect();
    let width = width_of(&Term::stdout());
    writeln!(out, "{}", fitted(&columns, &shown, width))?;
    super::more(rows.len(), number, ["function", "functions"], out)?;
    Ok(())
}
