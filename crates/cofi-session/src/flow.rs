//! The flow of one stream.

use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use cofi_flow::{
    Block, CodeCache, CodeKey, Event, FlowConfig, FlowDecoder, FlowError, FlowErrorKind, Item,
    Part, Path, TimeJump, Visitor,
};
use cofi_image::{ImageView, Paging, Place};
use cofi_insn::CodeSource;
use cofi_packet::intel::{Packet, Packets};
use cofi_packet::{ExecMode, Ip, StreamOffset};
use cofi_perf::PerfTime;

use crate::Task;
use crate::clock::Clock;
use crate::parts::Parts;
use crate::seals::{SealCheck, SealCount};
use crate::session::Stream;
use crate::timeline::Cursor;

/// Whose code a trace is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Processes of a system, and its kernel. Guests of it may run between them.
    Processes,
    /// A machine, where CR3 says in which address space it runs.
    Machine,
    /// Guests of a system alone, of whose code nothing is known.
    Guests,
}

/// Whether a trace is of a host.
///
/// PIP packets tell whether a guest runs (33.4.2.6). A processor's trace begins in the host, and comes back there; so a file in which no
/// PIP is of the host was recorded within a guest, and what it tells of mappings is of that guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host<'s> {
    pub(crate) streams: &'s [Stream<'s>],
    pub(crate) known: &'s OnceLock<bool>,
}

impl Host<'_> {
    /// Whether any packet tells of the host. All streams are looked through, once.
    fn is_there(&self) -> bool {
        let is_host = |packet| matches!(packet, Packet::Pip { nr: false, .. });
        *self.known.get_or_init(|| {
            let mut streams = self.streams.iter();
            streams.any(|stream| {
                let mut packets = Packets::new(stream.bytes()).flatten();
                packets.any(|located| is_host(located.packet()))
            })
        })
    }
}

/// Decodes one stream, with the code that stood where it ran at that time.
///
/// An iterator over [`Item`]s; [`next_part`](Self::next_part) is the faster way to the same.
#[derive(Debug)]
pub struct ThreadFlow<'s> {
    decoder: FlowDecoder<'s, ImageView<'s>>,
    /// Where decoded code comes from, and goes to in the end.
    caches: &'s CodeCaches,
    context: Context<'s>,
    time: Option<Clock>,
    subject: Subject,
    host: Host<'s>,
    /// A guest is running, whose code is not known.
    in_guest: bool,
    /// That was told.
    told: bool,
    /// From which byte on code runs in another mode, where packets do not tell it.
    modes: &'s [(StreamOffset, ExecMode)],
}

impl Drop for ThreadFlow<'_> {
    fn drop(&mut self) {
        // One that was left in the middle of its work may have half-made parts, which nobody else is to use.
        if !std::thread::panicking() {
            self.caches.put(self.decoder.take_code_cache());
        }
    }
}

/// Decoded code that no flow of a session is using: the next one begins with some of it, whatever stream or part of one it is of.
///
/// There are as many as there were flows at a time.
#[derive(Debug, Default)]
pub(crate) struct CodeCaches(Mutex<Vec<CodeCache>>);

impl CodeCaches {
    fn take(&self) -> CodeCache {
        let mut caches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        caches.pop().unwrap_or_default()
    }

    fn put(&self, cache: CodeCache) {
        let mut caches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        caches.push(cache);
    }
}

/// Where a flow stands, apart from its decoder.
#[derive(Debug)]
struct Context<'s> {
    cursor: Cursor<'s>,
    /// An event was returned after which other code may be in place.
    unsettled: bool,
    /// The address space that the processor is in, as far as packets told.
    paging: Paging,
    /// They told something since the code was put in place.
    switched: bool,
    config: FlowConfig,
    parts: Parts<'s>,
    /// What comes before the range tells the time, too.
    is_timed: bool,
    /// The decoder of the part that comes next, at whose beginning something is missing.
    next: Option<FlowDecoder<'s, ImageView<'s>>>,
    seals: SealCheck<'s>,
    /// What comes behind a seal that does not match.
    behind: Option<Item>,
    /// How many errors and overflows were returned.
    gaps: u64,
    /// Where the range ends that is decoded.
    end: StreamOffset,
}

impl<'s> Context<'s> {
    /// What is to be returned in the place of an item of the decoder's that is no instruction, or of its end.
    fn tell(&mut self, item: Option<Item>) -> Option<Item> {
        self.unsettled = true;
        if let Some(Item::Event(event)) = &item {
            self.note(event);
        }
        let item = item
            .filter(|item| !self.is_end_of_part(item))
            .or_else(|| self.cross().map(Item::Error));
        match &item {
            // Of what ran behind the last packet no seal can be met.
            Some(Item::Error(error))
                if error.kind == FlowErrorKind::UnknownEnd && error.offset >= self.end =>
            {
                self.seals.lose_end(error.offset);
            }
            Some(Item::Error(error)) => self.seals.lose(error.offset),
            Some(Item::Event(Event::Overflow { .. })) => self.seals.lose_here(),
            Some(_) => {}
            None => self.seals.finish(self.end),
        }
        let item = match self.seals.take_broken() {
            // A seal comes before what was found behind it.
            Some(error) => {
                self.behind = item;
                Some(Item::Error(error))
            }
            None => item,
        };
        self.counted(item)
    }

    /// What is returned, when it was counted.
    fn counted(&mut self, item: Option<Item>) -> Option<Item> {
        if let Some(Item::Error(_) | Item::Event(Event::Overflow { .. })) = &item {
            self.gaps += 1;
        }
        item
    }

    /// What comes behind a seal that did not match: another one, or the item before which it was told.
    fn take_behind(&mut self) -> Option<Item> {
        let broken = self.seals.take_broken().map(Item::Error);
        let item = broken.or_else(|| self.behind.take());
        self.counted(item)
    }

    /// Notes what an event tells of the address space that the processor is in.
    fn note(&mut self, event: &Event) {
        match *event {
            Event::Paging { cr3, nr } => {
                (self.paging.cr3, self.paging.nr) = (Some(cr3), Some(nr));
            }
            Event::Vmcs { base } => self.paging.vmcs = Some(base),
            _ => return,
        }
        self.switched = true;
    }

    /// Whether an item reports just that packets end where something is missing: that is reported next.
    fn is_end_of_part(&self, item: &Item) -> bool {
        matches!(item, Item::Error(error)
            if error.kind == FlowErrorKind::UnknownEnd && self.parts.is_followed_at(error.offset))
    }

    /// Goes over to the next part of a stream; tells what is missing before it.
    fn cross(&mut self) -> Option<FlowError> {
        let part = self.parts.next()?;
        // What code is in place is settled before any is read.
        let decoder = FlowDecoder::new(part.bytes, self.cursor.nothing(), self.config);
        self.next = Some(decoder.within(part.range));
        self.cursor.assume(part.task);
        Some(part.missing)
    }
}

impl<'s> ThreadFlow<'s> {
    pub(crate) fn new(
        stream: &'s Stream<'_>,
        config: FlowConfig,
        cursor: Cursor<'s>,
        time: Option<Clock>,
        subject: Subject,
        host: Host<'s>,
        caches: &'s CodeCaches,
    ) -> Self {
        let decoder = FlowDecoder::new(&[], cursor.view(), config);
        let mut this = Self {
            decoder: decoder.with_code_cache(caches.take()),
            caches,
            context: Context {
                cursor,
                unsettled: false,
                paging: Paging::default(),
                switched: false,
                config,
                parts: Parts::new(&stream.pieces),
                is_timed: false,
                next: None,
                seals: SealCheck::new(&stream.seals),
                behind: None,
                gaps: 0,
                end: StreamOffset(stream.pieces.len() as u64),
            },
            time,
            subject,
            host,
            in_guest: subject == Subject::Guests,
            told: subject == Subject::Guests,
            modes: &stream.modes,
        };
        this.begin();
        this
    }

    /// Decodes only a part of the stream: see [`FlowDecoder::within`]. To be called before anything is decoded.
    ///
    /// What is missing at the very beginning of the range is told within it; what is missing at its end, in the next.
    #[must_use]
    pub fn within(mut self, range: Range<StreamOffset>) -> Self {
        self.context.seals.restrict(range.start);
        self.context.end = self.context.end.min(range.end);
        if self.context.parts.restrict(range) {
            // Told before anything else, as if the part before had just ended.
            self.go_on_with(FlowDecoder::new(&[], self.view_now(), self.context.config));
        } else {
            self.begin();
        }
        self
    }

    /// Decodes only what comes from `start` on, as [`Self::within`] does, and tells the time that the flow of the whole stream tells there: see
    /// [`FlowDecoder::with_time_from`]. To be called before anything is decoded.
    #[must_use]
    pub fn starting_at(mut self, start: StreamOffset) -> Self {
        self.context.is_timed = true;
        self.within(start..StreamOffset(u64::MAX))
    }

    /// Begins with the first part, before which nothing is missing.
    fn begin(&mut self) {
        let view = self.view_now();
        if let Some(part) = self.context.parts.next() {
            let decoder = FlowDecoder::new(part.bytes, view, self.context.config);
            let mut decoder = decoder.within(part.range);
            if self.context.is_timed {
                decoder = decoder.with_time_from(self.context.parts.begun());
            }
            self.go_on_with(decoder);
            self.context.cursor.assume(part.task);
            self.settle_mode();
        }
    }

    /// Another decoder goes on, with what was decoded so far.
    fn go_on_with(&mut self, decoder: FlowDecoder<'s, ImageView<'s>>) {
        let decoded = self.decoder.take_code_cache();
        self.decoder = decoder.with_code_cache(decoded);
        let key = CodeKey(self.decoder.code_mut().state());
        self.decoder.code_changed_to(key);
    }

    /// The code that is in place now.
    fn view_now(&self) -> ImageView<'s> {
        if self.in_guest {
            self.context.cursor.nothing()
        } else {
            self.context.cursor.view()
        }
    }

    /// The next piece of the flow: an event, an error, or as many instructions as stand and ran one after the other.
    pub fn next_part(&mut self) -> Option<Part<'_>> {
        if let Some(item) = self.context.take_behind() {
            return part_of(item);
        }
        self.sync_code();
        if self.in_guest {
            return self.next_of_guest().and_then(part_of);
        }
        let item = match self.decoder.next_part() {
            Some(Part::Run(run)) => {
                self.context.unsettled = false;
                self.context.seals.run(&run);
                return Some(Part::Run(run));
            }
            Some(Part::Event(event)) => Some(Item::Event(event)),
            Some(Part::Error(error)) => Some(Item::Error(error)),
            None => None,
        };
        part_of(self.context.tell(item)?)
    }

    /// Calls `visit` for each block that ran, up to the next event or error, which is returned: the fastest way through the flow.
    /// See [`FlowDecoder::blocks`].
    pub fn blocks(&mut self, mut visit: impl FnMut(&Block<'_>)) -> Option<Item> {
        self.paths(|path| path.for_each(&mut visit))
    }

    /// The same by several blocks at a time: see [`FlowDecoder::paths`].
    pub fn paths(&mut self, mut visit: impl FnMut(&Path<'_>)) -> Option<Item> {
        if let Some(item) = self.context.take_behind() {
            return Some(item);
        }
        self.sync_code();
        if self.in_guest {
            return self.next_of_guest();
        }
        let seals = &mut self.context.seals;
        let item = walk(&mut self.decoder, &mut |path| {
            seals.path(path);
            visit(path);
        });
        self.context.tell(item)
    }

    /// Goes through what is left of the flow, block by block: see [`FlowDecoder::visit`].
    pub fn visit(&mut self, visitor: &mut impl Visitor) {
        while let Some(item) = self.paths(|path| visitor.path(path)) {
            match item {
                Item::Insn(insn) => visitor.instruction(&insn),
                Item::Event(event) => visitor.event(&event, self.offset()),
                Item::Error(error) => visitor.error(&error),
            }
        }
    }

    /// What came of comparing what was decoded so far with the seals of the stream.
    #[must_use]
    pub fn seals(&self) -> SealCount {
        self.context.seals.count()
    }

    /// How many errors and overflows it has returned: places where something is missing, or does not fit.
    #[must_use]
    pub fn gaps(&self) -> u64 {
        self.context.gaps
    }

    /// The next item while a guest runs whose code is not known. That is said once; what follows from it is not.
    fn next_of_guest(&mut self) -> Option<Item> {
        while self.in_guest {
            self.context.unsettled = true;
            let item = match self.decoder.next() {
                None => return self.context.tell(None),
                Some(Item::Error(mut error)) if matches!(error.kind, FlowErrorKind::Code(_)) => {
                    if std::mem::replace(&mut self.told, true) {
                        continue;
                    }
                    error.kind = FlowErrorKind::GuestCode;
                    return self.context.counted(Some(Item::Error(error)));
                }
                Some(item) => item,
            };
            if let Item::Event(event) = &item {
                self.context.note(event);
            }
            return self.context.counted(Some(item));
        }
        None
    }

    /// Which thread the last item was about. Of a processor's stream, what is known of that at this place of it.
    pub fn task(&mut self) -> Task {
        self.sync_code();
        self.context.cursor.task()
    }

    /// The code that is in place now. Its [`ImageView::space`] and [`ImageView::version`] together tell whether two
    /// addresses mean the same code.
    pub fn view(&mut self) -> &ImageView<'s> {
        self.sync_code();
        self.decoder.code_mut()
    }

    /// Where in which file an instruction stands, now.
    pub fn place(&mut self, ip: Ip) -> Option<Place> {
        self.view().place(ip)
    }

    /// Reads code as it is now, as much of `buf` as there is at `ip`.
    pub fn read_code(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        self.sync_code();
        self.decoder.code_mut().read(ip, buf)
    }

    /// Where in the stream the last packet begins that was used for the items returned so far.
    #[must_use]
    pub fn offset(&self) -> StreamOffset {
        match &self.context.next {
            Some(_) => self.context.parts.begun(),
            None => self.decoder.offset(),
        }
    }

    /// The time stamp counter at the last item, as far as packets tell: see [`FlowDecoder::time`].
    ///
    /// None right behind an error that tells of something missing: when that was is not known.
    pub fn time(&mut self) -> Option<cofi_flow::Time> {
        match &self.context.next {
            Some(_) => None,
            None => self.decoder.time(),
        }
    }

    /// The core cycles that CYC packets have told of so far: see [`FlowDecoder::cycles`].
    #[must_use]
    pub fn cycles(&mut self) -> u64 {
        self.decoder.cycles()
    }

    /// Tells once of each time that the time stamp counter was set back: see [`FlowDecoder::time_jump`].
    pub fn time_jump(&mut self) -> Option<TimeJump> {
        self.decoder.time_jump()
    }

    /// The time of the last item on perf's clock, where the file says how to convert.
    pub fn perf_time(&mut self) -> Option<PerfTime> {
        match &self.context.next {
            Some(_) => None,
            None => now(&mut self.decoder, self.time),
        }
    }

    /// Puts the code in place that stood when the last event happened.
    fn sync_code(&mut self) {
        if !std::mem::take(&mut self.context.unsettled) {
            return;
        }
        let crossed = self.context.next.take().map(|next| {
            let decoded = self.decoder.take_code_cache();
            self.decoder = next.with_code_cache(decoded);
            // Whether a guest runs is not known any more; the PSB+ tells it before any code is needed.
            self.context.paging = Paging::default();
            self.context.switched = true;
        });
        self.settle_mode();
        let mut switched = crossed.is_some();
        if std::mem::take(&mut self.context.switched) {
            let is_machine = self.subject == Subject::Machine;
            switched |= self
                .context
                .cursor
                .switch_to(&self.context.paging, is_machine);
            if !is_machine {
                // Of a guest is known what the user says.
                let nr = self.context.paging.nr == Some(true);
                switched |= self.enter_guest(nr);
            }
        }
        if self.context.cursor.is_done() && !switched {
            return;
        }
        let (decoder, time) = (&mut self.decoder, self.time);
        let offset = decoder.offset();
        let mut now = || now(decoder, time);
        let timed: Option<&mut dyn FnMut() -> Option<PerfTime>> =
            if time.is_some() { Some(&mut now) } else { None };
        if !self.context.cursor.advance(offset, timed) && !switched {
            return;
        }
        let (in_guest, image) = (self.in_guest, self.context.cursor.image());
        let version = self.context.cursor.version();
        let view = self.decoder.code_mut();
        let changed = if !in_guest && std::ptr::eq(view.space(), image) {
            view.set_version(version)
        } else {
            let new = self.view_now();
            *self.decoder.code_mut() = new;
            true
        };
        if changed {
            let key = CodeKey(self.decoder.code_mut().state());
            self.decoder.code_changed_to(key);
        }
    }

    /// Tells the decoder the mode of the code that comes next.
    fn settle_mode(&mut self) {
        if self.modes.is_empty() {
            return;
        }
        let offset = self.decoder.offset();
        let count = self.modes.partition_point(|(from, _)| *from <= offset);
        let told = count.checked_sub(1).map(|index| self.modes[index].1);
        let mode = told.unwrap_or(self.context.config.initial_mode);
        self.decoder.assume_mode(mode);
    }

    /// A guest runs from now on, or does no longer. Whether that is another state.
    fn enter_guest(&mut self, nr: bool) -> bool {
        let before = self.in_guest;
        let is_guest = self.subject == Subject::Guests || nr && self.host.is_there();
        self.in_guest = is_guest && !self.context.cursor.is_told();
        // Of guests alone it was told before.
        self.told &= self.subject == Subject::Guests || self.in_guest && before;
        before != self.in_guest
    }
}

/// Is compiled with this crate, once, as it is not generic: the crate that counts or prints may be compiled for size.
fn walk(
    decoder: &mut FlowDecoder<'_, ImageView<'_>>,
    visit: &mut dyn FnMut(&Path<'_>),
) -> Option<Item> {
    decoder.paths_by(visit)
}

fn now(
    decoder: &mut FlowDecoder<'_, ImageView<'_>>,
    conversion: Option<Clock>,
) -> Option<PerfTime> {
    conversion?.time_of(decoder.time()?.tsc)
}

impl Iterator for ThreadFlow<'_> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        if let Some(item) = self.context.take_behind() {
            return Some(item);
        }
        self.sync_code();
        if self.in_guest {
            return self.next_of_guest();
        }
        match self.decoder.next() {
            Some(Item::Insn(insn)) => {
                self.context.unsettled = false;
                let offset = self.decoder.offset();
                self.context.seals.instruction(offset, &insn);
                Some(Item::Insn(insn))
            }
            item => self.context.tell(item),
        }
    }
}

/// An item that is no instruction, as a part.
fn part_of(item: Item) -> Option<Part<'static>> {
    match item {
        Item::Event(event) => Some(Part::Event(event)),
        Item::Error(error) => Some(Part::Error(error)),
        // Instructions come in runs.
        Item::Insn(_) => None,
    }
}
