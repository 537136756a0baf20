//! Steps from block to block, in the map that AFL keeps of them.

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
        if let Some(count) = self.counts.get_mut(usize::from(block ^ before >> 1)) {
            *count += 1;
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
    let salt = name
        .as_encoded_bytes()
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

/// Numbers the blocks of the files that are wanted. The others do not count, as if they were not there.
#[derive(Debug)]
pub(crate) struct Edges {
    is_wanted: fn(&Path) -> bool,
    numbers: FxHashMap<(Era, Ip), Option<u16>>,
}

impl Edges {
    /// So many numbers are remembered.
    const MOST: usize = 1 << 20;

    pub(crate) fn new(is_wanted: fn(&Path) -> bool) -> Self {
        Self {
            is_wanted,
            numbers: FxHashMap::default(),
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
        if self.numbers.len() >= Self::MOST {
            self.forget();
        }
        let is_wanted = self.is_wanted;
        stretch.run(ip, next, || {
            *self.numbers.entry((era, ip)).or_insert_with(|| {
                let place = place(ip).filter(|place| is_wanted(place.file.path()))?;
                Some(number(&place))
            })
        });
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
