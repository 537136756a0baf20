//! The timestamp counter and perf's time, and how one becomes the other.

use std::fmt;

use cofi_packet::Tsc;

/// A time of perf: nanoseconds of the kernel's scheduler clock (or of the clock chosen with `perf record -k`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct PerfTime(pub u64);

impl fmt::Display for PerfTime {
    /// Prints seconds with nine decimals, as `perf script --ns` does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

/// How the timestamp counter converts to [`PerfTime`]: `time = zero + tsc * mult / 2^shift`.
///
/// The numbers are those that Linux shows in the first page of an event's buffer. The arithmetic is that of perf:
/// 64 bits that wrap, with an exact product.
///
/// ```
/// use cofi_packet::Tsc;
/// use cofi_perf::{PerfTime, TimeConv};
///
/// let two_gigahertz = TimeConv { shift: 31, mult: 1 << 30, zero: 0 };
/// assert_eq!(two_gigahertz.time_of(Tsc(3_000)), Some(PerfTime(1_500)));
/// assert_eq!(two_gigahertz.tsc_of(PerfTime(1_500)), Some(Tsc(3_000)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct TimeConv {
    /// The power of two that the product is divided by.
    pub shift: u64,
    /// The factor.
    pub mult: u64,
    /// The time at which the counter was 0 (wraps: often a negative number).
    pub zero: u64,
}

impl TimeConv {
    /// The conversion of a counter of `hertz` that was 0 at the time 0; `None` when `hertz` is 0 or so large that
    /// the factor would be 0.
    #[must_use]
    pub fn for_frequency(hertz: u64) -> Option<Self> {
        const NANOSECONDS: u128 = 1_000_000_000;
        // The largest shift whose factor fits 32 bits, as the kernel chooses it.
        (0..=31u32).rev().find_map(|shift| {
            let mult =
                ((NANOSECONDS << shift) + u128::from(hertz) / 2).checked_div(hertz.into())?;
            let mult = u32::try_from(mult).ok().filter(|&mult| mult != 0)?;
            Some(Self {
                shift: shift.into(),
                mult: mult.into(),
                zero: 0,
            })
        })
    }

    /// The time of a counter value; `None` when the file's numbers make no sense (shift of 64 or more, factor 0).
    #[must_use]
    pub fn time_of(self, tsc: Tsc) -> Option<PerfTime> {
        if self.shift >= 64 || self.mult == 0 {
            return None;
        }
        let scaled = (u128::from(tsc.0) * u128::from(self.mult)) >> self.shift;
        Some(PerfTime((scaled as u64).wrapping_add(self.zero)))
    }

    /// The counter value at a time; `None` as in [`time_of`](Self::time_of).
    #[must_use]
    pub fn tsc_of(self, time: PerfTime) -> Option<Tsc> {
        if self.shift >= 64 || self.mult == 0 {
            return None;
        }
        let since = u128::from(time.0.wrapping_sub(self.zero));
        Some(Tsc(((since << self.shift) / u128::from(self.mult)) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_of_a_real_file() {
        // A 1.2 GHz machine, from a file of Linux 4.14: the zero is negative.
        let conv = TimeConv {
            shift: 31,
            mult: 1_789_569_706,
            zero: 18_446_744_041_015_200_657,
        };
        let time = conv.time_of(Tsc(0xbc_4cd5_19a6)).unwrap();
        let by_hand = (0xbc_4cd5_19a6u128 * 1_789_569_706) >> 31;
        assert_eq!(
            u128::from(time.0),
            (by_hand + 18_446_744_041_015_200_657) & u128::from(u64::MAX)
        );
    }

    #[test]
    fn nonsense_gives_none() {
        for conv in [
            TimeConv {
                shift: 64,
                mult: 1,
                zero: 0,
            },
            TimeConv {
                shift: 1,
                mult: 0,
                zero: 0,
            },
        ] {
            assert_eq!(conv.time_of(Tsc(1)), None);
            assert_eq!(conv.tsc_of(PerfTime(1)), None);
        }
        assert_eq!(TimeConv::for_frequency(0), None);
        assert_eq!(TimeConv::for_frequency(u64::MAX), None);
    }

    #[test]
    fn two_gigahertz_is_the_known_pair() {
        assert_eq!(
            TimeConv::for_frequency(2_000_000_000),
            Some(TimeConv {
                shift: 31,
                mult: 1 << 30,
                zero: 0
            })
        );
        assert_eq!(PerfTime(1_000_000_042).to_string(), "1.000000042");
    }

    proptest! {
        #[test]
        fn there_and_back(hertz in 1_000_000u64..10_000_000_000, tsc in 0u64..1 << 55, zero: u64) {
            // So many nanoseconds as 64 bits hold, which is 584 years: a slow counter has not come further.
            let tsc = tsc.min(hertz << 33);
            let conv = TimeConv { zero, ..TimeConv::for_frequency(hertz).unwrap() };
            let back = conv.tsc_of(conv.time_of(Tsc(tsc)).unwrap()).unwrap().0;
            // One nanosecond is lost to rounding.
            prop_assert!(back <= tsc && tsc - back <= hertz / 1_000_000_000 + 1, "{tsc} -> {back}");
        }

        #[test]
        fn no_value_panics(shift: u64, mult: u64, zero: u64, value: u64) {
            let conv = TimeConv { shift, mult, zero };
            prop_assert_eq!(conv.time_of(Tsc(value)).is_some(), conv.tsc_of(PerfTime(value)).is_some());
        }
    }
}
