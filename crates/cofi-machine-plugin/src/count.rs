//! What QEMU's own code counts: instructions and branches of each block, in one number a processor, which also decides whether blocks are told.
//!
//! Each block adds its instructions, times [`UNIT`], and its branches. From [`CALL`] on the processor is called at each block: so a number
//! that begins so far below it calls after so many instructions, and one above it always.

/// An instruction. There is room for more branches below than are counted at once.
const UNIT: u64 = 1 << 24;
/// So many instructions are counted at most until the processor is called.
const MOST: u64 = 1 << 22;
/// From here on the processor is called.
pub(crate) const CALL: u64 = 1 << 63;
/// Before the number overflows, it is set back to [`CALL`].
const HIGH: u64 = CALL | CALL >> 1;

/// What a block adds.
pub(crate) const fn of_block(instructions: u64, branches: u64) -> u64 {
    instructions * UNIT + branches
}

/// What is to be told of a processor's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// Nothing.
    Nothing,
    /// When so many instructions have run.
    After(u64),
    /// Each.
    Each,
}

/// The number of one processor, as it is known.
#[derive(Debug)]
pub(crate) struct Count {
    known: u64,
    tells_each: bool,
}

impl Count {
    /// Of a processor whose first block is to be told.
    pub(crate) const FIRST: Self = Self {
        known: CALL,
        tells_each: true,
    };

    /// How many instructions and branches were added until it became `now`.
    #[inline]
    pub(crate) const fn advance(&mut self, now: u64) -> (u64, u64) {
        let more = now.wrapping_sub(self.known);
        self.known = now;
        (more / UNIT, more % UNIT)
    }

    /// The number up to which a processor of which each block is told may go without [`Self::advance`], if the counters are looked at after so many instructions.
    pub(crate) const fn limit(&self, instructions: u64) -> u64 {
        let most = if instructions < MOST {
            instructions
        } else {
            MOST
        };
        let limit = self.known + of_block(most, 0);
        if limit < HIGH { limit } else { HIGH }
    }

    /// Whether each block is told.
    pub(crate) const fn tells_each(&self) -> bool {
        self.tells_each
    }

    /// What it must become, if anything.
    #[inline]
    pub(crate) fn set(&mut self, need: Need) -> Option<u64> {
        if need == Need::Each && self.tells_each && self.known < HIGH {
            return None;
        }
        self.tells_each = need == Need::Each;
        self.known = match need {
            Need::Nothing => 0,
            Need::After(instructions) => CALL - of_block(instructions.clamp(1, MOST), 0),
            Need::Each => CALL,
        };
        Some(self.known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_called_when_so_much_has_run() {
        let mut count = Count::FIRST;
        let mut now = count.set(Need::After(1000)).unwrap();
        for _ in 0..99 {
            now += of_block(10, 1);
        }
        assert!(now < CALL);
        now += of_block(10, 1);
        assert!(now >= CALL);
        assert_eq!(count.advance(now), (1000, 100));
        assert_eq!(count.advance(now), (0, 0));
        assert_eq!(count.set(Need::Nothing), Some(0));
        assert_eq!(count.advance(of_block(7, 2)), (7, 2));
    }

    #[test]
    fn one_that_is_told_of_each_block_is_set_back_before_it_overflows() {
        let mut count = Count::FIRST;
        assert_eq!(count.set(Need::Each), None);
        assert_eq!(count.advance(CALL + of_block(5, 1)), (5, 1));
        assert_eq!(count.set(Need::Each), None);
        count.advance(HIGH);
        assert_eq!(count.set(Need::Each), Some(CALL));
        assert_eq!(count.advance(CALL + of_block(3, 1)), (3, 1));
    }

    #[test]
    fn far_ahead_is_near_enough() {
        let mut count = Count::FIRST;
        let now = count.set(Need::After(u64::MAX)).unwrap();
        assert_eq!(now, CALL - of_block(MOST, 0));
        // Though each instruction be a branch, they do not spill into the instructions before it is called.
        const { assert!(MOST + 512 < UNIT) };
    }
}
