//! `cofi trace`: record a program, then show what it did.

use crate::args::{FlowInput, Parallel, TraceArgs};
use crate::engine::Chosen;
use crate::flight::FlightOptions;
use crate::notes::NameWidth;
use crate::report::{Report, Reported};
use crate::table::width_of;
use crate::{Ended, input, notes, output, record, report, supervise};
use anyhow::Result;
use cofi_flow::{Item, TraceFormat};
use cofi_packet::StreamOffset;
use cofi_session::{Session, Signal, Stream};
use console::Term;
use std::collections::VecDeque;
use std::io::Write;

/// How many functions the report shows here.
const FUNCTIONS: usize = 10;

/// Runs the command. The report goes to standard error, as standard output is the program's.
pub(crate) fn run(args: &TraceArgs) -> Result<Ended> {
    let options = &args.options;
    if let Some(pid) = record::needs_supervisor(options, &FlightOptions::default()) {
        return supervise::run(pid);
    }
    let recording = record::record(options, &FlightOptions::default(), |engine| {
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
    let streams: Vec<_> = session.streams().iter().collect();
    let summary = report::summarize(&session, &streams, Parallel::default());
    let width = width_of(&Term::stderr());
    let report = Report {
        session: &session,
        summary: &summary,
        signals: &Reported::all(&session),
        is_part: false,
        width,
    };
    report.print(FUNCTIONS, &mut out)?;
    if let Some(stream) = session.last_stream() {
        let fatal = stream.signals().iter().find(|signal| signal.is_fatal);
        let why = match fatal {
            Some(signal) => format!(", which {} hit", signal.name()),
            None if streams.len() > 1 => ", which ended last".to_owned(),
            None => String::new(),
        };
        writeln!(
            out,
            "\nThe last instructions of {}{why}:",
            input::title(stream)
        )?;
        for line in last(&session, stream, args.last, width) {
            writeln!(out, "{line}")?;
        }
    }
    let file = options.output.display();
    writeln!(out, "\nRecorded with {}.", recording.engine)?;
    write!(
        out,
        "The trace is in {file}: see `cofi insn {file}`, `cofi dump {file}`"
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

/// Something of a flow that may have to be shown.
enum Kept {
    Item(Item),
    Signal(Signal),
}

/// The last `count` instructions of a stream, as lines, with the events and signals between and behind them.
fn last(
    session: &Session<'_>,
    stream: &Stream<'_>,
    count: usize,
    width: Option<usize>,
) -> Vec<String> {
    let names = NameWidth::of(width, false);
    let mut flow = session.decode(stream);
    let mut signals = stream.signals_from(StreamOffset(0));
    let mut kept = VecDeque::new();
    let mut instructions = 0;
    while let Some(item) = flow.next() {
        if matches!(item, Item::Insn(_)) {
            instructions += 1;
        } else {
            while let Some(signal) = signals.before(flow.offset()) {
                kept.push_back(Kept::Signal(*signal));
            }
        }
        kept.push_back(Kept::Item(item));
        while instructions > count || kept.len() > count.saturating_mul(4) {
            let first = kept.pop_front();
            instructions -= usize::from(matches!(first, Some(Kept::Item(Item::Insn(_)))));
        }
    }
    while let Some(signal) = signals.at_end() {
        kept.push_back(Kept::Signal(*signal));
    }
    kept.into_iter()
        .map(|kept| match kept {
            Kept::Item(Item::Insn(executed)) => notes::line(&mut flow, &executed, names),
            Kept::Item(Item::Event(event)) => format!("  -- {}", crate::item::sentence(&event)),
            Kept::Item(Item::Error(error)) => format!("  !! {error}"),
            Kept::Signal(signal) => format!("  -- {}", crate::item::signal_sentence(&signal)),
        })
        .collect()
}
