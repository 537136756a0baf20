//! Standard output, buffered and in colour; standard error.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// So many bytes are gathered.
const SIZE: usize = 1 << 16;

/// Held by who writes to standard output, so that nobody ends the process in the middle of a line.
static GATE: Mutex<()> = Mutex::new(());

/// A buffered standard output, to which whole lines are written.
#[derive(Debug)]
pub(crate) struct Stdout(Vec<u8>);

/// Standard output. Flush it at the end, so that errors show.
pub(crate) fn stdout() -> Stdout {
    Stdout(Vec::with_capacity(2 * SIZE))
}

/// The process is about to end: what is written now is the last.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Lets nobody write any more. What it returns says that nobody is writing; none if somebody still is.
pub(crate) fn end_between_lines() -> Option<MutexGuard<'static, ()>> {
    ENDS.store(true, Ordering::SeqCst);
    match GATE.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Stdout {
    fn put(bytes: &[u8]) -> io::Result<()> {
        let mut guard = GATE.lock().unwrap_or_else(PoisonError::into_inner);
        while ENDS.load(Ordering::SeqCst) {
            drop(guard);
            std::thread::park();
            guard = GATE.lock().unwrap_or_else(PoisonError::into_inner);
        }
        io::stdout().write_all(bytes)
    }

    /// Writes the first so many bytes of what has gathered.
    fn put_first(&mut self, len: usize) -> io::Result<()> {
        let written = Self::put(&self.0[..len]);
        // What could not be written is not tried again.
        self.0.drain(..len);
        written
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.is_empty() && bytes.len() >= SIZE && bytes.ends_with(b"\n") {
            Self::put(bytes)?;
            return Ok(bytes.len());
        }
        self.0.extend_from_slice(bytes);
        if self.0.len() >= SIZE {
            let last = self.0.iter().rposition(|byte| *byte == b'\n');
            self.put_first(last.map_or(0, |last| last + 1))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.put_first(self.0.len())?;
        io::stdout().flush()
    }
}

impl Drop for Stdout {
    /// Whoever wants to know whether it worked flushes before.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// Says a sentence on standard error; if that is closed, nobody wants to hear it.
pub(crate) fn tell(sentence: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "cofi: {sentence}");
}

/// A new file at `path`, or one in the place of what is there; but not of a recording: there it was named in the place of the output.
pub(crate) fn create(path: &Path) -> Result<File> {
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    let mut magic = [0; PERF_DATA.len()];
    if is_file
        && let Ok(mut there) = File::open(path)
        && there.read_exact(&mut magic).is_ok()
        && magic == *PERF_DATA
    {
        bail!(
            "{} is a recording; the output is not written over it",
            path.display()
        );
    }
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

/// What a perf.data file begins with.
const PERF_DATA: &[u8; 8] = b"PERFILE2";

/// When to use colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Whether standard output is to have colours.
pub(crate) fn is_coloured(color: Color) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            std::io::stdout().is_terminal()
                && !set("NO_COLOR")
                && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        }
    }
}
