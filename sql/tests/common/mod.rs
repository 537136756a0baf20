//! What the tests share: recordings of a program, and what the two commands say of them.
#![allow(dead_code, reason = "no test uses all of it")]

mod recorded;

use std::path::Path;
use std::process::{Command, Output, Stdio};

pub(crate) use recorded::*;

/// Runs `cofi-sql`.
pub(crate) fn cofi_sql(words: &[&str], files: &[&Path], statement: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofi-sql"));
    command.args(words).args(files).arg(statement);
    command.stdin(Stdio::null()).output().expect("it runs")
}

/// The rows of a statement.
pub(crate) fn asked(files: &[&Path], statement: &str) -> Vec<Row> {
    let output = cofi_sql(&["sql", "--json"], files, statement);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    rows(&output.stdout)
}

/// The rows of a statement, one stream after the other and each in its order: by one thread.
pub(crate) fn asked_in_order(file: &Path, statement: &str) -> Vec<Row> {
    let output = cofi_sql(&["sql", "--json", "--threads", "1"], &[file], statement);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    rows(&output.stdout)
}
