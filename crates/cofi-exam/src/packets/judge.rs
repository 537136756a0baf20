//! Two lists of packets, one beside the other, and the account of what was compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::listing::{Entry, KINDS, What, keys};
use super::quirks::{QUIRKS, Who, knows};

/// How many differences are shown of each comparison.
const SHOWN: usize = 3;
/// How many packets before a difference are shown with it.
const AROUND: usize = 4;

/// How much was compared.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    /// Packets: place, size and kind.
    pub(super) packets: u64,
    /// Fields that were the same.
    pub(super) fields: u64,
    /// Fields that differ as a quirk foretells.
    pub(super) excused: u64,
}

/// The account.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: BTreeMap<(Who, String), Count>,
    keys: BTreeMap<(Who, String, &'static str), u64>,
    quirks: BTreeMap<usize, u64>,
    /// Differences, ready to print.
    pub(super) differences: Vec<String>,
    found: u64,
}

impl Tally {
    /// How many differences there are.
    pub(super) fn differences(&self) -> u64 {
        self.found
    }

    /// Takes over the differences of another account, and nothing else of it.
    pub(super) fn take_differences(&mut self, other: Self) {
        self.found += other.found;
        self.differences.extend(other.differences);
    }

    /// What was compared of one kind with one peer.
    pub(super) fn count(&self, who: Who, kind: &str) -> Count {
        let key = (who, kind.to_owned());
        self.counts.get(&key).copied().unwrap_or_default()
    }

    /// All kinds together.
    pub(super) fn total(&self, who: Who) -> Count {
        let mut total = Count::default();
        for ((_, _), count) in self.counts.iter().filter(|((w, _), _)| *w == who) {
            total.packets += count.packets;
            total.fields += count.fields;
            total.excused += count.excused;
        }
        total
    }

    /// How often a quirk, by its place in the list, was seen.
    pub(super) fn seen(&self, quirk: usize) -> u64 {
        self.quirks.get(&quirk).copied().unwrap_or(0)
    }

    /// Compares Cofi's list with somebody's; `label` says which stream it is.
    pub(super) fn compare(
        &mut self,
        who: Who,
        label: &str,
        bytes: &[u8],
        cofi: &[Entry],
        theirs: &[Entry],
    ) {
        let mut shown = 0;
        for (at, (a, b)) in cofi.iter().zip(theirs).enumerate() {
            let same_place = (a.offset, a.size, a.name()) == (b.offset, b.size, b.name());
            if !same_place || matches!(a.what, What::Error(_)) {
                // From here on the lists are about different bytes.
                self.differ(who, label, cofi, at, Some(a), Some(b));
                return;
            }
            let wrong = self.fields(who, bytes, a, b);
            if let Some(key) = wrong {
                shown += 1;
                if shown <= SHOWN {
                    self.differ(who, &format!("{label}: {key}"), cofi, at, Some(a), Some(b));
                } else {
                    self.found += 1;
                }
            }
        }
        let at = cofi.len().min(theirs.len());
        if cofi.len() != theirs.len() {
            self.differ(who, label, cofi, at, cofi.get(at), theirs.get(at));
        }
    }

    /// Compares one packet's fields; the first that differs without excuse.
    pub(super) fn fields(
        &mut self,
        who: Who,
        bytes: &[u8],
        a: &Entry,
        b: &Entry,
    ) -> Option<&'static str> {
        let kind = a.name().to_owned();
        let packet = &bytes[a.offset as usize..(a.offset + a.size) as usize];
        let mut count = Count {
            packets: 1,
            ..Count::default()
        };
        // Only the generator says what stands where it may not.
        let mut wrong = (who == Who::Intent && a.misplaced() != b.misplaced()).then_some("error");
        for key in keys(&kind).iter().copied() {
            let (ours, theirs) = (a.field(key), b.field(key));
            let quirk = QUIRKS
                .iter()
                .position(|q| (q.who, q.kind, q.key) == (who, kind.as_str(), key));
            if ours.is_some() && ours == theirs {
                count.fields += 1;
                *self.keys.entry((who, kind.clone(), key)).or_default() += 1;
            } else if let Some(quirk) = quirk
                && ours.is_some()
                && (QUIRKS[quirk].says)(packet).as_ref() == theirs
            {
                count.excused += 1;
                *self.quirks.entry(quirk).or_default() += 1;
            } else {
                wrong = wrong.or(Some(key));
            }
        }
        let sum = self.counts.entry((who, kind)).or_default();
        sum.packets += count.packets;
        sum.fields += count.fields;
        sum.excused += count.excused;
        wrong
    }

    /// Notes a difference.
    pub(super) fn differ(
        &mut self,
        who: Who,
        label: &str,
        cofi: &[Entry],
        at: usize,
        ours: Option<&Entry>,
        theirs: Option<&Entry>,
    ) {
        self.found += 1;
        let show = |entry: Option<&Entry>| {
            entry.map_or("the list has ended".to_owned(), |e| {
                format!("{e} ({})", e.name())
            })
        };
        let mut text = format!("{label}: cofi and {} differ\n", who.name());
        for entry in &cofi[at.saturating_sub(AROUND)..at] {
            let _ = writeln!(text, "  {:>9}  {entry}", "");
        }
        let _ = writeln!(text, "  {:>9}  {}", "cofi", show(ours));
        let _ = writeln!(text, "  {:>9}  {}", who.name(), show(theirs));
        self.differences.push(text);
    }

    /// Kinds and fields that a peer reads and that were nevertheless never compared with it.
    pub(super) fn forgotten(&self, who: Who) -> Vec<String> {
        let mut forgotten = Vec::new();
        for (kind, keys) in KINDS.iter().filter(|(kind, _)| knows(who, kind)) {
            if self.count(who, kind).packets == 0 {
                forgotten.push(format!("{}: no {kind} was compared", who.name()));
                continue;
            }
            for key in keys.iter().copied() {
                let compared = self.keys.contains_key(&(who, (*kind).to_owned(), key));
                let excused = QUIRKS
                    .iter()
                    .any(|q| (q.who, q.kind, q.key) == (who, *kind, key));
                if !compared && !excused {
                    forgotten.push(format!("{}: no {key} of {kind} was compared", who.name()));
                }
            }
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::super::listing::hex;
    use super::*;

    fn mtc(offset: u64, ctc: u8) -> Entry {
        Entry::packet(offset, 2, "mtc", &[("ctc", ctc.into())])
    }

    fn pwre(hw: bool) -> Entry {
        let fields = [
            ("hw", hw.into()),
            ("state", 1.into()),
            ("sub_state", 2.into()),
        ];
        Entry::packet(0, 4, "pwre", &fields)
    }

    #[test]
    fn equal_lists_are_counted() {
        let list = [mtc(0, 1), mtc(2, 2)];
        let mut tally = Tally::default();
        tally.compare(Who::Perf, "x", &[0; 4], &list, &list);
        assert_eq!(tally.differences(), 0);
        let count = tally.count(Who::Perf, "mtc");
        assert_eq!((count.packets, count.fields, count.excused), (2, 2, 0));
        assert_eq!(tally.count(Who::Libipt, "mtc"), Count::default());
        assert!(
            tally
                .forgotten(Who::Perf)
                .iter()
                .all(|f| !f.ends_with("mtc was compared"))
        );
        assert!(
            tally
                .forgotten(Who::Perf)
                .iter()
                .any(|f| f.contains("no tip "))
        );
    }

    #[test]
    fn every_sort_of_difference_is_found() {
        let list = [mtc(0, 1), mtc(2, 2)];
        let other: [&[Entry]; 4] = [
            &[mtc(0, 1)],
            &[mtc(0, 1), mtc(2, 3)],
            &[mtc(0, 1), mtc(3, 2)],
            &[mtc(0, 1), Entry::error(2, 2, "no")],
        ];
        for theirs in other {
            let mut tally = Tally::default();
            tally.compare(Who::Intent, "x", &[0; 4], &list, theirs);
            assert_eq!(tally.differences(), 1, "{theirs:?}");
        }
    }

    #[test]
    fn two_errors_are_not_an_agreement() {
        let list = [Entry::error(0, 2, "no")];
        let mut tally = Tally::default();
        tally.compare(Who::Perf, "x", &[0; 2], &list, &list);
        assert_eq!(tally.differences(), 1);
    }

    #[test]
    fn a_field_that_nobody_shows_is_a_difference() {
        let list = [Entry::packet(0, 11, "mnt", &[("other", hex(1))])];
        let mut tally = Tally::default();
        tally.compare(Who::Perf, "x", &[0; 11], &list, &list);
        assert_eq!(tally.differences(), 1);
    }

    #[test]
    fn a_quirk_excuses_only_what_it_foretells() {
        // libipt's HW is bit 3 of byte 2.
        let (without, with) = ([0x02, 0x22, 0x80, 0x12], [0x02, 0x22, 0x88, 0x12]);
        for (bytes, says, differences) in [(without, false, 0), (with, true, 0), (with, false, 1)] {
            let mut tally = Tally::default();
            tally.compare(Who::Libipt, "x", &bytes, &[pwre(true)], &[pwre(says)]);
            assert_eq!(tally.differences(), differences, "{bytes:x?} {says}");
        }
        let mut tally = Tally::default();
        tally.compare(Who::Perf, "x", &without, &[pwre(true)], &[pwre(false)]);
        assert_eq!(tally.differences(), 1, "perf has no such quirk");
    }
}
