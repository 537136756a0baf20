//! Open calls, as a visitor of calls keeps them.

use std::collections::HashMap;

use cofi_analysis::Call;
use cofi_session::Task;

/// What is kept of each open call, by thread: those of the thread that runs are at hand.
#[derive(Clone, Debug)]
pub(crate) struct Stacks<T> {
    open: OpenCalls<T>,
    others: HashMap<Task, OpenCalls<T>>,
    task: Task,
}

/// The open calls of a thread, on all of its stacks, in the order in which they began.
#[derive(Clone, Debug)]
struct OpenCalls<T> {
    list: Vec<Kept<T>>,
    /// The innermost of the stack in use. It need not be the one that began last: that may be of another stack.
    innermost: Option<i64>,
}

/// What is kept of an open call: with its number, and that of the call around it.
#[derive(Clone, Copy, Debug)]
struct Kept<T> {
    number: i64,
    parent: Option<i64>,
    kept: T,
}

impl<T> Default for OpenCalls<T> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            innermost: None,
        }
    }
}

impl<T> Default for Stacks<T> {
    fn default() -> Self {
        Self {
            open: OpenCalls::default(),
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
        self.inner().next()
    }

    /// What is kept of the innermost call, the one around it, and so on.
    #[inline]
    pub(crate) fn inner(&self) -> impl Iterator<Item = &T> {
        let mut next = self.open.innermost;
        // A call lies within one that began before; those before the trace stand first.
        let mut outer = self.open.list.iter().rev();
        std::iter::from_fn(move || {
            let number = next?;
            let open = outer.find(|open| open.number == number)?;
            next = open.parent;
            Some(&open.kept)
        })
    }

    /// The thread that runs goes on upon another stack, of which this call is the innermost.
    pub(crate) const fn stand_on(&mut self, innermost: Option<i64>) {
        self.open.innermost = innermost;
    }

    /// What is kept of all calls of the thread that runs, the outer ones first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.open.list.iter().map(|open| &open.kept)
    }

    /// What is kept of the call around one that is to be pushed.
    pub(crate) fn around(&self, call: &Call) -> Option<&T> {
        let parent = call.parent?;
        let mut inner = self.open.list.iter().rev();
        let found = inner.find(|open| open.number == parent);
        found.map(|open| &open.kept)
    }

    /// A call of the thread that runs begins, or turns out to have been open before the trace: such ones are known from the innermost to the
    /// outermost.
    #[inline]
    pub(crate) fn push(&mut self, call: &Call, kept: T) {
        let OpenCalls { list, innermost } = &mut self.open;
        let is_first = |first: &Kept<T>| first.number > call.number;
        let open = Kept {
            number: call.number,
            parent: call.parent,
            kept,
        };
        if call.number < 0 && list.first().is_some_and(is_first) {
            list.insert(0, open);
        } else {
            list.push(open);
        }
        *innermost = Some(call.number);
    }

    /// A call of the thread that runs is left.
    #[inline]
    pub(crate) fn remove(&mut self, call: &Call) -> Option<T> {
        let OpenCalls { list, innermost } = &mut self.open;
        if *innermost == Some(call.number) {
            *innermost = call.parent;
        }
        if let Some(open) = list.pop_if(|open| open.number == call.number) {
            return Some(open.kept);
        }
        let mut numbers = list.iter();
        let index = numbers.rposition(|open| open.number == call.number)?;
        Some(list.remove(index).kept)
    }

    /// What is kept of all calls of all threads.
    pub(crate) fn into_all(self) -> impl Iterator<Item = T> {
        let others = self.others.into_values().flat_map(|open| open.list);
        others.chain(self.open.list).map(|open| open.kept)
    }
}
