//! Ctrl-C while a trace is read, which ends the command between two lines.

use crate::{output, progress};
use anyhow::{Context, Result};
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use signal_hook::low_level::exit;
use std::time::Duration;

/// The status of a command that Ctrl-C has ended, as shells count it.
const INTERRUPTED: i32 = 128 + SIGINT;

/// Has Ctrl-C end the command with status 130, and not in the middle of a line: what has been printed can be used. A line that is being
/// written ends first; where nobody reads it, another Ctrl-C ends the command at once.
pub(crate) fn end_between_lines() -> Result<()> {
    /// The time between two tries to get between two lines.
    const PAUSE: Duration = Duration::from_millis(10);
    // A shell that runs the command in the background has it ignored.
    if is_ignored(SIGINT) {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT]).context("cannot wait for signals")?;
    let wait = move || {
        if signals.forever().next().is_none() {
            return;
        }
        let between = loop {
            let between = output::end_between_lines();
            if between.is_some() || signals.pending().next().is_some() {
                break between;
            }
            std::thread::sleep(PAUSE);
        };
        if between.is_some() {
            progress::clear();
        }
        exit(INTERRUPTED);
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(wait).context("cannot start a thread")?;
    Ok(())
}

/// Whether this process ignores a signal.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}
