//! One traced thread, between its stops.

use super::sys::{Regs, TRAP_FLAG};
use crate::Pid;
use cofi_packet::ExecMode;

/// Where a thread is, as told to the observer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum At {
    /// In user space, with the instruction at this address to run next.
    User(u64),
    /// In the kernel. Where it goes on unless a signal handler comes first, if that is known.
    Kernel(Option<u64>),
    /// In the kernel after an interrupted system call, which runs again unless a signal handler comes first: the
    /// instruction's address, and the one after it.
    Restart(u64, u64),
}

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) pid: Pid,
    pub(super) at: At,
    pub(super) mode: ExecMode,
    /// A signal was delivered: the next stop may be a handler's first instruction.
    pub(super) signaled: bool,
    /// The program itself has set the trap flag: it is to get a SIGTRAP after each instruction.
    pub(super) trap: bool,
    /// The trap flag in the frame from which a signal handler is about to return.
    pub(super) returning_trap: bool,
    /// Stopped for job control.
    pub(super) in_group_stop: bool,
}

/// The mode of a stopped thread: Linux gives user space these code segments.
pub(super) fn mode(regs: &Regs) -> ExecMode {
    const USER32_CS: u64 = 0x23;
    if regs.cs == USER32_CS {
        ExecMode::Bits32
    } else {
        ExecMode::Bits64
    }
}

/// Whether a system call ended with one of the codes by which the kernel runs it again (ERESTARTSYS, ERESTARTNOINTR,
/// ERESTARTNOHAND, ERESTART_RESTARTBLOCK); user space never sees them.
pub(super) fn is_restart(regs: &Regs) -> bool {
    let code = regs.rax as i64;
    // A 32-bit program's registers are 32 bits wide, but not everywhere sign-extended.
    let code = if mode(regs) == ExecMode::Bits32 {
        i64::from(code as i32)
    } else {
        code
    };
    (regs.orig_rax as i64) >= 0 && matches!(code, -512 | -513 | -514 | -516)
}

/// Whether a system call may have changed what is executable.
pub(super) fn changes_mappings(number: u64, mode: ExecMode) -> bool {
    match mode {
        // mmap mprotect munmap mremap shmat shmdt remap_file_pages pkey_mprotect
        ExecMode::Bits64 => matches!(number, 9 | 10 | 11 | 25 | 30 | 67 | 216 | 329),
        // mmap munmap ipc mprotect mremap mmap2 remap_file_pages pkey_mprotect shmat shmdt
        _ => matches!(
            number,
            90 | 91 | 117 | 125 | 163 | 192 | 257 | 380 | 397 | 398
        ),
    }
}

/// The number of rt_sigreturn in 64-bit programs, and where its frame (at the stack pointer) keeps the flags: the 18th
/// register after the 40 bytes that begin a `ucontext_t`.
pub(super) const RT_SIGRETURN: u64 = 15;
pub(super) const FRAME_FLAGS: u64 = 40 + 17 * 8;

/// Whether a system call may have renamed the thread: prctl.
pub(super) fn renames(number: u64, mode: ExecMode) -> bool {
    number == if mode == ExecMode::Bits64 { 157 } else { 172 }
}

/// Whether a system call may have changed the signal mask: rt_sigprocmask, sigprocmask.
pub(super) fn sets_mask(number: u64, mode: ExecMode) -> bool {
    match mode {
        ExecMode::Bits64 => matches!(number, 14 | 15),
        _ => matches!(number, 119 | 126 | 173 | 175),
    }
}

/// R11 after SYSCALL holds the flags; whether the step's own trap flag shows in them.
pub(super) fn r11_shows_step(regs: &Regs) -> bool {
    regs.r11 & TRAP_FLAG != 0 && regs.eflags & TRAP_FLAG == 0
}
