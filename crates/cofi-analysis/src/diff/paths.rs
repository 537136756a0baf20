//! The paths of a flow that wait to be compared: blocks that follow each other often, so that most of them need not be looked at one by one.

use std::collections::VecDeque;

use cofi_packet::Ip;
use rustc_hash::FxHashMap;

use super::feed::BlockAt;
use super::tokens::Tokens;

/// A block, as it stands in memory.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) content: u32,
    pub(super) at: BlockAt,
}

/// A path.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathAt {
    /// The same for paths that are the same.
    pub(super) content: u32,
    pub(super) insns: u32,
    /// Where its blocks are, and how many.
    first: u32,
    pub(super) blocks: u32,
    /// The last of them, how many instructions that has, and what it is made of.
    pub(super) last_block: u32,
    pub(super) last_len: u32,
    pub(super) last_content: u32,
}

/// What of one recording is known.
#[derive(Debug, Default)]
pub(super) struct Known {
    locals: Vec<Local>,
    by_place: FxHashMap<(u32, Ip), u32>,
    /// By the feed's numbers of blocks.
    numbers: Vec<u32>,
    /// By the feed's numbers of paths.
    paths: Vec<PathAt>,
    blocks: Vec<u32>,
}

impl Known {
    /// The next of the feed's blocks.
    pub(super) fn add_block(&mut self, side: usize, block: BlockAt, tokens: &mut Tokens<'_>) {
        let content = tokens.define(side, &block);
        let first = block.runs.first().map_or(Ip(0), |run| run.ip);
        let next = self.locals.len() as u32;
        let number = *self.by_place.entry((content, first)).or_insert(next);
        if number == next {
            self.locals.push(Local { content, at: block });
        }
        self.numbers.push(number);
    }

    /// The next of the feed's paths.
    pub(super) fn add_path(&mut self, blocks: &[u32], tokens: &mut Tokens<'_>) {
        let first = self.blocks.len();
        let local = |number: &u32| self.numbers.get(*number as usize).copied().unwrap_or(0);
        self.blocks.extend(blocks.iter().map(local));
        let blocks = self.blocks.get(first..).unwrap_or_default();
        let content_of = |block: &u32| self.local(*block).map_or(0, |local| local.content);
        let contents: Vec<u32> = blocks.iter().map(content_of).collect();
        let lens = blocks.iter().map(|block| self.len_of(*block));
        let last_block = blocks.last().copied().unwrap_or(0);
        let path = PathAt {
            insns: lens.sum(),
            first: first as u32,
            blocks: blocks.len() as u32,
            last_block,
            last_len: self.len_of(last_block),
            last_content: content_of(&last_block),
            content: tokens.define_path(contents),
        };
        self.paths.push(path);
    }

    #[inline]
    pub(super) fn local(&self, block: u32) -> Option<&Local> {
        self.locals.get(block as usize)
    }

    #[inline]
    pub(super) fn len_of(&self, block: u32) -> u32 {
        let local = self.locals.get(block as usize);
        local.map_or(1, |local| local.at.lens.len() as u32)
    }
}

/// A place in a flow, of what waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    /// Which part the next path is of, and which of it.
    part: u64,
    index: u32,
    /// Which of its blocks comes, and how many instructions of that are past.
    block: u32,
    within: u32,
}

impl Cursor {
    /// Nothing of the next path is past.
    #[inline]
    pub(super) const fn is_at_path(&self) -> bool {
        self.block == 0 && self.within == 0
    }

    /// Nothing of the next block is past.
    #[inline]
    pub(super) const fn is_at_block(&self) -> bool {
        self.within == 0
    }

    /// How many instructions of the next block are past.
    #[inline]
    pub(super) const fn within(&self) -> u32 {
        self.within
    }
}

/// Paths that wait.
#[derive(Debug, Default)]
pub(super) struct PathQueue {
    /// As they came: to put them together would take room for all of them twice.
    parts: VecDeque<Box<[u32]>>,
    /// The number of the first part.
    first: u64,
    /// How many blocks there are from the front on.
    blocks: usize,
}

impl PathQueue {
    pub(super) fn push(&mut self, ran: Box<[u32]>, known: &Known) {
        if ran.is_empty() {
            return;
        }
        let lens = ran.iter().map(|path| {
            let path = known.paths.get(*path as usize);
            path.map_or(0, |path| path.blocks as usize)
        });
        self.blocks += lens.sum::<usize>();
        self.parts.push_back(ran);
    }

    /// How many blocks wait, those of the path at the front included.
    pub(super) const fn blocks(&self) -> usize {
        self.blocks
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The path there.
    #[inline]
    pub(super) fn path<'k>(&self, at: &Cursor, known: &'k Known) -> Option<&'k PathAt> {
        let part = self.parts.get(at.part.wrapping_sub(self.first) as usize)?;
        known.paths.get(*part.get(at.index as usize)? as usize)
    }

    /// The block there.
    #[inline]
    pub(super) fn block(&self, at: &Cursor, known: &Known) -> Option<u32> {
        let path = self.path(at, known)?;
        known.blocks.get((path.first + at.block) as usize).copied()
    }

    /// Goes past the path there, or its rest.
    #[inline]
    pub(super) fn skip_path(&self, at: &mut Cursor) {
        (at.block, at.within) = (0, 0);
        at.index += 1;
        let part = self.parts.get(at.part.wrapping_sub(self.first) as usize);
        if part.is_none_or(|part| at.index as usize >= part.len()) {
            (at.part, at.index) = (at.part + 1, 0);
        }
    }

    /// Goes past so many instructions of the block there, up to its end at most.
    #[inline]
    pub(super) fn advance(&self, at: &mut Cursor, insns: u32, known: &Known) {
        let Some(path) = self.path(at, known) else {
            return;
        };
        at.within += insns;
        let block = known.blocks.get((path.first + at.block) as usize);
        if block.is_none_or(|block| at.within >= known.len_of(*block)) {
            (at.block, at.within) = (at.block + 1, 0);
            if at.block >= path.blocks {
                self.skip_path(at);
            }
        }
    }

    /// The same at the front: what is past is forgotten.
    #[inline]
    pub(super) fn pass_in_block(&mut self, front: &mut Cursor, insns: u32, known: &Known) {
        let before = *front;
        let blocks = self.path(front, known).map_or(0, |path| path.blocks);
        self.advance(front, insns, known);
        if (front.part, front.index) != (before.part, before.index) {
            self.forget(front, blocks);
        }
    }

    /// Goes past the path at the front.
    #[inline]
    pub(super) fn pass_path(&mut self, front: &mut Cursor, known: &Known) {
        let blocks = self.path(front, known).map_or(0, |path| path.blocks);
        self.skip_path(front);
        self.forget(front, blocks);
    }

    #[inline]
    fn forget(&mut self, front: &Cursor, blocks: u32) {
        self.blocks = self.blocks.saturating_sub(blocks as usize);
        while self.first < front.part && self.parts.pop_front().is_some() {
            self.first += 1;
        }
    }
}
