//! The recorder's side of the memory that it shares with the plugin in one process.
#![allow(
    unsafe_code,
    reason = "memory that another process writes; it is read with atomic operations, within its bounds"
)]

use cofi_qemu_plugin::layout::{self, BlockHead, header, recorder, slot};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A process's shared memory, mapped.
#[derive(Debug)]
pub(super) struct Shared {
    memory: NonNull<u8>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and nothing borrows from it any more.
        unsafe {
            libc::munmap(self.memory.as_ptr().cast(), layout::SIZE);
        }
    }
}

impl Shared {
    /// Maps a file that the plugin has made.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() != layout::SIZE as u64 {
            return Err(io::Error::other("not of this version's size"));
        }
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                layout::SIZE,
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
        let shared = Self { memory };
        if shared.word(header::MAGIC).load(Ordering::Acquire) != layout::MAGIC {
            return Err(io::Error::other("not of this version's layout"));
        }
        Ok(shared)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= layout::SIZE && offset.is_multiple_of(8));
        // SAFETY: within the mapping and aligned; both sides use atomic operations only.
        unsafe { self.memory.add(offset).cast().as_ref() }
    }

    fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= layout::SIZE && offset.is_multiple_of(4));
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

    /// The next translated block and its code, if there is one.
    pub(super) fn next_block(&self, code: &mut Vec<u8>) -> Option<BlockHead> {
        let head = self.word(header::BLOCKS_HEAD).load(Ordering::Acquire);
        let tail = self.word(header::BLOCKS_TAIL).load(Ordering::Relaxed);
        if head == tail {
            return None;
        }
        let part = |i: usize| {
            let place = (tail as usize + 8 * i) % layout::BLOCKS;
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

    /// Takes what a virtual processor has done, as many records as there are up to `most`.
    pub(super) fn take(&self, index: usize, records: &mut Vec<u32>, most: usize) {
        records.clear();
        let base = layout::slot_at(index);
        let head = self.word(base + slot::HEAD).load(Ordering::Acquire);
        let tail = self.word(base + slot::TAIL).load(Ordering::Relaxed);
        let count = (head - tail).min(most as u64);
        let ring = self.ring(index);
        // Up to the ring's end, and from its beginning.
        let from = tail as usize % layout::RECORDS;
        let first = (count as usize).min(layout::RECORDS - from);
        for places in [from..from + first, 0..count as usize - first] {
            records.extend(ring[places].iter().map(|it| it.load(Ordering::Relaxed)));
        }
        if count > 0 {
            self.word(base + slot::TAIL)
                .store(tail + count, Ordering::Release);
        }
    }

    /// A slot's ring.
    fn ring(&self, index: usize) -> &[AtomicU32] {
        assert!(index < layout::SLOTS);
        let at = layout::slot_at(index) + layout::SLOT_HEADER;
        // SAFETY: within the mapping and aligned; both sides use atomic operations only.
        unsafe { std::slice::from_raw_parts(self.memory.add(at).cast().as_ptr(), layout::RECORDS) }
    }

    /// Whether a virtual processor has ever done anything.
    pub(super) fn is_used(&self, index: usize) -> bool {
        let base = layout::slot_at(index);
        self.word(base + slot::HEAD).load(Ordering::Relaxed) != 0
    }

    /// From now on nobody takes anything: a full ring is no reason to wait.
    pub(super) fn stop(&self) {
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
        file.set_len(recorder::SIZE as u64)?;
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
