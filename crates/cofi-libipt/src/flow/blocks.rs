//! Block by block.

use std::ffi::c_int;

use super::{Status, Walker};
use crate::block::CBlock;
use crate::boundary::returned;
use crate::code::{Flow, NONE};
use crate::config::Errata;
use crate::error::Error;
use crate::event::{ptev, status};

impl Walker {
    /// The next block and the flags behind it, if it is at hand, and where control goes behind it.
    #[inline(always)]
    pub(crate) fn block_at_hand(&mut self, out: &mut CBlock) -> Option<c_int> {
        // SAFETY: as in `parts`, from which it differs in that return addresses go to another field meanwhile.
        let image = unsafe { &*self.image };
        if image.code.epoch != self.cursor.epoch {
            return None;
        }
        let block = image.code.blocks.get(self.block as usize)?;
        let result = match self.query.result_in_hand() {
            Some(result) => result,
            None if block.flow == Flow::Conditional && self.query.take_tnt_of_two() => {
                self.query.result_in_hand()?
            }
            None => return None,
        };
        let number = block.links[usize::from(result)];
        let next = image.code.blocks.get(number as usize)?;
        *out = block.block;
        out.flags |= u8::from(self.speculative);
        self.ret_stack.push_all(&block.returns);
        self.query.take_result_in_hand();
        (self.cursor.ip, self.cursor.entry) = (next.block.ip, next.first);
        self.block = number;
        // (As another result is in hand behind this one.)
        self.calm = 0;
        Some(0)
    }

    /// The next block, whose number of instructions is 0 if there is none; and the flags behind it, or an error.
    #[inline(never)]
    pub(crate) extern "C" fn next_block(&mut self, out: &mut CBlock) -> c_int {
        returned(|| self.next_block_or_error(out))
    }

    #[inline(always)]
    fn next_block_or_error(&mut self, out: &mut CBlock) -> Status {
        let (image, cursor, _) = self.parts();
        if image.code.epoch == cursor.epoch
            && let Some(status) = self.whole_block(self.block, out)
        {
            return status;
        }
        self.next_block_anew(out)
    }

    /// Finds out which block is at hand where control is, no event being known to come.
    #[inline]
    pub(super) fn find_block(&mut self) {
        let links_blocks = self.links_blocks;
        let (image, cursor, _) = self.parts();
        self.block = match image.known(cursor) {
            Some(entry) if links_blocks => entry.block,
            _ => NONE,
        };
    }

    /// The block of a number, with what comes behind it; none if there is none.
    #[inline(always)]
    fn whole_block(&mut self, number: u32, out: &mut CBlock) -> Option<Status> {
        // SAFETY: as in `block_at_hand`.
        let image = unsafe { &*self.image };
        let block = image.code.blocks.get(number as usize)?;
        *out = block.block;
        out.flags |= u8::from(self.speculative);
        self.ret_stack.push_all(&block.returns);
        (self.cursor.entry, self.cursor.ip) = (block.last, block.block.end_ip);
        Some(match block.flow == Flow::Conditional && self.links_blocks {
            true => self.leave_linking(number),
            false => self.leave(),
        })
    }

    /// As `leave`, behind a block that ends with a conditional branch; the block there is linked to it.
    #[inline(always)]
    fn leave_linking(&mut self, number: u32) -> Status {
        self.read_results()?;
        if let Some(result) = self.query.result_in_hand() {
            let (image, cursor, _) = self.parts();
            let last = image.code.get(cursor.entry).ok_or(Error::Internal)?;
            let edge = last.edges()[usize::from(result)];
            if self.arrive(edge) {
                self.query.take_result_in_hand();
                self.calm = 0;
                let next = self.block;
                if let Some(block) = self.parts().0.code.blocks.get_mut(number as usize) {
                    block.links[usize::from(result)] = next;
                }
                return Ok(0);
            }
        }
        self.leave_slowly()
    }

    /// A block that was not met yet, or before which something was not known.
    #[inline(never)]
    fn next_block_anew(&mut self, out: &mut CBlock) -> Status {
        let is_free = self.calm >= 0 || self.hindrance().is_ok() && !self.event_ahead();
        if is_free && self.whole_blocks {
            self.calm = self.query.status() & status::END;
            let (image, cursor, asid) = self.parts();
            let number = match image.block(cursor, asid) {
                Ok(number) => number,
                Err(error) => {
                    // What was at hand may have been forgotten meanwhile.
                    self.stir();
                    *out = CBlock::default();
                    return Err(error);
                }
            };
            if let Some(status) = number.and_then(|number| self.whole_block(number, out)) {
                return status;
            }
        }
        self.next_block_slowly(out)
    }

    #[cold]
    #[inline(never)]
    fn next_block_slowly(&mut self, out: &mut CBlock) -> Status {
        self.stir();
        *out = CBlock {
            flags: u8::from(self.speculative),
            ..CBlock::default()
        };
        if let Err(error) = self.hindrance() {
            // (libipt looks for code at once if an event waits for control to come to its place.)
            let waits = error == Error::NoEnable && self.event_ahead();
            return Err(if waits { Error::NoMap } else { error });
        }
        self.walk_block(out)
    }

    /// Appends instructions whose successors are known, as far as the next event cannot be due.
    fn stroll(&mut self, block: &mut CBlock) {
        let place = match &self.event {
            None if self.query.event_pending() => return,
            None => None,
            Some(event) => match event.kind {
                ptev::DISABLED => event.ip(),
                ptev::ASYNC_DISABLED | ptev::ASYNC_BRANCH => Some(event.variant[0]),
                _ => return,
            },
        };
        while self.stroll_along_run(block, place) && self.stroll_along_branch(block, place) {}
    }

    /// As `stroll`, as far as entries are run through; `false` if the next event may be due there.
    fn stroll_along_run(&mut self, block: &mut CBlock, place: Option<u64>) -> bool {
        let run = self.run();
        let steps = match place {
            Some(ip) => self.steps_before(ip, run),
            None => run,
        };
        if steps == 0 {
            return run == 0;
        }
        let (image, cursor, _) = self.parts();
        let (first, behind) = (cursor.entry, cursor.entry + steps);
        let [Some(first), Some(last), Some(next)] =
            [first, behind - 1, behind].map(|index| image.code.get(index))
        else {
            return false;
        };
        let appended = block.append_run(&first.insn, &last.insn, steps);
        if appended {
            (cursor.ip, cursor.entry) = (next.insn.ip, behind);
        }
        appended && steps == run
    }

    /// As `stroll`, over a branch that needs no packet; `false` if there is none, or the next event may be due.
    fn stroll_along_branch(&mut self, block: &mut CBlock, place: Option<u64>) -> bool {
        // (SKL014 takes some of these branches for the end of tracing.)
        if !self.whole_blocks || self.has(Errata::SKL014) {
            return false;
        }
        let (image, cursor, _) = self.parts();
        let Some(entry) = image
            .known(cursor)
            .filter(|entry| !entry.insn.is_truncated())
        else {
            return false;
        };
        let (flow, index, behind) = (entry.flow, entry.edges()[1], entry.next_ip());
        let is_direct = matches!(flow, Flow::Direct | Flow::DirectCall);
        let Some(next) = image.code.get(index).filter(|_| is_direct) else {
            return false;
        };
        let to = next.insn.ip;
        if Some(to) == place || !block.append(&entry.insn) {
            return false;
        }
        (cursor.ip, cursor.entry) = (to, index);
        if flow == Flow::DirectCall && to != behind {
            self.ret_stack.push(behind);
        }
        true
    }

    /// A block instruction by instruction.
    fn walk_block(&mut self, block: &mut CBlock) -> Status {
        loop {
            if self
                .event
                .as_ref()
                .is_some_and(|event| self.left_ranges(event))
            {
                self.due = true;
                return Ok(self.status());
            }
            self.stroll(block);
            let (image, cursor, asid) = self.parts();
            let entry = image.look_up(cursor, asid)?;
            if !block.append(&entry.insn) {
                return Ok(self.status());
            }
            let status = self.behind(&entry)?;
            let ends = match entry.flow {
                Flow::Next => false,
                Flow::Direct => self.end_on_jump,
                Flow::DirectCall => self.end_on_call,
                _ => true,
            };
            if ends || block.is_truncated() || self.due || !self.enabled {
                return Ok(status);
            }
        }
    }
}
