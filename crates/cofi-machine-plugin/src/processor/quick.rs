//! The short way, which nearly all blocks take: a near branch, or none, led to them in 64-bit code, and nothing has changed but IP.
//!
//! What it does is what [`Processor::enter`] does otherwise, without asking for what cannot have happened. Whether it may be taken is worked out when the long way was
//! taken ([`Processor::plan`]); whatever else happens to the processor forbids it until then.

use super::{BLOCKS_OF_TICK, Processor};
use crate::code::{Code, NearEnd};
use crate::qemu::Numbers;
use crate::state::{Manner, State};
use crate::unit::TraceUnit;

/// What the short way asks for at each block.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Quick {
    /// Up to this count of the processor it may be taken; 0 forbids it.
    until: u64,
    /// How the block that runs is run, and how it ends.
    manner: Manner,
    end: Option<NearEnd>,
}

impl Processor {
    /// The long way was taken: from now on the short one may be, or not.
    pub(crate) fn plan(&mut self, state: State) {
        self.quick = Quick::default();
        let (Some(here), TraceUnit::IntelPt(unit)) = (&self.here, &self.unit) else {
            return;
        };
        // An interrupt, which is told otherwise, leaves no block behind. By the manner, an SMI and a reset are excluded.
        let manner = state.manner();
        let is_other = !unit.in_use()
            || here.told != 0
            || !manner.is_64_bit()
            || !self.is_unfiltered
            || self.has_smi
            || self.after.is_some()
            || self.bus.has_pmi
            || self.counters.has_pmi()
            || !self.count.tells_each();
        if !is_other {
            let budget = match self.counters.are_on() {
                true => self.counters.budget(),
                false => u64::MAX,
            };
            self.quick = Quick {
                until: self.count.limit(budget),
                manner,
                end: here.code.near_end(),
            };
        }
    }

    /// Forbids the short way.
    #[inline]
    pub(super) fn forbid_short_way(&mut self) {
        self.quick.until = 0;
    }

    /// A block begins. The shortest way, for which a few registers are enough: no packet is made, and the clock is not read. Returns the block that has run and
    /// where, if that is for [`Self::tell_list`]; `Err`, and nothing is done, if [`Self::goes_on`] is to be asked.
    #[inline(always)]
    pub(crate) fn goes_straight_on(
        &mut self,
        numbers: Numbers,
        state: State,
        code: &'static Code,
    ) -> Result<Option<(&'static Code, u64)>, ()> {
        let quick = &mut self.quick;
        let (Some(here), TraceUnit::IntelPt(unit)) = (&mut self.here, &mut self.unit) else {
            return Err(());
        };
        let Some(end) = quick.end else {
            return Err(());
        };
        let ticks = self.blocks_of_tick.wrapping_add(1);
        let is_other = numbers.count() >= quick.until
            || !numbers.has_mark()
            || state.manner() != quick.manner
            || ticks.is_multiple_of(BLOCKS_OF_TICK);
        if is_other {
            return Err(());
        }
        let (start, next) = (here.start, state.linear_64());
        let Some((conditional, taken)) = end.retired_direct(start, next) else {
            return Err(());
        };
        let is_traced = unit.packet_en();
        if is_traced && !unit.retire_direct(&mut self.bus, conditional, taken) {
            return Err(());
        }
        numbers.clear_mark();
        self.blocks_of_tick = ticks;
        self.totals.instructions += u64::from(end.count());
        let ran = (here.code, start);
        (here.code, here.start) = (code, next);
        // Read now, nobody waits for it; what is read when the block has ended has to come from memory first.
        quick.end = code.near_end();
        Ok((is_traced && self.list.is_some()).then_some(ran))
    }

    /// A block ran, all of it.
    pub(crate) fn tell_list(&mut self, (code, start): (&Code, u64)) {
        if let Some(list) = &mut self.list {
            code.for_each(start, |ip| list.ran(ip));
        }
    }

    /// A block begins. Returns `false`, and has done nothing, if the long way must be taken.
    #[inline]
    pub(crate) fn goes_on(&mut self, numbers: Numbers, state: State, code: &'static Code) -> bool {
        let quick = &mut self.quick;
        let (Some(here), TraceUnit::IntelPt(unit)) = (&mut self.here, &mut self.unit) else {
            return false;
        };
        let Some(end) = quick.end else {
            return false;
        };
        let is_other =
            numbers.count() >= quick.until || !numbers.has_mark() || state.manner() != quick.manner;
        if is_other {
            return false;
        }
        let (start, next) = (here.start, state.linear_64());
        let Some(retired) = end.retired(start, next) else {
            return false;
        };
        numbers.clear_mark();
        self.totals.instructions += u64::from(end.count());
        self.blocks_of_tick = self.blocks_of_tick.wrapping_add(1);
        if self.blocks_of_tick.is_multiple_of(BLOCKS_OF_TICK) {
            self.bus.tick();
        }
        if unit.packet_en() {
            if let Some(list) = &mut self.list {
                here.code.for_each(start, |ip| list.ran(ip));
            }
            unit.retire(&mut self.bus, retired);
        }
        (here.code, here.start) = (code, next);
        quick.end = code.near_end();
        if self.bus.has_pmi {
            self.forbid_short_way();
            self.signal_pmi();
        }
        true
    }
}
