//! Calls, as `cofi calls` reconstructs them.

use std::sync::Arc;

use cofi_analysis::{
    ByTask, Call, CallEnd, CallNames, CallTracer, CallVisitor, CallsInOrder, Left,
};
use cofi_session::{Stream, StreamKey, Task};

use super::{CPU, RECORDING, TID, head};
use crate::columns::{Column, address, number, text};
use crate::functions::{grouped, picked};
use crate::kept::{KeptStream, is_about_code};
use crate::limits::Limits;
use crate::recording::Recording;
use crate::table::{Outlet, Pick, Table, Unit, Units};

/// A row for each call.
#[derive(Debug)]
pub(super) struct Calls;

const COLUMNS: &[Column] = &[
    RECORDING,
    TID,
    CPU,
    number("pid", "the process; NULL where no thread is known"),
    number(
        "era",
        "how often the numbers of calls have begun anew in the stream: at gaps, and when another program begins",
    ),
    number(
        "call",
        "its number within thread and era, in the order in which calls begin; negative of what was open before the trace",
    ),
    number(
        "parent",
        "the number of the call around it; NULL of the outermost",
    ),
    number(
        "depth",
        "how many calls are around it, 0 of the outermost that the trace tells of",
    ),
    text(
        "function",
        "the function, demangled; NULL if nothing names it",
    ),
    text("file", "the file that holds it; NULL if that is not known"),
    address(
        "address",
        "the first address of the function in its file's own terms, as `functions` has it; of code that no symbol names, where control entered it; NULL if that is not known",
    ),
    address("ip", "the address at which control entered it"),
    address(
        "from_ip",
        "the instruction that called it, or that was to run next when it was interrupted; NULL if that is not known",
    ),
    text(
        "kind",
        "how it began: `call`, `tail`, `signal`, `entry` or `assumed` (it was open before the trace)",
    ),
    text(
        "ended_by",
        "how it was left: `return`, `tail`, `unwound`, `end` (open when the trace ended) or `gap`",
    ),
    number(
        "begin_tsc",
        "when it began, in ticks of the time stamp counter, as far as packets tell",
    ),
    number("end_tsc", "when it was left; NULL of `end` and `gap`"),
    number(
        "begin_ns",
        "when it began, in perf's nanoseconds; NULL if the file does not say how to convert",
    ),
    number("end_ns", "when it was left; NULL of `end` and `gap`"),
    number(
        "instructions",
        "instructions that ran in it, with those of its callees",
    ),
    number("self_instructions", "instructions of itself alone"),
    number(
        "cycles",
        "core cycles that passed in it; NULL without CYC packets",
    ),
    number(
        "stack",
        "the stack on which it ran: 0 of the thread's first, others of coroutines",
    ),
];

/// Where `depth` is among the columns.
const DEPTH: usize = 7;

/// What is cut by what is kept is cut finer: pieces do not all take the same time.
const GROUPS_A_PIECE: usize = 4;

impl Table for Calls {
    fn name(&self) -> &'static str {
        "calls"
    }

    fn about(&self) -> &'static str {
        "One row for each call, as `cofi calls --json` has them. Streams are decoded for it, those of threads that are asked for by `tid` alone; a few rows at a time are in memory."
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn units(&self, recording: &Arc<Recording>, limits: &Limits) -> Units {
        let streams = Units::streams(recording, limits);
        let Some(kept) = recording.kept().filter(|_| is_about_code(limits)) else {
            return streams;
        };
        let mut units = Units {
            list: Vec::new(),
            skipped: streams.skipped,
        };
        for unit in streams.list {
            let index = unit.stream.unwrap_or_default();
            match kept.stream(index) {
                Some(kept) if kept.divides_calls() => {
                    units.add(picked(&unit, kept.calls(limits), recording.parts(index)));
                }
                _ => units.list.push(unit),
            }
        }
        units
    }

    fn cut_here(&self, unit: Unit, pieces: usize) -> Vec<Unit> {
        let kept = unit.recording.kept();
        match unit.stream.and_then(|index| kept?.stream(index)) {
            Some(kept) if kept.divides_calls() => {
                let groups = pieces * GROUPS_A_PIECE;
                grouped(&unit, kept.divide_calls(unit.picks.as_deref(), groups))
            }
            _ => vec![unit],
        }
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let Some(stream) = unit.stream() else { return };
        let session = unit.recording.session();
        let mut flow = session.decode(stream);
        let mut tracer = CallTracer::new(session, stream);
        let kept = unit.recording.kept();
        let kept = kept.and_then(|kept| kept.stream(unit.stream?));
        if let Some((picks, kept)) = unit.picks.as_deref().zip(kept)
            && picks.iter().all(|pick| kept.state(pick).is_some())
        {
            return fill_picked(unit, stream, picks, kept, out);
        }
        // Who has picks without what is kept, as another machine may, has all that are picked of the stream. The other rows are excluded by the condition.
        let mut puts = Puts {
            unit,
            key: stream.key(),
            era: 0,
            waiting: out.wants(DEPTH).then(ByTask::default),
            kept: None,
            is_wanted: true,
            out,
        };
        while !puts.out.is_closed() && tracer.follow(&mut flow, &mut puts) {}
        unit.recording.note_gaps(flow.gaps());
        tracer.finish(&mut puts);
    }
}

/// Follows the calls of parts of a stream, each from the calls on that are open where it begins.
fn fill_picked(
    unit: &Unit,
    stream: &Stream<'_>,
    picks: &[Pick],
    kept: &KeptStream,
    out: &mut Outlet,
) {
    let session = unit.recording.session();
    let mut tracer = CallTracer::new(session, stream).with_dictionary(kept.dictionary());
    let mut puts = Puts {
        unit,
        key: stream.key(),
        era: 0,
        waiting: None,
        kept: Some(kept),
        is_wanted: false,
        out,
    };
    for pick in picks {
        let state = kept.state(pick);
        let is_known = state.is_some_and(|state| kept.states().restore(state, &mut tracer));
        if puts.out.is_closed() || !is_known {
            return;
        }
        let clock = kept.clock(pick);
        if !clock.is_some_and(|clock| tracer.go_on_with(pick.range.start, clock)) {
            tracer.go_on_at(pick.range.start);
        }
        for (range, era) in kept.chunks(pick) {
            if range.start != pick.range.start {
                tracer.go_on();
            }
            puts.era = era.into();
            puts.is_wanted = pick.rows.contains(&range.start);
            let mut flow = session.decode_within(stream, range.clone());
            while !puts.out.is_closed() && tracer.follow(&mut flow, &mut puts) {}
            unit.recording.note_gaps(flow.gaps());
            if range.end.0 == u64::MAX {
                tracer.finish(&mut puts);
            }
        }
    }
}

/// Puts out calls: as they are left, or, if how deep they are is wanted, when all were left. How many were open around those of the trace is only
/// known then.
struct Puts<'a> {
    unit: &'a Unit,
    key: StreamKey,
    era: u64,
    waiting: Option<ByTask<CallsInOrder>>,
    /// What is kept of the stream tells how deep calls are, without waiting.
    kept: Option<&'a KeptStream>,
    /// Calls that are left now are put out.
    is_wanted: bool,
    out: &'a mut Outlet,
}

impl CallVisitor for Puts<'_> {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        if let Some(waiting) = &mut self.waiting {
            waiting.get_or_default(call.task).enter(call);
        }
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, names: &CallNames) {
        let Some(waiting) = &mut self.waiting else {
            return self.put(call, end, names);
        };
        if let Some(waiting) = waiting.get_mut(call.task) {
            waiting.leave(call, end);
        }
    }

    fn all_left(&mut self, task: Task, names: &CallNames) {
        let waiting = self.waiting.as_mut().and_then(|all| all.remove(task));
        if let Some(mut waiting) = waiting {
            let drained = waiting.drain(|finished| {
                self.put(&finished.call, &finished.end, names);
                Ok(())
            });
            if let Err(error) = drained {
                self.out.fail(error);
            }
        }
        self.era += 1;
    }
}

impl Puts<'_> {
    fn put(&mut self, call: &Call, end: &CallEnd, names: &CallNames) {
        if !self.is_wanted {
            return;
        }
        let Self { unit, key, era, .. } = *self;
        let depth = match self.kept {
            Some(kept) => call.depth.saturating_add(kept.deeper(era)),
            None => call.depth,
        };
        let recording = &unit.recording;
        // Of what was still open nobody knows the end.
        let is_open = matches!(end.left, Left::End | Left::Gap);
        let (begin, left) = (call.begin.tsc, end.end.tsc.filter(|_| !is_open));
        let cycles = (end.end.cycles > 0).then(|| end.end.cycles.saturating_sub(call.begin.cycles));
        self.out.put(|row| {
            head(row, unit, key, call.task.tid)
                .number(super::tid_of(key, call.task.tid).map(|_| call.task.pid.into()))
                .number(era)
                .signed(call.number)
                .signed(call.parent)
                .number(u64::try_from(depth).unwrap_or(0))
                .text(names.name(call.function));
            match names.file(call.function).filter(|_| row.wants_next()) {
                Some(file) => row.text(&*file.to_string_lossy()),
                None => row.text(None::<&str>),
            };
            let entry = names.entry(call).map(|ip| ip.0);
            row.address(names.address(call.function).or(entry))
                .address(call.ip.0)
                .address(call.from.map(|ip| ip.0))
                .text(call.kind.name())
                .text(end.left.name())
                .number(begin.map(|tsc| tsc.0))
                .number(left.map(|tsc| tsc.0))
                .number(recording.nanoseconds(begin))
                .number(recording.nanoseconds(left))
                .number(end.insns)
                .number(end.self_insns)
                .number(cycles)
                .number(u64::from(call.stack));
        });
    }
}
