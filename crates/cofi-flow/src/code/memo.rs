//! Where a few TNT bits lead from a node: paths that were walked before, found at once.
//!
//! A path is a function of its first node and of the bits, as long as nothing else decides: no return address from before it is needed. So
//! what code does again and again is looked up a few bits at a time. It takes code that runs often for that to pay, and memory: paths are
//! kept only where far more branches were walked than there is code, and only those that come a second time.

use alloc::vec::Vec;

use cofi_insn::Checksum;
use cofi_packet::{ExecMode, Ip};

use crate::FlowConfig;
use crate::code::graph::{Decision, Graph};
use crate::code::index::NONE;

/// So many bits are looked up at once.
const MOST_BITS: u8 = 8;
/// So many paths are kept at most; then all are forgotten. One takes about 128 bytes.
const MOST_PATHS: usize = 1 << 16;
/// Keys have so many bits: those of a node's number, of [`MOST_BITS`], and the one above these.
const KEY_BITS: u32 = u32::BITS + MOST_BITS as u32 + 1;
/// Of the memory for decoded code, paths use this part beside.
const PART: usize = 16;
/// How deep the calls of a path may be nested.
const MOST_CALLS: usize = 16;
/// The smallest table, as a power of two.
const LEAST_SLOTS: u32 = 12;

/// A path through the graph. (It is as large as a line of the processor's cache.)
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Path {
    /// The node behind it.
    pub(crate) end: u32,
    /// Its nodes, and how many they are.
    nodes: [u32; MOST_BITS as usize],
    count: u8,
    /// How many bits it uses.
    pub(crate) bits: u8,
    /// How many more return addresses there are at most than before it.
    pub(crate) deepest: u8,
    /// How many calls have not returned, and where they are in [`Memo::calls`].
    open: u8,
    calls: u32,
    /// How many instructions.
    pub(crate) insns: u32,
}

impl Path {
    /// The nodes.
    #[inline]
    pub(crate) fn nodes(&self) -> &[u32] {
        &self.nodes[..usize::from(self.count)]
    }
}

/// A node and the bits that come next: `node << 9 | 1 << count | bits`.
type Key = u64;

/// A part of a key, and the path. Where in the table it is tells the rest of the key.
#[derive(Clone, Copy, Debug)]
struct Slot {
    rest: u32,
    /// The number of a path, [`NONE`] where the key was seen but once, or [`EMPTY`].
    path: u32,
}

/// No key was seen.
const EMPTY: u32 = NONE - 1;

/// Paths that were walked more than once.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    slots: Vec<Slot>,
    /// How many bits of a mixed key are not the number of its slot.
    shift: u32,
    paths: Vec<Path>,
    /// Of each path.
    keys: Vec<Key>,
    /// Of each path, of all its instructions. Who does not ask for them does not pay for them.
    checksums: Vec<Checksum>,
    /// The return addresses and sites of calls that a path leaves open.
    calls: Vec<(Ip, u32)>,
    /// How many branches were walked without it.
    walked: u64,
    /// So many branches have to be walked for each node that there is, before any path is kept.
    warm_after: u64,
    /// So many paths are kept at most.
    most: usize,
}

/// What a [`Memo`] knows of a node and bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    Path(u32),
    /// It was there before: it is worth keeping.
    Again,
    /// Nothing.
    New,
}

impl Memo {
    pub(crate) fn new(config: &FlowConfig) -> Self {
        Self {
            warm_after: config.warm_after.into(),
            most: MOST_PATHS.min(config.cache_limit / PART / 128),
            ..Self::default()
        }
    }

    /// How much memory they use.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
            + self.paths.len() * size_of::<Path>()
            + self.paths.len() * (size_of::<Key>() + size_of::<Checksum>())
            + self.calls.len() * size_of::<(Ip, u32)>()
    }

    /// How many paths there are.
    pub(crate) fn count(&self) -> usize {
        self.paths.len()
    }

    /// Forgets all paths, and gives their memory back.
    pub(crate) fn clear(&mut self) {
        if !self.slots.is_empty() {
            *self = Self {
                warm_after: self.warm_after,
                most: self.most,
                ..Self::default()
            };
        }
    }

    /// Notes that so many branches were walked.
    #[inline]
    pub(crate) fn walked(&mut self, count: u64) {
        self.walked += count;
    }

    /// Whether paths are kept.
    #[inline]
    pub(crate) fn is_warm(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Begins to keep paths, if code has proven warm, there being so many nodes.
    /// Whether it has.
    pub(crate) fn warm_up(&mut self, nodes: usize) -> bool {
        if self.slots.is_empty()
            && self.most >= 1 << (LEAST_SLOTS - 3)
            && self.walked > self.warm_after * (nodes as u64 + 64)
        {
            self.grow();
        }
        !self.slots.is_empty()
    }

    /// The first of some TNT bits, of which the oldest is the highest, as part of a key.
    #[inline]
    pub(crate) fn first_bits(bits: u64, count: u8) -> u32 {
        let count = count.min(MOST_BITS);
        // The bit above them tells how many they are.
        (1 << count) | (bits >> (64 - u32::from(count))) as u32
    }

    const fn key(node: u32, bits: u32) -> Key {
        (node as u64) << (MOST_BITS + 1) | bits as u64
    }

    /// The number of a key's slot, and the part of the key that this does not tell.
    #[inline]
    const fn slot(&self, key: Key) -> (usize, u32) {
        // Each key becomes another number, as the factor is odd; the higher bits of it depend on all of the key.
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) & ((1 << KEY_BITS) - 1);
        let rest = mixed & ((1 << self.shift) - 1);
        ((mixed >> self.shift) as usize, rest as u32)
    }

    /// What is known of a node and the first bits behind it.
    #[inline]
    pub(crate) fn find(&mut self, node: u32, bits: u32) -> Found {
        let (number, rest) = self.slot(Self::key(node, bits));
        let Some(slot) = self.slots.get_mut(number) else {
            return Found::New;
        };
        if slot.rest == rest {
            match slot.path {
                NONE => return Found::Again,
                EMPTY => {}
                path => return Found::Path(path),
            }
        }
        *slot = Slot { rest, path: NONE };
        Found::New
    }

    /// The path that is known from a node by these first bits.
    #[inline]
    pub(crate) fn known(&self, node: u32, bits: u32) -> Option<u32> {
        let (number, rest) = self.slot(Self::key(node, bits));
        let slot = self.slots.get(number)?;
        (slot.rest == rest && slot.path < EMPTY).then_some(slot.path)
    }

    #[inline]
    pub(crate) fn path(&self, number: u32) -> &Path {
        &self.paths[number as usize]
    }

    /// What it is of all instructions of a path.
    #[inline]
    pub(crate) fn checksum(&self, number: u32) -> &Checksum {
        &self.checksums[number as usize]
    }

    /// The return addresses that it leaves behind, and their sites, in their order.
    #[inline]
    pub(crate) fn open_calls(&self, path: &Path) -> &[(Ip, u32)] {
        let first = path.calls as usize;
        &self.calls[first..first + usize::from(path.open)]
    }

    /// Four times the slots.
    fn grow(&mut self) {
        let log = match self.slots.len() {
            0 => LEAST_SLOTS,
            len => len.ilog2() + 2,
        };
        self.shift = KEY_BITS - log;
        self.slots.clear();
        let empty = Slot {
            rest: 0,
            path: EMPTY,
        };
        self.slots.resize(1 << log, empty);
        for (number, path) in (0..self.keys.len()).zip(0..) {
            let (slot, rest) = self.slot(self.keys[number]);
            self.slots[slot] = Slot { rest, path };
        }
    }

    /// Keeps the path from `node` by these first bits, as far as the graph knows it; none if it does not, or if it begins with a node that needs
    /// something else than a bit.
    #[cold]
    pub(crate) fn keep(
        &mut self,
        graph: &Graph,
        node: u32,
        bits: u32,
        mode: ExecMode,
    ) -> Option<u32> {
        if self.paths.len() >= self.most {
            self.clear();
            return None;
        }
        if self.paths.len() >= self.slots.len() / 2 {
            self.grow();
        }
        let calls = self.calls.len();
        let mut path = Path {
            end: node,
            nodes: [NONE; MOST_BITS as usize],
            count: 0,
            bits: 0,
            deepest: 0,
            open: 0,
            calls: u32::try_from(calls).ok()?,
            insns: 0,
        };
        let mut checksum = Checksum::EMPTY;
        let count = 31 - bits.leading_zeros() as u8;
        while path.bits < count {
            let bit = bits >> (count - 1 - path.bits) & 1;
            let Some(next) = self.step(graph, &mut path, calls, mode, bit) else {
                break;
            };
            checksum = checksum.then(*graph.checksum(path.end));
            path.end = next;
        }
        if path.bits == 0 {
            return None;
        }
        path.open = (self.calls.len() - calls) as u8;
        let number = self.paths.len() as u32;
        self.paths.push(path);
        self.checksums.push(checksum);
        let key = Self::key(node, bits);
        self.keys.push(key);
        let (slot, rest) = self.slot(key);
        self.slots[slot] = Slot { rest, path: number };
        Some(number)
    }

    /// Goes over the node at the end of `path` by a bit; the node behind it, if that is known and nothing else decides.
    fn step(
        &mut self,
        graph: &Graph,
        path: &mut Path,
        calls: usize,
        mode: ExecMode,
        bit: u32,
    ) -> Option<u32> {
        let node = graph.node(path.end);
        let own = graph.calls(node);
        let deepest = self.calls.len() - calls + own.size_hint().0;
        let next = match (node.decision, bit) {
            (Decision::Conditional, way) => node.next[way as usize],
            // A compressed return from a call of the path itself.
            (Decision::Return, 1) => {
                match own.last().or(self.calls.get(calls..)?.last().copied()) {
                    // (The stack holds no more than the mode's width.)
                    Some((ip, site)) if mode.bits() == 64 || ip.0 >> 32 == 0 => {
                        graph.after_call(site, ip, mode)
                    }
                    _ => NONE,
                }
            }
            _ => NONE,
        };
        if next == NONE || deepest > MOST_CALLS {
            return None;
        }
        self.calls.extend(graph.calls(node));
        if node.decision == Decision::Return {
            self.calls.pop();
        }
        *path.nodes.get_mut(usize::from(path.count))? = path.end;
        path.count += 1;
        path.bits += 1;
        path.deepest = path.deepest.max(deepest as u8);
        path.insns += u32::from(node.insns);
        Some(next)
    }
}
