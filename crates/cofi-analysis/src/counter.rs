//! Counts what a stream did as its flow goes by.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use cofi_flow::{Event, Executed, FlowError, FlowErrorKind, Item, Part, Run};
use cofi_image::{ImageView, Version};
use cofi_insn::advance;
use cofi_packet::intel::{Packet, Packets};
use cofi_packet::{ExecMode, Ip, StreamOffset};
use cofi_session::{Session, Task, ThreadFlow};
use rustc_hash::FxHashMap;

use crate::block_table::{BlockTable, Era};
use crate::coverage::{CodeRuns, EdgeStretch, Edges};
use crate::flow_state::FlowState;
use crate::functions::Functions;
use crate::gap::{self, Gap, GapFinder};
use crate::joined::Segment;
use crate::segments::ended_with_segment;
use crate::stretch::{LastBranch, StretchCount, TaskCount, Ticks};

/// A run, as far as counting it goes.
pub(crate) struct Ran {
    pub(crate) ip: Ip,
    mode: ExecMode,
    /// The lengths of the instructions before the last.
    plain: Vec<u8>,
    last: Option<Executed>,
}

/// Where control goes on behind instructions that do not end in a branch: interrupts and the ends of packets' stretches may stop them anywhere.
fn goes_on(ip: Ip, plain: &[u8], last: Option<Executed>, mode: ExecMode) -> Option<Ip> {
    match last {
        Some(last) if last.class.is_branch() => None,
        Some(last) => Some(advance(last.ip, last.len, mode)),
        None => Some(plain.iter().fold(ip, |ip, len| advance(ip, *len, mode))),
    }
}

impl Ran {
    pub(crate) fn of(run: &Run<'_>) -> Self {
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
pub(crate) enum Piece {
    Run(Ran),
    Event(Event),
    Error(FlowError),
}

impl Piece {
    pub(crate) fn of(part: &Part<'_>) -> Self {
        match part {
            Part::Run(run) => Self::Run(Ran::of(run)),
            Part::Event(event) => Self::Event(*event),
            Part::Error(error) => Self::Error(*error),
        }
    }
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

/// Whether tracing is on after an event, if the event tells.
fn is_on_after(event: &Event) -> Option<bool> {
    match *event {
        Event::Enabled { .. } | Event::AsyncBranch { .. } => Some(true),
        Event::Disabled { .. } | Event::AsyncDisabled { .. } | Event::Stop => Some(false),
        Event::Overflow { ip } | Event::Resync { ip, .. } => Some(ip.is_some()),
        _ => None,
    }
}

/// Counts what streams did, a stretch at a time. What was worked out about code is kept from one stretch to the next.
pub(crate) struct StreamCounter<'s> {
    session: &'s Session<'s>,
    functions: Functions,
    places: HashMap<Place, u32>,
    /// The thread of each place.
    owners: Vec<Task>,
    /// The code of the places in which the blocks of the table lie.
    views: FxHashMap<u32, ImageView<'s>>,
    blocks: BlockTable,
    /// The functions in which runs lie: where in `parts`.
    runs: FxHashMap<(Era, Ip, u32), Range<usize>>,
    parts: Vec<(usize, u32, bool)>,
    /// Where in their files runs lie, if instructions are counted each by itself.
    code: Option<CodeRuns>,
    /// The blocks between which steps are counted, if they are.
    edges: Option<Edges>,
}

/// A stretch that is being counted.
pub(crate) struct StretchCounter<'c, 's> {
    known: &'c mut StreamCounter<'s>,
    pub(crate) finder: GapFinder<'s>,
    /// The place; none if it may be another than before.
    place: Option<u32>,
    tasks: HashMap<Task, TaskCount>,
    order: Vec<Task>,
    /// The thread that has been running since the time was taken last.
    running: Option<Task>,
    /// The core cycles by when the time was taken last.
    cycles: u64,
    /// What is true of the flow; not of interest where nothing stands before the stretch or behind it.
    state: Option<FlowState>,
    end: StreamOffset,
    /// If instructions are counted each by itself: the conditional branch whose outcome the table of blocks waits for, and where it stands.
    last_branch: Option<((Era, Ip), cofi_image::Place)>,
    count: StretchCount,
}

impl<'s> StreamCounter<'s> {
    /// The code of so many places is kept at hand.
    const VIEWS: usize = 1024;
    /// So many places, and so many runs, are remembered from one stretch to the next.
    const PLACES: usize = 1 << 16;
    const RUNS: usize = 1 << 18;

    pub(crate) fn new(session: &'s Session<'s>) -> Self {
        Self {
            session,
            functions: Functions::with_stubs(),
            places: HashMap::new(),
            owners: Vec::new(),
            views: FxHashMap::default(),
            blocks: BlockTable::default(),
            runs: FxHashMap::default(),
            parts: Vec::new(),
            code: None,
            edges: None,
        }
    }

    /// Counts steps between blocks, too, of the files that are wanted, if any are.
    pub(crate) fn with_edges(mut self, is_wanted: Option<fn(&Path) -> bool>) -> Self {
        self.edges = is_wanted.map(Edges::new);
        self
    }

    /// Counts each instruction by itself, too, if that is wanted.
    pub(crate) fn with_code(mut self, is_wanted: bool) -> Self {
        self.code = is_wanted.then(CodeRuns::default);
        self
    }

    /// Begins with a stretch.
    pub(crate) fn begin(&mut self, segment: &Segment<'s, '_>) -> StretchCounter<'_, 's> {
        if self.owners.len() >= Self::PLACES {
            self.places.clear();
            self.owners.clear();
            self.forget_runs();
        }
        self.views.clear();
        self.blocks.begin();
        let is_whole = segment.is_first && segment.is_last;
        let edges = self.edges.as_ref().map(|_| EdgeStretch::default());
        StretchCounter {
            finder: GapFinder::new(self.session, segment.stream),
            known: self,
            place: None,
            tasks: HashMap::new(),
            order: Vec::new(),
            running: None,
            cycles: 0,
            state: (!is_whole).then(FlowState::default),
            end: segment.range.end,
            last_branch: None,
            count: StretchCount {
                is_clean: true,
                ticks: match segment.is_first {
                    true => Ticks::default(),
                    false => Ticks::behind(),
                },
                edges,
                ..StretchCount::default()
            },
        }
    }

    /// Decodes a segment and counts what ran; less, once `cancel` is set.
    pub(crate) fn count(
        &mut self,
        segment: &Segment<'s, '_>,
        cancel: Option<&AtomicBool>,
    ) -> StretchCount {
        let is_cancelled = || cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed));
        if is_cancelled() {
            return StretchCount::default();
        }
        let (session, stream) = (self.session, segment.stream);
        let mut flow = match segment.is_first && segment.is_last {
            true => session.decode(stream),
            false => session.decode_within(stream, segment.range.clone()),
        };
        let mut counter = self.begin(segment);
        let mut is_there = true;
        if !segment.is_first {
            let (state, first) =
                FlowState::at_beginning(&mut flow, |part| part.as_ref().map(Piece::of));
            counter.state = Some(state);
            counter.count.start = state;
            is_there = first.is_some();
            if let Some(first) = first {
                counter.piece(&first, &mut flow);
            }
        }
        while is_there && !is_cancelled() {
            is_there = counter.step(&mut flow);
        }
        if segment.is_last {
            counter.tick(None, &mut flow);
        }
        let mut count = counter.end(&mut flow);
        // What counts are the cycles up to the end, which is not just where the packet used last is: the PSB+ there has been read.
        let (end, last) = (segment.range.end, flow.offset());
        if !segment.is_last && last < end {
            count.cycles_left += cycles_in(stream.bytes(), last..end);
        } else if !segment.is_last {
            let beyond = cycles_in(stream.bytes(), end..last);
            count.cycles_left = count.cycles_left.saturating_sub(beyond);
        }
        count.seals = flow.seals();
        count.is_clean &= ended_with_segment(stream, last, end);
        count.is_of_one = count.tasks.iter().all(|(task, _)| *task == stream.task());
        count
    }

    fn forget_runs(&mut self) {
        self.runs.clear();
        self.parts.clear();
        if let Some(code) = &mut self.code {
            code.forget();
        }
        if let Some(edges) = &mut self.edges {
            edges.forget();
        }
    }
}

/// The core cycles that the packets in a range tell of.
fn cycles_in(bytes: &[u8], range: Range<StreamOffset>) -> u64 {
    Packets::starting_at(bytes, range.start)
        .flatten()
        .take_while(|located| located.offset < range.end)
        .map(|located| match located.packet() {
            Packet::Cyc { cycles } => cycles,
            _ => 0,
        })
        .sum()
}

impl<'s> StretchCounter<'_, 's> {
    /// Counts all blocks up to the next event or error, and that too; `false` at the end of the stream.
    fn step(&mut self, flow: &mut ThreadFlow<'s>) -> bool {
        let place = self.place(flow);
        if let Some(state) = &mut self.state {
            state.note_code(flow);
        }
        let StreamCounter {
            blocks,
            views,
            edges,
            ..
        } = &mut *self.known;
        let (mut era, mut first) = (None, None);
        let mut instructions = 0;
        let item = flow.paths(|path| {
            instructions += path.len() as u64;
            // The mode changes with an event only.
            let era = *era.get_or_insert_with(|| {
                let mut of_first = era_of(place, ExecMode::Bits64);
                path.for_each(|block| {
                    if first.is_none() {
                        first = Some((block.ip(), block.offset()));
                        of_first = era_of(place, block.mode());
                    }
                });
                of_first
            });
            let known = blocks.count_path(era, path);
            if let (Some(edges), Some(stretch)) = (&mut *edges, &mut self.count.edges) {
                let at = |ip| views.get(&place)?.place(ip);
                let runs = |take: &mut dyn FnMut(Ip, Option<Ip>)| {
                    path.for_each(|block| {
                        for run in block.runs() {
                            let next = goes_on(run.ip(), run.plain(), run.last(), run.mode());
                            take(run.ip(), next);
                        }
                    });
                };
                edges.path(era, known, runs, at, stretch);
            }
        });
        self.count.spaces.count(instructions);
        if let Some((ip, offset)) = first {
            self.known.blocks.enter(ip);
            if self.finder.is_open() {
                self.gaps(&gap::Step::Run(ip, offset), flow);
            }
        }
        match item {
            Some(Item::Event(event)) => self.event(event, flow),
            Some(Item::Error(error)) => self.error(error, flow),
            // Blocks hold all instructions.
            Some(Item::Insn(_)) => {}
            None => return false,
        }
        let is_full = self.known.blocks.is_full();
        if is_full || self.known.views.len() >= StreamCounter::VIEWS {
            self.empty();
        }
        true
    }

    /// Counts a piece, in the place that [`place`](Self::place) told before it came.
    pub(crate) fn piece(&mut self, piece: &Piece, flow: &mut ThreadFlow<'s>) {
        match piece {
            Piece::Event(event) => self.event(*event, flow),
            Piece::Error(error) => self.error(*error, flow),
            Piece::Run(ran) => {
                self.run(ran, flow);
                if self.finder.is_open() {
                    self.gaps(&gap::Step::Run(ran.ip, flow.offset()), flow);
                }
            }
        }
    }

    /// The thread and the code that are in place.
    pub(crate) fn place(&mut self, flow: &mut ThreadFlow<'s>) -> u32 {
        match self.place {
            Some(place) => place,
            None => self.enter_place(flow),
        }
    }

    /// What comes is counted.
    pub(crate) fn enter(&mut self, flow: &mut ThreadFlow<'s>) {
        self.cycles = flow.cycles();
        self.running = Some(flow.task());
        self.tick(Some(true), flow);
    }

    /// What came is not counted.
    pub(crate) fn leave(&mut self, flow: &mut ThreadFlow<'s>) {
        self.place = None;
        self.forget();
        self.count.ticks.forget();
        self.running = None;
        self.cycles = flow.cycles();
    }

    /// What was counted.
    pub(crate) fn end(mut self, flow: &mut ThreadFlow<'s>) -> StretchCount {
        if let Some(gap) = self.finder.take_open() {
            self.ended(gap);
            self.count.is_clean = false;
        }
        if self.order.is_empty() && self.known.blocks.is_empty() {
            // A stream in which nothing ran is still a thread's.
            self.know(flow.task());
        }
        self.empty();
        let mut count = self.count;
        let (entry, branch) = self.known.blocks.joints();
        count.entry = entry;
        count.branch = branch.map(|branch| LastBranch {
            not_taken: branch.not_taken,
            place: self.last_branch.map(|(_, place)| place),
        });
        count.cycles_left = flow.cycles().saturating_sub(self.cycles);
        count.functions = self.known.functions.take();
        count.end = self.state.unwrap_or_default();
        let mut tasks = self.tasks;
        let in_order = self.order.into_iter();
        count.tasks = in_order
            .filter_map(|task| Some((task, tasks.remove(&task)?)))
            .collect();
        count
    }

    /// Takes what the table of blocks has to the threads and functions.
    fn empty(&mut self) {
        let StreamCounter {
            functions,
            owners,
            views,
            blocks,
            runs,
            parts,
            code,
            edges,
            ..
        } = &mut *self.known;
        // The paths lose their numbers.
        if let (Some(edges), Some(stretch)) = (edges, &mut self.count.edges) {
            edges.settle(stretch);
        }
        let (mut ran, mut taken) = (Vec::new(), Vec::new());
        let mut branches = Vec::new();
        blocks.empty(
            |run| {
                let (place, mode) = place_of(run.era);
                if let Some(code) = code {
                    let at = |ip| views.get(&place)?.place(ip);
                    code.count(run, mode, at, &mut self.count.code);
                }
                let task = owners.get(place as usize);
                ran.push((task.copied(), run.lens.len() as u64, run.class, run.times));
                let key = (run.era, run.ip, run.lens.len() as u32);
                let known = runs.entry(key).or_insert_with(|| {
                    let at = |ip| views.get(&place)?.place(ip);
                    let first = parts.len();
                    parts.extend(functions.parts(run.ip, run.lens, mode, at));
                    first..parts.len()
                });
                for (function, instructions, entered) in
                    parts.get(known.clone()).into_iter().flatten()
                {
                    functions.count(
                        *function,
                        u64::from(*instructions) * run.times,
                        u64::from(*entered) * run.times,
                    );
                }
            },
            |era, ip, outcomes| {
                let place = place_of(era).0;
                taken.push((owners.get(place as usize).copied(), outcomes.taken));
                branches.push((era, ip, outcomes));
            },
        );
        if code.is_some() {
            // A branch may have waited for its outcome since the code of its place was at hand.
            let last = self.last_branch.take();
            let last = last.as_ref();
            let place = |era: Era, ip: Ip| match views.get(&place_of(era).0) {
                Some(view) => view.place(ip),
                None => Some(last.filter(|(at, _)| *at == (era, ip))?.1.clone()),
            };
            for (era, ip, outcomes) in branches {
                if let Some(place) = place(era, ip) {
                    self.count.code.add_outcomes(&place, outcomes);
                }
            }
            self.last_branch = blocks.joints().1.and_then(|branch| {
                let at = (branch.era, branch.ip);
                Some((at, place(branch.era, branch.ip)?))
            });
        }
        views.clear();
        if runs.len() >= StreamCounter::RUNS {
            self.known.forget_runs();
        }
        // The code in place is to be at hand again.
        self.place = None;
        for (task, len, class, times) in ran {
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
    fn counts(&mut self, task: Option<Task>) -> Option<&mut crate::count::Counts> {
        self.know(task?);
        self.tasks.get_mut(&task?).map(|task| &mut task.counts)
    }

    /// Takes the time, with tracing on or off from now on, if that is known anew.
    pub(crate) fn tick(&mut self, on: Option<bool>, flow: &mut ThreadFlow<'s>) {
        let now = flow.time().map(|time| time.tsc);
        let cycles = flow.cycles();
        let task = *self.running.get_or_insert_with(|| flow.task());
        if now.is_some() {
            self.know(task);
        }
        let ticks = self.count.ticks.take(now, on);
        if let (Some(now), Some(TaskCount { times, .. })) = (now, self.tasks.get_mut(&task)) {
            times.first.get_or_insert(now);
            times.last = Some(now);
            times.cycles += cycles.saturating_sub(self.cycles);
            times.on_ticks += ticks;
            self.cycles = cycles;
        }
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
        let resumed = gap.resumed.map(|resumed| resumed.offset);
        self.count.is_clean &=
            gap.offset < self.end && resumed.is_none_or(|resumed| resumed < self.end);
        if let Some(task) = self.tasks.get_mut(&gap.task) {
            task.gaps.add(gap);
        }
    }

    /// Where control went from the end of the last block is not known.
    fn forget(&mut self) {
        self.known.blocks.forget();
        if let Some(edges) = &mut self.count.edges {
            edges.forget();
        }
    }

    /// Counts a run.
    fn run(&mut self, run: &Ran, flow: &mut ThreadFlow<'s>) {
        let len = run.len();
        self.count.spaces.count(len as u64);
        let era = era_of(self.place(flow), run.mode);
        let StreamCounter {
            blocks,
            views,
            edges,
            ..
        } = &mut *self.known;
        if let (Some(edges), Some(stretch)) = (edges, &mut self.count.edges) {
            let at = |ip| views.get(&place_of(era).0)?.place(ip);
            let next = goes_on(run.ip, &run.plain, run.last, run.mode);
            edges.run(era, run.ip, next, at, stretch);
        }
        blocks.enter(run.ip);
        blocks.count(era, run.ip, len as u32, |runs| {
            runs.push(run.ip, &run.plain, run.last);
        });
    }

    fn error(&mut self, error: FlowError, flow: &mut ThreadFlow<'s>) {
        // Behind a seal the flow was not lost.
        if !matches!(error.kind, FlowErrorKind::Seal { .. }) {
            self.forget();
            self.tick(Some(false), flow);
        }
        self.gaps(&gap::Step::Error(error), flow);
    }

    fn event(&mut self, event: Event, flow: &mut ThreadFlow<'s>) {
        if let Some(state) = &mut self.state {
            state.note(&event);
        }
        self.gaps(&gap::Step::Event(event), flow);
        self.tick(is_on_after(&event), flow);
        match event {
            Event::AsyncBranch { from: at, .. } | Event::AsyncDisabled { at, .. } => {
                self.known.blocks.went_to(at);
                let mut bytes = [0; 2];
                // The code is still that which was in place before the event: no change takes effect here that
                // would not be at a later packet than this.
                let int_0x80 = flow.read_code(at, &mut bytes) == 2 && bytes == [0xcd, 0x80];
                let counts = &mut self.task(flow).counts;
                if int_0x80 {
                    counts.system_calls += 1;
                } else {
                    counts.interruptions += 1;
                }
            }
            Event::Overflow { .. } => self.forget(),
            Event::Paging { cr3, .. } => self.count.spaces.switch_to(cr3),
            // A branch out of what is traced was taken, or there would be no such event.
            Event::Disabled { .. } => self.known.blocks.left(),
            _ => {}
        }
        self.place = None;
    }

    /// What was counted of the thread that runs now.
    fn task(&mut self, flow: &mut ThreadFlow<'s>) -> &mut TaskCount {
        let task = flow.task();
        self.know(task);
        self.tasks.entry(task).or_default()
    }

    fn know(&mut self, task: Task) {
        self.tasks.entry(task).or_insert_with(|| {
            self.order.push(task);
            TaskCount::default()
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
        let next = self.known.owners.len() as u32;
        let number = *self.known.places.entry(place).or_insert(next);
        if number == next {
            self.known.owners.push(task);
        }
        self.known
            .views
            .entry(number)
            .or_insert_with(|| view.clone());
        self.place = Some(number);
        number
    }
}
