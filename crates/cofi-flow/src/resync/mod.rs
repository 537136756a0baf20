//! What the decoder does while the place of control is not known or tracing is off.

mod intel;
pub(crate) mod loss;
mod overflow;
mod probation;
pub(crate) mod trial;

use cofi_packet::Ip;
use cofi_packet::intel::Kind;

use crate::bind::control::Control;
use crate::bind::{Binder, Bound, Pending, State, Status};
use crate::events::origin::Origin;
use crate::family::ResyncFamily;
use crate::resync::loss::Run;
use crate::{Event, FlowErrorKind};

/// What is certain where control was lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Certainty {
    /// The packets are in no doubt.
    pub(crate) is_sure: bool,
    /// None of those before was in doubt.
    pub(crate) is_first: bool,
    /// No TNT bits were left.
    pub(crate) no_bits_left: bool,
}

impl<F: ResyncFamily> Binder<'_, F> {
    /// Tracing is on, from `ip`.
    pub(crate) fn turn_on<W: Control>(&mut self, walk: &mut W, ip: Ip) {
        self.consumed();
        self.found(walk, Some(ip));
        self.state = State::On;
        walk.go_to(ip, false);
        self.pending = Pending::None;
        let resumed = self.resume_at.take() == Some(ip);
        self.push(Event::Enabled { ip, resumed });
        let bound = core::mem::take(&mut self.bound);
        self.apply(bound, Some(ip));
    }

    /// Tracing is off.
    pub(crate) fn turn_off<W: Control>(&mut self, walk: &mut W, resume_at: Option<Ip>) {
        self.state = State::Off;
        walk.stop();
        self.pending = Pending::None;
        self.bound = Bound::default();
        self.resume_at = resume_at;
    }

    /// Where control is, or that tracing is off, is known again, if it was not.
    pub(crate) fn found<W: Control>(&mut self, walk: &mut W, ip: Option<Ip>) {
        if let Some(from) = self.loss.at.take() {
            // Calls and returns may have run meanwhile.
            walk.forget_callers();
            let lost = self.read_at.saturating_sub(from) as u64;
            self.push(Event::Resync { ip, lost });
        }
    }

    /// Tracing turns out to be off.
    pub(crate) fn found_off<W: Control>(&mut self, walk: &mut W, ip: Option<Ip>) {
        self.consumed();
        self.found(walk, None);
        let bound = core::mem::take(&mut self.bound);
        self.turn_off(walk, None);
        self.push(Event::Disabled { ip });
        self.apply(Bound { tsx: None, ..bound }, ip);
    }

    /// Whether the packets may be wrong; from then on until the next PSB any error may come of that.
    fn is_doubtful(&self, kind: FlowErrorKind) -> bool {
        self.reader.damaged || kind.casts_doubt()
    }

    /// An instruction took tracing with it: control goes to `ip`, or else to `next` or where nobody knows.
    pub(crate) fn end_tracing<W: Control>(&mut self, walk: &mut W, next: Ip, ip: Option<Ip>) {
        self.use_pending();
        let bound = core::mem::take(&mut self.bound);
        self.turn_off(walk, Some(ip.unwrap_or(next)));
        self.push(Event::Disabled { ip });
        self.apply(Bound { tsx: None, ..bound }, ip);
    }

    /// The stream ends while tracing is on: no packet shows that anything behind the last one ran.
    pub(crate) fn end_of_stream<W: Control>(&mut self, walk: &mut W) {
        if W::FOLLOWS_CODE {
            // No packet tells of this, and none is lost.
            self.read_at = self.reader.len();
            self.error(walk, walk.at(), FlowErrorKind::UnknownEnd);
        }
        self.state = State::Done;
    }

    pub(crate) fn error<W: Control>(&mut self, walk: &mut W, ip: Option<Ip>, kind: FlowErrorKind) {
        self.push_error(ip, kind);
        self.loss.begin(self.read_at);
        self.loss.is_mode_certain = false;
        let is_doubtful = self.is_doubtful(kind);
        self.reader.damaged |= is_doubtful;
        if !F::doubt(self, walk, kind, is_doubtful) && !self.reader.skip_to_psb() {
            self.state = State::Done;
        }
    }

    /// Control is lost at `ip`: reports it and goes on where what is pending tells the address, if it does.
    ///
    /// An error that casts doubt on the packets leaves nothing certain but what later ones tell without reference to earlier ones; the one
    /// that brought the contradiction to light may be the one that is wrong. A PSB+ is taken at its word all the same.
    pub(crate) fn fail<W: Control>(&mut self, walk: &mut W, kind: FlowErrorKind) {
        let certainty = Certainty {
            is_sure: !self.is_doubtful(kind) || !W::FOLLOWS_CODE && self.reader.is_full,
            is_first: !self.reader.damaged,
            no_bits_left: self.tnt_len == 0,
        };
        self.state = State::Lost;
        walk.stop();
        self.tnt_len = 0;
        if self.is_doubtful(kind)
            && let Some(callers) = walk.callers()
        {
            F::keep_callers(self, callers);
        }
        walk.forget_callers();
        self.resume_at = None;
        // Without code nobody knows how far control has got.
        self.error(walk, walk.at(), kind);
        self.loss.was_on = certainty.is_sure;
        let pending = core::mem::replace(&mut self.pending, Pending::None);
        F::recover(self, walk, pending, certainty);
    }

    pub(crate) fn start<W: Control>(&mut self, walk: &mut W) {
        let whole = self.reader.is_at_start();
        if self.reader.skip_to_psb() {
            self.state = State::Lost;
            return;
        }
        self.state = State::Done;
        if whole && !self.reader.only_padding() {
            self.error(walk, None, FlowErrorKind::NoPsb);
        }
    }

    pub(crate) fn lose<W: Control>(&mut self, walk: &mut W, kind: FlowErrorKind) {
        self.state = State::Lost;
        walk.forget_callers();
        self.error(walk, None, kind);
    }

    pub(crate) fn after_overflow<W: Control>(
        &mut self,
        walk: &mut W,
        ip: Option<Ip>,
        status: Option<Status>,
        first: Origin,
    ) {
        self.consumed();
        self.found(walk, ip);
        let gives = self.emit.last.unwrap_or(Kind::Fup.into());
        self.push_from(Event::Overflow { ip }, first.at(ip, gives));
        let bound = core::mem::take(&mut self.bound);
        let tsx = bound
            .tsx
            .filter(|_| status.is_none_or(|status| status.state.tsx.is_none()));
        let mode = bound.mode;
        match ip {
            Some(_) if self.loss.is_mode_doubtful && status.is_none() => {
                self.state = State::Lost;
                self.loss.run = Run::Unknown;
                self.loss.was_on = false;
            }
            Some(ip) => {
                self.apply(
                    Bound {
                        tsx,
                        mode,
                        ..Bound::default()
                    },
                    Some(ip),
                );
                self.state = State::On;
                walk.go_to(ip, false);
                self.pending = Pending::None;
                self.resume_at = None;
            }
            None => {
                self.turn_off(walk, None);
                self.bound = Bound {
                    tsx,
                    mode,
                    ..Bound::default()
                };
            }
        }
        if let Some(status) = status {
            self.apply_status(status);
        }
    }

    /// Reads on while control is not being followed.
    pub(crate) fn go_on<W: Control>(&mut self, walk: &mut W) {
        match self.state {
            State::On | State::Done => {}
            State::Off => F::while_off(self, walk),
            State::Lost => F::while_lost(self, walk),
            State::Start => self.start(walk),
        }
    }
}
