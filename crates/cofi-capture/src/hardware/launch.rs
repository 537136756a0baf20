//! A program that waits, before it is executed, until events are there for it.
#![allow(unsafe_code, reason = "what a child does between fork and exec")]

use crate::ptrace::sys::{self, Resume, Status};
use crate::ptrace::{Command, maps};
use crate::{Mapping, MappingKind};
use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::thread::{self, JoinHandle};

/// A child that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pid: u32,
    go: Option<File>,
    thread: Option<JoinHandle<io::Result<Child>>>,
}

/// Makes a child, which waits.
pub(super) fn prepare(program: &Command) -> io::Result<Waiting> {
    let (told, tells) = io::pipe()?;
    let (waits, go) = io::pipe()?;
    let (tells, waits) = (OwnedFd::from(tells), OwnedFd::from(waits));
    let go = File::from(OwnedFd::from(go));
    let mut command = std::process::Command::new(&program.program);
    command.args(&program.args);
    let (tell, wait, other) = (tells.as_raw_fd(), waits.as_raw_fd(), go.as_raw_fd());
    let hold = move || {
        // SAFETY: nothing but system calls, on descriptors that are open; the buffers have the lengths that are said.
        unsafe {
            // If the parent ends, reading does.
            libc::close(other);
            let pid = libc::getpid().to_ne_bytes();
            if libc::write(tell, pid.as_ptr().cast(), pid.len()) != pid.len() as isize {
                return Err(io::Error::last_os_error());
            }
            let mut byte = 0_u8;
            loop {
                match libc::read(wait, (&raw mut byte).cast(), 1) {
                    1 => return Ok(()),
                    0 => return Err(io::ErrorKind::Interrupted.into()),
                    _ if *libc::__errno_location() == libc::EINTR => {}
                    _ => return Err(io::Error::last_os_error()),
                }
            }
        }
    };
    // SAFETY: `hold` calls nothing that may not be called between fork and exec.
    unsafe {
        command.pre_exec(hold);
    }
    // Spawning returns when the program has been executed, for which it waits.
    let thread = thread::Builder::new()
        .name("launch".into())
        .spawn(move || {
            let child = command.spawn();
            drop((tells, waits));
            child
        })?;
    let mut pid = [0; 4];
    let mut told = File::from(OwnedFd::from(told));
    match told.read_exact(&mut pid) {
        Ok(()) => Ok(Waiting {
            pid: u32::from_ne_bytes(pid),
            go: Some(go),
            thread: Some(thread),
        }),
        // There is no child: spawning says why.
        Err(error) => match thread.join() {
            Ok(Err(why)) => Err(why),
            _ => Err(error),
        },
    }
}

impl Waiting {
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets it go on: when this returns, the program has been executed.
    pub(super) fn start(mut self) -> io::Result<Child> {
        if let Some(go) = &mut self.go {
            go.write_all(&[1])?;
        }
        let thread = self.thread.take().map(JoinHandle::join);
        let ended = || io::Error::other("the thread that starts it has ended");
        thread.and_then(Result::ok).unwrap_or_else(|| Err(ended()))
    }
}

impl Waiting {
    /// Lets it go on until it has been executed, and until its libraries are mapped, at the program's first instruction, if what is mapped before
    /// is not enough. It stops there, unless it has ended.
    pub(super) fn hold(mut self, is_enough: impl Fn(&[Mapping]) -> bool) -> io::Result<Held> {
        let tid = self.pid as libc::pid_t;
        sys::seize(tid, libc::PTRACE_O_TRACEEXEC)?;
        if let Some(go) = &mut self.go {
            go.write_all(&[1])?;
        }
        let is_stopped = run_until(
            tid,
            |status| matches!(status, Status::Stopped { event, .. } if *event == libc::PTRACE_EVENT_EXEC),
        )?;
        let thread = self.thread.take().map(JoinHandle::join);
        let ended = || io::Error::other("the thread that starts it has ended");
        let child = thread
            .and_then(Result::ok)
            .unwrap_or_else(|| Err(ended()))?;
        let mut held = Held {
            child: Some(child),
            tid,
            is_stopped,
            ip: 0,
        };
        if is_stopped && !is_enough(&mapped(self.pid)) {
            held.is_stopped = to_entry(tid)?;
        }
        if held.is_stopped {
            let mut registers = sys::no_registers();
            sys::registers(tid, &mut registers)?;
            held.ip = registers.rip;
            // Who waits for this instruction is to hear of it.
            sys::set_flags(tid, registers.eflags & !sys::RESUME_FLAG)?;
        }
        Ok(held)
    }
}

/// The code that a process has mapped from files.
pub(super) fn mapped(pid: u32) -> Vec<Mapping> {
    let lines = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let lines = lines.split(|byte| *byte == b'\n');
    let is_code = |map: &Mapping| map.kind == MappingKind::File && map.prot & 4 != 0;
    lines.filter_map(maps::parse).filter(is_code).collect()
}

/// A program that has been executed and is stopped, or has ended.
#[derive(Debug)]
pub(super) struct Held {
    child: Option<Child>,
    tid: libc::pid_t,
    is_stopped: bool,
    ip: u64,
}

impl Held {
    /// The instruction that it is going to run next, if it has not ended.
    pub(super) fn ip(&self) -> Option<u64> {
        self.is_stopped.then_some(self.ip)
    }

    pub(super) const fn pid(&self) -> u32 {
        self.tid as u32
    }

    /// Lets it go on.
    pub(super) fn release(mut self) -> io::Result<Child> {
        if std::mem::take(&mut self.is_stopped) {
            sys::detach(self.tid, 0)?;
        }
        self.child
            .take()
            .ok_or_else(|| io::Error::other("it was let go before"))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // One that is not to go on ends.
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Lets a traced program go on until a stop is the one; whether it has come to it, and not to its end, which is left for others to hear of.
fn run_until(tid: libc::pid_t, is_it: impl Fn(&Status) -> bool) -> io::Result<bool> {
    let flags =
        WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT | WaitPidFlag::__WALL;
    loop {
        match waitid(Id::Pid(Pid::from_raw(tid)), flags) {
            Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) | Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        let status = sys::wait_for(tid)?;
        if is_it(&status) {
            return Ok(true);
        }
        let signal = match status {
            Status::Stopped { signal, event: 0 } => signal,
            Status::Stopped { .. } => 0,
            Status::Exited(_) | Status::Signaled(_) => return Ok(false),
        };
        sys::resume(tid, Resume::Run, signal)?;
    }
}

/// Lets a program that has just been executed go on to its own first instruction, before which its interpreter maps the libraries; whether it
/// has come there.
fn to_entry(tid: libc::pid_t) -> io::Result<bool> {
    const AT_ENTRY: u64 = 9;
    /// The first register's breakpoint, at the execution of an instruction.
    const FIRST: u64 = 1;
    let vector = std::fs::read(format!("/proc/{tid}/auxv"))?;
    let words = |width: usize| {
        let words = vector.chunks_exact(width);
        words.map(|bytes| {
            bytes
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        })
    };
    let entry = |width: usize| {
        let words: Vec<u64> = words(width).collect();
        let mut pairs = words.chunks_exact(2);
        pairs.find_map(|pair| (pair[0] == AT_ENTRY).then_some(pair[1]))
    };
    // (That of a 32-bit program has half the width.)
    let Some(entry) = entry(8).or_else(|| entry(4)) else {
        return Ok(true);
    };
    sys::set_debug_register(tid, 0, entry)?;
    sys::set_debug_register(tid, 7, FIRST)?;
    sys::resume(tid, Resume::Run, 0)?;
    let is_there = |status: &Status| {
        let mut registers = sys::no_registers();
        matches!(
            status,
            Status::Stopped {
                signal: libc::SIGTRAP,
                event: 0
            }
        ) && sys::registers(tid, &mut registers).is_ok()
            && registers.rip == entry
    };
    let is_stopped = run_until(tid, is_there)?;
    if is_stopped {
        sys::set_debug_register(tid, 7, 0)?;
    }
    Ok(is_stopped)
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // A child that is not to go on ends, and tells its parent so, who must be there to hear it.
        drop(self.go.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn shell(words: &str) -> Command {
        Command {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), words.into()],
        }
    }

    #[test]
    fn it_waits_until_it_is_started() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("there");
        let words = format!("echo > {}; exit 7", there.display());
        let waiting = prepare(&shell(&words)).unwrap();
        let pid = waiting.pid();
        assert!(!there.exists());
        let mut child = waiting.start().unwrap();
        assert_eq!(child.id(), pid);
        let status = child.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(7), None));
        assert!(there.exists());
    }

    #[test]
    fn one_that_is_held_has_its_libraries() {
        let libc = |maps: &[Mapping]| {
            let mut paths = maps.iter().map(|map| map.path.to_string_lossy());
            paths.any(|path| path.contains("libc.so"))
        };
        // The interpreter alone is mapped at first.
        let held = prepare(&shell("exit 7")).unwrap().hold(|_| true).unwrap();
        assert!(held.is_stopped && !libc(&mapped(held.tid as u32)));
        drop(held);
        let held = prepare(&shell("exit 7")).unwrap().hold(libc).unwrap();
        assert!(held.is_stopped && libc(&mapped(held.pid())));
        let is_inside = |map: &Mapping| (map.start..map.end).contains(&held.ip().unwrap());
        assert!(mapped(held.pid()).iter().any(is_inside));
        let mut child = held.release().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(7));
        // One that is held and not to go on is gone.
        let held = prepare(&shell("sleep 1000")).unwrap().hold(libc).unwrap();
        let folder = std::path::PathBuf::from(format!("/proc/{}", held.tid));
        assert!(folder.exists());
        drop(held);
        assert!(!folder.exists());
        let none = Command {
            program: "/no/such/program".into(),
            args: Vec::new(),
        };
        let error = prepare(&none).unwrap().hold(libc).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn one_that_is_not_started_is_gone() {
        let waiting = prepare(&shell("true")).unwrap();
        let folder = std::path::PathBuf::from(format!("/proc/{}", waiting.pid()));
        assert!(folder.exists());
        drop(waiting);
        assert!(!folder.exists());
        let error = prepare(&Command {
            program: "/no/such/program".into(),
            args: Vec::new(),
        });
        let error = error.unwrap().start().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
