//! The recorder's side of the memory that it shares with the plugin in one process.
#![allow(
    unsafe_code,
    reason = "memory that another process writes; it is read with atomic operations, within its bounds"
)]

use cofi_qemu_plugin::layout::{self, BlockHead, header, recorder, slot};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A process's shared memory, mapped.
#[derive(Debug)]
pub(super) struct Shared {
    memory: NonNull<u8>,
    /// How much of the file is mapped.
    len: usize,
    /// Slots that are mapped.
    mapped: usize,
    /// Slots that the file has.
    slots: usize,
    /// The process is told that nobody reads any more, and writes round and round.
    stopped: bool,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and nothing borrows from it any more.
        unsafe {
            libc::munmap(self.memory.as_ptr().cast(), self.len);
        }
    }
}

/// How many records the threads of a process have put into their rings.
pub(super) fn told(file: &File) -> io::Result<u64> {
    let mut slots = [0; 4];
    file.read_exact_at(&mut slots, header::SLOTS as u64)?;
    let slots = (0..u32::from_ne_bytes(slots) as usize).map(layout::slot_at);
    let heads = slots.map(|at| {
        let mut head = [0; 8];
        file.read_exact_at(&mut head, (at + slot::HEAD) as u64)?;
        Ok(u64::from_ne_bytes(head))
    });
    heads.sum()
}

impl Shared {
    /// Maps a file that the plugin has made.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let len = file.metadata()?.len();
        let slots = layout::slots_of(len).ok_or_else(|| io::Error::other("not of this size"))?;
        // Of the slots no more than are used: our address space may be limited, and there may be hundreds of processes.
        let len = layout::slot_at(1);
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        let shared = Self {
            memory,
            len,
            mapped: 1,
            slots,
            stopped: false,
        };
        if shared.word(header::MAGIC).load(Ordering::Acquire) != layout::MAGIC {
            return Err(io::Error::other("not of this version's layout"));
        }
        Ok(shared)
    }

    /// A process that cannot be taken up is to wait for nobody.
    pub(super) fn refuse(path: &Path) -> io::Result<()> {
        let file = File::options().write(true).open(path)?;
        file.write_all_at(&1_u32.to_ne_bytes(), header::STOPPED as u64)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len && offset.is_multiple_of(8));
        // SAFETY: within the mapping and aligned; both sides use atomic operations only.
        unsafe { self.memory.add(offset).cast().as_ref() }
    }

    fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= self.len && offset.is_multiple_of(4));
        // SAFETY: as `word`.
        unsafe { self.memory.add(offset).cast().as_ref() }
    }

    pub(super) fn pid(&self) -> u32 {
        self.word32(header::PID).load(Ordering::Relaxed)
    }

    /// The process that forked this one, and how many blocks it has from there.
    pub(super) fn parent(&self) -> Option<(u32, u64)> {
        match self.word32(header::PARENT).load(Ordering::Relaxed) {
            0 => None,
            parent => Some((parent, self.word(header::INHERITED).load(Ordering::Relaxed))),
        }
    }

    /// Threads that found no slot since the last call.
    pub(super) fn take_untraced(&self) -> u32 {
        self.word32(header::UNTRACED).swap(0, Ordering::Relaxed)
    }

    /// The capacity of a ring, a power of two. To be read after the ring's head: it may shrink, but not for what was put in
    /// before.
    fn capacity(&self, offset: usize, most: usize) -> usize {
        let capacity = self.word(offset).load(Ordering::Relaxed) as usize;
        if capacity.is_power_of_two() && capacity <= most {
            return capacity;
        }
        most
    }

    /// The next translated block and its code, if there is one.
    pub(super) fn next_block(&self, code: &mut Vec<u8>) -> Option<BlockHead> {
        let head = self.word(header::BLOCKS_HEAD).load(Ordering::Acquire);
        let tail = self.word(header::BLOCKS_TAIL).load(Ordering::Relaxed);
        if head == tail || self.stopped {
            return None;
        }
        let capacity = self.capacity(header::BLOCKS_CAPACITY, layout::BLOCKS);
        let part = |i: usize| {
            let place = (tail as usize + 8 * i) & (capacity - 1);
            self.word(layout::HEADER + place)
                .load(Ordering::Relaxed)
                .to_ne_bytes()
        };
        let mut begin = [0; BlockHead::SIZE];
        begin[..8].copy_from_slice(&part(0));
        begin[8..].copy_from_slice(&part(1));
        let block = BlockHead::from_bytes(begin);
        code.clear();
        for i in BlockHead::SIZE / 8..block.record_len() / 8 {
            code.extend_from_slice(&part(i));
        }
        code.truncate(block.len as usize);
        let tail = tail + block.record_len() as u64;
        self.word(header::BLOCKS_TAIL)
            .store(tail, Ordering::Release);
        Some(block)
    }

    /// How many records of what a virtual processor has done are there to be taken.
    pub(super) fn in_ring(&self, index: usize) -> usize {
        let base = layout::slot_at(index);
        let head = self.word(base + slot::HEAD).load(Ordering::Acquire);
        let tail = self.word(base + slot::TAIL).load(Ordering::Relaxed);
        (head - tail) as usize
    }

    /// Takes what a virtual processor has done, as many records as there are up to `most`, and puts them behind those that are in `records`.
    pub(super) fn take(&self, index: usize, records: &mut Vec<u32>, most: usize) {
        let base = layout::slot_at(index);
        let head = self.word(base + slot::HEAD).load(Ordering::Acquire);
        let tail = self.word(base + slot::TAIL).load(Ordering::Relaxed);
        let capacity = self.capacity(base + slot::CAPACITY, layout::RECORDS);
        let count = (head - tail).min(most as u64).min(capacity as u64);
        let ring = self.ring(index, capacity);
        // Up to the ring's end, and from its beginning.
        let from = tail as usize & (capacity - 1);
        let first = (count as usize).min(capacity - from);
        for places in [from..from + first, 0..count as usize - first] {
            records.extend(ring[places].iter().map(|it| it.load(Ordering::Relaxed)));
        }
        if count > 0 {
            self.word(base + slot::TAIL)
                .store(tail + count, Ordering::Release);
        }
    }

    /// The first `capacity` places of a slot's ring.
    fn ring(&self, index: usize, capacity: usize) -> &[AtomicU32] {
        assert!(index < self.mapped && capacity <= layout::RECORDS);
        let at = layout::slot_at(index) + layout::SLOT_HEADER;
        // SAFETY: within the mapping and aligned; both sides use atomic operations only.
        unsafe { std::slice::from_raw_parts(self.memory.add(at).cast().as_ptr(), capacity) }
    }

    /// Slots that threads have used.
    ///
    /// # Errors
    /// They cannot all be mapped.
    pub(super) fn used_slots(&mut self) -> io::Result<usize> {
        if self.stopped {
            return Ok(0);
        }
        let used = self.word32(header::SLOTS).load(Ordering::Acquire) as usize;
        let used = used.min(self.slots);
        if used > self.mapped {
            self.map_slots(used.next_power_of_two().min(self.slots))?;
        }
        Ok(used)
    }

    fn map_slots(&mut self, slots: usize) -> io::Result<()> {
        let len = layout::slot_at(slots);
        // SAFETY: the mapping is ours, of this length, and nothing borrows from it; it may go elsewhere. That the file has so
        // many slots was seen when it was opened.
        let memory = unsafe {
            libc::mremap(
                self.memory.as_ptr().cast(),
                self.len,
                len,
                libc::MREMAP_MAYMOVE,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.memory = NonNull::new(memory.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        (self.len, self.mapped) = (len, slots);
        Ok(())
    }

    /// From now on nobody takes anything: a full ring is no reason to wait.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        self.word32(header::STOPPED).store(1, Ordering::Relaxed);
    }
}

/// What the recorder shares with all processes: that it is there.
#[derive(Debug)]
pub(super) struct Presence {
    memory: NonNull<u8>,
}

impl Presence {
    /// Says that the calling thread takes what is told, until this is dropped or the thread ends in whatever way. Threads must
    /// not hand it on, which they cannot: it is no `Send`.
    pub(super) fn announce(folder: &Path) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(folder.join(recorder::NAME))?;
        // Written, not only made longer: that there is no memory shows here, not when it is touched.
        file.write_all_at(&[0; recorder::SIZE], 0)?;
        let check = |code| match code {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        };
        // SAFETY: a new mapping, large enough for the mutex and aligned, which is initialized there and locked by this thread;
        // it stays mapped until it is unlocked.
        unsafe {
            let memory = libc::mmap(
                std::ptr::null_mut(),
                recorder::SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if memory == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let memory = NonNull::new(memory).ok_or_else(|| io::Error::other("mapped at 0"))?;
            let mut attributes = std::mem::zeroed::<libc::pthread_mutexattr_t>();
            check(libc::pthread_mutexattr_init(&raw mut attributes))?;
            check(libc::pthread_mutexattr_setpshared(
                &raw mut attributes,
                libc::PTHREAD_PROCESS_SHARED,
            ))?;
            check(libc::pthread_mutexattr_setrobust(
                &raw mut attributes,
                libc::PTHREAD_MUTEX_ROBUST,
            ))?;
            let mutex = memory.as_ptr().cast::<libc::pthread_mutex_t>();
            check(libc::pthread_mutex_init(mutex, &raw const attributes))?;
            libc::pthread_mutexattr_destroy(&raw mut attributes);
            check(libc::pthread_mutex_lock(mutex))?;
            Ok(Self {
                memory: memory.cast(),
            })
        }
    }

    /// Processes that ran on without being traced.
    pub(super) fn untraced(&self) -> u32 {
        // SAFETY: within the mapping and aligned; both sides use atomic operations only.
        let word: &AtomicU32 = unsafe { self.memory.add(recorder::UNTRACED).cast().as_ref() };
        word.load(Ordering::Relaxed)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        // SAFETY: the mutex is there, locked by this thread; nothing borrows from the mapping any more.
        unsafe {
            libc::pthread_mutex_unlock(self.memory.as_ptr().cast());
            libc::munmap(self.memory.as_ptr().cast(), recorder::SIZE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lock's word, as a plugin sees it.
    fn lock(folder: &Path) -> u32 {
        let bytes = std::fs::read(folder.join(recorder::NAME)).unwrap();
        u32::from_ne_bytes(bytes[recorder::LOCK..][..4].try_into().unwrap()) & recorder::THREAD_MASK
    }

    #[test]
    fn a_recorder_is_there_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let presence = Presence::announce(folder.path()).unwrap();
        assert_ne!(lock(folder.path()), 0);
        drop(presence);
        assert_eq!(lock(folder.path()), 0);
    }

    #[test]
    fn the_kernel_says_that_a_recorder_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let thread = std::thread::spawn(move || {
            std::mem::forget(Presence::announce(&path).unwrap());
            lock(&path)
        });
        assert_ne!(thread.join().unwrap(), 0);
        // The thread is gone for the kernel a little later than for `join`.
        let gone = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            lock(folder.path()) == 0
        });
        assert!(gone);
    }
}
