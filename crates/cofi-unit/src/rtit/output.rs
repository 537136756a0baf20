//! The way from the internal buffer to memory (2.3): a circular region, written in lines of 64 bytes.
//!
//! # What the reference leaves open
//!
//! - *RTIT_OFFSET* moves when bytes leave the internal buffer, not when their line is written; it wraps around to 0 behind the
//!   mask.
//! - *Lines that wait.* At most [`MOST_LINES`] filled lines wait to be written, where lines may be re-ordered; none else.
//! - *Moving the output.* A write to RTIT_BASE_ADDR, RTIT_LIMIT_MASK or RTIT_OFFSET fences what was written before.
//! - *A mask with holes* is a mask: the offset is what is left of it under the mask after each line.
//! - *The TraceStop packet with Dest=0* is a write of its own, and moves the offset as any byte.

use super::event::Client;
use super::implementation::Lines;
use super::registers::Registers;
use crate::client::PhysAddr;
use crate::state::{Reader, RestoreError, Writer};
use alloc::vec::Vec;

const LINE: u64 = 64;

/// So many filled lines wait at most.
const MOST_LINES: usize = 4;

/// The TraceStop packet with Dest=0 has these lower 8 bits in its address (3.3.2).
const STOP_ADDRESS: u64 = 0xc0;

/// A line, or a part of one, that has not been written yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    /// Address of its first byte.
    address: u64,
    /// Lines since reset: which was begun first.
    number: u64,
    len: u8,
    bytes: [u8; LINE as usize],
}

impl Line {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    const fn end(&self) -> u64 {
        self.address + self.len as u64
    }
}

/// Lines on their way to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Output {
    lines: Lines,
    /// The line that is being filled.
    open: Option<Line>,
    /// Those that are full, the oldest first.
    full: Vec<Line>,
    /// How many were begun.
    begun: u64,
}

/// Numbers that look random, from a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    /// The next number (the generator "splitmix64").
    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// One of `0..n`.
    pub(super) const fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The address of the next byte (2.3; 3.3.10 says "&" where it means what 2.3 says).
const fn address(regs: &Registers) -> u64 {
    let mask = regs.limit_mask.0;
    (regs.base.0 & !mask) + (regs.offset.0 & mask)
}

fn advance(regs: &mut Registers, by: u64) {
    let mask = regs.limit_mask.0;
    regs.offset.0 = ((regs.offset.0 & mask) + by) & mask;
}

/// How many lines come before the same address comes again.
const fn lines_of_region(regs: &Registers) -> u64 {
    1 << (regs.limit_mask.0 >> 6).trailing_ones()
}

impl Output {
    pub(super) fn new(lines: Lines) -> Self {
        let waiting = match lines {
            Lines::Immediate => 0,
            Lines::Lines | Lines::Reordered => MOST_LINES,
        };
        Self {
            lines,
            open: None,
            full: Vec::with_capacity(waiting),
            begun: 0,
        }
    }

    /// Bytes leave the internal buffer.
    #[inline]
    pub(super) fn store(
        &mut self,
        regs: &mut Registers,
        dice: &mut Dice,
        client: &mut impl Client,
        mut bytes: &[u8],
    ) {
        while !bytes.is_empty() {
            let address = address(regs);
            let room = (LINE - address % LINE) as usize;
            let (part, rest) = bytes.split_at(bytes.len().min(room));
            match self.lines {
                Lines::Immediate => client.store(PhysAddr(address), part),
                Lines::Lines | Lines::Reordered => self.fill(regs, dice, client, address, part),
            }
            advance(regs, part.len() as u64);
            bytes = rest;
        }
    }

    /// Bytes of one line.
    fn fill(
        &mut self,
        regs: &Registers,
        dice: &mut Dice,
        client: &mut impl Client,
        address: u64,
        part: &[u8],
    ) {
        let mut line = match self.open.take() {
            Some(line) if line.end() == address => line,
            // Software moves the output only behind a fence; so there is none.
            other => {
                self.full.extend(other);
                self.begun += 1;
                Line {
                    address,
                    number: self.begun,
                    len: 0,
                    bytes: [0; LINE as usize],
                }
            }
        };
        let at = usize::from(line.len);
        line.bytes[at..at + part.len()].copy_from_slice(part);
        line.len += part.len() as u8;
        if line.end() % LINE != 0 {
            self.open = Some(line);
            return;
        }
        self.full.push(line);
        let keep = match self.lines {
            Lines::Reordered => dice.below(MOST_LINES as u64) as usize,
            Lines::Lines | Lines::Immediate => 0,
        };
        self.write(regs, dice, client, keep);
    }

    /// Writes lines until no more than `keep` wait, in an order that 2.3.2 allows: a younger line may overtake an older one, but not
    /// another of the same address, nor any from that on.
    fn write(&mut self, regs: &Registers, dice: &mut Dice, client: &mut impl Client, keep: usize) {
        while self.full.len() > keep {
            let before = self.full[0].number + lines_of_region(regs);
            let overtaking = self.full.partition_point(|line| line.number < before);
            let index = match self.lines {
                Lines::Reordered => dice.below(overtaking.max(1) as u64) as usize,
                Lines::Lines | Lines::Immediate => 0,
            };
            let line = self.full.remove(index);
            client.store(PhysAddr(line.address), line.bytes());
        }
    }

    /// All that waits is written, the open line as far as it goes.
    pub(super) fn fence(&mut self, regs: &Registers, dice: &mut Dice, client: &mut impl Client) {
        self.full.extend(self.open.take());
        self.write(regs, dice, client, 0);
    }

    /// The TraceStop packet, behind all that came before.
    pub(super) fn store_stop(
        &mut self,
        regs: &mut Registers,
        dice: &mut Dice,
        client: &mut impl Client,
        bytes: &[u8],
    ) {
        if regs.ctl.dest() {
            self.store(regs, dice, client, bytes);
            return self.fence(regs, dice, client);
        }
        self.fence(regs, dice, client);
        let forced = address(regs) & !0xff | STOP_ADDRESS;
        client.store(PhysAddr(forced), bytes);
        advance(regs, bytes.len() as u64);
    }
}

impl Output {
    pub(super) fn save(&self, writer: &mut Writer) {
        let Self {
            lines: _,
            open,
            full,
            begun,
        } = self;
        writer.u64(*begun);
        writer.u8(full.len() as u8);
        for line in full {
            line.save(writer);
        }
        writer.option(open.as_ref(), |writer, line| line.save(writer));
    }

    pub(super) fn restore(reader: &mut Reader<'_>, lines: Lines) -> Result<Self, RestoreError> {
        let mut output = Self::new(lines);
        output.begun = reader.counter("the number of lines")?;
        let most = match lines {
            Lines::Immediate | Lines::Lines => 0,
            Lines::Reordered => MOST_LINES,
        };
        for _ in 0..reader.len("the number of filled lines", most)? {
            let line = Line::restore(reader)?;
            output.full.push(line);
        }
        output.full.sort_by_key(|line| line.number);
        let open = reader.option("an open line", Line::restore)?;
        let is_open = |line: &Line| line.end() % LINE != 0 && lines != Lines::Immediate;
        output.open = open.filter(is_open);
        Ok(output)
    }
}

impl Line {
    fn save(&self, writer: &mut Writer) {
        writer.u64(self.address);
        writer.u64(self.number);
        writer.u8(self.len);
        writer.bytes(self.bytes());
    }

    fn restore(reader: &mut Reader<'_>) -> Result<Self, RestoreError> {
        let field = "the address of a line";
        let address = reader.u64(field)?;
        if address >> 36 != 0 {
            return Err(reader.illegal(8, field, address, "RTIT_BASE_ADDR has 36 bits (3.3.10)"));
        }
        let number = reader.counter("the number of a line")?;
        let room = (LINE - address % LINE) as usize;
        let len = reader.len("the length of a line", room)?;
        let mut bytes = [0; LINE as usize];
        bytes[..len].copy_from_slice(reader.bytes(len, "a line")?);
        Ok(Self {
            address,
            number,
            len: len as u8,
            bytes,
        })
    }
}
