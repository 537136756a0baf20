//! The system calls of the engine, and all of its `unsafe` code.
//!
//! Every function here wraps one kernel interface and returns an [`io::Error`] or a [`std::io::Result`]; nothing here
//! knows about flow or threads of a program.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libc::{c_int, c_long, c_void, pid_t};

/// What the C library takes as a request of ptrace.
#[cfg(not(target_env = "musl"))]
pub(crate) type Request = libc::c_uint;
/// What the C library takes as a request of ptrace.
#[cfg(target_env = "musl")]
pub(crate) type Request = c_int;

/// What PTRACE_PEEKSIGINFO reads (`struct ptrace_peeksiginfo_args` of linux/ptrace.h, which `libc` has for glibc only).
#[repr(C)]
struct PeekSiginfo {
    off: u64,
    flags: u32,
    nr: i32,
}

/// The general registers of a stopped thread, as the kernel hands them out.
pub(crate) type Regs = libc::user_regs_struct;

/// The trap flag in EFLAGS.
pub(crate) const TRAP_FLAG: u64 = 0x100;

/// The stop reported for a group stop, an interrupt and a newly attached thread.
pub(crate) const EVENT_STOP: c_int = 128;

/// The signal of a stop at the entry to a system call or its end.
pub(crate) const CALL_STOP: c_int = libc::SIGTRAP | 0x80;

/// `PTRACE_SINGLEBLOCK`, which the C library's header has and the crate has not.
const PTRACE_SINGLEBLOCK: Request = 33;
/// Read and set the signals that a thread blocks. (`libc` gives them another type for musl than the other requests.)
const PTRACE_GETSIGMASK: Request = 0x420a;
const PTRACE_SETSIGMASK: Request = 0x420b;

/// How a stopped thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resume {
    /// Up to the next instruction.
    Step,
    /// Up to the next branch that is taken, where the processor can do that.
    Block,
    /// Up to the next entry to a system call, or its end.
    Call,
    /// Freely.
    Run,
}

/// A signal's information, as the kernel hands it out.
#[derive(Clone, Copy)]
pub(crate) struct SigInfo(libc::siginfo_t);

impl SigInfo {
    /// Why the signal was sent: greater than 0 when the kernel raised it on behalf of an instruction.
    pub(crate) fn code(&self) -> c_int {
        self.0.si_code
    }

    /// The address that the signal is about, if it has one.
    pub(crate) fn address(&self) -> Option<u64> {
        // SAFETY: of these signals, raised by an instruction, the kernel has set the address.
        crate::Signal::has_address(self.0.si_signo, self.0.si_code)
            .then(|| unsafe { self.0.si_addr() }.addr() as u64)
    }

    /// The process that sent the signal, of one that a process sent.
    pub(crate) fn sender(&self) -> Option<pid_t> {
        // SAFETY: of a signal sent by kill, tgkill or sigqueue, the kernel has set the sender.
        matches!(
            self.0.si_code,
            libc::SI_USER | libc::SI_TKILL | libc::SI_QUEUE
        )
        .then(|| unsafe { self.0.si_pid() })
    }
}

impl std::fmt::Debug for SigInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "signal {} code {}", self.0.si_signo, self.0.si_code)
    }
}

/// A change of state reported by [`wait_any`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The thread stopped: the signal, and the ptrace event (0 for none).
    Stopped { signal: c_int, event: c_int },
    /// The thread or process ended by itself.
    Exited(c_int),
    /// The process was ended by a signal.
    Signaled(c_int),
}

fn check(result: c_long) -> io::Result<c_long> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A ptrace request that takes two integers and touches no memory of this process.
fn request(request: Request, tid: pid_t, addr: usize, data: usize) -> io::Result<()> {
    // SAFETY: callers pass requests for which the kernel treats `addr` and `data` as plain numbers, so that nothing
    // of this process's memory is read or written.
    let result = unsafe { libc::ptrace(request, tid, addr as *mut c_void, data as *mut c_void) };
    check(result).map(drop)
}

/// A ptrace request that makes the kernel fill a `T` through its data argument.
fn fetch<T: Copy>(request: Request, tid: pid_t, addr: usize, into: &mut T) -> io::Result<()> {
    // SAFETY: callers pass requests of which the kernel writes exactly one `T` (a plain C structure or integer, valid
    // for every bit pattern) to the data pointer, which is exclusively borrowed here.
    let result = unsafe { libc::ptrace(request, tid, addr as *mut c_void, ptr::from_mut(into)) };
    check(result).map(drop)
}

/// Begins to trace `tid` without stopping it.
pub(crate) fn seize(tid: pid_t, options: c_int) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, options as usize)
}

/// Asks a traced thread to stop.
pub(crate) fn interrupt(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Lets a stopped thread go on and delivers `signal` (0 for none).
#[inline]
pub(crate) fn resume(tid: pid_t, how: Resume, signal: c_int) -> io::Result<()> {
    let code = match how {
        Resume::Step => libc::PTRACE_SINGLESTEP,
        Resume::Block => PTRACE_SINGLEBLOCK,
        Resume::Call => libc::PTRACE_SYSCALL,
        Resume::Run => libc::PTRACE_CONT,
    };
    request(code, tid, 0, signal as usize)
}

/// Leaves a thread in its group stop, where job control can wake it.
pub(crate) fn listen(tid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, tid, 0, 0)
}

/// Ends the tracing of a stopped thread and delivers `signal` (0 for none).
pub(crate) fn detach(tid: pid_t, signal: c_int) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

/// An all-zero register set, to be filled by [`registers`].
pub(crate) fn no_registers() -> Regs {
    // SAFETY: `user_regs_struct` consists of integers only, for which zero is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Reads the registers of a stopped thread.
#[inline]
pub(crate) fn registers(tid: pid_t, into: &mut Regs) -> io::Result<()> {
    fetch(libc::PTRACE_GETREGS, tid, 0, into)
}

/// Sets the registers of a stopped thread.
pub(crate) fn set_registers(tid: pid_t, registers: &Regs) -> io::Result<()> {
    let mut registers = *registers;
    // The kernel only reads through the pointer here; `fetch` serves as well.
    fetch(libc::PTRACE_SETREGS, tid, 0, &mut registers)
}

/// Replaces eight bytes of a stopped process's memory, whatever its protection.
pub(crate) fn poke(tid: pid_t, addr: u64, word: [u8; 8]) -> io::Result<()> {
    request(
        libc::PTRACE_POKEDATA,
        tid,
        addr as usize,
        u64::from_ne_bytes(word) as usize,
    )
}

/// Sets R11 of a stopped thread.
pub(crate) fn set_r11(tid: pid_t, value: u64) -> io::Result<()> {
    let offset = std::mem::offset_of!(Regs, r11);
    request(libc::PTRACE_POKEUSER, tid, offset, value as usize)
}

/// The flag with which an instruction runs although a breakpoint stands before it. The processor clears it then.
pub(crate) const RESUME_FLAG: u64 = 0x1_0000;

/// Sets the flags of a stopped thread.
pub(crate) fn set_flags(tid: pid_t, value: u64) -> io::Result<()> {
    let offset = std::mem::offset_of!(Regs, eflags);
    request(libc::PTRACE_POKEUSER, tid, offset, value as usize)
}

/// Sets a debug register of a stopped thread.
pub(crate) fn set_debug_register(tid: pid_t, number: usize, value: u64) -> io::Result<()> {
    let offset = std::mem::offset_of!(libc::user, u_debugreg) + number * size_of::<u64>();
    request(libc::PTRACE_POKEUSER, tid, offset, value as usize)
}

/// The message of the event at which a thread stopped.
pub(crate) fn event_message(tid: pid_t) -> io::Result<u64> {
    let mut message: libc::c_ulong = 0;
    fetch(libc::PTRACE_GETEVENTMSG, tid, 0, &mut message)?;
    Ok(message)
}

/// The information of the signal at which a thread stopped.
#[inline]
pub(crate) fn signal_info(tid: pid_t) -> io::Result<SigInfo> {
    // SAFETY: `siginfo_t` is a C structure of integers and pointers, for which zero is a value.
    let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
    fetch(libc::PTRACE_GETSIGINFO, tid, 0, &mut info)?;
    Ok(SigInfo(info))
}

/// Replaces the information of the signal at which a thread stopped.
pub(crate) fn set_signal_info(tid: pid_t, info: &SigInfo) -> io::Result<()> {
    let mut info = info.0;
    // The kernel only reads through the pointer here; `fetch` serves as well.
    fetch(libc::PTRACE_SETSIGINFO, tid, 0, &mut info)
}

/// Whether a SIGTRAP raised by the processor waits to be delivered to a stopped thread.
pub(crate) fn trap_is_pending(tid: pid_t) -> io::Result<bool> {
    const BATCH: usize = 8;
    let mut offset = 0u64;
    loop {
        let args = PeekSiginfo {
            off: offset,
            flags: 0,
            nr: BATCH as i32,
        };
        // SAFETY: an array of `siginfo_t`, for which zero is a value (see `signal_info`).
        let mut infos: [libc::siginfo_t; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the request reads one `PeekSiginfo` and writes at most `nr` elements of `siginfo_t`,
        // which is the length of the array.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_PEEKSIGINFO,
                tid,
                ptr::from_ref(&args),
                infos.as_mut_ptr(),
            )
        };
        let count = check(result)? as usize;
        if infos[..count.min(BATCH)]
            .iter()
            .any(|info| info.si_signo == libc::SIGTRAP && info.si_code > 0)
        {
            return Ok(true);
        }
        if count < BATCH {
            return Ok(false);
        }
        offset += count as u64;
    }
}

/// The signals that a stopped thread blocks, bit N − 1 for signal N.
pub(crate) fn signal_mask(tid: pid_t) -> io::Result<u64> {
    let mut mask = 0u64;
    fetch(PTRACE_GETSIGMASK, tid, size_of::<u64>(), &mut mask)?;
    Ok(mask)
}

/// Sets the signals that a stopped thread blocks.
pub(crate) fn set_signal_mask(tid: pid_t, mut mask: u64) -> io::Result<()> {
    // The kernel only reads through the pointer here; `fetch` serves as well.
    fetch(PTRACE_SETSIGMASK, tid, size_of::<u64>(), &mut mask)
}

/// Reads the memory of a stopped process; returns how many bytes could be read.
///
/// Reads past a page's protection where only a debugger may.
#[inline]
pub(crate) fn read_memory(tid: pid_t, addr: u64, into: &mut [u8]) -> usize {
    let mut done = 0;
    while done < into.len() {
        let at = addr.wrapping_add(done as u64);
        let in_page = (0x1000 - (at & 0xfff)) as usize;
        let part = &mut into[done..];
        let len = part.len().min(in_page);
        let local = libc::iovec {
            iov_base: part.as_mut_ptr().cast(),
            iov_len: len,
        };
        let remote = libc::iovec {
            iov_base: at as *mut c_void,
            iov_len: len,
        };
        // SAFETY: the kernel writes at most `len` bytes to `part`, which is at least that long and exclusively
        // borrowed; the remote address is only a number to this process.
        let read = unsafe { libc::process_vm_readv(tid, &local, 1, &remote, 1, 0) };
        if read == len as isize {
            done += len;
            continue;
        }
        if !peek(tid, at, &mut part[..len]) {
            break;
        }
        done += len;
    }
    done
}

/// Reads memory word by word, as a debugger may: protection does not matter.
fn peek(tid: pid_t, addr: u64, into: &mut [u8]) -> bool {
    let mut done = 0;
    while done < into.len() {
        let at = addr.wrapping_add(done as u64);
        let word_at = at & !7;
        // SAFETY: the C library's `ptrace` returns the word and writes nothing; errno tells an error from a word.
        let word = unsafe {
            *libc::__errno_location() = 0;
            libc::ptrace(
                libc::PTRACE_PEEKDATA,
                tid,
                word_at as *mut c_void,
                ptr::null_mut::<c_void>(),
            )
        };
        if word == -1 && io::Error::last_os_error().raw_os_error() != Some(0) {
            return false;
        }
        let bytes = word.to_le_bytes();
        let from = (at - word_at) as usize;
        let len = (8 - from).min(into.len() - done);
        into[done..done + len].copy_from_slice(&bytes[from..from + len]);
        done += len;
    }
    true
}

/// Writes the memory of a stopped process.
pub(crate) fn write_memory(tid: pid_t, addr: u64, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: addr as *mut c_void,
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel only reads `bytes`; the remote address is only a number to this process.
    let written = unsafe { libc::process_vm_writev(tid, &local, 1, &remote, 1, 0) };
    if check(written as c_long)? as usize == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EFAULT))
    }
}

fn wait(pid: pid_t, flags: c_int) -> io::Result<(pid_t, Status)> {
    let mut status = 0;
    // SAFETY: the kernel writes one integer through the pointer. `__WNOTHREAD` limits the wait to the children and
    // tracees of this very thread, so that no other thread's children are reaped.
    let tid = unsafe { libc::waitpid(pid, &mut status, libc::__WALL | libc::__WNOTHREAD | flags) };
    check(c_long::from(tid))?;
    let status = if libc::WIFSTOPPED(status) {
        Status::Stopped {
            signal: libc::WSTOPSIG(status),
            event: status >> 16,
        }
    } else if libc::WIFSIGNALED(status) {
        Status::Signaled(libc::WTERMSIG(status))
    } else {
        Status::Exited(libc::WEXITSTATUS(status))
    };
    Ok((tid, status))
}

/// Waits for any traced thread to change its state.
#[inline]
pub(crate) fn wait_any() -> io::Result<(pid_t, Status)> {
    wait(-1, 0)
}

/// Waits for one traced thread or child to change its state.
pub(crate) fn wait_for(tid: pid_t) -> io::Result<Status> {
    loop {
        match wait(tid, 0) {
            Ok((_, status)) => return Ok(status),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// One file to try to execute, with the arguments it is to get.
#[derive(Debug)]
pub(crate) struct Candidate {
    path: CString,
    args: Vec<CString>,
    /// `/bin/sh path args…`, for a file without a format the kernel knows.
    shell_args: Vec<CString>,
}

impl Candidate {
    pub(crate) fn new(path: CString, args: &[CString]) -> Self {
        let mut shell_args = vec![c"/bin/sh".to_owned(), path.clone()];
        shell_args.extend(args.iter().skip(1).cloned());
        Self {
            path,
            args: args.to_vec(),
            shell_args,
        }
    }
}

/// A child process that waits for permission to execute the first of its candidates that can be.
#[derive(Debug)]
pub(crate) struct Gate {
    pid: pid_t,
    go: OwnedFd,
    error: OwnedFd,
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the kernel writes two descriptors to the array; on success both are open and owned by nobody else.
    unsafe {
        check(c_long::from(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC)))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([ptr::null()])
        .collect()
}

impl Gate {
    /// Forks the child.
    pub(crate) fn fork(candidates: &[Candidate]) -> io::Result<Self> {
        let (go_read, go_write) = pipe()?;
        let (error_read, error_write) = pipe()?;
        // Everything the child needs is allocated before the fork.
        let table: Vec<_> = candidates
            .iter()
            .map(|candidate| {
                (
                    candidate.path.as_ptr(),
                    pointers(&candidate.args),
                    pointers(&candidate.shell_args),
                )
            })
            .collect();
        // SAFETY: the child of a possibly threaded process calls only functions that are safe in a signal handler,
        // allocates nothing and never returns from this block.
        unsafe {
            let pid = libc::fork();
            check(c_long::from(pid))?;
            if pid == 0 {
                child(&table, &go_read, go_write.as_raw_fd(), &error_write);
            }
            Ok(Self {
                pid,
                go: go_write,
                error: error_read,
            })
        }
    }

    /// The child's process number.
    pub(crate) fn pid(&self) -> pid_t {
        self.pid
    }

    /// Lets the child go on to execute its program.
    pub(crate) fn open(&self) -> io::Result<()> {
        // SAFETY: one byte is read from a byte string.
        let written = unsafe { libc::write(self.go.as_raw_fd(), b"g".as_ptr().cast(), 1) };
        check(written as c_long).map(drop)
    }

    /// Why the child could not execute its program, once it has ended without doing so.
    pub(crate) fn failure(&self) -> io::Error {
        let mut errno = [0u8; 4];
        // SAFETY: at most four bytes are written to the array.
        let read = unsafe {
            libc::read(
                self.error.as_raw_fd(),
                errno.as_mut_ptr().cast(),
                errno.len(),
            )
        };
        if read == 4 {
            io::Error::from_raw_os_error(i32::from_ne_bytes(errno))
        } else {
            io::Error::other("the child process ended before it executed the program")
        }
    }
}

type CandidateTable = (
    *const libc::c_char,
    Vec<*const libc::c_char>,
    Vec<*const libc::c_char>,
);

/// What the child does between fork and exec.
///
/// # Safety
///
/// To be called in a freshly forked child only. The pointers of `table` must be valid C strings and null-terminated
/// arrays of them.
unsafe fn child(table: &[CandidateTable], go: &OwnedFd, go_write: RawFd, error: &OwnedFd) -> ! {
    // SAFETY: only functions that are safe in a signal handler are called, with the pointers vouched for above.
    unsafe {
        // The Rust runtime ignores SIGPIPE; programs expect it as the shell left it.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        // Without our own copy of the writing end, the read ends if the tracer dies.
        libc::close(go_write);
        let mut byte = 0u8;
        loop {
            let read = libc::read(go.as_raw_fd(), ptr::from_mut(&mut byte).cast(), 1);
            if read == 1 {
                break;
            }
            if read == -1 && *libc::__errno_location() == libc::EINTR {
                continue;
            }
            libc::_exit(127);
        }
        let mut worst = libc::ENOENT;
        for (path, args, shell_args) in table {
            libc::execv(*path, args.as_ptr());
            let errno = *libc::__errno_location();
            if errno == libc::ENOEXEC {
                libc::execv(shell_args[0], shell_args.as_ptr());
            }
            match errno {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => worst = errno,
                _ => {
                    worst = errno;
                    break;
                }
            }
        }
        let bytes = worst.to_ne_bytes();
        libc::write(error.as_raw_fd(), bytes.as_ptr().cast(), bytes.len());
        libc::_exit(127);
    }
}

// What a child runs on which the debug registers are tried: it counts in RCX for ever.
std::arch::global_asm!(
    ".pushsection .text.cofi_trial, \"ax\", @progbits",
    ".hidden cofi_trial",
    ".globl cofi_trial",
    "cofi_trial:",
    "inc rcx",
    "nop",
    "jmp cofi_trial",
    ".popsection",
);

unsafe extern "C" {
    /// Never returns, and uses nothing but a register that a call may use.
    fn cofi_trial() -> !;
}

/// Where the child of [`fork_trial`] runs, round and round.
pub(crate) fn trial_address() -> u64 {
    cofi_trial as *const () as u64
}

/// Forks a child that counts in RCX until it is killed.
pub(crate) fn fork_trial() -> io::Result<pid_t> {
    // SAFETY: the child of a possibly threaded process does nothing but run the loop above, which touches no memory.
    let pid = unsafe {
        let pid = libc::fork();
        if pid == 0 {
            cofi_trial();
        }
        pid
    };
    check(c_long::from(pid))?;
    Ok(pid)
}

/// Whether a traced thread or child has changed its state.
pub(crate) fn poll(tid: pid_t) -> io::Result<Option<Status>> {
    let (found, status) = wait(tid, libc::WNOHANG)?;
    Ok((found == tid).then_some(status))
}

/// Kills a child and forgets it.
pub(crate) fn end(child: pid_t) {
    // SAFETY: no memory is involved. The number is that of a child that nobody has waited for to its end.
    unsafe {
        libc::kill(child, libc::SIGKILL);
    }
    while let Ok(Status::Stopped { .. }) = wait_for(child) {}
}

/// Sends a signal to a thread.
pub(crate) fn send(pid: pid_t, tid: pid_t, signal: c_int) {
    // SAFETY: no memory is involved; a thread that is already gone is no harm.
    unsafe {
        libc::syscall(libc::SYS_tgkill, pid, tid, signal);
    }
}

/// Signal dispositions of this process, put back when the last that set them is dropped: several engines may run at a time.
#[derive(Debug, Default)]
pub(crate) struct Dispositions {
    set: Vec<c_int>,
}

/// For each signal, how many have set its disposition, and what it was before.
static DISPOSITIONS: Mutex<BTreeMap<c_int, (usize, SavedAction)>> = Mutex::new(BTreeMap::new());

struct SavedAction(libc::sigaction);

extern "C" fn wake_handler(_: c_int) {}

impl Dispositions {
    /// Ignores `signal` until this is dropped.
    pub(crate) fn ignore(&mut self, signal: c_int) {
        self.set(signal, libc::SIG_IGN);
    }

    /// Makes `signal` do nothing but interrupt a system call until this is dropped.
    pub(crate) fn interrupting(&mut self, signal: c_int) {
        self.set(signal, wake_handler as *const () as usize);
    }

    /// As [`Self::interrupting`], but for a signal that is ignored, which stays so: programs that are started inherit that.
    pub(crate) fn catching(&mut self, signal: c_int) {
        // SAFETY: the structure is plain data for which zero is a value, and is written by the call.
        let is_ignored = unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            libc::sigaction(signal, ptr::null(), &mut action) == 0
                && action.sa_sigaction == libc::SIG_IGN
        };
        if !is_ignored {
            self.interrupting(signal);
        }
    }

    fn set(&mut self, signal: c_int, handler: usize) {
        let mut all = DISPOSITIONS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((count, _)) = all.get_mut(&signal) {
            *count += 1;
            self.set.push(signal);
            return;
        }
        // SAFETY: both structures are plain data for which zero is a value; the handler is SIG_IGN or a function that
        // does nothing, which is safe at any moment.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = handler;
            let mut old: libc::sigaction = MaybeUninit::zeroed().assume_init();
            if libc::sigaction(signal, &action, &mut old) == 0 {
                all.insert(signal, (1, SavedAction(old)));
                self.set.push(signal);
            }
        }
    }
}

impl Drop for Dispositions {
    fn drop(&mut self) {
        let mut all = DISPOSITIONS.lock().unwrap_or_else(PoisonError::into_inner);
        for signal in self.set.drain(..) {
            let Some((count, action)) = all.get_mut(&signal) else {
                continue;
            };
            *count -= 1;
            if *count > 0 {
                continue;
            }
            // SAFETY: the action was returned by the kernel for this very signal.
            unsafe {
                libc::sigaction(signal, &action.0, ptr::null_mut());
            }
            all.remove(&signal);
        }
    }
}

/// The signal with which the engine's own wait is interrupted.
pub(crate) fn wake_signal() -> c_int {
    libc::SIGRTMAX() - 3
}

/// The calling thread's number.
pub(crate) fn this_thread() -> pid_t {
    // SAFETY: no memory is involved.
    unsafe { libc::gettid() }
}

/// Interrupts the system call in which another thread of this process may wait.
pub(crate) fn wake(thread: pid_t) {
    send(std::process::id() as pid_t, thread, wake_signal());
}
