//! `cargo xtask bench insn [--rounds N] [FILE]...`: nanoseconds and instructions of the processor that an instruction of x86
//! costs to decode, by tables and by the disassembler.
//!
//! The example `tables` of cofi-insn decodes the files' code from end to end (gzip's and the C library's, unless said); both
//! take turns and must find the same. Instructions are counted by callgrind, where valgrind is there, in two runs whose
//! difference is what the passes take.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{counted, load, median};
use cofi_exam::build;

/// What is decoded unless files are named.
const FILES: [&str; 2] = ["/usr/bin/gzip", "/usr/lib/x86_64-linux-gnu/libc.so.6"];
const WAYS: [&str; 2] = ["disassembler", "tables"];
/// Passes of the two runs whose instructions are counted.
const COUNTED: [u64; 2] = [1, 3];

/// What the example says of one file.
struct Answer {
    insns: f64,
    checksum: String,
    seconds: f64,
}

fn answer(line: &str) -> Result<Answer> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[_, insns, checksum, seconds] = &words[..] else {
        bail!("the example said {line:?}");
    };
    Ok(Answer {
        insns: insns.parse()?,
        checksum: checksum.to_owned(),
        seconds: seconds.parse()?,
    })
}

fn command(example: &Path, way: &str, passes: u64, file: &str) -> Command {
    let mut command = Command::new(example);
    command.args(["bench", way, &passes.to_string(), file]);
    command
}

pub(super) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let mut rounds = 9_usize;
    let mut files = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--rounds" => {
                let number = words.next().and_then(|value| value.parse().ok());
                rounds = number
                    .filter(|n| *n > 0)
                    .context("--rounds wants a number")?;
            }
            word if word.starts_with('-') => bail!("{word}: there is no such option"),
            file => files.push(file),
        }
    }
    if files.is_empty() {
        files = FILES.to_vec();
    }
    let example = build::release(root, "cofi-insn", "--example", "tables")?;
    let valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    if !valgrind {
        println!("skipped: counting instructions, as there is no valgrind");
    }
    println!(
        "bench: {rounds} rounds, medians of the fastest of 5 passes; processor time; load {}",
        load()
    );
    println!(
        "{:<40} {:<14} {:>9} {:>9} {:>13}",
        "file", "by", "insns", "ns/insn", "instructions"
    );
    for file in files {
        let mut times = [const { Vec::new() }; WAYS.len()];
        let mut same: Option<(f64, String)> = None;
        for _ in 0..rounds {
            for (way, times) in WAYS.iter().zip(&mut times) {
                let out = build::tool(&mut command(&example, way, 5, file))?;
                let found = answer(&String::from_utf8_lossy(&out))?;
                times.push(found.seconds * 1e9 / found.insns);
                let found = (found.insns, found.checksum);
                let first = same.get_or_insert_with(|| found.clone());
                ensure!(*first == found, "{file}: {way} finds something else");
            }
        }
        let insns = same.map_or(0.0, |(insns, _)| insns);
        for (way, times) in WAYS.iter().zip(times) {
            let count = if valgrind {
                let count = |passes| counted::run(&command(&example, way, passes, file));
                let [(_, less), (_, more)] = [count(COUNTED[0])?, count(COUNTED[1])?];
                let passes = (COUNTED[1] - COUNTED[0]) as f64;
                format!("{:.1}", (more as f64 - less as f64) / passes / insns)
            } else {
                String::new()
            };
            println!(
                "{file:<40} {way:<14} {insns:>9} {:>9.2} {count:>13}",
                median(times)
            );
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::answer;

    #[test]
    fn what_the_example_says() {
        let found = answer("/usr/bin/gzip 13794 29456889614042 0.000262123\n").expect("a line");
        assert!(found.insns == 13794.0 && found.checksum == "29456889614042");
        assert!(answer("/usr/bin/gzip 13794").is_err() && answer("a b c d").is_err());
    }
}
