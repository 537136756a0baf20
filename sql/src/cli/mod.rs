//! What commands have in common that answer statements: their arguments, where rows go, and what is said when something is wrong.

mod prompt;

use std::fs::{File, Permissions};
use std::io::{BufWriter, IsTerminal, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, ValueEnum};
use cofi_session::FileFormat;
use datafusion::error::DataFusionError;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::{Engine, Form, OpenOptions, OutputError, Recording, parse, write};

/// Exit statuses, as those of `cofi`.
pub mod status {
    /// All is well.
    pub const WELL: u8 = 0;
    /// The input was read but holds errors, which were said.
    pub const WITH_ERRORS: u8 = 1;
    /// A statement, a file or the command line is wrong.
    pub const FAILED: u8 = 2;
}

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, ValueEnum, Serialize, Deserialize)]
enum Format {
    /// Bare Intel PT packets.
    Pt,
    /// Bare RTIT packets.
    Rtit,
    /// A perf.data file.
    Perf,
}

/// How recordings are read.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InputArgs {
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
    /// The same, for a process that runs in another folder.
    ///
    /// # Errors
    /// When the current folder is not known.
    pub fn absolute(&self) -> std::io::Result<Self> {
        let here = std::env::current_dir()?;
        // (What stands behind a file's name has no meaning to paths.)
        let of = |spec: &String| here.join(spec).to_string_lossy().into_owned();
        Ok(Self {
            format: self.format,
            elf: self.elf.iter().map(of).collect(),
            raw: self.raw.iter().map(of).collect(),
            code: self.code.iter().map(|folder| here.join(folder)).collect(),
        })
    }

    /// The same for the library.
    ///
    /// # Errors
    /// When `--elf` or `--raw` cannot be understood.
    pub fn options(&self) -> Result<OpenOptions> {
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

/// Statements, what they are about, and where their rows go.
#[derive(Args, Debug)]
pub struct StatementArgs {
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
    output: Option<PathBuf>,
    /// How recordings are read.
    #[command(flatten)]
    pub input: InputArgs,
    /// The recordings, and behind them the statement. Without a statement (the last one is a file, too), statements come from standard input.
    #[arg(value_name = "FILE… [STATEMENT]", required = true)]
    words: Vec<PathBuf>,
}

impl StatementArgs {
    /// The recordings, and the statement: the last word, if it is the name of no file.
    #[must_use]
    pub fn split(&self) -> (&[PathBuf], Option<String>) {
        match self.words.split_last() {
            Some((last, files)) if !last.exists() && is_statement(last) => {
                (files, Some(last.to_string_lossy().into_owned()))
            }
            _ => (&self.words, None),
        }
    }

    fn form(&self) -> Result<Form> {
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

/// Answers statements: the one that was given, else those of standard input, at a terminal as they are typed.
///
/// # Errors
/// When a statement is wrong, or something cannot be read or written.
pub async fn answer(args: &StatementArgs, engine: &Engine) -> Result<()> {
    let (_, statement) = args.split();
    let form = args.form()?;
    if statement.is_none() && std::io::stdin().is_terminal() {
        if form == Form::Parquet {
            bail!("--to parquet is for one statement: give it behind the recordings");
        }
        let mut out = Destination::of(args.output.as_deref(), form)?;
        prompt::run(engine, form, out.writer()).await?;
        return out.finish();
    }
    let statements = parse(&read(statement)?)?;
    if form == Form::Parquet && statements.len() != 1 {
        let count = statements.len();
        bail!("a Parquet file has the rows of one statement, not of {count}");
    }
    let mut out = Destination::of(args.output.as_deref(), form)?;
    for statement in statements {
        let rows = engine.rows(statement).await?;
        write(rows, form, out.writer()).await?;
        tell_gaps(engine.recordings());
    }
    out.finish()
}

/// Says of which recordings a part of the flow is missing from which rows were made just now.
fn tell_gaps(recordings: &[Arc<Recording>]) {
    for recording in recordings {
        if recording.take_gap() {
            let name = recording.name();
            tell(&format!(
                "{name}: parts of its flow are missing: see the table gaps"
            ));
        }
    }
}

/// The recordings that statements are about.
///
/// # Errors
/// When there are none, or the form of the rows wants what was not given.
pub fn files(args: &StatementArgs) -> Result<&[PathBuf]> {
    args.form()?;
    let (files, _) = args.split();
    if files.is_empty() {
        bail!("give at least one recording");
    }
    Ok(files)
}

/// Reads the command line, runs the command, and says what went wrong.
pub fn main<C: Parser>(run: impl AsyncFnOnce(C) -> Result<u8>) -> ExitCode {
    let given = match C::try_parse() {
        Ok(given) => given,
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
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tell(&format!("cannot start threads: {error}"));
            return ExitCode::from(status::FAILED);
        }
    };
    let result = runtime.block_on(run(given));
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

/// Says something to whoever runs the command.
pub fn tell(sentence: &str) {
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

/// Says what is wrong with recordings as files, with code that was asked for, and of gaps that were not said yet; the status for all of that.
#[must_use]
pub fn report(recordings: &[Arc<Recording>]) -> u8 {
    tell_gaps(recordings);
    let mut status = status::WELL;
    for recording in recordings {
        let session = recording.session();
        let diagnostics = session.diagnostics().iter().map(ToString::to_string);
        let problems = session.code_problems().map(ToString::to_string);
        for sentence in diagnostics.chain(problems) {
            tell(&format!("{}: {sentence}", recording.name()));
            status = status::WITH_ERRORS;
        }
        if recording.met_gap() {
            status = status::WITH_ERRORS;
        }
    }
    status
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

/// Where rows go: the file that is named, else standard output. The file gets its name when all rows are in it, so that one that was there stays
/// where a statement fails. What is no regular file (a pipe, a device) is written as it is.
enum Destination {
    Stream(BufWriter<Box<dyn Write + Send>>),
    File {
        out: BufWriter<NamedTempFile>,
        path: PathBuf,
    },
}

impl Destination {
    fn of(path: Option<&Path>, form: Form) -> Result<Self> {
        const GATHERED: usize = 1 << 16;
        let Some(path) = path.filter(|path| *path != Path::new("-")) else {
            let out = std::io::stdout();
            if form == Form::Parquet && out.is_terminal() {
                bail!("Parquet is not for a terminal: name a file with -o");
            }
            let out = BufWriter::with_capacity(GATHERED, Box::new(out) as _);
            return Ok(Self::Stream(out));
        };
        let wrong = || format!("cannot write {}", path.display());
        if path.exists() && !path.is_file() {
            let file = File::options().write(true).open(path);
            let out = Box::new(file.with_context(wrong)?) as _;
            return Ok(Self::Stream(BufWriter::with_capacity(GATHERED, out)));
        }
        // Where a link leads to: the file there is replaced, and not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        // As others have it that are made: what the mask leaves of this.
        let file = tempfile::Builder::new()
            .prefix(".cofi-sql")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .with_context(wrong)?;
        let out = BufWriter::with_capacity(GATHERED, file);
        Ok(Self::File { out, path })
    }

    fn writer(&mut self) -> &mut (dyn Write + Send) {
        match self {
            Self::Stream(out) => out,
            Self::File { out, .. } => out,
        }
    }

    /// All rows are written.
    fn finish(self) -> Result<()> {
        match self {
            Self::Stream(mut out) => Ok(out.flush()?),
            Self::File { out, path } => {
                let wrong = || format!("cannot write {}", path.display());
                let file = out
                    .into_inner()
                    .map_err(std::io::IntoInnerError::into_error);
                file.with_context(wrong)?
                    .persist(&path)
                    .with_context(wrong)?;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    struct Given {
        #[command(flatten)]
        statement: StatementArgs,
    }

    fn split(words: &[&str]) -> (usize, Option<String>) {
        let all = [&["cofi-sql"], words].concat();
        let given = Given::try_parse_from(all).expect("arguments");
        let (files, statement) = given.statement.split();
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
}
