//! The command line, as clap reads it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use cofi_sql::EngineOptions;
use cofi_sql::cli::{InputArgs, StatementArgs};

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
    pub(crate) fn threads(&self) -> std::num::NonZeroUsize {
        let all = || std::thread::available_parallelism().unwrap_or(std::num::NonZeroUsize::MIN);
        self.threads.unwrap_or_else(all)
    }

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
    /// Keep beside each recording (FILE.parts) which code ran in which parts of it, and use it: conditions on functions and addresses then leave out the others. Without this, what is kept is used, and nothing is written.
    #[arg(long)]
    pub(crate) keep_parts: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) statement: StatementArgs,
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
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
