//! The instructions of nodes as they are handed out, one behind the other, for who asks for them again and again.
//!
//! Most users ask for blocks, and look at the instructions of a block once: for them lengths and digests are enough, which take a third of the
//! memory. So nothing is here until instructions have been asked for many times as often as there are nodes.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::{Executed, FlowConfig};

#[derive(Debug, Default)]
pub(crate) struct Flat {
    insns: Vec<Executed>,
    /// Of each node, as far as they are here: where its own begin.
    first: Vec<u32>,
    /// How often the instructions of a node were asked for that are not here. (Whoever asks has the code shared.)
    asked: AtomicUsize,
    /// How often that is for each node, on the average, before the instructions of most are taken to be worth their memory.
    warm_after: usize,
}

impl Flat {
    pub(crate) fn new(config: &FlowConfig) -> Self {
        Self {
            warm_after: config.warm_after as usize,
            ..Self::default()
        }
    }

    /// The `count` instructions of a node, if they are here.
    #[inline]
    pub(crate) fn of(&self, id: u32, count: u16) -> Option<&[Executed]> {
        let insns = self.first.get(id as usize).and_then(|first| {
            let rest = self.insns.get(*first as usize..)?;
            rest.get(..usize::from(count))
        });
        if insns.is_none() {
            // If two ask at the same time, one may go uncounted.
            let asked = self.asked.load(Ordering::Relaxed);
            self.asked.store(asked.wrapping_add(1), Ordering::Relaxed);
        }
        insns
    }

    /// From which node on their instructions are to be added, of so many; none if they are not worth it.
    #[inline]
    pub(crate) fn lacks(&self, nodes: usize) -> Option<u32> {
        let (here, asked) = (self.first.len(), self.asked.load(Ordering::Relaxed));
        let is_worth_it = here != 0 || asked > self.warm_after.saturating_mul(nodes);
        (here < nodes && is_worth_it).then_some(here as u32)
    }

    /// Makes room for the instructions of so many nodes.
    pub(crate) fn reserve(&mut self, nodes: usize, insns: usize) {
        self.first.reserve(nodes);
        self.insns.reserve(insns);
    }

    /// The instructions of the next node are those that are pushed from here on.
    pub(crate) fn begin_node(&mut self) {
        self.first.push(self.insns.len() as u32);
    }

    pub(crate) fn push(&mut self, insn: Executed) {
        self.insns.push(insn);
    }

    /// Forgets those of all nodes but the first so many.
    pub(crate) fn truncate(&mut self, nodes: usize) {
        if let Some(first) = self.first.get(nodes) {
            self.insns.truncate(*first as usize);
            self.first.truncate(nodes);
        }
    }

    /// Forgets all, until they have been asked for as often again.
    pub(crate) fn clear(&mut self) {
        self.truncate(0);
        *self.asked.get_mut() = 0;
    }

    /// How much memory it uses.
    pub(crate) fn bytes(&self) -> usize {
        self.insns.len() * size_of::<Executed>() + self.first.len() * size_of::<u32>()
    }
}
