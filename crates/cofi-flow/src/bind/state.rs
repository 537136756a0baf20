//! The state that Intel PT's packets tell: what waits for the next address, and what is known.

use cofi_packet::intel::{Kind, TsxState};
use cofi_packet::{ExecMode, Ip};

use crate::bind::control::Control;
use crate::bind::intel::Own;
use crate::bind::{Binder, Pending};
use crate::events::origin::{BoundOrigins, Origin};
use crate::family::IntelPt;
use crate::reader::intel::Flow;
use crate::{Event, Expected, FlowErrorKind};

/// The state that a PSB+ reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Status {
    /// Whether this is where decoding is to end.
    pub(crate) last: bool,
    pub(crate) ip: Option<Ip>,
    pub(crate) state: Bound,
}

impl Status {
    /// What is known after this and, as far as this says nothing, an older one.
    pub(crate) fn over(mut self, older: Option<Self>) -> Self {
        if let Some(Self { state, .. }) = older {
            self.state.mode = self.state.mode.or(state.mode);
            self.state.tsx = self.state.tsx.or(state.tsx);
            self.state.paging = self.state.paging.or(state.paging);
            self.state.vmcs = self.state.vmcs.or(state.vmcs);
        }
        self
    }
}

/// State that binds to the next address packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bound {
    pub(crate) mode: Option<(ExecMode, bool)>,
    pub(crate) tsx: Option<TsxState>,
    pub(crate) paging: Option<(u64, bool)>,
    pub(crate) vmcs: Option<u64>,
}

impl Bound {
    /// Whether no state packet was read.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.mode.is_none() && self.tsx.is_none() && self.paging.is_none() && self.vmcs.is_none()
    }

    /// Whether a packet is bound that may come right before a TIP.
    pub(crate) const fn is_any(&self) -> bool {
        self.mode.is_some() || self.paging.is_some() || self.vmcs.is_some()
    }
}

impl Binder<'_, IntelPt> {
    /// Applies state that was bound to an address, control having got there.
    #[inline]
    pub(crate) fn apply(&mut self, state: Bound, place: Option<Ip>) {
        if !state.is_empty() {
            self.apply_bound(state, place);
        }
    }

    fn apply_bound(&mut self, state: Bound, place: Option<Ip>) {
        // The packet read last gave the address.
        let gives = self.emit.last.unwrap_or(Kind::Tip.into());
        let BoundOrigins {
            mode,
            tsx,
            paging,
            vmcs,
        } = self.own.origins;
        let origins = BoundOrigins {
            mode: mode.at(place, gives),
            tsx: tsx.at(place, gives),
            paging: paging.at(place, gives),
            vmcs: vmcs.at(place, gives),
        };
        self.apply_from(state, place, &origins);
    }

    fn apply_from(&mut self, state: Bound, place: Option<Ip>, origins: &BoundOrigins) {
        if let Some(mode) = state.mode {
            self.set_mode(mode, origins.mode);
        }
        if let Some(tsx) = state.tsx {
            self.own.known.tsx = Some(if tsx == TsxState::Aborted {
                TsxState::NotInTx
            } else {
                tsx
            });
            let event = Event::Tsx {
                state: tsx,
                ip: place,
            };
            self.push_from(event, origins.tsx);
        }
        if let Some((cr3, nr)) = state.paging {
            self.own.known.paging = state.paging;
            self.push_from(Event::Paging { cr3, nr }, origins.paging);
        }
        if let Some(base) = state.vmcs {
            self.own.known.vmcs = state.vmcs;
            self.push_from(Event::Vmcs { base }, origins.vmcs);
        }
    }

    /// Applies the state that a PSB+ reports, which says nothing of what is known already.
    pub(crate) fn apply_status(&mut self, status: Status) {
        self.own.loss.note_psb();
        let mut news = status.state;
        news.tsx = news.tsx.filter(|_| news.tsx != self.own.known.tsx);
        news.paging = news.paging.filter(|_| news.paging != self.own.known.paging);
        news.vmcs = news.vmcs.filter(|_| news.vmcs != self.own.known.vmcs);
        self.own.loss.is_mode_certain |= news.mode.is_some();
        let origins = BoundOrigins::all(Origin {
            ip: status.ip,
            ..self.emit.now
        });
        self.apply_from(news, status.ip, &origins);
    }

    pub(crate) fn set_mode(&mut self, (mode, interrupt_flag): (ExecMode, bool), origin: Origin) {
        self.mode = mode;
        self.own.loss.note_mode(mode);
        if self.own.known.mode != Some((mode, interrupt_flag)) {
            self.own.known.mode = Some((mode, interrupt_flag));
            let event = Event::ExecMode {
                mode,
                interrupt_flag,
            };
            self.push_from(event, origin);
        }
    }

    /// Takes a state packet that binds to the next address packet.
    pub(crate) fn bind(&mut self, flow: Flow) {
        let (bound, origins) = (&mut self.own.bound, &mut self.own.origins);
        let origin = match flow {
            Flow::ModeExec {
                mode,
                interrupt_flag,
            } => {
                bound.mode = Some((mode, interrupt_flag));
                self.own.loss.is_mode_certain = true;
                &mut origins.mode
            }
            Flow::ModeTsx(state) => {
                bound.tsx = Some(state);
                &mut origins.tsx
            }
            Flow::Pip { cr3, nr } => {
                bound.paging = Some((cr3, nr));
                &mut origins.paging
            }
            Flow::Vmcs(base) => {
                bound.vmcs = Some(base);
                &mut origins.vmcs
            }
            _ => return,
        };
        *origin = self.emit.now;
    }

    /// Whatever MODE.TSX came before this FUP belongs to it (33.4.2.8).
    pub(crate) fn bind_tsx(&mut self, ip: Ip) {
        let origin = &mut self.own.origins.tsx;
        *origin = origin.at(Some(ip), Kind::Fup);
    }

    /// Whether a PSB+ in traced code tells another mode than packets have told before, and none was lost that could have told of the change.
    pub(crate) fn contradicts_mode(&self, status: &Status) -> bool {
        match (self.own.known.mode, status.state.mode) {
            (Some((before, _)), Some((mode, _))) if self.own.bound.mode.is_none() => {
                self.own.loss.is_mode_certain && before != mode
            }
            _ => false,
        }
    }

    /// Reports that, and takes the PSB+ at its word.
    pub(crate) fn refuse_mode<W: Control>(&mut self, walk: &mut W, status: Status) {
        self.pending = Pending::Own(Own::Status(status));
        self.fail(
            walk,
            FlowErrorKind::unexpected(Kind::ModeExec, Expected::SameMode),
        );
    }
}
