//! Where control is in a trace of Intel PT, while tracing is off or control is lost.

use cofi_packet::intel::{DecodeError, Kind, TsxState};
use cofi_packet::{ExecMode, Ip};

use crate::bind::control::Control;
use crate::bind::intel::{AtIp, Own, PsbPlus};
use crate::bind::state::{Bound, Status};
use crate::bind::{Binder, Pending, State};
use crate::code::retstack::ReturnStack;
use crate::family::{BindFamily, IntelPt, ResyncFamily};
use crate::reader::intel::Flow;
use crate::resync::Certainty;
use crate::resync::loss::Run;
use crate::{Event, Expected, FlowErrorKind};

impl ResyncFamily for IntelPt {
    fn while_off<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W) {
        let Some(flow) = bind.next_while_away(walk) else {
            return;
        };
        if bind.is_event_while_off(walk, flow) {
            return;
        }
        match flow {
            Flow::Pge(Some(ip)) if !bind.is_mode_told(walk, ip) => {
                bind.state = State::Lost;
                bind.lost_at.get_or_insert(bind.read_at);
            }
            Flow::Pge(Some(ip)) => {
                // No return is compressed across this, but processors and decoders differ in whether they forget.
                bind.turn_on(walk, ip);
            }
            Flow::ModeExec { .. } => return bind.bind(flow),
            Flow::ModeTsx(state) => {
                bind.bind(flow);
                bind.own.bound.tsx = Some(state).filter(|_| bind.own.known.tsx != Some(state));
                return;
            }
            Flow::Pip { .. } | Flow::Vmcs(_) => bind.apply_alone(flow),
            Flow::Ptw { .. } | Flow::TraceStop | Flow::ExStop { .. } | Flow::Pwrx { .. } => {
                bind.tell_unbound(flow);
            }
            Flow::Ovf => bind.overflow(walk),
            Flow::Psb if bind.at_end() => bind.state = State::Done,
            Flow::Psb => bind.psb_while_off(walk),
            // The address is in doubt.
            Flow::Pge(None) if bind.reader.own.doubt => {
                bind.state = State::Lost;
                bind.lost_at.get_or_insert(bind.read_at);
                bind.turn_on_if_likely(walk);
            }
            Flow::Pge(None) => bind.lose(walk, FlowErrorKind::suppressed(Kind::TipPge)),
            // Off it is in any case.
            Flow::Pgd(_) => bind.error(
                walk,
                None,
                FlowErrorKind::unexpected(flow, Expected::TipPge),
            ),
            Flow::Fup(_) | Flow::Tnt { .. } | Flow::Tip(_) | Flow::PsbEnd => {
                bind.lose(walk, FlowErrorKind::unexpected(flow, Expected::TipPge))
            }
            // They have been taken before.
            Flow::Report(_) | Flow::Mnt(_) => {}
        }
        bind.note_used();
    }

    /// The packets are a PSB+, an enabling of tracing, the end of an asynchronous branch (a FUP lets no TNT bits wait), an overflow; or those of
    /// a place that a trial confirms.
    fn while_lost<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W) {
        let Some(flow) = bind.next_while_away(walk) else {
            return;
        };
        if let Some(kind) = bind.wrong_event(flow) {
            bind.error(walk, None, kind);
        }
        if bind.hold(flow) {
            return;
        }
        if let Flow::Fup(Some(ip)) = flow {
            return bind.fup_while_lost(walk, ip);
        }
        bind.release_held(None);
        if !matches!(flow, Flow::Tip(_)) {
            bind.own.loss.run = bind.reader.run();
        }
        match flow {
            Flow::Psb if bind.at_end() => bind.state = State::Done,
            Flow::Psb => match bind.read_psb_plus() {
                PsbPlus::Complete(status) => bind.synchronise(walk, status),
                PsbPlus::Overflow => bind.overflow(walk),
                PsbPlus::End => bind.state = State::Done,
                PsbPlus::Bad(kind) => bind.error(walk, None, kind),
            },
            Flow::Pge(Some(ip)) if bind.is_mode_told(walk, ip) => bind.turn_on(walk, ip),
            Flow::Pge(_) => bind.turn_on_if_likely(walk),
            Flow::Pgd(ip) if !bind.reader.own.doubt => bind.found_off(walk, ip),
            Flow::Pgd(ip) if !W::FOLLOWS_CODE => bind.push(Event::Disabled { ip }),
            Flow::Ovf => bind.overflow(walk),
            Flow::ModeExec { .. } | Flow::ModeTsx(_) | Flow::Pip { .. } | Flow::Vmcs(_) => {
                bind.bind(flow);
            }
            Flow::Tip(Some(ip)) if !W::FOLLOWS_CODE => {
                // Who walks no code misses none of the TNT bits before it.
                bind.consumed();
                bind.found(walk, Some(ip));
                bind.state = State::On;
                bind.push(Event::Target { ip });
                bind.apply_at(ip);
            }
            Flow::Tip(Some(ip)) if bind.no_bits_wait() && bind.is_mode_told(walk, ip) => {
                bind.turn_on(walk, ip)
            }
            Flow::Tip(_) if bind.no_bits_wait() && bind.try_place(walk) => {
                bind.turn_on_at_likely(walk)
            }
            Flow::Tip(_) => {
                // A far transfer has used up what was bound, though nobody knows where.
                Self::apply_off(bind, None);
            }
            Flow::Tnt { bits, len } if !W::FOLLOWS_CODE => bind.branches(walk, bits, len),
            Flow::Ptw { .. } | Flow::TraceStop | Flow::ExStop { .. } | Flow::Pwrx { .. } => {
                bind.tell_unbound(flow);
            }
            Flow::Tnt { .. } | Flow::Fup(_) | Flow::Pgd(_) | Flow::PsbEnd => {}
            // They have been taken before.
            Flow::Report(_) | Flow::Mnt(_) => {}
        }
    }

    fn doubt<W: Control>(
        bind: &mut Binder<'_, Self>,
        walk: &mut W,
        kind: FlowErrorKind,
        is_doubtful: bool,
    ) -> bool {
        bind.own.loss.forget_control(bind.reader.run());
        if is_doubtful {
            bind.reader.own.doubt = true;
            bind.reader.drop_back();
            (bind.own.bound.mode, bind.own.bound.tsx) = (None, None);
        }
        // Code may also be missing where another mode's width has cut the address.
        let may_be_cut = matches!(kind, FlowErrorKind::Code(_)) && !bind.own.loss.has_one_mode();
        bind.own.loss.is_mode_doubtful |= is_doubtful || may_be_cut;
        match kind {
            // A packet within a block is a good one, and comes next.
            FlowErrorKind::Packet(DecodeError::InBlock { .. }) => true,
            FlowErrorKind::Packet(_) => bind.try_behind_bad_bytes(walk),
            _ => true,
        }
    }

    fn keep_callers(bind: &mut Binder<'_, Self>, callers: &ReturnStack) {
        bind.own.trials.keep_callers(callers, bind.reader.damaged);
    }

    fn recover<W: Control>(
        bind: &mut Binder<'_, Self>,
        walk: &mut W,
        pending: Pending<Self>,
        certainty: Certainty,
    ) {
        let Certainty {
            is_sure,
            is_first,
            no_bits_left,
        } = certainty;
        bind.own.loss.was_on = is_sure;
        if is_sure && no_bits_left {
            // The bits of all TNTs so far belong to branches before this place: none waits for the TIPs behind them (33.4.2.3).
            bind.own.loss.run = Run::Clear;
        }
        match pending {
            Pending::At { ip, what } => bind.recover_at(walk, ip, what, certainty),
            Pending::Own(Own::Status(status)) => bind.synchronise(walk, status),
            // No bits are left; or the packets that are bound to it stand where TNT bits might.
            Pending::Tip(Some(ip))
                if is_sure
                    && (no_bits_left || bind.own.bound.is_any())
                    && bind.is_mode_told(walk, ip) =>
            {
                bind.turn_on(walk, ip);
            }
            Pending::Own(Own::Pge(Some(ip))) if is_sure && bind.is_mode_told(walk, ip) => {
                bind.turn_on(walk, ip)
            }
            Pending::Pgd(ip) if is_sure => bind.found_off(walk, ip),
            Pending::Own(Own::Overflow) => bind.overflow(walk),
            Pending::End => bind.state = State::Done,
            Pending::None | Pending::Bad(_) => {}
            // It may be right, and packets before it wrong.
            Pending::Tip(_)
                if is_first
                    && bind.reader.damaged
                    && bind.is_last_tip_alone(walk)
                    && bind.try_place(walk) =>
            {
                bind.turn_on_at_likely(walk);
            }
            Pending::Tip(_) | Pending::Own(Own::Pge(_)) | Pending::Pgd(_) => {
                // What was bound to it is over.
                Self::apply_off(bind, None);
            }
            // They hold from the next address packet on, at the latest.
            Pending::Own(Own::Paging { cr3, nr }) => bind.own.bound.paging = Some((cr3, nr)),
            Pending::Own(Own::Vmcs(base)) => bind.own.bound.vmcs = Some(base),
            // Where is unknown now; what is not.
            Pending::Own(Own::Ptwrite { payload, size }) => bind.push(Event::Ptwrite {
                ip: None,
                payload,
                size,
            }),
        }
        // What happened is told all the same, though nobody knows where.
        bind.release_held(None);
    }
}

impl Binder<'_, IntelPt> {
    /// Takes a packet, tracing being off, that tells an event or the address of one; `false` for others, and what waited for a FUP then waits in
    /// vain.
    fn is_event_while_off<W: Control>(&mut self, walk: &mut W, flow: Flow) -> bool {
        if let Some(kind) = self.wrong_event(flow) {
            self.release_held(None);
            self.lose(walk, kind);
            self.hold(flow);
            return true;
        }
        if self.hold(flow) {
            return true;
        }
        if let (Flow::Fup(place), true) = (flow, self.own.awaiting.claimed) {
            self.consumed();
            self.release_held(place);
            return true;
        }
        self.release_held(None);
        if let (Flow::Fup(place), Some(mode)) = (flow, self.own.bound.mode) {
            // Without BranchEn, a MODE.Exec that tells of RFLAGS.IF has a FUP of its own (33.4.2.8).
            self.own.bound.mode = None;
            let origin = self.own.origins.mode.at(place, Kind::Fup);
            self.set_mode(mode, origin);
            self.note_used();
            return true;
        }
        false
    }

    /// A PSB+, tracing being off: it may tell that it is on.
    fn psb_while_off<W: Control>(&mut self, walk: &mut W) {
        let resume_at = self.resume_at;
        match self.read_psb_plus() {
            PsbPlus::Complete(status) if status.ip.is_some() && !self.config.errata.bdm70 => {
                self.synchronise(walk, status);
            }
            PsbPlus::Complete(mut status) => {
                walk.forget_callers();
                // It tells the present state; what was to hold from the next TIP.PGE on is older.
                self.own.bound.tsx = self.own.bound.tsx.filter(|_| status.state.tsx.is_none());
                // The next TIP.PGE may come without a MODE.Exec if this is its mode.
                self.own.loss.is_mode_certain &= status.state.mode.is_none();
                status.state.mode = None;
                self.apply_status(status);
                self.resume_at = resume_at;
            }
            PsbPlus::Overflow => self.overflow(walk),
            PsbPlus::End => self.state = State::Done,
            PsbPlus::Bad(kind) => self.lose(walk, kind),
        }
    }

    /// Control was lost before it came to `ip`, where this was to happen.
    fn recover_at<W: Control>(&mut self, walk: &mut W, ip: Ip, what: AtIp, certainty: Certainty) {
        let Certainty {
            is_sure, is_first, ..
        } = certainty;
        match what {
            AtIp::Status(status) => self.synchronise(walk, status),
            AtIp::Branch { to } if is_sure && self.is_mode_told(walk, to) => {
                self.release_held(None);
                self.turn_on(walk, to);
            }
            AtIp::Disable { ip } if is_sure => {
                self.release_held(None);
                self.found_off(walk, ip);
            }
            // Tracing was on when control was lost, and so it is here.
            AtIp::Events | AtIp::Ptwrite if is_sure && self.is_mode_told(walk, ip) => {
                self.release_held(Some(ip));
                self.turn_on(walk, ip);
            }
            // It may be right, and packets before it wrong.
            AtIp::Branch { .. } if is_first && self.try_place(walk) => self.turn_on_at_likely(walk),
            // What was bound to it is over.
            _ => IntelPt::apply_off(self, None),
        }
    }

    /// Takes up the place that a PSB+ tells, nothing being known before.
    fn synchronise<W: Control>(&mut self, walk: &mut W, status: Status) {
        if status.last {
            self.state = State::Done;
            return;
        }
        self.consumed();
        walk.forget_callers();
        self.own.bound = Bound::default();
        // Nothing needs to be known across a PSB (33.3.7), and what contradicted it stands before it.
        self.own.loss.is_mode_doubtful = false;
        (self.reader.damaged, self.reader.own.doubt) = (false, false);
        match status.ip {
            // Tracing cannot be switched on while it is on: then the PSB+ tells what is not so yet (erratum BDM70).
            Some(ip) if !self.pge_is_next() => {
                self.turn_on(walk, ip);
                self.apply_status(status);
            }
            _ => {
                self.found(walk, None);
                self.turn_off(walk, None);
                self.apply_status(status);
                // Until tracing goes on, the mode may change unseen.
                self.own.loss.is_mode_certain = false;
            }
        }
    }

    /// The next packet while tracing is off or control is lost; errors and the end are dealt with.
    fn next_while_away<W: Control>(&mut self, walk: &mut W) -> Option<Flow> {
        let next = self.next_flow();
        if matches!(next, Ok(None)) {
            self.release_held(None);
        }
        self.take_while_away(walk, next)
    }

    /// Tells what a packet says by itself that binds to no address, or whose address is not known.
    pub(crate) fn tell_unbound(&mut self, flow: Flow) {
        match flow {
            Flow::Ptw { payload, size, .. } => self.push(Event::Ptwrite {
                ip: None,
                payload,
                size,
            }),
            Flow::TraceStop => self.push(Event::Stop),
            Flow::ExStop { .. } => self.push(Event::ExStop { ip: None }),
            Flow::Pwrx {
                last,
                deepest,
                wake,
            } => self.wake(Event::Pwrx {
                last,
                deepest,
                wake,
            }),
            _ => {}
        }
    }

    /// Applies a PIP or VMCS packet that binds to no address.
    fn apply_alone(&mut self, flow: Flow) {
        let waiting = core::mem::take(&mut self.own.bound);
        self.bind(flow);
        let told = core::mem::replace(&mut self.own.bound, waiting);
        self.apply(told, None);
    }

    /// Takes up the place that the packet just read gives, if a trial confirms it.
    fn turn_on_if_likely<W: Control>(&mut self, walk: &mut W) {
        if self.try_place(walk) {
            self.turn_on_at_likely(walk);
        }
    }

    fn turn_on_at_likely<W: Control>(&mut self, walk: &mut W) {
        if let Some(ip) = self.reader.own.likely {
            self.turn_on(walk, ip);
        }
    }

    /// Whether it is known in which mode code runs at `ip`, which a packet just read tells.
    fn is_mode_told<W: Control>(&self, _: &W, ip: Ip) -> bool {
        // Only 64-bit code has such addresses.
        let is_wide = ip.0 >> 32 != 0 && self.mode == ExecMode::Bits64;
        !W::FOLLOWS_CODE
            || !self.own.loss.is_mode_doubtful
            || self.own.bound.mode.is_some()
            || is_wide
    }

    /// Whether the TIP just read, control being lost, tells where control is, with all TNT bits before it being those of branches before it.
    fn no_bits_wait(&self) -> bool {
        self.own.loss.run.ends(&self.reader)
    }

    /// A FUP, control being lost: does it tell where control is?
    ///
    /// That of a compound event does: the TIP at its end comes only while PacketEn is set. Others do not, by themselves: those of EXSTOP, CFE,
    /// BEP and TRIG depend on ContextEn, and not on FilterEn or BranchEn (33.4.2.22, 33.4.2.28, 33.4.2.29), those of PTW and MODE.Exec not on
    /// BranchEn (33.4.2.8, 33.4.2.21). So code may run there of whose branches nothing tells; unless tracing was on before, and nothing
    /// was lost since but the way.
    fn fup_while_lost<W: Control>(&mut self, walk: &mut W, ip: Ip) {
        self.bind_tsx(ip);
        let aborts = self.own.bound.tsx == Some(TsxState::Aborted);
        if self.own.awaiting.claimed && !aborts {
            self.release_held(Some(ip));
            if self.own.loss.was_on && self.is_mode_told(walk, ip) {
                self.turn_on(walk, ip);
            } else {
                self.note_used();
            }
            return;
        }
        if (self.own.bound.mode.is_some() || self.own.bound.tsx.is_some()) && !aborts {
            self.release_held(Some(ip));
            if self.own.loss.was_on && self.is_mode_told(walk, ip) {
                self.turn_on(walk, ip);
            }
            return;
        }
        match self.read_compound() {
            Ok(what @ (AtIp::Branch { .. } | AtIp::Disable { .. })) if !W::FOLLOWS_CODE => {
                self.found(walk, Some(ip));
                self.state = State::On;
                IntelPt::arrive(self, walk, ip, what);
            }
            Ok(AtIp::Branch { to }) if self.is_mode_told(walk, to) => {
                self.release_held(Some(ip));
                self.turn_on(walk, to);
            }
            Ok(AtIp::Disable { ip: to }) => {
                self.release_held(Some(ip));
                self.found_off(walk, to);
            }
            Ok(_) => self.release_held(Some(ip)),
            Err(kind) => self.error(walk, None, kind),
        }
    }
}
