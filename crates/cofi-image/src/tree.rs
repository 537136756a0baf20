//! A map of address ranges that can be copied in no time.
//!
//! Processes fork and execute other programs, and every state of an address space must stay readable. The ranges are
//! therefore kept in a balanced tree whose nodes never change: an edit makes new nodes for the path it touches and
//! shares the rest, so that a copy costs nothing, an edit costs the logarithm of the size however many ranges it
//! replaces, and no order of mappings can make it degenerate. It is an AVL tree in which everything is done by
//! joining two trees around a range and by splitting one at an address.

use std::sync::Arc;

use cofi_packet::Ip;

use crate::file::CodeFile;

/// Where the kernel's half of the address space begins.
pub(crate) const UPPER_HALF: u64 = 1 << 63;

/// Consecutive addresses that show consecutive bytes of a file.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) start: u64,
    /// The last address, so that a range may end with the address space.
    pub(crate) last: u64,
    pub(crate) file: Arc<CodeFile>,
    /// Of the byte at `start`.
    pub(crate) offset: u64,
}

impl Region {
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.start <= address && address <= self.last
    }

    /// The file offset of `address`; `None` where the offset would not fit.
    pub(crate) fn offset_of(&self, address: u64) -> Option<u64> {
        self.offset.checked_add(address.checked_sub(self.start)?)
    }

    /// Where the byte at `offset` of the file is, if it is here.
    pub(crate) fn ip_of(&self, offset: u64) -> Option<Ip> {
        let ip = self.start.checked_add(offset.checked_sub(self.offset)?)?;
        (ip <= self.last).then_some(Ip(ip))
    }

    /// The part in the half of the address space that `address` is in.
    pub(crate) fn within_half(&self, address: u64) -> Option<Region> {
        if address >= UPPER_HALF {
            self.from(self.start.max(UPPER_HALF))
        } else {
            self.before(self.last.saturating_add(1).min(UPPER_HALF))
        }
    }

    /// Whether it shows the same bytes as another one, where both are.
    pub(crate) fn shows_the_same_as(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.file, &other.file)
            && self.start.wrapping_sub(self.offset) == other.start.wrapping_sub(other.offset)
    }

    /// The part that is one address.
    pub(crate) fn only(&self, address: u64) -> Option<Region> {
        Some(Region {
            last: address,
            ..self.from(address)?
        })
    }

    /// The part from `start` on, if there is one.
    fn from(&self, start: u64) -> Option<Region> {
        if start > self.last {
            return None;
        }
        let offset = self.offset_of(start)?;
        Some(Region {
            start,
            offset,
            ..self.clone()
        })
    }

    /// The part that ends before `end`, if there is one.
    fn before(&self, end: u64) -> Option<Region> {
        (end > self.start).then(|| Region {
            last: end - 1,
            ..self.clone()
        })
    }
}

#[derive(Debug)]
struct Node {
    region: Region,
    left: Tree,
    right: Tree,
    height: u8,
}

/// Regions that do not overlap, ordered by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree(Option<Arc<Node>>);

impl Tree {
    /// The region that holds `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Region> {
        let mut tree = self;
        while let Some(node) = &tree.0 {
            if address < node.region.start {
                tree = &node.left;
            } else if address > node.region.last {
                tree = &node.right;
            } else {
                return Some(&node.region);
            }
        }
        None
    }

    /// Whether any region holds an address from `start` to `last`.
    pub(crate) fn overlaps(&self, start: u64, last: u64) -> bool {
        let mut tree = self;
        while let Some(node) = &tree.0 {
            if last < node.region.start {
                tree = &node.left;
            } else if start > node.region.last {
                tree = &node.right;
            } else {
                return true;
            }
        }
        false
    }

    /// Whether `is_it` holds of any region that holds an address from `start` to `last`.
    pub(crate) fn any_within(
        &self,
        start: u64,
        last: u64,
        is_it: &mut impl FnMut(&Region) -> bool,
    ) -> bool {
        let Some(node) = &self.0 else {
            return false;
        };
        let Region {
            start: from,
            last: to,
            ..
        } = node.region;
        start < from && node.left.any_within(start, last, is_it)
            || start <= to && last >= from && is_it(&node.region)
            || last > to && node.right.any_within(start, last, is_it)
    }

    /// Puts `region` in, in place of whatever stood there.
    pub(crate) fn put(&mut self, region: Region) {
        let (left, right) = self.cut(region.start, region.last);
        *self = join(left, region, right);
    }

    /// Takes out whatever stands from `start` to `last`.
    pub(crate) fn clear(&mut self, start: u64, last: u64) {
        let (left, right) = self.cut(start, last);
        *self = concat(left, right);
    }

    /// What stands before `start` and what stands after `last`.
    fn cut(&self, start: u64, last: u64) -> (Tree, Tree) {
        let (left, rest) = split(self, start);
        let right = match last.checked_add(1) {
            Some(end) => split(&rest, end).1,
            None => Tree(None),
        };
        (left, right)
    }

    /// Every region, by address.
    pub(crate) fn for_each(&self, visit: &mut impl FnMut(&Region)) {
        if let Some(node) = &self.0 {
            node.left.for_each(visit);
            visit(&node.region);
            node.right.for_each(visit);
        }
    }

    fn height(&self) -> u8 {
        self.0.as_ref().map_or(0, |node| node.height)
    }
}

fn node(left: Tree, region: Region, right: Tree) -> Tree {
    let height = left.height().max(right.height()) + 1;
    Tree(Some(Arc::new(Node {
        region,
        left,
        right,
        height,
    })))
}

/// As [`node`], for sides whose heights differ by two at most.
fn balanced(left: Tree, region: Region, right: Tree) -> Tree {
    if left.height() > right.height() + 1
        && let Some(top) = &left.0
    {
        let (outer, inner) = (top.left.clone(), top.right.clone());
        return match &inner.0 {
            Some(middle) if inner.height() > outer.height() => node(
                node(outer, top.region.clone(), middle.left.clone()),
                middle.region.clone(),
                node(middle.right.clone(), region, right),
            ),
            _ => node(outer, top.region.clone(), node(inner, region, right)),
        };
    }
    if right.height() > left.height() + 1
        && let Some(top) = &right.0
    {
        let (inner, outer) = (top.left.clone(), top.right.clone());
        return match &inner.0 {
            Some(middle) if inner.height() > outer.height() => node(
                node(left, region, middle.left.clone()),
                middle.region.clone(),
                node(middle.right.clone(), top.region.clone(), outer),
            ),
            _ => node(node(left, region, inner), top.region.clone(), outer),
        };
    }
    node(left, region, right)
}

/// One tree of everything in `left`, then `region`, then everything in `right`.
fn join(left: Tree, region: Region, right: Tree) -> Tree {
    if left.height() > right.height() + 1
        && let Some(top) = &left.0
    {
        let joined = join(top.right.clone(), region, right);
        return balanced(top.left.clone(), top.region.clone(), joined);
    }
    if right.height() > left.height() + 1
        && let Some(top) = &right.0
    {
        let joined = join(left, region, top.left.clone());
        return balanced(joined, top.region.clone(), top.right.clone());
    }
    node(left, region, right)
}

fn concat(left: Tree, right: Tree) -> Tree {
    match take_first(&right) {
        Some((first, rest)) => join(left, first, rest),
        None => left,
    }
}

fn take_first(tree: &Tree) -> Option<(Region, Tree)> {
    let top = tree.0.as_ref()?;
    Some(match take_first(&top.left) {
        Some((first, rest)) => (first, join(rest, top.region.clone(), top.right.clone())),
        None => (top.region.clone(), top.right.clone()),
    })
}

/// What stands below `address` and what stands from it on; a region across it is cut in two.
fn split(tree: &Tree, address: u64) -> (Tree, Tree) {
    let Some(top) = &tree.0 else {
        return (Tree(None), Tree(None));
    };
    if address <= top.region.start {
        let (low, high) = split(&top.left, address);
        (low, join(high, top.region.clone(), top.right.clone()))
    } else if address > top.region.last {
        let (low, high) = split(&top.right, address);
        (join(top.left.clone(), top.region.clone(), low), high)
    } else {
        let low = match top.region.before(address) {
            Some(part) => join(top.left.clone(), part, Tree(None)),
            None => top.left.clone(),
        };
        let high = match top.region.from(address) {
            Some(part) => join(Tree(None), part, top.right.clone()),
            None => top.right.clone(),
        };
        (low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks order, gaps and balance; returns the height.
    fn check(tree: &Tree) -> u8 {
        let mut next = Some(0);
        tree.for_each(&mut |region| {
            assert!(region.start <= region.last);
            assert!(
                next.is_some_and(|next| region.start >= next),
                "overlap at {:#x}",
                region.start
            );
            next = region.last.checked_add(1);
        });
        fn heights(tree: &Tree) -> u8 {
            let Some(node) = &tree.0 else { return 0 };
            let (left, right) = (heights(&node.left), heights(&node.right));
            assert!(
                left.abs_diff(right) <= 1,
                "out of balance: {left} and {right}"
            );
            assert_eq!(node.height, left.max(right) + 1);
            node.height
        }
        heights(tree)
    }

    fn region(start: u64, last: u64) -> Region {
        Region {
            start,
            last,
            file: CodeFile::from_bytes("x", Vec::new()),
            offset: start,
        }
    }

    #[test]
    fn ordered_insertion_stays_shallow() {
        let mut up = Tree::default();
        let mut down = Tree::default();
        for i in 0..4096u64 {
            up.put(region(i * 16, i * 16 + 15));
            down.put(region((4096 - i) * 16, (4096 - i) * 16 + 15));
        }
        assert!(check(&up) <= 18);
        assert!(check(&down) <= 18);
        up.clear(16, 4095 * 16 - 1);
        assert_eq!(check(&up), 2);
    }

    #[test]
    fn the_last_address_can_be_mapped() {
        let mut tree = Tree::default();
        tree.put(region(u64::MAX - 7, u64::MAX));
        tree.put(region(0, 7));
        tree.put(region(u64::MAX, u64::MAX));
        check(&tree);
        assert_eq!(tree.find(u64::MAX).unwrap().start, u64::MAX);
        assert_eq!(tree.find(u64::MAX - 1).unwrap().last, u64::MAX - 1);
        assert!(tree.overlaps(3, u64::MAX - 100));
        assert!(!tree.overlaps(8, u64::MAX - 8));
        tree.clear(0, u64::MAX);
        assert!(tree.find(0).is_none());
    }

    proptest! {
        #[test]
        fn any_edits_leave_a_sound_tree(edits in prop::collection::vec((0u64..600, 1u64..60, any::<bool>()), 0..200)) {
            let mut tree = Tree::default();
            for (start, len, put) in edits {
                if put {
                    tree.put(region(start, start + len - 1));
                } else {
                    tree.clear(start, start + len - 1);
                }
                check(&tree);
            }
        }
    }
}
