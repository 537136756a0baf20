//! Signals that ask `cofi record` to end: the program decides, as it does at a Ctrl-C, and the recording ends well.

use crate::interrupt::is_ignored;
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// What is known of the recording where a signal arrives.
#[derive(Debug, Default)]
struct State {
    /// The recording is to stop.
    stop: AtomicBool,
    /// The first process of the program that was started, while it runs.
    leader: AtomicU32,
    /// What was recorded last is to be saved.
    snapshot: AtomicBool,
    /// The recording is over: signals do what they do by themselves.
    over: AtomicBool,
}

/// What signals may ask of a recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signalled {
    /// Nobody was started to whom they could be handed on: they stop it, Ctrl-C too.
    pub(crate) is_attached: bool,
    /// SIGUSR2 asks for a snapshot.
    pub(crate) has_snapshots: bool,
}

/// Takes the signals until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch(Arc<State>);

impl Watch {
    /// SIGTERM and SIGHUP are handed on to the program; a second one stops the recording, and the program runs on. To a
    /// process that was there before nothing is handed on, and Ctrl-C stops as well.
    pub(crate) fn begin(signalled: Signalled) -> Result<Self> {
        let Signalled {
            is_attached,
            has_snapshots,
        } = signalled;
        let state = Arc::new(State::default());
        let mut wanted = vec![SIGTERM];
        // `nohup cofi record` is to go on.
        if !is_ignored(SIGHUP) {
            wanted.push(SIGHUP);
        }
        if is_attached {
            wanted.push(SIGINT);
        }
        if has_snapshots {
            wanted.push(SIGUSR2);
        }
        let mut signals = Signals::new(wanted).context("cannot wait for signals")?;
        let known = Arc::clone(&state);
        let wait = move || {
            let mut is_first = !is_attached;
            for signal in signals.forever() {
                if signal == SIGUSR2 {
                    known.snapshot.store(true, Ordering::SeqCst);
                    continue;
                }
                if known.over.load(Ordering::SeqCst) {
                    let _ = emulate_default_handler(signal);
                }
                let leader = known.leader.load(Ordering::SeqCst);
                let is_told = std::mem::take(&mut is_first) && leader != 0;
                if !(is_told && hand_on(leader, signal)) {
                    known.stop.store(true, Ordering::SeqCst);
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(wait)
            .context("cannot start a thread")?;
        Ok(Self(state))
    }

    /// The end of standard input stops the recording, too.
    pub(crate) fn stop_with_input(&self) -> Result<()> {
        let state = Arc::clone(&self.0);
        let wait = move || {
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            state.stop.store(true, Ordering::SeqCst);
        };
        let thread = std::thread::Builder::new().name("supervisor".into());
        thread.spawn(wait).context("cannot start a thread")?;
        Ok(())
    }

    /// Set when the recording is to stop.
    pub(crate) fn stop(&self) -> &AtomicBool {
        &self.0.stop
    }

    /// Set when a snapshot is to be taken.
    pub(crate) fn snapshot(&self) -> &AtomicBool {
        &self.0.snapshot
    }

    /// Where the engine says which process the signals are for.
    pub(crate) fn leader(&self) -> &AtomicU32 {
        &self.0.leader
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
    }
}

/// Does what a signal does to who does not wait for it.
pub(crate) fn last_words(signal: i32) {
    let _ = emulate_default_handler(signal);
}

fn hand_on(leader: u32, signal: i32) -> bool {
    let signal = Signal::try_from(signal);
    signal.is_ok_and(|signal| kill(Pid::from_raw(leader as i32), signal).is_ok())
}
