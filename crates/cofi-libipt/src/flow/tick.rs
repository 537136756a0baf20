//! `ptev_tick`: that time has passed, where a packet decided a branch.

use super::Walker;
use crate::code::Step;
use crate::config::Config;
use crate::event::{Event, flag, ptev};

/// What is known of ticks.
pub(super) struct Ticks {
    /// Whether they are wanted.
    wanted: bool,
    /// The time that was reported last, with an event or a tick.
    reported: u64,
}

impl Ticks {
    pub(super) fn new(config: &Config, by_blocks: bool) -> Self {
        let bit = if by_blocks { 2 } else { 1 };
        Self {
            wanted: config.flags[0] & bit != 0,
            reported: 0,
        }
    }

    #[inline(always)]
    pub(super) fn are_wanted(&self) -> bool {
        self.wanted
    }

    /// An event reports its time, if it has one.
    pub(super) fn note(&mut self, event: &Event) {
        if event.has(flag::HAS_TSC) {
            self.reported = event.tsc;
        }
    }
}

impl Walker {
    /// Makes a tick due if time has passed, behind a branch that a packet has decided. (An event that waits has the only place; it reports the time itself.)
    #[inline(always)]
    pub(super) fn tick(&mut self, step: &Step) {
        if self.ticks.wanted && self.event.is_none() {
            self.tick_if_passed(step);
        }
    }

    #[cold]
    fn tick_if_passed(&mut self, step: &Step) {
        // As in libipt: the place is behind the branch, and of a block its last instruction.
        let place = match self.by_blocks {
            true => self.cursor.ip,
            false => step.next_ip,
        };
        let tick = Event::new(ptev::TICK, [0; 3]).at(Some(place));
        let tick = self.query.time().stamp(tick);
        if tick.has(flag::HAS_TSC) && tick.tsc != self.ticks.reported {
            self.ticks.note(&tick);
            self.event = Some(tick);
        }
    }
}
