//! What ran in the calls that lines, or instructions, have made.

use crate::args::{Range, TopArgs, TopOrder};
use crate::calls::{is_wanted, trace};
use crate::coverage::counting::{Counted, Counter};
use crate::progress::Printing;
use crate::recordings::{Visited, for_each};
use crate::select::Window;
use anyhow::Result;
use cofi_analysis::{
    Call, CallEnd, CallKind, CallNames, CallVisitor, FileKey, FunctionId, SourceLines,
};
use cofi_image::{CodeFile, ImageView};
use cofi_packet::Ip;
use cofi_session::{Session, Task};
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::sync::Arc;

/// What makes calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Caller {
    /// The instruction at an offset of a file.
    Insn(FileKey, u64),
    /// A line of a source file.
    Line(String, u32),
}

/// What ran in the calls from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Callees {
    /// Instructions. Those of a call within another one from the same place are in that.
    pub(super) insns: u64,
    /// How many calls lay within another one.
    pub(super) nested: u64,
    /// The function that makes them was called again before one of them was left: some of its own ran within them, too.
    pub(super) is_entered: bool,
}

/// Counts by where calls came from.
#[derive(Debug)]
struct Counts<'a> {
    range: &'a Range,
    by_line: bool,
    list: Vec<Callees>,
    numbers: HashMap<Caller, usize>,
    /// By where a file is in memory, where it is kept.
    lines: FxHashMap<usize, (Arc<CodeFile>, Option<SourceLines>)>,
    /// Of the instructions seen, as long as the code in place is the same.
    known: FxHashMap<Ip, Option<usize>>,
    code: [u64; 4],
    /// From where the open calls came.
    open: FxHashMap<(Task, i64), usize>,
    /// How many calls from there are open on a stack.
    around: FxHashMap<(Task, u32, usize), u64>,
    /// The functions of open calls.
    functions: FxHashMap<(Task, i64), FunctionId>,
    /// From where calls of a function are open on a stack.
    waiting: FxHashMap<(Task, u32, FunctionId), Vec<usize>>,
}

impl<'a> Counts<'a> {
    fn new(range: &'a Range, by_line: bool) -> Self {
        Self {
            range,
            by_line,
            list: Vec::new(),
            numbers: HashMap::new(),
            lines: FxHashMap::default(),
            known: FxHashMap::default(),
            code: [0; 4],
            open: FxHashMap::default(),
            around: FxHashMap::default(),
            functions: FxHashMap::default(),
            waiting: FxHashMap::default(),
        }
    }

    fn add(&mut self, session: &Session<'_>, window: &Window) -> Result<Visited> {
        let mut visited = Visited::nothing();
        let mut progress = Printing::of(window.streams(session));
        for stream in window.streams(session) {
            self.known.clear();
            self.open.clear();
            self.around.clear();
            self.functions.clear();
            self.waiting.clear();
            let traced = trace(session, stream, window, false, self, |at| {
                progress.reached(at)
            })?;
            visited.has_errors |= traced.errors;
            visited.found |= traced.found;
            progress.finish(stream);
        }
        Ok(visited)
    }

    /// The number of what stands there; none if no file holds it, or if lines are wanted and it has none.
    fn number(&mut self, code: &ImageView<'_>, ip: Ip) -> Option<usize> {
        if self.code != code.state() {
            self.known.clear();
            self.code = code.state();
        }
        if let Some(known) = self.known.get(&ip) {
            return *known;
        }
        let caller = code.place(ip).and_then(|place| {
            if !self.by_line {
                return Some(Caller::Insn(FileKey::of(&place.file), place.offset));
            }
            let (_, lines) = self
                .lines
                .entry(Arc::as_ptr(&place.file).addr())
                .or_insert_with(|| (place.file.clone(), SourceLines::of(&place.file)));
            let address = place.file.address_of_offset(place.offset)?;
            let (file, line) = lines.as_ref()?.at(address)?;
            Some(Caller::Line(file.to_owned(), line))
        });
        let number = caller.map(|caller| {
            let next = self.list.len();
            let number = *self.numbers.entry(caller).or_insert(next);
            if number == next {
                self.list.push(Callees::default());
            }
            number
        });
        self.known.insert(ip, number);
        number
    }
}

impl CallVisitor for Counts<'_> {
    fn enter(&mut self, _: &Call, _: &CallNames) {}

    fn enter_with_code(&mut self, call: &Call, _: &CallNames, code: Option<&ImageView<'_>>) {
        if !is_wanted(self.range, call.task) {
            return;
        }
        self.functions
            .insert((call.task, call.number), call.function);
        let again = self.waiting.get(&(call.task, call.stack, call.function));
        for number in again.into_iter().flatten() {
            if let Some(callees) = self.list.get_mut(*number) {
                callees.is_entered = true;
            }
        }
        if call.kind != CallKind::Call {
            return;
        }
        let number = code
            .zip(call.from)
            .and_then(|(code, from)| self.number(code, from));
        let Some(number) = number else {
            return;
        };
        self.open.insert((call.task, call.number), number);
        let around = (call.task, call.stack, number);
        let around = self.around.entry(around).or_default();
        if *around > 0
            && let Some(callees) = self.list.get_mut(number)
        {
            callees.nested += 1;
        }
        *around += 1;
        if *around == 1
            && let Some(caller) = call
                .parent
                .and_then(|parent| self.functions.get(&(call.task, parent)))
        {
            let waiting = self.waiting.entry((call.task, call.stack, *caller));
            waiting.or_default().push(number);
        }
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        self.functions.remove(&(call.task, call.number));
        let Some(number) = self.open.remove(&(call.task, call.number)) else {
            return;
        };
        let around = (call.task, call.stack, number);
        let around = self.around.entry(around).or_default();
        *around = around.saturating_sub(1);
        if *around > 0 {
            return;
        }
        if let Some(callees) = self.list.get_mut(number) {
            callees.insns += end.insns;
        }
        let caller = call
            .parent
            .and_then(|parent| self.functions.get(&(call.task, parent)));
        if let Some(caller) = caller {
            let key = (call.task, call.stack, *caller);
            if let Some(waiting) = self.waiting.get_mut(&key) {
                waiting.retain(|other| *other != number);
                if waiting.is_empty() {
                    self.waiting.remove(&key);
                }
            }
        }
    }

    fn all_left(&mut self, task: Task, _: &CallNames) {
        self.open.retain(|(of, _), _| *of != task);
        self.around.retain(|(of, _, _), _| *of != task);
        self.functions.retain(|(of, _), _| *of != task);
        self.waiting.retain(|(of, _, _), _| *of != task);
    }
}

/// Counts how often each instruction ran and, if rows are sorted by that, what ran in the calls from each instruction or line.
pub(super) fn count(
    args: &TopArgs,
    by_line: bool,
) -> Result<(Counted, Option<HashMap<Caller, Callees>>)> {
    let (counting, mut counter) = (&args.counting, Counter::default());
    let wants = args.by == TopOrder::Total;
    let mut counts = wants.then(|| Counts::new(&counting.range, by_line));
    let has_errors = for_each(
        &counting.flow,
        &counting.more,
        &counting.range,
        |session, window| {
            let mut visited = counter.add(session, window, counting.parallel, None);
            if let Some(counts) = &mut counts {
                visited.has_errors |= counts.add(session, window)?.has_errors;
            }
            Ok(visited)
        },
    )?;
    let callees = counts.map(|Counts { list, numbers, .. }| {
        let of = |(caller, number): (Caller, usize)| Some((caller, *list.get(number)?));
        numbers.into_iter().filter_map(of).collect()
    });
    Ok((counter.finish(has_errors), callees))
}
