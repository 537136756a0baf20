//! Who called a function: its callers, their callers, and so on, each way once.

use super::{Matches, is_wanted, nanoseconds};
use crate::args::{CallsArgs, Range};
use crate::check::duration;
use crate::digits::grouped;
use crate::input;
use crate::output::Stdout;
use crate::select::Window;
use anyhow::Result;
use cofi_analysis::{Call, CallEnd, CallKind, CallNames, CallVisitor, FunctionId};
use cofi_packet::Ip;
use cofi_session::{Session, Stream, Task};
use rustc_hash::FxHashMap;
use std::io::Write;

/// So many levels of callers are told apart: recursion has any number.
const LEVELS: usize = 64;

/// Counts calls of a function by the ways that led to it.
pub(super) struct Callers<'a> {
    range: &'a Range,
    levels: usize,
    wanted: Matches,
    open: FxHashMap<(Task, i64), Open>,
    /// The tree of callers; the first is the function itself.
    nodes: Vec<Node>,
    numbers: FxHashMap<(usize, Step), usize>,
    names: FxHashMap<FunctionId, String>,
}

/// An open call.
#[derive(Clone, Copy, Debug)]
struct Open {
    function: FunctionId,
    from: Option<Ip>,
    kind: CallKind,
    parent: Option<i64>,
    /// Where it is counted, if it is of the function.
    node: Option<usize>,
}

/// A caller: the function, and where in it. None of a call that nothing is known to have called.
type Step = Option<(FunctionId, Ip)>;

#[derive(Debug)]
struct Node {
    step: Step,
    kind: CallKind,
    children: Vec<usize>,
    calls: u64,
    insns: u64,
    ticks: u64,
    is_cut: bool,
}

impl<'a> Callers<'a> {
    pub(super) fn new(args: &'a CallsArgs, _: &Window) -> Self {
        let levels = args.depth.map_or(LEVELS, |depth| depth as usize);
        Self {
            range: &args.range,
            levels: levels.min(LEVELS),
            wanted: Matches::new(args.callers.as_deref().unwrap_or_default()),
            open: FxHashMap::default(),
            nodes: vec![Node::new(None, CallKind::Call)],
            numbers: FxHashMap::default(),
            names: FxHashMap::default(),
        }
    }

    /// How many calls there were.
    pub(super) fn matches(&self) -> u64 {
        self.nodes.first().map_or(0, |node| node.calls)
    }

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
        let mut rows: Vec<(usize, usize)> = vec![(0, 0)];
        while let Some((number, depth)) = rows.pop() {
            let Some(node) = self.nodes.get(number) else {
                continue;
            };
            let mut children = node.children.clone();
            children.sort_by_key(|child| self.nodes.get(*child).map(|node| node.calls));
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
                lasted(node.ticks).map_or_else(String::new, duration)
            });
            let more = if node.is_cut { " …" } else { "" };
            writeln!(
                out,
                "{:>10}{:>14}{:>11}  {:indent$}{what}{more}",
                grouped(node.calls),
                grouped(node.insns),
                time.unwrap_or_default(),
                "",
                indent = 2 * (depth - 1).min(40),
            )?;
        }
        Ok(())
    }
}

impl Node {
    const fn new(step: Step, kind: CallKind) -> Self {
        Self {
            step,
            kind,
            children: Vec::new(),
            calls: 0,
            insns: 0,
            ticks: 0,
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
                node: is_it.then_some(0),
            },
        );
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, names: &CallNames) {
        let Some(open) = self.open.remove(&(call.task, call.number)) else {
            return;
        };
        if open.node.is_none() {
            return;
        }
        let ticks = call.begin.tsc.zip(end.end.tsc);
        let ticks = ticks.map_or(0, |(begin, end)| end.0.saturating_sub(begin.0));
        let add = |this: &mut Self, number: usize| {
            if let Some(node) = this.nodes.get_mut(number) {
                node.calls += 1;
                node.insns += end.insns;
                node.ticks += ticks;
            }
        };
        add(self, 0);
        let (mut at, mut here) = (0, open);
        for level in 0.. {
            if level >= self.levels {
                if let Some(node) = self.nodes.get_mut(at) {
                    node.is_cut = true;
                }
                break;
            }
            let around = here.parent.map(|parent| (call.task, parent));
            let around = around.and_then(|around| self.open.get(&around).copied());
            let step = around
                .zip(here.from)
                .map(|(around, from)| (around.function, from));
            if let Some((function, _)) = step {
                let name = || names.describe(function).to_owned();
                self.names.entry(function).or_insert_with(name);
            }
            if step.is_none() && level > 0 {
                break;
            }
            at = self.child(at, step, here.kind);
            add(self, at);
            match around {
                Some(around) if step.is_some() => here = around,
                _ => break,
            }
        }
    }
}
