//! `cargo xtask bench machine`: how fast `cofi machine` is, beside QEMU alone.

use std::path::Path;

use anyhow::{Context, Result};

use super::{load, median};

/// Runs it: `--qemu`, `--kernel` and `--busybox` as the exam of guests has them, and `--rounds`.
pub(super) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let mut rounds = 3;
    let mut others = Vec::new();
    for pair in arguments.chunks(2) {
        match pair {
            [word, value] if word == "--rounds" => {
                rounds = value.parse().context("--rounds wants a number")?;
            }
            _ => others.extend_from_slice(pair),
        }
    }
    println!("load before: {}", load());
    print!(
        "{}",
        cofi_exam::speed_of_guests(root, &others, rounds, median)?
    );
    Ok(true)
}
