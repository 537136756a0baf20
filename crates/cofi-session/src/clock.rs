//! From the time stamp counter to perf's time.

use cofi_packet::Tsc;
use cofi_perf::{PerfTime, ShortClock, TimeConv};

/// How values of the time stamp counter become perf's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) conv: TimeConv,
    /// The counter wraps at fewer bits than 64.
    pub(crate) short: Option<ShortClock>,
}

impl Clock {
    pub(crate) fn time_of(self, tsc: Tsc) -> Option<PerfTime> {
        let tsc = self.short.map_or(tsc, |short| short.widen(tsc));
        self.conv.time_of(tsc)
    }
}
