//! The plugin: what QEMU calls, and what it writes into the shared memory.
#![allow(
    unsafe_code,
    reason = "callbacks of a C program, and memory shared with another process; each use has its justification"
)]

use crate::files;
use crate::layout::{BlockHead, header, record, recorder, slot};
use crate::machine;
use crate::qemu::{ExecCallback, Functions, Id, Info, Tb, callback};
use crate::rings::{
    self, BLOCKS, Ring, has_recorder, map_recorder, put, put_bytes, recorder_word, take_slot, word,
    word32,
};
use crate::signals;
use crate::start;
use crate::sync::Once;
use crate::sys;
use crate::tell::tell;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// What is found out once.
pub(crate) struct Plugin {
    pub(crate) qemu: Functions,
    /// Where the processes' memories are.
    folder: CString,
}

pub(crate) static PLUGIN: Once<Plugin> = Once::new();
/// This process has no shared memory (of its own): it runs on, but nothing is told of it.
static OFF: AtomicBool = AtomicBool::new(false);
/// By virtual processor, where its thread's slot lies in this process's memory, or one of the following addresses.
static SLOT_OF: [AtomicPtr<u8>; 1 << 20] =
    [const { AtomicPtr::new(without_slot(NO_SLOT)) }; 1 << 20];
/// One more than the highest number of a virtual processor that has run.
static VCPUS: AtomicU32 = AtomicU32::new(0);
/// It has run nothing yet.
const NO_SLOT: usize = 0;
/// There was no slot left for it.
const UNTRACED: usize = 1;
/// A system call that may change mappings has ended: what was told of them does not count any more.
static MAPPINGS_CHANGE: AtomicBool = AtomicBool::new(false);
/// What is left out, to measure what the rest takes.
static STAGE: AtomicU32 = AtomicU32::new(stage::ALL);
/// How many threads are in such a call: as long as any is, nothing that is told of mappings counts for long.
static MAPPING_CALLS: AtomicU32 = AtomicU32::new(0);

/// An entry of [`SLOT_OF`] that is no slot's.
const fn without_slot(entry: usize) -> *mut u8 {
    core::ptr::without_provenance_mut(entry)
}

/// Values of the argument `stage`.
mod stage {
    pub(super) const ALL: u32 = 0;
    /// Blocks are told of where they are translated, and nothing is done when they run.
    pub(super) const CALLED: u32 = 1;
    /// What is told of nobody takes: it is overwritten.
    pub(super) const TOLD: u32 = 2;
}

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
    let (mut comm, mut variables) = (None, 0);
    for i in 0..usize::try_from(argc).unwrap_or(0) {
        // SAFETY: `argv` has `argc` terminated strings.
        let argument = unsafe { CStr::from_ptr(*argv.add(i)) };
        match split(argument.to_bytes()) {
            Some((b"folder", path)) => folder = CString::new(path).ok(),
            Some((b"comm", name)) => comm = start::name(name),
            Some((b"variables", number)) => variables = start::number(number),
            Some((b"stage", b"called")) => STAGE.store(stage::CALLED, Ordering::Relaxed),
            Some((b"stage", b"told")) => STAGE.store(stage::TOLD, Ordering::Relaxed),
            _ => {}
        }
    }
    let Some(folder) = folder else {
        tell!("cofi: the plugin was loaded without folder=");
        return 1;
    };
    let qemu = match Functions::find() {
        Ok(qemu) => qemu,
        Err(name) => {
            tell!("cofi: this QEMU has no {name}");
            return 1;
        }
    };
    start::begin(comm.as_deref(), variables);
    map_recorder(&folder);
    if rings::open(&folder, 0, 0).is_none() {
        turn_off();
    } else if STAGE.load(Ordering::Relaxed) != stage::ALL {
        word32(header::STOPPED).store(1, Ordering::Relaxed);
    }
    if !PLUGIN.set(Plugin { qemu, folder }) {
        return 1;
    }
    // SAFETY: QEMU describes itself.
    if unsafe { (*info).is_machine } {
        return match machine::install(id) {
            Ok(()) => 0,
            Err(name) => {
                tell!("cofi: this QEMU has no {name}, which tracing a machine takes");
                1
            }
        };
    }
    qemu.on_translation(id, on_translation);
    qemu.on_vcpu_exit(id, on_vcpu_exit);
    qemu.on_system_call(id, on_system_call);
    qemu.on_system_call_return(id, on_system_call_return);
    // SAFETY: what the other two release, the first has held in this thread.
    unsafe { sys::at_fork(signals::hold, signals::release, on_fork) };
    0
}

/// A plugin's argument: its name and its value.
fn split(argument: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = argument.iter().position(|byte| *byte == b'=')?;
    Some((&argument[..at], &argument[at + 1..]))
}

/// This process cannot have memory of its own (any more), as after `chroot` or `setuid`: it runs without being traced, and
/// that is counted.
fn turn_off() {
    OFF.store(true, Ordering::Relaxed);
    if let Some(untraced) = recorder_word(recorder::UNTRACED) {
        untraced.fetch_add(1, Ordering::Relaxed);
    }
}

/// Where in the shared memory the slot of a virtual processor's thread begins; `None` if there is none for it. (The processor's
/// own number will not do: QEMU gives a new one the highest number yet plus one, so where threads follow each other without a
/// pause numbers grow without end.)
fn slot_of(vcpu: c_uint) -> Option<usize> {
    let at = SLOT_OF.get(vcpu as usize)?.load(Ordering::Relaxed);
    match at.addr() {
        NO_SLOT => begin_thread(vcpu),
        UNTRACED => None,
        _ => Some(rings::slot_base(at)),
    }
}

/// A block is about to run.
extern "C" fn on_block(vcpu: c_uint, number: *mut c_void) {
    let number = number.addr() as u32;
    let Some(at) = SLOT_OF.get(vcpu as usize) else {
        return;
    };
    let at = at.load(Ordering::Relaxed);
    // SAFETY: it is where a slot lies, as it is none of the other two.
    if at.addr() <= UNTRACED || !unsafe { rings::put_quickly(at, number) } {
        on_block_slowly(vcpu, number);
    }
}

/// The thread has no slot (yet), or its ring is at its limit.
#[cold]
#[inline(never)]
fn on_block_slowly(vcpu: c_uint, number: u32) {
    if let Some(base) = slot_of(vcpu) {
        put_number(base, number);
    }
}

/// A block is about to run, and nobody wants to know.
extern "C" fn on_block_unheard(_: c_uint, _: *mut c_void) {}

/// Puts a block's number into a slot's ring, if that is not at its limit; whether it did.
#[inline(always)]
fn put_number_quickly(base: usize, number: u32) -> bool {
    // SAFETY: a slot of ours begins there.
    unsafe { rings::put_quickly(rings::slot_memory(base), number) }
}

/// Puts a block's number into a slot's ring.
#[inline]
pub(crate) fn put_number(base: usize, number: u32) {
    if !put_number_quickly(base, number) {
        on_block_at_limit(base, number);
    }
}

/// The ring may be full, or its memory not be reserved yet.
#[cold]
fn on_block_at_limit(base: usize, number: u32) {
    let limit = word(base + slot::LIMIT);
    if word32(header::STOPPED).load(Ordering::Relaxed) != 0 {
        // Nobody reads any more: round and round.
        Ring::of_slot(base).stay();
        return limit.store(u64::MAX, Ordering::Relaxed);
    }
    put(base, &[number]);
    limit.store(Ring::of_slot(base).limit(), Ordering::Relaxed);
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
            place.store(without_slot(UNTRACED), Ordering::Relaxed);
        }
        return None;
    }
    let free = take_slot(tid);
    let mine = free.map_or(without_slot(UNTRACED), rings::slot_memory);
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
    let refused = without_slot(UNTRACED);
    if place.is_some_and(|place| place.swap(refused, Ordering::Relaxed) != refused) {
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

/// The first block of the program is about to run; as [`on_handler`].
#[unsafe(naked)]
unsafe extern "C" fn on_first(vcpu: c_uint, number: *mut c_void) {
    core::arch::naked_asm!(
        "mov rdx, rbp",
        "jmp {next}",
        next = sym on_first_with_state,
    )
}

extern "C" fn on_first_with_state(vcpu: c_uint, number: *mut c_void, state: u64) {
    if let Some(stack) = signals::stack(state) {
        start::give_back(stack);
    }
    on_block(vcpu, number);
}

extern "C" fn on_handler_with_state(vcpu: c_uint, number: *mut c_void, state: u64) {
    if let (Some(frame), Some(base)) = (signals::frame(state), slot_of(vcpu)) {
        let [low, high, signal, code, address_low, address_high] = frame;
        put(
            base,
            &[
                record::SIGNAL,
                low,
                high,
                signal,
                code,
                address_low,
                address_high,
            ],
        );
    }
    on_block(vcpu, number);
}

callback! {
/// QEMU translates a block.
fn on_translation(tb: Tb) {
    let Some(Plugin { qemu, .. }) = PLUGIN.get() else {
        return;
    };
    let is_first = start::is_first();
    if OFF.load(Ordering::Relaxed) {
        if is_first {
            // Its environment it is to have all the same.
            qemu.on_execution(tb, on_first, 0);
        }
        return;
    }
    let (address, instructions) = (qemu.address(tb), qemu.len(tb));
    let mut code = Vec::new();
    for index in 0..instructions {
        qemu.append_code(tb, index, &mut code);
    }
    let number = put_block(address, instructions as u32, &code);
    let callback: ExecCallback = if is_first {
        on_first
    } else if signals::is_handler(address) {
        on_handler
    } else if STAGE.load(Ordering::Relaxed) == stage::CALLED {
        on_block_unheard
    } else {
        on_block
    };
    qemu.on_execution(tb, callback, number as usize);
}
}

/// Tells the recorder of a machine's block; its number.
pub(crate) fn put_machine_block(address: u64, state: u32, code: &[u8]) -> u32 {
    let mut told = BLOCKS.lock();
    if !put_bytes(address, state, code) {
        return 0;
    }
    let number = told.blocks;
    told.blocks += 1;
    number
}

/// Tells the recorder of a block; its number.
fn put_block(address: u64, instructions: u32, code: &[u8]) -> u32 {
    let mut told = BLOCKS.lock();
    let is_changing = MAPPING_CALLS.load(Ordering::Acquire) != 0;
    if MAPPINGS_CHANGE.swap(false, Ordering::AcqRel) || is_changing {
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
    let maps = files::content(c"/proc/self/maps")?;
    maps.split(|byte| *byte == b'\n').find_map(|line| {
        let range = line.split(|byte| *byte == b' ').next()?;
        let (start, end) = core::str::from_utf8(range).ok()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let range = hex(start)?..hex(end)?;
        range.contains(&address).then(|| (range, line.to_vec()))
    })
}

/// The thread of a virtual processor has ended.
pub(crate) fn end_vcpu(vcpu: c_uint) {
    let Some(place) = SLOT_OF.get(vcpu as usize) else {
        return;
    };
    let at = place.swap(without_slot(NO_SLOT), Ordering::Relaxed);
    match at.addr() {
        NO_SLOT | UNTRACED => {}
        _ => {
            let base = rings::slot_base(at);
            put(base, &[record::EXIT]);
            word32(base + slot::THREAD).store(0, Ordering::Release);
        }
    }
}

callback! {
fn on_vcpu_exit(vcpu: c_uint) {
    end_vcpu(vcpu);
}
}

callback! {
fn on_system_call(
    vcpu: c_uint, number: i64, signal: u64, action: u64,
    _c: u64, _d: u64, _e: u64, _f: u64, _g: u64, _h: u64,
) {
    if let Some(base) = slot_of(vcpu) {
        put(base, &[record::SYSCALL, number as u32]);
    }
    if call::MAPPING.contains(&number) {
        MAPPING_CALLS.fetch_add(1, Ordering::AcqRel);
    }
    if number == call::RT_SIGACTION && action != 0 {
        signals::set_action(signal, action);
    }
}
}

callback! {
fn on_system_call_return(_vcpu: c_uint, number: i64, _result: i64) {
    if call::MAPPING.contains(&number) {
        MAPPINGS_CHANGE.store(true, Ordering::Release);
        MAPPING_CALLS.fetch_sub(1, Ordering::AcqRel);
    }
}
}

/// In a child after fork: memory of its own. It has its parent's translated blocks, and their numbers.
///
/// # Safety
/// As [`signals::release`].
unsafe extern "C" fn on_fork() {
    // SAFETY: as the caller says.
    unsafe { signals::release() };
    let Some(plugin) = PLUGIN.get() else { return };
    // The one thread that there is begins anew, in the new memory.
    let used = VCPUS.load(Ordering::Relaxed) as usize;
    for place in SLOT_OF.iter().take(used) {
        place.store(without_slot(NO_SLOT), Ordering::Relaxed);
    }
    if !has_recorder() {
        // Nobody is interested, and the folder may be gone.
        return OFF.store(true, Ordering::Relaxed);
    }
    if OFF.load(Ordering::Relaxed) || word32(header::STOPPED).load(Ordering::Relaxed) != 0 {
        return turn_off();
    }
    let mut told = BLOCKS.lock();
    let inherited = u64::from(told.blocks);
    // The recorder is to hear from the child itself what is mapped where.
    told.mapped.clear();
    MAPPING_CALLS.store(0, Ordering::Relaxed);
    // Without memory of its own it would write into its parent's.
    if rings::open_after_fork(&plugin.folder, inherited).is_none() {
        turn_off();
    }
}
