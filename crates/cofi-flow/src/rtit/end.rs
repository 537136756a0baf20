//! How tracing ends of which RTIT's packets do not tell where, or not at all.

use cofi_insn::Class;
use cofi_packet::Ip;
use cofi_packet::rtit::Kind;

use super::{Ends, Own, Sign};
use crate::bind::control::{Coming, Control};
use crate::bind::{Binder, Pending, State};
use crate::family::Rtit;
use crate::{Event, Expected, FlowErrorKind};

impl Binder<'_, Rtit> {
    /// The PIP just read may be of a later instruction than the one here. So may those that follow it, up to another packet.
    pub(super) fn doubt_pip(&mut self) {
        self.own.doubt_since = Some(self.offset);
        self.reader.stays_older();
    }

    /// A FUP.PGD, and a TraceStop, of which nobody has told the range: it may have been entered by the branch that led here (if one did) or by
    /// a direct one on the way, with this address behind it. How tracing ended is known if only one way is left.
    pub(super) fn end_unclear<W: Control>(&mut self, walk: &mut W, behind: Ip, was_taken: bool) {
        let coming = walk.comes_to(behind, self.mode, self.rules(), |block| {
            let may_end = block.next == behind;
            match block.class {
                Class::DirectJump | Class::DirectCall if may_end => Some(Coming::Perhaps),
                class if class.is_far() && may_end => Some(Coming::Surely),
                _ => None,
            }
        });
        match (coming, was_taken, walk.at()) {
            (Coming::Never, true, Some(ip)) => self.end_tracing(walk, ip, Some(ip)),
            (Coming::Surely | Coming::Never, false, _) => {}
            _ => self.pending = Pending::Own(Own::Ends(Ends::by_pgd())),
        }
    }

    /// A branch needs a result: one of those that were not sent. `false` if there is none.
    pub(crate) fn take_late_bit(&mut self, ends: Ends, expected: Expected) -> bool {
        if ends.len == 0 || !matches!(expected, Expected::Tnt | Expected::TntOrTip) {
            return false;
        }
        let len = ends.len - 1;
        self.tnt = u64::from(ends.bits >> len & 1) << 63;
        self.tnt_len = 1;
        self.pending = Pending::Own(Own::Ends(Ends {
            bits: ends.bits & ((1 << len) - 1),
            len,
            ..ends
        }));
        true
    }

    /// Control has entered a TraceStop range.
    pub(super) fn stopped<W: Control>(&mut self, walk: &mut W) {
        self.use_pending();
        (self.own.is_stopped, self.own.may_resume) = (true, false);
        let at = walk.at();
        self.turn_off(walk, at);
        self.push(Event::Disabled { ip: at });
        self.push(Event::Stop);
    }

    /// Tracing is switched on at an address, though it is on: it was off without a word, and nobody knows since when.
    pub(crate) fn switched_on_again<W: Control>(&mut self, walk: &mut W) {
        if self.own.is_last {
            // Who begins at the PSB before it tells the rest.
            self.pending = Pending::None;
            self.fail(walk, FlowErrorKind::UnknownEnd);
            self.state = State::Done;
        } else {
            self.fail(walk, FlowErrorKind::UnknownEnd);
        }
    }

    /// How far code ran from here on is not known.
    pub(crate) fn end_unknown<W: Control>(&mut self, walk: &mut W, ends: Ends) {
        self.end_by(walk, ends, FlowErrorKind::UnknownEnd);
    }

    /// The same, as far as no results are left, for which code that goes on like this has no use.
    pub(crate) fn end_without_use<W: Control>(
        &mut self,
        walk: &mut W,
        ends: Ends,
        kind: FlowErrorKind,
    ) {
        match ends.len {
            0 => self.end_unknown(walk, ends),
            _ => self.end_by(walk, ends, kind),
        }
    }

    /// The same where something else is needed.
    pub(crate) fn end_unmet<W: Control>(&mut self, walk: &mut W, ends: Ends, expected: Expected) {
        let kind = FlowErrorKind::unexpected(Kind::TntPartial, expected);
        self.end_without_use(walk, ends, kind);
    }

    fn end_by<W: Control>(&mut self, walk: &mut W, ends: Ends, kind: FlowErrorKind) {
        if ends.sign == Sign::EndOfTrace {
            if kind != FlowErrorKind::UnknownEnd && W::FOLLOWS_CODE {
                self.error(walk, walk.at(), kind);
            } else if self.state == State::On && !self.own.is_last {
                // (Where control was lost, that was reported. And a decoder of the next range goes on where this one ends.)
                self.end_of_stream(walk);
            }
            self.state = State::Done;
            return;
        }
        self.note_used();
        self.pending = Pending::None;
        self.tnt_len = 0;
        walk.forget_callers();
        if W::FOLLOWS_CODE {
            self.error(walk, walk.at(), kind);
        }
        self.turn_off(walk, None);
        if ends.sign == Sign::TraceStop {
            (self.own.is_stopped, self.own.may_resume) = (true, false);
            self.push(Event::Stop);
        }
    }
}
