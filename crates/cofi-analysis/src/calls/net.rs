//! What a path comes to, for whoever follows calls of parts: its steps in brief, without those that cancel each other out.
//!
//! Along a path most calls, and even more inlined functions, begin and are left again. What they come to is the same each time, so it is summed up once for
//! each path. Which inlined functions are left and begin where others run is known, too, once it is known which run where the path begins.

use cofi_packet::Ip;

use super::FunctionId;
use super::brief::{BriefKind, BriefStep};
use super::inlines::{Chain, Inlines};
use super::local::LocalSum;

/// A step of a path.
#[derive(Clone, Copy, Debug)]
pub(super) enum NetStep {
    /// The step in brief of this number.
    Brief(u32),
    /// These inlined functions run, whichever ran before.
    Chain(NetPlace, Chain),
    /// Of the inlined functions that run, those are left that are not of this chain.
    Leave(NetPlace, Chain),
    /// An inlined function begins, the innermost of this chain.
    Enter(NetPlace, Chain, FunctionId),
    /// Calls began and were left, so many within each other at most.
    Sum(LocalSum, u32),
}

/// Where a step of a path is.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetPlace {
    pub(super) ip: Ip,
    /// As those of [`BriefStep`].
    pub(super) insns: u32,
    pub(super) behind: Option<u32>,
}

/// A call that began along the path.
#[derive(Clone, Copy, Debug)]
struct Begun {
    function: FunctionId,
    /// 0 of a call.
    chain: Chain,
    ret: Ip,
    insns: u32,
    /// What ran in calls within it.
    within: u32,
    /// Which step it is.
    step: usize,
    /// How many calls were within each other in it.
    depth: u32,
}

/// Works out what paths come to.
#[derive(Debug, Default)]
pub(super) struct Netting {
    pub(super) steps: Vec<NetStep>,
    begun: Vec<Begun>,
    /// The inlined functions that run of the call that was the innermost where the path began, if they are known.
    beneath: Option<Chain>,
    /// The same, wherever inlined functions are not wanted.
    always: Option<Chain>,
    /// A call is too long to be summed up.
    is_long: bool,
}

impl Netting {
    /// The steps of a path. Calls of so many instructions are to be told of one by one.
    pub(super) fn of(
        &mut self,
        brief: &[BriefStep],
        inlines: &Inlines,
        with_inlined: bool,
        long: u64,
    ) -> &[NetStep] {
        self.steps.clear();
        self.begun.clear();
        self.always = (!with_inlined).then_some(0);
        self.beneath = self.always;
        self.is_long = false;
        for (number, step) in brief.iter().enumerate() {
            self.take(number as u32, step, inlines, long);
        }
        if self.is_long {
            self.steps.clear();
            let all = 0..brief.len() as u32;
            self.steps.extend(all.map(NetStep::Brief));
        }
        &self.steps
    }

    fn take(&mut self, number: u32, step: &BriefStep, inlines: &Inlines, long: u64) {
        match step.kind {
            BriefKind::Inline => self.inline(step, inlines, long),
            BriefKind::Leaf => {
                let begin = Begun {
                    insns: step.insns,
                    ..self.begun(step)
                };
                self.sum(begin, step.return_insns, false, long);
            }
            BriefKind::Call => {
                let begun = self.begun(step);
                self.steps.push(NetStep::Brief(number));
                self.begun.push(begun);
            }
            BriefKind::Return if self.call().is_some_and(|call| call.ret == step.way.ret) => {
                while let Some(left) = self.begun.pop() {
                    self.leave(left, step.insns, long);
                    if left.chain == 0 {
                        break;
                    }
                }
            }
            BriefKind::Stay if self.call().is_some() => {}
            BriefKind::Jump if self.call().is_some_and(|call| call.ret != step.way.ret) => {}
            _ => {
                // What it does to the stack is known as it runs.
                self.steps.push(NetStep::Brief(number));
                self.begun.clear();
                self.beneath = self.always;
            }
        }
    }

    fn begun(&self, step: &BriefStep) -> Begun {
        Begun {
            function: step.way.function,
            chain: 0,
            ret: step.way.ret,
            insns: step.insns,
            within: 0,
            step: self.steps.len(),
            depth: 0,
        }
    }

    /// The innermost call that began along the path, inlined ones apart.
    fn call(&self) -> Option<&Begun> {
        self.begun.iter().rev().find(|begun| begun.chain == 0)
    }

    fn inline(&mut self, step: &BriefStep, inlines: &Inlines, long: u64) {
        let (place, chain) = (NetPlace::of(step), step.chain);
        let now = match self.begun.last() {
            Some(top) => Some(top.chain),
            None => self.beneath,
        };
        let Some(now) = now else {
            self.steps.push(NetStep::Chain(place, chain));
            self.beneath = Some(chain);
            return;
        };
        if now == chain {
            return;
        }
        let common = inlines.common(now, chain);
        while let Some(left) = self
            .begun
            .pop_if(|top| top.chain != common && top.chain != 0)
        {
            self.leave(left, step.insns, long);
        }
        if self.begun.is_empty() && self.beneath != Some(common) {
            self.steps.push(NetStep::Leave(place, common));
            self.beneath = Some(common);
        }
        let mut entered = Vec::new();
        let mut next = chain;
        while next != common
            && let Some((outer, function)) = inlines.link(next)
        {
            entered.push((next, function));
            next = outer;
        }
        for (chain, function) in entered.into_iter().rev() {
            let begun = Begun {
                function,
                chain,
                ..self.begun(step)
            };
            self.steps.push(NetStep::Enter(place, chain, function));
            self.begun.push(begun);
        }
    }

    /// A call that began along the path is left. All that came since are sums.
    fn leave(&mut self, left: Begun, end: u32, long: u64) {
        self.steps.remove(left.step);
        self.sum(left, end, left.chain != 0, long);
    }

    fn sum(&mut self, begun: Begun, end: u32, is_inlined: bool, long: u64) {
        let total = end - begun.insns;
        self.is_long |= u64::from(total) >= long;
        let mut sum = LocalSum {
            function: begun.function,
            own: total - begun.within,
            total,
            calls: 1,
            is_inlined,
        };
        let mut depth = begun.depth + 1;
        // Calls of the same function within it.
        while let Some(within) = self.of_function(begun.step, &sum)
            && let NetStep::Sum(within, of_within) = self.steps.remove(within)
        {
            sum.own += within.own;
            sum.calls += within.calls;
            depth = depth.max(of_within);
        }
        if let Some(outer) = self.begun.last_mut() {
            outer.within += end - begun.insns;
            outer.depth = outer.depth.max(depth);
        }
        // Calls of the same function before it.
        let is_sum = |step: &NetStep| matches!(step, NetStep::Sum(..));
        let others = self.steps.iter().rposition(|step| !is_sum(step));
        let first = others.map_or(0, |other| other + 1);
        if let Some(before) = self.of_function(first, &sum)
            && let Some(NetStep::Sum(before, of_before)) = self.steps.get_mut(before)
        {
            before.own += sum.own;
            before.total += sum.total;
            before.calls += sum.calls;
            *of_before = depth.max(*of_before);
        } else {
            self.steps.push(NetStep::Sum(sum, depth));
        }
    }

    /// Where the sum of a function stands, from that step on.
    fn of_function(&self, first: usize, of: &LocalSum) -> Option<usize> {
        let is_it = |step: &NetStep| match step {
            NetStep::Sum(sum, _) => sum.function == of.function,
            _ => false,
        };
        let found = self.steps.get(first..)?.iter().position(is_it)?;
        Some(first + found)
    }
}

impl NetPlace {
    const fn of(step: &BriefStep) -> Self {
        Self {
            ip: step.way.to,
            insns: step.insns,
            behind: step.behind,
        }
    }
}
