//! `cargo xtask bench record`: what each part of recording with QEMU takes, by block that runs.
//!
//! The bench `record` of cofi-capture has the programs, and measures: it calls the engine itself.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::load;

/// Runs it: how many rounds, and the names of programs, all if there is none.
pub(super) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let mut rounds = "5".to_owned();
    let mut only = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let value = words
            .next()
            .with_context(|| format!("{word} wants a value"))?;
        match word.as_str() {
            "--rounds" => rounds.clone_from(value),
            "--only" => only.push(value),
            _ => bail!("{word}: there is no such option"),
        }
    }
    println!("load before: {}", load());
    let status = Command::new("cargo")
        .args([
            "bench",
            "--quiet",
            "--package",
            "cofi-capture",
            "--bench",
            "record",
            "--",
            &rounds,
        ])
        .args(only)
        .current_dir(root)
        .status()
        .context("running cargo bench")?;
    Ok(status.success())
}
