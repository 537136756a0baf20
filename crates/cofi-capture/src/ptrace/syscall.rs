//! What the engine must know of Linux's system calls: the few after which something has changed that it keeps.

use super::code::CodeSpace;
use super::sys::Regs;

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

/// The arguments of a finished system call, as far as they are looked at.
pub(super) fn arguments(regs: &Regs, table: Table) -> [u64; 4] {
    match table {
        Table::Native => [regs.rdi, regs.rsi, regs.rdx, regs.r10],
        Table::Compat => [regs.rbx, regs.rcx, regs.rdx, regs.rsi].map(|r| r & 0xffff_ffff),
    }
}

const PROT_EXEC: u64 = 4;
const MAP_FIXED: u64 = 0x10;
const PR_SET_NAME: u64 = 15;

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
    let in_range = |start, len| space.executes_in(start, len);
    match (table, number) {
        // mmap. What is executable by the reader's personality only is found when it is executed.
        (Table::Native, 9) | (Table::Compat, 192) => {
            mappings(args[2] & PROT_EXEC != 0 || args[3] & MAP_FIXED != 0)
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
