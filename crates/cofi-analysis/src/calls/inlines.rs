//! Functions that were inlined, as calls.
//!
//! Nothing executes such a call. The ranges in the DWARF say of which inlined functions an instruction is a part; where that changes along
//! what ran, calls of the kind [`Inline`](CallKind::Inline) begin and are left. They lie in the frame of the function into which they were
//! inlined, and go with it. They are kept apart from frames, as the rules of calls do not know them.

use cofi_image::{ImageView, LineFinder};
use cofi_packet::Ip;
use cofi_session::compact;
use rustc_hash::FxHashMap;

use super::names::CallNames;
use super::shapes::Hop;
use super::thread::{Around, Thread};
use super::{Call, CallEnd, CallKind, CallVisitor, FunctionId, Left};

/// Inlined functions within each other, by the innermost of them. 0 is none at all.
pub(crate) type Chain = u32;

/// From an instruction of a block on, it is these inlined functions that run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// How many of the block's instructions come before.
    pub(crate) insns: u32,
    pub(crate) ip: Ip,
    pub(crate) chain: Chain,
}

/// The chains seen.
#[derive(Debug, Default)]
pub(crate) struct Inlines {
    lines: LineFinder,
    list: Vec<Link>,
    numbers: FxHashMap<ChainKey, Chain>,
    /// What the chains are numbered by that were found here.
    keys: Vec<ChainKey>,
}

/// The chain around one, its innermost function, and where that was inlined.
pub(super) type ChainKey = (Chain, FunctionId, u64);

/// [`Inlines`], as they are kept.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct SavedChains {
    list: Vec<Link>,
    numbers: Vec<(ChainKey, Chain)>,
}

impl SavedChains {
    /// Whether each chain lies within one before it, and all functions are among so many.
    pub(super) fn is_sound(&self, functions: usize) -> bool {
        let is_sound = |(index, link): (usize, &Link)| {
            let outer = link.outer as usize;
            let depth = outer
                .checked_sub(1)
                .map_or(Some(0), |outer| Some(self.list.get(outer)?.depth));
            outer <= index
                && depth.is_some_and(|depth| link.depth == depth + 1)
                && link.function.index() < functions
        };
        let has = |chain: Chain| chain as usize <= self.list.len();
        let named = self.numbers.iter();
        self.list.iter().enumerate().all(is_sound)
            && named
                .clone()
                .all(|((outer, of, _), chain)| has(*outer) && has(*chain) && of.index() < functions)
    }

    /// How many chains there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }
}

/// The innermost of a chain.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Link {
    /// The chain around it.
    outer: Chain,
    depth: u32,
    function: FunctionId,
}

impl Inlines {
    /// The inlined functions of which the instruction at `ip` is a part.
    pub(crate) fn at(&mut self, view: &ImageView<'_>, names: &mut CallNames, ip: Ip) -> Chain {
        let Some(place) = view.place(ip) else {
            return 0;
        };
        let mut chain = 0;
        for inlined in self.lines.inlined(&place) {
            let function = names.inlined(&place, &inlined.name);
            chain = self.number((chain, function, inlined.instance));
        }
        chain
    }

    /// The number of a chain.
    pub(super) fn number(&mut self, key: ChainKey) -> Chain {
        let (outer, function, _) = key;
        let next = self.list.len() as Chain + 1;
        let chain = *self.numbers.entry(key).or_insert(next);
        if chain == next {
            let depth = self.depth(outer) + 1;
            self.list.push(Link {
                outer,
                depth,
                function,
            });
            self.keys.push(key);
        }
        chain
    }

    /// What the chains from the one of this index on are numbered by, if all were found here.
    pub(super) fn since(&self, first: usize) -> &[ChainKey] {
        self.keys.get(first..).unwrap_or_default()
    }

    /// The chains, as they are kept.
    pub(super) fn saved(&self) -> SavedChains {
        let numbers = self.numbers.iter().map(|(key, chain)| (*key, *chain));
        let mut numbers: Vec<(ChainKey, Chain)> = numbers.collect();
        // The same chains are the same bytes.
        compact::sort_by_key(&mut numbers, |(_, chain)| *chain);
        SavedChains {
            list: self.list.clone(),
            numbers,
        }
    }

    /// What [`saved`](Self::saved) gave.
    pub(super) fn of_saved(saved: SavedChains) -> Self {
        Self {
            lines: LineFinder::new(),
            list: saved.list,
            numbers: saved.numbers.into_iter().collect(),
            keys: Vec::new(),
        }
    }

    #[inline]
    fn get(&self, chain: Chain) -> Option<&Link> {
        self.list.get((chain as usize).checked_sub(1)?)
    }

    /// The chain around one, and the function that is its innermost; none of none.
    #[inline]
    pub(super) fn link(&self, chain: Chain) -> Option<(Chain, FunctionId)> {
        let link = self.get(chain)?;
        Some((link.outer, link.function))
    }

    #[inline]
    fn depth(&self, chain: Chain) -> u32 {
        self.get(chain).map_or(0, |link| link.depth)
    }

    /// What two chains have in common.
    pub(super) fn common(&self, mut one: Chain, mut other: Chain) -> Chain {
        while one != other {
            let longer = match self.depth(one) > self.depth(other) {
                true => &mut one,
                false => &mut other,
            };
            let Some((outer, _)) = self.link(*longer) else {
                return 0;
            };
            *longer = outer;
        }
        one
    }
}

/// An open call of a function that was inlined.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct InlineFrame {
    pub(crate) call: Call,
    pub(super) chain: Chain,
    /// Which frame of the stack it lies in.
    pub(crate) owner: usize,
    /// The instructions of its stack when it began.
    pub(super) begin: u64,
    /// Those of the stream.
    pub(crate) at: u64,
    pub(crate) self_insns: u64,
}

impl Thread {
    /// A block has run, of whose instructions these are parts of inlined functions. Gives how many of the block's instructions are counted.
    #[inline(never)]
    pub(super) fn inlined_and_hops<V: CallVisitor + ?Sized>(
        &mut self,
        spans: &[Span],
        hops: &[Hop],
        inlines: &Inlines,
        around: &mut Around<'_, '_, V>,
    ) -> u32 {
        let mut done = 0;
        let mut spans = spans.iter().peekable();
        let mut hops = hops.iter().peekable();
        loop {
            let next = hops.peek().map_or(u32::MAX, |hop| hop.insns);
            // A branch is the last instruction before its target.
            if let Some(span) = spans.next_if(|span| span.insns < next) {
                self.total += u64::from(span.insns - done);
                done = span.insns;
                self.inline(span.ip, span.chain, inlines, around);
            } else if let Some(hop) = hops.next() {
                self.total += u64::from(hop.insns - done);
                done = hop.insns;
                self.hop(hop, around);
            } else {
                return done;
            }
        }
    }

    /// These inlined functions are what runs of the innermost call.
    pub(super) fn inline<V: CallVisitor + ?Sized>(
        &mut self,
        ip: Ip,
        chain: Chain,
        inlines: &Inlines,
        around: &mut Around<'_, '_, V>,
    ) {
        let Some(owner) = self.stack.frames.len().checked_sub(1) else {
            // Which call it is will be known later.
            return;
        };
        let now = self.stack.inlined().map_or(0, |inline| inline.chain);
        if now == chain {
            return;
        }
        self.tell_stub(around);
        let common = inlines.common(now, chain);
        self.count();
        self.leave_inlines_down_to(common, around);
        let mut chain = chain;
        let mut new = Vec::new();
        while chain != common
            && let Some((outer, function)) = inlines.link(chain)
        {
            new.push((chain, function));
            chain = outer;
        }
        for (chain, function) in new.into_iter().rev() {
            let begin = self.now(around);
            let from = (CallKind::Inline, Some(ip));
            let call = Call {
                function,
                ..self.call_of(from, ip, self.depth() + 1, begin)
            };
            let inline = InlineFrame {
                call: Call {
                    number: self.number(),
                    parent: self.stack.innermost(),
                    ..call
                },
                chain,
                owner,
                begin: self.stack.own(self.total),
                at: self.total.wrapping_add(self.of_others),
                self_insns: 0,
            };
            around.visitor.enter(&inline.call, around.names);
            self.stack.inlines.push(inline);
        }
    }

    /// Leaves the inlined functions of the innermost call, but for those of a chain.
    pub(super) fn leave_inlines_down_to<V: CallVisitor + ?Sized>(
        &mut self,
        chain: Chain,
        around: &mut Around<'_, '_, V>,
    ) {
        let is_left = |inline: &InlineFrame| inline.chain != chain;
        while self.stack.inlined().is_some_and(is_left) {
            self.leave_inline(Left::Return, around);
        }
    }

    /// Leaves the innermost inlined function.
    fn leave_inline<V: CallVisitor + ?Sized>(
        &mut self,
        left: Left,
        around: &mut Around<'_, '_, V>,
    ) {
        if let Some(inline) = self.stack.inlines.pop() {
            self.tell_inline_left(&inline, left, around);
        }
    }

    /// Leaves the inlined functions that lie in the frame at `owner`, or further in.
    pub(super) fn leave_inlines<V: CallVisitor + ?Sized>(
        &mut self,
        owner: usize,
        left: Left,
        around: &mut Around<'_, '_, V>,
    ) {
        while self
            .stack
            .inlines
            .last()
            .is_some_and(|inline| inline.owner >= owner)
        {
            self.leave_inline(left, around);
        }
    }

    pub(super) fn tell_inline_left<V: CallVisitor + ?Sized>(
        &self,
        inline: &InlineFrame,
        left: Left,
        around: &mut Around<'_, '_, V>,
    ) {
        let end = CallEnd {
            end: self.now(around),
            insns: self.stack.own(self.total).wrapping_sub(inline.begin),
            self_insns: inline.self_insns,
            left,
        };
        around.visitor.leave(&inline.call, &end, around.names);
    }
}
