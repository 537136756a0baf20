//! What ran in the calls that lines, or instructions, have made.

use super::open_calls::{ByStack, Open, OpenCalls};
use crate::args::{Range, TopArgs, TopOrder};
use crate::calls::{is_wanted, trace};
use crate::coverage::counting::{Counted, Counter};
use crate::progress::Printing;
use crate::recordings::{Visited, for_each};
use crate::select::Window;
use anyhow::Result;
use cofi_analysis::{
    ByTask, Call, CallEnd, CallKind, CallNames, CallVisitor, CodeCounts, FileKey, SourceLines,
};
use cofi_image::ImageView;
use cofi_packet::Ip;
use cofi_session::{Session, Task};
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

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

/// The lines of the code of each file that ran, and how many addresses that has.
pub(super) type Lines = HashMap<FileKey, (usize, Option<SourceLines>)>;

/// Counts by where calls came from.
#[derive(Debug)]
struct Counts<'a> {
    range: &'a Range,
    by_line: bool,
    list: Vec<Callees>,
    numbers: HashMap<Caller, usize>,
    /// Empty if no lines are wanted.
    lines: Lines,
    /// Of the instructions seen, as long as the code in place is the same.
    known: FxHashMap<Ip, Option<usize>>,
    code: [u64; 4],
    open: ByTask<OpenCalls>,
    /// How many calls from there are open on a stack.
    around: ByStack<u64>,
    /// From where calls of a function are open on a stack.
    waiting: ByStack<Vec<usize>>,
}

impl<'a> Counts<'a> {
    fn new(range: &'a Range, by_line: bool) -> Self {
        Self {
            range,
            by_line,
            list: Vec::new(),
            numbers: HashMap::new(),
            lines: Lines::default(),
            known: FxHashMap::default(),
            code: [0; 4],
            open: ByTask::default(),
            around: ByStack::default(),
            waiting: ByStack::default(),
        }
    }

    /// Reads the lines of what has run, where more has than when they were read.
    fn read_lines(&mut self, code: &CodeCounts) {
        for (key, file, addresses) in code.addresses() {
            let read = || (addresses.len(), SourceLines::of_code(&file, &addresses));
            match self.lines.entry(key) {
                Entry::Occupied(known) if known.get().0 == addresses.len() => {}
                Entry::Occupied(mut known) => {
                    known.insert(read());
                }
                Entry::Vacant(new) => {
                    new.insert(read());
                }
            }
        }
    }

    fn add(&mut self, session: &Session<'_>, window: &Window) -> Result<Visited> {
        let mut visited = Visited::nothing();
        let mut progress = Printing::of(window.streams(session));
        for stream in window.streams(session) {
            self.known.clear();
            self.open = ByTask::default();
            self.around = ByStack::default();
            self.waiting = ByStack::default();
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
            let (_, lines) = self.lines.get(&FileKey::of(&place.file))?;
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

    /// A call is not open any more. From where it came, if no other from there is open on its stack.
    fn close(&mut self, task: Task, open: &Open) -> Option<usize> {
        let (stack, number) = ((task, open.stack), open.from?);
        if let Some(caller) = open.caller {
            let waiting = self.waiting.get(stack, caller.index());
            waiting.retain(|other| *other != number);
        }
        let around = self.around.get(stack, number);
        *around = around.saturating_sub(1);
        (*around == 0).then_some(number)
    }
}

impl CallVisitor for Counts<'_> {
    fn enter(&mut self, _: &Call, _: &CallNames) {}

    fn enter_with_code(&mut self, call: &Call, _: &CallNames, code: Option<&ImageView<'_>>) {
        if !is_wanted(self.range, call.task) {
            return;
        }
        let stack = (call.task, call.stack);
        // What is entered again once need not be looked for a second time.
        for number in self.waiting.get(stack, call.function.index()).drain(..) {
            self.list[number].is_entered = true;
        }
        let mut from = None;
        if call.kind == CallKind::Call {
            from = code
                .zip(call.from)
                .and_then(|(code, from)| self.number(code, from));
        }
        let open = self.open.get_or_default(call.task);
        let mut caller = None;
        if let Some(number) = from {
            let callees = &mut self.list[number];
            let around = self.around.get(stack, number);
            callees.nested += u64::from(*around > 0);
            *around += 1;
            if *around == 1 && !callees.is_entered {
                let parent = call.parent.and_then(|parent| open.get(parent));
                caller = parent.map(|parent| parent.function);
            }
            if let Some(caller) = caller {
                self.waiting.get(stack, caller.index()).push(number);
            }
        }
        open.insert(
            call.number,
            Open {
                function: call.function,
                stack: call.stack,
                from,
                caller,
            },
        );
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        let open = self.open.get_mut(call.task);
        if let Some(open) = open.and_then(|open| open.remove(call.number))
            && let Some(number) = self.close(call.task, &open)
        {
            self.list[number].insns += end.insns;
        }
    }

    fn all_left(&mut self, task: Task, _: &CallNames) {
        // Of those nobody was told that they were left.
        let open = self.open.get_mut(task).map(OpenCalls::take_all);
        for open in open.into_iter().flatten() {
            self.close(task, &open);
        }
    }
}

/// What was counted of instructions and, if rows are sorted by that, what ran in the calls from each instruction or line, with the lines.
pub(super) struct Ran {
    pub(super) counted: Counted,
    pub(super) callees: Option<HashMap<Caller, Callees>>,
    pub(super) lines: Lines,
}

/// Counts how often each instruction ran and, if rows are sorted by that, what ran in the calls from each instruction or line.
pub(super) fn count(args: &TopArgs, by_line: bool) -> Result<Ran> {
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
                if by_line {
                    counts.read_lines(counter.code());
                }
                visited.has_errors |= counts.add(session, window)?.has_errors;
            }
            Ok(visited)
        },
    )?;
    let counted = counter.finish(has_errors);
    let Some(Counts {
        list,
        numbers,
        lines,
        ..
    }) = counts
    else {
        return Ok(Ran {
            counted,
            callees: None,
            lines: Lines::default(),
        });
    };
    let of = |(caller, number): (Caller, usize)| Some((caller, *list.get(number)?));
    Ok(Ran {
        counted,
        callees: Some(numbers.into_iter().filter_map(of).collect()),
        lines,
    })
}
