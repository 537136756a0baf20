//! `cofi blocks`: the flow from decision to decision.
//!
//! A block is what ran one after the other up to an instruction of which only the trace tells where it led, an event or an error.
//! The decoder's own pieces may be smaller: they are put together here, so that a block is the same whichever way it was decoded.

use crate::Ended;
use crate::args::{BlocksArgs, Show};
use crate::item::{self, Loss};
use crate::json::Line;
use crate::notes::{self, Notes, Now};
use crate::output::stdout;
use crate::point::Moment;
use crate::select::{self, Found, Lines, Window};
use crate::table::{shortened, width_of};
use crate::who::Who;
use crate::{digits, input};
use anyhow::Result;
use cofi_flow::{Executed, Item, Part, Run};
use cofi_image::SourceLines;
use cofi_insn::Class;
use cofi_packet::{Ip, StreamOffset};
use cofi_session::{Session, Signal, Signals, Stream, ThreadFlow};
use console::Term;
use std::io::Write;

/// Runs the command.
pub(crate) fn run(args: &BlocksArgs) -> Result<Ended> {
    let bytes = input::map(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    let window = Window::of(&args.select, &session)?;
    let mut out = stdout();
    let mut errors = input::report(&session);
    let several = session.streams().len() > 1;
    let mut found = Found::default();
    for stream in window.streams(&session) {
        if several && !args.json {
            writeln!(out, "{}", input::title(stream))?;
        }
        let begin = |start| Blocks::new(args, &window, (&session, stream), start);
        let (here, wrong) = if window.is_all() && is_plain(args, stream) {
            let lines = begin(StreamOffset(0));
            (Found::default(), plain(lines, &session, stream, &mut out)?)
        } else {
            let (found, lines) = select::write(&window, &session, stream, begin, &mut out)?;
            (found, lines.errors)
        };
        found |= here;
        errors |= wrong;
    }
    out.flush()?;
    window.report_missed(found);
    errors |= input::report_code(&session);
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// Whether nothing is wanted that has to be asked of the flow at each block.
fn is_plain(args: &BlocksArgs, stream: &Stream<'_>) -> bool {
    args.json && !args.time && !args.symbols && stream.key().cpu().is_none()
}

/// Writes all blocks of a stream as JSON, by the decoder's block level; whether there are errors.
fn plain(
    mut lines: Blocks<'_>,
    session: &Session<'_>,
    stream: &Stream<'_>,
    out: &mut impl Write,
) -> Result<bool> {
    let mut flow = session.decode(stream);
    let mut failed = None;
    loop {
        let item = flow.blocks(|block| {
            // The last instruction is at hand where it is one that ends a block.
            let last = block.last().or_else(|| block.iter().last());
            if let Some(last) = last {
                lines.open.add(block.ip(), block.len() as u64, last);
            }
            if lines.open.is_complete()
                && failed.is_none()
                && let Err(error) = out.write_all(lines.plain_line())
            {
                failed = Some(error);
            }
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        if lines.open.count > 0 {
            out.write_all(lines.plain_line())?;
        }
        while let Some(signal) = lines.next_signal(&flow, item.is_none()) {
            lines.signal(&mut flow, signal);
            out.write_all(lines.line())?;
        }
        let Some(item) = item else {
            return Ok(lines.errors);
        };
        lines.item(&mut flow, &item);
        out.write_all(lines.line())?;
    }
}

/// A block as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    first: Option<Ip>,
    count: u64,
    last: Option<Executed>,
}

impl Open {
    fn add(&mut self, ip: Ip, count: u64, last: Executed) {
        self.first.get_or_insert(ip);
        self.count += count;
        self.last = Some(last);
    }

    /// Whether only the trace tells where control goes from here.
    fn is_complete(&self) -> bool {
        self.last.is_some_and(|last| last.class.needs_packet())
    }
}

/// The name of a class.
const fn class_name(class: Class) -> &'static str {
    match class {
        Class::Other => "other",
        Class::Conditional => "conditional",
        Class::DirectJump => "direct_jump",
        Class::DirectCall => "direct_call",
        Class::IndirectJump => "indirect_jump",
        Class::IndirectCall => "indirect_call",
        Class::Return => "return",
        Class::FarCall => "far_call",
        Class::FarJump => "far_jump",
        Class::FarReturn => "far_return",
        Class::Syscall => "syscall",
        Class::SoftwareInterrupt => "software_interrupt",
        Class::Into => "into",
        Class::VmEntry => "vm_entry",
        Class::VmOther => "vm_other",
        Class::VmPtrLoad => "vm_ptr_load",
        Class::MovCr3 => "mov_cr3",
        Class::Ptwrite => "ptwrite",
        Class::Xbegin => "xbegin",
        Class::Xend => "xend",
        Class::Xabort => "xabort",
        Class::Wait => "wait",
        Class::Enclave => "enclave",
        _ => "unknown",
    }
}

/// How long names may be on the terminal, if output goes to one, behind everything else in a line.
fn name_width(is_timed: bool) -> usize {
    const OTHERS: usize = 65;
    const TIME: usize = 29;
    const LEAST: usize = 20;
    let others = if is_timed { OTHERS + TIME } else { OTHERS };
    let width = width_of(&Term::stdout());
    width.map_or(usize::MAX, |width| width.saturating_sub(others).max(LEAST))
}

/// Makes a line of each block, event and error.
struct Blocks<'s> {
    session: &'s Session<'s>,
    who: Who<'s>,
    /// How long names may be.
    name_width: usize,
    json: bool,
    time: bool,
    symbols: bool,
    window: &'s Window,
    signals: Signals<'s>,
    notes: Notes,
    open: Open,
    /// What came behind the block that was told last.
    waiting: Option<Item>,
    /// Where the flow was at the end of the block.
    moment: Option<Moment>,
    /// How many instructions the line stands for.
    instructions: usize,
    /// The points' instructions that are among them.
    hits: Vec<Ip>,
    /// What is told of where the block begins.
    name: Vec<u8>,
    line: Line,
    text: Vec<u8>,
    loss: Loss,
    errors: bool,
}

impl<'s> Blocks<'s> {
    fn new(
        args: &BlocksArgs,
        window: &'s Window,
        (session, stream): (&'s Session<'s>, &'s Stream<'s>),
        start: StreamOffset,
    ) -> Self {
        Self {
            session,
            signals: stream.signals_from(start),
            who: Who::new(stream, &window.tids),
            name_width: name_width(args.time),
            json: args.json,
            time: args.time,
            symbols: args.symbols,
            window,
            notes: Notes::default(),
            open: Open::default(),
            waiting: None,
            moment: None,
            instructions: 0,
            hits: Vec::new(),
            name: Vec::new(),
            line: Line::default(),
            text: Vec::new(),
            loss: Loss::default(),
            errors: false,
        }
    }

    /// Begins the line's object with the block, which is told by that.
    fn object(&mut self) -> &mut Line {
        let open = std::mem::take(&mut self.open);
        self.instructions = open.count as usize;
        let at = |ip: Option<Ip>| ip.map_or(0, |ip| ip.0);
        let last = open.last.map_or(Class::Other, |last| last.class);
        self.line
            .begin()
            .hex("block", at(open.first))
            .hex("end", at(open.last.map(|last| last.ip)))
            .number("insns", open.count)
            .text("last", class_name(last))
    }

    /// The line of a block of which nothing more is told, and by which no point is looked for.
    fn plain_line(&mut self) -> &[u8] {
        self.object();
        self.who.tag(&mut self.line);
        self.line.end()
    }

    /// Adds instructions to the block.
    fn add(&mut self, run: &Run<'_>) {
        for ip in self.window.instructions() {
            if run.iter().any(|insn| insn.ip == ip) {
                self.hits.push(ip);
            }
        }
        if let Some(last) = run.last().or_else(|| run.iter().last()) {
            self.open.add(run.ip(), run.len() as u64, last);
        }
    }

    /// What is told of where the block begins: to be asked before what follows it, as that may change the code.
    fn name(&mut self, flow: &mut ThreadFlow<'_>) {
        let (Some(ip), Some(last)) = (self.open.first, self.open.last) else {
            return;
        };
        let insn = Executed { ip, ..last };
        let show = Show {
            symbols: true,
            ..Show::default()
        };
        let most = self.name_width;
        let name = match self.json {
            true if self.symbols => self.notes.of(flow, &insn, |flow| {
                notes::members(flow, &insn, show, &mut SourceLines::new())
            }),
            true => return,
            false => self.notes.of(flow, &insn, |flow| {
                let place = flow.place(ip).map(|place| place.to_string());
                let name = place.unwrap_or_default();
                shortened(&name, most).into_bytes().into()
            }),
        };
        self.name.clear();
        self.name.extend_from_slice(name);
    }

    /// The line of the block.
    fn block(&mut self) {
        let now = self.moment.map(|moment| moment.now).filter(|_| self.time);
        if self.json {
            self.object();
            self.line.splice(&self.name);
            if let Some(now) = now {
                now.members(self.session, &mut self.line);
            }
            self.who.tag(&mut self.line);
            self.line.end();
            return;
        }
        let open = std::mem::take(&mut self.open);
        self.instructions = open.count as usize;
        self.text.clear();
        if let Some(now) = now {
            now.column(&mut self.text);
        }
        let (Some(first), Some(last)) = (open.first, open.last) else {
            return;
        };
        digits::hex_padded(&mut self.text, first.0, 16);
        let (count, class) = (open.count, class_name(last.class));
        // Writing to memory does not fail.
        let _ = write!(self.text, "  to {:<16x} {count:>6}  {class:<18} ", last.ip);
        self.text.extend_from_slice(&self.name);
        self.text.push(b'\n');
    }

    /// The next signal that came before what the flow gave last, or before its end.
    fn next_signal(&mut self, flow: &ThreadFlow<'_>, is_end: bool) -> Option<&'s Signal> {
        match is_end {
            true => self.signals.at_end(),
            false => self.signals.before(flow.offset()),
        }
    }

    /// The line of a signal.
    fn signal(&mut self, flow: &mut ThreadFlow<'_>, signal: &Signal) {
        self.instructions = 0;
        let now = self.time.then(|| Now::of(self.session, flow));
        if self.json {
            item::describe_signal(signal, &mut self.line);
            if let Some(now) = now {
                now.members(self.session, &mut self.line);
            }
            self.who.tag(&mut self.line);
            self.line.end();
            return;
        }
        self.text.clear();
        if let Some(now) = now {
            now.column(&mut self.text);
        }
        // Writing to memory does not fail.
        let _ = writeln!(self.text, "  -- {}", item::signal_sentence(signal));
    }

    /// The line of an event or error.
    fn item(&mut self, flow: &mut ThreadFlow<'_>, item: &Item) {
        self.instructions = 0;
        self.errors |= matches!(item, Item::Error(_));
        self.notes.changed();
        let switched = self.who.follow(flow);
        if self.json {
            item::describe(item, &mut self.line);
            let place = || (flow.offset(), flow.time().map(|time| time.tsc));
            self.loss.note(item, place, Some(&mut self.line));
            if self.time {
                Now::of(self.session, flow).members(self.session, &mut self.line);
            }
            self.who.tag(&mut self.line);
            self.line.end();
            return;
        }
        self.text.clear();
        if switched {
            self.who.heading(self.session, &mut self.text);
        }
        if self.time {
            Now::of(self.session, flow).column(&mut self.text);
        }
        // Writing to memory does not fail.
        let _ = match item {
            Item::Event(event) => writeln!(self.text, "  -- {}", item::sentence(event)),
            Item::Error(error) => writeln!(self.text, "  !! {}", item::wrong(error)),
            Item::Insn(_) => Ok(()),
        };
    }
}

impl Lines for Blocks<'_> {
    fn errors(&mut self) -> &mut bool {
        &mut self.errors
    }

    fn has_time(&self) -> bool {
        self.time
    }

    fn next(&mut self, flow: &mut ThreadFlow<'_>) -> bool {
        self.moment = None;
        self.hits.clear();
        if let Some(item) = self.waiting.take() {
            if let Some(signal) = self.next_signal(flow, false) {
                self.waiting = Some(item);
                self.signal(flow, signal);
            } else {
                self.item(flow, &item);
            }
            return true;
        }
        loop {
            let item = match flow.next_part() {
                Some(Part::Run(run)) => {
                    let begins = self.open.count == 0;
                    self.add(&run);
                    if begins {
                        self.name(flow);
                    }
                    // An event that comes next moves the flow on.
                    if self.time || !self.window.is_all() {
                        self.moment = Some(Moment::of(self.session, flow));
                    }
                    if self.open.is_complete() {
                        self.block();
                        return true;
                    }
                    continue;
                }
                Some(Part::Event(event)) => Item::Event(event),
                Some(Part::Error(error)) => Item::Error(error),
                None if self.open.count > 0 => {
                    self.block();
                    return true;
                }
                None => {
                    let Some(signal) = self.next_signal(flow, true) else {
                        return false;
                    };
                    self.signal(flow, signal);
                    return true;
                }
            };
            if self.open.count > 0 {
                self.waiting = Some(item);
                self.block();
            } else if let Some(signal) = self.next_signal(flow, false) {
                self.waiting = Some(item);
                self.signal(flow, signal);
            } else {
                self.item(flow, &item);
            }
            return true;
        }
    }

    fn line(&self) -> &[u8] {
        if self.json {
            self.line.bytes()
        } else {
            &self.text
        }
    }

    fn instructions(&self) -> usize {
        self.instructions
    }

    fn holds(&self, ip: Ip) -> bool {
        self.hits.contains(&ip)
    }

    fn is_wanted(&self) -> bool {
        self.who.is_wanted()
    }

    fn moment(&self) -> Option<Moment> {
        self.moment
    }
}
