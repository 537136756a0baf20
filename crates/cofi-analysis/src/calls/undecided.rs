//! Several stacks may be the one that was switched to: they wait for a return to the same address.
//!
//! The returns that follow tell which one it is. Until then it is written down what runs, and the calls that begin meanwhile are counted, to know
//! a return out of them from one that tells more. Once it is known, what was written down is taken account of.

use cofi_insn::Class;
use cofi_packet::Ip;

use super::names::Location;
use super::shapes::{Hop, Transfer};
use super::thread::{Around, Coming, Thread};
use super::{CallMoment, CallVisitor};

/// So much may be written down before the stack that waits for longest is taken.
const MOST: usize = 1 << 12;

/// Stacks one of which was switched to.
#[derive(Debug)]
pub(super) struct Undecided {
    /// Where in the list of others they are, the one that waits for longest first.
    candidates: Vec<usize>,
    /// How many calls of it have been left since: what returned to where it waits is the first.
    returns: usize,
    /// Where those calls return to that have begun since and are open.
    open: Vec<Ip>,
    /// What has happened since, and when.
    later: Vec<(Later, CallMoment)>,
}

#[derive(Clone, Copy, Debug)]
enum Later {
    /// The innermost call of the stack was left: it returned to here.
    Return(Ip),
    /// Control came to an instruction.
    Arrival(Coming, Ip, Location),
    /// The same within a block.
    Hop(Hop),
}

/// Whether an instruction of this class stays within its function if it leads there.
const fn is_near_jump(class: Class) -> bool {
    matches!(
        class,
        Class::Conditional | Class::DirectJump | Class::IndirectJump
    )
}

impl Undecided {
    /// Takes account of a call, or of a jump elsewhere. Whether that is possible.
    fn transfer(&mut self, by: Transfer, to: Ip, is_first: bool) -> bool {
        match by.class {
            // What only reads the instruction pointer is no call.
            Class::DirectCall | Class::IndirectCall if to == by.after => {}
            Class::DirectCall | Class::IndirectCall => self.open.push(by.after),
            Class::DirectJump | Class::Conditional => {}
            Class::IndirectJump => return is_first,
            _ => return false,
        }
        true
    }
}

impl Thread {
    /// One of these stacks was switched to, which wait for a return to `to`.
    pub(super) fn choose<V: CallVisitor + ?Sized>(
        &mut self,
        candidates: Vec<usize>,
        to: Ip,
        around: &mut Around<'_, '_, V>,
    ) {
        let is_decided = candidates.len() == 1;
        self.undecided = Some(Undecided {
            candidates,
            returns: 1,
            open: Vec::new(),
            later: vec![(Later::Return(to), self.now(around))],
        });
        if is_decided {
            self.decide(around);
        }
    }

    /// Whether it will be known later what this does to the stack.
    pub(super) fn narrow<V: CallVisitor + ?Sized>(
        &mut self,
        coming: Coming,
        to: Ip,
        at: Location,
        around: &mut Around<'_, '_, V>,
    ) -> bool {
        let moment = self.now(around);
        let Some(undecided) = &mut self.undecided else {
            return false;
        };
        if undecided.later.len() >= MOST {
            return false;
        }
        match coming {
            Coming::Straight => return true,
            // Branches within a function tell nothing.
            Coming::By(by) if by.source == at.function && is_near_jump(by.class) => return true,
            Coming::By(by) if by.class == Class::Return => match undecided.open.pop() {
                None => return self.narrow_by_return(to, around),
                Some(expected) if expected == to => {}
                Some(_) => return false,
            },
            Coming::By(by) if undecided.transfer(by, to, at.is_first) => {}
            // A system call.
            Coming::Back { expected, .. } if expected == Some(to) && !self.was_away => {}
            _ => return false,
        }
        let later = Later::Arrival(coming, to, at);
        undecided.later.push((later, moment));
        true
    }

    /// The same within a block.
    pub(super) fn narrow_by_hop<V: CallVisitor + ?Sized>(
        &mut self,
        hop: &Hop,
        around: &mut Around<'_, '_, V>,
    ) -> bool {
        let moment = self.now(around);
        let Some(undecided) = &mut self.undecided else {
            return false;
        };
        let is_full = undecided.later.len() >= MOST;
        if is_full || !undecided.transfer(hop.transfer, hop.to, hop.target.is_first) {
            return false;
        }
        undecided.later.push((Later::Hop(*hop), moment));
        true
    }

    /// A return out of a call that was open before the switch.
    fn narrow_by_return<V: CallVisitor + ?Sized>(
        &mut self,
        to: Ip,
        around: &mut Around<'_, '_, V>,
    ) -> bool {
        let moment = self.now(around);
        let Some(undecided) = &mut self.undecided else {
            return false;
        };
        let depth = undecided.returns + 1;
        let others = &self.others;
        let fits = |index: &usize| {
            let frames = others.get(*index).map(|stack| stack.frames.as_slice());
            let frame =
                frames.and_then(|frames| frames.len().checked_sub(depth).map(|at| frames[at]));
            frame.is_some_and(|frame| frame.returns_to(to))
        };
        let fitting: Vec<usize> = undecided.candidates.iter().copied().filter(fits).collect();
        if fitting.is_empty() {
            return false;
        }
        let is_decided = fitting.len() == 1;
        undecided.candidates = fitting;
        undecided.returns += 1;
        undecided.later.push((Later::Return(to), moment));
        if is_decided {
            self.decide(around);
        }
        true
    }

    /// Goes on with one of the stacks that may have been switched to: the one that waits for longest.
    pub(super) fn decide<V: CallVisitor + ?Sized>(&mut self, around: &mut Around<'_, '_, V>) {
        let Some(undecided) = self.undecided.take() else {
            return;
        };
        let (Some(index), Some((_, switched))) =
            (undecided.candidates.first(), undecided.later.first())
        else {
            return;
        };
        let (total, moment) = (self.total, self.moment);
        self.total = switched.insns;
        self.moment = Some(*switched);
        self.stack = self.others.remove(*index);
        self.resume_clock();
        self.tell_switched(around);
        for (later, moment) in undecided.later {
            self.total = moment.insns;
            self.moment = Some(moment);
            match later {
                Later::Return(to) => self.leave_returning(to, around),
                Later::Arrival(coming, to, at) => self.arrive(coming, to, at, around),
                Later::Hop(hop) => self.hop(&hop, around),
            }
        }
        (self.total, self.moment) = (total, moment);
    }
}
