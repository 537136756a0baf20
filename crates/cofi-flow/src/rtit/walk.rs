//! The walk over code where RTIT's rules differ: far transfers, branches out of the traced ranges, ends without a word.

use cofi_insn::{Class, CodeSource, MAX_INSN_LEN, advance, is_mov_to_cr0, prefixes};
use cofi_packet::{ExecMode, Ip};

use super::{Ends, Sign};
use crate::bind::{AtIp, Binder, Pending};
use crate::code::cache::{BasicBlock, End};
use crate::walk::{MAX_TRIED, Phase, Walker};
use crate::{Executed, Expected, FilterRanges, FlowErrorKind};

impl FilterRanges {
    /// The first addresses.
    fn bases(&self) -> impl Iterator<Item = Ip> {
        self.iter().map(|(first, _)| first)
    }

    /// Whether an address is in one of the ranges, none being no range.
    pub(super) fn contains_any(&self, ip: Ip) -> bool {
        !self.is_empty() && self.contains(ip)
    }

    /// Whether control that goes on at `ip` leaves a range.
    pub(crate) fn ends_before(&self, ip: Ip) -> bool {
        !self.contains(ip) && self.iter().any(|(_, last)| last.0.wrapping_add(1) == ip.0)
    }
}

/// Whether code comes to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coming {
    Never,
    Surely,
    /// A direct branch before it may have ended tracing; or it is too far to see.
    Perhaps,
}

impl<C: CodeSource> Walker<C> {
    /// After a block's plain instructions: one that ends it and for which RTIT has rules of its own.
    pub(crate) fn finish_rtit(
        &mut self,
        bind: &mut Binder<'_>,
        block: &BasicBlock,
    ) -> Option<Executed> {
        let insn = Executed {
            ip: block.term_ip,
            len: block.len,
            class: block.class,
            mode: bind.mode,
            digest: block.digest,
        };
        match block.class {
            Class::Conditional if bind.tnt_len != 0 => {
                if bind.take_bit() {
                    self.go_or_leave(bind, block, insn, block.target)
                } else {
                    self.fall_through(bind, block, insn)
                }
            }
            Class::Conditional => {
                self.need(bind, Expected::Tnt);
                None
            }
            Class::DirectJump | Class::DirectCall => self.direct_out(bind, block, insn),
            Class::Return => {
                let ip = self.return_target(bind)?;
                self.go_or_leave(bind, block, insn, ip)
            }
            Class::IndirectJump | Class::IndirectCall => {
                let ip = self.indirect_target(bind)?;
                if block.class == Class::IndirectCall {
                    self.returns.push(block.next);
                }
                self.go_or_leave(bind, block, insn, ip)
            }
            Class::MovCr3 => match bind.pending {
                Pending::Pip(cr3) if bind.tnt_len == 0 => {
                    let is_changed = bind.known.paging.is_some_and(|(known, _)| known != cr3);
                    // A PIP before may have been of this one.
                    let is_late = bind.rtit.doubt_since == Some(bind.offset);
                    if bind.config.cr3_filter || !is_changed || is_late {
                        // With the filter on there is no PIP, and one that does not change CR3 may be of a MOV CR0: code behind this
                        // may be older than the PIP.
                        bind.drop_pending();
                        bind.doubt_pip();
                    } else {
                        bind.use_pending();
                    }
                    bind.emit_insn(insn);
                    bind.push_paging(cr3);
                    self.move_on(block.next, 0);
                    self.look_around(bind);
                    None
                }
                _ => self.fall_through(bind, block, insn),
            },
            class if class.is_far() => self.far_rtit(bind, block, insn),
            _ => self.fall_through(bind, block, insn),
        }
    }

    /// An instruction has executed that control walks on from, perhaps out of the traced ranges.
    fn fall_through(
        &mut self,
        bind: &mut Binder<'_>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        if !bind.config.filter.ends_before(block.next) {
            return self.go(insn, block.next, 0);
        }
        bind.emit_insn(insn);
        self.move_on(block.next, 0);
        self.walk_out(bind);
        None
    }

    /// Control has walked on to `ip`, perhaps out of the traced ranges.
    fn look_around(&mut self, bind: &mut Binder<'_>) {
        if bind.config.filter.ends_before(self.ip) {
            self.walk_out(bind);
        }
    }

    /// Control has walked out of the traced ranges: a FUP.PGD tells so (Table 19, 3).
    pub(crate) fn walk_out(&mut self, bind: &mut Binder<'_>) {
        while bind.tnt_len == 0 {
            match bind.pending {
                Pending::None => {
                    bind.fetch_leaving(self);
                }
                Pending::Pip(cr3) => {
                    bind.use_pending();
                    bind.push_paging(cr3);
                }
                Pending::At {
                    ip,
                    what: what @ AtIp::Paging { .. },
                } if ip == self.ip => bind.arrive_rtit(self, ip, what),
                // An event just there may have come first.
                Pending::At { ip, .. } if ip == self.ip => {
                    self.phase = Phase::Enter;
                    return;
                }
                _ => break,
            }
        }
        self.phase = Phase::Enter;
        self.leave_ranges(bind, self.ip);
    }

    /// A far transfer. A FUP with the address behind it says that it has executed (Table 1).
    fn far_rtit(
        &mut self,
        bind: &mut Binder<'_>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        if let (Pending::At { ip, what }, 0) = (bind.pending, bind.tnt_len)
            && (ip == block.next || self.is_erratum_e1(bind, insn, ip, what))
        {
            match what {
                AtIp::Far { to: Some(to) } => {
                    bind.use_pending();
                    return self.go(insn, to, 1);
                }
                AtIp::Far { to: None } => {
                    // What is told next is an overflow, or nothing.
                    bind.use_pending();
                    return self.go(insn, block.next, 1);
                }
                AtIp::Pgd { to, .. } => return self.disable(bind, insn, block.next, to),
                _ => {}
            }
        }
        // It has failed.
        if block.class == Class::VmEntry {
            return self.fall_through(bind, block, insn);
        }
        self.need(bind, Expected::FupFar);
        None
    }

    /// Erratum E1: the FUP.FAR of a far transfer with more than 3 prefixes names an address within it.
    fn is_erratum_e1(&mut self, bind: &mut Binder<'_>, insn: Executed, ip: Ip, what: AtIp) -> bool {
        if !bind.config.errata.rtit_e1
            || !matches!(what, AtIp::Far { .. })
            || !(1..insn.len.into()).contains(&ip.0.wrapping_sub(insn.ip.0))
        {
            return false;
        }
        let mut bytes = [0; MAX_INSN_LEN];
        let len = self.code.read(insn.ip, &mut bytes).min(MAX_INSN_LEN);
        prefixes(&bytes[..len], insn.mode) > 3
    }

    /// A direct branch out of the traced ranges, where only a FUP.PGD with the address behind it can come now, or into a TraceStop range.
    fn direct_out(
        &mut self,
        bind: &mut Binder<'_>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        let target = block.target;
        let leaves = !bind.config.filter.contains(target);
        match bind.pending {
            _ if bind.tnt_len != 0 => {}
            Pending::At {
                ip,
                what: AtIp::Pgd { to: None, stops },
            } if ip == block.next && (leaves || stops) => {
                self.note_call(block);
                return self.disable(bind, insn, block.next, Some(target));
            }
            Pending::Ends(ends) if ends.exact && bind.rtit.stop.contains(block.target) => {
                self.note_call(block);
                bind.emit_insn(insn);
                self.ip = block.target;
                bind.stopped(self);
                return None;
            }
            _ => {}
        }
        if leaves {
            self.need(bind, Expected::FupPgd);
            return None;
        }
        self.direct(bind, block, insn)
    }

    /// Whether code leads from here to an address, or to a direct branch that has it behind it, without a packet.
    pub(crate) fn look_for(&mut self, behind: Ip, mode: ExecMode) -> Coming {
        let mut at = self.ip;
        for _ in 0..MAX_TRIED {
            let id = self.cache.straight(at, mode, &mut self.code);
            let block = *self.cache.block(id);
            if self.cache.position(id, behind).is_some() {
                return Coming::Surely;
            }
            at = match (block.end, block.class) {
                (End::Split | End::Limit, _) => block.next,
                (End::Fault, _) => return Coming::Never,
                (_, Class::DirectJump | Class::DirectCall) if block.next == behind => {
                    return Coming::Perhaps;
                }
                (_, Class::DirectJump | Class::DirectCall) => block.target,
                (_, class) if class.is_far() && block.next == behind => return Coming::Surely,
                (_, class) if class.needs_packet() => return Coming::Never,
                _ => block.next,
            };
        }
        Coming::Perhaps
    }

    fn note_call(&mut self, block: &BasicBlock) {
        if block.class == Class::DirectCall {
            self.returns.push(block.next);
        }
    }

    fn go_or_leave(
        &mut self,
        bind: &mut Binder<'_>,
        block: &BasicBlock,
        insn: Executed,
        to: Ip,
    ) -> Option<Executed> {
        if !bind.config.filter.contains(to) {
            self.leave_range(bind, block, insn, to);
            return None;
        }
        if bind.rtit.stop.contains_any(to) {
            self.enter_stop(bind, block, insn, to);
            return None;
        }
        self.go(insn, to, 1)
    }

    /// A branch has executed that leads into a TraceStop range: a FUP.PGD with the address behind it may tell so (4.2.8).
    fn enter_stop(&mut self, bind: &mut Binder<'_>, block: &BasicBlock, insn: Executed, to: Ip) {
        bind.emit_insn(insn);
        self.move_on(to, 1);
        if bind.tnt_len == 0 && matches!(bind.pending, Pending::None) {
            bind.fetch_rtit(self);
        }
        match bind.pending {
            Pending::At {
                ip,
                what:
                    AtIp::Pgd {
                        to: None,
                        stops: true,
                    },
            } if ip == block.next && bind.tnt_len == 0 => {
                bind.end_tracing(self, block.next, Some(to))
            }
            _ => {}
        }
    }

    /// A branch has executed that leads out of the traced ranges: a FUP.PGD with the address behind it follows.
    fn leave_range(&mut self, bind: &mut Binder<'_>, block: &BasicBlock, insn: Executed, to: Ip) {
        bind.emit_insn(insn);
        self.move_on(to, 0);
        while bind.tnt_len == 0 && matches!(bind.pending, Pending::None) {
            bind.fetch_leaving(self);
        }
        self.leave_ranges(bind, block.next);
    }

    /// Control has left the traced ranges to where it is now: a FUP.PGD with the address `behind` what has executed last tells so.
    fn leave_ranges(&mut self, bind: &mut Binder<'_>, behind: Ip) {
        match bind.pending {
            _ if bind.tnt_len != 0 => {}
            Pending::At {
                ip,
                what: AtIp::Pgd { to: None, .. },
            } if ip == behind => return bind.end_tracing(self, behind, Some(self.ip)),
            // Erratum E2: it is one too many, of code elsewhere. Tracing was switched off here, just where control left the ranges.
            Pending::At {
                what: AtIp::Pgd { to: None, .. },
                ..
            } if bind.is_end_in_doubt() => return bind.end_unknown(self, Ends::by_pgd()),
            // There may be none if a TraceStop range was entered just then.
            Pending::Ends(ends)
                if ends.sign == Sign::TraceStop
                    && ends.len == 0
                    && bind.rtit.stop.contains(self.ip) =>
            {
                return bind.stopped(self);
            }
            Pending::Ends(ends) => return bind.end_unmet(self, ends, Expected::FupPgd),
            // What was lost can have been the FUP.PGD.
            Pending::OverflowAt(_) => return,
            Pending::Bad(kind) => return bind.fail(self, kind),
            _ => {}
        }
        bind.fail(
            self,
            FlowErrorKind::Unexpected {
                found: bind.pending_kind_rtit(),
                expected: Expected::FupPgd,
            },
        );
    }

    /// A PIP may be of a MOV to CR0, if paging may have been switched: the next one, if that is here.
    ///
    /// Where paging may have been switched in code that is not traced, the PIP may be of a MOV to CR3 behind it. But up to here code has run
    /// in any case.
    fn find_mov_cr0(&mut self, bind: &mut Binder<'_>, cr3: u64) -> Option<Ip> {
        if bind.rtit.knows_paging && !bind.rtit.switches_paging() {
            return None;
        }
        let id = self.cache.straight(self.ip, bind.mode, &mut self.code);
        let block = *self.cache.block(id);
        let mut at = block.ip;
        for index in 0..usize::from(block.body) {
            let mut bytes = [0; MAX_INSN_LEN];
            let len = self.code.read(at, &mut bytes).min(MAX_INSN_LEN);
            let is_found = is_mov_to_cr0(&bytes[..len], bind.mode);
            at = advance(
                at,
                self.cache.len_at(block.first as usize + index),
                bind.mode,
            );
            if is_found {
                let what = AtIp::Paging { cr3 };
                bind.await_at(at, what);
                return Some(at);
            }
        }
        None
    }

    /// A PIP, an overflow, or an end without a word: where the walk is to stop, if anywhere; `None` if it does not go on.
    #[inline(never)]
    pub(crate) fn enter_rtit(&mut self, bind: &mut Binder<'_>) -> Option<Option<Ip>> {
        match bind.pending {
            Pending::OverflowAt(ip) => {
                bind.note_used();
                bind.overflow_rtit(self, ip);
                None
            }
            Pending::Ends(ends) => self.walk_to_end(bind, ends),
            Pending::Pip(cr3) => Some(self.find_mov_cr0(bind, cr3)),
            _ => None,
        }
    }

    /// Tracing ends in the code here, or the trace does. The next address at which it may, if the walk can go on; `None` if it cannot.
    fn walk_to_end(&mut self, bind: &mut Binder<'_>, ends: Ends) -> Option<Option<Ip>> {
        let stop = &bind.rtit.stop;
        if ends.exact && ends.len == 0 {
            let is_entered = self.last_edge.1 == 1 && stop.contains(self.ip);
            if is_entered || stop.bases().any(|base| base == self.ip) {
                bind.stopped(self);
                return None;
            }
            let id = self.cache.straight(self.ip, bind.mode, &mut self.code);
            let bases = stop.bases();
            let first = bases
                .filter_map(|base| Some((self.cache.position(id, base)?, base)))
                .min_by_key(|(position, _)| *position);
            return Some(first.map(|(_, base)| base));
        }
        if ends.len != 0 {
            return Some(None);
        }
        bind.end_unknown(self, ends);
        None
    }
}
