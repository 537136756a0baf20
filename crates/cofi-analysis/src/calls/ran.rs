//! Instructions that ran, as visitors of calls see them.

use cofi_flow::Block;
use cofi_image::ImageView;
use cofi_insn::{Class, advance};
use cofi_packet::{ExecMode, Ip};

/// Instructions that ran one after the other.
#[derive(Debug)]
pub struct RanBlock<'a> {
    pub(super) number: usize,
    pub(super) generation: u64,
    pub(super) view: &'a ImageView<'a>,
    pub(super) content: Content<'a>,
}

/// Blocks that ran one after the other, and did so before.
#[derive(Clone, Copy, Debug)]
pub struct RanPath {
    pub(super) number: usize,
    pub(super) generation: u64,
    pub(super) len: usize,
}

impl RanPath {
    /// The number that [`CallVisitor::path_ended`](super::CallVisitor::path_ended) told behind the blocks.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// Numbers begin anew with each generation.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// How many instructions there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "something ran")]
    pub const fn len(&self) -> usize {
        self.len
    }
}

#[derive(Debug)]
pub(super) enum Content<'a> {
    Block(&'a Block<'a>),
    /// A straight run: its first instruction, its mode, and the lengths of its instructions.
    Run(Ip, ExecMode, &'a [u8]),
}

impl RanBlock<'_> {
    /// Blocks of the same number and [generation](Self::generation) are the same instructions. Numbers are small.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// Numbers begin anew with each generation.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The code that was in place.
    #[must_use]
    pub const fn view(&self) -> &ImageView<'_> {
        self.view
    }

    /// How many instructions there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "something ran")]
    pub fn len(&self) -> usize {
        match &self.content {
            Content::Block(block) => block.len(),
            Content::Run(_, _, lens) => lens.len(),
        }
    }

    /// What its last instruction does to the flow, if that is known and not [`Class::Other`].
    #[must_use]
    pub fn last_class(&self) -> Option<Class> {
        match &self.content {
            Content::Block(block) => block.last().map(|last| last.class),
            Content::Run(..) => None,
        }
    }

    /// Calls `visit` for each instruction, with its address, its length and its mode.
    pub fn for_each(&self, mut visit: impl FnMut(Ip, u8, ExecMode)) {
        match &self.content {
            Content::Block(block) => block.for_each(|insn| visit(insn.ip, insn.len, insn.mode)),
            Content::Run(ip, mode, lens) => {
                let mut ip = *ip;
                for len in *lens {
                    visit(ip, *len, *mode);
                    ip = advance(ip, *len, *mode);
                }
            }
        }
    }
}
