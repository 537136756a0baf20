//! Events: what `perf_event_open` is asked for.
#![allow(unsafe_code, reason = "system calls that libc has no functions for")]

use super::{HardwareError, Levels, Samples};
use cofi_perf::{IdPlace, StreamPlace};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bits of `perf_event_attr`.
mod flag {
    pub(super) const DISABLED: u64 = 1;
    pub(super) const INHERIT: u64 = 1 << 1;
    pub(super) const EXCLUDE_USER: u64 = 1 << 4;
    pub(super) const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub(super) const EXCLUDE_HV: u64 = 1 << 6;
    pub(super) const MMAP: u64 = 1 << 8;
    pub(super) const COMM: u64 = 1 << 9;
    pub(super) const ENABLE_ON_EXEC: u64 = 1 << 12;
    pub(super) const TASK: u64 = 1 << 13;
    pub(super) const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub(super) const MMAP2: u64 = 1 << 23;
    pub(super) const COMM_EXEC: u64 = 1 << 24;
    pub(super) const CONTEXT_SWITCH: u64 = 1 << 26;
    pub(super) const KSYMBOL: u64 = 1 << 29;
    pub(super) const BPF_EVENT: u64 = 1 << 30;
    pub(super) const TEXT_POKE: u64 = 1 << 33;
    pub(super) const BUILD_ID: u64 = 1 << 34;
}

const SIZE: u32 = 128;
/// Where sample_period, sample_type, wakeup_events, bp_type, bp_addr, bp_len, aux_watermark, aux_sample_size and aux_action are.
const PERIOD: usize = 16;
const TYPE: usize = 24;
const WAKE_AFTER: usize = 48;
const ACCESS: usize = 52;
const ADDRESS: usize = 56;
const LENGTH: usize = 64;
const WATERMARK: usize = 104;
const SAMPLE_SIZE: usize = 112;
const ACTION: usize = 116;
/// IP, TID, TIME, CPU, IDENTIFIER.
const SAMPLE_TYPE: u64 = 0x1_0087;
/// PERF_SAMPLE_AUX.
const SAMPLE_AUX: u64 = 1 << 20;
/// PERF_TYPE_HARDWARE and PERF_COUNT_HW_CPU_CYCLES.
const HARDWARE: u32 = 0;
const CYCLES: u64 = 0;
/// PERF_FORMAT_ID.
const READ_ID: u64 = 4;
/// PERF_TYPE_SOFTWARE and PERF_COUNT_SW_DUMMY.
const SOFTWARE: u32 = 1;
const DUMMY: u64 = 9;
/// PERF_TYPE_BREAKPOINT and HW_BREAKPOINT_X.
const BREAKPOINT: u32 = 5;
const EXECUTE: u32 = 4;
/// Bits of aux_action (Linux 6.13): the trace unit's event begins paused; an event that happens pauses or resumes it.
const START_PAUSED: u32 = 1;
const PAUSE: u32 = 1 << 1;
const RESUME: u32 = 1 << 2;
/// PERF_FLAG_FD_CLOEXEC.
const CLOSE_ON_EXEC: libc::c_ulong = 8;
/// PERF_EVENT_IOC_ENABLE, _DISABLE, _SET_OUTPUT, _SET_FILTER and _ID.
const ENABLE: libc::Ioctl = 0x2400;
const DISABLE: libc::Ioctl = 0x2401;
const SET_OUTPUT: libc::Ioctl = 0x2405;
const SET_FILTER: libc::Ioctl = 0x4008_2406;
// (A signed number of 32 bits in musl, an unsigned one of 64 in glibc; the kernel looks at 32 bits.)
const ID: libc::Ioctl = 0x8008_2407_u32 as libc::Ioctl;

/// Whose an event is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// A process and what it starts, from when it executes a program.
    Program(u32),
    /// A thread that runs already, and what it starts.
    Thread(u32),
    /// A thread without what it starts, wherever it runs; `from_exec`: from when it executes a program.
    Alone { tid: u32, from_exec: bool },
    /// The processor, whoever it runs.
    Processor,
}

/// What comes of it when an instruction is about to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Tracing goes on.
    Resume,
    /// It pauses.
    Pause,
    /// A snapshot is taken.
    Snapshot,
}

impl Owner {
    /// The number by which the kernel knows it.
    const fn pid(self) -> libc::pid_t {
        match self {
            Self::Program(pid) | Self::Thread(pid) | Self::Alone { tid: pid, .. } => {
                pid as libc::pid_t
            }
            Self::Processor => -1,
        }
    }

    /// What the file says of where an event of its is.
    pub(super) const fn place(self, id: u64, index: u32, place: StreamPlace) -> IdPlace {
        let tid = match self {
            Self::Program(tid) | Self::Thread(tid) | Self::Alone { tid, .. } => Some(tid),
            Self::Processor => None,
        };
        IdPlace {
            id,
            index,
            cpu: place.cpu(),
            tid,
        }
    }

    const fn flags(self) -> u64 {
        match self {
            Self::Program(_) => flag::INHERIT | flag::DISABLED | flag::ENABLE_ON_EXEC,
            Self::Thread(_) => flag::INHERIT,
            Self::Alone {
                from_exec: true, ..
            } => flag::DISABLED | flag::ENABLE_ON_EXEC,
            Self::Alone { .. } | Self::Processor => 0,
        }
    }
}

/// What the kernel can tell beside mappings, names and switches; older ones know less.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Extras {
    /// Build ids of what is mapped: Linux 5.12.
    build_ids: bool,
    /// Changes of the kernel's code (5.8), and of its symbols and BPF programs (5.1).
    text_poke: bool,
    ksymbol: bool,
}

impl Extras {
    /// What this kernel knows.
    pub(super) fn of_kernel() -> Self {
        let knows = |flags| {
            let attr = Attr::new(SOFTWARE, DUMMY, flags | flag::DISABLED | NOT_KERNEL);
            open(&attr, 0, -1, -1).is_ok()
        };
        Self {
            build_ids: knows(flag::MMAP2 | flag::BUILD_ID),
            text_poke: knows(flag::TEXT_POKE),
            ksymbol: knows(flag::KSYMBOL | flag::BPF_EVENT),
        }
    }

    pub(super) const fn has_changes(self) -> bool {
        self.text_poke && self.ksymbol
    }

    const fn changes(self) -> u64 {
        let poke = if self.text_poke { flag::TEXT_POKE } else { 0 };
        let symbol = flag::KSYMBOL | flag::BPF_EVENT;
        poke | if self.ksymbol { symbol } else { 0 }
    }
}

/// What is not traced.
const fn excluded(levels: Levels) -> u64 {
    match (levels.os, levels.user) {
        (true, true) => flag::EXCLUDE_HV,
        (true, false) => flag::EXCLUDE_HV | flag::EXCLUDE_USER,
        (false, _) => NOT_KERNEL,
    }
}

const NOT_KERNEL: u64 = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;

/// A `perf_event_attr`.
#[derive(Clone, Debug)]
pub(super) struct Attr(pub(super) Vec<u8>);

impl Attr {
    fn new(kind: u32, config: u64, flags: u64) -> Self {
        let mut attr = Vec::with_capacity(SIZE as usize);
        attr.extend(kind.to_le_bytes());
        attr.extend(SIZE.to_le_bytes());
        for field in [config, 1, SAMPLE_TYPE, READ_ID, flags] {
            attr.extend(field.to_le_bytes());
        }
        attr.resize(SIZE as usize, 0);
        Self(attr)
    }

    fn put(&mut self, at: usize, number: u32) {
        self.0[at..][..4].copy_from_slice(&number.to_le_bytes());
    }

    /// The trace unit's event. It waits: for the program's execution, or to be enabled.
    pub(super) fn of_packets(
        (kind, config): (u32, u64),
        levels: Levels,
        owner: Owner,
        (watermark, is_paused): (u32, bool),
    ) -> Self {
        let flags = owner.flags() | flag::DISABLED | flag::SAMPLE_ID_ALL | excluded(levels);
        let mut attr = Self::new(kind, config, flags);
        attr.put(WATERMARK, watermark);
        if is_paused {
            attr.put(ACTION, START_PAUSED);
        }
        attr
    }

    /// An instruction's event, which happens each time when it is about to run, while the trace unit's event runs, whose group it is in. The processors'
    /// breakpoints tell of it, so the code is not changed.
    pub(super) fn of_instruction(address: u64, action: Action, owner: Owner) -> Self {
        let is_kernels = address >> 63 != 0;
        let not = if is_kernels {
            flag::EXCLUDE_HV
        } else {
            NOT_KERNEL
        };
        let flags = owner.flags() & flag::INHERIT | flag::SAMPLE_ID_ALL | not;
        let mut attr = Self::new(BREAKPOINT, 0, flags);
        attr.put(ACCESS, EXECUTE);
        attr.0[ADDRESS..][..8].copy_from_slice(&address.to_le_bytes());
        attr.0[LENGTH..][..8].copy_from_slice(&8_u64.to_le_bytes());
        match action {
            Action::Resume => attr.put(ACTION, RESUME),
            Action::Pause => attr.put(ACTION, PAUSE),
            Action::Snapshot => attr.put(WAKE_AFTER, 1),
        }
        attr
    }

    /// The event whose samples end with the last packets: every so many cycles. It runs while the trace unit's event does, whose group it is in.
    pub(super) fn of_samples(samples: Samples, levels: Levels, owner: Owner) -> Self {
        let flags = owner.flags() & flag::INHERIT | flag::SAMPLE_ID_ALL | excluded(levels);
        let mut attr = Self::new(HARDWARE, CYCLES, flags);
        attr.0[PERIOD..][..8].copy_from_slice(&samples.period.to_le_bytes());
        attr.0[TYPE..][..8].copy_from_slice(&(SAMPLE_TYPE | SAMPLE_AUX).to_le_bytes());
        attr.put(SAMPLE_SIZE, samples.size);
        attr
    }

    /// The event that tells of programs, mappings, threads and switches. Of the kernel's code a processor's event tells, too.
    pub(super) fn of_records(levels: Levels, owner: Owner, extras: Extras) -> Self {
        let told = flag::MMAP
            | flag::COMM
            | flag::TASK
            | flag::MMAP2
            | flag::COMM_EXEC
            | flag::CONTEXT_SWITCH;
        let build_ids = match extras.build_ids {
            true => flag::BUILD_ID,
            false => 0,
        };
        let changes = match owner {
            Owner::Processor if levels.os => extras.changes(),
            _ => 0,
        };
        let flags = owner.flags() | flag::SAMPLE_ID_ALL | NOT_KERNEL | told | build_ids | changes;
        Self::new(SOFTWARE, DUMMY, flags)
    }

    /// An event of a processor that tells of nothing but changes of the kernel's code: whoever changes it need not be traced.
    pub(super) fn of_changes(extras: Extras) -> Self {
        let flags = flag::SAMPLE_ID_ALL | NOT_KERNEL | extras.changes();
        Self::new(SOFTWARE, DUMMY, flags)
    }
}

fn open(
    attr: &Attr,
    pid: libc::pid_t,
    cpu: libc::c_int,
    group: libc::c_int,
) -> io::Result<OwnedFd> {
    // SAFETY: the attribute has as many bytes as it says, and the kernel only reads them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attr.0.as_ptr(),
            pid,
            cpu,
            group,
            CLOSE_ON_EXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// An event.
#[derive(Debug)]
pub(super) struct Event {
    fd: OwnedFd,
    owner: Owner,
    place: StreamPlace,
}

impl Event {
    pub(super) fn open(attr: &Attr, owner: Owner, place: StreamPlace) -> io::Result<Self> {
        Self::open_in(attr, owner, place, -1)
    }

    fn open_in(attr: &Attr, owner: Owner, place: StreamPlace, group: i32) -> io::Result<Self> {
        let cpu = place.cpu().map_or(-1, |cpu| cpu as libc::c_int);
        let fd = open(attr, owner.pid(), cpu, group)?;
        Ok(Self { fd, owner, place })
    }

    /// One that runs while this does.
    pub(super) fn open_member(&self, attr: &Attr) -> io::Result<Self> {
        Self::open_in(attr, self.owner, self.place, self.fd.as_raw_fd())
    }

    pub(super) const fn owner(&self) -> Owner {
        self.owner
    }

    fn control(&self, request: libc::Ioctl, argument: libc::c_ulong) -> io::Result<()> {
        // SAFETY: requests of this event with an argument as each takes it: none, a descriptor, a text that ends with NUL, or where eight bytes
        // can be written.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, argument) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// The kernel's number of it.
    pub(super) fn id(&self) -> Result<u64, HardwareError> {
        let mut id = 0_u64;
        self.control(ID, (&raw mut id).expose_provenance() as libc::c_ulong)
            .map_err(|source| HardwareError::Refused {
                what: "an event",
                place: self.place,
                hint: "",
                source,
            })?;
        Ok(id)
    }

    /// Has its records, or packets, put into another event's buffer.
    pub(super) fn writes_to(&self, other: &Self) -> io::Result<()> {
        self.control(SET_OUTPUT, other.fd.as_raw_fd() as libc::c_ulong)
    }

    /// Has only what these address filters say traced.
    pub(super) fn filter(&self, filter: &str) -> io::Result<()> {
        let filter = CString::new(filter)?;
        self.control(
            SET_FILTER,
            filter.as_ptr().expose_provenance() as libc::c_ulong,
        )
    }

    pub(super) fn enable(&self) {
        // Where it does not work, the event has ended.
        let _ = self.control(ENABLE, 0);
    }

    pub(super) fn disable(&self) {
        // The same.
        let _ = self.control(DISABLE, 0);
    }
}

impl AsRawFd for Event {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}
