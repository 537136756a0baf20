//! The open calls at places of a stream, so that whoever begins there knows what whoever has read what stands before knows.
//!
//! Most of what is open at one place was open at the one before, and nothing about it has changed. So an open call is kept once, with the one
//! around it, however many places it is open at; and so are stacks that were switched away from, and threads that did not run in between.

use std::collections::{HashMap, HashSet};

use cofi_image::Version;
use cofi_packet::{Ip, StreamOffset};
use cofi_session::Task;
use cofi_session::compact;
use serde::{Deserialize, Serialize};

use super::inlines::{InlineFrame, Inlines, SavedChains};
use super::names::{CallNames, SavedNames};
use super::stack::{Frame, Stack};
use super::thread::{Coming, Thread};
use super::{CallMoment, CallTracer};

/// The functions that a [`CallTracer`] knows, by their numbers, and what else numbers of its [`CallStates`] mean.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CallDictionary {
    names: SavedNames,
    chains: SavedChains,
}

impl CallDictionary {
    pub(super) fn of(names: &CallNames, inlines: &Inlines) -> Self {
        Self {
            names: names.saved(),
            chains: inlines.saved(),
        }
    }

    pub(super) fn open(self) -> (CallNames, Inlines) {
        (
            CallNames::of_saved(self.names),
            Inlines::of_saved(self.chains),
        )
    }

    /// Whether it is one that a tracer gave, as far as can be told of one that was read from a file.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.names.is_sound() && self.chains.is_sound(self.names.len())
    }
}

/// Of numbers that may be none: 0 is none, others are one more than an index.
type Reference = u32;

fn reference(index: usize) -> Reference {
    u32::try_from(index + 1).unwrap_or(u32::MAX)
}

fn index(reference: Reference) -> Option<usize> {
    (reference as usize).checked_sub(1)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedFrame {
    /// The frame around it.
    outer: Reference,
    frame: Frame,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedStack {
    /// The innermost frame.
    top: Reference,
    inlines: Vec<InlineFrame>,
    elsewhere: u64,
    since: u64,
    number: u32,
    first: Option<(CallMoment, u64)>,
    is_coroutine: bool,
    forgotten: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedThread {
    task: Task,
    /// The stack in use and the others.
    stack: u32,
    others: Vec<u32>,
    coming: Coming,
    off_at: Option<(Coming, Ip)>,
    struck_at: Option<(Coming, Ip)>,
    total: u64,
    of_others: u64,
    counted: u64,
    next: i64,
    stacks: u32,
    outer: i64,
    credit: usize,
    signals: u64,
    handlers: u64,
    was_away: bool,
    last_ip: Option<Ip>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct State {
    /// How many threads were kept by then: of each, the last one counts.
    threads: u32,
    /// The one that runs.
    task: Task,
    offset: StreamOffset,
    instructions: u64,
    /// The version of the code in place.
    version: u64,
}

/// The open calls of a stream's threads at places of it that come one after the other.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CallStates {
    frames: Vec<SavedFrame>,
    stacks: Vec<SavedStack>,
    threads: Vec<SavedThread>,
    states: Vec<State>,
    #[serde(skip)]
    last: HashMap<Task, LastThread>,
}

/// What was kept last of a thread.
#[derive(Clone, Debug)]
struct LastThread {
    total: u64,
    next: i64,
    handlers: u64,
    stacks: Vec<LastStack>,
}

/// What was kept last of a stack, and where its frames are, the outermost first.
#[derive(Clone, Debug)]
struct LastStack {
    number: u32,
    kept: usize,
    since: u64,
    frames: Vec<usize>,
}

impl CallStates {
    /// How many places are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Keeps where a tracer stands, between two flows of a stream. Its number; none where it is not known on which of several stacks control is.
    pub fn push(&mut self, tracer: &CallTracer<'_>) -> Option<usize> {
        let all = std::iter::once(&tracer.thread).chain(tracer.threads.values());
        let mut all: Vec<&Thread> = all.collect();
        if { all.iter() }.any(|thread| thread.undecided.is_some() || thread.moment.is_some()) {
            return None;
        }
        // What is kept does not depend on how they are hashed.
        compact::sort_by_key(&mut all, |thread| thread.task);
        for thread in all {
            self.keep(thread);
        }
        self.states.push(State {
            threads: self.threads.len() as u32,
            task: tracer.task,
            offset: tracer.offset,
            instructions: tracer.instructions,
            version: tracer.version().0,
        });
        Some(self.states.len() - 1)
    }

    fn keep(&mut self, thread: &Thread) {
        let before = self.last.remove(&thread.task);
        if let Some(before) = before {
            let same = (before.total, before.next, before.handlers)
                == (thread.total, thread.next, thread.handlers);
            if same && thread.others.len() + 1 == before.stacks.len() {
                self.last.insert(thread.task, before);
                return;
            }
            self.keep_changed(thread, before.stacks);
        } else {
            self.keep_changed(thread, Vec::new());
        }
    }

    fn keep_changed(&mut self, thread: &Thread, before: Vec<LastStack>) {
        let mut before: HashMap<u32, LastStack> =
            before.into_iter().map(|last| (last.number, last)).collect();
        let mut stacks = Vec::with_capacity(thread.others.len() + 1);
        for (place, stack) in thread.others.iter().chain([&thread.stack]).enumerate() {
            let last = before.remove(&stack.number);
            let is_in_use = place == thread.others.len();
            stacks.push(self.keep_stack(stack, is_in_use, last));
        }
        self.count(
            thread.stack.frames.len(),
            thread.total.wrapping_sub(thread.counted),
        );
        let kept: Vec<u32> = stacks.iter().map(|last| last.kept as u32).collect();
        let (stack, others) = kept
            .split_last()
            .map_or((0, &[][..]), |(last, all)| (*last, all));
        self.threads.push(SavedThread {
            task: thread.task,
            stack,
            others: others.to_vec(),
            coming: thread.coming,
            off_at: thread.off_at,
            struck_at: thread.struck_at,
            total: thread.total,
            of_others: thread.of_others,
            counted: thread.total,
            next: thread.next,
            stacks: thread.stacks,
            outer: thread.outer,
            credit: thread.credit,
            signals: thread.signals,
            handlers: thread.handlers,
            was_away: thread.was_away,
            last_ip: thread.last_ip,
        });
        let last = LastThread {
            total: thread.total,
            next: thread.next,
            handlers: thread.handlers,
            stacks,
        };
        self.last.insert(thread.task, last);
    }

    /// Gives the innermost call of the stack that was kept last, which has so many frames, what has run in it, so that it does not matter when that was done last.
    fn count(&mut self, frames: usize, ran: u64) {
        let Some(stack) = self.stacks.last_mut() else {
            return;
        };
        let Some(top) = index(stack.top).and_then(|top| self.frames.get_mut(top)) else {
            return;
        };
        match stack.inlines.last_mut() {
            Some(inline) if inline.owner + 1 == frames => inline.self_insns += ran,
            _ => top.frame.self_insns += ran,
        }
    }

    fn keep_stack(&mut self, stack: &Stack, is_in_use: bool, last: Option<LastStack>) -> LastStack {
        let mut frames = match last {
            // Nothing happens to a stack that is switched away from.
            Some(last)
                if !is_in_use
                    && last.since == stack.since
                    && last.frames.len() == stack.frames.len() =>
            {
                return last;
            }
            Some(last) => last.frames,
            None => Vec::new(),
        };
        // A call that is open at both places began as it did: so the calls around it are the same ones.
        let is_same = |depth: usize| {
            let now = stack.frames.get(depth);
            let then = frames
                .get(depth)
                .and_then(|kept: &usize| self.frames.get(*kept));
            now.zip(then).is_some_and(|(now, then)| {
                let (now, then) = (&now.call, &then.frame.call);
                (now.number, now.function, now.begin.insns)
                    == (then.number, then.function, then.begin.insns)
            })
        };
        let (mut same, mut different) = (0, frames.len().min(stack.frames.len()));
        while same < different {
            let middle = same.midpoint(different);
            match is_same(middle) {
                true => same = middle + 1,
                false => different = middle,
            }
        }
        // In the innermost of them something may have happened meanwhile.
        frames.truncate(same.saturating_sub(1));
        for frame in stack.frames.iter().skip(frames.len()) {
            let outer = frames.last().map_or(0, |outer| reference(*outer));
            frames.push(self.frames.len());
            self.frames.push(SavedFrame {
                outer,
                frame: *frame,
            });
        }
        let kept = self.stacks.len();
        self.stacks.push(SavedStack {
            top: frames.last().map_or(0, |top| reference(*top)),
            inlines: stack.inlines.clone(),
            elsewhere: stack.elsewhere,
            since: stack.since,
            number: stack.number,
            first: stack.first,
            is_coroutine: stack.is_coroutine,
            forgotten: stack.forgotten,
        });
        LastStack {
            number: stack.number,
            kept,
            since: stack.since,
            frames,
        }
    }

    /// How many instructions of the stream ran before a place.
    #[must_use]
    pub fn instructions(&self, number: usize) -> Option<u64> {
        Some(self.states.get(number)?.instructions)
    }

    /// Has a tracer of the same stream, with the dictionary that belongs to these states, stand where another one stood. Whether there is such a place.
    pub fn restore(&self, number: usize, tracer: &mut CallTracer<'_>) -> bool {
        let Some(state) = self.states.get(number) else {
            return false;
        };
        let mut seen = HashSet::new();
        let mut threads = HashMap::new();
        let by_then = self
            .threads
            .get(..state.threads as usize)
            .unwrap_or_default();
        for saved in by_then.iter().rev() {
            if !seen.insert(saved.task) {
                continue;
            }
            threads.insert(saved.task, self.thread(saved));
            // A thread's stream is about it alone.
            if !tracer.is_processor {
                break;
            }
        }
        tracer.thread = threads
            .remove(&state.task)
            .unwrap_or_else(|| Thread::new(state.task));
        tracer.task = state.task;
        tracer.threads = threads;
        tracer.stand_at(state.offset, state.instructions, Version(state.version));
        true
    }

    fn thread(&self, saved: &SavedThread) -> Thread {
        let others = saved.others.iter();
        let others = others.filter_map(|stack| self.stacks.get(*stack as usize));
        let stack = self.stacks.get(saved.stack as usize);
        Thread {
            stack: stack.map(|stack| self.stack(stack)).unwrap_or_default(),
            others: others.map(|stack| self.stack(stack)).collect(),
            coming: saved.coming,
            off_at: saved.off_at,
            struck_at: saved.struck_at,
            total: saved.total,
            of_others: saved.of_others,
            counted: saved.counted,
            next: saved.next,
            stacks: saved.stacks,
            outer: saved.outer,
            credit: saved.credit,
            signals: saved.signals,
            handlers: saved.handlers,
            was_away: saved.was_away,
            last_ip: saved.last_ip,
            ..Thread::new(saved.task)
        }
    }

    fn stack(&self, saved: &SavedStack) -> Stack {
        let mut frames = Vec::new();
        let mut next = index(saved.top);
        // Each frame lies within one that was kept before it: so this ends.
        while let Some(kept) = next.and_then(|kept| self.frames.get(kept)) {
            frames.push(kept.frame);
            next = index(kept.outer);
        }
        frames.reverse();
        Stack {
            frames,
            inlines: saved.inlines.clone(),
            elsewhere: saved.elsewhere,
            since: saved.since,
            number: saved.number,
            first: saved.first,
            is_coroutine: saved.is_coroutine,
            forgotten: saved.forgotten,
        }
    }

    /// Whether all numbers in them mean something, of states that were read from a file together with the dictionary.
    #[must_use]
    pub fn is_sound(&self, dictionary: &CallDictionary) -> bool {
        let (functions, chains) = (dictionary.names.len(), dictionary.chains.len());
        let frames = self.frames.iter().enumerate().all(|(number, saved)| {
            saved.outer as usize <= number && saved.frame.call.function.index() < functions
        });
        let stacks = self.stacks.iter().all(|stack| {
            stack.top as usize <= self.frames.len()
                && stack.inlines.iter().all(|inline| {
                    inline.call.function.index() < functions && inline.chain as usize <= chains
                })
        });
        let threads = self.threads.iter().all(|thread| {
            let mut stacks = thread.others.iter().chain([&thread.stack]);
            stacks.all(|stack| (*stack as usize) < self.stacks.len())
        });
        let states = self.states.iter();
        let states = states.map(|state| state.threads as usize);
        dictionary.is_sound()
            && frames
            && stacks
            && threads
            && states.clone().all(|threads| threads <= self.threads.len())
    }
}
