//! `cofi last`: how each thread ended, and what it did before.

use crate::args::LastArgs;
use crate::calls::json::{JsonCalls, Sites};
use crate::calls::text::{Tree, TreeStyle};
use crate::calls::{self, Traced};
use crate::output::{Stdout, stdout};
use crate::progress::Printing;
use crate::psb_index::PsbIndex;
use crate::recursion::{self, Row};
use crate::select::{Found, Window};
use crate::{Ended, check, input, item};
use anyhow::Result;
use cofi_analysis::{
    Call, CallEnd, CallKind, CallMoment, CallNames, CallVisitor, FinishedCall, Left,
};
use cofi_flow::{Executed, FlowError, FlowErrorKind, Item};
use cofi_image::{ImageView, InlinedFunction, LineFinder, Place, SourceLine};
use cofi_insn::{Class, CodeSource};
use cofi_packet::{Ip, StreamOffset};
use cofi_session::{Session, Signal, Stream};
use cofi_text::Line;
use cofi_text::digits::counted;
use std::collections::VecDeque;
use std::io::{self, Write};

/// Runs the command.
pub(crate) fn run(args: &LastArgs) -> Result<Ended> {
    let bytes = input::map(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    input::require_trace(&args.flow.input.file, &session)?;
    let window = Window::of_range(&args.range, &session)?;
    let mut out = stdout();
    let mut errors = input::report(&session);
    let mut found = Found::default();
    let mut progress = Printing::of(window.streams(&session));
    for (number, stream) in window.streams(&session).into_iter().enumerate() {
        let mut recent = Recent::new(args.number);
        let traced = calls::trace(
            &session,
            stream,
            &window,
            args.inline,
            &mut recent,
            |offset| progress.reached(offset),
        )?;
        errors |= traced.errors;
        found |= traced.found;
        progress.finish(stream);
        let tail = match window.is_all() {
            true => Tail::of(&session, stream, args.number),
            // What comes last in a part is what its calls tell.
            false => Tail::default(),
        };
        let last = Last {
            session: &session,
            stream,
            traced: &traced,
            recent: &recent,
            why: Why::of(stream, &tail, window.is_all()),
            tail: &tail,
            inline: args.inline,
        };
        match args.json {
            true => last.json(&mut out)?,
            false => {
                if number > 0 {
                    writeln!(out)?;
                }
                last.print(&TreeStyle::of_terminal(args.color), &mut out)?;
            }
        }
    }
    drop(progress);
    out.flush()?;
    if !window.is_all() {
        window.report_missed(found);
    }
    errors |= input::report_code(&session);
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// The calls that began last.
struct Recent {
    calls: VecDeque<FinishedCall>,
    most: usize,
    /// How many instructions ran, and when the last did.
    end: CallMoment,
}

impl Recent {
    fn new(most: usize) -> Self {
        Self {
            calls: VecDeque::new(),
            most,
            end: CallMoment::default(),
        }
    }
}

impl CallVisitor for Recent {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        if call.number < 0 || self.most == 0 {
            // It began before the trace.
            return;
        }
        if self.calls.len() >= self.most {
            self.calls.pop_front();
        }
        let end = CallEnd {
            end: call.begin,
            insns: 0,
            self_insns: 0,
            left: Left::End,
        };
        self.calls.push_back(FinishedCall {
            call: *call,
            end,
            site: 0,
        });
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        self.end = end.end;
        let is_it = |finished: &&mut FinishedCall| {
            (finished.call.number, finished.call.task) == (call.number, call.task)
        };
        // Numbers begin anew behind a gap: what comes later is meant.
        if let Some(finished) = self.calls.iter_mut().rev().find(is_it) {
            finished.end = *end;
        }
    }
}

/// A line of source that ran, and how many instructions of it at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ran {
    source: SourceLine,
    function: String,
    insns: u64,
}

/// What ran at the very end of a stream.
#[derive(Debug, Default)]
struct Tail {
    lines: VecDeque<Ran>,
    /// The last instruction.
    last: Option<Executed>,
    /// The number of the system call with which it ends, if that was loaded right before.
    system_call: Option<u32>,
    /// What the flow ends with.
    error: Option<FlowError>,
}

/// No more of a stream is decoded for its last lines.
const MOST: usize = 1 << 20;

/// So many instructions before a system call, its number may have been loaded.
const NEAR: usize = 16;

impl Tail {
    fn of(session: &Session<'_>, stream: &Stream<'_>, lines: usize) -> Self {
        let sync = PsbIndex::of(session, stream.bytes(), false);
        let (mut start, mut steps) = (sync.before(stream.len()), 1_u64);
        let mut sources = LineFinder::new();
        loop {
            let tail = Self::from(session, stream, start, lines, &mut sources);
            let is_enough = tail.lines.len() >= lines && tail.last.is_some();
            if is_enough || start == 0 || stream.len() - start > MOST {
                return tail;
            }
            for _ in 0..steps {
                start = sync.before(start);
            }
            steps = steps.saturating_mul(2);
        }
    }

    fn from(
        session: &Session<'_>,
        stream: &Stream<'_>,
        start: usize,
        lines: usize,
        sources: &mut LineFinder,
    ) -> Self {
        /// So many instructions at the end are looked at: lines are few instructions each.
        const INSTRUCTIONS: usize = 1 << 12;
        let range = StreamOffset(start as u64)..StreamOffset(u64::MAX);
        let flow = session.decode_within(stream, range);
        let mut tail = Self::default();
        let mut ran: VecDeque<Executed> = VecDeque::new();
        for item in flow {
            tail.error = None;
            match item {
                Item::Insn(insn) => {
                    if ran.len() >= INSTRUCTIONS {
                        ran.pop_front();
                    }
                    ran.push_back(insn);
                }
                Item::Error(error) => tail.error = Some(error),
                Item::Event(_) => {}
            }
        }
        let view = session.last_view(stream.task().pid);
        for insn in &ran {
            let Some(place) = view.place(insn.ip) else {
                continue;
            };
            let Some(source) = sources.at(&place) else {
                continue;
            };
            match tail.lines.back_mut() {
                Some(last) if last.source == source => last.insns += 1,
                _ => {
                    let function = place.symbol().map(|symbol| symbol.demangled());
                    tail.lines.push_back(Ran {
                        source,
                        function: function.unwrap_or_default(),
                        insns: 1,
                    });
                }
            }
            if tail.lines.len() > lines {
                tail.lines.pop_front();
            }
        }
        tail.last = ran.back().copied();
        if tail.last.is_some_and(|last| last.class == Class::Syscall) {
            let before = ran.iter().rev().skip(1).take(NEAR);
            tail.system_call = loaded(&view, before);
        }
        tail
    }
}

/// The number that instructions load into EAX, the last of them given first: by itself, or by way of another register.
fn loaded<'e>(view: &ImageView<'_>, insns: impl Iterator<Item = &'e Executed>) -> Option<u32> {
    let mut view = view.clone();
    let mut register = 0;
    for insn in insns {
        let mut bytes = [0; 5];
        let len = view.read(insn.ip, &mut bytes).min(insn.len.into());
        match bytes.get(..len)? {
            // MOV r32, imm32
            [opcode, number @ ..] if *opcode == 0xb8 | register && number.len() == 4 => {
                return Some(u32::from_le_bytes(number.try_into().ok()?));
            }
            // MOV r32, r32
            [0x89, modrm] if modrm >> 6 == 3 && modrm & 7 == register => register = modrm >> 3 & 7,
            _ => {}
        }
    }
    None
}

/// Why a thread ran no further.
#[derive(Clone, Copy, Debug)]
enum Why<'s> {
    /// A signal ended the process.
    Signal(&'s Signal),
    /// It called the kernel to end: the thread, or the process.
    Exit { process: bool },
    /// It was in the kernel.
    SystemCall,
    /// The trace ends before the thread.
    Cut,
    /// The flow was lost.
    Lost(FlowError),
    /// Only a part is looked at.
    Part,
}

impl<'s> Why<'s> {
    fn of(stream: &'s Stream<'_>, tail: &Tail, is_all: bool) -> Self {
        const EXIT: u32 = 60;
        const EXIT_GROUP: u32 = 231;
        if !is_all {
            return Self::Part;
        }
        if let Some(signal) = stream.signals().iter().rev().find(|signal| signal.is_fatal) {
            return Self::Signal(signal);
        }
        match (tail.error, tail.system_call) {
            (Some(error), _) if !matches!(error.kind, FlowErrorKind::UnknownEnd) => {
                Self::Lost(error)
            }
            (None, Some(EXIT)) => Self::Exit { process: false },
            (None, Some(EXIT_GROUP)) => Self::Exit { process: true },
            (None, _) if tail.last.is_some_and(|last| last.class == Class::Syscall) => {
                Self::SystemCall
            }
            _ => Self::Cut,
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Signal(_) => "signal",
            Self::Exit { .. } => "exit",
            Self::SystemCall => "system_call",
            Self::Cut => "cut",
            Self::Lost(_) => "lost",
            Self::Part => "part",
        }
    }

    fn sentence(&self) -> String {
        match self {
            Self::Signal(signal) => item::signal_sentence(signal),
            Self::Exit { process: true } => "it ended the process by `exit_group`".into(),
            Self::Exit { process: false } => "it ended by `exit`".into(),
            Self::SystemCall => "the trace ends in a system call".into(),
            Self::Cut => "the trace ends here, and not the thread".into(),
            Self::Lost(error) => format!("the flow was lost {}", item::wrong(error)),
            Self::Part => "the part ends here".into(),
        }
    }
}

/// Where a call is.
struct Frame {
    at: Option<Ip>,
    kind: CallKind,
    name: String,
    source: Option<SourceLine>,
}

fn inlined_name(name: &str) -> String {
    format!("{name} (inlined)")
}

/// The inlined functions at a place, innermost first.
fn inlined_at(place: &Place, sources: &mut LineFinder) -> Vec<Frame> {
    let mut source = sources.at(place);
    let inlined = sources.inlined(place).into_iter().rev();
    let frame = |inlined: InlinedFunction| Frame {
        at: None,
        kind: CallKind::Inline,
        name: inlined_name(&inlined.name),
        source: std::mem::replace(&mut source, inlined.called_at),
    };
    inlined.map(frame).collect()
}

/// A place that no symbol names: the file's own address of it, and the file's name.
fn address_in_file(place: &Place) -> Option<(u64, String)> {
    let address = place.file.address_of_offset(place.offset)?;
    let file = place.owner().file_name()?.to_string_lossy();
    Some((address, file.into_owned()))
}

/// The end of a thread.
struct Last<'a, 's> {
    session: &'a Session<'s>,
    stream: &'a Stream<'s>,
    traced: &'a Traced,
    recent: &'a Recent,
    tail: &'a Tail,
    why: Why<'a>,
    /// Inlined functions are wanted.
    inline: bool,
}

impl Last<'_, '_> {
    /// The open calls, innermost first.
    fn stack(&self) -> Vec<Frame> {
        let view = self.session.last_view(self.stream.task().pid);
        let mut sources = LineFinder::new();
        let mut at = match self.why {
            Why::Signal(signal) => signal.ip,
            _ => None,
        };
        at = at
            .or(self.tail.last.map(|last| last.ip))
            .or(self.traced.last);
        let mut is_innermost = true;
        // How many of the inlined functions at the place were shown.
        let mut inner = 0;
        let mut frames = Vec::new();
        let fault = match self.why {
            Why::Signal(Signal { ip: Some(ip), .. }) if self.inline => view.place(*ip),
            _ => None,
        };
        if let Some(place) = &fault {
            frames = inlined_at(place, &mut sources);
            frames.iter_mut().for_each(|frame| frame.at = at);
            inner = frames.len();
        }
        for open in self.traced.open.iter().rev() {
            let is_inlined = open.call.kind == CallKind::Inline;
            if is_innermost && is_inlined && fault.is_some() {
                // What is known of it is where the last instruction ran, which need not be where the fault was.
                continue;
            }
            // Where a call returns to may be another line, and even another function, if it never does: the call instruction ends before it.
            let back = u64::from(!is_innermost);
            let place = at.and_then(|at| view.place(Ip(at.0.wrapping_sub(back))));
            let source = match (inner, &place) {
                (_, None) => None,
                (0, Some(place)) => sources.at(place),
                // Where an inlined function was called.
                (inner, Some(place)) => {
                    let mut inlined = sources.inlined(place).into_iter();
                    inlined.nth_back(inner - 1).and_then(|it| it.called_at)
                }
            };
            let known = self.traced.names.describe(open.call.function);
            frames.push(Frame {
                at,
                kind: open.call.kind,
                name: match place.as_ref().and_then(Place::symbol) {
                    _ if is_inlined => inlined_name(known),
                    Some(symbol) if symbol.offset + back > 0 => {
                        format!("{}+{:#x}", symbol.demangled(), symbol.offset + back)
                    }
                    Some(symbol) => symbol.demangled(),
                    None => match place.as_ref().and_then(address_in_file) {
                        Some((address, file)) => format!("{:#x} in {file}", address + back),
                        None => known.to_owned(),
                    },
                },
                source,
            });
            if is_inlined {
                inner += 1;
                continue;
            }
            at = open.returns_to;
            is_innermost = false;
            inner = 0;
        }
        frames
    }

    /// The last calls, with depths that begin at 0.
    fn calls(&self) -> impl Iterator<Item = FinishedCall> {
        let calls = &self.recent.calls;
        let lowest = calls.iter().map(|finished| finished.call.depth).min();
        calls.iter().map(move |finished| {
            let mut finished = *finished;
            finished.call.depth -= lowest.unwrap_or(0);
            finished
        })
    }

    fn print(&self, style: &TreeStyle, out: &mut Stdout) -> Result<()> {
        let Self {
            session,
            stream,
            recent,
            traced,
            tail,
            ..
        } = self;
        writeln!(out, "{}: {}", input::title(stream), self.why.sentence())?;
        let when = recent.end.tsc.map(|tsc| check::moment(session, tsc));
        let when = when.map_or_else(String::new, |when| format!(", at {when}"));
        let insns = counted(recent.end.insns, "instruction");
        writeln!(out, "after {insns}{when}\n")?;
        writeln!(out, "Its calls, innermost first:")?;
        let stack = self.stack();
        let widest = stack.iter().map(|frame| frame.name.chars().count());
        let widest = widest.max().unwrap_or(0).min(48);
        let lines = stack.iter().map(|frame| {
            let source = frame.source.as_ref().map(short);
            (frame.name.as_str(), source.unwrap_or_default())
        });
        let lines: Vec<(&str, String)> = lines.collect();
        let digits = stack.len().to_string().len().max(4);
        for row in recursion::rows(&lines) {
            match row {
                Row::Frame(number) => {
                    let (name, source) = &lines[number];
                    let line = format!("{number:>digits$}  {name:<widest$}  {source}");
                    writeln!(out, "{}", line.trim_end())?;
                }
                Row::Again { frames, times } => {
                    let calls = match frames {
                        1 => "the same call".to_owned(),
                        _ => format!("the same {frames} calls"),
                    };
                    let times = counted(times as u64, "time");
                    writeln!(out, "{:digits$}  … {calls} {times} more", "")?;
                }
            }
        }
        if traced.forgotten > 0 {
            let calls = counted(traced.forgotten, "call");
            writeln!(
                out,
                "{:digits$}  … {calls} around these, which are not kept",
                ""
            )?;
        }
        writeln!(out, "\nThe last calls:")?;
        let mut tree = Tree::new(session, &traced.names, style);
        tree.head(out)?;
        for call in self.calls() {
            tree.call(&call, out)?;
        }
        tree.end(out)?;
        if !tail.lines.is_empty() {
            writeln!(out, "\nThe last lines:")?;
            let widest = tail.lines.iter().map(|ran| short(&ran.source).len()).max();
            let widest = widest.unwrap_or(0);
            for ran in &tail.lines {
                let source = short(&ran.source);
                writeln!(out, "      {source:<widest$}  {}", ran.function)?;
            }
        }
        Ok(())
    }

    fn json(&self, out: &mut Stdout) -> io::Result<()> {
        let Self {
            session,
            stream,
            recent,
            traced,
            tail,
            why,
            ..
        } = self;
        let mut line = Line::default();
        line.begin().text("ended", why.name());
        if let Some(comm) = stream.comm() {
            line.text("thread", comm);
        }
        let stack = self.stack();
        let innermost = stack.first();
        line.hex_or_null("ip", innermost.and_then(|frame| frame.at).map(|at| at.0));
        line.number("insns", recent.end.insns);
        if traced.forgotten > 0 {
            line.number("calls_not_kept", traced.forgotten);
        }
        if let Some(time) = calls::nanoseconds(session, recent.end.tsc) {
            line.number("time", time);
        }
        if let Why::Signal(signal) = why {
            line.text("signal", &signal.name())
                .hex_or_null("address", signal.address);
        }
        if let Why::Exit { process } = why {
            line.flag("process", *process);
        }
        line.list("stack", &stack, |line, frame| {
            line.text("at", &frame.name)
                .hex_or_null("ip", frame.at.map(|at| at.0))
                .text("kind", frame.kind.name());
            if let Some(source) = &frame.source {
                line.text("source", &source.file);
                if let Some(number) = source.line {
                    line.number("line", number);
                }
            }
        });
        let key = (stream.key(), stream.task());
        let json = JsonCalls::new(session, &traced.names, key);
        line.list("calls", self.calls(), |line, call| {
            let mut text = Vec::new();
            json.members(&call, &mut Sites::default(), &mut text);
            line.splice(&text);
        });
        line.list("lines", &tail.lines, |line, ran| {
            line.text("source", &ran.source.file);
            if let Some(number) = ran.source.line {
                line.number("line", number);
            }
            line.text("function", &ran.function)
                .number("insns", ran.insns);
        });
        input::tag(stream, &mut line);
        out.write_all(line.end())
    }
}

/// A line of source, without its folder.
fn short(source: &SourceLine) -> String {
    let file = source.file.rsplit('/').next().unwrap_or_default();
    match source.line {
        Some(line) => format!("{file}:{line}"),
        None => file.to_owned(),
    }
}
