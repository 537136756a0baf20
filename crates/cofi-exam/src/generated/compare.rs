//! One walk: what ran, what perf says and what Cofi says.

use std::collections::BTreeMap;

use cofi_perf::PtConfig;

use super::said::{Event, Said};
use super::walks::{Step, Walk};

/// How many intervals perf may be behind: it takes the time of a packet over only where a run of TNT bits is used up.
const BACK: usize = 8;

/// The explained differences; `docs/strangers.md` has them in more words.
pub(super) const EXPLAINED: [(&str, &str); 4] = [
    (
        "taken-to-next",
        "a conditional branch to the next instruction: a list of instructions does not show that it is taken",
    ),
    (
        "two-cycles-each",
        "perf estimates two cycles for each instruction since a timing packet, also where they ran faster",
    ),
    (
        "tsc-without-cyc",
        "perf counts cycles on from an older packet unless a CYC stands right before the TSC or MTC",
    ),
    (
        "mtc-sent-late",
        "an instruction was slow and the MTC that fell into it follows it; perf takes it for that moment",
    ),
];

/// A branch: from, to (0 is nowhere), and perf's words for it.
pub(super) type Branch = (u64, u64, String);

/// What came of comparisons.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) streams: u64,
    pub(super) instructions: u64,
    pub(super) branches: u64,
    /// Times of perf, compared with Cofi's intervals; true times, likewise.
    pub(super) times: [u64; 2],
    /// How often each explained difference was met.
    pub(super) met: BTreeMap<&'static str, u64>,
    /// Differences that nothing explains, ready to print.
    pub(super) differences: Vec<String>,
}

/// perf's word for a kind of instruction.
fn word(kind: char) -> &'static str {
    match kind {
        'c' | 'x' => "jcc",
        'j' | 'J' => "jmp",
        'l' | 'C' => "call",
        'r' => "return",
        'i' => "iret",
        's' => "syscall",
        _ => "",
    }
}

/// The branches that follow from Cofi's list. A conditional branch to the next instruction is none, taken or not.
fn branches(walk: &Walk, said: &[Said]) -> Result<Vec<Branch>, String> {
    let mut branches: Vec<Branch> = Vec::new();
    let mut steps = walk.steps.iter();
    // The instruction before, as long as it is not known where it led.
    let mut last: Option<Step> = None;
    for said in said {
        match said {
            Said::Insn { ip, .. } => {
                branches.extend(led(last, *ip));
                last = steps.next().copied();
            }
            Said::Event(event) => match *event {
                Event::Enabled(ip) => branches.push((0, ip, "tr strt".to_owned())),
                Event::Disabled => {
                    let last = last.take().ok_or("it ends, and nothing ran")?;
                    let words = format!("tr end {}", word(last.kind));
                    branches.push((last.ip, 0, words.trim().to_owned()));
                }
                Event::Async(from, to) => {
                    branches.extend(led(last.take(), from));
                    branches.push((from, to, "hw int".to_owned()));
                }
                Event::AsyncDisabled(at) => {
                    branches.extend(led(last.take(), at));
                    branches.push((at, 0, "tr end async".to_owned()));
                }
            },
            Said::Branch { .. } => {}
        }
    }
    Ok(branches)
}

/// The first place where two lists differ, in words.
fn differ<T: PartialEq + std::fmt::Debug>(what: &str, one: &[T], other: &[T]) -> Option<String> {
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    (same < one.len().max(other.len())).then(|| {
        let around = |list: &[T]| {
            let from = same.saturating_sub(3).min(list.len());
            format!("{:x?}", &list[from..list.len().min(same + 3)])
        };
        format!(
            "{what} {same} of {} and {}: {}\n  and {}",
            one.len(),
            other.len(),
            around(one),
            around(other)
        )
    })
}

/// The instructions of a list.
pub(super) fn addresses(said: &[Said]) -> Vec<u64> {
    let ip = |said: &Said| match said {
        Said::Insn { ip, .. } => Some(*ip),
        _ => None,
    };
    said.iter().filter_map(ip).collect()
}

/// The instructions that ran.
pub(super) fn truth(walk: &Walk) -> Vec<u64> {
    walk.steps.iter().map(|step| step.ip).collect()
}

/// Where an instruction led, if that was a branch; what ran next, or would have.
fn led(last: Option<Step>, next: u64) -> Option<Branch> {
    let last = last?;
    let falls = last.next == next && matches!(last.kind, '-' | 'c' | 'x');
    (!falls).then(|| (last.ip, next, word(last.kind).to_owned()))
}

impl Account {
    fn meet(&mut self, name: &'static str) {
        *self.met.entry(name).or_default() += 1;
    }

    /// Compares a walk.
    pub(super) fn compare(&mut self, walk: &Walk, perf: &[Said], cofi: &[Said], config: &PtConfig) {
        self.streams += 1;
        if let Err(what) = self.walk(walk, perf, cofi, config) {
            self.differences
                .push(format!("{what}\n  seed {}", walk.words));
        }
    }

    fn walk(
        &mut self,
        walk: &Walk,
        perf: &[Said],
        cofi: &[Said],
        config: &PtConfig,
    ) -> Result<(), String> {
        let truth = truth(walk);
        for (name, said) in [("Cofi's", cofi), ("perf's", perf)] {
            let what = format!("{name} instructions and the truth differ at");
            differ(&what, &addresses(said), &truth).map_or(Ok(()), Err)?;
        }
        self.instructions += truth.len() as u64;
        let ours = branches(walk, cofi)?;
        let theirs = self.heard(walk, perf);
        differ("the branches of perf and of Cofi differ at", &theirs, &ours).map_or(Ok(()), Err)?;
        self.branches += ours.len() as u64;
        self.times(walk, perf, config)
    }

    /// perf's branches; without those that no list of instructions shows.
    fn heard(&mut self, walk: &Walk, perf: &[Said]) -> Vec<Branch> {
        let mut list = Vec::new();
        for said in perf {
            if let Said::Branch {
                from, to, flags, ..
            } = said
            {
                let step = walk.steps.iter().find(|step| step.ip == *from);
                let next = step.is_some_and(|step| step.kind == 'x' && step.next == *to);
                if next && flags == "jcc" {
                    self.meet("taken-to-next");
                    continue;
                }
                list.push((*from, *to, flags.clone()));
            }
        }
        list
    }

    /// perf's times and the true ones against Cofi's intervals.
    fn times(&mut self, walk: &Walk, perf: &[Said], config: &PtConfig) -> Result<(), String> {
        let times = perf.iter().filter_map(|said| match said {
            Said::Insn { time, .. } => Some(*time),
            _ => None,
        });
        // The step with which an interval begins, its beginning, and the latest time that perf may take for that of the packet
        // there: it counts a CYC's cycles in full, of which Cofi's beginning leaves some out.
        let mut intervals: Vec<(usize, u64, u64)> = Vec::new();
        for (at, (step, time)) in walk.steps.iter().zip(times).enumerate() {
            let Some(earliest) = step.earliest else {
                continue;
            };
            let within = earliest..=step.latest.unwrap_or(u64::MAX);
            self.times[1] += 1;
            if !within.contains(&step.tsc) {
                return Err(format!("step {at} is not within Cofi's time: {step:?}"));
            }
            let time = time.ok_or_else(|| format!("perf has no time for step {at}"))?;
            self.times[0] += 1;
            if intervals
                .last()
                .is_none_or(|(_, last, _)| *last != earliest)
            {
                let end = step.latest.filter(|_| config.cyc).unwrap_or(earliest);
                intervals.push((at, earliest, end));
            }
            // Two cycles for each instruction since a packet that stands a little before.
            let mut before = intervals.iter().rev().take(BACK);
            let estimated =
                before.any(|(since, _, then)| time <= then + 2 * (at - since + 1) as u64);
            if within.contains(&time) {
                continue;
            } else if time > earliest && estimated {
                self.meet("two-cycles-each");
            } else if time < earliest && config.cyc && walk.lone.is_some_and(|lone| lone <= at) {
                self.meet("tsc-without-cyc");
            } else if time < earliest && config.cyc && config.mtc && earliest - time <= walk.slowest
            {
                self.meet("mtc-sent-late");
            } else {
                return Err(format!(
                    "step {at}: perf's time {time} is not within Cofi's: {step:?}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(ip: u64, next: u64, kind: char) -> Step {
        Step {
            ip,
            next,
            kind,
            tsc: 100,
            earliest: Some(90),
            latest: Some(110),
        }
    }

    fn insn(ip: u64, time: u64) -> Said {
        let time = Some(time);
        Said::Insn { ip, time }
    }

    fn branch(from: u64, to: u64, flags: &str) -> Said {
        let flags = flags.to_owned();
        Said::Branch { from, to, flags }
    }

    /// A conditional branch and a SYSCALL, and what both decoders rightly say.
    fn case() -> (Walk, Vec<Said>, Vec<Said>) {
        let walk = Walk {
            steps: vec![step(0x10, 0x12, 'c'), step(0x20, 0x22, 's')],
            ..Walk::default()
        };
        let perf = vec![
            branch(0, 0x10, "tr strt"),
            insn(0x10, 95),
            branch(0x10, 0x20, "jcc"),
            insn(0x20, 110),
            branch(0x20, 0, "tr end syscall"),
        ];
        let cofi = vec![
            Said::Event(Event::Enabled(0x10)),
            insn(0x10, 0),
            insn(0x20, 0),
            Said::Event(Event::Disabled),
        ];
        (walk, perf, cofi)
    }

    fn differences(walk: &Walk, perf: &[Said], cofi: &[Said]) -> usize {
        let mut account = Account::default();
        account.compare(walk, perf, cofi, &PtConfig::default());
        account.differences.len()
    }

    #[test]
    fn what_agrees_is_counted() {
        let (walk, perf, cofi) = case();
        let mut account = Account::default();
        account.compare(&walk, &perf, &cofi, &PtConfig::default());
        assert_eq!(account.differences, [""; 0]);
        assert_eq!((account.instructions, account.branches), (2, 3));
        assert_eq!(account.times, [2, 2]);
    }

    #[test]
    fn each_thing_that_is_off_is_a_difference() {
        let (walk, perf, cofi) = case();
        let off = [
            (1, insn(0x11, 95)),
            (1, insn(0x10, 80)),
            (1, insn(0x10, 113)),
            (2, branch(0x10, 0x21, "jcc")),
            (2, branch(0x10, 0x20, "jmp")),
            (4, branch(0x20, 0, "tr end")),
        ];
        for (at, said) in off {
            let mut perf = perf.clone();
            perf[at] = said;
            assert_eq!(differences(&walk, &perf, &cofi), 1, "{perf:?}");
        }
        assert_eq!(differences(&walk, &perf[..4], &cofi), 1);
        assert_eq!(differences(&walk, &perf, &cofi[..3]), 1);
        assert_eq!(differences(&walk, &perf, &cofi[1..]), 1);
    }

    #[test]
    fn a_true_time_beside_the_interval_is_a_difference() {
        let (mut walk, perf, cofi) = case();
        walk.steps[1].tsc = 111;
        assert_eq!(differences(&walk, &perf, &cofi), 1);
    }

    #[test]
    fn every_explained_difference_is_in_the_document() {
        let document = include_str!("../../../../docs/strangers.md");
        for (name, _) in EXPLAINED {
            assert!(document.contains(&format!("`{name}`")), "{name}");
        }
    }
}
