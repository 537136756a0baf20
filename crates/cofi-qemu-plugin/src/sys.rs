//! The few system functions that the plugin needs, declared by hand.
#![allow(
    unsafe_code,
    reason = "calls into the C library; each has its justification"
)]

use crate::files::{self, File};
use crate::tell::{errno, was_interrupted};
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ops::Range;
use core::time::Duration;

unsafe extern "C" {
    fn mmap(
        at: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(at: *mut c_void, len: usize) -> c_int;
    fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
    fn process_vm_readv(
        pid: c_int,
        local: *const IoVec,
        locals: u64,
        remote: *const IoVec,
        remotes: u64,
        flags: u64,
    ) -> isize;
    fn process_vm_writev(
        pid: c_int,
        local: *const IoVec,
        locals: u64,
        remote: *const IoVec,
        remotes: u64,
        flags: u64,
    ) -> isize;
    fn clock_gettime(clock: c_int, time: *mut [i64; 2]) -> c_int;
    fn nanosleep(time: *const [i64; 2], left: *mut [i64; 2]) -> c_int;
    fn getpid() -> c_int;
    fn getrlimit(resource: c_int, limit: *mut Limit) -> c_int;
    fn setrlimit(resource: c_int, limit: *const Limit) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn prctl(option: c_int, ...) -> c_int;
    fn sbrk(more: isize) -> *mut c_void;
}

#[repr(C)]
struct IoVec {
    base: *mut c_void,
    len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Limit {
    soft: u64,
    hard: u64,
}

const CLOCK_MONOTONIC: c_int = 1;
const RLIMIT_FSIZE: c_int = 1;
const RLIMIT_AS: c_int = 9;
const MADV_POPULATE_WRITE: c_int = 23;
const EINVAL: c_int = 22;
const PAGE: usize = 4096;
const PROT_READ_WRITE: c_int = 1 | 2;
const MAP_SHARED: c_int = 1;
const PR_SET_NAME: c_int = 15;
const PR_SET_MM: c_int = 35;
const PR_SET_MM_MAP: usize = 14;
const SYS_STATFS: c_long = 137;
const SYS_GETTID: c_long = 186;

/// Maps a file of `len` bytes, shared, for the rest of the process's life. `None` if that is not possible.
pub(crate) fn map(file: &File, len: usize) -> Option<*mut u8> {
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use.
    let at = unsafe {
        mmap(
            core::ptr::null_mut(),
            len,
            PROT_READ_WRITE,
            MAP_SHARED,
            file.number(),
            0,
        )
    };
    (at.addr() != usize::MAX).then(|| at.cast())
}

/// Ends a mapping that [`map`] has made.
///
/// # Safety
/// Nobody uses it any more.
pub(crate) unsafe fn unmap(at: *mut u8, len: usize) {
    // SAFETY: as the caller says.
    unsafe {
        munmap(at.cast(), len);
    }
}

/// Makes sure that there is memory for a part of a mapping that holds nothing yet, both at page bounds. `false` if there is
/// none: who touches it then gets SIGBUS.
pub(crate) fn reserve(at: *mut u8, len: usize) -> bool {
    // SAFETY: the kernel makes the pages present, as a write would, and changes nothing in them; an address that is not
    // mapped is an error.
    if unsafe { madvise(at.cast(), len, MADV_POPULATE_WRITE) } == 0 {
        return true;
    }
    // Kernels before 5.14 do not know this.
    errno() == EINVAL && touch(at, len)
}

/// As [`reserve`]: the kernel writes a 0 into each page in our place, and fails where we would get a signal.
fn touch(at: *mut u8, len: usize) -> bool {
    (0..len).step_by(PAGE).all(|offset| {
        let address = at.addr().wrapping_add(offset);
        poke(address as u64, &[0])
    })
}

/// Bytes in all and bytes that are free where a file is; `None` if that cannot be told.
pub(crate) fn room(path: &CStr) -> Option<(u64, u64)> {
    let mut data = [0_u64; 15];
    // SAFETY: the path is terminated; the kernel fills a `statfs`, which has 15 words.
    if unsafe { syscall(SYS_STATFS, path.as_ptr(), &raw mut data) } != 0 {
        return None;
    }
    let [_, block, all, _, free, ..] = data;
    Some((all.saturating_mul(block), free.saturating_mul(block)))
}

/// The limit of this process's address space, if there is one.
pub(crate) fn address_space() -> Option<u64> {
    let mut own = Limit { soft: 0, hard: 0 };
    // SAFETY: the kernel writes the structure, which is as it has it.
    let known = unsafe { getrlimit(RLIMIT_AS, &mut own) } == 0;
    (known && own.soft != u64::MAX).then_some(own.soft)
}

/// Sets a file's length, if that is possible, also where the program's limit for that is lower: it is the program's, and over it is a signal.
pub(crate) fn set_len(file: &File, len: u64) -> Option<()> {
    let mut own = Limit { soft: 0, hard: 0 };
    // SAFETY: the kernel writes the structure, which is as it has it.
    if unsafe { getrlimit(RLIMIT_FSIZE, &mut own) } != 0 || own.soft >= len {
        return file.set_len(len);
    }
    let higher = Limit {
        soft: len,
        hard: own.hard.max(len),
    };
    // SAFETY: the structure is only read.
    if unsafe { setrlimit(RLIMIT_FSIZE, &higher) } != 0 {
        return None;
    }
    let result = file.set_len(len);
    // SAFETY: as above. To lower it is always allowed.
    unsafe {
        setrlimit(RLIMIT_FSIZE, &own);
    }
    result
}

/// The address of a function of the program that has loaded us.
pub(crate) fn symbol(name: &CStr) -> Option<core::ptr::NonNull<c_void>> {
    // SAFETY: a lookup by a terminated name; the null handle is RTLD_DEFAULT.
    core::ptr::NonNull::new(unsafe { dlsym(core::ptr::null_mut(), name.as_ptr()) })
}

/// Has these called at every fork: before it, and after it in the parent and in the child.
///
/// # Safety
/// The others may be called where a thread, or the one that is its copy, has called `before`.
pub(crate) unsafe fn at_fork(
    before: extern "C" fn(),
    parent: unsafe extern "C" fn(),
    child: unsafe extern "C" fn(),
) {
    // SAFETY: registers functions that live as long as the program; plugins are never unloaded here. Those after it are called only where the
    // first was called.
    unsafe {
        pthread_atfork(Some(before), Some(parent), Some(child));
    }
}

/// Copies `bytes.len()` bytes from `address` of this process, if they can be read; a bad address is no crash.
pub(crate) fn peek(address: u64, bytes: &mut [u8]) -> bool {
    let len = bytes.len();
    let local = IoVec {
        base: bytes.as_mut_ptr().cast(),
        len,
    };
    let remote = IoVec {
        base: core::ptr::without_provenance_mut(address as usize),
        len,
    };
    // SAFETY: the kernel writes into `bytes`, which is as long as it says; the other address is checked by the kernel.
    let read = unsafe { process_vm_readv(getpid(), &local, 1, &remote, 1, 0) };
    usize::try_from(read) == Ok(len)
}

/// The 64-bit number at an address, as [`peek`].
pub(crate) fn peek64(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    peek(address, &mut bytes).then(|| u64::from_ne_bytes(bytes))
}

/// The 32-bit number at an address, as [`peek`].
pub(crate) fn peek32(address: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    peek(address, &mut bytes).then(|| u32::from_ne_bytes(bytes))
}

/// Writes bytes to an address of this process, if that is possible; a bad address is no crash.
pub(crate) fn poke(address: u64, bytes: &[u8]) -> bool {
    let len = bytes.len();
    let local = IoVec {
        base: bytes.as_ptr().cast_mut().cast(),
        len,
    };
    let remote = IoVec {
        base: core::ptr::without_provenance_mut(address as usize),
        len,
    };
    // SAFETY: the kernel only reads `bytes`. The other address is the program's memory or the shared one, of which no
    // reference to anything but atomics exists.
    let written = unsafe { process_vm_writev(getpid(), &local, 1, &remote, 1, 0) };
    usize::try_from(written) == Ok(len)
}

/// Names the calling thread; those that it makes inherit the name.
pub(crate) fn set_name(name: &[u8]) {
    let mut bytes = [0_u8; 16];
    let len = name.len().min(15);
    bytes[..len].copy_from_slice(&name[..len]);
    // SAFETY: the kernel reads sixteen bytes.
    unsafe {
        prctl(PR_SET_NAME, bytes.as_ptr());
    }
}

/// The kernel's `prctl_mm_map`.
#[repr(C)]
struct MemoryMap {
    code: [u64; 2],
    data: [u64; 2],
    heap: [u64; 2],
    stack: u64,
    arguments: [u64; 2],
    environment: [u64; 2],
    auxv: u64,
    auxv_size: u32,
    exe: u32,
}

/// Says where /proc is to find this process's command line and environment. Some kernels cannot, and then nothing changes.
pub(crate) fn set_command_line(arguments: Range<u64>, environment: Range<u64>) -> Option<()> {
    let stat = files::content(c"/proc/self/stat")?;
    // Behind the name, which may hold anything, the fields begin with the third.
    let behind = stat.windows(2).rposition(|sign| sign == b") ")? + 2;
    let fields = core::str::from_utf8(stat.get(behind..)?).ok()?;
    let fields: Vec<_> = fields.split(' ').collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    // SAFETY: asks where the heap ends.
    let heap_end = unsafe { sbrk(0) }.addr() as u64;
    let map = MemoryMap {
        code: [field(26)?, field(27)?],
        data: [field(45)?, field(46)?],
        heap: [field(47)?, heap_end],
        stack: field(28)?,
        arguments: [arguments.start, arguments.end],
        environment: [environment.start, environment.end],
        auxv: 0,
        auxv_size: 0,
        exe: u32::MAX,
    };
    // SAFETY: the kernel reads the structure, which is as it has it, and takes over only what it shows to others.
    unsafe {
        prctl(
            PR_SET_MM,
            PR_SET_MM_MAP,
            &raw const map,
            size_of::<MemoryMap>(),
            0_usize,
        );
    }
    Some(())
}

/// Nanoseconds since some time, the same for all processes.
pub(crate) fn now() -> u64 {
    let mut time = [0; 2];
    // SAFETY: the kernel writes a `timespec`: seconds and nanoseconds.
    unsafe {
        clock_gettime(CLOCK_MONOTONIC, &mut time);
    }
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}

/// Has the calling thread do nothing for so long, whatever signals come.
pub(crate) fn sleep(time: Duration) {
    let mut left = [time.as_secs() as i64, i64::from(time.subsec_nanos())];
    // SAFETY: the kernel reads a `timespec`, and where a signal came writes how much is left.
    while unsafe { nanosleep(&raw const left, &raw mut left) } != 0 && was_interrupted() {}
}

/// This process's number.
pub(crate) fn pid() -> u32 {
    // SAFETY: without arguments and effects.
    unsafe { getpid() as u32 }
}

/// The calling thread's number.
pub(crate) fn gettid() -> u32 {
    // SAFETY: without arguments and effects.
    unsafe { syscall(SYS_GETTID) as u32 }
}

#[cfg(test)]
mod tests {
    use super::{PAGE, map, reserve, room, sleep, touch};
    use crate::files::File;
    use std::time::{Duration, Instant};

    #[test]
    fn memory_is_reserved_or_refused() {
        for how in [reserve, touch] {
            let file = File::from(tempfile::tempfile().unwrap());
            file.set_len(4 * PAGE as u64).unwrap();
            let memory = map(&file, 4 * PAGE).unwrap();
            assert!(how(memory, 4 * PAGE));
            // Behind a file's end a touch is SIGBUS, as it is where there is no memory.
            file.set_len(2 * PAGE as u64).unwrap();
            assert!(how(memory, 2 * PAGE));
            assert!(!how(memory, 4 * PAGE));
        }
    }

    #[test]
    fn who_sleeps_wakes_not_before() {
        let begin = Instant::now();
        let time = Duration::from_millis(2);
        sleep(time);
        assert!(begin.elapsed() >= time);
    }

    #[test]
    fn there_is_less_room_than_there_is_space() {
        let (all, free) = room(c"/").unwrap();
        assert!(0 < all && free <= all);
        assert_eq!(room(c"/no such folder"), None);
    }
}
