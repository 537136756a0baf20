//! Distinct stacks, and what each weighs.

use std::io;

use cofi_analysis::FinishedCall;
use rustc_hash::FxHashMap;

use crate::{Exporter, FrameId, Frames, Track, Weight};

/// What stands at a place of a [`StackTree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// A thread, by its place in the tree's list.
    Thread(usize),
    /// A function.
    Function(FrameId),
}

/// A stack: the innermost step, and the stack around it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) step: Step,
    pub(crate) parent: usize,
    /// What it weighs without what it calls.
    pub(crate) own: u64,
    pub(crate) calls: u64,
    /// The stack that was entered from here last.
    recent: usize,
}

/// Stacks are told apart by so many levels. What is deeper is taken to be called from there, so that a recursion's stacks take room by their
/// number, and not by its square.
const DEPTH: usize = 1 << 10;

/// No stack.
pub(crate) const NONE: usize = usize::MAX;

/// Adds up what each distinct stack weighs, and how often it was entered.
#[derive(Debug)]
pub struct StackTree {
    weight: Weight,
    threads: Vec<Track>,
    /// A stack comes behind the one around it.
    nodes: Vec<Node>,
    numbers: FxHashMap<(usize, Step), usize>,
    /// The stacks around what runs, and its own.
    path: Vec<usize>,
    last: u64,
}

impl StackTree {
    /// An empty one.
    #[must_use]
    pub fn new(weight: Weight) -> Self {
        Self {
            weight,
            threads: Vec::new(),
            nodes: Vec::new(),
            numbers: FxHashMap::default(),
            path: Vec::new(),
            last: 0,
        }
    }

    pub(crate) fn weight(&self) -> Weight {
        self.weight
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The name of a step.
    pub(crate) fn name<'a>(&'a self, step: Step, frames: &'a Frames) -> &'a str {
        match step {
            Step::Function(frame) => frames.name(frame),
            Step::Thread(index) => self
                .threads
                .get(index)
                .map_or("?", |track| track.name.as_str()),
        }
    }

    /// What each stack weighs with all that it calls.
    pub(crate) fn totals(&self) -> Vec<u64> {
        let mut totals: Vec<u64> = self.nodes.iter().map(|node| node.own).collect();
        for (index, node) in self.nodes.iter().enumerate().rev() {
            let own = totals.get(index).copied().unwrap_or(0);
            if let Some(total) = totals.get_mut(node.parent) {
                *total += own;
            }
        }
        totals
    }

    /// The steps of a stack, the innermost first.
    pub(crate) fn steps(&self, number: usize) -> impl Iterator<Item = Step> {
        let mut at = number;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at)?;
            at = node.parent;
            Some(node.step)
        })
    }

    fn step(&mut self, parent: usize, step: Step) -> usize {
        if let Some(around) = self.nodes.get(parent)
            && let Some(recent) = self.nodes.get(around.recent)
            && recent.step == step
        {
            return around.recent;
        }
        let next = self.nodes.len();
        let number = *self.numbers.entry((parent, step)).or_insert(next);
        if number == next {
            self.nodes.push(Node {
                step,
                parent,
                own: 0,
                calls: 0,
                recent: NONE,
            });
        }
        if let Some(around) = self.nodes.get_mut(parent) {
            around.recent = number;
        }
        number
    }

    fn now(&self) -> usize {
        self.path.last().copied().unwrap_or(NONE)
    }

    /// Time passes up to `at`.
    fn pass(&mut self, at: u64) {
        let passed = at.saturating_sub(std::mem::replace(&mut self.last, at));
        if self.weight == Weight::Time
            && let now = self.now()
            && let Some(node) = self.nodes.get_mut(now)
        {
            node.own += passed;
        }
    }
}

impl Exporter for StackTree {
    fn begin_part(&mut self, track: &Track, at: u64) -> io::Result<()> {
        // The same thread is most often the last one.
        let known = self.threads.iter().rposition(|known| known == track);
        let index = known.unwrap_or_else(|| {
            self.threads.push(track.clone());
            self.threads.len() - 1
        });
        let root = self.step(NONE, Step::Thread(index));
        self.path = vec![root];
        self.last = at;
        Ok(())
    }

    fn enter(
        &mut self,
        frame: FrameId,
        at: u64,
        call: Option<&FinishedCall>,
        _: &Frames,
    ) -> io::Result<()> {
        self.pass(at);
        let around = self.path.get(..DEPTH).unwrap_or(&self.path);
        let around = around.last().copied().unwrap_or(NONE);
        let now = self.step(around, Step::Function(frame));
        self.path.push(now);
        if let Some(call) = call
            && let Some(node) = self.nodes.get_mut(now)
        {
            node.calls += 1;
            if self.weight == Weight::Instructions {
                // That is exact, whichever stack the instructions ran between.
                node.own += call.end.self_insns;
            }
        }
        Ok(())
    }

    fn leave(&mut self, _: FrameId, at: u64) -> io::Result<()> {
        self.pass(at);
        self.path.pop();
        Ok(())
    }

    fn end_part(&mut self, _: u64) -> io::Result<()> {
        self.path.clear();
        Ok(())
    }

    fn finish(&mut self, _: &Frames) -> io::Result<()> {
        Ok(())
    }
}
