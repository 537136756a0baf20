//! Who races: programs with their ways to be asked and to answer.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::libipt::Trace;
use cofi_exam::build;

/// How a program is asked, and how it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// `--passes N`, and a line of JSON: `bench/peers/src/lib.rs`.
    Passes,
    /// `--count N`, and three numbers: `exam/libipt/ptinsn.c`.
    Count,
    /// `STREAM N decode`, and a line of JSON: `exam/libipt/ptpackets.c`.
    Packets,
}

/// A program that takes part.
#[derive(Debug, Clone)]
pub(super) struct Racer {
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) dialect: Dialect,
    /// What comes first on its command line.
    pub(super) words: &'static [&'static str],
}

/// What a program finds in one pass, and how long that takes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) count: u64,
    pub(super) sum: u64,
    pub(super) seconds: f64,
}

/// Why there is no answer, in the program's words.
pub(super) type Refusal = String;

impl Racer {
    /// One process of so many passes.
    pub(super) fn run(
        &self,
        trace: &Trace,
        warm: bool,
        passes: u64,
    ) -> Result<Result<Answer, Refusal>> {
        let mut command = Command::new(&self.program);
        command.args(self.words);
        let passes_word = passes.to_string();
        if warm {
            command.arg("--warm");
        }
        match self.dialect {
            Dialect::Packets => command.arg(&trace.stream).args([&passes_word, "decode"]),
            Dialect::Passes => command
                .args(&trace.options)
                .args(["--passes", &passes_word])
                .arg(&trace.stream)
                .args(&trace.sections),
            Dialect::Count => command
                .args(&trace.options)
                .args(["--count", &passes_word])
                .arg(&trace.stream)
                .args(&trace.sections),
        };
        let output = command
            .output()
            .with_context(|| format!("running {}", self.program.display()))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            let line = words.lines().next().unwrap_or("it failed without a word");
            return Ok(Err(line.trim().to_owned()));
        }
        let line = String::from_utf8_lossy(&output.stdout).into_owned();
        let answer = match self.dialect {
            Dialect::Count => numbers(&line, passes),
            Dialect::Passes => json(&line, "count", "sum"),
            Dialect::Packets => json(&line, "packets", "checksum"),
        };
        let answer = answer.with_context(|| format!("{} says: {}", self.name, line.trim()))?;
        Ok(Ok(answer))
    }
}

/// `COUNT SUM SECONDS`, the seconds of all passes.
fn numbers(line: &str, passes: u64) -> Option<Answer> {
    let mut words = line.split_whitespace();
    let answer = Answer {
        count: words.next()?.parse().ok()?,
        sum: words.next()?.parse().ok()?,
        seconds: words.next()?.parse::<f64>().ok()? / passes as f64,
    };
    words.next().is_none().then_some(answer)
}

/// An object with a count, a sum in hexadecimal, and the seconds of each pass.
fn json(line: &str, count: &str, sum: &str) -> Option<Answer> {
    let json: Value = serde_json::from_str(line).ok()?;
    if json["errors"].as_u64().is_some_and(|errors| errors > 0) {
        return None;
    }
    let seconds = json["seconds"].as_array()?.iter();
    let seconds: Vec<f64> = seconds.filter_map(Value::as_f64).collect();
    Some(Answer {
        count: json[count].as_u64()?,
        sum: u64::from_str_radix(json[sum].as_str()?.strip_prefix("0x")?, 16).ok()?,
        seconds: (!seconds.is_empty())
            .then(|| seconds.iter().sum::<f64>() / seconds.len() as f64)?,
    })
}

/// Everyone, compiled.
#[derive(Debug)]
pub(super) struct Racers {
    pub(super) cofi_packets: Racer,
    pub(super) cofi_instructions: Racer,
    pub(super) cofi_blocks: Racer,
    /// What iptr must find.
    pub(super) cofi_branches: Racer,
    /// What ptcov must find.
    pub(super) cofi_edges: Racer,
    pub(super) libipt_packets: Racer,
    pub(super) libipt_instructions: Racer,
    pub(super) libipt_blocks: Racer,
    pub(super) iptr_packets: Racer,
    pub(super) iptr_edges: Racer,
    /// Without compressed returns, which makes it faster; and with them.
    pub(super) ptcov: [Racer; 2],
}

/// A program of `bench/peers`.
fn peer(root: &Path, bin: &str, features: &[&str]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let name = [&[bin][..], features].concat().join("-");
    // Each choice of features has a folder of its own: neither replaces the programs of the other.
    let target = root.join("target/peers").join(features.concat());
    build::tool(
        Command::new(cargo)
            .args(["build", "--release", "--quiet", "--locked", "--bin", bin])
            .args(["--features", &features.join(",")])
            .arg("--target-dir")
            .arg(&target)
            .current_dir(root.join("bench/peers")),
    )
    .with_context(|| format!("building {name}"))?;
    Ok(target.join("release").join(bin))
}

impl Racers {
    /// Compiles everyone.
    pub(super) fn build(root: &Path, folder: &Path) -> Result<Self> {
        let race = build::release(root, "cofi-law", "--example", "race")?;
        let ptinsn = build::ptinsn(root, folder).map_err(anyhow::Error::msg)?;
        let ptpackets =
            build::libipt_program(root, folder, "ptpackets").map_err(anyhow::Error::msg)?;
        let racer = |name, program: &Path, dialect, words| Racer {
            name,
            program: program.to_owned(),
            dialect,
            words,
        };
        let cofi = |words| racer("Cofi", &race, Dialect::Passes, words);
        let libipt = |words| racer("libipt", &ptinsn, Dialect::Count, words);
        let other = |name, bin, features: &[&str]| -> Result<Racer> {
            let program = peer(root, bin, features)?;
            Ok(racer(name, &program, Dialect::Passes, &[]))
        };
        let packets = build::release(root, "cofi-packet", "--example", "bench")?;
        Ok(Self {
            cofi_packets: racer("Cofi", &packets, Dialect::Packets, &[]),
            cofi_instructions: cofi(&["--level", "instructions"]),
            cofi_blocks: cofi(&["--level", "blocks"]),
            cofi_branches: cofi(&["--level", "branches"]),
            cofi_edges: cofi(&["--level", "edges"]),
            libipt_packets: racer("libipt", &ptpackets, Dialect::Packets, &["bench"]),
            libipt_instructions: libipt(&[]),
            libipt_blocks: libipt(&["--blocks"]),
            iptr_packets: other("iptr", "iptr-packets", &[])?,
            iptr_edges: other("iptr", "iptr-edges", &[])?,
            ptcov: [
                other("ptcov", "ptcov-edges", &[])?,
                other("ptcov with RET compression", "ptcov-edges", &["retc"])?,
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_those_of_one_pass() {
        let expected = Some(Answer {
            count: 12,
            sum: 255,
            seconds: 0.25,
        });
        assert_eq!(numbers("12 255 0.5\n", 2), expected);
        let line = r#"{"count":12,"sum":"0xff","seconds":[0.375,0.125]}"#;
        assert_eq!(json(line, "count", "sum"), expected);
    }

    #[test]
    fn an_answer_with_errors_or_without_numbers_is_none() {
        assert_eq!(numbers("12 255 0.5 7\n", 2), None);
        assert_eq!(numbers("12 255\n", 2), None);
        let line = r#"{"packets":12,"errors":1,"checksum":"0xff","seconds":[0.5]}"#;
        assert_eq!(json(line, "packets", "checksum"), None);
        let good = line.replace("\"errors\":1", "\"errors\":0");
        assert!(json(&good, "packets", "checksum").is_some());
        assert_eq!(
            json(&good.replace("[0.5]", "[]"), "packets", "checksum"),
            None
        );
    }
}
