//! What to do for a process whose tracer was killed.

use super::sys::{self, Resume, Status, TRAP_FLAG};
use super::{breakpoints::REGISTERS, engine::unless_gone, maps};
use crate::Pid;
use std::io;

/// Takes the breakpoints of a tracer that is no more out of the debug registers of a process's threads, and lets the process run.
/// A thread that was about to die at one runs on.
///
/// # Errors
/// There is no such process, or it cannot be traced.
pub fn take_breakpoints_away(pid: Pid) -> io::Result<()> {
    for tid in maps::threads(pid)? {
        let tid = tid as i32;
        match sys::seize(tid, 0).and_then(|()| sys::interrupt(tid)) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
            result => result?,
        }
        unless_gone(mend(tid))?;
    }
    Ok(())
}

fn mend(tid: i32) -> io::Result<()> {
    loop {
        let Status::Stopped { signal, event } = sys::wait_for(tid)? else {
            return Ok(());
        };
        // The one that switches the others on comes first.
        for register in [7].into_iter().chain(0..REGISTERS) {
            sys::set_debug_register(tid, register, 0)?;
        }
        let mut regs = sys::no_registers();
        sys::registers(tid, &mut regs)?;
        if regs.eflags & TRAP_FLAG != 0 {
            sys::set_flags(tid, regs.eflags & !TRAP_FLAG)?;
        }
        let is_ours = event == 0 && signal == libc::SIGTRAP;
        let handed_on = if event != 0 || is_ours { 0 } else { signal };
        if !is_ours && sys::trap_is_pending(tid)? {
            sys::resume(tid, Resume::Run, handed_on)?;
            continue;
        }
        return sys::detach(tid, handed_on);
    }
}
