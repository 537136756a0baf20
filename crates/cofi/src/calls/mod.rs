//! `cofi calls`: who called whom, from when to when, and what ran in it.

mod callers;
mod collect;
pub(crate) mod json;
pub(crate) mod text;
mod turns;
mod ways;

use crate::args::{CallsArgs, Range};
use crate::function_names::{Wanted, is_named, of_stub};
use crate::output::{Stdout, stdout, tell};
use crate::point::{Place, near};
use crate::progress::Printing;
use crate::psb_index::PsbIndex;
use crate::select::{Found, Window};
use crate::{Ended, args, input, item};
use anyhow::{Result, bail};
use callers::Callers;
use cofi_analysis::{
    CallNames, CallTracer, CallVisitor, FinishedCall, FunctionId, OpenCall, TallyGate, diff::Feed,
};
use cofi_packet::{Ip, StreamOffset, Tsc};
use cofi_session::compact;
use cofi_session::{Session, Stream, Task, ThreadFlow};
use cofi_text::digits::counted;
use collect::Collect;
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use turns::{Turn, Turns};

/// Runs the command.
pub(crate) fn run(args: &CallsArgs) -> Result<Ended> {
    let bytes = input::map(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    input::require_trace(&args.flow.input.file, &session)?;
    let window = Window::of_range(&args.range, &session)?;
    if args.min_time.is_some() && session.time_conversion().is_none() {
        bail!("--min-time: the trace does not say how the time stamp counter converts to time");
    }
    let mut errors = input::report(&session);
    let mut found = Found::default();
    let mut matches = 0;
    let out = Mutex::new(stdout());
    let name = args.function.as_ref().or(args.callers.as_ref());
    let wanted = name.map(|name| Wanted::of(name, &session));
    let work = Work {
        args,
        wanted: wanted.as_ref(),
        session: &session,
        window: &window,
        progress: Printing::of(window.streams(&session)),
        out: &out,
    };
    for shown in work.streams()? {
        errors |= shown.errors;
        found |= shown.found;
        matches += shown.matches;
    }
    drop(work);
    let mut out = out.into_inner().unwrap_or_else(PoisonError::into_inner);
    out.flush()?;
    if !window.is_all() {
        window.report_missed(found);
    }
    match &wanted {
        Some(wanted) if matches == 0 => never(wanted.name(), &session),
        Some(wanted) => wanted.tell_other_names(),
        None => {}
    }
    errors |= input::report_code(&session);
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// What the streams are shown with.
struct Work<'a, 's> {
    args: &'a CallsArgs,
    /// The function that is asked for, or for whose callers.
    wanted: Option<&'a Wanted>,
    session: &'s Session<'s>,
    window: &'a Window,
    progress: Printing,
    out: &'a Mutex<Stdout>,
}

/// What came of showing a stream.
struct Shown {
    errors: bool,
    found: Found,
    /// How many calls there were of the function that was asked for.
    matches: u64,
}

impl<'s> Work<'_, 's> {
    /// Shows all streams, one after the other. Several are gone through at a time, and wait for their turn to print.
    fn streams(&self) -> Result<Vec<Shown>> {
        let streams = self.window.streams(self.session);
        let threads = args::threads(self.args.threads).get().min(streams.len());
        let (next, turns) = (AtomicUsize::new(0), Turns::default());
        let failed = AtomicBool::new(false);
        let shown = Mutex::new(Vec::new());
        let run = || {
            while !failed.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(stream) = streams.get(number) else {
                    break;
                };
                let turn = turns.of(number);
                let result = self.stream(stream, &turn);
                failed.fetch_or(result.is_err(), Ordering::Relaxed);
                let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
                shown.push((number, result));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // This thread can do all of it.
                let _ = Builder::new().spawn_scoped(scope, run);
            }
            run();
        });
        let mut shown = shown.into_inner().unwrap_or_else(PoisonError::into_inner);
        compact::sort_by_key(&mut shown, |(number, _)| *number);
        shown.into_iter().map(|(_, shown)| shown).collect()
    }

    fn stream(&self, stream: &'s Stream<'s>, turn: &Turn<'_>) -> Result<Shown> {
        let Self {
            args,
            wanted,
            session,
            window,
            out,
            ..
        } = *self;
        let last = Cell::new(0);
        let advance = |offset: u64| {
            let before = last.replace(offset);
            self.progress.advance(offset.saturating_sub(before));
        };
        let reached = |offset: StreamOffset| advance(offset.0);
        let (traced, matches);
        if let Some(wanted) = wanted.filter(|_| args.callers.is_some() && !args.json) {
            let mut callers = Callers::new(args, wanted);
            traced = trace(session, stream, window, args.inline, &mut callers, reached)?;
            matches = callers.matches();
            turn.wait();
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            callers.print(session, stream, &mut out)?;
        } else {
            let mut collect = Collect::new(args, wanted, window, session, stream, (out, turn));
            traced = trace(session, stream, window, args.inline, &mut collect, reached)?;
            matches = collect.finish()?;
        }
        advance(stream.len() as u64);
        Ok(Shown {
            errors: traced.errors,
            found: traced.found,
            matches,
        })
    }
}

/// Says of a function that nothing called it.
fn never(name: &str, session: &Session<'_>) {
    if let Some(function) = of_stub(name) {
        tell(format_args!(
            "{name} is a stub, and no call of its own: what it leads to is called where the stub was; ask for {function}"
        ));
        return;
    }
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

/// Which functions have a name that is looked for.
#[derive(Debug)]
pub(crate) struct Matches {
    wanted: Wanted,
    known: FxHashMap<FunctionId, bool>,
}

impl Matches {
    pub(crate) fn new(wanted: &Wanted) -> Self {
        Self {
            wanted: wanted.clone(),
            known: FxHashMap::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.wanted.name()
    }

    pub(crate) fn is(&mut self, function: FunctionId, names: &CallNames) -> bool {
        let wanted = &self.wanted;
        *self
            .known
            .entry(function)
            .or_insert_with(|| names.name(function).is_some_and(|name| wanted.is(name)))
    }
}

/// What came of following a stream.
#[derive(Debug)]
pub(crate) struct Traced {
    /// What to say of errors in the flow, if there were any.
    wrong: Option<String>,
    pub(crate) errors: bool,
    pub(crate) found: Found,
    pub(crate) names: CallNames,
    /// What was open at the end, outermost first.
    pub(crate) open: Vec<OpenCall>,
    /// How many were open around these and are not kept.
    pub(crate) forgotten: u64,
    /// The instruction that ran last, as far as blocks tell.
    pub(crate) last: Option<Ip>,
}

impl Traced {
    fn of(
        mut tracer: CallTracer<'_>,
        stream: &Stream<'_>,
        found: Found,
        visitor: &mut dyn CallVisitor,
    ) -> Self {
        tracer.decide(visitor);
        let open = tracer.open_calls().collect();
        let forgotten = tracer.forgotten_calls();
        tracer.finish(visitor);
        let wrong = tracer.errors().map(|(first, count)| {
            let title = input::title(stream);
            let errors = counted(count, "error");
            let wrong = item::wrong(&first);
            format!(
                "{title}: {errors} in the flow, the first {wrong}; `cofi check` lists what is missing"
            )
        });
        Self {
            wrong,
            errors: tracer.has_errors(),
            found,
            open,
            forgotten,
            last: tracer.last_instruction(),
            names: tracer.into_names(),
        }
    }
}

/// As [`follow`] does, and says on standard error what was wrong with the flow.
pub(crate) fn trace<'s>(
    session: &'s Session<'_>,
    stream: &'s Stream<'_>,
    window: &Window,
    inlined: bool,
    visitor: &mut dyn CallVisitor,
    reached: impl Fn(StreamOffset),
) -> Result<Traced> {
    let mut visitor = Visitor::Any(visitor);
    let traced = follow(session, stream, window, inlined, &mut visitor, reached)?;
    if let Some(wrong) = &traced.wrong {
        tell(format_args!("{wrong}"));
    }
    Ok(traced)
}

/// Who is shown calls.
pub(crate) enum Visitor<'v> {
    Any(&'v mut dyn CallVisitor),
    /// It looks at each block, so that following was compiled for it, where that is done for speed.
    Feed(&'v mut Feed),
}

impl Visitor<'_> {
    fn any(&mut self) -> &mut dyn CallVisitor {
        match self {
            Self::Any(visitor) => *visitor,
            Self::Feed(feed) => *feed,
        }
    }

    fn follow<'s>(&mut self, tracer: &mut CallTracer<'s>, flow: &mut ThreadFlow<'s>) -> bool {
        match self {
            Self::Any(visitor) => tracer.follow_dyn(flow, *visitor),
            Self::Feed(feed) => feed.follow(tracer, flow),
        }
    }
}

/// Follows the wanted part of a stream, and shows its calls to a visitor, those of inlined functions if they are wanted. `reached` hears how far it is.
pub(crate) fn follow<'s>(
    session: &'s Session<'_>,
    stream: &'s Stream<'_>,
    window: &Window,
    inlined: bool,
    visitor: &mut Visitor<'_>,
    reached: impl Fn(StreamOffset),
) -> Result<Traced> {
    let tracer = |start: usize| {
        let tracer = CallTracer::starting_at(session, stream, StreamOffset(start as u64));
        match inlined {
            true => tracer.with_inlined(),
            false => tracer,
        }
    };
    if window.is_all() {
        let mut flow = session.decode(stream);
        let mut tracer = tracer(0);
        while visitor.follow(&mut tracer, &mut flow) {
            reached(flow.offset());
        }
        return Ok(Traced::of(tracer, stream, Found::default(), visitor.any()));
    }
    let sync = PsbIndex::of(session, stream.bytes(), true);
    let start = window.start(session, sync);
    let mut flow = session.decode_from(stream, StreamOffset(start as u64));
    let mut tracer = tracer(start);
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
            return TallyGate::Outside;
        }
        found.end = found.end || is_reached(&window.to);
        match (found.end, ends_with) {
            (true, false) => return TallyGate::End,
            (true, true) => found.any = true,
            (false, _) => {
                found.any = true;
                return TallyGate::Inside;
            }
        }
        TallyGate::Last
    };
    while let Some(gate) = tracer.step(&mut flow, &wanted, &mut gate, visitor.any()) {
        if matches!(gate, TallyGate::Last | TallyGate::End) {
            break;
        }
        reached(flow.offset());
    }
    Ok(Traced::of(tracer, stream, found, visitor.any()))
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
