//! The walk over code where Intel PT has rules of its own: far transfers, and what other packets bind to.

use cofi_insn::{Class, CodeSource};
use cofi_packet::Ip;
use cofi_packet::intel::{Kind, TsxState};

use super::{Phase, Walker};
use crate::bind::control::{Coming, Control};
use crate::bind::intel::{AtIp, Own};
use crate::bind::state::Bound;
use crate::bind::{Binder, Pending};
use crate::code::cache::BasicBlock;
use crate::family::{BindFamily, IntelPt, WalkFamily};
use crate::reader::intel::Flow;
use crate::{Event, Executed, Expected, FlowErrorKind};

impl WalkFamily for IntelPt {
    const HAS_STACK: bool = true;

    fn enter<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
        own: Own,
    ) -> Option<Option<Ip>> {
        match own {
            Own::Paging { .. } | Own::Vmcs(_) | Own::Ptwrite { .. } => {
                return Some(None);
            }
            Own::Overflow => {
                bind.note_used();
                bind.drop_pending();
                bind.overflow(walk);
            }
            Own::Status(status) if bind.contradicts_mode(&status) => {
                bind.refuse_mode(walk, status);
            }
            Own::Status(status) if status.last => bind.finish(),
            Own::Status(status) => {
                // The PSB+ tells no address; but the code goes on all the same.
                bind.consumed();
                walk.returns.clear();
                bind.drop_pending();
                bind.apply_status(status);
            }
            Own::Pge(_) => bind.fail(
                walk,
                FlowErrorKind::unexpected(Kind::TipPge, Expected::TracingOn),
            ),
        }
        None
    }

    #[inline]
    fn finish<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        match block.class {
            Class::Conditional => walk.conditional(bind, block, insn),
            Class::DirectJump | Class::DirectCall => walk.direct_or_end(bind, block, insn),
            Class::Return => walk.near_return(bind, block, insn),
            Class::IndirectJump | Class::IndirectCall => walk.indirect(bind, block, insn),
            Class::FarCall
            | Class::FarJump
            | Class::FarReturn
            | Class::Syscall
            | Class::SoftwareInterrupt => walk.far(bind, block, insn),
            Class::VmEntry => match bind.pending {
                Pending::Tip(_)
                | Pending::Pgd(_)
                | Pending::Own(Own::Paging { .. } | Own::Vmcs(_))
                    if bind.tnt_len == 0 =>
                {
                    walk.far(bind, block, insn)
                }
                // The entry failed.
                _ => walk.go(insn, block.next, 0),
            },
            Class::MovCr3 => walk.mov_cr3(bind, block, insn),
            Class::Ptwrite => {
                if let (Pending::Own(Own::Ptwrite { payload, size }), 0) =
                    (bind.pending, bind.tnt_len)
                {
                    bind.use_pending();
                    bind.push(Event::Ptwrite {
                        ip: Some(insn.ip),
                        payload,
                        size,
                    });
                    bind.emit_insn(insn);
                    walk.move_on(block.next, 0);
                    return None;
                }
                walk.go(insn, block.next, 0)
            }
            Class::VmPtrLoad => {
                if let (Pending::Own(Own::Vmcs(base)), 0) = (bind.pending, bind.tnt_len) {
                    bind.use_pending();
                    bind.emit_insn(insn);
                    bind.apply(
                        Bound {
                            vmcs: Some(base),
                            ..Bound::default()
                        },
                        None,
                    );
                    walk.move_on(block.next, 0);
                    return None;
                }
                walk.go(insn, block.next, 0)
            }
            _ => walk.go(insn, block.next, 0),
        }
    }

    fn unclaimed<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
        own: Own,
        expected: Expected,
    ) {
        match own {
            // No instruction has claimed these: so they came of themselves.
            Own::Paging { cr3, nr } => {
                bind.use_pending();
                bind.apply(
                    Bound {
                        paging: Some((cr3, nr)),
                        ..Bound::default()
                    },
                    None,
                );
            }
            Own::Ptwrite { payload, size } => {
                bind.use_pending();
                bind.push(Event::Ptwrite {
                    ip: None,
                    payload,
                    size,
                });
            }
            Own::Vmcs(base) => {
                bind.use_pending();
                bind.apply(
                    Bound {
                        vmcs: Some(base),
                        ..Bound::default()
                    },
                    None,
                );
            }
            Own::Pge(_) => bind.fail(walk, FlowErrorKind::unexpected(Kind::TipPge, expected)),
            Own::Overflow | Own::Status(_) => walk.phase = Phase::Enter,
        }
    }

    /// The processor may have deferred its TIP.
    fn target_behind_bits<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
    ) -> Option<Ip> {
        let kind = match bind.next_flow() {
            Ok(Some(Flow::Tip(Some(ip)))) => {
                bind.consumed();
                return Some(ip);
            }
            Ok(Some(flow)) => {
                bind.reader.put_back(flow);
                if flow == Flow::Ovf {
                    // The TIP was lost, and what the remaining bits tell lies behind it.
                    bind.drop_bits();
                    walk.phase = Phase::Enter;
                    Self::fetch(bind, walk);
                    return None;
                }
                FlowErrorKind::unexpected(flow, Expected::Tip)
            }
            Ok(None) => FlowErrorKind::unexpected(Kind::Tnt8, Expected::Tip),
            Err(error) => error.into(),
        };
        bind.fail(walk, kind);
        None
    }

    /// Erratum BDM64: if an aborted transaction cannot be where the last branch led, it is where the abort says.
    #[inline]
    fn heed_errata<C: CodeSource>(walk: &mut Walker<C>, bind: &mut Binder<'_, Self>) {
        if !bind.config.errata.bdm64 || bind.own.bound.tsx != Some(TsxState::Aborted) {
            return;
        }
        let Pending::At {
            ip,
            what: AtIp::Branch { .. } | AtIp::Disable { .. },
        } = bind.pending
        else {
            return;
        };
        if walk.comes_to(ip, bind.mode, bind.rules(), |_| None) != Coming::Surely {
            walk.ip = ip;
        }
    }

    fn lost_caller<C: CodeSource>(walk: &mut Walker<C>, bind: &mut Binder<'_, Self>) -> Option<Ip> {
        if !bind.reader.damaged {
            return None;
        }
        let bits = (bind.tnt, bind.tnt_len);
        bind.own
            .trials
            .caller(&mut walk.code, &bind.reader, bind.mode, bits)
    }
}

impl<C: CodeSource> Walker<C> {
    #[inline(always)]
    fn conditional(
        &mut self,
        bind: &mut Binder<'_, IntelPt>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        if bind.tnt_len != 0 {
            return if bind.take_bit() {
                self.go(insn, block.target, 1)
            } else {
                self.go(insn, block.next, 0)
            };
        }
        match bind.pending {
            Pending::Pgd(ip) => {
                let ip = ip.or_else(|| IntelPt::left_ranges(bind, block.next, block.target));
                self.disable(bind, insn, block.next, ip)
            }
            _ => {
                self.need(bind, Expected::Tnt);
                None
            }
        }
    }

    /// A direct branch, at which tracing may have ended.
    #[inline(always)]
    fn direct_or_end(
        &mut self,
        bind: &mut Binder<'_, IntelPt>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        if let (Pending::Pgd(ip), 0) = (bind.pending, bind.tnt_len) {
            let filter = &bind.config.filter;
            let leaves = match ip {
                Some(ip) => ip == block.target,
                None => {
                    bind.config.errata.skl014
                        && !filter.is_empty()
                        && !filter.contains(block.target)
                }
            };
            if leaves {
                return self.disable(bind, insn, block.next, ip.or(Some(block.target)));
            }
        }
        self.direct(bind, block, insn)
    }

    #[inline(always)]
    fn near_return(
        &mut self,
        bind: &mut Binder<'_, IntelPt>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        if let (Pending::Pgd(ip), 0) = (bind.pending, bind.tnt_len) {
            self.returns.pop();
            return self.disable(bind, insn, block.next, ip);
        }
        let ip = self.return_target(bind)?;
        self.go(insn, ip, 1)
    }

    #[inline]
    fn indirect(
        &mut self,
        bind: &mut Binder<'_, IntelPt>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        if let (Pending::Pgd(ip), 0) = (bind.pending, bind.tnt_len) {
            return self.disable(bind, insn, block.next, ip);
        }
        let target = self.indirect_target(bind)?;
        if block.class == Class::IndirectCall {
            self.returns.push(block.next);
        }
        self.go(insn, target, 1)
    }

    fn far(
        &mut self,
        bind: &mut Binder<'_, IntelPt>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        if bind.tnt_len != 0 {
            return self.indirect(bind, block, insn);
        }
        match bind.pending {
            // These belong to the transfer; its TIP follows.
            Pending::Own(Own::Paging { cr3, nr }) => {
                bind.bind_paging(cr3, nr);
                bind.drop_pending();
                IntelPt::fetch(bind, self);
                None
            }
            Pending::Own(Own::Vmcs(base)) => {
                bind.bind_vmcs(base);
                bind.drop_pending();
                IntelPt::fetch(bind, self);
                None
            }
            Pending::Tip(Some(ip)) => {
                bind.use_pending();
                bind.apply_at(ip);
                self.go(insn, ip, 1)
            }
            Pending::Pgd(ip) => self.disable(bind, insn, block.next, ip),
            _ => {
                self.need(bind, Expected::FarTip);
                None
            }
        }
    }

    /// Whether a TIP.PGD without IP comes next.
    fn end_is_next(&self, bind: &Binder<'_, IntelPt>) -> bool {
        let mut ahead = bind.reader.clone();
        matches!(ahead.next(), Some(Ok(Flow::Pgd(None))))
    }

    fn mov_cr3(
        &mut self,
        bind: &mut Binder<'_, IntelPt>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed> {
        match bind.pending {
            Pending::Own(Own::Paging { cr3, nr }) if bind.tnt_len == 0 => {
                bind.use_pending();
                let stops = bind.stop_is_next(block.next);
                if stops {
                    IntelPt::fetch(bind, self);
                    if let (Pending::Pgd(ip), 0) = (bind.pending, bind.tnt_len) {
                        bind.bind_paging(cr3, nr);
                        return self.disable(bind, insn, block.next, ip);
                    }
                }
                if bind.config.cr3_filter && self.end_is_next(bind) {
                    IntelPt::fetch(bind, self);
                    if let (Pending::Pgd(None), 0) = (bind.pending, bind.tnt_len) {
                        bind.bind_paging(cr3, nr);
                        return self.disable(bind, insn, block.next, None);
                    }
                }
                bind.emit_insn(insn);
                bind.apply(
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
            Pending::Pgd(None) if bind.tnt_len == 0 => self.disable(bind, insn, block.next, None),
            _ => self.go(insn, block.next, 0),
        }
    }
}
