//! `struct pt_block`, and blocks that were put together.

use crate::code::{CInsn, Cursor, Flow, NONE};
use crate::error::Error;
use crate::image::{Asid, Image};

/// So many calls may be inside of a block.
const MOST_RETURNS: usize = 64;

/// `struct pt_block`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CBlock {
    pub(crate) ip: u64,
    pub(crate) end_ip: u64,
    pub(crate) isid: i32,
    pub(crate) mode: u32,
    pub(crate) class: u32,
    pub(crate) ninsn: u16,
    pub(crate) raw: [u8; 15],
    pub(crate) size: u8,
    /// Bit 0: speculative; bit 1: truncated.
    pub(crate) flags: u8,
}

/// A block without packets: what runs from its first instruction to the first whose successor a packet tells.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) block: CBlock,
    /// The entries of the first and the last instruction.
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// How its last instruction ends it.
    pub(crate) flow: Flow,
    /// Of a conditional branch, the blocks behind it, not taken and taken, if they are known.
    pub(crate) links: [u32; 2],
    /// Where calls in it, but for the last instruction, return to.
    pub(crate) returns: Box<[u64]>,
}

impl CBlock {
    /// Appends an instruction; `false` if it cannot be of this block.
    pub(crate) fn append(&mut self, insn: &CInsn) -> bool {
        if self.ninsn == 0 {
            (self.ip, self.isid, self.mode) = (insn.ip, insn.isid, insn.mode);
        } else if self.isid != insn.isid || self.mode != insn.mode || self.ninsn == u16::MAX {
            return false;
        }
        self.ninsn += 1;
        self.end_ip = insn.ip;
        self.class = insn.class;
        if insn.is_truncated() {
            self.flags |= 2;
            self.raw = insn.raw;
            self.size = insn.size;
        }
        true
    }

    /// Appends so many instructions that are run through, from the first to the last; `false` if they cannot be of this block.
    pub(crate) fn append_run(&mut self, first: &CInsn, last: &CInsn, count: u32) -> bool {
        let number = u32::from(self.ninsn) + count;
        let Ok(number) = u16::try_from(number) else {
            return false;
        };
        if !self.append(first) {
            return false;
        }
        (self.ninsn, self.end_ip, self.class) = (number, last.ip, last.class);
        true
    }

    /// Whether its last instruction goes beyond its section.
    pub(crate) fn is_truncated(&self) -> bool {
        self.flags & 2 != 0
    }
}

impl Image {
    /// The number of the block that begins where control is; none if its first instruction cannot be kept.
    pub(crate) fn block(&mut self, cursor: &mut Cursor, asid: &Asid) -> Result<Option<u32>, Error> {
        if self.known(cursor).is_none() {
            self.look_up(cursor, asid)?;
        }
        let Some(entry) = self.code.get(cursor.entry) else {
            return Ok(None);
        };
        if entry.block != NONE {
            return Ok(Some(entry.block));
        }
        let first = cursor.entry;
        let epoch = self.code.epoch;
        let Some(block) = self.build(first, asid) else {
            return Ok(None);
        };
        // (All was forgotten because there was no room.)
        if epoch != self.code.epoch {
            return Ok(None);
        }
        let number = self.code.blocks.len() as u32;
        self.code.blocks.push(block);
        if let Some(entry) = self.code.get_mut(first) {
            entry.block = number;
        }
        Ok(Some(number))
    }

    /// Puts a block together.
    fn build(&mut self, first: u32, asid: &Asid) -> Option<Block> {
        let mut block = CBlock::default();
        let (mut at, mut last, mut flow) = (first, first, Flow::Next);
        let mut returns = Vec::new();
        loop {
            let entry = *self.code.get(at)?;
            if !block.append(&entry.insn) {
                break;
            }
            (last, flow) = (at, entry.flow);
            let step = entry.step();
            let to = match step.flow {
                _ if block.is_truncated() => break,
                Flow::Next => step.next_ip,
                Flow::Direct | Flow::DirectCall => step.target,
                _ => break,
            };
            let Ok(Some(next)) = self.entry(to, entry.insn.mode, asid) else {
                break;
            };
            let same = self
                .code
                .get(next)
                .is_some_and(|next| next.insn.isid == block.isid);
            if !same || block.ninsn == u16::MAX {
                break;
            }
            if step.flow == Flow::DirectCall && step.target != step.next_ip {
                // (More are not remembered: what blocks take is bounded by how much code is kept.)
                if returns.len() == MOST_RETURNS {
                    break;
                }
                returns.push(step.next_ip);
            }
            at = next;
        }
        Some(Block {
            block,
            first,
            last,
            flow,
            links: [NONE; 2],
            returns: returns.into_boxed_slice(),
        })
    }
}
