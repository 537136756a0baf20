//! `cofi sql` and `cofi export --to parquet`: what `cofi-sql` does, a program of its own, since the database in it is many times as large as all of Cofi.

use crate::{Ended, companion};
use anyhow::{Context, Result};
use clap::Args;
use std::ffi::OsString;
use std::process::Command;

/// Arguments of `cofi sql`, which `cofi-sql` reads.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct SqlArgs {
    /// What `cofi-sql sql` takes: options (`--json`, `--csv`, `-o FILE`, …; `--help` lists them), recordings, and the statement.
    #[arg(
        value_name = "FILE… [STATEMENT]",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<OsString>,
}

/// Runs `cofi sql`.
pub(crate) fn run(args: &SqlArgs) -> Result<Ended> {
    replace_by("sql", &args.words)
}

/// The words that are for `cofi-sql export`, if a command line is `cofi export --to parquet …`, which has other arguments than other formats.
pub(crate) fn of_export(words: impl IntoIterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut words = words.into_iter().skip(1);
    if words.next()? != "export" {
        return None;
    }
    let (mut others, mut is_parquet) = (Vec::new(), false);
    while let Some(word) = words.next() {
        let next = if word == "--to" { words.next() } else { None };
        match next {
            Some(format) if format == "parquet" => is_parquet = true,
            Some(format) => others.extend([word, format]),
            None if word == "--to=parquet" => is_parquet = true,
            None => others.push(word),
        }
    }
    is_parquet.then_some(others)
}

/// Runs `cofi export --to parquet`.
pub(crate) fn export(words: &[OsString]) -> Result<Ended> {
    replace_by("export", words)
}

/// Goes on as `cofi-sql`: only returns if that cannot be.
fn replace_by(command: &str, words: &[OsString]) -> Result<Ended> {
    let program = companion::find(command, "cofi-sql", "sql")?;
    go_on_as(Command::new(&program).arg(command).args(words))
        .with_context(|| format!("cannot run {}", program.display()))
}

#[cfg(unix)]
fn go_on_as(program: &mut Command) -> Result<Ended> {
    use std::os::unix::process::CommandExt;
    Err(program.exec().into())
}

/// Where no process can become another program, it waits for one.
#[cfg(not(unix))]
fn go_on_as(program: &mut Command) -> Result<Ended> {
    let code = program.status()?.code();
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(Ended::Program(code.unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn only_exports_to_parquet_are_passed_on() {
        for line in [
            "cofi export --to parquet -o out a.data b.data",
            "cofi export -o out --to=parquet a.data b.data",
        ] {
            assert_eq!(of_export(words(line)), Some(words("-o out a.data b.data")));
        }
        for line in [
            "cofi export --to csv -o out a.data",
            "cofi export --to csv -o parquet a.data",
            "cofi sql --to parquet a.data",
            "cofi export --to",
            "cofi",
            "",
        ] {
            assert_eq!(of_export(words(line)), None, "{line}");
        }
    }
}
