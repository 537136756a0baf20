//! The command line, as clap reads it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use cofi_session::FileFormat;
use cofi_sql::{EngineOptions, Form, OpenOptions};

/// SQL over recordings of Cofi or perf, and Parquet of them: what `cofi sql` and `cofi export --to parquet` run.
#[derive(Parser, Debug)]
#[command(name = "cofi-sql", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Answer statements of SQL about recordings.
    Sql(SqlArgs),
    /// Write the tables of recordings as Parquet files.
    Export(ExportArgs),
    /// List the tables and what each column means.
    Tables,
}

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// Bare Intel PT packets.
    Pt,
    /// Bare RTIT packets.
    Rtit,
    /// A perf.data file.
    Perf,
}

/// How recordings are read.
#[derive(Args, Debug)]
pub(crate) struct InputArgs {
    /// What the files hold, if it is not to be recognised.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// An ELF file that bare packets are about, at its own address or at BASE.
    #[arg(long, value_name = "FILE[:BASE]")]
    elf: Vec<String>,
    /// Raw code that bare packets are about, at ADDR.
    #[arg(long, value_name = "FILE:ADDR")]
    raw: Vec<String>,
    /// A further folder in which files of code are looked for, by their last names.
    #[arg(long, value_name = "DIR")]
    code: Vec<PathBuf>,
}

impl InputArgs {
    pub(crate) fn options(&self) -> Result<OpenOptions> {
        let format = self.format.map(|format| match format {
            Format::Pt => FileFormat::Pt,
            Format::Rtit => FileFormat::Rtit,
            Format::Perf => FileFormat::Perf,
        });
        let mut options = OpenOptions {
            format,
            folders: self.code.clone(),
            ..OpenOptions::default()
        };
        for spec in &self.elf {
            let parsed = spec.parse().with_context(|| format!("--elf {spec}"))?;
            options.elf.push(parsed);
        }
        for spec in &self.raw {
            let parsed = spec.parse().with_context(|| format!("--raw {spec}"))?;
            options.raw.push(parsed);
        }
        Ok(options)
    }
}

/// What bounds the work.
#[derive(Args, Debug)]
pub(crate) struct LimitArgs {
    /// So many MiB may sorting, joining and grouping hold before they write to files.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory: usize,
    /// The folder for these files; without this the system's.
    #[arg(long, value_name = "DIR")]
    spill: Option<PathBuf>,
    /// By how many threads; without this, as many as there are processors.
    #[arg(long, value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,
}

impl LimitArgs {
    pub(crate) fn options(&self) -> EngineOptions {
        EngineOptions {
            memory: self.memory.saturating_mul(1 << 20),
            spill_folder: self.spill.clone(),
            threads: self.threads.map(std::num::NonZeroUsize::get),
        }
    }
}

/// Arguments of `cofi-sql sql`.
#[derive(Args, Debug)]
pub(crate) struct SqlArgs {
    /// One JSON object a row.
    #[arg(long)]
    json: bool,
    /// Comma-separated, with the names of columns in the first line.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// The form of the rows: `text`, `json`, `csv` or `parquet`.
    #[arg(long, value_name = "FORM", conflicts_with_all = ["json", "csv"])]
    to: Option<Form>,
    /// The file to write; without this, or with `-`, standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// The recordings, and behind them the statement. Without a statement (the last one is a file, too), statements come from standard input.
    #[arg(value_name = "FILE… [STATEMENT]", required = true)]
    words: Vec<PathBuf>,
}

impl SqlArgs {
    /// The recordings, and the statement: the last word, if it is the name of no file.
    pub(crate) fn split(&self) -> (&[PathBuf], Option<String>) {
        match self.words.split_last() {
            Some((last, files)) if !last.exists() && is_statement(last) => {
                (files, Some(last.to_string_lossy().into_owned()))
            }
            _ => (&self.words, None),
        }
    }

    pub(crate) fn form(&self) -> Result<Form> {
        let form = match (self.json, self.csv, self.to) {
            (true, ..) => Form::Json,
            (_, true, _) => Form::Csv,
            (_, _, form) => form.unwrap_or_default(),
        };
        if form == Form::Parquet && self.output.is_none() {
            bail!("--to parquet: name a file with -o (`-` is standard output)");
        }
        Ok(form)
    }
}

/// Whether a word that is no file may be a statement, and is not just a file that is missing: statements have several words.
fn is_statement(word: &Path) -> bool {
    let text = word.to_string_lossy();
    text.trim_end().contains(char::is_whitespace) || text.trim_end().ends_with(';')
}

/// Arguments of `cofi-sql export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// The folder to write into: a folder for each table, with a file for each recording.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Only these tables, with commas between them.
    #[arg(long, value_name = "TABLE,…", value_delimiter = ',')]
    pub(crate) tables: Vec<String>,
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// The recordings.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(words: &[&str]) -> (usize, Option<String>) {
        let all = [&["cofi-sql", "sql"], words].concat();
        let Command::Sql(args) = Cli::try_parse_from(all).expect("arguments").command else {
            unreachable!("it was sql");
        };
        let (files, statement) = args.split();
        (files.len(), statement)
    }

    #[test]
    fn the_last_word_is_a_statement_unless_it_is_a_file() {
        let here = env!("CARGO_MANIFEST_DIR");
        assert_eq!(split(&[here, "SELECT 1"]), (1, Some("SELECT 1".into())));
        assert_eq!(split(&[here, here]), (2, None));
        // A file that is missing is told as such.
        assert_eq!(split(&[here, "none.data"]), (2, None));
        assert_eq!(split(&["SELECT 1"]), (0, Some("SELECT 1".into())));
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
