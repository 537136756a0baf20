//! What the engine must know of Linux's system calls: the few after which something has changed that it keeps.

use super::code::CodeSpace;
use super::sys::{self, Regs, Request};
use crate::Pid;

/// The table by which a system call was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Table {
    /// That of x86-64: SYSCALL in 64-bit code.
    Native,
    /// That of i386: INT 0x80 anywhere, and whatever 32-bit code uses.
    Compat,
}

/// What a system call may have changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// Nothing that matters here.
    None,
    /// What is executable, or its contents.
    Mappings,
    /// The thread's name.
    Name,
    /// The signal mask.
    Mask,
    /// How a signal is taken.
    Action,
    /// Everything: a signal handler returned.
    SignalReturn,
}

/// Whose memory a new process has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sharing {
    /// Its own.
    Nothing,
    /// That of its creator, who waits until it has another or ends.
    Borrowed,
    /// That of its creator.
    Shared,
}

const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;

/// What the system call in which a thread makes another one says about their memory.
pub(super) fn sharing(regs: &Regs, table: Table, tid: Pid) -> Sharing {
    let [first, ..] = arguments(regs, table);
    let flags = match (table, regs.orig_rax) {
        // fork, vfork, clone
        (Table::Native, 57) | (Table::Compat, 2) => 0,
        (Table::Native, 58) | (Table::Compat, 190) => CLONE_VM | CLONE_VFORK,
        (Table::Native, 56) | (Table::Compat, 120) => first,
        // clone3, whose flags stand in memory; what else there may be is not known.
        (_, 435) => {
            let mut flags = [0; 8];
            if sys::read_memory(tid as i32, first, &mut flags) == flags.len() {
                u64::from_le_bytes(flags)
            } else {
                CLONE_VM
            }
        }
        _ => CLONE_VM,
    };
    match (flags & CLONE_VM != 0, flags & CLONE_VFORK != 0) {
        (false, _) => Sharing::Nothing,
        (true, true) => Sharing::Borrowed,
        (true, false) => Sharing::Shared,
    }
}

/// The arguments of a finished system call, as far as they are looked at.
pub(super) fn arguments(regs: &Regs, table: Table) -> [u64; 4] {
    match table {
        Table::Native => [regs.rdi, regs.rsi, regs.rdx, regs.r10],
        Table::Compat => [regs.rbx, regs.rcx, regs.rdx, regs.rsi].map(|r| r & 0xffff_ffff),
    }
}

const PROT_EXEC: u64 = 4;
const MAP_FIXED: u64 = 0x10;
/// In MAP_SHARED_VALIDATE too.
const MAP_SHARED: u64 = 1;
const PR_SET_NAME: u64 = 15;

/// Whether a finished system call was an attempt to trace, which the kernel refused.
pub(super) fn was_refused_to_trace(regs: &Regs, table: Table) -> bool {
    const EPERM: i32 = -libc::EPERM;
    let is_ptrace = match table {
        Table::Native => regs.orig_rax == 101,
        Table::Compat => regs.orig_rax == 26,
    };
    let request = arguments(regs, table)[0] as Request;
    is_ptrace
        && regs.rax as i32 == EPERM
        && [
            libc::PTRACE_TRACEME,
            libc::PTRACE_ATTACH,
            libc::PTRACE_SEIZE,
        ]
        .contains(&request)
}

/// What a finished system call may have changed.
pub(super) fn effect(regs: &Regs, table: Table, space: &CodeSpace) -> Effect {
    let number = regs.orig_rax as i64;
    if number < 0 {
        return Effect::SignalReturn;
    }
    let failed = match table {
        Table::Native => (-4095..0).contains(&(regs.rax as i64)),
        Table::Compat => (-4095..0).contains(&(regs.rax as i32)),
    };
    if failed {
        return Effect::None;
    }
    let args = arguments(regs, table);
    let mappings = |changed| {
        if changed {
            Effect::Mappings
        } else {
            Effect::None
        }
    };
    let in_range = |start, len| space.executes_in(start, len) || space.shares_in(start, len);
    match (table, number) {
        // mmap. What is executable by the reader's personality only is found when it is executed.
        (Table::Native, 9) | (Table::Compat, 192) => {
            mappings(args[2] & PROT_EXEC != 0 || args[3] & (MAP_FIXED | MAP_SHARED) != 0)
        }
        // mprotect, pkey_mprotect
        (Table::Native, 10 | 329) | (Table::Compat, 125 | 380) => {
            mappings(args[2] & PROT_EXEC != 0 || in_range(args[0], args[1]))
        }
        // munmap, mremap, madvise, remap_file_pages
        (Table::Native, 11 | 25 | 28 | 216) | (Table::Compat, 91 | 163 | 219 | 257) => {
            mappings(in_range(args[0], args[1].max(1)))
        }
        // shmat, shmdt, arch_prctl; old mmap, ipc, shmat, shmdt, arch_prctl
        (Table::Native, 30 | 67 | 158) | (Table::Compat, 90 | 117 | 384 | 397 | 398) => {
            Effect::Mappings
        }
        // prctl
        (Table::Native, 157) | (Table::Compat, 172) if args[0] == PR_SET_NAME => Effect::Name,
        // rt_sigprocmask; sigprocmask, rt_sigprocmask
        (Table::Native, 14) | (Table::Compat, 126 | 175) => Effect::Mask,
        // rt_sigaction; signal, sigaction, rt_sigaction
        (Table::Native, 13) | (Table::Compat, 48 | 67 | 174) => Effect::Action,
        _ => Effect::None,
    }
}
