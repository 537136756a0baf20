//! The walk along the graph of decisions: where nothing but TNT bits and TIP packets decides.

use cofi_insn::{Class, CodeSource};
use cofi_packet::{ExecMode, Ip, StreamOffset};

use super::step::Piece;
use super::{MAX_TRIED, Phase, Walker};
use crate::bind::{Binder, Pending, State};
use crate::block::{Block, Path, Visitor};
use crate::code::cache::End;
use crate::code::graph::{Decision, Node};
use crate::code::index::NONE;
use crate::code::phrase::Key;
use crate::family::WalkFamily;
use crate::reader::decide::{Decision as Next, Run as Packets};
use crate::{Event, Item, Run};

/// Fewer bits are not worth looking a path up.
const LEAST_BITS: u8 = 3;

/// Who is shown what ran. (A function is called, so that one walk serves all; what is done at each block by a visitor has to be inlined.)
pub(crate) trait Shown {
    fn path(&mut self, path: &Path<'_>);

    /// `false` if this is no place for events: then it is due.
    fn event(&mut self, event: &Event, offset: usize) -> bool;
}

/// By a function.
pub(crate) struct Called<'f>(pub(crate) &'f mut dyn FnMut(&Path<'_>));

impl Shown for Called<'_> {
    #[inline]
    fn path(&mut self, path: &Path<'_>) {
        (self.0)(path);
    }

    #[inline]
    fn event(&mut self, _: &Event, _: usize) -> bool {
        false
    }
}

/// By a visitor.
pub(crate) struct Visited<'v, V>(pub(crate) &'v mut V);

impl<V: Visitor> Shown for Visited<'_, V> {
    #[inline(always)]
    fn path(&mut self, path: &Path<'_>) {
        self.0.path(path);
    }

    #[inline]
    fn event(&mut self, event: &Event, offset: usize) -> bool {
        self.0.event(event, StreamOffset(offset as u64));
        true
    }
}

/// Why TNT bits were not followed further.
enum Stop {
    /// All are used.
    Used,
    /// Something else than a bit decides about the node, or an instruction in it has to be looked at.
    Other,
    /// The node that comes next is not known.
    Unknown(From),
}

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

impl<C: CodeSource> Walker<C> {
    pub(crate) fn paths<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
        shown: &mut impl Shown,
    ) -> Option<Item> {
        loop {
            if bind.state == State::On && self.phase == Phase::Enter && self.body.is_empty() {
                self.walk_graph(bind, shown);
            }
            match self.next_piece(bind)? {
                Piece::Item(Item::Insn(insn)) => {
                    shown.path(&Path::of_block(Block::of_run(Run::single(
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
                    shown.path(&Path::of_block(Block::of_run(run)));
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
                if F::reads_decision(bind) {
                    return true;
                }
                F::fetch(bind, self);
                F::heed_errata(self, bind);
                bind.emit.items.is_empty() && (bind.tnt_len != 0 || bind.pending.is_decision())
            }
            pending => pending.is_decision(),
        }
    }

    /// Follows the flow from node to node as long as every node ends with a branch of which the trace tells the outcome next.
    fn walk_graph<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>, shown: &mut impl Shown) {
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
            if bind.state != State::On || !bind.emit.items.is_empty() || !self.has_decision(bind) {
                break;
            }
            let pgd = match bind.pending {
                Pending::Pgd(end) if id == NONE && bind.tnt_len == 0 => Some(end),
                _ => None,
            };
            if pgd.is_some_and(|end| !self.may_look_ahead(bind, end)) {
                break;
            }
            if id == NONE {
                id = self.resolve(bind, from);
            }
            self.loops.look(bind.used);
            if !walked
                && self.loops.has_come(self.cache.walked(id)) > bind.config.max_packetless_run
            {
                break;
            }
            if !bind.pending.is_decision() {
                self.cache.flatten();
                let before = (bind.tnt_len, bind.used);
                (id, from) = self.walk_run(bind, id, shown);
                walked |= (bind.tnt_len, bind.used) != before;
                if id == NONE || bind.tnt_len == 0 && !bind.pending.is_decision() {
                    continue;
                }
            }
            let Some(next) = self.leave(bind, id, shown) else {
                self.ip = self.cache.graph.node(id).ip;
                break;
            };
            walked = true;
            (id, from) = next;
        }
        if walked {
            self.loops.reset();
            self.last_edge = (NONE, 0);
        }
    }

    /// Goes on as long as TNT bits and the TIPs of near branches lead to nodes that are known, by phrases and paths where these are. Returns the
    /// node that comes next or, if that is not known yet and no packet is there that decides about it, where to note it.
    fn walk_run<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
        mut id: u32,
        shown: &mut impl Shown,
    ) -> (u32, From) {
        let mode = bind.mode;
        let mut run = F::begin_run(bind);
        // Behind a TIP, and where the walk begins.
        let mut may_begin = true;
        let mut from = From::Nowhere;
        loop {
            if run.tnt_len == 0 {
                if !run.reads_on {
                    break;
                }
                if may_begin && id != NONE && self.cache.graph.phrases.are_wanted() {
                    id = self.walk_phrases(&mut run, id, shown);
                    may_begin = false;
                }
                match run.next() {
                    Next::Tnt => {}
                    Next::Pge(_) | Next::Other => break,
                    // Tracing may have ended before the end of the node.
                    Next::Pgd(_) if id == NONE => break,
                    Next::Pgd(tip) => {
                        let node = *self.cache.graph.node(id);
                        let told = tip.told();
                        if node.decision == Decision::Careful
                            || node.decision == Decision::Conditional && told.is_none()
                            || self.leaves_before(id, told)
                        {
                            break;
                        }
                        shown.path(&Path::of_node(&self.cache, id, run.next_offset()));
                        let [after, _] = self.call_and_leave::<F>(id, &node);
                        run.use_tip(&tip);
                        let resume_at = told.unwrap_or(after);
                        let disabled = Event::Disabled { ip: told };
                        let is_taken = shown.event(&disabled, run.offset);
                        let next = is_taken.then(|| run.next_while_off());
                        if let Some(Next::Pge(tip)) = next {
                            let ip = tip.ip();
                            run.use_tip(&tip);
                            let resumed = resume_at == ip;
                            shown.event(&Event::Enabled { ip, resumed }, run.offset);
                            may_begin = true;
                            id = self.cache.graph.target(ip, mode);
                            if id == NONE {
                                (self.ip, from) = (ip, From::Target);
                            }
                            continue;
                        }
                        F::end_run(bind, &run);
                        bind.turn_off(self, Some(resume_at));
                        if !is_taken {
                            bind.push(disabled);
                        }
                        return (NONE, From::Nowhere);
                    }
                    Next::Tip(tip) => {
                        if id == NONE {
                            id = self.resolve(bind, from);
                        }
                        let node = *self.cache.graph.node(id);
                        if !matches!(node.decision, Decision::Return | Decision::Indirect) {
                            break;
                        }
                        shown.path(&Path::of_node(&self.cache, id, run.next_offset()));
                        self.call_and_return::<F>(&node);
                        run.use_tip(&tip);
                        may_begin = true;
                        id = self.cache.graph.target(tip.ip(), mode);
                        if id == NONE {
                            (self.ip, from) = (tip.ip(), From::Target);
                        }
                        continue;
                    }
                }
            }
            if id == NONE {
                id = self.resolve(bind, from);
            }
            let stop;
            (id, stop) = self.walk_bits::<F>(&mut run, id, mode, shown);
            match stop {
                // Where TNTs come one behind the other.
                Stop::Used if run.short_tnt().is_some() && self.cache.graph.memo.is_warm() => {
                    id = self.walk_tnts(&mut run, id, shown);
                }
                Stop::Used => {}
                Stop::Other => break,
                Stop::Unknown(where_from) => (id, from) = (NONE, where_from),
            }
        }
        F::end_run(bind, &run);
        (id, from)
    }

    /// Goes on as long as TNT bits last and lead to nodes that are known, by paths where these are; the node where that ends, and why.
    #[inline(always)]
    fn walk_bits<F: WalkFamily>(
        &mut self,
        run: &mut Packets<'_>,
        mut id: u32,
        mode: ExecMode,
        shown: &mut impl Shown,
    ) -> (u32, Stop) {
        let has_paths = F::HAS_STACK && self.cache.graph.memo.is_warm();
        let (mut tnt, mut tnt_len) = (run.tnt, run.tnt_len);
        let mut walked = 0;
        let stop = loop {
            if tnt_len == 0 {
                break Stop::Used;
            }
            if has_paths && tnt_len >= LEAST_BITS {
                if let Some(number) = self.cache.graph.path(id, tnt, tnt_len) {
                    let path = self.cache.graph.memo.path(number);
                    if self.returns.has_room(path.deepest) {
                        shown.path(&Path::of_path(&self.cache, number, run.offset));
                        for (ip, site) in self.cache.graph.memo.open_calls(path) {
                            self.returns.push_site(*ip, *site);
                        }
                        (tnt, tnt_len) = (tnt << path.bits, tnt_len - path.bits);
                        id = path.end;
                        continue;
                    }
                }
            }
            let bit = (tnt >> 63) as usize;
            let node = self.cache.graph.node(id);
            match node.decision {
                Decision::Conditional => {
                    shown.path(&Path::of_node(&self.cache, id, run.offset));
                    (tnt, tnt_len) = (tnt << 1, tnt_len - 1);
                    walked += 1;
                    if node.has_calls() {
                        for (ip, site) in self.cache.graph.calls(node) {
                            self.returns.push_site(ip, site);
                        }
                    }
                    let next = node.next[bit];
                    if next == NONE {
                        self.ip = self.cache.graph.detail(id).ways[bit];
                        break Stop::Unknown(From::Node(id, bit));
                    }
                    id = next;
                }
                Decision::Return if bit == 1 && (node.has_calls() || !self.returns.is_empty()) => {
                    shown.path(&Path::of_node(&self.cache, id, run.offset));
                    (tnt, tnt_len) = (tnt << 1, tnt_len - 1);
                    let node = *node;
                    let Some((ip, site)) = self.call_and_return::<F>(&node) else {
                        unreachable!("there is one");
                    };
                    // The stack holds no more than the mode's width of what a wider caller may have pushed.
                    let ip = match mode {
                        ExecMode::Bits64 => ip,
                        _ => Ip(ip.0 & 0xffff_ffff),
                    };
                    let next = self.cache.graph.after_call(site, ip, mode);
                    if next == NONE {
                        self.ip = ip;
                        break Stop::Unknown(From::Site(site));
                    }
                    id = next;
                }
                _ => break Stop::Other,
            }
        };
        self.cache.graph.memo.walked(walked);
        (run.tnt, run.tnt_len) = (tnt, tnt_len);
        (id, stop)
    }

    /// Goes on as long as short TNTs come whose bits are a path that is known; the node behind them. Bits may be left.
    ///
    /// It does what [`Self::walk_bits`] does with such bits, without taking them apart.
    #[inline(never)]
    fn walk_tnts(&mut self, run: &mut Packets<'_>, mut id: u32, shown: &mut impl Shown) -> u32 {
        while run.tnt_len == 0 {
            let Some(bits) = run.short_tnt() else {
                break;
            };
            let Some(number) = self.cache.graph.memo.known(id, bits) else {
                break;
            };
            let path = self.cache.graph.memo.path(number);
            if !self.returns.has_room(path.deepest) {
                break;
            }
            let left = bits.ilog2() as u8 - path.bits;
            run.use_short_tnt(bits, left);
            shown.path(&Path::of_path(&self.cache, number, run.offset));
            for (ip, site) in self.cache.graph.memo.open_calls(path) {
                self.returns.push_site(*ip, *site);
            }
            id = path.end;
        }
        id
    }

    /// Goes on as long as packets come that came before from here, by phrases; the node behind them.
    #[inline]
    fn walk_phrases(&mut self, run: &mut Packets<'_>, mut id: u32, shown: &mut impl Shown) -> u32 {
        let (mut number, mut count) = (NONE, 0);
        while let Some((window, last_ip)) = run.window() {
            let key = Key::new(id, window, last_ip);
            let graph = &mut self.cache.graph;
            let Some(found) = graph.phrase(number, &key, last_ip, &self.returns) else {
                break;
            };
            let graph = &self.cache.graph;
            let phrase = graph.phrases.phrase(found);
            if !graph.phrases.call_and_return(phrase, &mut self.returns) {
                break;
            }
            shown.path(&Path::of_phrase(&self.cache, found, run.next_offset()));
            run.use_phrase(phrase);
            (id, number) = (phrase.end, found);
            count += 1;
        }
        self.cache.graph.phrases.note_tries(count);
        id
    }

    /// Runs a node that ends with another branch whose outcome is there, and tells what comes next; `None` if it is to be walked
    /// run by run.
    #[inline]
    fn leave<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
        id: u32,
        shown: &mut impl Shown,
    ) -> Option<(u32, From)> {
        let node = *self.cache.graph.node(id);
        if bind.tnt_len != 0 {
            return None;
        }
        match (node.decision, bind.pending) {
            (Decision::Careful, _) | (Decision::Conditional, Pending::Tip(_)) => None,
            (Decision::Far, Pending::Tip(Some(ip))) => {
                shown.path(&Path::of_node(&self.cache, id, bind.read_at));
                self.call_and_return::<F>(&node);
                bind.consumed();
                bind.drop_pending();
                self.ip = ip;
                bind.apply_at(ip);
                Some((NONE, From::Nowhere))
            }
            (_, Pending::Tip(Some(ip))) => {
                shown.path(&Path::of_node(&self.cache, id, bind.read_at));
                self.call_and_return::<F>(&node);
                bind.consumed();
                bind.drop_pending();
                self.ip = ip;
                if !F::has_bound(bind) {
                    return Some((self.cache.graph.target(ip, bind.mode), From::Target));
                }
                // The mode may be another.
                bind.apply_at(ip);
                Some((NONE, From::Nowhere))
            }
            (_, Pending::Pgd(ip)) if !self.leaves_before(id, ip) => {
                shown.path(&Path::of_node(&self.cache, id, bind.read_at));
                let [after, target] = self.call_and_leave::<F>(id, &node);
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

    /// Whether the node here can be put together without looking at code behind a direct branch at which tracing may have ended, `end` being
    /// the address that its end gave.
    fn may_look_ahead<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>, end: Option<Ip>) -> bool {
        if self.cache.graph.find(self.ip, bind.mode).is_some() {
            return true;
        }
        let mut at = self.ip;
        for _ in 0..MAX_TRIED {
            let run = self
                .cache
                .straight(at, bind.mode, &mut self.code, bind.rules());
            let run = self.cache.block(run);
            match (run.end, run.class) {
                (End::Insn, Class::DirectJump | Class::DirectCall)
                    if end.is_some_and(|end| end != run.target) =>
                {
                    at = run.target;
                }
                (End::Insn, class) => return class.needs_packet(),
                _ => return false,
            }
        }
        false
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
    fn call_and_return<F: WalkFamily>(&mut self, node: &Node) -> Option<(Ip, u32)> {
        for (ip, site) in self.cache.graph.calls(node) {
            self.returns.push_site(ip, site);
        }
        match node.decision {
            Decision::Return => self.returns.go_back::<F>(),
            _ => None,
        }
    }

    /// The same where tracing ends with the node; the addresses behind it.
    #[inline]
    fn call_and_leave<F: WalkFamily>(&mut self, id: u32, node: &Node) -> [Ip; 2] {
        // No return is compressed that goes back across the end of tracing, to behind the call at the end of the node.
        let calls = self.cache.graph.calls(node);
        let count = calls.size_hint().0 - usize::from(self.calls_at_end(id));
        for (ip, site) in calls.take(count) {
            self.returns.push_site(ip, site);
        }
        if node.decision == Decision::Return {
            self.returns.go_back::<F>();
        }
        self.cache.graph.detail(id).ways
    }

    /// The node where control is, which is noted where it will be looked for the next time.
    #[inline(never)]
    fn resolve<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>, from: From) -> u32 {
        let emptied = self.cache.graph.emptied;
        let id = self
            .cache
            .node_at(self.ip, bind.mode, &mut self.code, bind.rules());
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
