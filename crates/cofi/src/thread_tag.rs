//! Whose instructions these are, where a trace is of several threads or processors.

use crate::input;
use cofi_session::{Session, Stream, StreamKey, ThreadFlow};
use cofi_text::Line;
use std::io::Write;

/// The thread that a stream is about, as the flow goes by.
pub(crate) struct ThreadTag<'s> {
    key: StreamKey,
    /// The threads that are wanted; none means all.
    wanted: &'s [u32],
    /// In a processor's stream, the thread that runs, if known.
    running: Option<u32>,
}

impl<'s> ThreadTag<'s> {
    pub(crate) fn new(stream: &Stream<'_>, wanted: &'s [u32]) -> Self {
        Self {
            key: stream.key(),
            wanted,
            running: None,
        }
    }

    /// After an event or error: whether another thread runs now, in a processor's stream.
    pub(crate) fn follow(&mut self, flow: &mut ThreadFlow<'_>) -> bool {
        if self.key.cpu().is_none() {
            return false;
        }
        let task = flow.task();
        // Zeros also stand for a thread that is not known.
        let running = (task.tid != 0).then_some(task.tid);
        let before = std::mem::replace(&mut self.running, running);
        running.is_some() && running != before
    }

    /// In a processor's stream, the thread that runs, if it is known.
    pub(crate) const fn running(&self) -> Option<u32> {
        self.running
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.is_empty()
            || self.key.cpu().is_none()
            || self.running.is_some_and(|tid| self.wanted.contains(&tid))
    }

    /// Adds `tid` and `cpu`, as far as they are known.
    #[inline]
    pub(crate) fn tag(&self, line: &mut Line) {
        if let Some(tid) = self.key.tid().or(self.running) {
            line.number("tid", tid);
        }
        if let Some(cpu) = self.key.cpu() {
            line.number("cpu", cpu);
        }
    }

    /// A heading for the thread that runs now, within a processor's stream.
    pub(crate) fn heading(&self, session: &Session<'_>, text: &mut Vec<u8>) {
        if let Some(tid) = self.running {
            let comm = session.comm_of(tid).map(input::called).unwrap_or_default();
            // Writing to memory does not fail.
            let _ = writeln!(text, "  == thread {tid}{comm}");
        }
    }
}
