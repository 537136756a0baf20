//! The prompt: statements typed at a terminal, with history and completion.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::DataFusionError;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{FutureExt, StreamExt};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};
use tokio::signal::unix::{SignalKind, signal};

use crate::table::Table;
use crate::{Engine, Form, OutputError, functions, parse, tables, write};

/// So many statements are remembered.
const REMEMBERED: usize = 10_000;

/// What is offered beside tables, columns and functions.
const WORDS: &[&str] = &[
    "SELECT",
    "DISTINCT",
    "FROM",
    "WHERE",
    "GROUP BY",
    "ORDER BY",
    "HAVING",
    "LIMIT",
    "JOIN",
    "LEFT JOIN",
    "USING",
    "AND",
    "OR",
    "NOT",
    "NULL",
    "BETWEEN",
    "LIKE",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "END",
    "DESC",
    "WITH",
    "UNION ALL",
    "EXPLAIN",
    "EXPLAIN ANALYZE",
    "SHOW TABLES;",
    "DESCRIBE",
    "count(",
    "sum(",
    "min(",
    "max(",
    "avg(",
    "approx_percentile_cont(",
    "coalesce(",
    "address('0x",
    "hex(",
    "row_number() OVER (",
];

const HELP: &str = "\
Statements end with a semicolon. Tab completes; up and down go through what was typed before.
Ctrl-C ends the answer to a statement.
  SHOW TABLES;        the tables
  DESCRIBE calls;     the columns of one
  \\d                  all tables and columns, with what they mean
  \\q, exit, quit      ends (as Ctrl-D does)";

/// Reads statements until there are no more, and answers each.
pub(super) async fn run(engine: &Engine, form: Form, out: &mut (dyn Write + Send)) -> Result<()> {
    let config = Config::builder().max_history_size(REMEMBERED)?.build();
    let mut editor: Editor<Words, FileHistory> = Editor::with_config(config)?;
    editor.set_helper(Some(Words::new()));
    let history = history();
    if let Some(history) = &history {
        // The first time there is none.
        let _ = editor.load_history(history);
    }
    // From here on: whoever types Ctrl-C before an answer has begun means that answer, not the program.
    let mut interrupts = signal(SignalKind::interrupt())?;
    std::thread::spawn(hear_signals);
    writeln!(out, "Type \\? for help.")?;
    out.flush()?;
    loop {
        // Those that an answer did not wait for are not for the next one.
        while interrupts.recv().now_or_never().is_some() {}
        let line = match editor.readline("cofi> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error.into()),
        };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        editor.add_history_entry(line)?;
        match line.trim_end_matches(';') {
            "\\q" | "exit" | "quit" => break,
            "\\?" | "help" => writeln!(out, "{HELP}")?,
            "\\d" => write!(out, "{}", tables::describe())?,
            _ => {
                // Who does not want to wait for the rest is asked for the next statement.
                let answered = tokio::select! {
                    biased;
                    _ = interrupts.recv() => None,
                    answered = answer(engine, line, form, out) => Some(answered),
                };
                let told = match answered {
                    Some(Ok(())) => None,
                    Some(Err(error)) => Some(error.to_string()),
                    None => Some("interrupted".to_owned()),
                };
                if let Some(told) = told {
                    out.flush()?;
                    writeln!(std::io::stderr(), "cofi: {told}")?;
                }
                out.flush()?;
                super::tell_gaps(engine.recordings());
            }
        }
        out.flush()?;
    }
    if let Some(history) = &history {
        // Who has no place for it has none the next time.
        let _ = history.parent().map(std::fs::create_dir_all);
        let _ = editor.save_history(history);
    }
    Ok(())
}

/// Hears signals for all of the program: the threads of its runtime, which would, may all compute.
fn hear_signals() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    // Without that, Ctrl-C may wait.
    if let Ok(runtime) = runtime {
        runtime.block_on(async {
            if let Ok(mut interrupts) = signal(SignalKind::interrupt()) {
                while interrupts.recv().await.is_some() {}
            }
        });
    }
}

async fn answer(
    engine: &Engine,
    text: &str,
    form: Form,
    out: &mut (dyn Write + Send),
) -> Result<(), OutputError> {
    for statement in parse(text)? {
        // Planning may read much of a recording without a pause. Another thread does that, so that Ctrl-C is heard.
        let engine = engine.clone();
        let begun = SpawnedTask::spawn(async move { engine.rows(statement).await });
        let rows = begun.join_unwind().await;
        let rows = rows.map_err(|error| DataFusionError::External(Box::new(error)))??;
        // Between batches it is seen whether Ctrl-C was typed.
        let schema = rows.schema();
        let rows = rows.then(async |batch| {
            tokio::task::yield_now().await;
            batch
        });
        let rows = Box::pin(RecordBatchStreamAdapter::new(schema, rows));
        write(rows, form, out).await?;
    }
    Ok(())
}

/// The file that keeps what was typed.
fn history() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    Some(state.or_else(home)?.join("cofi/sql-history"))
}

/// Knows words that begin like what is being typed, and whether a statement has ended.
struct Words(BTreeSet<String>);

impl Words {
    fn new() -> Self {
        let mut words: BTreeSet<String> = WORDS.iter().map(|word| (*word).to_owned()).collect();
        let mut add = |table: &dyn Table, end: &str| {
            words.insert(format!("{}{end}", table.name()));
            words.extend(table.columns().iter().map(|column| column.name.to_owned()));
        };
        tables::all()
            .iter()
            .for_each(|table| add(table.as_ref(), ""));
        functions::all()
            .iter()
            .for_each(|table| add(table.as_ref(), "("));
        Self(words)
    }

    /// Where the word begins that ends at `end`, and what it may become.
    fn of(&self, line: &str, end: usize) -> (usize, Vec<String>) {
        let before = line.get(..end).unwrap_or(line);
        let is_within = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '\\';
        let begin = before.rfind(|letter| !is_within(letter)).map_or(0, |at| {
            at + before[at..].chars().next().map_or(1, char::len_utf8)
        });
        let typed = before.get(begin..).unwrap_or_default().to_lowercase();
        if typed.is_empty() {
            return (begin, Vec::new());
        }
        let fits = |word: &&String| word.to_lowercase().starts_with(&typed);
        (begin, self.0.iter().filter(fits).cloned().collect())
    }
}

impl Completer for Words {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.of(line, pos))
    }
}

impl Validator for Words {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_whole(context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

/// Whether what was typed can be answered: a statement with its semicolon, or a word of the prompt's own.
fn is_whole(text: &str) -> bool {
    let text = text.trim();
    let is_own = matches!(text, "" | "exit" | "quit" | "help") || text.starts_with('\\');
    is_own || text.ends_with(';')
}

impl Hinter for Words {
    type Hint = String;
}

impl Highlighter for Words {}

impl Helper for Words {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_completed_where_they_stand() {
        let words = Words::new();
        let line = "SELECT self_ins, x FROM cal";
        assert_eq!(
            words.of(line, 15),
            (7, vec!["self_instructions".to_owned()])
        );
        assert_eq!(words.of(line, line.len()).1, ["call", "calls"]);
        assert_eq!(
            words.of("sel", 3),
            (0, vec!["SELECT".to_owned(), "self_instructions".to_owned()])
        );
        assert_eq!(
            words.of("(instr", 6),
            (
                1,
                vec!["instructions".to_owned(), "instructions(".to_owned()]
            )
        );
        // Nothing is offered for nothing, nor within a letter.
        assert_eq!(words.of("SELECT ", 7).1, Vec::<String>::new());
        assert_eq!(words.of("ä", 1).1, Vec::<String>::new());
        assert_eq!(words.of("äse", 4).1, Vec::<String>::new());
    }

    #[test]
    fn statements_end_with_a_semicolon() {
        for whole in ["SELECT 1;", "SELECT\n1 ; ", "", "\\d", "exit", "\\q"] {
            assert!(is_whole(whole), "{whole}");
        }
        for part in ["SELECT 1", "SELECT 1;\nSELECT", "exits"] {
            assert!(!is_whole(part), "{part}");
        }
    }
}
