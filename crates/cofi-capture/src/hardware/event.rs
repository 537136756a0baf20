//! Events: what `perf_event_open` is asked for.
#![allow(unsafe_code, reason = "system calls that libc has no functions for")]

use super::HardwareError;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bits of `perf_event_attr`.
mod flag {
    pub(super) const DISABLED: u64 = 1;
    pub(super) const INHERIT: u64 = 1 << 1;
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
}

const SIZE: u32 = 128;
/// IP, TID, TIME, CPU, IDENTIFIER.
const SAMPLE_TYPE: u64 = 0x1_0087;
/// PERF_FORMAT_ID.
const READ_ID: u64 = 4;
/// PERF_TYPE_SOFTWARE and PERF_COUNT_SW_DUMMY.
const SOFTWARE: u32 = 1;
const DUMMY: u64 = 9;
const ALWAYS: u64 = flag::DISABLED
    | flag::INHERIT
    | flag::EXCLUDE_KERNEL
    | flag::EXCLUDE_HV
    | flag::ENABLE_ON_EXEC
    | flag::SAMPLE_ID_ALL;
/// PERF_FLAG_FD_CLOEXEC.
const CLOSE_ON_EXEC: libc::c_ulong = 8;
/// PERF_EVENT_IOC_DISABLE, _SET_OUTPUT and _ID.
const DISABLE: libc::c_ulong = 0x2401;
const SET_OUTPUT: libc::c_ulong = 0x2405;
const ID: libc::c_ulong = 0x8008_2407;

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
}

/// The trace unit's event.
pub(super) fn of_packets(kind: u32, config: u64) -> Attr {
    Attr::new(kind, config, ALWAYS)
}

/// The event that tells of programs, mappings, threads and switches.
pub(super) fn of_records() -> Attr {
    let flags = ALWAYS
        | flag::MMAP
        | flag::COMM
        | flag::TASK
        | flag::MMAP2
        | flag::COMM_EXEC
        | flag::CONTEXT_SWITCH;
    Attr::new(SOFTWARE, DUMMY, flags)
}

/// An event of a process and what it starts, on one processor.
#[derive(Debug)]
pub(super) struct Event {
    fd: OwnedFd,
    cpu: u32,
}

impl Event {
    pub(super) fn of_packets(
        kind: u32,
        config: u64,
        pid: u32,
        cpu: u32,
    ) -> Result<Self, HardwareError> {
        Self::open(&of_packets(kind, config), pid, cpu, "Intel PT")
    }

    pub(super) fn of_records(pid: u32, cpu: u32) -> Result<Self, HardwareError> {
        Self::open(&of_records(), pid, cpu, "a program's mappings")
    }

    fn open(attr: &Attr, pid: u32, cpu: u32, what: &'static str) -> Result<Self, HardwareError> {
        // SAFETY: the attribute has as many bytes as it says, and the kernel only reads them.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                attr.0.as_ptr(),
                pid as libc::pid_t,
                cpu as libc::c_int,
                -1,
                CLOSE_ON_EXEC,
            )
        };
        if fd < 0 {
            let source = io::Error::last_os_error();
            let hint = match source.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => {
                    " (/proc/sys/kernel/perf_event_paranoid: more than 2 forbids it to users)"
                }
                Some(libc::EBUSY) => " (somebody else records with it)",
                _ => "",
            };
            return Err(HardwareError::Refused {
                what,
                cpu,
                hint,
                source,
            });
        }
        // SAFETY: the kernel has just opened it for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Ok(Self { fd, cpu })
    }

    fn control(&self, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<()> {
        // SAFETY: requests of this event with an argument as each takes it: none, a descriptor, or where eight bytes can be written.
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
                cpu: self.cpu,
                hint: "",
                source,
            })?;
        Ok(id)
    }

    /// Has its records put into another event's buffer.
    pub(super) fn writes_to(&self, other: &Self) -> io::Result<()> {
        self.control(SET_OUTPUT, other.fd.as_raw_fd() as libc::c_ulong)
    }

    pub(super) fn disable(&self) {
        // Where it does not work, the event has ended.
        let _ = self.control(DISABLE, 0);
    }
}

impl AsRawFd for Event {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}
