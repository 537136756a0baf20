//! Numbers for distinct blocks, found by the way that control came to them.

use cofi_packet::Ip;
use rustc_hash::FxHashMap;

/// No block.
const NONE: usize = usize::MAX;

/// Numbers distinct blocks from 0 on.
///
/// Each block remembers which blocks ran behind it last, so that a block that repeats costs no search.
///
/// ```
/// use cofi_analysis::BlockIndex;
/// use cofi_packet::Ip;
///
/// let mut index = BlockIndex::default();
/// let mut number = |ip| index.number(0, Ip(ip), 3, || Ip(ip + 9));
/// assert_eq!([number(0x1000), number(0x2000), number(0x1000)], [0, 1, 0]);
/// assert_eq!((index.len(), index.times(0)), (2, 2));
/// ```
#[derive(Debug)]
pub struct BlockIndex {
    entries: Vec<Entry>,
    numbers: FxHashMap<Key, u32>,
    /// The block that ran last; `NONE` if control did not go on from its end.
    last: usize,
    /// How often a block was searched for.
    searches: u64,
}

/// What tells a block from others: which code is in place, its first instruction, and how many there are. Direct branches are followed
/// within a block, so this says which instructions they are.
type Key = (u32, Ip, u32);

/// A distinct block.
#[derive(Debug)]
struct Entry {
    ip: Ip,
    /// The address behind its last instruction.
    end: Ip,
    times: u64,
    /// How often control went on elsewhere than at `end`.
    elsewhere: u64,
    code: u32,
    len: u32,
    /// The blocks that ran behind it last: the one at `end`, and one elsewhere.
    next: [u32; 2],
}

impl Default for BlockIndex {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            numbers: FxHashMap::default(),
            last: NONE,
            searches: 0,
        }
    }
}

impl BlockIndex {
    /// How many distinct blocks there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How often a block was searched for because the one before it did not lead there the last time.
    #[must_use]
    pub const fn searches(&self) -> u64 {
        self.searches
    }

    /// The number of the block that runs next: the next free one if it is new. `code` says which code is in place, as the caller
    /// numbers it, mode included. `end` gives the address behind the block's last instruction.
    #[inline(always)]
    pub fn number(&mut self, code: u32, ip: Ip, len: u32, end: impl FnOnce() -> Ip) -> usize {
        let (mut way, mut next) = (0, NONE);
        if let Some(last) = self.entries.get_mut(self.last) {
            way = usize::from(ip != last.end);
            last.elsewhere += way as u64;
            next = last.next[way] as usize;
        }
        match self.entries.get_mut(next) {
            Some(entry) if entry.ip == ip && entry.len == len && entry.code == code => {
                entry.times += 1;
                self.last = next;
                next
            }
            _ => self.search((code, ip, len), way, end),
        }
    }

    /// As [`number`](Self::number), where the block that ran last does not lead there.
    #[inline(never)]
    fn search(&mut self, key: Key, way: usize, end: impl FnOnce() -> Ip) -> usize {
        self.searches += 1;
        let new = self.entries.len() as u32;
        let number = *self.numbers.entry(key).or_insert(new);
        if let Some(last) = self.entries.get_mut(self.last) {
            last.next[way] = number;
        }
        self.last = number as usize;
        if let Some(entry) = self.entries.get_mut(self.last) {
            entry.times += 1;
        } else {
            let (code, ip, len) = key;
            self.entries.push(Entry {
                ip,
                end: end(),
                times: 1,
                elsewhere: 0,
                code,
                len,
                next: [u32::MAX; 2],
            });
        }
        self.last
    }

    /// How often a block ran.
    #[must_use]
    pub fn times(&self, number: usize) -> u64 {
        self.entries.get(number).map_or(0, |entry| entry.times)
    }

    /// How often control went on elsewhere than behind the block's last instruction.
    #[must_use]
    pub fn elsewhere(&self, number: usize) -> u64 {
        self.entries.get(number).map_or(0, |entry| entry.elsewhere)
    }

    /// The block that ran last, if control is to go on from its end, and the address behind it.
    #[must_use]
    pub fn last(&self) -> Option<(usize, Ip)> {
        let entry = self.entries.get(self.last)?;
        Some((self.last, entry.end))
    }

    /// Control went on at `ip`, where no block begins.
    pub fn went_to(&mut self, ip: Ip) {
        if let Some(last) = self.entries.get_mut(self.last) {
            last.elsewhere += u64::from(ip != last.end);
        }
        self.last = NONE;
    }

    /// Control went on elsewhere than behind the last block, out of what is traced.
    pub fn left(&mut self) {
        if let Some(last) = self.entries.get_mut(self.last) {
            last.elsewhere += 1;
        }
        self.last = NONE;
    }

    /// Where control went from the end of the last block is not known.
    pub fn forget(&mut self) {
        self.last = NONE;
    }

    /// Forgets all blocks.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.numbers.clear();
        self.last = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However often a loop runs, its blocks are searched for no oftener than there are ways between them.
    #[test]
    fn a_block_that_repeats_is_not_searched_for() {
        let mut index = BlockIndex::default();
        // Two blocks: the first is left by its branch every third time.
        let run = |index: &mut BlockIndex, ip, len, end| index.number(7, Ip(ip), len, || Ip(end));
        for round in 0..3000 {
            assert_eq!(run(&mut index, 0x1000, 4, 0x1010), 0);
            if round % 3 != 0 {
                assert_eq!(run(&mut index, 0x1010, 2, 0x1018), 1);
            }
        }
        assert_eq!((index.len(), index.searches()), (2, 4));
        assert_eq!((index.times(0), index.times(1)), (3000, 2000));
        // What came behind the last one is not known yet.
        assert_eq!((index.elsewhere(0), index.elsewhere(1)), (1000, 1999));
        index.left();
        assert_eq!(index.elsewhere(1), 2000);
    }

    /// Neither the same address with other code, nor another length, is the same block.
    #[test]
    fn what_tells_blocks_apart() {
        let mut index = BlockIndex::default();
        let mut number = |code, ip, len| index.number(code, Ip(ip), len, || Ip(ip + 1));
        for _ in 0..2 {
            let all = [(0, 1, 1), (1, 1, 1), (0, 1, 2), (0, 2, 1)].map(|(c, i, l)| number(c, i, l));
            assert_eq!(all, [0, 1, 2, 3]);
        }
        index.forget();
        assert_eq!(index.last(), None);
        let before: u64 = (0..4).map(|number| index.elsewhere(number)).sum();
        index.went_to(Ip(0x9000));
        let after: u64 = (0..4).map(|number| index.elsewhere(number)).sum();
        assert_eq!(before, after);
        index.clear();
        assert!(index.is_empty());
    }
}
