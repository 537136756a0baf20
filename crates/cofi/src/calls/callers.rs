//! Who called a function: its callers, their callers, and so on, each way once.
//!
//! Calls are counted by their ways in which recursions are folded ([`Ways`]). The rows are made of them at the end.

use super::ways::{WayId, Ways};
use super::{Matches, is_wanted, nanoseconds};
use crate::args::{CallsArgs, Range};
use crate::check::duration;
use crate::function_names::Wanted;
use crate::input;
use crate::output::Stdout;
use crate::table::{shortened, width_of};
use anyhow::Result;
use cofi_analysis::{Call, CallEnd, CallKind, CallNames, CallVisitor, FunctionId};
use cofi_packet::Ip;
use cofi_session::compact;
use cofi_session::{Session, Stream, Task};
use cofi_text::digits::grouped;
use console::Term;
use rustc_hash::FxHashMap;
use std::io::Write;

/// The columns before the caller.
const BEFORE: usize = 37;

/// So many levels of callers are told apart.
const LEVELS: usize = 64;

/// Counts calls of a function by the ways that led to it.
pub(super) struct Callers<'a> {
    range: &'a Range,
    levels: usize,
    wanted: Matches,
    open: FxHashMap<(Task, i64), Open>,
    ways: Ways<FunctionId>,
    /// What was counted, by the caller, in the order in which each first occurred.
    counted: Vec<Counted>,
    numbers: FxHashMap<Caller, usize>,
    names: FxHashMap<FunctionId, String>,
}

/// An open call.
#[derive(Clone, Copy, Debug)]
struct Open {
    function: FunctionId,
    from: Option<Ip>,
    kind: CallKind,
    parent: Option<i64>,
    /// Whether it is of the function.
    is_it: bool,
    /// The way to it, once somebody asked.
    way: Option<WayId>,
}

/// A caller: the way to it, and where in it. None of a call that nothing is known to have called.
type Caller = Option<(WayId, Ip)>;

/// A caller in a row: the function, and where in it.
type Step = Option<(FunctionId, Ip)>;

/// What calls come to.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    calls: u64,
    insns: u64,
    ticks: u64,
}

/// What the calls by a caller come to.
#[derive(Debug)]
struct Counted {
    caller: Caller,
    kind: CallKind,
    sum: Sum,
}

/// The rows as a tree: the first is the function itself.
#[derive(Debug)]
struct Tree {
    nodes: Vec<Node>,
    numbers: FxHashMap<(usize, Step), usize>,
}

#[derive(Debug)]
struct Node {
    step: Step,
    kind: CallKind,
    children: Vec<usize>,
    sum: Sum,
    is_recursive: bool,
    is_cut: bool,
}

impl<'a> Callers<'a> {
    pub(super) fn new(args: &'a CallsArgs, wanted: &Wanted) -> Self {
        let levels = args.depth.map_or(LEVELS, |depth| depth as usize);
        Self {
            range: &args.range,
            levels: levels.min(LEVELS),
            wanted: Matches::new(wanted),
            open: FxHashMap::default(),
            ways: Ways::new(),
            counted: Vec::new(),
            numbers: FxHashMap::default(),
            names: FxHashMap::default(),
        }
    }

    /// How many calls there were.
    pub(super) fn matches(&self) -> u64 {
        self.counted.iter().map(|counted| counted.sum.calls).sum()
    }

    /// Who called this open call.
    fn caller(&mut self, task: Task, call: &Open) -> Caller {
        let parent = call.parent.zip(call.from);
        let (parent, from) =
            parent.filter(|(parent, _)| self.open.contains_key(&(task, *parent)))?;
        // The calls around it whose ways nobody asked for yet, from the innermost on.
        let mut around = Vec::new();
        let mut outer = Some((parent, from));
        let mut caller = None;
        while let Some((number, from)) = outer {
            let Some(open) = self.open.get(&(task, number)) else {
                break;
            };
            if let Some(way) = open.way {
                caller = Some((way, from));
                break;
            }
            around.push((number, from));
            outer = open.parent.zip(open.from);
        }
        for (number, from) in around.into_iter().rev() {
            if let Some(open) = self.open.get_mut(&(task, number)) {
                let way = self.ways.called(caller, open.function);
                open.way = Some(way);
                caller = Some((way, from));
            }
        }
        caller
    }

    /// Keeps the names of the functions in a way, which are known only while calls are traced.
    fn learn_names(&mut self, mut caller: Caller, names: &CallNames) {
        for _ in 0..self.levels {
            let Some(way) = caller.and_then(|(way, _)| self.ways.get(way)) else {
                break;
            };
            let name = || names.describe(way.function).to_owned();
            self.names.entry(way.function).or_insert_with(name);
            caller = way.caller;
        }
    }

    /// The rows of what was counted.
    fn tree(&self) -> Tree {
        let mut tree = Tree {
            nodes: vec![Node::new(None, CallKind::Call)],
            numbers: FxHashMap::default(),
        };
        for counted in &self.counted {
            let (mut at, mut caller) = (0, counted.caller);
            tree.add(at, counted.sum);
            for level in 0.. {
                if level >= self.levels {
                    if let Some(node) = tree.nodes.get_mut(at) {
                        node.is_cut = true;
                    }
                    break;
                }
                let way = caller.and_then(|(way, from)| Some((self.ways.get(way)?, from)));
                if way.is_none() && level > 0 {
                    break;
                }
                let step = way.map(|(way, from)| (way.function, from));
                at = tree.child(at, step, counted.kind);
                tree.add(at, counted.sum);
                let Some((way, _)) = way else {
                    break;
                };
                if let Some(node) = tree.nodes.get_mut(at) {
                    node.is_recursive |= way.is_recursive;
                }
                caller = way.caller;
            }
        }
        tree
    }

    /// Prints what was counted of a stream.
    pub(super) fn print(
        &self,
        session: &Session<'_>,
        stream: &Stream<'_>,
        out: &mut Stdout,
    ) -> Result<()> {
        if self.matches() == 0 {
            return Ok(());
        }
        writeln!(out, "{}: {}", input::title(stream), self.wanted.name())?;
        let heads = format!(
            "{:>10}{:>14}{:>11}  called from",
            "calls", "instructions", "time"
        );
        writeln!(out, "{heads}")?;
        let tree = self.tree();
        let width = width_of(&Term::stdout());
        let mut rows: Vec<(usize, usize)> = vec![(0, 0)];
        while let Some((number, depth)) = rows.pop() {
            let Some(node) = tree.nodes.get(number) else {
                continue;
            };
            let mut children = node.children.clone();
            compact::sort_by_key(&mut children, |child| {
                tree.nodes.get(*child).map(|node| node.sum.calls)
            });
            rows.extend(children.into_iter().map(|child| (child, depth + 1)));
            if number == 0 {
                continue;
            }
            let what = match node.step {
                Some((function, at)) => {
                    let view = session.last_view(stream.task().pid);
                    let place = view.place(at).map(|place| place.to_string());
                    let name = self.names.get(&function).cloned();
                    place.or(name).unwrap_or_else(|| at.to_string())
                }
                None if node.kind == CallKind::Assumed => "(open before the trace)".into(),
                None if node.kind == CallKind::Signal => "(a signal)".into(),
                None => "(the beginning)".into(),
            };
            let time = session.time_conversion().map(|_| {
                let lasted = |ticks| {
                    let at = |tsc| nanoseconds(session, Some(cofi_packet::Tsc(tsc)));
                    Some(at(ticks)?.saturating_sub(at(0)?))
                };
                lasted(node.sum.ticks).map_or_else(String::new, duration)
            });
            let recursive = if node.is_recursive {
                " (recursive)"
            } else {
                ""
            };
            let more = if node.is_cut { " …" } else { "" };
            let indent = 2 * (depth - 1).min(40);
            let others = BEFORE + indent + recursive.len() + more.chars().count();
            let room = width.map_or(usize::MAX, |width| width.saturating_sub(others).max(12));
            let what = shortened(&what, room);
            writeln!(
                out,
                "{:>10}{:>14}{:>11}  {:indent$}{what}{recursive}{more}",
                grouped(node.sum.calls),
                grouped(node.sum.insns),
                time.unwrap_or_default(),
                "",
            )?;
        }
        Ok(())
    }
}

impl Tree {
    fn child(&mut self, of: usize, step: Step, kind: CallKind) -> usize {
        let next = self.nodes.len();
        let number = *self.numbers.entry((of, step)).or_insert(next);
        if number == next {
            self.nodes.push(Node::new(step, kind));
            if let Some(node) = self.nodes.get_mut(of) {
                node.children.push(next);
            }
        }
        number
    }

    fn add(&mut self, number: usize, sum: Sum) {
        if let Some(node) = self.nodes.get_mut(number) {
            node.sum.add(sum);
        }
    }
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.insns += other.insns;
        self.ticks += other.ticks;
    }
}

impl Node {
    fn new(step: Step, kind: CallKind) -> Self {
        Self {
            step,
            kind,
            children: Vec::new(),
            sum: Sum::default(),
            is_recursive: false,
            is_cut: false,
        }
    }
}

impl CallVisitor for Callers<'_> {
    fn enter(&mut self, call: &Call, names: &CallNames) {
        if !is_wanted(self.range, call.task) {
            return;
        }
        let is_it = self.wanted.is(call.function, names);
        self.open.insert(
            (call.task, call.number),
            Open {
                function: call.function,
                from: call.from,
                kind: call.kind,
                parent: call.parent,
                is_it,
                way: None,
            },
        );
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, names: &CallNames) {
        let Some(open) = self.open.remove(&(call.task, call.number)) else {
            return;
        };
        if !open.is_it {
            return;
        }
        let ticks = call.begin.tsc.zip(end.end.tsc);
        let ticks = ticks.map_or(0, |(begin, end)| end.0.saturating_sub(begin.0));
        let caller = self.caller(call.task, &open);
        let next = self.counted.len();
        let number = *self.numbers.entry(caller).or_insert(next);
        if number == next {
            self.learn_names(caller, names);
            self.counted.push(Counted {
                caller,
                kind: open.kind,
                sum: Sum::default(),
            });
        }
        if let Some(counted) = self.counted.get_mut(number) {
            counted.sum.add(Sum {
                calls: 1,
                insns: end.insns,
                ticks,
            });
        }
    }
}
