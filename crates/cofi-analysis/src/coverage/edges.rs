//! Steps from block to block, in the map that AFL keeps of them.

use std::ops::Range;
use std::path::Path;

use cofi_image::Place;
use cofi_packet::Ip;
use rustc_hash::FxHashMap;

use crate::block_table::Era;

/// How often control went from one block to another, by AFL's hash of the two.
///
/// A block is what runs from where a branch led up to the next branch. Its number has 16 bits: of its address in its file, as AFL's QEMU mode has it,
/// and the file's name. A step counts at the number of the block XOR half the number of the one before; a thread begins with 0 before the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeMap {
    counts: Vec<u64>,
}

impl Default for EdgeMap {
    fn default() -> Self {
        Self {
            counts: vec![0; Self::SIZE],
        }
    }
}

impl EdgeMap {
    /// How many counts there are.
    pub const SIZE: usize = 1 << 16;

    /// The counts.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// As AFL has it in memory: a byte for each; more than 255 is 255, so that nothing that ran is 0.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let counts = self.counts.iter();
        counts
            .map(|count| u8::try_from(*count).unwrap_or(u8::MAX))
            .collect()
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    fn step(&mut self, before: u16, block: u16) {
        self.steps(before, block, 1);
    }

    fn steps(&mut self, before: u16, block: u16, times: u64) {
        if let Some(count) = self.counts.get_mut(usize::from(block ^ before >> 1)) {
            *count += times;
        }
    }
}

/// The number of a block.
fn number(place: &Place) -> u16 {
    // An address that the file does not have itself is that of its bytes.
    let address = place.file.address_of_offset(place.offset);
    let address = address.unwrap_or(place.offset);
    let name = place.file.path().file_name().unwrap_or_default();
    // FNV-1a
    let salt = cofi_host::bytes_of(name.as_ref())
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
    (address >> 4) as u16 ^ (address << 8) as u16 ^ salt as u16 ^ (salt >> 16) as u16
}

/// The steps of a stretch of a stream.
///
/// A stretch may begin within a block, of which only who knows the one before can tell: there control had come to it without a branch.
#[derive(Debug, Default)]
pub(crate) struct EdgeStretch {
    map: EdgeMap,
    /// Where the first run begins, if nothing before it is missing.
    begins_at: Option<Ip>,
    /// The number of the first block, if nothing before it is missing, and of the second, if nothing between is. They are no step yet.
    first: Option<u16>,
    second: Option<u16>,
    /// The first run began the first block.
    first_is_at_begin: bool,
    /// The block that ran last; none behind a gap.
    last: Option<u16>,
    /// Where the last run goes on, if it ended without a branch.
    goes_on_at: Option<Ip>,
    /// Something ran or is missing.
    has_begun: bool,
    /// A block has been counted, or something is missing.
    has_block: bool,
    /// The last block is the first.
    last_is_first: bool,
    has_gap: bool,
}

impl EdgeStretch {
    /// What comes next is not known to follow what came last.
    pub(crate) const fn forget(&mut self) {
        (self.last, self.goes_on_at, self.last_is_first) = (None, None, false);
        (self.has_begun, self.has_block, self.has_gap) = (true, true, true);
    }

    /// Instructions ran in a row from `ip` on, and then there was a branch, or there was none and they go on at `next`. `number` is that of the block
    /// that begins here, if one does and it counts.
    #[inline]
    fn run(&mut self, ip: Ip, next: Option<Ip>, number: impl FnOnce() -> Option<u16>) {
        let goes_on = self.goes_on_at.is_some_and(|at| at == ip);
        self.goes_on_at = next;
        if goes_on {
            return;
        }
        let is_first = !self.has_begun;
        if is_first {
            self.begins_at = Some(ip);
            self.has_begun = true;
        }
        if let Some(number) = number() {
            self.first_is_at_begin |= is_first;
            self.step(number);
        }
    }

    fn step(&mut self, block: u16) {
        let is_second = std::mem::take(&mut self.last_is_first);
        if !self.has_block {
            self.first = Some(block);
            self.last_is_first = true;
        } else if is_second {
            // The step from the first block, which may have begun before.
            self.second = Some(block);
        } else if let Some(before) = self.last {
            self.map.step(before, block);
        }
        self.last = Some(block);
        self.has_block = true;
    }

    /// All blocks of a path ran that is known, as far as [`run`](Self::run) need not look at each: the steps between them are not counted here, only
    /// how often they were made. `false`, and nothing, if it does need to.
    #[inline]
    fn path(&mut self, path: &mut PathSteps) -> bool {
        let goes_on = self.goes_on_at.is_some_and(|at| at == path.ip);
        if goes_on || !self.has_begun {
            return false;
        }
        if let Some((first, last)) = path.ends {
            // What is said of the first blocks of a stretch, only they can tell.
            if !self.has_block || self.last_is_first {
                return false;
            }
            if let Some(before) = self.last {
                self.map.step(before, first);
            }
            self.last = Some(last);
            path.times += 1;
        }
        self.goes_on_at = path.goes_on_at;
        true
    }

    /// Puts the next stretch of the stream behind this one.
    pub(crate) fn join(&mut self, next: &Self) {
        if !next.has_begun {
            return;
        }
        if !self.has_begun {
            (self.begins_at, self.first_is_at_begin) = (next.begins_at, next.first_is_at_begin);
            self.has_begun = true;
        }
        // The block in which the next stretch begins may be the last one of this.
        let goes_on = next.begins_at.is_some() && self.goes_on_at == next.begins_at;
        if let Some(block) = next.first
            && !(goes_on && next.first_is_at_begin)
        {
            self.step(block);
        }
        if let Some(block) = next.second {
            self.step(block);
        }
        self.map.merge(&next.map);
        if next.has_gap {
            self.forget();
        }
        if next.has_gap || next.second.is_some() {
            self.last = next.last;
        }
        self.goes_on_at = next.goes_on_at;
    }

    /// Nothing stands before the first block.
    pub(crate) fn finish(mut self) -> EdgeMap {
        if let Some(first) = self.first {
            self.map.step(0, first);
            if let Some(second) = self.second {
                self.map.step(first, second);
            }
        }
        self.map
    }
}

/// What runs along a path, if its first block is one that begins there.
#[derive(Debug)]
struct PathSteps {
    /// Where it begins.
    ip: Ip,
    /// The numbers of the first and of the last block that count; all of them are in [`Edges`].
    ends: Option<(u16, u16)>,
    numbers: Range<usize>,
    /// Where it goes on, if it does not end with a branch.
    goes_on_at: Option<Ip>,
    /// How often it ran, since the steps between its blocks were counted.
    times: u64,
}

/// Numbers the blocks of the files that are wanted. The others do not count, as if they were not there.
#[derive(Debug)]
pub(crate) struct Edges {
    is_wanted: fn(&Path) -> bool,
    numbers: FxHashMap<(Era, Ip), Option<u16>>,
    /// By the number of a path: what is known of it, if that is looked at already.
    paths: Vec<Option<PathSteps>>,
    /// The numbers of the blocks along the paths.
    trail: Vec<u16>,
}

impl Edges {
    /// So many numbers are remembered.
    const MOST: usize = 1 << 20;

    pub(crate) fn new(is_wanted: fn(&Path) -> bool) -> Self {
        Self {
            is_wanted,
            numbers: FxHashMap::default(),
            paths: Vec::new(),
            trail: Vec::new(),
        }
    }

    pub(crate) fn forget(&mut self) {
        self.numbers.clear();
    }

    /// Instructions ran in a row from `ip` on; where they go on if there was no branch; `place` tells where an address lies.
    #[inline]
    pub(crate) fn run(
        &mut self,
        era: Era,
        ip: Ip,
        next: Option<Ip>,
        place: impl FnOnce(Ip) -> Option<Place>,
        stretch: &mut EdgeStretch,
    ) {
        stretch.run(ip, next, || self.number(era, ip, place));
    }

    /// The number of the block that begins at `ip`, if it counts.
    fn number(&mut self, era: Era, ip: Ip, place: impl FnOnce(Ip) -> Option<Place>) -> Option<u16> {
        if self.numbers.len() >= Self::MOST {
            self.forget();
        }
        let is_wanted = self.is_wanted;
        *self.numbers.entry((era, ip)).or_insert_with(|| {
            let place = place(ip).filter(|place| is_wanted(place.file.path()))?;
            Some(number(&place))
        })
    }

    /// All instructions of a path ran, which `runs` gives in rows, each with what [`run`](Self::run) takes of it. If it is `known`, it has that number
    /// among all paths until they are [settled](Self::settle).
    #[inline]
    pub(crate) fn path(
        &mut self,
        era: Era,
        known: Option<usize>,
        runs: impl Fn(&mut dyn FnMut(Ip, Option<Ip>)),
        place: impl Fn(Ip) -> Option<Place>,
        stretch: &mut EdgeStretch,
    ) {
        if let Some(known) = known {
            if self.paths.get(known).is_none_or(Option::is_none) {
                self.learn(era, known, &runs, &place);
            }
            if let Some(Some(path)) = self.paths.get_mut(known)
                && stretch.path(path)
            {
                return;
            }
        }
        runs(&mut |ip, next| self.run(era, ip, next, &place, stretch));
    }

    /// Looks at all blocks of a path.
    #[inline(never)]
    fn learn(
        &mut self,
        era: Era,
        known: usize,
        runs: impl Fn(&mut dyn FnMut(Ip, Option<Ip>)),
        place: impl Fn(Ip) -> Option<Place>,
    ) {
        let begin = self.trail.len();
        let (mut first, mut goes_on_at) = (None, None);
        runs(&mut |ip, next| {
            first.get_or_insert(ip);
            let goes_on = goes_on_at.is_some_and(|at| at == ip);
            goes_on_at = next;
            if !goes_on {
                let number = self.number(era, ip, &place);
                self.trail.extend(number);
            }
        });
        let numbers = self.trail.get(begin..).unwrap_or_default();
        let ends = numbers.first().copied().zip(numbers.last().copied());
        if self.paths.len() <= known {
            self.paths.resize_with(known + 1, || None);
        }
        self.paths[known] = first.map(|ip| PathSteps {
            ip,
            ends,
            numbers: begin..self.trail.len(),
            goes_on_at,
            times: 0,
        });
    }

    /// Counts the steps between the blocks of all paths that ran, and forgets the paths.
    pub(crate) fn settle(&mut self, stretch: &mut EdgeStretch) {
        for path in self.paths.drain(..).flatten() {
            if path.times > 0 {
                let numbers = self.trail.get(path.numbers).unwrap_or_default();
                for pair in numbers.windows(2) {
                    stretch.map.steps(pair[0], pair[1], path.times);
                }
            }
        }
        self.trail.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What may come in a stream.
    #[derive(Clone, Debug)]
    enum Coming {
        /// A block, in so many rows of instructions, and whether it counts.
        Block(u16, usize, bool),
        Gap,
    }

    fn comings() -> impl Strategy<Value = Coming> {
        prop_oneof![
            6 => (0_u16..6, 1_usize..4, prop::bool::weighted(0.8))
                .prop_map(|(number, rows, counts)| Coming::Block(number, rows, counts)),
            1 => Just(Coming::Gap),
        ]
    }

    proptest! {
        /// Wherever a stream is cut, also within blocks, and wherever a block is interrupted, the steps are those from block to block.
        #[test]
        fn steps_do_not_depend_on_the_cuts(
            comings in prop::collection::vec((comings(), prop::collection::vec(any::<bool>(), 4)), 0..60)
        ) {
            let (mut steps, mut whole) = (EdgeStretch::default(), EdgeStretch::default());
            let (mut joined, mut part) = (EdgeStretch::default(), EdgeStretch::default());
            for (coming, cuts) in comings {
                if cuts[3] {
                    joined.join(&std::mem::take(&mut part));
                }
                let Coming::Block(number, rows, counts) = coming else {
                    for stretch in [&mut steps, &mut whole, &mut part] {
                        stretch.forget();
                    }
                    continue;
                };
                if counts {
                    steps.step(number);
                }
                let ip = |row: usize| Ip(u64::from(number) * 16 + row as u64);
                for row in 0..rows {
                    if row > 0 && cuts[row - 1] {
                        joined.join(&std::mem::take(&mut part));
                    }
                    let next = Some(ip(row + 1)).filter(|_| row + 1 < rows);
                    // Of the place within a block there would be another number.
                    let here = number + 100 * row as u16;
                    for stretch in [&mut whole, &mut part] {
                        stretch.run(ip(row), next, || Some(here).filter(|_| counts));
                    }
                }
            }
            joined.join(&part);
            let steps = steps.finish();
            prop_assert_eq!(&whole.finish(), &steps);
            prop_assert_eq!(&joined.finish(), &steps);
        }
    }

    proptest! {
        /// Paths count as their blocks do, wherever a stream is cut, is missing, or goes on within a block.
        #[test]
        fn paths_count_as_their_blocks_do(
            // Blocks, in rows of instructions; of which not all count.
            paths in prop::collection::vec(prop::collection::vec((0_u16..6, 0_u16..3, 1_u16..4), 0..5), 1..6),
            counts in prop::collection::vec(any::<bool>(), 6),
            comings in prop::collection::vec((0_usize..6, any::<bool>(), 0_u8..20), 0..80),
        ) {
            let mut edges = Edges::new(|_| true);
            let ip = |block: u16, row: u16| Ip(u64::from(block) * 16 + u64::from(row));
            for (block, counts) in counts.iter().enumerate() {
                for row in 0..8 {
                    let number = block as u16 + 100 * row;
                    edges.numbers.insert((0, ip(block as u16, row)), Some(number).filter(|_| *counts));
                }
            }
            // A path may begin within a block, and end within one.
            let runs = |path: &[(u16, u16, u16)], take: &mut dyn FnMut(Ip, Option<Ip>)| {
                for (at, (block, first, rows)) in path.iter().enumerate() {
                    let is_last = at + 1 == path.len();
                    for row in *first..first + rows {
                        let ends = row + 1 == first + rows && !(is_last && block % 2 == 0);
                        take(ip(*block, row), Some(ip(*block, row + 1)).filter(|_| !ends));
                    }
                }
            };
            let (mut by_blocks, mut by_paths) = (EdgeStretch::default(), EdgeStretch::default());
            let (mut joined, mut part) = (EdgeStretch::default(), EdgeStretch::default());
            for (coming, is_known, other) in comings {
                match other {
                    0 => {
                        for stretch in [&mut by_blocks, &mut by_paths, &mut part] {
                            stretch.forget();
                        }
                    }
                    1 => edges.settle(&mut by_paths),
                    2 => joined.join(&std::mem::take(&mut part)),
                    _ => {}
                }
                let Some(path) = paths.get(coming) else { continue };
                runs(path, &mut |ip, next| {
                    for stretch in [&mut by_blocks, &mut part] {
                        edges.run(0, ip, next, |_| None, stretch);
                    }
                });
                let known = is_known.then_some(coming);
                edges.path(0, known, |take| runs(path, take), |_| None, &mut by_paths);
            }
            edges.settle(&mut by_paths);
            joined.join(&part);
            let by_blocks = by_blocks.finish();
            prop_assert_eq!(&by_paths.finish(), &by_blocks);
            prop_assert_eq!(&joined.finish(), &by_blocks);
        }
    }

    #[test]
    fn a_loop_is_the_step_to_itself() {
        let mut stretch = EdgeStretch::default();
        for _ in 0..300 {
            stretch.step(0x1234);
        }
        let map = stretch.finish();
        assert_eq!(
            (map.counts()[0x1234], map.counts()[0x1234 ^ 0x091a]),
            (1, 299)
        );
        assert_eq!(
            (map.bytes()[0x1234], map.bytes()[0x1234 ^ 0x091a]),
            (1, 255)
        );
        assert_eq!(map.bytes().iter().filter(|byte| **byte > 0).count(), 2);
    }
}
