//! Ticks that are read a second time instead of being kept.
//!
//! The event level reports timing packets where they stand, but the decoder reads on over them up to a packet that decides something. What
//! lies between may be megabytes of CYC packets. So only [`LISTED`] items wait as such; of the rest is kept where it begins, and how the clock
//! stood there, and it is read again when its turn comes.

use alloc::collections::VecDeque;

use cofi_packet::StreamOffset;

use crate::events::LocatedEvent;
use crate::events::origin::Origin;
use crate::family::ReadFamily;
use crate::reader::{Reader, Ticked};

/// So many items wait at the most before ticks are read twice.
pub(crate) const LISTED: usize = 256;

/// A part of the stream whose timing packets, and MNT packets among them, are to be reported.
#[derive(Clone, Debug)]
pub(crate) struct Replay<F: ReadFamily> {
    at: usize,
    /// What begins here or behind is not part of it.
    pub(crate) end: usize,
    /// How many other items come first.
    pub(crate) before: u64,
    /// The clock at `at`, and what else is needed to read on.
    own: F::Replay,
    /// What a packet tells beside what was reported of it.
    more: VecDeque<LocatedEvent>,
}

impl<F: ReadFamily> Replay<F> {
    /// From where `reader` stands on.
    pub(crate) fn new(reader: &mut Reader<'_, F>) -> Self {
        Self {
            at: reader.at,
            end: reader.at,
            before: 0,
            own: F::replay(reader),
            more: VecDeque::new(),
        }
    }

    /// What comes next of it.
    pub(crate) fn next(&mut self, reader: &Reader<'_, F>) -> Option<LocatedEvent> {
        loop {
            if let Some(told) = self.more.pop_front() {
                return Some(told);
            }
            if self.at >= self.end {
                return None;
            }
            let (at, more) = (self.at, &mut self.more);
            self.at += F::read_again(&mut self.own, reader, at, |event, kind, tsc| {
                more.push_back(LocatedEvent {
                    offset: StreamOffset(at as u64),
                    packets: Origin::new(at, kind, tsc).kinds,
                    ip: None,
                    tsc,
                    what: Ok(event),
                });
            })?;
        }
    }
}

/// The timing packets that a reader has read.
#[derive(Clone, Debug)]
pub(crate) struct Ticks<F: ReadFamily> {
    pub(crate) queue: VecDeque<Ticked>,
    /// How many more may be kept.
    pub(crate) room: usize,
    /// Where those begin that are not: none as long as all are.
    pub(crate) rest: Option<Replay<F>>,
}

impl<F: ReadFamily> Default for Ticks<F> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            room: 0,
            rest: None,
        }
    }
}
