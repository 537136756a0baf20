//! A program that waits, before it is executed, until events are there for it.
#![allow(unsafe_code, reason = "what a child does between fork and exec")]

use crate::ptrace::Command;
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
