//! Open calls, as a visitor of calls keeps them.

use std::collections::{BTreeMap, HashMap};

use cofi_analysis::Call;
use cofi_session::Task;

/// What is kept of each open call, by thread: those of the thread that runs are at hand.
#[derive(Clone, Debug)]
pub(crate) struct Stacks<T> {
    open: OpenCalls<T>,
    others: HashMap<Task, OpenCalls<T>>,
    task: Task,
}

/// The open calls of a thread, on all of its stacks. There may be thousands of stacks, and calls of any of them may be left next.
#[derive(Clone, Debug)]
struct OpenCalls<T> {
    /// By their numbers: in the order in which they began, those before the trace first.
    all: BTreeMap<i64, Kept<T>>,
    /// The innermost of the stack in use. It need not be the one that began last: that may be of another stack.
    innermost: Option<i64>,
}

/// What is kept of an open call, and the number of the call around it.
#[derive(Clone, Copy, Debug)]
struct Kept<T> {
    parent: Option<i64>,
    kept: T,
}

impl<T> Default for OpenCalls<T> {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
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
        std::iter::from_fn(move || {
            let number = next?;
            let open = self.open.all.get(&number)?;
            // A call lies within one that began before.
            next = open.parent.filter(|parent| *parent < number);
            Some(&open.kept)
        })
    }

    /// The thread that runs goes on upon another stack, of which this call is the innermost.
    pub(crate) const fn stand_on(&mut self, innermost: Option<i64>) {
        self.open.innermost = innermost;
    }

    /// What is kept of all calls of the thread that runs, the outer ones first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.open.all.values().map(|open| &open.kept)
    }

    /// What is kept of the call around one that is to be pushed.
    pub(crate) fn around(&self, call: &Call) -> Option<&T> {
        let found = self.open.all.get(&call.parent?)?;
        Some(&found.kept)
    }

    /// A call of the thread that runs begins, or turns out to have been open before the trace: such ones are known from the innermost to the
    /// outermost.
    #[inline]
    pub(crate) fn push(&mut self, call: &Call, kept: T) {
        let parent = call.parent;
        self.open.all.insert(call.number, Kept { parent, kept });
        self.open.innermost = Some(call.number);
    }

    /// A call of the thread that runs is left.
    #[inline]
    pub(crate) fn remove(&mut self, call: &Call) -> Option<T> {
        let OpenCalls { all, innermost } = &mut self.open;
        if *innermost == Some(call.number) {
            *innermost = call.parent;
        }
        all.remove(&call.number).map(|open| open.kept)
    }

    /// What is kept of all calls of all threads.
    pub(crate) fn into_all(self) -> impl Iterator<Item = T> {
        let others = self.others.into_values();
        let all = others.chain(std::iter::once(self.open));
        all.flat_map(|open| open.all.into_values().map(|open| open.kept))
    }
}
