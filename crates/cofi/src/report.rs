//! `cofi report`: what a person wants to know first.

use crate::Ended;
use crate::args::ReportArgs;
use crate::digits::{counted, grouped};
use crate::output::stdout;
use crate::table::{lines, table};
use crate::{check, input, progress};
use anyhow::Result;
use cofi_analysis::{Summary, Tally, ThreadSummary};
use cofi_session::{Diagnostic, Session};
use std::io::Write;
use std::path::Path;

/// How many address spaces of a machine are shown.
const SPACES: usize = 10;

/// Runs the command.
pub(crate) fn run(args: &ReportArgs) -> Result<Ended> {
    let bytes = input::map(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    input::require_trace(&args.flow.input.file, &session)?;
    let mut errors = input::report(&session);
    let summary = summarize(&session);
    let mut out = stdout();
    print(&session, &summary, args.functions, &mut out)?;
    out.flush()?;
    errors |= input::report_code(&session) || summary.gaps() > 0;
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// Decodes every stream and counts, with a progress bar.
pub(crate) fn summarize(session: &Session<'_>) -> Summary {
    let bar = progress::decoding(session.streams().iter().map(|s| s.len() as u64).sum());
    let mut tally = Tally::new();
    for stream in session.streams() {
        tally.add(session, stream);
        bar.inc(stream.len() as u64);
    }
    bar.finish_and_clear();
    tally.finish()
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

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// Prints a summary.
pub(crate) fn print(
    session: &Session<'_>,
    summary: &Summary,
    functions: usize,
    out: &mut impl Write,
) -> Result<()> {
    if session.is_guest() {
        writeln!(out, "A whole machine: each thread is a processor.\n")?;
    }
    let heads = [
        "thread",
        "instructions",
        "branches",
        "taken",
        "calls",
        "returns",
        "system calls",
        "events",
        "trace bytes",
        "per 1,000",
    ];
    let mut threads = table(&heads, &[0]);
    let total = (
        &summary.total,
        summary.trace_bytes,
        summary.bytes_per_1000(),
    );
    let mut row =
        |name: String, (counts, bytes, ratio): (&cofi_analysis::Counts, u64, Option<f64>)| {
            threads.add_row([
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
            ]);
        };
    for thread in &summary.threads {
        row(
            name_of(thread),
            (&thread.counts, thread.trace_bytes, thread.bytes_per_1000()),
        );
    }
    if summary.threads.len() > 1 {
        row("all".into(), total);
    }
    writeln!(out, "{}\n", lines(&threads))?;

    times(session, summary, out)?;
    let mut hot = table(&["instructions", "share", "function", "file"], &[2, 3]);
    let all = summary.total.instructions.max(1) as f64;
    for function in summary.functions.iter().take(functions) {
        hot.add_row([
            grouped(function.instructions),
            format!("{:.1} %", 100.0 * function.instructions as f64 / all),
            function.name.clone(),
            function.file.as_deref().map(file_name).unwrap_or_default(),
        ]);
    }
    writeln!(out, "{}", lines(&hot))?;
    if let Some(more) = summary
        .functions
        .len()
        .checked_sub(functions)
        .filter(|more| *more > 0)
    {
        writeln!(out, " … and {} more functions", grouped(more as u64))?;
    }
    writeln!(out)?;
    if session.is_guest() {
        spaces(summary, out)?;
    }
    gaps(session, summary, out)
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

fn gaps(session: &Session<'_>, summary: &Summary, out: &mut impl Write) -> Result<()> {
    let is_loss = |what: &&Diagnostic| {
        matches!(
            what,
            Diagnostic::Gap { .. } | Diagnostic::Truncated { .. } | Diagnostic::Lost { .. }
        )
    };
    let losses = session.diagnostics().iter().filter(is_loss).count();
    if losses > 0 {
        writeln!(
            out,
            "The file tells of {} losses: what ran meanwhile is not in it.",
            grouped(losses as u64)
        )?;
    }
    for missing in input::missing(session) {
        writeln!(out, "Missing: {missing}")?;
    }
    if summary.gaps() == 0 && (losses > 0 || !input::is_whole(session)) {
        return Ok(());
    }
    if summary.gaps() == 0 {
        writeln!(
            out,
            "No gaps: every instruction of the trace is accounted for."
        )?;
        return Ok(());
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
fn times(session: &Session<'_>, summary: &Summary, out: &mut impl Write) -> Result<()> {
    if summary
        .threads
        .iter()
        .all(|thread| thread.times.ticks().is_none())
    {
        return Ok(());
    }
    let heads = [
        "thread",
        "from",
        "covers",
        "tracing on",
        "off",
        "cycles",
        "instructions a cycle",
    ];
    let mut list = table(&heads, &[0]);
    let dash = || "–".to_owned();
    for thread in &summary.threads {
        let times = &thread.times;
        let (Some(first), Some(ticks)) = (times.first, times.ticks()) else {
            continue;
        };
        let per_cycle = times.per_cycle(thread.counts.instructions);
        list.add_row([
            name_of(thread),
            check::moment(session, first),
            check::lasted(session, ticks),
            check::lasted(session, times.on_ticks),
            check::lasted(session, ticks.saturating_sub(times.on_ticks)),
            per_cycle.map_or_else(dash, |_| grouped(times.cycles)),
            per_cycle.map_or_else(dash, |per_cycle| format!("{per_cycle:.2}")),
        ]);
    }
    writeln!(out, "{}\n", lines(&list))?;
    Ok(())
}
