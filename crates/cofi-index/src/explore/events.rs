//! What happened between instructions.

use cofi_analysis::{
    Call, CallEnd, CallMoment, CallNames, CallTracer, CallVisitor, GapCause, OpenCall,
};
use cofi_flow::Event;
use cofi_image::CodeChange;
use cofi_insn::Class;
use cofi_packet::{ExecMode, StreamOffset};
use cofi_session::compact;
use cofi_session::{Signal, ThreadFlow};

use super::walk::Walker;
use super::{Explorer, PlaceRange};
use crate::clock::Timeline;
use crate::row::{Axis, Row};

/// So many instructions are decoded for a list of events.
const DECODED: u64 = 1 << 24;

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum EventKind {
    /// A system call: tracing is off until it returns, or goes on in the kernel.
    Syscall,
    /// An interrupt, exception, fault or the like.
    Interrupt,
    /// A signal.
    Signal,
    /// Tracing is switched on or off.
    Tracing,
    /// Trace is missing.
    Gap,
    /// Another address space, execution mode or virtual machine.
    State,
    /// A value that the program wrote with PTWRITE.
    Ptwrite,
    /// Power states.
    Power,
    /// Anything else.
    Other,
    /// Other code is in place than before.
    Code,
}

impl EventKind {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Syscall => "system call",
            Self::Interrupt => "interrupt",
            Self::Signal => "signal",
            Self::Tracing => "tracing",
            Self::Gap => "gap",
            Self::State => "state",
            Self::Ptwrite => "ptwrite",
            Self::Power => "power",
            Self::Other => "other",
            Self::Code => "code",
        }
    }

    /// Its bit in [`StripBin::events`](crate::StripBin::events).
    #[must_use]
    pub const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct EventInfo {
    /// How many instructions of the row ran before.
    pub at: u64,
    /// The packet that told last.
    pub offset: u64,
    /// When, as far as packets tell.
    pub time: Option<u64>,
    /// What kind it is of.
    pub kind: EventKind,
    /// What happened.
    pub text: String,
}

/// Events of a row.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Events {
    /// In their order.
    pub list: Vec<EventInfo>,
    /// No more happened.
    pub is_whole: bool,
}

/// What kind of thing an event is, behind an instruction of a class that leads elsewhere; none of what is told otherwise.
pub(crate) const fn kind_of(event: &Event, by: Option<Class>) -> Option<EventKind> {
    use EventKind as Kind;
    Some(match event {
        Event::Disabled { .. } if matches!(by, Some(Class::Syscall)) => Kind::Syscall,
        Event::Enabled { .. } | Event::Disabled { .. } | Event::Stop => Kind::Tracing,
        Event::AsyncBranch { .. } | Event::AsyncDisabled { .. } => Kind::Interrupt,
        Event::Overflow { .. } => return None,
        Event::Paging { .. }
        | Event::PagingEnabled { .. }
        | Event::ExecMode { .. }
        | Event::Vmcs { .. } => Kind::State,
        Event::Ptwrite { .. } => Kind::Ptwrite,
        Event::Mwait { .. } | Event::Pwre { .. } | Event::Pwrx { .. } | Event::ExStop { .. } => {
            Kind::Power
        }
        _ => Kind::Other,
    })
}

/// What to say of an event, and its kind.
pub(crate) fn describe(event: &Event, by: Option<Class>) -> Option<(EventKind, String)> {
    let kind = kind_of(event, by)?;
    let to = |ip: Option<cofi_packet::Ip>| ip.map_or(String::new(), |ip| format!(" to {ip}"));
    let text = match *event {
        Event::Enabled { ip, resumed: true } => format!("tracing goes on at {ip}"),
        Event::Enabled { ip, .. } => format!("tracing on at {ip}"),
        Event::Disabled { ip } if kind == EventKind::Syscall => format!("system call{}", to(ip)),
        Event::Disabled { ip } => format!("tracing off{}", to(ip)),
        Event::AsyncBranch { from, to } => format!("before {from}, to {to}"),
        Event::AsyncDisabled { at, ip } => format!("tracing off before {at}{}", to(ip)),
        Event::Paging { cr3, nr } => {
            format!("CR3 {cr3:#x}{}", if nr { " of a guest" } else { "" })
        }
        Event::PagingEnabled { on } => format!("paging {}", on_off(on)),
        Event::ExecMode { mode, .. } => format!("{} code", bits(mode)),
        Event::Vmcs { base } => format!("VMCS {base:#x}"),
        Event::Stop => "a TraceStop range was entered".to_owned(),
        Event::Ptwrite { payload, .. } => format!("{payload:#x}"),
        _ => format!("{event:?}"),
    };
    Some((kind, text))
}

/// The name of a mode.
const fn bits(mode: ExecMode) -> &'static str {
    match mode {
        ExecMode::Bits16 => "16-bit",
        ExecMode::Bits32 => "32-bit",
        ExecMode::Bits64 => "64-bit",
    }
}

const fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// What a change of code is called.
pub(super) fn describe_change(change: &CodeChange) -> String {
    if change.is_whole() {
        return "another program".to_owned();
    }
    let len = u128::from(change.last.0 - change.first.0) + 1;
    let bytes = if len == 1 { "byte" } else { "bytes" };
    format!("code changed at {}, {len} {bytes}", change.first)
}

pub(crate) fn of_signal(row: &Row, signal: &Signal) -> EventInfo {
    let at = row.at(Axis::Offset, signal.offset.0);
    let fatal = if signal.is_fatal {
        ", which ended the process"
    } else {
        ""
    };
    let ip = signal.ip.map_or(String::new(), |ip| format!(" at {ip}"));
    EventInfo {
        at,
        offset: signal.offset.0,
        time: row.value(Axis::Time, at),
        kind: EventKind::Signal,
        text: format!("{}{ip}{fatal}", signal.name()),
    }
}

impl Explorer<'_> {
    /// What happened in a range of a row, at most so much. Of a range of more than 16 million instructions, it is what happened in the first of them,
    /// with all gaps and signals that are known.
    pub fn events(&mut self, row: usize, range: &PlaceRange, most: usize) -> Events {
        let index = self.index.clone();
        let Some((known, stream)) = index.rows.get(row).zip(self.stream(row)) else {
            return Events::default();
        };
        let decoded = range.start..range.end.min(range.start.saturating_add(DECODED));
        let mut walker = Lister {
            timeline: Timeline::new(self.session),
            range: decoded.clone(),
            most,
            ahead: 0,
            at: 0,
            list: Vec::new(),
            is_full: false,
        };
        let end = self.walk(row, &decoded, &mut walker);
        let (mut list, mut is_whole) = (walker.list, !walker.is_full);
        is_whole &= decoded.end >= range.end.min(known.insns) && end.is_some();
        let behind = known.gaps.iter().filter(|gap| gap.at >= decoded.end);
        list.extend(
            behind
                .filter(|gap| gap.at <= range.end)
                .map(|gap| EventInfo {
                    at: gap.at,
                    offset: gap.offset,
                    time: gap.from,
                    kind: EventKind::Gap,
                    text: gap.what.clone(),
                }),
        );
        let signals = stream
            .signals()
            .iter()
            .map(|signal| of_signal(known, signal));
        list.extend(signals.filter(|event| event.at >= range.start && event.at <= range.end));
        compact::sort_by_key(&mut list, |event| (event.at, event.offset));
        is_whole &= list.len() <= most;
        list.truncate(most);
        Events { list, is_whole }
    }
}

struct Lister {
    timeline: Timeline,
    range: PlaceRange,
    most: usize,
    ahead: u64,
    at: u64,
    list: Vec<EventInfo>,
    is_full: bool,
}

impl Lister {
    fn add(&mut self, event: EventInfo) {
        if event.at >= self.range.start && event.at <= self.range.end {
            self.is_full |= self.list.len() >= self.most;
            if !self.is_full {
                self.list.push(event);
            }
        }
    }
}

impl Walker for Lister {
    fn begin(&mut self, _: u64, _: &mut dyn Iterator<Item = OpenCall>) {}

    fn piece(&mut self, ahead: u64, tracer: &CallTracer<'_>, _: &mut ThreadFlow<'_>) -> bool {
        (self.ahead, self.at) = (ahead, tracer.instructions());
        self.at <= self.range.end && !self.is_full
    }
}

impl CallVisitor for Lister {
    fn enter(&mut self, _: &Call, _: &CallNames) {}

    fn leave(&mut self, _: &Call, _: &CallEnd, _: &CallNames) {}

    fn event(&mut self, event: &Event, at: &CallMoment, offset: StreamOffset, by: Option<Class>) {
        if let Some((kind, text)) = describe(event, by) {
            let time = at.tsc.and_then(|tsc| self.timeline.of(tsc));
            self.add(EventInfo {
                at: at.insns.wrapping_sub(self.ahead),
                offset: offset.0,
                time,
                kind,
                text,
            });
        }
    }

    fn code_changed(&mut self, change: &CodeChange, at: &CallMoment, offset: StreamOffset) {
        self.add(EventInfo {
            at: at.insns.wrapping_sub(self.ahead),
            offset: offset.0,
            time: at.tsc.and_then(|tsc| self.timeline.of(tsc)),
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
