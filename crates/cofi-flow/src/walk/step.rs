//! The walk block by block: what comes next where packets bind to single instructions.

use core::ops::Range;

use cofi_insn::{Class, CodeSource, advance};
use cofi_packet::{ExecMode, Ip};

use super::{Phase, Walker};
use crate::bind::{Binder, State};
use crate::code::cache::End;
use crate::family::WalkFamily;
use crate::{Executed, Item};

/// The least that the walk goes on by.
pub(crate) enum Step {
    /// Anything that stands alone.
    Item(Item),
    /// Plain instructions are due.
    Plain,
    /// What ends this block is.
    End(u32),
}

/// A [`Part`] whose instructions are still in the cache.
pub(crate) enum Piece {
    /// Anything that stands alone.
    Item(Item),
    /// Instructions that ran one after the other.
    Run {
        ip: Ip,
        mode: ExecMode,
        /// Where in the cache the lengths of the plain ones are.
        plain: Range<usize>,
        last: Option<Executed>,
        /// Where the packet used last begins.
        offset: usize,
    },
}

impl<C: CodeSource> Walker<C> {
    /// Goes on until something is due.
    #[inline]
    pub(crate) fn step<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>) -> Option<Step> {
        loop {
            if !self.body.is_empty() {
                return Some(Step::Plain);
            }
            if let Some(item) = bind.emit.items.pop_front() {
                return Some(Step::Item(item));
            }
            match (bind.state, self.phase) {
                (State::On, Phase::Enter) => self.enter(bind),
                (State::On, Phase::End(block)) => return Some(Step::End(block)),
                (State::Done, _) => return None,
                _ => bind.go_on(self),
            }
        }
    }

    /// What comes next, in pieces as large as they come: the plain instructions of a block with what ends it.
    pub(crate) fn next_piece<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>) -> Option<Piece> {
        loop {
            let (plain, block) = match self.step(bind)? {
                Step::Item(item) => return Some(Piece::Item(item)),
                Step::Plain => {
                    let plain = core::mem::replace(&mut self.body, 0..0);
                    match self.phase {
                        // Where code is missing it is asked for again, which may empty the cache.
                        Phase::End(block) if self.cache.block(block).end != End::Fault => {
                            (plain, Some(block))
                        }
                        _ => (plain, None),
                    }
                }
                Step::End(block) => (0..0, Some(block)),
            };
            let (ip, mode, before) = (self.ip, bind.mode, bind.offset);
            let lens = self.cache.lens(plain.clone()).iter();
            self.ip = lens.fold(ip, |ip, len| advance(ip, *len, mode));
            let last = match block {
                Some(block) if bind.state == State::On && bind.emit.items.is_empty() => {
                    self.finish(bind, block)
                }
                _ => None,
            };
            if last.is_some() || !plain.is_empty() {
                return Some(Piece::Run {
                    ip,
                    mode,
                    plain,
                    last,
                    // What the last instruction would have needed may have been read in vain.
                    offset: if last.is_some() { bind.offset } else { before },
                });
            }
        }
    }

    /// The next of a block's plain instructions.
    #[inline]
    pub(crate) fn next_plain(&mut self) -> Option<Item> {
        let index = self.body.next()?;
        let (len, digest) = (self.cache.len_at(index), self.cache.digest_at(index));
        let ip = self.ip;
        self.ip = advance(ip, len, self.mode);
        Some(Item::Insn(Executed {
            ip,
            len,
            class: Class::Other,
            mode: self.mode,
            digest,
        }))
    }
}
