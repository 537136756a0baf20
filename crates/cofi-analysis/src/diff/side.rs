//! One of two flows that are compared: where it is, and what is known of what comes.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Receiver;

use cofi_image::Place;
use cofi_packet::{Ip, Tsc};

use super::feed::{Batch, FunctionName, GapAt, Missing};
use super::marks::{Mark, MarkCursor, MarkQueue, What};
use super::paths::{Cursor, Known, PathAt, PathQueue};
use super::tokens::{INVISIBLE, Tokens, is_step};
use super::{Frame, Spot};
use crate::calls::CallKind;

/// So many blocks may wait for the other side, and so many marks.
const BLOCKS: usize = 1 << 22;
const MARKS: usize = 1 << 20;

/// So many calls are remembered of those that began.
const ENTERED: usize = 64;

/// An open call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) function: u32,
    pub(super) depth: i32,
    pub(super) kind: CallKind,
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
    /// The paths that come next.
    pub(super) queue: PathQueue,
    /// How much of the first is past.
    pub(super) front: Cursor,
    pub(super) known: Known,
    /// How many instructions are past.
    pub(super) at: u64,
    /// How many of them are not compared, where the sides were equal.
    pub(super) left_out: u64,
    pub(super) marks: MarkQueue,
    pub(super) front_mark: MarkCursor,
    /// Where flow is missing.
    gaps: VecDeque<GapAt>,
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
    /// Calls that began since they are listed, those of one function at one depth once; nothing where they are not.
    entered: Option<Vec<Open>>,
}

impl Side {
    pub(super) fn new(which: usize, receiver: Receiver<Batch>) -> Self {
        Self {
            which,
            receiver,
            is_done: false,
            queue: PathQueue::default(),
            front: Cursor::default(),
            known: Known::default(),
            at: 0,
            left_out: 0,
            marks: MarkQueue::default(),
            front_mark: MarkCursor::default(),
            gaps: VecDeque::new(),
            functions: HashMap::new(),
            open: Vec::new(),
            depth: -1,
            last: INVISIBLE,
            before: None,
            together: 0,
            tsc: None,
            entered: None,
        }
    }

    /// Takes the next batch; `false` at the end.
    pub(super) fn pull(&mut self, tokens: &mut Tokens<'_>) -> bool {
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
            self.known.add_block(self.which, block, tokens);
        }
        for path in &batch.paths {
            self.known.add_path(path, tokens);
        }
        self.functions.extend(batch.functions);
        self.gaps.extend(batch.gaps);
        self.marks.push(batch.marks);
        self.queue.push(batch.ran, &self.known);
        true
    }

    /// Whether more may be taken before something was gone past.
    pub(super) fn may_pull(&self) -> bool {
        self.queue.blocks() < BLOCKS && self.marks.len() < MARKS
    }

    /// Has the next block at hand; `false` at the end.
    #[inline]
    pub(super) fn fill(&mut self, tokens: &mut Tokens<'_>) -> bool {
        while self.queue.is_empty() {
            if !self.pull(tokens) {
                return false;
            }
        }
        true
    }

    /// The path that comes next, if nothing of it is past.
    #[inline]
    fn whole_path(&self) -> Option<&PathAt> {
        match self.front.is_at_path() {
            true => self.queue.path(&self.front, &self.known),
            false => None,
        }
    }

    /// What the next block is made of, and its length, if nothing of it is past.
    #[inline]
    fn whole_block(&self) -> Option<(u32, u32)> {
        if !self.front.is_at_block() {
            return None;
        }
        let local = self.known.local(self.front_block()?)?;
        Some((local.content, local.at.lens.len() as u32))
    }

    /// The block that comes next, or the rest of it.
    #[inline]
    pub(super) fn front_block(&self) -> Option<u32> {
        self.queue.block(&self.front, &self.known)
    }

    /// Goes past a whole path, which is equal on both sides, or skipped.
    #[inline]
    fn pass_path(&mut self, path: &PathAt) {
        self.at += u64::from(path.insns);
        self.before = Some((path.last_block, path.last_len.saturating_sub(1)));
        self.queue.pass_path(&mut self.front, &self.known);
    }

    /// Goes past blocks that are the same on both sides; whether there were any.
    pub(super) fn pass_equal(a: &mut Self, b: &mut Self, tokens: &Tokens<'_>) -> bool {
        let [end_a, end_b] =
            [&*a, &*b].map(|side| side.gaps.front().map_or(u64::MAX, |gap| gap.at));
        // What goes on from the instruction before may begin a block.
        if a.last != b.last {
            return false;
        }
        let mut last = None;
        loop {
            if let (Some(x), Some(y)) = (a.whole_path(), b.whole_path())
                && x.content == y.content
                && a.at + u64::from(x.insns) <= end_a
                && b.at + u64::from(x.insns) <= end_b
            {
                let (x, y) = (*x, *y);
                let left_out = u64::from(tokens.path_left_out(x.content));
                last = Some(x.last_content);
                for (side, path) in [(&mut *a, x), (&mut *b, y)] {
                    side.left_out += left_out;
                    side.pass_path(&path);
                    side.together = side.at;
                }
                continue;
            }
            // The packets of the two may cut what is the same into other paths.
            if let (Some((x, len)), Some((y, _))) = (a.whole_block(), b.whole_block())
                && x == y
                && a.at + u64::from(len) <= end_a
                && b.at + u64::from(len) <= end_b
            {
                let left_out = u64::from(tokens.left_out(x));
                for side in [&mut *a, &mut *b] {
                    side.left_out += left_out;
                    side.pass_in_block(len);
                    side.together = side.at;
                }
                last = Some(x);
                continue;
            }
            break;
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

    /// Goes past so many instructions of the next block, up to its end at most.
    #[inline]
    fn pass_in_block(&mut self, insns: u32) {
        let Some(block) = self.front_block() else {
            return;
        };
        self.at += u64::from(insns);
        self.before = Some((block, (self.front.within() + insns).saturating_sub(1)));
        self.queue
            .pass_in_block(&mut self.front, insns, &self.known);
    }

    /// The next instruction that is compared; those before it that are not are gone past.
    pub(super) fn peek(&mut self, tokens: &mut Tokens<'_>) -> Next {
        loop {
            if self.gaps.front().is_some_and(|gap| gap.at <= self.at) {
                return Next::Gap;
            }
            if !self.fill(tokens) {
                // (Marks may have come behind the last block.)
                return match self.gaps.front() {
                    Some(_) => Next::Gap,
                    None => Next::End,
                };
            }
            if self.gaps.front().is_some_and(|gap| gap.at <= self.at) {
                return Next::Gap;
            }
            // Up to the next gap, or the end of the block.
            let room = self
                .gaps
                .front()
                .map_or(u64::MAX, |gap| gap.at.saturating_sub(self.at));
            let rest = self.rest_of_block(tokens);
            let (mut passed, mut invisible) = (0, 0);
            let mut found = None;
            for token in rest.iter().copied() {
                if u64::from(passed) >= room {
                    break;
                }
                if token != INVISIBLE && !(is_step(token) && token == self.last) {
                    found = Some(token);
                    break;
                }
                invisible += u64::from(token == INVISIBLE);
                passed += 1;
            }
            if rest.is_empty() {
                (passed, invisible) = (1, 1);
            }
            self.left_out += invisible;
            if passed > 0 {
                // The last instruction that was the same stays what it is.
                let before = self.before;
                self.pass_in_block(passed);
                self.before = before;
            }
            if let Some(token) = found {
                return Next::Token(token);
            }
        }
    }

    /// The instructions of the next block that are not past.
    fn rest_of_block<'t>(&self, tokens: &'t Tokens<'_>) -> &'t [u32] {
        let local = self.front_block().and_then(|block| self.known.local(block));
        let content = local.map_or(&[][..], |local| tokens.content(local.content));
        content
            .get(self.front.within() as usize..)
            .unwrap_or_default()
    }

    /// Goes past the next instruction, of this token.
    pub(super) fn take(&mut self, token: u32) {
        self.last = token;
        self.pass_in_block(1);
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
        while let Some(mark) = self.front_mark.peek(&self.marks)
            && mark.at <= at
        {
            match mark.what {
                What::Enter {
                    function,
                    depth,
                    kind,
                    tsc,
                } => {
                    let open = Open {
                        function,
                        depth,
                        kind,
                    };
                    self.enter(open, tsc);
                }
                What::Leave { depth } => self.leave(depth),
                What::Reset => self.reset(),
                What::Gap => return,
            }
        }
    }

    /// The next mark is that of a call.
    fn enter(&mut self, open: Open, tsc: Option<Tsc>) {
        let (function, depth) = (open.function, open.depth);
        while self.open.last().is_some_and(|open| open.depth >= depth) {
            self.open.pop();
        }
        self.open.push(open);
        self.depth = depth;
        self.tsc = tsc.or(self.tsc);
        let is_known = |known: &Open| (known.function, known.depth) == (function, depth);
        if let Some(entered) = &mut self.entered
            && entered.len() < ENTERED
            && !entered.iter().any(is_known)
        {
            entered.push(open);
        }
        self.marks.pass(&mut self.front_mark);
    }

    /// The next mark says that a call was left.
    fn leave(&mut self, depth: i32) {
        while self.open.last().is_some_and(|open| open.depth >= depth) {
            self.open.pop();
        }
        self.depth = depth - 1;
        self.marks.pass(&mut self.front_mark);
    }

    /// The next mark says that all calls were left.
    fn reset(&mut self) {
        self.open.clear();
        self.marks.pass(&mut self.front_mark);
    }

    /// From now on, calls that begin are listed.
    pub(super) fn list_entered(&mut self) {
        self.entered = Some(Vec::new());
    }

    /// The calls that began since then; from now on they are not listed.
    pub(super) fn take_entered(&mut self) -> Vec<Open> {
        self.entered.take().unwrap_or_default()
    }

    /// The gaps here, which are gone past.
    pub(super) fn take_gaps(&mut self) -> Vec<Missing> {
        let mut list = Vec::new();
        if self.gaps.front().is_none_or(|gap| gap.at > self.at) {
            return list;
        }
        self.settle_to(self.at);
        while let Some(Mark {
            at,
            what: What::Gap,
        }) = self.front_mark.peek(&self.marks)
            && *at <= self.at
        {
            list.extend(self.gaps.pop_front().map(|gap| gap.missing));
            self.marks.pass(&mut self.front_mark);
            self.settle_to(self.at);
        }
        list
    }

    /// The next place where something happened, of what is at hand.
    fn next_mark(&mut self) -> u64 {
        let mark = self.front_mark.peek(&self.marks);
        mark.map_or(u64::MAX, |mark| mark.at)
    }

    /// Goes on up to the instruction of this number; gaps on the way are given.
    pub(super) fn skip_to(&mut self, at: u64, tokens: &mut Tokens<'_>) -> Vec<Missing> {
        let mut missing = Vec::new();
        while self.at < at && self.fill(tokens) {
            self.settle_to(self.at);
            missing.extend(self.take_gaps());
            // Where each mark is does not matter to who goes past all of it, so paths need not be cut there.
            self.settle_to(at - 1);
            let next = self.next_mark().min(at);
            self.skip_within(next);
        }
        self.together = self.at;
        self.settle();
        self.begin_anew();
        missing
    }

    /// Goes on to an instruction, or as far as what is at hand goes, by one at least.
    fn skip_within(&mut self, to: u64) {
        let start = self.at;
        while self.at < to || self.at == start {
            if let Some(path) = self.whole_path().copied()
                && self.at + u64::from(path.insns) <= to
            {
                self.pass_path(&path);
                continue;
            }
            let Some(block) = self.front_block() else {
                return;
            };
            let rest = u64::from(self.known.len_of(block) - self.front.within());
            let far = rest.min(to.saturating_sub(self.at).max(1));
            self.pass_in_block(far as u32);
        }
    }

    /// Takes account of what happened, of what is at hand, as long as the innermost call is within one of this depth, and up to the next gap. Where the
    /// next mark is. Where each of them is does not matter to who goes past all of it, so paths need not be cut there.
    fn settle_deeper(&mut self, depth: i32) -> u64 {
        while let Some(mark) = self.front_mark.peek(&self.marks) {
            match mark.what {
                What::Enter {
                    function,
                    depth: at,
                    kind,
                    tsc,
                } if at > depth => {
                    let open = Open {
                        function,
                        depth: at,
                        kind,
                    };
                    self.enter(open, tsc);
                }
                What::Leave { depth: at } if at - 1 > depth => self.leave(at),
                What::Reset => self.reset(),
                _ => return mark.at,
            }
        }
        u64::MAX
    }

    /// Goes on until a call of this depth, or one around it, is the innermost; `false` if none ever is.
    pub(super) fn skip_out(&mut self, depth: i32, tokens: &mut Tokens<'_>) -> (bool, Vec<Missing>) {
        let mut missing = Vec::new();
        loop {
            self.settle_to(self.at);
            missing.extend(self.take_gaps());
            self.together = self.at;
            if self.depth <= depth {
                self.begin_anew();
                return (true, missing);
            }
            if !self.fill(tokens) {
                return (false, missing);
            }
            // What was taken now may tell of something that happened here.
            let next = self.settle_deeper(depth);
            if next > self.at {
                self.skip_within(next);
            }
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
        let at = &self.known.local(block)?.at;
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
        let (mut cursor, mut at) = (self.front, self.at);
        while list.len() < most && self.gaps.front().is_none_or(|gap| at < gap.at) {
            let Some(block) = self.queue.block(&cursor, &self.known) else {
                if self.may_pull() && self.pull(tokens) {
                    continue;
                }
                break;
            };
            list.extend(self.spot(block, cursor.within()));
            self.queue.advance(&mut cursor, 1, &self.known);
            at += 1;
        }
        list
    }
}
