//! `cofi events`: what packets tell by themselves, in order.

use crate::args::EventsArgs;
use crate::item::Loss;
use crate::ordered::{self, Behind, End, Out, Queue, Segment, Sink, State, Written};
use crate::output::stdout;
use crate::progress::Printing;
use crate::{Ended, input, item};
use anyhow::Result;
use cofi_analysis::{FlowState, ended_with_segment};
use cofi_flow::{Event, LocatedEvent, Tick};
use cofi_packet::{StreamOffset, Tsc};
use cofi_session::{Session, Signal, Signals, Stream, StreamEvents};
use cofi_text::Line;
use std::io::{self, Write};

/// Runs the command.
pub(crate) fn run(args: &EventsArgs) -> Result<Ended> {
    let bytes = input::map(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    let mut out = stdout();
    let mut errors = input::report(&session);
    let several = session.streams().len() > 1;
    let mut progress = Printing::of(session.streams());
    for stream in session.streams() {
        if several && !args.json {
            writeln!(out, "{}", input::title(stream))?;
        }
        let begin = || Events::new(args, &session, stream);
        let worker = || {
            let mut events = begin();
            move |segment: &Segment, queue: &mut Queue<'_, EventState>| {
                events.segment(segment, queue)
            }
        };
        let mut out = Out {
            to: &mut out,
            progress: &progress,
        };
        let written = ordered::write_stream((&session, stream), args.parallel, worker, &mut out)?;
        errors |= match written {
            Written::Whole { errors } => errors,
            Written::UpTo { start, skip } => {
                let mut events = begin();
                let out = &mut out;
                events.rest(start, &mut Behind { skip, out })?;
                events.errors
            }
        };
        progress.finish(stream);
    }
    drop(progress);
    out.flush()?;
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// What is true between two segments, as far as packets tell.
#[derive(Clone, Copy, Debug, Default)]
struct EventState {
    flow: FlowState,
    /// The last time told before, or the first behind.
    tsc: Option<Tsc>,
}

impl State for EventState {
    fn leads_to(&self, next: &Self) -> bool {
        // An estimate that was too high stays until the truth is past it.
        let is_past = match (self.tsc, next.tsc) {
            (Some(before), Some(behind)) => before <= behind,
            (before, _) => before.is_none(),
        };
        self.flow == next.flow && is_past
    }
}

/// So much text is written at once.
const FULL: usize = 1 << 16;

/// Makes a line of each event, signal and error.
struct Events<'s> {
    args: &'s EventsArgs,
    session: &'s Session<'s>,
    stream: &'s Stream<'s>,
    signals: Signals<'s>,
    loss: Loss,
    line: Line,
    text: Vec<u8>,
    state: EventState,
    /// CYC packets were read: estimates of the time depend on all of them.
    has_cycles: bool,
    errors: bool,
}

impl<'s> Events<'s> {
    fn new(args: &'s EventsArgs, session: &'s Session<'s>, stream: &'s Stream<'s>) -> Self {
        Self {
            args,
            session,
            stream,
            signals: stream.signals_from(StreamOffset(0)),
            loss: Loss::default(),
            line: Line::default(),
            text: Vec::with_capacity(2 * FULL),
            state: EventState::default(),
            has_cycles: false,
            errors: false,
        }
    }

    /// Writes the lines of a segment.
    fn segment(
        &mut self,
        segment: &Segment,
        queue: &mut Queue<'_, EventState>,
    ) -> io::Result<End<EventState>> {
        let end = (!segment.is_last).then_some(segment.range.end);
        let mut told = self.begin(segment.range.clone(), true);
        let mut next = told.next();
        if !segment.is_first {
            next = self.enter(next, &mut told);
            queue.begin(self.state)?;
        }
        let is_certain = self.follow(next, told, end, queue)?;
        Ok(End {
            state: is_certain.then_some(self.state),
            errors: self.errors,
        })
    }

    /// Writes all lines from a place on, at which a segment begins.
    fn rest(&mut self, start: StreamOffset, out: &mut impl Sink) -> io::Result<()> {
        let mut told = self.begin(start..StreamOffset(u64::MAX), false);
        let mut next = told.next();
        if start.0 > 0 {
            next = self.enter(next, &mut told);
        }
        self.follow(next, told, None, out)?;
        Ok(())
    }

    /// Begins with a part of the stream.
    fn begin(
        &mut self,
        range: std::ops::Range<StreamOffset>,
        is_segment: bool,
    ) -> StreamEvents<'s> {
        self.signals = self.stream.signals_from(range.start);
        self.loss = Loss::default();
        self.state = EventState::default();
        self.has_cycles = false;
        self.errors = false;
        let mut events = match range.start {
            StreamOffset(0) if range.end.0 == u64::MAX => self.session.events(self.stream),
            _ => self.session.events_within(self.stream, range),
        };
        // Of the ticks of a segment is to be known whether they count cycles.
        if self.args.ticks || is_segment {
            events = events.with_ticks();
        }
        if self.args.branches {
            events = events.with_branches();
        }
        events
    }

    /// Leaves out what is told of the PSB at which tracing goes on, and only to who begins there.
    fn enter(
        &mut self,
        mut next: Option<LocatedEvent>,
        told: &mut StreamEvents<'s>,
    ) -> Option<LocatedEvent> {
        let mut begin = None;
        let mut ticks = Vec::new();
        while let Some(event) = &next {
            self.state.tsc = self.state.tsc.or(event.tsc);
            let is_of_psb = match (event.what, begin) {
                // Those of a PSB+ are told before the state.
                (Ok(Event::Tick(_)), None) => {
                    ticks.push(*event);
                    next = told.next();
                    continue;
                }
                (Ok(Event::Enabled { .. }), None) => true,
                (
                    Ok(
                        Event::ExecMode { .. }
                        | Event::Paging { .. }
                        | Event::Vmcs { .. }
                        | Event::Tsx { .. },
                    ),
                    Some(begin),
                ) => begin == event.offset,
                _ => false,
            };
            let (Ok(what), true) = (event.what, is_of_psb) else {
                break;
            };
            begin = Some(event.offset);
            self.state.flow.note(&what);
            next = told.next();
        }
        for tick in &ticks {
            self.has_cycles |= matches!(tick.what, Ok(Event::Tick(Tick::Cyc { .. })));
            if self.args.ticks {
                self.told(tick);
            }
        }
        next
    }

    /// Writes what is told; with the end of a segment, only as far as it is certain from that alone. Whether it is to its end.
    fn follow(
        &mut self,
        mut next: Option<LocatedEvent>,
        mut told: StreamEvents<'s>,
        end: Option<StreamOffset>,
        out: &mut impl Sink,
    ) -> io::Result<bool> {
        while let Some(event) = next {
            if let Some(end) = end {
                let is_lost = matches!(event.what, Err(_) | Ok(Event::Resync { .. }));
                if is_lost || !ended_with_segment(self.stream, event.offset, end) {
                    out.put(&mut self.text)?;
                    return Ok(false);
                }
            }
            if let Ok(what) = &event.what {
                self.state.flow.note(what);
                self.has_cycles |= matches!(what, Event::Tick(Tick::Cyc { .. }));
            }
            self.state.tsc = event.tsc.or(self.state.tsc);
            // The next segment tells those of its PSB+.
            let is_here = self.args.ticks && end.is_none_or(|end| event.offset < end);
            if is_here || !matches!(event.what, Ok(Event::Tick(_))) {
                self.told(&event);
            }
            if self.text.len() >= FULL {
                out.reached(event.offset);
                out.put(&mut self.text)?;
            }
            next = told.next();
        }
        let is_certain = match end {
            Some(end) => {
                let before = StreamOffset(end.0.saturating_sub(1));
                let has_signal = self.signals.before(before).is_some();
                self.state.flow.is_on() && !has_signal && !self.has_cycles
            }
            None => {
                while let Some(signal) = self.signals.at_end() {
                    self.signal(signal);
                }
                true
            }
        };
        out.put(&mut self.text)?;
        Ok(is_certain)
    }

    /// Appends the line of what is told, and of the signals before.
    fn told(&mut self, told: &LocatedEvent) {
        while let Some(signal) = self.signals.before(told.offset) {
            self.signal(signal);
        }
        self.errors |= told.what.is_err();
        if !self.args.json {
            text(told, &mut self.text);
            return;
        }
        describe(told, &mut self.loss, &mut self.line);
        input::tag(self.stream, &mut self.line);
        self.text.extend_from_slice(self.line.end());
    }

    /// Appends the line of a signal, which no packet tells of but the recorder.
    fn signal(&mut self, signal: &Signal) {
        if self.args.json {
            item::describe_signal(signal, &mut self.line);
            self.line.number("offset", signal.offset.0);
            input::tag(self.stream, &mut self.line);
            self.text.extend_from_slice(self.line.end());
            return;
        }
        let ip = signal
            .ip
            .map_or_else(|| "-".into(), |ip| format!("{:x}", ip.0));
        let sentence = item::signal_sentence(signal);
        let offset = signal.offset.0;
        // Writing to memory does not fail.
        let _ = writeln!(self.text, "{offset:08x}: {:>15} {ip:>16}  {sentence}", "-");
    }
}

/// Writes what was told into `line`, all keys but those of the stream.
fn describe(told: &LocatedEvent, loss: &mut Loss, line: &mut Line) {
    match &told.what {
        Ok(event) => {
            line.begin();
            item::describe_event(event, line);
            match event {
                // It says so itself.
                Event::Resync { .. } => {
                    loss.note(&(*event).into(), || (told.offset, told.tsc), Some(line))
                }
                _ => _ = line.number("offset", told.offset.0),
            }
            if let (Some(ip), true) = (told.ip, is_bare(event)) {
                line.hex("ip", ip.0);
            }
            line.text("packets", &told.packets.to_string());
        }
        Err(error) => {
            loss.note(&(*error).into(), || (told.offset, told.tsc), None);
            item::describe(&(*error).into(), line);
        }
    }
    if let Some(tsc) = told.tsc {
        line.number("tsc", tsc.0);
    }
}

/// Whether the event itself has no place for the address to which it is bound.
fn is_bare(event: &Event) -> bool {
    matches!(
        event,
        Event::Paging { .. }
            | Event::ExecMode { .. }
            | Event::Vmcs { .. }
            | Event::Mwait { .. }
            | Event::Pwre { .. }
            | Event::Pwrx { .. }
            | Event::EventData { .. }
            | Event::BlockItem { .. }
    )
}

/// Appends what was told as a line: where in the stream, when, where in the code, what, and by which packets.
fn text(told: &LocatedEvent, out: &mut Vec<u8>) {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let tsc = or_dash(told.tsc.map(|tsc| tsc.0.to_string()));
    let ip = or_dash(told.ip.map(|ip| format!("{:x}", ip.0)));
    let (offset, ip) = (told.offset.0, format_args!("{ip:>16}"));
    // Writing to memory does not fail.
    let _ = match &told.what {
        Ok(event) => writeln!(
            out,
            "{offset:08x}: {tsc:>15} {ip}  {:<44} ; {}",
            item::sentence(event),
            told.packets
        ),
        Err(error) => writeln!(
            out,
            "{offset:08x}: {tsc:>15} {ip}  !! {}",
            item::with_advice(&error.kind)
        ),
    };
}
