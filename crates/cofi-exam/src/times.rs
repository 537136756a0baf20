//! `cargo xtask exam time`: the times that perf and libipt give to the instructions of a recorded program lie within the intervals that
//! Cofi's decoder states.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::build;
use super::run::patient;

/// What is recorded. perf's times are given in nanoseconds, of which a recording's TSC has two ticks each.
const CONFIGS: [&str; 4] = [
    "tsc,mtc=0",
    "tsc,mtc,mtc_period=3",
    "tsc,mtc=0,cyc",
    "tsc,mtc,mtc_period=3,cyc",
];

/// The times of the instructions, in order: address, and what is said of it.
type Times<T> = Vec<(u64, T)>;

/// Earliest and latest.
type Interval = (u64, u64);

/// How times lie to their intervals.
#[derive(Debug, Default, PartialEq, Eq)]
struct Account {
    within: usize,
    /// How many lie outside, and how far the farthest.
    outside: (usize, u64),
}

fn address(word: Option<&str>) -> Option<u64> {
    let word = word?;
    u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
}

/// What `decode --times` says.
fn intervals(text: &str) -> Option<Times<Option<Interval>>> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let ip = address(words.next())?;
        let [earliest, _, latest] = [words.next()?, words.next()?, words.next()?];
        let latest = latest.parse().unwrap_or(u64::MAX);
        Some((ip, earliest.parse().ok().map(|earliest| (earliest, latest))))
    };
    text.lines().map(line).collect()
}

/// What `ptinsn --times` says.
fn libipt(text: &str) -> Option<Times<Option<u64>>> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        Some((address(words.next())?, words.next()?.parse().ok()))
    };
    text.lines().map(line).collect()
}

/// What `perf script -F ip,time --ns` says.
fn perf(text: &str) -> Option<Times<Option<u64>>> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (seconds, nanoseconds) = words.next()?.trim_end_matches(':').split_once('.')?;
        let time =
            seconds.parse::<u64>().ok()? * 1_000_000_000 + nanoseconds.parse::<u64>().ok()?;
        Some((address(words.next())?, Some(2 * time)))
    };
    text.lines().map(line).collect()
}

/// Compares, with `slack` ticks for what a clock rounds off.
fn compare(
    ours: &Times<Option<Interval>>,
    theirs: &Times<Option<u64>>,
    slack: u64,
) -> Result<Account> {
    ensure!(
        ours.len() == theirs.len(),
        "{} instructions, not {}",
        theirs.len(),
        ours.len()
    );
    let mut account = Account::default();
    for (place, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        ensure!(ours.0 == theirs.0, "instruction {place}: {:#x}", theirs.0);
        let (Some((earliest, latest)), Some(time)) = (ours.1, theirs.1) else {
            continue;
        };
        let off = earliest
            .saturating_sub(time)
            .max(time.saturating_sub(latest));
        if off <= slack {
            account.within += 1;
        } else {
            account.outside.0 += 1;
            account.outside.1 = account.outside.1.max(off);
        }
    }
    Ok(account)
}

/// A command's output, if it ended well.
fn words(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{}: {}",
        command.get_args().next().unwrap_or_default().display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// The program, and where its code stands in the words of the decoders.
fn program(root: &Path, folder: &Path) -> Result<(PathBuf, String)> {
    let (path, text) = (folder.join("steps"), folder.join("steps.text"));
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-O1",
        "-static",
        "-nostdlib",
        "-fno-pie",
        "-no-pie",
        "-Wl,-Ttext=0x401000",
        "-o",
    ]);
    words(gcc.arg(&path).arg(root.join("exam/programs/steps.c"))).context("compiling steps.c")?;
    let mut objcopy = Command::new("objcopy");
    objcopy
        .args(["-O", "binary", "-j", ".text"])
        .arg(&path)
        .arg(&text);
    words(&mut objcopy)?;
    let size = fs::metadata(&text)?.len();
    Ok((path, format!("{}:0:{size}:0x401000", text.display())))
}

/// Runs this part of the exam; whether all times lie within.
pub(super) fn run(root: &Path) -> Result<bool> {
    let folder = std::env::temp_dir().join(format!("cofi-time-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let outcome = sit(root, &folder);
    // What cannot be removed lies in the folder for temporary files anyway.
    let _ = fs::remove_dir_all(&folder);
    outcome
}

fn sit(root: &Path, folder: &Path) -> Result<bool> {
    let cofi = build::cofi(root)?;
    let decode = build::release(root, "cofi-flow", "--example", "decode")?;
    let ptinsn = build::ptinsn(root, folder).map_err(anyhow::Error::msg)?;
    build::perf().map_err(anyhow::Error::msg)?;
    let (program, section) = program(root, folder)?;
    let (data, raw) = (folder.join("exam.data"), folder.join("raw.pt"));
    let mut good = true;
    for config in CONFIGS {
        let mut record = patient(&cofi);
        record.args(["record", "--engine", "ptrace", "--config", config]);
        record.arg("-o").arg(&data).arg("--raw-output").arg(&raw);
        words(record.arg("--").arg(&program)).context("recording")?;
        let clocks = [
            "--times",
            "--cpuid-15",
            "1,80",
            "--mtc-freq",
            "3",
            "--nom-freq",
            "20",
        ];
        let listen = |decoder: &Path| words(patient(decoder).args(clocks).arg(&raw).arg(&section));
        let script = ["--itrace=i1i", "-F", "ip,time", "--ns"];
        let mut by_perf = patient(Path::new("perf"));
        let by_perf = words(by_perf.arg("script").arg("-i").arg(&data).args(script))?;
        let ours = intervals(&listen(&decode)?).context("decode says something else")?;
        let width = |(earliest, latest): Interval| match latest {
            u64::MAX => u64::MAX,
            latest => latest - earliest,
        };
        let mut widths: Vec<u64> = ours.iter().filter_map(|(_, it)| it.map(width)).collect();
        widths.sort_unstable();
        let median = match widths.get(widths.len() / 2) {
            None | Some(&u64::MAX) => "most intervals without an end".to_owned(),
            Some(median) => format!("intervals of {median} ticks"),
        };
        let theirs = [
            ("perf", perf(&by_perf), 1),
            ("libipt", libipt(&listen(&ptinsn)?), 0),
        ];
        for (name, times, slack) in theirs {
            let times = times.with_context(|| format!("{name} says something else"))?;
            let account = compare(&ours, &times, slack).context(name)?;
            let (outside, farthest) = account.outside;
            println!(
                "exam: {config}: {name}: {} times within, {outside} outside (by {farthest} ticks at the most); {median}",
                account.within
            );
            good &= outside == 0 && account.within > 1000;
        }
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_held_against_intervals() {
        let ours = intervals("0x10 5 7 9\n0x12 9 9 -\n0x13 - - -\n").expect("well formed");
        let theirs = libipt("0x10 4\n0x12 700\n0x13 3\n").expect("well formed");
        let account = |slack| compare(&ours, &theirs, slack).expect("the same instructions");
        assert_eq!((account(0).within, account(0).outside), (1, (1, 1)));
        assert_eq!((account(1).within, account(1).outside), (2, (0, 0)));
        let other = perf(" 1.000000003: 10\n 1.0: 12\n 2.0: 14\n").expect("well formed");
        assert_eq!(other[0], (0x10, Some(2_000_000_006)));
        assert!(compare(&ours, &other, 0).is_err());
        assert!(perf("instruction trace error\n").is_none());
    }
}
