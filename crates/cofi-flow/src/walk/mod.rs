//! The walk over code while tracing is on: from one packet to what it decides.

mod intel;
pub(crate) mod paths;
pub(crate) mod step;

use cofi_insn::{Class, CodeSource};
use cofi_packet::intel::Kind;
use cofi_packet::{ExecMode, Ip};

use crate::bind::control::{Coming, Control};
use crate::bind::{Binder, Pending};
use crate::code::cache::{BasicBlock, Cache, End, decode_at};
use crate::code::index::NONE;
use crate::code::retstack::ReturnStack;
use crate::code::shelf::Shelf;
use crate::family::{CodeRules, WalkFamily};
use crate::{CodeCache, CodeKey, Executed, Expected, FlowConfig, FlowErrorKind};

/// Where the walk is within a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the block at `ip`.
    Enter,
    /// After its plain instructions, before the one that ends it.
    End(u32),
}

/// How many blocks are tried to see whether code leads somewhere.
pub(crate) const MAX_TRIED: usize = 256;

/// Finds out that a walk without packets never ends.
///
/// Such a walk has no choices: where it is decides where it goes. So it loops if, and only if, it comes to an address
/// twice, which Brent's algorithm notices within a few rounds; only jumps need to be looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoopDetector {
    anchor: Ip,
    jumps: u32,
    /// How many jumps until the anchor moves; zero before the first.
    limit: u32,
    insns: u32,
    /// How many packets and TNT bits had been used at the last of them.
    used: u64,
}

impl LoopDetector {
    /// The flow has gone on where packets decide.
    #[inline]
    fn reset(&mut self) {
        self.limit = 0;
        self.insns = 0;
    }

    /// So many packets and TNT bits have been used: with one more, what follows may differ from what came before.
    #[inline]
    fn look(&mut self, used: u64) {
        if self.used != used {
            self.used = used;
            self.reset();
        }
    }

    /// How many instructions it will be after so many more.
    pub(crate) fn has_come(&self, more: u32) -> u32 {
        self.insns.saturating_add(more)
    }

    /// Notes a jump to `target`; `true` if it closes a loop.
    fn jump(&mut self, target: Ip) -> bool {
        if self.limit == 0 {
            *self = LoopDetector {
                anchor: target,
                jumps: 0,
                limit: 1,
                ..*self
            };
            return false;
        }
        if target == self.anchor {
            return true;
        }
        self.jumps += 1;
        if self.jumps == self.limit {
            self.anchor = target;
            self.jumps = 0;
            self.limit = self.limit.saturating_mul(2);
        }
        false
    }
}

/// Follows control through code, from one decision to the next; what decides, the [binder](Binder) says.
#[derive(Debug)]
pub(crate) struct Walker<C> {
    pub(crate) code: C,
    pub(crate) cache: Cache,
    pub(crate) shelf: Shelf,
    pub(crate) returns: ReturnStack,
    pub(crate) phase: Phase,
    /// The instruction that comes next.
    pub(crate) ip: Ip,
    /// The plain instructions that are due: indices of their lengths in the cache.
    pub(crate) body: core::ops::Range<usize>,
    /// The mode in which they run.
    pub(crate) mode: ExecMode,
    /// The block walked last, and by which edge it was left.
    pub(crate) last_edge: (u32, usize),
    loops: LoopDetector,
}

impl<C: CodeSource> Control for Walker<C> {
    const FOLLOWS_CODE: bool = true;

    type Code = C;

    fn code(&mut self) -> &mut C {
        &mut self.code
    }

    fn at(&self) -> Option<Ip> {
        Some(self.ip)
    }

    fn go_to(&mut self, ip: Ip, is_branch: bool) {
        self.ip = ip;
        self.restart();
        self.last_edge.1 = usize::from(is_branch);
    }

    fn stop(&mut self) {
        self.phase = Phase::Enter;
        self.body = 0..0;
    }

    fn forget_callers(&mut self) {
        self.returns.clear();
    }

    fn callers(&self) -> Option<&ReturnStack> {
        Some(&self.returns)
    }

    fn set_taken(&mut self, is_taken: bool) {
        self.last_edge.1 = usize::from(is_taken);
    }

    fn comes_to<R: CodeRules>(
        &mut self,
        stop: Ip,
        mode: ExecMode,
        rules: &R,
        at_end: impl Fn(&BasicBlock) -> Option<Coming>,
    ) -> Coming {
        let mut at = self.ip;
        for _ in 0..MAX_TRIED {
            let id = self.cache.straight(at, mode, &mut self.code, rules);
            let block = *self.cache.block(id);
            if self.cache.position(id, stop).is_some() {
                return Coming::Surely;
            }
            at = match (block.end, block.class) {
                (End::Split | End::Limit, _) => block.next,
                (End::Fault, _) => return Coming::Never,
                (_, class) => match at_end(&block) {
                    Some(coming) => return coming,
                    None if class.needs_packet() => return Coming::Never,
                    None if matches!(class, Class::DirectJump | Class::DirectCall) => block.target,
                    None => block.next,
                },
            };
        }
        Coming::Perhaps
    }
}

impl<C> Walker<C> {
    pub(crate) fn new(code: C, config: &FlowConfig) -> Self {
        Self {
            code,
            cache: Cache::new(config),
            shelf: Shelf::default(),
            returns: ReturnStack::new(),
            phase: Phase::Enter,
            ip: Ip(0),
            body: 0..0,
            mode: ExecMode::Bits64,
            last_edge: (NONE, 0),
            loops: LoopDetector::default(),
        }
    }

    /// Begins with what another decoder has decoded.
    pub(crate) fn lend(&mut self, cache: CodeCache, config: &FlowConfig) {
        self.shelf = Shelf::lent(cache, config);
    }

    /// Gives away what was decoded.
    pub(crate) fn take_code_cache(&mut self, config: &FlowConfig) -> CodeCache {
        self.restart();
        let cache = core::mem::replace(&mut self.cache, Cache::new(config));
        self.shelf.give(cache, config)
    }

    /// The code source may answer differently from here on.
    pub(crate) fn code_changed<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>) {
        self.cache.clear();
        self.shelf.clear();
        self.cache.set_limit(bind.config.cache_limit);
        F::code_changed(&mut bind.own);
        self.restart();
    }

    /// The code source answers as it does for `key` from here on.
    pub(crate) fn code_changed_to<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
        key: CodeKey,
    ) {
        if self.shelf.exchange(&mut self.cache, key, &bind.config) {
            F::code_changed(&mut bind.own);
            self.restart();
        }
    }

    /// The next instruction is looked up anew.
    pub(crate) fn restart(&mut self) {
        self.body = 0..0;
        self.phase = Phase::Enter;
        self.last_edge = (NONE, 0);
    }
}

impl<C: CodeSource> Walker<C> {
    /// At the start of a block: what is due before it, then as much of it as is certain.
    #[inline]
    pub(crate) fn enter<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>) {
        let mut stop = None;
        if bind.tnt_len == 0 {
            match bind.pending {
                Pending::None => {
                    F::fetch(bind, self);
                    F::heed_errata(self, bind);
                    let is_next = matches!(bind.pending, Pending::Tip(_) | Pending::Pgd(_));
                    if !bind.emit.items.is_empty() || bind.tnt_len == 0 && !is_next {
                        // Something else may be due before the end of the block.
                        return;
                    }
                }
                Pending::At { ip, what } if ip == self.ip => {
                    return F::arrive(bind, self, ip, what);
                }
                Pending::At { ip, .. } => stop = Some(ip),
                Pending::Bad(kind) => return bind.fail(self, kind),
                Pending::Tip(_) | Pending::Pgd(_) => {}
                Pending::End => return bind.end_of_stream(self),
                Pending::Own(own) => match F::enter(self, bind, own) {
                    Some(end) => stop = end,
                    None => return,
                },
            }
        }
        let (from, way) = self.last_edge;
        let id = self
            .cache
            .follow(from, way, self.ip, bind.mode, &mut self.code, bind.rules());
        self.last_edge = (id, 0);
        let block = *self.cache.block(id);
        let first = block.first as usize;
        let mut count = block.body;
        self.mode = bind.mode;
        self.phase = Phase::End(id);
        if let Some(position) = stop.and_then(|stop| self.cache.position(id, stop)) {
            count = position;
            self.phase = Phase::Enter;
            self.last_edge = (NONE, 0);
        }
        self.body = first..first + usize::from(count);
        self.loops.look(bind.used);
        self.loops.insns += u32::from(count) + 1;
        if self.loops.insns > bind.config.max_packetless_run {
            let insns = self.loops.insns;
            self.body = 0..0;
            self.endless(bind, FlowErrorKind::EndlessCode { insns });
        }
    }

    /// After a block's plain instructions: the one that ends it. Returns it if it has executed and nothing else is to
    /// be returned before it.
    #[inline]
    pub(crate) fn finish<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
        id: u32,
    ) -> Option<Executed> {
        let block = *self.cache.block(id);
        match block.end {
            End::Insn | End::Special | End::Limit => {}
            End::Split => {
                self.phase = Phase::Enter;
                return None;
            }
            End::Fault => {
                self.fault(bind);
                return None;
            }
        }
        let insn = Executed {
            ip: block.term_ip,
            len: block.len,
            class: block.class,
            mode: bind.mode,
            digest: block.digest,
        };
        F::finish(self, bind, &block, insn)
    }

    /// Control goes on at `ip`, by way 0 (falling through) or 1 (branching).
    #[inline]
    pub(crate) fn move_on(&mut self, ip: Ip, way: usize) {
        self.ip = ip;
        self.last_edge.1 = way;
        self.phase = Phase::Enter;
    }

    #[inline]
    pub(crate) fn go(&mut self, insn: Executed, ip: Ip, way: usize) -> Option<Executed> {
        self.move_on(ip, way);
        Some(insn)
    }

    /// The instruction has executed and took tracing with it.
    pub(crate) fn disable<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
        insn: Executed,
        next: Ip,
        ip: Option<Ip>,
    ) -> Option<Executed> {
        bind.end_tracing(self, next, ip);
        Some(insn)
    }

    #[inline(always)]
    pub(crate) fn direct<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        if block.is_direct_call::<F::Rules>() {
            self.returns.push(block.next);
        }
        self.loops.look(bind.used);
        if self.loops.jump(block.target) {
            let next = F::pending_kind(bind);
            self.endless(bind, FlowErrorKind::EndlessLoop { next });
            return None;
        }
        self.go(insn, block.target, 1)
    }

    /// The walk never ends: the end of the stream, if no packet is left, and an error otherwise.
    fn endless<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>, kind: FlowErrorKind) {
        match bind.pending {
            Pending::End if bind.tnt_len == 0 => bind.end_of_stream(self),
            Pending::Own(own) if bind.tnt_len == 0 => F::endless(self, bind, own, kind),
            _ => bind.fail(self, kind),
        }
    }

    /// Where a return led.
    #[inline(always)]
    pub(crate) fn return_target<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>) -> Option<Ip> {
        if bind.tnt_len != 0 {
            if !bind.take_bit() {
                bind.fail(self, FlowErrorKind::ReturnNotTaken);
                return None;
            }
            let caller = self.returns.go_back::<F>().map(|(ip, _)| ip);
            let mut ip = caller.or_else(|| self.lost_caller(bind))?;
            if bind.mode.bits() < 64 {
                // The stack holds no more than the mode's width of what a wider caller may have pushed.
                ip = Ip(ip.0 & 0xffff_ffff);
            }
            return Some(ip);
        }
        match bind.pending {
            Pending::Tip(Some(ip)) => {
                bind.use_pending();
                self.returns.go_back::<F>();
                bind.apply_at(ip);
                Some(ip)
            }
            _ => {
                self.need(bind, Expected::TntOrTip);
                None
            }
        }
    }

    /// Where an indirect branch led.
    #[inline]
    pub(crate) fn indirect_target<F: WalkFamily>(
        &mut self,
        bind: &mut Binder<'_, F>,
    ) -> Option<Ip> {
        if bind.tnt_len != 0 {
            return F::target_behind_bits(self, bind);
        }
        match bind.pending {
            Pending::Tip(Some(ip)) => {
                bind.use_pending();
                bind.apply_at(ip);
                Some(ip)
            }
            _ => {
                self.need(bind, Expected::Tip);
                None
            }
        }
    }

    /// A branch lacks its packet: gives up on what waits for another instruction, or else on the flow.
    pub(crate) fn need<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>, expected: Expected) {
        match bind.pending {
            Pending::None => F::fetch(bind, self),
            Pending::At { ip, .. } if ip == self.ip => self.phase = Phase::Enter,
            Pending::At { ip: target, what } => {
                bind.fail(
                    self,
                    FlowErrorKind::Unreachable {
                        target,
                        packet: what.into(),
                    },
                );
            }
            Pending::Own(own) => F::unclaimed(self, bind, own, expected),
            Pending::Bad(kind) => bind.fail(self, kind),
            Pending::End => bind.end_of_stream(self),
            Pending::Tip(None) => bind.fail(self, FlowErrorKind::suppressed(F::TIP)),
            Pending::Tip(_) => bind.fail(self, FlowErrorKind::unexpected(F::TIP, expected)),
            Pending::Pgd(_) => bind.fail(self, FlowErrorKind::unexpected(Kind::TipPgd, expected)),
        }
    }

    /// The code at `ip` cannot be read or is none.
    fn fault<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>) {
        match decode_at(self.ip, bind.mode, &mut self.code) {
            // The source has learnt of the code since: what else is cached may be wrong too.
            Ok(_) => self.code_changed(bind),
            Err(_) if bind.tnt_len == 0 && matches!(bind.pending, Pending::End) => {
                bind.end_of_stream(self);
            }
            Err(error) => bind.fail(self, error.into()),
        }
    }

    /// Where a compressed return without a call led, if that can be found out; else control is lost.
    fn lost_caller<F: WalkFamily>(&mut self, bind: &mut Binder<'_, F>) -> Option<Ip> {
        let found = F::lost_caller(self, bind);
        if found.is_none() {
            bind.fail(self, FlowErrorKind::EmptyReturnStack);
        }
        found
    }
}
