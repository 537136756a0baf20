//! What is counted of each function, be it known which calls are open around or not.

use std::cmp::Reverse;

use crate::row::{FunctionNumber, NO_FUNCTION};

/// What is counted of a function in the chunk or stretch at hand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) own: u64,
    pub(crate) total: u64,
    pub(crate) calls: u64,
    /// The instructions in the piece at hand.
    in_piece: u64,
    /// How many calls of it are open, and since when, of those that count.
    open: u32,
    since: u64,
    is_noted: bool,
    /// Its code was inlined wherever it ran.
    pub(crate) is_inlined: bool,
}

/// What is counted of all functions.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    list: Vec<Counted>,
    /// Those of which something is counted.
    noted: Vec<FunctionNumber>,
    /// Those that ran in the piece at hand.
    of_piece: Vec<FunctionNumber>,
    /// What ran in the piece at hand in no known function.
    of_none: u64,
}

impl Counts {
    #[inline]
    pub(crate) fn of(&mut self, function: FunctionNumber) -> &mut Counted {
        let index = function as usize;
        let is_noted = |counted: &Counted| counted.is_noted;
        if !self.list.get(index).is_some_and(is_noted) {
            self.note(function);
        }
        &mut self.list[index]
    }

    #[cold]
    fn note(&mut self, function: FunctionNumber) {
        let index = function as usize;
        if index >= self.list.len() {
            self.list.resize(index + 1, Counted::default());
        }
        self.list[index].is_noted = true;
        self.noted.push(function);
    }

    /// What was counted of a function, if anything was.
    pub(crate) fn get(&self, function: usize) -> Option<&Counted> {
        self.list.get(function)
    }

    /// So much ran in a function itself, in the piece at hand: at least one instruction.
    #[inline(always)]
    pub(crate) fn ran(&mut self, function: FunctionNumber, insns: u64) {
        if function == NO_FUNCTION {
            self.of_none += insns;
            return;
        }
        let counted = self.of(function);
        counted.own += insns;
        let is_first = counted.in_piece == 0;
        counted.in_piece += insns;
        if is_first {
            self.of_piece.push(function);
        }
    }

    /// The same, for the piece alone.
    #[inline]
    pub(crate) fn ran_in_piece(&mut self, function: FunctionNumber, insns: u64) {
        if function == NO_FUNCTION {
            self.of_none += insns;
            return;
        }
        let counted = self.of(function);
        let is_first = counted.in_piece == 0 && insns > 0;
        counted.in_piece += insns;
        if is_first {
            self.of_piece.push(function);
        }
    }

    /// A call begins.
    #[inline]
    pub(crate) fn call(&mut self, function: FunctionNumber, is_inlined: bool, at: u64) {
        let counted = self.of(function);
        counted.calls += 1;
        counted.is_inlined |= is_inlined;
        counted.open_at(at);
    }

    /// A call is open from here on.
    #[inline]
    pub(crate) fn open(&mut self, function: FunctionNumber, at: u64) {
        self.of(function).open_at(at);
    }

    /// It is not any more.
    #[inline]
    pub(crate) fn close(&mut self, function: FunctionNumber, at: u64) {
        if let Some(counted) = self.list.get_mut(function as usize)
            && counted.open > 0
        {
            counted.open -= 1;
            if counted.open == 0 {
                counted.total += at.saturating_sub(counted.since);
            }
        }
    }

    /// Calls that were counted apart began and were left.
    #[inline]
    pub(crate) fn add(&mut self, function: FunctionNumber, sum: &Counted) {
        let counted = self.of(function);
        counted.own += sum.own;
        counted.calls += sum.calls;
        counted.is_inlined |= sum.is_inlined;
        // What ran while it was open around them is counted there.
        if counted.open == 0 {
            counted.total += sum.total;
        }
    }

    /// Calls of a function count no more, whatever is open.
    pub(crate) fn forget_open(&mut self, function: FunctionNumber) {
        if let Some(counted) = self.list.get_mut(function as usize) {
            counted.open = 0;
        }
    }

    /// The piece at hand ends: what ran in it, by function.
    pub(crate) fn end_piece(&mut self) -> impl Iterator<Item = (FunctionNumber, u64)> {
        let Self {
            list,
            of_piece,
            of_none,
            ..
        } = self;
        let none = std::mem::take(of_none);
        let of_none = (none > 0).then_some((NO_FUNCTION, none));
        let all = of_piece.drain(..).map(|function| {
            let counted = list.get_mut(function as usize);
            let ran = counted.map_or(0, |counted| std::mem::take(&mut counted.in_piece));
            (function, ran)
        });
        all.chain(of_none)
    }

    /// The chunk or stretch ends here: what was counted of it. Calls that are open go on in the next one.
    pub(crate) fn take(&mut self, at: u64) -> Vec<(FunctionNumber, Counted)> {
        let noted = std::mem::take(&mut self.noted);
        let mut taken = Vec::with_capacity(noted.len());
        for function in noted {
            let Some(counted) = self.list.get_mut(function as usize) else {
                continue;
            };
            if counted.open > 0 {
                counted.total += at.saturating_sub(counted.since);
                counted.since = at;
            }
            taken.push((function, *counted));
            (counted.own, counted.total, counted.calls) = (0, 0, 0);
            counted.is_noted = counted.open > 0;
            if counted.is_noted {
                self.noted.push(function);
            }
        }
        taken
    }
}

impl Counted {
    /// Calls that were left: what ran in themselves, and while they were open.
    pub(crate) fn of_sum(own: u64, total: u64, calls: u64, is_inlined: bool) -> Self {
        Self {
            own,
            total,
            calls,
            is_inlined,
            ..Self::default()
        }
    }

    #[inline]
    fn open_at(&mut self, at: u64) {
        if self.open == 0 {
            self.since = at;
        }
        self.open += 1;
    }
}

/// The function that ran most; of several that ran as much, the one of the lowest number, so that it does not matter in which order they were counted.
pub(crate) fn most(
    shares: impl Iterator<Item = (FunctionNumber, u64)>,
) -> Option<(FunctionNumber, u64)> {
    shares.max_by_key(|(function, ran)| (*ran, Reverse(*function)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_in_which_functions_are_counted_does_not_matter() {
        let shares = [(3, 5), (NO_FUNCTION, 7), (9, 7), (2, 7), (1, 6)];
        assert_eq!(most(shares.into_iter()), Some((2, 7)));
        assert_eq!(most(shares.into_iter().rev()), Some((2, 7)));
    }

    #[test]
    fn what_is_open_goes_on_in_the_next_chunk() {
        let mut counts = Counts::default();
        counts.call(4, false, 10);
        counts.ran(4, 5);
        counts.call(4, false, 15);
        counts.close(4, 20);
        let [(4, first)] = counts.take(30)[..] else {
            panic!("one function");
        };
        assert_eq!((first.own, first.total, first.calls), (5, 20, 2));
        counts.close(4, 37);
        let [(4, second)] = counts.take(40)[..] else {
            panic!("it was open");
        };
        assert_eq!((second.own, second.total, second.calls), (0, 7, 0));
        assert!(counts.end_piece().eq([(4, 5)]));
        assert!(counts.take(50).is_empty());
    }
}
