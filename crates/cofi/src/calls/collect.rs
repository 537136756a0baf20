//! Chooses calls, waits for their end, and prints them in the order in which they began.

use super::json::{JsonCalls, Sites, is_hidden};
use super::text::{Tree, TreeStyle};
use super::turns::{Turn, write_parts};
use super::{Matches, is_wanted};
use crate::args::{CallsArgs, threads};
use crate::function_names::Wanted;
use crate::input;
use crate::output::Stdout;
use crate::select::Window;
use anyhow::Result;
use cofi_analysis::{ByTask, Call, CallEnd, CallNames, CallVisitor, CallsInOrder, FunctionId};
use cofi_session::{Session, Stream, StreamKey, Task};
use cofi_text::Line;
use rustc_hash::FxHashMap;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Prints the calls of a stream.
pub(super) struct Collect<'a, 's> {
    args: &'a CallsArgs,
    session: &'a Session<'s>,
    key: StreamKey,
    /// The threads whose calls wait.
    threads: ByTask<Waiting>,
    function: Option<Matches>,
    callers: Option<Stacks>,
    /// How many calls are of the function that was asked for.
    matches: u64,
    out: &'a Mutex<Stdout>,
    turn: &'a Turn<'a>,
    style: TreeStyle,
    /// The thread whose calls were printed last.
    heading: Option<Task>,
    has_headings: bool,
    failed: Option<io::Error>,
}

/// The calls of a thread that wait.
#[derive(Debug, Default)]
struct Waiting {
    order: CallsInOrder,
    /// Those that are open within one that was asked for, with how deep that is.
    inside: FxHashMap<i64, i32>,
}

/// Where calls of a function came from, as far as they wait.
#[derive(Debug)]
struct Stacks {
    wanted: Matches,
    /// Open calls: the function, and its stack.
    open: FxHashMap<(Task, i64), u32>,
    /// The stacks seen: a function, and where in the list the one is that called it.
    nodes: Vec<(FunctionId, u32)>,
    numbers: FxHashMap<(FunctionId, u32), u32>,
    /// That of each call that waits.
    waiting: FxHashMap<(Task, i64), u32>,
}

/// No stack.
const NONE: u32 = u32::MAX;

impl Stacks {
    fn enter(&mut self, call: &Call, names: &CallNames) -> bool {
        let around = call.parent.map(|parent| (call.task, parent));
        let around = around.and_then(|parent| self.open.get(&parent).copied());
        let key = (call.function, around.unwrap_or(NONE));
        let next = self.nodes.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.nodes.push(key);
        }
        self.open.insert((call.task, call.number), number);
        let is_it = self.wanted.is(call.function, names);
        if is_it {
            self.waiting.insert((call.task, call.number), number);
        }
        is_it
    }

    /// The functions around a call, the innermost first.
    fn around(&mut self, call: &Call) -> Vec<FunctionId> {
        let mut stack = Vec::new();
        let mut at = self.waiting.remove(&(call.task, call.number));
        while let Some((function, around)) = at.and_then(|at| self.nodes.get(at as usize)) {
            stack.push(*function);
            at = Some(*around);
        }
        stack
    }
}

impl<'a, 's> Collect<'a, 's> {
    pub(super) fn new(
        args: &'a CallsArgs,
        wanted: Option<&Wanted>,
        window: &Window,
        session: &'a Session<'s>,
        stream: &Stream<'_>,
        (out, turn): (&'a Mutex<Stdout>, &'a Turn<'a>),
    ) -> Self {
        let has_headings = window.streams(session).len() > 1 || stream.key().cpu().is_some();
        let callers = wanted.filter(|_| args.callers.is_some());
        let callers = callers.map(|wanted| Stacks {
            wanted: Matches::new(wanted),
            open: FxHashMap::default(),
            nodes: Vec::new(),
            numbers: FxHashMap::default(),
            waiting: FxHashMap::default(),
        });
        Self {
            args,
            session,
            key: stream.key(),
            threads: ByTask::default(),
            function: wanted.filter(|_| args.function.is_some()).map(Matches::new),
            callers,
            matches: 0,
            out,
            turn,
            style: TreeStyle::of_terminal(args.color),
            heading: None,
            has_headings,
            failed: None,
        }
    }

    /// How many calls there were of the function that was asked for.
    pub(super) fn finish(self) -> Result<u64> {
        match self.failed {
            Some(error) => Err(error.into()),
            None => Ok(self.matches),
        }
    }

    /// Prints the calls of a thread, all of which were left.
    fn print(&mut self, task: Task, names: &CallNames) -> io::Result<()> {
        let Some(mut waiting) = self.threads.remove(task) else {
            return Ok(());
        };
        self.turn.wait();
        let out = self.out.lock();
        let mut out = out.unwrap_or_else(PoisonError::into_inner);
        match (self.args.json, &mut self.callers) {
            (false, _) => self.print_tree(task, &mut waiting.order, names, &mut out),
            (true, Some(callers)) => {
                let json = JsonCalls::new(self.session, names, (self.key, task));
                let (mut sites, mut line, mut text) =
                    (Sites::default(), Line::default(), Vec::new());
                waiting.order.drain(|finished| {
                    if is_hidden(self.args, self.session, finished) {
                        return Ok(());
                    }
                    line.begin();
                    let stack = callers.around(&finished.call);
                    let most = self.args.depth.map_or(usize::MAX, |most| most as usize);
                    let around = stack.iter().skip(1).take(most);
                    let around = around.map(|function| names.describe(*function).to_owned());
                    line.texts("callers", around);
                    text.clear();
                    json.call(finished, line.members(), &mut sites, &mut text);
                    out.write_all(&text)
                })
            }
            (true, None) => {
                let json = JsonCalls::new(self.session, names, (self.key, task));
                let mut parts = waiting.order.take_parts()?;
                let worker = || {
                    let (json, args, mut sites) = (&json, self.args, Sites::default());
                    move |part, text: &mut Vec<u8>| json.part(args, part, &mut sites, text)
                };
                let threads = threads(self.args.threads);
                write_parts(threads, || parts.next_part(), worker, &mut *out)
            }
        }
    }

    fn print_tree(
        &mut self,
        task: Task,
        order: &mut CallsInOrder,
        names: &CallNames,
        out: &mut Stdout,
    ) -> io::Result<()> {
        let Self {
            args,
            session,
            style,
            heading,
            has_headings,
            ..
        } = self;
        let is_part = args.function.is_some();
        let mut tree = Tree::new(session, names, style);
        let mut root: Option<i32> = None;
        let mut begin = |tree: &Tree<'_, '_>, out: &mut Stdout| {
            if *has_headings && *heading != Some(task) {
                let comm = session.comm_of(task.tid).map(input::called);
                let begin = if heading.is_some() { "\n" } else { "" };
                let comm = comm.unwrap_or_default();
                writeln!(out, "{begin}thread {}{comm}", task.tid)?;
                *heading = Some(task);
            }
            tree.head(out)
        };
        // A thread that never called the function is not shown.
        if !is_part {
            begin(&tree, out)?;
        }
        order.drain(|finished| {
            if is_hidden(args, session, finished) {
                return Ok(());
            }
            let mut finished = *finished;
            if is_part {
                if root.is_none() {
                    begin(&tree, out)?;
                }
                // The function itself is the root of its tree.
                let depth = finished.call.depth;
                let base = root.map_or(depth, |root| depth.min(root));
                root = Some(base);
                finished.call.depth -= base;
            }
            tree.call(&finished, out)
        })?;
        tree.end(out)
    }
}

impl CallVisitor for Collect<'_, '_> {
    fn enter(&mut self, call: &Call, names: &CallNames) {
        if !is_wanted(&self.args.range, call.task) {
            return;
        }
        let waiting = self.threads.get_or_default(call.task);
        let most = self
            .args
            .depth
            .map(|most| i32::try_from(most).unwrap_or(i32::MAX));
        if let Some(callers) = &mut self.callers {
            if !callers.enter(call, names) {
                return;
            }
            self.matches += 1;
        } else if let Some(function) = &mut self.function {
            let outer = call.parent.and_then(|parent| waiting.inside.get(&parent));
            let is_it = function.is(call.function, names);
            self.matches += u64::from(is_it);
            let Some(outer) = outer.copied().or(is_it.then_some(call.depth)) else {
                return;
            };
            waiting.inside.insert(call.number, outer);
            if most.is_some_and(|most| call.depth - outer >= most) {
                return;
            }
        } else if most.is_some_and(|most| call.depth >= most) {
            return;
        }
        waiting.order.enter(call);
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        if let Some(callers) = &mut self.callers {
            callers.open.remove(&(call.task, call.number));
        }
        let Some(waiting) = self.threads.get_mut(call.task) else {
            return;
        };
        if self.function.is_some() && waiting.inside.remove(&call.number).is_none() {
            return;
        }
        // What was not taken is not found either.
        waiting.order.leave(call, end);
    }

    fn all_left(&mut self, task: Task, names: &CallNames) {
        if self.failed.is_none() {
            self.failed = self.print(task, names).err();
        }
    }
}
