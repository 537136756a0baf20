//! The command `cofi-sql`, which `cofi sql` and `cofi export --to parquet` run.

mod args;
mod prompt;

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Parser;
use cofi_sql::{Engine, Form, OutputError, Recording, export, parse, tables_named, write};
use datafusion::error::DataFusionError;

use crate::args::{Cli, Command, ExportArgs, SqlArgs};

/// Exit statuses, as those of `cofi`.
mod status {
    pub(crate) const WELL: u8 = 0;
    /// The input was read but holds errors, which were said.
    pub(crate) const WITH_ERRORS: u8 = 1;
    pub(crate) const FAILED: u8 = 2;
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            let failed = if error.use_stderr() {
                status::FAILED
            } else {
                status::WELL
            };
            return ExitCode::from(failed);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tell(&format!("cannot start threads: {error}"));
            return ExitCode::from(status::FAILED);
        }
    };
    let result = runtime.block_on(async {
        match &cli.command {
            Command::Sql(args) => sql(args).await,
            Command::Export(args) => run_export(args).await,
            Command::Tables => list_tables(),
        }
    });
    // Decoding that nobody waits for any more ends with the process.
    runtime.shutdown_background();
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) if is_closed_pipe(&error) => ExitCode::from(status::WELL),
        Err(error) => {
            tell(&sentence(&error));
            ExitCode::from(status::FAILED)
        }
    }
}

/// What went wrong, in a sentence. DataFusion's errors have all that led to them around them, some of it twice.
fn sentence(error: &anyhow::Error) -> String {
    let query = error.chain().find_map(|cause| {
        let output = cause.downcast_ref::<OutputError>();
        let of_output = output.and_then(OutputError::query);
        of_output.or_else(|| cause.downcast_ref::<DataFusionError>())
    });
    match query.map(DataFusionError::find_root) {
        Some(DataFusionError::ResourcesExhausted(what)) => {
            format!("the statement needs more memory than --memory says: {what}")
        }
        Some(root) => root.strip_backtrace().replace('\n', " "),
        None => format!("{error:#}"),
    }
}

fn tell(sentence: &str) {
    // There is nobody else to tell.
    let _ = writeln!(std::io::stderr(), "cofi: {sentence}");
}

/// Whether the reader of our output went away, which is no error of ours.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let output = cause.downcast_ref::<OutputError>();
        let io = cause.downcast_ref::<std::io::Error>();
        output.is_some_and(OutputError::is_closed_pipe)
            || io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Says what is wrong with recordings as files, and with code that was asked for; the status for that.
fn report(recordings: &[Arc<Recording>]) -> u8 {
    let mut status = status::WELL;
    for recording in recordings {
        let session = recording.session();
        let diagnostics = session.diagnostics().iter().map(ToString::to_string);
        let problems = session.code_problems().map(ToString::to_string);
        for sentence in diagnostics.chain(problems) {
            tell(&format!("{}: {sentence}", recording.name()));
            status = status::WITH_ERRORS;
        }
    }
    status
}

async fn sql(args: &SqlArgs) -> Result<u8> {
    let (files, statement) = args.split();
    if files.is_empty() {
        bail!("give at least one recording");
    }
    let form = args.form()?;
    let recordings = Recording::open_all(files, &args.input.options()?)?;
    let engine = Engine::new(&recordings, &args.limits.options())?;
    if statement.is_none() && std::io::stdin().is_terminal() {
        if form == Form::Parquet {
            bail!("--to parquet is for one statement: give it behind the recordings");
        }
        let mut out = output(args.output.as_deref(), form)?;
        prompt::run(&engine, form, &mut *out).await?;
        return Ok(report(&recordings));
    }
    let statements = parse(&read(statement)?)?;
    if form == Form::Parquet && statements.len() != 1 {
        let count = statements.len();
        bail!("a Parquet file has the rows of one statement, not of {count}");
    }
    let mut out = output(args.output.as_deref(), form)?;
    for statement in statements {
        let rows = engine.run(statement).await?.execute_stream().await?;
        write(rows, form, &mut *out).await?;
    }
    out.flush()?;
    Ok(report(&recordings))
}

/// The statement that was given, else those of standard input.
fn read(statement: Option<String>) -> Result<String> {
    if let Some(statement) = statement {
        return Ok(statement);
    }
    let mut text = String::new();
    let mut stdin = std::io::stdin().lock();
    stdin
        .read_to_string(&mut text)
        .context("cannot read standard input")?;
    Ok(text)
}

/// Where rows go: the file that is named, else standard output.
fn output(path: Option<&Path>, form: Form) -> Result<Box<dyn Write + Send>> {
    let Some(path) = path.filter(|path| *path != Path::new("-")) else {
        let out = std::io::stdout();
        if form == Form::Parquet && out.is_terminal() {
            bail!("Parquet is not for a terminal: name a file with -o");
        }
        return Ok(Box::new(BufWriter::with_capacity(1 << 16, out)));
    };
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Box::new(BufWriter::with_capacity(1 << 16, file)))
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
