//! The memory that this process shares with the recorder: made, reserved as it fills, and written.
#![allow(
    unsafe_code,
    reason = "memory shared with another process; each use has its justification"
)]

use crate::files::{self, File};
use crate::layout::{self, BlockHead, header, recorder, slot};
use crate::sync::{Lock, Once};
use crate::sys;
use alloc::borrow::ToOwned;
use alloc::ffi::CString;
use alloc::format;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

/// What has been put into the ring of blocks.
pub(crate) struct Told {
    /// How many blocks.
    pub(crate) blocks: u32,
    /// Ranges of which it is known what is mapped there.
    pub(crate) mapped: Vec<Range<u64>>,
}

/// The ring of blocks has one producer at a time.
pub(crate) static BLOCKS: Lock<Told> = Lock::new(Told {
    blocks: 0,
    mapped: Vec::new(),
});
/// This process's shared memory.
static MEMORY: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// How many slots it has room for.
static SLOTS: AtomicUsize = AtomicUsize::new(0);
/// One thread at a time takes a slot.
static TAKING: Lock<()> = Lock::new(());
/// What all processes and the recorder share; null if there is none.
static RECORDER: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// Where the memories are.
static FOLDER: Once<CString> = Once::new();

/// Of the limit of a program's address space, this part may be ours.
const OUR_PART: u64 = 16;
/// Slots there are at least, however low that limit is.
const FEWEST: usize = 4;
/// A ring grows only while more than this part of the space is free; the rest is for those who have nothing yet.
const KEPT_FREE: u64 = 4;
/// How long to sleep at first where a ring is full.
const SHORTEST_NAP: Duration = Duration::from_micros(50);
/// And in the end: where hundreds wait, to look more often takes the recorder's own time away.
const LONGEST_NAP: Duration = Duration::from_millis(5);

/// Finds what all processes and the recorder share.
pub(crate) fn map_recorder(folder: &CStr) {
    let file = files::within(folder, recorder::NAME).and_then(|path| File::of(&path));
    if let Some(memory) = file.and_then(|file| sys::map(&file, recorder::SIZE)) {
        RECORDER.store(memory, Ordering::Release);
    }
}

/// The 32-bit number at an offset of what all processes and the recorder share.
pub(crate) fn recorder_word(offset: usize) -> Option<&'static AtomicU32> {
    debug_assert!(offset + 4 <= recorder::SIZE && offset.is_multiple_of(4));
    let memory = RECORDER.load(Ordering::Acquire);
    // SAFETY: once it is not null it is mapped for good and `recorder::SIZE` bytes long, the offset is within and aligned,
    // and all sides use it with atomic operations only.
    (!memory.is_null()).then(|| unsafe { &*memory.add(offset).cast::<AtomicU32>() })
}

/// Whether somebody takes what is told: a killed recorder's lock is cleared by the kernel.
pub(crate) fn has_recorder() -> bool {
    recorder_word(recorder::LOCK)
        .is_none_or(|lock| lock.load(Ordering::Acquire) & recorder::THREAD_MASK != 0)
}

/// How many slots to make room for.
fn slots_allowed() -> usize {
    sys::address_space().map_or(layout::SLOTS, |limit| {
        let slots = limit / OUR_PART / layout::SLOT as u64;
        usize::try_from(slots)
            .unwrap_or(layout::SLOTS)
            .clamp(FEWEST, layout::SLOTS)
    })
}

/// Makes this process's shared memory. Its name tells when, and is no other's: a child of fork that executes a program at once
/// has made two before the recorder has seen the first. `None` if it cannot be made.
pub(crate) fn open(folder: &CStr, parent: u32, inherited: u64) -> Option<()> {
    // A child has its parent's.
    FOLDER.set(folder.to_owned());
    let pid = sys::pid();
    let name = format!("{:020}-{pid}", sys::now());
    let hidden = files::within(folder, &format!(".{name}"))?;
    let file = File::new(&hidden)?;
    let slots = slots_allowed();
    let Some(memory) = make(&file, layout::slot_at(slots)) else {
        files::remove(&hidden);
        return None;
    };
    MEMORY.store(memory, Ordering::Release);
    SLOTS.store(slots, Ordering::Relaxed);
    word32(header::PID).store(pid, Ordering::Relaxed);
    word32(header::PARENT).store(parent, Ordering::Relaxed);
    word(header::INHERITED).store(inherited, Ordering::Relaxed);
    word(header::BLOCKS_CAPACITY).store(layout::BLOCKS as u64, Ordering::Relaxed);
    word(header::BLOCKS_RESERVED).store(layout::FIRST_BLOCKS as u64, Ordering::Relaxed);
    word(header::MAGIC).store(layout::MAGIC, Ordering::Release);
    // Who sees the name sees it complete.
    files::name_anew(&hidden, &files::within(folder, &name)?)
}

/// Maps a new file, and reserves what is needed at first; `None` if there is no memory for it.
fn make(file: &File, len: usize) -> Option<*mut u8> {
    // The recorder opens it, and nobody else is to.
    file.keep_from_others()?;
    sys::set_len(file, len as u64)?;
    let memory = sys::map(file, len)?;
    if sys::reserve(memory, layout::HEADER + layout::FIRST_BLOCKS) {
        return Some(memory);
    }
    // SAFETY: it was mapped just now, with this length, and nobody knows of it.
    unsafe { sys::unmap(memory, len) };
    None
}

/// In a child after fork: memory of its own instead of its parent's, of which it has so many blocks.
pub(crate) fn open_after_fork(folder: &CStr, inherited: u64) -> Option<()> {
    let parent = word32(header::PID).load(Ordering::Relaxed);
    let (memory, slots) = (
        MEMORY.load(Ordering::Relaxed),
        SLOTS.load(Ordering::Relaxed),
    );
    open(folder, parent, inherited)?;
    // SAFETY: mapped by `open` in the parent, with this length; the child has one thread, which holds nothing of it.
    unsafe { sys::unmap(memory, layout::slot_at(slots)) };
    Some(())
}

/// The 64-bit number at an offset of the shared memory.
pub(crate) fn word(offset: usize) -> &'static AtomicU64 {
    debug_assert!(offset + 8 <= layout::SIZE && offset.is_multiple_of(8));
    // SAFETY: the memory is mapped as long as anybody is told of, and holds what offsets can name: the header and the slots
    // there are. The offset is aligned, and both sides use atomic operations only.
    unsafe {
        &*MEMORY
            .load(Ordering::Acquire)
            .add(offset)
            .cast::<AtomicU64>()
    }
}

/// The 32-bit number at an offset of the shared memory.
pub(crate) fn word32(offset: usize) -> &'static AtomicU32 {
    debug_assert!(offset + 4 <= layout::SIZE && offset.is_multiple_of(4));
    // SAFETY: as `word`.
    unsafe {
        &*MEMORY
            .load(Ordering::Acquire)
            .add(offset)
            .cast::<AtomicU32>()
    }
}

/// Where a slot lies.
pub(crate) fn slot_memory(base: usize) -> *mut u8 {
    MEMORY.load(Ordering::Acquire).wrapping_add(base)
}

/// Where the slot that lies there begins in the shared memory.
pub(crate) fn slot_base(at: *mut u8) -> usize {
    at.addr() - MEMORY.load(Ordering::Acquire).addr()
}

/// Puts a record into the ring of the slot that lies at `at`, if that is not at its limit; whether it did. This is done for each block that runs.
///
/// # Safety
/// One of this process's slots lies there.
#[inline(always)]
pub(crate) unsafe fn put_quickly(at: *mut u8, record: u32) -> bool {
    // SAFETY: the offsets are of a slot's header, and aligned; both sides use atomic operations only.
    let word = |offset: usize| unsafe { &*at.add(offset).cast::<AtomicU64>() };
    let head = word(slot::HEAD);
    let count = head.load(Ordering::Relaxed);
    if count >= word(slot::LIMIT).load(Ordering::Relaxed) {
        return false;
    }
    let capacity = word(slot::CAPACITY).load(Ordering::Relaxed);
    let place = (count & capacity.wrapping_sub(1)) as usize;
    // SAFETY: within the slot's ring, of which so much is reserved as its limit says.
    let ring = unsafe { &*at.add(layout::SLOT_HEADER + 4 * place).cast::<AtomicU32>() };
    ring.store(record, Ordering::Relaxed);
    head.store(count + 1, Ordering::Release);
    true
}

/// Reserves a part of the shared memory.
fn reserve(part: Range<usize>) -> bool {
    debug_assert!(part.end <= layout::slot_at(SLOTS.load(Ordering::Relaxed)));
    let memory = MEMORY.load(Ordering::Acquire);
    sys::reserve(memory.wrapping_add(part.start), part.len())
}

/// Finds a slot for a thread that begins; `None` if there is none, or no memory for it.
pub(crate) fn take_slot(thread: u32) -> Option<usize> {
    let _one_at_a_time = TAKING.lock();
    let ready = word32(header::SLOTS).load(Ordering::Relaxed) as usize;
    let is_free = |base: &usize| word32(base + slot::THREAD).load(Ordering::Acquire) == 0;
    let base = match (0..ready).map(layout::slot_at).find(is_free) {
        Some(base) => base,
        None => {
            let base = layout::slot_at(ready);
            if ready >= SLOTS.load(Ordering::Relaxed)
                || !reserve(base..base + layout::SLOT_HEADER + 4 * layout::FIRST_RECORDS)
            {
                return None;
            }
            word(base + slot::CAPACITY).store(layout::RECORDS as u64, Ordering::Relaxed);
            word(base + slot::RESERVED).store(layout::FIRST_RECORDS as u64, Ordering::Relaxed);
            word32(header::SLOTS).store(ready as u32 + 1, Ordering::Release);
            base
        }
    };
    word32(base + slot::THREAD).store(thread, Ordering::Relaxed);
    Some(base)
}

/// One of the rings, as its producer sees it.
pub(crate) struct Ring {
    /// Where it begins.
    start: usize,
    /// The size of what it counts.
    unit: usize,
    tail: &'static AtomicU64,
    capacity: &'static AtomicU64,
    reserved: &'static AtomicU64,
}

impl Ring {
    fn of_blocks() -> Self {
        Self {
            start: layout::HEADER,
            unit: 1,
            tail: word(header::BLOCKS_TAIL),
            capacity: word(header::BLOCKS_CAPACITY),
            reserved: word(header::BLOCKS_RESERVED),
        }
    }

    pub(crate) fn of_slot(base: usize) -> Self {
        Self {
            start: base + layout::SLOT_HEADER,
            unit: 4,
            tail: word(base + slot::TAIL),
            capacity: word(base + slot::CAPACITY),
            reserved: word(base + slot::RESERVED),
        }
    }

    /// It has no more memory than it has, and needs no more.
    pub(crate) fn stay(&self) {
        let reserved = self.reserved.load(Ordering::Relaxed);
        self.capacity.store(reserved, Ordering::Relaxed);
    }

    /// Sees to it that there is memory up to `end`, or that the capacity is what there is memory for.
    fn grow(&self, end: u64) {
        loop {
            let reserved = self.reserved.load(Ordering::Relaxed);
            if end <= reserved || self.capacity.load(Ordering::Relaxed) <= reserved {
                return;
            }
            // As much again.
            let len = reserved as usize * self.unit;
            if may_take(len) && reserve(self.start + len..self.start + 2 * len) {
                self.reserved.store(2 * reserved, Ordering::Relaxed);
            } else {
                return self.stay();
            }
        }
    }

    /// Waits until there is room up to `end`; the capacity. `None` if nobody takes anything any more.
    fn room(&self, end: u64) -> Option<u64> {
        self.grow(end);
        let capacity = self.capacity.load(Ordering::Relaxed);
        let mut nap = SHORTEST_NAP;
        while end - self.tail.load(Ordering::Acquire) > capacity {
            if !wait(nap) {
                return None;
            }
            nap = LONGEST_NAP.min(nap * 2);
        }
        Some(capacity)
    }

    /// How far may be written without another look.
    pub(crate) fn limit(&self) -> u64 {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let limit = self.tail.load(Ordering::Acquire) + capacity;
        match self.reserved.load(Ordering::Relaxed) {
            reserved if reserved < capacity => limit.min(reserved),
            _ => limit,
        }
    }
}

/// Whether a ring may take so many bytes more: it works with what it has, too, and others may have nothing.
fn may_take(len: usize) -> bool {
    match FOLDER.get().and_then(|folder| sys::room(folder)) {
        // Where everything fits, nobody has said how much that is.
        Some((0, _)) | None => true,
        Some((all, free)) => free.saturating_sub(len as u64) >= all / KEPT_FREE,
    }
}

/// Waits for a ring to have room: the recorder is behind. `false` if it is gone.
#[cold]
fn wait(nap: Duration) -> bool {
    if word32(header::STOPPED).load(Ordering::Relaxed) != 0 {
        return false;
    }
    if !has_recorder() {
        word32(header::STOPPED).store(1, Ordering::Relaxed);
        return false;
    }
    sys::sleep(nap);
    true
}

/// Puts records into a slot's ring, all or none at a time.
pub(crate) fn put(base: usize, records: &[u32]) {
    let head = word(base + slot::HEAD);
    let at = head.load(Ordering::Relaxed);
    let end = at + records.len() as u64;
    let Some(capacity) = Ring::of_slot(base).room(end) else {
        return;
    };
    let ring = base + layout::SLOT_HEADER;
    for (place, record) in (at..end).zip(records) {
        let place = (place & (capacity - 1)) as usize;
        word32(ring + 4 * place).store(*record, Ordering::Relaxed);
    }
    head.store(end, Ordering::Release);
}

/// Puts a record into the ring of blocks, whose producer the caller must be. `false` if nobody takes it.
pub(crate) fn put_bytes(address: u64, instructions: u32, bytes: &[u8]) -> bool {
    let begin = BlockHead {
        address,
        len: bytes.len() as u32,
        instructions,
    };
    let mut record = begin.to_bytes().to_vec();
    record.extend_from_slice(bytes);
    record.resize(begin.record_len(), 0);
    let head = word(header::BLOCKS_HEAD);
    let at = head.load(Ordering::Relaxed);
    let end = at + record.len() as u64;
    let Some(capacity) = Ring::of_blocks().room(end) else {
        return false;
    };
    for (place, part) in (at..).step_by(8).zip(record.chunks_exact(8)) {
        let place = (place & (capacity - 1)) as usize;
        let value = u64::from_ne_bytes(part.try_into().unwrap_or_default());
        word(layout::HEADER + place).store(value, Ordering::Relaxed);
    }
    head.store(end, Ordering::Release);
    true
}
