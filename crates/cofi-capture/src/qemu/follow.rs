//! Every program that is started runs under QEMU: the first one, and each that a traced process starts with `exec`.
//!
//! The program is started as it would be without Cofi, under a tracer that does nothing but wait. When `exec` has succeeded, and
//! before the new program's first instruction, the tracer makes it execute QEMU instead, with the program's own
//! arguments. So the kernel itself has found the file, read the script's first line, and refused what it refuses.

use super::launch::Qemu;
use crate::Pid;
use crate::ptrace::sys::{self, CALL_STOP, Dispositions, EVENT_STOP, Regs, Resume, Status};
use crate::ptrace::{Command, EngineError, Options, Outcome};
use libc::{c_int, pid_t};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const TRACED: c_int = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACESYSGOOD;

/// More pointers and text than this are not put below a new program's stack, of which the kernel maps 128 KiB.
const MOST: usize = 100 << 10;

/// What the tracer tells the recorder.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The program that each process runs.
    programs: Mutex<BTreeMap<Pid, PathBuf>>,
    /// Programs that run without being traced.
    pub(super) escaped: AtomicU64,
    lives: Mutex<Lives>,
    /// The tracer is to leave everything to itself.
    pub(super) stop: AtomicBool,
    /// The tracer's thread, to wake it.
    thread: AtomicI32,
}

/// Who has come and gone.
#[derive(Debug, Default)]
struct Lives {
    /// Children of fork that have not told of themselves yet.
    unborn: BTreeSet<Pid>,
    gone: Vec<Gone>,
}

/// A process (or a thread) that has ended.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) pid: Pid,
    /// Children that had not told of themselves at that time: of these it may be the parent, whose blocks they have.
    pub(super) unborn: BTreeSet<Pid>,
}

impl News {
    fn lives(&self) -> MutexGuard<'_, Lives> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process has told of itself.
    pub(super) fn born(&self, pid: Pid) {
        self.lives().unborn.remove(&pid);
    }

    /// Who has ended since the last call.
    pub(super) fn gone(&self) -> Vec<Gone> {
        std::mem::take(&mut self.lives().gone)
    }

    /// A process is not asked for any more.
    pub(super) fn forget(&self, pid: Pid) {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.remove(&pid);
    }

    /// The name of the program that a process runs, as the kernel shortens it.
    pub(super) fn comm(&self, pid: Pid) -> Option<String> {
        let programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let name = programs.get(&pid)?.file_name()?;
        Some(String::from_utf8_lossy(&name.as_bytes()[..name.len().min(15)]).into_owned())
    }

    /// Ends the tracer's wait.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
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
    };
    let mut started = false;
    loop {
        let (tid, status) = match sys::wait_any() {
            Ok(news) => news,
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {
                if news.stop.load(Ordering::Relaxed) {
                    return Ok(Outcome::Detached);
                }
                continue;
            }
            Err(error) => return Err(EngineError::Trace(error)),
        };
        match status {
            Status::Exited(_) if tid == leader && !started => return Err(fail(gate.failure())),
            Status::Exited(code) if tid == leader => return Ok(Outcome::Exited(code)),
            Status::Signaled(signal) if tid == leader => return Ok(Outcome::Signaled(signal)),
            Status::Exited(_) | Status::Signaled(_) => {
                follower.becoming.remove(&tid);
                let mut lives = news.lives();
                lives.unborn.remove(&(tid as Pid));
                let gone = Gone {
                    pid: tid as Pid,
                    unborn: lives.unborn.clone(),
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
}

/// What a process that is made to execute QEMU was before, in case that it cannot.
struct Becoming {
    regs: Regs,
    /// What stands where the program begins.
    code: [u8; 8],
    /// The call has begun.
    called: bool,
}

impl Follower<'_> {
    fn stopped(&mut self, tid: pid_t, signal: c_int, event: c_int) {
        // A thread that is gone in between is told of by a status of its own.
        let _ = match event {
            0 if signal == CALL_STOP => match self.becoming.get_mut(&tid) {
                Some(becoming) if !becoming.called => {
                    becoming.called = true;
                    sys::resume(tid, Resume::Call, 0)
                }
                Some(_) => {
                    self.refused(tid);
                    sys::resume(tid, Resume::Run, 0)
                }
                None => match self.executed(tid) {
                    true => sys::resume(tid, Resume::Call, 0),
                    false => sys::resume(tid, Resume::Run, 0),
                },
            },
            0 => sys::resume(tid, Resume::Run, signal),
            EVENT_STOP
                if matches!(
                    signal,
                    libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU
                ) =>
            {
                sys::listen(tid)
            }
            libc::PTRACE_EVENT_EXEC if self.becoming.remove(&tid).is_some() => {
                sys::resume(tid, Resume::Run, 0)
            }
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                if let Ok(child) = sys::event_message(tid) {
                    self.news.lives().unborn.insert(child as Pid);
                }
                sys::resume(tid, Resume::Run, 0)
            }
            // The call is still to return, and to overwrite RAX.
            libc::PTRACE_EVENT_EXEC => sys::resume(tid, Resume::Call, 0),
            _ => sys::resume(tid, Resume::Run, 0),
        };
    }

    /// A process has executed a program, and is about to run it. Whether it will execute QEMU instead.
    fn executed(&mut self, pid: pid_t) -> bool {
        let program = std::fs::read_link(format!("/proc/{pid}/exe"));
        let result = program.and_then(|program| {
            if !is_x86_64(Path::new(&format!("/proc/{pid}/exe")))? || !self.reaches_qemu(pid) {
                return Err(io::Error::from(io::ErrorKind::Unsupported));
            }
            let becoming = become_qemu(pid, &self.qemu.prefix(), &program)?;
            Ok((program, becoming))
        });
        // It runs all the same, only not under QEMU.
        let Ok((program, becoming)) = result else {
            self.news.escaped.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        self.programs().insert(pid as Pid, program);
        self.becoming.insert(pid, becoming);
        true
    }

    fn programs(&self) -> MutexGuard<'_, BTreeMap<Pid, PathBuf>> {
        let programs = &self.news.programs;
        programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether QEMU and the plugin are where they are for us also for this process, which may have another root or other
    /// mounts.
    fn reaches_qemu(&self, pid: pid_t) -> bool {
        [self.qemu.path(), &self.qemu.plugin()].iter().all(|path| {
            let mut there = OsString::from(format!("/proc/{pid}/root"));
            there.push(path);
            let same = |a: Metadata, b: Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
            std::fs::metadata(path)
                .and_then(|ours| Ok(same(ours, std::fs::metadata(there)?)))
                .unwrap_or(false)
        })
    }

    /// A process could not execute QEMU: it is to run its own program after all.
    fn refused(&mut self, pid: pid_t) {
        let Some(Becoming { regs, code, .. }) = self.becoming.remove(&pid) else {
            return;
        };
        self.news.escaped.fetch_add(1, Ordering::Relaxed);
        // If it is gone in between, a status of its own tells.
        let _ = sys::poke(pid, regs.rip, code).and_then(|()| sys::set_registers(pid, &regs));
    }
}

fn is_x86_64(path: &Path) -> io::Result<bool> {
    let mut begin = [0; 20];
    File::open(path)?.read_exact(&mut begin)?;
    Ok(begin.starts_with(b"\x7fELF\x02") && begin[18..20] == [62, 0])
}

fn read_word(pid: pid_t, at: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    match sys::read_memory(pid, at, &mut bytes) {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

/// Makes a process that is about to run its first instruction execute QEMU with its own arguments. What it was before.
fn become_qemu(pid: pid_t, prefix: &[OsString], program: &Path) -> io::Result<Becoming> {
    let mut regs: Regs = sys::no_registers();
    sys::registers(pid, &mut regs)?;
    // The call that has executed the program is done: it is not to be made again.
    regs.orig_rax = u64::MAX;
    let before = regs;
    // The stack of a new program: the number of arguments, their addresses, 0, those of the environment, 0.
    let count = read_word(pid, regs.rsp)?;
    let arguments = regs.rsp + 8;
    let environment = arguments + 8 * (count + 1);
    if count as usize > MOST / 8 {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }

    // The new words' texts, from `base` on; then the table of arguments.
    let base = regs.rsp - 128 - MOST as u64;
    let mut texts = Vec::new();
    let mut put = |text: &[u8]| {
        let at = base + texts.len() as u64;
        texts.extend_from_slice(text);
        texts.push(0);
        at
    };
    let mut table: Vec<u64> = prefix.iter().map(|word| put(word.as_bytes())).collect();
    table.push(put(b"-0"));
    table.push(match count {
        0 => put(b""),
        _ => read_word(pid, arguments)?,
    });
    table.push(put(program.as_os_str().as_bytes()));
    for i in 1..count {
        table.push(read_word(pid, arguments + 8 * i)?);
    }
    table.push(0);
    let path = table[0];
    texts.resize(texts.len().next_multiple_of(8), 0);
    let list = base + texts.len() as u64;
    texts.extend(table.iter().flat_map(|address| address.to_ne_bytes()));
    if texts.len() > MOST {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    sys::write_memory(pid, base, &texts)?;

    // SYSCALL where the program would begin.
    let own = read_word(pid, regs.rip)?.to_ne_bytes();
    let mut code = own;
    code[..2].copy_from_slice(&[0x0f, 0x05]);
    sys::poke(pid, regs.rip, code)?;
    regs.rax = libc::SYS_execve as u64;
    (regs.rdi, regs.rsi, regs.rdx) = (path, list, environment);
    sys::set_registers(pid, &regs)?;
    Ok(Becoming {
        regs: before,
        code: own,
        called: false,
    })
}
