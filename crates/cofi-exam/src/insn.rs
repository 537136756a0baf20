//! `cargo xtask exam insn [--random N] [--seed N] [FILE]...`: the tables of `cofi-insn` against its disassembler.
//!
//! `cargo test` compares them on every opcode with a dozen prefixes; here it is hundreds of prefixes, every map and ModRM byte of
//! vectors, many more random bytes, and the code of the machine's own binaries (or of FILEs), from every byte on and in each mode.
//! One instruction that is not the same ends the exam. Of the instructions that the binaries are made of, the tables must be sure
//! of 99.9%.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::build;

/// Where the machine's binaries and libraries stand.
const FOLDERS: [&str; 3] = ["/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"];
/// How much of a folder is compared, in bytes of files: the largest first.
const MOST: u64 = 64 << 20;
/// A file that is larger is left out, so that there are several.
const LARGEST: u64 = 16 << 20;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The seed of the random bytes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// How many random byte strings
    #[arg(long, value_name = "N", default_value_t = 100_000_000)]
    random: u64,
    /// The binaries; the machine's own if there is none
    #[arg(value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
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

pub(super) fn run(root: &Path, mut options: Options) -> Result<bool> {
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
