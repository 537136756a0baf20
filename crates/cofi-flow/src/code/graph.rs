//! The graph of decisions: what lies between two instructions of which only packets tell how they went.
//!
//! From an address on, direct jumps and calls followed, the code up to the next conditional branch, return or indirect branch
//! runs as a whole once it is certain that a TNT bit or TIP packet for that branch is there. So it is one node, with an edge for
//! each outcome of a conditional branch: while TNT bits last, following the flow is a step along an edge a bit, and looks
//! nothing up.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use cofi_insn::Checksum;
use cofi_packet::{ExecMode, Ip};

use crate::FlowConfig;
use crate::code::flat::Flat;
use crate::code::index::{Index, NONE};
use crate::code::memo::{Found, Memo};
use crate::code::phrase::Phrases;

/// What tells apart what graphs, one after the other or at the same time, remember under the same numbers. It says nothing of order or time.
static GENERATIONS: AtomicUsize = AtomicUsize::new(0);

fn next_generation() -> usize {
    GENERATIONS.fetch_add(1, Ordering::Relaxed)
}

/// How many targets of TIPs are found at once.
const TARGETS: usize = 4096;

const fn mode_number(mode: ExecMode) -> usize {
    match mode {
        ExecMode::Bits16 => 0,
        ExecMode::Bits32 => 1,
        ExecMode::Bits64 => 2,
    }
}

/// How a node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// With a conditional branch.
    Conditional,
    /// With a near return.
    Return,
    /// With an indirect near jump or call.
    Indirect,
    /// With a far transfer other than a VM entry.
    Far,
    /// With anything that needs more care, or by its size: to be walked run by run.
    Careful,
}

/// A stretch of code up to the next decision: what is needed of it at each step. It is small, so that many stay in the
/// processor's cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// The first instruction.
    pub(crate) ip: Ip,
    /// The nodes that come after, or [`NONE`] where that is not known: of a conditional branch, after it was not taken and
    /// taken. Others have none.
    pub(crate) next: [u32; 2],
    /// Where the returns of its calls are, in [`Graph::sites`].
    sites: u32,
    /// How many instructions there are.
    pub(crate) insns: u16,
    site_count: u8,
    pub(crate) decision: Decision,
}

/// What else there is to know of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detail {
    /// The addresses after a conditional branch that was not taken, and taken.
    pub(crate) ways: [Ip; 2],
    /// Where its straight runs are, in [`Graph::parts`].
    parts: u32,
    part_count: u8,
    pub(crate) mode: ExecMode,
}

/// Where a call is to return to.
#[derive(Clone, Copy, Debug)]
struct Site {
    ip: Ip,
    mode: ExecMode,
    /// The node there, if known.
    node: u32,
}

/// How much of a graph there was at some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    nodes: usize,
    parts: usize,
    sites: usize,
}

/// All nodes of one address space.
///
/// Invariant: numbers in [`Node::next`] and [`Site::node`] are [`NONE`] or those of nodes, of the same mode, and a site's at its
/// address. The numbers of sites are kept on the stack of return addresses, where they outlive changes of the mode and the graph
/// itself: they are hints, good only where address and mode are still those of the site.
#[derive(Debug)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
    /// Of each node.
    details: Vec<Detail>,
    /// Of each node, of all its instructions. Who does not ask for them does not pay for them.
    checksums: Vec<Checksum>,
    parts: Vec<u32>,
    sites: Vec<Site>,
    index: Index,
    /// Nodes by a part of their address, for each mode: targets of TIPs are looked for here first.
    targets: [Vec<u32>; 3],
    pub(crate) flat: Flat,
    pub(crate) memo: Memo,
    pub(crate) phrases: Phrases,
    /// Counts how often nodes were forgotten, which is when a number no longer means the same node.
    pub(crate) emptied: u64,
    /// As long as it is the same, so is what the number of a node, a path or a phrase means.
    generation: usize,
}

impl Graph {
    pub(crate) fn new(config: &FlowConfig) -> Self {
        Self {
            nodes: Vec::new(),
            details: Vec::new(),
            checksums: Vec::new(),
            parts: Vec::new(),
            sites: Vec::new(),
            index: Index::default(),
            targets: Default::default(),
            flat: Flat::new(config),
            memo: Memo::new(config),
            phrases: Phrases::new(config),
            emptied: 0,
            generation: next_generation(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        self.details.clear();
        self.checksums.clear();
        self.parts.clear();
        self.sites.clear();
        self.index.clear();
        self.targets = Default::default();
        self.flat.clear();
        self.memo.clear();
        self.phrases.clear();
        self.emptied += 1;
        self.generation = next_generation();
    }

    /// How much there is, to come back to by [`truncate`](Self::truncate).
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            nodes: self.nodes.len(),
            parts: self.parts.len(),
            sites: self.sites.len(),
        }
    }

    /// Forgets what was added since `mark`, which is no less than there was after the graph was emptied last.
    pub(crate) fn truncate(&mut self, mark: Mark) {
        self.memo.clear();
        self.phrases.clear();
        self.targets = Default::default();
        self.flat.truncate(mark.nodes);
        self.nodes.truncate(mark.nodes);
        self.details.truncate(mark.nodes);
        self.checksums.truncate(mark.nodes);
        self.parts.truncate(mark.parts);
        self.sites.truncate(mark.sites);
        let count = mark.nodes as u32;
        let sites = self.sites.iter_mut().map(|site| &mut site.node);
        let nodes = self.nodes.iter_mut().flat_map(|node| &mut node.next);
        for link in nodes.chain(sites) {
            if *link >= count {
                *link = NONE;
            }
        }
        let (nodes, details) = (&self.nodes, &self.details);
        self.index.truncate(count, |id| {
            let id = id as usize;
            (nodes[id].ip, details[id].mode)
        });
        self.emptied += 1;
        self.generation = next_generation();
    }

    /// See [`PathNumber`](crate::PathNumber).
    #[inline]
    pub(crate) fn generation(&self) -> usize {
        self.generation
    }

    /// Paths or phrases were forgotten, so that their numbers may come to mean others.
    pub(crate) fn begin_generation(&mut self) {
        self.generation = next_generation();
    }

    /// How much memory it uses.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.len() * (size_of::<Node>() + size_of::<Detail>() + size_of::<Checksum>())
            + self.parts.len() * size_of::<u32>()
            + self.sites.len() * size_of::<Site>()
            + self.flat.bytes()
            + self.index.bytes()
            + self.targets.iter().map(Vec::len).sum::<usize>() * size_of::<u32>()
    }

    /// How many nodes there are.
    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    #[inline]
    pub(crate) fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    #[inline]
    pub(crate) fn detail(&self, id: u32) -> &Detail {
        &self.details[id as usize]
    }

    #[inline]
    pub(crate) fn checksum(&self, id: u32) -> &Checksum {
        &self.checksums[id as usize]
    }

    /// Notes that `to` comes after `from` by this way.
    #[inline]
    pub(crate) fn link(&mut self, from: u32, way: usize, to: u32) {
        self.nodes[from as usize].next[way] = to;
    }

    /// The number of the path from a node by the first of some TNT bits (the oldest is the highest), if it has been walked before.
    #[inline]
    pub(crate) fn path(&mut self, id: u32, bits: u64, count: u8) -> Option<u32> {
        let bits = Memo::first_bits(bits, count);
        match self.memo.find(id, bits) {
            Found::Path(number) => Some(number),
            Found::New => None,
            Found::Again => self.keep_path(id, bits),
        }
    }

    #[cold]
    fn keep_path(&mut self, id: u32, bits: u32) -> Option<u32> {
        let node = self.node(id);
        if node.decision != Decision::Conditional && !node.has_calls() {
            return None;
        }
        let mode = self.detail(id).mode;
        let mut memo = core::mem::take(&mut self.memo);
        let before = memo.count();
        let kept = memo.keep(self, id, bits, mode);
        if memo.count() < before {
            self.begin_generation();
        }
        self.memo = memo;
        kept
    }

    /// The straight runs of a node.
    #[inline]
    pub(crate) fn parts(&self, id: u32) -> &[u32] {
        let detail = self.detail(id);
        let first = detail.parts as usize;
        &self.parts[first..first + usize::from(detail.part_count)]
    }

    /// The calls of a node: for each, the address to return to, and the number of its site.
    #[inline]
    pub(crate) fn calls(&self, node: &Node) -> impl Iterator<Item = (Ip, u32)> {
        let first = node.sites;
        let sites = &self.sites[first as usize..first as usize + usize::from(node.site_count)];
        sites
            .iter()
            .zip(first..)
            .map(|(site, number)| (site.ip, number))
    }

    /// The node to which the call at a site returns, if that is known and its address is still this one.
    #[inline]
    pub(crate) fn after_call(&self, site: u32, ip: Ip, mode: ExecMode) -> u32 {
        match self.sites.get(site as usize) {
            Some(site) if site.ip == ip && site.mode == mode => site.node,
            _ => NONE,
        }
    }

    /// Notes the node to which the call at a site returns.
    pub(crate) fn link_site(&mut self, number: u32, ip: Ip, mode: ExecMode, node: u32) {
        match self.sites.get_mut(number as usize) {
            Some(site) if site.ip == ip && site.mode == mode => site.node = node,
            _ => {}
        }
    }

    /// The node that begins at `ip`.
    pub(crate) fn find(&self, ip: Ip, mode: ExecMode) -> Option<u32> {
        self.index.find(ip, mode, |id| {
            let node = self.nodes.get(id as usize)?;
            Some((node.ip, self.detail(id).mode))
        })
    }

    /// The node at the target of a TIP, if it is in the table of targets.
    #[inline]
    pub(crate) fn target(&self, ip: Ip, mode: ExecMode) -> u32 {
        match self.targets[mode_number(mode)].get(Self::target_slot(ip)) {
            Some(&id) => match self.nodes.get(id as usize) {
                Some(node) if node.ip == ip => id,
                _ => NONE,
            },
            None => NONE,
        }
    }

    /// Puts a node into the table of targets.
    pub(crate) fn note_target(&mut self, ip: Ip, mode: ExecMode, id: u32) {
        let targets = &mut self.targets[mode_number(mode)];
        if targets.is_empty() {
            targets.resize(TARGETS, NONE);
        }
        targets[Self::target_slot(ip)] = id;
    }

    const fn target_slot(ip: Ip) -> usize {
        (ip.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - TARGETS.ilog2())) as usize
    }

    /// Begins a node at `ip`, which is then put together and [added](Self::add).
    pub(crate) fn begin(&self, ip: Ip, mode: ExecMode) -> Outline {
        Outline {
            ip,
            mode,
            decision: Decision::Careful,
            ways: [ip; 2],
            insns: 0,
            checksum: Checksum::EMPTY,
            parts: self.parts.len(),
            sites: self.sites.len(),
        }
    }

    /// A straight run of the node that is being put together.
    pub(crate) fn add_part(&mut self, id: u32) {
        self.parts.push(id);
    }

    /// A call in it that is to return to `ip`.
    pub(crate) fn add_call(&mut self, ip: Ip, mode: ExecMode) {
        self.sites.push(Site {
            ip,
            mode,
            node: NONE,
        });
    }

    /// How many runs it has so far.
    pub(crate) fn parts_of(&self, outline: &Outline) -> usize {
        self.parts.len() - outline.parts
    }

    /// Adds the node; its number.
    pub(crate) fn add(&mut self, outline: Outline) -> u32 {
        let id = self.nodes.len() as u32;
        self.nodes.push(Node {
            ip: outline.ip,
            next: [NONE; 2],
            sites: outline.sites as u32,
            insns: outline.insns,
            site_count: (self.sites.len() - outline.sites) as u8,
            decision: outline.decision,
        });
        self.details.push(Detail {
            ways: outline.ways,
            parts: outline.parts as u32,
            part_count: self.parts_of(&outline) as u8,
            mode: outline.mode,
        });
        self.checksums.push(outline.checksum);
        let (nodes, details) = (&self.nodes, &self.details);
        self.index.insert(id, |id| {
            let id = id as usize;
            (nodes[id].ip, details[id].mode)
        });
        id
    }
}

/// A node that is being put together. Of runs and calls, each node has fewer than 256.
#[derive(Debug)]
pub(crate) struct Outline {
    ip: Ip,
    mode: ExecMode,
    pub(crate) decision: Decision,
    pub(crate) ways: [Ip; 2],
    pub(crate) insns: u16,
    pub(crate) checksum: Checksum,
    parts: usize,
    sites: usize,
}

impl Outline {
    /// How much the walk over it counts, run by run, being of so many runs.
    pub(crate) const fn walked(&self, parts: usize) -> u32 {
        self.insns as u32 + parts as u32
    }
}

impl Node {
    /// Whether there are calls in it, to which a return may go back.
    #[inline]
    pub(crate) const fn has_calls(&self) -> bool {
        self.site_count != 0
    }
}
