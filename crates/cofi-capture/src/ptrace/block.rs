//! Whether the kernel's block step (`PTRACE_SINGLEBLOCK`) does what its name says, found out with a process of our own.
//!
//! It needs a bit of the processor (DEBUGCTL.BTF) that hypervisors often leave without effect: the step is accepted then,
//! and goes to the next instruction like any other.

use super::sys;
use cofi_insn::{Class, MAX_INSN_LEN, decode};
use cofi_packet::{ExecMode, Ip};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How many steps to make.
const STEPS: usize = 200;
/// How many steps from a plain instruction make a judgement.
const ENOUGH: usize = 8;
/// How often to look whether the process has stopped.
const NAP: Duration = Duration::from_micros(100);

/// What a block step does here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockStep {
    /// It stops after the next branch that is taken.
    Works,
    /// It stops after the next instruction.
    IsSingleStep,
    /// The kernel refuses it, or it cannot be told.
    Unknown,
}

/// Tries block steps on `waiting`, a program that runs until its standard input ends. It is killed in the end.
///
/// # Errors
/// The program cannot be started, or not be traced, or the tests took longer than `patience`
/// ([`io::ErrorKind::TimedOut`]).
pub fn block_step(waiting: &mut Command, patience: Duration) -> io::Result<BlockStep> {
    let deadline = Instant::now() + patience;
    let mut child = waiting
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let found = attempt(&mut child, deadline);
    let _ = child.kill();
    // It has been killed; whoever reaped it, it is gone.
    while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
        thread::sleep(NAP);
    }
    found
}

fn attempt(child: &mut Child, deadline: Instant) -> io::Result<BlockStep> {
    let pid = Pid::from_raw(child.id() as i32);
    ptrace::seize(pid, Options::PTRACE_O_EXITKILL)?;
    ptrace::interrupt(pid)?;
    if !stops(pid, deadline)? {
        return Err(io::Error::other("the test program ended too early"));
    }
    // From here on it need not wait any more.
    drop(child.stdin.take());
    let (mut next, mut elsewhere) = (0, 0);
    for _ in 0..STEPS {
        let expected = behind(pid)?;
        if sys::resume(pid.as_raw(), sys::Resume::Block, 0).is_err() {
            return Ok(BlockStep::Unknown);
        }
        if !stops(pid, deadline)? {
            break;
        }
        match expected {
            Some((at, behind)) => {
                let now = ptrace::getregs(pid)?.rip;
                next += usize::from(now == behind);
                // A string instruction repeats itself; that tells nothing.
                elsewhere += usize::from(now != behind && now != at);
            }
            None => continue,
        }
    }
    Ok(if next + elsewhere < ENOUGH {
        BlockStep::Unknown
    } else if elsewhere > next {
        BlockStep::Works
    } else {
        BlockStep::IsSingleStep
    })
}

/// The address of the next instruction and of that behind it, if the next is none that goes elsewhere.
fn behind(pid: Pid) -> io::Result<Option<(u64, u64)>> {
    let at = ptrace::getregs(pid)?.rip;
    let mut bytes = [0; MAX_INSN_LEN];
    let len = sys::read_memory(pid.as_raw(), at, &mut bytes);
    let plain = decode(&bytes[..len], Ip(at), ExecMode::Bits64)
        .ok()
        .filter(|insn| insn.class == Class::Other);
    Ok(plain.map(|insn| (at, at.wrapping_add(u64::from(insn.len)))))
}

/// Waits for the process to stop at a trap; false if it ended.
fn stops(pid: Pid, deadline: Instant) -> io::Result<bool> {
    loop {
        match waitpid(pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL))? {
            WaitStatus::StillAlive => {}
            WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(..) => {
                return Ok(true);
            }
            // A signal from elsewhere: not for a test.
            WaitStatus::Stopped(..) => ptrace::cont(pid, None)?,
            _ => return Ok(false),
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(NAP);
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockStep, block_step};
    use std::process::Command;
    use std::time::Duration;

    /// Which it is depends on the machine; but the kernel takes the request on all that Cofi knows, so it can be told.
    #[test]
    fn a_judgement_is_made() {
        let found = block_step(&mut Command::new("cat"), Duration::from_secs(60));
        let found = found.expect("a process of our own can be traced");
        eprintln!("block steps: {found:?}");
        assert_ne!(found, BlockStep::Unknown);
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let none = &mut Command::new("/no/such/program");
        block_step(none, Duration::from_secs(60)).expect_err("nothing to try it on");
    }
}
