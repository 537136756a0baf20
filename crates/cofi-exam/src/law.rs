//! `cargo xtask exam law [--cases N] [--only SUITE]`: the properties of `crates/cofi-law`, with N cases each (100,000 unless said).
//!
//! `cargo test` has the same thousand or fewer every time. With `--write`, the sections of `docs/law.md` about what was run are replaced.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;

/// The test binaries of the crate, and what each is about.
const SUITES: [(&str, &str); 6] = [
    (
        "law",
        "Intel PT: programs of branches and events; control flow and time",
    ),
    (
        "machine",
        "Intel PT: machines that do everything of chapter 33",
    ),
    ("time", "Intel PT: the bounds of time"),
    ("events", "Intel PT: the event level"),
    (
        "rtit",
        "RTIT: machines that do everything of its reference; control flow, time, errata",
    ),
    (
        "honesty",
        "Intel PT: damaged, cut and incomplete streams; N machines, up to 8 streams each",
    ),
];

/// One property, or one of the tests beside them.
struct Row {
    name: String,
    held: bool,
    seconds: u64,
}

#[derive(Debug, Args)]
pub(super) struct Options {
    /// How many cases each property has
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    cases: u64,
    /// The only suite
    #[arg(long, value_name = "SUITE", value_parser = PossibleValuesParser::new(SUITES.iter().map(|(name, _)| *name)))]
    only: Option<String>,
    /// Put the results into docs/law.md
    #[arg(long = "write")]
    writes: bool,
}

pub(super) fn run(root: &Path, options: &Options) -> Result<bool> {
    let Options {
        cases,
        only,
        writes,
    } = options;
    let (cases, writes) = (*cases, *writes);
    let begun = Instant::now();
    let mut rows = Vec::new();
    for (suite, about) in SUITES {
        if only.as_ref().is_none_or(|only| only == suite) {
            println!("law: {suite}: {about}");
            let found = sit(root, suite, cases)?;
            if writes {
                note(root, suite, about, &found, cases)?;
            }
            rows.extend(found);
        }
    }
    let bad = rows.iter().filter(|row| !row.held).count();
    println!(
        "law: {} properties, {cases} cases each, {bad} failed, {:.0} s",
        rows.len(),
        begun.elapsed().as_secs_f64()
    );
    Ok(bad == 0)
}

/// Runs a test binary, a property after the other, so that each has a time of its own.
fn sit(root: &Path, suite: &'static str, cases: u64) -> Result<Vec<Row>> {
    let mut child = Command::new(env!("CARGO"))
        .current_dir(root)
        .args([
            "test",
            "--quiet",
            "--release",
            "--package",
            "cofi-law",
            "--test",
            suite,
        ])
        .args([
            "--",
            "--test-threads",
            "1",
            "--format",
            "pretty",
            "--color",
            "never",
        ])
        .env("COFI_CASES", cases.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .context("running cargo")?;
    let stdout = child.stdout.take().context("its output")?;
    let mut rows: Vec<Row> = Vec::new();
    let mut last = Instant::now();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("reading its output")?;
        let ended = line
            .strip_prefix("test ")
            .and_then(|line| line.split_once(" ... "));
        match ended {
            Some((name, how @ ("ok" | "FAILED"))) => {
                let row = Row {
                    name: name.to_owned(),
                    held: how == "ok",
                    seconds: last.elapsed().as_secs(),
                };
                println!("law: {suite}: {name}: {how}, {} s", row.seconds);
                rows.push(row);
                last = Instant::now();
            }
            // What failed, and with which input.
            _ if rows.iter().any(|row| !row.held) => println!("{line}"),
            _ => {}
        }
    }
    let status = child.wait().context("waiting for cargo")?;
    ensure!(!rows.is_empty(), "{suite}: no test ran ({status})");
    ensure!(
        status.success() == rows.iter().all(|row| row.held),
        "{suite}: {status}, unlike what its tests say"
    );
    Ok(rows)
}

/// Replaces the section about a suite in the page, or adds it.
fn note(root: &Path, suite: &str, about: &str, rows: &[Row], cases: u64) -> Result<()> {
    let path = root.join("docs/law.md");
    let page = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut section = format!(
        "## `{suite}`\n\n{about}. {cases} cases a property.\n\n| property | result | s |\n|---|---|---|\n"
    );
    for row in rows {
        let result = if row.held { "holds" } else { "**fails**" };
        section += &format!("| `{}` | {result} | {} |\n", row.name, row.seconds);
    }
    fs::write(&path, with_section(&page, suite, &section))
        .with_context(|| format!("writing {}", path.display()))
}

fn with_section(page: &str, suite: &str, section: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in page.split("\n## ") {
        let heading = if parts.is_empty() { "" } else { "## " };
        parts.push(format!("{heading}{}\n", part.trim_end()));
    }
    let title = format!("## `{suite}`\n");
    match parts.iter().position(|part| part.starts_with(&title)) {
        Some(place) => parts[place] = section.to_owned(),
        None => parts.push(section.to_owned()),
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_and_another_added() {
        let page = "# Law\n\nWords.\n";
        let one = with_section(page, "time", "## `time`\n\nold\n");
        let two = with_section(&one, "rtit", "## `rtit`\n\nmore\n");
        let three = with_section(&two, "time", "## `time`\n\nnew\n");
        assert_eq!(
            three,
            "# Law\n\nWords.\n\n## `time`\n\nnew\n\n## `rtit`\n\nmore\n"
        );
    }
}
