//! SIGTRAP as the program sees it.
//!
//! Every step ends in a SIGTRAP that the kernel forces upon the thread. If the thread blocks or ignores SIGTRAP at that
//! moment, the kernel unblocks it and forgets the program's handler. So the engine keeps SIGTRAP unblocked, remembers
//! what the program wants, and shows it that wherever it looks: in the masks that system calls return, in the frames
//! of signal handlers, and by holding back what is to be blocked. System calls are not stepped over but run from
//! their entry to their end, which takes no SIGTRAP: there the mask may be any.

use super::sys::{self, Regs, SigInfo};
use super::syscall::{Table, arguments};
use super::thread::Thread;
use crate::Pid;
use cofi_packet::ExecMode;
use std::io;

/// SIGTRAP in a signal mask, and in the mask's first byte.
const TRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);
/// Where a `ucontext_t` of 64-bit programs keeps the signal mask.
const UCONTEXT_MASK: u64 = 296;

const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;
const SIG_BLOCK: u64 = 0;
const SIG_UNBLOCK: u64 = 1;

fn read_word(tid: Pid, at: u64, size: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    let read = sys::read_memory(tid as i32, at, &mut bytes[..size]);
    (read == size).then(|| u64::from_le_bytes(bytes))
}

/// Adds SIGTRAP to a mask in the program's memory.
fn show_blocked(tid: Pid, mask_at: u64) -> io::Result<()> {
    match read_word(tid, mask_at, 1) {
        Some(byte) => sys::write_memory(tid as i32, mask_at, &[byte as u8 | TRAP_BIT as u8]),
        None => Ok(()),
    }
}

/// Unblocks SIGTRAP in the kernel; whether it was blocked.
fn unblock(tid: Pid) -> io::Result<bool> {
    let mask = sys::signal_mask(tid as i32)?;
    if mask & TRAP_BIT == 0 {
        return Ok(false);
    }
    sys::set_signal_mask(tid as i32, mask & !TRAP_BIT)?;
    Ok(true)
}

/// Takes over the mask of a thread that is stopped for the first time.
pub(super) fn take_over(tid: Pid, thread: &mut Thread) -> io::Result<()> {
    thread.blocks_trap |= unblock(tid)?;
    Ok(())
}

/// Gives a thread that is to be let go the mask that the program wants.
pub(super) fn give_back(tid: Pid, thread: &Thread) -> io::Result<()> {
    if thread.blocks_trap {
        let mask = sys::signal_mask(tid as i32)?;
        sys::set_signal_mask(tid as i32, mask | TRAP_BIT)?;
    }
    Ok(())
}

/// A signal handler is entered: the frame holds the mask to return to.
pub(super) fn handler_entered(tid: Pid, thread: &mut Thread, regs: &Regs) -> io::Result<()> {
    let before = thread.blocks_trap;
    thread.blocks_trap |= unblock(tid)?;
    if before && thread.mode == ExecMode::Bits64 {
        // The handler's third argument is its context, even if it does not ask for one.
        show_blocked(tid, regs.rdx.wrapping_add(UCONTEXT_MASK))?;
    }
    Ok(())
}

/// A signal handler has returned: the mask is the frame's.
pub(super) fn handler_returned(tid: Pid, thread: &mut Thread) -> io::Result<()> {
    thread.blocks_trap = unblock(tid)?;
    Ok(())
}

/// rt_sigprocmask or its like has succeeded.
pub(super) fn mask_set(tid: Pid, thread: &mut Thread, regs: &Regs, table: Table) -> io::Result<()> {
    let [how, set, old, _] = arguments(regs, table);
    let before = thread.blocks_trap;
    let named = unblock(tid)?;
    if set != 0 {
        thread.blocks_trap = match how {
            SIG_BLOCK => before || named,
            SIG_UNBLOCK => before && read_word(tid, set, 1).is_none_or(|byte| byte & TRAP_BIT == 0),
            _ => named,
        };
    }
    if before && old != 0 {
        show_blocked(tid, old)?;
    }
    Ok(())
}

/// rt_sigaction or its like has succeeded; `ignores` tells whether the process is to ignore SIGTRAP.
pub(super) fn action_set(
    tid: Pid,
    ignores: &mut bool,
    regs: &Regs,
    table: Table,
) -> io::Result<()> {
    let [signal, act, old, _] = arguments(regs, table);
    if signal != libc::SIGTRAP as u64 {
        return Ok(());
    }
    let size = if table == Table::Native { 8 } else { 4 };
    if *ignores && old != 0 && read_word(tid, old, size) == Some(SIG_DFL) {
        sys::write_memory(tid as i32, old, &SIG_IGN.to_le_bytes()[..size])?;
    }
    if act != 0 {
        *ignores = read_word(tid, act, size) == Some(SIG_IGN);
    }
    Ok(())
}

/// Whether the program gets a SIGTRAP that somebody sent it now; if it is to wait, it is kept.
pub(super) fn lets_through(thread: &mut Thread, ignores: bool, info: &SigInfo) -> bool {
    if thread.blocks_trap {
        thread.held_trap.get_or_insert_with(|| Box::new(*info));
        return false;
    }
    !ignores
}
