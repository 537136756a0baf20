//! `cofi trace`: record a program, then show what it did.

use crate::args::{FlowInput, TraceArgs};
use crate::engine::Chosen;
use crate::{Ended, input, notes, output, record, report, supervise};
use anyhow::Result;
use cofi_flow::{Item, TraceFormat};
use cofi_session::{Session, Stream};
use std::collections::VecDeque;
use std::io::Write;

/// How many functions the report shows here.
const FUNCTIONS: usize = 10;

/// Runs the command. The report goes to standard error, as standard output is the program's.
pub(crate) fn run(args: &TraceArgs) -> Result<Ended> {
    let options = &args.options;
    if let Some(pid) = options.pid.filter(|_| !supervise::is_tracer()) {
        return supervise::run(pid);
    }
    let recording = record::record(options, |engine| {
        if matches!(engine, Chosen::Ptrace) {
            output::tell(format_args!(
                "single-stepping the program; expect about 85,000 instructions a second"
            ));
        }
    })?;
    let bytes = input::map(&options.output)?;
    let flow_input = FlowInput::of(&options.output, args.names.clone());
    let session = input::open_flow(&flow_input, &bytes)?;
    input::report(&session);
    let mut out = std::io::stderr().lock();
    writeln!(out, "\n")?;
    let summary = report::summarize(&session);
    report::print(&session, &summary, FUNCTIONS, &mut out)?;
    if let Some(stream) = session.streams().first() {
        writeln!(out, "\nThe last instructions of {}:", input::title(stream))?;
        for line in last(&session, stream, args.last) {
            writeln!(out, "{line}")?;
        }
    }
    let file = options.output.display();
    write!(
        out,
        "\nThe trace is in {file}: see `cofi insn {file}`, `cofi dump {file}`"
    )?;
    // perf knows nothing of the code of guests, nor of RTIT.
    let is_rtit = matches!(session.flow_config().format, TraceFormat::Rtit(_));
    if session.is_guest() || is_rtit {
        writeln!(out, ".")?;
    } else {
        writeln!(out, ", `perf script -i {file} --itrace=i1i`.")?;
    }
    drop(out);
    input::report_code(&session);
    record::finish(options, &recording)
}

/// The last `count` instructions of a stream, as lines, with the events between them.
fn last(session: &Session<'_>, stream: &Stream<'_>, count: usize) -> VecDeque<String> {
    let mut flow = session.decode(stream);
    let mut kept: VecDeque<Item> = VecDeque::new();
    for item in flow.by_ref() {
        if kept.len() == count {
            kept.pop_front();
        }
        kept.push_back(item);
    }
    kept.into_iter()
        .map(|item| match item {
            Item::Insn(executed) => notes::line(&mut flow, &executed),
            Item::Event(event) => format!("  -- {}", crate::item::sentence(&event)),
            Item::Error(error) => format!("  !! {error}"),
        })
        .collect()
}
