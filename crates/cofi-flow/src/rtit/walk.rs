//! The walk over code where RTIT's rules differ: far transfers, branches out of the traced ranges, ends without a word.

use cofi_insn::{Class, CodeSource, MAX_INSN_LEN, advance, is_mov_to_cr0, prefixes};
use cofi_packet::Ip;
use cofi_packet::rtit::Kind;

use super::{AtIp, Ends, Own, Sign};
use crate::bind::{Binder, Pending};
use crate::code::cache::{BasicBlock, End};
use crate::family::{BindFamily, Rtit, WalkFamily};
use crate::walk::{Phase, Walker};
use crate::{Executed, Expected, FlowErrorKind};

impl WalkFamily for Rtit {
    const HAS_STACK: bool = false;

    fn enter<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
        own: Own,
    ) -> Option<Option<Ip>> {
        match own {
            Own::OverflowAt(ip) => {
                bind.note_used();
                bind.overflow(walk, ip);
                None
            }
            Own::Ends(ends) => walk.walk_to_end(bind, ends),
            Own::Pip(cr3) => Some(walk.find_mov_cr0(bind, cr3)),
            Own::Pge(_) => {
                bind.switched_on_again(walk);
                None
            }
        }
    }

    fn finish<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        if block.end == End::Limit {
            walk.walk_out(bind);
            return None;
        }
        match block.class {
            Class::Conditional if bind.tnt_len != 0 => {
                if bind.take_bit() {
                    walk.go_or_leave(bind, block, insn, block.target)
                } else {
                    walk.fall_through(bind, block, insn)
                }
            }
            Class::Conditional => {
                walk.need(bind, Expected::Tnt);
                None
            }
            Class::DirectJump | Class::DirectCall if block.end == End::Insn => {
                walk.direct(bind, block, insn)
            }
            Class::DirectJump | Class::DirectCall => walk.direct_out(bind, block, insn),
            Class::Return => {
                let ip = walk.return_target(bind)?;
                walk.go_or_leave(bind, block, insn, ip)
            }
            Class::IndirectJump | Class::IndirectCall => {
                let ip = walk.indirect_target(bind)?;
                if block.class == Class::IndirectCall {
                    walk.returns.push(block.next);
                }
                walk.go_or_leave(bind, block, insn, ip)
            }
            Class::MovCr3 => match bind.pending {
                Pending::Own(Own::Pip(cr3)) if bind.tnt_len == 0 => {
                    let is_changed = bind.own.cr3.is_some_and(|known| known != cr3);
                    // A PIP before may have been of this one.
                    let is_late = bind.own.doubt_since == Some(bind.offset);
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
                    walk.move_on(block.next, 0);
                    walk.look_around(bind);
                    None
                }
                _ => walk.fall_through(bind, block, insn),
            },
            class if class.is_far() => walk.far_transfer(bind, block, insn),
            _ => walk.fall_through(bind, block, insn),
        }
    }

    fn unclaimed<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
        own: Own,
        expected: Expected,
    ) {
        match own {
            // No instruction has claimed it: so it came of itself.
            Own::Pip(cr3) => {
                bind.use_pending();
                bind.push_paging(cr3);
            }
            Own::OverflowAt(_) => walk.phase = Phase::Enter,
            Own::Pge(_) => bind.fail(walk, FlowErrorKind::unexpected(Kind::FupPge, expected)),
            Own::Ends(ends) => {
                if !bind.take_late_bit(ends, expected) {
                    bind.end_unmet(walk, ends, expected);
                }
            }
        }
    }

    /// There is none: no TIP is deferred.
    fn target_behind_bits<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
    ) -> Option<Ip> {
        let found = Self::pending_kind(bind);
        bind.fail(walk, FlowErrorKind::unexpected(found, Expected::Tip));
        None
    }

    fn endless<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
        own: Own,
        kind: FlowErrorKind,
    ) {
        match own {
            // It went round until something ended it.
            Own::Ends(ends) => bind.end_without_use(walk, ends, kind),
            Own::Pge(_) | Own::Pip(_) | Own::OverflowAt(_) => bind.fail(walk, kind),
        }
    }
}

impl<C: CodeSource> Walker<C> {
    /// An instruction has executed that control walks on from, perhaps out of the traced ranges.
    fn fall_through(
        &mut self,
        bind: &mut Binder<'_, Rtit>,
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
    fn look_around(&mut self, bind: &mut Binder<'_, Rtit>) {
        if bind.config.filter.ends_before(self.ip) {
            self.walk_out(bind);
        }
    }

    /// Control has walked out of the traced ranges: a FUP.PGD tells so (Table 19, 3).
    pub(crate) fn walk_out(&mut self, bind: &mut Binder<'_, Rtit>) {
        while bind.tnt_len == 0 {
            match bind.pending {
                Pending::None => {
                    bind.fetch_leaving(self);
                }
                Pending::Own(Own::Pip(cr3)) => {
                    bind.use_pending();
                    bind.push_paging(cr3);
                }
                Pending::At {
                    ip,
                    what: what @ AtIp::Paging { .. },
                } if ip == self.ip => Rtit::arrive(bind, self, ip, what),
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
    fn far_transfer(
        &mut self,
        bind: &mut Binder<'_, Rtit>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        let here = match (bind.pending, bind.tnt_len) {
            (Pending::At { ip, what }, 0)
                if ip == block.next || self.is_erratum_e1(bind, insn, ip, what) =>
            {
                Some(what)
            }
            _ => None,
        };
        match here {
            Some(AtIp::Far { to: Some(to) }) => {
                bind.use_pending();
                return self.go(insn, to, 1);
            }
            Some(AtIp::Far { to: None }) => {
                // What is told next is an overflow, or nothing.
                bind.use_pending();
                return self.go(insn, block.next, 1);
            }
            Some(AtIp::Pgd { to, .. }) => return self.disable(bind, insn, block.next, to),
            _ => {}
        }
        // It has failed.
        if block.class == Class::VmEntry {
            return self.fall_through(bind, block, insn);
        }
        self.need(bind, Expected::FupFar);
        None
    }

    /// Erratum E1: the FUP.FAR of a far transfer with more than 3 prefixes names an address within it.
    fn is_erratum_e1(
        &mut self,
        bind: &mut Binder<'_, Rtit>,
        insn: Executed,
        ip: Ip,
        what: AtIp,
    ) -> bool {
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
        bind: &mut Binder<'_, Rtit>,
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
            Pending::Own(Own::Ends(ends))
                if ends.exact && bind.own.ranges.stop.contains(block.target) =>
            {
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

    fn note_call(&mut self, block: &BasicBlock) {
        if block.class == Class::DirectCall {
            self.returns.push(block.next);
        }
    }

    fn go_or_leave(
        &mut self,
        bind: &mut Binder<'_, Rtit>,
        block: &BasicBlock,
        insn: Executed,
        to: Ip,
    ) -> Option<Executed> {
        if !bind.config.filter.contains(to) {
            self.leave_range(bind, block, insn, to);
            return None;
        }
        if bind.own.ranges.stop.contains(to) {
            self.enter_stop(bind, block, insn, to);
            return None;
        }
        self.go(insn, to, 1)
    }

    /// A branch has executed that leads into a TraceStop range: a FUP.PGD with the address behind it may tell so (4.2.8).
    fn enter_stop(
        &mut self,
        bind: &mut Binder<'_, Rtit>,
        block: &BasicBlock,
        insn: Executed,
        to: Ip,
    ) {
        bind.emit_insn(insn);
        self.move_on(to, 1);
        if bind.tnt_len == 0 && matches!(bind.pending, Pending::None) {
            Rtit::fetch(bind, self);
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
    fn leave_range(
        &mut self,
        bind: &mut Binder<'_, Rtit>,
        block: &BasicBlock,
        insn: Executed,
        to: Ip,
    ) {
        bind.emit_insn(insn);
        self.move_on(to, 0);
        while bind.tnt_len == 0 && matches!(bind.pending, Pending::None) {
            bind.fetch_leaving(self);
        }
        self.leave_ranges(bind, block.next);
    }

    /// Control has left the traced ranges to where it is now: a FUP.PGD with the address `behind` what has executed last tells so.
    fn leave_ranges(&mut self, bind: &mut Binder<'_, Rtit>, behind: Ip) {
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
            // There may be none if a TraceStop range was entered just then. Where these ranges are not known, that it is missing says so.
            Pending::Own(Own::Ends(ends))
                if ends.sign == Sign::TraceStop
                    && ends.len == 0
                    && (bind.own.ranges.stop.is_empty()
                        || bind.own.ranges.stop.contains(self.ip)) =>
            {
                return bind.stopped(self);
            }
            Pending::Own(Own::Ends(ends)) => return bind.end_unmet(self, ends, Expected::FupPgd),
            // What was lost can have been the FUP.PGD.
            Pending::Own(Own::OverflowAt(_)) => return,
            Pending::Bad(kind) => return bind.fail(self, kind),
            _ => {}
        }
        bind.fail(
            self,
            FlowErrorKind::unexpected(Rtit::pending_kind(bind), Expected::FupPgd),
        );
    }

    /// A PIP may be of a MOV to CR0, if paging may have been switched: the next one, if that is here.
    ///
    /// Where paging may have been switched in code that is not traced, the PIP may be of a MOV to CR3 behind it. But up to here code has run
    /// in any case.
    fn find_mov_cr0(&mut self, bind: &mut Binder<'_, Rtit>, cr3: u64) -> Option<Ip> {
        if bind.own.knows_paging && !bind.own.switches_paging() {
            return None;
        }
        let id = self
            .cache
            .straight(self.ip, bind.mode, &mut self.code, bind.rules());
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

    /// Tracing ends in the code here, or the trace does. The next address at which it may, if the walk can go on; `None` if it cannot.
    fn walk_to_end(&mut self, bind: &mut Binder<'_, Rtit>, ends: Ends) -> Option<Option<Ip>> {
        let stop = &bind.own.ranges.stop;
        if ends.exact && ends.len == 0 {
            let is_entered = self.last_edge.1 == 1 && stop.contains(self.ip);
            if is_entered || stop.bases().any(|base| base == self.ip) {
                bind.stopped(self);
                return None;
            }
            let id = self
                .cache
                .straight(self.ip, bind.mode, &mut self.code, bind.rules());
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
