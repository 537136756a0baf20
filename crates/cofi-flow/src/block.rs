//! Blocks: the flow in larger pieces than instructions.

use cofi_insn::RunningChecksum;
use cofi_packet::{ExecMode, Ip, StreamOffset};

use crate::code::cache::Cache;
use crate::code::graph::Node;
use crate::code::memo;
use crate::code::phrase::Phrase;
use crate::{Event, Executed, FlowError, Run};

/// Instructions that ran one after the other, up to one of which only the trace tells where it led: a conditional branch, a
/// return, an indirect or far branch. Direct jumps and calls are followed within a block.
///
/// Where an event strikes, where tracing ends, and around instructions to which other packets bind, what runs comes in
/// smaller pieces, each a block of its own.
#[derive(Clone, Debug)]
pub struct Block<'d> {
    content: Content<'d>,
    /// Where the packet begins that decided where it led.
    offset: usize,
}

#[derive(Clone, Debug)]
enum Content<'d> {
    Node {
        cache: &'d Cache,
        node: &'d Node,
        id: u32,
    },
    Piece(Run<'d>),
}

impl<'d> Block<'d> {
    #[inline]
    pub(crate) fn of_node(cache: &'d Cache, id: u32, offset: usize) -> Self {
        Self {
            content: Content::Node {
                cache,
                node: cache.graph.node(id),
                id,
            },
            offset,
        }
    }

    #[inline]
    pub(crate) fn of_run(run: Run<'d>) -> Self {
        Self {
            offset: run.offset,
            content: Content::Piece(run),
        }
    }

    /// The address of the first instruction.
    #[inline]
    #[must_use]
    pub fn ip(&self) -> Ip {
        match &self.content {
            Content::Node { node, .. } => node.ip,
            Content::Piece(run) => run.ip(),
        }
    }

    /// The mode in which the instructions ran.
    #[inline]
    #[must_use]
    pub fn mode(&self) -> ExecMode {
        match &self.content {
            Content::Node { cache, id, .. } => cache.graph.detail(*id).mode,
            Content::Piece(run) => run.mode(),
        }
    }

    /// How many instructions there are, at least one.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(&self) -> usize {
        match &self.content {
            Content::Node { node, .. } => node.insns as usize,
            Content::Piece(run) => run.len(),
        }
    }

    /// Adds the instructions to those that ran before.
    #[inline(always)]
    pub fn add_to(&self, running: &mut RunningChecksum) {
        match &self.content {
            Content::Node { cache, id, .. } => running.add(cache.graph.checksum(*id)),
            Content::Piece(run) => running.add(&run.checksum()),
        }
    }

    /// Where in the stream the last packet begins that was used for this block.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> StreamOffset {
        StreamOffset(self.offset as u64)
    }

    /// The straight runs of which the block is made: each ends where code does not go on with the next address.
    #[inline]
    pub fn runs(&self) -> impl Iterator<Item = Run<'d>> + use<'d> {
        let (parts, piece) = match &self.content {
            Content::Node { cache, id, .. } => {
                let cache = *cache;
                let parts = cache.graph.parts(*id).iter();
                let offset = self.offset;
                (Some(parts.map(move |id| cache.run(*id, offset))), None)
            }
            Content::Piece(run) => (None, Some(run.clone())),
        };
        parts.into_iter().flatten().chain(piece)
    }

    /// Calls `visit` for each instruction: the fastest way to them.
    #[inline(always)]
    pub fn for_each(&self, mut visit: impl FnMut(Executed)) {
        let flat = match &self.content {
            Content::Node { cache, node, id } => cache.graph.flat.of(*id, node.insns),
            _ => None,
        };
        match flat {
            Some(insns) => insns.iter().copied().for_each(visit),
            None => self.for_each_part(&mut visit),
        }
    }

    /// The same, where they are not there as they are handed out.
    #[inline(never)]
    fn for_each_part(&self, visit: &mut impl FnMut(Executed)) {
        match &self.content {
            Content::Node { cache, id, .. } => {
                for id in cache.graph.parts(*id) {
                    // (Instructions have no place in the stream.)
                    cache.run(*id, 0).for_each(&mut *visit);
                }
            }
            Content::Piece(run) => run.for_each(visit),
        }
    }

    /// The instructions.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Executed> + use<'d> {
        self.runs().flat_map(|run| run.iter())
    }

    /// The last instruction, if it is of another class than [`Class::Other`](cofi_insn::Class::Other): what ends a block, or, of a piece, any such;
    /// none where something happened before that.
    #[inline]
    #[must_use]
    pub fn last(&self) -> Option<Executed> {
        match &self.content {
            Content::Node { cache, id, .. } => {
                let id = *cache.graph.parts(*id).last()?;
                cache.run(id, 0).last()
            }
            Content::Piece(run) => run.last(),
        }
    }
}

/// Blocks that ran one after the other: as many as are known to belong together, at least one.
///
/// What only counts need not look at the blocks.
#[derive(Clone, Debug)]
pub struct Path<'d> {
    blocks: Blocks<'d>,
}

/// Which blocks a [`Path`] is made of: the same number is the same blocks, in the same order. The converse does not hold.
///
/// Numbers are unique among all decoders of a program, and lose their meaning when a decoder forgets what it has decoded: then others are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathNumber {
    generation: usize,
    index: usize,
}

impl PathNumber {
    /// The one of which these are told.
    #[inline]
    #[must_use]
    pub const fn new(generation: usize, index: usize) -> Self {
        Self { generation, index }
    }

    /// What all paths have in common that are remembered in one place.
    #[inline]
    #[must_use]
    pub const fn generation(self) -> usize {
        self.generation
    }

    /// Among these, a number that is about as small as there are paths: it may be the index of a list.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.index
    }
}

#[derive(Clone, Debug)]
enum Blocks<'d> {
    One(Block<'d>),
    Path {
        cache: &'d Cache,
        path: &'d memo::Path,
        number: u32,
        /// Where the TNT begins of which the bits are.
        offset: usize,
    },
    Phrase {
        cache: &'d Cache,
        phrase: &'d Phrase,
        number: u32,
        /// Where its first packet begins.
        at: usize,
    },
}

impl<'d> Path<'d> {
    #[inline]
    pub(crate) fn of_block(block: Block<'d>) -> Self {
        Self {
            blocks: Blocks::One(block),
        }
    }

    #[inline]
    pub(crate) fn of_node(cache: &'d Cache, id: u32, offset: usize) -> Self {
        Self::of_block(Block::of_node(cache, id, offset))
    }

    #[inline]
    pub(crate) fn of_path(cache: &'d Cache, number: u32, offset: usize) -> Self {
        Self {
            blocks: Blocks::Path {
                cache,
                path: cache.graph.memo.path(number),
                number,
                offset,
            },
        }
    }

    #[inline]
    pub(crate) fn of_phrase(cache: &'d Cache, number: u32, at: usize) -> Self {
        Self {
            blocks: Blocks::Phrase {
                cache,
                phrase: cache.graph.phrases.phrase(number),
                number,
                at,
            },
        }
    }

    /// How many instructions there are, at least one.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a path is never empty")]
    pub fn len(&self) -> usize {
        match &self.blocks {
            Blocks::One(block) => block.len(),
            Blocks::Path { path, .. } => path.insns as usize,
            Blocks::Phrase { phrase, .. } => phrase.insns as usize,
        }
    }

    /// Which blocks these are, if they are remembered: to count them, who has looked at them once need not do so again.
    #[inline]
    #[must_use]
    pub fn number(&self) -> Option<PathNumber> {
        let (cache, number, kind) = match &self.blocks {
            Blocks::One(block) => match block.content {
                Content::Node { cache, id, .. } => (cache, id, 0),
                Content::Piece(_) => return None,
            },
            Blocks::Path { cache, number, .. } => (*cache, *number, 1),
            Blocks::Phrase { cache, number, .. } => (*cache, *number, 2),
        };
        Some(PathNumber {
            generation: cache.graph.generation(),
            index: number as usize * 3 + kind,
        })
    }

    /// Adds the instructions to those that ran before.
    #[inline(always)]
    pub fn add_to(&self, running: &mut RunningChecksum) {
        match &self.blocks {
            Blocks::One(block) => block.add_to(running),
            Blocks::Path { cache, number, .. } => running.add(cache.graph.memo.checksum(*number)),
            Blocks::Phrase { cache, number, .. } => {
                running.add(cache.graph.phrases.checksum(*number))
            }
        }
    }

    /// Where in the stream the last packet begins that was used for these blocks.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> StreamOffset {
        match &self.blocks {
            Blocks::One(block) => block.offset(),
            Blocks::Path { offset, .. } => StreamOffset(*offset as u64),
            Blocks::Phrase { phrase, at, .. } => {
                StreamOffset((at + usize::from(phrase.last)) as u64)
            }
        }
    }

    /// The address of the first instruction.
    #[inline]
    #[must_use]
    pub fn ip(&self) -> Ip {
        match &self.blocks {
            Blocks::One(block) => block.ip(),
            Blocks::Path { cache, path, .. } => {
                let first = path.nodes().first();
                first.map_or(Ip(0), |id| cache.graph.node(*id).ip)
            }
            Blocks::Phrase { cache, phrase, .. } => {
                let first = cache.graph.phrases.nodes(phrase).first();
                first.map_or(Ip(0), |(id, _)| cache.graph.node(*id).ip)
            }
        }
    }

    /// The mode in which the first block ran. It changes with events only, and these come between paths.
    #[inline]
    #[must_use]
    pub fn mode(&self) -> ExecMode {
        let of_node = |cache: &Cache, id: Option<u32>| {
            id.map_or(ExecMode::Bits64, |id| cache.graph.detail(id).mode)
        };
        match &self.blocks {
            Blocks::One(block) => block.mode(),
            Blocks::Path { cache, path, .. } => of_node(cache, path.nodes().first().copied()),
            Blocks::Phrase { cache, phrase, .. } => {
                let first = cache.graph.phrases.nodes(phrase).first();
                of_node(cache, first.map(|(id, _)| *id))
            }
        }
    }

    /// Calls `visit` for each block.
    #[inline(always)]
    pub fn for_each(&self, mut visit: impl FnMut(&Block<'d>)) {
        match &self.blocks {
            Blocks::One(block) => visit(block),
            Blocks::Path {
                cache,
                path,
                offset,
                ..
            } => {
                for id in path.nodes() {
                    visit(&Block::of_node(cache, *id, *offset));
                }
            }
            Blocks::Phrase {
                cache, phrase, at, ..
            } => {
                for (id, offset) in cache.graph.phrases.nodes(phrase) {
                    visit(&Block::of_node(cache, *id, at + usize::from(*offset)));
                }
            }
        }
    }
}

impl Cache {
    /// A straight run, whole.
    #[inline]
    pub(crate) fn run(&self, id: u32, offset: usize) -> Run<'_> {
        let straight = self.block(id);
        let first = straight.first as usize;
        Run {
            ip: straight.ip,
            mode: straight.mode,
            plain: self.lens(first..first + usize::from(straight.body)),
            digests: self.digests(first..first + usize::from(straight.body)),
            last: straight.end.has_insn().then_some(Executed {
                ip: straight.term_ip,
                len: straight.len,
                class: straight.class,
                mode: straight.mode,
                digest: straight.digest,
            }),
            offset,
        }
    }
}

/// What to do with each piece of a flow: see [`FlowDecoder::visit`](crate::FlowDecoder::visit).
///
/// Every method does nothing unless it is given, and what does nothing costs nothing: a visitor that only looks at blocks does
/// not pay for their instructions.
pub trait Visitor {
    /// Blocks have run. Unless given, this visits them.
    #[inline(always)]
    fn path(&mut self, path: &Path<'_>) {
        path.for_each(|block| self.block(block));
    }

    /// A block has run. Unless given, this visits its instructions.
    #[inline(always)]
    fn block(&mut self, block: &Block<'_>) {
        block.for_each(|insn| self.instruction(&insn));
    }

    /// An instruction has run.
    #[inline]
    fn instruction(&mut self, insn: &Executed) {
        let _ = insn;
    }

    /// Something else has happened. `offset` is where in the stream the last packet begins that was used by then.
    #[inline]
    fn event(&mut self, event: &Event, offset: StreamOffset) {
        let _ = (event, offset);
    }

    /// The flow was lost; it goes on where the address is known again.
    #[inline]
    fn error(&mut self, error: &FlowError) {
        let _ = error;
    }
}
