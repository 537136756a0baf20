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
    go: File,
    thread: JoinHandle<io::Result<Child>>,
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
            go,
            thread,
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
        self.go.write_all(&[1])?;
        self.thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that starts it has ended")))
    }
}
