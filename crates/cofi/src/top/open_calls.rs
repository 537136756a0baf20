//! The calls of threads that are open, so kept that one more of them costs little: there are millions, and most begin and end on one stack.

use cofi_analysis::FunctionId;
use cofi_session::Task;
use rustc_hash::FxHashMap;

/// A stack of a thread.
pub(super) type Stack = (Task, u32);

/// Something for each small number, of each stack by itself. That of the stack which was last asked for a number is found without a search.
#[derive(Debug)]
pub(super) struct ByStack<T> {
    slots: Vec<Option<(Stack, T)>>,
    /// What other stacks have, if it is not nothing.
    others: FxHashMap<(Stack, usize), T>,
}

impl<T> Default for ByStack<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            others: FxHashMap::default(),
        }
    }
}

impl<T: Default + PartialEq> ByStack<T> {
    pub(super) fn get(&mut self, stack: Stack, number: usize) -> &mut T {
        if self.slots.len() <= number {
            self.slots.resize_with(number + 1, || None);
        }
        let slot = &mut self.slots[number];
        if slot.as_ref().is_none_or(|(of, _)| *of != stack) {
            let found = self.others.remove(&(stack, number)).unwrap_or_default();
            let before = slot.replace((stack, found));
            let before = before.filter(|(_, before)| *before != T::default());
            if let Some((of, before)) = before {
                self.others.insert((of, number), before);
            }
        }
        &mut slot.get_or_insert_with(|| (stack, T::default())).1
    }
}

/// An open call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) function: FunctionId,
    pub(super) stack: u32,
    /// The number of where it came from.
    pub(super) from: Option<usize>,
    /// The function that made it, if it is the outermost from there.
    pub(super) caller: Option<FunctionId>,
}

/// The open calls of a thread.
#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    /// By number, which grows; none of those that were left before what began later.
    list: Vec<(i64, Option<Open>)>,
    /// How many of them were left.
    left: usize,
    /// Those that were open before the trace: they have negative numbers, in no order.
    outer: FxHashMap<i64, Open>,
}

impl OpenCalls {
    pub(super) fn insert(&mut self, number: i64, open: Open) {
        match self.list.last() {
            Some((last, _)) if *last >= number => self.outer.insert(number, open),
            None if number < 0 => self.outer.insert(number, open),
            _ => {
                self.list.push((number, Some(open)));
                None
            }
        };
    }

    fn index(&self, number: i64) -> Option<usize> {
        match self.list.last() {
            Some((last, _)) if *last == number => Some(self.list.len() - 1),
            _ => self.list.binary_search_by_key(&number, |(of, _)| *of).ok(),
        }
    }

    pub(super) fn get(&self, number: i64) -> Option<Open> {
        match self.index(number) {
            Some(index) => self.list[index].1,
            None => self.outer.get(&number).copied(),
        }
    }

    pub(super) fn remove(&mut self, number: i64) -> Option<Open> {
        let Some(index) = self.index(number) else {
            return self.outer.remove(&number);
        };
        let open = self.list[index].1.take()?;
        self.left += 1;
        while self.list.pop_if(|(_, open)| open.is_none()).is_some() {
            self.left -= 1;
        }
        // Threads may take turns with two stacks for ever, so that what was left is never last.
        if self.left > self.list.len() / 2 {
            self.list.retain(|(_, open)| open.is_some());
            self.left = 0;
        }
        Some(open)
    }

    /// Takes out all calls.
    pub(super) fn take_all(&mut self) -> Vec<Open> {
        self.left = 0;
        let list = self.list.drain(..).filter_map(|(_, open)| open);
        list.chain(self.outer.drain().map(|(_, open)| open))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: Task = Task { pid: 1, tid: 2 };

    #[test]
    fn each_stack_has_its_own_numbers() {
        let mut kept = ByStack::<u64>::default();
        for (stack, number) in [(0, 3), (1, 3), (0, 3), (1, 0), (1, 3), (0, 3)] {
            *kept.get((TASK, stack), number) += 1;
        }
        let mut of = |stack, number| *kept.get((TASK, stack), number);
        assert_eq!([of(0, 3), of(1, 3), of(1, 0), of(0, 0)], [3, 2, 1, 0]);
    }

    /// What is nothing is not kept.
    #[test]
    fn only_what_is_open_takes_memory() {
        let mut kept = ByStack::<u64>::default();
        for stack in 0..100 {
            *kept.get((TASK, stack), 0) += 1;
            *kept.get((TASK, stack), 0) -= 1;
        }
        assert!(kept.others.is_empty());
    }

    fn open(from: usize) -> Open {
        Open {
            function: FunctionId::default(),
            stack: 0,
            from: Some(from),
            caller: None,
        }
    }

    #[test]
    fn calls_are_found_in_whatever_order_they_are_left() {
        let mut calls = OpenCalls::default();
        for number in [-1, 0, 1, 2, 3] {
            calls.insert(number, open(number.unsigned_abs() as usize));
        }
        assert_eq!(calls.remove(1), Some(open(1)));
        assert_eq!((calls.get(1), calls.remove(1)), (None, None));
        assert_eq!(calls.remove(3), Some(open(3)));
        assert_eq!(calls.remove(2), Some(open(2)));
        assert_eq!(calls.list.len(), 1);
        assert_eq!(calls.get(-1), Some(open(1)));
        assert_eq!(calls.get(0), Some(open(0)));
        calls.insert(-2, open(2));
        let mut all: Vec<_> = calls
            .take_all()
            .into_iter()
            .filter_map(|open| open.from)
            .collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
        assert_eq!(calls.get(0), None);
    }

    /// Two stacks that take turns, of which each leaves its call after the other has begun one.
    #[test]
    fn turns_of_two_stacks_take_no_memory() {
        let mut calls = OpenCalls::default();
        calls.insert(0, open(0));
        for number in 1..1000 {
            calls.insert(number, open(1));
            assert_eq!(
                calls.remove(number - 1),
                Some(open(usize::from(number > 1)))
            );
            assert!(calls.list.len() <= 2);
        }
    }
}
