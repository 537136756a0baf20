//! Takes the flow of a stream to the calls of its threads.

mod resume;

use std::collections::HashMap;

use cofi_flow::{Event, Executed, FlowConfig, FlowError, FlowErrorKind, Item, Part};
use cofi_image::{AddressSpace, CodeChange, ImageView, LandingPads, Version};
use cofi_packet::{ExecMode, Ip, StreamOffset};
use cofi_session::compact;
use cofi_session::{Session, Signals, Stream, Task, ThreadFlow};
use rustc_hash::FxHashMap;

use super::brief::BriefFrames;
use super::clock::StreamClock;
use super::inlines::Inlines;
use super::names::CallNames;
use super::parts::Numbers;
use super::ran::{Content, RanBlock, RanPath};
use super::saved::CallDictionary;
use super::shapes::Shapes;
use super::source::Stand;
use super::thread::{Around, Coming, Thread};
use super::tracks::{Slot, Stays, Tracks};
use super::{CallMoment, CallVisitor, Left, OpenCall};
use crate::block_index::BlockIndex;
use crate::flow_state::Beginning;
use crate::gap::GapCause;
use crate::tally::TallyGate;

/// Reconstructs the calls of a stream.
///
/// ```no_run
/// use cofi_analysis::{Call, CallEnd, CallNames, CallTracer, CallVisitor};
/// use cofi_session::{Session, SessionOptions};
///
/// struct Tree;
///
/// impl CallVisitor for Tree {
///     fn enter(&mut self, call: &Call, names: &CallNames) {
///         println!("{:1$}{2}", "", call.depth.max(0) as usize, names.describe(call.function));
///     }
///     fn leave(&mut self, _: &Call, _: &CallEnd, _: &CallNames) {}
/// }
///
/// let bytes = std::fs::read("cofi.data")?;
/// let session = Session::new(&bytes, &SessionOptions::beside("cofi.data"))?;
/// for stream in session.streams() {
///     let mut flow = session.decode(stream);
///     let mut tracer = CallTracer::new(&session, stream);
///     while tracer.follow(&mut flow, &mut Tree) {}
///     tracer.finish(&mut Tree);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CallTracer<'s> {
    pub(super) names: CallNames,
    pub(super) code: Code<'s>,
    stream: &'s Stream<'s>,
    config: FlowConfig,
    pub(super) clock: StreamClock<'s>,
    pub(super) pads: LandingPads,
    signals: Signals<'s>,
    /// The recorder tells of signals.
    tells_signals: bool,
    pub(super) is_processor: bool,
    /// The streams of a processor are about several threads.
    pub(super) threads: HashMap<Task, Thread>,
    pub(super) task: Task,
    pub(super) thread: Thread,
    pub(super) offset: StreamOffset,
    /// How many instructions ran, of all threads.
    pub(super) instructions: u64,
    /// The flow begins at a PSB, and what stands before was taken: what the PSB+ tells of tracing is nothing new.
    is_continued: bool,
    /// What that PSB+ tells.
    beginning: Option<Beginning>,
    /// The first error in the flow, and how many there were.
    pub(super) errors: Option<(FlowError, u64)>,
    /// What the numbers of those mean that have followed parts.
    pub(super) workers: Vec<Numbers>,
    /// Room for the lengths of a run's instructions.
    lens: Vec<u8>,
    /// Room for the calls that were told of in brief: none is there between items.
    brief: BriefFrames,
}

/// The code in place, and what was worked out of its blocks.
#[derive(Debug, Default)]
pub(super) struct Code<'s> {
    eras: HashMap<(usize, Version), u32>,
    /// The code in place, with its number; none if it may have changed.
    pub(super) now: Option<(u32, ImageView<'s>)>,
    pub(super) index: BlockIndex,
    /// How often the index was emptied.
    generation: u64,
    pub(super) shapes: Shapes,
    pub(super) tracks: Tracks,
    pub(super) inlines: Inlines,
    /// Inlined functions are wanted.
    pub(super) with_inlined: bool,
    /// Up to which version it was told of each address space, where code changed; of others, where one goes on from.
    told: FxHashMap<usize, Version>,
    since: Option<Version>,
    /// The address space and the version at hand when that was done last.
    last: (usize, Version),
}

impl<'s> Code<'s> {
    /// So many distinct blocks are remembered.
    const MOST: usize = 1 << 18;

    pub(super) fn settle(&mut self, flow: &mut ThreadFlow<'s>) {
        if self.now.is_none() {
            self.settle_in(flow.view());
        }
    }

    /// This code is in place.
    pub(super) fn settle_in(&mut self, view: &ImageView<'s>) {
        if self.index.len() >= Self::MOST || self.eras.len() >= Self::MOST {
            self.index.clear();
            self.generation += 1;
            self.shapes.clear();
            self.tracks.clear();
            self.eras.clear();
        }
        let era = (address_of(view.space()), view.version());
        let next = self.eras.len() as u32;
        let number = *self.eras.entry(era).or_insert(next);
        self.now = Some((number, view.clone()));
    }

    /// Where code changed since this was asked last, in the address spaces that were in place then.
    fn changes(&mut self) -> Vec<CodeChange> {
        let Some((_, view)) = &self.now else {
            return Vec::new();
        };
        let now = (address_of(view.space()), view.version());
        if now == self.last {
            return Vec::new();
        }
        self.last = now;
        let since = self.since.take().unwrap_or(now.1);
        let mut changes = Vec::new();
        for space in view.spaces() {
            // A flow that begins at a PSB may stand before what was told already.
            let known = self.told.entry(address_of(space)).or_insert(since);
            changes.extend(space.replaced(*known, now.1));
            *known = now.1.max(*known);
        }
        changes
    }

    /// What comes next has code of this version in place, or of a later one.
    fn go_on_from(&mut self, version: Version) {
        self.told.clear();
        self.since = Some(version);
        // The code at hand is looked at whichever was looked at last: that may have been of what comes now.
        self.last = (0, version);
    }
}

/// What tells address spaces apart.
fn address_of(space: &AddressSpace) -> usize {
    std::ptr::from_ref(space).addr()
}

/// Takes account of paths that do nothing to the stack.
#[inline]
fn pass(
    passed: Option<(u64, Slot, StreamOffset)>,
    tracks: &Tracks,
    thread: &mut Thread,
    offset: &mut StreamOffset,
) {
    if let Some((insns, slot, last)) = passed
        && let Some(track) = tracks.of_slot(&slot)
    {
        thread.pass(track, insns);
        *offset = track.offset(last);
    }
}

/// Numbers code of a mode.
pub(super) const fn era_of(era: u32, mode: ExecMode) -> u32 {
    era << 2 | mode.bits() >> 5
}

impl<'s> CallTracer<'s> {
    /// Nothing seen yet of a stream.
    #[must_use]
    pub fn new(session: &'s Session<'_>, stream: &'s Stream<'s>) -> Self {
        Self::starting_at(session, stream, StreamOffset(0))
    }

    /// The same, of a flow that begins at a PSB.
    #[must_use]
    pub fn starting_at(
        session: &'s Session<'_>,
        stream: &'s Stream<'s>,
        start: StreamOffset,
    ) -> Self {
        let config = session.flow_config();
        Self {
            names: CallNames::default(),
            code: Code::default(),
            stream,
            config,
            clock: StreamClock::new(stream.bytes(), start, &config),
            pads: LandingPads::new(),
            signals: stream.signals_from(start),
            tells_signals: session.recording().is_some(),
            is_processor: stream.key().cpu().is_some(),
            threads: HashMap::new(),
            task: stream.task(),
            thread: Thread::new(stream.task()),
            offset: start,
            instructions: 0,
            is_continued: false,
            beginning: None,
            errors: None,
            workers: Vec::new(),
            lens: Vec::new(),
            brief: BriefFrames::default(),
        }
    }

    /// With calls of the kind [`Inline`](super::CallKind::Inline), too, where DWARF tells of them.
    #[must_use]
    pub fn with_inlined(mut self) -> Self {
        self.code.with_inlined = true;
        self
    }

    /// The functions seen so far.
    #[must_use]
    pub const fn names(&self) -> &CallNames {
        &self.names
    }

    /// How many instructions ran so far, of all threads of the stream.
    #[must_use]
    pub const fn instructions(&self) -> u64 {
        self.instructions
    }

    /// The thread that runs, and how many instructions of it ran so far: moments of its calls count those.
    #[must_use]
    pub const fn running(&self) -> (Task, u64) {
        (self.task, self.thread.total)
    }

    /// All that numbers of functions mean, for a tracer of the same stream that goes on from one of the [states](super::CallStates) of this one.
    #[must_use]
    pub fn dictionary(&self) -> CallDictionary {
        CallDictionary::of(&self.names, &self.code.inlines)
    }

    /// As if it had seen the functions of a dictionary.
    #[must_use]
    pub fn with_dictionary(mut self, dictionary: CallDictionary) -> Self {
        (self.names, self.code.inlines) = dictionary.open();
        self
    }

    /// Whether there were errors in the flow.
    #[must_use]
    pub const fn has_errors(&self) -> bool {
        self.errors.is_some()
    }

    /// The first error in the flow, and how many there were.
    #[must_use]
    pub const fn errors(&self) -> Option<(FlowError, u64)> {
        self.errors
    }

    /// The calls that are open on the stack in use, outermost first.
    pub fn open_calls(&self) -> impl Iterator<Item = OpenCall> {
        self.thread.open()
    }

    /// The calls that are open on all stacks of all threads, those of a stack outermost first.
    pub fn all_open_calls(&self) -> impl Iterator<Item = OpenCall> {
        let all = self.threads.values().chain([&self.thread]);
        all.flat_map(Thread::all_open)
    }

    /// Nothing more will come that could tell on which of several stacks control is: it is taken to be on the one that waited for longest, so that
    /// [`open_calls`](Self::open_calls) has its calls.
    pub fn decide(&mut self, visitor: &mut dyn CallVisitor) {
        let (thread, mut around) = self.with_thread(visitor);
        thread.decide(&mut around);
    }

    /// Nothing more will come that could tell whether the innermost call is a stub's: it is taken for a call, and told of if it was not.
    pub fn tell_innermost(&mut self, visitor: &mut dyn CallVisitor) {
        let (thread, mut around) = self.with_thread(visitor);
        thread.tell_stub(&mut around);
    }

    /// The thread that runs, and what is around it where the tracer stands.
    fn with_thread<'a>(
        &'a mut self,
        visitor: &'a mut (dyn CallVisitor + 'a),
    ) -> (&'a mut Thread, Around<'a, 's, dyn CallVisitor + 'a>) {
        let around = Around {
            visitor,
            clock: &mut self.clock,
            names: &self.names,
            pads: &mut self.pads,
            view: self.code.now.as_ref().map(|(_, view)| view),
            offset: self.offset,
        };
        (&mut self.thread, around)
    }

    /// Whether it is not known yet on which of several stacks control is.
    #[must_use]
    pub const fn is_undecided(&self) -> bool {
        self.thread.undecided.is_some()
    }

    /// How many calls around these were taken to be left because there were so many.
    #[must_use]
    pub const fn forgotten_calls(&self) -> u64 {
        self.thread.stack.forgotten
    }

    /// The instruction that ran last, or that the last block began with.
    #[must_use]
    pub const fn last_instruction(&self) -> Option<Ip> {
        self.thread.last_ip()
    }

    /// The functions seen, when all is done.
    #[must_use]
    pub fn into_names(self) -> CallNames {
        self.names
    }

    /// As [`follow`](Self::follow) does, which is compiled once for all visitors that are called through a pointer.
    pub fn follow_dyn(&mut self, flow: &mut ThreadFlow<'s>, visitor: &mut dyn CallVisitor) -> bool {
        self.follow(flow, visitor)
    }

    /// Takes all blocks up to the next event or error, and that; `false` at the end of the flow. It is compiled for each type of visitor, so
    /// that those who look at every call are told in place; [`follow_dyn`](Self::follow_dyn) is much less code.
    pub fn follow(
        &mut self,
        flow: &mut ThreadFlow<'s>,
        visitor: &mut (impl CallVisitor + ?Sized),
    ) -> bool {
        self.code.settle(flow);
        self.tell_changes(visitor);
        self.arrive(visitor);
        let before = self.thread.total;
        let Self {
            names,
            code,
            clock,
            pads,
            thread,
            offset,
            brief,
            ..
        } = self;
        let Code {
            now,
            index,
            shapes,
            tracks,
            generation,
            inlines,
            with_inlined,
            ..
        } = code;
        let Some((era, view)) = now else {
            return false;
        };
        let wants_blocks = visitor.wants_blocks();
        let takes_brief = visitor.takes_brief() && !wants_blocks;
        let mut code_number = None;
        // Paths that do nothing to the stack are taken account of together: how many instructions they have, and the last one.
        let mut stays = Stays::after(&thread.coming);
        let mut chain = thread.chain(brief);
        let mut passed: Option<(u64, Slot, StreamOffset)> = None;
        let item = flow.paths(|path| {
            // The mode changes with an event only.
            let code = *code_number.get_or_insert_with(|| era_of(*era, path.mode()));
            let (path_number, last) = (path.number(), path.offset());
            if !wants_blocks
                && let Some(number) = path_number
                && let Some(slot) = tracks.slot(code, number)
                && slot.passes(stays, chain)
            {
                let before = passed.map_or(0, |(insns, ..)| insns);
                passed = Some((before + u64::from(slot.insns), *slot, last));
                stays = slot.end;
                return;
            }
            pass(passed.take(), tracks, thread, offset);
            let paths = tracks.generation();
            let known = path_number.and_then(|number| tracks.get(code, number));
            let is_known = known.is_some();
            if let Some((number, known)) = known
                && (!wants_blocks
                    || visitor.ran_path(&RanPath {
                        number,
                        generation: paths,
                        len: known.track.insns as usize,
                    }))
            {
                let mut around = Around {
                    visitor: &mut *visitor,
                    clock,
                    names,
                    pads,
                    view: Some(view),
                    offset: *offset,
                };
                if takes_brief {
                    thread.path_briefly(known, last, inlines, brief, &mut around);
                } else {
                    thread.path(known, last, inlines, &mut around);
                }
                *offset = known.track.offset(last);
                stays = Stays::after(&thread.coming);
                chain = thread.chain(brief);
                return;
            }
            let mut around = Around {
                visitor: &mut *visitor,
                clock,
                names,
                pads,
                view: Some(view),
                offset: *offset,
            };
            thread.settle(brief, &mut around);
            if !is_known {
                tracks.begin(last);
            }
            path.for_each(|block| {
                let (ip, len) = (block.ip(), block.len());
                let number = index.number(code, ip, len as u32, || {
                    let inlines = with_inlined.then_some(&mut *inlines);
                    shapes.push_block(block, names, view, inlines)
                });
                let Some((shape, hops)) = shapes.get(number) else {
                    return;
                };
                if wants_blocks {
                    visitor.ran(&RanBlock {
                        number,
                        generation: *generation,
                        view,
                        content: Content::Block(block),
                    });
                }
                let mut around = Around {
                    visitor: &mut *visitor,
                    clock,
                    names,
                    pads,
                    view: Some(view),
                    offset: *offset,
                };
                let spans = with_inlined.then(|| (shapes.spans(shape), &*inlines));
                thread.block(shape, hops, spans, &mut around);
                // A piece that ends before anything is decided, or with a direct branch, may be told by a packet that leads on from behind it.
                if path_number.is_some() || shape.is_decided() {
                    *offset = block.offset();
                }
                if !is_known {
                    tracks.note(shape, hops, shapes.spans(shape), *offset, names);
                }
            });
            let number = match is_known {
                true => None,
                false => tracks.end(code, path_number),
            };
            if wants_blocks {
                visitor.path_ended(number, tracks.generation());
            }
            stays = Stays::after(&thread.coming);
            chain = thread.chain(brief);
        });
        pass(passed, tracks, thread, offset);
        let mut around = Around {
            visitor: &mut *visitor,
            clock,
            names,
            pads,
            view: Some(view),
            offset: *offset,
        };
        thread.settle(brief, &mut around);
        let ran = self.thread.total - before;
        self.instructions += ran;
        // Behind the PSB+ it is another event that says so.
        if ran > 0 {
            self.continue_from(false);
        }
        if item.is_some() && self.code.index.len() >= Code::MOST {
            self.code.now = None;
        }
        match item {
            Some(item) => {
                let stand = Stand::of(flow, self.is_processor);
                self.item(&item, stand, visitor);
                true
            }
            None => {
                self.arrive_at_end(visitor);
                false
            }
        }
    }

    /// Tells where code changed since something ran last.
    pub(super) fn tell_changes(&mut self, visitor: &mut (impl CallVisitor + ?Sized)) {
        let changes = self.code.changes();
        // What happens before anything ran changes nothing that did.
        if changes.is_empty() || self.instructions == 0 {
            return;
        }
        let (tsc, cycles) = self.clock.at(self.offset);
        let insns = self.thread.total;
        let moment = CallMoment { tsc, cycles, insns };
        for change in &changes {
            visitor.code_changed(change, &moment, self.offset);
        }
    }

    /// The version of the code that was in place last.
    pub(super) const fn version(&self) -> Version {
        self.code.last.1
    }

    /// Takes account of how control came to where tracing went off for the last time.
    pub(super) fn arrive_at_end(&mut self, visitor: &mut (impl CallVisitor + ?Sized)) {
        self.thread.struck_at = self.thread.off_at.take();
        self.arrive(visitor);
    }

    /// Takes the next piece of the flow if `gate` lets it in, which is asked with the instructions among those `wanted` that the piece
    /// holds. What the gate said; none at the end of the flow.
    pub fn step(
        &mut self,
        flow: &mut ThreadFlow<'s>,
        wanted: &[Ip],
        gate: &mut dyn FnMut(&mut ThreadFlow<'s>, &[Ip]) -> TallyGate,
        visitor: &mut dyn CallVisitor,
    ) -> Option<TallyGate> {
        self.code.settle(flow);
        self.tell_changes(visitor);
        self.arrive(visitor);
        let (mut hits, mut ips) = (Vec::new(), Vec::new());
        let mut lens = std::mem::take(&mut self.lens);
        lens.clear();
        let Some(part) = flow.next_part() else {
            self.arrive_at_end(visitor);
            return None;
        };
        let piece = match part {
            Part::Event(event) => Err(Item::Event(event)),
            Part::Error(error) => Err(Item::Error(error)),
            Part::Run(run) => {
                let holds = |ip: &&Ip| run.iter().any(|insn| insn.ip == **ip);
                hits.extend(wanted.iter().filter(holds));
                lens.extend(run.iter().map(|insn| insn.len));
                if self.code.with_inlined {
                    ips.extend(run.iter().map(|insn| insn.ip));
                }
                Ok((run.ip(), run.mode(), run.len(), run.last(), run.offset()))
            }
        };
        let said = gate(flow, &hits);
        match (&piece, said) {
            // What is open where the part begins began then, as far as the part knows.
            (Ok((.., offset)), TallyGate::Outside | TallyGate::End) => self.offset = *offset,
            (Err(_), TallyGate::Outside | TallyGate::End) => self.code.now = None,
            (Ok(run), TallyGate::Inside | TallyGate::Last) => self.run(*run, &lens, ips, visitor),
            (Err(item), TallyGate::Inside | TallyGate::Last) => {
                let stand = Stand::of(flow, self.is_processor);
                self.item(item, stand, visitor);
            }
        }
        self.lens = lens;
        Some(said)
    }

    /// Takes a run: its first address, its mode, how many instructions it has, the last one if it is of a class, and its packet; the lengths
    /// of its instructions; and, if inlined functions are wanted, their addresses.
    fn run(
        &mut self,
        (ip, mode, len, last, offset): (Ip, ExecMode, usize, Option<Executed>, StreamOffset),
        lens: &[u8],
        ips: Vec<Ip>,
        visitor: &mut (impl CallVisitor + ?Sized),
    ) {
        let Code {
            now,
            index,
            shapes,
            tracks,
            generation,
            inlines,
            with_inlined,
            ..
        } = &mut self.code;
        let Some((era, view)) = now else {
            return;
        };
        let names = &mut self.names;
        let number = index.number(era_of(*era, mode), ip, len as u32, || {
            let runs = std::iter::once((ip, len, last));
            let inlines = with_inlined.then_some(&mut *inlines);
            shapes.push(names, view, inlines, runs, ips.into_iter())
        });
        let Some((shape, hops)) = shapes.get(number) else {
            return;
        };
        visitor.ran(&RanBlock {
            number,
            generation: *generation,
            view,
            content: Content::Run(ip, mode, lens),
        });
        visitor.path_ended(None, tracks.generation());
        let mut around = Around {
            visitor,
            clock: &mut self.clock,
            names: &self.names,
            pads: &mut self.pads,
            view: Some(view),
            offset: self.offset,
        };
        let spans = with_inlined.then(|| (shapes.spans(shape), &*inlines));
        let before = self.thread.total;
        self.thread.block(shape, hops, spans, &mut around);
        self.instructions += self.thread.total - before;
        self.continue_from(false);
        self.offset = offset;
    }

    /// Takes an event or error, behind which the flow stands there.
    pub(super) fn item(
        &mut self,
        item: &Item,
        stand: Stand,
        visitor: &mut (impl CallVisitor + ?Sized),
    ) {
        // What a PSB+ tells is nothing new, and leads nowhere.
        let is_of_psb = match (item, &mut self.beginning) {
            (Item::Event(event), Some(beginning)) => beginning.holds(event, stand.offset),
            _ => false,
        };
        if !is_of_psb {
            self.beginning = None;
            self.offset = self.offset.max(stand.offset);
        }
        self.code.now = None;
        if let Some(task) = stand.task {
            self.follow_task(task);
        }
        match item {
            Item::Insn(_) => {}
            Item::Error(error) => self.error(error, visitor),
            Item::Event(event) => {
                let (tsc, cycles) = self.clock.at(self.offset);
                let insns = self.thread.total;
                let moment = CallMoment { tsc, cycles, insns };
                let by = self.thread.last().map(|last| last.class);
                if !(self.is_continued && matches!(event, Event::Enabled { .. })) {
                    visitor.event(event, &moment, self.offset, by);
                }
                self.event(event, stand.settled, visitor);
            }
        }
    }

    /// Before a block: takes account of how control came to an instruction before which something else happened, now that the code which is
    /// in place then is known.
    pub(super) fn arrive(&mut self, visitor: &mut (impl CallVisitor + ?Sized)) {
        let Some((coming, ip)) = self.thread.struck_at.take() else {
            return;
        };
        let Some((_, view)) = &self.code.now else {
            return;
        };
        let at = self.names.at(view, ip);
        let mut around = Around {
            visitor,
            clock: &mut self.clock,
            names: &self.names,
            pads: &mut self.pads,
            view: Some(view),
            offset: self.offset,
        };
        self.thread.arrive(coming, ip, at, &mut around);
    }

    fn error(&mut self, error: &FlowError, visitor: &mut (impl CallVisitor + ?Sized)) {
        self.errors.get_or_insert((*error, 0)).1 += 1;
        visitor.lost(GapCause::Error(error.kind), self.offset);
        match error.kind {
            // The flow was not lost.
            FlowErrorKind::Seal { .. } => {}
            FlowErrorKind::UnknownEnd => self.thread.coming = Coming::Ending,
            _ => self.leave_all(Left::Gap, visitor),
        }
    }

    fn event(
        &mut self,
        event: &Event,
        offset: StreamOffset,
        visitor: &mut (impl CallVisitor + ?Sized),
    ) {
        let last = self.thread.last();
        match *event {
            Event::Enabled { .. } if self.is_continued => self.is_continued = false,
            Event::Overflow { .. } => {
                visitor.lost(GapCause::Overflow, self.offset);
                self.leave_all(Left::Gap, visitor);
            }
            Event::Disabled { ip } => {
                self.thread.coming = Coming::Back {
                    by: last,
                    went: ip,
                    expected: last.map(|last| last.after),
                    signals: None,
                };
            }
            Event::Stop => {
                self.thread.coming = Coming::Back {
                    by: last,
                    went: None,
                    expected: last.map(|last| last.after),
                    signals: None,
                };
            }
            Event::AsyncDisabled { at, .. } => {
                self.thread.off_at = Some((self.thread.coming, at));
                self.thread.coming = Coming::Back {
                    by: None,
                    went: None,
                    expected: Some(at),
                    signals: None,
                };
            }
            Event::Enabled { ip, .. } => {
                self.take_signals(offset);
                let told = self.tells_signals.then_some(self.thread.signals);
                if let Some((coming, at)) = self.thread.off_at.take() {
                    if at == ip {
                        // The thread noticed nothing.
                        self.thread.coming = coming;
                        return;
                    }
                    self.thread.struck_at = Some((coming, at));
                }
                match &mut self.thread.coming {
                    // Tracing was off for a moment, of which the thread noticed nothing.
                    Coming::Back {
                        by: Some(by),
                        went: Some(went),
                        ..
                    } if *went == ip => self.thread.coming = Coming::By(*by),
                    Coming::Back { signals, .. } => *signals = told,
                    Coming::Anew | Coming::Ending => {}
                    // A range of a stream begins so.
                    other => *other = Coming::Straight,
                }
            }
            Event::AsyncBranch { from, .. } => {
                self.thread.struck_at = Some((self.thread.coming, from));
                self.thread.coming = Coming::Struck(from);
            }
            _ => {}
        }
    }

    /// Takes note of signals that came by `offset` and are handled.
    fn take_signals(&mut self, offset: StreamOffset) {
        while let Some(signal) = self.signals.before(offset) {
            self.thread.signals += u64::from(!signal.is_fatal);
        }
    }

    /// In a processor's stream, another thread may run.
    fn follow_task(&mut self, task: Task) {
        if task == self.task {
            return;
        }
        let next = self.threads.remove(&task);
        let mut next = next.unwrap_or_else(|| Thread::new(task));
        next.was_away = true;
        next.of_others = self.instructions - next.total;
        let before = std::mem::replace(&mut self.thread, next);
        self.threads.insert(self.task, before);
        self.task = task;
    }

    fn leave_all(&mut self, left: Left, visitor: &mut (impl CallVisitor + ?Sized)) {
        let mut around = Around {
            visitor,
            clock: &mut self.clock,
            names: &self.names,
            pads: &mut self.pads,
            view: None,
            offset: self.offset,
        };
        self.thread.leave_all(left, &mut around);
    }

    /// The flow has ended.
    pub fn finish(&mut self, visitor: &mut dyn CallVisitor) {
        self.leave_all(Left::End, visitor);
        let mut threads: Vec<(Task, Thread)> = self.threads.drain().collect();
        compact::sort_by_key(&mut threads, |(task, _)| *task);
        for (_, thread) in threads {
            self.thread = thread;
            self.leave_all(Left::End, visitor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofi_image::CodeFile;

    /// Whoever goes back to before a change is told of it again, although the code that comes next is what was looked at last.
    #[test]
    fn a_change_is_told_again_behind_a_place_gone_back_to() {
        let mut space = AddressSpace::new();
        for version in [1, 2] {
            let file = CodeFile::from_bytes("code", vec![0x90; 64]);
            space.map(0x1000, 64, &file, 0, Version(version));
        }
        let (before, behind) = (
            ImageView::new(&space, Version(1)),
            ImageView::new(&space, Version(2)),
        );
        let mut code = Code::default();
        code.settle_in(&before);
        assert!(code.changes().is_empty());
        for _ in 0..3 {
            code.settle_in(&behind);
            assert_eq!(code.changes().len(), 1);
            assert!(code.changes().is_empty());
            code.go_on_from(Version(1));
        }
    }
}
