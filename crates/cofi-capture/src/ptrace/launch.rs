//! What to run, and how that can fail.

use super::sys::{Candidate, Gate};
use crate::Pid;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// A program to start. It inherits the standard streams, the environment and the working directory.
#[derive(Clone, Debug)]
pub struct Command {
    /// The program: a path, or a name that is looked for along PATH.
    pub program: OsString,
    /// Its arguments, without its name.
    pub args: Vec<OsString>,
}

/// What to trace.
#[derive(Clone, Debug)]
pub enum Target {
    /// A program that the engine starts.
    Launch(Command),
    /// All threads of a process that runs already.
    Attach(Pid),
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options<'a> {
    /// Stop after this time and let the program run on.
    pub duration: Option<Duration>,
    /// Stop when this is set (by a signal handler of the caller, say) and let the program run on.
    pub stop: &'a AtomicBool,
    /// Is made to hold the number of the first process while a program that was started runs, and 0 before and after: for who
    /// hands signals on to it.
    pub leader: Option<&'a AtomicU32>,
}

impl<'a> Options<'a> {
    /// To stop when the program ends, or when `stop` is set.
    #[must_use]
    pub const fn new(stop: &'a AtomicBool) -> Self {
        Self {
            duration: None,
            stop,
            leader: None,
        }
    }

    pub(crate) fn tell_leader(&self, pid: Pid) {
        if let Some(leader) = self.leader {
            leader.store(pid, Ordering::SeqCst);
        }
    }
}

/// Where the engine stops a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stops {
    /// At every few branches, by the debug registers, and at every instruction where these do not work or do not suffice.
    #[default]
    Branches,
    /// At every instruction.
    Instructions,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The first process exited with this status.
    Exited(i32),
    /// This signal killed the first process.
    Signaled(i32),
    /// Tracing was stopped; what still runs runs on.
    Detached,
}

/// Why the engine cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The program cannot be started.
    #[error("cannot run {program:?}")]
    Launch {
        /// The program.
        program: OsString,
        /// Why.
        source: io::Error,
    },
    /// The process cannot be attached to.
    #[error("cannot attach to process {pid}")]
    Attach {
        /// The process.
        pid: Pid,
        /// Why.
        source: io::Error,
    },
    /// The kernel refuses a step.
    #[error("ptrace failed")]
    Trace(#[from] io::Error),
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a NUL in an argument"))
}

/// The files that the command may mean, as execvp tries them.
fn candidates(command: &Command) -> io::Result<Vec<Candidate>> {
    let mut args = vec![c_string(&command.program)?];
    for arg in &command.args {
        args.push(c_string(arg)?);
    }
    if command.program.is_empty() {
        return Err(io::Error::from_raw_os_error(libc::ENOENT));
    }
    if command.program.as_bytes().contains(&b'/') {
        return Ok(vec![Candidate::new(c_string(&command.program)?, &args)]);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&path)
        .map(|folder| {
            let folder = if folder == PathBuf::new() {
                PathBuf::from(".")
            } else {
                folder
            };
            let file = folder.join(&command.program).into_os_string().into_vec();
            Ok(Candidate::new(c_string(OsStr::from_bytes(&file))?, &args))
        })
        .collect()
}

/// Forks a child that waits to execute the command.
pub(crate) fn fork(command: &Command) -> Result<Gate, EngineError> {
    let start = || Gate::fork(&candidates(command)?);
    start().map_err(|source| EngineError::Launch {
        program: command.program.clone(),
        source,
    })
}
