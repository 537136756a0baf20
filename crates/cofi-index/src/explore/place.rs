//! What is known of one place, and of those around it.

use cofi_analysis::CallKind;
use cofi_image::SourceLine;
use cofi_packet::{ExecMode, Ip};
use cofi_session::Task;

use super::events::EventInfo;
use super::{Explorer, PlaceRange};
use crate::row::{Axis, FunctionNumber, NO_FUNCTION};

/// So many instructions are listed at once.
const LISTED: u64 = 1 << 14;

/// A place of a row, before its instruction runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlaceInfo {
    /// How many instructions of the row ran before.
    pub at: u64,
    /// About which byte of the packets it is.
    pub offset: u64,
    /// Between which times the instruction runs, as far as packets tell.
    pub time: Option<(u64, u64)>,
    /// The thread.
    pub task: Task,
    /// The instruction.
    pub ip: Ip,
    /// Its length.
    pub len: u8,
    /// The mode it runs in.
    pub mode: ExecMode,
    /// The function.
    pub function: Option<FunctionNumber>,
    /// The line of the source.
    pub source: Option<SourceLine>,
    /// The open calls, innermost first.
    pub stack: Vec<StackFrame>,
}

/// An open call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StackFrame {
    /// The function.
    pub function: Option<FunctionNumber>,
    /// How it began.
    pub kind: CallKind,
    /// How many calls are around it.
    pub depth: i32,
    /// Where it began: how many instructions of the row ran before.
    pub begin: u64,
    /// Where it is: its call, or the instruction that runs; none if that is not known.
    pub ip: Option<Ip>,
    /// The line of the source where it is.
    pub source: Option<SourceLine>,
}

/// An instruction that ran.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InsnInfo {
    /// How many instructions of the row ran before.
    pub at: u64,
    /// Its address.
    pub ip: Ip,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// It as text.
    pub text: String,
    /// The function of the call in which it ran.
    pub function: Option<FunctionNumber>,
    /// How many calls are around that.
    pub depth: i32,
    /// The line of the source.
    pub source: Option<SourceLine>,
    /// What happened just before it.
    pub events: Vec<EventInfo>,
}

pub(super) fn known(function: FunctionNumber) -> Option<FunctionNumber> {
    (function != NO_FUNCTION).then_some(function)
}

impl Explorer<'_> {
    /// What is known of a place; none if so many instructions did not run.
    pub fn place(&mut self, row: usize, at: u64) -> Option<PlaceInfo> {
        let window = self.window(row, at..at.checked_add(1)?)?;
        let ran = *window.get(at)?;
        let source = window.line(&ran, &mut self.lines);
        let mut ip = Some(ran.ip);
        // Where the functions were inlined that run at the address, the innermost last.
        let mut inlined = Vec::new();
        let mut line = None;
        let mut is_new = true;
        let mut stack = Vec::with_capacity(window.open.len());
        for open in &window.open {
            let place = match ip {
                Some(here) if here == ran.ip => {
                    window.distinct(&ran).and_then(|insn| insn.place.as_ref())
                }
                Some(here) => window.places.get(&here),
                None => None,
            };
            if let Some(place) = place.filter(|_| is_new) {
                line = self.lines.at(place);
                inlined = self.lines.inlined(place);
            }
            is_new = open.kind != CallKind::Inline;
            stack.push(StackFrame {
                function: known(open.function),
                kind: open.kind,
                depth: open.depth,
                begin: open.begin,
                ip,
                source: line.take(),
            });
            if open.kind == CallKind::Inline {
                // An inlined function has no call: what is around it is where it was inlined.
                line = inlined.pop().and_then(|inlined| inlined.called_at);
            } else {
                (line, inlined, ip) = (None, Vec::new(), open.from);
            }
        }
        let index = self.index.clone();
        let row = index.rows.get(row)?;
        let time = row.value(Axis::Time, at);
        let behind = row.value(Axis::Time, at + 1);
        Some(PlaceInfo {
            at,
            offset: row.value(Axis::Offset, at)?,
            time: time.zip(behind),
            task: ran.task,
            ip: ran.ip,
            len: ran.len,
            mode: ran.mode,
            function: known(ran.function),
            source,
            stack,
        })
    }

    /// The instructions of a range of places, at most 16,384 of them.
    pub fn instructions(&mut self, row: usize, range: &PlaceRange) -> Vec<InsnInfo> {
        let range = range.start..range.end.min(range.start.saturating_add(LISTED));
        let Some(window) = self.window(row, range) else {
            return Vec::new();
        };
        let mut events = window.events.iter().peekable();
        let mut list = Vec::with_capacity(window.insns.len());
        for ran in &window.insns {
            let mut before = Vec::new();
            while let Some(event) = events.next_if(|event| event.at <= ran.at) {
                before.push(event.clone());
            }
            let bytes = window.distinct(ran).map(|insn| insn.bytes.clone());
            let bytes = bytes.unwrap_or_default();
            list.push(InsnInfo {
                at: ran.at,
                ip: ran.ip,
                text: cofi_insn::text(&bytes, ran.ip, ran.mode),
                bytes,
                function: known(ran.function),
                depth: ran.depth,
                source: window.line(ran, &mut self.lines),
                events: before,
            });
        }
        list
    }
}
