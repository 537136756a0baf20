//! The command `cofi-sql`, which `cofi sql` and `cofi export --to parquet` run.

mod args;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use cofi_sql::cli::{self, report, status};
use cofi_sql::{Engine, OpenOptions, Recording, export, tables_named};

use crate::args::{Cli, Command, ExportArgs, SqlArgs};

fn main() -> ExitCode {
    cli::main(async |cli: Cli| match &cli.command {
        Command::Sql(args) => sql(args).await,
        Command::Export(args) => run_export(args).await,
        Command::Tables => list_tables(),
    })
}

async fn sql(args: &SqlArgs) -> Result<u8> {
    let (files, input) = (cli::files(&args.statement)?, &args.statement.input);
    let recordings = open(files, &input.options()?, args)?;
    let engine = Engine::new(&recordings, &args.limits.options())?;
    cli::answer(&args.statement, &engine).await?;
    Ok(report(&recordings))
}

/// Opens recordings, with what is kept beside them.
fn open(files: &[PathBuf], how: &OpenOptions, args: &SqlArgs) -> Result<Vec<Arc<Recording>>> {
    let mut all = Vec::new();
    for file in files {
        let mut recording = Recording::open(file, how)?;
        if !args.keep_parts {
            // What is of no use is as good as nothing.
            let _ = recording.take_kept();
        } else if let Err(error) = recording.keep(args.limits.threads()) {
            cli::tell(&format!("--keep-parts: {error}"));
        }
        all.push(Arc::new(recording));
    }
    Recording::check_distinct(&all)?;
    Ok(all)
}

fn list_tables() -> Result<u8> {
    let mut out = std::io::stdout().lock();
    out.write_all(cofi_sql::tables::describe().as_bytes())?;
    Ok(status::WELL)
}

async fn run_export(args: &ExportArgs) -> Result<u8> {
    let tables = tables_named(&args.tables)?;
    let recordings = Recording::open_all(&args.files, &args.input.options()?)?;
    let options = args.limits.options();
    export(&recordings, &tables, &args.output, &options).await?;
    Ok(report(&recordings))
}
