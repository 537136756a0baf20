//! What ran between two places of a stream, for whoever decodes it to compare.

use cofi_insn::{Checksum, RunningChecksum};
use cofi_packet::StreamOffset;
use cofi_perf::Seal;

/// Stretches are no shorter than so many bytes: a seal of 32 bytes for each is a fraction of a percent.
const STRETCH: u64 = 16 << 10;

/// The seals of one stream.
#[derive(Debug)]
pub(super) struct Seals {
    /// What has run since `start`.
    pub(super) ran: RunningChecksum,
    /// Where the stretch begins that is not sealed yet.
    start: u64,
    /// Seals that are not written yet.
    done: Vec<Seal>,
    /// The stream ends before what ran: there are no more seals.
    is_cut: bool,
}

impl Seals {
    /// Of a stream that goes on at `offset`.
    pub(super) const fn new(offset: u64) -> Self {
        Self {
            ran: RunningChecksum::EMPTY,
            start: offset,
            done: Vec::new(),
            is_cut: false,
        }
    }

    /// These instructions run: to be told before the trace unit is, as what that sends may end a stretch behind them.
    #[inline(always)]
    pub(super) const fn add(&mut self, checksum: &Checksum) {
        self.ran.add(checksum);
    }

    /// A place at which every reader knows which instructions ran before it: a PSB, which tells the address that comes next.
    pub(super) fn place(&mut self, offset: u64) {
        if offset - self.start >= STRETCH {
            self.close(offset);
        }
    }

    /// The stretch ends here.
    pub(super) fn close(&mut self, end: u64) {
        if self.is_cut || end == self.start {
            return;
        }
        let start = std::mem::replace(&mut self.start, end);
        let ran = std::mem::take(&mut self.ran);
        self.done.push(Seal {
            start: StreamOffset(start),
            end: StreamOffset(end),
            instructions: ran.instructions(),
            sum: ran.sum(),
        });
    }

    /// The stream ends here for good, and not where everything is in it that ran.
    pub(super) fn end_at(&mut self, end: u64) {
        self.done.retain(|seal| seal.end.0 <= end);
        self.is_cut = true;
    }

    /// Seals that were taken, but could not be written.
    pub(super) fn put_back(&mut self, seals: Vec<Seal>) {
        self.done.splice(0..0, seals);
    }

    /// The seals that nobody has taken yet.
    pub(super) fn take(&mut self) -> Vec<Seal> {
        std::mem::take(&mut self.done)
    }
}
