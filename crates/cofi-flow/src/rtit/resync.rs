//! What the decoder does with RTIT's packets while the place of control is not known or tracing is off.

use cofi_packet::Ip;

use super::{AtIp, Flow, Own};
use crate::bind::control::Control;
use crate::bind::{Binder, Pending, State};
use crate::events::origin::Origin;
use crate::family::{ResyncFamily, Rtit};
use crate::resync::Certainty;
use crate::{Event, Expected, FlowErrorKind};

impl ResyncFamily for Rtit {
    fn while_off<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W) {
        bind.own.knows_paging = false;
        let Some(flow) = bind.next_while_away(walk) else {
            return;
        };
        let was_stopped = bind.own.is_stopped;
        if !matches!(flow, Flow::Pip { .. }) {
            bind.own.is_stopped = flow == Flow::TraceStop;
            bind.own.may_resume &= !bind.own.is_stopped;
        }
        match flow {
            Flow::Pge(Some(ip)) => bind.turn_on(walk, ip),
            // The address is not known.
            Flow::Pge(None) => {
                bind.state = State::Lost;
                bind.lost_at.get_or_insert(bind.read_at);
            }
            // Erratum E2: there is one too many.
            Flow::Pgd(_) if bind.config.errata.rtit_e2 => {}
            Flow::Pgd(_) => bind.error(
                walk,
                None,
                FlowErrorKind::unexpected(flow, Expected::FupPge),
            ),
            // Without paging or CR3 filters, these come whatever the IP filter says (4.2.10).
            Flow::Pip { cr3, paging } => {
                bind.own.told_unpaged = !paging;
                bind.push_paging(cr3);
            }
            Flow::TraceStop => bind.push(Event::Stop),
            Flow::Ovf(ip) => {
                if was_stopped && !bind.own.may_resume && !bind.config.errata.rtit_e4 {
                    bind.error(
                        walk,
                        None,
                        FlowErrorKind::unexpected(flow, Expected::FupPge),
                    );
                }
                bind.note_used();
                return bind.overflow(walk, ip);
            }
            // They were known when tracing was stopped, and were used then.
            Flow::Tnt { len: ..=5, .. } if was_stopped => {}
            Flow::Tnt { .. } | Flow::Tip(_) | Flow::Far(_) => {
                bind.lose(walk, FlowErrorKind::unexpected(flow, Expected::FupPge));
            }
            Flow::Psb => {}
        }
        bind.note_used();
    }

    /// The packets are FUP.PGE, FUP.BuffOvf and TIP, as all results of branches before it stand before it.
    fn while_lost<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W) {
        bind.own.knows_paging = false;
        let Some(flow) = bind.next_while_away(walk) else {
            return;
        };
        let is_spoilt = bind.reader.own.may_be_spoilt();
        match flow {
            _ if is_spoilt && bind.reader.damaged && W::FOLLOWS_CODE => {}
            Flow::Pge(Some(ip)) => bind.turn_on(walk, ip),
            Flow::Tip(Some(ip)) if !W::FOLLOWS_CODE => {
                bind.consumed();
                bind.found(walk, Some(ip));
                bind.state = State::On;
                bind.push(Event::Target { ip });
            }
            // Where it leads out of the traced ranges, or into one that stops tracing, a FUP.PGD follows.
            Flow::Tip(Some(ip))
                if bind.config.filter.contains(ip)
                    && !(bind.own.ranges.stop.contains(ip) && bind.is_stopped_by_pgd()) =>
            {
                bind.turn_on(walk, ip);
            }
            Flow::Far(Some(from)) if !W::FOLLOWS_CODE => match bind.far_target() {
                Ok(Some(to)) => {
                    bind.found(walk, Some(to));
                    bind.state = State::On;
                    bind.consumed();
                    bind.push(Event::AsyncBranch { from, to });
                }
                Ok(None) => {}
                Err(kind) => bind.error(walk, None, kind),
            },
            Flow::Pgd(at) => {
                let (to, _) = bind.behind_end();
                if let (Some(at), true) = (at, !W::FOLLOWS_CODE) {
                    bind.consumed();
                    bind.found(walk, None);
                    bind.turn_off(walk, None);
                    bind.push(Event::AsyncDisabled { at, ip: to });
                } else {
                    bind.found_off(walk, to);
                }
            }
            Flow::TraceStop => {
                bind.found_off(walk, None);
                bind.push(Event::Stop);
                (bind.own.is_stopped, bind.own.may_resume) = (true, false);
            }
            Flow::Ovf(ip) => {
                bind.note_used();
                bind.overflow(walk, ip);
            }
            Flow::Pip { cr3, paging } => {
                bind.own.told_unpaged = !paging;
                bind.push_paging(cr3);
            }
            Flow::Tnt { bits, len } if !W::FOLLOWS_CODE => bind.branches(walk, bits, len),
            Flow::Tnt { .. } | Flow::Tip(_) | Flow::Far(_) | Flow::Pge(None) | Flow::Psb => {}
        }
    }

    fn doubt<W: Control>(
        bind: &mut Binder<'_, Self>,
        _: &mut W,
        kind: FlowErrorKind,
        is_doubtful: bool,
    ) -> bool {
        if is_doubtful {
            bind.reader.back = None;
            bind.reader.own.distrust();
        }
        !matches!(kind, FlowErrorKind::Packet(_))
    }

    fn recover<W: Control>(
        bind: &mut Binder<'_, Self>,
        walk: &mut W,
        pending: Pending<Self>,
        Certainty { is_sure, .. }: Certainty,
    ) {
        bind.own.knows_paging = false;
        match pending {
            Pending::At {
                what: AtIp::Far { to: Some(ip) },
                ..
            }
            | Pending::Own(Own::Pge(Some(ip)))
                if is_sure =>
            {
                bind.turn_on(walk, ip);
            }
            Pending::At {
                what: AtIp::Pgd { to, .. },
                ..
            } if is_sure => bind.found_off(walk, to),
            Pending::Own(Own::OverflowAt(ip)) => bind.overflow(walk, ip),
            Pending::Own(Own::Ends(ends)) => bind.end_unknown(walk, ends),
            Pending::Own(Own::Pip(cr3)) => bind.push_paging(cr3),
            _ => {}
        }
    }
}

impl Binder<'_, Rtit> {
    /// The next packet; errors and the end are dealt with.
    fn next_while_away<W: Control>(&mut self, walk: &mut W) -> Option<Flow> {
        if self.own.is_last {
            self.state = State::Done;
            return None;
        }
        let next = self.next_flow();
        let flow = self.take_while_away(walk, next)?;
        // A decoder that begins at the PSB tells the rest.
        let is_theirs =
            self.own.is_last && matches!(flow, Flow::Tip(_) | Flow::Pge(_) | Flow::Ovf(_));
        if is_theirs || self.is_cut::<W>() {
            self.state = State::Done;
            return None;
        }
        Some(flow)
    }

    /// A FUP.BuffOvf: packets were lost. TriggerEn and ContextEn are set then, FilterEn need not be (4.2.5): it follows the ranges, but not
    /// always, so what comes next is asked first.
    pub(crate) fn overflow<W: Control>(&mut self, walk: &mut W, ip: Option<Ip>) {
        self.tnt_len = 0;
        self.own.knows_paging = false;
        walk.forget_callers();
        self.pending = Pending::None;
        let first = Origin {
            ip,
            ..self.emit.now
        };
        match ip {
            Some(ip) => {
                let on = !self.own.is_confined
                    || self
                        .is_traced_behind_overflow()
                        .unwrap_or_else(|| self.config.filter.contains(ip));
                let ip = Some(ip).filter(|_| on);
                self.report_overflow(walk, ip, first);
                match ip {
                    Some(ip) => self.go_on_at(walk, ip),
                    None => self.turn_off(walk, None),
                }
            }
            // It is never compressed against another: so it is damaged.
            None => self.lose(
                walk,
                FlowErrorKind::suppressed(cofi_packet::rtit::Kind::FupOvf),
            ),
        }
    }
}
