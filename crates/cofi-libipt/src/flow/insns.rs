//! Instruction by instruction.

use std::ffi::c_int;

use super::{Status, Walker};
use crate::boundary::returned;
use crate::code::{CInsn, Entry, Flow};
use crate::event::ptev;
use crate::image::Image;

impl Walker {
    /// The next instruction and the flags behind it, if it is at hand.
    #[inline(always)]
    pub(crate) fn insn_at_hand(&mut self, out: &mut CInsn) -> Option<c_int> {
        let run_end = self.run_end;
        let (image, cursor, _) = self.parts();
        if cursor.entry >= run_end {
            return None;
        }
        let [entry, next] = image.known_pair(cursor)?;
        *out = entry.insn;
        (cursor.ip, cursor.entry) = (next.insn.ip, cursor.entry + 1);
        Some(self.at_hand)
    }

    /// The next instruction, if there is one; and the flags behind it, or an error. This is most often a conditional branch, with which a run ends, whose
    /// outcome is in hand, and it is known what stands behind it. (As functions of C, which do not unwind, these are left by a jump to the next
    /// one: none needs a frame. Where a panic could come from, [`Self::next_insn_beyond`] ends it.)
    #[inline(never)]
    pub(crate) extern "C" fn next_insn(&mut self, out: &mut CInsn) -> c_int {
        // SAFETY: as in `parts`, from which it differs in that questions are asked meanwhile.
        let image = unsafe { &*self.image };
        let Some(branch) = self.linked(image) else {
            return self.next_insn_beyond(out);
        };
        if branch.flow != Flow::Conditional {
            return self.next_insn_without_result(out);
        }
        let Some(result) = self.query.result_in_hand() else {
            return self.next_insn_by_tnt(out);
        };
        match self.go_along(image, branch, result, out) {
            true => self.behind_result_in_hand(),
            false => self.next_insn_beyond(out),
        }
    }

    /// As [`Self::next_insn`], where that is a conditional branch whose outcome is not in hand.
    #[inline(never)]
    extern "C" fn next_insn_by_tnt(&mut self, out: &mut CInsn) -> c_int {
        // SAFETY: as in `next_insn`.
        let image = unsafe { &*self.image };
        if self.query.take_tnt_of_two()
            && let Some(result) = self.query.result_in_hand()
            && let Some(branch) = self.linked(image)
            && self.go_along(image, branch, result, out)
        {
            return self.behind_result_in_hand();
        }
        self.next_insn_beyond(out)
    }

    /// As [`Self::next_insn`], where that is no conditional branch: most of them need no packet.
    #[inline(never)]
    extern "C" fn next_insn_without_result(&mut self, out: &mut CInsn) -> c_int {
        // SAFETY: as in `next_insn`.
        let image = unsafe { &*self.image };
        if let Some(entry) = self.linked(image)
            && let Flow::Next | Flow::Direct | Flow::DirectCall = entry.flow
            && self.go_along(image, entry, entry.flow != Flow::Next, out)
        {
            if entry.flow == Flow::DirectCall {
                self.push_return(&entry.step());
            }
            return self.calm;
        }
        self.next_insn_beyond(out)
    }

    /// The entry where control is, if that is known, no event is known to come, and it is what is told of the instruction.
    #[inline(always)]
    fn linked<'a>(&self, image: &'a Image) -> Option<&'a Entry> {
        match self.calm >= 0 && self.is_plain {
            true => image.known(&self.cursor),
            false => None,
        }
    }

    /// Goes from an entry to its target or to the next, and gives its instruction; `false` if it is not known what stands there.
    #[inline(always)]
    fn go_along(&mut self, image: &Image, from: &Entry, taken: bool, out: &mut CInsn) -> bool {
        let index = from.edges()[usize::from(taken)];
        let Some(to) = image.code.get(index) else {
            return false;
        };
        let Some(run) = to.known_run() else {
            return false;
        };
        *out = from.insn;
        (self.cursor.ip, self.cursor.entry) = (to.insn.ip, index);
        self.run_end = index + run;
        true
    }

    /// The flags behind a result that was in hand: another one is, too.
    #[inline(always)]
    fn behind_result_in_hand(&mut self) -> c_int {
        self.query.take_result_in_hand();
        (self.calm, self.at_hand) = (0, 0);
        0
    }

    /// As [`Self::next_insn`], apart from what most branches need.
    #[inline(never)]
    extern "C" fn next_insn_beyond(&mut self, out: &mut CInsn) -> c_int {
        returned(|| self.next_insn_or_error(out))
    }

    #[inline(always)]
    fn next_insn_or_error(&mut self, out: &mut CInsn) -> Status {
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
        let run = self.run();
        self.run_end = match self.speculative {
            true => 0,
            false => self.cursor.entry.saturating_add(run),
        };
    }

    /// As [`Self::find_run`], where an event of this type is known, and not due yet; those that come without a branch come at a place.
    pub(super) fn find_run_before(&mut self, kind: u32, place: u64) {
        if self.speculative {
            return;
        }
        let run = self.run();
        self.at_hand = 0;
        let steps = match kind {
            // (It binds to none of them.)
            ptev::DISABLED => run,
            ptev::ASYNC_DISABLED | ptev::ASYNC_BRANCH => self.steps_before(place, run),
            _ => 0,
        };
        self.run_end = self.cursor.entry.saturating_add(steps);
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
