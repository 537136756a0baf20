//! The open calls of a part, as they begin and are left: those of which nothing has to be known that lies beneath them.
//!
//! What happens to a call is what [the rules](super::rules) have happen to it, as long as they would look at the innermost call alone. Anything else is
//! written down, and the open calls before it.

use cofi_packet::{Ip, StreamOffset};
use rustc_hash::FxHashSet;

use super::brief::{BriefKind, BriefStep, Way};
use super::inlines::{Chain, Inlines};
use super::local::{LocalCall, LocalFrame, LocalVisitor, Op, OpKind, StretchEnd, TracedPart};
use super::names::CallNames;
use super::net::{NetPlace, NetStep};
use super::rules::STUB;
use super::thread::Coming;
use super::tracks::{Known, StepKind, Track, back};
use super::{CallKind, FunctionId, Left};

/// So many calls of a part are open at a time; more are written down.
const DEEPEST: usize = 1 << 14;

/// So many targets of jumps are looked at together.
const JUMPS: usize = 1 << 12;

/// What is needed beside the calls.
pub(super) struct LocalAround<'a, 's, V: LocalVisitor> {
    pub(super) inlines: &'a Inlines,
    pub(super) names: &'a CallNames,
    pub(super) part: &'a mut TracedPart<'s, V::Stretch>,
    pub(super) visitor: &'a mut V,
}

/// The calls of a part that are open.
#[derive(Debug, Default)]
pub(super) struct Local {
    frames: Vec<LocalFrame>,
    /// How many of them are of no inlined functions.
    calls: usize,
    /// How many instructions ran.
    pub(super) total: u64,
    /// The place up to which what ran was counted to the innermost call; with what ran in calls that are told of as sums.
    counted: u64,
    /// The packet that led to where control is.
    pub(super) offset: StreamOffset,
    /// How control comes to what runs next; none if whoever follows knows.
    pub(super) coming: Option<Coming>,
    pub(super) last_ip: Ip,
    /// The inlined functions that run of the call beneath.
    beneath: Option<Chain>,
    /// The call beneath is likely to be no stub.
    is_safe: bool,
    with_inlined: bool,
    /// The stretch at hand.
    stretch: StretchEnd,
    jumps: FxHashSet<Ip>,
    /// Something was taken to be true of the call beneath.
    assumes: bool,
    /// Room for the inlined functions that begin together, the innermost first.
    entered: Vec<(Chain, FunctionId)>,
}

impl Local {
    /// None are open.
    pub(super) fn new(with_inlined: bool) -> Self {
        Self {
            with_inlined,
            ..Self::default()
        }
    }

    pub(super) fn begin_piece(&mut self) {
        self.coming = None;
        self.is_safe = false;
        self.beneath = None;
    }

    /// The inlined functions that run of the innermost call, if that is known.
    #[inline]
    pub(super) fn chain(&self) -> Option<Chain> {
        match self.frames.last() {
            Some(top) => Some(top.chain),
            None if self.with_inlined => self.beneath,
            None => Some(0),
        }
    }

    /// The innermost call may be a stub.
    pub(super) fn is_in_stub(&self) -> bool {
        self.frames.last().is_some_and(|top| top.is_stub)
    }

    /// The path that ran last.
    #[inline]
    pub(super) fn stand_behind(&mut self, track: &Track, last: StreamOffset) {
        self.coming = Some(track.coming());
        self.last_ip = track.last_ip;
        self.offset = track.offset(last);
    }

    /// The innermost call that began in the stretch, inlined ones apart.
    #[inline]
    fn call(&self) -> Option<&LocalFrame> {
        match self.calls {
            0 => None,
            _ => self.frames.iter().rev().find(|frame| frame.chain == 0),
        }
    }

    /// A path ran. Its calls are told of one by one if what happens `in_order` matters.
    #[inline]
    pub(super) fn path<V: LocalVisitor>(
        &mut self,
        known: Known<'_>,
        last: StreamOffset,
        in_order: bool,
        around: &mut LocalAround<'_, '_, V>,
    ) {
        let (track, total, before) = (known.track, self.total, self.offset);
        match self.coming {
            Some(Coming::Straight) => {}
            Some(Coming::By(by)) if track.goes_on_from(&by) => {}
            Some(Coming::By(by)) => {
                let kind = BriefKind::of(&by, track.ip, &track.at, track.is_plain);
                let way = Way::of(kind, &by, track.ip, &track.at);
                if !self.is_local(kind, &way, around) {
                    let step = StepKind::Arrive(by, track.ip, track.at);
                    self.write_kind(step, around);
                }
            }
            _ => {
                self.flush(around.part, around.visitor);
                self.write(OpKind::Arrive(track.ip, track.at), around.part);
                self.beneath = None;
                self.is_safe = track.is_plain && track.at.is_named;
            }
        }
        if in_order {
            return self.path_in_order(known, last, around);
        }
        for step in known.net {
            match step {
                NetStep::Sum(sum, depth) => {
                    self.tell_stub(around.visitor);
                    // So much less ran in the innermost call.
                    self.counted += u64::from(sum.own);
                    self.stretch.numbers += sum.calls;
                    self.stretch.earned += if sum.is_inlined { 0 } else { sum.calls };
                    let deepest = self.frames.len() + *depth as usize;
                    self.stretch.deepest = self.stretch.deepest.max(deepest);
                    around.visitor.sum(sum);
                }
                NetStep::Enter(place, chain, function) => {
                    self.stand_at(place, (last, before), total);
                    self.tell_stub(around.visitor);
                    self.enter_inlined((place.ip, *chain, *function), around.visitor);
                }
                NetStep::Leave(place, common) => {
                    self.stand_at(place, (last, before), total);
                    self.leave_inlined(place.ip, *common, around);
                }
                NetStep::Chain(place, chain) => {
                    self.stand_at(place, (last, before), total);
                    if !self.is_inlined(place.ip, *chain, around) {
                        self.write_kind(StepKind::Inline(place.ip, *chain), around);
                    }
                }
                NetStep::Brief(number) => {
                    if let Some(step) = known.brief.get(*number as usize) {
                        self.brief(step, &known, (last, before), total, around);
                    }
                }
            }
        }
        self.total = total + u64::from(track.insns);
        self.stand_behind(track, last);
    }

    /// A path runs, to which control has come: its calls are told of one by one.
    #[cold]
    #[inline(never)]
    fn path_in_order<V: LocalVisitor>(
        &mut self,
        known: Known<'_>,
        last: StreamOffset,
        around: &mut LocalAround<'_, '_, V>,
    ) {
        let (total, before) = (self.total, self.offset);
        for step in known.brief {
            self.brief(step, &known, (last, before), total, around);
        }
        self.total = total + u64::from(known.track.insns);
        self.stand_behind(known.track, last);
    }

    /// Control is at a place of the path at hand: of its last packet, and the one before it; so much ran before.
    #[inline]
    fn stand_at(
        &mut self,
        place: &NetPlace,
        (last, before): (StreamOffset, StreamOffset),
        total: u64,
    ) {
        self.offset = place.behind.map_or(before, |behind| back(last, behind));
        self.total = total + u64::from(place.insns);
    }

    /// Takes account of a step.
    #[inline(always)]
    fn brief<V: LocalVisitor>(
        &mut self,
        step: &BriefStep,
        known: &Known<'_>,
        (last, before): (StreamOffset, StreamOffset),
        total: u64,
        around: &mut LocalAround<'_, '_, V>,
    ) {
        self.offset = step.behind.map_or(before, |behind| back(last, behind));
        self.total = total + u64::from(step.insns);
        let is_local = match step.kind {
            BriefKind::Leaf if self.may_call() => {
                self.leaf((step, total), (last, before), around);
                true
            }
            BriefKind::Inline => self.is_inlined(step.way.to, step.chain, around),
            kind => self.is_local(kind, &step.way, around),
        };
        if is_local {
            return;
        }
        let steps = known.steps.iter().skip(step.step as usize);
        for step in steps.take(step.steps as usize) {
            self.offset = step.offset(last, before);
            self.total = total + u64::from(step.insns);
            self.write_kind(step.kind, around);
        }
    }

    /// Whether a call that begins may be followed.
    #[inline]
    fn may_call(&self) -> bool {
        self.frames.len() < DEEPEST
    }

    /// Tells of the innermost call, if nobody was told because it might be a stub.
    #[inline]
    fn tell_stub<V: LocalVisitor>(&mut self, visitor: &mut V) {
        let number = self.stretch.numbers;
        match self.frames.last_mut() {
            Some(stub) if stub.is_stub => {
                (stub.is_stub, stub.number) = (false, number);
                visitor.enter(stub.function, CallKind::Call, stub.begin);
                self.stretch.numbers += 1;
            }
            Some(_) => {}
            // The call beneath is told of, too.
            None => self.is_safe = true,
        }
    }

    /// A call that calls nothing begins and returns.
    #[inline]
    fn leaf<V: LocalVisitor>(
        &mut self,
        (step, total): (&BriefStep, u64),
        (last, before): (StreamOffset, StreamOffset),
        around: &mut LocalAround<'_, '_, V>,
    ) {
        self.tell_stub(around.visitor);
        self.stretch.numbers += 1;
        self.stretch.earned += 1;
        let function = step.way.function;
        around.visitor.enter(function, CallKind::Call, self.total);
        let call = LocalCall {
            function,
            kind: CallKind::Call,
            begin: self.total,
            offset: self.offset,
            depth: self.frames.len() as u32,
            left: Left::Return,
        };
        let behind = step.return_behind;
        self.offset = behind.map_or(before, |behind| back(last, behind));
        self.counted += u64::from(step.return_insns - step.insns);
        self.total = total + u64::from(step.return_insns);
        let outer = self.frames.last().map(|outer| outer.function);
        around
            .visitor
            .leave(&call, (self.total, self.offset), outer);
    }

    /// Takes account of how control comes to an instruction, if that asks for nothing beneath. Whether it does not.
    #[inline]
    fn is_local<V: LocalVisitor>(
        &mut self,
        kind: BriefKind,
        way: &Way,
        around: &mut LocalAround<'_, '_, V>,
    ) -> bool {
        match kind {
            BriefKind::Call if self.may_call() => {
                self.enter(CallKind::Call, way, way.ret, None, around.visitor);
                self.stretch.earned += 1;
                true
            }
            BriefKind::StubCall if self.may_call() => {
                self.tell_stub(around.visitor);
                let frame = self.frame(CallKind::Call, way, way.ret);
                self.push(LocalFrame {
                    is_stub: true,
                    ..frame
                });
                self.stretch.earned += 1;
                true
            }
            BriefKind::Return => match self.call() {
                Some(call) if call.ret == way.ret => {
                    self.tell_stub(around.visitor);
                    self.leave_call(Left::Return, around.visitor);
                    true
                }
                _ => false,
            },
            BriefKind::Stay | BriefKind::Jump if self.calls == 0 => {
                self.is_safe && (kind == BriefKind::Stay || self.jumps_beneath(way.ret)) && {
                    self.assumes = true;
                    true
                }
            }
            BriefKind::Stay | BriefKind::Jump | BriefKind::Leap { .. } => {
                let is_indirect = matches!(
                    kind,
                    BriefKind::Jump | BriefKind::Leap { is_indirect: true }
                );
                self.jump(is_indirect, way, around.visitor)
            }
            _ => false,
        }
    }

    /// A jump to elsewhere in the function of the call beneath: whether it may be taken for one.
    fn jumps_beneath(&mut self, to: Ip) -> bool {
        if self.jumps.len() >= JUMPS {
            return false;
        }
        self.jumps.insert(to);
        self.assumes = true;
        true
    }

    /// A jump, out of a call of the stretch. Whether it asks for nothing beneath.
    fn jump<V: LocalVisitor>(&mut self, is_indirect: bool, way: &Way, visitor: &mut V) -> bool {
        let Some(call) = self.call().copied() else {
            return false;
        };
        if call.is_stub && self.total - call.begin <= STUB {
            if (is_indirect || way.is_named)
                && let Some(stub) = self.frames.last_mut()
            {
                // A stub jumps on: what it jumps to is what was called.
                (stub.function, stub.to) = (way.function, way.to);
                if way.is_named {
                    self.tell_stub(visitor);
                }
            }
            return true;
        }
        self.tell_stub(visitor);
        if is_indirect && call.ret == way.to {
            self.leave_call(Left::Return, visitor);
        } else if way.function != way.source && way.function != call.function {
            if way.is_first && way.is_named {
                let jumper = is_indirect.then_some(way.source);
                self.leave_call(Left::Tail, visitor);
                self.enter(CallKind::Tail, way, call.ret, jumper, visitor);
            } else if way.is_first || is_indirect {
                return false;
            }
        }
        true
    }

    #[inline]
    fn frame(&self, kind: CallKind, way: &Way, ret: Ip) -> LocalFrame {
        LocalFrame {
            function: way.function,
            chain: 0,
            kind,
            is_stub: false,
            ret,
            from: way.from,
            to: way.to,
            jumper: None,
            begin: self.total,
            offset: self.offset,
            number: self.stretch.numbers,
            self_insns: 0,
        }
    }

    /// Gives the innermost call what has run since this was done last.
    #[inline]
    fn count(&mut self) {
        let ran = self.total - self.counted;
        self.counted = self.total;
        match self.frames.last_mut() {
            Some(top) => top.self_insns += ran,
            None => self.stretch.around += ran,
        }
    }

    #[inline]
    fn push(&mut self, frame: LocalFrame) {
        self.count();
        self.calls += usize::from(frame.chain == 0);
        self.frames.push(frame);
        self.stretch.deepest = self.stretch.deepest.max(self.frames.len());
    }

    #[inline(always)]
    fn enter<V: LocalVisitor>(
        &mut self,
        kind: CallKind,
        way: &Way,
        ret: Ip,
        jumper: Option<FunctionId>,
        visitor: &mut V,
    ) {
        self.tell_stub(visitor);
        visitor.enter(way.function, kind, self.total);
        let frame = self.frame(kind, way, ret);
        self.push(LocalFrame { jumper, ..frame });
        self.stretch.numbers += 1;
    }

    /// Leaves the innermost frame.
    #[inline]
    fn leave<V: LocalVisitor>(&mut self, left: Left, visitor: &mut V) -> Option<Chain> {
        let frame = self.frames.pop()?;
        self.counted = self.total;
        self.calls -= usize::from(frame.chain == 0);
        let call = LocalCall {
            function: frame.function,
            kind: frame.kind,
            begin: frame.begin,
            offset: frame.offset,
            depth: self.frames.len() as u32,
            left,
        };
        let outer = self.frames.last().map(|outer| outer.function);
        visitor.leave(&call, (self.total, self.offset), outer);
        Some(frame.chain)
    }

    /// Leaves the innermost call, and the inlined functions that run in it.
    #[inline]
    fn leave_call<V: LocalVisitor>(&mut self, left: Left, visitor: &mut V) {
        while let Some(chain) = self.leave(left, visitor) {
            if chain == 0 {
                break;
            }
        }
    }

    /// Takes account of other inlined functions that run of the innermost call. Whether that asks for nothing beneath.
    #[inline]
    fn is_inlined<V: LocalVisitor>(
        &mut self,
        ip: Ip,
        chain: Chain,
        around: &mut LocalAround<'_, '_, V>,
    ) -> bool {
        let Some(now) = self.chain() else {
            return false;
        };
        if now == chain {
            return true;
        }
        if !self.may_call() {
            return false;
        }
        self.tell_stub(around.visitor);
        let common = around.inlines.common(now, chain);
        self.leave_inlined(ip, common, around);
        let mut next = chain;
        while next != common
            && let Some((outer, function)) = around.inlines.link(next)
        {
            self.entered.push((next, function));
            next = outer;
        }
        while let Some((chain, function)) = self.entered.pop() {
            self.enter_inlined((ip, chain, function), around.visitor);
        }
        true
    }

    /// Leaves the inlined functions of the innermost call, but for those of a chain.
    #[inline]
    fn leave_inlined<V: LocalVisitor>(
        &mut self,
        ip: Ip,
        common: Chain,
        around: &mut LocalAround<'_, '_, V>,
    ) {
        let is_left = |top: &LocalFrame| top.chain != common && top.chain != 0;
        while self.frames.last().is_some_and(is_left) {
            self.leave(Left::Return, around.visitor);
        }
        if self.frames.is_empty() && self.with_inlined && self.beneath != Some(common) {
            // Of the call beneath, some are left.
            self.flush(around.part, around.visitor);
            self.write(OpKind::Step(StepKind::Inline(ip, common)), around.part);
            self.beneath = Some(common);
            self.is_safe = true;
        }
    }

    /// An inlined function begins, the innermost of a chain.
    #[inline]
    fn enter_inlined<V: LocalVisitor>(
        &mut self,
        (ip, chain, function): (Ip, Chain, FunctionId),
        visitor: &mut V,
    ) {
        visitor.enter(function, CallKind::Inline, self.total);
        self.push(LocalFrame {
            function,
            chain,
            kind: CallKind::Inline,
            is_stub: false,
            ret: ip,
            from: ip,
            to: ip,
            jumper: None,
            begin: self.total,
            offset: self.offset,
            number: self.stretch.numbers,
            self_insns: 0,
        });
        self.stretch.numbers += 1;
    }

    fn write<S>(&self, kind: OpKind, part: &mut TracedPart<'_, S>) {
        part.ops.push(Op {
            kind,
            at: self.total,
            offset: self.offset,
        });
    }

    /// Writes down a step.
    #[inline(never)]
    fn write_kind<V: LocalVisitor>(&mut self, kind: StepKind, around: &mut LocalAround<'_, '_, V>) {
        self.flush(around.part, around.visitor);
        let (mut beneath, mut is_safe) = (None, self.is_safe);
        let arrival = match kind {
            StepKind::Arrive(by, to, at) => Some((by, to, at)),
            StepKind::Hop(hop) => Some((hop.transfer, hop.to, hop.target)),
            StepKind::Inline(_, chain) => {
                (beneath, is_safe) = (Some(chain), true);
                None
            }
        };
        if let Some((by, to, at)) = arrival {
            let is_plain = at.is_plain(around.names);
            let kind = BriefKind::of(&by, to, &at, is_plain);
            // What reads the instruction pointer may be a stub.
            is_safe = is_plain && at.is_named && (kind != BriefKind::Other || is_safe);
            if matches!(kind, BriefKind::Call | BriefKind::StubCall) {
                beneath = Some(0);
            }
        }
        self.write(OpKind::Step(kind), around.part);
        (self.beneath, self.is_safe) = (beneath, is_safe);
    }

    /// Writes down the calls that are open, and what was noted and assumed: whoever follows takes account of what comes next.
    pub(super) fn flush<V: LocalVisitor>(
        &mut self,
        part: &mut TracedPart<'_, V::Stretch>,
        visitor: &mut V,
    ) {
        let is_noted = self.stretch.numbers > 0;
        // What ran in a stub is counted with the function to which it jumps.
        let stub = self.frames.last().filter(|top| top.is_stub);
        let end = match stub {
            Some(stub) => stub.begin,
            None => {
                self.count();
                self.total
            }
        };
        self.counted = self.total;
        if is_noted {
            let open = self.frames.iter().filter(|frame| !frame.is_stub);
            let mut open = open.map(|frame| frame.function);
            let stretch = visitor.take(end, &mut open);
            part.noted += V::size(&stretch);
            part.stretches.push(stretch);
        }
        if !is_noted || end < self.total {
            visitor.skip(self.total);
        }
        let mut stretch = std::mem::take(&mut self.stretch);
        stretch.is_noted = is_noted;
        stretch.tells = is_noted || stretch.earned > 0;
        stretch.jumps.extend(self.jumps.drain());
        if is_noted || !self.frames.is_empty() || std::mem::take(&mut self.assumes) {
            part.ops.push(Op {
                kind: OpKind::Stretch(stretch),
                at: end,
                offset: self.offset,
            });
        }
        self.assumes = false;
        self.stretch.begin = self.total;
        if let Some(top) = self.frames.last() {
            self.beneath = Some(top.chain);
            self.is_safe = !top.is_stub;
        }
        for frame in self.frames.drain(..) {
            part.ops.push(Op {
                at: frame.begin,
                offset: frame.offset,
                kind: OpKind::Open(frame),
            });
        }
        self.calls = 0;
    }
}
