//! The flow of one stream, on its way to the thread that compares it.

use std::sync::mpsc::SyncSender;

use cofi_image::Place;
use cofi_packet::{ExecMode, Ip, StreamOffset};
use cofi_session::{Task, ThreadFlow};
use rustc_hash::FxHashSet;

use super::marks::{Mark, MarkWriter, Marks, What};
use crate::calls::{Call, CallEnd, CallNames, CallTracer, CallVisitor, RanBlock, RanPath};
use crate::gap::GapCause;

/// So many blocks, or marks, are sent at a time.
const BATCH: usize = 1 << 13;

/// The paths that are told as such have no more blocks than this, all together: others are told block by block.
const PATHS: usize = 1 << 20;

/// Paths of more blocks are told block by block, too.
const LONGEST: usize = 1 << 10;

/// A part of a flow.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Blocks that were not known before, numbered on from those of the batch before.
    pub(super) defined: Vec<BlockAt>,
    /// Paths that were not known before, numbered likewise: their blocks.
    pub(super) paths: Vec<Box<[u32]>>,
    /// The paths that ran.
    pub(super) ran: Box<[u32]>,
    pub(super) marks: Marks,
    /// What is missing at the marks that tell of gaps.
    pub(super) gaps: Vec<GapAt>,
    /// Functions that were not known before.
    pub(super) functions: Vec<(u32, FunctionName)>,
}

/// A place where a part of the flow is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct GapAt {
    /// After so many instructions.
    pub(super) at: u64,
    pub(super) missing: Missing,
}

/// What is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing {
    pub(super) cause: GapCause,
    pub(super) offset: StreamOffset,
}

/// A function.
#[derive(Clone, Debug)]
pub(super) struct FunctionName {
    pub(super) name: String,
    pub(super) is_named: bool,
    /// The file's path.
    pub(super) file: Option<std::path::PathBuf>,
}

/// Where the instructions of a block stand.
#[derive(Debug, Default)]
pub(super) struct BlockAt {
    pub(super) runs: Vec<RunAt>,
    pub(super) lens: Vec<u8>,
}

/// Instructions that stand one behind the other in one file.
#[derive(Debug)]
pub(super) struct RunAt {
    pub(super) ip: Ip,
    pub(super) mode: ExecMode,
    pub(super) place: Option<Place>,
    /// Which of the block's instructions is the first.
    pub(super) first: u32,
}

/// No number yet.
const NONE: u32 = u32::MAX;

/// Numbers of one kind by those of another, which begin anew with each generation.
#[derive(Debug, Default)]
struct Numbers {
    generation: u64,
    list: Vec<u32>,
}

impl Numbers {
    #[inline]
    fn get(&self, generation: u64, number: usize) -> Option<u32> {
        let known = self.list.get(number).copied();
        known.filter(|known| self.generation == generation && *known != NONE)
    }

    fn set(&mut self, generation: u64, number: usize, value: u32) {
        if self.generation != generation {
            self.generation = generation;
            self.list.clear();
        }
        if self.list.len() <= number {
            self.list.resize(number + 1, NONE);
        }
        self.list[number] = value;
    }
}

/// Takes the flow of one recording's stream to [`compare`](super::compare). To be given to a [`CallTracer`](crate::CallTracer).
#[derive(Debug)]
pub struct Feed {
    sender: Option<SyncSender<Batch>>,
    batch: Batch,
    /// The paths and marks of the batch, and how many blocks ran.
    ran: Vec<u32>,
    ran_blocks: usize,
    marks: MarkWriter,
    /// By the numbers of the tracer: those of the blocks that were sent, and of the paths.
    known: Numbers,
    known_paths: Numbers,
    /// The paths of one block each, by that.
    singles: Vec<u32>,
    /// How many blocks and paths were sent, and how many blocks all of these paths have.
    blocks: u32,
    paths: u32,
    path_blocks: usize,
    /// By number, how many blocks a path has.
    path_lens: Vec<u16>,
    /// The blocks that ran since a path ended.
    open: Vec<u32>,
    functions: FxHashSet<u32>,
    insns: u64,
    /// The stream is that of one thread.
    has_calls: bool,
}

impl Feed {
    /// Takes all blocks of a flow up to the next event or error, and that; `false` at its end. It is [`CallTracer::follow`], compiled for this
    /// visitor here, and not in the crates that compare recordings.
    pub fn follow<'s>(&mut self, tracer: &mut CallTracer<'s>, flow: &mut ThreadFlow<'s>) -> bool {
        tracer.follow(flow, self)
    }

    pub(super) fn new(sender: SyncSender<Batch>, has_calls: bool) -> Self {
        Self {
            sender: Some(sender),
            batch: Batch::default(),
            ran: Vec::new(),
            ran_blocks: 0,
            marks: MarkWriter::default(),
            known: Numbers::default(),
            known_paths: Numbers::default(),
            singles: Vec::new(),
            blocks: 0,
            paths: 0,
            path_blocks: 0,
            path_lens: Vec::new(),
            open: Vec::new(),
            functions: FxHashSet::default(),
            insns: 0,
            has_calls,
        }
    }

    /// Nobody may listen any more: then nothing is sent.
    fn send(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        // They may wait for long: no room beyond what they take.
        batch.ran = self.ran.as_slice().into();
        batch.marks = self.marks.take();
        self.ran.clear();
        self.ran_blocks = 0;
        if let Some(sender) = &self.sender
            && sender.send(batch).is_err()
        {
            self.sender = None;
        }
    }

    pub(super) fn finish(mut self) {
        self.send();
    }

    /// Blocks go with what is known of how control came to them, which is told after them: so what was told is sent before others come.
    #[inline]
    fn begin(&mut self) {
        if self.ran_blocks >= BATCH || self.marks.count() >= BATCH {
            self.send();
        }
    }

    fn mark(&mut self, at: u64, what: What) {
        let at = self.marks.at().max(at.min(self.insns));
        self.marks.push(Mark { at, what });
    }

    /// The number of a path of these blocks that was not known.
    fn define_path(&mut self, blocks: &[u32]) -> u32 {
        let number = self.paths;
        self.paths += 1;
        self.path_blocks += blocks.len();
        self.path_lens.push(blocks.len() as u16);
        self.batch.paths.push(blocks.into());
        number
    }

    /// The path that is nothing but a block.
    fn single(&mut self, block: u32) -> u32 {
        let index = block as usize;
        if self.singles.len() <= index {
            self.singles.resize(index + 1, NONE);
        }
        if self.singles[index] == NONE {
            self.singles[index] = self.define_path(&[block]);
        }
        self.singles[index]
    }

    #[cold]
    fn define(&mut self, block: &RanBlock<'_>) -> u32 {
        let mut at = BlockAt::default();
        let mut next: Option<(Ip, Place)> = None;
        block.for_each(|ip, len, mode| {
            let place = block.view().place(ip);
            let goes_on = match (&next, &place) {
                (Some((wanted, before)), Some(here)) => {
                    *wanted == ip
                        && std::sync::Arc::ptr_eq(&before.file, &here.file)
                        && before.offset == here.offset
                }
                _ => false,
            };
            if !goes_on {
                at.runs.push(RunAt {
                    ip,
                    mode,
                    place: place.clone(),
                    first: at.lens.len() as u32,
                });
            }
            at.lens.push(len);
            next = place.map(|place| {
                let next = cofi_insn::advance(ip, len, mode);
                (next, place.forward(u64::from(len)))
            });
        });
        let number = self.blocks;
        self.known.set(block.generation(), block.number(), number);
        self.blocks += 1;
        self.batch.defined.push(at);
        number
    }
}

impl CallVisitor for Feed {
    fn enter(&mut self, call: &Call, names: &CallNames) {
        if !self.has_calls {
            return;
        }
        let function = call.function.0;
        if self.functions.insert(function) {
            let name = FunctionName {
                name: names.describe(call.function).to_owned(),
                is_named: names.name(call.function).is_some(),
                file: names.file(call.function).map(Into::into),
            };
            self.batch.functions.push((function, name));
        }
        let what = What::Enter {
            function,
            depth: call.depth,
            kind: call.kind,
            tsc: call.begin.tsc,
        };
        self.mark(call.begin.insns, what);
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        if self.has_calls {
            self.mark(end.end.insns, What::Leave { depth: call.depth });
        }
    }

    fn all_left(&mut self, _: Task, _: &CallNames) {
        if self.has_calls {
            self.mark(self.insns, What::Reset);
        }
    }

    fn wants_blocks(&self) -> bool {
        true
    }

    #[inline]
    fn ran(&mut self, block: &RanBlock<'_>) {
        if self.open.is_empty() {
            self.begin();
        }
        let known = self.known.get(block.generation(), block.number());
        let number = known.unwrap_or_else(|| self.define(block));
        self.open.push(number);
        self.insns += block.len() as u64;
    }

    fn path_ended(&mut self, number: Option<usize>, generation: u64) {
        let blocks = std::mem::take(&mut self.open);
        self.ran_blocks += blocks.len();
        let is_wanted = (2..=LONGEST).contains(&blocks.len()) && self.path_blocks < PATHS;
        let path = match (number, blocks.as_slice()) {
            (_, [block]) => Some(self.single(*block)),
            (Some(_), blocks) if is_wanted => Some(self.define_path(blocks)),
            _ => None,
        };
        match path {
            Some(path) => {
                if let Some(number) = number {
                    self.known_paths.set(generation, number, path);
                }
                self.ran.push(path);
            }
            None => {
                for block in &blocks {
                    let path = self.single(*block);
                    self.ran.push(path);
                }
            }
        }
        self.open = blocks;
        self.open.clear();
    }

    #[inline]
    fn ran_path(&mut self, path: &RanPath) -> bool {
        let Some(number) = self.known_paths.get(path.generation(), path.number()) else {
            return false;
        };
        self.begin();
        self.ran.push(number);
        let len = self.path_lens.get(number as usize);
        self.ran_blocks += len.map_or(1, |len| usize::from(*len));
        self.insns += path.len() as u64;
        true
    }

    fn lost(&mut self, cause: GapCause, offset: StreamOffset) {
        self.mark(self.insns, What::Gap);
        self.batch.gaps.push(GapAt {
            at: self.marks.at(),
            missing: Missing { cause, offset },
        });
    }
}
