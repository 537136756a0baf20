//! `cofi record -p`: the tracer is a process of its own, which outlives the command.
//!
//! The process that is traced has breakpoints of ours in its debug registers, of which it would die if its tracer vanished. So
//! whoever kills the command does not kill the tracer: that notices, by the end of a pipe, lets the process go as it was, and
//! completes the file. If it is the tracer that is killed, the command takes the breakpoints away, for which it may be too late.

use crate::Ended;
use crate::interrupt::is_ignored;
use crate::output::tell;
use crate::signals::last_words;
use anyhow::{Context, Result, bail};
use cofi_capture::ptrace;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};

/// The variable that tells the tracer whose it is.
const SUPERVISED_BY: &str = "COFI_SUPERVISED_BY";

/// Whether this process is a tracer that such a command has started.
pub(crate) fn is_tracer() -> bool {
    let parent = nix::unistd::getppid().as_raw().to_string();
    std::env::var_os(SUPERVISED_BY).is_some_and(|by| by == *parent)
}

/// Runs this very command line again as the tracer, and waits for its end.
pub(crate) fn run(pid: u32) -> Result<Ended> {
    let mut signals = vec![SIGTERM, SIGINT];
    if !is_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    let mut signals = Signals::new(signals).context("cannot wait for signals")?;
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let mut tracer = Command::new("/proc/self/exe")
        .arg0(name)
        .args(words)
        .env(SUPERVISED_BY, std::process::id().to_string())
        .stdin(Stdio::piped())
        // A signal that is sent to all of our group is for us.
        .process_group(0)
        .spawn()
        .context("cannot start the tracer")?;
    // It ends when this does, in whatever way.
    let mut pipe = tracer.stdin.take();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if pipe.take().is_none() {
                    last_words(signal);
                }
            }
        })
        .context("cannot start a thread")?;
    let status = tracer.wait().context("cannot wait for the tracer")?;
    ended(pid, status)
}

fn ended(pid: u32, status: ExitStatus) -> Result<Ended> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(Ended::Well),
        // It has said why.
        (Some(code), _) => Ok(Ended::Program(code as u8)),
        (None, signal) => {
            let signal = signal.unwrap_or(0);
            match ptrace::take_breakpoints_away(pid) {
                Ok(()) => tell(format_args!(
                    "process {pid} is free of the tracer's breakpoints"
                )),
                Err(error) => tell(format_args!(
                    "process {pid} may end by SIGTRAP at a breakpoint of the tracer: {error}"
                )),
            }
            bail!("signal {signal} ended the tracer: see `cofi check` for what it has written")
        }
    }
}
