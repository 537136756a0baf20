//! The walk along the graph of decisions: where nothing but TNT bits and TIP packets decides.

use cofi_insn::{Class, CodeSource};
use cofi_packet::Ip;

use super::{Phase, Walker};
use crate::bind::State;
use crate::bind::{Binder, Pending};
use crate::block::{Block, Path, Place, Visitor};
use crate::code::cache::End;
use crate::code::graph::{Decision, Node};
use crate::code::index::NONE;
use crate::decoder::{FlowDecoder, Piece, on};
use crate::family::{IntelPt, WalkFamily};
use crate::reader::ahead::Decision as Next;
use crate::{Item, Run};

/// Fewer bits are not worth looking a path up.
const LEAST_BITS: u8 = 3;
/// With fewer bits, more are read before a path is looked up.
const MANY_BITS: u8 = 8;

/// Where the node that comes next is to be noted.
#[derive(Clone, Copy)]
enum From {
    Nowhere,
    /// As a target of TIPs.
    Target,
    /// As what comes after a node, by this edge.
    Node(u32, usize),
    /// As what a call returns to.
    Site(u32),
}

/// What decides next, and how far that leads.
#[derive(Clone, Copy)]
enum Step {
    /// Packets that came before, by the number of the phrase, and where they begin.
    Phrase(u32, usize),
    /// TNT bits that came before, by the number of the path.
    Path(u32),
    /// A TNT bit, at a conditional branch.
    Bit,
    /// A TNT bit, at a compressed return.
    Return,
    /// A TIP, at a near branch.
    Tip(Ip),
}

impl<C: CodeSource> FlowDecoder<'_, C> {
    /// Calls `visit` for each block that ran, up to the next event or error, which is returned; `None` at the end of the stream.
    ///
    /// This is the fastest way through a flow, and may be mixed with the others. An [`Item::Insn`] is never returned.
    pub fn blocks(&mut self, mut visit: impl FnMut(&Block<'_>)) -> Option<Item> {
        self.paths(|path| path.for_each(&mut visit))
    }

    /// The same, by as many blocks at a time as are known to belong together: for those who count, this is faster still.
    pub fn paths(&mut self, mut visit: impl FnMut(&Path<'_>)) -> Option<Item> {
        on!(&mut self.bind, bind => self.walk.paths(bind, &mut visit))
    }

    /// Goes through the whole flow, block by block.
    pub fn visit(&mut self, visitor: &mut impl Visitor) {
        while let Some(item) = self.paths(|path| visitor.path(path)) {
            match item {
                Item::Insn(insn) => visitor.instruction(&insn),
                Item::Event(event) => visitor.event(&event, self.offset()),
                Item::Error(error) => visitor.error(&error),
            }
        }
    }
}

impl<C: CodeSource> Walker<C> {
    fn paths<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
        visit: &mut impl FnMut(&Path<'_>),
    ) -> Option<Item> {
        loop {
            if bind.state == State::On && self.phase == Phase::Enter && self.body.is_empty() {
                self.walk_graph(bind, visit);
            }
            match self.next_piece(bind)? {
                Piece::Item(Item::Insn(insn)) => {
                    visit(&Path::of_block(Block::of_run(Run::single(
                        insn,
                        bind.offset,
                    ))));
                }
                Piece::Item(item) => return Some(item),
                Piece::Run {
                    ip,
                    mode,
                    plain,
                    last,
                    offset,
                } => {
                    let run = Run {
                        ip,
                        mode,
                        plain: self.cache.lens(plain.clone()),
                        digests: self.cache.digests(plain),
                        last,
                        offset,
                    };
                    visit(&Path::of_block(Block::of_run(run)));
                }
            }
        }
    }

    /// Makes sure that there is a TNT bit, the target of an indirect branch, or the end of tracing; `false` where something else
    /// comes first.
    #[inline]
    fn has_decision<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>) -> bool {
        if bind.tnt_len != 0 {
            return true;
        }
        match bind.pending {
            Pending::None => {
                match F::next_decision(bind) {
                    Next::Tnt => return true,
                    Next::Tip(ip) => {
                        bind.await_tip(ip);
                        return true;
                    }
                    Next::Other => {}
                }
                F::fetch(bind, self);
                F::heed_errata(self, bind);
                bind.emit.items.is_empty() && (bind.tnt_len != 0 || bind.pending.is_decision())
            }
            pending => pending.is_decision(),
        }
    }

    /// Follows the flow from node to node as long as every node ends with a branch of which the trace tells the outcome next.
    fn walk_graph<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
        visit: &mut impl FnMut(&Path<'_>),
    ) {
        let mut id = NONE;
        let mut from = From::Nowhere;
        let mut walked = false;
        let nodes = self.cache.graph.count();
        if self.cache.graph.memo.warm_up(nodes) {
            self.cache.graph.phrases.begin();
        }
        loop {
            if id != NONE {
                self.ip = self.cache.graph.node(id).ip;
            }
            // Code is looked at only when it is certain to run: an event that comes first may change it.
            if !bind.emit.items.is_empty() || !self.has_decision(bind) {
                break;
            }
            if id == NONE
                && bind.tnt_len == 0
                && matches!(bind.pending, Pending::Pgd(_))
                && !self.may_look_ahead(bind)
            {
                break;
            }
            if id == NONE {
                id = self.resolve(bind, from);
            }
            self.guard.look(bind.used);
            if !walked
                && self.guard.has_come(self.cache.walked(id)) > bind.config.max_packetless_run
            {
                break;
            }
            if !bind.pending.is_decision() {
                let before = (bind.tnt_len, bind.used);
                (id, from) = self.walk_run(bind, id, visit);
                walked |= (bind.tnt_len, bind.used) != before;
                if id == NONE || bind.tnt_len == 0 && !bind.pending.is_decision() {
                    continue;
                }
            }
            let Some(next) = self.leave(bind, id, visit) else {
                self.ip = self.cache.graph.node(id).ip;
                break;
            };
            walked = true;
            (id, from) = next;
        }
        if let Some(bind) = F::reads_ahead(bind) {
            bind.give_back();
        }
        if walked {
            self.guard.reset();
            self.last_edge = (NONE, 0);
        }
    }

    /// Goes on as long as TNT bits and the TIPs of near branches lead to nodes that are known, by phrases and paths where these are. Returns the
    /// node that comes next or, if it is not known yet, where to note it.
    fn walk_run<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
        mut id: u32,
        visit: &mut impl FnMut(&Path<'_>),
    ) -> (u32, From) {
        let reads_on = F::reads_ahead(bind).is_some_and(|bind| bind.reads_on());
        let mut has_more = true;
        // Behind a TIP or a phrase, and where the walk begins.
        let mut may_begin = true;
        loop {
            let step = 'step: {
                if bind.tnt_len == 0 {
                    let Some(bind) = F::reads_ahead(bind).filter(|_| reads_on) else {
                        return (id, From::Nowhere);
                    };
                    if may_begin && self.cache.graph.phrases.are_wanted() {
                        if let Some((number, at)) = self.phrase(bind, id) {
                            break 'step Step::Phrase(number, at);
                        }
                        may_begin = false;
                    }
                    match bind.next_of_run() {
                        Next::Tnt => has_more = bind.ahead.goes_on(),
                        Next::Other => return (id, From::Nowhere),
                        Next::Tip(ip) => match self.cache.graph.node(id).decision {
                            Decision::Return | Decision::Indirect => break 'step Step::Tip(ip),
                            _ => {
                                bind.await_tip(ip);
                                return (id, From::Nowhere);
                            }
                        },
                    }
                } else if bind.tnt_len < MANY_BITS && has_more {
                    has_more = F::reads_ahead(bind).is_some_and(|bind| bind.read_ahead());
                }
                if F::HAS_STACK
                    && bind.tnt_len >= LEAST_BITS
                    && let Some(number) = self.cache.graph.path(id, bind.tnt, bind.tnt_len)
                {
                    let path = self.cache.graph.memo.path(number);
                    if self.returns.has_room(path.deepest) {
                        break 'step Step::Path(number);
                    }
                }
                match self.step(bind, id) {
                    Some(step) => step,
                    None => return (id, From::Nowhere),
                }
            };
            may_begin |= matches!(step, Step::Tip(_));
            match self.take(bind, id, step, visit) {
                (NONE, from) => return (NONE, from),
                (next, _) => id = next,
            }
        }
    }

    /// How a TNT bit decides at the end of a node; none if that needs more care.
    #[inline(always)]
    fn step<F: WalkFamily>(&self, bind: &Binder<'_, F>, id: u32) -> Option<Step> {
        let node = self.cache.graph.node(id);
        match node.decision {
            Decision::Conditional => Some(Step::Bit),
            Decision::Return => {
                let is_known = node.has_calls() || !self.returns.is_empty();
                (bind.tnt >> 63 == 1 && is_known).then_some(Step::Return)
            }
            _ => None,
        }
    }

    /// Runs what a step is; the node behind it and, if that is not known yet, where to note it.
    ///
    /// There is one call of `visit`, so that it becomes part of the loop.
    #[inline(always)]
    fn take<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
        id: u32,
        step: Step,
        visit: &mut impl FnMut(&Path<'_>),
    ) -> (u32, From) {
        let graph = &self.cache.graph;
        visit(&match step {
            Step::Phrase(number, at) => {
                Path::of_phrase(&self.cache, graph.phrases.phrase(number), at)
            }
            Step::Path(number) => Path::of_path(&self.cache, graph.memo.path(number), bind.place()),
            Step::Bit | Step::Return => Path::of_node(&self.cache, id, bind.place()),
            Step::Tip(_) => Path::of_node(&self.cache, id, Place::At(bind.read_at)),
        });
        match step {
            Step::Phrase(number, at) => {
                let phrase = graph.phrases.phrase(number);
                if let Some(bind) = F::reads_ahead(bind) {
                    bind.use_phrase(phrase, at);
                }
                (phrase.end, From::Nowhere)
            }
            Step::Path(number) => {
                let path = graph.memo.path(number);
                for (ip, site) in graph.memo.open_calls(path) {
                    self.returns.push_site(*ip, *site);
                }
                bind.use_bits(path.bits);
                (path.end, From::Nowhere)
            }
            Step::Bit => {
                let node = graph.node(id);
                if node.has_calls() {
                    for (ip, site) in graph.calls(node) {
                        self.returns.push_site(ip, site);
                    }
                }
                let edge = (bind.tnt >> 63) as usize;
                bind.use_bits(1);
                let next = node.next[edge];
                if next == NONE {
                    self.ip = graph.detail(id).ways[edge];
                }
                self.cache.graph.memo.walked();
                (next, From::Node(id, edge))
            }
            Step::Return => {
                let node = *graph.node(id);
                bind.use_bits(1);
                let Some((mut ip, site)) = self.call_and_return(&node) else {
                    // (There is one: see `step`.)
                    return (NONE, From::Nowhere);
                };
                if bind.mode.bits() < 64 {
                    // The stack holds no more than the mode's width of what a wider caller may have pushed.
                    ip = Ip(ip.0 & 0xffff_ffff);
                }
                self.ip = ip;
                let next = self.cache.graph.after_call(site, ip, bind.mode);
                (next, From::Site(site))
            }
            Step::Tip(ip) => {
                let node = *graph.node(id);
                self.call_and_return(&node);
                bind.consumed();
                self.ip = ip;
                (self.cache.graph.target(ip, bind.mode), From::Target)
            }
        }
    }

    /// The phrase that comes next, and where it begins, if the packets came before from here; what it does to the stack of calls is done.
    #[inline]
    fn phrase(&mut self, bind: &mut Binder<'_, IntelPt>, id: u32) -> Option<(u32, usize)> {
        bind.end_run();
        let (bytes, at) = bind.reader.window(&bind.ahead)?;
        let last_ip = bind.reader.own.last_ip;
        let graph = &mut self.cache.graph;
        let found = graph.phrase(id, bytes, last_ip, &self.returns);
        let phrases = &mut graph.phrases;
        let found = found
            .filter(|number| phrases.call_and_return(phrases.phrase(*number), &mut self.returns));
        phrases.note_try(found.is_some());
        Some((found?, at))
    }

    /// Runs a node that ends with another branch whose outcome is there, and tells what comes next; `None` if it is to be walked
    /// run by run.
    #[inline]
    fn leave<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
        id: u32,
        visit: &mut impl FnMut(&Path<'_>),
    ) -> Option<(u32, From)> {
        let node = *self.cache.graph.node(id);
        if bind.tnt_len != 0 {
            let step = self
                .step(bind, id)
                .filter(|_| node.decision == Decision::Return)?;
            return Some(self.take(bind, id, step, visit));
        }
        match (node.decision, bind.pending) {
            (Decision::Careful, _) | (Decision::Conditional, Pending::Tip(_)) => None,
            (Decision::Far, Pending::Tip(Some(ip))) => {
                visit(&Path::of_node(&self.cache, id, Place::At(bind.read_at)));
                self.call_and_return(&node);
                bind.consumed();
                bind.drop_pending();
                self.ip = ip;
                bind.apply_at(ip);
                Some((NONE, From::Nowhere))
            }
            (_, Pending::Tip(Some(ip))) => {
                let next = self.take(bind, id, Step::Tip(ip), visit);
                bind.drop_pending();
                if bind.bound.is_empty() {
                    return Some(next);
                }
                // The mode may be another.
                bind.apply_at(ip);
                Some((NONE, From::Nowhere))
            }
            (_, Pending::Pgd(ip)) if !self.leaves_before(id, ip) => {
                visit(&Path::of_node(&self.cache, id, Place::At(bind.read_at)));
                // No return is compressed that goes back across the end of tracing, to behind the call at the end of the node.
                let calls = self.cache.graph.calls(&node);
                let count = calls.size_hint().0 - usize::from(self.calls_at_end(id));
                for (ip, site) in calls.take(count) {
                    self.returns.push_site(ip, site);
                }
                if node.decision == Decision::Return {
                    self.returns.pop();
                }
                let [after, target] = self.cache.graph.detail(id).ways;
                let place = match node.decision {
                    Decision::Conditional => ip.or_else(|| F::left_ranges(bind, after, target)),
                    _ => ip,
                };
                bind.end_tracing(self, after, place);
                Some((NONE, From::Nowhere))
            }
            _ => None,
        }
    }

    /// Whether the node here can be put together without looking at code behind a direct branch, at which tracing may have ended.
    fn may_look_ahead<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>) -> bool {
        if self.cache.graph.find(self.ip, bind.mode).is_some() {
            return true;
        }
        let run = self.cache.straight(self.ip, bind.mode, &mut self.code);
        let run = self.cache.block(run);
        run.end == End::Insn && run.class.needs_packet()
    }

    /// Whether tracing may have ended at a direct branch of a node, rather than at its end.
    fn leaves_before(&self, id: u32, ip: Option<Ip>) -> bool {
        let Some((_, before)) = self.cache.graph.parts(id).split_last() else {
            return true;
        };
        before.iter().any(|part| {
            let straight = self.cache.block(*part);
            ip.is_none() || ip == Some(straight.target)
        })
    }

    /// Whether a node ends with an indirect call.
    fn calls_at_end(&self, id: u32) -> bool {
        let last = self.cache.graph.parts(id).last();
        last.is_some_and(|part| self.cache.block(*part).class == Class::IndirectCall)
    }

    /// Does to the stack of return addresses what the calls of a node and the return at its end do.
    #[inline]
    fn call_and_return(&mut self, node: &Node) -> Option<(Ip, u32)> {
        for (ip, site) in self.cache.graph.calls(node) {
            self.returns.push_site(ip, site);
        }
        match node.decision {
            Decision::Return => self.returns.pop_site(),
            _ => None,
        }
    }

    /// The node where control is, which is noted where it will be looked for the next time.
    #[inline(never)]
    fn resolve<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>, from: From) -> u32 {
        let emptied = self.cache.graph.emptied;
        let id = self.cache.node_at(self.ip, bind.mode, &mut self.code);
        if self.cache.graph.emptied == emptied {
            match from {
                From::Nowhere => {}
                From::Target => self.cache.graph.note_target(self.ip, bind.mode, id),
                From::Node(node, way) => self.cache.graph.link(node, way, id),
                From::Site(site) => {
                    self.cache.graph.link_site(site, self.ip, bind.mode, id);
                }
            }
        }
        id
    }
}
