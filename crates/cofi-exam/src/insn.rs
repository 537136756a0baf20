//! `cargo xtask exam insn [--random N] [--seed N] [FILE]...`: the tables of `cofi-insn` against its disassembler.
//!
//! `cargo test` compares them on every opcode with a dozen prefixes; here it is hundreds of prefixes, every map and ModRM byte of
//! vectors, many more random bytes, and the code of the machine's own binaries (or of FILEs), from every byte on and in each mode.
//! One instruction that is not the same ends the exam. Of the instructions that the binaries are made of, the tables must be sure
//! of 99.9%.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::build;

/// Where the machine's binaries and libraries stand.
const FOLDERS: [&str; 3] = ["/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"];
/// How much of a folder is compared, in bytes of files: the largest first.
const MOST: u64 = 64 << 20;
/// A file that is larger is left out, so that there are several.
const LARGEST: u64 = 16 << 20;

#[derive(Debug)]
struct Options {
    seed: u64,
    random: u64,
    files: Vec<PathBuf>,
}

fn options(arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        seed: 1,
        random: 100_000_000,
        files: Vec::new(),
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut number = || {
            let number = words.next().and_then(|value| value.parse().ok());
            number.with_context(|| format!("{word} wants a number"))
        };
        match word.as_str() {
            "--seed" => options.seed = number()?,
            "--random" => options.random = number()?,
            word if word.starts_with('-') => bail!("{word}: there is no such option"),
            file => options.files.push(file.into()),
        }
    }
    Ok(options)
}

/// Whether a file is one of ELF for x86-64, which has code.
fn is_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut head = [0; 20];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head.starts_with(b"\x7fELF\x02\x01") && head[18..] == [62, 0]
}

/// The largest binaries of a folder up to [`LARGEST`], no more than [`MOST`] together.
fn largest(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // Symbolic links name what is listed anyway.
        let meta = fs::symlink_metadata(&path)?;
        if meta.is_file() && is_elf(&path) {
            files.push((meta.len(), path));
        }
    }
    files.sort_unstable_by(|a, b| b.cmp(a));
    let mut total = 0;
    let fits = |(len, _): &(u64, PathBuf)| {
        let fits = *len <= LARGEST && total + len <= MOST;
        total += if fits { *len } else { 0 };
        fits
    };
    let files = files.into_iter().filter(fits);
    Ok(files.map(|(_, path)| path).collect())
}

pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let mut options = options(arguments)?;
    if options.files.is_empty() {
        for folder in FOLDERS.map(Path::new) {
            if folder.is_dir() {
                options.files.extend(largest(folder)?);
            } else {
                println!("skipped: there is no {}", folder.display());
            }
        }
        ensure!(!options.files.is_empty(), "there are no binaries");
    }
    let tables = build::release(root, "cofi-insn", "--example", "tables")?;
    let numbers = [options.seed, options.random].map(|number| number.to_string());
    println!("insn: seed {}, {} files", options.seed, options.files.len());
    let mut compare = Command::new(&tables);
    compare.arg("compare").args(numbers);
    let mut code = Command::new(&tables);
    code.arg("code").args(&options.files);
    let mut holds = true;
    for command in [&mut compare, &mut code] {
        // A difference is printed by the example, with the bytes.
        holds &= command.status().context("running the example")?.success();
    }
    Ok(holds)
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
        let good = parse(&["--seed", "7", "/bin/true"]).expect("both exist");
        assert!(good.seed == 7 && good.files == [PathBuf::from("/bin/true")]);
        assert!(parse(&["--random"]).is_err());
        assert!(parse(&["--seeds", "1"]).is_err());
    }
}
