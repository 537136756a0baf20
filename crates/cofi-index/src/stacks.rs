//! Open calls, as a visitor of calls keeps them.

use std::collections::HashMap;

use cofi_analysis::Call;
use cofi_session::Task;

/// What is kept of each open call, by thread: those of the thread that runs are at hand.
#[derive(Clone, Debug)]
pub(crate) struct Stacks<T> {
    open: Vec<(i64, T)>,
    others: HashMap<Task, Vec<(i64, T)>>,
    task: Task,
}

impl<T> Default for Stacks<T> {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            others: HashMap::new(),
            task: Task { pid: 0, tid: 0 },
        }
    }
}

impl<T> Stacks<T> {
    /// Of a stream in which this thread runs first.
    pub(crate) fn of(task: Task) -> Self {
        Self {
            task,
            ..Self::default()
        }
    }

    /// The thread that runs.
    pub(crate) const fn task(&self) -> Task {
        self.task
    }

    /// Another thread runs.
    pub(crate) fn switch_to(&mut self, task: Task) {
        if task != self.task {
            let next = self.others.remove(&task).unwrap_or_default();
            let before = std::mem::replace(&mut self.open, next);
            self.others.insert(self.task, before);
            self.task = task;
        }
    }

    /// What is kept of the innermost call.
    #[inline]
    pub(crate) fn last(&self) -> Option<&T> {
        self.open.last().map(|(_, kept)| kept)
    }

    /// What is kept of all calls of the thread that runs, the outer ones first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.open.iter().map(|(_, kept)| kept)
    }

    /// What is kept of the call around one that is to be pushed.
    pub(crate) fn around(&self, call: &Call) -> Option<&T> {
        let parent = call.parent?;
        let mut inner = self.open.iter().rev();
        let found = inner.find(|(number, _)| *number == parent);
        found.map(|(_, kept)| kept)
    }

    /// A call of the thread that runs begins, or turns out to have been open before the trace: such ones are known from the innermost to the
    /// outermost.
    #[inline]
    pub(crate) fn push(&mut self, call: &Call, kept: T) {
        let is_outer = call.number < 0
            && self
                .open
                .first()
                .is_some_and(|(first, _)| *first > call.number);
        if is_outer {
            self.open.insert(0, (call.number, kept));
        } else {
            self.open.push((call.number, kept));
        }
    }

    /// A call of the thread that runs is left.
    #[inline]
    pub(crate) fn remove(&mut self, call: &Call) -> Option<T> {
        if let Some((_, kept)) = self.open.pop_if(|(number, _)| *number == call.number) {
            return Some(kept);
        }
        let mut numbers = self.open.iter();
        let index = numbers.rposition(|(number, _)| *number == call.number)?;
        Some(self.open.remove(index).1)
    }

    /// What is kept of all calls of all threads.
    pub(crate) fn into_all(self) -> impl Iterator<Item = T> {
        let others = self.others.into_values().flatten();
        others.chain(self.open).map(|(_, kept)| kept)
    }
}
