//! Instruction by instruction.

use std::ffi::c_int;

use super::{Status, Walker};
use crate::code::{CInsn, Flow};
use crate::event::ptev;

impl Walker {
    /// The next instruction and the flags behind it, if it is at hand.
    #[inline(always)]
    pub(crate) fn insn_at_hand(&mut self, out: &mut CInsn) -> Option<c_int> {
        let left = self.left.checked_sub(1)?;
        let (image, cursor, _) = self.parts();
        let [entry, next] = image.known_pair(cursor)?;
        *out = entry.insn;
        (cursor.ip, cursor.entry) = (next.insn.ip, cursor.entry + 1);
        self.left = left;
        Some(self.at_hand)
    }

    /// As [`Self::insn_at_hand`], where a run ends with a branch whose outcome is in hand, or that needs none, and it is known what stands behind it.
    #[inline(always)]
    fn insn_at_edge(&mut self, out: &mut CInsn) -> Option<c_int> {
        if self.calm < 0 || self.speculative || self.ticks.are_wanted() {
            return None;
        }
        // SAFETY: as in `parts`, from which it differs in that questions are asked meanwhile.
        let image = unsafe { &*self.image };
        let entry = image.known(&self.cursor)?;
        let (flow, edges) = (entry.flow, entry.edges());
        if flow == Flow::Conditional && self.query.wants_tnt() {
            self.query.take_tnt_of_two();
        }
        let index = match flow {
            Flow::Next => edges[0],
            Flow::Direct => edges[1],
            Flow::Conditional => edges[usize::from(self.query.result_in_hand()?)],
            _ => return None,
        };
        let next = image.code.get(index)?;
        let left = next.known_run()?;
        *out = entry.insn;
        (self.cursor.ip, self.cursor.entry) = (next.insn.ip, index);
        self.left = left;
        if flow == Flow::Conditional {
            self.query.take_result_in_hand();
            (self.calm, self.at_hand) = (0, 0);
        }
        Some(self.calm)
    }

    /// The next instruction, if there is one; and the flags behind it.
    #[inline(always)]
    pub(crate) fn next_insn(&mut self, out: &mut CInsn) -> Status {
        if let Some(status) = self.insn_at_edge(out) {
            return Ok(status);
        }
        self.next_insn_beyond(out)
    }

    /// As [`Self::next_insn`], apart from what most branches need.
    #[inline(never)]
    fn next_insn_beyond(&mut self, out: &mut CInsn) -> Status {
        if self.calm >= 0 {
            let speculative = u32::from(self.speculative);
            let (image, cursor, _) = self.parts();
            if let Some(entry) = image.known(cursor) {
                *out = entry.insn;
                out.flags |= speculative;
                return self.leave();
            }
        }
        self.next_insn_slowly(out)
    }

    #[cold]
    #[inline(never)]
    fn next_insn_slowly(&mut self, out: &mut CInsn) -> Status {
        // (Its class tells the caller that there is none.)
        *out = CInsn::default();
        self.stir();
        self.hindrance()?;
        let (image, cursor, asid) = self.parts();
        let entry = image.look_up(cursor, asid)?;
        *out = entry.insn;
        out.flags |= u32::from(self.speculative);
        self.behind(&entry)
    }

    /// Finds out how many instructions are at hand where control is, no event being known to come.
    #[inline]
    pub(super) fn find_run(&mut self) {
        self.at_hand = self.calm;
        self.left = match self.speculative {
            true => 0,
            false => self.run(),
        };
    }

    /// As [`Self::find_run`], where an event of this type is known, and not due yet; those that come without a branch come at a place.
    pub(super) fn find_run_before(&mut self, kind: u32, place: u64) {
        if self.speculative {
            return;
        }
        let run = self.run();
        self.at_hand = 0;
        self.left = match kind {
            // (It binds to none of them.)
            ptev::DISABLED => run,
            ptev::ASYNC_DISABLED | ptev::ASYNC_BRANCH => self.steps_before(place, run),
            _ => 0,
        };
    }

    /// How many entries are run through from here on.
    #[inline]
    pub(super) fn run(&mut self) -> u32 {
        let (image, cursor, _) = self.parts();
        match image.known(cursor) {
            Some(_) => image.code.run(cursor.entry).into(),
            None => 0,
        }
    }

    /// How many steps along a run lead to other addresses than this one.
    pub(super) fn steps_before(&mut self, ip: u64, run: u32) -> u32 {
        let (image, cursor, _) = self.parts();
        let leads_elsewhere = |steps: &u32| {
            let entry = image.code.get(cursor.entry + steps);
            entry.is_some_and(|entry| entry.insn.ip != ip)
        };
        (1..=run).take_while(leads_elsewhere).count() as u32
    }
}
