//! Decoded code, cached: runs of instructions up to the next one that can do something else than go on.

use alloc::vec::Vec;

use cofi_insn::{Class, CodeSource, InsnError, MAX_INSN_LEN, advance, decode};
use cofi_packet::{ExecMode, Ip};

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// How many instructions a block holds at most.
const MAX_BODY: usize = 512;

/// How a block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With an instruction that is not of class [`Class::Other`].
    Insn,
    /// Because it is long enough: more code follows.
    Split,
    /// With bytes that are no instruction.
    Fault,
}

/// A run of plain instructions and the one that ends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// The first instruction.
    pub(crate) ip: Ip,
    /// The ending instruction.
    pub(crate) term_ip: Ip,
    /// The address after the ending instruction.
    pub(crate) next: Ip,
    /// The direct target of the ending instruction, or zero.
    pub(crate) target: Ip,
    /// Where the lengths of the plain instructions are, in [`Cache::lens`].
    pub(crate) first: u32,
    /// How many plain instructions there are.
    pub(crate) body: u16,
    /// The length of the ending instruction.
    pub(crate) len: u8,
    /// The class of the ending instruction.
    pub(crate) class: Class,
    pub(crate) end: End,
    mode: ExecMode,
    /// The blocks that came next the last time: after falling through, after branching.
    links: [u32; 2],
}

/// All decoded blocks.
///
/// Invariant: every number in `table` other than [`NONE`] is an index into `blocks`. Links are mere hints, checked
/// before use.
#[derive(Debug)]
pub(crate) struct Cache {
    blocks: Vec<Block>,
    /// Lengths of the plain instructions of all blocks.
    lens: Vec<u8>,
    /// Open addressing by (ip, mode); a power of two in size, at most half full.
    table: Vec<u32>,
    limit: usize,
}

impl Cache {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            blocks: Vec::new(),
            lens: Vec::new(),
            table: Vec::new(),
            limit,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.lens.clear();
        self.table.fill(NONE);
    }

    #[inline]
    pub(crate) fn block(&self, id: u32) -> &Block {
        &self.blocks[id as usize]
    }

    #[inline]
    pub(crate) fn len_at(&self, index: usize) -> u8 {
        self.lens[index]
    }

    #[inline]
    pub(crate) fn lens(&self, range: core::ops::Range<usize>) -> &[u8] {
        &self.lens[range]
    }

    fn slot(&self, ip: Ip, mode: ExecMode) -> usize {
        let key = ip.0 ^ (u64::from(mode.bits()) << 58);
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 20) as usize & (self.table.len() - 1)
    }

    fn find(&self, ip: Ip, mode: ExecMode) -> Option<u32> {
        if self.table.is_empty() {
            return None;
        }
        let mut slot = self.slot(ip, mode);
        loop {
            let id = self.table[slot];
            let block = self.blocks.get(id as usize)?;
            if block.ip == ip && block.mode == mode {
                return Some(id);
            }
            slot = (slot + 1) & (self.table.len() - 1);
        }
    }

    fn enter(&mut self, id: u32) {
        let block = &self.blocks[id as usize];
        let mut slot = self.slot(block.ip, block.mode);
        while self.table[slot] != NONE {
            slot = (slot + 1) & (self.table.len() - 1);
        }
        self.table[slot] = id;
    }

    /// The block at `ip`, given that `from` came before it and left by its way `way`.
    #[inline]
    pub(crate) fn follow(
        &mut self,
        from: u32,
        way: usize,
        ip: Ip,
        mode: ExecMode,
        code: &mut impl CodeSource,
    ) -> u32 {
        if let Some(previous) = self.blocks.get(from as usize) {
            let link = previous.links[way];
            if let Some(block) = self.blocks.get(link as usize)
                && block.ip == ip
                && block.mode == mode
            {
                return link;
            }
        }
        self.look_up(from, way, ip, mode, code)
    }

    #[inline(never)]
    fn look_up(
        &mut self,
        from: u32,
        way: usize,
        ip: Ip,
        mode: ExecMode,
        code: &mut impl CodeSource,
    ) -> u32 {
        let id = match self.find(ip, mode) {
            Some(id) => id,
            None => self.build(ip, mode, code),
        };
        // `build` may have emptied the cache: then the link lands in an unrelated block, where it is a wrong hint.
        if let Some(previous) = self.blocks.get_mut(from as usize) {
            previous.links[way] = id;
        }
        id
    }

    fn build(&mut self, ip: Ip, mode: ExecMode, code: &mut impl CodeSource) -> u32 {
        let used = self.blocks.len() * size_of::<Block>()
            + self.lens.len()
            + self.table.len() * size_of::<u32>();
        if used > self.limit {
            self.clear();
        }
        if self.table.len() <= self.blocks.len() * 2 {
            let len = (self.table.len() * 2).max(1 << 10);
            self.table.clear();
            self.table.resize(len, NONE);
            for id in 0..self.blocks.len() as u32 {
                self.enter(id);
            }
        }
        let first = self.lens.len();
        let mut window = Window::new();
        let mut at = ip;
        let mut block = Block {
            ip,
            term_ip: ip,
            next: ip,
            target: Ip(0),
            first: first as u32,
            body: 0,
            len: 0,
            class: Class::Other,
            end: End::Split,
            mode,
            links: [NONE; 2],
        };
        while self.lens.len() - first < MAX_BODY {
            match window.decode(at, mode, code) {
                Ok(insn) if insn.class == Class::Other => {
                    self.lens.push(insn.len);
                    at = insn.next_ip(at, mode);
                }
                Ok(insn) => {
                    block.end = End::Insn;
                    block.len = insn.len;
                    block.class = insn.class;
                    block.next = insn.next_ip(at, mode);
                    block.target = insn.target.unwrap_or(Ip(0));
                    break;
                }
                Err(_) => {
                    block.end = End::Fault;
                    break;
                }
            }
        }
        block.body = (self.lens.len() - first) as u16;
        block.term_ip = at;
        if block.end != End::Insn {
            block.next = at;
        }
        let id = self.blocks.len() as u32;
        self.blocks.push(block);
        self.enter(id);
        id
    }

    /// How many plain instructions of a block come before the instruction at `stop`, if that is one of its own (the
    /// ending one counts too).
    pub(crate) fn position(&self, id: u32, stop: Ip) -> Option<u16> {
        let block = self.block(id);
        let mut at = block.ip;
        for index in 0..block.body {
            if at == stop {
                return Some(index);
            }
            at = advance(
                at,
                self.lens[block.first as usize + usize::from(index)],
                block.mode,
            );
        }
        (at == stop && block.end != End::Split).then_some(block.body)
    }
}

/// Code bytes read ahead, so that the source is not asked for each instruction.
struct Window {
    bytes: [u8; 128],
    start: Ip,
    len: usize,
}

impl Window {
    fn new() -> Self {
        Self {
            bytes: [0; 128],
            start: Ip(0),
            len: 0,
        }
    }

    fn decode(
        &mut self,
        ip: Ip,
        mode: ExecMode,
        code: &mut impl CodeSource,
    ) -> Result<cofi_insn::Insn, InsnError> {
        let skip = ip.0.wrapping_sub(self.start.0);
        let skip = if skip < self.len as u64 {
            skip as usize
        } else {
            self.len
        };
        if self.len - skip >= MAX_INSN_LEN {
            return decode(&self.bytes[skip..self.len], ip, mode);
        }
        self.start = ip;
        self.len = code.read(ip, &mut self.bytes).min(self.bytes.len());
        decode(&self.bytes[..self.len], ip, mode)
    }
}

/// Decodes one instruction anew, past the cache.
pub(crate) fn decode_at(
    ip: Ip,
    mode: ExecMode,
    code: &mut impl CodeSource,
) -> Result<cofi_insn::Insn, InsnError> {
    Window::new().decode(ip, mode, code)
}
