//! `cofi export`: calls, and counts of lines, in the formats of other programs.

use crate::args::{ExportArgs, ExportTo, Parallel, WeightArg};
use crate::calls::{nanoseconds, trace};
use crate::coverage::counting::Counter;
use crate::coverage::sources::Sources;
use crate::coverage::{NO_LINES, lcov};
use crate::output::{self, tell};
use crate::progress::Printing;
use crate::psb_index::PsbIndex;
use crate::recordings::for_each;
use crate::select::{Found, Window};
use crate::{Ended, input};
use anyhow::{Context, Result, bail};
use cofi_analysis::{Call, CallEnd, CallNames, CallTracer, CallVisitor};
use cofi_export::{CallExporter, ExportFormat, Weight};
use cofi_packet::StreamOffset;
use cofi_session::{Session, Stream};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Runs the command.
pub(crate) fn run(args: &ExportArgs) -> Result<Ended> {
    match args.to {
        ExportTo::Calls(format) => calls(args, format),
        ExportTo::Lcov => lines(args),
    }
}

/// Exports how often lines ran.
fn lines(args: &ExportArgs) -> Result<Ended> {
    if args.weight.is_some() {
        bail!("--weight: counts of lines have no weight");
    }
    if args.inline {
        bail!("--inline: counts of lines have those of inlined functions already");
    }
    let mut counter = Counter::default();
    let mut output: Option<Box<dyn Write>> = None;
    let has_errors = for_each(&args.flow, &[], &args.range(), |session, window| {
        // What cannot be written should fail before everything is decoded.
        output = Some(create(args, session)?);
        Ok(counter.add(session, window, Parallel::default(), None))
    })?;
    let counted = counter.finish(has_errors);
    let sources = Sources::of(&counted.files, &[], false);
    if let Some(mut output) = output {
        lcov::write(&sources, &mut output)
            .and_then(|()| output.flush())
            .with_context(|| format!("cannot write {}", args.output.display()))?;
    }
    if sources.list.is_empty() {
        tell(format_args!("{NO_LINES}"));
    }
    Ok(match counted.has_errors {
        true => Ended::WithErrors,
        false => Ended::Well,
    })
}

/// Exports calls.
fn calls(args: &ExportArgs, format: ExportFormat) -> Result<Ended> {
    let bytes = input::map(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    input::require_trace(&args.flow.input.file, &session)?;
    let window = Window::of_range(&args.range(), &session)?;
    let mut errors = input::report(&session);
    let weight = match args.weight {
        Some(WeightArg::Insns) => Weight::Instructions,
        Some(WeightArg::Time) if session.time_conversion().is_none() => bail!(
            "--weight time: the trace does not say how the time stamp counter converts to time"
        ),
        Some(WeightArg::Time) => Weight::Time,
        // What adds up stacks shows what is exact: times are those of packets, and what runs between two of them shares nothing out.
        None if format.is_timeline() && has_time(&session, &window) => Weight::Time,
        None => Weight::Instructions,
    };
    let time = |tsc| nanoseconds(&session, Some(tsc));
    let exporter = cofi_export::open(format, weight, time, create(args, &session)?);
    let mut calls = CallExporter::new(&session, weight, &args.tid, exporter);
    let mut found = Found::default();
    let mut progress = Printing::of(window.streams(&session));
    for stream in window.streams(&session) {
        calls.begin_stream(stream.key());
        let traced = trace(
            &session,
            stream,
            &window,
            args.inline,
            &mut calls,
            |offset| progress.reached(offset),
        )?;
        errors |= traced.errors;
        found |= traced.found;
        progress.finish(stream);
    }
    drop(progress);
    let count = calls
        .finish()
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    if !window.is_all() {
        window.report_missed(found);
    }
    if count == 0 {
        tell(format_args!("there is no call in what is exported"));
    }
    errors |= input::report_code(&session);
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// The file to write, or standard output.
fn create(args: &ExportArgs, session: &Session<'_>) -> Result<Box<dyn Write>> {
    let (input, output) = (&args.flow.input.file, &args.output);
    if output == Path::new("-") {
        // It need not be lines: a whole output may be one.
        let out = std::io::stdout();
        return Ok(Box::new(BufWriter::with_capacity(1 << 16, out)));
    }
    let is_output = |path: &Path| {
        let same = path.canonicalize().ok().zip(output.canonicalize().ok());
        same.is_some_and(|(one, two)| one == two)
    };
    let mut parts = session.parts().iter();
    if is_output(input) || is_output(&cofi_file::inside(input)) || parts.any(|part| is_output(part))
    {
        bail!("{} is the trace itself", output.display());
    }
    Ok(Box::new(BufWriter::with_capacity(
        1 << 16,
        output::create(output)?,
    )))
}

/// Whether all calls have a time. Once the time of a stream is known, it stays known, so the first call of each tells.
fn has_time(session: &Session<'_>, window: &Window) -> bool {
    let has = |stream: &&Stream<'_>| first_has_time(session, stream, window);
    session.time_conversion().is_some() && window.streams(session).iter().all(has)
}

fn first_has_time(session: &Session<'_>, stream: &Stream<'_>, window: &Window) -> bool {
    let start = match window.is_all() {
        true => 0,
        false => window.start(session, PsbIndex::of(session, stream.bytes(), true)),
    };
    let mut flow = session.decode_from(stream, StreamOffset(start as u64));
    let mut tracer = CallTracer::starting_at(session, stream, StreamOffset(start as u64));
    let mut first = First(None);
    while first.0.is_none() && tracer.follow_dyn(&mut flow, &mut first) {}
    first.0.unwrap_or(true)
}

/// Whether the first call has a time.
struct First(Option<bool>);

impl CallVisitor for First {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        self.0.get_or_insert(call.begin.tsc.is_some());
    }

    fn leave(&mut self, _: &Call, _: &CallEnd, _: &CallNames) {}
}
