//! A processor's two buffers, which the kernel fills.
#![allow(
    unsafe_code,
    reason = "memory that is shared with the kernel; each use has its justification"
)]

use super::HardwareError;
use super::event::Event;
use super::vdso::Vdso;
use cofi_packet::StreamOffset;
use cofi_perf::{KernelWriter, TimeConv, WriteError};
use std::io::{self, Seek, Write};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;
/// Pages for records, beside the first one, which is the kernel's words about the buffers.
const RECORDS: usize = 128;
/// Pages for packets, of which less is taken where so much is not allowed.
const MOST_PACKETS: usize = 1024;
const LEAST_PACKETS: usize = 16;
/// Places in the first page.
mod place {
    pub(super) const CAPABILITIES: usize = 40;
    pub(super) const TIME_SHIFT: usize = 50;
    pub(super) const TIME_MULT: usize = 52;
    pub(super) const TIME_ZERO: usize = 64;
    pub(super) const DATA_HEAD: usize = 1024;
    pub(super) const DATA_TAIL: usize = 1032;
    pub(super) const AUX_HEAD: usize = 1056;
    pub(super) const AUX_TAIL: usize = 1064;
    pub(super) const AUX_OFFSET: usize = 1072;
    pub(super) const AUX_SIZE: usize = 1080;
}
/// cap_user_time_zero.
const HAS_TIME: u64 = 1 << 4;
/// Kinds of records, and the flags of AUX: TRUNCATED.
const LOST: u32 = 2;
const AUX: u32 = 11;
const TRUNCATED: u64 = 1;

/// What was read.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Told {
    /// Bytes of packets.
    pub(super) bytes: u64,
    /// How often there was no room for packets.
    pub(super) truncated: u64,
    /// So many records were lost.
    pub(super) lost: u64,
}

/// Memory that the kernel has given.
#[derive(Debug)]
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(event: &Event, len: usize, offset: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, which nothing else knows.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, len })
    }

    /// A number that the kernel and this program exchange.
    fn number(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.len && offset.is_multiple_of(8));
        // SAFETY: within the mapping, aligned, and as long as it.
        unsafe { &*self.at.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Bytes from one count to another, of a buffer of `size` bytes that begins at `begin` and is used round and round: one piece or two.
    /// The kernel does not write there until the tail is moved.
    fn pieces(&self, (begin, size): (usize, usize), from: u64, to: u64) -> [&[u8]; 2] {
        let (at, len) = ((from % size as u64) as usize, (to - from) as usize);
        let first = len.min(size - at);
        debug_assert!(begin + size <= self.len && len <= size);
        // SAFETY: within the mapping, and not written to meanwhile, as said.
        unsafe {
            let base = self.at.as_ptr().add(begin);
            [
                std::slice::from_raw_parts(base.add(at), first),
                std::slice::from_raw_parts(base, len - first),
            ]
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nothing refers to it any more.
        unsafe {
            libc::munmap(self.at.as_ptr().cast(), self.len);
        }
    }
}

/// A processor's events and buffers.
#[derive(Debug)]
pub(super) struct Ring {
    cpu: u32,
    packets: Event,
    records: Event,
    first: Mapping,
    aux: Mapping,
}

impl Ring {
    pub(super) fn new(cpu: u32, packets: Event, records: Event) -> Result<Self, HardwareError> {
        let none = |source| HardwareError::NoBuffer { cpu, source };
        let first = Mapping::new(&packets, (1 + RECORDS) * PAGE, 0).map_err(none)?;
        let begin = (1 + RECORDS) * PAGE;
        // (A power of two is wanted, and so is its place a multiple of nothing but pages.)
        let mut pages = MOST_PACKETS;
        let aux = loop {
            let size = pages * PAGE;
            first
                .number(place::AUX_OFFSET)
                .store(begin as u64, Ordering::Relaxed);
            first
                .number(place::AUX_SIZE)
                .store(size as u64, Ordering::Relaxed);
            match Mapping::new(&packets, size, begin) {
                Ok(aux) => break aux,
                Err(error) if pages <= LEAST_PACKETS => return Err(none(error)),
                Err(_) => pages /= 2,
            }
        };
        records.writes_to(&packets).map_err(none)?;
        Ok(Self {
            cpu,
            packets,
            records,
            first,
            aux,
        })
    }

    /// How the TSC becomes perf's time, if the kernel says.
    pub(super) fn time(&self) -> Option<TimeConv> {
        let word = |offset: usize| self.first.number(offset).load(Ordering::Relaxed);
        let has_time = word(place::CAPABILITIES) & HAS_TIME != 0;
        // Two and four bytes of one word.
        let both = word(place::TIME_SHIFT & !7);
        let shift = both >> (8 * (place::TIME_SHIFT & 7)) & 0xffff;
        let mult = both >> (8 * (place::TIME_MULT & 7)) & 0xffff_ffff;
        has_time.then(|| TimeConv {
            shift,
            mult,
            zero: word(place::TIME_ZERO),
        })
    }

    /// Nothing more is to be recorded.
    pub(super) fn disable(&self) {
        self.packets.disable();
        self.records.disable();
    }

    /// Writes what is in the buffers; whether anything was.
    pub(super) fn drain<W: Write + Seek>(
        &mut self,
        index: u32,
        writer: &mut KernelWriter<W>,
        vdso: &mut Vdso,
        sum: &mut Told,
    ) -> Result<bool, WriteError> {
        let tail = self.first.number(place::DATA_TAIL).load(Ordering::Relaxed);
        let head = self.first.number(place::DATA_HEAD).load(Ordering::Acquire);
        let has_records = head != tail;
        if has_records {
            let pieces = self.first.pieces((PAGE, RECORDS * PAGE), tail, head);
            let records = pieces.concat();
            note(&records, sum);
            writer.records(&vdso.named(&records))?;
            self.first
                .number(place::DATA_TAIL)
                .store(head, Ordering::Release);
        }
        let tail = self.first.number(place::AUX_TAIL).load(Ordering::Relaxed);
        let head = self.first.number(place::AUX_HEAD).load(Ordering::Acquire);
        if head != tail {
            let pieces = self.aux.pieces((0, self.aux.len), tail, head);
            writer.auxtrace(index, self.cpu, StreamOffset(tail), now(), pieces)?;
            sum.bytes += head - tail;
            self.first
                .number(place::AUX_TAIL)
                .store(head, Ordering::Release);
        }
        Ok(has_records || head != tail)
    }
}

/// The time stamp counter.
fn now() -> u64 {
    // SAFETY: every x86-64 processor has it, and Linux lets all programs use it.
    unsafe { core::arch::x86_64::_rdtsc() }.max(1)
}

/// Counts what the kernel's records say to be missing.
fn note(mut records: &[u8], sum: &mut Told) {
    let word = |bytes: &[u8], at: usize| {
        let bytes = bytes
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    while let [a, b, c, d, _, _, low, high, ..] = *records {
        let kind = u32::from_le_bytes([a, b, c, d]);
        let size = usize::from(u16::from_le_bytes([low, high])).max(8);
        match kind {
            LOST => sum.lost += word(records, 16),
            AUX => sum.truncated += word(records, 24) & TRUNCATED,
            _ => {}
        }
        records = records.get(size..).unwrap_or_default();
    }
}

/// Waits until there is something to read, but not longer than this.
pub(super) fn wait(rings: &[Ring], patience: Duration) {
    let mut waits: Vec<libc::pollfd> = rings
        .iter()
        .map(|ring| libc::pollfd {
            fd: ring.packets.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    // SAFETY: the list is ours, and as long as it is said to be.
    let ready = unsafe {
        libc::poll(
            waits.as_mut_ptr(),
            waits.len() as libc::nfds_t,
            patience.as_millis() as libc::c_int,
        )
    };
    // Events of processes that have ended are ready all the time, and hold nothing.
    if ready > 0 && waits.iter().any(|wait| wait.revents & libc::POLLHUP != 0) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_counted() {
        let record = |kind: u32, words: &[u64]| {
            let mut bytes = kind.to_le_bytes().to_vec();
            bytes.extend([0, 0]);
            bytes.extend((8 + 8 * words.len() as u16).to_le_bytes());
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            bytes
        };
        let records = [
            record(LOST, &[1, 7, 0]),
            record(12, &[9]),
            record(AUX, &[0, 64, TRUNCATED, 5]),
            record(AUX, &[64, 64, 0, 5]),
            record(LOST, &[1, 2, 0]),
        ];
        let mut sum = Told::default();
        note(&records.concat(), &mut sum);
        assert_eq!((sum.lost, sum.truncated), (9, 1));
    }
}
