//! Numbers for distinct blocks, found by the way that control came to them.

use std::ops::Range;

use cofi_flow::PathNumber;
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
    paths: Vec<PathEntry>,
    /// The blocks of all paths.
    trail: Vec<u32>,
    /// Where in `trail` the blocks begin of the path that is being added.
    begin: usize,
    slots: Slots,
    /// The generation and the code of which they are, and those of others.
    owner: (usize, u32),
    others: FxHashMap<(usize, u32), Slots>,
    /// How many slots others have.
    slots_of_others: usize,
}

/// Where the paths of a generation and code are.
///
/// Whose turn is short may run a few paths of great numbers. So there is room only as paths are counted block by block: what is made and
/// forgotten then costs no more than that.
#[derive(Debug, Default)]
struct Slots {
    /// By the [index](PathNumber::index) of a path: where it is in `paths`, or `u32::MAX`.
    paths: Vec<u32>,
    room: usize,
}

/// Blocks that were counted as one path.
#[derive(Debug)]
struct PathEntry {
    ip: Ip,
    /// Its blocks, in [`BlockIndex::trail`].
    blocks: Range<usize>,
    last: usize,
    /// How often it ran since its blocks were counted.
    times: u64,
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
            paths: Vec::new(),
            trail: Vec::new(),
            begin: 0,
            slots: Slots::default(),
            owner: (0, 0),
            others: FxHashMap::default(),
            slots_of_others: 0,
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

    /// Counts all blocks of a path that runs next, if it has been [added](Self::add_path); `false`, and nothing, if not.
    ///
    /// What is counted so is told by [`times`](Self::times) and [`elsewhere`](Self::elsewhere) after [`settle`](Self::settle).
    #[inline(always)]
    pub fn path(&mut self, code: u32, path: PathNumber) -> bool {
        self.known_path(code, path).is_some()
    }

    /// As [`path`](Self::path); also which of the paths it is that were added since all were [forgotten](Self::clear).
    #[inline(always)]
    pub(crate) fn known_path(&mut self, code: u32, path: PathNumber) -> Option<usize> {
        if self.owner != (path.generation(), code) {
            self.change_owner((path.generation(), code));
        }
        let slot = *self.slots.paths.get(path.index())? as usize;
        let entry = self.paths.get_mut(slot)?;
        entry.times += 1;
        if let Some(last) = self.entries.get_mut(self.last) {
            last.elsewhere += u64::from(entry.ip != last.end);
        }
        self.last = entry.last;
        Some(slot)
    }

    #[cold]
    fn change_owner(&mut self, owner: (usize, u32)) {
        let slots = std::mem::take(&mut self.slots);
        if self.others.len() >= Self::OWNERS || self.slots_of_others >= Self::SLOTS_OF_OTHERS {
            // (What was counted of their paths is still to be settled.)
            self.others.clear();
            self.slots_of_others = 0;
        }
        self.slots_of_others += slots.paths.len();
        self.others.insert(self.owner, slots);
        self.slots = self.others.remove(&owner).unwrap_or_default();
        self.slots_of_others -= self.slots.paths.len();
        self.owner = owner;
    }

    /// So many generations are known beside the one whose turn it is, with so many slots.
    const OWNERS: usize = 64;
    const SLOTS_OF_OTHERS: usize = 1 << 22;
    /// For each path that is counted block by block, there is room for so many more slots.
    const ROOM: usize = 64;

    /// A path begins that is not known: its blocks are to be numbered, each is to be [noted](Self::note_block), and then it is to be
    /// [added](Self::add_path).
    pub fn begin_path(&mut self) {
        self.begin = self.trail.len();
    }

    /// The block with this number is of the path that was begun.
    pub fn note_block(&mut self, number: usize) {
        self.trail.push(number as u32);
    }

    /// The path that was begun is complete, which [`path`](Self::path) did not know. Of many paths, it is known from the next time on.
    pub fn add_path(&mut self, path: PathNumber) {
        let blocks = self.begin..self.trail.len();
        let of = |number: Option<&u32>| number.map_or(NONE, |number| *number as usize);
        let (first, last) = (of(self.trail.get(self.begin)), of(self.trail.last()));
        let Some(entry) = self.entries.get(first) else {
            return;
        };
        let slots = &mut self.slots;
        slots.room += Self::ROOM;
        if path.index() >= slots.room {
            self.trail.truncate(self.begin);
            return;
        }
        if slots.paths.len() <= path.index() {
            slots.paths.resize(path.index() + 1, u32::MAX);
        }
        slots.paths[path.index()] = self.paths.len() as u32;
        self.paths.push(PathEntry {
            ip: entry.ip,
            blocks,
            last,
            times: 0,
        });
    }

    /// How much is known of paths: the number of their blocks.
    #[must_use]
    pub fn known_of_paths(&self) -> usize {
        self.trail.len()
    }

    /// Counts the blocks of the paths that ran.
    pub fn settle(&mut self) {
        for path in &mut self.paths {
            let times = std::mem::take(&mut path.times);
            let blocks = self.trail.get(path.blocks.clone()).unwrap_or_default();
            if times == 0 {
                continue;
            }
            for (at, number) in blocks.iter().enumerate() {
                let next = blocks
                    .get(at + 1)
                    .and_then(|next| self.entries.get(*next as usize));
                let next = next.map(|next| next.ip);
                let Some(entry) = self.entries.get_mut(*number as usize) else {
                    continue;
                };
                entry.times += times;
                if next.is_some_and(|next| next != entry.end) {
                    entry.elsewhere += times;
                }
            }
        }
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
        self.paths.clear();
        self.trail.clear();
        self.slots = Slots::default();
        self.others.clear();
        self.slots_of_others = 0;
    }
}

#[cfg(test)]
mod tests {
    use cofi_flow::{Block, FlowConfig, FlowDecoder};
    use cofi_insn::Segment;
    use cofi_packet::intel::PSB;

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

    /// Paths count as their blocks do: how often each ran, and how often control went on elsewhere.
    #[test]
    fn paths_count_as_their_blocks_do() {
        // Of 64-bit code at 1000: jz 1002; jz 1004; jmp rax, and so once more at 1010.
        let mut code = [0x90; 0x20];
        for at in [0, 0x10] {
            code[at..at + 6].copy_from_slice(&[0x74, 0, 0x74, 8, 0xff, 0xe0]);
        }
        let mut trace = Vec::new();
        for round in 0..40_u8 {
            trace.extend(PSB);
            // MODE.Exec of 64 bits, FUP 1000, PSBEND
            trace.extend([0x99, 0x01, 0x7d, 0, 0x10, 0, 0, 0, 0, 0x02, 0x23]);
            for turn in 0..round % 8 {
                // TNT (N N or T N), TIP to 1010 or 1000
                trace.extend([
                    if turn % 3 == 0 { 0x08 } else { 0x0c },
                    0x2d,
                    0x10 * (turn % 2),
                    0x10,
                ]);
            }
        }
        let segment = Segment {
            base: Ip(0x1000),
            bytes: &code,
        };
        let mut config = FlowConfig::default();
        config.warm_after = 0;
        let (mut paths, mut blocks) = (BlockIndex::default(), BlockIndex::default());
        let mut at_once = 0;
        let count = |index: &mut BlockIndex, block: &Block<'_>| {
            let last = block.last().expect("a branch ends it");
            index.number(0, block.ip(), block.len() as u32, || {
                Ip(last.ip.0 + u64::from(last.len))
            })
        };
        let mut flow = FlowDecoder::new(&trace, segment, config);
        while flow
            .paths(|path| {
                path.for_each(|block| _ = count(&mut blocks, block));
                match path.number() {
                    Some(number) if paths.path(0, number) => at_once += 1,
                    number => {
                        paths.begin_path();
                        path.for_each(|block| {
                            let number = count(&mut paths, block);
                            paths.note_block(number);
                        });
                        if let Some(number) = number {
                            paths.add_path(number);
                        }
                    }
                }
            })
            .is_some()
        {
            assert_eq!(paths.last(), blocks.last());
        }
        paths.settle();
        assert!(at_once > 40, "{at_once}");
        assert_eq!(paths.len(), blocks.len());
        for number in 0..blocks.len() {
            let of = |index: &BlockIndex| (index.times(number), index.elsewhere(number));
            assert_eq!(of(&paths), of(&blocks));
        }
        assert!((0..blocks.len()).any(|number| blocks.elsewhere(number) != 0));
    }

    /// Programs that take turns in a few paths of great numbers get no slots for all below: what they have may be forgotten each turn.
    #[test]
    fn slots_are_as_many_as_the_paths_counted() {
        let nodes = 3000;
        // Of 64-bit code at 1000: many jz to the next, and jmp rax.
        let mut code = [0x74, 0].repeat(nodes);
        code.extend([0xff, 0xe0]);
        let end = 0x1000 + 2 * nodes as u16;
        let mut trace = Vec::from(PSB);
        trace.extend([0x99, 0x01, 0x7d, 0, 0x10, 0, 0, 0, 0, 0x02, 0x23]);
        // TNTs of six N, and TIPs to the end.
        trace.extend([0x80].repeat(nodes / 6));
        for _ in 0..300 {
            trace.push(0x2d);
            trace.extend(end.to_le_bytes());
        }
        let segment = Segment {
            base: Ip(0x1000),
            bytes: &code,
        };
        let (mut index, mut turn, mut most) = (BlockIndex::default(), 0_u32, 0);
        let mut flow = FlowDecoder::new(&trace, segment, FlowConfig::default());
        let mut counted = 0;
        while flow
            .paths(|path| {
                let Some(number) = path.number() else { return };
                most = most.max(number.index());
                let code = turn % (BlockIndex::OWNERS as u32 + 6);
                turn += u32::from(path.ip() == Ip(end.into()));
                if !index.path(code, number) {
                    counted += 1;
                    index.begin_path();
                    path.for_each(|block| {
                        let number =
                            index.number(code, block.ip(), block.len() as u32, || block.ip());
                        index.note_block(number);
                    });
                    index.add_path(number);
                }
                let slots = index.slots.paths.len() + index.slots_of_others;
                assert!(slots <= counted * BlockIndex::ROOM, "{slots} {counted}");
            })
            .is_some()
        {}
        assert!(turn >= 290 && most >= nodes * 3, "{turn} {most}");
        let (known, all) = (index.known_of_paths(), index.len());
        assert!(known >= nodes && all >= known, "{known} {all}");
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
