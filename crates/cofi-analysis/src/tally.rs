//! Counts as the flow goes by.
//!
//! What runs is counted by blocks, which are few and repeat (see [`BlockTable`]). Classes and functions are worked out once for each
//! distinct run of instructions in them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;

use cofi_flow::{Event, Executed, FlowError, FlowErrorKind, Item, Part, Run};
use cofi_image::{ImageView, Version};
use cofi_packet::{ExecMode, Ip, StreamOffset, Tsc};
use cofi_session::{Session, Stream, Task, ThreadFlow};
use rustc_hash::FxHashMap;

use crate::block_table::{BlockTable, Era};
use crate::count::{Counts, Gaps, Times};
use crate::functions::Functions;
use crate::gap::{self, Gap, GapFinder};
use crate::parallel::in_order;
use crate::proof::Proof;
use crate::summary::{SpaceCount, Summary, ThreadSummary};

/// Counts what streams did.
#[derive(Debug, Default)]
pub struct Tally {
    threads: Vec<ThreadSummary>,
    functions: Functions,
    /// Instructions by page tables.
    spaces: BTreeMap<Option<u64>, u64>,
    trace_bytes: u64,
    proof: Proof,
}

impl Tally {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes a stream of `session` to its end and counts what it did.
    pub fn add(&mut self, session: &Session<'_>, stream: &Stream<'_>) {
        let mut flow = session.decode(stream);
        let mut counter = StreamCounter::new(GapFinder::new(session, stream));
        while counter.step(&mut flow, &mut self.functions) {}
        counter.tick(None, &mut flow);
        let mut proof = Proof::of(stream);
        proof.seals = flow.seals();
        self.proof.add(proof);
        let (spaces, threads) = counter.end(&mut flow, &mut self.functions);
        self.take(session, stream, stream.len() as u64, spaces, threads);
    }

    /// Adds streams of `session` in their order, several threads decoding one each. `progress` is called with the bytes decoded since it
    /// was called last.
    pub fn add_all(
        &mut self,
        session: &Session<'_>,
        streams: &[&Stream<'_>],
        threads: NonZeroUsize,
        progress: &(dyn Fn(u64) + Sync),
    ) {
        let one = |number: usize| {
            let stream = streams.get(number)?;
            let mut tally = Self::new();
            tally.add(session, stream);
            progress(stream.len() as u64);
            Some(tally)
        };
        in_order(streams.len(), threads, one, |tally| {
            if let Some(tally) = tally {
                self.merge(tally);
            }
        });
    }

    /// Decodes a part of a stream, from the packets at `start` on, and counts of it what `gate` lets in: it is asked of each piece
    /// of the flow, with the addresses of the instructions that it holds.
    pub fn add_part(
        &mut self,
        session: &Session<'_>,
        stream: &Stream<'_>,
        start: StreamOffset,
        mut gate: impl FnMut(&mut ThreadFlow<'_>, &[Ip]) -> Gate,
    ) {
        let mut flow = match start {
            StreamOffset(0) => session.decode(stream),
            start => session.decode_within(stream, start..StreamOffset(u64::MAX)),
        };
        let mut counter = StreamCounter::new(GapFinder::new(session, stream));
        let mut begin = None;
        let mut ips = Vec::new();
        loop {
            ips.clear();
            let place = counter.place(&mut flow);
            let piece = match flow.next_part() {
                None => break,
                Some(Part::Run(run)) => {
                    ips.extend(run.iter().map(|insn| insn.ip));
                    Piece::Run(Ran::of(&run))
                }
                Some(Part::Event(event)) => Piece::Event(event),
                Some(Part::Error(error)) => Piece::Error(error),
            };
            let is_last = match gate(&mut flow, &ips) {
                Gate::Outside => {
                    // Other code or another thread may be in place.
                    counter.leave(&mut flow);
                    continue;
                }
                Gate::End => break,
                Gate::Inside => false,
                Gate::Last => true,
            };
            if begin.is_none() {
                begin = Some(flow.offset());
                counter.enter(&mut flow);
            }
            match piece {
                Piece::Event(event) => counter.event(event, &mut flow),
                Piece::Error(error) => counter.error(error, &mut flow),
                Piece::Run(ran) => {
                    counter.run(place, &ran);
                    if counter.finder.is_open() {
                        counter.gaps(&gap::Step::Run(ran.ip, flow.offset()), &mut flow);
                    }
                }
            }
            if is_last {
                break;
            }
        }
        let end = flow.offset();
        let bytes = begin.map_or(0, |begin| end.0.saturating_sub(begin.0));
        if begin.is_some() {
            counter.tick(None, &mut flow);
        }
        let (spaces, mut threads) = counter.end(&mut flow, &mut self.functions);
        if begin.is_none() {
            threads.clear();
        }
        self.take(session, stream, bytes, spaces, threads);
    }

    /// Takes over what was counted of a stream.
    fn take(
        &mut self,
        session: &Session<'_>,
        stream: &Stream<'_>,
        mut bytes: u64,
        spaces: Spaces,
        threads: Vec<(Task, Counts, Gaps, Times)>,
    ) {
        self.trace_bytes += bytes;
        for (cr3, instructions) in spaces.list {
            if instructions > 0 {
                *self.spaces.entry(cr3).or_default() += instructions;
            }
        }
        for (task, counts, gaps, times) in threads {
            // A processor's stream belongs to all its threads and is counted once.
            let trace_bytes = std::mem::take(&mut bytes);
            let comm = session.comm_of(task.tid).map(str::to_owned);
            self.threads.push(ThreadSummary {
                stream: stream.key(),
                task,
                comm,
                counts,
                trace_bytes,
                times,
                gaps,
            });
        }
    }

    /// Puts what another tally counted to this one's.
    pub fn merge(&mut self, other: Tally) {
        self.proof.add(other.proof);
        self.threads.extend(other.threads);
        self.trace_bytes += other.trace_bytes;
        self.functions.merge(other.functions);
        for (cr3, instructions) in other.spaces {
            *self.spaces.entry(cr3).or_default() += instructions;
        }
    }

    /// What was counted.
    #[must_use]
    pub fn finish(self) -> Summary {
        let mut total = Counts::default();
        for thread in &self.threads {
            total += thread.counts;
        }
        let (functions, files) = self.functions.finish();
        let mut spaces: Vec<SpaceCount> = self
            .spaces
            .into_iter()
            .map(|(cr3, instructions)| SpaceCount { cr3, instructions })
            .collect();
        spaces.sort_by_key(|space| (Reverse(space.instructions), space.cr3));
        Summary {
            spaces,
            total,
            trace_bytes: self.trace_bytes,
            proof: self.proof,
            threads: self.threads,
            functions,
            files,
        }
    }
}

/// A run, as far as counting it goes.
struct Ran {
    ip: Ip,
    mode: ExecMode,
    /// The lengths of the instructions before the last.
    plain: Vec<u8>,
    last: Option<Executed>,
}

impl Ran {
    fn of(run: &Run<'_>) -> Self {
        Self {
            ip: run.ip(),
            mode: run.mode(),
            plain: run.plain().to_vec(),
            last: run.last(),
        }
    }

    fn len(&self) -> usize {
        self.plain.len() + usize::from(self.last.is_some())
    }
}

/// A piece of the flow that may have to be counted.
enum Piece {
    Run(Ran),
    Event(Event),
    Error(FlowError),
}

/// Whether a piece of the flow is counted by [`Tally::add_part`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It is not.
    Outside,
    /// It is.
    Inside,
    /// It is, and nothing behind it.
    Last,
    /// It is not, and nothing behind it.
    End,
}

/// A thread in a stream, with the code that was in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    task: Task,
    /// The address space, by where it is in memory: it outlives the count.
    space: usize,
    version: Version,
}

/// What numbers a place and a mode as the code of a block.
const fn era_of(place: u32, mode: ExecMode) -> Era {
    let mode = match mode {
        ExecMode::Bits16 => 0,
        ExecMode::Bits32 => 1,
        ExecMode::Bits64 => 2,
    };
    place << 2 | mode
}

/// The place and the mode that [`era_of`] numbered.
const fn place_of(era: Era) -> (u32, ExecMode) {
    let mode = match era & 3 {
        0 => ExecMode::Bits16,
        1 => ExecMode::Bits32,
        _ => ExecMode::Bits64,
    };
    (era >> 2, mode)
}

/// Instructions of one stream by page tables.
#[derive(Debug)]
struct Spaces {
    list: Vec<(Option<u64>, u64)>,
    numbers: FxHashMap<u64, usize>,
    /// The page tables in use.
    now: usize,
}

impl Spaces {
    /// Nothing tells of page tables before the first packet that does.
    fn new() -> Self {
        Self {
            list: vec![(None, 0)],
            numbers: FxHashMap::default(),
            now: 0,
        }
    }

    /// CR3 has got this value.
    fn switch_to(&mut self, cr3: u64) {
        // The lower bits are flags, or tell the processor which entries of its caches to use.
        let cr3 = cr3 & !0xfff;
        let next = self.list.len();
        self.now = *self.numbers.entry(cr3).or_insert(next);
        if self.now == next {
            self.list.push((Some(cr3), 0));
        }
    }

    fn count(&mut self, instructions: u64) {
        if let Some((_, count)) = self.list.get_mut(self.now) {
            *count += instructions;
        }
    }
}

/// Whether tracing is on after an event, if the event tells.
fn is_on_after(event: &Event) -> Option<bool> {
    match *event {
        Event::Enabled { .. } | Event::AsyncBranch { .. } => Some(true),
        Event::Disabled { .. } | Event::AsyncDisabled { .. } | Event::Stop => Some(false),
        Event::Overflow { ip } | Event::Resync { ip, .. } => Some(ip.is_some()),
        _ => None,
    }
}

struct StreamCounter<'s> {
    finder: GapFinder<'s>,
    spaces: Spaces,
    places: HashMap<Place, u32>,
    /// The thread of each place.
    owners: Vec<Task>,
    /// The code of the places in which the blocks of the table lie.
    views: FxHashMap<u32, ImageView<'s>>,
    /// The place; none if it may be another than before.
    place: Option<u32>,
    blocks: BlockTable,
    extra: HashMap<Task, (Counts, Gaps, Times)>,
    order: Vec<Task>,
    /// The thread that has been running since the time was taken last.
    running: Option<Task>,
    /// When the time was taken last, if tracing has been on since.
    on_since: Option<Tsc>,
    /// The core cycles by then.
    cycles: u64,
}

impl<'s> StreamCounter<'s> {
    /// The code of so many places is kept at hand.
    const VIEWS: usize = 1024;

    fn new(finder: GapFinder<'s>) -> Self {
        Self {
            finder,
            spaces: Spaces::new(),
            places: HashMap::new(),
            owners: Vec::new(),
            views: FxHashMap::default(),
            place: None,
            blocks: BlockTable::default(),
            extra: HashMap::new(),
            order: Vec::new(),
            running: None,
            on_since: None,
            cycles: 0,
        }
    }

    /// Counts all blocks up to the next event or error, and that too; `false` at the end of the stream.
    fn step(&mut self, flow: &mut ThreadFlow<'s>, functions: &mut Functions) -> bool {
        let place = self.place(flow);
        let blocks = &mut self.blocks;
        let (mut era, mut first) = (None, None);
        let mut instructions = 0;
        let item = flow.blocks(|block| {
            let (ip, len) = (block.ip(), block.len());
            instructions += len as u64;
            // The mode changes with an event only.
            let era = *era.get_or_insert_with(|| {
                first = Some((ip, block.offset()));
                era_of(place, block.mode())
            });
            blocks.count(era, ip, len as u32, |runs| {
                for run in block.runs() {
                    runs.push(run.ip(), run.plain(), run.last());
                }
            });
        });
        self.spaces.count(instructions);
        if let (true, Some((ip, offset))) = (self.finder.is_open(), first) {
            self.gaps(&gap::Step::Run(ip, offset), flow);
        }
        match item {
            Some(Item::Event(event)) => self.event(event, flow),
            Some(Item::Error(error)) => self.error(error, flow),
            // Blocks hold all instructions.
            Some(Item::Insn(_)) => {}
            None => return false,
        }
        if self.blocks.is_full() || self.views.len() >= Self::VIEWS {
            self.empty(functions);
        }
        true
    }

    /// The thread and the code that are in place.
    fn place(&mut self, flow: &mut ThreadFlow<'s>) -> u32 {
        match self.place {
            Some(place) => place,
            None => self.enter_place(flow),
        }
    }

    /// What comes is counted.
    fn enter(&mut self, flow: &mut ThreadFlow<'s>) {
        self.cycles = flow.cycles();
        self.running = Some(flow.task());
        self.tick(Some(true), flow);
    }

    /// What came is not counted.
    fn leave(&mut self, flow: &mut ThreadFlow<'s>) {
        self.place = None;
        self.blocks.forget();
        self.on_since = None;
        self.running = None;
        self.cycles = flow.cycles();
    }

    /// What was counted, by page tables and by threads.
    fn end(
        mut self,
        flow: &mut ThreadFlow<'s>,
        functions: &mut Functions,
    ) -> (Spaces, Vec<(Task, Counts, Gaps, Times)>) {
        if let Some(gap) = self.finder.take_open() {
            self.ended(gap);
        }
        if self.order.is_empty() && self.blocks.is_empty() {
            // A stream in which nothing ran is still a thread's.
            self.know(flow.task());
        }
        self.empty(functions);
        let mut extra = self.extra;
        let threads = self.order.into_iter().filter_map(|task| {
            let (counts, gaps, times) = extra.remove(&task)?;
            Some((task, counts, gaps, times))
        });
        (self.spaces, threads.collect())
    }

    /// Takes what the table of blocks has to the threads and functions.
    fn empty(&mut self, functions: &mut Functions) {
        let mut blocks = std::mem::take(&mut self.blocks);
        let views = std::mem::take(&mut self.views);
        let (mut runs, mut taken) = (Vec::new(), Vec::new());
        blocks.empty(
            |run| {
                let (place, mode) = place_of(run.era);
                let task = self.owners.get(place as usize);
                runs.push((task.copied(), run.lens.len() as u64, run.class, run.times));
                let at = |ip| views.get(&place)?.place(ip);
                for (function, instructions, entered) in functions.parts(run.ip, run.lens, mode, at)
                {
                    functions.count(
                        function,
                        u64::from(instructions) * run.times,
                        u64::from(entered) * run.times,
                    );
                }
            },
            |era, times| taken.push((self.owners.get(place_of(era).0 as usize).copied(), times)),
        );
        self.blocks = blocks;
        // The code in place is to be at hand again.
        self.place = None;
        for (task, len, class, times) in runs {
            if let Some(counts) = self.counts(task) {
                counts.instructions += len * times;
                if let Some(class) = class {
                    counts.add_class(class, times);
                }
            }
        }
        for (task, times) in taken {
            if let Some(counts) = self.counts(task) {
                counts.taken += times;
            }
        }
    }

    /// The counts of a thread.
    fn counts(&mut self, task: Option<Task>) -> Option<&mut Counts> {
        self.know(task?);
        self.extra.get_mut(&task?).map(|(counts, ..)| counts)
    }

    /// Takes the time, with tracing on or off from now on, if that is known anew.
    fn tick(&mut self, on: Option<bool>, flow: &mut ThreadFlow<'s>) {
        let now = flow.time().map(|time| time.tsc);
        let cycles = flow.cycles();
        let task = *self.running.get_or_insert_with(|| flow.task());
        if now.is_some() {
            self.know(task);
        }
        if let (Some(now), Some((_, _, times))) = (now, self.extra.get_mut(&task)) {
            times.first.get_or_insert(now);
            times.last = Some(now);
            times.cycles += cycles.saturating_sub(self.cycles);
            if let Some(since) = self.on_since {
                times.on_ticks += now.0.saturating_sub(since.0);
            }
            self.cycles = cycles;
        }
        self.on_since = now.filter(|_| on.unwrap_or(self.on_since.is_some()));
        self.running = Some(flow.task());
    }

    /// Tells the finder of gaps what came.
    fn gaps(&mut self, step: &gap::Step, flow: &mut ThreadFlow<'s>) {
        let mut ended = Vec::new();
        self.finder.step(step, flow, |gap| ended.push(gap));
        for gap in ended {
            self.ended(gap);
        }
    }

    fn ended(&mut self, gap: Gap) {
        self.know(gap.task);
        if let Some((_, gaps, _)) = self.extra.get_mut(&gap.task) {
            gaps.add(gap);
        }
    }

    /// Counts a run.
    fn run(&mut self, place: u32, run: &Ran) {
        let len = run.len();
        self.spaces.count(len as u64);
        let era = era_of(place, run.mode);
        self.blocks.count(era, run.ip, len as u32, |runs| {
            runs.push(run.ip, &run.plain, run.last);
        });
    }

    fn error(&mut self, error: FlowError, flow: &mut ThreadFlow<'s>) {
        // Behind a seal the flow was not lost.
        if !matches!(error.kind, FlowErrorKind::Seal { .. }) {
            self.blocks.forget();
            self.tick(Some(false), flow);
        }
        self.gaps(&gap::Step::Error(error), flow);
    }

    fn event(&mut self, event: Event, flow: &mut ThreadFlow<'s>) {
        self.gaps(&gap::Step::Event(event), flow);
        self.tick(is_on_after(&event), flow);
        match event {
            Event::AsyncBranch { from: at, .. } | Event::AsyncDisabled { at, .. } => {
                self.blocks.went_to(at);
                let mut bytes = [0; 2];
                // The code is still that which was in place before the event: no change takes effect here that
                // would not be at a later packet than this.
                let int_0x80 = flow.read_code(at, &mut bytes) == 2 && bytes == [0xcd, 0x80];
                let (counts, ..) = self.extra(flow);
                if int_0x80 {
                    counts.system_calls += 1;
                } else {
                    counts.interruptions += 1;
                }
            }
            Event::Overflow { .. } => self.blocks.forget(),
            Event::Paging { cr3, .. } => self.spaces.switch_to(cr3),
            // A branch out of what is traced was taken, or there would be no such event.
            Event::Disabled { .. } => self.blocks.left(),
            _ => {}
        }
        self.place = None;
    }

    /// Counts of the thread that runs now, beside those of runs.
    fn extra(&mut self, flow: &mut ThreadFlow<'s>) -> &mut (Counts, Gaps, Times) {
        let task = flow.task();
        self.know(task);
        self.extra.entry(task).or_default()
    }

    fn know(&mut self, task: Task) {
        self.extra.entry(task).or_insert_with(|| {
            self.order.push(task);
            Default::default()
        });
    }

    fn enter_place(&mut self, flow: &mut ThreadFlow<'s>) -> u32 {
        let task = flow.task();
        let view = flow.view();
        let place = Place {
            task,
            space: std::ptr::from_ref(view.space()).addr(),
            version: view.version(),
        };
        let next = self.owners.len() as u32;
        let number = *self.places.entry(place).or_insert(next);
        if number == next {
            self.owners.push(task);
        }
        self.views.entry(number).or_insert_with(|| view.clone());
        self.place = Some(number);
        number
    }
}
