//! `cargo xtask fuzz`: the fuzz targets, each for a while, without cargo-fuzz and on a stable toolchain.
//!
//! libFuzzer is built by the crate `libfuzzer-sys`; what else it takes is that the compiler counts where control went, and that
//! the asserts of a debug build are in.

use std::path::Path;
use std::process::Command;

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
}

fn options(arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        targets: Vec::new(),
        seconds: 60,
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => {
                let value = words.next().context("--seconds wants a number")?;
                options.seconds = value.parse().context("--seconds wants a number")?;
                ensure!(options.seconds > 0, "--seconds wants at least 1");
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

/// Runs the targets one after the other; whether none had a finding.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
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
    let built = root.join("target/fuzz");
    let status = Command::new("cargo")
        .args(["build", "--quiet", "--release", "--bins"])
        .args(["--target", TRIPLE, "--target-dir"])
        .arg(&built)
        .arg("--manifest-path")
        .arg(folder.join("Cargo.toml"))
        .env("RUSTFLAGS", FLAGS)
        .status()
        .context("running cargo")?;
    ensure!(status.success(), "the fuzz targets do not build");
    let mut good = true;
    for name in chosen {
        let corpus = folder.join("corpus").join(name);
        let findings = folder.join("artifacts").join(name);
        std::fs::create_dir_all(&corpus)?;
        std::fs::create_dir_all(&findings)?;
        let output = Command::new(built.join(TRIPLE).join("release").join(name))
            .arg(&corpus)
            .arg(format!("-max_total_time={}", options.seconds))
            .arg(format!("-artifact_prefix={}/", findings.display()))
            .args(["-rss_limit_mb=2048", "-timeout=20", "-print_final_stats=1"])
            .output()
            .with_context(|| format!("running the target {name}"))?;
        let text = String::from_utf8_lossy(&output.stderr);
        let count = executions(&text).unwrap_or(0);
        if output.status.success() && count > 0 {
            println!("fuzz: {name}: {count} inputs, no finding");
            continue;
        }
        good = false;
        println!("fuzz: {name}: A FINDING, in {}", findings.display());
        let lines: Vec<&str> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(40)..] {
            println!("    {line}");
        }
    }
    Ok(good)
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
        assert!(parse(&["--seconds", "0"]).is_err());
        assert!(parse(&["--seconds"]).is_err());
        assert!(parse(&["--hours"]).is_err());
    }

    #[test]
    fn libfuzzer_tells_its_count() {
        let text = "Done 12 runs\nstat::number_of_executed_units: 4711\nstat::peak_rss_mb: 30\n";
        assert_eq!(executions(text), Some(4711));
        assert_eq!(executions("==1== ERROR: libFuzzer: deadly signal"), None);
    }
}
