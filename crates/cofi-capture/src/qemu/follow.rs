//! Every program that is started runs under QEMU: the first one, and each that a traced process starts with `exec`.
//!
//! The program is started as it would be without Cofi, under a tracer that does nothing but wait. When `exec` has succeeded, and
//! before the new program's first instruction, the tracer makes it execute QEMU instead, with the program's own
//! arguments. So the kernel itself has found the file, read the script's first line, and refused what it refuses.

use super::death::{Death, Deaths};
use super::exec::{Becoming, Escape, Next, can_become};
use super::launch::Qemu;
use crate::ptrace::sys::{self, CALL_STOP, Dispositions, EVENT_STOP, Resume, Status};
use crate::ptrace::{Command, EngineError, Options, Outcome, maps};
use crate::{Change, Missing, Notice, Pid};
use libc::{c_int, pid_t};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const TRACED: c_int = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACESYSGOOD;

/// What the tracer tells the recorder.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The name of the program that each process runs.
    programs: Mutex<BTreeMap<Pid, String>>,
    /// Programs that run without being traced.
    pub(super) escaped: AtomicU64,
    /// What of it has not been told yet.
    missing: Mutex<Vec<Missing>>,
    /// Processes that these have forked.
    pub(super) untraced: AtomicU64,
    /// What the program loses, for the observer.
    notices: Mutex<Vec<Notice>>,
    lives: Mutex<Lives>,
    /// The tracer is to make no more programs execute QEMU, and to end when all have settled.
    stop: AtomicBool,
    /// It is to wait for the first process even so, as nothing more can be recorded.
    waits: AtomicBool,
    /// It is to end at once.
    leave: AtomicBool,
    /// The tracer's thread, to wake it.
    thread: AtomicI32,
}

impl News {
    fn notice(&self, notice: Option<Notice>) {
        let notices = self.notices.lock();
        notices
            .unwrap_or_else(PoisonError::into_inner)
            .extend(notice);
    }

    /// The notices since the last call.
    pub(super) fn take_notices(&self) -> Vec<Notice> {
        let notices = self.notices.lock();
        std::mem::take(&mut *notices.unwrap_or_else(PoisonError::into_inner))
    }
}

/// Who has come and gone.
#[derive(Debug, Default)]
struct Lives {
    /// Children of fork that have not told of themselves yet.
    unborn: BTreeSet<Pid>,
    /// Processes that have executed QEMU, which has not told of itself yet: it needs its files.
    starting: BTreeSet<Pid>,
    gone: Vec<Gone>,
}

/// A process (or a thread) that has ended.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) pid: Pid,
    /// Children that had not told of themselves at that time: of these it may be the parent, whose blocks they have.
    pub(super) unborn: BTreeSet<Pid>,
    /// The signal that ended it, if one did.
    pub(super) death: Option<Death>,
}

impl News {
    fn lives(&self) -> MutexGuard<'_, Lives> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process has told of itself, after `exec` or fork.
    pub(super) fn born(&self, pid: Pid, executed: bool) {
        let mut lives = self.lives();
        lives.unborn.remove(&pid);
        if executed {
            lives.starting.remove(&pid);
        }
    }

    /// Who has ended since the last call.
    pub(super) fn gone(&self) -> Vec<Gone> {
        std::mem::take(&mut self.lives().gone)
    }

    /// What the tracer has found to be missing since the last call.
    pub(super) fn missing(&self) -> Vec<Missing> {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut missing)
    }

    fn misses(&self, missing: Missing) {
        let mut all = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(missing);
    }

    /// A process is not asked for any more.
    pub(super) fn forget(&self, pid: Pid) {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.remove(&pid);
    }

    /// The name of the program that a process runs, as the kernel shortens it.
    pub(super) fn comm(&self, pid: Pid) -> Option<String> {
        let programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.get(&pid).cloned()
    }

    /// Has the tracer end, once nobody is half way to QEMU.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Has it make no more programs execute QEMU, and end with the first process.
    pub(super) fn wait(&self) {
        self.waits.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Has it end at once.
    pub(super) fn leave(&self) {
        self.leave.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Whether the tracer is about to end.
    pub(super) fn is_ending(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        match self.thread.load(Ordering::Relaxed) {
            0 => {}
            thread => sys::wake(thread),
        }
    }
}

/// Starts the command under QEMU and follows it until its first process ends.
///
/// From then on this process ignores SIGINT and SIGQUIT: the terminal sends them to the program too, which decides.
pub(super) fn follow(
    qemu: &Qemu,
    command: &Command,
    news: &News,
    dispositions: &mut Dispositions,
    options: Options<'_>,
) -> Result<Outcome, EngineError> {
    let outcome = follow_to_the_end(qemu, command, news, dispositions, options);
    options.tell_leader(0);
    outcome
}

fn follow_to_the_end(
    qemu: &Qemu,
    command: &Command,
    news: &News,
    dispositions: &mut Dispositions,
    options: Options<'_>,
) -> Result<Outcome, EngineError> {
    news.thread.store(sys::this_thread(), Ordering::Relaxed);
    let fail = |source| EngineError::Launch {
        program: command.program.clone(),
        source,
    };
    let gate = crate::ptrace::launch::fork(command)?;
    // Not before: the program would inherit it.
    dispositions.ignore(libc::SIGINT);
    dispositions.ignore(libc::SIGQUIT);
    let leader = gate.pid();
    sys::seize(leader, TRACED).map_err(fail)?;
    gate.open().map_err(fail)?;
    options.tell_leader(leader as Pid);
    let mut follower = Follower {
        qemu,
        news,
        becoming: BTreeMap::new(),
        native: BTreeSet::new(),
        deaths: Deaths::default(),
    };
    let mut started = false;
    let mut outcome = None;
    loop {
        let is_waiting = outcome.is_none() && news.waits.load(Ordering::SeqCst);
        if news.is_ending() && !is_waiting || news.leave.load(Ordering::SeqCst) {
            let outcome = *outcome.get_or_insert(Outcome::Detached);
            if follower.has_settled() || news.leave.load(Ordering::SeqCst) {
                return Ok(outcome);
            }
        }
        let (tid, status) = match sys::wait_any() {
            Ok(news) => news,
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            Err(error) => match outcome {
                // Nobody is left.
                Some(outcome) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(outcome),
                _ => return Err(EngineError::Trace(error)),
            },
        };
        let ended = match status {
            Status::Exited(_) if tid == leader && !started => return Err(fail(gate.failure())),
            Status::Exited(code) if tid == leader => Some(Outcome::Exited(code)),
            Status::Signaled(signal) if tid == leader => Some(Outcome::Signaled(signal)),
            _ => None,
        };
        if let Some(ended) = ended {
            options.tell_leader(0);
            outcome = Some(ended);
            news.stop.store(true, Ordering::SeqCst);
        }
        if status == Status::Signaled(libc::SIGILL) && !follower.native.contains(&tid) {
            let program = news.comm(tid as Pid);
            let change = Change::IllegalInstruction;
            news.notice(program.map(|program| Notice { program, change }));
        }
        match status {
            Status::Exited(_) | Status::Signaled(_) => {
                follower.becoming.remove(&tid);
                follower.native.remove(&tid);
                let signal = match status {
                    Status::Signaled(signal) => Some(signal),
                    _ => None,
                };
                let death = follower.deaths.ended(tid, signal);
                let mut lives = news.lives();
                lives.unborn.remove(&(tid as Pid));
                lives.starting.remove(&(tid as Pid));
                let gone = Gone {
                    pid: tid as Pid,
                    unborn: lives.unborn.clone(),
                    death,
                };
                lives.gone.push(gone);
            }
            Status::Stopped { signal, event } => {
                started |= event == libc::PTRACE_EVENT_EXEC;
                follower.stopped(tid, signal, event);
            }
        }
    }
}

struct Follower<'a> {
    qemu: &'a Qemu,
    news: &'a News,
    /// Processes that have been made to execute QEMU, and will tell so.
    becoming: BTreeMap<pid_t, Becoming>,
    /// Processes that run without QEMU.
    native: BTreeSet<pid_t>,
    deaths: Deaths,
}

impl Follower<'_> {
    fn stopped(&mut self, tid: pid_t, signal: c_int, event: c_int) {
        // A thread that is gone in between is told of by a status of its own.
        let _ = match event {
            0 if signal == CALL_STOP => {
                let goes_on = match self.becoming.get_mut(&tid) {
                    Some(becoming) => match becoming.stopped(tid) {
                        Next::Call => Ok(()),
                        Next::Refused => Err(Escape::Refused.into()),
                    },
                    None => self.executed(tid),
                };
                if let Err(why) = &goes_on {
                    self.escapes(tid, why);
                }
                let how = match goes_on {
                    Ok(()) => Resume::Call,
                    Err(_) => Resume::Run,
                };
                sys::resume(tid, how, 0)
            }
            0 => {
                self.deaths.stopped(tid, signal);
                sys::resume(tid, Resume::Run, signal)
            }
            EVENT_STOP
                if matches!(
                    signal,
                    libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU
                ) =>
            {
                sys::listen(tid)
            }
            libc::PTRACE_EVENT_EXEC if self.becoming.remove(&tid).is_some() => {
                self.news.lives().starting.insert(tid as Pid);
                sys::resume(tid, Resume::Run, 0)
            }
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                if let Ok(child) = sys::event_message(tid) {
                    self.forked(tid, child as pid_t);
                }
                sys::resume(tid, Resume::Run, 0)
            }
            // The call is still to return, and to overwrite RAX.
            libc::PTRACE_EVENT_EXEC => sys::resume(tid, Resume::Call, 0),
            _ => sys::resume(tid, Resume::Run, 0),
        };
    }

    /// A process has executed a program, and is about to run it. It will execute QEMU instead; or why not.
    fn executed(&mut self, pid: pid_t) -> io::Result<()> {
        self.news.notice(Notice::of_privilege(pid as Pid));
        let begin = || {
            if self.news.is_ending() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let program = std::fs::read_link(format!("/proc/{pid}/exe"))?;
            can_become(pid, self.qemu, &program)?;
            let comm = std::fs::read(format!("/proc/{pid}/comm"))?;
            let comm = comm.strip_suffix(b"\n").unwrap_or(&comm).to_vec();
            let becoming = Becoming::begin(pid, self.qemu, &program, &comm)?;
            Ok::<_, io::Error>((comm, becoming))
        };
        let (comm, becoming) = begin()?;
        self.native.remove(&pid);
        let comm = String::from_utf8_lossy(&comm).into_owned();
        self.programs().insert(pid as Pid, comm);
        self.becoming.insert(pid, becoming);
        Ok(())
    }

    /// A process runs its program all the same, only not under QEMU.
    fn escapes(&mut self, pid: pid_t, why: &io::Error) {
        self.becoming.remove(&pid);
        // After the end nobody is traced.
        if !self.news.is_ending() {
            self.native.insert(pid);
            self.news.escaped.fetch_add(1, Ordering::Relaxed);
            let comm = maps::comm(pid as Pid);
            let text =
                format!("{comm:?} could not run under QEMU ({why}): it ran without being traced");
            self.news.misses(Missing::new(text));
        }
    }

    /// Whether no process is half way to QEMU.
    fn has_settled(&self) -> bool {
        self.becoming.is_empty() && self.news.lives().starting.is_empty()
    }

    fn forked(&mut self, parent: pid_t, child: pid_t) {
        // The number may be a thread's.
        if !self.native.is_empty() && self.native.contains(&process_of(parent)) {
            self.native.insert(child);
            self.news.untraced.fetch_add(1, Ordering::Relaxed);
            let text = "a process is not in the trace: the program that started it ran without being traced";
            self.news.misses(Missing::new(text));
        } else {
            self.news.lives().unborn.insert(child as Pid);
        }
    }

    fn programs(&self) -> MutexGuard<'_, BTreeMap<Pid, String>> {
        let programs = &self.news.programs;
        programs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process of a thread; of one that is gone its own number.
pub(super) fn process_of(tid: pid_t) -> pid_t {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    process
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(tid)
}
