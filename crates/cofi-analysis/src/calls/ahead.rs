//! What was decoded ahead, for whoever follows the calls.
//!
//! Most of what ran are paths that ran before: of these their numbers are enough. What a path is made of is passed on when it comes for the first
//! time, and kept by whoever follows, in case it forgets what it has worked out.

use cofi_flow::{Executed, Item, Path, PathNumber, Time};
use cofi_image::{ImageView, Version};
use cofi_insn::advance;
use cofi_packet::{ExecMode, Ip, StreamOffset};
use cofi_session::ThreadFlow;
use rustc_hash::FxHashMap;

use super::shapes::PlainRun;
use super::source::{CallSource, SourceBlock, SourcePath, Stand};

/// Paths are kept up to so many runs and instructions, of all workers that decode one stream. Then all are forgotten, and passed on anew.
pub(crate) const KEPT: usize = 1 << 23;

/// A part in which more ran is not recorded: whoever follows decodes it.
const MOST: usize = 1 << 19;

/// What has no number: it is the next of [`DecodedPart::once`].
const ONCE: u32 = u32::MAX;

/// A path that ran.
#[derive(Clone, Copy, Debug)]
struct Ran {
    /// The [index](PathNumber::index) of its number, or [`ONCE`].
    index: u32,
    /// Its last packet, behind the part's beginning.
    offset: u32,
}

/// What stands between two paths.
#[derive(Debug)]
enum Mark<'s> {
    /// This code is in place; none if it is the same as before. (Two threads that count the users of one view again and again wait for each other.)
    Begin(Option<ImageView<'s>>),
    /// The paths that follow have numbers of this generation, and ran in this mode.
    Numbers(usize, ExecMode),
    /// An event, an error, or the end of the part.
    End(PieceEnd),
}

#[derive(Clone, Copy, Debug)]
struct PieceEnd {
    item: Option<Item>,
    stand: Stand,
    /// At the end of the part.
    time: Option<Time>,
}

/// A part of a stream that was decoded: what ran, and what stands between.
#[derive(Debug)]
pub struct DecodedPart<'s> {
    begin: StreamOffset,
    /// It is whole: not too much ran.
    is_whole: bool,
    paths: NewPaths,
    /// The paths of parts that were decoded apart before this one was decoded in their place. They were met first, so others may name them;
    /// nothing else of those parts counts.
    replaced: Vec<NewPaths>,
    once: Vec<KeptPath>,
    ran: Vec<Ran>,
    /// Each with how many of `ran` stand before it.
    marks: Vec<(usize, Mark<'s>)>,
}

/// The paths that a worker met first in a part.
#[derive(Debug, Default)]
struct NewPaths {
    worker: usize,
    /// What it has passed on so far is forgotten.
    forgets: bool,
    list: Vec<(PathNumber, KeptPath)>,
}

impl DecodedPart<'_> {
    /// It takes the place of what was decoded of parts of it.
    pub(crate) fn replace(&mut self, other: Self) {
        // Those come first in which paths were met first.
        self.replaced.extend(other.replaced);
        self.replaced.push(other.paths);
    }
}

/// What a path is made of.
#[derive(Clone, Debug, Default)]
struct KeptPath {
    blocks: Vec<Kept>,
    runs: Vec<(Ip, ExecMode, u32, Option<Executed>)>,
    /// The lengths of all instructions.
    lens: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    ip: Ip,
    /// How far before the path's last packet its own begins.
    behind: u64,
    /// Where its runs and its instructions end.
    runs: usize,
    lens: usize,
}

impl KeptPath {
    fn of(path: &Path<'_>) -> Self {
        let mut this = Self::default();
        let last = path.offset();
        path.for_each(|block| {
            for run in block.runs() {
                this.runs
                    .push((run.ip(), run.mode(), run.len() as u32, run.last()));
                this.lens.extend(run.iter().map(|insn| insn.len));
            }
            this.blocks.push(Kept {
                ip: block.ip(),
                behind: last.0.wrapping_sub(block.offset().0),
                runs: this.runs.len(),
                lens: this.lens.len(),
            });
        });
        this
    }

    /// What it costs to keep it.
    fn size(&self) -> usize {
        self.blocks.len() + self.runs.len() + self.lens.len()
    }

    fn for_each(&self, last: StreamOffset, mut visit: impl FnMut(&SourceBlock<'_>)) {
        let (mut runs, mut lens) = (0, 0);
        for block in &self.blocks {
            visit(&SourceBlock::Kept(KeptBlock {
                ip: block.ip,
                offset: StreamOffset(last.0.wrapping_sub(block.behind)),
                runs: self.runs.get(runs..block.runs).unwrap_or_default(),
                lens: self.lens.get(lens..block.lens).unwrap_or_default(),
            }));
            (runs, lens) = (block.runs, block.lens);
        }
    }
}

/// A block of a path that was decoded ahead.
#[derive(Debug)]
pub struct KeptBlock<'a> {
    ip: Ip,
    offset: StreamOffset,
    runs: &'a [(Ip, ExecMode, u32, Option<Executed>)],
    lens: &'a [u8],
}

impl KeptBlock<'_> {
    pub(super) const fn ip(&self) -> Ip {
        self.ip
    }

    pub(super) const fn len(&self) -> usize {
        self.lens.len()
    }

    pub(super) const fn offset(&self) -> StreamOffset {
        self.offset
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = PlainRun> {
        let runs = self.runs.iter();
        runs.map(|(ip, _, len, last)| (*ip, *len as usize, *last))
    }

    pub(super) fn ips(&self) -> impl Iterator<Item = Ip> {
        let mut lens = self.lens.iter();
        let runs = self.runs.iter();
        runs.flat_map(move |(first, mode, len, _)| {
            let (mut next, mode) = (*first, *mode);
            let lens: Vec<u8> = lens.by_ref().take(*len as usize).copied().collect();
            lens.into_iter().map(move |len| {
                let ip = next;
                next = advance(ip, len, mode);
                ip
            })
        })
    }
}

/// Which paths were passed on, by generation and index.
#[derive(Debug, Default)]
struct Sent {
    generation: usize,
    bits: Vec<u64>,
    others: FxHashMap<usize, Vec<u64>>,
    /// What is kept of them, with the room for the bits.
    size: usize,
}

impl Sent {
    /// Whether it was passed on.
    #[inline]
    fn has(&mut self, number: PathNumber) -> bool {
        if self.generation != number.generation() {
            self.change_generation(number.generation());
        }
        let word = self.bits.get(number.index() / 64);
        word.is_some_and(|word| word >> (number.index() % 64) & 1 != 0)
    }

    #[cold]
    fn change_generation(&mut self, generation: usize) {
        let bits = std::mem::take(&mut self.bits);
        self.others.insert(self.generation, bits);
        self.bits = self.others.remove(&generation).unwrap_or_default();
        self.generation = generation;
    }

    /// It is passed on; [`has`](Self::has) was asked just now.
    fn add(&mut self, number: PathNumber, size: usize) {
        let word = number.index() / 64;
        if word >= self.bits.len() {
            self.size += 8 * (word + 1 - self.bits.len());
            self.bits.resize(word + 1, 0);
        }
        if let Some(word) = self.bits.get_mut(word) {
            *word |= 1 << (number.index() % 64);
        }
        self.size += size;
    }
}

/// Records what a worker decodes.
#[derive(Debug)]
pub(crate) struct AheadRecorder {
    worker: usize,
    sent: Sent,
    /// Paths are forgotten when so much is kept; and no more than this is recorded of a part.
    most: usize,
    /// What was passed on is not to be relied on any more.
    forgets: bool,
}

/// Records a part.
#[derive(Debug)]
pub(crate) struct PartRecorder<'r, 's> {
    recorder: &'r mut AheadRecorder,
    part: DecodedPart<'s>,
    /// The code that was in place last.
    view: Option<([u64; 4], Version)>,
    /// Of the numbers since the last event, and the mode.
    numbers: Option<(usize, ExecMode)>,
    size: usize,
}

impl AheadRecorder {
    /// That of a worker, of which so many instructions and runs of paths are kept, or a few more, and no more paths of a part.
    pub(crate) fn new(worker: usize, most: usize) -> Self {
        Self {
            worker,
            sent: Sent::default(),
            most,
            forgets: false,
        }
    }

    /// Begins with a part.
    pub(crate) fn begin<'s>(&mut self, begin: StreamOffset) -> PartRecorder<'_, 's> {
        if self.sent.size >= self.most {
            self.forget();
        }
        let paths = NewPaths {
            worker: self.worker,
            forgets: std::mem::take(&mut self.forgets),
            list: Vec::new(),
        };
        PartRecorder {
            recorder: self,
            part: DecodedPart {
                begin,
                is_whole: true,
                paths,
                replaced: Vec::new(),
                once: Vec::new(),
                ran: Vec::new(),
                marks: Vec::new(),
            },
            view: None,
            numbers: None,
            size: 0,
        }
    }

    fn forget(&mut self) {
        self.sent = Sent::default();
        self.forgets = true;
    }
}

impl<'s> PartRecorder<'_, 's> {
    /// What comes next runs with this code in place.
    pub(crate) fn begin_piece(&mut self, flow: &mut ThreadFlow<'s>) {
        let view = flow.view();
        let state = (view.state(), view.version());
        let is_new = self.view.replace(state) != Some(state);
        let view = is_new.then(|| view.clone());
        self.mark(Mark::Begin(view));
        self.numbers = None;
    }

    /// An event or error came, or the end.
    pub(crate) fn end_piece(&mut self, item: Option<Item>, flow: &mut ThreadFlow<'s>, task: bool) {
        let stand = flow.stand(task && item.is_some());
        let time = if item.is_none() { flow.time() } else { None };
        self.mark(Mark::End(PieceEnd { item, stand, time }));
    }

    fn mark(&mut self, mark: Mark<'s>) {
        self.part.marks.push((self.part.ran.len(), mark));
        if self.part.marks.len() >= (MOST / 4).min(self.recorder.most) {
            self.give_up();
        }
    }

    /// A path ran.
    #[inline]
    pub(crate) fn path(&mut self, path: &Path<'_>) {
        let number = path.number();
        let number = number.filter(|number| number.index() < ONCE as usize);
        if !number.is_some_and(|number| self.recorder.sent.has(number)) {
            self.add(path, number);
        }
        match (self.numbers, number.map(PathNumber::generation)) {
            (Some((of, _)), Some(generation)) if of == generation => {}
            (Some(_), None) => {}
            (_, generation) => self.change_numbers(generation.unwrap_or(0), path),
        }
        let offset = path.offset().0.wrapping_sub(self.part.begin.0);
        self.part.ran.push(Ran {
            index: number.map_or(ONCE, |number| number.index() as u32),
            offset: offset as u32,
        });
        if self.part.ran.len() >= MOST.min(self.recorder.most) || offset > u64::from(u32::MAX) {
            self.give_up();
        }
    }

    /// The mode changes with events only.
    #[cold]
    fn change_numbers(&mut self, generation: usize, path: &Path<'_>) {
        let mode = self.numbers.map_or_else(|| path.mode(), |(_, mode)| mode);
        self.numbers = Some((generation, mode));
        self.part
            .marks
            .push((self.part.ran.len(), Mark::Numbers(generation, mode)));
    }

    #[cold]
    fn add(&mut self, path: &Path<'_>, number: Option<PathNumber>) {
        let kept = KeptPath::of(path);
        self.size += kept.size();
        match number {
            Some(number) => {
                self.recorder.sent.add(number, kept.size());
                self.part.paths.list.push((number, kept));
            }
            None => self.part.once.push(kept),
        }
        if self.size >= KEPT / 8 {
            self.give_up();
        }
    }

    /// Too much ran to keep all of it.
    #[cold]
    fn give_up(&mut self) {
        self.part.is_whole = false;
        self.part.ran.clear();
        self.part.marks.clear();
        self.part.once.clear();
        self.part.paths.list.clear();
        self.recorder.forget();
        self.size = 0;
    }

    /// What was recorded.
    pub(crate) fn finish(self) -> DecodedPart<'s> {
        let mut part = self.part;
        if !part.is_whole {
            // There may be more since.
            self.recorder.forget();
            (part.ran, part.marks) = (Vec::new(), Vec::new());
            (part.once, part.paths.list) = (Vec::new(), Vec::new());
        }
        part
    }
}

/// The flow of parts of a stream, as workers have decoded it: the end of a part is an end of the flow, behind which it goes on with the next.
/// It tells of no blocks to visitors who [want](super::CallVisitor::wants_blocks) them.
#[derive(Debug, Default)]
pub struct FlowAhead<'s> {
    part: Option<DecodedPart<'s>>,
    /// How many of the part were taken: paths, those without a number, and marks.
    ran: usize,
    once: usize,
    mark: usize,
    /// The paths of each worker.
    kept: Vec<KeptPaths>,
    numbers: (usize, ExecMode),
    view: Option<ImageView<'s>>,
    stand: Stand,
    time: Option<Time>,
}

type KeptPaths = FxHashMap<PathNumber, KeptPath>;

impl<'s> FlowAhead<'s> {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next part of the stream was decoded. If it was not kept, since too much ran, that is `false`: it has to be decoded again.
    pub fn take(&mut self, mut part: DecodedPart<'s>) -> bool {
        for new in part.replaced.drain(..) {
            self.keep(new);
        }
        self.keep(std::mem::take(&mut part.paths));
        (self.ran, self.once, self.mark) = (0, 0, 0);
        let is_whole = part.is_whole;
        self.part = is_whole.then_some(part);
        is_whole
    }

    fn keep(&mut self, new: NewPaths) {
        if self.kept.len() <= new.worker {
            self.kept.resize_with(new.worker + 1, KeptPaths::default);
        }
        if let Some(kept) = self.kept.get_mut(new.worker) {
            if new.forgets {
                kept.clear();
            }
            kept.extend(new.list);
        }
    }
}

impl<'s> CallSource<'s> for FlowAhead<'s> {
    type Path<'p> = AheadPath<'p>;

    fn view(&mut self) -> Option<&ImageView<'s>> {
        let part = self.part.as_mut()?;
        while let Some((_, mark)) = part.marks.get_mut(self.mark) {
            self.mark += 1;
            if let Mark::Begin(view) = mark {
                if let Some(new) = view.take() {
                    self.view = Some(new);
                }
                return self.view.as_ref();
            }
        }
        None
    }

    fn paths(&mut self, mut visit: impl FnMut(&AheadPath<'_>)) -> Option<Item> {
        let part = self.part.as_ref()?;
        loop {
            let next = part.marks.get(self.mark);
            let until = next.map_or(part.ran.len(), |(at, _)| *at);
            let (generation, mode) = self.numbers;
            for ran in part.ran.get(self.ran..until).unwrap_or_default() {
                let mut once = None;
                if ran.index == ONCE {
                    once = part.once.get(self.once);
                    self.once += 1;
                }
                visit(&AheadPath {
                    number: (ran.index != ONCE)
                        .then(|| PathNumber::new(generation, ran.index as usize)),
                    offset: StreamOffset(part.begin.0.wrapping_add(ran.offset.into())),
                    mode,
                    once,
                    kept: &self.kept,
                });
            }
            self.ran = until;
            self.mark += 1;
            match next? {
                (_, Mark::Numbers(generation, mode)) => self.numbers = (*generation, *mode),
                (_, Mark::Begin(_)) => {}
                (_, Mark::End(end)) => {
                    let PieceEnd { item, stand, time } = *end;
                    (self.stand, self.time) = (stand, time);
                    return item;
                }
            }
        }
    }

    fn stand(&mut self, _: bool) -> Stand {
        self.stand
    }

    fn end_time(&mut self) -> Option<Time> {
        self.time
    }
}

/// A path that was decoded ahead.
#[derive(Debug)]
pub struct AheadPath<'a> {
    number: Option<PathNumber>,
    offset: StreamOffset,
    mode: ExecMode,
    once: Option<&'a KeptPath>,
    kept: &'a [KeptPaths],
}

impl SourcePath for AheadPath<'_> {
    #[inline]
    fn mode(&self) -> ExecMode {
        self.mode
    }

    #[inline]
    fn number(&self) -> Option<PathNumber> {
        self.number
    }

    #[inline]
    fn offset(&self) -> StreamOffset {
        self.offset
    }

    fn for_each(&self, visit: impl FnMut(&SourceBlock<'_>)) {
        let kept = || {
            let number = self.number?;
            self.kept.iter().find_map(|kept| kept.get(&number))
        };
        if let Some(path) = self.once.or_else(kept) {
            path.for_each(self.offset, visit);
        }
    }
}
