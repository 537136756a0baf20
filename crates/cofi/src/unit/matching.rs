//! Lists of lines against lists of expected lines, of which some are optional or come in any order.

use super::check::Shown;
use cofi_session::compact;
use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

/// So many lines stand together in any order at most.
pub(super) const MOST_ANY_ORDER: usize = 12;
/// So many lines are optional at most.
pub(super) const MOST_OPTIONAL: usize = 100;

/// Longer lists are compared only up to the first difference.
const MOST_COMPARED: usize = 2000;

/// An expected line.
#[derive(Clone)]
pub(super) struct Want {
    pub(super) shown: Shown,
    /// It may be there, or not.
    pub(super) optional: bool,
}

impl Want {
    fn is(&self, got: &Shown) -> bool {
        self.shown.is(got)
    }
}

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.optional { "? " } else { "" };
        write!(f, "{mark}{}", self.shown)
    }
}

/// What is expected next.
#[derive(Clone)]
pub(super) enum Wanted {
    One(Want),
    /// These, in any order.
    AnyOrder(Vec<Want>),
}

/// Whether what came out is what is expected.
pub(super) fn is_met(wanted: &[Wanted], got: &[Shown]) -> bool {
    // How many lines of the output can belong to what was expected so far.
    let mut ends = BTreeSet::from([0]);
    for wanted in wanted {
        let mut next = BTreeSet::new();
        for from in ends {
            let rest = &got[from..];
            match wanted {
                Wanted::One(want) => {
                    if want.optional {
                        next.insert(from);
                    }
                    if rest.first().is_some_and(|line| want.is(line)) {
                        next.insert(from + 1);
                    }
                }
                Wanted::AnyOrder(wants) => {
                    next.extend(any_order(wants, rest).into_iter().map(|len| from + len));
                }
            }
        }
        if next.is_empty() {
            return false;
        }
        ends = next;
    }
    ends.contains(&got.len())
}

/// How many lines at the beginning of the output can be these, in any order.
fn any_order(wants: &[Want], got: &[Shown]) -> BTreeSet<usize> {
    let needed = wants.iter().zip(0..).filter(|(want, _)| !want.optional);
    let needed = needed.fold(0_u32, |set, (_, index)| set | 1 << index);
    // Sets of them that can be the first lines of the output, those of one size at a time.
    let mut sets = BTreeSet::from([0_u32]);
    let mut ends = BTreeSet::new();
    for len in 0..=wants.len() {
        if sets.iter().any(|set| set & needed == needed) {
            ends.insert(len);
        }
        let Some(line) = got.get(len) else { break };
        let mut next = BTreeSet::new();
        for (want, index) in wants.iter().zip(0..) {
            if want.is(line) {
                let bit = 1 << index;
                next.extend(
                    sets.iter()
                        .filter(|set| *set & bit == 0)
                        .map(|set| set | bit),
                );
            }
        }
        sets = next;
    }
    ends
}

/// The expected lines in the order in which they are shown beside `got`: of lines in any order first what came first, and of
/// optional ones only what came at all.
fn in_order<'w>(wanted: &'w [Wanted], got: &[Shown]) -> Vec<&'w Want> {
    let place = |want: &Want| got.iter().position(|line| want.is(line));
    let mut list = Vec::new();
    for wanted in wanted {
        let mut wants: Vec<_> = match wanted {
            Wanted::One(want) if !want.optional => {
                list.push(want);
                continue;
            }
            Wanted::One(want) => vec![(want, place(want))],
            Wanted::AnyOrder(wants) => wants.iter().map(|want| (want, place(want))).collect(),
        };
        wants.retain(|(want, place)| !want.optional || place.is_some());
        compact::sort_by_key(&mut wants, |(_, place)| place.unwrap_or(usize::MAX));
        list.extend(wants.into_iter().map(|(want, _)| want));
    }
    list
}

/// Both lists side by side: `-` is expected and missing, `+` came and was not expected.
pub(super) fn compared(wanted: &[Wanted], got: &[Shown]) -> String {
    let want = in_order(wanted, got);
    let mut told = String::new();
    if want.len().max(got.len()) > MOST_COMPARED {
        let same = want
            .iter()
            .zip(got)
            .take_while(|(want, got)| want.is(got))
            .count();
        let wanted = want.get(same).map_or("nothing".into(), |it| it.to_string());
        let came = got.get(same).map_or("nothing".into(), |it| it.to_string());
        let _ = writeln!(
            told,
            "  {} {} the same\n- {wanted}\n+ {came}",
            cofi_packet::counted(same as u64, "line"),
            cofi_packet::agreeing(same as u64, "is", "are"),
        );
        return told;
    }
    // Lengths of the longest common subsequences of what is left of both.
    let width = got.len() + 1;
    let mut common = vec![0_u32; (want.len() + 1) * width];
    for i in (0..want.len()).rev() {
        for j in (0..got.len()).rev() {
            common[i * width + j] = if want[i].is(&got[j]) {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < want.len() || j < got.len() {
        if i < want.len() && j < got.len() && want[i].is(&got[j]) {
            let _ = writeln!(told, "  {}", want[i].shown);
            (i, j) = (i + 1, j + 1);
        } else if j == got.len()
            || i < want.len() && common[(i + 1) * width + j] >= common[i * width + j + 1]
        {
            let _ = writeln!(told, "- {}", want[i]);
            i += 1;
        } else {
            let _ = writeln!(told, "+ {}", got[j]);
            j += 1;
        }
    }
    told
}
