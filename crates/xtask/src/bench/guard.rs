//! `cargo xtask bench guard`: how many instructions of the processor the hot paths take, compared with `bench/counts.txt`.
//!
//! The example `hot` of cofi-law has the scenarios and their input, which is the same everywhere. callgrind counts two runs of
//! different length, whose difference is what a pass takes: that does not depend on how busy the machine is. It depends on the
//! compiler, and a little on the processor, which has functions of the C library of its own: hence the tolerance.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::counted;
use cofi_exam::build;

/// The committed counts, below the project's root.
const COUNTS: &str = "bench/counts.txt";
/// By so many percent may a count be higher than the committed one: another processor, of which valgrind shows other features, takes other
/// functions of the C library.
const TOLERANCE: u64 = 8;
/// The passes of the two runs.
const PASSES: [u64; 2] = [1, 3];

/// Instructions a pass, by scenario.
type Counts = BTreeMap<String, u64>;

/// The lines `SCENARIO COUNT`; the rest are remarks.
fn parse(text: &str) -> Result<Counts> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, count) = line
                .split_once(' ')
                .with_context(|| format!("{COUNTS}: {line}: no count"))?;
            let count = count.trim().parse();
            Ok((
                name.to_owned(),
                count.with_context(|| format!("{COUNTS}: {line}: no number"))?,
            ))
        })
        .collect()
}

/// What is wrong with the counts, a sentence each.
fn faults(committed: &Counts, found: &Counts) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, count) in found {
        match committed.get(name) {
            None => faults.push(format!("{name} is not in {COUNTS}")),
            Some(limit) if is_more(*limit, *count) => faults.push(format!(
                "{name} takes {count} instructions, {:+.1} % ({limit} in {COUNTS}; {TOLERANCE} % are allowed)",
                change(*limit, *count)
            )),
            Some(_) => {}
        }
    }
    let gone = committed.keys().filter(|name| !found.contains_key(*name));
    faults.extend(gone.map(|name| format!("{name} is in {COUNTS}, and there is no such scenario")));
    faults
}

/// Whether `now` is more than `before` by more than the tolerance.
fn is_more(before: u64, now: u64) -> bool {
    u128::from(now) * 100 > u128::from(before) * u128::from(100 + TOLERANCE)
}

/// By how many percent `now` is more than `before`.
fn change(before: u64, now: u64) -> f64 {
    (now as f64 / before.max(1) as f64 - 1.0) * 100.0
}

fn count(hot: &Path, scenario: &str) -> Result<u64> {
    let mut counts = [0; 2];
    for (count, passes) in counts.iter_mut().zip(PASSES) {
        *count = counted::run(Command::new(hot).args([scenario, &passes.to_string()]))?.1;
    }
    let more = counts[1].saturating_sub(counts[0]);
    Ok(more / (PASSES[1] - PASSES[0]))
}

/// Counts, and returns whether no path takes more instructions than it may.
pub(super) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let write = match arguments {
        [] => false,
        [word] if word == "--write" => true,
        _ => bail!("{}: there is no such option", arguments.join(" ")),
    };
    let file = root.join(COUNTS);
    let committed = match fs::read_to_string(&file) {
        Ok(text) => parse(&text)?,
        Err(_) if write => Counts::new(),
        Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
    };
    let hot = build::release(root, "cofi-law", "--example", "hot")?;
    let list = build::tool(Command::new(&hot).arg("--list"))?;
    let mut found = Counts::new();
    for scenario in String::from_utf8_lossy(&list).lines() {
        let count = count(&hot, scenario)?;
        let before = match committed.get(scenario) {
            Some(before) => format!("{:+.2} %", change(*before, count)),
            None => "new".to_owned(),
        };
        println!("bench: {scenario:<18} {count:>12} instructions a pass  {before}");
        found.insert(scenario.to_owned(), count);
    }
    if write {
        let mut text = format!(
            "# Instructions of the processor a pass of the hot paths takes: written by `cargo xtask bench guard --write`.\n# {}\n",
            String::from_utf8_lossy(&build::tool(Command::new("rustc").arg("--version"))?).trim()
        );
        for (name, count) in &found {
            writeln!(text, "{name} {count}")?;
        }
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        return Ok(true);
    }
    let faults = faults(&committed, &found);
    for fault in &faults {
        println!("bench: {fault}");
    }
    let faster = found.iter().any(|(name, count)| {
        let before = committed.get(name);
        before.is_some_and(|before| is_more(*count, *before))
    });
    if faster {
        println!(
            "bench: something takes less than it did: `cargo xtask bench guard --write` holds on to that"
        );
    }
    Ok(faults.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_takes_more_instructions_is_found() {
        let committed = parse("# a remark\nblocks 1000\npackets 500\n").expect("well formed");
        let with = |blocks, packets| {
            let found = [("blocks", blocks), ("packets", packets)];
            let found = found.map(|(name, count)| (name.to_owned(), count)).into();
            faults(&committed, &found)
        };
        assert_eq!(with(1080, 500), Vec::<String>::new());
        assert_eq!(with(10, 500), Vec::<String>::new());
        let [fault] = &with(1081, 500)[..] else {
            panic!("one is wrong");
        };
        assert!(fault.starts_with("blocks takes 1081 instructions, +8.1 %"));
    }

    #[test]
    fn no_scenario_goes_uncounted() {
        let committed = parse("blocks 1000\n").expect("well formed");
        let found = Counts::from([("packets".to_owned(), 7)]);
        assert_eq!(faults(&committed, &found).len(), 2);
        assert!(parse("blocks\n").is_err());
        assert!(parse("blocks many\n").is_err());
    }
}
