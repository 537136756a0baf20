//! Whether breakpoints in debug registers do what the engine needs, found out with a process of our own.
//!
//! The kernel may refuse them, and a hypervisor may let them be set and not fire.

use super::launch::Stops;
use super::sys::{self, RESUME_FLAG, Regs, Resume, Status};
use libc::{c_int, pid_t};
use std::io;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// How much processor time the child may take from one stop to the next, in hundredths of a second (the kernel's unit in /proc, USER_HZ).
/// Not time: on a machine that has other things to do it may not run for a while.
const MOST_TICKS: u64 = 50;
/// How long it may take nevertheless.
const PATIENCE: Duration = Duration::from_secs(60);
/// After how many looks to ask for the processor time.
const LOOKS: u32 = 100;
/// How often to look whether it has stopped.
const NAP: Duration = Duration::from_micros(50);
/// How often the child comes to the breakpoint.
const ROUNDS: u64 = 4;

/// What breakpoints in debug registers do here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BreakpointStop {
    /// A thread stops at each, and goes on when it is told to.
    Works,
    /// The kernel refuses to set them.
    Refused,
    /// They are taken, but a thread does not stop there, or does not go on from there.
    Silent,
}

/// Tries breakpoints in debug registers on a child of this process.
///
/// # Errors
/// There can be no child, or it cannot be traced.
pub fn breakpoint_stop() -> io::Result<BreakpointStop> {
    let child = sys::fork_trial()?;
    let found = attempt(child);
    sys::end(child);
    found
}

/// Whether the engine can use them. Tried once.
pub(super) fn breakpoints_work() -> bool {
    static WORK: OnceLock<bool> = OnceLock::new();
    *WORK.get_or_init(|| matches!(breakpoint_stop(), Ok(BreakpointStop::Works)))
}

/// Where the engine stops a program on this machine, if it is to stop so.
pub fn possible_stops(wanted: Stops) -> Stops {
    match wanted {
        Stops::Branches if breakpoints_work() => Stops::Branches,
        _ => Stops::Instructions,
    }
}

fn attempt(child: pid_t) -> io::Result<BreakpointStop> {
    sys::seize(child, libc::PTRACE_O_EXITKILL)?;
    sys::interrupt(child)?;
    if !stops(child)? {
        return Err(io::Error::other("the test process did not stop"));
    }
    let at = sys::trial_address();
    if sys::set_debug_register(child, 0, at).is_err()
        || sys::set_debug_register(child, 7, 1).is_err()
    {
        return Ok(BreakpointStop::Refused);
    }
    // The breakpoint is hit once a round, and the round runs though it begins at the breakpoint.
    let begin = match hit(child, at, None)? {
        Some(regs) => regs.rcx,
        None => return Ok(BreakpointStop::Silent),
    };
    for round in 1..=ROUNDS {
        let came_round = hit(child, at, None)?.is_some_and(|regs| regs.rcx == begin + round);
        if !came_round {
            return Ok(BreakpointStop::Silent);
        }
    }
    // The same if the thread did not come there by a breakpoint, and so has no resume flag yet.
    let mut regs = sys::no_registers();
    sys::registers(child, &mut regs)?;
    let hit = hit(child, at, Some(regs.eflags & !RESUME_FLAG))?;
    if hit.is_none_or(|regs| regs.rcx != begin + ROUNDS) {
        return Ok(BreakpointStop::Silent);
    }
    sys::set_flags(child, regs.eflags & !RESUME_FLAG)?;
    let again = self::hit(child, at, Some(regs.eflags | RESUME_FLAG))?;
    Ok(
        if again.is_some_and(|regs| regs.rcx == begin + ROUNDS + 1) {
            BreakpointStop::Works
        } else {
            BreakpointStop::Silent
        },
    )
}

/// Lets the child run, with these flags if any, up to its breakpoint; its registers there.
fn hit(child: pid_t, at: u64, flags: Option<u64>) -> io::Result<Option<Regs>> {
    if let Some(flags) = flags {
        sys::set_flags(child, flags)?;
    }
    sys::resume(child, Resume::Run, 0)?;
    if !stops(child)? {
        return Ok(None);
    }
    let mut regs = sys::no_registers();
    sys::registers(child, &mut regs)?;
    Ok((regs.rip == at).then_some(regs))
}

/// Whether the child stops for a trap in time.
fn stops(child: pid_t) -> io::Result<bool> {
    const TRAP: c_int = libc::SIGTRAP;
    let (begin, ticks) = (Instant::now(), processor_ticks(child));
    for look in 1_u32.. {
        let is_late = look.is_multiple_of(LOOKS)
            && (processor_ticks(child) >= ticks + MOST_TICKS || begin.elapsed() >= PATIENCE);
        if is_late {
            break;
        }
        match sys::poll(child)? {
            Some(Status::Stopped { signal: TRAP, .. }) => return Ok(true),
            // A signal from elsewhere: not for a test.
            Some(Status::Stopped { .. }) => sys::resume(child, Resume::Run, 0)?,
            Some(_) => return Ok(false),
            None => thread::sleep(NAP),
        }
    }
    Ok(false)
}

/// What a process has taken of the processor, in its own code and in the kernel.
fn processor_ticks(pid: pid_t) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The 14th and 15th field; the second, a name in brackets, may hold anything.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let times = fields.split(' ').skip(11).take(2);
    times.filter_map(|time| time.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::breakpoint_stop;

    /// Which it is depends on the machine; but it can be told, again and again.
    #[test]
    fn a_judgement_is_made() {
        let found = breakpoint_stop().expect("a process of our own can be traced");
        eprintln!("breakpoints in debug registers: {found:?}");
        for _ in 0..3 {
            assert_eq!(breakpoint_stop().expect("as before"), found);
        }
    }
}
