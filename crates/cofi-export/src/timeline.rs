//! The calls of a thread as one timeline.

use std::io;

use cofi_analysis::{
    ByTask, Call, CallEnd, CallMoment, CallNames, CallVisitor, CallsInOrder, FinishedCall, Left,
};
use cofi_packet::Tsc;
use cofi_session::{Session, StreamKey, Task};

use crate::open::{Ends, Open, OpenCalls, Stacks};
use crate::{FrameId, Frames, Weight};

/// A thread, whose calls come next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

    /// Whether functions are to be left, too, as they nest. If not, `enter` is all that is called, once for each call, and moments are 0.
    fn is_nested(&self) -> bool {
        true
    }

    /// All is there.
    ///
    /// # Errors
    /// As writing fails.
    fn finish(&mut self, frames: &Frames) -> io::Result<()>;
}

/// The calls of a thread, up to the end of the part.
#[derive(Debug, Default)]
struct Waiting {
    order: CallsInOrder,
    /// The first time that is known among them. Those that began before the first packet of time have none.
    first: Option<Tsc>,
}

/// Shows the calls of a recording to an [`Exporter`].
pub struct CallExporter<'a, 's> {
    session: &'a Session<'s>,
    weight: Weight,
    exporter: Box<dyn Exporter + 'a>,
    /// The threads that are wanted; all if there is none.
    tids: Vec<u32>,
    frames: Frames,
    waiting: ByTask<Waiting>,
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
            waiting: ByTask::default(),
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
        let Some(Waiting { mut order, first }) = self.waiting.remove(task) else {
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
        let is_nested = exporter.is_nested();
        // The functions of sites.
        let mut sites: Vec<Option<FrameId>> = Vec::new();
        order.drain(|finished| {
            *calls += 1;
            let site = finished.site as usize;
            if sites.len() <= site {
                sites.resize(site + 1, None);
            }
            let frame = match sites.get(site) {
                Some(Some(frame)) => *frame,
                _ => frames.number(&finished.call, names),
            };
            sites[site] = Some(frame);
            let part = match &mut part {
                Some(part) => part,
                none => {
                    let clock = Clock::new(session, *weight, &finished.call.begin, first);
                    exporter.begin_part(&track, clock.last)?;
                    none.insert(Part::new(clock))
                }
            };
            match is_nested {
                true => part.call(frame, finished, &mut **exporter, frames),
                false => exporter.enter(frame, 0, Some(finished), frames),
            }
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
            let waiting = self.waiting.get_or_default(call.task);
            waiting.first = waiting.first.or(call.begin.tsc);
            waiting.order.enter(call);
        }
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        if let Some(waiting) = self.waiting.get_mut(call.task) {
            waiting.first = waiting.first.or(end.end.tsc);
            waiting.order.leave(call, end);
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
    /// What was converted last: time passes at packets, and many calls begin and end at the same moment.
    known: Option<(Tsc, Option<u64>)>,
}

impl<'a, 's> Clock<'a, 's> {
    /// One that begins where the first call does, or, if that is not known, at the first time that is. (Not where that call ends: what it has
    /// called lies before that.)
    fn new(
        session: &'a Session<'s>,
        weight: Weight,
        begin: &CallMoment,
        first: Option<Tsc>,
    ) -> Self {
        let mut clock = Self {
            session,
            weight,
            last: 0,
            known: None,
        };
        let known = CallMoment {
            tsc: begin.tsc.or(first),
            ..*begin
        };
        clock.last = clock.place(&known).unwrap_or(0);
        clock
    }

    fn place(&mut self, moment: &CallMoment) -> Option<u64> {
        if self.weight == Weight::Instructions {
            return Some(moment.insns);
        }
        let tsc = moment.tsc?;
        if let Some((known, time)) = self.known
            && known == tsc
        {
            return time;
        }
        let conversion = self.session.time_conversion();
        let time = conversion.and_then(|conversion| Some(conversion.time_of(tsc)?.0));
        self.known = Some((tsc, time));
        time
    }

    fn reach(&mut self, moment: &CallMoment) -> u64 {
        self.last = self.place(moment).unwrap_or(0).max(self.last);
        self.last
    }
}

/// A part of a timeline. Of coroutines, that stack is shown which ran last.
struct Part<'a, 's> {
    clock: Clock<'a, 's>,
    open: OpenCalls,
    stacks: Stacks,
    /// When open calls end. Those that end with the part are not here.
    ends: Ends,
    /// What the exporter was shown and is still open: calls and their functions.
    shown: Vec<(i64, FrameId)>,
}

impl<'a, 's> Part<'a, 's> {
    fn new(clock: Clock<'a, 's>) -> Self {
        Self {
            clock,
            open: OpenCalls::default(),
            stacks: Stacks::default(),
            ends: Ends::default(),
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
        while let Some((insns, number)) = self.ends.peek() {
            let is_over = match self.open.get(number) {
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
                .get(number)
                .is_none_or(|open| open.depth >= call.depth)
        {
            self.close(number, exporter, frames)?;
        }
        let around = call
            .parent
            .filter(|parent| self.open.get(*parent).is_some());
        let parent = self.innermost(call.stack).or(around);
        self.show(parent, exporter, frames)?;
        let at = self.clock.reach(&call.begin);
        exporter.enter(frame, at, Some(finished), frames)?;
        self.shown.push((call.number, frame));
        self.stacks.of(call.stack).push(call.number);
        self.open.push(
            call.number,
            Open {
                frame,
                stack: call.stack,
                depth: call.depth,
                parent,
                end: end.end,
            },
        );
        if !matches!(end.left, Left::End | Left::Gap) {
            self.ends.push(end.end.insns, call.number);
        }
        Ok(())
    }

    fn innermost(&mut self, stack: u32) -> Option<i64> {
        self.stacks.of(stack).last().copied()
    }

    /// A call is left, and those of its stack within it.
    fn close(
        &mut self,
        number: i64,
        exporter: &mut dyn Exporter,
        frames: &Frames,
    ) -> io::Result<()> {
        let Some(open) = self.open.get(number).copied() else {
            return Ok(());
        };
        // Its stack runs again, if another one did.
        self.show(Some(number), exporter, frames)?;
        let at = self.clock.reach(&open.end);
        if let Some((_, frame)) = self.shown.pop() {
            exporter.leave(frame, at)?;
        }
        self.open.remove(number);
        let stack = self.stacks.of(open.stack);
        while stack.pop().is_some_and(|inner| inner != number) {}
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
            && let Some(open) = self.open.get(number)
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
        while let Some((_, number)) = self.ends.pop() {
            self.close(number, exporter, frames)?;
        }
        let last = self.open.iter().map(|open| open.end);
        if let Some(last) = last.max_by_key(|end| end.insns) {
            self.clock.reach(&last);
        }
        while let Some((_, frame)) = self.shown.pop() {
            exporter.leave(frame, self.clock.last)?;
        }
        exporter.end_part(self.clock.last)
    }
}
