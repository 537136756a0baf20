//! Recordings of a program, what the command `cofi` says of them, and how rows are compared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cofi_session::{Session, SessionOptions};
use serde_json::{Map, Value};

/// A program with calls, recursion, indirect branches, a signal handler and a second thread.
const PROGRAM: &str = r"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
static volatile int hits;
static void handler(int number) { hits += number; }
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
static void *other(void *unused) { hits += fibonacci(9); return unused; }
int main(int argc, char **argv) {
    int values[200];
    int n = argc > 1 ? atoi(argv[1]) : 18;
    pthread_t thread;
    signal(SIGUSR1, handler);
    for (int i = 0; i < 200; i++) values[i] = (i * 7919) % 1009;
    qsort(values, 200, sizeof(int), compare);
    raise(SIGUSR1);
    pthread_create(&thread, 0, other, 0);
    pthread_join(thread, 0);
    return fibonacci(n) > 0 && hits ? 0 : 1;
}
";

/// The command `cofi`: what COFI names, else what the other workspace built.
pub(crate) fn cofi() -> PathBuf {
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/release/cofi");
    let path = std::env::var_os("COFI").map_or_else(|| built.into(), PathBuf::from);
    assert!(
        path.is_file(),
        "{}: build it with `cargo build --release`, or name another one in COFI",
        path.display()
    );
    path
}

/// Recordings in a folder that is removed in the end.
pub(crate) struct Recorded {
    pub(crate) folder: tempfile::TempDir,
    /// Recorded with cycle counts and times.
    pub(crate) whole: PathBuf,
    /// The same, with bytes spoilt in the middle of its first stream.
    pub(crate) damaged: PathBuf,
}

pub(crate) fn well(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

pub(crate) fn record(data: &Path, program: &Path, words: &[&str]) {
    record_with("cyc,psb_period=0", data, program, words);
}

fn record_with(config: &str, data: &Path, program: &Path, words: &[&str]) {
    let mut record = Command::new(cofi());
    record.args(["record", "--engine", "qemu", "--config", config, "-o"]);
    well(record.arg(data).arg("--").arg(program).args(words));
}

impl Recorded {
    /// A longer recording of the same program.
    pub(crate) fn long(&self) -> PathBuf {
        self.of("long.data", "23")
    }

    /// One of the program with another argument: with each greater one it is half as long again, and more.
    pub(crate) fn of(&self, name: &str, argument: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        record(&path, &self.folder.path().join("program"), &[argument]);
        path
    }

    /// One of the program with another argument, in which returns are packets: it has as many bytes for a quarter of the instructions.
    pub(crate) fn with_returns(&self, name: &str, argument: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        let program = self.folder.path().join("program");
        record_with("cyc,psb_period=0,noretcomp", &path, &program, &[argument]);
        path
    }

    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [source, program, whole, damaged] =
            ["program.c", "program", "whole.data", "damaged.data"]
                .map(|name| folder.path().join(name));
        std::fs::write(&source, PROGRAM).expect("written");
        let mut compiler = Command::new("gcc");
        compiler
            .args(["-O1", "-g", "-pthread", "-o"])
            .arg(&program)
            .arg(&source);
        well(&mut compiler);
        record(&whole, &program, &[]);
        let mut bytes = std::fs::read(&whole).expect("a recording");
        let at = {
            let session = Session::new(&bytes, &SessionOptions::default()).expect("a recording");
            let stream = session.streams()[0].bytes();
            let middle = stream.len() / 2;
            let piece = &stream[middle..middle + 64];
            let mut windows = bytes.windows(piece.len());
            windows
                .position(|window| window == piece)
                .expect("its bytes")
        };
        bytes[at..at + 24].fill(0xff);
        std::fs::write(&damaged, bytes).expect("written");
        // The code that the recorder saved lies beside a recording.
        let beside = |path: &Path| PathBuf::from(format!("{}.code", path.display()));
        if let Ok(files) = std::fs::read_dir(beside(&whole)) {
            std::fs::create_dir_all(beside(&damaged)).expect("a folder");
            for file in files {
                let file = file.expect("a file").path();
                let copy = beside(&damaged).join(file.file_name().expect("a name"));
                std::fs::copy(&file, copy).expect("copied");
            }
        }
        Self {
            folder,
            whole,
            damaged,
        }
    }

    pub(crate) fn both(&self) -> [&Path; 2] {
        [&self.whole, &self.damaged]
    }
}

pub(crate) type Row = Map<String, Value>;

pub(crate) fn rows(output: &[u8]) -> Vec<Row> {
    let text = std::str::from_utf8(output).expect("UTF-8");
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect()
}

/// What `cofi` says, a row for each line.
pub(crate) fn said(words: &[&str], file: &Path) -> Vec<Row> {
    let mut command = Command::new(cofi());
    let output = command.args(words).arg(file).output().expect("it runs");
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    rows(&output.stdout)
}

/// That two lists have the same rows in the same order.
pub(crate) fn assert_equal(told: &[Row], wanted: &[Row]) {
    let first = told
        .iter()
        .zip(wanted)
        .position(|(one, other)| one != other);
    assert!(
        told.len() == wanted.len() && first.is_none(),
        "{} rows in SQL, {} in the command; the first that differ: {:?}",
        told.len(),
        wanted.len(),
        first.map(|at| (at, &told[at], &wanted[at]))
    );
}

/// Of each row these keys; one that is not there is null.
pub(crate) fn only(rows: &[Row], keys: &[&str]) -> Vec<Row> {
    let of = |row: &Row| {
        let pair = |key: &&str| {
            let value = row.get(*key).cloned().unwrap_or(Value::Null);
            ((*key).to_owned(), value)
        };
        keys.iter().map(pair).collect::<Row>()
    };
    rows.iter().map(of).collect()
}

/// That two lists have the same rows, each as often, in whatever order.
pub(crate) fn assert_same(told: &[Row], wanted: &[Row]) {
    let counted = |rows: &[Row]| {
        let mut counts: BTreeMap<String, i64> = BTreeMap::new();
        for row in rows {
            *counts
                .entry(Value::from(row.clone()).to_string())
                .or_default() += 1;
        }
        counts
    };
    assert!(!wanted.is_empty(), "nothing is compared");
    let (told, wanted) = (counted(told), counted(wanted));
    let only = |one: &BTreeMap<String, i64>, other: &BTreeMap<String, i64>| {
        let more = one
            .iter()
            .filter(|(row, count)| other.get(*row) != Some(count));
        let more = more.map(|(row, count)| format!("{count} × {row}"));
        more.take(5).collect::<Vec<_>>().join("\n")
    };
    assert!(
        told == wanted,
        "only in SQL:\n{}\nonly in the command:\n{}",
        only(&told, &wanted),
        only(&wanted, &told)
    );
}

/// Spoils bytes of a recording, at a place of its longest stream, in thousandths of that.
pub(crate) fn damage(file: &Path, place: usize, spoilt: &[u8]) {
    let mut bytes = std::fs::read(file).expect("a recording");
    let at = {
        let session = Session::new(&bytes, &SessionOptions::default()).expect("a recording");
        let streams = session.streams().iter().map(cofi_session::Stream::bytes);
        let stream = streams.max_by_key(|stream| stream.len()).expect("a stream");
        let start = stream.len() * place / 1000;
        let piece = &stream[start..start + 64];
        let mut windows = bytes.windows(piece.len());
        windows
            .position(|window| window == piece)
            .expect("its bytes")
    };
    bytes[at..at + spoilt.len()].copy_from_slice(spoilt);
    std::fs::write(file, bytes).expect("written");
}
