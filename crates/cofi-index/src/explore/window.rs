//! The instructions of a part of a row, one by one.

use std::collections::HashMap;

use cofi_analysis::{
    Call, CallEnd, CallKind, CallMoment, CallNames, CallTracer, CallVisitor, GapCause, Left,
    OpenCall, RanBlock,
};
use cofi_flow::Event;
use cofi_image::{CodeChange, ImageView, LineFinder, Place, SourceLine};
use cofi_insn::Class;
use cofi_packet::{ExecMode, Ip, StreamOffset};
use cofi_session::{Task, ThreadFlow};

use super::events::{EventInfo, EventKind, describe, describe_change};
use super::walk::{Walker, goes_on};
use super::{Explorer, PlaceRange};
use crate::clock::Timeline;
use crate::row::{FunctionNumber, NO_FUNCTION};
use crate::stacks::Stacks;

/// An instruction that ran.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) at: u64,
    pub(super) ip: Ip,
    pub(super) len: u8,
    pub(super) mode: ExecMode,
    pub(super) task: Task,
    /// Which distinct instruction it is.
    pub(super) distinct: u32,
    /// How deep the call in which it ran is, and its function.
    pub(super) depth: i32,
    pub(super) function: FunctionNumber,
    /// The same without inlined functions.
    pub(super) frame_depth: i32,
}

/// An instruction, wherever and however often it ran.
#[derive(Clone, Debug)]
pub(super) struct Distinct {
    pub(super) place: Option<Place>,
    pub(super) bytes: Vec<u8>,
}

/// An open call at a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenAt {
    pub(super) function: FunctionNumber,
    pub(super) kind: CallKind,
    pub(super) depth: i32,
    pub(super) begin: u64,
    /// Where the call around it is: the instruction that called it, or what it took the place of.
    pub(super) from: Option<Ip>,
}

/// What ran in a range of places.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) range: PlaceRange,
    pub(super) insns: Vec<Ran>,
    pub(super) distinct: Vec<Distinct>,
    pub(super) events: Vec<EventInfo>,
    /// The calls around the beginning of the range, the innermost first.
    pub(super) open: Vec<OpenAt>,
    /// The code at the places of calls.
    pub(super) places: HashMap<Ip, Place>,
}

impl Window {
    /// The instruction at a place.
    pub(super) fn get(&self, at: u64) -> Option<&Ran> {
        self.insns.get(at.checked_sub(self.range.start)? as usize)
    }

    pub(super) fn distinct(&self, ran: &Ran) -> Option<&Distinct> {
        self.distinct.get(ran.distinct as usize)
    }

    /// The line of the source that an instruction belongs to.
    pub(super) fn line(&self, ran: &Ran, lines: &mut LineFinder) -> Option<SourceLine> {
        lines.at(self.distinct(ran)?.place.as_ref()?)
    }
}

impl Explorer<'_> {
    /// What ran in a range of places of a row. The range should not be long.
    pub(super) fn window(&mut self, row: usize, range: PlaceRange) -> Option<Window> {
        let index = self.index.clone();
        let known = index.rows.get(row)?;
        let range = range.start..range.end.min(known.insns);
        let mut walker = Lister {
            numbers: index.numbers.get(row)?,
            timeline: Timeline::new(self.session),
            stacks: Stacks::default(),
            window: Window {
                range: range.clone(),
                ..Window::default()
            },
            numbered: HashMap::new(),
            ahead: 0,
            at: 0,
            settled: 0,
            offset: StreamOffset(0),
            is_open_noted: false,
            replaced: None,
        };
        self.walk(row, &range, &mut walker)?;
        walker.settle(range.end);
        walker.note_open(range.end);
        Some(walker.window)
    }
}

struct Lister<'a> {
    numbers: &'a [FunctionNumber],
    timeline: Timeline,
    stacks: Stacks<OpenAt>,
    window: Window,
    numbered: HashMap<(Ip, ExecMode, Vec<u8>), u32>,
    ahead: u64,
    /// The place of the next block.
    at: u64,
    /// Up to here it is known in which calls instructions ran.
    settled: u64,
    offset: StreamOffset,
    is_open_noted: bool,
    /// Where the call is of the function that jumps to the one that begins next.
    replaced: Option<Ip>,
}

impl Lister<'_> {
    /// No block has so many instructions.
    const NEAR: u64 = 1 << 16;

    /// What ran up to a place ran in the innermost call.
    fn settle(&mut self, at: u64) {
        if at <= self.settled {
            return;
        }
        let from = self.settled.max(self.window.range.start);
        self.settled = at;
        if at > self.window.range.start {
            self.note_open(at);
        }
        let depth = self.stacks.last().map_or(-1, |open| open.depth);
        let function = self.stacks.last().map_or(NO_FUNCTION, |open| open.function);
        let mut frames = self.stacks.inner();
        let frame = frames.find(|open| open.kind != CallKind::Inline);
        let frame_depth = frame.map_or(-1, |open| open.depth);
        let first = (from - self.window.range.start) as usize;
        let count = at.saturating_sub(from) as usize;
        for ran in self.window.insns.iter_mut().skip(first).take(count) {
            (ran.depth, ran.function, ran.frame_depth) = (depth, function, frame_depth);
        }
    }

    /// The calls that are open where the range begins are those that are open now.
    fn note_open(&mut self, at: u64) {
        if !self.is_open_noted && at > self.window.range.start {
            self.is_open_noted = true;
            self.window.open = self.stacks.inner().copied().collect();
        }
    }

    fn push(&mut self, call: &Call, begin: u64, from: Option<Ip>) {
        let function = self.numbers.get(call.function.index());
        let open = OpenAt {
            function: function.copied().unwrap_or(NO_FUNCTION),
            kind: call.kind,
            depth: call.depth,
            begin,
            from,
        };
        self.stacks.push(call, open);
    }

    fn is_over(&self, at: u64) -> bool {
        at >= self.window.range.end
    }

    fn add(&mut self, event: EventInfo) {
        let range = &self.window.range;
        if event.at >= range.start && event.at <= range.end {
            self.window.events.push(event);
        }
    }
}

impl Walker for Lister<'_> {
    fn begin(&mut self, at: u64, open: &mut dyn Iterator<Item = OpenCall>) {
        (self.at, self.settled) = (at, at);
        for open in open {
            self.stacks.switch_to(open.call.task);
            let from = match open.call.kind {
                // Within the call to behind which it returns.
                CallKind::Tail => open.returns_to.map(|ip| Ip(ip.0.wrapping_sub(1))),
                _ => open.call.from,
            };
            self.push(&open.call, open.at, from);
        }
    }

    fn piece(&mut self, ahead: u64, tracer: &CallTracer<'_>, flow: &mut ThreadFlow<'_>) -> bool {
        self.ahead = ahead;
        let (task, at) = (tracer.running().0, tracer.instructions());
        if self.stacks.task() != task {
            self.settle(at);
            self.stacks.switch_to(task);
        }
        self.at = at;
        self.offset = flow.offset();
        goes_on(tracer, self.window.range.end)
    }
}

impl CallVisitor for Lister<'_> {
    fn enter_with_code(&mut self, call: &Call, names: &CallNames, code: Option<&ImageView<'_>>) {
        // Calls that began longer ago are looked up where the range begins.
        let begin = call.begin.insns.wrapping_sub(self.ahead);
        if begin.saturating_add(Self::NEAR) >= self.window.range.start
            && let Some((ip, code)) = call.from.zip(code)
            && let Some(place) = code.place(ip)
        {
            self.window.places.insert(ip, place);
        }
        self.enter(call, names);
    }

    fn enter(&mut self, call: &Call, _: &CallNames) {
        let begin = call.begin.insns.wrapping_sub(self.ahead);
        if self.is_over(begin) {
            self.settle(self.window.range.end);
            return;
        }
        self.settle(begin);
        let from = match call.kind {
            CallKind::Tail => self.replaced.take(),
            _ => call.from,
        };
        self.push(call, begin, from);
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        let at = end.end.insns.wrapping_sub(self.ahead);
        if self.is_over(at) {
            self.settle(self.window.range.end);
            return;
        }
        self.settle(at);
        let open = self.stacks.remove(call);
        self.replaced = open
            .filter(|_| end.left == Left::Tail)
            .and_then(|open| open.from);
    }

    fn switched(&mut self, innermost: Option<i64>, at: &CallMoment) {
        let at = at.insns.wrapping_sub(self.ahead);
        self.settle(at.min(self.window.range.end));
        if !self.is_over(at) {
            self.stacks.stand_on(innermost);
        }
    }

    fn wants_blocks(&self) -> bool {
        true
    }

    fn ran(&mut self, block: &RanBlock<'_>) {
        let from = self.at;
        self.at += block.len() as u64;
        let range = self.window.range.clone();
        if self.at <= range.start || from >= range.end {
            return;
        }
        let view = block.view();
        let mut at = from;
        let task = self.stacks.task();
        block.for_each(|ip, len, mode| {
            if range.contains(&at) {
                let mut bytes = [0; 15];
                let place = view.place(ip);
                let wanted = &mut bytes[..usize::from(len).min(15)];
                let read = match &place {
                    Some(place) => place.file.read_at(place.offset, wanted),
                    None => 0,
                };
                let bytes = bytes[..read.min(15)].to_vec();
                let next = self.window.distinct.len() as u32;
                let key = (ip, mode, bytes.clone());
                let distinct = *self.numbered.entry(key).or_insert(next);
                if distinct == next {
                    self.window.distinct.push(Distinct { place, bytes });
                }
                self.window.insns.push(Ran {
                    at,
                    ip,
                    len,
                    mode,
                    task,
                    distinct,
                    depth: -1,
                    function: NO_FUNCTION,
                    frame_depth: -1,
                });
            }
            at += 1;
        });
        if from <= range.start {
            for open in self.stacks.iter() {
                if let Some(ip) = open.from
                    && let Some(place) = view.place(ip)
                {
                    self.window.places.entry(ip).or_insert(place);
                }
            }
        }
    }

    fn event(&mut self, event: &Event, at: &CallMoment, offset: StreamOffset, by: Option<Class>) {
        let place = at.insns.wrapping_sub(self.ahead);
        if let Some((kind, text)) = describe(event, by) {
            let time = at.tsc.and_then(|tsc| self.timeline.of(tsc));
            self.add(EventInfo {
                at: place,
                offset: offset.0,
                time,
                kind,
                text,
            });
        }
    }

    fn code_changed(&mut self, change: &CodeChange, at: &CallMoment, offset: StreamOffset) {
        let time = at.tsc.and_then(|tsc| self.timeline.of(tsc));
        self.add(EventInfo {
            at: at.insns.wrapping_sub(self.ahead),
            offset: offset.0,
            time,
            kind: EventKind::Code,
            text: describe_change(change),
        });
    }

    fn lost(&mut self, cause: GapCause, offset: StreamOffset) {
        self.add(EventInfo {
            at: self.at,
            offset: offset.0,
            time: None,
            kind: EventKind::Gap,
            text: cause.to_string(),
        });
    }
}
