//! Counts as the flow goes by.
//!
//! What runs is counted by runs of consecutive instructions, which are few and repeat: each costs one look into a
//! table. Classes and functions are worked out once for each distinct run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use cofi_flow::{Event, Executed, FlowError, FlowErrorKind, Part, Run};
use cofi_image::Version;
use cofi_insn::{Class, advance};
use cofi_packet::{ExecMode, Ip, StreamOffset, Tsc};
use cofi_session::{Session, Stream, Task, ThreadFlow};
use rustc_hash::FxHashMap;

use crate::count::{Counts, Gaps, Times};
use crate::functions::Functions;
use crate::gap::{self, Gap, GapFinder};
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
        let mut counter = StreamCounter::new(&mut self.functions, GapFinder::new(session, stream));
        // The piece borrows the decoder, so that what needs both is done in two steps.
        while let Some(step) = counter.step(&mut flow) {
            counter.follow(step, &mut flow);
        }
        counter.tick(None, &mut flow);
        let mut proof = Proof::of(stream);
        proof.seals = flow.seals();
        self.proof.add(proof);
        let (spaces, threads) = counter.end(&mut flow);
        self.take(session, stream, stream.len() as u64, spaces, threads);
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
        let mut counter = StreamCounter::new(&mut self.functions, GapFinder::new(session, stream));
        let mut begin = None;
        let mut ips = Vec::new();
        loop {
            let era = counter.era(&mut flow);
            let piece = match flow.next_part() {
                None => break,
                Some(Part::Run(run)) => Piece::Run(Ran::of(&run), run.iter().collect()),
                Some(Part::Event(event)) => Piece::Other(Step::Event(event)),
                Some(Part::Error(error)) => Piece::Other(Step::Error(error)),
            };
            ips.clear();
            if let Piece::Run(_, insns) = &piece {
                ips.extend(insns.iter().map(|insn| insn.ip));
            }
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
            let step = match piece {
                Piece::Other(step) => step,
                Piece::Run(ran, insns) => {
                    let lens = || insns.iter().map(|insn| insn.len).collect();
                    let step = counter.run(era, ran, lens);
                    if counter.finder.is_open() {
                        counter.gaps(&gap::Step::Run(ran.ip, flow.offset()), &mut flow);
                    }
                    step
                }
            };
            counter.follow(step, &mut flow);
            if is_last {
                break;
            }
        }
        let end = flow.offset();
        let bytes = begin.map_or(0, |begin| end.0.saturating_sub(begin.0));
        if begin.is_some() {
            counter.tick(None, &mut flow);
        }
        let (spaces, mut threads) = counter.end(&mut flow);
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

/// A run as it is told from others: the code in place, its first instruction, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RunKey {
    era: u32,
    ip: Ip,
    len: u32,
}

/// A run, as far as counting it goes.
#[derive(Clone, Copy, Debug)]
struct Ran {
    ip: Ip,
    len: u32,
    mode: ExecMode,
    last: Option<Executed>,
}

impl Ran {
    fn of(run: &Run<'_>) -> Self {
        Self {
            ip: run.ip(),
            len: run.len() as u32,
            mode: run.mode(),
            last: run.last(),
        }
    }
}

/// A piece of the flow that may have to be counted.
enum Piece {
    Run(Ran, Vec<Executed>),
    Other(Step),
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

/// What is known of a distinct run.
#[derive(Debug, Default)]
struct RunCount {
    times: u64,
    taken: u64,
    class: Option<Class>,
    /// The functions it lies in, with how many of its instructions; and whether it enters them.
    parts: Vec<(usize, u32, bool)>,
}

/// What has to be done after a piece, with the decoder at hand.
enum Step {
    /// Nothing.
    Done,
    /// A run that was not seen before.
    NewRun {
        key: RunKey,
        lens: Vec<u8>,
        mode: ExecMode,
    },
    /// Other code or another thread may be in place.
    Event(Event),
    /// The flow was lost.
    Error(FlowError),
}

/// A thread in a stream, with the code that was in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Era {
    task: Task,
    /// The address space, by where it is in memory: it outlives the count.
    space: usize,
    version: Version,
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

struct StreamCounter<'f> {
    functions: &'f mut Functions,
    finder: GapFinder<'f>,
    spaces: Spaces,
    eras: HashMap<Era, u32>,
    /// The thread of each era.
    owners: Vec<Task>,
    era: Option<u32>,
    runs: FxHashMap<RunKey, usize>,
    counts: Vec<(RunKey, RunCount)>,
    /// A conditional branch that came last: its run, and the address it would go on at if not taken.
    conditional: Option<(usize, Ip)>,
    extra: HashMap<Task, (Counts, Gaps, Times)>,
    order: Vec<Task>,
    /// The thread that has been running since the time was taken last.
    running: Option<Task>,
    /// When the time was taken last, if tracing has been on since.
    on_since: Option<Tsc>,
    /// The core cycles by then.
    cycles: u64,
}

impl<'f> StreamCounter<'f> {
    fn new(functions: &'f mut Functions, finder: GapFinder<'f>) -> Self {
        Self {
            functions,
            finder,
            spaces: Spaces::new(),
            eras: HashMap::new(),
            owners: Vec::new(),
            era: None,
            runs: FxHashMap::default(),
            counts: Vec::new(),
            conditional: None,
            extra: HashMap::new(),
            order: Vec::new(),
            running: None,
            on_since: None,
            cycles: 0,
        }
    }

    /// Counts the next piece, as far as that can be done without the decoder.
    fn step(&mut self, flow: &mut ThreadFlow<'_>) -> Option<Step> {
        let era = self.era(flow);
        Some(match flow.next_part()? {
            Part::Run(run) => {
                let ip = run.ip();
                let lens = || run.iter().map(|insn| insn.len).collect();
                let step = self.run(era, Ran::of(&run), lens);
                if self.finder.is_open() {
                    self.gaps(&gap::Step::Run(ip, flow.offset()), flow);
                }
                step
            }
            Part::Event(event) => Step::Event(event),
            Part::Error(error) => Step::Error(error),
        })
    }

    /// The code that is in place.
    fn era(&mut self, flow: &mut ThreadFlow<'_>) -> u32 {
        match self.era {
            Some(era) => era,
            None => self.enter_era(flow),
        }
    }

    /// What comes is counted.
    fn enter(&mut self, flow: &mut ThreadFlow<'_>) {
        self.cycles = flow.cycles();
        self.running = Some(flow.task());
        self.tick(Some(true), flow);
    }

    /// What came is not counted.
    fn leave(&mut self, flow: &mut ThreadFlow<'_>) {
        self.era = None;
        self.conditional = None;
        self.on_since = None;
        self.running = None;
        self.cycles = flow.cycles();
    }

    /// What was counted, by page tables and by threads.
    fn end(mut self, flow: &mut ThreadFlow<'_>) -> (Spaces, Vec<(Task, Counts, Gaps, Times)>) {
        if let Some(gap) = self.finder.take_open() {
            self.ended(gap);
        }
        if self.order.is_empty() && self.counts.is_empty() {
            // A stream in which nothing ran is still a thread's.
            self.know(flow.task());
        }
        let spaces = std::mem::replace(&mut self.spaces, Spaces::new());
        (spaces, self.finish())
    }

    /// Takes the time, with tracing on or off from now on, if that is known anew.
    fn tick(&mut self, on: Option<bool>, flow: &mut ThreadFlow<'_>) {
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
    fn gaps(&mut self, step: &gap::Step, flow: &mut ThreadFlow<'_>) {
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

    /// Counts a run; `lens` gives the lengths of its instructions.
    fn run(&mut self, era: u32, run: Ran, lens: impl FnOnce() -> Vec<u8>) -> Step {
        self.went_to(run.ip);
        self.spaces.count(run.len.into());
        let key = RunKey {
            era,
            ip: run.ip,
            len: run.len,
        };
        let class = run.last.map(|last| last.class);
        let next = self.counts.len();
        let index = *self.runs.entry(key).or_insert(next);
        if let Some(last) = run.last
            && last.class == Class::Conditional
        {
            self.conditional = Some((index, advance(last.ip, last.len, last.mode)));
        }
        if let Some((_, count)) = self.counts.get_mut(index) {
            count.times += 1;
            return Step::Done;
        }
        self.counts.push((
            key,
            RunCount {
                times: 1,
                class,
                ..RunCount::default()
            },
        ));
        Step::NewRun {
            key,
            lens: lens(),
            mode: run.mode,
        }
    }

    /// Control went on at `ip`: settles whether the conditional branch before was taken.
    fn went_to(&mut self, ip: Ip) {
        if let Some((index, not_taken)) = self.conditional.take()
            && ip != not_taken
            && let Some((_, count)) = self.counts.get_mut(index)
        {
            count.taken += 1;
        }
    }

    fn follow(&mut self, step: Step, flow: &mut ThreadFlow<'_>) {
        match step {
            Step::Done => {}
            Step::NewRun { key, lens, mode } => {
                let parts = self
                    .functions
                    .parts(key.ip, &lens, mode, |ip| flow.place(ip));
                if let Some(index) = self.runs.get(&key)
                    && let Some((_, count)) = self.counts.get_mut(*index)
                {
                    count.parts = parts;
                }
            }
            Step::Event(event) => self.event(event, flow),
            // Behind it: the flow was not lost.
            Step::Error(error) if matches!(error.kind, FlowErrorKind::Seal { .. }) => {
                self.gaps(&gap::Step::Error(error), flow);
            }
            Step::Error(error) => {
                self.conditional = None;
                self.tick(Some(false), flow);
                self.gaps(&gap::Step::Error(error), flow);
            }
        }
    }

    fn event(&mut self, event: Event, flow: &mut ThreadFlow<'_>) {
        self.gaps(&gap::Step::Event(event), flow);
        self.tick(is_on_after(&event), flow);
        match event {
            Event::AsyncBranch { from: at, .. } | Event::AsyncDisabled { at, .. } => {
                self.went_to(at);
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
            Event::Overflow { .. } => self.conditional = None,
            Event::Paging { cr3, .. } => self.spaces.switch_to(cr3),
            // A branch out of what is traced was taken, or there would be no such event.
            Event::Disabled { .. } => {
                if let Some((index, _)) = self.conditional.take()
                    && let Some((_, count)) = self.counts.get_mut(index)
                {
                    count.taken += 1;
                }
            }
            _ => {}
        }
        self.era = None;
    }

    /// Counts of the thread that runs now, beside those of runs.
    fn extra(&mut self, flow: &mut ThreadFlow<'_>) -> &mut (Counts, Gaps, Times) {
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

    fn enter_era(&mut self, flow: &mut ThreadFlow<'_>) -> u32 {
        let task = flow.task();
        let view = flow.view();
        let era = Era {
            task,
            space: std::ptr::from_ref(view.space()).addr(),
            version: view.version(),
        };
        let next = self.owners.len() as u32;
        let number = *self.eras.entry(era).or_insert(next);
        if number == next {
            self.owners.push(task);
        }
        self.era = Some(number);
        number
    }

    /// Every thread of the stream with what it did.
    fn finish(mut self) -> Vec<(Task, Counts, Gaps, Times)> {
        let counts = std::mem::take(&mut self.counts);
        for (key, run) in counts {
            let Some(task) = self.owners.get(key.era as usize).copied() else {
                continue;
            };
            self.know(task);
            let Some((counts, ..)) = self.extra.get_mut(&task) else {
                continue;
            };
            counts.instructions += run.times * u64::from(key.len);
            counts.taken += run.taken;
            if let Some(class) = run.class {
                counts.add_class(class, run.times);
            }
            for (function, instructions, entered) in run.parts {
                self.functions.count(
                    function,
                    u64::from(instructions) * run.times,
                    u64::from(entered) * run.times,
                );
            }
        }
        let mut extra = self.extra;
        self.order
            .into_iter()
            .filter_map(|task| {
                extra
                    .remove(&task)
                    .map(|(counts, gaps, times)| (task, counts, gaps, times))
            })
            .collect()
    }
}
