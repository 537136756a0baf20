//! Events that wait for the packet to which they bind.

use crate::error::Error;
use crate::event::Event;

/// How many wait at most, as in libipt; streams that are sound have four at a time.
const ROOM: usize = 6;

/// Events in their order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queue {
    events: [Event; ROOM],
    begin: u8,
    end: u8,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    pub(crate) fn clear(&mut self) {
        (self.begin, self.end) = (0, 0);
    }

    pub(crate) fn push(&mut self, event: Event) -> Result<(), Error> {
        if self.begin > 0 {
            let waiting = usize::from(self.begin)..usize::from(self.end);
            self.end -= self.begin;
            self.begin = 0;
            self.events.copy_within(waiting, 0);
        }
        *self
            .events
            .get_mut(usize::from(self.end))
            .ok_or(Error::NoMemory)? = event;
        self.end += 1;
        Ok(())
    }

    /// Appends an event; those of a type, which it must precede, behind it.
    pub(crate) fn push_before(&mut self, event: Event, later: u32) -> Result<(), Error> {
        self.push(event)?;
        let events = &mut self.events[usize::from(self.begin)..usize::from(self.end)];
        let first = events.iter().position(|event| event.kind == later);
        if let Some(first) = first {
            events[first..].rotate_right(1);
        }
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        if self.is_empty() {
            return None;
        }
        let event = self.events[usize::from(self.begin)];
        self.begin += 1;
        if self.begin == self.end {
            self.clear();
        }
        Some(event)
    }

    /// Whether one of this type waits.
    pub(crate) fn has(&self, kind: u32) -> bool {
        self.events[usize::from(self.begin)..usize::from(self.end)]
            .iter()
            .any(|event| event.kind == kind)
    }
}
