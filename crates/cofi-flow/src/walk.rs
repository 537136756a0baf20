//! The walk over code while tracing is on.

use cofi_insn::{Class, CodeSource};
use cofi_packet::Ip;
use cofi_packet::intel::{Kind, TsxState};

use crate::cache::{End, Straight, decode_at};
use crate::decoder::{FlowDecoder, Phase, State, unexpected};
use crate::index::NONE;
use crate::pending::{AtIp, Bound, Pending};
use crate::reader::Flow;
use crate::{Event, Executed, Expected, FlowErrorKind, Item, PacketKind};

/// How many blocks are tried to see whether code leads somewhere.
pub(crate) const MAX_TRIED: usize = 256;

/// Finds out that a walk without packets never ends.
///
/// Such a walk has no choices: where it is decides where it goes. So it loops if, and only if, it comes to an address
/// twice, which Brent's algorithm notices within a few rounds; only jumps need to be looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guard {
    anchor: Ip,
    jumps: u32,
    /// How many jumps until the anchor moves; zero before the first.
    limit: u32,
    insns: u32,
}

impl Guard {
    /// A packet was used: what follows may differ from what came before.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.limit = 0;
        self.insns = 0;
    }

    /// How many instructions it will be after so many more.
    pub(crate) fn has_come(&self, more: u32) -> u32 {
        self.insns.saturating_add(more)
    }

    /// Notes a jump to `target`; `true` if it closes a loop.
    fn jump(&mut self, target: Ip) -> bool {
        if self.limit == 0 {
            *self = Guard {
                anchor: target,
                jumps: 0,
                limit: 1,
                insns: self.insns,
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

impl<C: CodeSource> FlowDecoder<'_, C> {
    /// At the start of a block: what is due before it, then as much of it as is certain.
    #[inline]
    pub(crate) fn enter(&mut self) {
        let (mut stop, mut goes_on) = (None, false);
        if self.tnt_len == 0 {
            match self.pending {
                Pending::None => {
                    self.fetch();
                    self.heed_bdm64();
                    if !self.out.is_empty() {
                        return;
                    }
                }
                Pending::At { ip, what } if ip == self.ip => return self.arrive(ip, what),
                Pending::At { ip, .. } => stop = Some(ip),
                Pending::Overflow => {
                    self.note_used();
                    self.pending = Pending::None;
                    return self.overflow();
                }
                Pending::Status(status) if self.contradicts_mode(&status) => {
                    return self.refuse_mode(status);
                }
                Pending::Status(status) if status.last => {
                    self.state = State::Done;
                    return;
                }
                Pending::Status(status) => {
                    // The PSB+ tells no address; but the code goes on all the same.
                    self.consumed();
                    self.returns.clear();
                    self.pending = Pending::None;
                    return self.apply_status(status);
                }
                Pending::Bad(kind) => return self.fail(kind),
                Pending::Pip(_) | Pending::OverflowAt(_) | Pending::Ends(_) => {
                    match self.enter_rtit() {
                        Some(end) => (stop, goes_on) = (end, true),
                        None => return,
                    }
                }
                Pending::Pge(_) if self.reader.is_rtit() => {
                    return self.switched_on_again();
                }
                Pending::Pge(_) => {
                    let kind = FlowErrorKind::Unexpected {
                        found: Kind::TipPge.into(),
                        expected: Expected::TracingOn,
                    };
                    return self.fail(kind);
                }
                Pending::Tip(_)
                | Pending::Pgd(_)
                | Pending::Paging { .. }
                | Pending::Vmcs(_)
                | Pending::Ptwrite { .. } => {}
                Pending::End => return self.end_of_stream(),
            }
            if stop.is_none() && !goes_on && self.tnt_len == 0 && !self.is_walkable() {
                return;
            }
        }
        let (from, way) = self.left;
        let id = self
            .cache
            .follow(from, way, self.ip, self.mode, &mut self.code);
        self.left = (id, 0);
        let block = *self.cache.block(id);
        let first = block.first as usize;
        let mut count = block.body;
        self.after_body = block.term_ip;
        self.phase = Phase::End(id);
        if let Some(stop) = stop
            && let Some(position) = self.cache.position(id, stop)
        {
            count = position;
            self.after_body = stop;
            self.phase = Phase::Enter;
            self.left = (NONE, 0);
        }
        self.body = first..first + usize::from(count);
        self.guard.insns += u32::from(count) + 1;
        if self.guard.insns > self.config.max_packetless_run {
            let insns = self.guard.insns;
            self.body = 0..0;
            self.endless(FlowErrorKind::EndlessCode { insns });
        }
    }

    /// Whether what is pending lets the walk go on to the end of a block: nothing that may be due earlier.
    fn is_walkable(&self) -> bool {
        matches!(
            self.pending,
            Pending::Tip(_)
                | Pending::Pgd(_)
                | Pending::Paging { .. }
                | Pending::Vmcs(_)
                | Pending::Ptwrite { .. }
        )
    }

    /// The walk has come to the address that a packet gave.
    pub(crate) fn arrive(&mut self, ip: Ip, what: AtIp) {
        if matches!(
            what,
            AtIp::Far { .. } | AtIp::Pgd { .. } | AtIp::Paging { .. }
        ) {
            return self.arrive_rtit(ip, what);
        }
        self.consumed();
        self.pending = Pending::None;
        let bound = core::mem::take(&mut self.bound);
        let (before, after) = (
            Bound {
                tsx: bound.tsx,
                ..Bound::default()
            },
            Bound { tsx: None, ..bound },
        );
        match what {
            AtIp::Branch { to } => {
                self.release_held(Some(ip));
                self.apply(before, Some(ip));
                self.push(Event::AsyncBranch { from: ip, to });
                self.ip = to;
                self.left = (NONE, 0);
                self.apply(after, Some(to));
            }
            AtIp::Disable { ip: to } => {
                self.release_held(Some(ip));
                self.apply(before, Some(ip));
                if self.config.errata.skd022
                    && let Ok(insn) = decode_at(ip, self.mode, &mut self.code)
                    && insn.class == Class::VmEntry
                {
                    let (len, class, mode) = (insn.len, insn.class, self.mode);
                    let digest = insn.digest;
                    self.out.push_back(Item::Insn(Executed {
                        ip,
                        len,
                        class,
                        mode,
                        digest,
                    }));
                    self.turn_off(Some(insn.next_ip(ip, mode)));
                    self.push(Event::Disabled { ip: to });
                } else {
                    self.turn_off(Some(ip));
                    self.push(Event::AsyncDisabled { at: ip, ip: to });
                }
                self.apply(after, to);
            }
            AtIp::Events => {
                self.release_held(Some(ip));
                self.apply(bound, Some(ip));
            }
            AtIp::Ptwrite => {
                // Each packet is one execution of the instruction here: it is due next.
                if let Some((payload, size)) = self.ptwrite
                    && let Ok(insn) = decode_at(ip, self.mode, &mut self.code)
                    && insn.class == Class::Ptwrite
                {
                    self.ptwrite = None;
                    self.pending = Pending::Ptwrite { payload, size };
                }
                self.release_held(Some(ip));
                self.apply(bound, Some(ip));
            }
            AtIp::Status(status) if bound.mode.is_none() && self.contradicts_mode(&status) => {
                self.refuse_mode(status);
            }
            AtIp::Status(status) if status.last => self.state = State::Done,
            AtIp::Status(status) => {
                self.returns.clear();
                self.bound = bound;
                self.apply_status(status);
            }
            // See above.
            AtIp::Far { .. } | AtIp::Pgd { .. } | AtIp::Paging { .. } => {}
        }
    }

    /// After a block's plain instructions: the one that ends it. Returns it if it has executed and nothing else is to
    /// be returned before it.
    #[inline]
    pub(crate) fn finish(&mut self, id: u32) -> Option<Executed> {
        let block = *self.cache.block(id);
        match block.end {
            End::Insn => {}
            End::Rtit => return self.finish_rtit(&block),
            End::Split => {
                self.phase = Phase::Enter;
                return None;
            }
            End::Limit => {
                self.walk_out();
                return None;
            }
            End::Fault => {
                self.fault();
                return None;
            }
        }
        let insn = Executed {
            ip: block.term_ip,
            len: block.len,
            class: block.class,
            mode: self.mode,
            digest: block.digest,
        };
        match block.class {
            Class::Conditional => self.conditional(&block, insn),
            Class::DirectJump | Class::DirectCall => self.direct(&block, insn),
            Class::Return => self.near_return(&block, insn),
            Class::IndirectJump | Class::IndirectCall => self.indirect(&block, insn),
            Class::FarCall
            | Class::FarJump
            | Class::FarReturn
            | Class::Syscall
            | Class::SoftwareInterrupt => self.far(&block, insn),
            Class::VmEntry => match self.pending {
                Pending::Tip(_) | Pending::Pgd(_) | Pending::Paging { .. } | Pending::Vmcs(_)
                    if self.tnt_len == 0 =>
                {
                    self.far(&block, insn)
                }
                // The entry failed.
                _ => self.go(insn, block.next, 0),
            },
            Class::MovCr3 => self.mov_cr3(&block, insn),
            Class::Ptwrite => {
                if let (Pending::Ptwrite { payload, size }, 0) = (self.pending, self.tnt_len) {
                    self.use_pending();
                    self.push(Event::Ptwrite {
                        ip: Some(insn.ip),
                        payload,
                        size,
                    });
                    self.out.push_back(Item::Insn(insn));
                    self.move_on(block.next, 0);
                    return None;
                }
                self.go(insn, block.next, 0)
            }
            Class::VmPtrLoad => {
                if let (Pending::Vmcs(base), 0) = (self.pending, self.tnt_len) {
                    self.use_pending();
                    self.out.push_back(Item::Insn(insn));
                    self.apply(
                        Bound {
                            vmcs: Some(base),
                            ..Bound::default()
                        },
                        None,
                    );
                    self.move_on(block.next, 0);
                    return None;
                }
                self.go(insn, block.next, 0)
            }
            _ => self.go(insn, block.next, 0),
        }
    }

    /// Control goes on at `ip`, by way 0 (falling through) or 1 (branching).
    #[inline]
    pub(crate) fn move_on(&mut self, ip: Ip, way: usize) {
        self.ip = ip;
        self.left.1 = way;
        self.phase = Phase::Enter;
    }

    #[inline]
    pub(crate) fn go(&mut self, insn: Executed, ip: Ip, way: usize) -> Option<Executed> {
        self.move_on(ip, way);
        Some(insn)
    }

    /// What is pending has happened.
    pub(crate) fn use_pending(&mut self) {
        self.consumed();
        self.pending = Pending::None;
    }

    /// The instruction has executed and took tracing with it.
    pub(crate) fn disable(&mut self, insn: Executed, next: Ip, ip: Option<Ip>) -> Option<Executed> {
        self.end_tracing(next, ip);
        Some(insn)
    }

    /// An instruction took tracing with it: control goes to `ip`, or else to `next` or where nobody knows.
    pub(crate) fn end_tracing(&mut self, next: Ip, ip: Option<Ip>) {
        self.use_pending();
        let bound = core::mem::take(&mut self.bound);
        self.turn_off(Some(ip.unwrap_or(next)));
        self.push(Event::Disabled { ip });
        self.apply(Bound { tsx: None, ..bound }, ip);
    }

    #[inline]
    pub(crate) fn take_bit(&mut self) -> bool {
        let taken = self.tnt >> 63 == 1;
        self.tnt <<= 1;
        self.tnt_len -= 1;
        self.guard.reset();
        taken
    }

    #[inline(always)]
    fn conditional(&mut self, block: &Straight, insn: Executed) -> Option<Executed> {
        if self.tnt_len != 0 {
            return if self.take_bit() {
                self.go(insn, block.target, 1)
            } else {
                self.go(insn, block.next, 0)
            };
        }
        match self.pending {
            Pending::Pgd(ip) => {
                let ip = ip.or_else(|| self.left_ranges(block.next, block.target));
                self.disable(insn, block.next, ip)
            }
            _ => {
                self.need(Expected::Tnt);
                None
            }
        }
    }

    /// Where a conditional branch led that ended tracing, whose TIP.PGD has no IP (33.2.6.5): out of the ranges, if these are known and only
    /// one of its ways leads out. A TraceStop may be another reason, and is lost if an overflow comes next.
    pub(crate) fn left_ranges(&self, next: Ip, target: Ip) -> Option<Ip> {
        let filter = &self.config.filter;
        let place = match (filter.contains(next), filter.contains(target)) {
            (true, false) => target,
            (false, true) => next,
            _ => return None,
        };
        let may_stop = matches!(
            self.reader.clone().next(),
            Some(Ok(Flow::TraceStop | Flow::Ovf) | Err(_))
        );
        (!may_stop).then_some(place)
    }

    #[inline(always)]
    pub(crate) fn direct(&mut self, block: &Straight, insn: Executed) -> Option<Executed> {
        if let (Pending::Pgd(ip), 0) = (self.pending, self.tnt_len) {
            let filter = &self.config.filter;
            let leaves = match ip {
                Some(ip) => ip == block.target,
                None => {
                    self.config.errata.skl014
                        && !filter.is_empty()
                        && !filter.contains(block.target)
                }
            };
            if leaves {
                return self.disable(insn, block.next, ip.or(Some(block.target)));
            }
        }
        // A call to the next instruction only reads the instruction pointer.
        let is_call = block.class == Class::DirectCall;
        if is_call && (block.target != block.next || self.cache.notes_every_call()) {
            self.returns.push(block.next);
        }
        if self.guard.jump(block.target) {
            let next = match self.pending {
                _ if self.reader.is_rtit() => self.pending_kind_rtit(),
                _ if self.tnt_len != 0 => Kind::Tnt8.into(),
                Pending::Tip(_) => Kind::Tip.into(),
                Pending::Pgd(_) => Kind::TipPgd.into(),
                Pending::Paging { .. } => Kind::Pip.into(),
                Pending::Vmcs(_) => Kind::Vmcs.into(),
                Pending::Ptwrite { .. } => Kind::Ptw.into(),
                _ => Kind::Fup.into(),
            };
            self.endless(FlowErrorKind::EndlessLoop { next });
            return None;
        }
        self.go(insn, block.target, 1)
    }

    /// The walk never ends: the end of the stream, if no packet is left, and an error otherwise.
    fn endless(&mut self, kind: FlowErrorKind) {
        match self.pending {
            Pending::End if self.tnt_len == 0 => self.end_of_stream(),
            // It went round until something ended it.
            Pending::Ends(ends) if self.tnt_len == 0 => self.end_without_use(ends, kind),
            _ => self.fail(kind),
        }
    }

    #[inline(always)]
    fn near_return(&mut self, block: &Straight, insn: Executed) -> Option<Executed> {
        if let (Pending::Pgd(ip), 0) = (self.pending, self.tnt_len) {
            self.returns.pop();
            return self.disable(insn, block.next, ip);
        }
        let ip = self.return_target()?;
        self.go(insn, ip, 1)
    }

    /// Where a return led.
    #[inline(always)]
    pub(crate) fn return_target(&mut self) -> Option<Ip> {
        if self.tnt_len != 0 {
            if !self.take_bit() {
                self.fail(FlowErrorKind::ReturnNotTaken);
                return None;
            }
            let popped = self.returns.pop();
            let mut ip = popped.or_else(|| self.lost_caller())?;
            if self.mode.bits() < 64 {
                // The stack holds no more than the mode's width of what a wider caller may have pushed.
                ip = Ip(ip.0 & 0xffff_ffff);
            }
            return Some(ip);
        }
        match self.pending {
            Pending::Tip(Some(ip)) => {
                self.use_pending();
                self.returns.pop();
                self.apply_at(ip);
                Some(ip)
            }
            _ => {
                self.need(Expected::TntOrTip);
                None
            }
        }
    }

    /// The target of an indirect branch for which the processor deferred the TIP: behind TNT bits that are not used yet.
    fn deferred_tip(&mut self) -> Result<Ip, FlowErrorKind> {
        if self.reader.is_rtit() {
            return Err(FlowErrorKind::Unexpected {
                found: self.pending_kind_rtit(),
                expected: Expected::Tip,
            });
        }
        match self.next_flow()? {
            Some(Flow::Tip(Some(ip))) => {
                self.consumed();
                Ok(ip)
            }
            Some(flow) => {
                let kind = unexpected(flow, Expected::Tip);
                self.reader.put_back(flow);
                Err(kind)
            }
            None => Err(FlowErrorKind::Unexpected {
                found: Kind::Tnt8.into(),
                expected: Expected::Tip,
            }),
        }
    }

    #[inline]
    fn indirect(&mut self, block: &Straight, insn: Executed) -> Option<Executed> {
        if let (Pending::Pgd(ip), 0) = (self.pending, self.tnt_len) {
            return self.disable(insn, block.next, ip);
        }
        let target = self.indirect_target()?;
        if block.class == Class::IndirectCall {
            self.returns.push(block.next);
        }
        self.go(insn, target, 1)
    }

    /// Where an indirect branch led.
    #[inline]
    pub(crate) fn indirect_target(&mut self) -> Option<Ip> {
        if self.tnt_len != 0 {
            match self.deferred_tip() {
                Ok(ip) => Some(ip),
                Err(FlowErrorKind::Unexpected {
                    found: PacketKind::IntelPt(Kind::Ovf),
                    ..
                }) => {
                    // The TIP was lost, and what the remaining bits tell lies behind it.
                    self.tnt_len = 0;
                    self.phase = Phase::Enter;
                    self.fetch();
                    None
                }
                Err(kind) => {
                    self.fail(kind);
                    None
                }
            }
        } else {
            match self.pending {
                Pending::Tip(Some(ip)) => {
                    self.use_pending();
                    self.apply_at(ip);
                    Some(ip)
                }
                _ => {
                    self.need(Expected::Tip);
                    None
                }
            }
        }
    }

    fn far(&mut self, block: &Straight, insn: Executed) -> Option<Executed> {
        if self.tnt_len != 0 {
            return self.indirect(block, insn);
        }
        match self.pending {
            // These belong to the transfer; its TIP follows.
            Pending::Paging { cr3, nr } => {
                self.bound.paging = Some((cr3, nr));
                self.pending = Pending::None;
                self.fetch();
                None
            }
            Pending::Vmcs(base) => {
                self.bound.vmcs = Some(base);
                self.pending = Pending::None;
                self.fetch();
                None
            }
            Pending::Tip(Some(ip)) => {
                self.use_pending();
                self.apply_at(ip);
                self.go(insn, ip, 1)
            }
            Pending::Pgd(ip) => self.disable(insn, block.next, ip),
            _ => {
                self.need(Expected::FarTip);
                None
            }
        }
    }

    /// Whether a TIP.PGD without IP comes next.
    fn end_is_next(&self) -> bool {
        let mut ahead = self.reader.clone();
        matches!(ahead.next(), Some(Ok(Flow::Pgd(None))))
    }

    fn mov_cr3(&mut self, block: &Straight, insn: Executed) -> Option<Executed> {
        match self.pending {
            Pending::Paging { cr3, nr } if self.tnt_len == 0 => {
                self.use_pending();
                let stops = self.stop_is_next(block.next);
                if stops {
                    self.fetch();
                    if let (Pending::Pgd(ip), 0) = (self.pending, self.tnt_len) {
                        self.bound.paging = Some((cr3, nr));
                        return self.disable(insn, block.next, ip);
                    }
                }
                if self.config.cr3_filter && self.end_is_next() {
                    self.fetch();
                    if let (Pending::Pgd(None), 0) = (self.pending, self.tnt_len) {
                        self.bound.paging = Some((cr3, nr));
                        return self.disable(insn, block.next, None);
                    }
                }
                self.out.push_back(Item::Insn(insn));
                self.apply(
                    Bound {
                        paging: Some((cr3, nr)),
                        ..Bound::default()
                    },
                    None,
                );
                self.move_on(block.next, 0);
                None
            }
            // A MOV CR3 in traced code always comes with a PIP, unless it switches tracing off.
            Pending::Pgd(None) if self.tnt_len == 0 => self.disable(insn, block.next, None),
            _ => self.go(insn, block.next, 0),
        }
    }

    /// The stream ends while tracing is on: no packet shows that anything behind the last one ran.
    pub(crate) fn end_of_stream(&mut self) {
        if !self.notes.tells {
            // No packet tells of this, and none is lost.
            self.read_at = self.reader.len();
            self.error(Some(self.ip), FlowErrorKind::UnknownEnd);
        }
        self.state = State::Done;
    }

    /// A branch lacks its packet: gives up on what waits for another instruction, or else on the flow.
    pub(crate) fn need(&mut self, expected: Expected) {
        match self.pending {
            Pending::None => {
                self.fetch();
            }
            // No instruction has claimed these: so they came of themselves.
            Pending::Pip(cr3) => {
                self.use_pending();
                self.push_paging(cr3);
            }
            Pending::Paging { cr3, nr } => {
                self.use_pending();
                self.apply(
                    Bound {
                        paging: Some((cr3, nr)),
                        ..Bound::default()
                    },
                    None,
                );
            }
            Pending::Ptwrite { payload, size } => {
                self.use_pending();
                self.push(Event::Ptwrite {
                    ip: None,
                    payload,
                    size,
                });
            }
            Pending::Vmcs(base) => {
                self.use_pending();
                self.apply(
                    Bound {
                        vmcs: Some(base),
                        ..Bound::default()
                    },
                    None,
                );
            }
            Pending::At { ip, .. } if ip == self.ip => self.phase = Phase::Enter,
            Pending::At { ip: target, what } => {
                self.fail(FlowErrorKind::Unreachable {
                    target,
                    packet: what.kind(),
                });
            }
            Pending::Overflow | Pending::OverflowAt(_) | Pending::Status(_) => {
                self.phase = Phase::Enter;
            }
            Pending::Ends(ends) => {
                if !self.take_late_bit(ends, expected) {
                    self.end_unmet(ends, expected);
                }
            }
            Pending::Bad(kind) => self.fail(kind),
            Pending::End => self.end_of_stream(),
            Pending::Tip(None) => self.fail(FlowErrorKind::SuppressedIp {
                packet: self.tip_kind(),
            }),
            Pending::Tip(_) => self.fail(FlowErrorKind::Unexpected {
                found: self.tip_kind(),
                expected,
            }),
            Pending::Pgd(_) => self.fail(FlowErrorKind::Unexpected {
                found: Kind::TipPgd.into(),
                expected,
            }),
            Pending::Pge(_) => self.fail(FlowErrorKind::Unexpected {
                found: Kind::TipPge.into(),
                expected,
            }),
        }
    }

    /// The code at `ip` cannot be read or is none.
    fn fault(&mut self) {
        match decode_at(self.ip, self.mode, &mut self.code) {
            // The source has learnt of the code since: what else is cached may be wrong too.
            Ok(_) => self.code_changed(),
            Err(_) if self.tnt_len == 0 && matches!(self.pending, Pending::End) => {
                self.end_of_stream();
            }
            Err(error) => self.fail(error.into()),
        }
    }

    /// Erratum BDM64: if an aborted transaction cannot be where the last branch led, it is where the abort says.
    pub(crate) fn heed_bdm64(&mut self) {
        if !self.config.errata.bdm64 || self.bound.tsx != Some(TsxState::Aborted) {
            return;
        }
        if let Pending::At {
            ip,
            what: AtIp::Branch { .. } | AtIp::Disable { .. },
        } = self.pending
            && !self.leads_to(ip)
        {
            self.ip = ip;
        }
    }

    /// Whether code leads from here to `stop` without a packet.
    fn leads_to(&mut self, stop: Ip) -> bool {
        let mut at = self.ip;
        for _ in 0..MAX_TRIED {
            let id = self.cache.follow(NONE, 0, at, self.mode, &mut self.code);
            if self.cache.position(id, stop).is_some() {
                return true;
            }
            let block = self.cache.block(id);
            at = match (block.end, block.class) {
                (End::Split, _) => block.next,
                (End::Insn, Class::DirectJump | Class::DirectCall) => block.target,
                (End::Insn, class) if !class.needs_packet() => block.next,
                _ => return false,
            };
        }
        false
    }
}
