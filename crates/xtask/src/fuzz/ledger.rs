//! The ledger of fuzzing: the table in `docs/fuzzing.md`, in which the runs of all sessions add up.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

const BEGIN: &str = "<!-- made by `cargo xtask fuzz --write` -->\n";
const END: &str = "<!-- end -->\n";
const HEAD: &str = "| target | seconds | inputs | edges | features | findings | last run |\n|---|--:|--:|--:|--:|--:|---|\n";

/// What one run of a target comes to, and also the sum of all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) target: String,
    pub(super) seconds: u64,
    pub(super) inputs: u64,
    /// libFuzzer's `cov`, at the end of the last run that had no finding.
    pub(super) edges: u64,
    /// libFuzzer's `ft`, likewise.
    pub(super) features: u64,
    pub(super) findings: u64,
    /// The day of the last run, empty if there was none.
    pub(super) last: String,
}

impl Entry {
    fn add(&mut self, run: &Self) {
        self.seconds += run.seconds;
        self.inputs += run.inputs;
        self.findings += run.findings;
        self.last.clone_from(&run.last);
        // A finding ends a run early, before libFuzzer has counted.
        if run.edges > 0 {
            (self.edges, self.features) = (run.edges, run.features);
        }
    }

    fn row(&self) -> String {
        let Self {
            target,
            seconds,
            inputs,
            edges,
            features,
            findings,
            last,
        } = self;
        format!(
            "| `{target}` | {seconds} | {inputs} | {edges} | {features} | {findings} | {last} |\n"
        )
    }

    fn parse(row: &str) -> Option<Self> {
        let mut cells = row.strip_prefix('|')?.strip_suffix('|')?.split('|');
        let mut cell = || Some(cells.next()?.trim());
        let target = cell()?.trim_matches('`').to_owned();
        let mut number = || cell()?.parse().ok();
        let (seconds, inputs, edges, features, findings) =
            (number()?, number()?, number()?, number()?, number()?);
        let last = cell()?.to_owned();
        cells.next().is_none().then_some(Self {
            target,
            seconds,
            inputs,
            edges,
            features,
            findings,
            last,
        })
    }
}

/// `page` with `run` added to its table, which gets a row for each of `targets`.
fn with_run(page: &str, targets: &[String], run: &Entry) -> Result<String> {
    let parts = page.split_once(BEGIN).zip(page.split_once(END));
    let ((before, _), (up_to_end, after)) = parts.context("it has no table to add to")?;
    let table = up_to_end.get(before.len() + BEGIN.len()..);
    let table = table.context("its table ends before it begins")?;
    let rows = table.trim().lines().skip(HEAD.lines().count());
    let mut entries = rows
        .map(|row| Entry::parse(row).with_context(|| format!("no row of its table: {row}")))
        .collect::<Result<Vec<_>>>()?;
    for target in targets {
        if entries.iter().all(|entry| entry.target != *target) {
            entries.push(Entry {
                target: target.clone(),
                ..Entry::default()
            });
        }
    }
    // A target that is gone takes its row with it.
    entries.retain(|entry| targets.contains(&entry.target));
    entries.sort_by(|a, b| a.target.cmp(&b.target));
    let entry = entries.iter_mut().find(|entry| entry.target == run.target);
    entry
        .with_context(|| format!("{}: there is no such target", run.target))?
        .add(run);
    let rows: String = entries.iter().map(Entry::row).collect();
    Ok(format!("{before}{BEGIN}\n{HEAD}{rows}\n{END}{after}"))
}

fn page(root: &Path) -> PathBuf {
    root.join("docs/fuzzing.md")
}

/// Adds a run to the table.
pub(super) fn add(root: &Path, targets: &[String], run: &Entry) -> Result<()> {
    let path = page(root);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{}: cannot be read", path.display()))?;
    let text =
        with_run(&text, targets, run).with_context(|| format!("{}: wrong", path.display()))?;
    std::fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

/// Today, as the table has it.
pub(super) fn today() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%F"]).output();
    let output = output.context("running date")?;
    let day = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(
        output.status.success() && day.len() == 10,
        "date said {day:?}"
    );
    Ok(day)
}

#[cfg(test)]
mod tests {
    use super::super::targets;
    use super::*;

    fn run(target: &str, seconds: u64, edges: u64, findings: u64) -> Entry {
        Entry {
            target: target.to_owned(),
            seconds,
            inputs: 1000 * seconds,
            edges,
            features: 3 * edges,
            findings,
            last: "2026-01-02".to_owned(),
        }
    }

    #[test]
    fn runs_add_up_in_the_table() {
        let targets = ["code", "insn"].map(str::to_owned);
        let mut page = format!("Before.\n\n{BEGIN}{END}\nBehind.\n");
        for run in [
            run("insn", 60, 500, 0),
            run("insn", 5, 0, 1),
            run("insn", 10, 510, 0),
        ] {
            page = with_run(&page, &targets, &run).expect("it has a table");
        }
        let rows = "| `code` | 0 | 0 | 0 | 0 | 0 |  |\n| `insn` | 75 | 75000 | 510 | 1530 | 1 | 2026-01-02 |\n";
        let wanted = format!("Before.\n\n{BEGIN}\n{HEAD}{rows}\n{END}\nBehind.\n");
        assert_eq!(page, wanted);
    }

    #[test]
    fn a_target_that_is_gone_loses_its_row_and_a_new_one_gets_one() {
        let old = ["code".to_owned()];
        let page = with_run(&format!("{BEGIN}{END}"), &old, &run("code", 7, 9, 0));
        let new = ["insn".to_owned()];
        let page = with_run(&page.expect("it has a table"), &new, &run("insn", 1, 2, 0));
        let page = page.expect("it has a table");
        assert!(!page.contains("code` |") && page.contains("| `insn` | 1 |"));
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let targets = ["insn".to_owned()];
        for page in [
            "",
            BEGIN,
            &format!("{END}{BEGIN}"),
            &format!("{BEGIN}{HEAD}| `insn` | many |\n{END}"),
        ] {
            assert!(with_run(page, &targets, &run("insn", 1, 2, 0)).is_err());
        }
    }

    /// A target that is new gets its row with its first run.
    #[test]
    fn the_page_takes_a_run_of_each_target() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = std::fs::read_to_string(page(&root)).expect("it is there");
        let targets = targets(&root.join("fuzz")).expect("there are targets");
        for target in &targets {
            let page = with_run(&page, &targets, &run(target, 1, 2, 0)).expect("it has a table");
            let rows = page.lines().filter(|line| line.starts_with("| `"));
            let row = rows.filter(|row| row.ends_with("| 2026-01-02 |")).count();
            assert_eq!(row, 1, "{target}");
        }
    }
}
