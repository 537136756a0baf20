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
#[derive(Debug, Default)]
pub(crate) struct EdgeStretch {
    map: EdgeMap,
    /// The first block, if nothing before it is missing.
    first: Option<u16>,
    /// The block that ran last; none behind a gap.
    last: Option<u16>,
    has_begun: bool,
}

impl EdgeStretch {
    /// What comes next is not known to follow what came last.
    pub(crate) const fn forget(&mut self) {
        self.last = None;
        self.has_begun = true;
    }

    fn step(&mut self, block: u16) {
        match self.last {
            Some(before) => self.map.step(before, block),
            None if !self.has_begun => self.first = Some(block),
            None => {}
        }
        self.last = Some(block);
        self.has_begun = true;
    }

    /// Puts the next stretch of the stream behind this one.
    pub(crate) fn join(&mut self, next: &Self) {
        self.map.merge(&next.map);
        if !next.has_begun {
            return;
        }
        match (self.last, next.first) {
            (Some(before), Some(block)) => self.map.step(before, block),
            (None, first) if !self.has_begun => self.first = first,
            _ => {}
        }
        self.last = next.last;
        self.has_begun = true;
    }

    /// Nothing stands before the first block.
    pub(crate) fn finish(mut self) -> EdgeMap {
        if let Some(first) = self.first {
            self.map.step(0, first);
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

    /// A block begins at `ip`; `place` tells where that lies.
    #[inline]
    pub(crate) fn step(
        &mut self,
        era: Era,
        ip: Ip,
        place: impl FnOnce(Ip) -> Option<Place>,
        stretch: &mut EdgeStretch,
    ) {
        if self.numbers.len() >= Self::MOST {
            self.forget();
        }
        let is_wanted = self.is_wanted;
        let number = self.numbers.entry((era, ip)).or_insert_with(|| {
            let place = place(ip).filter(|place| is_wanted(place.file.path()))?;
            Some(number(&place))
        });
        if let Some(number) = *number {
            stretch.step(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Wherever a stream is cut, the steps are the same.
        #[test]
        fn steps_do_not_depend_on_the_cuts(
            blocks in prop::collection::vec((prop::option::of(any::<u16>()), any::<bool>()), 0..60)
        ) {
            let (mut whole, mut joined, mut part) =
                (EdgeStretch::default(), EdgeStretch::default(), EdgeStretch::default());
            for (block, is_cut) in blocks {
                if is_cut {
                    joined.join(&std::mem::take(&mut part));
                }
                for stretch in [&mut whole, &mut part] {
                    match block {
                        Some(block) => stretch.step(block),
                        None => stretch.forget(),
                    }
                }
            }
            joined.join(&part);
            prop_assert_eq!(joined.finish(), whole.finish());
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
