//! What a thread may run before it stops next: a tree of instructions, and the addresses at which it stops.
//!
//! The tree begins at the instruction at which the thread stands. Of each conditional branch in it both successors are in it, and
//! each way through it ends at an address of its own. So where the thread stops tells all that it ran, be it at one
//! of the ends or, for a signal or a fault, between.

use super::branch_target::BranchTarget;
use super::code::Code;
use crate::Step;
use cofi_packet::{ExecMode, Ip};

/// How long a way through the tree may be between two branches; code that goes on longer is rare.
const LONGEST: usize = 1024;

/// Where user space ends on a processor with four levels of page tables. Breakpoints cannot be set beyond, nor is there code but
/// the vsyscall page.
const USER_END: u64 = 0x7fff_ffff_f000;

/// How likely a way must be to be worth a register: setting one costs a fifth of a stop, as measured.
const WORTH: f32 = 0.2;

/// How likely a branch is taken, by the counter that tells how it went of late.
const LIKELY: [f32; 4] = [0.08, 0.35, 0.65, 0.92];

/// An instruction in the tree.
#[derive(Clone, Copy, Debug)]
struct Node {
    step: Step,
    /// The one before it, for the first itself.
    before: u32,
}

/// Where the thread is to stop.
#[derive(Clone, Copy, Debug)]
struct End {
    ip: u64,
    /// The instruction that leads to it.
    before: u32,
    /// How likely it is to be reached, if its own successors could be looked at.
    likely: f32,
}

/// A tree of what may run next.
#[derive(Debug, Default)]
pub(super) struct Plan {
    nodes: Vec<Node>,
    /// Ranges of addresses that the tree covers.
    covered: Vec<(u64, u64)>,
    ends: Vec<End>,
    /// The addresses of the ends.
    stops: Vec<u64>,
}

/// Where a thread is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// Where it was; it ran nothing.
    Unmoved,
    /// It ran everything up to this node.
    Behind(usize),
    /// Nowhere in the tree.
    Astray,
}

/// What gives the code of a process to [`Plan::make`].
pub(super) trait Source {
    /// The instruction at an address, if it is sure to be the same when it runs.
    fn code(&mut self, ip: u64) -> Option<Code>;
    /// How the conditional branch at an address went of late: 0, never taken, to 3, always.
    fn history(&self, ip: u64) -> u8;
}

impl Plan {
    /// There is none.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.covered.clear();
        self.ends.clear();
        self.stops.clear();
    }

    /// Whether there is one.
    pub(super) fn is_made(&self) -> bool {
        !self.ends.is_empty()
    }

    /// The addresses at which the thread is to stop.
    pub(super) fn stops(&self) -> &[u64] {
        &self.stops
    }

    /// Whether the thread may come to an address without being meant to stop there.
    pub(super) fn passes(&self, ip: u64) -> bool {
        let is_end = self.stops.contains(&ip);
        !is_end && self.is_covered(ip) && self.node(ip).is_some_and(|node| node > 0)
    }

    fn is_covered(&self, ip: u64) -> bool {
        self.covered
            .iter()
            .any(|(start, end)| (*start..*end).contains(&ip))
    }

    fn node(&self, ip: u64) -> Option<usize> {
        self.nodes.iter().position(|node| node.step.ip.0 == ip)
    }

    /// Plans what a thread may run that stands at `ip` before `code`, which leads to `to`. It can stop at so many places.
    pub(super) fn make(
        &mut self,
        ip: u64,
        code: &Code,
        to: u64,
        mode: ExecMode,
        places: usize,
        source: &mut impl Source,
    ) {
        self.clear();
        if places == 0 {
            return;
        }
        let mut maker = Maker {
            plan: self,
            mode,
            source,
        };
        maker.push(ip, code, 0);
        if !maker.walk(to, 0, 1.0) {
            self.clear();
            return;
        }
        let mut tried = 0;
        while maker.plan.ends.len() < places {
            // The likeliest of those that have not been tried.
            let fresh = maker.plan.ends.iter().enumerate().skip(tried);
            let Some((best, end)) = fresh
                .filter(|(_, end)| end.likely > WORTH)
                .max_by(|a, b| a.1.likely.total_cmp(&b.1.likely))
            else {
                break;
            };
            let end = *end;
            maker.plan.ends.swap(tried, best);
            if !maker.open(tried, end) {
                tried += 1;
            }
        }
        self.stops.extend(self.ends.iter().map(|end| end.ip));
    }

    /// Where a thread is that stands at `ip` now. `back`: if that is where it began, it came back there.
    pub(super) fn find(&self, ip: u64, back: bool) -> Found {
        let begin = self.nodes.first().map(|node| node.step.ip.0);
        if begin == Some(ip) && !back {
            return Found::Unmoved;
        }
        if let Some(end) = self.ends.iter().find(|end| end.ip == ip) {
            return Found::Behind(end.before as usize);
        }
        match self.node(ip) {
            Some(0) => Found::Unmoved,
            Some(node) => Found::Behind(self.nodes[node].before as usize),
            None => Found::Astray,
        }
    }

    /// Whether a way through the tree leads back to its beginning.
    pub(super) fn comes_back(&self) -> bool {
        let begin = self.nodes.first().map(|node| node.step.ip.0);
        begin.is_some_and(|begin| self.stops.contains(&begin))
    }

    /// The instructions from the first to a node.
    pub(super) fn path(&self, last: usize, into: &mut Vec<Step>) {
        into.clear();
        let mut at = last;
        loop {
            let node = self.nodes[at];
            into.push(node.step);
            if at == 0 {
                break;
            }
            at = node.before as usize;
        }
        into.reverse();
    }
}

struct Maker<'a, S> {
    plan: &'a mut Plan,
    mode: ExecMode,
    source: &'a mut S,
}

impl<S: Source> Maker<'_, S> {
    /// Adds an instruction that begins a new range; its number.
    fn push(&mut self, ip: u64, code: &Code, before: u32) -> u32 {
        let end = ip.wrapping_add(u64::from(code.insn.len));
        self.plan.covered.push((ip, end));
        self.add(ip, code, before)
    }

    fn add(&mut self, ip: u64, code: &Code, before: u32) -> u32 {
        let number = self.plan.nodes.len() as u32;
        self.plan.nodes.push(Node {
            step: Step {
                ip: Ip(ip),
                insn: code.insn,
            },
            before,
        });
        number
    }

    /// Whether the tree holds an address already, other than as its beginning.
    fn is_taken(&self, ip: u64) -> bool {
        self.plan.is_covered(ip) || self.plan.ends.iter().any(|end| end.ip == ip)
    }

    /// Goes on from `ip`, to which the node `before` leads, up to where the way divides or joins another one, and puts an end
    /// there. False if there is no place that belongs to this way alone.
    fn walk(&mut self, ip: u64, before: u32, likely: f32) -> bool {
        let (mut ip, mut before) = (ip, before);
        let fresh = self.plan.nodes.len();
        // Whether the range that ends the list is this walk's, and goes on here.
        let mut goes_on = false;
        let begin = self.plan.nodes[0].step.ip.0;
        loop {
            let mut end = End {
                ip,
                before,
                likely: 0.0,
            };
            let is_back = ip == begin && !self.plan.ends.iter().any(|end| end.ip == begin);
            if is_back {
                self.plan.ends.push(end);
                return true;
            }
            if ip >= USER_END || self.is_taken(ip) {
                // The last instruction before belongs to this way alone, if there is any.
                if self.plan.nodes.len() == fresh {
                    return false;
                }
                let Some(last) = self.plan.nodes.pop() else {
                    return false;
                };
                if let Some(range) = self.plan.covered.last_mut() {
                    range.1 = last.step.ip.0;
                }
                (end.ip, end.before) = (last.step.ip.0, last.before);
                self.plan.ends.push(end);
                return true;
            }
            let code = self.source.code(ip);
            let full = self.plan.nodes.len() - fresh >= LONGEST;
            let (code, to) = match code {
                Some(code) if !full => {
                    let after = code.insn.next_ip(Ip(ip), self.mode).0;
                    match (code.branch, code.insn.target) {
                        (BranchTarget::Straight, _) => (code, after),
                        (BranchTarget::Direct, Some(target)) => (code, target.0),
                        (BranchTarget::Flags(_) | BranchTarget::Counter(..), Some(_)) => {
                            end.likely = likely;
                            self.plan.ends.push(end);
                            return true;
                        }
                        _ => {
                            self.plan.ends.push(end);
                            return true;
                        }
                    }
                }
                _ => {
                    self.plan.ends.push(end);
                    return true;
                }
            };
            let behind = ip.wrapping_add(u64::from(code.insn.len));
            before = match self.plan.covered.last_mut() {
                Some(range) if goes_on => {
                    range.1 = behind;
                    self.add(ip, &code, before)
                }
                _ => self.push(ip, &code, before),
            };
            goes_on = to == behind;
            ip = to;
        }
    }

    /// Puts the successors of the conditional branch at an end in its place. False, and nothing is changed, if they cannot be told
    /// apart.
    fn open(&mut self, number: usize, end: End) -> bool {
        let Some(code) = self.source.code(end.ip) else {
            return false;
        };
        let Some(target) = code.insn.target.map(|ip| ip.0) else {
            return false;
        };
        let after = code.insn.next_ip(Ip(end.ip), self.mode).0;
        if target == after {
            return false;
        }
        let (nodes, ranges, ends) = (
            self.plan.nodes.len(),
            self.plan.covered.len(),
            self.plan.ends.len(),
        );
        let taken = LIKELY[usize::from(self.source.history(end.ip) & 3)];
        let branches = [
            (target, end.likely * taken),
            (after, end.likely * (1.0 - taken)),
        ];
        // Where one joins the other, the one that is walked first is kept whole.
        for [first, second] in [[0, 1], [1, 0]] {
            let branch = self.push(end.ip, &code, end.before);
            // It is no end any more, but no way may lead to it.
            let walked = self.walk(branches[first].0, branch, branches[first].1)
                && self.walk(branches[second].0, branch, branches[second].1);
            if walked {
                self.plan.ends.swap_remove(number);
                return true;
            }
            self.plan.nodes.truncate(nodes);
            self.plan.covered.truncate(ranges);
            self.plan.ends.truncate(ends);
        }
        false
    }
}
