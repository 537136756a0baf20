//! The loop over all threads: which there are, and how they begin and end. What a stop means is in [`super::stop`].

use super::breakpoints::Breakpoints;
use super::code::CodeSpace;
use super::cursor::Cursor;
use super::launch::{self, EngineError, Options, Outcome, Stops, Target};
use super::maps;
use super::probe_breakpoints;
use super::sys::{self, Dispositions, EVENT_STOP, Resume, Status};
use super::syscall::Sharing;
use super::thread::{At, Thread};
use crate::{Missing, Notice, Observer, Pid, ProcessCause, missing};
use libc::c_int;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const PTRACE_OPTIONS: c_int = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_TRACESYSGOOD;

/// How often the options are looked at while nothing happens.
const TICK: Duration = Duration::from_millis(20);

/// After how many ticks it is looked whether a thread runs that should have stopped.
const LOOK: u32 = 10;

/// Runs or attaches to the target until its first process ends or the options say stop, and tells `observer` what
/// happens. Processes that outlive the first one are let go, and run on.
///
/// While it runs a program, this process ignores SIGINT and SIGQUIT: the terminal sends them to the program too, which
/// decides. The calling thread waits for its own children only through this function.
///
/// # Errors
/// When the program cannot be started or attached to, or the kernel refuses to trace.
pub fn run(
    target: Target,
    options: Options<'_>,
    observer: &mut dyn Observer,
) -> Result<Outcome, EngineError> {
    run_by(Stops::default(), target, options, observer)
}

/// As [`run`], with a say in where to stop the program. The observer hears the same of each thread.
///
/// # Errors
/// As [`run`].
pub fn run_by(
    stops: Stops,
    target: Target,
    options: Options<'_>,
    observer: &mut dyn Observer,
) -> Result<Outcome, EngineError> {
    let mut dispositions = Dispositions::default();
    dispositions.interrupting(sys::wake_signal());
    let mut engine = Engine {
        observer,
        threads: FxHashMap::default(),
        processes: FxHashMap::default(),
        early: FxHashMap::default(),
        leader: 0,
        outcome: None,
        is_child: matches!(target, Target::Launch(_)),
        stopping: false,
        released: BTreeSet::new(),
        breakpoints: match stops {
            Stops::Branches if probe_breakpoints::breakpoints_work() => Breakpoints::default(),
            _ => Breakpoints::none(),
        },
    };
    match target {
        Target::Launch(command) => {
            engine.launch(&command)?;
            dispositions.ignore(libc::SIGINT);
            dispositions.ignore(libc::SIGQUIT);
            options.tell_leader(engine.leader);
        }
        Target::Attach(pid) => {
            if let Err(source) = engine.attach(pid) {
                // What has been seized already is let go.
                engine.stop()?;
                engine.follow(&AtomicBool::new(false), &AtomicBool::new(false))?;
                return Err(EngineError::Attach { pid, source });
            }
        }
    }
    let (stop, look) = (AtomicBool::new(false), AtomicBool::new(false));
    let tracer = sys::this_thread();
    std::thread::scope(|scope| {
        let (done, wait) = channel::<()>();
        let (stop, look) = (&stop, &look);
        scope.spawn(move || {
            let begin = Instant::now();
            let mut ticks = 0u32;
            while let Err(RecvTimeoutError::Timeout) = wait.recv_timeout(TICK) {
                let late = options.duration.is_some_and(|d| begin.elapsed() >= d);
                if late || options.stop.load(Ordering::Relaxed) {
                    stop.store(true, Ordering::Relaxed);
                    sys::wake(tracer);
                }
                ticks = ticks.wrapping_add(1);
                // Who has stops to handle looks by itself.
                if ticks.is_multiple_of(LOOK) && look.swap(true, Ordering::Relaxed) {
                    sys::wake(tracer);
                }
            }
        });
        let result = engine.follow(stop, look);
        options.tell_leader(0);
        drop(done);
        result
    })
}

/// What the threads of a process have in common.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) space: CodeSpace,
    /// The program ignores SIGTRAP; the kernel must not, see [`super::sigtrap`].
    pub(super) ignores_trap: bool,
    /// Another process can write its memory.
    pub(super) shares_memory: bool,
    /// The signal that ends it has been reported.
    pub(super) has_fatal_signal: bool,
    /// Where its first thread was when that ended.
    pub(super) first_ended_at: Option<u64>,
}

pub(super) struct Engine<'o> {
    pub(super) observer: &'o mut dyn Observer,
    pub(super) threads: FxHashMap<Pid, Thread>,
    pub(super) processes: FxHashMap<Pid, Process>,
    /// New threads that have stopped before their creator announced them, and the signal of that stop.
    early: FxHashMap<Pid, c_int>,
    /// The first process.
    leader: Pid,
    outcome: Option<Outcome>,
    /// The first process is our child.
    is_child: bool,
    pub(super) stopping: bool,
    /// Processes that were let go while they ran.
    pub(super) released: BTreeSet<Pid>,
    /// Those with which a thread begins.
    pub(super) breakpoints: Breakpoints,
}

/// A thread that is gone is told by a status of its own; until then requests for it fail.
pub(super) fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

impl Engine<'_> {
    fn launch(&mut self, command: &launch::Command) -> Result<(), EngineError> {
        let gate = launch::fork(command)?;
        let pid = gate.pid();
        let fail = |source| EngineError::Launch {
            program: command.program.clone(),
            source,
        };
        sys::seize(pid, PTRACE_OPTIONS | libc::PTRACE_O_EXITKILL).map_err(fail)?;
        gate.open().map_err(fail)?;
        // The child runs freely up to the program's first instruction.
        loop {
            let resumed = match sys::wait_for(pid).map_err(fail)? {
                Status::Exited(_) | Status::Signaled(_) => return Err(fail(gate.failure())),
                Status::Stopped {
                    event: libc::PTRACE_EVENT_EXEC,
                    ..
                } => break,
                Status::Stopped {
                    event: EVENT_STOP,
                    signal,
                } if signal != libc::SIGTRAP => sys::listen(pid),
                Status::Stopped { event: 0, signal } => sys::resume(pid, Resume::Run, signal),
                Status::Stopped { .. } => sys::resume(pid, Resume::Run, 0),
            };
            unless_gone(resumed).map_err(fail)?;
        }
        let pid = pid as Pid;
        self.leader = pid;
        self.begin_process(pid, None, ProcessCause::Launch);
        self.begin_thread(pid, pid, None);
        self.refresh(pid, pid);
        unless_gone(self.go_on(pid, 0))?;
        Ok(())
    }

    fn attach(&mut self, pid: Pid) -> io::Result<()> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let pid = maps::process_of(pid).ok_or_else(gone)?;
        self.leader = pid;
        let mut known = BTreeSet::new();
        // Threads may be born while the first ones are seized; those of seized threads inherit the tracer.
        loop {
            let fresh: Vec<Pid> = maps::threads(pid)
                .map_err(|_| gone())?
                .into_iter()
                .filter(|tid| known.insert(*tid))
                .collect();
            if fresh.is_empty() {
                break;
            }
            for tid in fresh {
                match sys::seize(tid as i32, PTRACE_OPTIONS) {
                    Ok(()) => {}
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) && tid != pid => {
                        continue;
                    }
                    // Seized already, as the child of a seized thread.
                    Err(error)
                        if error.raw_os_error() == Some(libc::EPERM)
                            && maps::tracer_of(tid) == Some(sys::this_thread() as Pid) => {}
                    Err(error) => return Err(error),
                }
                if self.threads.is_empty() {
                    self.begin_process(pid, None, ProcessCause::Attach);
                    self.refresh(pid, pid);
                }
                self.begin_thread(pid, tid, None);
                unless_gone(sys::interrupt(tid as i32))?;
            }
        }
        Ok(())
    }

    pub(super) fn begin_process(&mut self, pid: Pid, parent: Option<Pid>, cause: ProcessCause) {
        let process = match (parent.and_then(|parent| self.processes.get(&parent)), cause) {
            (Some(parent), ProcessCause::Fork) => Process {
                space: parent.space.fork(),
                ignores_trap: parent.ignores_trap,
                ..Process::default()
            },
            (_, ProcessCause::Exec) => Process {
                ignores_trap: self.processes.get(&pid).is_some_and(|p| p.ignores_trap),
                ..Process::default()
            },
            _ => Process {
                ignores_trap: maps::ignores_trap(pid),
                ..Process::default()
            },
        };
        self.processes.insert(pid, process);
        self.observer.process(pid, parent, cause, &maps::comm(pid));
        if matches!(cause, ProcessCause::Launch | ProcessCause::Exec)
            && let Some(notice) = Notice::of_privilege(pid)
        {
            self.observer.notice(notice);
        }
    }

    pub(super) fn begin_thread(&mut self, pid: Pid, tid: Pid, creator: Option<Pid>) {
        let creator_thread = creator.and_then(|tid| self.threads.get(&tid));
        let thread = Thread::new(pid, creator_thread, self.breakpoints.clone());
        self.threads.insert(tid, thread);
        self.observer.thread_start(pid, tid, creator);
    }

    pub(super) fn refresh(&mut self, pid: Pid, tid: Pid) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.space.refresh(pid, tid, self.observer);
        }
    }

    /// A thread with all that is needed to tell of it.
    pub(super) fn cursor(&mut self, tid: Pid) -> Option<Cursor<'_>> {
        let pid = self.threads.get(&tid)?.pid;
        let others = self
            .threads
            .iter()
            .any(|(other, thread)| thread.pid == pid && *other != tid);
        let thread = self.threads.get_mut(&tid)?;
        let process = self.processes.get_mut(&thread.pid)?;
        Some(Cursor {
            tid,
            thread,
            space: &mut process.space,
            alone: !others && !process.shares_memory,
            observer: &mut *self.observer,
        })
    }

    fn follow(mut self, stop: &AtomicBool, look: &AtomicBool) -> Result<Outcome, EngineError> {
        while !self.threads.is_empty() {
            let stop = stop.load(Ordering::Relaxed)
                || self.outcome.is_some()
                || self.observer.has_failed();
            if stop && !self.stopping {
                self.stop()?;
                continue;
            }
            if look.swap(false, Ordering::Relaxed) {
                self.observer.tick();
                self.look()?;
            }
            match sys::wait_any() {
                Ok((tid, status)) => self.handle(tid as Pid, status)?,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let left: Vec<Pid> = self.threads.keys().copied().collect();
        for tid in left {
            self.end_thread(tid);
        }
        if !self.released.is_empty() {
            let missing = match self.outcome {
                Some(_) => Missing::several(self.released.len() as u64, missing::OUTLIVED),
                None => Missing::new(missing::STOPPED),
            };
            self.observer.missing(missing);
        }
        match self.outcome {
            None if self.is_child && self.observer.has_failed() => self.wait_untraced(stop),
            outcome => Ok(outcome.unwrap_or(Outcome::Detached)),
        }
    }

    /// Nothing more can be recorded: the program, which has been let go, is waited for.
    fn wait_untraced(&self, stop: &AtomicBool) -> Result<Outcome, EngineError> {
        while !stop.load(Ordering::Relaxed) {
            match sys::wait_any() {
                Ok((tid, Status::Exited(code))) if tid as Pid == self.leader => {
                    return Ok(Outcome::Exited(code));
                }
                Ok((tid, Status::Signaled(signal))) if tid as Pid == self.leader => {
                    return Ok(Outcome::Signaled(signal));
                }
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Outcome::Detached)
    }

    /// Interrupts the threads that run by the plan by which they ran at the last look: nothing leads them from their code, as
    /// they are found then, unless the kernel has put them elsewhere (restartable sequences).
    fn look(&mut self) -> io::Result<()> {
        for (tid, thread) in &mut self.threads {
            let plan = thread.runs.then(|| thread.breakpoints.plans());
            if plan.is_some() && std::mem::replace(&mut thread.seen, plan) == plan {
                unless_gone(sys::interrupt(*tid as i32))?;
            }
        }
        Ok(())
    }

    /// Begins to let all threads go.
    fn stop(&mut self) -> io::Result<()> {
        self.stopping = true;
        // The first thread of a process that has exited before the others gives no status until they have, too.
        let ended: Vec<Pid> = self
            .threads
            .iter()
            .filter(|(_, thread)| matches!(thread.at, At::Exiting))
            .map(|(tid, _)| *tid)
            .collect();
        for tid in ended {
            self.end_thread(tid);
        }
        for tid in self.threads.keys() {
            unless_gone(sys::interrupt(*tid as i32))?;
        }
        Ok(())
    }

    fn handle(&mut self, tid: Pid, status: Status) -> io::Result<()> {
        match status {
            Status::Exited(code) => self.gone(tid, Outcome::Exited(code)),
            Status::Signaled(signal) => self.gone(tid, Outcome::Signaled(signal)),
            Status::Stopped { signal, event } => {
                if self.threads.contains_key(&tid) {
                    unless_gone(self.stopped(tid, signal, event))
                } else {
                    self.early.insert(tid, signal);
                    Ok(())
                }
            }
        }
    }

    /// A thread has made another one, or a process.
    pub(super) fn born(&mut self, tid: Pid, creator: Pid, sharing: Sharing) -> io::Result<()> {
        if !self.threads.contains_key(&tid) {
            let Some(parent) = self.threads.get(&creator).map(|thread| thread.pid) else {
                return Ok(());
            };
            // A clone may be a process too: then it has a thread group of its own. Who has neither is gone already, with its
            // process: nothing of it has run.
            if maps::is_thread(parent, tid) {
                self.begin_thread(parent, tid, Some(creator));
            } else if maps::process_of(tid) == Some(tid) && !maps::has_ended(tid) {
                // (One that has ended was begun as an orphan, see `gone`, or nothing of it has run.)
                self.begin_process(tid, Some(parent), ProcessCause::Fork);
                self.begin_thread(tid, tid, Some(creator));
                if let Some(process) = self.processes.get_mut(&tid) {
                    process.shares_memory = sharing != Sharing::Nothing;
                }
                if sharing == Sharing::Shared
                    && let Some(process) = self.processes.get_mut(&parent)
                {
                    process.shares_memory = true;
                }
            }
        }
        match self.early.remove(&tid) {
            Some(signal) => unless_gone(self.stopped(tid, signal, EVENT_STOP)),
            None => Ok(()),
        }
    }

    /// The observer hears of a thread no more.
    pub(super) fn end_thread(&mut self, tid: Pid) {
        if let Some(Cursor {
            thread: Thread {
                at: At::User(next), ..
            },
            ..
        }) = self.cursor(tid)
        {
            let ip = next.ip;
            if let Some(mut cursor) = self.cursor(tid) {
                cursor.interrupted_at(ip);
            }
        }
        if let Some(thread) = self.threads.remove(&tid) {
            self.observer.thread_exit(thread.pid, tid);
            if !self.threads.values().any(|other| other.pid == thread.pid) {
                self.processes.remove(&thread.pid);
            }
        }
    }

    fn gone(&mut self, tid: Pid, how: Outcome) -> io::Result<()> {
        self.early.remove(&tid);
        // Who was killed while it made another one does not announce that one any more.
        let orphans: Vec<Pid> = self.early.keys().copied().collect();
        for orphan in orphans {
            self.born(orphan, tid, Sharing::Shared)?;
        }
        if let Outcome::Signaled(number) = how {
            self.killed(tid, number);
        }
        self.end_thread(tid);
        if tid == self.leader {
            self.outcome = Some(how);
        }
        Ok(())
    }
}
