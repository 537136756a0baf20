//! Counts as the flow goes by.
//!
//! What runs is counted by runs of consecutive instructions, which are few and repeat: each costs one look into a
//! table. Classes and functions are worked out once for each distinct run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use cofi_flow::{Event, FlowError, FlowErrorKind, Part, Run};
use cofi_image::{CodeFile, Place, Version};
use cofi_insn::{Class, advance};
use cofi_packet::{ExecMode, Ip, Tsc};
use cofi_session::{Session, Stream, Task, ThreadFlow};
use rustc_hash::FxHashMap;

use crate::count::{Counts, Gaps, Times};
use crate::gap::{self, Gap, GapFinder};
use crate::proof::Proof;
use crate::summary::{FileCount, FunctionCount, SpaceCount, Summary, ThreadSummary};

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
        if let Some(gap) = counter.finder.take_open() {
            counter.ended(gap);
        }
        if counter.order.is_empty() && counter.counts.is_empty() {
            // A stream in which nothing ran is still a thread's.
            counter.know(flow.task());
        }
        for (cr3, instructions) in std::mem::take(&mut counter.spaces.list) {
            if instructions > 0 {
                *self.spaces.entry(cr3).or_default() += instructions;
            }
        }
        let mut bytes = stream.len() as u64;
        self.trace_bytes += bytes;
        let threads = counter.finish();
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
        let era = match self.era {
            Some(era) => era,
            None => self.enter_era(flow),
        };
        Some(match flow.next_part()? {
            Part::Run(run) => {
                let ip = run.ip();
                let step = self.run(era, &run);
                if self.finder.is_open() {
                    self.gaps(&gap::Step::Run(ip, flow.offset()), flow);
                }
                step
            }
            Part::Event(event) => Step::Event(event),
            Part::Error(error) => Step::Error(error),
        })
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

    fn run(&mut self, era: u32, run: &Run<'_>) -> Step {
        self.went_to(run.ip());
        self.spaces.count(run.len() as u64);
        let key = RunKey {
            era,
            ip: run.ip(),
            len: run.len() as u32,
        };
        let class = run.last().map(|last| last.class);
        let next = self.counts.len();
        let index = *self.runs.entry(key).or_insert(next);
        if let Some(last) = run.last()
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
        let lens = run.iter().map(|insn| insn.len).collect();
        Step::NewRun {
            key,
            lens,
            mode: run.mode(),
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

/// A function, as told from others: what it belongs to, and its first address there.
type FunctionKey = (Option<PathBuf>, Option<u64>);

/// The functions seen.
#[derive(Debug, Default)]
struct Functions {
    numbers: HashMap<FunctionKey, usize>,
    list: Vec<FunctionCount>,
    /// The file looked at last, since code stays in one for long.
    last: Option<(Arc<CodeFile>, Option<u64>, usize)>,
}

impl Functions {
    /// The functions in which the instructions of a run lie.
    fn parts(
        &mut self,
        mut ip: Ip,
        lens: &[u8],
        mode: ExecMode,
        mut place: impl FnMut(Ip) -> Option<Place>,
    ) -> Vec<(usize, u32, bool)> {
        let mut parts: Vec<(usize, u32, bool)> = Vec::new();
        for len in lens {
            let (function, first) = self.function(place(ip));
            match parts.last_mut() {
                Some((last, count, _)) if *last == function && !first => *count += 1,
                _ => parts.push((function, 1, first)),
            }
            ip = advance(ip, *len, mode);
        }
        parts
    }

    /// The function there, and whether this is its first instruction.
    fn function(&mut self, place: Option<Place>) -> (usize, bool) {
        let symbol = place.as_ref().and_then(Place::symbol);
        let start = symbol.map(|symbol| symbol.start);
        let first = symbol.is_some_and(|symbol| symbol.offset == 0);
        if let (Some(place), Some((file, address, function))) = (&place, &self.last)
            && Arc::ptr_eq(file, &place.file)
            && *address == start
        {
            return (*function, first);
        }
        let path = place.as_ref().map(|place| place.owner().to_owned());
        let name = || match (&symbol, &path) {
            (Some(symbol), _) => symbol.demangled(),
            (None, Some(path)) => path.display().to_string(),
            (None, None) => "[unmapped]".into(),
        };
        let function = self.number((path.clone(), start), name);
        self.last = place
            .as_ref()
            .map(|place| (place.file.clone(), start, function));
        (function, first)
    }

    fn number(&mut self, key: FunctionKey, name: impl FnOnce() -> String) -> usize {
        let next = self.list.len();
        let (file, address) = key.clone();
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.list.push(FunctionCount {
                name: name(),
                file,
                address,
                instructions: 0,
                entries: 0,
            });
        }
        number
    }

    fn count(&mut self, function: usize, instructions: u64, entries: u64) {
        if let Some(function) = self.list.get_mut(function) {
            function.instructions += instructions;
            function.entries += entries;
        }
    }

    fn merge(&mut self, other: Functions) {
        for function in other.list {
            let key = (function.file.clone(), function.address);
            let number = self.number(key, || function.name.clone());
            self.count(number, function.instructions, function.entries);
        }
    }

    /// Functions and files, most instructions first.
    fn finish(self) -> (Vec<FunctionCount>, Vec<FileCount>) {
        let mut functions = self.list;
        let mut by_file: HashMap<&PathBuf, u64> = HashMap::new();
        for function in &functions {
            if let Some(file) = &function.file {
                *by_file.entry(file).or_default() += function.instructions;
            }
        }
        let mut files: Vec<FileCount> = by_file
            .into_iter()
            .map(|(file, instructions)| FileCount {
                file: file.clone(),
                instructions,
            })
            .collect();
        files.sort_by(|a, b| (b.instructions, &a.file).cmp(&(a.instructions, &b.file)));
        functions.sort_by(|a, b| {
            (b.instructions, &a.file, a.address).cmp(&(a.instructions, &b.file, b.address))
        });
        (functions, files)
    }
}
