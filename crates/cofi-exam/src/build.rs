//! Compiles what the exam needs: `cofi` itself, the programs, and the decoder on libipt.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::programs::{Origin, Program};

/// Runs a tool to its end; its own words become the error.
pub fn tool(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .output()
        .with_context(|| format!("running {}", command.get_program().display()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        // A command that prints JSON tells there of errors in what it read.
        let printed = String::from_utf8_lossy(&output.stdout);
        let errors = printed.lines().filter(|line| line.contains("\"error\""));
        bail!(
            "{} failed ({}): {}",
            command.get_program().display(),
            output.status,
            std::iter::once(words.trim())
                .chain(errors.take(3))
                .collect::<Vec<_>>()
                .join("\n")
        );
    }
    Ok(output.stdout)
}

/// Builds the release `cofi` and asks cargo where it put it.
pub fn cofi(root: &Path) -> Result<PathBuf> {
    release(root, "cofi", "--bin", "cofi")
}

/// Builds a release binary or example (`kind`) of a package and asks cargo where it put it. The command's package is named with it, as cargo
/// unites the features of those that it is given: so both have the same disassembler, which else would be compiled twice.
pub fn release(root: &Path, package: &str, kind: &str, name: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let answer = tool(
        Command::new(cargo)
            .args(["build", "--release", "--quiet"])
            .args(["--package", "cofi", "--package", package, kind, name])
            .arg("--message-format=json")
            .current_dir(root),
    )?;
    String::from_utf8_lossy(&answer)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo built no {name}"))
}

/// The program's path, compiled into `folder` if it comes as source.
pub fn program(sources: &Path, folder: &Path, program: &Program) -> Result<PathBuf> {
    match program.origin {
        Origin::System(path) => Ok(PathBuf::from(path)),
        Origin::Source { file, flags } => {
            let out = folder.join(program.name);
            tool(
                Command::new("gcc")
                    .arg("-Wall")
                    .arg("-o")
                    .arg(&out)
                    .args(flags)
                    .arg(sources.join(file)),
            )
            .with_context(|| format!("compiling {file}"))?;
            Ok(out)
        }
    }
}

/// The decoder on libipt, or the reason why there is none.
pub fn ptinsn(root: &Path, folder: &Path) -> Result<PathBuf, String> {
    libipt_program(root, folder, "ptinsn")
}

/// A program of `exam/libipt`, or the reason why there is none.
pub fn libipt_program(root: &Path, folder: &Path, name: &str) -> Result<PathBuf, String> {
    let out = folder.join(name);
    tool(
        Command::new("gcc")
            .args(["-O2", "-Wall", "-o"])
            .arg(&out)
            .arg(root.join("exam/libipt").join(name).with_extension("c"))
            .arg("-lipt"),
    )
    .map(|_| out)
    .map_err(|error| format!("{name} does not compile (is libipt-dev installed?): {error:#}"))
}

/// The version perf gives itself, or the reason why there is none.
pub fn perf() -> Result<String, String> {
    tool(Command::new("perf").arg("--version"))
        .map(|words| String::from_utf8_lossy(&words).trim().to_owned())
        .map_err(|error| format!("no perf (is linux-perf installed?): {error:#}"))
}

/// At least so many bytes to compress or to count words of, the same each time.
pub fn text(len: usize) -> String {
    let mut state = 1_u32;
    let mut text = String::new();
    while text.len() < len {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let word = [
            "trace", "unit", "packet", "branch", "of", "the", "taken", "far",
        ];
        text.push_str(word[(state >> 24) as usize % word.len()]);
        text.push(if state >> 20 & 15 == 0 { '\n' } else { ' ' });
    }
    text
}
