//! The open calls of a timeline, where the call that began last most often ends first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cofi_analysis::CallMoment;
use rustc_hash::FxHashMap;

use crate::FrameId;

/// A call that is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) frame: FrameId,
    pub(crate) stack: u32,
    pub(crate) depth: i32,
    /// The call around it, on this stack or the one that switched to it.
    pub(crate) parent: Option<i64>,
    pub(crate) end: CallMoment,
}

/// Open calls by their numbers.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls {
    /// In the order of their numbers; none for those that were left while a later one is open.
    list: Vec<(i64, Option<Open>)>,
    /// How many are left so.
    gone: usize,
}

impl OpenCalls {
    /// A call begins, whose number is higher than all before.
    pub(crate) fn push(&mut self, number: i64, open: Open) {
        self.list.push((number, Some(open)));
    }

    fn index(&self, number: i64) -> Option<usize> {
        let last = self.list.len().checked_sub(1)?;
        if self.list.get(last)?.0 == number {
            return Some(last);
        }
        let found = self.list.binary_search_by_key(&number, |(known, _)| *known);
        found.ok()
    }

    pub(crate) fn get(&self, number: i64) -> Option<&Open> {
        self.list.get(self.index(number)?)?.1.as_ref()
    }

    /// A call is left.
    pub(crate) fn remove(&mut self, number: i64) {
        let Some((_, open)) = self
            .index(number)
            .and_then(|index| self.list.get_mut(index))
        else {
            return;
        };
        self.gone += usize::from(open.take().is_some());
        while self.list.pop_if(|(_, open)| open.is_none()).is_some() {
            self.gone -= 1;
        }
        // Coroutines may keep the last one open for long.
        if self.gone > self.list.len() / 2 + 16 {
            self.list.retain(|(_, open)| open.is_some());
            self.gone = 0;
        }
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Open> {
        self.list.iter().filter_map(|(_, open)| open.as_ref())
    }
}

/// The innermost calls of stacks.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    /// The stack that was asked for last, and its open calls, the innermost last.
    now: (u32, Vec<i64>),
    others: FxHashMap<u32, Vec<i64>>,
}

impl Stacks {
    /// The open calls of a stack, the innermost last.
    #[inline]
    pub(crate) fn of(&mut self, stack: u32) -> &mut Vec<i64> {
        if self.now.0 != stack {
            let next = self.others.remove(&stack).unwrap_or_default();
            let (before, calls) = std::mem::replace(&mut self.now, (stack, next));
            if !calls.is_empty() {
                self.others.insert(before, calls);
            }
        }
        &mut self.now.1
    }
}

/// When an open call ends, and its number: the innermost of those that end at once comes first.
type End = (u64, Reverse<i64>);

/// The ends of open calls, the next first.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// The next last: each was pushed before those that come after it here, as calls nest.
    nested: Vec<End>,
    /// Those for which that does not hold.
    others: BinaryHeap<Reverse<End>>,
}

impl Ends {
    pub(crate) fn push(&mut self, at: u64, number: i64) {
        let end = (at, Reverse(number));
        match self.nested.last() {
            Some(last) if *last < end => self.others.push(Reverse(end)),
            _ => self.nested.push(end),
        }
    }

    fn is_nested_next(&self) -> bool {
        match (self.nested.last(), self.others.peek()) {
            (Some(nested), Some(Reverse(other))) => nested < other,
            (nested, _) => nested.is_some(),
        }
    }

    /// The next end: when, and of which call.
    pub(crate) fn peek(&self) -> Option<(u64, i64)> {
        let (at, Reverse(number)) = match self.is_nested_next() {
            true => *self.nested.last()?,
            false => self.others.peek()?.0,
        };
        Some((at, number))
    }

    /// Takes the next end out.
    pub(crate) fn pop(&mut self) -> Option<(u64, i64)> {
        let (at, Reverse(number)) = match self.is_nested_next() {
            true => self.nested.pop()?,
            false => self.others.pop()?.0,
        };
        Some((at, number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(stack: u32) -> Open {
        Open {
            frame: FrameId(0),
            stack,
            depth: 0,
            parent: None,
            end: CallMoment::default(),
        }
    }

    /// A call that stays open keeps none of those that are left below it.
    #[test]
    fn calls_that_are_left_take_no_room() {
        let mut calls = OpenCalls::default();
        calls.push(0, open(0));
        for number in 1..10_000 {
            calls.push(number, open(number as u32));
            calls.remove(number - 1);
            assert!(calls.get(number - 1).is_none());
            assert_eq!(
                calls.get(number).map(|open| open.stack),
                Some(number as u32)
            );
            assert!(calls.list.len() < 64, "{}", calls.list.len());
        }
        assert_eq!(calls.iter().count(), 1);
    }

    #[test]
    fn ends_come_in_order_however_they_were_pushed() {
        let mut ends = Ends::default();
        let list = [
            (90, 0),
            (50, 1),
            (50, 2),
            (70, 3),
            (20, 4),
            (60, 5),
            (95, 6),
            (20, 7),
        ];
        for (at, number) in list {
            ends.push(at, number);
        }
        let mut sorted = list.map(|(at, number)| (at, Reverse(number)));
        sorted.sort_unstable();
        for (at, Reverse(number)) in sorted {
            assert_eq!(ends.peek(), Some((at, number)));
            assert_eq!(ends.pop(), Some((at, number)));
        }
        assert_eq!(ends.peek(), None);
    }

    #[test]
    fn each_stack_has_its_own_calls() {
        let mut stacks = Stacks::default();
        for (stack, number) in [(0, 1), (2, 2), (0, 3), (1, 4), (2, 5)] {
            stacks.of(stack).push(number);
        }
        assert_eq!(*stacks.of(0), [1, 3]);
        assert_eq!(*stacks.of(1), [4]);
        assert_eq!(*stacks.of(2), [2, 5]);
        stacks.of(1).clear();
        stacks.of(0);
        assert!(!stacks.others.contains_key(&1));
    }
}
