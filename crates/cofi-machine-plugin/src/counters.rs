//! Performance monitoring, version 2: what the driver of Intel PT needs to hear of its interrupts, and counters that count.
//!
//! Counted are cycles (those of the time stamp counter), instructions and branches; other events are zero. A block's instructions count when
//! it begins; what an interrupt kept from running is taken back.

use crate::cpuid::{COUNTER_BITS, COUNTERS, FIXED_COUNTERS};

pub(crate) const IA32_PMC0: u32 = 0xc1;
pub(crate) const IA32_PERFEVTSEL0: u32 = 0x186;
pub(crate) const IA32_FIXED_CTR0: u32 = 0x309;
pub(crate) const IA32_FIXED_CTR_CTRL: u32 = 0x38d;
pub(crate) const IA32_PERF_GLOBAL_STATUS: u32 = 0x38e;
pub(crate) const IA32_PERF_GLOBAL_CTRL: u32 = 0x38f;
pub(crate) const IA32_PERF_GLOBAL_OVF_CTRL: u32 = 0x390;

/// IA32_PERF_GLOBAL_STATUS.Trace_ToPA_PMI.
pub(crate) const TRACE_TOPA_PMI: u64 = 1 << 55;
const WIDTH: u64 = (1 << COUNTER_BITS) - 1;
const GENERAL: usize = COUNTERS as usize;
const FIXED: usize = FIXED_COUNTERS as usize;
const ALL: usize = GENERAL + FIXED;

/// Fields of IA32_PERFEVTSELx.
mod select {
    pub(super) const EVENT: u64 = 0xffff;
    pub(super) const USER: u64 = 1 << 16;
    pub(super) const SYSTEM: u64 = 1 << 17;
    pub(super) const INTERRUPT: u64 = 1 << 20;
    pub(super) const ENABLE: u64 = 1 << 22;
}

/// What can be counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Cycles,
    Instructions,
    Branches,
    Nothing,
}

impl What {
    /// Of the unit mask and event number of the architectural events.
    const fn of(select: u64) -> Self {
        match select & select::EVENT {
            0x003c | 0x013c => Self::Cycles,
            0x00c0 => Self::Instructions,
            0x00c4 => Self::Branches,
            _ => Self::Nothing,
        }
    }
}

/// What ran at one privilege, and has not been added to the counters yet.
#[derive(Clone, Copy, Default, Debug)]
struct Amount {
    instructions: u64,
    branches: u64,
}

/// Where cycles are counted, the clock is looked at after so many instructions, or after an eighth of as many as there are cycles to an
/// overflow: an emulated instruction takes some of them.
const LOOK_AT_CLOCK: u64 = 1000;

/// The registers of one processor.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    values: [u64; ALL],
    selects: [u64; GENERAL],
    fixed_control: u64,
    global_control: u64,
    status: u64,
    /// Any counts.
    are_on: bool,
    /// What ran since the counters were looked at last: in user mode, and elsewhere.
    pending: [Amount; 2],
    /// After so many instructions they are to be looked at again.
    budget: u64,
    /// The time when they were looked at last.
    since: u64,
    /// An overflow asks for an interrupt.
    has_pmi: bool,
}

/// The index of a register in a row of them.
fn index(address: u32, first: u32, count: usize) -> Option<usize> {
    let index = address.checked_sub(first)? as usize;
    (index < count).then_some(index)
}

impl Counters {
    /// What a register holds, if it is one of these.
    pub(crate) fn read(&self, address: u32) -> Option<u64> {
        if let Some(index) = index(address, IA32_PMC0, GENERAL) {
            return self.values.get(index).copied();
        }
        if let Some(index) = index(address, IA32_FIXED_CTR0, FIXED) {
            return self.values.get(GENERAL + index).copied();
        }
        if let Some(index) = index(address, IA32_PERFEVTSEL0, GENERAL) {
            return self.selects.get(index).copied();
        }
        match address {
            IA32_FIXED_CTR_CTRL => Some(self.fixed_control),
            IA32_PERF_GLOBAL_STATUS => Some(self.status),
            IA32_PERF_GLOBAL_CTRL => Some(self.global_control),
            IA32_PERF_GLOBAL_OVF_CTRL => Some(0),
            _ => None,
        }
    }

    /// What RDPMC reads, if there is this counter: a general one, or, with bit 30, a fixed one.
    pub(crate) fn read_by_number(&self, number: u32) -> Option<u64> {
        let (first, count) = match number >> 30 {
            0 => (0, GENERAL),
            1 => (GENERAL, FIXED),
            _ => return None,
        };
        let number = (number & 0x3fff_ffff) as usize;
        (number < count).then(|| self.values[first + number])
    }

    /// Writes a register; `false` if it is none of these.
    pub(crate) fn write(&mut self, address: u32, value: u64) -> bool {
        // What is written to a counter has 32 bits, and a sign.
        let extended = i64::from(value as u32 as i32) as u64 & WIDTH;
        if let Some(index) = index(address, IA32_PMC0, GENERAL) {
            self.values[index] = extended;
        } else if let Some(index) = index(address, IA32_FIXED_CTR0, FIXED) {
            self.values[GENERAL + index] = value & WIDTH;
        } else if let Some(index) = index(address, IA32_PERFEVTSEL0, GENERAL) {
            self.selects[index] = value;
        } else {
            match address {
                IA32_FIXED_CTR_CTRL => self.fixed_control = value,
                IA32_PERF_GLOBAL_CTRL => self.global_control = value,
                IA32_PERF_GLOBAL_OVF_CTRL => self.status &= !value,
                IA32_PERF_GLOBAL_STATUS => {}
                _ => return false,
            }
        }
        self.plan();
        true
    }

    /// Works out when the counters have to be looked at.
    fn plan(&mut self) {
        self.budget = u64::MAX;
        self.are_on = false;
        for counter in 0..ALL {
            let Some((what, ..)) = self.rules(counter) else {
                continue;
            };
            self.are_on = true;
            let left = WIDTH + 1 - self.values[counter];
            self.budget = self.budget.min(match what {
                What::Cycles => (left / 8).max(left.min(LOOK_AT_CLOCK)),
                // There is a branch for each instruction at most.
                What::Instructions | What::Branches => left,
                What::Nothing => u64::MAX,
            });
        }
    }

    /// What a counter counts, at which privilege (user, system), and whether it asks for an interrupt; `None` if it does not count.
    fn rules(&self, counter: usize) -> Option<(What, [bool; 2], bool)> {
        let is_fixed = counter >= GENERAL;
        let bit = if is_fixed {
            32 + counter - GENERAL
        } else {
            counter
        };
        if self.global_control >> bit & 1 == 0 {
            return None;
        }
        if is_fixed {
            let control = self.fixed_control >> (4 * (counter - GENERAL));
            let what = match counter - GENERAL {
                0 => What::Instructions,
                _ => What::Cycles,
            };
            let at = [control & 2 != 0, control & 1 != 0];
            return (at != [false; 2]).then_some((what, at, control & 8 != 0));
        }
        let select = self.selects[counter];
        let at = [select & select::USER != 0, select & select::SYSTEM != 0];
        (select & select::ENABLE != 0).then_some((
            What::of(select),
            at,
            select & select::INTERRUPT != 0,
        ))
    }

    /// Whether any counts.
    #[inline]
    pub(crate) fn are_on(&self) -> bool {
        self.are_on
    }

    /// So many instructions may run until the counters have to be [looked at](Self::settle).
    #[inline]
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// Notes that so much ran. Returns whether the counters have to be [looked at](Self::settle).
    #[inline]
    pub(crate) fn ran(&mut self, cpl: u8, instructions: u64, branches: u64) -> bool {
        let pending = &mut self.pending[usize::from(cpl != 3)];
        pending.instructions += instructions;
        pending.branches += branches;
        self.budget = self.budget.saturating_sub(instructions);
        self.budget == 0
    }

    /// Adds to the counters what ran since this was called last, it being `now`.
    ///
    /// The cycles are shared out among the privileges as the instructions are.
    pub(crate) fn settle(&mut self, now: u64) {
        let cycles = now.saturating_sub(self.since);
        self.since = now;
        let pending = core::mem::take(&mut self.pending);
        let [user, system] = pending.map(|amount| amount.instructions);
        let of_user = match user + system {
            0 => 0,
            all => (u128::from(cycles) * u128::from(user) / u128::from(all)) as u64,
        };
        for (index, cycles) in [(0, of_user), (1, cycles - of_user)] {
            self.add(index, pending[index], cycles);
        }
        self.plan();
    }

    /// The processor slept until `now`: that was no time.
    pub(crate) fn slept(&mut self, now: u64) {
        self.since = now;
    }

    /// So much ran in user mode (0) or elsewhere (1).
    fn add(&mut self, privilege: usize, amount: Amount, cycles: u64) {
        for counter in 0..ALL {
            let Some((what, at, asks)) = self.rules(counter) else {
                continue;
            };
            if !at[privilege] {
                continue;
            }
            let more = match what {
                What::Cycles => cycles,
                What::Instructions => amount.instructions,
                What::Branches => amount.branches,
                What::Nothing => 0,
            };
            let value = self.values[counter] + more;
            self.values[counter] = value & WIDTH;
            if value > WIDTH {
                self.overflowed(counter, asks);
            }
        }
    }

    fn overflowed(&mut self, counter: usize, asks: bool) {
        let bit = if counter >= GENERAL {
            32 + counter - GENERAL
        } else {
            counter
        };
        self.status |= 1 << bit;
        self.has_pmi |= asks;
    }

    /// Instructions and branches that were noted did not run after all.
    pub(crate) fn take_back(&mut self, cpl: u8, instructions: u64, branches: u64) {
        let pending = &mut self.pending[usize::from(cpl != 3)];
        // (What the counters have already, they keep.)
        pending.instructions = pending.instructions.saturating_sub(instructions);
        pending.branches = pending.branches.saturating_sub(branches);
    }

    /// A region of a ToPA is full.
    pub(crate) fn topa_pmi(&mut self) {
        self.status |= TRACE_TOPA_PMI;
        self.has_pmi = true;
    }

    /// Whether an interrupt is asked for.
    #[inline]
    pub(crate) fn has_pmi(&self) -> bool {
        self.has_pmi
    }

    /// Whether an interrupt is asked for since this was asked last.
    #[inline]
    pub(crate) fn take_pmi(&mut self) -> bool {
        core::mem::take(&mut self.has_pmi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_counts_what_it_is_told_to_at_its_privilege() {
        let mut counters = Counters::default();
        // Instructions of users; branches of the system.
        assert!(counters.write(IA32_PERFEVTSEL0, 0xc0 | select::USER | select::ENABLE));
        assert!(counters.write(IA32_PERFEVTSEL0 + 1, 0xc4 | select::SYSTEM | select::ENABLE));
        assert!(!counters.are_on(), "not enabled yet");
        assert!(counters.write(IA32_PERF_GLOBAL_CTRL, 3));
        counters.ran(3, 10, 3);
        counters.ran(0, 10, 3);
        counters.settle(100);
        assert_eq!(counters.read(IA32_PMC0), Some(10));
        assert_eq!(counters.read(IA32_PMC0 + 1), Some(3));
    }

    #[test]
    fn an_overflow_is_told_and_cleared() {
        let mut counters = Counters::default();
        // Fixed counter 1, core cycles, everywhere, with an interrupt.
        assert!(counters.write(IA32_FIXED_CTR_CTRL, 0xb0));
        assert!(counters.write(IA32_PERF_GLOBAL_CTRL, 1 << 33));
        assert!(counters.write(IA32_FIXED_CTR0 + 1, WIDTH - 19));
        counters.slept(100);
        assert!(counters.ran(0, 20, 0), "so near the end");
        counters.settle(120);
        assert_eq!(counters.read(IA32_FIXED_CTR0 + 1), Some(0));
        assert_eq!(counters.read(IA32_PERF_GLOBAL_STATUS), Some(1 << 33));
        assert!(counters.take_pmi() && !counters.take_pmi());
        assert!(counters.write(IA32_PERF_GLOBAL_OVF_CTRL, 1 << 33));
        assert_eq!(counters.read(IA32_PERF_GLOBAL_STATUS), Some(0));
    }

    #[test]
    fn a_write_to_a_general_counter_is_sign_extended() {
        let mut counters = Counters::default();
        assert!(counters.write(IA32_PMC0, 0xffff_ff00));
        assert_eq!(counters.read(IA32_PMC0), Some(WIDTH - 0xff));
    }

    #[test]
    fn registers_of_others_are_none_of_these() {
        let mut counters = Counters::default();
        assert_eq!(counters.read(0x10), None);
        assert!(!counters.write(0x570, 0));
    }
}
