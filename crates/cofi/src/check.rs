//! `cofi check`: where a trace has gaps, and what is lost in each.

use crate::Ended;
use crate::args::CheckArgs;
use crate::output::stdout;
use crate::table::{lines, table};
use crate::{input, item, progress};
use anyhow::Result;
use cofi_analysis::{CheckOptions, Gap, GapCause, Proof, StreamCheck};
use cofi_packet::Tsc;
use cofi_perf::PerfTime;
use cofi_session::{Session, Stream};
use cofi_text::Line;
use cofi_text::digits::{counted, grouped};
use std::collections::BTreeMap;
use std::io::Write;

/// Runs the command.
pub(crate) fn run(args: &CheckArgs) -> Result<Ended> {
    let bytes = input::map(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    input::require_trace(&args.flow.input.file, &session)?;
    let mut options = CheckOptions::default();
    options.threads = args.parallel.threads();
    options.segment = args.parallel.segment.unwrap_or(options.segment);
    let bar = progress::decoding(session.streams().iter().map(|s| s.len() as u64).sum());
    let checks = cofi_analysis::check(&session, options, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let problems: Vec<String> = session.code_problems().map(ToString::to_string).collect();
    let mut out = stdout();
    if args.json {
        json(&session, &checks, &problems, &mut out)?;
    } else {
        text(&session, &checks, &problems, &mut out)?;
    }
    out.flush()?;
    let is_whole = input::is_whole(&session)
        && session.diagnostics().is_empty()
        && problems.is_empty()
        && checks.iter().all(StreamCheck::is_whole);
    Ok(if is_whole {
        Ended::Well
    } else {
        Ended::WithErrors
    })
}

/// What all streams have together.
#[derive(Default)]
struct Total {
    instructions: u64,
    bytes: u64,
    lost_bytes: u64,
    head: u64,
    lost_ticks: u64,
    proof: Proof,
    kinds: BTreeMap<&'static str, u64>,
}

impl Total {
    fn of(checks: &[StreamCheck]) -> Self {
        let mut total = Self::default();
        for check in checks {
            total.instructions += check.instructions;
            total.bytes += check.bytes;
            total.lost_bytes += check.lost_bytes;
            total.head += check.head;
            total.proof.add(check.proof);
            total.lost_ticks = total.lost_ticks.saturating_add(check.lost_ticks);
            for (word, count) in &check.kinds {
                *total.kinds.entry(word).or_default() += count;
            }
        }
        total
    }

    fn gaps(&self) -> u64 {
        self.kinds.values().sum()
    }

    /// The share of the trace's bytes that could be used.
    fn decoded(&self) -> f64 {
        let decoded = self.bytes.saturating_sub(self.lost_bytes);
        decoded as f64 / self.bytes.max(1) as f64
    }
}

/// So many ticks in nanoseconds, where the trace says how to convert.
pub(crate) fn nanoseconds(session: &Session<'_>, ticks: u64) -> Option<u64> {
    let conversion = session.time_conversion()?;
    let (end, begin) = (conversion.time_of(Tsc(ticks))?, conversion.time_of(Tsc(0))?);
    Some(end.0.wrapping_sub(begin.0))
}

fn time_of(session: &Session<'_>, tsc: Tsc) -> Option<PerfTime> {
    session.time_conversion()?.time_of(tsc)
}

fn json(
    session: &Session<'_>,
    checks: &[StreamCheck],
    problems: &[String],
    out: &mut impl Write,
) -> Result<()> {
    let mut line = Line::default();
    for diagnostic in session.diagnostics() {
        line.begin().text("diagnostic", &diagnostic.to_string());
        out.write_all(line.end())?;
    }
    for (stream, check) in session.streams().iter().zip(checks) {
        for gap in &check.gaps {
            line.begin().text("gap", gap.cause.word());
            describe(session, gap, &mut line);
            tag(stream, gap, &mut line);
            out.write_all(line.end())?;
        }
        let more = check.gap_count() - check.gaps.len() as u64;
        if more > 0 {
            line.begin().number("more_gaps", more);
            input::tag(stream, &mut line);
            out.write_all(line.end())?;
        }
        for (offset, jump) in &check.jumps {
            line.begin().object("time_jump", |line| {
                line.number("offset", offset.0)
                    .number("tsc_from", jump.from.0)
                    .number("tsc_to", jump.to.0);
            });
            input::tag(stream, &mut line);
            out.write_all(line.end())?;
        }
    }
    for problem in problems {
        line.begin().text("code_problem", problem);
        out.write_all(line.end())?;
    }
    let total = Total::of(checks);
    line.begin().object("summary", |line| {
        line.number("streams", checks.len() as u64)
            .number("instructions", total.instructions)
            .number("trace_bytes", total.bytes)
            .number("lost_bytes", total.lost_bytes)
            .number("bytes_before_first_psb", total.head)
            .real("decoded_share", total.decoded())
            .number("gaps", total.gaps())
            .number("seals", total.proof.seals.verified)
            .number("seals_broken", total.proof.seals.broken)
            .number("lost_instructions", total.proof.seals.lost_instructions)
            .number("unsealed_bytes", total.proof.unsealed)
            .object("gaps_by_kind", |line| {
                for (word, count) in &total.kinds {
                    line.number(word, *count);
                }
            })
            .number(
                "overflows",
                total.kinds.get("overflow").copied().unwrap_or(0),
            )
            .number("lost_ticks", total.lost_ticks);
        if let Some(lost) = nanoseconds(session, total.lost_ticks) {
            line.number("lost_time", lost);
        }
        let is_finished = session.recording().is_none_or(|said| said.is_finished);
        line.flag("finished", is_finished);
        line.texts("missing", input::missing(session));
        line.texts("not_kept", input::omissions(session));
        line.number("diagnostics", session.diagnostics().len() as u64)
            .number("code_problems", problems.len() as u64);
    });
    out.write_all(line.end())?;
    Ok(())
}

fn number_or_null(line: &mut Line, key: &str, value: Option<u64>) {
    match value {
        Some(value) => line.number(key, value),
        None => line.null(key),
    };
}

/// Why there is a gap, and what the user can do about it, if there is something.
fn reason(gap: &Gap) -> String {
    match &gap.cause {
        GapCause::Error(kind) => item::with_advice(kind),
        cause => cause.to_string(),
    }
}

fn describe(session: &Session<'_>, gap: &Gap, line: &mut Line) {
    let resumed = gap.resumed;
    line.number("offset", gap.offset.0)
        .hex_or_null("ip", gap.ip.map(|ip| ip.0))
        .text("reason", &reason(gap))
        .number("lost_bytes", gap.bytes);
    number_or_null(line, "tsc", gap.time.map(|tsc| tsc.0));
    number_or_null(line, "lost_ticks", gap.ticks());
    if session.time_conversion().is_some() {
        let time = gap.time.and_then(|tsc| time_of(session, tsc));
        number_or_null(line, "time", time.map(|time| time.0));
        let lost = gap.ticks().and_then(|ticks| nanoseconds(session, ticks));
        number_or_null(line, "lost_time", lost);
    }
    number_or_null(
        line,
        "resumed_offset",
        resumed.map(|resumed| resumed.offset.0),
    );
    let ip = resumed.and_then(|resumed| resumed.ip);
    line.hex_or_null("resumed_ip", ip.map(|ip| ip.0));
}

fn tag(stream: &Stream<'_>, gap: &Gap, line: &mut Line) {
    let running = Some(gap.task.tid).filter(|tid| *tid != 0 && stream.key().cpu().is_some());
    if let Some(tid) = running {
        line.number("tid", tid);
    }
    input::tag(stream, line);
}

/// A duration as a person reads it: `12 ns`, `3.4 µs`, `5.67 ms`, `1.2 s`.
pub(crate) fn duration(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.1} µs", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", value / 1e6),
        _ => format!("{:.3} s", value / 1e9),
    }
}

/// How long, in time where the trace says how to convert, else in ticks.
pub(crate) fn lasted(session: &Session<'_>, ticks: u64) -> String {
    match nanoseconds(session, ticks) {
        Some(nanoseconds) => duration(nanoseconds),
        None => counted(ticks, "tick"),
    }
}

/// A time: perf's where the trace says how to convert, else the TSC.
pub(crate) fn moment(session: &Session<'_>, tsc: Tsc) -> String {
    match time_of(session, tsc) {
        Some(time) => time.to_string(),
        None => tsc.to_string(),
    }
}

/// The gaps as a table.
pub(crate) fn gap_table(session: &Session<'_>, gaps: &[Gap]) -> String {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".into());
    let heads = [
        "offset",
        "time",
        "at",
        "goes on at",
        "bytes lost",
        "time lost",
        "kind",
        "reason",
    ];
    let mut list = table(&heads, &[6, 7]);
    for gap in gaps {
        let time = gap.time.map(|tsc| moment(session, tsc));
        let on = gap.resumed.map(|resumed| match resumed.ip {
            Some(ip) => ip.to_string(),
            None => format!("offset {:#x}", resumed.offset),
        });
        list.add_row([
            format!("{:#x}", gap.offset),
            or_dash(time),
            or_dash(gap.ip.map(|ip| ip.to_string())),
            or_dash(on),
            grouped(gap.bytes),
            or_dash(gap.ticks().map(|ticks| lasted(session, ticks))),
            gap.cause.word().into(),
            reason(gap),
        ]);
    }
    lines(&list)
}

/// What may be said of a trace in which no gap was found: that it is whole only where its seals prove it.
pub(crate) fn no_gaps(session: &Session<'_>, proof: &Proof) -> String {
    if !proof.has_seals() {
        return "No gaps found: packets and code fit each other.\n\
                (No seal proves it: only Cofi's recordings have seals.)"
            .into();
    }
    let seals = counted(proof.seals.verified, "seal");
    let prove = match proof.seals.verified {
        1 => "proves",
        _ => "prove",
    };
    if !proof.is_complete() {
        let unsealed = counted(proof.unsealed, "byte");
        format!("No gaps found. {seals} verified;\nno seal covers {unsealed} of trace.")
    } else if session.diagnostics().is_empty() && input::omissions(session).next().is_some() {
        format!(
            "No gaps: every instruction of what was kept is accounted for.\n\
             {seals} of the recorder {prove} it."
        )
    } else if session.diagnostics().is_empty() {
        format!(
            "No gaps: every instruction of the trace is accounted for.\n\
             {seals} of the recorder {prove} it."
        )
    } else {
        format!("No gaps in what the file holds.\n{seals} of the recorder {prove} it.")
    }
}

fn text(
    session: &Session<'_>,
    checks: &[StreamCheck],
    problems: &[String],
    out: &mut impl Write,
) -> Result<()> {
    for (stream, check) in session.streams().iter().zip(checks) {
        if check.gap_count() == 0 {
            continue;
        }
        let gaps = counted(check.gap_count(), "gap");
        writeln!(out, "{}: {gaps}", input::title(stream))?;
        writeln!(out, "{}", gap_table(session, &check.gaps))?;
        let more = check.gap_count() - check.gaps.len() as u64;
        if more > 0 {
            writeln!(out, " … and {} more", grouped(more))?;
        }
        writeln!(out)?;
    }
    for (stream, check) in session.streams().iter().zip(checks) {
        for (offset, jump) in &check.jumps {
            let title = input::title(stream);
            writeln!(out, "{title}: at offset {offset:#x} {jump}")?;
        }
    }
    for diagnostic in session.diagnostics() {
        writeln!(out, "The file: {diagnostic}")?;
    }
    for problem in problems {
        writeln!(out, "Code: {problem}")?;
    }
    let is_whole = input::is_whole(session);
    for missing in input::missing(session) {
        writeln!(out, "Missing: {missing}")?;
    }
    let mut is_partial = false;
    for omitted in input::omissions(session) {
        writeln!(out, "Not kept, as asked: {omitted}")?;
        is_partial = true;
    }
    if is_partial || !session.diagnostics().is_empty() || !problems.is_empty() || !is_whole {
        writeln!(out)?;
    }
    let total = Total::of(checks);
    writeln!(
        out,
        "{} decoded from {} of trace in {}.",
        counted(total.instructions, "instruction"),
        counted(total.bytes, "byte"),
        counted(checks.len() as u64, "stream"),
    )?;
    if total.head > 0 {
        writeln!(
            out,
            "{} before the first PSB cannot be used: where packets begin there is not known.",
            counted(total.head, "byte")
        )?;
    }
    if total.gaps() == 0 && !is_whole {
        writeln!(
            out,
            "What the file holds is accounted for, but not everything that ran is in it."
        )?;
        return Ok(());
    }
    if total.gaps() == 0 {
        return Ok(writeln!(out, "{}", no_gaps(session, &total.proof))?);
    }
    if total.proof.seals.lost_instructions > 0 {
        let lost = counted(total.proof.seals.lost_instructions, "instruction");
        writeln!(out, "At least {lost} ran that could not be decoded.")?;
    }
    let kinds: Vec<String> = total
        .kinds
        .iter()
        .map(|(word, count)| format!("{} {word}", grouped(*count)))
        .collect();
    let lasted = match total.lost_ticks {
        0 => String::new(),
        ticks => format!("; time lost: {}", lasted(session, ticks)),
    };
    let gaps = counted(total.gaps(), "gap");
    writeln!(out, "{gaps}: {}{lasted}.", kinds.join(", "))?;
    if total.lost_bytes > 0 {
        writeln!(
            out,
            "{} of trace ({:.2} %) could not be used.",
            counted(total.lost_bytes, "byte"),
            100.0 * (1.0 - total.decoded())
        )?;
    }
    Ok(())
}
