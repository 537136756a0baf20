//! What the decoder does with RTIT's packets while the place of control is not known or tracing is off.

use cofi_packet::Ip;

use super::Flow;
use super::bind::unexpected;
use crate::bind::State;
use crate::bind::control::Control;
use crate::bind::{Binder, Pending};
use crate::events::origin::Origin;
use crate::{Event, Expected, FlowErrorKind};

impl Binder<'_> {
    /// The next packet; errors and the end are dealt with.
    fn next_away_rtit<W: Control>(&mut self, walk: &mut W) -> Option<Flow> {
        if self.rtit.is_last {
            self.state = State::Done;
            return None;
        }
        match self.next_flow_rtit() {
            Ok(Some(flow)) => {
                // A decoder that begins at the PSB tells the rest.
                let is_theirs = match flow {
                    Flow::Tip(_) | Flow::Pge(_) | Flow::Ovf(_) => self.rtit.is_last,
                    _ => false,
                };
                if is_theirs || self.is_cut::<W>() {
                    self.state = State::Done;
                    return None;
                }
                Some(flow)
            }
            Ok(None) => {
                self.state = State::Done;
                None
            }
            Err(error) => {
                self.state = State::Lost;
                self.error(walk, None, error.into());
                None
            }
        }
    }

    /// Reads on while tracing is off.
    pub(crate) fn while_off_rtit<W: Control>(&mut self, walk: &mut W) {
        let Some(flow) = self.next_away_rtit(walk) else {
            return;
        };
        let was_stopped = self.rtit.is_stopped;
        if !matches!(flow, Flow::Pip { .. }) {
            self.rtit.is_stopped = flow == Flow::TraceStop;
            self.rtit.may_resume &= !self.rtit.is_stopped;
        }
        match flow {
            Flow::Pge(Some(ip)) => self.turn_on(walk, ip),
            // The address is not known.
            Flow::Pge(None) => {
                self.state = State::Lost;
                self.loss.at.get_or_insert(self.read_at);
            }
            // Erratum E2: there is one too many.
            Flow::Pgd(_) if self.config.errata.rtit_e2 => {}
            Flow::Pgd(_) => self.error(walk, None, unexpected(flow, Expected::FupPge)),
            // Without paging or CR3 filters, these come whatever the IP filter says (4.2.10).
            Flow::Pip { cr3, paging } => {
                self.rtit.told_unpaged = !paging;
                self.push_paging(cr3);
            }
            Flow::TraceStop => self.push(Event::Stop),
            Flow::Ovf(ip) => {
                if was_stopped && !self.rtit.may_resume && !self.config.errata.rtit_e4 {
                    self.error(walk, None, unexpected(flow, Expected::FupPge));
                }
                self.note_used();
                return self.overflow_rtit(walk, ip);
            }
            // They were known when tracing was stopped, and were used then.
            Flow::Tnt { len: ..=5, .. } if was_stopped => {}
            Flow::Tnt { .. } | Flow::Tip(_) | Flow::Far(_) => {
                self.lose(walk, unexpected(flow, Expected::FupPge));
            }
            Flow::Psb => {}
        }
        self.note_used();
    }

    /// Reads on, control being lost, up to a packet that tells where it is: a FUP.PGE, a FUP.BuffOvf, a TIP, as all results of
    /// branches before it stand before it. What else happens is told, wherever it is.
    pub(crate) fn while_lost_rtit<W: Control>(&mut self, walk: &mut W) {
        let Some(flow) = self.next_away_rtit(walk) else {
            return;
        };
        let is_spoilt = self
            .reader
            .rtit
            .as_ref()
            .is_some_and(|reading| reading.may_be_spoilt());
        match flow {
            _ if is_spoilt && self.reader.damaged && W::FOLLOWS_CODE => {}
            Flow::Pge(Some(ip)) => self.turn_on(walk, ip),
            Flow::Tip(Some(ip)) if !W::FOLLOWS_CODE => {
                self.consumed();
                self.found(walk, Some(ip));
                self.state = State::On;
                self.push(Event::Target { ip });
            }
            // Where it leads out of the traced ranges, or into one that stops tracing, a FUP.PGD follows.
            Flow::Tip(Some(ip))
                if self.config.filter.contains(ip)
                    && !(self.rtit.stop.contains_any(ip) && self.is_stopped_by_pgd()) =>
            {
                self.turn_on(walk, ip);
            }
            Flow::Far(Some(from)) if !W::FOLLOWS_CODE => match self.far_target() {
                Ok(Some(to)) => {
                    self.found(walk, Some(to));
                    self.state = State::On;
                    self.consumed();
                    self.push(Event::AsyncBranch { from, to });
                }
                Ok(None) => {}
                Err(kind) => self.error(walk, None, kind),
            },
            Flow::Pgd(at) => {
                let (to, _) = self.behind_end();
                if let (Some(at), true) = (at, !W::FOLLOWS_CODE) {
                    self.consumed();
                    self.found(walk, None);
                    self.turn_off(walk, None);
                    self.push(Event::AsyncDisabled { at, ip: to });
                } else {
                    self.found_off(walk, to);
                }
            }
            Flow::TraceStop => {
                self.found_off(walk, None);
                self.push(Event::Stop);
                (self.rtit.is_stopped, self.rtit.may_resume) = (true, false);
            }
            Flow::Ovf(ip) => {
                self.note_used();
                self.overflow_rtit(walk, ip);
            }
            Flow::Pip { cr3, paging } => {
                self.rtit.told_unpaged = !paging;
                self.push_paging(cr3);
            }
            Flow::Tnt { bits, len } if !W::FOLLOWS_CODE => self.branches(walk, bits, len),
            Flow::Tnt { .. } | Flow::Tip(_) | Flow::Far(_) | Flow::Pge(None) | Flow::Psb => {}
        }
    }

    /// A FUP.BuffOvf: packets were lost. TriggerEn and ContextEn are set then, FilterEn need not be (4.2.5): it follows the ranges, but not
    /// always, so what comes next is asked first.
    pub(crate) fn overflow_rtit<W: Control>(&mut self, walk: &mut W, ip: Option<Ip>) {
        self.tnt_len = 0;
        self.rtit.knows_paging = false;
        walk.forget_callers();
        self.pending = Pending::None;
        self.bound = Default::default();
        let first = Origin {
            ip,
            ..self.emit.now
        };
        match ip {
            Some(ip) => {
                let on = !self.rtit.is_confined
                    || self
                        .is_traced_behind_overflow()
                        .unwrap_or_else(|| self.config.filter.contains(ip));
                self.after_overflow(walk, Some(ip).filter(|_| on), None, first);
            }
            // It is never compressed against another: so it is damaged.
            None => self.lose(
                walk,
                FlowErrorKind::SuppressedIp {
                    packet: cofi_packet::rtit::Kind::FupOvf.into(),
                },
            ),
        }
    }
}
