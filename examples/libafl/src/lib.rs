//! LibAFL with Cofi's coverage: a program as it is, without instrumentation, runs under a trace unit for each input, and the trace says which
//! edges ran ([`cofi_flow::Edges`]).
//!
//! [`TracedExecutor`] does both; the map is an ordinary one of LibAFL, with its hit counts and feedbacks. Here the program runs under Cofi's engine for
//! ptrace, which needs nothing but Linux; a trace from elsewhere (perf's of a processor with Intel PT, say) is counted by the same few
//! lines, [`count_edges`].

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use std::{fs, thread};

use cofi_capture::ptrace::{self, Command, Options, Outcome, Target};
use cofi_capture::record::{Recorder, Settings};
use cofi_flow::Edges;
use cofi_perf::PtConfig;
use cofi_session::{Session, SessionOptions};
use libafl::Error;
use libafl::executors::{Executor, ExitKind, HasObservers};
use libafl::inputs::HasTargetBytes;
use libafl::observers::{HitcountsMapObserver, StdMapObserver};
use libafl::state::HasExecutions;
use libafl_bolts::ToSlice;
use libafl_bolts::tuples::{Handle, MatchName, MatchNameRef, RefIndexable};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// After so long a program that was killed is killed again.
const AGAIN: Duration = Duration::from_millis(10);

/// The map of edges, with LibAFL's classes of hit counts.
pub type EdgeMap = HitcountsMapObserver<StdMapObserver<'static, u8, false>>;

/// A map of so many bytes.
#[must_use]
pub fn edge_map(len: usize) -> EdgeMap {
    HitcountsMapObserver::new(StdMapObserver::owned("edges", vec![0; len]))
}

/// Adds the edges of all threads of a recording to a map.
///
/// # Errors
/// When it is no recording that Cofi reads.
pub fn count_edges(recording: &Path, map: &mut [u8]) -> Result<(), Error> {
    let bytes = fs::read(recording)?;
    let session = Session::new(&bytes, &SessionOptions::beside(recording)).map_err(error)?;
    let mut edges = Edges::new();
    for stream in session.streams() {
        session.decode(stream).visit(&mut edges.count_in(map));
    }
    Ok(())
}

/// Runs a program for each input, which it finds in the file that its argument names, and counts the edges that ran.
#[derive(Debug)]
pub struct TracedExecutor<OT> {
    command: Command,
    limit: Duration,
    /// A folder for the input and the trace, in memory if there is one.
    folder: tempfile::TempDir,
    map: Handle<EdgeMap>,
    observers: OT,
}

impl<OT> TracedExecutor<OT> {
    /// For a program, which is killed when it has run for `limit`. Of `observers`, `map` is the one in which edges count.
    ///
    /// # Errors
    /// When there can be no folder.
    pub fn new(
        program: impl Into<PathBuf>,
        limit: Duration,
        map: Handle<EdgeMap>,
        observers: OT,
    ) -> Result<Self, Error> {
        let in_memory = Path::new("/dev/shm");
        let folder = match in_memory.is_dir() {
            true => tempfile::tempdir_in(in_memory)?,
            false => tempfile::tempdir()?,
        };
        let command = Command {
            program: program.into().into(),
            args: vec![folder.path().join("input").into()],
        };
        Ok(Self {
            command,
            limit,
            folder,
            map,
            observers,
        })
    }

    /// Runs the program with the input that is there: how it ended.
    fn record(&self, trace: &Path) -> Result<ExitKind, Error> {
        // Time is not asked for: packets that say how late it is are only more to read.
        let mut config = PtConfig::default();
        (config.tsc, config.mtc) = (false, false);
        let settings = Settings::new(trace, config, "ptrace");
        let mut recorder = Recorder::create(settings, None).map_err(error)?;
        let (stop, leader, late) = (
            AtomicBool::new(false),
            AtomicU32::new(0),
            AtomicBool::new(false),
        );
        let mut options = Options::new(&stop);
        options.leader = Some(&leader);
        let outcome = thread::scope(|scope| {
            let (done, wait) = channel::<()>();
            let (leader, late, limit) = (&leader, &late, self.limit);
            scope.spawn(move || {
                let mut patience = limit;
                while wait.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                    patience = AGAIN;
                    // It may be gone, or not there yet.
                    let leader = leader.load(Ordering::SeqCst).cast_signed();
                    if leader != 0 && kill(Pid::from_raw(leader), Signal::SIGKILL).is_ok() {
                        late.store(true, Ordering::SeqCst);
                    }
                }
            });
            let outcome = ptrace::run(Target::Launch(self.command.clone()), options, &mut recorder);
            drop(done);
            outcome
        });
        let outcome = outcome.map_err(error)?;
        recorder.finish().map_err(error)?;
        Ok(match outcome {
            _ if late.load(Ordering::SeqCst) => ExitKind::Timeout,
            Outcome::Signaled(signal) if is_crash(signal) => ExitKind::Crash,
            // Somebody else has ended it, or the terminal has, which sends its signals to both.
            Outcome::Signaled(signal) => {
                return Err(Error::illegal_state(format!(
                    "signal {signal} ended the program"
                )));
            }
            Outcome::Exited(_) | Outcome::Detached => ExitKind::Ok,
        })
    }
}

impl<EM, I, OT, S, Z> Executor<EM, I, S, Z> for TracedExecutor<OT>
where
    I: HasTargetBytes,
    OT: MatchName,
    S: HasExecutions,
{
    fn run_target(
        &mut self,
        _fuzzer: &mut Z,
        state: &mut S,
        _manager: &mut EM,
        input: &I,
    ) -> Result<ExitKind, Error> {
        *state.executions_mut() += 1;
        let folder = self.folder.path();
        let trace = folder.join("trace.data");
        fs::write(folder.join("input"), input.target_bytes().to_slice())?;
        let ended = self.record(&trace)?;
        let map = self.observers.get_mut(&self.map);
        let map = map.ok_or_else(|| Error::illegal_state("the map is not among the observers"))?;
        count_edges(&trace, map)?;
        Ok(ended)
    }
}

impl<OT> HasObservers for TracedExecutor<OT> {
    type Observers = OT;

    fn observers(&self) -> RefIndexable<&OT, OT> {
        RefIndexable::from(&self.observers)
    }

    fn observers_mut(&mut self) -> RefIndexable<&mut OT, OT> {
        RefIndexable::from(&mut self.observers)
    }
}

/// Whether a program that this signal ends has failed by itself.
fn is_crash(signal: i32) -> bool {
    matches!(
        Signal::try_from(signal),
        Ok(Signal::SIGSEGV
            | Signal::SIGBUS
            | Signal::SIGILL
            | Signal::SIGFPE
            | Signal::SIGABRT
            | Signal::SIGTRAP
            | Signal::SIGSYS)
    )
}

fn error(error: impl std::error::Error) -> Error {
    Error::unknown(error.to_string())
}
