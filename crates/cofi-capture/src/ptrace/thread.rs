//! One traced thread, between its stops.

use super::breakpoints::Breakpoints;
use super::code::Code;
use super::plan::Plan;
use super::sys::{Regs, SigInfo, TRAP_FLAG};
use super::syscall::Table;
use crate::{Pid, Step};
use cofi_packet::ExecMode;

/// Where the vsyscall page lies, whose calls the kernel executes in place of the program.
pub(super) const VSYSCALL: std::ops::Range<u64> = 0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000;

/// The instruction that a thread runs next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub(super) ip: u64,
    /// What stands there, if it can be executed.
    pub(super) code: Option<Code>,
    /// It is a system call that was interrupted and runs again unless a signal handler comes first.
    pub(super) restarts: bool,
    /// It stands on the vsyscall page, and so returns here.
    pub(super) returns_to: Option<u64>,
}

/// Where a thread is.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    /// It has not stopped yet since it is known.
    New,
    /// In a system call of this table.
    Kernel(Table),
    /// About to run an instruction. Whether the observer knows that it is in user space is another matter.
    User(Next),
    /// On its way out.
    Exiting,
}

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) pid: Pid,
    pub(super) at: At,
    /// The observer has been told that the thread is in user space.
    pub(super) in_user: bool,
    pub(super) mode: ExecMode,
    /// The program itself has set the trap flag, so that it gets a SIGTRAP after each instruction.
    pub(super) own_trap: bool,
    /// The kernel takes the trap flag of our next step for the program's own, unless the thread runs freely first.
    pub(super) forget_step: bool,
    /// It has been let run freely for that reason.
    pub(super) forgetting: bool,
    /// The program blocks SIGTRAP in this thread; the kernel must not, see [`super::sigtrap`].
    pub(super) blocks_trap: bool,
    /// A SIGTRAP for the program that waits until it is not blocked.
    pub(super) held_trap: Option<Box<SigInfo>>,
    pub(super) breakpoints: Breakpoints,
    /// What it may run before it stops next, if it need not be stepped.
    pub(super) plan: Plan,
    /// It has been let run by its plan.
    pub(super) runs: bool,
    /// The plan by which it ran when that was last looked at.
    pub(super) seen: Option<u64>,
    /// The flags with which it is going to run its next instruction; none if it may have moved since they were read.
    pub(super) flags: Option<u64>,
    /// What it ran, while that is being told.
    pub(super) path: Vec<Step>,
}

impl Thread {
    /// A thread that has not stopped yet. It inherits from the one that made it, if there is one.
    pub(super) fn new(pid: Pid, creator: Option<&Self>, breakpoints: Breakpoints) -> Self {
        Self {
            pid,
            at: At::New,
            in_user: false,
            mode: creator.map_or(ExecMode::Bits64, |thread| thread.mode),
            own_trap: creator.is_some_and(|thread| thread.own_trap),
            forget_step: false,
            forgetting: false,
            blocks_trap: creator.is_some_and(|thread| thread.blocks_trap),
            held_trap: None,
            breakpoints,
            plan: Plan::default(),
            runs: false,
            seen: None,
            flags: None,
            path: Vec::new(),
        }
    }
}

/// The mode of a stopped thread: Linux gives user space these code segments.
pub(super) fn mode(regs: &Regs) -> ExecMode {
    const USER64_CS: u64 = 0x33;
    if regs.cs == USER64_CS {
        ExecMode::Bits64
    } else {
        ExecMode::Bits32
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

/// Whether R11, in which SYSCALL leaves the flags, shows the trap flag of a step.
pub(super) fn r11_shows_step(regs: &Regs) -> bool {
    // rt_sigreturn restores R11, and leaves no system call's number behind.
    (regs.orig_rax as i64) >= 0 && regs.r11 & TRAP_FLAG != 0
}
