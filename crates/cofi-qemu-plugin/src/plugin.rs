//! The plugin: what QEMU calls, and what it writes into the shared memory.
#![allow(
    unsafe_code,
    reason = "callbacks of a C program, and memory shared with another process; each use has its justification"
)]

use crate::layout::{self, BlockHead, header, record, recorder, slot};
use crate::machine;
use crate::qemu::{Functions, Id, Info, Tb};
use crate::sys;
use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// What is found out once.
pub(crate) struct Plugin {
    pub(crate) qemu: Functions,
    /// Where the processes' memories are.
    folder: PathBuf,
}

/// What has been put into the ring of blocks.
struct Told {
    /// How many blocks.
    blocks: u32,
    /// Ranges of which it is known what is mapped there.
    mapped: Vec<Range<u64>>,
}

pub(crate) static PLUGIN: OnceLock<Plugin> = OnceLock::new();
/// This process's shared memory.
static MEMORY: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// What all processes and the recorder share; null if there is none.
static RECORDER: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// This process has no shared memory (of its own): it runs on, but nothing is told of it.
static OFF: AtomicBool = AtomicBool::new(false);
/// By virtual processor, where its thread's slot is: its offset in units of [`layout::SLOT_HEADER`], or one of the following.
static SLOT_OF: [AtomicU32; 1 << 20] = [const { AtomicU32::new(NO_SLOT) }; 1 << 20];
/// One more than the highest number of a virtual processor that has run.
static VCPUS: AtomicU32 = AtomicU32::new(0);
/// It has run nothing yet.
const NO_SLOT: u32 = 0;
/// There was no slot left for it.
const UNTRACED: u32 = u32::MAX;
/// The ring of blocks has one producer at a time.
static BLOCKS: Mutex<Told> = Mutex::new(Told {
    blocks: 0,
    mapped: Vec::new(),
});
/// A system call that may change mappings has begun or ended: what was told of them does not count any more.
static MAPPINGS_CHANGE: AtomicBool = AtomicBool::new(false);
/// Addresses of signal handlers, each with the restorer that stands below its frame.
type Handlers = Vec<(u64, u64)>;
/// Those that the program has set.
static HANDLERS: Mutex<Handlers> = Mutex::new(Vec::new());

/// Whether a signal's handler is called with a `siginfo`: else its place in the frame holds what was there before.
static WITH_INFO: [AtomicBool; SIGNALS] = [const { AtomicBool::new(false) }; SIGNALS];
/// One more than the highest signal.
const SIGNALS: usize = 65;

/// A system call's numbers on x86-64.
mod call {
    pub(super) const RT_SIGACTION: i64 = 13;
    /// mmap, mprotect, munmap, mremap, shmat, shmdt, pkey_mprotect.
    pub(super) const MAPPING: [i64; 7] = [9, 10, 11, 25, 30, 67, 329];
}

/// Called by QEMU when it loads the plugin.
///
/// # Safety
/// As QEMU calls it: `argv` has `argc` strings.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let mut folder = None;
    for i in 0..usize::try_from(argc).unwrap_or(0) {
        // SAFETY: `argv` has `argc` terminated strings.
        let argument = unsafe { CStr::from_ptr(*argv.add(i)) };
        if let Some(path) = argument
            .to_str()
            .ok()
            .and_then(|a| a.strip_prefix("folder="))
        {
            folder = Some(PathBuf::from(path));
        }
    }
    let Some(folder) = folder else {
        eprintln!("cofi: the plugin was loaded without folder=");
        return 1;
    };
    let qemu = match Functions::find() {
        Ok(qemu) => qemu,
        Err(name) => {
            eprintln!("cofi: this QEMU has no {name}");
            return 1;
        }
    };
    map_recorder(&folder);
    if open_memory(&folder, 0, 0).is_err() {
        turn_off();
    }
    if PLUGIN.set(Plugin { qemu, folder }).is_err() {
        return 1;
    }
    // SAFETY: QEMU describes itself.
    if unsafe { (*info).is_machine } {
        return match machine::install(id) {
            Ok(()) => 0,
            Err(name) => {
                eprintln!("cofi: this QEMU has no {name}, which tracing a machine takes");
                1
            }
        };
    }
    qemu.on_translation(id, on_translation);
    qemu.on_vcpu_exit(id, on_vcpu_exit);
    qemu.on_system_call(id, on_system_call);
    qemu.on_system_call_return(id, on_system_call_return);
    sys::at_fork(before_fork, after_fork, on_fork);
    0
}

/// Finds what all processes and the recorder share.
fn map_recorder(folder: &Path) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(folder.join(recorder::NAME));
    if let Ok(memory) = file.and_then(|file| sys::map(&file, recorder::SIZE)) {
        RECORDER.store(memory, Ordering::Release);
    }
}

/// The 32-bit number at an offset of what all processes and the recorder share.
fn recorder_word(offset: usize) -> Option<&'static AtomicU32> {
    debug_assert!(offset + 4 <= recorder::SIZE && offset.is_multiple_of(4));
    let memory = RECORDER.load(Ordering::Acquire);
    // SAFETY: once it is not null it is mapped for good and `recorder::SIZE` bytes long, the offset is within and aligned,
    // and all sides use it with atomic operations only.
    (!memory.is_null()).then(|| unsafe { &*memory.add(offset).cast::<AtomicU32>() })
}

/// Whether somebody takes what is told: a killed recorder's lock is cleared by the kernel.
fn has_recorder() -> bool {
    recorder_word(recorder::LOCK)
        .is_none_or(|lock| lock.load(Ordering::Acquire) & recorder::THREAD_MASK != 0)
}

/// This process cannot have memory of its own (any more), as after `chroot` or `setuid`: it runs without being traced, and
/// that is counted.
fn turn_off() {
    OFF.store(true, Ordering::Relaxed);
    if let Some(untraced) = recorder_word(recorder::UNTRACED) {
        untraced.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes this process's shared memory. Its name tells when, and is no other's: a child of fork that executes a program at once
/// has made two before the recorder has seen the first.
fn open_memory(folder: &Path, parent: u32, inherited: u64) -> std::io::Result<()> {
    let pid = std::process::id();
    let (hidden, name) = (
        folder.join(format!(".{pid}")),
        folder.join(format!("{:020}-{pid}", sys::now())),
    );
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&hidden)?;
    let mapped =
        sys::set_len(&file, layout::SIZE as u64).and_then(|()| sys::map(&file, layout::SIZE));
    let memory = match mapped {
        Ok(memory) => memory,
        Err(error) => {
            let _ = std::fs::remove_file(hidden);
            return Err(error);
        }
    };
    MEMORY.store(memory, Ordering::Release);
    word32(header::PID).store(pid, Ordering::Relaxed);
    word32(header::PARENT).store(parent, Ordering::Relaxed);
    word(header::INHERITED).store(inherited, Ordering::Relaxed);
    word(header::MAGIC).store(layout::MAGIC, Ordering::Release);
    // Who sees the name sees it complete.
    std::fs::rename(hidden, name)
}

/// The 64-bit number at an offset of the shared memory.
fn word(offset: usize) -> &'static AtomicU64 {
    debug_assert!(offset + 8 <= layout::SIZE && offset.is_multiple_of(8));
    // SAFETY: the memory is mapped for good and `layout::SIZE` bytes long, the offset is within and aligned, and both
    // sides use it with atomic operations only.
    unsafe {
        &*MEMORY
            .load(Ordering::Acquire)
            .add(offset)
            .cast::<AtomicU64>()
    }
}

/// The 32-bit number at an offset of the shared memory.
fn word32(offset: usize) -> &'static AtomicU32 {
    debug_assert!(offset + 4 <= layout::SIZE && offset.is_multiple_of(4));
    // SAFETY: as `word`.
    unsafe {
        &*MEMORY
            .load(Ordering::Acquire)
            .add(offset)
            .cast::<AtomicU32>()
    }
}

/// Waits for a ring to have room: the recorder is behind. `false` if it is gone.
#[cold]
fn wait() -> bool {
    if word32(header::STOPPED).load(Ordering::Relaxed) != 0 {
        return false;
    }
    if !has_recorder() {
        word32(header::STOPPED).store(1, Ordering::Relaxed);
        return false;
    }
    std::thread::sleep(Duration::from_micros(50));
    true
}

/// Where in the shared memory the slot of a virtual processor's thread begins; `None` if there is none for it. (The processor's
/// own number will not do: QEMU gives a new one the highest number yet plus one, so where threads follow each other without a
/// pause numbers grow without end.)
fn slot_of(vcpu: c_uint) -> Option<usize> {
    match SLOT_OF.get(vcpu as usize)?.load(Ordering::Relaxed) {
        NO_SLOT => begin_thread(vcpu),
        UNTRACED => None,
        base => Some(base as usize * layout::SLOT_HEADER),
    }
}

/// Puts records into a slot's ring, all or none at a time.
pub(crate) fn put(base: usize, records: &[u32]) {
    let (head, tail) = (word(base + slot::HEAD), word(base + slot::TAIL));
    let at = head.load(Ordering::Relaxed);
    let end = at + records.len() as u64;
    while end - tail.load(Ordering::Acquire) > layout::RECORDS as u64 {
        if !wait() {
            return;
        }
    }
    let ring = base + layout::SLOT_HEADER;
    for (i, record) in records.iter().enumerate() {
        let place = (at as usize + i) % layout::RECORDS;
        word32(ring + 4 * place).store(*record, Ordering::Relaxed);
    }
    head.store(end, Ordering::Release);
}

/// A block is about to run.
extern "C" fn on_block(vcpu: c_uint, number: *mut c_void) {
    if let Some(base) = slot_of(vcpu) {
        put_number(base, number.addr() as u32);
    }
}

/// Puts a block's number into a slot's ring.
#[inline]
pub(crate) fn put_number(base: usize, number: u32) {
    let head = word(base + slot::HEAD);
    let at = head.load(Ordering::Relaxed);
    if at < word(base + slot::LIMIT).load(Ordering::Relaxed) {
        let place = at as usize % layout::RECORDS;
        let record = word32(base + layout::SLOT_HEADER + 4 * place);
        record.store(number, Ordering::Relaxed);
        head.store(at + 1, Ordering::Release);
    } else {
        on_block_at_limit(base, number);
    }
}

/// The ring may be full.
#[cold]
fn on_block_at_limit(base: usize, number: u32) {
    let limit = word(base + slot::LIMIT);
    if word32(header::STOPPED).load(Ordering::Relaxed) != 0 {
        // Nobody reads any more: round and round.
        return limit.store(u64::MAX, Ordering::Relaxed);
    }
    put(base, &[number]);
    let tail = word(base + slot::TAIL).load(Ordering::Acquire);
    limit.store(tail + layout::RECORDS as u64, Ordering::Relaxed);
}

/// The first block that a thread runs. (QEMU tells of a new virtual processor in its parent's thread.)
#[cold]
fn begin_thread(vcpu: c_uint) -> Option<usize> {
    begin_slot(vcpu, sys::gettid())
}

/// A slot for a virtual processor, which runs the thread `tid`.
pub(crate) fn begin_slot(vcpu: c_uint, tid: u32) -> Option<usize> {
    VCPUS.fetch_max(vcpu.saturating_add(1), Ordering::Relaxed);
    if OFF.load(Ordering::Relaxed) {
        if let Some(place) = SLOT_OF.get(vcpu as usize) {
            place.store(UNTRACED, Ordering::Relaxed);
        }
        return None;
    }
    let free = (0..layout::SLOTS).map(layout::slot_at).find(|base| {
        let thread = word32(base + slot::THREAD);
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
        thread.compare_exchange(0, tid, order, otherwise).is_ok()
    });
    let mine = free.map_or(UNTRACED, |base| (base / layout::SLOT_HEADER) as u32);
    if let Some(place) = SLOT_OF.get(vcpu as usize) {
        place.store(mine, Ordering::Relaxed);
    }
    match free {
        Some(base) => put(base, &[record::THREAD, tid]),
        None => {
            word32(header::UNTRACED).fetch_add(1, Ordering::Relaxed);
        }
    }
    free
}

/// A virtual processor cannot be traced: counts that, once.
#[cold]
pub(crate) fn refuse(vcpu: c_uint) {
    if OFF.load(Ordering::Relaxed) {
        return;
    }
    let place = SLOT_OF.get(vcpu as usize);
    if place.is_some_and(|place| place.swap(UNTRACED, Ordering::Relaxed) != UNTRACED) {
        word32(header::UNTRACED).fetch_add(1, Ordering::Relaxed);
    }
}

/// A block that begins a signal handler is about to run. QEMU's generated code has the address of the CPU's state in rbp;
/// that is handed on.
#[unsafe(naked)]
unsafe extern "C" fn on_handler(vcpu: c_uint, number: *mut c_void) {
    core::arch::naked_asm!(
        "mov rdx, rbp",
        "jmp {next}",
        next = sym on_handler_with_state,
    )
}

/// Offsets in the CPU's state, the same in all versions: sixteen registers of eight bytes.
const RSP: u64 = 4 * 8;
const RDX: u64 = 2 * 8;
const RSI: u64 = 6 * 8;
const RDI: u64 = 7 * 8;
/// In the frame of a signal, behind the restorer's address, is a `ucontext`; in that, the registers of what was interrupted.
const REGISTERS_IN_UCONTEXT: u64 = 40;
/// Their numbers there.
mod context {
    pub(super) const RDI: u64 = 8;
    pub(super) const RSI: u64 = 9;
    pub(super) const RDX: u64 = 12;
    pub(super) const RSP: u64 = 15;
    pub(super) const RIP: u64 = 16;
}
/// Flag of a `sigaction`.
const SA_SIGINFO: u64 = 4;
/// `si_code` in a `siginfo`.
const CODE_IN_SIGINFO: u64 = 8;

fn peek64(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    sys::peek(address, &mut bytes).then(|| u64::from_ne_bytes(bytes))
}

fn peek32(address: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    sys::peek(address, &mut bytes).then(|| u32::from_ne_bytes(bytes))
}

/// A signal's frame on the stack: where its `ucontext` is, and the handler's two other arguments.
struct Frame {
    context: u64,
    signal: u64,
    info: u64,
}

impl Frame {
    /// The frame of a handler that begins with these registers. `None` if it was called as any other function.
    fn of(handlers: &[(u64, u64)], rsp: u64, [signal, info, context]: [u64; 3]) -> Option<Self> {
        let restorer = peek64(rsp)?;
        let is_known = handlers.iter().any(|(_, known)| *known == restorer);
        (is_known && Some(context) == rsp.checked_add(8)).then_some(Self {
            context,
            signal,
            info,
        })
    }

    /// A register of what was interrupted, by its number in the `ucontext`.
    fn register(&self, number: u64) -> Option<u64> {
        let offset = REGISTERS_IN_UCONTEXT + number * 8;
        peek64(self.context.checked_add(offset)?)
    }
}

/// What a handler's first block finds: the interrupted address, the signal and its code. `None` if it was called as any
/// other function.
fn signal(state: u64) -> Option<[u32; 4]> {
    let handlers = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
    let register = |offset| peek64(state.checked_add(offset)?);
    let arguments = [register(RDI)?, register(RSI)?, register(RDX)?];
    let mut frame = Frame::of(&handlers, register(RSP)?, arguments)?;
    let mut ip = frame.register(context::RIP)?;
    // Several signals at once: the handler of the one is interrupted by the other before it has run anything. The program
    // itself was interrupted by the first of them, whose frame is the deepest.
    for _ in 0..SIGNALS {
        if !handlers.iter().any(|(handler, _)| *handler == ip) {
            break;
        }
        let rsp = frame.register(context::RSP)?;
        let arguments = [
            frame.register(context::RDI)?,
            frame.register(context::RSI)?,
            frame.register(context::RDX)?,
        ];
        let Some(deeper) = Frame::of(&handlers, rsp, arguments) else {
            break;
        };
        frame = deeper;
        ip = frame.register(context::RIP)?;
    }
    let with_info = WITH_INFO
        .get(frame.signal as usize)
        .is_some_and(|with| with.load(Ordering::Relaxed));
    let code = match with_info {
        true => peek32(frame.info.checked_add(CODE_IN_SIGINFO)?)?,
        false => record::NO_CODE,
    };
    Some([ip as u32, (ip >> 32) as u32, frame.signal as u32, code])
}

extern "C" fn on_handler_with_state(vcpu: c_uint, number: *mut c_void, state: u64) {
    if let (Some([low, high, signal, code]), Some(base)) = (signal(state), slot_of(vcpu)) {
        put(base, &[record::SIGNAL, low, high, signal, code]);
    }
    on_block(vcpu, number);
}

/// QEMU translates a block.
extern "C" fn on_translation(_id: Id, tb: Tb) {
    let Some(Plugin { qemu, .. }) = PLUGIN.get() else {
        return;
    };
    if OFF.load(Ordering::Relaxed) {
        return;
    }
    let (address, instructions) = (qemu.address(tb), qemu.len(tb));
    let mut code = Vec::new();
    for index in 0..instructions {
        qemu.append_code(tb, index, &mut code);
    }
    let number = put_block(address, instructions as u32, &code);
    let is_handler = HANDLERS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .any(|(handler, _)| *handler == address);
    let callback = match is_handler {
        true => on_handler,
        false => on_block,
    };
    qemu.on_execution(tb, callback, number as usize);
}

/// Tells the recorder of a machine's block; its number.
pub(crate) fn put_machine_block(address: u64, state: u32, code: &[u8]) -> u32 {
    let mut told = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    if !put_bytes(address, state, code) {
        return 0;
    }
    let number = told.blocks;
    told.blocks += 1;
    number
}

/// Tells the recorder of a block; its number.
fn put_block(address: u64, instructions: u32, code: &[u8]) -> u32 {
    let mut told = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    if MAPPINGS_CHANGE.swap(false, Ordering::AcqRel) {
        told.mapped.clear();
    }
    if !told.mapped.iter().any(|range| range.contains(&address))
        && let Some((range, line)) = mapping_at(address)
    {
        told.mapped.push(range);
        put_bytes(address, BlockHead::MAPPING, &line);
    }
    if !put_bytes(address, instructions, code) {
        return 0;
    }
    let number = told.blocks;
    told.blocks += 1;
    number
}

/// What is mapped at an address: the range, and the line of /proc that tells of it.
fn mapping_at(address: u64) -> Option<(Range<u64>, Vec<u8>)> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    maps.split(|byte| *byte == b'\n').find_map(|line| {
        let range = line.split(|byte| *byte == b' ').next()?;
        let (start, end) = core::str::from_utf8(range).ok()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let range = hex(start)?..hex(end)?;
        range.contains(&address).then(|| (range, line.to_vec()))
    })
}

/// Puts a record into the ring of blocks, whose producer the caller must be. `false` if nobody takes it.
fn put_bytes(address: u64, instructions: u32, bytes: &[u8]) -> bool {
    let begin = BlockHead {
        address,
        len: bytes.len() as u32,
        instructions,
    };
    let mut record = begin.to_bytes().to_vec();
    record.extend_from_slice(bytes);
    record.resize(begin.record_len(), 0);
    let (head, tail) = (word(header::BLOCKS_HEAD), word(header::BLOCKS_TAIL));
    let at = head.load(Ordering::Relaxed);
    let end = at + record.len() as u64;
    while end - tail.load(Ordering::Acquire) > layout::BLOCKS as u64 {
        if !wait() {
            return false;
        }
    }
    for (i, part) in record.chunks_exact(8).enumerate() {
        let place = (at as usize + 8 * i) % layout::BLOCKS;
        let value = u64::from_ne_bytes(part.try_into().unwrap_or_default());
        word(layout::HEADER + place).store(value, Ordering::Relaxed);
    }
    head.store(end, Ordering::Release);
    true
}

pub(crate) extern "C" fn on_vcpu_exit(_id: Id, vcpu: c_uint) {
    let Some(place) = SLOT_OF.get(vcpu as usize) else {
        return;
    };
    match place.swap(NO_SLOT, Ordering::Relaxed) {
        NO_SLOT | UNTRACED => {}
        base => {
            let base = base as usize * layout::SLOT_HEADER;
            put(base, &[record::EXIT]);
            word32(base + slot::THREAD).store(0, Ordering::Release);
        }
    }
}

#[rustfmt::skip]
extern "C" fn on_system_call(
    _id: Id, vcpu: c_uint, number: i64, signal: u64, action: u64,
    _: u64, _: u64, _: u64, _: u64, _: u64, _: u64,
) {
    if let Some(base) = slot_of(vcpu) {
        put(base, &[record::SYSCALL, number as u32]);
    }
    note_mappings(number);
    if number == call::RT_SIGACTION && action != 0 {
        // struct kernel_sigaction: handler, flags, restorer. Guest memory is at its own addresses here.
        if let (Some(with), Some(flags)) = (
            WITH_INFO.get(signal as usize),
            peek64(action.wrapping_add(8)),
        ) {
            with.store(flags & SA_SIGINFO != 0, Ordering::Relaxed);
        }
        if let (Some(handler @ 2..), Some(restorer)) = (peek64(action), peek64(action.wrapping_add(16))) {
            let mut handlers = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
            if !handlers.contains(&(handler, restorer)) {
                handlers.push((handler, restorer));
            }
        }
    }
}

fn note_mappings(number: i64) {
    if call::MAPPING.contains(&number) {
        MAPPINGS_CHANGE.store(true, Ordering::Release);
    }
}

extern "C" fn on_system_call_return(_id: Id, _vcpu: c_uint, number: i64, _result: i64) {
    note_mappings(number);
}

/// In a child after fork: memory of its own. It has its parent's translated blocks, and their numbers.
extern "C" fn on_fork() {
    HELD.take();
    let Some(plugin) = PLUGIN.get() else { return };
    // The one thread that there is begins anew, in the new memory.
    let used = VCPUS.load(Ordering::Relaxed) as usize;
    for place in SLOT_OF.iter().take(used) {
        place.store(NO_SLOT, Ordering::Relaxed);
    }
    if OFF.load(Ordering::Relaxed) {
        return;
    }
    let is_stopped = word32(header::STOPPED).load(Ordering::Relaxed) != 0;
    if is_stopped || !has_recorder() {
        // Nobody is interested, and the folder may be gone.
        return OFF.store(true, Ordering::Relaxed);
    }
    let parent = word32(header::PID).load(Ordering::Relaxed);
    let told = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    let inherited = u64::from(told.blocks);
    // Without memory of its own it would write into its parent's.
    if open_memory(&plugin.folder, parent, inherited).is_err() {
        turn_off();
    }
}

thread_local! {
    /// The handlers, locked while this thread forks.
    static HELD: Cell<Option<MutexGuard<'static, Handlers>>> = const { Cell::new(None) };
}

/// Before fork: no other thread is to hold the lock, which nobody would ever release in the child. (The one of the blocks needs
/// nothing: QEMU forks while no other thread translates.)
extern "C" fn before_fork() {
    HELD.set(Some(
        HANDLERS.lock().unwrap_or_else(PoisonError::into_inner),
    ));
}

/// In the parent after fork.
extern "C" fn after_fork() {
    HELD.take();
}
