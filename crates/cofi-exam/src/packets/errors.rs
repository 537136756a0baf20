//! Two lists of a stream with errors in it: whether they find the same errors in the same places, and go on in the same
//! places.
//!
//! libipt's packet decoder is made to go on at the next PSB, as Cofi does. perf goes on at the next byte: what it says from
//! there to the PSB where Cofi goes on is not compared, and nothing before the first PSB that both list if a packet that
//! perf found in between reaches into Cofi's PSB.

use std::collections::{BTreeMap, BTreeSet};

use super::judge::Tally;
use super::listing::{Entry, What};
use super::quirks::{RIFTS, Rift, Who};

/// What came of the comparisons with one peer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    /// Packets that both list, field by field.
    pub(super) packets: u64,
    /// Places where both say that there is no packet.
    pub(super) errors: u64,
    /// Those of them after which both go on at the same PSB, or have nothing to go on at.
    pub(super) resumed: u64,
}

/// The account.
#[derive(Debug, Default)]
pub(super) struct Account {
    counts: BTreeMap<Who, Count>,
    rifts: BTreeMap<usize, u64>,
}

/// The place of a disagreement, as the excuses see it.
pub(super) struct Place<'a> {
    /// The stream from there on.
    pub(super) bytes: &'a [u8],
    /// What Cofi says.
    pub(super) ours: Option<&'a Entry>,
    /// What the peer says.
    pub(super) theirs: Option<&'a Entry>,
    /// Cofi's list up to there.
    pub(super) before: &'a [Entry],
}

impl Place<'_> {
    /// Whether Cofi lists a packet of one of these kinds where the peer sees an error.
    pub(super) fn only_ours(&self, kinds: &[&str]) -> bool {
        let theirs = self.theirs.is_some_and(|e| e.name() == "error");
        theirs && self.ours.is_some_and(|e| kinds.contains(&e.name()))
    }

    /// Whether the peer lists a packet of one of these kinds where Cofi sees an error.
    pub(super) fn only_theirs(&self, kinds: &[&str]) -> bool {
        let ours = self.ours.is_some_and(|e| e.name() == "error");
        ours && self.theirs.is_some_and(|e| kinds.contains(&e.name()))
    }
}

fn is_psb(entry: &Entry) -> bool {
    entry.name() == "psb"
}

/// The first PSB that both list, as places in the lists.
fn common(cofi: &[Entry], theirs: &[Entry]) -> Option<(usize, usize)> {
    let places: BTreeSet<u64> = cofi
        .iter()
        .filter(|e| is_psb(e))
        .map(|e| e.offset)
        .collect();
    let j = theirs
        .iter()
        .position(|e| is_psb(e) && places.contains(&e.offset))?;
    let offset = theirs[j].offset;
    let i = cofi.iter().position(|e| is_psb(e) && e.offset == offset)?;
    Some((i, j))
}

impl Account {
    /// What was compared with a peer.
    pub(super) fn count(&self, who: Who) -> Count {
        self.counts.get(&who).copied().unwrap_or_default()
    }

    /// How often a rift, by its place in the list, was come upon.
    pub(super) fn seen(&self, rift: usize) -> u64 {
        self.rifts.get(&rift).copied().unwrap_or(0)
    }

    /// Compares Cofi's list with a peer's; differences go into `tally`.
    pub(super) fn compare(
        &mut self,
        tally: &mut Tally,
        who: Who,
        label: &str,
        bytes: &[u8],
        cofi: &[Entry],
        theirs: &[Entry],
    ) {
        let (mut i, mut j) = (0, 0);
        let count = self.counts.entry(who).or_default();
        loop {
            let (a, b) = (cofi.get(i), theirs.get(j));
            match (a, b) {
                (None, None) => return,
                (Some(a), Some(b)) if a.offset == b.offset && a.name() == b.name() => {
                    let (ours, peers) = (cofi.get(i + 1..), theirs.get(j + 1..));
                    let rest = (ours.unwrap_or_default(), peers.unwrap_or_default());
                    let error = matches!(a.what, What::Error(_));
                    let wrong = match (error, a.size == b.size) {
                        (false, true) => {
                            count.packets += 1;
                            tally.fields(who, bytes, a, b)
                        }
                        (false, false) => Some("size"),
                        (true, same) => {
                            count.errors += 1;
                            // perf's error has a byte; where it goes on is seen further down its list.
                            let ends = rest.0.is_empty();
                            let same = match who {
                                Who::Perf => ends || common(&rest.0[..1], rest.1).is_some(),
                                _ => same,
                            };
                            count.resumed += u64::from(same);
                            (!same && who != Who::Perf).then_some("size")
                        }
                    };
                    if let Some(key) = wrong {
                        let label = format!("{label}: {key}");
                        tally.differ(who, &label, cofi, i, Some(a), Some(b));
                    }
                    if !error || (who != Who::Perf && wrong.is_none()) {
                        (i, j) = (i + 1, j + 1);
                        continue;
                    }
                }
                _ => {
                    let at = a.into_iter().chain(b).map(|e| e.offset).min();
                    let place = Place {
                        bytes: &bytes[at.unwrap_or(0) as usize..],
                        ours: a,
                        theirs: b,
                        before: &cofi[..i],
                    };
                    let excused = |rift: &Rift| rift.who == who && (rift.applies)(&place);
                    match RIFTS.iter().position(excused) {
                        Some(rift) => *self.rifts.entry(rift).or_default() += 1,
                        None => tally.differ(who, label, cofi, i, a, b),
                    }
                }
            }
            let rest = (cofi.get(i + 1..), theirs.get(j + 1..));
            let Some((k, l)) = common(rest.0.unwrap_or_default(), rest.1.unwrap_or_default())
            else {
                return;
            };
            (i, j) = (i + 1 + k, j + 1 + l);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psb(offset: u64) -> Entry {
        Entry::packet(offset, 16, "psb", &[])
    }

    fn ovf(offset: u64) -> Entry {
        Entry::packet(offset, 2, "ovf", &[])
    }

    fn bad(offset: u64, size: u64) -> Entry {
        Entry::error(offset, size, "no")
    }

    fn judge(who: Who, cofi: &[Entry], theirs: &[Entry]) -> (Count, u64) {
        let (mut account, mut tally) = (Account::default(), Tally::default());
        account.compare(&mut tally, who, "x", &[0; 64], cofi, theirs);
        (account.count(who), tally.differences())
    }

    #[test]
    fn errors_in_the_same_place_agree_if_both_go_on_at_the_same_psb() {
        let cofi = [psb(0), bad(16, 4), psb(20), ovf(36)];
        let count = |packets, errors, resumed| Count {
            packets,
            errors,
            resumed,
        };
        assert_eq!(judge(Who::Libipt, &cofi, &cofi), (count(3, 1, 1), 0));
        let perf = [psb(0), bad(16, 1), ovf(17), bad(19, 1), psb(20), ovf(36)];
        assert_eq!(judge(Who::Perf, &cofi, &perf), (count(3, 1, 1), 0));
        // A packet of perf's that reaches into the PSB.
        let perf = [psb(0), bad(16, 1), ovf(17), ovf(19), bad(21, 1)];
        assert_eq!(judge(Who::Perf, &cofi, &perf), (count(1, 1, 0), 0));
    }

    #[test]
    fn an_error_that_only_one_sees_is_a_difference() {
        let cofi = [psb(0), bad(16, 4), psb(20)];
        for theirs in [
            vec![psb(0), ovf(16), bad(18, 2), psb(20)],
            vec![psb(0), bad(16, 6), ovf(22)],
            vec![psb(0)],
        ] {
            assert_eq!(judge(Who::Libipt, &cofi, &theirs).1, 1, "{theirs:?}");
        }
        assert_eq!(judge(Who::Perf, &cofi, &[psb(0), ovf(16), psb(20)]).1, 1);
    }
}
