//! What an engine tells of a running program.

use std::path::PathBuf;

use cofi_insn::Insn;
use cofi_packet::{ExecMode, Ip};

/// The number of a process, or of one of its threads (the first thread has the process's number).
pub type Pid = u32;

/// How a process came to be what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProcessCause {
    /// The engine started it. It has executed nothing yet.
    Launch,
    /// It was running already when the engine attached to it.
    Attach,
    /// Another process made it. It begins with its parent's mappings, saved code and name.
    Fork,
    /// The same process executes another program. Its mappings and saved code are gone, its threads are reduced to the
    /// one whose number is the process's.
    Exec,
}

/// What is behind a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MappingKind {
    /// A file, of which [`Mapping::path`] is the name.
    File,
    /// The code that the kernel provides.
    Vdso,
    /// No file, or one that has no name any more. What executes there is told by [`Observer::code`].
    Anonymous,
}

/// One executable range of a process's memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// Its first address.
    pub start: Ip,
    /// Its size in bytes.
    pub len: u64,
    /// Where in the file it begins, in bytes.
    pub pgoff: u64,
    /// `PROT_READ` (1), `PROT_WRITE` (2) and `PROT_EXEC` (4).
    pub prot: u32,
    /// `MAP_SHARED` (1) or `MAP_PRIVATE` (2).
    pub flags: u32,
    /// Major and minor number of the file's device.
    pub dev: (u32, u32),
    /// The file's inode number.
    pub ino: u64,
    /// The file's path, or the kernel's name for the range (such as `[vdso]`), or nothing.
    pub path: PathBuf,
    /// What is behind it.
    pub kind: MappingKind,
}

impl Mapping {
    /// The first address after it.
    #[must_use]
    pub fn end(&self) -> Ip {
        self.start.wrapping_add(self.len)
    }
}

/// Code bytes that no file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedCode<'a> {
    /// Where they stand: the start of a page.
    pub start: Ip,
    /// The page.
    pub bytes: &'a [u8],
    /// Grows with every code saved of one process.
    pub version: u32,
}

/// How a thread left user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A system call instruction retired: SYSCALL or SYSENTER. It is part of the flow, without a call of
    /// [`Observer::retired`].
    Sync {
        /// The instruction's address.
        ip: Ip,
        /// The instruction.
        insn: &'a Insn,
    },
    /// A fault at `from`, a software interrupt at `from`, or an interrupt before `from`. The instruction at `from` is not
    /// part of the flow.
    Async {
        /// The address of the instruction that did not retire.
        from: Ip,
    },
}

/// Something that an engine cannot tell exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// Control went from `from` to `to` in a way that the instruction at `from` does not explain. The observer is told of
    /// an asynchronous entry to the kernel at `from` and a return at `to`; what ran in between, if anything, is not
    /// known.
    Gap {
        /// The thread.
        tid: Pid,
        /// The last known address.
        from: Ip,
        /// The next known address.
        to: Ip,
    },
}

/// Takes what an engine tells of a running program, in the order in which it happened.
///
/// For each thread, [`resume_user`](Self::resume_user) and [`enter_kernel`](Self::enter_kernel) alternate, and all
/// instructions retire between the one and the other. The law that an engine keeps: within such a stretch, every
/// instruction's `next` is the address of the following instruction, or the `from` of the entry to the kernel.
#[allow(unused_variables)]
pub trait Observer {
    /// A process begins, or executes another program. `comm` is its name.
    fn process(&mut self, pid: Pid, parent: Option<Pid>, cause: ProcessCause, comm: &str) {}

    /// A process ended. `status` is its exit status, or 128 + N if signal N ended it.
    fn process_exit(&mut self, pid: Pid, status: i32) {}

    /// A thread begins. `parent` is the thread that made it, if that is known.
    fn thread_start(&mut self, pid: Pid, tid: Pid, parent: Option<Pid>) {}

    /// A thread ended.
    fn thread_exit(&mut self, pid: Pid, tid: Pid) {}

    /// A thread has a new name.
    fn comm(&mut self, pid: Pid, tid: Pid, comm: &str) {}

    /// The executable mappings of a process changed. `removed` happened before `added`; a mapping of which anything
    /// changed is in both.
    fn mappings(&mut self, pid: Pid, added: &[Mapping], removed: &[Mapping]) {}

    /// Code that no file holds is about to execute: for the first time, or with other bytes than were saved before.
    /// Told before the first instruction from it retires, and before control is told to be in it.
    fn code(&mut self, pid: Pid, tid: Pid, code: &SavedCode<'_>) {}

    /// A thread goes on in user space at `ip`, in `mode`.
    fn resume_user(&mut self, tid: Pid, ip: Ip, mode: ExecMode) {}

    /// The instruction that retires next ends in another mode. Told before that instruction's
    /// [`retired`](Self::retired).
    fn mode_change(&mut self, tid: Pid, mode: ExecMode) {}

    /// An instruction retired in user space, and control goes to `next`, in user space.
    fn retired(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip) {}

    /// A thread left user space.
    fn enter_kernel(&mut self, tid: Pid, entry: Entry<'_>) {}

    /// Something that the engine cannot tell exactly.
    fn note(&mut self, note: Note) {}
}
