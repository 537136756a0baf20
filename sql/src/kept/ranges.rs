//! Addresses in few bytes: ranges of code, and small numbers.

use std::ops::RangeInclusive;

/// Ranges of addresses that do not touch each other, and numbers that ascend: as distances, in seven bits a byte.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Packed(Vec<u8>);

impl Packed {
    /// Of ascending numbers.
    pub(super) fn of(numbers: impl IntoIterator<Item = u64>) -> Self {
        let (mut bytes, mut last) = (Vec::new(), 0_u64);
        for number in numbers {
            let mut rest = number.wrapping_sub(last);
            last = number;
            while rest >= 0x80 {
                bytes.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push(rest as u8);
        }
        bytes.shrink_to_fit();
        Self(bytes)
    }

    /// Of ranges, in any order. If there are more than `most`, those are joined between which the least is; so no address is lost, and some may be
    /// too many.
    pub(super) fn of_ranges(mut ranges: Vec<RangeInclusive<u64>>, most: usize) -> Self {
        ranges.sort_unstable_by_key(|range| *range.start());
        let mut joined: Vec<RangeInclusive<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => joined.push(range),
            }
        }
        if joined.len() > most {
            let between = |pair: &[RangeInclusive<u64>]| match pair {
                [one, other] => other.start() - one.end(),
                _ => 0,
            };
            let mut distances: Vec<u64> = joined.windows(2).map(between).collect();
            distances.sort_unstable_by(|one, other| other.cmp(one));
            // So many distances may stay open; of those that are equal to the least of them, none does.
            let least = distances.get(most.saturating_sub(1)).copied().unwrap_or(0);
            let mut fewer: Vec<RangeInclusive<u64>> = Vec::with_capacity(most);
            for range in joined {
                match fewer.last_mut() {
                    Some(last) if range.start() - last.end() <= least => {
                        *last = *last.start()..=*range.end();
                    }
                    _ => fewer.push(range),
                }
            }
            joined = fewer;
        }
        Self::of(
            joined
                .iter()
                .flat_map(|range| [*range.start(), *range.end()]),
        )
    }

    /// The numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let (mut bytes, mut last) = (self.0.iter(), 0_u64);
        std::iter::from_fn(move || {
            let (mut rest, mut shift) = (0_u64, 0_u32);
            loop {
                let byte = bytes.next()?;
                rest |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
                shift = shift.saturating_add(7);
                if byte & 0x80 == 0 {
                    break;
                }
            }
            last = last.wrapping_add(rest);
            Some(last)
        })
    }

    /// Whether one of the ranges has an address in `wanted`.
    pub(super) fn touches(&self, wanted: &RangeInclusive<i128>) -> bool {
        let mut numbers = self.iter();
        while let (Some(start), Some(end)) = (numbers.next(), numbers.next()) {
            if i128::from(start) <= *wanted.end() && i128::from(end) >= *wanted.start() {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(packed: &Packed) -> Vec<(u64, u64)> {
        let numbers: Vec<u64> = packed.iter().collect();
        numbers.chunks(2).map(|pair| (pair[0], pair[1])).collect()
    }

    #[test]
    fn numbers_come_back() {
        for numbers in [
            vec![],
            vec![0],
            vec![0, 1, 127, 128, 129, 1 << 20, u64::MAX - 1, u64::MAX],
        ] {
            let packed = Packed::of(numbers.iter().copied());
            assert_eq!(packed.iter().collect::<Vec<_>>(), numbers);
        }
        // What is cut or makes no sense ends, or has other numbers.
        assert_eq!(Packed(vec![0x80]).iter().count(), 0);
        assert_eq!(Packed(vec![0xff; 40]).iter().count(), 0);
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let packed = Packed::of_ranges(vec![8..=9, 1..=3, 4..=5, 2..=2, 20..=u64::MAX], 9);
        assert_eq!(ranges(&packed), [(1, 5), (8, 9), (20, u64::MAX)]);
        assert!(packed.touches(&(9..=10)) && packed.touches(&(-5..=1)));
        assert!(!packed.touches(&(6..=7)) && !packed.touches(&(10..=19)));
        #[expect(clippy::reversed_empty_ranges, reason = "nothing is wanted")]
        let none = 9..=8;
        assert!(!Packed::of_ranges(vec![1..=5], 9).touches(&none));
    }

    #[test]
    fn too_many_ranges_are_joined_and_none_is_lost() {
        let all: Vec<RangeInclusive<u64>> = (0..100_u64)
            .map(|number| number * number * 10..=number * number * 10 + 3)
            .collect();
        for most in [1, 2, 3, 50, 99, 100] {
            let packed = Packed::of_ranges(all.clone(), most);
            let kept = ranges(&packed);
            assert!(kept.len() <= most, "{} of {most}", kept.len());
            for range in &all {
                let holds = |kept: &&(u64, u64)| kept.0 <= *range.start() && *range.end() <= kept.1;
                assert!(kept.iter().any(|kept| holds(&kept)), "{range:?}");
            }
            assert!(kept.len() * 2 >= most, "{} of {most}", kept.len());
        }
        // All distances are the same.
        let even = (0..100_u64).map(|number| number * 10..=number * 10);
        assert_eq!(ranges(&Packed::of_ranges(even.collect(), 7)), [(0, 990)]);
    }
}
