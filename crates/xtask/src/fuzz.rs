//! `cargo xtask fuzz`: the fuzz targets, each for a while, without cargo-fuzz and on a stable toolchain.
//!
//! libFuzzer is built by the crate `libfuzzer-sys`; what else it takes is that the compiler counts where control went, and that
//! the asserts of a debug build are in. With rustup's nightly toolchain AddressSanitizer is in, too.
//!
//! Each target begins with its seeds (`fuzz/seeds`, which `cargo xtask fuzz seeds` makes) and what earlier runs have kept (`fuzz/corpus`, or
//! the folder that `--corpus` names). With `--write` each run is added to the table in `docs/fuzzing.md`. How
//! much of the code was covered in the end must not be below the target's floor in `fuzz/floors.txt`: a target that no longer reaches what it is
//! for fails. The seeds alone reach well more than that, however short the run. `--build-only` leaves it at building; `--built` says where.

mod ledger;
mod seeds;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

/// What makes the compiler report coverage to libFuzzer.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions --cfg fuzzing";
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

#[derive(Debug)]
struct Options {
    targets: Vec<String>,
    seconds: u64,
    /// Where the inputs go that are worth keeping.
    corpus: Option<PathBuf>,
    writes: bool,
    /// How many targets run at the same time.
    jobs: usize,
    /// Where they are built, if not in the target folder.
    built: Option<PathBuf>,
    /// Nothing is run.
    builds_only: bool,
}

fn options(arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        targets: Vec::new(),
        seconds: 60,
        corpus: None,
        writes: false,
        jobs: 1,
        built: None,
        builds_only: false,
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => {
                let value = words.next().context("--seconds wants a number")?;
                options.seconds = value.parse().context("--seconds wants a number")?;
                ensure!(options.seconds > 0, "--seconds wants at least 1");
            }
            "--corpus" => {
                let folder = words.next().context("--corpus wants a folder")?;
                options.corpus = Some(folder.into());
            }
            "--write" => options.writes = true,
            "--built" => {
                let folder = words.next().context("--built wants a folder")?;
                options.built = Some(folder.into());
            }
            "--build-only" => options.builds_only = true,
            "--jobs" => {
                let value = words.next().context("--jobs wants a number")?;
                options.jobs = value.parse().context("--jobs wants a number")?;
                ensure!(options.jobs > 0, "--jobs wants at least 1");
            }
            _ if word.starts_with('-') => bail!("{word}: there is no such option"),
            _ => options.targets.push(word.clone()),
        }
    }
    Ok(options)
}

/// The names of the targets: those of their files.
fn targets(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder.join("fuzz_targets"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "rs")
            && let Some(name) = path.file_stem()
        {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    ensure!(!names.is_empty(), "there are no fuzz targets");
    Ok(names)
}

/// How many inputs libFuzzer says that it has run.
fn executions(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?;
    line.trim().parse().ok()
}

/// What libFuzzer's last line of status has behind `key`: `cov:` edges of the code, `ft:` features of runs.
fn last_status(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().rev().find(|line| line.contains(" cov: "))?;
    let after = line.split_once(key)?.1;
    after.split_whitespace().next()?.parse().ok()
}

/// The floors: a line a target, its name and the least coverage. Lines that begin with `#` are for people.
fn floors(text: &str) -> Result<BTreeMap<&str, u64>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines = lines.filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let (name, floor) = line.split_once(' ').context("no floor")?;
            Ok((name, floor.trim().parse()?))
        })
        .map(|floor: Result<_>| floor.context("fuzz/floors.txt: wanted TARGET NUMBER"))
        .collect()
}

/// Further folders with good inputs, which the tests use.
fn more_seeds(root: &Path, target: &str) -> Vec<PathBuf> {
    match target {
        "scenario" => ["corpus/unit", "corpus/rtit"]
            .map(|name| root.join(name))
            .into(),
        _ => Vec::new(),
    }
}

/// The command that builds, and where to: with AddressSanitizer if there is a nightly toolchain, which alone has it.
fn build(root: &Path) -> (Command, PathBuf) {
    let is_there = Command::new("rustup")
        .args(["run", "nightly", "cargo", "--version"])
        .output()
        .is_ok_and(|output| output.status.success());
    let (mut command, folder, flags) = if is_there {
        let mut command = Command::new("rustup");
        command.args(["run", "nightly", "cargo"]);
        (
            command,
            "target/fuzz-address",
            format!("{FLAGS} -Zsanitizer=address"),
        )
    } else {
        println!("fuzz: without AddressSanitizer, as there is no nightly toolchain");
        (Command::new("cargo"), "target/fuzz", FLAGS.to_owned())
    };
    command.env("RUSTFLAGS", flags);
    (command, root.join(folder))
}

/// Runs the targets, `--jobs` at the same time; whether none had a finding.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    if let [chore, rest @ ..] = arguments
        && chore == "seeds"
    {
        return seeds::write(root, rest);
    }
    let options = options(arguments)?;
    let folder = root.join("fuzz");
    let all = targets(&folder)?;
    let chosen = if options.targets.is_empty() {
        &all
    } else {
        &options.targets
    };
    for name in chosen {
        ensure!(
            all.contains(name),
            "{name}: there are {} only",
            all.join(", ")
        );
    }
    let floors_text = std::fs::read_to_string(folder.join("floors.txt"))?;
    let floors = floors(&floors_text)?;
    let (mut command, built) = build(root);
    let built = options.built.clone().unwrap_or(built);
    let status = command
        .args(["build", "--quiet", "--release", "--bins"])
        .args(["--target", TRIPLE, "--target-dir"])
        .arg(&built)
        .arg("--manifest-path")
        .arg(folder.join("Cargo.toml"))
        .status()
        .context("running cargo")?;
    ensure!(status.success(), "the fuzz targets do not build");
    if options.builds_only {
        return Ok(true);
    }
    let mut good = true;
    let next = AtomicUsize::new(0);
    let (sender, results) = channel();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            let (sender, next, options, built) = (sender.clone(), &next, &options, &built);
            scope.spawn(move || {
                while let Some(name) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = run_target(root, options, built, name);
                    // Nobody listens any more after an error.
                    if sender.send((name, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        // One after the other, as all of them add to the same table.
        for (name, result) in results {
            let run = result?;
            let floor = floors.get(name.as_str()).copied();
            let floor = floor.with_context(|| format!("{name} has no floor in fuzz/floors.txt"))?;
            if options.writes {
                ledger::add(root, &all, &run.entry(name)?)?;
            }
            good &= run.report(name, floor);
        }
        Ok(good)
    })
}

/// What a run of a target came to.
struct Run {
    /// Without a finding.
    ran: bool,
    seconds: u64,
    inputs: u64,
    edges: u64,
    features: u64,
    /// Where findings are.
    findings: PathBuf,
    /// All that libFuzzer wrote.
    text: String,
}

fn run_target(root: &Path, options: &Options, built: &Path, name: &str) -> Result<Run> {
    let folder = root.join("fuzz");
    let corpora = options.corpus.clone();
    let corpus = corpora.unwrap_or_else(|| folder.join("corpus")).join(name);
    let findings = folder.join("artifacts").join(name);
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&findings)?;
    let mut command = Command::new(built.join(TRIPLE).join("release").join(name));
    command.arg(&corpus);
    let seeds = [folder.join("seeds").join(name)];
    let seeds = seeds.into_iter().chain(more_seeds(root, name));
    command.args(seeds.filter(|folder| folder.is_dir()));
    let start = Instant::now();
    let output = command
        .arg(format!("-max_total_time={}", options.seconds))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .args(["-rss_limit_mb=2048", "-timeout=20", "-print_final_stats=1"])
        .output()
        .with_context(|| format!("running the target {name}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let inputs = executions(&text).unwrap_or(0);
    Ok(Run {
        ran: output.status.success() && inputs > 0,
        seconds: start.elapsed().as_secs(),
        inputs,
        edges: last_status(&text, " cov: ").unwrap_or(0),
        features: last_status(&text, " ft: ").unwrap_or(0),
        findings,
        text,
    })
}

impl Run {
    fn entry(&self, name: &str) -> Result<ledger::Entry> {
        Ok(ledger::Entry {
            target: name.to_owned(),
            seconds: self.seconds,
            inputs: self.inputs,
            edges: if self.ran { self.edges } else { 0 },
            features: if self.ran { self.features } else { 0 },
            findings: u64::from(!self.ran),
            last: ledger::today()?,
        })
    }

    /// Prints it; whether it is good.
    fn report(&self, name: &str, floor: u64) -> bool {
        if !self.ran {
            println!("fuzz: {name}: A FINDING, in {}", self.findings.display());
            let lines: Vec<&str> = self.text.lines().collect();
            for line in &lines[lines.len().saturating_sub(40)..] {
                println!("    {line}");
            }
            return false;
        }
        let (inputs, coverage) = (self.inputs, self.edges);
        println!("fuzz: {name}: {inputs} inputs, coverage {coverage} (floor {floor}), no finding");
        if coverage < floor {
            println!("fuzz: {name}: COVERAGE BELOW ITS FLOOR: it does not reach what it is for");
        }
        coverage >= floor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            options(&words)
        };
        let good = parse(&["insn", "--seconds", "5"]).expect("all exist");
        assert_eq!((good.targets, good.seconds), (vec!["insn".to_owned()], 5));
        assert!(!good.writes && good.corpus.is_none());
        let kept = parse(&["--corpus", "here", "--write"]).expect("all exist");
        assert!(kept.writes && kept.corpus == Some("here".into()));
        assert!(parse(&["--corpus"]).is_err());
        let ahead = parse(&["--built", "there", "--build-only"]).expect("all exist");
        assert!(ahead.builds_only && ahead.built == Some("there".into()));
        assert!(!good.builds_only && good.built.is_none());
        assert!(parse(&["--built"]).is_err());
        assert!(parse(&["--seconds", "0"]).is_err());
        assert!(parse(&["--seconds"]).is_err());
        assert_eq!(good.jobs, 1);
        assert_eq!(parse(&["--jobs", "2"]).expect("a number").jobs, 2);
        assert!(parse(&["--jobs", "0"]).is_err());
        assert!(parse(&["--jobs", "some"]).is_err());
        assert!(parse(&["--jobs"]).is_err());
        assert!(parse(&["--hours"]).is_err());
    }

    #[test]
    fn floors_are_of_targets_that_exist_and_each_has_one() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
        let text = std::fs::read_to_string(folder.join("floors.txt")).expect("it is there");
        let floors = floors(&text).expect("it can be read");
        let names: Vec<&str> = floors.keys().copied().collect();
        assert_eq!(names, targets(&folder).expect("there are targets"));
        assert!(floors.values().all(|floor| *floor > 0));
        assert!(super::floors("insn").is_err() && super::floors("insn x").is_err());
    }

    #[test]
    fn libfuzzer_tells_its_coverage() {
        let text =
            "#2 INITED cov: 55 ft: 56 corp: 1/1b\n#99 DONE   cov: 6820 ft: 9000 corp: 3/9b\n";
        assert_eq!(last_status(text, " cov: "), Some(6820));
        assert_eq!(last_status(text, " ft: "), Some(9000));
        assert_eq!(last_status("ERROR: no inputs were found", " cov: "), None);
    }

    #[test]
    fn libfuzzer_tells_its_count() {
        let text = "Done 12 runs\nstat::number_of_executed_units: 4711\nstat::peak_rss_mb: 30\n";
        assert_eq!(executions(text), Some(4711));
        assert_eq!(executions("==1== ERROR: libFuzzer: deadly signal"), None);
    }
}
