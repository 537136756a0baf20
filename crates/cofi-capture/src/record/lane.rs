//! What one thread runs, as the recorder takes it: nothing of it is any other thread's, so several threads' may be taken at a time.

use super::thread::{Thread, VirtualClock};
use super::truth::{List, Truth};
use super::{CHUNK, Recorder, write_error};
use crate::{Entry, Lane, Pid, Runs};
use cofi_insn::Insn;
use cofi_packet::{ExecMode, Ip};
use cofi_perf::Subject;
use std::io;

/// A thread while it is told of.
///
/// Each thread's clock goes on by itself, as processors do their work at a time, and all of them go on from where the latest is.
pub(super) struct ThreadLane<'a> {
    thread: &'a mut Thread,
    clock: VirtualClock,
    /// The list of what ran, if there is one.
    list: Option<&'a mut List>,
    /// What the thread runs is not always traced: of a machine, levels may be left out.
    is_machine: bool,
    instructions: u64,
    result: io::Result<()>,
}

/// What has come of a lane.
pub(super) struct Done {
    clock: VirtualClock,
    instructions: u64,
    is_full: bool,
    result: io::Result<()>,
}

impl<'a> ThreadLane<'a> {
    fn new(
        thread: &'a mut Thread,
        clock: VirtualClock,
        list: Option<&'a mut List>,
        is_machine: bool,
    ) -> Self {
        Self {
            thread,
            clock,
            list,
            is_machine,
            instructions: 0,
            result: Ok(()),
        }
    }

    fn done(self) -> Done {
        Done {
            clock: self.clock,
            instructions: self.instructions,
            is_full: self.thread.waiting() >= CHUNK,
            result: self.result,
        }
    }

    /// An instruction retired: notes it where it is traced.
    #[inline]
    pub(super) fn truth(&mut self, ip: Ip) {
        if self.is_machine && !self.thread.is_traced() || self.thread.is_off() {
            return;
        }
        self.instructions += 1;
        self.list(|list| list.push(ip.0));
    }

    #[inline]
    fn list(&mut self, push: impl FnOnce(&mut List) -> io::Result<()>) {
        if let (Some(list), Ok(())) = (&mut self.list, &self.result) {
            self.result = push(list);
        }
    }

    #[inline]
    pub(super) fn retired(&mut self, ip: Ip, insn: &Insn, next: Ip) {
        self.clock.tick();
        self.thread.retired(self.clock, ip, insn, next);
        self.truth(ip);
    }

    #[inline]
    pub(super) fn ran(&mut self, runs: &mut Runs<'_>) {
        if self.thread.is_off() {
            return self.thread.pass(&mut self.clock, runs);
        }
        // Of what is not traced only the time is told, one by one.
        if self.is_machine && !self.thread.is_traced() {
            return;
        }
        let before = self.clock;
        let mut told = runs.clone();
        self.thread.ran(&mut self.clock, runs);
        self.list(|list| {
            while told.left() > runs.left()
                && let Some(run) = told.next()
            {
                let mut ips = run.steps().map(|step| step.ip.0);
                ips.try_for_each(|ip| list.push(ip))?;
            }
            Ok(())
        });
        self.instructions += self.clock.instructions_since(before);
    }

    pub(super) fn far_branch(&mut self, ip: Ip, insn: &Insn, next: Ip, mode: ExecMode) {
        self.clock.tick();
        self.thread.far_branch(self.clock, ip, insn, next, mode);
        self.truth(ip);
    }

    pub(super) fn enter_kernel(&mut self, entry: Entry) {
        let retired = self.thread.retires_with(entry).map(|(ip, _)| ip);
        if retired.is_some() {
            self.clock.tick();
        }
        self.thread.enter_kernel(self.clock, entry);
        if let Some(ip) = retired {
            self.truth(ip);
        }
    }
}

impl Lane for ThreadLane<'_> {
    fn resume_user(&mut self, _: Pid, ip: Ip) {
        self.thread.resume_user(self.clock, ip, ExecMode::Bits64);
    }

    fn retired(&mut self, _: Pid, ip: Ip, insn: &Insn, next: Ip) {
        self.retired(ip, insn, next);
    }

    fn ran(&mut self, _: Pid, runs: &mut Runs<'_>) {
        self.ran(runs);
    }

    fn far_branch(&mut self, _: Pid, ip: Ip, insn: &Insn, next: Ip) {
        self.far_branch(ip, insn, next, ExecMode::Bits64);
    }

    fn enter_kernel(&mut self, _: Pid, entry: Entry) {
        self.enter_kernel(entry);
    }
}

impl Recorder {
    /// Has `tell` tell what a thread does, if it is traced.
    #[inline]
    pub(super) fn in_lane(&mut self, tid: Pid, tell: impl FnOnce(&mut ThreadLane<'_>)) {
        let Some(thread) = self.threads.get_mut(tid) else {
            return;
        };
        let list = self
            .truth
            .as_mut()
            .and_then(|truth| truth.list(thread.index));
        let is_machine = self.settings.subject != Subject::Processes;
        let mut lane = ThreadLane::new(thread, self.clock, list, is_machine);
        tell(&mut lane);
        let done = lane.done();
        self.clock = done.clock;
        self.take_in(tid, done);
    }

    #[inline]
    fn take_in(&mut self, tid: Pid, done: Done) {
        self.instructions += done.instructions;
        if done.result.is_err() {
            self.keep(done.result.map_err(write_error(&self.settings.file)));
        }
        if done.is_full {
            self.after_step(tid);
        }
    }

    /// See [`crate::Observer::apart`].
    pub(super) fn tell_apart(
        &mut self,
        tids: &[Pid],
        tell: &mut dyn FnMut(&mut [&mut (dyn Lane + Send)]),
    ) -> bool {
        // Where one thread's place decides whether others are traced, none goes ahead.
        let is_free = self.gates.is_none()
            && self.error.is_none()
            && self.settings.subject == Subject::Processes;
        let mut places: Vec<Option<ThreadLane<'_>>> = tids.iter().map(|_| None).collect();
        let mut lists = self.truth.as_mut().map(Truth::lists);
        for thread in self.threads.all_mut().filter(|_| is_free) {
            let place = tids.iter().position(|tid| *tid == thread.tid);
            if let Some(place) = place.and_then(|place| places.get_mut(place))
                && !thread.owes_mode(ExecMode::Bits64)
            {
                let list = lists.as_mut().and_then(|lists| lists.remove(&thread.index));
                *place = Some(ThreadLane::new(thread, self.clock, list, false));
            }
        }
        let lanes: Option<Vec<ThreadLane<'_>>> = places.into_iter().collect();
        let Some(mut lanes) = lanes else {
            return false;
        };
        let mut all: Vec<&mut (dyn Lane + Send)> = Vec::new();
        for lane in &mut lanes {
            all.push(lane);
        }
        tell(&mut all);
        let done: Vec<Done> = lanes.into_iter().map(ThreadLane::done).collect();
        let clocks = done.iter().map(|done| done.clock);
        self.clock = clocks.fold(self.clock, VirtualClock::later);
        for (tid, done) in tids.iter().zip(done) {
            self.take_in(*tid, done);
        }
        true
    }
}

#[cfg(test)]
mod tests;
