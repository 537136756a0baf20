//! Programs that do what is too large for this one: `cofi-sql`, and `cofi-cluster`, which knows object stores.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// Where a program is that `command` needs, and that is built in this folder of the source.
pub(crate) fn find(command: &str, name: &str, folder: &str) -> Result<PathBuf> {
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = beside.map(PathBuf::from).into_iter();
    let mut places = folders
        .chain(std::env::split_paths(OsStr::new(&path)))
        .map(|folder| folder.join(&file));
    match places.find(|program| program.is_file()) {
        Some(program) => Ok(program),
        None => bail!(
            "{command}: this needs the program {name}, which is not beside cofi nor on PATH: build it with `cargo build --release` in the \
             folder {folder} of Cofi's source, and put it beside cofi"
        ),
    }
}

/// What is written to a program that runs beside this one. When it is dropped, the program's input ends, and its end is waited for.
struct Asked {
    input: Option<ChildStdin>,
    child: Child,
}

impl Write for Asked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.input {
            Some(input) => input.write(bytes),
            None => Ok(0),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.input.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.input = None;
        // Whatever it ends with, all that was asked of it is done, or has failed.
        let _ = self.child.wait();
    }
}

/// What a program beside this one is asked through, and what it replies.
pub(crate) type Pipes = (Box<dyn Write + Send>, Box<dyn BufRead + Send>);

/// Starts a program that is asked on its input, and replies on its output.
pub(crate) fn start(program: &Path, words: &[&OsStr]) -> Result<Pipes> {
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let output = output.context("it has no output")?;
    Ok((
        Box::new(Asked { input, child }),
        Box::new(BufReader::new(output)),
    ))
}
