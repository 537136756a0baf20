//! What an engine tells of a running program.

use crate::{Missing, Notice, Runs};
use cofi_insn::Insn;
use cofi_packet::{ExecMode, Ip};
use std::path::PathBuf;

/// A process or thread number.
pub type Pid = u32;

/// How a process came to be, or to be what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessCause {
    /// The engine started it.
    Launch,
    /// The engine attached to it while it ran.
    Attach,
    /// A traced process forked it.
    Fork,
    /// It executed a new program; its threads but one are gone, and its memory is new.
    Exec,
}

/// What backs a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MappingKind {
    /// A file whose bytes are the code: mapped privately and never writable here.
    File,
    /// The kernel's shared object, `[vdso]`.
    Vdso,
    /// Anything else: anonymous, shared or writable memory. Its code is told as it runs, by [`Observer::code`].
    Memory,
}

/// An executable range of a process's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
    /// Its offset in the file.
    pub offset: u64,
    /// PROT_ bits.
    pub prot: u32,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// The file's inode.
    pub inode: u64,
    /// The file.
    pub path: PathBuf,
    /// What backs it.
    pub kind: MappingKind,
}

impl Mapping {
    /// Where an offset in the file is mapped, if it is.
    pub(crate) fn address_of(&self, offset: u64) -> Option<u64> {
        let address = offset.checked_sub(self.offset)?.checked_add(self.start)?;
        (address < self.end).then_some(address)
    }
}

/// Bytes of code that no file holds.
#[derive(Clone, Copy, Debug)]
pub struct SavedCode<'a> {
    /// Where they stand.
    pub start: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// How a thread entered the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// By SYSCALL or SYSENTER, which retired.
    Instruction {
        /// Where it stands.
        ip: Ip,
        /// What it is.
        insn: Insn,
    },
    /// By INT n, INT3, INT1 or INTO, which executed. Of Intel PT that is an event, of RTIT the instruction retired.
    SoftwareInterrupt {
        /// Where it stands.
        ip: Ip,
        /// What it is.
        insn: Insn,
    },
    /// By an event: a fault of the instruction at this address, or an interrupt before it.
    Event {
        /// The address.
        from: Ip,
    },
}

/// A signal that interrupted a thread, or ended its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signal {
    /// Its number.
    pub number: u32,
    /// Its `si_code`.
    pub code: i32,
    /// Where the thread was, if that is known.
    pub ip: Option<Ip>,
    /// The address that a fault was about (`si_addr`), if it was a fault and the address is known.
    pub address: Option<u64>,
    /// It ends the process.
    pub is_fatal: bool,
}

impl Signal {
    /// Whether this signal, sent for this reason, is a fault that has an address of its own.
    pub(crate) const fn has_address(number: i32, code: i32) -> bool {
        // The kernel's word for a fault of which the processor says no address.
        const SI_KERNEL: i32 = 0x80;
        let is_fault = matches!(
            number,
            libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE
        );
        is_fault && code > 0 && code < SI_KERNEL
    }
}

/// Takes what an engine tells. Calls come in the order in which things happened, as far as the engine sees it.
pub trait Observer {
    /// A process exists, or has executed a program.
    fn process(&mut self, pid: Pid, parent: Option<Pid>, cause: ProcessCause, comm: &str);
    /// A thread exists; it is in the kernel. `parent` is the thread that created it, if it was traced.
    fn thread_start(&mut self, pid: Pid, tid: Pid, parent: Option<Pid>);
    /// A thread is gone.
    fn thread_exit(&mut self, pid: Pid, tid: Pid);
    /// A thread has a new name.
    fn comm(&mut self, pid: Pid, tid: Pid, comm: &str);
    /// Executable ranges have come to be mapped from files.
    fn mapped(&mut self, pid: Pid, tid: Pid, mappings: &[Mapping]);
    /// The code at an address is this from now on; told before the first instruction of it retires.
    fn code(&mut self, pid: Pid, tid: Pid, code: SavedCode<'_>);
    /// A thread begins or goes on in user space.
    fn resume_user(&mut self, tid: Pid, ip: Ip, mode: ExecMode);
    /// An instruction other than a far branch retired in user space, and control went to `next` in user space.
    fn retired(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip);
    /// Blocks ran in user space, one after the other. What is not taken out of `runs` is told again, by the other calls.
    fn ran(&mut self, tid: Pid, runs: &mut Runs<'_>) {
        for run in runs {
            let mut steps = run.steps().peekable();
            while let Some(step) = steps.next() {
                let next = steps.peek().map_or(run.next, |step| step.ip);
                self.retired(tid, step.ip, &step.insn, next);
            }
        }
    }
    /// Addresses in `pid` at which the instruction is to be told by a call of its own, and not by [`Self::ran`]. They change when something
    /// is mapped.
    fn watched(&self, pid: Pid) -> &[u64] {
        let _ = pid;
        &[]
    }
    /// A far branch retired, and control went to `next` in user space, which runs in `mode`.
    fn far_branch(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip, mode: ExecMode);
    /// A thread entered the kernel.
    fn enter_kernel(&mut self, tid: Pid, entry: Entry);
    /// Tracing is about to change something for the program that is not the trace's own.
    fn notice(&mut self, _notice: Notice) {}
    /// Calls `tell` once with a [`Lane`] for each of these threads, which are different ones, in their order; or returns `false`, and does not
    /// call it. Lanes may be used at the same time. What a lane is told, the observer could have been told: this is for speed alone.
    fn apart(&mut self, tids: &[Pid], tell: &mut dyn FnMut(&mut [&mut (dyn Lane + Send)])) -> bool {
        let _ = (tids, tell);
        false
    }
    /// A signal's handler is about to run in a thread, or the signal ends the thread's process. What the thread ran before has been
    /// told, as far as it is known.
    fn signal(&mut self, tid: Pid, signal: Signal) {
        let _ = (tid, signal);
    }
    /// Something is not told, of which nothing else says so. What is told again counts again.
    fn missing(&mut self, _missing: Missing) {}
    /// Time has passed. This is called several times a second, whether anything is told or not.
    fn tick(&mut self) {}
    /// Whether the engine should stop because nothing more can be taken.
    fn has_failed(&self) -> bool {
        false
    }
}

/// Takes what one thread does in 64-bit code and between, as [`Observer`] takes it of all.
pub trait Lane {
    /// See [`Observer::resume_user`].
    fn resume_user(&mut self, tid: Pid, ip: Ip);
    /// See [`Observer::retired`].
    fn retired(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip);
    /// See [`Observer::ran`].
    fn ran(&mut self, tid: Pid, runs: &mut Runs<'_>);
    /// See [`Observer::far_branch`].
    fn far_branch(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip);
    /// See [`Observer::enter_kernel`].
    fn enter_kernel(&mut self, tid: Pid, entry: Entry);
}

impl Lane for dyn Observer + '_ {
    fn resume_user(&mut self, tid: Pid, ip: Ip) {
        Observer::resume_user(self, tid, ip, ExecMode::Bits64);
    }

    fn retired(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip) {
        Observer::retired(self, tid, ip, insn, next);
    }

    fn ran(&mut self, tid: Pid, runs: &mut Runs<'_>) {
        Observer::ran(self, tid, runs);
    }

    fn far_branch(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip) {
        Observer::far_branch(self, tid, ip, insn, next, ExecMode::Bits64);
    }

    fn enter_kernel(&mut self, tid: Pid, entry: Entry) {
        Observer::enter_kernel(self, tid, entry);
    }
}
