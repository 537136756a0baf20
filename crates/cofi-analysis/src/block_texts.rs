//! The text of whole blocks: each is made once, and copied whenever the block runs again.

use cofi_analysis::BlockIndex;
use cofi_flow::Block;
use cofi_insn::advance;

/// The text of the blocks that ran, as much as fits.
#[derive(Default)]
pub(crate) struct BlockTexts {
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

    /// The text of a block: what `make` appends, or has appended before. `code` says which code is in place.
    #[inline]
    pub(crate) fn of(
        &mut self,
        code: u32,
        block: &Block<'_>,
        make: impl FnOnce(&mut Vec<u8>),
    ) -> &[u8] {
        let (ip, len) = (block.ip(), block.len() as u32);
        let end = || {
            let last = block.last();
            last.map_or(ip, |last| advance(last.ip, last.len, last.mode))
        };
        let number = self.index.number(code, ip, len, end);
        if number == self.ends.len() {
            return self.add(make);
        }
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[number]]
    }

    /// Adds the text of the block that was numbered last.
    #[inline(never)]
    fn add(&mut self, make: impl FnOnce(&mut Vec<u8>)) -> &[u8] {
        let start = self.bytes.len();
        make(&mut self.bytes);
        self.ends.push(self.bytes.len());
        &self.bytes[start..]
    }

    /// Forgets everything where there is too much. To be called now and then.
    pub(crate) fn trim(&mut self) {
        if self.bytes.len() >= Self::MOST || self.ends.len() >= Self::BLOCKS {
            self.index.clear();
            self.ends.clear();
            self.bytes.clear();
        }
    }
}
