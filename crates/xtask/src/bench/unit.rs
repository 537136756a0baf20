//! `cargo xtask bench unit`: how many operations a second the trace unit does, and, where valgrind is there, how many instructions
//! of the processor an operation takes.
//!
//! The example `bench` of cofi-unit has the scenarios and tells its own processor time. Instructions are counted by callgrind, in
//! two runs of different length, whose difference is what the operations take: that does not depend on how busy the machine is.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{counted, load, median};
use cofi_exam::build;

/// The operations of the two runs whose instructions are counted.
const COUNTED: [u64; 2] = [500_000, 1_500_000];

#[derive(Debug)]
struct Options {
    rounds: usize,
    operations: u64,
    instructions: bool,
}

fn options(arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        rounds: 5,
        operations: 50_000_000,
        instructions: false,
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut number = || {
            let number = words.next().and_then(|value| value.parse::<u64>().ok());
            number
                .filter(|n| *n > 0)
                .with_context(|| format!("{word} wants a number, at least 1"))
        };
        match word.as_str() {
            "--rounds" => options.rounds = usize::try_from(number()?)?,
            "--operations" => options.operations = number()?,
            "--instructions" => options.instructions = true,
            _ => bail!("{word}: there is no such option"),
        }
    }
    Ok(options)
}

fn output(command: &mut Command) -> Result<(String, String)> {
    let output = command
        .output()
        .with_context(|| format!("running {}", command.get_program().display()))?;
    let [out, err] =
        [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
    ensure!(output.status.success(), "{}", err.trim());
    Ok((out, err))
}

/// Nanoseconds an operation, and bytes of trace a thousand of them.
fn measure(bench: &Path, scenario: &str, operations: u64) -> Result<(f64, f64)> {
    let (line, _) = output(Command::new(bench).args([scenario, &operations.to_string()]))?;
    let json: Value = serde_json::from_str(&line)?;
    let number = |key: &str| json[key].as_f64().with_context(|| format!("no {key}"));
    let operations = number("operations")?;
    Ok((
        number("seconds")? * 1e9 / operations,
        number("bytes")? * 1e3 / operations,
    ))
}

/// Instructions an operation.
fn count(bench: &Path, scenario: &str) -> Result<f64> {
    let mut counts = [0.0; 2];
    let mut operations = [0.0; 2];
    for (n, asked) in COUNTED.into_iter().enumerate() {
        let (line, count) = counted::run(Command::new(bench).args([scenario, &asked.to_string()]))?;
        counts[n] = count as f64;
        let json: Value = serde_json::from_str(&line)?;
        operations[n] = json["operations"].as_f64().context("no operations")?;
    }
    Ok((counts[1] - counts[0]) / (operations[1] - operations[0]))
}

/// Prints the table.
pub(super) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let options = options(arguments)?;
    let bench: PathBuf = build::release(root, "cofi-unit", "--example", "bench")?;
    let (scenarios, _) = output(Command::new(&bench).arg("--list"))?;
    println!(
        "bench: {} rounds of {} million operations; medians; processor time; load {}",
        options.rounds,
        options.operations / 1_000_000,
        load()
    );
    println!(
        "{:<20} {:>8} {:>8} {:>10} {:>12}",
        "scenario", "M op/s", "ns/op", "bytes/1000", "instructions"
    );
    for scenario in scenarios.lines() {
        let mut times = Vec::new();
        let mut bytes = 0.0;
        for _ in 0..options.rounds {
            let (time, written) = measure(&bench, scenario, options.operations)?;
            times.push(time);
            bytes = written;
        }
        let time = median(times);
        let count = match options.instructions {
            true => format!("{:.1}", count(&bench, scenario)?),
            false => String::new(),
        };
        println!(
            "{scenario:<20} {:>8.1} {time:>8.2} {bytes:>10.1} {count:>12}",
            1e3 / time
        );
    }
    Ok(true)
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
        let good = parse(&["--instructions", "--rounds", "2"]).expect("both exist");
        assert!(good.instructions && good.rounds == 2);
        assert!(parse(&["--rounds", "0"]).is_err());
        assert!(parse(&["--operations"]).is_err());
        assert!(parse(&["--speed"]).is_err());
    }
}
