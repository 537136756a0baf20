//! Sorting by code that all lists share.
//!
//! The standard library's sort is made anew for each type that is sorted, in four to six kilobytes each. That is worth its size where a list is long or sorted often. The others,
//! such as rows that are about to be printed, are sorted here: what compares is behind a pointer, what is sorted are places, and of each type there is only what moves its values.

use std::cmp::Ordering;

/// Sorts a list as [`slice::sort_by`] does; what is equal stays in order.
pub fn sort_by<T>(list: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let steps = {
        let list = &*list;
        steps(list.len(), &|a, b| match (list.get(a), list.get(b)) {
            (Some(a), Some(b)) => compare(a, b),
            // (No place is behind the end.)
            _ => Ordering::Equal,
        })
    };
    for (a, b) in steps {
        list.swap(a, b);
    }
}

/// Sorts a list as [`slice::sort_by_key`] does; what is equal stays in order.
pub fn sort_by_key<T, K: Ord>(list: &mut [T], key: impl Fn(&T) -> K) {
    sort_by(list, |a, b| key(a).cmp(&key(b)));
}

/// Which places are to be swapped, one pair after the other, so that a list of this length is sorted.
fn steps(len: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<(usize, usize)> {
    let mut order: Vec<usize> = (0..len).collect();
    order.sort_by(|a, b| compare(*a, *b));
    // Each cycle of the permutation is walked once. What belongs to its first place goes from place to place with the swaps, and is in its own at the end.
    let mut steps = Vec::new();
    for first in 0..len {
        let mut at = first;
        while let Some(from) = order.get_mut(at) {
            let from = std::mem::replace(from, at);
            if from == first {
                break;
            }
            steps.push((at, from));
            at = from;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_as_by_the_standard_library() {
        // A generator of random numbers suffices that is one line.
        let mut state = 1_u64;
        let mut random = |most: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % most
        };
        for len in (0..40).chain([1_000]) {
            for most in [1, 2, 10, 1_000_000] {
                let list: Vec<(u64, String)> =
                    (0..len).map(|n| (random(most), n.to_string())).collect();
                let (mut expected, mut by, mut by_key) = (list.clone(), list.clone(), list);
                expected.sort_by_key(|(key, _)| *key);
                sort_by(&mut by, |(a, _), (b, _)| a.cmp(b));
                sort_by_key(&mut by_key, |(key, _)| *key);
                assert_eq!(by, expected);
                assert_eq!(by_key, expected);
            }
        }
    }
}
