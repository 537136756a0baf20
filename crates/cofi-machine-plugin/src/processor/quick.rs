//! The short way, which nearly all blocks take: a near branch, or none, led to them in 64-bit code, and nothing has changed but IP.
//!
//! What it does is what [`Processor::enter`] does otherwise, without asking for what cannot have happened.

use super::{BLOCKS_OF_TICK, Processor};
use crate::code::Code;
use crate::state::State;
use crate::unit::TraceUnit;

impl Processor {
    /// A block begins. Returns `false`, and has done nothing, if the long way must be taken.
    #[inline]
    pub(super) fn goes_on(&mut self, state: State, code: &'static Code, has_mark: bool) -> bool {
        let (Some(here), TraceUnit::IntelPt(unit)) = (&mut self.here, &mut self.unit) else {
            return false;
        };
        let Some(end) = self.near_end else {
            return false;
        };
        // An interrupt, which is told otherwise, leaves no block behind. By the manner, an SMI and a reset are excluded.
        let manner = state.manner();
        let ticks = self.blocks_of_tick.wrapping_add(1);
        let is_other = !has_mark
            || here.told != 0
            || manner != self.manner
            || !manner.is_64_bit()
            || ticks.is_multiple_of(BLOCKS_OF_TICK)
            || !self.is_unfiltered
            || self.has_smi
            || self.after.is_some()
            || self.counters.are_on();
        if is_other {
            return false;
        }
        let (start, next) = (here.start, state.linear_64());
        let Some(retired) = end.retired(start, next) else {
            return false;
        };
        self.blocks_of_tick = ticks;
        self.totals.instructions += u64::from(end.count);
        if unit.packet_en() {
            if let Some(list) = &mut self.list {
                here.code.for_each(start, |ip| list.ran(ip));
            }
            unit.retire(&mut self.bus, retired);
        }
        (here.code, here.start) = (code, next);
        // Read now, nobody waits for it; what is read when the block has ended has to come from memory first.
        self.near_end = code.near_end();
        if self.bus.has_pmi || self.counters.has_pmi() {
            self.signal_pmi();
        }
        true
    }
}
