//! libipt's instruction decoder over the streams of random machines, compared with what the machines did.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::machines::Record;
use super::strangers::{FLOW, How};
use crate::run::patient;

/// MOV CR3, and the opcode of the machines' conditional branches.
const MOV_CR3: &[u8] = &[0x0f, 0x22, 0xd8];
const JCC: &[u8] = &[0x0f, 0x84];

/// The events that are compared, each kind for itself: libipt may tell what belongs to one instruction in another order.
const TOLD: [&str; 6] = ["ptwrite", "stop", "mwait", "pwre", "exstop", "pwrx"];

/// What came of comparisons.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Streams.
    pub(super) streams: u64,
    /// Of these, compared to their ends.
    pub(super) whole: u64,
    /// Instructions.
    pub(super) steps: u64,
    /// Overflows.
    pub(super) overflows: u64,
    /// Events other than overflows.
    pub(super) events: u64,
    /// How often each case was met.
    pub(super) met: BTreeMap<&'static str, u64>,
    /// Differences, ready to print.
    pub(super) differences: Vec<String>,
}

/// Which cases are kept out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// The one that is let in, to see what becomes of it.
    pub(super) except: Option<&'static str>,
}

impl Rules {
    fn holds(self, name: &str) -> Option<&'static str> {
        let case = FLOW.iter().find(|case| case.name == name)?;
        (self.except != Some(case.name)).then_some(case.name)
    }

    /// What the machines are without.
    pub(super) fn without(self) -> Vec<&'static str> {
        let cases = FLOW.iter().filter(|case| case.how == How::Without);
        cases.filter_map(|case| self.holds(case.name)).collect()
    }
}

/// What libipt says of a stream.
struct Listening<'r> {
    record: &'r Record,
    rules: Rules,
    /// The programs.
    codes: Vec<(u64, Vec<u8>)>,
    met: Vec<&'static str>,
}

/// How a comparison ended.
enum End {
    /// At the end of the stream.
    Whole,
    /// At a case that is kept out.
    Excused,
}

impl<'r> Listening<'r> {
    fn new(record: &'r Record, rules: Rules) -> Result<Self> {
        let mut codes = Vec::new();
        for (address, file) in &record.codes {
            codes.push((*address, fs::read(record.folder.join(file))?));
        }
        Ok(Self {
            record,
            rules,
            codes,
            met: Vec::new(),
        })
    }

    /// Whether the instruction at an address begins with these bytes.
    fn stands(&self, ip: &str, opcode: &[u8]) -> bool {
        let ip = ip.strip_prefix("0x").unwrap_or_default();
        let Ok(ip) = u64::from_str_radix(ip, 16) else {
            return false;
        };
        self.codes.iter().any(|(base, bytes)| {
            let at = ip.checked_sub(*base).map(|at| at as usize);
            at.and_then(|at| bytes.get(at..))
                .is_some_and(|bytes| bytes.starts_with(opcode))
        })
    }

    fn listen(&self, ptinsn: &Path) -> Result<String> {
        let mut command = patient(ptinsn);
        command.args(["--events", "--mtc-freq", "3", "--nom-freq", "20"]);
        command.args(["--cpuid-15", "1,80"]);
        command.arg(self.record.folder.join("trace.pt"));
        for ((address, file), (_, bytes)) in self.record.codes.iter().zip(&self.codes) {
            let file = self.record.folder.join(file);
            let section = format!("{}:0:{}:{address:#x}", file.display(), bytes.len());
            command.arg(section);
        }
        let output = command.output().context("running ptinsn")?;
        ensure!(
            matches!(output.status.code(), Some(0 | 1)),
            "ptinsn: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Compares; an error says what differs and after how many of libipt's lines.
    fn compare(
        &mut self,
        text: &str,
        account: &mut Account,
        before: &Before<'_>,
    ) -> Result<End, (usize, String)> {
        let record = self.record;
        let cuts = record.cuts.iter();
        let cut = cuts
            .filter_map(|(name, at)| Some((*at, self.rules.holds(name)?)))
            .min();
        let (mut at, mut overflows) = (0, 0);
        // The last instruction, and what came since.
        let (mut last, mut since) = ("", Vec::new());
        let mut told = BTreeMap::<&str, Vec<String>>::new();
        let mut end = End::Whole;
        for (place, line) in text.lines().enumerate() {
            let differs = |what: String| Err((place, what));
            if let Some((_, name)) = cut.filter(|(cut, _)| at >= *cut) {
                self.met.push(name);
                end = End::Excused;
                break;
            }
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["insn", rest @ ..] => {
                    let insn = rest.join(" ");
                    if record.steps.get(at) != Some(&insn) {
                        let width = || {
                            record
                                .steps
                                .get(at)
                                .is_some_and(|step| only_width(step, &insn))
                        };
                        if since.contains(&"overflow")
                            && width()
                            && let Some(name) = self.rules.holds("mode-after-overflow")
                        {
                            self.met.push(name);
                            end = End::Excused;
                            break;
                        }
                        return differs(format!("step {at} is {:?}", record.steps.get(at)));
                    }
                    at += 1;
                    account.steps += 1;
                    last = rest.first().copied().unwrap_or_default();
                    since.clear();
                    continue;
                }
                ["overflow", ip] => {
                    let Some(resumed) = record.resumed.get(overflows) else {
                        return differs(format!("overflow {overflows}"));
                    };
                    let (on, off) = *resumed;
                    let resumed = if *ip == "-" { off } else { on };
                    if at > resumed {
                        return differs(format!("overflow {overflows} at step {at}"));
                    }
                    at = resumed;
                    overflows += 1;
                    account.overflows += 1;
                }
                ["error", offset, what @ ..] => {
                    let what = what.join(" ");
                    let leaving = || {
                        what == "trace stream does not match query"
                            && since.is_empty()
                            && self.stands(last, JCC)
                            && offset.parse().is_ok_and(before.leaves)
                    };
                    let lost = || {
                        what == "bad status update" && since.last() == Some(&"overflow")
                            || what == "trace stream does not match query"
                                && offset.parse().is_ok_and(before.loses_mode)
                    };
                    let name = match () {
                        () if leaving() => self.rules.holds("leaving-branch"),
                        () if lost() => self.rules.holds("mode-after-overflow"),
                        () => None,
                    };
                    let Some(name) = name else {
                        return differs(format!("step {at}"));
                    };
                    self.met.push(name);
                    end = End::Excused;
                    break;
                }
                ["disabled", "-"] if since.contains(&"paging") && self.stands(last, MOV_CR3) => {
                    if let Some(name) = self.rules.holds("disabled-after-cr3") {
                        self.met.push(name);
                        end = End::Excused;
                        break;
                    }
                }
                [kind, what @ ..] if TOLD.contains(kind) => {
                    told.entry(kind).or_default().push(what.join(" "));
                }
                _ => {}
            }
            since.extend(words.first());
        }
        let whole = matches!(end, End::Whole);
        let lines = text.lines().count();
        if whole && at != record.steps.len() {
            let what = format!("the flow ends at step {at}: {:?}", record.steps.get(at));
            return Err((lines, what));
        }
        account.events += told.values().map(|list| list.len() as u64).sum::<u64>();
        for kind in TOLD.iter().copied() {
            let theirs = told.remove(kind).unwrap_or_default();
            let ours = truth(record, kind);
            // What an overflow swallowed is missing, and what comes after a case that is kept out.
            let good = if overflows > 0 {
                let mut ours = ours.iter();
                theirs.iter().all(|a| ours.any(|b| agree(a, b)))
            } else {
                let same = theirs.iter().zip(&ours).all(|(a, b)| agree(a, b));
                same && theirs.len() <= ours.len() && (!whole || theirs.len() == ours.len())
            };
            if !good {
                return Err((lines, format!("{kind}: {theirs:?} and not {ours:?}")));
            }
        }
        account.whole += u64::from(whole);
        Ok(end)
    }
}

/// Whether two steps differ in nothing but the width.
fn only_width(a: &str, b: &str) -> bool {
    let parts = |step: &str| {
        let mut words = step.split(' ').map(str::to_owned);
        (words.next(), words.nth(1))
    };
    a != b && parts(a) == parts(b)
}

/// What a record tells of a kind of event, as `ptinsn` would say it: addresses bare, and without what libipt does not read rightly (see
/// `QUIRKS` of the exam of packets): HW of PWRE, and the wake reason of PWRX.
fn truth(record: &Record, kind: &str) -> Vec<String> {
    let list = |kind: &str| record.told.get(kind).into_iter().flatten();
    if matches!(kind, "ptwrite" | "stop") {
        return list(kind).map(|words| plain(words)).collect();
    }
    let power = list("power").filter_map(|words| words.split_once(' '));
    power
        .filter(|(name, _)| *name == kind)
        .map(|(name, words)| match (name, words.split_once(' ')) {
            ("pwre", Some((_, rest))) => rest.to_owned(),
            ("pwrx", _) => words
                .rsplit_once(' ')
                .map_or("", |(rest, _)| rest)
                .to_owned(),
            _ => plain(words),
        })
        .collect()
}

fn plain(words: &str) -> String {
    let words = words.replace("Some(Ip(", "").replace("))", "");
    words.replace("None", "-")
}

/// libipt leaves out the address of a PTWRITE that the binary shows.
fn agree(theirs: &str, ours: &str) -> bool {
    let tail = |words: &str| words.split_once(' ').map(|(_, tail)| tail.to_owned());
    let shown = theirs.starts_with("- 0x") && tail(theirs) == tail(ours);
    theirs == ours || shown
}

/// What stands in a stream before an offset.
pub(super) struct Before<'p> {
    /// The last packet of the flow is a TIP.PGD without IP, for `leaving-branch`.
    pub(super) leaves: &'p dyn Fn(u64) -> bool,
    /// A MODE.Exec and an OVF, for `mode-after-overflow`.
    pub(super) loses_mode: &'p dyn Fn(u64) -> bool,
}

/// Compares what libipt finds in a machine's stream with what the machine did.
pub(super) fn compare(
    ptinsn: &Path,
    record: &Record,
    rules: Rules,
    account: &mut Account,
    before: &Before<'_>,
) -> Result<()> {
    let mut listening = Listening::new(record, rules)?;
    let text = listening.listen(ptinsn)?;
    account.streams += 1;
    match listening.compare(&text, account, before) {
        Ok(_) => {}
        Err((place, what)) => {
            let lines: Vec<&str> = text.lines().collect();
            let around = &lines[place.saturating_sub(8)..lines.len().min(place + 2)];
            account.differences.push(format!(
                "{}: {what}\n  {}\n  libipt: {}",
                record.folder.display(),
                record.setup,
                around.join("\n          ")
            ));
        }
    }
    listening.met.sort_unstable();
    listening.met.dedup();
    for name in listening.met {
        *account.met.entry(name).or_default() += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_told_apart() {
        assert!(only_width("0x1 16 0", "0x1 32 0"));
        assert!(!only_width("0x1 16 0", "0x1 32 1"));
        assert!(!only_width("0x1 16 0", "0x2 32 0"));
        assert!(!only_width("0x1 16 0", "0x1 16 0"));
    }

    #[test]
    fn the_truth_is_put_in_libipts_words() {
        let mut record = Record::default();
        let power = ["pwre false 2 13", "pwrx 2 2 1", "exstop None"];
        let power = power.map(str::to_owned).to_vec();
        record.told.insert("power".to_owned(), power);
        assert_eq!(truth(&record, "pwre"), ["2 13"]);
        assert_eq!(truth(&record, "pwrx"), ["2 2"]);
        assert_eq!(truth(&record, "exstop"), ["-"]);
        assert!(truth(&record, "stop").is_empty());
        assert_eq!(plain("Some(Ip(0x1000)) 0x7"), "0x1000 0x7");
        assert!(agree("- 0x7", "0x1000 0x7"));
        assert!(!agree("- 0x8", "0x1000 0x7"));
        assert!(!agree("-", "0x7"));
    }
}
