//! The flow of one stream, on its way to the thread that compares it.

use std::sync::mpsc::SyncSender;

use cofi_image::Place;
use cofi_packet::{ExecMode, Ip, StreamOffset, Tsc};
use cofi_session::Task;
use rustc_hash::FxHashSet;

use crate::calls::{Call, CallEnd, CallKind, CallNames, CallVisitor, RanBlock};
use crate::gap::GapCause;

/// So many blocks, or marks, are sent at a time.
const BATCH: usize = 1 << 13;

/// A part of a flow.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Blocks that were not known before, numbered on from those of the batch before.
    pub(super) defined: Vec<BlockAt>,
    /// The blocks that ran.
    pub(super) ran: Vec<u32>,
    pub(super) marks: Vec<Mark>,
    /// Functions that were not known before.
    pub(super) functions: Vec<(u32, FunctionName)>,
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

/// Something that happened between instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// After so many instructions.
    pub(super) at: u64,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Enter {
        function: u32,
        depth: i32,
        kind: CallKind,
        tsc: Option<Tsc>,
    },
    Leave {
        depth: i32,
    },
    /// All calls were left.
    Reset,
    Gap {
        cause: GapCause,
        offset: StreamOffset,
    },
}

/// Takes the flow of one recording's stream to [`compare`](super::compare). To be given to a [`CallTracer`](crate::CallTracer).
#[derive(Debug)]
pub struct Feed {
    sender: Option<SyncSender<Batch>>,
    batch: Batch,
    /// By the numbers of the tracer: those of the blocks that were sent.
    known: Vec<u32>,
    generation: u64,
    blocks: u32,
    functions: FxHashSet<u32>,
    insns: u64,
    /// Where the last mark is.
    last: u64,
    /// The stream is that of one thread.
    has_calls: bool,
}

impl Feed {
    pub(super) fn new(sender: SyncSender<Batch>, has_calls: bool) -> Self {
        Self {
            sender: Some(sender),
            batch: Batch::default(),
            known: Vec::new(),
            generation: 0,
            blocks: 0,
            functions: FxHashSet::default(),
            insns: 0,
            last: 0,
            has_calls,
        }
    }

    /// Nobody may listen any more: then nothing is sent.
    fn send(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if let Some(sender) = &self.sender
            && sender.send(batch).is_err()
        {
            self.sender = None;
        }
    }

    pub(super) fn finish(mut self) {
        self.send();
    }

    fn mark(&mut self, at: u64, what: What) {
        self.last = self.last.max(at.min(self.insns));
        self.batch.marks.push(Mark {
            at: self.last,
            what,
        });
    }

    #[cold]
    fn define(&mut self, block: &RanBlock<'_>) {
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
        if self.known.len() <= block.number() {
            self.known.resize(block.number() + 1, u32::MAX);
        }
        self.known[block.number()] = self.blocks;
        self.blocks += 1;
        self.batch.defined.push(at);
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
        // A block goes with what is known of how control came to it, which is told after this.
        if self.batch.ran.len() >= BATCH || self.batch.marks.len() >= BATCH {
            self.send();
        }
        if self.generation != block.generation() {
            self.generation = block.generation();
            self.known.clear();
        }
        let number = self.known.get(block.number()).copied();
        if number.is_none_or(|number| number == u32::MAX) {
            self.define(block);
        }
        let number = self.known.get(block.number()).copied();
        self.batch.ran.push(number.unwrap_or(0));
        self.insns += block.len() as u64;
    }

    fn lost(&mut self, cause: GapCause, offset: StreamOffset) {
        self.mark(self.insns, What::Gap { cause, offset });
    }
}
