//! One of two flows that are compared: where it is, and what is known of what comes.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Receiver;

use cofi_image::Place;
use cofi_packet::{Ip, StreamOffset, Tsc};
use rustc_hash::FxHashMap;

use super::feed::{Batch, BlockAt, FunctionName, Mark, What};
use super::tokens::{INVISIBLE, Tokens, is_step};
use super::{Frame, Spot};
use crate::calls::CallKind;
use crate::gap::GapCause;

/// So many blocks may wait for the other side, and so many marks.
const BLOCKS: usize = 1 << 22;
const MARKS: usize = 1 << 20;

/// So many calls are remembered of those that began.
const ENTERED: usize = 64;

/// A block, as it stands in memory.
#[derive(Debug)]
struct Local {
    content: u32,
    at: BlockAt,
}

/// An open call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) function: u32,
    pub(super) depth: i32,
    pub(super) kind: CallKind,
}

/// A place where a part of the flow is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing {
    pub(super) cause: GapCause,
    pub(super) offset: StreamOffset,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Token(u32),
    Gap,
    End,
}

#[derive(Debug)]
pub(super) struct Side {
    which: usize,
    receiver: Receiver<Batch>,
    is_done: bool,
    /// The blocks that come next, by their numbers in `locals`.
    blocks: VecDeque<u32>,
    /// How many instructions of the first are past.
    within: u32,
    /// How many instructions are past.
    pub(super) at: u64,
    /// How many of them are not compared, where the sides were equal.
    pub(super) left_out: u64,
    marks: VecDeque<Mark>,
    /// Where flow is missing.
    gaps: VecDeque<u64>,
    locals: Vec<Local>,
    known: FxHashMap<(u32, Ip), u32>,
    /// By the feed's numbers.
    numbers: Vec<u32>,
    functions: HashMap<u32, FunctionName>,
    /// The open calls, outermost first.
    pub(super) open: Vec<Open>,
    /// The depth of the innermost one.
    pub(super) depth: i32,
    /// The last token, which may go on.
    last: u32,
    /// The block of the last instruction that was the same on both sides, and which it was.
    before: Option<(u32, u32)>,
    /// How many instructions were past then. Of what happened since, no account is taken before the sides part: nothing says that it happened on
    /// both.
    together: u64,
    pub(super) tsc: Option<Tsc>,
    /// Calls that began since this was emptied last, those of one function at one depth once.
    pub(super) entered: Vec<Open>,
}

impl Side {
    pub(super) fn new(which: usize, receiver: Receiver<Batch>) -> Self {
        Self {
            which,
            receiver,
            is_done: false,
            blocks: VecDeque::new(),
            within: 0,
            at: 0,
            left_out: 0,
            marks: VecDeque::new(),
            gaps: VecDeque::new(),
            locals: Vec::new(),
            known: FxHashMap::default(),
            numbers: Vec::new(),
            functions: HashMap::new(),
            open: Vec::new(),
            depth: -1,
            last: INVISIBLE,
            before: None,
            together: 0,
            tsc: None,
            entered: Vec::new(),
        }
    }

    /// Takes the next batch; `false` at the end.
    fn pull(&mut self, tokens: &mut Tokens<'_>) -> bool {
        if self.is_done {
            return false;
        }
        self.settle();
        if self.marks.len() >= MARKS {
            // Much ran that is not compared: what the calls were before it does not matter any more.
            self.settle_to(self.at.saturating_sub(1));
        }
        let Ok(batch) = self.receiver.recv() else {
            self.is_done = true;
            return false;
        };
        for block in batch.defined {
            let content = tokens.define(self.which, &block);
            let first = block.runs.first().map_or(Ip(0), |run| run.ip);
            let next = self.locals.len() as u32;
            let number = *self.known.entry((content, first)).or_insert(next);
            if number == next {
                self.locals.push(Local { content, at: block });
            }
            self.numbers.push(number);
        }
        self.functions.extend(batch.functions);
        for mark in &batch.marks {
            if matches!(mark.what, What::Gap { .. }) {
                self.gaps.push_back(mark.at);
            }
        }
        self.marks.extend(batch.marks);
        let numbers = &self.numbers;
        let local = |number: &u32| numbers.get(*number as usize).copied().unwrap_or(0);
        self.blocks.extend(batch.ran.iter().map(local));
        true
    }

    /// Whether more may be taken before something was gone past.
    fn may_pull(&self) -> bool {
        self.blocks.len() < BLOCKS && self.marks.len() < MARKS
    }

    /// Has the next block at hand; `false` at the end.
    #[inline]
    pub(super) fn fill(&mut self, tokens: &mut Tokens<'_>) -> bool {
        while self.blocks.is_empty() {
            if !self.pull(tokens) {
                return false;
            }
        }
        true
    }

    fn len_of(&self, local: u32) -> u32 {
        let local = self.locals.get(local as usize);
        local.map_or(1, |local| local.at.lens.len() as u32)
    }

    /// What the next block is made of, and its length, if nothing of it is past.
    #[inline]
    fn whole(&self) -> Option<(u32, u32)> {
        if self.within != 0 {
            return None;
        }
        let local = self.locals.get(*self.blocks.front()? as usize)?;
        Some((local.content, local.at.lens.len() as u32))
    }

    /// Goes past blocks that are the same on both sides; whether there were any.
    pub(super) fn pass_equal(a: &mut Self, b: &mut Self, tokens: &Tokens<'_>) -> bool {
        let [end_a, end_b] = [&*a, &*b].map(|side| side.gaps.front().copied().unwrap_or(u64::MAX));
        // What goes on from the instruction before may begin a block.
        if a.last != b.last {
            return false;
        }
        let mut last = None;
        while let (Some((x, len)), Some((y, _))) = (a.whole(), b.whole()) {
            let len = u64::from(len);
            if x != y || a.at + len > end_a || b.at + len > end_b {
                break;
            }
            let left_out = u64::from(tokens.left_out(x));
            for side in [&mut *a, &mut *b] {
                side.at += len;
                side.left_out += left_out;
                side.before = side.blocks.pop_front().map(|block| (block, len as u32 - 1));
                side.together = side.at;
            }
            last = Some(x);
        }
        let Some(content) = last else {
            return false;
        };
        let visible = tokens.content(content).iter().rev();
        let visible = visible.copied().find(|token| *token != INVISIBLE);
        // (Where all of it is invisible, what stood before it may go on; that it does not only shows that it began anew.)
        (a.last, b.last) = (visible.unwrap_or(INVISIBLE), visible.unwrap_or(INVISIBLE));
        true
    }

    /// The next instruction that is compared; those before it that are not are gone past.
    pub(super) fn peek(&mut self, tokens: &mut Tokens<'_>) -> Next {
        loop {
            if self.gaps.front().is_some_and(|at| *at <= self.at) {
                return Next::Gap;
            }
            if !self.fill(tokens) {
                // (Marks may have come behind the last block.)
                return match self.gaps.front() {
                    Some(_) => Next::Gap,
                    None => Next::End,
                };
            }
            if self.gaps.front().is_some_and(|at| *at <= self.at) {
                return Next::Gap;
            }
            let token = self.token(tokens);
            if token != INVISIBLE && !(is_step(token) && token == self.last) {
                return Next::Token(token);
            }
            self.left_out += u64::from(token == INVISIBLE);
            self.step();
        }
    }

    fn token(&self, tokens: &Tokens<'_>) -> u32 {
        let local = self.blocks.front();
        let local = local.and_then(|local| self.locals.get(*local as usize));
        let content = local.map_or(&[][..], |local| tokens.content(local.content));
        content
            .get(self.within as usize)
            .copied()
            .unwrap_or(INVISIBLE)
    }

    /// Goes past the next instruction.
    fn step(&mut self) {
        let Some(block) = self.blocks.front().copied() else {
            return;
        };
        self.within += 1;
        self.at += 1;
        if self.within >= self.len_of(block) {
            self.within = 0;
            self.blocks.pop_front();
        }
    }

    /// Goes past the next instruction, of this token.
    pub(super) fn take(&mut self, token: u32) {
        self.last = token;
        self.before = self.blocks.front().map(|block| (*block, self.within));
        self.step();
        self.together = self.at;
    }

    /// What stood before does not go on.
    pub(super) const fn begin_anew(&mut self) {
        self.last = INVISIBLE;
    }

    /// Takes account of the calls that began and ended before the last instruction that was the same on both sides: what happened on the way to
    /// the next one is still to come.
    pub(super) fn settle(&mut self) {
        self.settle_to(self.together.saturating_sub(1));
    }

    /// Takes account of the calls that began and ended up to a number of instructions, and up to the next gap.
    fn settle_to(&mut self, at: u64) {
        while let Some(mark) = self.marks.front()
            && mark.at <= at
        {
            match mark.what {
                What::Enter {
                    function,
                    depth,
                    kind,
                    tsc,
                } => {
                    while self.open.last().is_some_and(|open| open.depth >= depth) {
                        self.open.pop();
                    }
                    let open = Open {
                        function,
                        depth,
                        kind,
                    };
                    self.open.push(open);
                    self.depth = depth;
                    self.tsc = tsc.or(self.tsc);
                    let is_known =
                        |known: &Open| (known.function, known.depth) == (function, depth);
                    if self.entered.len() < ENTERED && !self.entered.iter().any(is_known) {
                        self.entered.push(open);
                    }
                }
                What::Leave { depth } => {
                    while self.open.last().is_some_and(|open| open.depth >= depth) {
                        self.open.pop();
                    }
                    self.depth = depth - 1;
                }
                What::Reset => self.open.clear(),
                What::Gap { .. } => return,
            }
            self.marks.pop_front();
        }
    }

    /// The gaps here, which are gone past.
    pub(super) fn take_gaps(&mut self) -> Vec<Missing> {
        let mut list = Vec::new();
        if self.gaps.front().is_none_or(|at| *at > self.at) {
            return list;
        }
        self.settle_to(self.at);
        while let Some(Mark {
            at,
            what: What::Gap { cause, offset },
        }) = self.marks.front()
            && *at <= self.at
        {
            list.push(Missing {
                cause: *cause,
                offset: *offset,
            });
            self.marks.pop_front();
            self.gaps.pop_front();
            self.settle_to(self.at);
        }
        list
    }

    /// Goes on up to the instruction of this number; gaps on the way are given.
    pub(super) fn skip_to(&mut self, at: u64, tokens: &mut Tokens<'_>) -> Vec<Missing> {
        let mut missing = Vec::new();
        while self.at < at && self.fill(tokens) {
            self.settle_to(self.at);
            missing.extend(self.take_gaps());
            let Some(block) = self.blocks.front().copied() else {
                break;
            };
            let rest = self.len_of(block) - self.within;
            let next = self.marks.front().map_or(u64::MAX, |mark| mark.at).min(at);
            let far = u64::from(rest).min(next.saturating_sub(self.at).max(1)) as u32;
            self.at += u64::from(far);
            self.before = Some((block, self.within + far - 1));
            self.within += far;
            if far == rest {
                self.within = 0;
                self.blocks.pop_front();
            }
        }
        self.together = self.at;
        self.settle();
        self.begin_anew();
        missing
    }

    /// Goes on until a call of this depth, or one around it, is the innermost; `false` if none ever is.
    pub(super) fn skip_out(&mut self, depth: i32, tokens: &mut Tokens<'_>) -> (bool, Vec<Missing>) {
        let mut missing = Vec::new();
        loop {
            self.settle_to(self.at);
            missing.extend(self.take_gaps());
            if self.depth <= depth {
                self.begin_anew();
                return (true, missing);
            }
            if !self.fill(tokens) {
                return (false, missing);
            }
            let next = self.marks.front().map_or(u64::MAX, |mark| mark.at);
            let rest = self.blocks.front().map_or(1, |block| self.len_of(*block)) - self.within;
            let to = (self.at + u64::from(rest)).min(next.max(self.at + 1));
            missing.extend(self.skip_to(to, tokens));
        }
    }

    pub(super) fn function(&self, number: u32) -> Option<&FunctionName> {
        self.functions.get(&number)
    }

    /// The open calls, innermost first.
    pub(super) fn frames(&self) -> Vec<Frame> {
        /// No more of them are shown.
        const MOST: usize = 64;
        let open = self.open.iter().rev().take(MOST);
        open.map(|open| self.frame(open)).collect()
    }

    pub(super) fn frame(&self, open: &Open) -> Frame {
        let function = self.functions.get(&open.function);
        Frame {
            name: function.map_or_else(|| "?".to_owned(), |function| function.name.clone()),
            is_named: function.is_some_and(|function| function.is_named),
            file: function.and_then(|function| function.file.clone()),
            kind: open.kind,
        }
    }

    fn spot(&self, block: u32, index: u32) -> Option<Spot> {
        let at = &self.locals.get(block as usize)?.at;
        let next = at.runs.partition_point(|run| run.first <= index);
        let run = at.runs.get(next.checked_sub(1)?)?;
        let before = at.lens.get(run.first as usize..index as usize)?;
        let bytes: u64 = before.iter().map(|len| u64::from(*len)).sum();
        let place: Option<Place> = run.place.as_ref().map(|place| place.forward(bytes));
        Some(Spot {
            ip: Ip(run.ip.0.wrapping_add(bytes)),
            place,
            mode: run.mode,
            len: at.lens.get(index as usize).copied().unwrap_or(0),
        })
    }

    /// The instruction that was gone past last.
    pub(super) fn last_spot(&self) -> Option<Spot> {
        let (block, index) = self.before?;
        self.spot(block, index)
    }

    /// The instructions that come next, up to a gap.
    pub(super) fn coming(&mut self, most: usize, tokens: &mut Tokens<'_>) -> Vec<Spot> {
        let mut list = Vec::new();
        let (mut index, mut within, mut at) = (0, self.within, self.at);
        let mut gap = self.gaps.front().copied();
        while list.len() < most && gap.is_none_or(|gap| at < gap) {
            let Some(block) = self.blocks.get(index).copied() else {
                if self.may_pull() && self.pull(tokens) {
                    gap = self.gaps.front().copied();
                    continue;
                }
                break;
            };
            list.extend(self.spot(block, within));
            within += 1;
            at += 1;
            if within >= self.len_of(block) {
                (index, within) = (index + 1, 0);
            }
        }
        list
    }
}

/// A step that was found ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// The same for the same instruction in the same one of the calls that were open where the walk began.
    pub(super) key: u64,
    pub(super) at: u64,
}

/// Looks ahead on one side, and lists what runs in the calls that were open at the beginning, without what these call.
#[derive(Debug)]
pub(super) struct Walk {
    /// Which of the side's blocks comes, and how much of it is past.
    block: usize,
    within: u32,
    at: u64,
    mark: usize,
    base: i32,
    depth: i32,
    /// The outermost call that control was in.
    lowest: i32,
    last: u32,
    /// Calls are looked at.
    with_calls: bool,
    pub(super) symbols: Vec<Symbol>,
    is_over: bool,
    /// It is over because the flow is.
    pub(super) is_at_end: bool,
    /// What it has cost.
    pub(super) cost: u64,
}

impl Walk {
    /// From where the side is. `base` is the depth there, unless all calls are to be treated alike.
    pub(super) fn new(side: &Side, with_calls: bool) -> Self {
        Self {
            block: 0,
            within: side.within,
            at: side.at,
            mark: 0,
            base: side.depth,
            depth: side.depth,
            lowest: side.depth,
            last: INVISIBLE,
            with_calls,
            symbols: Vec::new(),
            is_over: false,
            is_at_end: false,
            cost: 0,
        }
    }

    /// The symbol of this number, if it is not too far ahead.
    pub(super) fn get(
        &mut self,
        index: usize,
        side: &mut Side,
        tokens: &mut Tokens<'_>,
    ) -> Option<Symbol> {
        while self.symbols.len() <= index && !self.is_over {
            self.extend(side, tokens);
        }
        self.symbols.get(index).copied()
    }

    fn extend(&mut self, side: &mut Side, tokens: &mut Tokens<'_>) {
        self.cost += 1;
        while let Some(mark) = side.marks.get(self.mark)
            && mark.at <= self.at
        {
            match mark.what {
                What::Enter { depth, .. } => self.depth = depth,
                What::Leave { depth } => self.depth = depth - 1,
                What::Reset => {}
                What::Gap { .. } => {
                    self.is_over = true;
                    return;
                }
            }
            self.mark += 1;
        }
        let Some(block) = side.blocks.get(self.block).copied() else {
            // What is settled as more comes are marks that this has taken account of.
            let before = side.marks.len();
            side.settle();
            self.mark -= (before - side.marks.len()).min(self.mark);
            let may_pull = side.may_pull();
            if !may_pull || !side.pull(tokens) {
                self.is_over = true;
                self.is_at_end = may_pull;
            }
            return;
        };
        let len = side.len_of(block);
        let next = side.marks.get(self.mark).map_or(u64::MAX, |mark| mark.at);
        let rest = u64::from(len - self.within);
        let far = rest.min(next - self.at) as u32;
        self.lowest = self.lowest.min(self.depth);
        if !self.with_calls || self.depth <= self.lowest {
            let level = match self.with_calls {
                true => i64::from(self.depth) - i64::from(self.base),
                false => 0,
            };
            let local = side.locals.get(block as usize);
            let content = local.map_or(&[][..], |local| tokens.content(local.content));
            let range = self.within as usize..(self.within + far) as usize;
            for (index, token) in content.get(range).into_iter().flatten().enumerate() {
                if *token == INVISIBLE || is_step(*token) && *token == self.last {
                    continue;
                }
                self.last = *token;
                self.symbols.push(Symbol {
                    key: (level as u64) << 32 | u64::from(*token),
                    at: self.at + index as u64,
                });
            }
        } else {
            // What was called stands between.
            self.last = INVISIBLE;
        }
        self.at += u64::from(far);
        self.within += far;
        if self.within >= len {
            (self.block, self.within) = (self.block + 1, 0);
        }
    }
}
