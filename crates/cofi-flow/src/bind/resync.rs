//! What the decoder does while the place of control is not known or tracing is off.

use cofi_packet::intel::{DecodeError, Kind, TsxState};
use cofi_packet::{ExecMode, Ip};

use crate::bind::control::Control;
use crate::bind::intel::{AtIp, Own, PsbPlus};
use crate::bind::loss::Run;
use crate::bind::{Binder, Bound, Pending, State, Status};
use crate::events::origin::Origin;
use crate::family::{BindFamily, IntelPt, ResyncFamily};
use crate::reader::intel::Flow;
use crate::walk::retstack::ReturnStack;
use crate::{Event, Expected, FlowErrorKind};

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

impl ResyncFamily for IntelPt {
    fn while_off<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W) {
        let Some(flow) = bind.next_while_away(walk) else {
            return;
        };
        if let Some(kind) = bind.wrong_event(flow) {
            bind.release_held(None);
            bind.lose(walk, kind);
            bind.hold(flow);
            return;
        }
        if bind.hold(flow) {
            return;
        }
        if let (Flow::Fup(place), true) = (flow, bind.own.awaiting.claimed) {
            bind.consumed();
            bind.release_held(place);
            return;
        }
        bind.release_held(None);
        if let (Flow::Fup(place), Some(mode)) = (flow, bind.bound.mode) {
            // Without BranchEn, a MODE.Exec that tells of RFLAGS.IF has a FUP of its own (33.4.2.8).
            bind.bound.mode = None;
            let origin = bind.origins.mode.at(place, Kind::Fup);
            bind.set_mode(mode, origin);
            bind.note_used();
            return;
        }
        match flow {
            Flow::Pge(Some(ip)) if !bind.is_mode_told(walk, ip) => {
                bind.state = State::Lost;
                bind.loss.at.get_or_insert(bind.read_at);
            }
            Flow::Pge(Some(ip)) => {
                // No return is compressed across this, but processors and decoders differ in whether they forget.
                bind.turn_on(walk, ip);
            }
            Flow::ModeExec { .. } => return bind.bind(flow),
            Flow::ModeTsx(state) => {
                bind.bind(flow);
                bind.bound.tsx = Some(state).filter(|_| bind.known.tsx != Some(state));
                return;
            }
            Flow::Pip { .. } | Flow::Vmcs(_) => bind.apply_alone(flow),
            Flow::Ptw { .. } | Flow::TraceStop | Flow::ExStop { .. } | Flow::Pwrx { .. } => {
                bind.tell_unbound(flow);
            }
            Flow::Ovf => bind.overflow(walk),
            Flow::Psb if bind.at_end() => bind.state = State::Done,
            Flow::Psb => {
                let resume_at = bind.resume_at;
                match bind.read_psb_plus() {
                    PsbPlus::Complete(status)
                        if status.ip.is_some() && !bind.config.errata.bdm70 =>
                    {
                        bind.synchronise(walk, status);
                    }
                    PsbPlus::Complete(mut status) => {
                        walk.forget_callers();
                        // It tells the present state; what was to hold from the next TIP.PGE on is older.
                        bind.bound.tsx = bind.bound.tsx.filter(|_| status.state.tsx.is_none());
                        // The next TIP.PGE may come without a MODE.Exec if this is its mode.
                        bind.loss.is_mode_certain &= status.state.mode.is_none();
                        status.state.mode = None;
                        bind.apply_status(status);
                        bind.resume_at = resume_at;
                    }
                    PsbPlus::Overflow => bind.overflow(walk),
                    PsbPlus::End => bind.state = State::Done,
                    PsbPlus::Bad(kind) => bind.lose(walk, kind),
                }
            }
            // The address is in doubt.
            Flow::Pge(None) if bind.reader.own.doubt => {
                bind.state = State::Lost;
                bind.loss.at.get_or_insert(bind.read_at);
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
            bind.loss.run = bind.reader.run();
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
                let bound = core::mem::take(&mut bind.bound);
                bind.apply(bound, Some(ip));
            }
            Flow::Tip(Some(ip)) if bind.no_bits_wait() && bind.is_mode_told(walk, ip) => {
                bind.turn_on(walk, ip)
            }
            Flow::Tip(_) if bind.no_bits_wait() && bind.try_place(walk) => {
                bind.turn_on_at_likely(walk)
            }
            Flow::Tip(_) => {
                // A far transfer has used up what was bound, though nobody knows where.
                let bound = core::mem::take(&mut bind.bound);
                bind.apply(Bound { tsx: None, ..bound }, None);
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
        bind.loss.run = bind.reader.run();
        if is_doubtful {
            bind.reader.own.doubt = true;
            bind.reader.drop_back();
            (bind.bound.mode, bind.bound.tsx) = (None, None);
        }
        // Code may also be missing where another mode's width has cut the address.
        let may_be_cut = matches!(kind, FlowErrorKind::Code(_)) && !bind.loss.has_one_mode();
        bind.loss.is_mode_doubtful |= is_doubtful || may_be_cut;
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
        Certainty {
            is_sure,
            is_first,
            no_bits_left,
        }: Certainty,
    ) {
        if is_sure && no_bits_left {
            // The bits of all TNTs so far belong to branches before this place: none waits for the TIPs behind them (33.4.2.3).
            bind.loss.run = Run::Clear;
        }
        match pending {
            Pending::At {
                what: AtIp::Status(status),
                ..
            }
            | Pending::Own(Own::Status(status)) => bind.synchronise(walk, status),
            Pending::At {
                what: AtIp::Branch { to },
                ..
            } if is_sure && bind.is_mode_told(walk, to) => {
                bind.release_held(None);
                bind.turn_on(walk, to);
            }
            Pending::At {
                what: AtIp::Disable { ip },
                ..
            } if is_sure => {
                bind.release_held(None);
                bind.found_off(walk, ip);
            }
            // Tracing was on when control was lost, and so it is here.
            Pending::At {
                ip,
                what: AtIp::Events | AtIp::Ptwrite,
            } if is_sure && bind.is_mode_told(walk, ip) => {
                bind.release_held(Some(ip));
                bind.turn_on(walk, ip);
            }
            // No bits are left; or the packets that are bound to it stand where TNT bits might.
            Pending::Tip(Some(ip))
                if is_sure
                    && (no_bits_left || bind.bound.is_any())
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
            Pending::At {
                what: AtIp::Branch { .. },
                ..
            } if is_first && bind.try_place(walk) => bind.turn_on_at_likely(walk),
            Pending::Tip(_) | Pending::At { .. } | Pending::Own(Own::Pge(_)) | Pending::Pgd(_) => {
                // What was bound to it is over.
                let bound = core::mem::take(&mut bind.bound);
                bind.apply(Bound { tsx: None, ..bound }, None);
            }
            // They hold from the next address packet on, at the latest.
            Pending::Own(Own::Paging { cr3, nr }) => bind.bound.paging = Some((cr3, nr)),
            Pending::Own(Own::Vmcs(base)) => bind.bound.vmcs = Some(base),
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
    /// Takes up the place that a PSB+ tells, nothing being known before.
    fn synchronise<W: Control>(&mut self, walk: &mut W, status: Status) {
        if status.last {
            self.state = State::Done;
            return;
        }
        self.consumed();
        walk.forget_callers();
        self.bound = Bound::default();
        // Nothing needs to be known across a PSB (33.3.7), and what contradicted it stands before it.
        self.loss.is_mode_doubtful = false;
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
                self.loss.is_mode_certain = false;
            }
        }
    }

    /// The next packet while tracing is off or control is lost; errors and the end are dealt with.
    fn next_while_away<W: Control>(&mut self, walk: &mut W) -> Option<Flow> {
        match self.next_flow() {
            Ok(Some(flow)) => Some(flow),
            Ok(None) => {
                self.release_held(None);
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

    /// Tells what a packet says by itself that binds to no address, or whose address is not known.
    fn tell_unbound(&mut self, flow: Flow) {
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
    pub(crate) fn apply_alone(&mut self, flow: Flow) {
        let bound = self.bound;
        self.bind(flow);
        let (paging, vmcs) = match flow {
            Flow::Pip { .. } => (self.bound.paging, None),
            _ => (None, self.bound.vmcs),
        };
        self.bound = bound;
        self.apply(
            Bound {
                paging,
                vmcs,
                ..Bound::default()
            },
            None,
        );
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
        !W::FOLLOWS_CODE || !self.loss.is_mode_doubtful || self.bound.mode.is_some() || is_wide
    }

    /// Whether the TIP just read, control being lost, tells where control is, with all TNT bits before it being those of branches before it.
    fn no_bits_wait(&self) -> bool {
        self.loss.run.ends(&self.reader)
    }

    /// A FUP, control being lost: does it tell where control is?
    ///
    /// That of a compound event does: the TIP at its end comes only while PacketEn is set. Others do not, by themselves: those of EXSTOP, CFE,
    /// BEP and TRIG depend on ContextEn, and not on FilterEn or BranchEn (33.4.2.22, 33.4.2.28, 33.4.2.29), those of PTW and MODE.Exec not on
    /// BranchEn (33.4.2.8, 33.4.2.21). So code may run there of whose branches nothing tells; unless tracing was on before, and nothing
    /// was lost since but the way.
    fn fup_while_lost<W: Control>(&mut self, walk: &mut W, ip: Ip) {
        self.bind_tsx(ip);
        let aborts = self.bound.tsx == Some(TsxState::Aborted);
        if self.own.awaiting.claimed && !aborts {
            self.release_held(Some(ip));
            if self.loss.was_on && self.is_mode_told(walk, ip) {
                self.turn_on(walk, ip);
            } else {
                self.note_used();
            }
            return;
        }
        if (self.bound.mode.is_some() || self.bound.tsx.is_some()) && !aborts {
            self.release_held(Some(ip));
            if self.loss.was_on && self.is_mode_told(walk, ip) {
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

    /// After an OVF: where tracing goes on (33.3.8).
    pub(crate) fn overflow<W: Control>(&mut self, walk: &mut W) {
        self.tnt_len = 0;
        self.loss.is_mode_certain = false;
        walk.forget_callers();
        // While tracing is off a MODE packet tells the state that holds when it goes on, and waits for no packet that may be lost (33.2.9.2).
        let off = self.state == State::Off;
        self.bound = Bound {
            tsx: self.bound.tsx.filter(|_| off),
            mode: self.bound.mode.filter(|_| off),
            ..Bound::default()
        };
        self.release_held(None);
        let mut status = None;
        let mut first = self.emit.now;
        loop {
            let flow = match self.next_flow() {
                Ok(Some(flow)) => flow,
                Ok(None) => {
                    self.note_used();
                    self.push_from(Event::Overflow { ip: None }, first);
                    self.state = State::Done;
                    return;
                }
                Err(error) => {
                    self.push_from(Event::Overflow { ip: None }, first);
                    self.lose(walk, error.into());
                    return;
                }
            };
            // Each OVF has lost something of its own.
            let mut is_another = flow == Flow::Ovf;
            match flow {
                Flow::Ovf => {}
                Flow::Psb if self.at_end() => {
                    self.push_from(Event::Overflow { ip: None }, first);
                    self.state = State::Done;
                    return;
                }
                Flow::Psb => match self.read_psb_plus() {
                    PsbPlus::Complete(found) if found.ip.is_some() => {
                        self.after_overflow(walk, found.ip, Some(found.over(status)), first);
                        return;
                    }
                    PsbPlus::Complete(found) => status = Some(found.over(status)),
                    PsbPlus::Overflow => is_another = true,
                    PsbPlus::End => {}
                    PsbPlus::Bad(kind) => {
                        self.push_from(Event::Overflow { ip: None }, first);
                        self.lose(walk, kind);
                        return;
                    }
                },
                flow => return self.end_overflow(walk, flow, status, first),
            }
            if is_another {
                self.note_used();
                self.push_from(Event::Overflow { ip: None }, first);
                first = self.emit.now;
            }
        }
    }

    /// The first packet behind OVFs and PSB+s without an address says where tracing goes on, or does not.
    fn end_overflow<W: Control>(
        &mut self,
        walk: &mut W,
        flow: Flow,
        status: Option<Status>,
        first: Origin,
    ) {
        let errata = self.config.errata;
        match flow {
            Flow::Fup(Some(ip)) => {
                let off = errata.apl12 && self.pge_is_next_over_psbs();
                self.after_overflow(walk, Some(ip).filter(|_| !off), status, first);
            }
            Flow::Pgd(_) if errata.apl11 => self.after_overflow(walk, None, status, first),
            Flow::Fup(None) if self.reader.own.doubt => {
                self.lose_behind_overflow(first, Run::Unknown);
            }
            Flow::Tnt { .. } | Flow::Tip(_) | Flow::Pgd(_) | Flow::Fup(None) | Flow::PsbEnd => {
                if errata.skd010 {
                    // The bits of branches behind the overflow stand behind the OVF.
                    let run = match flow {
                        Flow::Tip(_) => Run::Clear,
                        _ => Run::Unknown,
                    };
                    self.lose_behind_overflow(first, run);
                } else {
                    self.push_from(Event::Overflow { ip: None }, first);
                    self.lose(walk, FlowErrorKind::unexpected(flow, Expected::FupOrTipPge));
                }
                self.reader.put_back(flow);
            }
            _ => {
                self.reader.put_back(flow);
                if errata.skd010 && status.is_none() && self.is_on_behind_overflow() {
                    self.lose_behind_overflow(first, Run::Unknown);
                    // A MODE.TSX comes with a FUP only while PacketEn is set (33.4.2.8).
                    self.loss.was_on = matches!(flow, Flow::ModeTsx(_)) && self.is_fup_behind(flow);
                } else {
                    self.after_overflow(walk, None, status, first);
                }
            }
        }
    }

    /// Where tracing goes on behind the overflow is not told.
    fn lose_behind_overflow(&mut self, first: Origin, run: Run) {
        self.push_from(Event::Overflow { ip: None }, first);
        self.state = State::Lost;
        self.loss.run = run;
        self.loss.was_on = false;
    }
}
