//! Files held in addresses without memory, of which those chunks are brought that are touched.
//!
//! A decoder wants the packets of a stream as one slice, from anywhere in which it may read. A file of any size has room in the addresses
//! of a process, but not in memory; and the packets of a stream lie in pieces all over the file. So addresses are reserved for a file, or for the
//! pieces of a stream one behind the other, without memory. Whoever touches them where there is none is stopped by SIGSEGV, whose handler reads
//! the chunk there from the file and puts it in place; the chunk that has been in memory for longest makes way. To who reads, it is
//! a slice like any other, in memory of constant size.
//!
//! Who reads on comes from the chunk before. Who comes from elsewhere may only want to look at a header and go to the next one, as whoever opens a trace does:
//! so a part of the chunk is brought, and all of it when another part is touched.
//!
//! Against a mapping of the file speak three things: pages of it stay in memory until there is too little of it, so that nobody can tell
//! how much a command needs; it cannot put the pieces of a stream together, so that most streams had to be copied; and a file that somebody
//! cuts off must be caught as SIGBUS anyway. Here a read comes back short, which ends the command with a sentence and the status 2. Against
//! reading the file speaks its size.
//!
//! Somebody may change the file: then what is decoded is neither the old file nor the new one. Nothing relies on bytes being the same when
//! they are read twice for more than that (indices are checked where they are used), and a recorder that is still writing only appends.
//!
//! Who is given addresses here must not give them to a system call, which would fail (EFAULT): what writes packets copies them first.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{IntoRawFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use nix::libc;

/// So many bytes are read at once: a multiple of the size of a page, wherever pages are of 4 to 64 KiB.
const CHUNK: usize = 1 << 17;

/// So many are brought of a chunk at the first touch from elsewhere: what divides it, and is a multiple of the size of a page, too.
const PART: usize = if cfg!(target_arch = "x86_64") {
    1 << 14
} else {
    1 << 16
};

/// So many chunks are in memory at most, 64 MiB: many for each thread that reads, so that none loses the chunk that it is reading.
const RESIDENT: usize = 512;

/// Bytes of a file, and where in a region they are.
#[derive(Clone, Copy, Debug)]
struct Extent {
    start: usize,
    len: usize,
    file: RawFd,
    offset: u64,
}

/// What of a chunk is in memory.
mod state {
    /// Nothing: who touches it is stopped.
    pub(super) const ABSENT: u8 = 0;
    /// A thread is bringing it, or taking it away.
    pub(super) const MOVING: u8 = 1;
    /// All of it.
    pub(super) const PRESENT: u8 = 2;
    /// A part of it.
    pub(super) const PART: u8 = 3;
}

/// Reserved addresses. They stay so to the end of the process, since the handler may look at them at any time: a command opens few files.
#[derive(Debug)]
pub struct Region {
    base: usize,
    len: usize,
    extents: Box<[Extent]>,
    chunks: Box<[AtomicU8]>,
    next: *const Region,
}

// SAFETY: `next` points to another region, which is never changed nor freed.
unsafe impl Sync for Region {}

/// All regions, the last one first.
static REGIONS: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());

/// The addresses of the chunks in memory, in about the order in which they were brought; 0 for none. One that was brought in two steps is there twice, and goes
/// with the first.
static PRESENT: [AtomicUsize; RESIDENT] = [const { AtomicUsize::new(0) }; RESIDENT];

/// How many chunks were brought.
static BROUGHT: AtomicUsize = AtomicUsize::new(0);

/// What was done at SIGSEGV before.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// The region in which an address lies.
fn region_at(address: usize) -> Option<&'static Region> {
    let mut next: *const Region = REGIONS.load(Ordering::Acquire);
    // SAFETY: regions are made public whole, and are never changed nor freed.
    while let Some(region) = unsafe { next.as_ref() } {
        if (region.base..region.base + region.len).contains(&address) {
            return Some(region);
        }
        next = region.next;
    }
    None
}

impl Region {
    /// A region for a whole file of this length; none if there may be none.
    pub(crate) fn of_file(file: &File, len: usize) -> io::Result<Option<&'static Self>> {
        // The descriptor stays open as long as the region: to the end of the process.
        let extent = Extent {
            start: 0,
            len,
            file: file.try_clone()?.into_raw_fd(),
            offset: 0,
        };
        Ok(Self::reserve(len, vec![extent]))
    }

    /// A region for pieces of others, one behind the other; none if a piece is not of one.
    pub(crate) fn of_pieces(pieces: &[&[u8]]) -> Option<&'static Self> {
        let mut extents = Vec::new();
        let mut start = 0;
        for piece in pieces {
            let region = region_at(piece.as_ptr().addr())?;
            let first = piece.as_ptr().addr() - region.base;
            for extent in region.extents_of(first..first + piece.len()) {
                extents.push(Extent { start, ..extent });
                start += extent.len;
            }
        }
        // A piece that is partly of something else.
        let len = pieces.iter().map(|piece| piece.len()).sum();
        if start != len {
            return None;
        }
        Self::reserve(len, extents)
    }

    /// Reserves addresses for the bytes of these extents; none where there are none left, or no handler can be set up.
    fn reserve(len: usize, extents: Vec<Extent>) -> Option<&'static Self> {
        let set_up = *BEFORE.get_or_init(set_up);
        set_up?;
        let chunks = len.div_ceil(CHUNK);
        let base = reserve(None, chunks.checked_mul(CHUNK)?)?;
        let region = Box::leak(Box::new(Self {
            base,
            len,
            extents: extents.into(),
            chunks: (0..chunks).map(|_| AtomicU8::new(state::ABSENT)).collect(),
            next: REGIONS.load(Ordering::Acquire),
        }));
        while let Err(now) = REGIONS.compare_exchange(
            region.next.cast_mut(),
            region,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            region.next = now;
        }
        // It is not changed any more.
        Some(region)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the addresses are reserved for the region alone, which stays. Nobody ever writes there: a chunk becomes readable with its
        // bytes in place, and when it is brought again these are the same, unless somebody changes the file, of which is said above
        // that nothing relies on it.
        unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(self.base), self.len) }
    }

    /// Which bytes of files a range of it has; their places are those in the region.
    fn extents_of(&self, range: Range<usize>) -> impl Iterator<Item = Extent> {
        let first = self
            .extents
            .partition_point(|extent| extent.start + extent.len <= range.start);
        let rest = self.extents.get(first..).unwrap_or_default().iter();
        rest.take_while(move |extent| extent.start < range.end)
            .map(move |extent| {
                let start = extent.start.max(range.start);
                let end = (extent.start + extent.len).min(range.end);
                Extent {
                    start,
                    len: end - start,
                    file: extent.file,
                    offset: extent.offset + (start - extent.start) as u64,
                }
            })
    }

    /// Brings the chunk of an address, which was touched, or a part of it. Runs in a signal's handler: no more is called than system calls.
    fn bring(&self, address: usize) -> Result<(), Failure> {
        let number = (address - self.base) / CHUNK;
        let Some(chunk) = self.chunks.get(number) else {
            return Err(Failure::Memory);
        };
        let Some(before) = take(chunk, [state::ABSENT, state::PART]) else {
            if chunk.load(Ordering::Acquire) == state::MOVING {
                // Another thread is at it. Who touched it will do so again.
                std::thread::yield_now();
            }
            return Ok(());
        };
        let reads_on = match number.checked_sub(1) {
            Some(last) => self
                .chunks
                .get(last)
                .is_some_and(|last| last.load(Ordering::Acquire) == state::PRESENT),
            None => true,
        };
        let start = self.base + number * CHUNK;
        let after = if before == state::PART || reads_on {
            self.read(number * CHUNK, CHUNK)?;
            state::PRESENT
        } else {
            self.read((address - self.base) / PART * PART, PART)?;
            state::PART
        };
        chunk.store(after, Ordering::Release);
        let place = BROUGHT.fetch_add(1, Ordering::Relaxed) % RESIDENT;
        let oldest = PRESENT
            .get(place)
            .map_or(0, |slot| slot.swap(start, Ordering::AcqRel));
        match region_at(oldest) {
            Some(region) => region.take_away(oldest),
            None => Ok(()),
        }
    }

    /// Reads so many bytes from a place on into memory of their own, and puts that to the reserved addresses in one step.
    fn read(&self, from: usize, size: usize) -> Result<(), Failure> {
        let target = self.base + from;
        let range = from.min(self.len)..from.saturating_add(size).min(self.len);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, wherever the kernel has room.
        let memory = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(Failure::Memory);
        }
        let first = range.start;
        for extent in self.extents_of(range) {
            let (mut done, at) = (0, extent.start - first);
            while done < extent.len {
                // SAFETY: the extent lies within the range, so what is read lies within the memory.
                let count = unsafe {
                    let offset = (extent.offset + done as u64) as libc::off_t;
                    let to = memory.byte_add(at + done);
                    libc::pread(extent.file, to, extent.len - done, offset)
                };
                match count {
                    1.. => done += count as usize,
                    -1 if errno() == libc::EINTR => {}
                    -1 => return Err(Failure::Read),
                    _ => return Err(Failure::Cut),
                }
            }
        }
        // SAFETY: the memory is this function's until it is moved. It takes the place of addresses that are the region's own, and that no other thread
        // moves, as the state of the chunk says. Nobody can read them at this moment, or they are a part that is there already: then who
        // reads meanwhile finds the same bytes, or none and is stopped.
        let moved = unsafe {
            let to = ptr::with_exposed_provenance_mut::<c_void>(target);
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            libc::mprotect(memory, size, libc::PROT_READ) == 0
                && libc::mremap(memory, size, size, how, to) != libc::MAP_FAILED
        };
        if moved { Ok(()) } else { Err(Failure::Memory) }
    }

    /// Takes a chunk away that is in memory: its addresses are only reserved again.
    fn take_away(&self, address: usize) -> Result<(), Failure> {
        let Some(chunk) = self.chunks.get((address - self.base) / CHUNK) else {
            return Ok(());
        };
        if take(chunk, [state::PRESENT, state::PART]).is_none() {
            // It has gone, or the rest of it is being brought: then it is noted once more.
            return Ok(());
        }
        let reserved = reserve(Some(address), CHUNK);
        chunk.store(state::ABSENT, Ordering::Release);
        reserved.map(|_| ()).ok_or(Failure::Memory)
    }
}

/// Has a chunk be moved by this thread alone, from one of two states; which it was, if it was one of them.
fn take(chunk: &AtomicU8, from: [u8; 2]) -> Option<u8> {
    let order = (Ordering::Acquire, Ordering::Acquire);
    let taken = |state: &u8| chunk.compare_exchange(*state, state::MOVING, order.0, order.1);
    from.into_iter().find(|state| taken(state).is_ok())
}

/// Reserves addresses, which nobody can read: anywhere, or in the place of what is at `address`, which must be a region's.
fn reserve(address: Option<usize>, len: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let (at, fixed) = match address {
        Some(address) => (ptr::with_exposed_provenance_mut(address), libc::MAP_FIXED),
        None => (ptr::null_mut(), 0),
    };
    // SAFETY: what is replaced is the region's own, and readers of it are stopped until it is there again.
    let reserved = unsafe { libc::mmap(at, len, libc::PROT_NONE, flags | fixed, -1, 0) };
    (reserved != libc::MAP_FAILED).then(|| reserved.expose_provenance())
}

/// Why a chunk cannot be brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The file ends before it.
    Cut,
    /// It cannot be read.
    Read,
    /// There is no memory left.
    Memory,
}

impl Failure {
    const fn sentence(self) -> &'static [u8] {
        match self {
            Self::Cut => b"cofi: the trace file was cut off while it was being read\n",
            Self::Read => b"cofi: the trace file cannot be read\n",
            Self::Memory => b"cofi: there is no memory left to read the trace file\n",
        }
    }
}

fn errno() -> i32 {
    // SAFETY: it is the thread's own.
    unsafe { *libc::__errno_location() }
}

/// Has SIGSEGV bring chunks; what was done before, if that worked.
fn set_up() -> Option<libc::sigaction> {
    // SAFETY: the structures are plain numbers, for which zeros are valid; the handler keeps to what handlers may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = touched;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        (libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before) == 0).then_some(before)
    }
}

/// Handles SIGSEGV: brings a chunk of a region, and leaves anything else to who did so before.
extern "C" fn touched(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let errno = errno();
    // SAFETY: the kernel gives a handler that wants it a description of the signal.
    let address = unsafe { (*info).si_addr() }.addr();
    match region_at(address).map(|region| region.bring(address)) {
        Some(Ok(())) => {}
        Some(Err(failure)) => {
            let text = failure.sentence();
            // SAFETY: two system calls that a handler may make. A message that cannot be written is no reason to stay.
            unsafe {
                libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
                libc::_exit(2);
            }
        }
        None => pass_on(signal, info, context),
    }
    // SAFETY: it is the thread's own. Who was interrupted must find it as it was.
    unsafe { *libc::__errno_location() = errno };
}

/// Does what was done at the signal before.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    type Simple = extern "C" fn(c_int);
    type Full = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    // The handler may have been called before its predecessor was noted.
    let before = BEFORE.get().copied().flatten();
    let before =
        before.filter(|before| !matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN));
    // SAFETY: what was given to the kernel as a handler is one, of the kind that the flags tell. Where there was none, the signal's default is
    // put in place, which ends the process as soon as the instruction is tried again.
    unsafe {
        match before {
            Some(before) if before.sa_flags & libc::SA_SIGINFO != 0 => {
                std::mem::transmute::<libc::sighandler_t, Full>(before.sa_sigaction)(
                    signal, info, context,
                );
            }
            Some(before) => {
                std::mem::transmute::<libc::sighandler_t, Simple>(before.sa_sigaction)(signal);
            }
            None => {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Bytes, file, join};

    fn pattern(number: usize) -> [u8; 8] {
        (number as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_le_bytes()
    }

    #[test]
    fn large_files_are_held_and_small_ones_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        for (len, is_held) in [(0, false), (100, false), (1 << 20, true), (1_500_001, true)] {
            let bytes: Vec<u8> = (0..len / 8 + 1).flat_map(pattern).take(len).collect();
            std::fs::write(&path, &bytes).unwrap();
            let found = file(&path).unwrap();
            assert_eq!(*found, *bytes);
            assert_eq!(matches!(found, Bytes::Held(_)), is_held);
        }
        assert!(file(&folder.path().join("none")).is_err());
    }

    /// Pieces of any length, whose chunks lie across them, are as their copies one behind the other.
    #[test]
    fn pieces_are_joined_without_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let bytes: Vec<u8> = (0..400_000).flat_map(pattern).collect();
        std::fs::write(&path, &bytes).unwrap();
        let held = file(&path).unwrap();
        let mut pieces: Vec<&[u8]> = Vec::new();
        let mut at = 40;
        for number in 0..2000_usize {
            let len = number % 7 * 300 + number % 13;
            pieces.push(&held[at..at + len]);
            at += len + number % 5 * 8;
        }
        let joined = join(&pieces).expect("a region");
        assert_eq!((*joined).as_ref(), pieces.concat());
        // Pieces of joined pieces are pieces of the file.
        let [first, second] = [
            &(*joined).as_ref()[5..800_000],
            &(*joined).as_ref()[900_000..1_500_000],
        ];
        let again = join(&[first, second]).expect("a region");
        assert_eq!((*again).as_ref(), [first, second].concat());
        // What is not held cannot be joined so.
        let other = vec![0; 2 << 20];
        assert!(join(&[&held[..], &other]).is_none());
        assert!(join(&[&held[..100], &held[200..300]]).is_none());
    }

    /// More than may be in memory, read by several threads in different orders.
    #[test]
    fn no_more_is_in_memory_than_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let count = RESIDENT * 3 / 2;
        {
            use std::os::unix::fs::FileExt;
            let file = File::create(&path).unwrap();
            file.set_len((count * CHUNK) as u64).unwrap();
            for chunk in 0..count {
                let at = (chunk * CHUNK + chunk) as u64;
                file.write_all_at(&pattern(chunk), at).unwrap();
            }
        }
        let held = file(&path).unwrap();
        let Bytes::Held(region) = held else {
            panic!("it was read");
        };
        std::thread::scope(|scope| {
            for step in [1, 7, 11] {
                scope.spawn(move || {
                    for number in 0..2 * count {
                        let chunk = number * step % count;
                        let at = chunk * CHUNK + chunk;
                        assert_eq!(region.bytes()[at..at + 8], pattern(chunk));
                        assert_eq!(region.bytes()[at + 9], 0);
                    }
                });
            }
        });
        let is_there = |chunk: &&AtomicU8| chunk.load(Ordering::Acquire) != state::ABSENT;
        let there = region.chunks.iter().filter(is_there).count();
        assert!((1..=RESIDENT).contains(&there), "{there} chunks");
        // (Here, since the other tests together do not touch so much that what this one does would make way.)
        what_is_brought(&path);
    }

    /// By who comes from elsewhere a part is brought, by who goes on in it the rest, and by who reads on from there a chunk.
    fn what_is_brought(path: &Path) {
        let Bytes::Held(region) = file(path).unwrap() else {
            panic!("it was read");
        };
        let states = |numbers: [usize; 3]| {
            numbers.map(|number| region.chunks[number].load(Ordering::Acquire))
        };
        let assert_is = |chunk: usize, place: usize, wanted: [u8; 8]| {
            let at = chunk * CHUNK + place;
            assert_eq!(region.bytes()[at..at + 8], wanted);
        };
        let (absent, part, present) = (state::ABSENT, state::PART, state::PRESENT);
        assert_eq!(states([0, 5, 6]), [absent; 3]);
        assert_is(0, 0, pattern(0));
        for _ in 0..2 {
            assert_is(5, 5, pattern(5));
            assert_eq!(states([0, 5, 6]), [present, part, absent]);
        }
        assert_is(5, PART, [0; 8]);
        assert_is(5, 5, pattern(5));
        assert_eq!(states([0, 5, 6]), [present, present, absent]);
        assert_is(6, 6, pattern(6));
        assert_eq!(states([0, 5, 6]), [present; 3]);
    }
}
