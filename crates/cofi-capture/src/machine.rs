//! What an engine tells of a whole machine.

use crate::record::thread::VirtualClock;
use crate::{Observer, Pid, Step};
use cofi_insn::{Checksum, Insn};
use cofi_packet::{ExecMode, Ip};

/// The number of the address space that all of a machine's processors share: the upper half of 64-bit addresses, as perf
/// numbers the kernel's.
pub const SHARED_SPACE: Pid = Pid::MAX;

/// A processor's state, as far as a trace tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessorState {
    /// The current privilege level.
    pub cpl: u8,
    /// How code is read.
    pub mode: ExecMode,
    /// The root of the page tables.
    pub cr3: u64,
}

impl ProcessorState {
    /// The number of the address space: that of the page frame with the root of the page tables.
    #[must_use]
    pub const fn address_space(&self) -> Pid {
        (self.cr3 >> 12) as Pid & 0x7fff_ffff
    }

    /// The number of the address space to which an address belongs, which may be [`SHARED_SPACE`].
    #[must_use]
    pub const fn space_of(&self, ip: Ip) -> Pid {
        if ip.0 >> 63 != 0 {
            SHARED_SPACE
        } else {
            self.address_space()
        }
    }
}

/// A time in a recording.
#[derive(Clone, Copy, Debug)]
pub struct Moment(pub(crate) VirtualClock);

/// A page of a machine's code.
#[derive(Clone, Copy, Debug)]
pub struct CodePage<'a> {
    /// Its address space.
    pub space: Pid,
    /// Its linear address.
    pub start: u64,
    /// Its bytes; 0 where none has run.
    pub bytes: &'a [u8],
    /// From when on it is so.
    pub since: Moment,
}

/// Takes what an engine tells of a whole machine. [`Observer::retired`] tells of an instruction that is no far
/// transfer, at whatever privilege level; the rest is here.
pub trait MachineObserver: Observer {
    /// A processor begins to run, at `ip`.
    fn processor(&mut self, pid: Pid, cpu: Pid, ip: Ip, state: ProcessorState);
    /// Instructions retired one after the other, of which only the last may be a branch, and no far one; and control went to
    /// `next`. `checksum` is that of all of them.
    fn ran_block(&mut self, cpu: Pid, steps: &[Step], checksum: Checksum, next: Ip) {
        let _ = checksum;
        for (i, step) in steps.iter().enumerate() {
            let next = steps.get(i + 1).map_or(next, |step| step.ip);
            self.retired(cpu, step.ip, &step.insn, next);
        }
    }
    /// A far transfer, which the code shows, led to `to`, where the processor is in this state.
    fn far(&mut self, cpu: Pid, step: &Step, to: Ip, state: ProcessorState);
    /// INT n, INT3, INT1 or INTO executed, and led to `to`, where the processor is in this state. Of Intel PT that is an event, of RTIT
    /// the instruction retired.
    fn software_interrupt(&mut self, cpu: Pid, step: &Step, to: Ip, state: ProcessorState) {
        self.event(cpu, step.ip, to, state);
    }
    /// An interrupt or an exception led from `from` to `to`, where the processor is in this state.
    fn event(&mut self, cpu: Pid, from: Ip, to: Ip, state: ProcessorState);
    /// `MOV` to CR3 retired.
    fn mov_cr3(&mut self, cpu: Pid, ip: Ip, insn: &Insn, next: Ip, cr3: u64);
    /// What happened before the processor came to `to` is not known.
    fn gap(&mut self, cpu: Pid, to: Ip, state: ProcessorState);
    /// Code is about to be other than what was told (or will be) of the time before; from when on.
    fn code_changes(&mut self, pid: Pid) -> Moment;
    /// A page of code, as it was from some time on, until another one of the same address begins.
    fn code_page(&mut self, page: CodePage<'_>);
}
