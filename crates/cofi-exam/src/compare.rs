//! Two lists of addresses, one beside the other.

use std::fmt::Write as _;

use super::flows::Flows;

/// How many lines of surroundings a difference is shown with.
const AROUND: usize = 5;

/// What came of one comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every address, in order; that many.
    Exact(usize),
    /// Something differs; the first place of it, ready to print.
    Differs(String),
    /// Not compared, and why.
    Skipped(String),
}

/// Compares thread by thread what a decoder says with the truth.
///
/// A decoder that names no threads (all under 0) must be right about the only one there is.
pub(crate) fn compare(truth: &Flows, said: &Flows) -> Verdict {
    let mut report = String::new();
    for (&tid, want) in &truth.threads {
        let anonymous = truth.threads.len() == 1 && !said.threads.contains_key(&tid);
        let key = if anonymous { 0 } else { tid };
        let got = said
            .threads
            .get(&key)
            .map(Vec::as_slice)
            .unwrap_or_default();
        if let Some(difference) = first_difference(tid, want, got) {
            report.push_str(&difference);
            break;
        }
    }
    for (tid, addresses) in &said.threads {
        let anonymous = *tid == 0 && truth.threads.len() == 1;
        if !(anonymous || truth.threads.contains_key(tid)) {
            let _ = writeln!(
                report,
                "thread {tid}: {} instructions of a thread that never ran",
                addresses.len()
            );
        }
    }
    if let Some(error) = &said.first_error {
        let _ = writeln!(report, "{} errors; the first: {error}", said.errors);
    }
    if report.is_empty() {
        Verdict::Exact(truth.instructions())
    } else {
        Verdict::Differs(report)
    }
}

/// The first place where two lists differ, with its surroundings.
fn first_difference(tid: u32, want: &[u64], got: &[u64]) -> Option<String> {
    let at = want
        .iter()
        .zip(got)
        .position(|(w, g)| w != g)
        .unwrap_or(want.len().min(got.len()));
    if at == want.len() && at == got.len() {
        return None;
    }
    let mut out = format!(
        "thread {tid}: first difference at instruction {at} (truth has {}, the decoder {})\n{:>12} {:>18} {:>18}\n",
        want.len(),
        got.len(),
        "",
        "truth",
        "decoder"
    );
    let show = |list: &[u64], index: usize| {
        list.get(index)
            .map_or("-".to_owned(), |a| format!("{a:#x}"))
    };
    for index in at.saturating_sub(AROUND)..=at + AROUND {
        if index >= want.len().max(got.len()) {
            break;
        }
        let mark = if index == at { '>' } else { ' ' };
        let _ = writeln!(
            out,
            "{mark}{index:>11} {:>18} {:>18}",
            show(want, index),
            show(got, index)
        );
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows(threads: &[(u32, &[u64])]) -> Flows {
        Flows {
            threads: threads.iter().map(|(t, a)| (*t, a.to_vec())).collect(),
            ..Flows::default()
        }
    }

    #[test]
    fn equal_lists_are_exact() {
        let truth = flows(&[(5, &[1, 2, 3])]);
        assert_eq!(
            compare(&truth, &flows(&[(5, &[1, 2, 3])])),
            Verdict::Exact(3)
        );
        assert_eq!(
            compare(&truth, &flows(&[(0, &[1, 2, 3])])),
            Verdict::Exact(3)
        );
    }

    #[test]
    fn one_missing_at_the_end_is_a_difference() {
        let Verdict::Differs(report) = compare(&flows(&[(5, &[1, 2, 3])]), &flows(&[(5, &[1, 2])]))
        else {
            panic!("a shorter list is not exact");
        };
        assert!(
            report.contains("first difference at instruction 2"),
            "{report}"
        );
        assert!(
            report.contains(">          2                0x3                  -"),
            "{report}"
        );
    }

    #[test]
    fn a_thread_out_of_nowhere_is_a_difference() {
        let verdict = compare(&flows(&[(5, &[1])]), &flows(&[(5, &[1]), (6, &[9])]));
        assert!(matches!(verdict, Verdict::Differs(report) if report.starts_with("thread 6")));
    }

    #[test]
    fn an_error_spoils_an_otherwise_right_list() {
        let mut said = flows(&[(5, &[1])]);
        said.complain("lost");
        assert_eq!(
            compare(&flows(&[(5, &[1])]), &said),
            Verdict::Differs("1 errors; the first: lost\n".to_owned())
        );
    }
}
