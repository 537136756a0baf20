//! The calls of a thread as one timeline.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;

use cofi_analysis::{
    Call, CallEnd, CallMoment, CallNames, CallVisitor, CallsInOrder, FinishedCall, Left,
};
use cofi_session::{Session, StreamKey, Task};
use rustc_hash::FxHashMap;

use crate::{FrameId, Frames, Weight};

/// A thread, whose calls come next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// Process and thread.
    pub task: Task,
    /// What to call it.
    pub name: String,
}

/// Takes the timelines of threads, part by part. Calls nest, and their moments never go back within a part.
pub trait Exporter {
    /// A part of a thread's timeline begins. Parts of one thread may follow each other, where trace is missing between them.
    ///
    /// # Errors
    /// As writing fails.
    fn begin_part(&mut self, track: &Track, at: u64) -> io::Result<()>;

    /// A function is entered, or goes on on another stack: then `call` is none.
    ///
    /// # Errors
    /// As writing fails.
    fn enter(
        &mut self,
        frame: FrameId,
        at: u64,
        call: Option<&FinishedCall>,
        frames: &Frames,
    ) -> io::Result<()>;

    /// The function that was entered last is left.
    ///
    /// # Errors
    /// As writing fails.
    fn leave(&mut self, frame: FrameId, at: u64) -> io::Result<()>;

    /// The part ends, in which every function was left.
    ///
    /// # Errors
    /// As writing fails.
    fn end_part(&mut self, at: u64) -> io::Result<()>;

    /// All is there.
    ///
    /// # Errors
    /// As writing fails.
    fn finish(&mut self, frames: &Frames) -> io::Result<()>;
}

/// Shows the calls of a recording to an [`Exporter`].
pub struct CallExporter<'a, 's> {
    session: &'a Session<'s>,
    weight: Weight,
    exporter: Box<dyn Exporter + 'a>,
    /// The threads that are wanted; all if there is none.
    tids: Vec<u32>,
    frames: Frames,
    waiting: FxHashMap<Task, CallsInOrder>,
    cpu: Option<u32>,
    calls: u64,
    failed: Option<io::Error>,
}

impl<'a, 's> CallExporter<'a, 's> {
    /// One that shows the threads of `tids`, or all if there is none.
    #[must_use]
    pub fn new(
        session: &'a Session<'s>,
        weight: Weight,
        tids: &[u32],
        exporter: Box<dyn Exporter + 'a>,
    ) -> Self {
        Self {
            session,
            weight,
            exporter,
            tids: tids.to_vec(),
            frames: Frames::default(),
            waiting: FxHashMap::default(),
            cpu: None,
            calls: 0,
            failed: None,
        }
    }

    /// The calls of a stream come next.
    pub fn begin_stream(&mut self, key: StreamKey) {
        self.frames.begin_stream();
        self.cpu = key.cpu();
    }

    /// All streams have come. How many calls there were.
    ///
    /// # Errors
    /// What went wrong first, while writing or before.
    pub fn finish(mut self) -> io::Result<u64> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.exporter.finish(&self.frames)?;
        Ok(self.calls)
    }

    fn track(&self, task: Task) -> Track {
        let comm = self.session.comm_of(task.tid);
        let name = match (comm, self.cpu) {
            (Some(comm), _) => format!("{comm} ({})", task.tid),
            (None, Some(cpu)) if task.tid == 0 => format!("processor {cpu}"),
            (None, _) if task.tid == 0 => "trace".to_owned(),
            (None, _) => format!("thread {}", task.tid),
        };
        Track { task, name }
    }

    fn show(&mut self, task: Task, names: &CallNames) -> io::Result<()> {
        let Some(mut order) = self.waiting.remove(&task) else {
            return Ok(());
        };
        let track = self.track(task);
        let Self {
            session,
            weight,
            exporter,
            frames,
            calls,
            ..
        } = self;
        let mut part: Option<Part<'_, '_>> = None;
        order.drain(|finished| {
            *calls += 1;
            let frame = frames.number(&finished.call, names);
            let part = match &mut part {
                Some(part) => part,
                none => {
                    let clock = Clock::new(session, *weight, finished);
                    exporter.begin_part(&track, clock.last)?;
                    none.insert(Part::new(clock))
                }
            };
            part.call(frame, finished, &mut **exporter, frames)
        })?;
        part.map_or(Ok(()), |part| part.end(&mut **exporter, frames))
    }
}

impl std::fmt::Debug for CallExporter<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallExporter")
            .field("weight", &self.weight)
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}

impl CallVisitor for CallExporter<'_, '_> {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        if self.tids.is_empty() || self.tids.contains(&call.task.tid) {
            self.waiting.entry(call.task).or_default().enter(call);
        }
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        if let Some(order) = self.waiting.get_mut(&call.task) {
            order.leave(call, end);
        }
    }

    fn all_left(&mut self, task: Task, names: &CallNames) {
        if self.failed.is_none() {
            self.failed = self.show(task, names).err();
        }
    }
}

/// Where along a timeline moments lie. It never goes back.
struct Clock<'a, 's> {
    session: &'a Session<'s>,
    weight: Weight,
    last: u64,
}

impl<'a, 's> Clock<'a, 's> {
    /// One that begins where the first call does, or, if that is not known, where it ends.
    fn new(session: &'a Session<'s>, weight: Weight, first: &FinishedCall) -> Self {
        let mut clock = Self {
            session,
            weight,
            last: 0,
        };
        let begin = clock.place(&first.call.begin);
        let place = begin.or_else(|| clock.place(&first.end.end));
        clock.last = place.unwrap_or(0);
        clock
    }

    fn place(&self, moment: &CallMoment) -> Option<u64> {
        match self.weight {
            Weight::Instructions => Some(moment.insns),
            Weight::Time => Some(self.session.time_conversion()?.time_of(moment.tsc?)?.0),
        }
    }

    fn reach(&mut self, moment: &CallMoment) -> u64 {
        self.last = self.place(moment).unwrap_or(0).max(self.last);
        self.last
    }
}

/// A call that is open.
#[derive(Clone, Copy)]
struct Open {
    frame: FrameId,
    stack: u32,
    depth: i32,
    /// The call around it, on this stack or the one that switched to it.
    parent: Option<i64>,
    end: CallEnd,
}

/// A part of a timeline. Of coroutines, that stack is shown which ran last.
struct Part<'a, 's> {
    clock: Clock<'a, 's>,
    open: FxHashMap<i64, Open>,
    /// The open calls of each stack, the innermost last.
    stacks: FxHashMap<u32, Vec<i64>>,
    /// When open calls end, and which: the innermost of those that end at once comes first. Calls that end with the part are not here.
    ends: BinaryHeap<Reverse<(u64, Reverse<i64>)>>,
    /// What the exporter was shown and is still open: calls and their functions.
    shown: Vec<(i64, FrameId)>,
}

impl<'a, 's> Part<'a, 's> {
    fn new(clock: Clock<'a, 's>) -> Self {
        Self {
            clock,
            open: FxHashMap::default(),
            stacks: FxHashMap::default(),
            ends: BinaryHeap::new(),
            shown: Vec::new(),
        }
    }

    /// The next call begins.
    fn call(
        &mut self,
        frame: FrameId,
        finished: &FinishedCall,
        exporter: &mut dyn Exporter,
        frames: &Frames,
    ) -> io::Result<()> {
        let FinishedCall { call, end, .. } = finished;
        while let Some(Reverse((insns, Reverse(number)))) = self.ends.peek().copied() {
            let is_over = match self.open.get(&number) {
                None => true,
                // One that begins and ends where the call around it ends lies in it.
                Some(open) => {
                    let is_around = open.stack == call.stack && open.depth < call.depth;
                    insns < call.begin.insns || insns == call.begin.insns && !is_around
                }
            };
            if !is_over {
                break;
            }
            self.ends.pop();
            self.close(number, exporter, frames)?;
        }
        // Whatever is as deep on the same stack was left, too.
        while let Some(number) = self.innermost(call.stack)
            && self
                .open
                .get(&number)
                .is_none_or(|open| open.depth >= call.depth)
        {
            self.close(number, exporter, frames)?;
        }
        let around = call.parent.filter(|parent| self.open.contains_key(parent));
        let parent = self.innermost(call.stack).or(around);
        self.show(parent, exporter, frames)?;
        let at = self.clock.reach(&call.begin);
        exporter.enter(frame, at, Some(finished), frames)?;
        self.shown.push((call.number, frame));
        self.stacks.entry(call.stack).or_default().push(call.number);
        self.open.insert(
            call.number,
            Open {
                frame,
                stack: call.stack,
                depth: call.depth,
                parent,
                end: *end,
            },
        );
        if !matches!(end.left, Left::End | Left::Gap) {
            self.ends
                .push(Reverse((end.end.insns, Reverse(call.number))));
        }
        Ok(())
    }

    fn innermost(&self, stack: u32) -> Option<i64> {
        self.stacks.get(&stack)?.last().copied()
    }

    /// A call is left, and those of its stack within it.
    fn close(
        &mut self,
        number: i64,
        exporter: &mut dyn Exporter,
        frames: &Frames,
    ) -> io::Result<()> {
        let Some(open) = self.open.get(&number).copied() else {
            return Ok(());
        };
        // Its stack runs again, if another one did.
        self.show(Some(number), exporter, frames)?;
        let at = self.clock.reach(&open.end.end);
        if let Some((_, frame)) = self.shown.pop() {
            exporter.leave(frame, at)?;
        }
        self.open.remove(&number);
        if let Some(stack) = self.stacks.get_mut(&open.stack) {
            while stack.pop().is_some_and(|inner| inner != number) {}
            if stack.is_empty() {
                self.stacks.remove(&open.stack);
            }
        }
        Ok(())
    }

    /// Makes `number` the innermost call that is shown.
    fn show(
        &mut self,
        number: Option<i64>,
        exporter: &mut dyn Exporter,
        frames: &Frames,
    ) -> io::Result<()> {
        if self.shown.last().map(|(shown, _)| *shown) == number {
            return Ok(());
        }
        let mut chain = Vec::new();
        let mut next = number;
        while let Some(number) = next
            && let Some(open) = self.open.get(&number)
        {
            chain.push((number, open.frame));
            next = open.parent;
        }
        chain.reverse();
        let both = self.shown.iter().zip(&chain);
        let common = both.take_while(|(one, two)| one == two).count();
        while self.shown.len() > common
            && let Some((_, frame)) = self.shown.pop()
        {
            exporter.leave(frame, self.clock.last)?;
        }
        for (number, frame) in chain.into_iter().skip(common) {
            exporter.enter(frame, self.clock.last, None, frames)?;
            self.shown.push((number, frame));
        }
        Ok(())
    }

    /// No more calls come: those that are open end now.
    fn end(mut self, exporter: &mut dyn Exporter, frames: &Frames) -> io::Result<()> {
        while let Some(Reverse((_, Reverse(number)))) = self.ends.pop() {
            self.close(number, exporter, frames)?;
        }
        let last = self.open.values().map(|open| open.end.end);
        if let Some(last) = last.max_by_key(|end| end.insns) {
            self.clock.reach(&last);
        }
        while let Some((_, frame)) = self.shown.pop() {
            exporter.leave(frame, self.clock.last)?;
        }
        exporter.end_part(self.clock.last)
    }
}
