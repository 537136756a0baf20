//! `cofi insn`: the executed instructions of a trace, in order.

use crate::Ended;
use crate::args::{InsnArgs, Show};
use crate::item::Loss;
use crate::notes::{self, NameWidth, Notes, Now, Views};
use crate::ordered::{self, Behind, End, Out, Queue, Segment, Sink, Written};
use crate::output::stdout;
use crate::progress::Printing;
use crate::select::{self, Found, Lines, Window};
use crate::table::width_of;
use crate::thread_tag::ThreadTag;
use crate::{input, item};
use anyhow::Result;
use cofi_analysis::{BlockTexts, FlowState, ended_with_segment};
use cofi_flow::{Event, Executed, Item, Part};
use cofi_image::{ImageView, LineFinder};
use cofi_packet::{Ip, StreamOffset};
use cofi_session::{Session, Signal, Signals, Stream, ThreadFlow};
use cofi_text::Line;
use console::Term;
use std::collections::HashMap;
use std::io::{self, Write};

/// Runs the command.
pub(crate) fn run(args: &InsnArgs) -> Result<Ended> {
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
        let (here, wrong) = if args.json {
            write::<true>(args, &window, (&session, stream), (&mut out, &progress))?
        } else {
            write::<false>(args, &window, (&session, stream), (&mut out, &progress))?
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

/// Writes the wanted part of a stream: whether there is one, and whether it holds errors.
fn write<const JSON: bool>(
    args: &InsnArgs,
    window: &Window,
    (session, stream): (&Session<'_>, &Stream<'_>),
    (out, progress): (&mut impl Write, &Printing),
) -> Result<(Found, bool)> {
    let names = NameWidth::of(width_of(&Term::stdout()), args.show.time);
    let begin = |start| Insns::<JSON> {
        session,
        stream,
        signals: stream.signals_from(start),
        waiting: None,
        who: ThreadTag::new(stream, &window.tids),
        show: args.show,
        names,
        notes: Notes::default(),
        sources: LineFinder::new(),
        line: Line::default(),
        text: Vec::new(),
        ip: None,
        errors: false,
        loss: Loss::default(),
    };
    if window.is_all() && !args.show.time {
        let mut out = Out { to: out, progress };
        let errors = write_whole(args, &|| begin(StreamOffset(0)), &mut out)?;
        return Ok((Found::default(), errors));
    }
    let (found, lines) = select::write(window, session, stream, begin, out)?;
    Ok((found, lines.errors))
}

/// Writes all of a stream, whose lines those of `begin` make: whether it holds errors.
fn write_whole<'s, const JSON: bool>(
    args: &InsnArgs,
    begin: &(impl Fn() -> Insns<'s, JSON> + Sync),
    out: &mut Out<'_, impl Write>,
) -> Result<bool> {
    let mut lines = begin();
    let (session, stream) = (lines.session, lines.stream);
    let worker = || {
        let (mut lines, mut blocks) = (begin(), Blocks::default());
        move |segment: &Segment, queue: &mut Queue<'_, FlowState>| {
            lines.segment(segment, &mut blocks, queue)
        }
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

/// The blocks that ran, as text, and their code.
#[derive(Default)]
struct Blocks<'s> {
    texts: BlockTexts,
    /// Numbers for code and, where lines have it, the thread that runs.
    codes: HashMap<(u32, Option<u32>), u32>,
    views: Views<'s>,
}

/// What comes first of a flow, behind what its beginning tells.
#[derive(Default)]
struct First {
    insns: Vec<Executed>,
    item: Option<Item>,
    is_end: bool,
}

impl First {
    fn of(part: Option<Part<'_>>) -> Self {
        let (mut insns, mut item) = (Vec::new(), None);
        let is_end = part.is_none();
        match part {
            Some(Part::Run(run)) => insns.extend(run.iter()),
            Some(Part::Event(event)) => item = Some(Item::Event(event)),
            Some(Part::Error(error)) => item = Some(Item::Error(error)),
            None => {}
        }
        Self {
            insns,
            item,
            is_end,
        }
    }
}

/// Makes a line of each item, as JSON or as text.
struct Insns<'s, const JSON: bool> {
    session: &'s Session<'s>,
    stream: &'s Stream<'s>,
    signals: Signals<'s>,
    /// What came behind a signal that was shown last.
    waiting: Option<Item>,
    who: ThreadTag<'s>,
    show: Show,
    names: NameWidth,
    notes: Notes,
    sources: LineFinder,
    line: Line,
    text: Vec<u8>,
    /// The instruction that the line is about.
    ip: Option<Ip>,
    errors: bool,
    loss: Loss,
}

impl<'s, const JSON: bool> Insns<'s, JSON> {
    /// Writes the lines of a segment.
    fn segment(
        &mut self,
        segment: &Segment,
        blocks: &mut Blocks<'s>,
        queue: &mut Queue<'_, FlowState>,
    ) -> io::Result<End<FlowState>> {
        self.begin(segment.range.start);
        let (session, stream) = (self.session, self.stream);
        let mut flow = session.decode_within(stream, segment.range.clone());
        let mut first = First::default();
        let mut state = FlowState::default();
        if !segment.is_first {
            (state, first) = FlowState::at_beginning(&mut flow, First::of);
            queue.begin(state)?;
        }
        let end = (!segment.is_last).then_some(segment.range.end);
        let is_certain = self.follow(&mut flow, first, &mut state, end, blocks, queue)?;
        Ok(End {
            state: is_certain.then_some(state),
            errors: self.errors,
        })
    }

    /// Writes all lines from a place on, at which a segment begins.
    fn rest(&mut self, start: StreamOffset, out: &mut impl Sink) -> io::Result<()> {
        self.begin(start);
        let mut flow = self
            .session
            .decode_within(self.stream, start..StreamOffset(u64::MAX));
        let mut first = First::default();
        let mut state = FlowState::default();
        if start.0 > 0 {
            (state, first) = FlowState::at_beginning(&mut flow, First::of);
        }
        let blocks = &mut Blocks::default();
        self.follow(&mut flow, first, &mut state, None, blocks, out)?;
        Ok(())
    }

    /// Begins with what comes from a place on.
    fn begin(&mut self, start: StreamOffset) {
        self.signals = self.stream.signals_from(start);
        self.waiting = None;
        self.notes.changed();
        self.errors = false;
        self.loss = Loss::default();
    }

    /// Writes what comes first and then the rest of a flow, of which each block is made into text once. With the `end` of a segment, only as
    /// far as it is certain from that alone; whether it is to its end.
    fn follow(
        &mut self,
        flow: &mut ThreadFlow<'s>,
        first: First,
        state: &mut FlowState,
        end: Option<StreamOffset>,
        blocks: &mut Blocks<'s>,
        out: &mut impl Sink,
    ) -> io::Result<bool> {
        let mut text = Vec::with_capacity(2 * FULL);
        let mut item = first.item;
        if !first.insns.is_empty() {
            let era = self.notes.era(flow);
            let view = blocks.views.of(era, flow);
            for insn in &first.insns {
                self.add_insn(era, insn, view, &mut text);
            }
        }
        loop {
            if item.is_none() && !first.is_end {
                state.note_code(flow);
                item = self.blocks(blocks, flow, &mut text, out)?;
            }
            if let Some(end) = end {
                let is_certain = match &item {
                    None => {
                        let before = StreamOffset(end.0.saturating_sub(1));
                        let is_here = ended_with_segment(self.stream, flow.offset(), end);
                        Some(is_here && state.is_on() && self.signals.before(before).is_none())
                    }
                    Some(Item::Error(_) | Item::Event(Event::Resync { .. })) => Some(false),
                    Some(_) => None,
                };
                if let Some(is_certain) = is_certain {
                    out.put(&mut text)?;
                    return Ok(is_certain);
                }
            }
            if let Some(Item::Event(event)) = &item {
                state.note(event);
            }
            let is_end = item.is_none();
            self.waiting = item.take();
            // Signals, and then what is waiting.
            while (is_end || self.waiting.is_some()) && self.next(flow) {
                if self.is_wanted() {
                    text.extend_from_slice(self.line());
                }
            }
            if is_end || text.len() >= FULL {
                out.reached(flow.offset());
                out.put(&mut text)?;
            }
            if is_end {
                return Ok(true);
            }
        }
    }

    /// Writes the blocks up to the next event or error, which is returned.
    fn blocks(
        &mut self,
        blocks: &mut Blocks<'s>,
        flow: &mut ThreadFlow<'s>,
        text: &mut Vec<u8>,
        out: &mut impl Sink,
    ) -> io::Result<Option<Item>> {
        let is_wanted = self.is_wanted();
        let era = self.notes.era(flow);
        let running = self.who.running().filter(|_| JSON);
        let next = blocks.codes.len() as u32;
        let number = *blocks.codes.entry((era, running)).or_insert(next);
        let view = blocks.views.of(era, flow);
        let texts = &mut blocks.texts;
        let mut code = None;
        let mut failed = None;
        let item = flow.blocks(|block| {
            if !is_wanted || failed.is_some() {
                return;
            }
            // The mode changes with an event only.
            let code = *code.get_or_insert_with(|| number << 2 | block.mode().bits() >> 5);
            if !texts.copy(code, block, text) {
                let start = text.len();
                block.for_each(|insn| self.add_insn(era, &insn, view, text));
                texts.add(&text[start..]);
            }
            if text.len() >= FULL {
                texts.trim();
                out.reached(block.offset());
                failed = out.put(text).err();
            }
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(item),
        }
    }

    /// Appends the line of an instruction.
    fn add_insn(
        &mut self,
        era: u32,
        insn: &Executed,
        view: &mut ImageView<'_>,
        text: &mut Vec<u8>,
    ) {
        let (show, sources, names) = (self.show, &mut self.sources, self.names);
        if !JSON {
            let line = self
                .notes
                .in_era(era, insn, || notes::text(view, insn, show, sources, names));
            text.extend_from_slice(line);
            return;
        }
        self.line.begin().hex("insn", insn.ip.0);
        if show.has_notes() {
            let members = self
                .notes
                .in_era(era, insn, || notes::members(view, insn, show, sources));
            self.line.splice(members);
        }
        self.who.tag(&mut self.line);
        text.extend_from_slice(self.line.end());
    }

    #[inline]
    fn json(&mut self, flow: &mut ThreadFlow<'_>, item: &Item) {
        item::describe(item, &mut self.line);
        let (show, sources) = (self.show, &mut self.sources);
        if let Item::Insn(insn) = item
            && show.has_notes()
        {
            let members = self
                .notes
                .of(flow, insn, |flow| notes::members(flow, insn, show, sources));
            self.line.splice(members);
        }
        if !matches!(item, Item::Insn(_)) {
            let place = || (flow.offset(), flow.time().map(|time| time.tsc));
            self.loss.note(item, place, Some(&mut self.line));
        }
        if show.time {
            Now::of(self.session, flow).members(self.session, &mut self.line);
            if let Some(jump) = flow.time_jump() {
                self.line.number("tsc_set_back_from", jump.from.0);
            }
        }
        self.who.tag(&mut self.line);
        self.line.end();
    }

    /// The line of a signal.
    fn signal(&mut self, flow: &mut ThreadFlow<'_>, signal: &Signal) {
        self.ip = None;
        if JSON {
            item::describe_signal(signal, &mut self.line);
            if self.show.time {
                Now::of(self.session, flow).members(self.session, &mut self.line);
            }
            self.who.tag(&mut self.line);
            self.line.end();
            return;
        }
        self.text.clear();
        if self.show.time {
            Now::of(self.session, flow).column(&mut self.text);
        }
        // Writing to memory does not fail.
        let _ = writeln!(self.text, "  -- {}", item::signal_sentence(signal));
    }

    fn words(&mut self, flow: &mut ThreadFlow<'_>, item: &Item, switched: bool) {
        let text = &mut self.text;
        text.clear();
        if switched {
            self.who.heading(self.session, text);
        }
        if self.show.time {
            if let Some(jump) = flow.time_jump() {
                // Writing to memory does not fail.
                let _ = writeln!(text, "  -- {jump}");
            }
            Now::of(self.session, flow).column(text);
        }
        let (show, sources, names) = (self.show, &mut self.sources, self.names);
        // Writing to memory does not fail.
        let _ = match item {
            Item::Insn(insn) => {
                let line = self.notes.of(flow, insn, |flow| {
                    notes::text(flow, insn, show, sources, names)
                });
                text.write_all(line)
            }
            Item::Event(event) => writeln!(text, "  -- {}", item::sentence(event)),
            Item::Error(error) => writeln!(text, "  !! {}", item::wrong(error)),
        };
    }
}

impl<const JSON: bool> Lines for Insns<'_, JSON> {
    fn errors(&mut self) -> &mut bool {
        &mut self.errors
    }

    fn has_time(&self) -> bool {
        self.show.time
    }

    #[inline]
    fn next(&mut self, flow: &mut ThreadFlow<'_>) -> bool {
        let item = match self.waiting.take() {
            Some(item) => Some(item),
            None => flow.next(),
        };
        let signal = match &item {
            Some(Item::Insn(_)) => None,
            Some(_) => self.signals.before(flow.offset()),
            None => self.signals.at_end(),
        };
        if let Some(signal) = signal {
            self.waiting = item;
            self.signal(flow, signal);
            return true;
        }
        let Some(item) = item else {
            return false;
        };
        let mut switched = false;
        self.ip = match item {
            Item::Insn(insn) => Some(insn.ip),
            _ => {
                self.errors |= matches!(item, Item::Error(_));
                self.notes.changed();
                switched = self.who.follow(flow);
                None
            }
        };
        if JSON {
            self.json(flow, &item);
        } else {
            self.words(flow, &item, switched);
        }
        true
    }

    #[inline]
    fn line(&self) -> &[u8] {
        if JSON { self.line.bytes() } else { &self.text }
    }

    fn instructions(&self) -> usize {
        self.ip.is_some().into()
    }

    fn holds(&self, ip: Ip) -> bool {
        self.ip == Some(ip)
    }

    #[inline]
    fn is_wanted(&self) -> bool {
        self.who.is_wanted()
    }
}
