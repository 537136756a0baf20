//! What tracing changes for a program, told where it is about to bite.

use crate::Pid;
use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::fs::MetadataExt;

/// What an engine changes for a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Change {
    /// It is set-user-ID or set-group-ID, which the kernel ignores where the tracer may not trace everybody.
    PrivilegeLost,
    /// It wanted to trace, and the kernel allows one tracer.
    TracerRefused,
    /// It wanted to trace, and QEMU does not know the call.
    NoPtrace,
    /// It wanted to restrict its system calls, and QEMU does not know the call.
    NoSeccomp,
    /// It died of SIGILL on QEMU's processor.
    IllegalInstruction,
}

impl Change {
    /// What a program loses that makes a system call which does not work in QEMU.
    pub(crate) const fn by_call(number: u32) -> Option<Self> {
        match number as i64 {
            libc::SYS_ptrace => Some(Self::NoPtrace),
            libc::SYS_seccomp => Some(Self::NoSeccomp),
            _ => None,
        }
    }
}

/// A change, and for which program.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Notice {
    /// The program's name or file.
    pub program: String,
    /// What changes for it.
    pub change: Change,
}

impl Notice {
    /// About the program that a process or thread runs at the moment.
    #[must_use]
    pub fn of(pid: Pid, change: Change) -> Self {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        let program = comm.map_or_else(
            |_| format!("process {pid}"),
            |comm| comm.trim_end().to_owned(),
        );
        Self { program, change }
    }

    /// [`Change::PrivilegeLost`], if that is so of a process that has just executed its program.
    pub(crate) fn of_privilege(pid: Pid) -> Option<Self> {
        let exe = format!("/proc/{pid}/exe");
        let file = std::fs::metadata(&exe).ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        // Real, effective, saved, for files.
        let effective = |what: &str| -> Option<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(what))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        let user = file.mode() & libc::S_ISUID != 0 && file.uid() != effective("Uid:")?;
        // Without permission for the group to execute, the bit means something else.
        let both = libc::S_ISGID | libc::S_IXGRP;
        let group = file.mode() & both == both && file.gid() != effective("Gid:")?;
        if !user && !group {
            return None;
        }
        let program = std::fs::read_link(&exe).ok()?.display().to_string();
        Some(Self {
            program,
            change: Change::PrivilegeLost,
        })
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = &self.program;
        match self.change {
            Change::PrivilegeLost => write!(
                f,
                "{program} is set-user-ID or set-group-ID: the kernel ignores that under tracing, and it runs without these rights"
            ),
            Change::TracerRefused => write!(
                f,
                "{program} wants to trace processes (ptrace), which the kernel refuses: Cofi traces them already"
            ),
            Change::NoPtrace => write!(
                f,
                "{program} wants to trace processes (ptrace), which does not work under QEMU, nor with --engine ptrace"
            ),
            Change::NoSeccomp => write!(
                f,
                "{program} wants to restrict its system calls (seccomp), which QEMU refuses: with --engine ptrace it can"
            ),
            Change::IllegalInstruction => write!(
                f,
                "{program} died of SIGILL: QEMU's processor has no AVX-512, nor all of this machine's other instructions; with --engine \
                 ptrace it runs on the machine's own"
            ),
        }
    }
}

/// So many are told; a program that starts more of that kind has been told of.
const MOST: usize = 32;

/// To whom notices are told.
pub(crate) type Told = Box<dyn FnMut(&Notice)>;

/// Tells each notice once.
#[derive(Default)]
pub(crate) struct Notices {
    told: BTreeSet<Notice>,
    pub(crate) to: Option<Told>,
}

impl Notices {
    pub(crate) fn tell(&mut self, notice: Notice) {
        if let Some(to) = &mut self.to
            && self.told.len() < MOST
            && !self.told.contains(&notice)
        {
            to(&notice);
            self.told.insert(notice);
        }
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.told.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, MOST, Notice, Notices, Told};
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn each_is_told_once_and_not_without_end() {
        let told = Rc::new(RefCell::new(Vec::new()));
        let list = told.clone();
        let to: Told = Box::new(move |notice| list.borrow_mut().push(notice.to_string()));
        let mut notices = Notices {
            to: Some(to),
            ..Notices::default()
        };
        for program in 0..100 {
            for change in [Change::NoSeccomp, Change::NoSeccomp, Change::NoPtrace] {
                let program = program.to_string();
                notices.tell(Notice { program, change });
            }
        }
        let told = told.borrow();
        assert_eq!(told.len(), MOST);
        assert!(
            told[0].starts_with("0 wants to restrict") && told[1].starts_with("0 wants to trace")
        );
    }

    #[test]
    fn this_process_has_a_name_and_its_rights() {
        let pid = std::process::id();
        assert!(
            !Notice::of(pid, Change::NoPtrace)
                .program
                .starts_with("process ")
        );
        assert_eq!(Notice::of_privilege(pid), None);
        assert_eq!(Notice::of(0, Change::NoPtrace).program, "process 0");
    }
}
