//! What the tests share: recordings, and clusters of real processes.
#![allow(dead_code, reason = "no test uses all of it")]

#[path = "../../../sql/tests/common/recorded.rs"]
mod recorded;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use cofi_sql::{Engine, EngineOptions, Form, OpenOptions, Recording, write};

pub(crate) use recorded::*;

/// A process of `cofi-cluster`, killed in the end.
pub(crate) struct Process {
    child: Child,
    /// The address on which it listens.
    pub(crate) address: String,
}

impl Process {
    pub(crate) fn start(words: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cofi-cluster"));
        command.args(words).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let address = line.trim().to_owned();
        assert!(!address.is_empty(), "{words:?} said nothing");
        Self { child, address }
    }

    /// As `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A scheduler and executors.
pub(crate) struct Cluster {
    pub(crate) scheduler: Process,
    pub(crate) executors: Vec<Process>,
    /// Where executors keep their files: a folder for each.
    pub(crate) work: Vec<PathBuf>,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// With so many executors, each with a thread; all of them with these arguments and variables.
    pub(crate) fn start(executors: usize, words: &[&str], variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listen = ["scheduler", "--listen", "127.0.0.1:0"];
        let scheduler = Process::start(&[&listen, words].concat(), variables);
        let mut cluster = Self {
            scheduler,
            executors: Vec::new(),
            work: Vec::new(),
            folder,
        };
        for number in 0..executors {
            let work = cluster.folder.path().join(number.to_string());
            let scheduler = cluster.scheduler.address.as_str();
            let all = ["executor", "--threads", "1", "--scheduler", scheduler];
            let work_folder = work.to_str().expect("UTF-8");
            let all = [&all[..], &["--work", work_folder], words].concat();
            let executor = Process::start(&all, variables);
            cluster.executors.push(executor);
            cluster.work.push(work);
        }
        cluster
    }

    /// A client that is to answer a statement.
    pub(crate) fn client(&self, words: &[&str], files: &[&Path], statement: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cofi-cluster"));
        let scheduler = self.scheduler.address.as_str();
        command
            .args(["sql", "--json", "--scheduler", scheduler])
            .args(words)
            .args(files)
            .arg(statement)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The rows of a statement.
    pub(crate) fn asked(&self, files: &[&Path], statement: &str) -> Vec<Row> {
        let mut client = self.client(&[], files, statement);
        rows_of(&client.output().expect("it runs"), statement)
    }
}

/// The rows that a client wrote.
pub(crate) fn rows_of(output: &Output, statement: &str) -> Vec<Row> {
    let is_well = matches!(output.status.code(), Some(0 | 1));
    assert!(is_well, "{statement}: {output:?}");
    rows(&output.stdout)
}

/// The rows of a statement on this machine.
pub(crate) fn asked_here(files: &[&Path], statement: &str) -> Vec<Row> {
    let files: Vec<PathBuf> = files.iter().map(|file| file.to_path_buf()).collect();
    let recordings = Recording::open_all(&files, &OpenOptions::default()).expect("recordings");
    let engine = Engine::new(&recordings, &EngineOptions::default()).expect("an engine");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let mut out = Vec::new();
    runtime.block_on(async {
        let query = engine.query(statement).await.expect("a statement");
        let stream = query.execute_stream().await.expect("rows");
        write(stream, Form::Json, &mut out).await.expect("written");
    });
    rows(&out)
}
