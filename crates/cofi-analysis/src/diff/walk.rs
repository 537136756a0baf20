//! Looking ahead on one side.

use super::marks::{MarkCursor, What};
use super::paths::Cursor;
use super::side::Side;
use super::tokens::{INVISIBLE, Tokens, is_step};

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
    /// What comes.
    cursor: Cursor,
    at: u64,
    mark: MarkCursor,
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
            cursor: side.front,
            at: side.at,
            mark: side.front_mark,
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
        while let Some(mark) = self.mark.peek(&side.marks)
            && mark.at <= self.at
        {
            match mark.what {
                What::Enter { depth, .. } => self.depth = depth,
                What::Leave { depth } => self.depth = depth - 1,
                What::Reset => {}
                What::Gap => {
                    self.is_over = true;
                    return;
                }
            }
            self.mark.pass();
        }
        let Some(block) = side.queue.block(&self.cursor, &side.known) else {
            let may_pull = side.may_pull();
            if !may_pull || !side.pull(tokens) {
                self.is_over = true;
                self.is_at_end = may_pull;
            }
            return;
        };
        self.lowest = self.lowest.min(self.depth);
        if self.with_calls && self.depth > self.lowest {
            // What was called stands between.
            self.last = INVISIBLE;
            self.go_past_calls(side);
            return;
        }
        let next = self.mark.peek(&side.marks).map(|mark| mark.at);
        let room = next.map_or(u64::MAX, |at| at - self.at);
        let within = self.cursor.within();
        let rest = u64::from(side.known.len_of(block) - within);
        let far = rest.min(room) as u32;
        let level = match self.with_calls {
            true => i64::from(self.depth) - i64::from(self.base),
            false => 0,
        };
        let local = side.known.local(block);
        let content = local.map_or(&[][..], |local| tokens.content(local.content));
        let range = within as usize..(within + far) as usize;
        for (index, token) in content.get(range).into_iter().flatten().enumerate() {
            if *token == INVISIBLE || is_step(*token) && *token == self.last {
                continue;
            }
            self.last = *token;
            if self.symbols.len() == self.symbols.capacity() {
                // Many may come: not twice the room.
                self.symbols.reserve_exact(self.symbols.len() / 4 + 64);
            }
            self.symbols.push(Symbol {
                key: (level as u64) << 32 | u64::from(*token),
                at: self.at + index as u64,
            });
        }
        self.at += u64::from(far);
        side.queue.advance(&mut self.cursor, far, &side.known);
    }

    /// Goes on to where the innermost call is one that is looked at again, or to a gap, or as far as what is at hand goes. Where calls within begin and
    /// end does not matter, so paths need not be cut there.
    fn go_past_calls(&mut self, side: &Side) {
        let mut to = u64::MAX;
        while let Some(mark) = self.mark.peek(&side.marks) {
            let depth = match mark.what {
                What::Enter { depth, .. } => Some(depth),
                What::Leave { depth } => Some(depth - 1),
                What::Reset => Some(self.depth),
                What::Gap => None,
            };
            match depth.filter(|depth| *depth > self.lowest) {
                Some(depth) => self.depth = depth,
                None => {
                    to = mark.at;
                    break;
                }
            }
            self.mark.pass();
        }
        while self.at < to
            && let Some(path) = side.queue.path(&self.cursor, &side.known)
        {
            if self.cursor.is_at_path() && self.at + u64::from(path.insns) <= to {
                self.at += u64::from(path.insns);
                self.cost += u64::from(path.blocks);
                side.queue.skip_path(&mut self.cursor);
                continue;
            }
            let Some(block) = side.queue.block(&self.cursor, &side.known) else {
                return;
            };
            let rest = u64::from(side.known.len_of(block) - self.cursor.within());
            let far = rest.min(to - self.at);
            self.at += far;
            self.cost += 1;
            side.queue
                .advance(&mut self.cursor, far as u32, &side.known);
        }
    }
}
