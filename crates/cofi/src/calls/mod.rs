//! `cofi calls`: who called whom, from when to when, and what ran in it.

mod callers;
mod collect;
pub(crate) mod text;

use crate::args::{CallsArgs, Range};
use crate::json::Line;
use crate::output::{stdout, tell};
use crate::point::{Place, is_called, near};
use crate::progress::Printing;
use crate::select::{Found, Window};
use crate::sync::Sync;
use crate::{Ended, digits, input};
use anyhow::{Result, bail};
use callers::Callers;
use cofi_analysis::{
    CallKind, CallNames, CallTracer, CallVisitor, FinishedCall, FunctionId, Gate, Left, OpenCall,
};
use cofi_packet::{Ip, StreamOffset, Tsc};
use cofi_session::{Session, Stream, Task, ThreadFlow};
use collect::Collect;
use rustc_hash::FxHashMap;
use std::io::Write;

/// Runs the command.
pub(crate) fn run(args: &CallsArgs) -> Result<Ended> {
    let bytes = input::map(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    input::require_trace(&args.flow.input.file, &session)?;
    let window = Window::of_range(&args.range, &session)?;
    if args.min_time.is_some() && session.time_conversion().is_none() {
        bail!("--min-time: the trace does not say how the time stamp counter converts to time");
    }
    let mut out = stdout();
    let mut errors = input::report(&session);
    let mut found = Found::default();
    let mut progress = Printing::of(window.streams(&session));
    let mut matches = 0;
    for stream in window.streams(&session) {
        if args.callers.is_some() && !args.json {
            let mut callers = Callers::new(args, &window);
            let traced = trace(&session, stream, &window, &mut callers, &progress)?;
            errors |= traced.errors;
            found |= traced.found;
            matches += callers.matches();
            callers.print(&session, stream, &mut out)?;
        } else {
            let mut collect = Collect::new(args, &window, &session, stream, &mut out);
            let traced = trace(&session, stream, &window, &mut collect, &progress)?;
            errors |= traced.errors;
            found |= traced.found;
            matches += collect.finish()?;
        }
        progress.finish(stream);
    }
    drop(progress);
    out.flush()?;
    if !window.is_all() {
        window.report_missed(found);
    }
    if let Some(name) = args.function.as_ref().or(args.callers.as_ref())
        && matches == 0
    {
        never(name, &session);
    }
    errors |= input::report_code(&session);
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// Says of a function that nothing called it.
fn never(name: &str, session: &Session<'_>) {
    let near = near(name, session);
    let is_known = near.iter().any(|near| is_named(near, name));
    match (is_known, near.is_empty()) {
        (true, _) => tell(format_args!("{name} was never called in what is shown")),
        (false, true) => tell(format_args!(
            "no function is called {name}, or anything like it"
        )),
        (false, false) => tell(format_args!(
            "no function that was called is {name}; near to it: {}",
            near.join(", ")
        )),
    }
}

/// Whether a person may mean a function of this name, demangled: arguments may be left out.
pub(crate) fn is_named(function: &str, name: &str) -> bool {
    is_called(function, name)
        || function
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('('))
}

/// Which functions have a name that is looked for.
#[derive(Debug)]
pub(crate) struct Matches {
    name: String,
    known: FxHashMap<FunctionId, bool>,
}

impl Matches {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            known: FxHashMap::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is(&mut self, function: FunctionId, names: &CallNames) -> bool {
        let wanted = &self.name;
        *self.known.entry(function).or_insert_with(|| {
            names
                .name(function)
                .is_some_and(|name| is_named(name, wanted))
        })
    }
}

/// What came of following a stream.
#[derive(Debug)]
pub(crate) struct Traced {
    pub(crate) errors: bool,
    pub(crate) found: Found,
    pub(crate) names: CallNames,
    /// What was open at the end, outermost first.
    pub(crate) open: Vec<OpenCall>,
    /// The instruction that ran last, as far as blocks tell.
    pub(crate) last: Option<Ip>,
}

impl Traced {
    fn of(mut tracer: CallTracer<'_>, found: Found, visitor: &mut impl CallVisitor) -> Self {
        let open = tracer.open_calls().collect();
        tracer.finish(visitor);
        Self {
            errors: tracer.has_errors(),
            found,
            open,
            last: tracer.last_instruction(),
            names: tracer.into_names(),
        }
    }
}

/// Follows the wanted part of a stream, and shows its calls to a visitor.
pub(crate) fn trace<'s>(
    session: &'s Session<'_>,
    stream: &'s Stream<'_>,
    window: &Window,
    visitor: &mut impl CallVisitor,
    progress: &Printing,
) -> Result<Traced> {
    if window.is_all() {
        let mut flow = session.decode(stream);
        let mut tracer = CallTracer::new(session, stream);
        while tracer.follow(&mut flow, visitor) {
            progress.reached(flow.offset());
        }
        return Ok(Traced::of(tracer, Found::default(), visitor));
    }
    let sync = Sync::of(session, stream.bytes(), true);
    let start = window.start(session, sync);
    let mut flow = session.decode_from(stream, StreamOffset(start as u64));
    let mut tracer = CallTracer::starting_at(session, stream, StreamOffset(start as u64));
    let mut found = Found {
        begin: window.from.is_none(),
        ..Found::default()
    };
    let wanted: Vec<Ip> = window.instructions().collect();
    let ends_with = window.to.as_ref().is_some_and(Place::is_instruction);
    let mut gate = |flow: &mut ThreadFlow<'s>, hits: &[Ip]| {
        let mut is_reached = |place: &Option<Place>| {
            let holds = |ip| hits.contains(&ip);
            place
                .as_ref()
                .is_some_and(|place| place.is_reached(flow, None, holds))
        };
        found.begin = found.begin || is_reached(&window.from);
        if !found.begin {
            return Gate::Outside;
        }
        found.end = found.end || is_reached(&window.to);
        match (found.end, ends_with) {
            (true, false) => return Gate::End,
            (true, true) => found.any = true,
            (false, _) => {
                found.any = true;
                return Gate::Inside;
            }
        }
        Gate::Last
    };
    while let Some(gate) = tracer.step(&mut flow, &wanted, &mut gate, visitor) {
        if matches!(gate, Gate::Last | Gate::End) {
            break;
        }
        progress.reached(flow.offset());
    }
    Ok(Traced::of(tracer, found, visitor))
}

/// Whether the calls of a thread are wanted.
pub(crate) fn is_wanted(range: &Range, task: Task) -> bool {
    range.tid.is_empty() || range.tid.contains(&task.tid)
}

/// A time in perf's nanoseconds, if the trace says how to convert.
pub(crate) fn nanoseconds(session: &Session<'_>, tsc: Option<Tsc>) -> Option<u64> {
    Some(session.time_conversion()?.time_of(tsc?)?.0)
}

/// For how long a call was open, in nanoseconds.
pub(crate) fn lasted(session: &Session<'_>, call: &FinishedCall) -> Option<u64> {
    let begin = nanoseconds(session, call.call.begin.tsc)?;
    let end = nanoseconds(session, call.end.end.tsc)?;
    Some(end.saturating_sub(begin))
}

/// Writes calls as the contract has them.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// What is the same of all calls from one place.
    sites: FxHashMap<Site, Box<[u8]>>,
}

/// What is the same of them: the function, where it was entered, by which instruction and how.
type Site = (FunctionId, Ip, Option<Ip>, CallKind);

impl Members {
    /// Appends the members of a call's object, all but those of the stream.
    pub(crate) fn put(
        &mut self,
        session: &Session<'_>,
        finished: &FinishedCall,
        names: &CallNames,
        out: &mut Vec<u8>,
    ) {
        let FinishedCall { call, end } = finished;
        let site = (call.function, call.ip, call.from, call.kind);
        let site = self.sites.entry(site).or_insert_with(|| {
            let mut line = Line::default();
            line.begin();
            match names.name(call.function) {
                Some(name) => line.text("call", name),
                None => line.null("call"),
            };
            line.hex("ip", call.ip.0)
                .text("kind", call.kind.name())
                .hex_or_null("from", call.from.map(|from| from.0));
            match names.file(call.function) {
                Some(file) => line.text("file", &file.to_string_lossy()),
                None => line.null("file"),
            };
            line.members().into()
        });
        out.extend_from_slice(site);
        let number = |out: &mut Vec<u8>, key: &[u8], number: Option<u64>| {
            out.extend_from_slice(key);
            match number {
                Some(number) => digits::decimal(out, number),
                None => out.extend_from_slice(b"null"),
            }
        };
        // Of what was still open nobody knows the end.
        let is_over = !matches!(end.left, Left::End | Left::Gap);
        let begin = nanoseconds(session, call.begin.tsc);
        let over = nanoseconds(session, end.end.tsc.filter(|_| is_over));
        let depth = u64::try_from(call.depth).unwrap_or(0);
        number(out, b",\"depth\":", Some(depth));
        number(out, b",\"begin\":", begin);
        number(out, b",\"end\":", over);
        number(out, b",\"insns\":", Some(end.insns));
        number(out, b",\"self_insns\":", Some(end.self_insns));
        out.extend_from_slice(b",\"left\":\"");
        out.extend_from_slice(end.left.name().as_bytes());
        out.push(b'"');
        if end.end.cycles > 0 {
            let cycles = end.end.cycles.saturating_sub(call.begin.cycles);
            number(out, b",\"cycles\":", Some(cycles));
        }
        if call.stack > 0 {
            number(out, b",\"stack\":", Some(call.stack.into()));
        }
    }
}
