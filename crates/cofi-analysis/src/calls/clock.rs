//! The time at places of a stream that come one after the other.

use cofi_flow::FlowConfig;
use cofi_packet::{StreamOffset, Tsc};
use serde::{Deserialize, Serialize};

use crate::clock::{SavedTime, TimedPackets};

/// Follows the timing packets of a stream, which the flow has read already: its blocks know their offset, and not their time.
#[derive(Clone, Debug)]
pub struct StreamClock<'s> {
    packets: TimedPackets<'s>,
    /// All packets before this were taken.
    at: StreamOffset,
    /// The time there, and the core cycles told of by then.
    now: (Option<Tsc>, u64),
}

/// A [`StreamClock`] as it is kept in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedClock {
    packets: SavedTime,
    at: StreamOffset,
    now: (Option<Tsc>, u64),
}

impl<'s> StreamClock<'s> {
    /// From `start` on, where a packet begins.
    #[must_use]
    pub fn new(bytes: &'s [u8], start: StreamOffset, config: &FlowConfig) -> Self {
        Self {
            packets: TimedPackets::new(bytes, start, config),
            at: start,
            now: (None, 0),
        }
    }

    /// All that it knows, so that another one goes on from here without reading what stands before. Only of Intel PT, and not within a block of PEBS records.
    #[must_use]
    pub fn saved(&self) -> Option<SavedClock> {
        Some(SavedClock {
            packets: self.packets.saved()?,
            at: self.at,
            now: self.now,
        })
    }

    /// One that was saved of the same stream, with the same `config`. None if it cannot be one.
    #[must_use]
    pub fn restored(bytes: &'s [u8], saved: &SavedClock, config: &FlowConfig) -> Option<Self> {
        Some(Self {
            packets: TimedPackets::restored(bytes, &saved.packets, config)?,
            at: saved.at,
            now: saved.now,
        })
    }

    /// The time when the packet at `offset` was made, and the core cycles told of by then. Places that were passed have the last answer.
    #[inline]
    pub fn at(&mut self, offset: StreamOffset) -> (Option<Tsc>, u64) {
        if self.at <= offset {
            self.go_to(offset);
        }
        self.now
    }

    #[inline(never)]
    fn go_to(&mut self, offset: StreamOffset) {
        self.packets.take_through(offset);
        // Up to there the answer is the same.
        self.at = StreamOffset(offset.0.saturating_add(1)).max(self.packets.offset());
        self.now = (self.packets.now(), self.packets.cycles());
    }
}
