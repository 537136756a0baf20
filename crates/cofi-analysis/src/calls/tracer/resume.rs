//! Where a tracer goes on that has not followed, or has followed already, what stands before.

use cofi_image::Version;
use cofi_packet::StreamOffset;

use super::{Beginning, CallTracer};
use crate::calls::clock::{SavedClock, StreamClock};

impl CallTracer<'_> {
    /// The next flow is of the part of the stream that comes next, and begins at a PSB behind which tracing is on, as it is now.
    pub fn go_on(&mut self) {
        self.code.now = None;
        self.continue_from(true);
    }

    pub(in crate::calls) fn continue_from(&mut self, is_continued: bool) {
        self.is_continued = is_continued;
        self.beginning = is_continued.then(Beginning::default);
    }

    /// What comes next stands behind the packet at `offset`, and so many instructions ran before it.
    pub(in crate::calls) fn stand_at(
        &mut self,
        offset: StreamOffset,
        instructions: u64,
        version: Version,
    ) {
        (self.offset, self.instructions) = (offset, instructions);
        self.code.go_on_from(version);
        self.errors = None;
        self.code.now = None;
        self.continue_from(false);
    }

    /// The next flow begins here: with the stream, or at a PSB behind which tracing is on.
    pub fn begin_at(&mut self, start: StreamOffset) {
        self.clock = StreamClock::new(self.stream.bytes(), start, &self.config);
        self.signals = self.stream.signals_from(start);
        self.code.now = None;
        self.continue_from(start != StreamOffset(0));
    }

    /// The same, for a tracer that was made for the whole stream and goes on from [states](crate::CallStates) in the order of their places: times
    /// and cycles are those that the packets of the whole stream tell. The packets in between are read, and no code.
    pub fn go_on_at(&mut self, start: StreamOffset) {
        self.signals = self.stream.signals_from(StreamOffset(0));
        let all = self.threads.values().chain([&self.thread]);
        let mut taken: u64 = all.map(|thread| thread.signals).sum();
        while taken > 0
            && let Some(signal) = self.signals.at_end()
        {
            taken -= u64::from(!signal.is_fatal);
        }
        self.code.now = None;
        self.continue_from(start != StreamOffset(0));
        // Up to here the time was asked for by whoever has read what stands before; not always so behind an error.
        self.clock.at(self.offset);
    }

    /// The time where it stands, for [`go_on_with`](Self::go_on_with); none where all that stands before has to be read for it.
    #[must_use]
    pub fn saved_clock(&self) -> Option<SavedClock> {
        let mut clock = self.clock.clone();
        clock.at(self.offset);
        clock.saved()
    }

    /// As [`go_on_at`](Self::go_on_at), with the time that was saved where the tracer stands: nothing that stands before is read. Whether it could be used;
    /// if not, nothing has changed.
    pub fn go_on_with(&mut self, start: StreamOffset, saved: &SavedClock) -> bool {
        let restored = StreamClock::restored(self.stream.bytes(), saved, &self.config);
        let Some(clock) = restored else {
            return false;
        };
        self.clock = clock;
        self.go_on_at(start);
        true
    }
}
