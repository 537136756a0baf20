//! The time on perf's clock.

use cofi_packet::Tsc;
use cofi_perf::TimeConv;
use cofi_session::Session;

/// Converts the times of a stream, which go on in one direction only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeline {
    conversion: Option<TimeConv>,
    last: (Tsc, u64),
    latest: u64,
}

impl Timeline {
    pub(crate) fn new(session: &Session<'_>) -> Self {
        Self {
            conversion: session.time_conversion(),
            last: (Tsc(0), 0),
            latest: 0,
        }
    }

    /// The time in nanoseconds, or in ticks if nothing tells how to convert them.
    pub(crate) fn of(&self, tsc: Tsc) -> Option<u64> {
        match self.conversion {
            Some(conversion) => Some(conversion.time_of(tsc)?.0),
            None => Some(tsc.0),
        }
    }

    /// The same, and never before what was asked for last.
    #[inline]
    pub(crate) fn at(&mut self, tsc: Option<Tsc>) -> Option<u64> {
        let tsc = tsc?;
        if self.last.0 != tsc || self.latest == 0 {
            self.last = (tsc, self.of(tsc)?);
            self.latest = self.latest.max(self.last.1);
        }
        Some(self.latest)
    }

    /// A time, or the latest that was asked for if that is later.
    pub(crate) fn reach(&mut self, time: u64) -> u64 {
        self.latest = self.latest.max(time);
        self.latest
    }
}
