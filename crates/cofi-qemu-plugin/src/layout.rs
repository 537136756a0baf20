//! The shared memory of one traced process.
//!
//! A file, mapped by the plugin and by the recorder, holds a header, a ring of translated blocks (bytes), and for each
//! thread a ring of what it did (32-bit records). A ring has one producer and one consumer; `head` and `tail`
//! count what was put in and taken out since the beginning, and never wrap. A producer that finds its ring full waits: nothing
//! is ever dropped.
//!
//! Of the file only what is **reserved** has memory: the header, the slots counted by [`header::SLOTS`], and of each ring the
//! beginning. Nobody touches anything else, which where memory is scarce would be SIGBUS. The producer reserves more as its
//! ring fills for the first time; when there is no more, the ring's capacity becomes what it has. Until then nothing was put
//! behind that place, so whichever capacity the consumer knows (once it has seen `head`), it finds everything.
//!
//! All offsets are in bytes from the file's start; all numbers are in the machine's order.

/// What a file of this layout begins with.
pub const MAGIC: u64 = u64::from_le_bytes(*b"cofiQ\0\0\x03");

/// Offsets of the header's fields.
pub mod header {
    /// `u64`: [`super::MAGIC`], stored last.
    pub const MAGIC: usize = 0;
    /// `u32`: the process.
    pub const PID: usize = 8;
    /// `u32`: the process that forked it, or 0.
    pub const PARENT: usize = 12;
    /// `u64`: how many blocks it has from its parent.
    pub const INHERITED: usize = 16;
    /// `u32`: 1 once nobody takes anything any more; a full ring is no reason to wait then. Either side says so: the plugin
    /// when it waits and the recorder is gone.
    pub const STOPPED: usize = 24;
    /// `u32`: threads that found no slot.
    pub const UNTRACED: usize = 28;
    /// `u32`: slots that are reserved, from the first on. Never less than before.
    pub const SLOTS: usize = 32;
    /// `u64`: bytes ever put into the ring of blocks.
    pub const BLOCKS_HEAD: usize = 64;
    /// `u64`: bytes ever taken out of it.
    pub const BLOCKS_TAIL: usize = 128;
    /// `u64`: the capacity of the ring of blocks in bytes, a power of two.
    pub const BLOCKS_CAPACITY: usize = 192;
    /// `u64`, the producer's own: how much of it is reserved.
    pub const BLOCKS_RESERVED: usize = 200;
}

/// A file in the folder, which all plugins have mapped: what they know of the recorder, and the recorder of processes that
/// have no memory of their own.
pub mod recorder {
    /// Its name. (Processes' memories have names without a dot.)
    pub const NAME: &str = ".recorder";
    /// Its size.
    pub const SIZE: usize = 4096;
    /// `u32`: within [`THREAD_MASK`] the recorder's thread while it takes what is told, and 0 once it does not, however it
    /// ended: the kernel clears it, as it is the lock of a robust mutex (which this begins with).
    pub const LOCK: usize = 0;
    /// Bits of [`LOCK`], as in Linux's `futex.h`.
    pub const THREAD_MASK: u32 = 0x3fff_ffff;
    /// `u32`: processes that run on without being traced.
    pub const UNTRACED: usize = 1024;
}

/// Size of the header.
pub const HEADER: usize = 4096;
/// Size of the ring of blocks, at most.
pub const BLOCKS: usize = 8 << 20;
/// What of it is reserved at first; no record is larger.
pub const FIRST_BLOCKS: usize = 64 << 10;
/// Slots there are, at most: threads of one process at a time that can be traced. The file's size tells how many there are.
pub const SLOTS: usize = 4096;
/// Records in the ring of one, at most.
pub const RECORDS: usize = 1 << 18;
/// For how many of them memory is reserved at first.
pub const FIRST_RECORDS: usize = 1 << 14;
/// Size of a slot: its header and its ring.
pub const SLOT: usize = SLOT_HEADER + RECORDS * 4;
/// Size of a slot's header.
pub const SLOT_HEADER: usize = 4096;
/// Size of the whole file, at most. Only what is reserved takes memory.
pub const SIZE: usize = HEADER + BLOCKS + SLOTS * SLOT;

/// Offsets of a slot's fields.
pub mod slot {
    /// `u64`: records ever put in.
    pub const HEAD: usize = 0;
    /// `u64`: records ever taken out.
    pub const TAIL: usize = 64;
    /// `u64`, the producer's own: how far `HEAD` may go before it looks at `TAIL`.
    pub const LIMIT: usize = 128;
    /// `u64`: the ring's capacity in records, a power of two.
    pub const CAPACITY: usize = 136;
    /// `u64`, the producer's own: for how many records there is memory.
    pub const RESERVED: usize = 144;
    /// `u32`: the thread that uses the slot, or 0.
    pub const THREAD: usize = 192;
}

/// Where a slot begins.
#[must_use]
pub const fn slot_at(index: usize) -> usize {
    HEADER + BLOCKS + index * SLOT
}

/// How many slots a file of this size has; `None` if it is not of this layout.
#[must_use]
pub const fn slots_of(len: u64) -> Option<usize> {
    let slots = match len.checked_sub(slot_at(0) as u64) {
        Some(bytes) if bytes.is_multiple_of(SLOT as u64) => bytes / SLOT as u64,
        _ => return None,
    };
    if slots == 0 || slots > SLOTS as u64 {
        return None;
    }
    Some(slots as usize)
}

/// A translated block, as its record in the ring of blocks begins; its code follows, filled up to 8 bytes. Numbers follow
/// each other from 0 in the order of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHead {
    /// Its first address.
    pub address: u64,
    /// Bytes of code.
    pub len: u32,
    /// How many instructions QEMU found in it, with [`state`] above them for a machine's block, or [`BlockHead::MAPPING`].
    pub instructions: u32,
}

impl BlockHead {
    /// In the place of the number of instructions: this is no block. The address is that of the next one, and what follows is
    /// not its code but the line of `/proc/PID/maps` that covers it.
    pub const MAPPING: u32 = u32::MAX;

    /// Size of the record without the code.
    pub const SIZE: usize = 16;

    /// The record's first bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.address.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.instructions.to_ne_bytes());
        bytes
    }

    /// Reads the record's first bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Self {
            address: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            len: u32::from_ne_bytes([i, j, k, l]),
            instructions: u32::from_ne_bytes([m, n, o, p]),
        }
    }

    /// Size of the whole record.
    #[must_use]
    pub const fn record_len(self) -> usize {
        Self::SIZE + (self.len as usize).next_multiple_of(8)
    }
}

/// Bits of [`BlockHead::instructions`]: how a machine's processor ran a block.
pub mod state {
    /// Where the number of instructions ends.
    pub const INSTRUCTIONS: u32 = 0xffff;
    /// It runs 64-bit code: CS.L in long mode.
    pub const BITS_64: u32 = 1 << 16;
    /// It runs 32-bit code: CS.D.
    pub const BITS_32: u32 = 1 << 17;
    /// Where the privilege level is, two bits.
    pub const CPL_SHIFT: u32 = 18;
    /// In system management mode.
    pub const SMM: u32 = 1 << 20;
    /// A record [`super::record::UNFINISHED`] says if control left it before its last instruction.
    pub const MARKED: u32 = 1 << 21;
}

/// Records of a slot that are no block's number.
pub mod record {
    /// From here on a record is one of the following.
    pub const SPECIAL: u32 = 0x8000_0000;
    /// A thread begins to use the slot; its number follows.
    pub const THREAD: u32 = SPECIAL | 1;
    /// The thread is gone.
    pub const EXIT: u32 = SPECIAL | 2;
    /// A signal's handler begins: the interrupted address (two records, low half first), the signal's number, its
    /// `si_code` or [`NO_CODE`], and what stands in the place of `si_addr` (two records).
    pub const SIGNAL: u32 = SPECIAL | 3;
    /// A system call begins; its number follows.
    pub const SYSCALL: u32 = SPECIAL | 4;

    /// Of a machine: an interrupt or exception led to the next block; before which address, as two records, low half first, and
    /// how that would have run ([`super::state`]).
    pub const INTERRUPT: u32 = SPECIAL | 5;
    /// Of a machine: an interrupt or exception from an address (three records, as above) led to another one (two records),
    /// before whose first instruction the next one came.
    pub const INTERRUPT_TO: u32 = SPECIAL | 6;
    /// Of a machine: the last block was left before its last instruction began.
    pub const UNFINISHED: u32 = SPECIAL | 7;
    /// Of a machine: CR3 has this value from the next block on (two records, low half first).
    pub const CR3: u32 = SPECIAL | 8;
    /// Of a machine: the processor waits, as after HLT; its last block is complete.
    pub const IDLE: u32 = SPECIAL | 9;

    /// In the place of a signal's `si_code`: the program has not asked for it, so nobody knows. Positive, as that of a fault.
    pub const NO_CODE: u32 = 0x7fff_ffff;

    /// How many records follow.
    #[must_use]
    pub const fn operands(record: u32) -> usize {
        match record {
            THREAD | SYSCALL => 1,
            CR3 => 2,
            INTERRUPT => 3,
            INTERRUPT_TO => 5,
            SIGNAL => 6,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_heads_round_trip() {
        let head = BlockHead {
            address: 0x0123_4567_89ab_cdef,
            len: 13,
            instructions: 4,
        };
        assert_eq!(BlockHead::from_bytes(head.to_bytes()), head);
        assert_eq!(head.record_len(), 32);
    }

    #[test]
    fn everything_has_its_place() {
        assert_eq!(BLOCKS % 8, 0);
        assert!(RECORDS.is_power_of_two() && BLOCKS.is_power_of_two());
        assert_eq!(slot_at(SLOTS), SIZE);
        assert_eq!(slot_at(1) - slot_at(0), SLOT);
        assert!(FIRST_RECORDS.is_power_of_two() && FIRST_BLOCKS.is_power_of_two());
    }

    #[test]
    fn a_files_size_tells_its_slots() {
        assert_eq!(slots_of(SIZE as u64), Some(SLOTS));
        assert_eq!(slots_of(slot_at(3) as u64), Some(3));
        for size in [0, slot_at(0), slot_at(1) + 1, slot_at(SLOTS + 1)] {
            assert_eq!(slots_of(size as u64), None, "{size}");
        }
    }
}
