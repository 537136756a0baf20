//! Most calls begin by a call instruction at a function's first instruction, and return to behind it. Who only counts is told of those in brief,
//! and of the inlined functions that run in them.
//!
//! A [`Frame`] holds all that any rule may ask. These calls need little of that, as long as nothing but such calls and returns happens: so they are
//! kept in [`BriefFrame`]s, on top of the frames of the stack in use. Before anything else happens, frames are made of them: each of them
//! once at most. So the rules see the stack that they would have seen, and it never costs much more than without.

use cofi_insn::Class;
use cofi_packet::{Ip, StreamOffset, Tsc};
use cofi_session::Task;

use super::inlines::{Chain, InlineFrame, Inlines};
use super::names::{CallNames, Location};
use super::shapes::Transfer;
use super::thread::{Around, Coming, DEEPEST, Thread};
use super::tracks::{Known, Step, StepKind, back};
use super::{Call, CallKind, CallMoment, CallVisitor, FunctionId};

/// A call that was told of in brief, and returned.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BriefCall {
    /// The function.
    pub function: FunctionId,
    /// Whether it was called, or inlined.
    pub kind: CallKind,
    /// How many instructions of the thread ran before it.
    pub begin: u64,
    /// What [`enter_briefly`](CallVisitor::enter_briefly) returned.
    pub noted: u64,
    /// As in [`Call`](super::Call).
    pub depth: i32,
    /// As in [`Call`](super::Call).
    pub stack: u32,
    /// The thread.
    pub task: Task,
}

/// An open call that was told of in brief.
#[derive(Clone, Copy, Debug)]
struct BriefFrame {
    function: FunctionId,
    /// Of an inlined function, the chain of which it is the innermost; 0 of a call.
    chain: Chain,
    ret: Ip,
    from: Ip,
    to: Ip,
    number: i64,
    self_insns: u64,
    noted: u64,
    /// When it began.
    insns: u64,
    tsc: Option<Tsc>,
    cycles: u64,
}

/// The open calls that were told of in brief, on top of the frames of the stack in use.
#[derive(Debug, Default)]
pub(crate) struct BriefFrames {
    list: Vec<BriefFrame>,
    /// How deep the first of them lies.
    depth: i32,
    /// When the leaf at hand began, and what was noted of that.
    leaf: (u64, u64),
    /// Room for the inlined functions that begin together, the innermost first.
    entered: Vec<(Chain, FunctionId)>,
}

/// What a step along a path is to whoever is told of calls in brief, worked out once for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BriefStep {
    pub(super) kind: BriefKind,
    /// How many of the path's instructions have run by then, and how far before the path's last packet the one begins that led there.
    pub(super) insns: u32,
    pub(super) behind: Option<u32>,
    /// Of a leaf, the same for its return.
    pub(super) return_insns: u32,
    pub(super) return_behind: Option<u32>,
    /// Which of the path's steps it begins with, and how many these are.
    pub(super) step: u32,
    pub(super) steps: u32,
    /// Of a change of inlined functions, those that run then.
    pub(super) chain: Chain,
    /// Where control goes.
    pub(super) way: Way,
}

/// How control comes to an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// The function there, the instruction, and the one that leads to it.
    pub(super) function: FunctionId,
    pub(super) to: Ip,
    pub(super) from: Ip,
    /// Of a call, where it returns to; else where control goes.
    pub(super) ret: Ip,
    /// The function in which the instruction stands that leads there.
    pub(super) source: FunctionId,
    /// It is the function's first instruction.
    pub(super) is_first: bool,
    /// A symbol names the function.
    pub(super) is_named: bool,
}

impl Way {
    pub(super) const fn of(kind: BriefKind, by: &Transfer, to: Ip, at: &Location) -> Self {
        Self {
            function: at.function,
            to,
            from: by.from,
            ret: match kind {
                BriefKind::Call | BriefKind::StubCall => by.after,
                _ => to,
            },
            source: by.source,
            is_first: at.is_first,
            is_named: at.is_named,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BriefKind {
    Call,
    /// A call of what no symbol names.
    StubCall,
    /// A jump to another function.
    Leap {
        is_indirect: bool,
    },
    /// A call and its return, with nothing in between.
    Leaf,
    Return,
    /// An indirect jump within a function.
    Jump,
    /// Other inlined functions run.
    Inline,
    /// Nothing, as long as the innermost call was told of in brief.
    Stay,
    /// What the rules have to look at.
    Other,
}

impl BriefKind {
    #[inline(always)]
    /// How control comes to a place in a function of whose name nothing is to be known, or of which that is not so.
    pub(super) fn of(by: &Transfer, to: Ip, at: &Location, is_plain: bool) -> Self {
        let is_within = at.function == by.source;
        match by.class {
            Class::Return => Self::Return,
            _ if !is_plain => Self::Other,
            Class::DirectCall | Class::IndirectCall if to == by.after => Self::Other,
            Class::DirectCall | Class::IndirectCall if !at.is_named => Self::StubCall,
            Class::DirectCall | Class::IndirectCall if at.is_first || !is_within => Self::Call,
            Class::DirectJump | Class::Conditional if is_within => Self::Stay,
            Class::IndirectJump | Class::FarJump if is_within => Self::Jump,
            Class::DirectJump | Class::Conditional => Self::Leap { is_indirect: false },
            Class::IndirectJump | Class::FarJump => Self::Leap { is_indirect: true },
            _ => Self::Other,
        }
    }
}

impl BriefStep {
    /// Adds the step of this number to those of a path, which begin at `first` of `list`.
    pub(crate) fn push(
        list: &mut Vec<Self>,
        first: usize,
        step: &Step,
        number: u32,
        names: &CallNames,
    ) {
        let arrival = match &step.kind {
            StepKind::Arrive(by, to, at) => Some((by, *to, at)),
            StepKind::Hop(hop) => Some((&hop.transfer, hop.to, &hop.target)),
            StepKind::Inline(..) => None,
        };
        let mut this = Self {
            kind: BriefKind::Other,
            insns: step.insns,
            behind: step.behind,
            return_insns: 0,
            return_behind: None,
            step: number,
            steps: 1,
            chain: 0,
            way: Way {
                function: FunctionId(0),
                to: Ip(0),
                from: Ip(0),
                ret: Ip(0),
                source: FunctionId(0),
                is_first: false,
                is_named: false,
            },
        };
        if let Some((by, to, at)) = arrival {
            this.kind = BriefKind::of(by, to, at, at.is_plain(names));
            this.way = Way::of(this.kind, by, to, at);
        }
        if let StepKind::Inline(ip, chain) = step.kind {
            (this.kind, this.chain, this.way.to) = (BriefKind::Inline, chain, ip);
        }
        if let Some(call) = list.get_mut(first..).and_then(<[Self]>::last_mut)
            && call.kind == BriefKind::Call
        {
            // A function that was just called has begun with none of its inlined ones.
            let is_nothing = this.kind == BriefKind::Inline && this.chain == 0;
            let returns = this.kind == BriefKind::Return && call.way.ret == this.way.ret;
            if is_nothing || returns {
                call.steps += 1;
            }
            if returns {
                call.kind = BriefKind::Leaf;
                (call.return_insns, call.return_behind) = (this.insns, this.behind);
            }
            if is_nothing || returns {
                return;
            }
        }
        list.push(this);
    }
}

impl Thread {
    /// [`path`](Self::path) for whoever is told of calls in brief.
    pub(crate) fn path_briefly<V: CallVisitor + ?Sized>(
        &mut self,
        known: Known<'_>,
        offset: StreamOffset,
        inlines: &Inlines,
        brief: &mut BriefFrames,
        around: &mut Around<'_, '_, V>,
    ) {
        let track = known.track;
        match self.coming {
            Coming::Straight => {}
            Coming::By(by) if track.goes_on_from(&by) => {}
            coming => {
                let is_told = match &coming {
                    Coming::By(by) => {
                        let kind = BriefKind::of(by, track.ip, &track.at, track.is_plain);
                        let way = Way::of(kind, by, track.ip, &track.at);
                        self.is_told_briefly(kind, &way, brief, around)
                    }
                    _ => false,
                };
                if !is_told {
                    self.settle(brief, around);
                    self.arrive(coming, track.ip, track.at, around);
                }
            }
        }
        let (total, before) = (self.total, around.offset);
        for step in known.brief {
            around.offset = step.behind.map_or(before, |behind| back(offset, behind));
            self.total = total + u64::from(step.insns);
            if step.kind == BriefKind::Leaf {
                if self.may_tell_briefly(brief) {
                    self.enter_leaf(brief, step.way.function, around);
                    let behind = step.return_behind;
                    around.offset = behind.map_or(before, |behind| back(offset, behind));
                    self.total = total + u64::from(step.return_insns);
                    self.leave_leaf(brief, step.way.function, around);
                    continue;
                }
            } else if step.kind == BriefKind::Inline {
                if self.is_inlined_briefly((step.way.to, step.chain), inlines, brief, around) {
                    continue;
                }
            } else if self.is_told_briefly(step.kind, &step.way, brief, around) {
                continue;
            }
            self.settle(brief, around);
            let steps = known.steps.iter().skip(step.step as usize);
            for step in steps.take(step.steps as usize) {
                around.offset = step.offset(offset, before);
                self.total = total + u64::from(step.insns);
                self.step(step, inlines, around);
            }
        }
        self.run_to_end(track, total);
    }

    /// Takes account of a step, if it is one of which the rules need not know. Whether it is.
    #[inline(always)]
    fn is_told_briefly<V: CallVisitor + ?Sized>(
        &mut self,
        kind: BriefKind,
        way: &Way,
        brief: &mut BriefFrames,
        around: &mut Around<'_, '_, V>,
    ) -> bool {
        match kind {
            BriefKind::Call if self.may_tell_briefly(brief) => {
                self.call_briefly(way, brief, around);
                true
            }
            BriefKind::Return if brief.last_returns_to(way.ret) => {
                self.return_briefly(brief, around);
                true
            }
            BriefKind::Stay => brief.call().is_some(),
            BriefKind::Jump => brief.call().is_some_and(|call| call.ret != way.ret),
            _ => false,
        }
    }

    /// Takes account of other inlined functions that run of the innermost call, if that is one of which the rules need not know. Whether it is.
    #[inline(always)]
    fn is_inlined_briefly<V: CallVisitor + ?Sized>(
        &mut self,
        (ip, chain): (Ip, Chain),
        inlines: &Inlines,
        brief: &mut BriefFrames,
        around: &mut Around<'_, '_, V>,
    ) -> bool {
        let now = self.chain(brief);
        if now == chain {
            return true;
        }
        // Without a call, it will be known later in which one they run.
        let is_in_none = brief.list.is_empty() && self.stack.frames.is_empty();
        if is_in_none || !self.may_tell_briefly(brief) {
            return false;
        }
        self.inline_briefly((now, chain), ip, inlines, brief, around);
        true
    }

    /// The inlined functions that run of the innermost call.
    #[inline(always)]
    pub(crate) fn chain(&self, brief: &BriefFrames) -> Chain {
        match brief.list.last() {
            Some(top) => top.chain,
            None => self.stack.inlined().map_or(0, |inline| inline.chain),
        }
    }

    /// Instead of the inlined functions `now`, those of `chain` run.
    fn inline_briefly<V: CallVisitor + ?Sized>(
        &mut self,
        (now, chain): (Chain, Chain),
        ip: Ip,
        inlines: &Inlines,
        brief: &mut BriefFrames,
        around: &mut Around<'_, '_, V>,
    ) {
        let common = inlines.common(now, chain);
        self.count_briefly(brief);
        let moment = around.moment(self.total);
        while let Some(left) = brief.list.pop_if(|top| top.chain != common) {
            self.tell_left_briefly(left.told(), &moment, brief, around);
        }
        if brief.list.is_empty() {
            self.leave_inlines_down_to(common, around);
            brief.depth = self.depth() + 1;
        }
        let mut next = chain;
        while next != common
            && let Some((outer, function)) = inlines.link(next)
        {
            brief.entered.push((next, function));
            next = outer;
        }
        while let Some((chain, function)) = brief.entered.pop() {
            let noted = around
                .visitor
                .enter_briefly(function, CallKind::Inline, &moment);
            let number = self.number();
            let site = (ip, ip, ip);
            let frame = BriefFrame::new((function, chain), site, (number, noted), &moment);
            brief.list.push(frame);
        }
    }

    /// Whether a call that begins now may be told of in brief.
    #[inline(always)]
    fn may_tell_briefly(&self, brief: &BriefFrames) -> bool {
        let is_open = brief.list.is_empty()
            && (self.undecided.is_some() || self.stack.top().is_some_and(|top| top.is_stub));
        !is_open && self.stack.frames.len() + brief.list.len() < DEEPEST
    }

    /// Gives the innermost call what has run since this was done last.
    #[inline(always)]
    fn count_briefly(&mut self, brief: &mut BriefFrames) {
        match brief.list.last_mut() {
            Some(top) => {
                top.self_insns += self.total - self.counted;
                self.counted = self.total;
            }
            None => {
                brief.depth = self.depth() + 1;
                self.count();
            }
        }
    }

    /// A call begins that calls nothing.
    #[inline(always)]
    fn enter_leaf<V: CallVisitor + ?Sized>(
        &mut self,
        brief: &mut BriefFrames,
        function: FunctionId,
        around: &mut Around<'_, '_, V>,
    ) {
        self.count_briefly(brief);
        self.earn();
        self.number();
        let begin = around.moment(self.total);
        let noted = around
            .visitor
            .enter_briefly(function, CallKind::Call, &begin);
        brief.leaf = (begin.insns, noted);
    }

    /// It returns.
    #[inline(always)]
    fn leave_leaf<V: CallVisitor + ?Sized>(
        &mut self,
        brief: &mut BriefFrames,
        function: FunctionId,
        around: &mut Around<'_, '_, V>,
    ) {
        self.counted = self.total;
        let end = around.moment(self.total);
        let (begin, noted) = brief.leaf;
        let left = (function, CallKind::Call, begin, noted);
        self.tell_left_briefly(left, &end, brief, around);
    }

    #[inline(always)]
    fn tell_left_briefly<V: CallVisitor + ?Sized>(
        &self,
        (function, kind, begin, noted): (FunctionId, CallKind, u64, u64),
        end: &CallMoment,
        brief: &BriefFrames,
        around: &mut Around<'_, '_, V>,
    ) {
        let call = BriefCall {
            function,
            kind,
            begin,
            noted,
            depth: brief.depth.saturating_add_unsigned(brief.list.len() as u32),
            stack: self.stack.number,
            task: self.task,
        };
        let outer = brief.list.last().map(|outer| outer.function);
        around.visitor.leave_briefly(&call, end, outer);
    }

    /// A function is called.
    #[inline(always)]
    fn call_briefly<V: CallVisitor + ?Sized>(
        &mut self,
        way: &Way,
        brief: &mut BriefFrames,
        around: &mut Around<'_, '_, V>,
    ) {
        self.count_briefly(brief);
        self.earn();
        let moment = around.moment(self.total);
        let noted = around
            .visitor
            .enter_briefly(way.function, CallKind::Call, &moment);
        let number = self.number();
        let site = (way.to, way.from, way.ret);
        let frame = BriefFrame::new((way.function, 0), site, (number, noted), &moment);
        brief.list.push(frame);
    }

    /// The innermost call, which was told of in brief, returns.
    #[inline(always)]
    fn return_briefly<V: CallVisitor + ?Sized>(
        &mut self,
        brief: &mut BriefFrames,
        around: &mut Around<'_, '_, V>,
    ) {
        self.counted = self.total;
        let end = around.moment(self.total);
        // The inlined functions that run in it are left with it.
        while let Some(left) = brief.list.pop() {
            self.tell_left_briefly(left.told(), &end, brief, around);
            if left.chain == 0 {
                break;
            }
        }
    }

    /// Makes frames of the calls that were told of in brief.
    #[inline]
    pub(crate) fn settle<V: CallVisitor + ?Sized>(
        &mut self,
        brief: &mut BriefFrames,
        around: &mut Around<'_, '_, V>,
    ) {
        if !brief.list.is_empty() {
            self.settle_all(brief, around);
        }
    }

    #[inline(never)]
    fn settle_all<V: CallVisitor + ?Sized>(
        &mut self,
        brief: &mut BriefFrames,
        around: &mut Around<'_, '_, V>,
    ) {
        let mut parent = self.stack.innermost();
        for (depth, brief) in (brief.depth..).zip(brief.list.drain(..)) {
            let begin = CallMoment {
                tsc: brief.tsc,
                cycles: brief.cycles,
                insns: brief.insns,
            };
            let parent = parent.replace(brief.number);
            let numbered = |call: Call| Call {
                function: brief.function,
                number: brief.number,
                parent,
                ..call
            };
            if brief.chain != 0 {
                let from = (CallKind::Inline, Some(brief.from));
                let call = numbered(self.call_of(from, brief.to, depth, begin));
                around.visitor.settled(&call, brief.noted);
                self.stack.inlines.push(InlineFrame {
                    call,
                    chain: brief.chain,
                    owner: self.stack.frames.len().saturating_sub(1),
                    begin: self.stack.own(begin.insns),
                    at: begin.insns.wrapping_add(self.of_others),
                    self_insns: brief.self_insns,
                });
                continue;
            }
            let at = Location {
                function: brief.function,
                is_first: true,
                is_named: true,
                start: None,
            };
            let from = (CallKind::Call, Some(brief.from));
            let mut frame = self.frame(from, (brief.to, at), depth, begin);
            frame.ret = Some(brief.ret);
            frame.self_insns = brief.self_insns;
            frame.call = numbered(frame.call);
            around.visitor.settled(&frame.call, brief.noted);
            self.stack.frames.push(frame);
        }
    }
}

impl BriefFrame {
    /// One that begins: where its first instruction is, from where it was called and where it returns to.
    #[inline(always)]
    fn new(
        (function, chain): (FunctionId, Chain),
        (to, from, ret): (Ip, Ip, Ip),
        (number, noted): (i64, u64),
        begin: &CallMoment,
    ) -> Self {
        Self {
            function,
            chain,
            ret,
            from,
            to,
            number,
            self_insns: 0,
            noted,
            insns: begin.insns,
            tsc: begin.tsc,
            cycles: begin.cycles,
        }
    }

    /// What is told of it when it is left.
    #[inline(always)]
    fn told(&self) -> (FunctionId, CallKind, u64, u64) {
        let kind = match self.chain {
            0 => CallKind::Call,
            _ => CallKind::Inline,
        };
        (self.function, kind, self.insns, self.noted)
    }
}

impl BriefFrames {
    /// The innermost call.
    #[inline(always)]
    fn call(&self) -> Option<&BriefFrame> {
        self.list.iter().rev().find(|frame| frame.chain == 0)
    }

    #[inline(always)]
    fn last_returns_to(&self, to: Ip) -> bool {
        self.call().is_some_and(|call| call.ret == to)
    }
}
