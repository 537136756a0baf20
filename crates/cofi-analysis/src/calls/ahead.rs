//! A flow that one thread decodes while another follows the calls.
//!
//! Most of what ran are paths that ran before: of these their numbers are enough. What a path is made of is passed on when it comes for the first
//! time, and kept by the thread that follows, in case it forgets what it has worked out.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use cofi_flow::{Executed, Item, Path, PathNumber, Time};
use cofi_image::{ImageView, Version};
use cofi_insn::advance;
use cofi_packet::{ExecMode, Ip, StreamOffset};
use cofi_session::{Session, Stream, ThreadFlow};
use rustc_hash::FxHashMap;

use super::shapes::PlainRun;
use super::source::{CallSource, SourceBlock, SourcePath, Stand};

/// So many paths are passed on at once.
const BATCH: usize = 1 << 11;

/// So many batches are under way.
const BATCHES: usize = 8;

/// Paths are kept up to so many runs and instructions. Then all are forgotten, and passed on anew.
const KEPT: usize = 1 << 23;

/// What ran next.
#[derive(Clone, Copy, Debug)]
struct Ran {
    /// None of what has no number: it is the next of [`Batch::once`].
    number: Option<PathNumber>,
    offset: StreamOffset,
    mode: ExecMode,
}

/// What stands between two paths.
#[derive(Debug)]
enum Mark<'s> {
    /// This code is in place; none if it is the same as before. (Two threads that count the users of one view again and again wait for each other.)
    Begin(Option<ImageView<'s>>),
    /// An event, an error, or the end of a part.
    End(PieceEnd),
}

#[derive(Clone, Copy, Debug)]
struct PieceEnd {
    item: Option<Item>,
    stand: Stand,
    /// At the end of a part.
    time: Option<Time>,
}

/// What is passed on at once.
#[derive(Debug, Default)]
struct Batch<'s> {
    /// What was kept is passed on anew from here on.
    forgets: bool,
    new: Vec<(PathNumber, KeptPath)>,
    once: Vec<KeptPath>,
    ran: Vec<Ran>,
    /// Each with how many of `ran` stand before it.
    marks: Vec<(usize, Mark<'s>)>,
}

impl Batch<'_> {
    fn clear(&mut self) {
        self.forgets = false;
        self.new.clear();
        self.once.clear();
        self.ran.clear();
        self.marks.clear();
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

/// Decodes parts of a stream for a [`FlowAhead`].
#[derive(Debug)]
pub struct AheadDecoder<'s> {
    full: SyncSender<Batch<'s>>,
    empty: Receiver<Batch<'s>>,
    batch: Batch<'s>,
    sent: Sent,
    /// Paths are forgotten when so much is kept.
    most: usize,
    /// The code that was in place last.
    view: Option<([u64; 4], Version)>,
    /// The mode since the last event.
    mode: Option<ExecMode>,
    /// Whoever follows is gone.
    is_over: bool,
}

impl<'s> AheadDecoder<'s> {
    /// Decodes the parts, which come one after the other, until all are decoded or whoever follows is gone.
    pub fn run<'t>(
        mut self,
        session: &'s Session<'t>,
        stream: &'s Stream<'t>,
        parts: impl Iterator<Item = Range<StreamOffset>>,
    ) {
        let wants_task = stream.key().cpu().is_some();
        for part in parts {
            let mut flow = session.decode_within(stream, part);
            while self.piece(&mut flow, wants_task) {}
            if self.is_over {
                return;
            }
        }
        self.pass_on();
    }

    /// Decodes up to the next event or error; `false` at the end of the flow.
    fn piece(&mut self, flow: &mut ThreadFlow<'s>, wants_task: bool) -> bool {
        let view = flow.view();
        let state = (view.state(), view.version());
        let is_new = self.view.replace(state) != Some(state);
        let view = is_new.then(|| view.clone());
        self.mark(Mark::Begin(view));
        self.mode = None;
        let item = flow.paths(|path| self.path(path));
        let stand = flow.stand(wants_task && item.is_some());
        let time = if item.is_none() { flow.time() } else { None };
        self.mark(Mark::End(PieceEnd { item, stand, time }));
        if self.batch.marks.len() >= BATCH {
            self.pass_on();
        }
        item.is_some() && !self.is_over
    }

    fn mark(&mut self, mark: Mark<'s>) {
        self.batch.marks.push((self.batch.ran.len(), mark));
    }

    #[inline]
    fn path(&mut self, path: &Path<'_>) {
        let number = path.number();
        if !number.is_some_and(|number| self.sent.has(number)) {
            self.add(path, number);
        }
        // It changes with events only.
        let mode = *self.mode.get_or_insert_with(|| path.mode());
        self.batch.ran.push(Ran {
            number,
            offset: path.offset(),
            mode,
        });
        if self.batch.ran.len() >= BATCH {
            self.pass_on();
        }
    }

    #[cold]
    fn add(&mut self, path: &Path<'_>, number: Option<PathNumber>) {
        let kept = KeptPath::of(path);
        let Some(number) = number else {
            self.batch.once.push(kept);
            return;
        };
        if self.sent.size >= self.most {
            self.pass_on();
            self.batch.forgets = true;
            self.sent = Sent {
                generation: number.generation(),
                ..Sent::default()
            };
        }
        self.sent.add(number, kept.size());
        self.batch.new.push((number, kept));
    }

    #[cold]
    fn pass_on(&mut self) {
        let next = self.empty.try_recv().unwrap_or_default();
        let batch = std::mem::replace(&mut self.batch, next);
        self.is_over |= self.full.send(batch).is_err();
    }
}

/// The flow of parts of a stream, as an [`AheadDecoder`] decodes it on a thread of its own: the end of a part is an end of the flow, behind which
/// it goes on with the next. It tells of no blocks to visitors who [want](super::CallVisitor::wants_blocks) them.
#[derive(Debug)]
pub struct FlowAhead<'s> {
    full: Receiver<Batch<'s>>,
    empty: Sender<Batch<'s>>,
    batch: Batch<'s>,
    /// How many of the batch were taken: paths, those without a number, and marks.
    ran: usize,
    once: usize,
    mark: usize,
    kept: FxHashMap<PathNumber, KeptPath>,
    view: Option<ImageView<'s>>,
    stand: Stand,
    time: Option<Time>,
}

impl<'s> FlowAhead<'s> {
    /// A flow, and what is to decode it.
    #[must_use]
    pub fn new() -> (Self, AheadDecoder<'s>) {
        Self::keeping(KEPT)
    }

    /// The same, where so many instructions and runs of paths are kept, or a few more: paths that come again are then passed on again.
    #[must_use]
    pub fn keeping(most: usize) -> (Self, AheadDecoder<'s>) {
        let ((full, filled), (empty, emptied)) = (sync_channel(BATCHES), channel());
        let decoder = AheadDecoder {
            full,
            empty: emptied,
            batch: Batch::default(),
            sent: Sent::default(),
            most,
            view: None,
            mode: None,
            is_over: false,
        };
        let flow = Self {
            full: filled,
            empty,
            batch: Batch::default(),
            ran: 0,
            once: 0,
            mark: 0,
            kept: FxHashMap::default(),
            view: None,
            stand: Stand::default(),
            time: None,
        };
        (flow, decoder)
    }

    /// Takes the next batch; `false` if nothing comes any more.
    fn receive(&mut self) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        (self.ran, self.once, self.mark) = (0, 0, 0);
        // Who decodes may have come to the end.
        let _ = self.empty.send(batch);
        let Ok(batch) = self.full.recv() else {
            return false;
        };
        self.batch = batch;
        if self.batch.forgets {
            self.kept.clear();
        }
        self.kept.extend(self.batch.new.drain(..));
        true
    }

    /// The mark that stands before the next path, if one does.
    fn next_mark(&mut self) -> Option<&mut Mark<'s>> {
        let (at, mark) = self.batch.marks.get_mut(self.mark)?;
        if *at > self.ran {
            return None;
        }
        self.mark += 1;
        Some(mark)
    }
}

impl<'s> CallSource<'s> for FlowAhead<'s> {
    type Path<'p> = AheadPath<'p>;

    fn view(&mut self) -> Option<&ImageView<'s>> {
        loop {
            match self.next_mark() {
                Some(Mark::Begin(view)) => {
                    let new = view.take();
                    if new.is_some() {
                        self.view = new;
                    }
                    return self.view.as_ref();
                }
                Some(Mark::End(_)) => {}
                None => {
                    if !self.receive() {
                        return None;
                    }
                }
            }
        }
    }

    fn paths(&mut self, mut visit: impl FnMut(&AheadPath<'_>)) -> Option<Item> {
        loop {
            let marks = self.batch.marks.get(self.mark);
            let until = marks.map_or(self.batch.ran.len(), |(at, _)| *at);
            for ran in self.batch.ran.get(self.ran..until).unwrap_or_default() {
                let mut once = None;
                if ran.number.is_none() {
                    once = self.batch.once.get(self.once);
                    self.once += 1;
                }
                visit(&AheadPath {
                    ran: *ran,
                    once,
                    kept: &self.kept,
                });
            }
            self.ran = until;
            match self.next_mark() {
                Some(Mark::End(end)) => {
                    let PieceEnd { item, stand, time } = *end;
                    (self.stand, self.time) = (stand, time);
                    return item;
                }
                Some(Mark::Begin(_)) => {}
                None => {
                    if !self.receive() {
                        return None;
                    }
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
    ran: Ran,
    once: Option<&'a KeptPath>,
    kept: &'a FxHashMap<PathNumber, KeptPath>,
}

impl SourcePath for AheadPath<'_> {
    #[inline]
    fn mode(&self) -> ExecMode {
        self.ran.mode
    }

    #[inline]
    fn number(&self) -> Option<PathNumber> {
        self.ran.number
    }

    #[inline]
    fn offset(&self) -> StreamOffset {
        self.ran.offset
    }

    fn for_each(&self, visit: impl FnMut(&SourceBlock<'_>)) {
        let kept = || self.kept.get(&self.ran.number?);
        if let Some(path) = self.once.or_else(kept) {
            path.for_each(self.ran.offset, visit);
        }
    }
}
