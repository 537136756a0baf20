//! Calls of a part of a stream, followed while it is not known which calls are open where it begins.
//!
//! Most calls that begin in a part are left in it, and what happens to them asks for nothing beneath them: so a worker takes account of those, and tells
//! a [`LocalVisitor`] of them. What is left is written down for whoever knows the calls that were open before: steps that the rules have to look
//! at, calls that stay open, and what was taken to be true of the calls beneath.

use cofi_flow::{Item, Path};
use cofi_image::{ImageView, Version};
use cofi_packet::{Ip, StreamOffset};
use cofi_session::ThreadFlow;

use super::inlines::{Chain, ChainKey};
use super::local_calls::{Local, LocalAround};
use super::marks::{MarkList, PieceMark};
use super::names::{CallNames, Location, NewNames};
use super::net::Netting;
use super::source::Stand;
use super::thread::Coming;
use super::tracer::{Code, era_of};
use super::tracks::{Slot, Stays, StepKind};
use super::{CallKind, FunctionId, Left};

/// A call that began in a part, and was left in it.
///
/// Places count the instructions of the part before them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LocalCall {
    /// The function.
    pub function: FunctionId,
    /// How it began.
    pub kind: CallKind,
    /// How many instructions of the part ran before it.
    pub begin: u64,
    /// The packet that led there.
    pub offset: StreamOffset,
    /// How many calls are around it, of those that began in the part since the last [stretch](LocalVisitor::take).
    pub depth: u32,
    /// How it was left.
    pub left: Left,
}

/// What calls of a function come to that began and were left along a path.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LocalSum {
    /// The function.
    pub function: FunctionId,
    /// The instructions that ran in itself.
    pub own: u32,
    /// Those that ran while it was open, each once however often it was.
    pub total: u32,
    /// How many calls of it there were.
    pub calls: u32,
    /// It is one that was inlined.
    pub is_inlined: bool,
}

/// Is told of the calls that begin in parts and are left there.
///
/// The numbers of functions are those of the worker: whoever follows the parts tells what they mean.
pub trait LocalVisitor: Send {
    /// What is noted of a stretch of a part.
    type Stretch: Send;

    /// A part begins. So many instructions have the pieces into which it is cut: whoever follows the parts is told [when](super::PartVisitor::mark) each begins, and
    /// no [sum](Self::sum) is of more than one of them.
    fn begin(&mut self) -> u64;

    /// How many bytes that takes, about.
    fn size(stretch: &Self::Stretch) -> usize;

    /// A call begins.
    fn enter(&mut self, function: FunctionId, kind: CallKind, begin: u64);

    /// A call is left, at that place and packet. The one around it is of this function if it began in the stretch.
    fn leave(&mut self, call: &LocalCall, end: (u64, StreamOffset), outer: Option<FunctionId>);

    /// Calls that were left before so many instructions ran in them need not be told of one by one.
    const LONG: u64;

    /// Calls began and were left: in the innermost call, or in such ones.
    fn sum(&mut self, sum: &LocalSum);

    /// So much ran: another piece has begun.
    fn ran(&mut self, at: u64);

    /// The stretch ends here. Calls that are open are open no more, as far as the next stretch goes: the functions of `open`.
    fn take(&mut self, at: u64, open: &mut dyn Iterator<Item = FunctionId>) -> Self::Stretch;

    /// What ran up to here is to be counted by whoever follows: no calls began.
    fn skip(&mut self, at: u64);
}

/// A call that began in a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalFrame {
    pub(super) function: FunctionId,
    /// Of an inlined function, the chain of which it is the innermost; 0 of others.
    pub(super) chain: Chain,
    pub(super) kind: CallKind,
    /// Nobody was told of it, as the function may be the one to which it jumps.
    pub(super) is_stub: bool,
    pub(super) ret: Ip,
    pub(super) from: Ip,
    pub(super) to: Ip,
    pub(super) jumper: Option<FunctionId>,
    pub(super) begin: u64,
    pub(super) offset: StreamOffset,
    /// The how-manieth it is of its stretch.
    pub(super) number: u32,
    /// The instructions that ran in it and in nothing that it called, as far as they were counted.
    pub(super) self_insns: u64,
}

/// What is written down.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) kind: OpKind,
    /// How many instructions of the part ran before it, and the packet that led there.
    pub(super) at: u64,
    pub(super) offset: StreamOffset,
}

#[derive(Debug)]
pub(super) enum OpKind {
    /// Control comes to an instruction, somehow.
    Arrive(Ip, Location),
    /// A step for the rules.
    Step(StepKind),
    /// A stretch ends.
    Stretch(StretchEnd),
    /// A call of the stretch is open.
    Open(LocalFrame),
}

#[derive(Debug, Default)]
pub(super) struct StretchEnd {
    /// Where it begins.
    pub(super) begin: u64,
    /// How many numbers of calls were given, and how many calls earn credit.
    pub(super) numbers: u32,
    pub(super) earned: u32,
    /// The instructions that ran in the call beneath, and in nothing that it called.
    pub(super) around: u64,
    /// How many were open at a time.
    pub(super) deepest: usize,
    /// The call beneath is no stub, and returns to none of these.
    pub(super) jumps: Vec<Ip>,
    /// Something is noted of it.
    pub(super) is_noted: bool,
    /// A call began: if the call beneath might have been a stub, it was none.
    pub(super) tells: bool,
}

/// What ran between two events.
#[derive(Debug)]
pub(super) struct Piece<'s> {
    /// The code in place; none if it is the same as before.
    pub(super) view: Option<ImageView<'s>>,
    /// Where it ends in the list of what is written down.
    pub(super) ops: usize,
    /// How many instructions of the part ran by its end.
    pub(super) at: u64,
    /// Of the path that ran last: how it ends, its last instruction, the packet behind.
    pub(super) end: Option<(Coming, Ip, StreamOffset)>,
    pub(super) item: Option<Item>,
    pub(super) stand: Stand,
}

/// Functions and chains that a worker met first in a part.
#[derive(Debug, Default)]
pub(super) struct NewNumbers {
    pub(super) worker: usize,
    pub(super) names: NewNames,
    pub(super) chains: Vec<ChainKey>,
}

/// A part of a stream whose calls were followed as far as that is possible without knowing what is open where it begins.
#[derive(Debug)]
pub struct TracedPart<'s, S> {
    pub(super) is_whole: bool,
    pub(super) numbers: NewNumbers,
    /// Those of parts that were decoded apart before this one was decoded in their place. Nothing else of those parts counts.
    pub(super) replaced: Vec<NewNumbers>,
    pub(super) ops: Vec<Op>,
    pub(super) stretches: Vec<S>,
    /// How many bytes those take.
    pub(super) noted: usize,
    pub(super) pieces: Vec<Piece<'s>>,
    /// Where the pieces of a [visitor](LocalVisitor::begin) begin, whether the calls were followed or not.
    pub(super) marks: MarkList,
}

impl<S> TracedPart<'_, S> {
    /// Where the pieces of a [visitor](LocalVisitor::begin) begin, if it is not followed as a part: for [`CallTracer::tell_marks`](super::CallTracer::tell_marks).
    #[must_use]
    pub fn marks(&self) -> &[PieceMark] {
        self.marks.list()
    }

    /// How many bytes of memory it takes, about.
    pub(crate) fn size(&self) -> usize {
        let marks = size_of_val(self.marks());
        let ops = self.ops.len() * size_of::<Op>();
        self.noted + ops + self.pieces.len() * size_of::<Piece<'_>>() + marks
    }

    /// It takes the place of what was decoded of parts of it.
    pub(crate) fn replace(&mut self, other: Self) {
        // Those come first that were met first.
        self.replaced.extend(other.replaced);
        self.replaced.push(other.numbers);
    }
}

/// A worker that follows calls of parts.
#[derive(Debug)]
pub(crate) struct PartTracer<'s, V> {
    worker: usize,
    code: Code<'s>,
    names: CallNames,
    /// How many functions and chains were passed on.
    sent: (usize, usize),
    visitor: V,
    netting: Netting,
    most: usize,
}

impl<'s, V: LocalVisitor> PartTracer<'s, V> {
    /// A worker that writes down no more than so many bytes of a part: one of which there are more is not kept, and whoever follows decodes it.
    pub(crate) fn new(worker: usize, with_inlined: bool, most: usize, visitor: V) -> Self {
        let mut code = Code::default();
        code.with_inlined = with_inlined;
        Self {
            worker,
            code,
            names: CallNames::default(),
            sent: (0, 0),
            visitor,
            netting: Netting::default(),
            most,
        }
    }

    /// Begins with a part.
    pub(crate) fn begin(&mut self) -> PartRun<'_, 's, V> {
        let piece = self.visitor.begin();
        PartRun {
            part: TracedPart {
                is_whole: true,
                numbers: NewNumbers {
                    worker: self.worker,
                    ..NewNumbers::default()
                },
                replaced: Vec::new(),
                ops: Vec::new(),
                stretches: Vec::new(),
                noted: 0,
                pieces: Vec::new(),
                marks: MarkList::default(),
            },
            view: None,
            is_new: None,
            mode: None,
            passed: None,
            local: Local::new(self.code.with_inlined),
            piece,
            next: piece,
            next_mark: 0,
            stand: StreamOffset(0),
            stays: Stays::after(&Coming::Anew),
            chain: NO_CHAIN,
            tracer: self,
        }
    }
}

/// It is not known which inlined functions run.
const NO_CHAIN: Chain = Chain::MAX;

/// Follows the calls of a part.
#[derive(Debug)]
pub(crate) struct PartRun<'r, 's, V: LocalVisitor> {
    tracer: &'r mut PartTracer<'s, V>,
    part: TracedPart<'s, V::Stretch>,
    /// The code that was in place last.
    view: Option<([u64; 4], Version)>,
    /// That of the piece, if it is new.
    is_new: Option<ImageView<'s>>,
    /// The number of the code in its mode.
    mode: Option<u32>,
    local: Local,
    /// How many instructions a piece has; where the one begins of which the visitor is told next; and the one whose time is to be told.
    piece: u64,
    next: u64,
    next_mark: u64,
    /// What runs stands behind this packet.
    stand: StreamOffset,
    /// The last of the paths that did nothing to the stack, and its packet.
    passed: Option<(Slot, StreamOffset)>,
    stays: Stays,
    chain: Chain,
}

impl<'s, V: LocalVisitor> PartRun<'_, 's, V> {
    /// What comes next runs with this code in place.
    pub(crate) fn begin_piece(&mut self, flow: &mut ThreadFlow<'s>) {
        self.tracer.code.now = None;
        self.tracer.code.settle(flow);
        let view = flow.view();
        let state = (view.state(), view.version());
        let is_new = self.view.replace(state) != Some(state);
        self.is_new = is_new.then(|| view.clone());
        self.mode = None;
        self.stand = self.stand.max(flow.offset());
        self.local.begin_piece();
        (self.stays, self.chain) = (Stays::after(&Coming::Anew), NO_CHAIN);
    }

    /// An event or error came, or the end.
    pub(crate) fn end_piece(&mut self, item: Option<Item>, flow: &mut ThreadFlow<'s>, task: bool) {
        self.unpass();
        let Self {
            tracer,
            part,
            local,
            ..
        } = self;
        local.flush(part, &mut tracer.visitor);
        let end = match local.coming {
            Some(coming) => Some((coming, local.last_ip, local.offset)),
            None => None,
        };
        part.pieces.push(Piece {
            view: self.is_new.take(),
            ops: part.ops.len(),
            at: local.total,
            end,
            item,
            stand: Stand::of(flow, task && item.is_some()),
        });
        if part.size() >= tracer.most {
            self.give_up();
        }
    }

    /// Takes account of the paths that did nothing to the stack.
    #[inline]
    fn unpass(&mut self) {
        if let Some((slot, last)) = self.passed.take()
            && let Some(track) = self.tracer.code.tracks.of_slot(&slot)
        {
            self.local.stand_behind(track, last);
        }
    }

    /// A path ran.
    #[inline]
    pub(crate) fn path(&mut self, path: &Path<'_>) {
        let Some((era, _)) = self.tracer.code.now else {
            return;
        };
        // The mode changes with an event only.
        let code = *self.mode.get_or_insert_with(|| era_of(era, path.mode()));
        let (number, last) = (path.number(), path.offset());
        let end = self.local.total + path.len() as u64;
        if end > self.next_mark {
            self.mark(code, path);
        }
        if let Some(number) = number
            && let Some(slot) = self.tracer.code.tracks.slot(code, number)
            && slot.passes(self.stays, self.chain)
        {
            self.local.total += u64::from(slot.insns);
            self.passed = Some((*slot, last));
            self.stays = slot.end;
        } else {
            self.unpass();
            let in_order = end > self.next;
            let Self {
                tracer,
                part,
                local,
                ..
            } = self;
            let known = number.and_then(|number| tracer.code.tracks.get(code, number));
            if let Some((_, known)) = known {
                let around = &mut LocalAround {
                    inlines: &tracer.code.inlines,
                    names: &tracer.names,
                    part,
                    visitor: &mut tracer.visitor,
                };
                local.path(known, last, in_order, around);
            } else {
                self.learn(code, path, in_order);
            }
            if self.part.size() >= self.tracer.most {
                self.give_up();
            }
            self.stays = self.local.coming.map_or_else(
                || Stays::after(&Coming::Anew),
                |coming| Stays::after(&coming),
            );
            self.chain = self.local.chain().unwrap_or(NO_CHAIN);
        }
        if self.local.total >= self.next && !self.local.is_in_stub() {
            self.tracer.visitor.ran(self.local.total);
            let begun = self.local.total / self.piece.max(1);
            self.next = begun.saturating_add(1).saturating_mul(self.piece);
        }
    }

    /// A path is to run in which pieces begin.
    #[cold]
    fn mark(&mut self, code: u32, path: &Path<'_>) {
        self.unpass();
        let PartTracer {
            code: known, names, ..
        } = &mut *self.tracer;
        let Code {
            now,
            index,
            shapes,
            inlines,
            with_inlined,
            ..
        } = known;
        let Some((_, view)) = now else {
            return;
        };
        let is_known = path.number().is_some();
        let (mut at, mut offset) = (self.local.total, self.local.offset.max(self.stand));
        let (marks, next, piece) = (&mut self.part.marks, &mut self.next_mark, self.piece);
        path.for_each(|block| {
            at += block.len() as u64;
            while *next < at {
                marks.push(*next, piece.max(1), offset);
                *next = next.saturating_add(piece.max(1));
            }
            // As it is where a path is learnt.
            let is_decided = is_known || {
                let number = index.number(code, block.ip(), block.len() as u32, || {
                    let inlines = with_inlined.then_some(&mut *inlines);
                    shapes.push_block(block, names, view, inlines)
                });
                shapes
                    .get(number)
                    .is_some_and(|(shape, _)| shape.is_decided())
            };
            if is_decided {
                offset = offset.max(block.offset());
            }
        });
    }

    #[cold]
    fn learn(&mut self, code: u32, path: &Path<'_>, in_order: bool) {
        let Self {
            tracer,
            part,
            local,
            ..
        } = self;
        let PartTracer {
            code: known,
            names,
            visitor,
            netting,
            ..
        } = &mut **tracer;
        let Code {
            now,
            index,
            shapes,
            tracks,
            inlines,
            with_inlined,
            ..
        } = known;
        let Some((_, view)) = now else {
            return;
        };
        let (number, last) = (path.number(), path.offset());
        tracks.begin(last);
        let mut offset = local.offset;
        path.for_each(|block| {
            let of_block = index.number(code, block.ip(), block.len() as u32, || {
                let inlines = with_inlined.then_some(&mut *inlines);
                shapes.push_block(block, names, view, inlines)
            });
            let Some((shape, hops)) = shapes.get(of_block) else {
                return;
            };
            // A piece that ends before anything is decided, or with a direct branch, may be told by a packet that leads on from behind it.
            if number.is_some() || shape.is_decided() {
                offset = block.offset();
            }
            tracks.note(shape, hops, shapes.spans(shape), offset, names);
        });
        let known = tracks.noted(|brief, net| {
            net.extend_from_slice(netting.of(brief, inlines, *with_inlined, V::LONG));
        });
        if let Some(known) = known {
            let around = &mut LocalAround {
                inlines: &*inlines,
                names: &*names,
                part,
                visitor,
            };
            local.path(known, last, in_order, around);
        }
        tracks.end(code, number);
    }

    /// Too much is to be written down.
    #[cold]
    fn give_up(&mut self) {
        self.part.is_whole = false;
        self.part.ops.clear();
        self.part.stretches.clear();
        self.part.noted = 0;
        self.part.pieces.clear();
    }

    /// What was followed.
    pub(crate) fn finish(self) -> TracedPart<'s, V::Stretch> {
        let Self {
            tracer, mut part, ..
        } = self;
        if !part.is_whole || part.size() >= tracer.most {
            part.is_whole = false;
            (part.ops, part.stretches, part.pieces) = (Vec::new(), Vec::new(), Vec::new());
        }
        let (functions, chains) = tracer.sent;
        part.numbers.names = tracer.names.since(functions);
        part.numbers.chains = tracer.code.inlines.since(chains).to_vec();
        tracer.sent = (tracer.names.len(), chains + part.numbers.chains.len());
        part
    }
}
