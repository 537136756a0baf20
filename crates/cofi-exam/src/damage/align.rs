//! A decoder's list beside the truth: what is lost, what is wrong, what is wrong without a word.

use std::collections::HashMap;
use std::ops::Range;

/// Contexts by which places are recognised, from the most certain to the least: so many instructions in a row that occur once in
/// both lists.
const CONTEXTS: [usize; 4] = [256, 96, 32, 12];

/// What a decoder reported.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// The addresses, in order.
    pub(super) addresses: Vec<u64>,
    /// How many addresses had been reported before each error.
    pub(super) errors: Vec<usize>,
    /// How many errors say only that a stretch does not match its seal.
    pub(super) seals: usize,
}

/// How a list compares with the truth, in instructions.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Score {
    /// Executed and not listed.
    pub(super) lost: usize,
    /// Listed and not executed there.
    pub(super) wrong: usize,
    /// Those of the wrong ones that were listed before any error.
    pub(super) silent: usize,
}

/// Compares what was said with the truth.
pub(super) fn score(truth: &[u64], said: &Said) -> Score {
    let mut is_right = vec![false; said.addresses.len()];
    let mut aligner = Aligner {
        truth,
        said: &said.addresses,
        is_right: &mut is_right,
    };
    aligner.fill(0..truth.len(), 0..said.addresses.len(), 0);
    let right = is_right.iter().filter(|is| **is).count();
    let first = said.errors.first().copied().unwrap_or(usize::MAX);
    let silent = is_right.iter().take(first).filter(|is| !**is).count();
    Score {
        lost: truth.len() - right,
        wrong: said.addresses.len() - right,
        silent,
    }
}

struct Aligner<'a> {
    truth: &'a [u64],
    said: &'a [u64],
    is_right: &'a mut [bool],
}

impl Aligner<'_> {
    /// Aligns two ranges whose surroundings are aligned.
    ///
    /// What begins and what ends both is the same. Between them, runs of instructions that occur once in each are the same if
    /// they stand in the same order; what is between those is aligned in the same way, by shorter runs.
    fn fill(&mut self, mut truth: Range<usize>, mut said: Range<usize>, level: usize) {
        while !truth.is_empty() && !said.is_empty() && self.is_same(truth.start, said.start) {
            self.is_right[said.start] = true;
            (truth.start, said.start) = (truth.start + 1, said.start + 1);
        }
        while !truth.is_empty() && !said.is_empty() && self.is_same(truth.end - 1, said.end - 1) {
            (truth.end, said.end) = (truth.end - 1, said.end - 1);
            self.is_right[said.end] = true;
        }
        let Some(context) = CONTEXTS.get(level) else {
            return;
        };
        let mut anchors = self.anchors(truth.clone(), said.clone(), *context);
        anchors.push((truth.end, said.end));
        for (to_truth, to_said) in anchors {
            if to_truth < truth.start || to_said < said.start {
                // An anchor before it has reached it.
                continue;
            }
            self.fill(truth.start..to_truth, said.start..to_said, level + 1);
            (truth.start, said.start) = (to_truth, to_said);
            while !truth.is_empty() && !said.is_empty() && self.is_same(truth.start, said.start) {
                self.is_right[said.start] = true;
                (truth.start, said.start) = (truth.start + 1, said.start + 1);
            }
        }
    }

    fn is_same(&self, truth: usize, said: usize) -> bool {
        self.truth[truth] == self.said[said]
    }

    /// Places that are the same because what follows them, `len` instructions, occurs once in each range: the longest sequence
    /// of them that is in order.
    fn anchors(&self, truth: Range<usize>, said: Range<usize>, len: usize) -> Vec<(usize, usize)> {
        let in_truth = unique(&self.truth[truth.clone()], len);
        let in_said = unique(&self.said[said.clone()], len);
        let mut pairs: Vec<(usize, usize)> = in_said
            .iter()
            .filter_map(|(hash, at)| {
                let (from, at) = (truth.start + in_truth.get(hash)?, said.start + at);
                (self.truth[from..from + len] == self.said[at..at + len]).then_some((from, at))
            })
            .collect();
        pairs.sort_unstable_by_key(|(_, said)| *said);
        longest_in_order(&pairs)
    }
}

/// The hashes of all runs of so many addresses that occur once, and where.
fn unique(list: &[u64], len: usize) -> HashMap<u64, usize> {
    const BASE: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut found: HashMap<u64, Option<usize>> = HashMap::new();
    let top = (1..len).fold(1_u64, |power, _| power.wrapping_mul(BASE));
    let mut hash = 0_u64;
    for (index, address) in list.iter().enumerate() {
        if let Some(out) = index.checked_sub(len) {
            hash = hash.wrapping_sub(list[out].wrapping_mul(top));
        }
        hash = hash.wrapping_mul(BASE).wrapping_add(*address);
        if let Some(begin) = (index + 1).checked_sub(len) {
            let place = found.entry(hash);
            place.and_modify(|at| *at = None).or_insert(Some(begin));
        }
    }
    let once = found.into_iter();
    once.filter_map(|(hash, at)| Some((hash, at?))).collect()
}

/// The longest part of a list, sorted by the second number, whose first numbers rise.
fn longest_in_order(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // The last pair of the best sequence of each length, and the pair before each.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (index, (truth, _)) in pairs.iter().enumerate() {
        let len = ends.partition_point(|end| pairs[*end].0 < *truth);
        before.push(len.checked_sub(1).map(|last| ends[last]));
        match ends.get_mut(len) {
            Some(end) => *end = index,
            None => ends.push(index),
        }
    }
    let mut list = Vec::new();
    let mut at = ends.last().copied();
    while let Some(index) = at {
        list.push(pairs[index]);
        at = before[index];
    }
    list.reverse();
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(addresses: Vec<u64>, errors: &[usize]) -> Said {
        Said {
            addresses,
            errors: errors.to_vec(),
            seals: 0,
        }
    }

    #[test]
    fn a_gap_loses_and_nothing_else() {
        let truth: Vec<u64> = (0..5000).collect();
        let list = (0..1000).chain(1700..5000).collect();
        let score = score(&truth, &said(list, &[1000]));
        assert_eq!((score.lost, score.wrong, score.silent), (700, 0, 0));
    }

    #[test]
    fn what_never_ran_is_wrong_and_silent_before_the_first_error() {
        let truth: Vec<u64> = (0..5000).collect();
        let list = (0..1000)
            .chain(9000..9010)
            .chain(2000..3000)
            .chain(8000..8003)
            .chain(3000..5000)
            .collect();
        let score = score(&truth, &said(list, &[1010]));
        assert_eq!((score.lost, score.wrong, score.silent), (1000, 13, 10));
    }

    #[test]
    fn a_stretch_that_is_listed_twice_is_wrong_once() {
        let truth: Vec<u64> = (0..5000).collect();
        let list = (0..1000).chain(900..5000).collect();
        let score = score(&truth, &said(list, &[]));
        assert_eq!((score.lost, score.wrong, score.silent), (0, 100, 100));
    }

    #[test]
    fn rounds_of_a_loop_that_are_missing_are_lost() {
        let round: Vec<u64> = (0..20).collect();
        let with = |rounds: usize| -> Vec<u64> {
            let rounds = (0..rounds).flat_map(|_| round.iter().copied());
            (1000..2000).chain(rounds).chain(3000..4000).collect()
        };
        let score = score(&with(100), &said(with(60), &[1010]));
        assert_eq!((score.lost, score.wrong, score.silent), (800, 0, 0));
    }

    #[test]
    fn a_small_island_between_two_gaps_is_right() {
        let truth: Vec<u64> = (0..5000).collect();
        let list = (0..1000).chain(1500..1520).chain(3000..5000).collect();
        let score = score(&truth, &said(list, &[1000, 1020]));
        assert_eq!((score.lost, score.wrong, score.silent), (1980, 0, 0));
    }
}
