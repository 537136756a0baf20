//! The walk over code where RTIT's rules differ: far transfers, branches out of the traced ranges, ends without a word.

use cofi_insn::{Class, CodeSource, MAX_INSN_LEN, advance, is_mov_to_cr0, prefixes};
use cofi_packet::Ip;
use cofi_packet::rtit::Kind;

use super::{Ends, Sign};
use crate::cache::{End, Straight};
use crate::decoder::{FlowDecoder, Phase, State};
use crate::index::NONE;
use crate::pending::{AtIp, Pending};
use crate::walk::MAX_TRIED;
use crate::{Event, Executed, Expected, FilterRanges, FlowErrorKind, Item};

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
enum Coming {
    Never,
    Surely,
    /// A direct branch before it may have ended tracing; or it is too far to see.
    Perhaps,
}

impl<C: CodeSource> FlowDecoder<'_, C> {
    /// The walk has come to the address of a FUP.FAR or FUP.PGD.
    pub(crate) fn arrive_rtit(&mut self, at: Ip, what: AtIp) {
        self.pending = Pending::None;
        // A MOV to CR0 that leaves paging as it is has no PIP: code behind this one may be older than the PIP.
        match what {
            AtIp::Paging { .. } => self.doubt_pip(),
            _ => self.consumed(),
        }
        match what {
            AtIp::Far { to: Some(to) } => {
                self.push(Event::AsyncBranch { from: at, to });
                self.ip = to;
                self.left = (NONE, 1);
            }
            AtIp::Pgd { to: None, .. }
                if self.rtit.is_confined && self.config.filter.ends_before(at) =>
            {
                // Control walked out of the range.
                self.turn_off(Some(at));
                self.push(Event::Disabled { ip: Some(at) });
            }
            AtIp::Pgd { to, .. } => {
                self.turn_off(Some(at));
                self.push(Event::AsyncDisabled { at, ip: to });
            }
            AtIp::Paging { cr3 } => self.push_paging(cr3),
            // What came of it is lost; what is told next is an overflow, or nothing.
            _ => {}
        }
    }

    /// The PIP just read may be of a later instruction than the one here. So may those that follow it, up to another packet.
    fn doubt_pip(&mut self) {
        self.rtit.doubt_since = Some(self.offset);
        self.reader.stays_older();
    }

    /// After a block's plain instructions: one that ends it and for which RTIT has rules of its own.
    pub(crate) fn finish_rtit(&mut self, block: &Straight) -> Option<Executed> {
        let insn = Executed {
            ip: block.term_ip,
            len: block.len,
            class: block.class,
            mode: self.mode,
            digest: block.digest,
        };
        match block.class {
            Class::Conditional if self.tnt_len != 0 => {
                if self.take_bit() {
                    self.go_or_leave(block, insn, block.target)
                } else {
                    self.fall_through(block, insn)
                }
            }
            Class::Conditional => {
                self.need(Expected::Tnt);
                None
            }
            Class::DirectJump | Class::DirectCall => self.direct_out(block, insn),
            Class::Return => {
                let ip = self.return_target()?;
                self.go_or_leave(block, insn, ip)
            }
            Class::IndirectJump | Class::IndirectCall => {
                let ip = self.indirect_target()?;
                if block.class == Class::IndirectCall {
                    self.returns.push(block.next);
                }
                self.go_or_leave(block, insn, ip)
            }
            Class::MovCr3 => match self.pending {
                Pending::Pip(cr3) if self.tnt_len == 0 => {
                    let is_changed = self.known.paging.is_some_and(|(known, _)| known != cr3);
                    // A PIP before may have been of this one.
                    let is_late = self.rtit.doubt_since == Some(self.offset);
                    if self.config.cr3_filter || !is_changed || is_late {
                        // With the filter on there is no PIP, and one that does not change CR3 may be of a MOV CR0: code behind this
                        // may be older than the PIP.
                        self.pending = Pending::None;
                        self.doubt_pip();
                    } else {
                        self.use_pending();
                    }
                    self.out.push_back(Item::Insn(insn));
                    self.push_paging(cr3);
                    self.move_on(block.next, 0);
                    self.look_around();
                    None
                }
                _ => self.fall_through(block, insn),
            },
            class if class.is_far() => self.far_rtit(block, insn),
            _ => self.fall_through(block, insn),
        }
    }

    /// An instruction has executed that control walks on from, perhaps out of the traced ranges.
    fn fall_through(&mut self, block: &Straight, insn: Executed) -> Option<Executed> {
        if !self.config.filter.ends_before(block.next) {
            return self.go(insn, block.next, 0);
        }
        self.out.push_back(Item::Insn(insn));
        self.move_on(block.next, 0);
        self.walk_out();
        None
    }

    /// Control has walked on to `ip`, perhaps out of the traced ranges.
    fn look_around(&mut self) {
        if self.config.filter.ends_before(self.ip) {
            self.walk_out();
        }
    }

    /// Control has walked out of the traced ranges: a FUP.PGD tells so (Table 19, 3).
    pub(crate) fn walk_out(&mut self) {
        while self.tnt_len == 0 {
            match self.pending {
                Pending::None => {
                    self.rtit.is_leaving = true;
                    self.fetch_rtit();
                    self.rtit.is_leaving = false;
                }
                Pending::Pip(cr3) => {
                    self.use_pending();
                    self.push_paging(cr3);
                }
                Pending::At {
                    ip,
                    what: what @ AtIp::Paging { .. },
                } if ip == self.ip => self.arrive_rtit(ip, what),
                // An event just there may have come first.
                Pending::At { ip, .. } if ip == self.ip => {
                    self.phase = Phase::Enter;
                    return;
                }
                _ => break,
            }
        }
        self.phase = Phase::Enter;
        self.leave_ranges(self.ip);
    }

    /// A far transfer. A FUP with the address behind it says that it has executed (Table 1).
    fn far_rtit(&mut self, block: &Straight, insn: Executed) -> Option<Executed> {
        if let (Pending::At { ip, what }, 0) = (self.pending, self.tnt_len)
            && (ip == block.next || self.is_erratum_e1(insn, ip, what))
        {
            match what {
                AtIp::Far { to: Some(to) } => {
                    self.use_pending();
                    return self.go(insn, to, 1);
                }
                AtIp::Far { to: None } => {
                    // What is told next is an overflow, or nothing.
                    self.use_pending();
                    return self.go(insn, block.next, 1);
                }
                AtIp::Pgd { to, .. } => return self.disable(insn, block.next, to),
                _ => {}
            }
        }
        // It has failed.
        if block.class == Class::VmEntry {
            return self.fall_through(block, insn);
        }
        self.need(Expected::FupFar);
        None
    }

    /// Erratum E1: the FUP.FAR of a far transfer with more than 3 prefixes names an address within it.
    fn is_erratum_e1(&mut self, insn: Executed, ip: Ip, what: AtIp) -> bool {
        if !self.config.errata.rtit_e1
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
    fn direct_out(&mut self, block: &Straight, insn: Executed) -> Option<Executed> {
        let target = block.target;
        let leaves = !self.config.filter.contains(target);
        match self.pending {
            _ if self.tnt_len != 0 => {}
            Pending::At {
                ip,
                what: AtIp::Pgd { to: None, stops },
            } if ip == block.next && (leaves || stops) => {
                self.note_call(block);
                return self.disable(insn, block.next, Some(target));
            }
            Pending::Ends(ends) if ends.exact && self.rtit.stop.contains(block.target) => {
                self.note_call(block);
                self.out.push_back(Item::Insn(insn));
                self.ip = block.target;
                self.stopped();
                return None;
            }
            _ => {}
        }
        if leaves {
            self.need(Expected::FupPgd);
            return None;
        }
        self.direct(block, insn)
    }

    /// A FUP.PGD, and a TraceStop, of which nobody has told the range: it may have been entered by the branch that led here (if one did) or by
    /// a direct one on the way, with this address behind it. How tracing ended is known if only one way is left.
    pub(super) fn end_unclear(&mut self, behind: Ip, was_taken: bool) {
        match (self.comes_to(behind), was_taken) {
            (Coming::Never, true) => self.end_tracing(self.ip, Some(self.ip)),
            (Coming::Surely, false) | (Coming::Never, false) => {}
            _ => self.pending = Pending::Ends(Ends::by_pgd()),
        }
    }

    /// Whether code leads from here to an address, or to a direct branch that has it behind it, without a packet.
    fn comes_to(&mut self, behind: Ip) -> Coming {
        let mut at = self.ip;
        for _ in 0..MAX_TRIED {
            let id = self.cache.straight(at, self.mode, &mut self.code);
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

    fn note_call(&mut self, block: &Straight) {
        if block.class == Class::DirectCall {
            self.returns.push(block.next);
        }
    }

    fn go_or_leave(&mut self, block: &Straight, insn: Executed, to: Ip) -> Option<Executed> {
        if !self.config.filter.contains(to) {
            self.leave_range(block, insn, to);
            return None;
        }
        if self.rtit.stop.contains_any(to) {
            self.enter_stop(block, insn, to);
            return None;
        }
        self.go(insn, to, 1)
    }

    /// A branch has executed that leads into a TraceStop range: a FUP.PGD with the address behind it may tell so (4.2.8).
    fn enter_stop(&mut self, block: &Straight, insn: Executed, to: Ip) {
        self.out.push_back(Item::Insn(insn));
        self.move_on(to, 1);
        if self.tnt_len == 0 && matches!(self.pending, Pending::None) {
            self.fetch_rtit();
        }
        match self.pending {
            Pending::At {
                ip,
                what:
                    AtIp::Pgd {
                        to: None,
                        stops: true,
                    },
            } if ip == block.next && self.tnt_len == 0 => self.end_tracing(block.next, Some(to)),
            _ => {}
        }
    }

    /// A branch has executed that leads out of the traced ranges: a FUP.PGD with the address behind it follows.
    fn leave_range(&mut self, block: &Straight, insn: Executed, to: Ip) {
        self.out.push_back(Item::Insn(insn));
        self.move_on(to, 0);
        self.rtit.is_leaving = true;
        while self.tnt_len == 0 && matches!(self.pending, Pending::None) {
            self.fetch_rtit();
        }
        self.rtit.is_leaving = false;
        self.leave_ranges(block.next);
    }

    /// Control has left the traced ranges to where it is now: a FUP.PGD with the address `behind` what has executed last tells so.
    fn leave_ranges(&mut self, behind: Ip) {
        match self.pending {
            _ if self.tnt_len != 0 => {}
            Pending::At {
                ip,
                what: AtIp::Pgd { to: None, .. },
            } if ip == behind => return self.end_tracing(behind, Some(self.ip)),
            // Erratum E2: it is one too many, of code elsewhere. Tracing was switched off here, just where control left the ranges.
            Pending::At {
                what: AtIp::Pgd { to: None, .. },
                ..
            } if self.is_end_in_doubt() => return self.end_unknown(Ends::by_pgd()),
            // There may be none if a TraceStop range was entered just then.
            Pending::Ends(ends)
                if ends.sign == Sign::TraceStop
                    && ends.len == 0
                    && self.rtit.stop.contains(self.ip) =>
            {
                return self.stopped();
            }
            Pending::Ends(ends) => return self.end_unmet(ends, Expected::FupPgd),
            // What was lost can have been the FUP.PGD.
            Pending::OverflowAt(_) => return,
            Pending::Bad(kind) => return self.fail(kind),
            _ => {}
        }
        self.fail(FlowErrorKind::Unexpected {
            found: self.pending_kind_rtit(),
            expected: Expected::FupPgd,
        });
    }

    /// A PIP may be of a MOV to CR0, if paging may have been switched: the next one, if that is here.
    ///
    /// Where paging may have been switched in code that is not traced, the PIP may be of a MOV to CR3 behind it. But up to here code has run
    /// in any case.
    fn find_mov_cr0(&mut self, cr3: u64) -> Option<Ip> {
        if self.rtit.knows_paging && !self.rtit.switches_paging() {
            return None;
        }
        let id = self.cache.straight(self.ip, self.mode, &mut self.code);
        let block = *self.cache.block(id);
        let mut at = block.ip;
        for index in 0..usize::from(block.body) {
            let mut bytes = [0; MAX_INSN_LEN];
            let len = self.code.read(at, &mut bytes).min(MAX_INSN_LEN);
            let is_found = is_mov_to_cr0(&bytes[..len], self.mode);
            at = advance(
                at,
                self.cache.len_at(block.first as usize + index),
                self.mode,
            );
            if is_found {
                let what = AtIp::Paging { cr3 };
                self.pending = Pending::At { ip: at, what };
                return Some(at);
            }
        }
        None
    }

    /// A PIP, an overflow, or an end without a word: where the walk is to stop, if anywhere; `None` if it does not go on.
    #[inline(never)]
    pub(crate) fn enter_rtit(&mut self) -> Option<Option<Ip>> {
        match self.pending {
            Pending::OverflowAt(ip) => {
                self.note_used();
                self.overflow_rtit(ip);
                None
            }
            Pending::Ends(ends) => self.walk_to_end(ends),
            Pending::Pip(cr3) => Some(self.find_mov_cr0(cr3)),
            _ => None,
        }
    }

    /// Tracing ends in the code here, or the trace does. The next address at which it may, if the walk can go on; `None` if it cannot.
    fn walk_to_end(&mut self, ends: Ends) -> Option<Option<Ip>> {
        let stop = &self.rtit.stop;
        if ends.exact && ends.len == 0 {
            let is_entered = self.left.1 == 1 && stop.contains(self.ip);
            if is_entered || stop.bases().any(|base| base == self.ip) {
                self.stopped();
                return None;
            }
            let id = self.cache.straight(self.ip, self.mode, &mut self.code);
            let bases = stop.bases();
            let first = bases
                .filter_map(|base| Some((self.cache.position(id, base)?, base)))
                .min_by_key(|(position, _)| *position);
            return Some(first.map(|(_, base)| base));
        }
        if ends.len != 0 {
            return Some(None);
        }
        self.end_unknown(ends);
        None
    }

    /// A branch needs a result: one of those that were not sent. `false` if there is none.
    pub(crate) fn take_late_bit(&mut self, ends: Ends, expected: Expected) -> bool {
        if ends.len == 0 || !matches!(expected, Expected::Tnt | Expected::TntOrTip) {
            return false;
        }
        let len = ends.len - 1;
        self.tnt = u64::from(ends.bits >> len & 1) << 63;
        self.tnt_len = 1;
        self.pending = Pending::Ends(Ends {
            bits: ends.bits & ((1 << len) - 1),
            len,
            ..ends
        });
        true
    }

    /// Control has entered a TraceStop range.
    fn stopped(&mut self) {
        self.use_pending();
        (self.rtit.is_stopped, self.rtit.may_resume) = (true, false);
        self.turn_off(Some(self.ip));
        self.push(Event::Disabled { ip: Some(self.ip) });
        self.push(Event::Stop);
    }

    /// Tracing is switched on at an address, though it is on: it was off without a word, and nobody knows since when.
    pub(crate) fn switched_on_again(&mut self) {
        if self.rtit.is_last {
            // Who begins at the PSB before it tells the rest.
            self.pending = Pending::None;
            self.fail(FlowErrorKind::UnknownEnd);
            self.state = State::Done;
        } else {
            self.fail(FlowErrorKind::UnknownEnd);
        }
    }

    /// How far code ran from here on is not known.
    pub(crate) fn end_unknown(&mut self, ends: Ends) {
        self.end_by(ends, FlowErrorKind::UnknownEnd);
    }

    /// The same, as far as no results are left, for which code that goes on like this has no use.
    pub(crate) fn end_without_use(&mut self, ends: Ends, kind: FlowErrorKind) {
        match ends.len {
            0 => self.end_unknown(ends),
            _ => self.end_by(ends, kind),
        }
    }

    /// The same where something else is needed.
    pub(crate) fn end_unmet(&mut self, ends: Ends, expected: Expected) {
        let found = Kind::TntPartial.into();
        self.end_without_use(ends, FlowErrorKind::Unexpected { found, expected });
    }

    fn end_by(&mut self, ends: Ends, kind: FlowErrorKind) {
        if ends.sign == Sign::EndOfTrace {
            if kind != FlowErrorKind::UnknownEnd && !self.notes.tells {
                self.error(Some(self.ip), kind);
            } else if self.state == State::On && !self.rtit.is_last {
                // (Where control was lost, that was reported. And a decoder of the next range goes on where this one ends.)
                self.end_of_stream();
            }
            self.state = State::Done;
            return;
        }
        self.note_used();
        self.pending = Pending::None;
        self.tnt_len = 0;
        self.returns.clear();
        if !self.notes.tells {
            self.error(Some(self.ip), kind);
        }
        self.turn_off(None);
        if ends.sign == Sign::TraceStop {
            (self.rtit.is_stopped, self.rtit.may_resume) = (true, false);
            self.push(Event::Stop);
        }
    }

    /// The event level: what ended tracing is told at once.
    pub(crate) fn follow_rtit(&mut self, pending: Pending) {
        match pending {
            Pending::OverflowAt(ip) => {
                self.note_used();
                self.overflow_rtit(ip);
            }
            Pending::Ends(ends) => self.end_unknown(ends),
            Pending::Pge(Some(ip)) => {
                // Tracing was off without a word.
                self.turn_off(None);
                self.turn_on(ip);
            }
            _ => {
                self.fail(FlowErrorKind::SuppressedIp {
                    packet: Kind::FupPge.into(),
                });
            }
        }
    }
}
