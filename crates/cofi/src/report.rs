//! `cofi report`: what a person wants to know first.

use crate::Ended;
use crate::args::{Parallel, ReportArgs};
use crate::output::stdout;
use crate::point::Place;
use crate::psb_index::PsbIndex;
use crate::select::{Found, Window};
use crate::table::{Column, fitted, lines, table, width_of};
use crate::{check, input, progress};
use anyhow::Result;
use cofi_analysis::{Counts, Summary, Tally, TallyGate, ThreadSummary};
use cofi_packet::StreamOffset;
use cofi_session::compact;
use cofi_session::{Diagnostic, Session, Signal, Stream, StreamKey, ThreadFlow};
use cofi_text::Line;
use cofi_text::digits::{counted, grouped};
use console::Term;
use std::collections::HashMap;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::Path;

/// How many functions are shown.
const FUNCTIONS: usize = 15;

/// How many address spaces of a machine are shown.
const SPACES: usize = 10;

/// Runs the command.
pub(crate) fn run(args: &ReportArgs) -> Result<Ended> {
    let bytes = input::map(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    input::require_trace(&args.flow.input.file, &session)?;
    let window = Window::of_range(&args.range, &session)?;
    let mut errors = input::report(&session);
    let mut found = Found::default();
    let mut parts = Parts::new();
    let summary = match window.is_whole_streams(&session) {
        true => summarize(&session, &window.streams(&session), args.parallel),
        false => tally_part(Tally::new(), &session, &window, &mut found, &mut parts).finish(),
    };
    let signals = Reported::of(&session, &window, &parts);
    let mut out = stdout();
    let functions = args.functions;
    if args.json {
        json(
            &session,
            &summary,
            &signals,
            functions.unwrap_or(usize::MAX),
            &mut out,
        )?;
    } else {
        let width = width_of(&Term::stdout());
        let functions = functions.unwrap_or(FUNCTIONS);
        let report = Report {
            session: &session,
            summary: &summary,
            signals: &signals,
            is_part: !window.is_all() || !window.tids.is_empty(),
            width,
        };
        report.print(functions, &mut out)?;
    }
    out.flush()?;
    if !window.is_all() {
        window.report_missed(found);
    }
    errors |= input::report_code(&session) || summary.gaps() > 0 || summary.proof.seals.broken > 0;
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// Decodes streams and counts, with a progress bar.
pub(crate) fn summarize(
    session: &Session<'_>,
    streams: &[&Stream<'_>],
    parallel: Parallel,
) -> Summary {
    tally_streams(Tally::new(), session, streams, parallel).finish()
}

/// Decodes streams and adds them to a tally, with a progress bar.
pub(crate) fn tally_streams(
    mut tally: Tally,
    session: &Session<'_>,
    streams: &[&Stream<'_>],
    parallel: Parallel,
) -> Tally {
    let bar = progress::decoding(streams.iter().map(|s| s.len() as u64).sum());
    if let Some(size) = parallel.segment {
        tally = tally.with_segments(size);
    }
    tally.add_all(session, streams, parallel.threads(), &|bytes| {
        bar.inc(bytes)
    });
    bar.finish_and_clear();
    tally
}

/// From which byte to which a part of each stream was looked at.
pub(crate) type Parts = HashMap<StreamKey, RangeInclusive<StreamOffset>>;

/// Decodes a part of each stream and adds it to a tally, with a progress bar.
pub(crate) fn tally_part(
    mut tally: Tally,
    session: &Session<'_>,
    window: &Window,
    found: &mut Found,
    parts: &mut Parts,
) -> Tally {
    let streams = window.streams(session);
    let bar = progress::decoding(streams.iter().map(|s| s.len() as u64).sum());
    for stream in streams {
        let sync = PsbIndex::of(session, stream.bytes(), true);
        let start = StreamOffset(window.start(session, sync) as u64);
        let mut here = Found {
            begin: window.from.is_none(),
            ..Found::default()
        };
        let (mut begin, mut end) = (None, start);
        tally.add_part(session, stream, start, |flow, ips| {
            let is_reached = |place: &Option<Place>, flow: &mut ThreadFlow<'_>| {
                let holds = |ip| ips.contains(&ip);
                place
                    .as_ref()
                    .is_some_and(|place| place.is_reached(flow, None, holds))
            };
            here.begin |= is_reached(&window.from, flow);
            if !here.begin {
                return TallyGate::Outside;
            }
            here.end |= is_reached(&window.to, flow);
            let is_wanted = stream.key().cpu().is_none()
                || window.tids.is_empty()
                || window.tids.contains(&flow.task().tid);
            let holds_end = window.to.as_ref().is_some_and(Place::is_instruction);
            let gate = match (here.end, holds_end, is_wanted) {
                (true, true, true) => TallyGate::Last,
                (true, ..) => TallyGate::End,
                (false, _, true) => TallyGate::Inside,
                (false, _, false) => TallyGate::Outside,
            };
            let at = flow.offset();
            begin.get_or_insert(at);
            end = at;
            here.any |= matches!(gate, TallyGate::Inside | TallyGate::Last);
            gate
        });
        if !here.end {
            end = StreamOffset(u64::MAX);
        }
        if let Some(begin) = begin {
            parts.insert(stream.key(), begin..=end);
        }
        *found |= here;
        bar.inc(stream.len() as u64);
    }
    bar.finish_and_clear();
    tally
}

/// The signals that are reported, each kind of each thread once.
pub(crate) struct Reported<'s>(Vec<(&'s Signal, u64)>);

impl<'s> Reported<'s> {
    /// Those of the wanted threads, and of the parts of their streams that were looked at.
    fn of(session: &'s Session<'_>, window: &Window, parts: &Parts) -> Self {
        let is_all = window.is_all();
        Self::among(window.streams(session), |signal| {
            let part = parts.get(&StreamKey::Thread(signal.task.tid));
            is_all || part.is_some_and(|part| part.contains(&signal.offset))
        })
    }

    /// All of a trace.
    pub(crate) fn all(session: &'s Session<'_>) -> Self {
        Self::among(session.streams().iter().collect(), |_| true)
    }

    fn among(streams: Vec<&'s Stream<'_>>, is_wanted: impl Fn(&Signal) -> bool) -> Self {
        let mut list: Vec<(&Signal, u64)> = Vec::new();
        for signal in streams.iter().flat_map(|stream| stream.signals()) {
            if !is_wanted(signal) {
                continue;
            }
            let same = |(other, _): &&mut (&Signal, u64)| {
                (other.task, other.number, other.is_fatal)
                    == (signal.task, signal.number, signal.is_fatal)
            };
            match list.iter_mut().find(same) {
                Some((_, count)) => *count += 1,
                None => list.push((signal, 1)),
            }
        }
        compact::sort_by_key(&mut list, |(signal, _)| !signal.is_fatal);
        Self(list)
    }

    fn of_thread(&self, tid: u32) -> impl Iterator<Item = &(&'s Signal, u64)> {
        self.0
            .iter()
            .filter(move |(signal, _)| signal.task.tid == tid)
    }
}

/// Prints a summary as JSON Lines.
fn json(
    session: &Session<'_>,
    summary: &Summary,
    signals: &Reported<'_>,
    functions: usize,
    out: &mut impl Write,
) -> Result<()> {
    let mut line = Line::default();
    for thread in &summary.threads {
        let counts = &thread.counts;
        line.begin();
        match &thread.comm {
            Some(comm) => line.text("thread", comm),
            None => line.null("thread"),
        };
        if thread.task.tid != 0 || thread.stream.tid().is_some() {
            line.number("tid", thread.task.tid)
                .number("pid", thread.task.pid);
        }
        if let Some(cpu) = thread.stream.cpu() {
            line.number("cpu", cpu);
        }
        line.number("instructions", counts.instructions)
            .number("branches", counts.branches)
            .number("taken", counts.taken)
            .number("calls", counts.calls)
            .number("returns", counts.returns)
            .number("system_calls", counts.system_calls)
            .number("interruptions", counts.interruptions)
            .number("trace_bytes", thread.trace_bytes)
            .number("gaps", thread.gaps.count())
            .number("lost_bytes", thread.gaps.lost_bytes);
        let conversion = session.time_conversion();
        let time = |tsc| Some(conversion?.time_of(tsc)?.0);
        for (key, tsc) in [("begin", thread.times.first), ("end", thread.times.last)] {
            if let Some(time) = tsc.and_then(time) {
                line.number(key, time);
            }
        }
        line.list(
            "signals",
            signals.of_thread(thread.task.tid),
            |line, (signal, count)| {
                line.text("signal", &signal.name())
                    .number("count", *count)
                    .hex_or_null("ip", signal.ip.map(|ip| ip.0))
                    .hex_or_null("address", signal.address)
                    .flag("fatal", signal.is_fatal);
            },
        );
        out.write_all(line.end())?;
    }
    for function in summary.functions.iter().take(functions) {
        line.begin();
        match function.is_named {
            true => line.text("function", &function.name),
            false => line.null("function"),
        };
        match &function.file {
            Some(file) => line.text("file", &file.to_string_lossy()),
            None => line.null("file"),
        };
        line.number("instructions", function.instructions)
            .number("entries", function.entries)
            .hex_or_null("address", function.address);
        out.write_all(line.end())?;
    }
    line.begin().object("summary", |line| {
        line.number("threads", summary.threads.len() as u64)
            .number("functions", summary.functions.len() as u64)
            .number("instructions", summary.total.instructions)
            .number("trace_bytes", summary.trace_bytes)
            .number("gaps", summary.gaps())
            .number("losses", losses(session));
    });
    out.write_all(line.end())?;
    Ok(())
}

fn per_1000(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.1}"))
}

fn name_of(thread: &ThreadSummary) -> String {
    let number = match (thread.stream.tid(), thread.stream.cpu()) {
        (Some(tid), _) => tid.to_string(),
        (_, Some(cpu)) => format!("cpu {cpu}"),
        _ => "–".into(),
    };
    match &thread.comm {
        Some(comm) => format!("{number} {comm}"),
        None => number,
    }
}

/// Whose a task is, as the tables have it.
fn task_name(session: &Session<'_>, tid: u32) -> String {
    match session.comm_of(tid) {
        Some(comm) => format!("{tid} {comm}"),
        None => tid.to_string(),
    }
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// A summary that is to be printed.
pub(crate) struct Report<'a, 't> {
    pub(crate) session: &'a Session<'t>,
    pub(crate) summary: &'a Summary,
    pub(crate) signals: &'a Reported<'a>,
    /// It is about a part of the trace.
    pub(crate) is_part: bool,
    /// How many columns there are to print on, if that matters.
    pub(crate) width: Option<usize>,
}

impl Report<'_, '_> {
    /// Prints it, with so many functions.
    pub(crate) fn print(&self, functions: usize, out: &mut impl Write) -> Result<()> {
        if self.session.is_guest() {
            writeln!(out, "A whole machine: each thread is a processor.\n")?;
        }
        self.threads(out)?;
        times(self.session, self.summary, self.width, out)?;
        self.signals(out)?;
        self.functions(functions, out)?;
        if self.session.is_guest() {
            spaces(self.summary, out)?;
        }
        gaps(self.session, self.summary, self.is_part, out)
    }

    fn threads(&self, out: &mut impl Write) -> Result<()> {
        let columns = [
            Column::name("thread"),
            Column::number("instructions"),
            Column::spare("branches", 4),
            Column::spare("taken", 6),
            Column::spare("calls", 7),
            Column::spare("returns", 8),
            Column::spare("system calls", 1),
            Column::spare("events", 2),
            Column::spare("trace bytes", 3),
            Column::spare("per 1,000", 5),
        ];
        let summary = self.summary;
        let row = |name: String, counts: &Counts, bytes: u64, ratio: Option<f64>| {
            vec![
                name,
                grouped(counts.instructions),
                grouped(counts.branches),
                grouped(counts.taken),
                grouped(counts.calls),
                grouped(counts.returns),
                grouped(counts.system_calls),
                grouped(counts.interruptions),
                grouped(bytes),
                per_1000(ratio),
            ]
        };
        let mut rows: Vec<_> = summary
            .threads
            .iter()
            .map(|thread| {
                let (bytes, ratio) = (thread.trace_bytes, thread.bytes_per_1000());
                row(name_of(thread), &thread.counts, bytes, ratio)
            })
            .collect();
        if rows.len() > 1 {
            let (bytes, ratio) = (summary.trace_bytes, summary.bytes_per_1000());
            rows.push(row("all".into(), &summary.total, bytes, ratio));
        }
        writeln!(out, "{}\n", fitted(&columns, &rows, self.width))?;
        Ok(())
    }

    /// Which signals came.
    fn signals(&self, out: &mut impl Write) -> Result<()> {
        if self.signals.0.is_empty() {
            return Ok(());
        }
        let columns = [
            Column::name("thread"),
            Column::words("signal"),
            Column::spare("times", 1),
            Column::name("at (first)"),
            Column::number("address"),
            Column::words("effect"),
        ];
        let rows: Vec<_> = self
            .signals
            .0
            .iter()
            .map(|(signal, count)| {
                let at = signal.ip.map(|ip| {
                    let view = self.session.last_view(signal.task.pid);
                    let place = view.place(ip).map(|place| place.to_string());
                    place.unwrap_or_else(|| ip.to_string())
                });
                let dash = || "–".to_owned();
                let effect = match signal.is_fatal {
                    true => "ended the process",
                    false => "handled",
                };
                vec![
                    task_name(self.session, signal.task.tid),
                    signal.name(),
                    grouped(*count),
                    at.unwrap_or_else(dash),
                    signal
                        .address
                        .map_or_else(dash, |address| format!("{address:#x}")),
                    effect.to_owned(),
                ]
            })
            .collect();
        writeln!(out, "{}\n", fitted(&columns, &rows, self.width))?;
        Ok(())
    }

    /// The hottest functions.
    fn functions(&self, functions: usize, out: &mut impl Write) -> Result<()> {
        let columns = [
            Column::number("instructions"),
            Column::number("share"),
            Column::name("function"),
            Column::name("file"),
        ];
        let summary = self.summary;
        let all = summary
            .functions
            .iter()
            .map(|f| f.instructions)
            .sum::<u64>()
            .max(1) as f64;
        let rows: Vec<_> = summary
            .functions
            .iter()
            .take(functions)
            .map(|function| {
                vec![
                    grouped(function.instructions),
                    format!("{:.1} %", 100.0 * function.instructions as f64 / all),
                    function.name.clone(),
                    function.file.as_deref().map(file_name).unwrap_or_default(),
                ]
            })
            .collect();
        writeln!(out, "{}", fitted(&columns, &rows, self.width))?;
        let more = summary.functions.len().saturating_sub(functions) as u64;
        if more > 0 {
            writeln!(out, " … and {}", counted(more, "more function"))?;
        }
        writeln!(out)?;
        Ok(())
    }
}

/// The address spaces of a machine.
fn spaces(summary: &Summary, out: &mut impl Write) -> Result<()> {
    let mut list = table(&["instructions", "share", "address space"], &[2]);
    let all = summary.total.instructions.max(1) as f64;
    for space in summary.spaces.iter().take(SPACES) {
        list.add_row([
            grouped(space.instructions),
            format!("{:.1} %", 100.0 * space.instructions as f64 / all),
            space
                .cr3
                .map_or_else(|| "unknown".into(), |cr3| format!("CR3 = {cr3:#x}")),
        ]);
    }
    writeln!(out, "{}", lines(&list))?;
    if let Some(more) = summary
        .spaces
        .len()
        .checked_sub(SPACES)
        .filter(|more| *more > 0)
    {
        writeln!(out, " … and {} more", grouped(more as u64))?;
    }
    writeln!(out)?;
    Ok(())
}

/// How many losses the file itself tells of.
fn losses(session: &Session<'_>) -> u64 {
    let is_loss = |what: &&Diagnostic| {
        matches!(
            what,
            Diagnostic::Gap { .. } | Diagnostic::Truncated { .. } | Diagnostic::Lost { .. }
        )
    };
    session.diagnostics().iter().filter(is_loss).count() as u64
}

fn gaps(
    session: &Session<'_>,
    summary: &Summary,
    is_part: bool,
    out: &mut impl Write,
) -> Result<()> {
    let losses = losses(session);
    if losses > 0 {
        writeln!(
            out,
            "The file tells of {}: what ran meanwhile is not in it.",
            match losses {
                1 => "1 loss".to_owned(),
                losses => format!("{} losses", grouped(losses)),
            }
        )?;
    }
    for missing in input::missing(session) {
        writeln!(out, "Missing: {missing}")?;
    }
    for omitted in input::omissions(session) {
        writeln!(out, "Not kept, as asked: {omitted}")?;
    }
    if summary.gaps() == 0 && (losses > 0 || !input::is_whole(session)) {
        return Ok(());
    }
    if summary.gaps() == 0 {
        let said = match is_part {
            true => "No gaps found in this part of the trace.".to_owned(),
            false => check::no_gaps(session, &summary.proof),
        };
        return Ok(writeln!(out, "{said}")?);
    }
    writeln!(out, "Gaps: {}", grouped(summary.gaps()))?;
    for thread in summary
        .threads
        .iter()
        .filter(|thread| thread.gaps.count() > 0)
    {
        let gaps = &thread.gaps;
        let lost = if gaps.lost_ticks > 0 {
            format!(", {}", check::lasted(session, gaps.lost_ticks))
        } else {
            String::new()
        };
        writeln!(
            out,
            "\n{}: {}, {}; lost: {} of trace{lost}",
            name_of(thread),
            counted(gaps.errors, "error"),
            counted(gaps.overflows, "overflow"),
            counted(gaps.lost_bytes, "byte"),
        )?;
        writeln!(out, "{}", check::gap_table(session, &gaps.first))?;
        let more = gaps.count() - gaps.first.len() as u64;
        if more > 0 {
            writeln!(out, " … and {} more: see `cofi check`", grouped(more))?;
        }
    }
    Ok(())
}

/// When the threads were traced.
fn times(
    session: &Session<'_>,
    summary: &Summary,
    width: Option<usize>,
    out: &mut impl Write,
) -> Result<()> {
    if summary
        .threads
        .iter()
        .all(|thread| thread.times.ticks().is_none())
    {
        return Ok(());
    }
    let columns = [
        Column::name("thread"),
        Column::number("from"),
        Column::number("covers"),
        Column::spare("tracing on", 1),
        Column::spare("off", 2),
        Column::spare("cycles", 3),
        Column::spare("instructions a cycle", 4),
    ];
    let mut rows = Vec::new();
    let dash = || "–".to_owned();
    for thread in &summary.threads {
        let times = &thread.times;
        let (Some(first), Some(ticks)) = (times.first, times.ticks()) else {
            continue;
        };
        let per_cycle = times.per_cycle(thread.counts.instructions);
        rows.push(vec![
            name_of(thread),
            check::moment(session, first),
            check::lasted(session, ticks),
            check::lasted(session, times.on_ticks),
            check::lasted(session, ticks.saturating_sub(times.on_ticks)),
            per_cycle.map_or_else(dash, |_| grouped(times.cycles)),
            per_cycle.map_or_else(dash, |per_cycle| format!("{per_cycle:.2}")),
        ]);
    }
    writeln!(out, "{}\n", fitted(&columns, &rows, width))?;
    Ok(())
}
