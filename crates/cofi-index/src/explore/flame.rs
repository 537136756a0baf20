//! Calls: in order, and by function.

use std::collections::HashMap;

use cofi_analysis::{
    Call, CallEnd, CallMoment, CallNames, CallTracer, CallVisitor, Left, OpenCall,
};
use cofi_session::ThreadFlow;
use cofi_session::compact;

use super::tree::Tree;
use super::walk::{Walker, goes_on};
use super::{Explorer, PlaceRange};
use crate::calls::FlameCall;
use crate::clock::Timeline;
use crate::row::{FunctionNumber, NO_FUNCTION, Row};
use crate::stacks::Stacks;
use crate::sums::{FunctionSum, Sums};

/// So many instructions are decoded for a picture; of more, the longest calls are shown.
const DECODED: u64 = 1 << 22;
/// So many calls are in one picture.
const CALLS: usize = 1 << 17;

/// Calls of a row.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Flame {
    /// In the order in which they begin, the outer ones first.
    pub calls: Vec<FlameCall>,
    /// Shorter ones are missing.
    pub shortest: u64,
    /// All that are not shorter are there.
    pub is_whole: bool,
}

/// What functions did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FunctionTable {
    /// Most instructions in total first.
    pub rows: Vec<FunctionSum>,
    /// How many instructions ran.
    pub instructions: u64,
}

/// A merged flame graph: calls of the same functions within each other as one.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Merged {
    /// The first one is the root; each stands behind its parent.
    pub nodes: Vec<MergedNode>,
    /// Calls of fewer instructions are parts of those around them.
    pub shortest: u64,
}

/// Calls of one function within the same ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergedNode {
    /// The one around it; of the root, itself.
    pub parent: u32,
    /// The function; `u32::MAX` of the root.
    pub function: FunctionNumber,
    /// The instructions that ran in none of its callees.
    pub own: u64,
    /// All of its instructions.
    pub total: u64,
    /// How many calls there are, those that began before included.
    pub calls: u64,
}

/// Who calls a function, and whom it calls.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Neighbours {
    /// Who called it: the instructions that ran in calls by them, most first. Without a caller, the function is `u32::MAX`.
    pub callers: Vec<FunctionSum>,
    /// Whom it called.
    pub callees: Vec<FunctionSum>,
    /// Calls of fewer instructions are not seen.
    pub shortest: u64,
}

impl Explorer<'_> {
    /// The calls of a row that overlap a range of places and have `shortest` instructions or more. Of more than is decoded at once, those that the
    /// index has.
    pub fn flame(&mut self, row: usize, range: &PlaceRange, shortest: u64) -> Flame {
        let index = self.index.clone();
        let Some(known) = index.rows.get(row) else {
            return Flame::default();
        };
        let len = range.end.saturating_sub(range.start);
        if len > DECODED || shortest >= known.kept.shortest {
            let shortest = shortest.max(known.kept.shortest);
            return bounded(known.kept.within(range, shortest), shortest);
        }
        let mut shortest = shortest;
        loop {
            let mut walker = Calls {
                numbers: index.numbers.get(row).map_or(&[], Vec::as_slice),
                timeline: Timeline::new(self.session),
                stacks: Stacks::default(),
                found: Vec::new(),
                range: range.clone(),
                shortest,
                ahead: 0,
            };
            let end = self.walk(row, range, &mut walker);
            let flame = walker.finish(known, end.unwrap_or(0));
            if flame.is_whole || shortest >= known.kept.shortest {
                return flame;
            }
            shortest = (shortest * 16).max(16);
        }
    }

    /// What functions did in ranges of rows: of all that ran there, however much that is. (What ran on a stack of which it is not known long after
    /// which one it is counts to none.) Less once `cancel` says so.
    pub fn functions(
        &mut self,
        ranges: &[(usize, PlaceRange)],
        cancel: &dyn Fn() -> bool,
    ) -> FunctionTable {
        let mut table = FunctionTable::default();
        let mut sums = Sums::default();
        let index = self.index.clone();
        for (row, range) in ranges {
            let Some(known) = index.rows.get(*row) else {
                continue;
            };
            let range = range.start..range.end.min(known.insns);
            table.instructions += range.end.saturating_sub(range.start);
            let mut at = range.start;
            while at < range.end && !cancel() {
                let chunk = known.chunk_at(at);
                let places = known.places_of(chunk);
                let end = places.end.min(range.end);
                if at == places.start && end == places.end {
                    for sum in known.sums.get(chunk).into_iter().flat_map(|sums| &sums.0) {
                        sums.add(sum);
                    }
                } else {
                    let mut tree = Tree::new();
                    self.merge(*row, &(at..end), &mut tree, cancel);
                    tree.add_to(&mut sums);
                }
                at = end.max(at + 1);
            }
        }
        table.rows = sums.finish();
        table
    }

    /// The merged flame graph of ranges of rows. Of more than is decoded at once, it is one of the longest calls, which the index has. Less once
    /// `cancel` says so.
    pub fn merged(&mut self, ranges: &[(usize, PlaceRange)], cancel: &dyn Fn() -> bool) -> Merged {
        let index = self.index.clone();
        let len = |(row, range): &(usize, PlaceRange)| {
            let end = index
                .rows
                .get(*row)
                .map_or(0, |row| row.insns)
                .min(range.end);
            end.saturating_sub(range.start)
        };
        let is_decoded = ranges.iter().map(len).sum::<u64>() <= DECODED;
        let mut tree = Tree::new();
        let mut shortest = 0;
        for part @ (row, range) in ranges {
            let Some(known) = index.rows.get(*row) else {
                continue;
            };
            if cancel() {
                break;
            }
            if is_decoded {
                self.merge(*row, range, &mut tree, cancel);
            } else {
                shortest = shortest.max(known.kept.shortest);
                tree.add_longest(&known.kept, range, len(part), cancel);
            }
        }
        tree.finish(shortest)
    }

    /// Decodes a range of a row and merges its calls into a tree.
    fn merge(
        &mut self,
        row: usize,
        range: &PlaceRange,
        tree: &mut Tree,
        cancel: &dyn Fn() -> bool,
    ) {
        let index = self.index.clone();
        let Some(numbers) = index.numbers.get(row) else {
            return;
        };
        let mut walker = Merge {
            numbers,
            tree,
            stacks: Stacks::default(),
            range: range.clone(),
            ahead: 0,
            at: 0,
            cancel,
        };
        let end = self.walk(row, range, &mut walker);
        walker.finish(end.unwrap_or(0));
    }

    /// Who calls a function in ranges of rows, and whom it calls. A call within another of the same function counts with its caller, too. Less once
    /// `cancel` says so.
    pub fn neighbours(
        &mut self,
        function: FunctionNumber,
        ranges: &[(usize, PlaceRange)],
        cancel: &dyn Fn() -> bool,
    ) -> Neighbours {
        let merged = self.merged(ranges, cancel);
        let (mut callers, mut callees) = (HashMap::new(), HashMap::new());
        let add = |sums: &mut HashMap<FunctionNumber, FunctionSum>, of, node: &MergedNode| {
            let sum = sums.entry(of).or_insert(FunctionSum {
                function: of,
                ..FunctionSum::default()
            });
            sum.own += node.own;
            sum.total += node.total;
            sum.calls += node.calls;
        };
        for node in merged.nodes.iter().skip(1) {
            let parent = merged.nodes.get(node.parent as usize);
            let parent = parent.map_or(NO_FUNCTION, |parent| parent.function);
            if node.function == function {
                add(&mut callers, parent, node);
            }
            if parent == function {
                add(&mut callees, node.function, node);
            }
        }
        let sorted = |sums: HashMap<FunctionNumber, FunctionSum>| {
            let mut list: Vec<_> = sums.into_values().collect();
            compact::sort_by_key(&mut list, |sum| {
                (std::cmp::Reverse(sum.total), sum.function)
            });
            list
        };
        Neighbours {
            callers: sorted(callers),
            callees: sorted(callees),
            shortest: merged.shortest,
        }
    }
}

fn bounded(mut calls: Vec<FlameCall>, shortest: u64) -> Flame {
    let is_whole = calls.len() <= CALLS;
    calls.truncate(CALLS);
    Flame {
        calls,
        shortest,
        is_whole,
    }
}

/// Takes the calls that overlap a range.
struct Calls<'a> {
    numbers: &'a [FunctionNumber],
    timeline: Timeline,
    /// Open calls, of which the ends are not known yet.
    stacks: Stacks<FlameCall>,
    found: Vec<FlameCall>,
    range: PlaceRange,
    shortest: u64,
    ahead: u64,
}

impl Calls<'_> {
    fn shown(&mut self, call: &Call, begin: u64) -> FlameCall {
        let function = self.numbers.get(call.function.index());
        FlameCall {
            function: function.copied().unwrap_or(NO_FUNCTION),
            depth: call.depth,
            begin,
            end: u64::MAX,
            begin_time: call.begin.tsc.and_then(|tsc| self.timeline.of(tsc)),
            end_time: None,
            kind: call.kind,
            left: None,
            tid: call.task.tid,
            stack: call.stack,
        }
    }

    fn take(&mut self, call: FlameCall) {
        let is_within = call.begin < self.range.end && call.end > self.range.start;
        if is_within && call.end - call.begin >= self.shortest && self.found.len() <= CALLS {
            self.found.push(call);
        }
    }

    fn finish(mut self, row: &Row, end: u64) -> Flame {
        for call in std::mem::take(&mut self.stacks).into_all() {
            let kept = row.kept.get(call.begin, call.depth, call.function);
            let whole = kept.map(|kept| kept.shown());
            self.take(whole.unwrap_or(FlameCall { end, ..call }));
        }
        compact::sort_by_key(&mut self.found, |call| {
            (call.begin, call.depth, std::cmp::Reverse(call.end))
        });
        bounded(self.found, self.shortest)
    }
}

impl Walker for Calls<'_> {
    fn begin(&mut self, _: u64, open: &mut dyn Iterator<Item = OpenCall>) {
        for open in open {
            let shown = self.shown(&open.call, open.at);
            self.stacks.switch_to(open.call.task);
            self.stacks.push(&open.call, shown);
        }
    }

    fn piece(&mut self, ahead: u64, tracer: &CallTracer<'_>, _: &mut ThreadFlow<'_>) -> bool {
        self.ahead = ahead;
        self.stacks.switch_to(tracer.running().0);
        goes_on(tracer, self.range.end) && self.found.len() <= CALLS
    }
}

impl CallVisitor for Calls<'_> {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        let begin = call.begin.insns.wrapping_sub(self.ahead);
        let shown = self.shown(call, begin);
        self.stacks.push(call, shown);
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        let Some(mut open) = self.stacks.remove(call) else {
            return;
        };
        open.end = end.end.insns.wrapping_sub(self.ahead).max(open.begin);
        // Where the counter was set back meanwhile, it has no length.
        let end_time = end.end.tsc.and_then(|tsc| self.timeline.of(tsc));
        open.end_time = end_time.map(|time| time.max(open.begin_time.unwrap_or(0)));
        open.left = Some(end.left);
        // What is open at the end of what was decoded is open beyond it.
        if end.left == Left::End && open.end < self.range.start {
            return;
        }
        self.take(open);
    }
}

/// Merges the calls of a range into a tree.
struct Merge<'a> {
    numbers: &'a [FunctionNumber],
    tree: &'a mut Tree,
    /// The nodes of open calls, and where these began.
    stacks: Stacks<(u32, u64)>,
    range: PlaceRange,
    ahead: u64,
    /// Up to here what ran is counted.
    at: u64,
    cancel: &'a dyn Fn() -> bool,
}

impl Merge<'_> {
    fn count_to(&mut self, at: u64) {
        let from = self.at.max(self.range.start);
        let to = at.min(self.range.end);
        if to > from {
            let node = self.stacks.last().map_or(0, |(node, _)| *node);
            self.tree.ran(node, to - from);
        }
        self.at = self.at.max(at);
    }

    fn push(&mut self, call: &Call, begin: u64) {
        let function = self.numbers.get(call.function.index());
        let function = function.copied().unwrap_or(NO_FUNCTION);
        let around = self.stacks.around(call).map_or(0, |(node, _)| *node);
        let node = self.tree.child(around, function);
        self.stacks.push(call, (node, begin));
        if self.range.contains(&begin) {
            self.tree.began(node);
        }
    }

    fn overlapped(&mut self, (node, begin): (u32, u64), end: u64) {
        if begin < self.range.end && end > self.range.start {
            self.tree.called(node);
        }
    }

    fn finish(mut self, end: u64) {
        self.count_to(end);
        for open in std::mem::take(&mut self.stacks).into_all() {
            self.overlapped(open, u64::MAX);
        }
    }
}

impl Walker for Merge<'_> {
    fn begin(&mut self, at: u64, open: &mut dyn Iterator<Item = OpenCall>) {
        self.at = at;
        for open in open {
            self.stacks.switch_to(open.call.task);
            self.push(&open.call, open.at);
        }
    }

    fn piece(&mut self, ahead: u64, tracer: &CallTracer<'_>, _: &mut ThreadFlow<'_>) -> bool {
        self.ahead = ahead;
        let task = tracer.running().0;
        if self.stacks.task() != task {
            self.count_to(tracer.instructions());
            self.stacks.switch_to(task);
        }
        goes_on(tracer, self.range.end) && !(self.cancel)()
    }
}

impl CallVisitor for Merge<'_> {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        let begin = call.begin.insns.wrapping_sub(self.ahead);
        self.count_to(begin);
        self.push(call, begin);
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        let end = end.end.insns.wrapping_sub(self.ahead);
        self.count_to(end);
        if let Some(open) = self.stacks.remove(call) {
            self.overlapped(open, end);
        }
    }

    fn switched(&mut self, innermost: Option<i64>, at: &CallMoment) {
        self.count_to(at.insns.wrapping_sub(self.ahead));
        self.stacks.stand_on(innermost);
    }
}
