//! Calls of the same functions within each other, as one.

use rustc_hash::FxHashMap;

use super::PlaceRange;
use super::flame::{Merged, MergedNode};
use crate::calls::KeptCalls;
use crate::row::{FunctionNumber, NO_FUNCTION};
use crate::sums::{FunctionSum, Sums};

/// So many nodes there may be: what would be one more is a part of the node around it.
const NODES: usize = 1 << 17;

/// Whether anybody still waits is asked each time when so many calls were added.
const OFTEN: usize = 1 << 12;

/// A merged flame graph, as it grows.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    nodes: Vec<MergedNode>,
    /// How many calls of each began in what is merged.
    began: Vec<u64>,
    children: FxHashMap<(u32, FunctionNumber), u32>,
}

impl Tree {
    /// A root.
    pub(super) fn new() -> Self {
        Self {
            nodes: vec![MergedNode {
                function: NO_FUNCTION,
                ..MergedNode::default()
            }],
            began: vec![0],
            children: FxHashMap::default(),
        }
    }

    /// The node of a function within another.
    pub(super) fn child(&mut self, parent: u32, function: FunctionNumber) -> u32 {
        let next = self.nodes.len() as u32;
        if let Some(known) = self.children.get(&(parent, function)) {
            return *known;
        }
        if self.nodes.len() >= NODES {
            return parent;
        }
        self.children.insert((parent, function), next);
        self.nodes.push(MergedNode {
            parent,
            function,
            ..MergedNode::default()
        });
        self.began.push(0);
        next
    }

    /// So many instructions ran in a node itself.
    #[inline]
    pub(super) fn ran(&mut self, node: u32, count: u64) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.own += count;
        }
    }

    /// One more call of a node.
    pub(super) fn called(&mut self, node: u32) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.calls += 1;
        }
    }

    /// One more call of a node begins in what is merged.
    pub(super) fn began(&mut self, node: u32) {
        if let Some(began) = self.began.get_mut(node as usize) {
            *began += 1;
        }
    }

    /// Adds the longest calls of a range of places of a row, in which so many instructions ran; not all of them once `cancel` says so.
    pub(super) fn add_longest(
        &mut self,
        kept: &KeptCalls,
        range: &PlaceRange,
        all: u64,
        cancel: &dyn Fn() -> bool,
    ) {
        // The open calls, with their ends, depths and nodes, and the instructions of each that are of no call within it.
        type Open = Vec<(u64, i32, u32)>;
        let mut threads: FxHashMap<(u32, u32), Open> = FxHashMap::default();
        let mut outer = 0;
        for (number, call) in kept.each_within(range).into_iter().enumerate() {
            if number % OFTEN == 0 && cancel() {
                return;
            }
            let len = call.end.min(range.end) - call.begin.max(range.start);
            let len = len.min(call.insns);
            let open = threads.entry((call.tid, call.stack)).or_default();
            while open
                .pop_if(|(end, depth, _)| *end <= call.begin || *depth >= call.depth)
                .is_some()
            {}
            let around = open.last().map_or(0, |(_, _, node)| *node);
            let node = self.child(around, call.function);
            if around == 0 {
                outer += len;
            } else if let Some(around) = self.nodes.get_mut(around as usize) {
                around.own = around.own.saturating_sub(len);
            }
            self.ran(node, len);
            self.called(node);
            open.push((call.end, call.depth, node));
        }
        self.ran(0, all.saturating_sub(outer));
    }

    /// With what ran in each node altogether.
    pub(super) fn finish(mut self, shortest: u64) -> Merged {
        self.sum();
        Merged {
            nodes: self.nodes,
            shortest,
        }
    }

    fn sum(&mut self) {
        for node in &mut self.nodes {
            node.total = node.own;
        }
        // Each stands behind the one around it.
        for index in (1..self.nodes.len()).rev() {
            let MergedNode { parent, total, .. } = self.nodes[index];
            self.nodes[parent as usize].total += total;
        }
    }

    /// Adds what its functions did.
    pub(super) fn add_to(mut self, sums: &mut Sums) {
        self.sum();
        for (index, node) in self.nodes.iter().enumerate().skip(1) {
            let mut around = node.parent;
            let is_outermost = loop {
                match self.nodes.get(around as usize) {
                    Some(outer) if around != 0 && outer.function == node.function => break false,
                    Some(outer) if around != 0 => around = outer.parent,
                    _ => break true,
                }
            };
            if node.function == NO_FUNCTION {
                continue;
            }
            sums.add(&FunctionSum {
                function: node.function,
                own: node.own,
                total: if is_outermost { node.total } else { 0 },
                calls: self.began.get(index).copied().unwrap_or(0),
            });
        }
    }
}
