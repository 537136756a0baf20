//! The packet stream as the flow sees it: addresses decompressed, padding, timing and maintenance left out.

pub(crate) mod clock;
pub(crate) mod decide;
pub(crate) mod intel;
mod intel_flow;
#[cfg(test)]
mod tests;

use cofi_packet::{DecodeError, Tsc};

use crate::events::replay::{Replay, Ticks};
use crate::family::ReadFamily;
use crate::{AnyKind, FlowConfig, Tick};
use clock::Clock;

/// A timing packet that was read, for those who want to see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticked {
    pub(crate) offset: usize,
    pub(crate) kind: AnyKind,
    pub(crate) tick: Tick,
    /// The time that it tells.
    pub(crate) now: Option<Tsc>,
}

/// Reads packets in order.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'t, F: ReadFamily> {
    pub(crate) bytes: &'t [u8],
    pub(crate) at: usize,
    /// Where the packet last returned began.
    pub(crate) offset: usize,
    /// What else it takes to read packets of this family.
    pub(crate) own: F::Reading,
    /// Whether packets since the last PSB may be wrong.
    pub(crate) damaged: bool,
    /// Whether the address told last was told in full, or since a PSB, behind which nothing is in doubt.
    pub(crate) is_full: bool,
    /// When what was returned ran.
    pub(crate) clock: Clock,
    /// How many packets have been read that concern the time.
    pub(crate) timing: u64,
    /// Up to where a search for the next timing packet went, and what it found.
    searched: (usize, Option<Tsc>),
    /// Up to here it is certain that MTC packets have not wrapped where packets were lost.
    pub(crate) settled: usize,
    /// A packet that was read too early and is to be returned again.
    pub(crate) back: Option<(usize, F::Flow)>,
    /// The timing packets read since they were last taken out; none if nobody wants them.
    pub(crate) ticks: Option<Ticks<F>>,
}

impl<'t, F: ReadFamily> Reader<'t, F> {
    pub(crate) fn new(bytes: &'t [u8], config: &FlowConfig, own: &F::Config) -> Self {
        Self {
            bytes,
            at: 0,
            offset: 0,
            own: F::reading(config, own),
            damaged: false,
            is_full: false,
            clock: Clock::new(),
            timing: 0,
            searched: (0, None),
            settled: 0,
            back: None,
            ticks: None,
        }
    }

    /// Where the stream ends.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Where the packet last returned began.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Gives the packet last returned back, to be returned again.
    pub(crate) fn put_back(&mut self, flow: F::Flow) {
        self.back = Some((self.offset, flow));
    }

    /// The next packet that concerns the flow; `None` at the end of the stream. After an error the caller skips to the
    /// next PSB.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Result<F::Flow, DecodeError>> {
        F::next(self)
    }

    /// Goes on at the next PSB, which is returned next; `false` if there is none.
    pub(crate) fn skip_to_psb(&mut self) -> bool {
        self.back = None;
        let psb = F::find_psb(self);
        F::go_to(self, psb.unwrap_or(self.bytes.len()));
        psb.is_some()
    }

    pub(crate) fn is_at_start(&self) -> bool {
        self.at == 0
    }

    /// Whether the stream holds nothing but padding.
    pub(crate) fn only_padding(&self) -> bool {
        self.bytes.iter().all(|byte| *byte == 0)
    }

    /// What stands at an offset, for messages.
    pub(crate) fn kind_at(&self, offset: usize) -> Option<AnyKind> {
        F::kind_of(self, self.bytes.get(offset..)?)
    }

    /// The time by which everything read so far had happened, as the next timing packet tells that can.
    pub(crate) fn latest(&mut self) -> Option<Tsc> {
        if self.searched.0 <= self.at {
            self.searched = F::search(self);
        }
        self.searched.1
    }

    /// Where no more ticks may be kept, notes from where on they are to be read again.
    #[inline]
    pub(crate) fn mark_ticks(&mut self) {
        let is_full = match &self.ticks {
            Some(ticks) => ticks.rest.is_none() && ticks.queue.len() >= ticks.room,
            None => false,
        };
        if is_full {
            let rest = Replay::new(self);
            if let Some(ticks) = &mut self.ticks {
                ticks.rest = Some(rest);
            }
        }
    }
}
