//! What the decoder does while the place of control is not known or tracing is off.

mod intel;
pub(crate) mod loss;
mod overflow;
mod probation;
pub(crate) mod trial;

use cofi_packet::{DecodeError, Ip};

use crate::bind::control::Control;
use crate::bind::{Binder, Pending, State};
use crate::events::origin::Origin;
use crate::family::ResyncFamily;
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
        self.apply_at(ip);
    }

    /// Tracing is off.
    pub(crate) fn turn_off<W: Control>(&mut self, walk: &mut W, resume_at: Option<Ip>) {
        self.state = State::Off;
        walk.stop();
        self.pending = Pending::None;
        self.resume_at = resume_at;
    }

    /// Where control is, or that tracing is off, is known again, if it was not.
    pub(crate) fn found<W: Control>(&mut self, walk: &mut W, ip: Option<Ip>) {
        if let Some(from) = self.lost_at.take() {
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
        self.disabled(walk, None, ip);
    }

    /// Tracing went off, and control to `ip` if packets tell.
    pub(crate) fn disabled<W: Control>(
        &mut self,
        walk: &mut W,
        resume_at: Option<Ip>,
        ip: Option<Ip>,
    ) {
        self.turn_off(walk, resume_at);
        self.push(Event::Disabled { ip });
        F::apply_off(self, ip);
    }

    /// Whether the packets may be wrong; from then on until the next PSB any error may come of that.
    fn is_doubtful(&self, kind: FlowErrorKind) -> bool {
        self.reader.damaged || kind.casts_doubt()
    }

    /// An instruction took tracing with it: control goes to `ip`, or else to `next` or where nobody knows.
    pub(crate) fn end_tracing<W: Control>(&mut self, walk: &mut W, next: Ip, ip: Option<Ip>) {
        self.use_pending();
        self.disabled(walk, Some(ip.unwrap_or(next)), ip);
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
        self.lost_at.get_or_insert(self.read_at);
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
        if self.is_doubtful(kind) {
            if let Some(callers) = walk.callers() {
                F::keep_callers(self, callers);
            }
        }
        walk.forget_callers();
        self.resume_at = None;
        // Without code nobody knows how far control has got.
        self.error(walk, walk.at(), kind);
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

    /// Packets were lost up to here, and tracing goes on at `ip`, if it does.
    pub(crate) fn report_overflow<W: Control>(
        &mut self,
        walk: &mut W,
        ip: Option<Ip>,
        origin: Origin,
    ) {
        self.consumed();
        self.found(walk, ip);
        self.push_from(Event::Overflow { ip }, origin);
    }

    /// Tracing is on behind that.
    pub(crate) fn go_on_at<W: Control>(&mut self, walk: &mut W, ip: Ip) {
        self.state = State::On;
        walk.go_to(ip, false);
        self.pending = Pending::None;
        self.resume_at = None;
    }

    /// Takes what comes next while tracing is off or control is lost: errors and the end are dealt with.
    pub(crate) fn take_while_away<W: Control>(
        &mut self,
        walk: &mut W,
        next: Result<Option<F::Flow>, DecodeError>,
    ) -> Option<F::Flow> {
        match next {
            Ok(Some(flow)) => return Some(flow),
            Ok(None) => self.state = State::Done,
            Err(error) => {
                self.state = State::Lost;
                self.error(walk, None, error.into());
            }
        }
        None
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
