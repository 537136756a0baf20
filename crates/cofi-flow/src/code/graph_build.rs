//! Putting nodes of the graph together from decoded code.

use cofi_insn::{Class, CodeSource};
use cofi_packet::{ExecMode, Ip};

use crate::Executed;
use crate::code::cache::{Cache, End};
use crate::code::graph::Decision;
use crate::family::CodeRules;

/// How many straight runs and instructions a node is made of at most.
const MAX_PARTS: usize = 64;
const MAX_INSNS: u16 = 4096;

impl Cache {
    /// How much the walk over a node counts, run by run.
    pub(crate) fn walked(&self, id: u32) -> u32 {
        let graph = &self.graph;
        u32::from(graph.node(id).insns) + graph.parts(id).len() as u32
    }

    /// The node that begins at `ip`.
    #[inline(never)]
    pub(crate) fn node_at<R: CodeRules>(
        &mut self,
        ip: Ip,
        mode: ExecMode,
        code: &mut impl CodeSource,
        rules: &R,
    ) -> u32 {
        match self.graph.find(ip, mode) {
            Some(id) => id,
            None => {
                self.shrink();
                self.build_node(ip, mode, code, rules)
            }
        }
    }

    /// Adds the instructions of nodes as they are handed out, if they are asked for so often.
    #[inline]
    pub(crate) fn flatten(&mut self) {
        if let Some(first) = self.graph.flat.lacks(self.graph.count()) {
            self.flatten_from(first);
        }
    }

    #[inline(never)]
    fn flatten_from(&mut self, first: u32) {
        let nodes = first..self.graph.count() as u32;
        let insns = nodes
            .clone()
            .map(|id| usize::from(self.graph.node(id).insns));
        let insns = insns.sum();
        if !self.has_room(insns * size_of::<Executed>()) {
            self.graph.flat.clear();
            return;
        }
        let mut flat = core::mem::take(&mut self.graph.flat);
        flat.reserve(nodes.len(), insns);
        for id in nodes {
            flat.begin_node();
            for part in self.graph.parts(id) {
                self.run(*part, 0).for_each(|insn| flat.push(insn));
            }
        }
        self.graph.flat = flat;
    }

    fn build_node<R: CodeRules>(
        &mut self,
        ip: Ip,
        mode: ExecMode,
        code: &mut impl CodeSource,
        rules: &R,
    ) -> u32 {
        self.built += 1;
        let mut node = self.graph.begin(ip, mode);
        let mut at = ip;
        while self.graph.parts_of(&node) < MAX_PARTS && node.insns < MAX_INSNS {
            let id = self.straight(at, mode, code, rules);
            let run = *self.block(id);
            self.graph.add_part(id);
            node.insns += run.body + u16::from(run.end.has_insn());
            node.checksum = node.checksum.then(self.run(id, 0).checksum());
            let (decision, goes_on_at) = match (run.end, run.class) {
                (End::Split, _) => (Decision::Careful, Some(run.next)),
                (End::Fault | End::Special | End::Limit, _) => (Decision::Careful, None),
                (End::Insn, Class::DirectJump) => (Decision::Careful, Some(run.target)),
                (End::Insn, Class::DirectCall) => (Decision::Careful, Some(run.target)),
                (End::Insn, Class::Conditional) => (Decision::Conditional, None),
                (End::Insn, Class::Return) => (Decision::Return, None),
                (End::Insn, Class::IndirectJump | Class::IndirectCall) => {
                    (Decision::Indirect, None)
                }
                (End::Insn, Class::VmEntry) => (Decision::Careful, None),
                (End::Insn, class) if class.needs_packet() => (Decision::Far, None),
                // Packets may bind to these, but then no TNT bit and no TIP comes first.
                (End::Insn, _) => (Decision::Careful, Some(run.next)),
            };
            let calls = run.is_direct_call::<R>() || run.class == Class::IndirectCall;
            if run.end == End::Insn && calls {
                self.graph.add_call(run.next, mode);
            }
            node.decision = decision;
            node.ways = [run.next, run.target];
            match goes_on_at {
                Some(ip) => at = ip,
                None => break,
            }
        }
        if node.walked(self.graph.parts_of(&node)) > self.longest {
            node.decision = Decision::Careful;
        }
        self.graph.add(node)
    }
}
