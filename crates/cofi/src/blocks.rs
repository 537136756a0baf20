//! `cofi blocks`: the flow from decision to decision.
//!
//! A block is what ran one after the other up to an instruction of which only the trace tells where it led, an event or an error.
//! The decoder's own pieces may be smaller: they are put together here, so that a block is the same whichever way it was decoded.

use crate::Ended;
use crate::args::{BlocksArgs, Show};
use crate::input;
use crate::item::{self, Loss};
use crate::notes::{self, Code, Notes, Now, Views};
use crate::ordered::{self, Behind, End, Out, Queue, Segment, Sink, Written};
use crate::output::stdout;
use crate::point::Moment;
use crate::progress::Printing;
use crate::select::{self, Found, Lines, Window};
use crate::table::{shortened, width_of};
use crate::thread_tag::ThreadTag;
use anyhow::Result;
use cofi_analysis::{BlockTexts, FlowState, ended_with_segment};
use cofi_flow::{Event, Executed, Item, Part, Run};
use cofi_image::{ImageView, LineFinder};
use cofi_insn::Class;
use cofi_packet::{Ip, StreamOffset};
use cofi_session::{Session, Signal, Signals, Stream, ThreadFlow};
use cofi_text::Line;
use cofi_text::digits;
use console::Term;
use std::io::{self, Write};
use std::mem::take;

/// Runs the command.
pub(crate) fn run(args: &BlocksArgs) -> Result<Ended> {
    let bytes = input::map(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    let window = Window::of(&args.select, &session)?;
    let mut out = stdout();
    let mut errors = input::report(&session);
    let several = session.streams().len() > 1;
    let mut found = Found::default();
    let streams = window.streams(&session);
    let mut progress = Printing::of(streams.iter().copied());
    for stream in streams {
        if several && !args.json {
            writeln!(out, "{}", input::title(stream))?;
        }
        let begin = |start| Blocks::new(args, &window, (&session, stream), start);
        let (here, wrong) = if window.is_all() && !args.time {
            let mut out = Out {
                to: &mut out,
                progress: &progress,
            };
            let wrong = write_whole(args, &|| begin(StreamOffset(0)), &mut out)?;
            (Found::default(), wrong)
        } else {
            let (found, lines) = select::write(&window, &session, stream, begin, &mut out)?;
            (found, lines.errors)
        };
        progress.finish(stream);
        found |= here;
        errors |= wrong;
    }
    drop(progress);
    out.flush()?;
    window.report_missed(found);
    errors |= input::report_code(&session);
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// Writes all of a stream, whose lines those of `begin` make: whether it holds errors.
fn write_whole<'s>(
    args: &BlocksArgs,
    begin: &(impl Fn() -> Blocks<'s> + Sync),
    out: &mut Out<'_, impl Write>,
) -> Result<bool> {
    let mut lines = begin();
    let (session, stream) = (lines.session, lines.stream);
    let worker = || {
        let mut lines = begin();
        move |segment: &Segment, queue: &mut Queue<'_, FlowState>| lines.segment(segment, queue)
    };
    let written = match stream.key().cpu() {
        None => ordered::write_stream((session, stream), args.parallel, worker, out)?,
        // What a processor's stream is about follows from what stands before.
        Some(_) => ordered::NOTHING,
    };
    let (start, skip) = match written {
        Written::Whole { errors } => return Ok(errors),
        Written::UpTo { start, skip } => (start, skip),
    };
    lines.rest(start, &mut Behind { skip, out })?;
    Ok(lines.errors)
}

/// So much text is written at once.
const FULL: usize = 1 << 17;

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
    stream: &'s Stream<'s>,
    who: ThreadTag<'s>,
    /// How long names may be.
    name_width: usize,
    json: bool,
    time: bool,
    symbols: bool,
    window: &'s Window,
    signals: Signals<'s>,
    notes: Notes,
    /// The lines of whole blocks.
    texts: BlockTexts,
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
    /// Nothing is wanted that has to be asked of the flow at each block.
    is_plain: bool,
    /// The code that blocks are named by.
    views: Views<'s>,
    /// What is true of the flow.
    state: FlowState,
    /// The code in place has not been noted there since the last event.
    is_code_new: bool,
    /// Where the segment ends behind which others stand.
    end: Option<StreamOffset>,
    /// At the end of the segment: whether what was written is certain from that alone.
    is_certain: bool,
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
            stream,
            signals: stream.signals_from(start),
            who: ThreadTag::new(stream, &window.tids),
            name_width: name_width(args.time),
            json: args.json,
            time: args.time,
            symbols: args.symbols,
            window,
            notes: Notes::default(),
            texts: BlockTexts::default(),
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
            is_plain: !args.time
                && stream.key().cpu().is_none()
                && window.instructions().next().is_none(),
            views: Views::default(),
            state: FlowState::default(),
            is_code_new: true,
            end: None,
            is_certain: false,
        }
    }

    /// Writes the lines of a segment.
    fn segment(
        &mut self,
        segment: &Segment,
        queue: &mut Queue<'_, FlowState>,
    ) -> io::Result<End<FlowState>> {
        self.begin(segment.range.start);
        self.end = (!segment.is_last).then_some(segment.range.end);
        let (session, stream) = (self.session, self.stream);
        let mut flow = session.decode_within(stream, segment.range.clone());
        if !segment.is_first {
            self.enter(&mut flow);
            queue.begin(self.state)?;
        }
        self.follow(&mut flow, queue)?;
        Ok(End {
            state: self.is_certain.then_some(self.state),
            errors: self.errors,
        })
    }

    /// Writes all lines from a place on, at which a segment begins.
    fn rest(&mut self, start: StreamOffset, out: &mut impl Sink) -> io::Result<()> {
        self.begin(start);
        self.end = None;
        let mut flow = self
            .session
            .decode_within(self.stream, start..StreamOffset(u64::MAX));
        if start.0 > 0 {
            self.enter(&mut flow);
        }
        self.follow(&mut flow, out)
    }

    /// Begins with what comes from a place on.
    fn begin(&mut self, start: StreamOffset) {
        self.signals = self.stream.signals_from(start);
        self.waiting = None;
        self.open = Open::default();
        self.notes.changed();
        self.errors = false;
        self.loss = Loss::default();
        self.state = FlowState::default();
        self.is_code_new = true;
        self.is_certain = false;
    }

    /// Takes what a flow that begins at a PSB tells of that, and what comes first behind it.
    fn enter(&mut self, flow: &mut ThreadFlow<'s>) {
        let (state, item) = FlowState::at_beginning(flow, |part| match part? {
            Part::Run(run) => {
                self.add(&run);
                None
            }
            Part::Event(event) => Some(Item::Event(event)),
            Part::Error(error) => Some(Item::Error(error)),
        });
        self.state = state;
        self.is_code_new = false;
        self.waiting = item;
        if self.open.count > 0 {
            self.name(flow);
        }
    }

    /// Writes all lines of a flow; with the end of a segment, only as far as they are certain from that alone.
    fn follow(&mut self, flow: &mut ThreadFlow<'s>, out: &mut impl Sink) -> io::Result<()> {
        let mut text = Vec::with_capacity(2 * FULL);
        if self.open.is_complete() {
            self.block();
            text.extend_from_slice(self.line());
        }
        loop {
            if self.is_plain && self.waiting.is_none() {
                self.plain(flow, &mut text, out)?;
            }
            if !self.next(flow) {
                return out.put(&mut text);
            }
            if self.is_wanted() {
                text.extend_from_slice(self.line());
            }
            if text.len() >= FULL {
                out.reached(flow.offset());
                out.put(&mut text)?;
            }
        }
    }

    /// Writes all blocks up to an event or an error, by the decoder's block level. What comes then is waiting.
    fn plain(
        &mut self,
        flow: &mut ThreadFlow<'s>,
        text: &mut Vec<u8>,
        out: &mut impl Sink,
    ) -> io::Result<()> {
        let mut failed = None;
        self.note_code(flow);
        let era = self.notes.era(flow);
        let (mut texts, mut views) = (take(&mut self.texts), take(&mut self.views));
        let mut view = self.is_named().then(|| views.of(era, flow));
        let item = flow.blocks(|block| {
            if failed.is_some() {
                // Nobody reads on.
                return;
            }
            let is_alone = |last: &Executed| self.open.count == 0 && last.class.needs_packet();
            if let Some(last) = block.last().filter(is_alone) {
                // Most blocks ran before.
                let code = era << 2 | block.mode().bits() >> 5;
                if !texts.copy(code, block, text) {
                    self.open.add(block.ip(), block.len() as u64, last);
                    self.name_in(era, &mut view);
                    self.block();
                    texts.add(self.line());
                    text.extend_from_slice(self.line());
                }
                if text.len() >= FULL {
                    texts.trim();
                    out.reached(block.offset());
                    failed = out.put(text).err();
                }
                return;
            }
            let is_begun = self.open.count > 0;
            // The last instruction is at hand where it is one that ends a block.
            let last = block.last().or_else(|| block.iter().last());
            if let Some(last) = last {
                self.open.add(block.ip(), block.len() as u64, last);
            }
            if !is_begun {
                self.name_in(era, &mut view);
            }
            if self.open.is_complete() {
                self.block();
                text.extend_from_slice(self.line());
                if text.len() >= FULL {
                    failed = out.put(text).err();
                }
            }
        });
        (self.texts, self.views) = (texts, views);
        if let Some(error) = failed {
            return Err(error);
        }
        self.waiting = item;
        Ok(())
    }

    /// Takes note of the code in place, before it may be other code.
    fn note_code(&mut self, flow: &mut ThreadFlow<'_>) {
        if take(&mut self.is_code_new) {
            self.state.note_code(flow);
        }
    }

    /// Whether the segment ends here, as far as what is written is certain.
    fn is_over(&mut self, item: Option<&Item>, flow: &ThreadFlow<'_>) -> bool {
        let Some(end) = self.end else {
            return false;
        };
        match item {
            Some(Item::Error(_) | Item::Event(Event::Resync { .. })) => true,
            Some(_) => false,
            None => {
                let is_here = ended_with_segment(self.stream, flow.offset(), end);
                // A block may go on behind the PSB.
                let is_here = is_here && self.open.count == 0;
                let before = StreamOffset(end.0.saturating_sub(1));
                self.is_certain =
                    is_here && self.state.is_on() && self.signals.before(before).is_none();
                true
            }
        }
    }

    /// Begins the line's object with the block, which is told by that.
    fn object(&mut self) -> &mut Line {
        let open = take(&mut self.open);
        self.instructions = open.count as usize;
        let at = |ip: Option<Ip>| ip.map_or(0, |ip| ip.0);
        let last = open.last.map_or(Class::Other, |last| last.class);
        self.line
            .begin()
            .hex("block", at(open.first))
            .hex("end", at(open.last.map(|last| last.ip)))
            .number("insns", open.count)
            .text("last", last.name())
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

    /// Whether it is told in which function a block begins.
    fn is_named(&self) -> bool {
        self.symbols || !self.json
    }

    /// What is told of where the block begins: to be asked before what follows it, as that may change the code.
    fn name(&mut self, flow: &mut ThreadFlow<'_>) {
        if self.is_named() {
            let era = self.notes.era(flow);
            self.name_by(era, flow);
        }
    }

    /// The same by the code in place, where that is looked at.
    fn name_in(&mut self, era: u32, view: &mut Option<&mut ImageView<'_>>) {
        if let Some(view) = view {
            self.name_by(era, *view);
        }
    }

    fn name_by(&mut self, era: u32, code: &mut impl Code) {
        let (Some(ip), Some(last)) = (self.open.first, self.open.last) else {
            return;
        };
        let insn = Executed { ip, ..last };
        let most = self.name_width;
        let is_json = self.json;
        let name = self.notes.in_era(era, &insn, || {
            if is_json {
                let show = Show {
                    symbols: true,
                    ..Show::default()
                };
                return notes::members(code, &insn, show, &mut LineFinder::new());
            }
            let place = code.place(ip).map(|place| place.to_string());
            let name = place.unwrap_or_default();
            shortened(&name, most).into_bytes().into()
        });
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
        let open = take(&mut self.open);
        self.instructions = open.count as usize;
        self.text.clear();
        if let Some(now) = now {
            now.column(&mut self.text);
        }
        let (Some(first), Some(last)) = (open.first, open.last) else {
            return;
        };
        digits::hex_padded(&mut self.text, first.0, 16);
        self.text.extend_from_slice(b"  to ");
        let place = self.text.len() + 16;
        digits::hex(&mut self.text, last.ip.0);
        digits::fill(&mut self.text, place);
        self.text.push(b' ');
        digits::decimal_padded(&mut self.text, open.count, 6);
        self.text.extend_from_slice(b"  ");
        let place = self.text.len() + 18;
        self.text.extend_from_slice(last.class.name().as_bytes());
        digits::fill(&mut self.text, place);
        self.text.push(b' ');
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
        if let Item::Event(event) = item {
            self.state.note(event);
        }
        self.is_code_new = true;
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
            if self.is_over(Some(&item), flow) {
                return false;
            }
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
        loop {
            self.note_code(flow);
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
                Some(Part::Event(event)) => Some(Item::Event(event)),
                Some(Part::Error(error)) => Some(Item::Error(error)),
                None => None,
            };
            if self.is_over(item.as_ref(), flow) {
                return false;
            }
            let is_end = item.is_none();
            if self.open.count > 0 {
                self.waiting = item;
                self.block();
            } else if let Some(signal) = self.next_signal(flow, is_end) {
                self.waiting = item;
                self.signal(flow, signal);
            } else if let Some(item) = item {
                self.item(flow, &item);
            } else {
                return false;
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
