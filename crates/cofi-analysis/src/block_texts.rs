//! The text of whole blocks: each is made once, and copied whenever the block runs again.

use cofi_flow::Block;
use cofi_insn::advance;

use crate::block_index::BlockIndex;

/// The text of the blocks that ran, as much as fits.
///
/// It is looked up for each block that runs, and so compiled here: the command, which makes the text, is compiled for size.
#[derive(Debug, Default)]
pub struct BlockTexts {
    index: BlockIndex,
    /// Where in `bytes` the text of each block ends.
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

impl BlockTexts {
    /// When there is so much text, all of it is made anew.
    const MOST: usize = 32 << 20;
    /// And so when there are so many blocks.
    const BLOCKS: usize = 1 << 19;

    /// Appends the text of a block to `out`, if it is known; otherwise the caller makes it, and [adds](Self::add) it before the next block
    /// is looked up. `code` says which code is in place.
    #[inline(never)]
    #[must_use]
    pub fn copy(&mut self, code: u32, block: &Block<'_>, out: &mut Vec<u8>) -> bool {
        let (ip, len) = (block.ip(), block.len() as u32);
        let end = || {
            let last = block.last();
            last.map_or(ip, |last| advance(last.ip, last.len, last.mode))
        };
        let number = self.index.number(code, ip, len, end);
        let Some(end) = self.ends.get(number) else {
            return false;
        };
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        out.extend_from_slice(&self.bytes[start..*end]);
        true
    }

    /// Adds the text of the block that was looked up last, and not known.
    pub fn add(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    /// Forgets everything where there is too much. To be called now and then.
    pub fn trim(&mut self) {
        if self.bytes.len() >= Self::MOST || self.ends.len() >= Self::BLOCKS {
            self.index.clear();
            self.ends.clear();
            self.bytes.clear();
        }
    }
}
