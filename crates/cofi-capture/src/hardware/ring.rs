//! A processor's two buffers, which the kernel fills.
#![allow(
    unsafe_code,
    reason = "memory that is shared with the kernel; each use has its justification"
)]

use super::HardwareError;
use super::event::{Action, Attr, Event};
use super::vdso::Vdso;
use cofi_packet::StreamOffset;
use cofi_perf::{KernelWriter, StreamPlace, TimeConv, WriteError};
use std::io::{self, Seek, Write};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;
/// No buffer has more pages: 64 GiB.
const MOST: usize = 1 << 24;
/// Pages for records, beside the first one, which is the kernel's words about the buffers.
const RECORDS: usize = 128;
/// The same where samples are among them, or less.
const SAMPLES: usize = 1024;
/// Pages for packets if nothing is said, of which less is taken where so much is not allowed.
const USUAL: usize = 1024;
const LEAST: usize = 16;
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
/// A buffer that is full has its event switched off, by the kernel, at about the time at which its record says so: so it is switched on again
/// this often, each time that packets have been taken.
const RESTARTS: u32 = 3;
/// Kinds of records, and of AUX' flags TRUNCATED. A sample begins with its event's number.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const AUX: u32 = 11;
const TRUNCATED: u64 = 1;

/// The buffers for packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    /// So many pages each: a power of two.
    pages: usize,
    /// So many pages for records.
    records: usize,
    /// They are overwritten, and saved at snapshots.
    overwrite: bool,
    /// Smaller ones are taken where these are not allowed.
    is_wish: bool,
}

impl Buffers {
    /// Of so many bytes, or as many as are allowed.
    pub(super) fn new(bytes: Option<u64>, overwrite: bool, has_samples: bool) -> Self {
        let pages = |bytes: u64| {
            let pages = usize::try_from(bytes.div_ceil(PAGE as u64)).unwrap_or(MOST);
            // Of one page that is given back as a whole nothing would be free while it is read.
            let least = if overwrite { 1 } else { 2 };
            pages.clamp(least, MOST).next_power_of_two()
        };
        Self {
            pages: bytes.map_or(USUAL, pages),
            records: if has_samples { SAMPLES } else { RECORDS },
            overwrite,
            is_wish: bytes.is_none(),
        }
    }

    /// Smaller ones, if these were but a wish.
    pub(super) fn smaller(self) -> Option<Self> {
        if self.records > RECORDS {
            let records = self.records / 2;
            return Some(Self { records, ..self });
        }
        let pages = self.pages / 2;
        (self.is_wish && pages >= LEAST).then_some(Self { pages, ..self })
    }

    /// After so many bytes of packets the kernel wakes who reads them, as perf has it; never where they are overwritten.
    pub(super) fn watermark(self) -> u32 {
        let quarter = u32::try_from(self.pages * PAGE / 4).unwrap_or(u32::MAX);
        if self.overwrite { 0 } else { quarter }
    }

    /// The size of each.
    pub(super) const fn size(self) -> usize {
        self.pages * PAGE
    }
}

/// What was read.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Told {
    /// Bytes of packets.
    pub(super) bytes: u64,
    /// How often there was no room for packets.
    pub(super) truncated: u64,
    /// So many records were lost.
    pub(super) lost: u64,
    /// How often an instruction was about to run that asks for a snapshot.
    pub(super) calls: u64,
}

/// Memory that the kernel has given.
#[derive(Debug)]
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(event: &Event, len: usize, offset: usize, rights: libc::c_int) -> io::Result<Self> {
        // SAFETY: a new mapping, which nothing else knows.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                rights,
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

/// The events of a processor or a thread, and their buffers.
#[derive(Debug)]
pub(super) struct Ring {
    place: StreamPlace,
    /// The first of them, or of the records if there is none, has the buffers.
    packets: Vec<Event>,
    records: Vec<Event>,
    first: Mapping,
    /// For packets, if there are to be any.
    aux: Option<Mapping>,
    /// So often it is still to be made sure that packets are made: the kernel has stopped it.
    restarts: u32,
    /// Packets so far that snapshots have taken.
    saved: u64,
    /// Packets so far that have been written otherwise.
    drained: u64,
    /// The kernel's numbers of the events that ask for a snapshot.
    callers: Vec<u64>,
}

impl Ring {
    /// Of one event or more.
    pub(super) fn new(
        place: StreamPlace,
        packets: Vec<Event>,
        records: Vec<Event>,
        buffers: Buffers,
    ) -> Result<Self, HardwareError> {
        let none = |source| HardwareError::NoBuffer { place, source };
        let Some(owner) = packets.first().or(records.first()) else {
            return Err(none(io::ErrorKind::NotFound.into()));
        };
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let begin = (1 + buffers.records) * PAGE;
        let first = Mapping::new(owner, begin, 0, both).map_err(none)?;
        let aux = match packets.is_empty() {
            true => None,
            false => Some(Self::aux(owner, &first, begin, buffers).map_err(none)?),
        };
        for event in packets.iter().chain(&records) {
            if event.as_raw_fd() != owner.as_raw_fd() {
                event.writes_to(owner).map_err(none)?;
            }
        }
        Ok(Self {
            place,
            packets,
            records,
            first,
            aux,
            restarts: 0,
            saved: 0,
            drained: 0,
            callers: Vec::new(),
        })
    }

    /// Has something come of it when the instruction at an address is about to run: the kernel's numbers of the events.
    pub(super) fn watch(&mut self, address: u64, action: Action) -> io::Result<Vec<(u64, Attr)>> {
        let mut all = Vec::new();
        for leader in &self.packets {
            let attr = Attr::of_instruction(address, action, leader.owner());
            let event = match leader.open_member(&attr) {
                // The thread has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                opened => opened?,
            };
            // (All of a ring write to the buffer of the first.)
            event.writes_to(self.packets.first().unwrap_or(leader))?;
            let id = event.id().map_err(io::Error::other)?;
            if action == Action::Snapshot {
                self.callers.push(id);
            }
            all.push((id, attr));
            self.records.push(event);
        }
        Ok(all)
    }

    /// Where it is.
    pub(super) const fn place(&self) -> StreamPlace {
        self.place
    }

    /// The buffer for packets, which begins where the other ends.
    fn aux(owner: &Event, first: &Mapping, begin: usize, buffers: Buffers) -> io::Result<Mapping> {
        // By who may not write to it the kernel knows a buffer that is to be overwritten.
        let rights = if buffers.overwrite {
            libc::PROT_READ
        } else {
            libc::PROT_READ | libc::PROT_WRITE
        };
        let size = buffers.size();
        for (at, number) in [(place::AUX_OFFSET, begin), (place::AUX_SIZE, size)] {
            first.number(at).store(number as u64, Ordering::Relaxed);
        }
        Mapping::new(owner, size, begin, rights)
    }

    /// Has only what these address filters say traced.
    pub(super) fn filter(&self, filter: &str) -> io::Result<()> {
        self.packets
            .iter()
            .try_for_each(|event| event.filter(filter))
    }

    /// Has packets made, where they are not as soon as a program is executed.
    pub(super) fn enable(&self) {
        self.packets.iter().for_each(Event::enable);
    }

    /// Has no packets made for a while.
    pub(super) fn pause(&self) {
        self.packets.iter().for_each(Event::disable);
    }

    /// The file by which it is waited for.
    fn owner(&self) -> i32 {
        let owner = self.packets.first().or(self.records.first());
        owner.map_or(-1, AsRawFd::as_raw_fd)
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
        self.pause();
        self.records.iter().for_each(Event::disable);
    }

    /// Writes the kernel's records; whether there were any.
    fn drain_records<W: Write + Seek>(
        &mut self,
        writer: &mut KernelWriter<W>,
        vdso: &mut Vdso,
        sum: &mut Told,
    ) -> Result<bool, WriteError> {
        let tail = self.first.number(place::DATA_TAIL).load(Ordering::Relaxed);
        let head = self.first.number(place::DATA_HEAD).load(Ordering::Acquire);
        let has_records = head != tail;
        if has_records {
            let pieces = self.first.pieces((PAGE, self.first.len - PAGE), tail, head);
            let records = pieces.concat();
            let truncated = sum.truncated;
            note(&records, &self.callers, sum);
            if sum.truncated != truncated {
                self.restarts = RESTARTS;
            }
            writer.records(&vdso.named(&records))?;
            self.first
                .number(place::DATA_TAIL)
                .store(head, Ordering::Release);
        }
        Ok(has_records)
    }

    /// Writes what is in the buffers; whether anything was.
    pub(super) fn drain<W: Write + Seek>(
        &mut self,
        index: u32,
        writer: &mut KernelWriter<W>,
        vdso: &mut Vdso,
        sum: &mut Told,
    ) -> Result<bool, WriteError> {
        let has_records = self.drain_records(writer, vdso, sum)?;
        let Some(aux) = &self.aux else {
            return Ok(has_records);
        };
        let tail = self.drained;
        let head = self.first.number(place::AUX_HEAD).load(Ordering::Acquire);
        if head != tail {
            let pieces = aux.pieces((0, aux.len), tail, head);
            writer.auxtrace(index, self.place, StreamOffset(tail), now(), pieces)?;
            sum.bytes += head - tail;
            self.drained = head;
            // Whole pages only: where the room that is free ends within a page, and is less than an output region, Linux' driver has the
            // processor stop at a region that it has filled before, which is too late (docs/hardware.md).
            self.first
                .number(place::AUX_TAIL)
                .store(head - head % PAGE as u64, Ordering::Release);
        }
        if self.restarts > 0 {
            self.restarts -= 1;
            self.enable();
        }
        Ok(has_records || head != tail)
    }

    /// Of a buffer that is overwritten, writes the kernel's records and, if it is asked for, the packets, while none are made.
    pub(super) fn snapshot<W: Write + Seek>(
        &mut self,
        index: u32,
        with_packets: bool,
        writer: &mut KernelWriter<W>,
        vdso: &mut Vdso,
        sum: &mut Told,
    ) -> Result<bool, WriteError> {
        let has_records = self.drain_records(writer, vdso, sum)?;
        let Some(aux) = self.aux.as_ref().filter(|_| with_packets) else {
            return Ok(has_records);
        };
        let head = self.first.number(place::AUX_HEAD).load(Ordering::Acquire);
        let size = aux.len as u64;
        let [newest, _] = aux.pieces((0, aux.len), 0, head % size);
        let [oldest, _] = aux.pieces((0, aux.len), head % size, size);
        // The kernel gives pages of zeros, and does not say whether it has come round.
        let pieces = match oldest.iter().any(|byte| *byte != 0) {
            true => [oldest, newest],
            false => [newest, &[]],
        };
        let len = (pieces[0].len() + pieces[1].len()) as u64;
        if len != 0 {
            writer.auxtrace(index, self.place, StreamOffset(self.saved), now(), pieces)?;
            self.saved += len.next_multiple_of(8);
            sum.bytes += len;
        }
        Ok(has_records || len != 0)
    }
}

/// The time stamp counter.
fn now() -> u64 {
    // SAFETY: every x86-64 processor has it, and Linux lets all programs use it.
    unsafe { core::arch::x86_64::_rdtsc() }.max(1)
}

/// Counts what the kernel's records say to be missing, and who asks for a snapshot.
fn note(mut records: &[u8], callers: &[u64], sum: &mut Told) {
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
            SAMPLE if callers.contains(&word(records, 8)) => sum.calls += 1,
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
            fd: ring.owner(),
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
    fn buffers_have_powers_of_two_of_pages() {
        let asked = Buffers::new(Some(100_000), false, false);
        assert_eq!((asked.size(), asked.watermark()), (128 << 10, 32 << 10));
        assert!(asked.smaller().is_none());
        assert_eq!(Buffers::new(Some(1), true, false).size(), PAGE);
        // Of what is given back page by page, one would be nothing.
        assert_eq!(Buffers::new(Some(1), false, false).size(), 2 * PAGE);
        assert_eq!(Buffers::new(Some(1), true, false).watermark(), 0);
        assert_eq!(
            Buffers::new(Some(u64::MAX), false, false).size(),
            MOST * PAGE
        );
        // With samples, room for them is a wish.
        let mut samples = Buffers::new(Some(1), true, true);
        while let Some(smaller) = samples.smaller() {
            assert_eq!(
                (smaller.size(), smaller.records),
                (PAGE, samples.records / 2)
            );
            samples = smaller;
        }
        assert_eq!(samples.records, RECORDS);
        let mut wish = Buffers::new(None, false, false);
        assert_eq!(wish.size(), 4 << 20);
        while let Some(smaller) = wish.smaller() {
            assert_eq!(smaller.size(), wish.size() / 2);
            wish = smaller;
        }
        assert_eq!(wish.size(), LEAST * PAGE);
    }

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
            record(SAMPLE, &[5, 0x1000]),
            record(SAMPLE, &[6, 0x1000]),
        ];
        let mut sum = Told::default();
        note(&records.concat(), &[6, 7], &mut sum);
        assert_eq!((sum.lost, sum.truncated, sum.calls), (9, 1, 1));
    }
}
