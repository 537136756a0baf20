//! What the packets of Intel PT mean together (33.4.1).

use cofi_insn::Class;
use cofi_packet::Ip;
use cofi_packet::intel::{DecodeError, Kind, Packets, TsxState};

use crate::bind::awaiting_fup::AwaitingFup;
use crate::bind::control::{Control, NoCode};
use crate::bind::state::{Bound, Status};
use crate::bind::{Binder, Pending, State};
use crate::code::cache::decode_at;
use crate::events::origin::{BoundOrigins, Origin};
use crate::events::replay::Replay;
use crate::family::{BindFamily, IntelPt, ReadFamily};
use crate::reader::Reader;
use crate::reader::decide::{Decision, Run};
use crate::reader::intel::{Flow, Report};
use crate::resync::loss::Loss;
use crate::resync::trial::Trials;
use crate::{AnyKind, Event, Executed, Expected, FlowConfig, FlowErrorKind, Item};

/// What may wait for the walk of Intel PT alone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Own {
    /// Tracing goes on, though it is on.
    Pge(Option<Ip>),
    /// New page tables, at the next `MOV CR3` or far transfer.
    Paging { cr3: u64, nr: bool },
    /// A new VMCS pointer, at the next `VMPTRLD` or VM entry.
    Vmcs(u64),
    /// A value written, at the next `PTWRITE`.
    Ptwrite { payload: u64, size: u8 },
    /// An overflow, here.
    Overflow,
    /// A PSB+ without an address.
    Status(Status),
}

/// What happens at an address.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AtIp {
    /// Control goes elsewhere.
    Branch { to: Ip },
    /// Tracing goes off.
    Disable { ip: Option<Ip> },
    /// Nothing but the events held back.
    Events,
    /// A `PTWRITE`, whose value waits in [`AwaitingFup`].
    Ptwrite,
    /// A PSB+ tells that control is here.
    Status(Status),
}

impl From<AtIp> for AnyKind {
    /// The packet that gave the address, for messages.
    fn from(what: AtIp) -> Self {
        match what {
            AtIp::Status(_) => Kind::PsbEnd.into(),
            _ => Kind::Fup.into(),
        }
    }
}

/// Why a PSB+ could not be read.
pub(crate) enum PsbPlus {
    /// Up to its PSBEND.
    Complete(Status),
    /// An OVF cut it short.
    Overflow,
    /// The stream ended.
    End,
    /// Something else stood there.
    Bad(FlowErrorKind),
}

/// What the binder must know of Intel PT.
#[derive(Debug)]
pub(crate) struct Binding {
    /// State that binds to the next address packet, and the packets that told of it.
    pub(crate) bound: Bound,
    pub(crate) origins: BoundOrigins,
    /// State as last reported.
    pub(crate) known: Bound,
    pub(crate) awaiting: AwaitingFup,
    pub(crate) loss: Loss,
    pub(crate) trials: Trials,
}

impl BindFamily for IntelPt {
    type Rules = Self;
    type Pending = Own;
    type AtIp = AtIp;
    type Binding = Binding;

    const TIP: AnyKind = AnyKind::IntelPt(Kind::Tip);

    fn binding(config: &FlowConfig, (): &()) -> Binding {
        Binding {
            bound: Bound::default(),
            origins: BoundOrigins::default(),
            known: Bound {
                tsx: Some(TsxState::NotInTx),
                ..Bound::default()
            },
            awaiting: AwaitingFup::default(),
            loss: Loss::default(),
            trials: Trials::new(config),
        }
    }

    fn rules(_: &Binding) -> &Self {
        &Self
    }

    fn code_changed(binding: &mut Binding) {
        binding.trials.code_changed();
    }

    #[inline]
    fn has_bound(bind: &Binder<'_, Self>) -> bool {
        !bind.own.bound.is_empty()
    }

    /// The branch's kind does not matter: a MODE.Exec binds to the next TIP (33.4.2.8). Left over, it would claim the next FUP.
    #[inline]
    fn apply_at(bind: &mut Binder<'_, Self>, ip: Ip) {
        if Self::has_bound(bind) {
            let bound = core::mem::take(&mut bind.own.bound);
            bind.apply(bound, Some(ip));
        }
    }

    fn apply_off(bind: &mut Binder<'_, Self>, ip: Option<Ip>) {
        if Self::has_bound(bind) {
            let bound = core::mem::take(&mut bind.own.bound);
            bind.apply(Bound { tsx: None, ..bound }, ip);
        }
    }

    fn fetch<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W) {
        loop {
            let flow = match bind.next_flow() {
                Ok(Some(flow)) => flow,
                Ok(None) => {
                    bind.release_held(None);
                    bind.pending = Pending::End;
                    return;
                }
                Err(error) => {
                    bind.pending = Pending::Bad(error.into());
                    return;
                }
            };
            if let (Flow::Tnt { bits, len }, false) = (flow, bind.holds()) {
                bind.branches(walk, bits, len);
                return;
            }
            if let Some(kind) = bind.wrong_event(flow) {
                // The FUP behind it is its own all the same.
                bind.fail(walk, kind);
                bind.hold(flow);
                return;
            }
            if bind.hold(flow) {
                continue;
            }
            if let Flow::Fup(ip) = flow {
                bind.fetch_fup(ip);
                return;
            }
            // Whatever waited for a FUP waits in vain.
            bind.release_held(None);
            match flow {
                Flow::Tnt { bits, len } => {
                    bind.branches(walk, bits, len);
                    return;
                }
                Flow::Tip(ip) => bind.pending = Pending::Tip(ip),
                Flow::Pgd(ip) => bind.pending = Pending::Pgd(ip),
                Flow::Pge(ip) => bind.pending = Pending::Own(Own::Pge(ip)),
                Flow::Pip { cr3, nr } if bind.own.bound.mode.is_none() => {
                    bind.pending = Pending::Own(Own::Paging { cr3, nr });
                }
                Flow::Pip { .. } | Flow::ModeExec { .. } | Flow::ModeTsx(_) => {
                    bind.bind(flow);
                    continue;
                }
                Flow::Vmcs(base) => bind.pending = Pending::Own(Own::Vmcs(base)),
                Flow::Ptw { payload, size, .. } => {
                    bind.pending = Pending::Own(Own::Ptwrite { payload, size });
                }
                Flow::TraceStop | Flow::ExStop { .. } | Flow::Pwrx { .. } => {
                    bind.tell_unbound(flow);
                }
                Flow::Ovf => bind.pending = Pending::Own(Own::Overflow),
                Flow::Psb => bind.pending = bind.fetch_psb_plus(),
                // `hold` and the test above have taken these.
                Flow::PsbEnd | Flow::Report(_) | Flow::Mnt(_) | Flow::Fup(_) => {
                    bind.pending =
                        Pending::Bad(FlowErrorKind::unexpected(flow.kind(), Expected::TracingOn));
                }
            }
            return;
        }
    }

    #[inline]
    fn reads_decision(bind: &mut Binder<'_, Self>) -> bool {
        if bind.holds() || !bind.reader.is_plain() || bind.reader.is_at_other() {
            return false;
        }
        let mut run = bind.reader.begin_run();
        let next = run.next();
        Self::end_run(bind, &run);
        match next {
            Decision::Tnt => true,
            Decision::Tip(tip) => {
                bind.reader.read_tip(&tip);
                bind.read_at = bind.reader.offset();
                bind.await_tip(tip.ip());
                true
            }
            Decision::Pgd(tip) => {
                bind.reader.read_tip(&tip);
                bind.read_at = bind.reader.offset();
                bind.pending = Pending::Pgd(tip.told());
                true
            }
            Decision::Pge(_) | Decision::Other => false,
        }
    }

    #[inline]
    fn begin_run<'t>(bind: &Binder<'t, Self>) -> Run<'t> {
        let mut run = bind.reader.begin_run();
        (run.tnt, run.tnt_len, run.offset) = (bind.tnt, bind.tnt_len, bind.offset);
        // No event waits for a FUP, and no state for a TIP; in which mode tracing goes on is in no doubt.
        run.reads_on = !bind.holds()
            && bind.own.bound.is_empty()
            && !bind.own.loss.is_mode_doubtful
            && matches!(bind.pending, Pending::None)
            && bind.reader.is_plain();
        run
    }

    #[inline]
    fn end_run(bind: &mut Binder<'_, Self>, run: &Run<'_>) {
        (bind.tnt, bind.tnt_len) = (run.tnt, run.tnt_len);
        bind.reader.end_run(run);
        if run.used != 0 {
            (bind.offset, bind.read_at) = (run.offset, run.offset);
            bind.used += run.used;
        }
    }

    fn arrive<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W, ip: Ip, what: AtIp) {
        bind.consumed();
        bind.pending = Pending::None;
        let bound = core::mem::take(&mut bind.own.bound);
        let (before, after) = (
            Bound {
                tsx: bound.tsx,
                ..Bound::default()
            },
            Bound { tsx: None, ..bound },
        );
        match what {
            AtIp::Branch { to } => {
                bind.release_held(Some(ip));
                bind.apply(before, Some(ip));
                bind.push(Event::AsyncBranch { from: ip, to });
                walk.go_to(to, false);
                bind.apply(after, Some(to));
            }
            AtIp::Disable { ip: to } => {
                bind.release_held(Some(ip));
                bind.apply(before, Some(ip));
                let entry = if bind.config.errata.skd022 {
                    let insn = decode_at(ip, bind.mode, walk.code()).ok();
                    insn.filter(|insn| insn.class == Class::VmEntry)
                } else {
                    None
                };
                if let Some(insn) = entry {
                    let (len, class, mode) = (insn.len, insn.class, bind.mode);
                    let digest = insn.digest;
                    bind.emit.items.push_back(Item::Insn(Executed {
                        ip,
                        len,
                        class,
                        mode,
                        digest,
                    }));
                    bind.turn_off(walk, Some(insn.next_ip(ip, mode)));
                    bind.push(Event::Disabled { ip: to });
                } else {
                    bind.turn_off(walk, Some(ip));
                    bind.push(Event::AsyncDisabled { at: ip, ip: to });
                }
                bind.apply(after, to);
            }
            AtIp::Events => {
                bind.release_held(Some(ip));
                bind.apply(bound, Some(ip));
            }
            AtIp::Ptwrite => {
                // Each packet is one execution of the instruction here: it is due next.
                if let Some((payload, size)) = bind.own.awaiting.ptwrite {
                    let insn = decode_at(ip, bind.mode, walk.code());
                    if insn.is_ok_and(|insn| insn.class == Class::Ptwrite) {
                        bind.own.awaiting.ptwrite = None;
                        bind.pending = Pending::Own(Own::Ptwrite { payload, size });
                    }
                }
                bind.release_held(Some(ip));
                bind.apply(bound, Some(ip));
            }
            AtIp::Status(status) if bound.mode.is_none() && bind.contradicts_mode(&status) => {
                bind.refuse_mode(walk, status);
            }
            AtIp::Status(status) if status.last => bind.state = State::Done,
            AtIp::Status(status) => {
                walk.forget_callers();
                bind.own.bound = bound;
                bind.apply_status(status);
            }
        }
    }

    fn follow(bind: &mut Binder<'_, Self>, own: Own) {
        match own {
            Own::Paging { cr3, nr } => {
                bind.consumed();
                bind.push(Event::Paging { cr3, nr });
                bind.own.known.paging = Some((cr3, nr));
            }
            Own::Vmcs(base) => {
                bind.consumed();
                bind.push(Event::Vmcs { base });
                bind.own.known.vmcs = Some(base);
            }
            Own::Ptwrite { payload, size } => {
                bind.consumed();
                bind.push(Event::Ptwrite {
                    ip: None,
                    payload,
                    size,
                });
            }
            Own::Overflow => {
                bind.note_used();
                bind.overflow(&mut NoCode);
            }
            Own::Status(status) if bind.contradicts_mode(&status) => {
                bind.refuse_mode(&mut NoCode, status)
            }
            Own::Status(status) if status.last => bind.state = State::Done,
            Own::Status(status) => {
                bind.consumed();
                bind.apply_status(status);
            }
            Own::Pge(_) => {
                bind.pending = Pending::Own(own);
                let kind = FlowErrorKind::unexpected(Kind::TipPge, Expected::TracingOn);
                bind.fail(&mut NoCode, kind);
            }
        }
    }

    /// Out of the ranges, if these are known and only one of its ways leads out (33.2.6.5). A TraceStop may be another reason, and is lost if an
    /// overflow comes next.
    fn left_ranges(bind: &Binder<'_, Self>, next: Ip, target: Ip) -> Option<Ip> {
        let filter = &bind.config.filter;
        let place = match (filter.contains(next), filter.contains(target)) {
            (true, false) => target,
            (false, true) => next,
            _ => return None,
        };
        let may_stop = matches!(
            bind.reader.clone().next(),
            Some(Ok(Flow::TraceStop | Flow::Ovf) | Err(_))
        );
        (!may_stop).then_some(place)
    }

    fn pending_kind(bind: &Binder<'_, Self>) -> AnyKind {
        match bind.pending {
            _ if bind.tnt_len != 0 => Kind::Tnt8,
            Pending::Tip(_) => Kind::Tip,
            Pending::Pgd(_) => Kind::TipPgd,
            Pending::Own(Own::Paging { .. }) => Kind::Pip,
            Pending::Own(Own::Vmcs(_)) => Kind::Vmcs,
            Pending::Own(Own::Ptwrite { .. }) => Kind::Ptw,
            _ => Kind::Fup,
        }
        .into()
    }
}

impl Binder<'_, IntelPt> {
    /// The next packet that matters to the flow, its place and time noted. What belongs to no instruction is due at once.
    pub(crate) fn next_flow(&mut self) -> Result<Option<Flow>, DecodeError> {
        loop {
            // MNT packets are kept no longer than ticks, either.
            if self.make_room() == 0 && self.emit.keeps_origins && self.emit.last_replay().is_none()
            {
                self.emit.push_replay(Replay::new(&mut self.reader));
            }
            let next = self.reader.next();
            self.note_read(&next);
            match next {
                Some(Ok(Flow::Mnt(payload))) => {
                    let end = self.reader.at;
                    match self.emit.last_replay() {
                        Some(replay) => replay.end = end,
                        None => self.push(Event::Maintenance { payload }),
                    }
                }
                Some(Err(error @ DecodeError::InBlock { .. })) => {
                    self.release_block();
                    return Err(error);
                }
                next => return next.transpose(),
            }
        }
    }

    /// The processor wakes: where it went to sleep (33.4.2.25).
    pub(crate) fn wake(&mut self, event: Event) {
        let ip = self.own.awaiting.asleep_at.take();
        let origin = Origin {
            ip,
            ..self.emit.now
        };
        self.push_from(event, origin);
    }

    /// New page tables belong to a transfer whose TIP or TIP.PGD follows.
    pub(crate) fn bind_paging(&mut self, cr3: u64, nr: bool) {
        self.own.bound.paging = Some((cr3, nr));
    }

    /// A new VMCS pointer does.
    pub(crate) fn bind_vmcs(&mut self, base: u64) {
        self.own.bound.vmcs = Some(base);
    }

    /// After a PSB: where its PSB+ says that control is.
    fn fetch_psb_plus(&mut self) -> Pending<IntelPt> {
        match self.read_psb_plus() {
            PsbPlus::Complete(status) => match status.ip {
                Some(ip) => Pending::At {
                    ip,
                    what: AtIp::Status(status),
                },
                None => Pending::Own(Own::Status(status)),
            },
            PsbPlus::Overflow => Pending::Own(Own::Overflow),
            PsbPlus::End => Pending::End,
            PsbPlus::Bad(kind) => Pending::Bad(kind),
        }
    }

    /// After a FUP: what it belongs to.
    fn fetch_fup(&mut self, ip: Option<Ip>) {
        let Some(ip) = ip else {
            self.pending = Pending::Bad(FlowErrorKind::suppressed(Kind::Fup));
            return;
        };
        self.bind_tsx(ip);
        let aborts = self.own.bound.tsx == Some(TsxState::Aborted);
        if (self.own.awaiting.claimed
            || self.own.bound.mode.is_some()
            || self.own.bound.tsx.is_some())
            && !aborts
        {
            let what = if self.own.awaiting.ptwrite.is_some() {
                AtIp::Ptwrite
            } else {
                AtIp::Events
            };
            self.pending = Pending::At { ip, what };
            return;
        }
        self.pending = match self.read_compound() {
            Ok(what) => Pending::At { ip, what },
            Err(kind) => Pending::Bad(kind),
        };
    }

    /// After a FUP that nothing else has claimed: the end of the compound event (table 33-14).
    pub(crate) fn read_compound(&mut self) -> Result<AtIp, FlowErrorKind> {
        let first = self.emit.now;
        let result = self.read_compound_end();
        let last = match result {
            Ok(AtIp::Branch { .. }) => Some(Kind::Tip),
            Ok(AtIp::Disable { ip: _ }) if self.emit.last == Some(Kind::TipPgd.into()) => {
                Some(Kind::TipPgd)
            }
            _ => None,
        };
        self.emit.now = last.map_or(first, |kind| first.and(kind));
        result
    }

    fn read_compound_end(&mut self) -> Result<AtIp, FlowErrorKind> {
        loop {
            let Some(flow) = self.next_flow()? else {
                return Ok(AtIp::Disable { ip: None });
            };
            match flow {
                Flow::Pip { .. } | Flow::Vmcs(_) | Flow::ModeExec { .. } => self.bind(flow),
                Flow::Tip(Some(to)) => return Ok(AtIp::Branch { to }),
                Flow::Tip(None) => {
                    return Err(FlowErrorKind::suppressed(Kind::Tip));
                }
                Flow::Pgd(ip) => return Ok(AtIp::Disable { ip }),
                // It belongs to the MODE.Exec before it, which tells of RFLAGS.IF while tracing is off.
                Flow::Fup(_) if self.own.bound.mode.is_some() => {
                    return Ok(AtIp::Disable { ip: None });
                }
                // INIT parks the processor without a word; tracing goes on when it wakes (table 33-55, 23 and 24).
                Flow::Pge(_)
                | Flow::Psb
                | Flow::ModeTsx(_)
                | Flow::TraceStop
                | Flow::Ptw { .. }
                | Flow::Fup(_)
                | Flow::ExStop { .. }
                | Flow::Pwrx { .. }
                | Flow::Report(
                    Report::Bbp { .. }
                    | Report::Trig { .. }
                    | Report::Cfe { .. }
                    | Report::Evd { .. }
                    | Report::Mwait { .. }
                    | Report::Pwre { .. },
                ) => {
                    self.reader.put_back(flow);
                    return Ok(AtIp::Disable { ip: None });
                }
                _ => {
                    self.reader.put_back(flow);
                    return Ok(AtIp::Events);
                }
            }
        }
    }

    /// After a PSB: everything up to its PSBEND.
    pub(crate) fn read_psb_plus(&mut self) -> PsbPlus {
        let last = self.at_end();
        let first = self.emit.now;
        let status = self.read_psb_plus_to_end(last);
        if self.emit.keeps_origins && !matches!(status, PsbPlus::Overflow) {
            // Its TSC, if it has one, tells when it was made.
            self.emit.now = Origin {
                tsc: IntelPt::now(&mut self.reader),
                ..first
            };
        }
        status
    }

    fn read_psb_plus_to_end(&mut self, last: bool) -> PsbPlus {
        let mut status = Status {
            last,
            ..Status::default()
        };
        loop {
            let flow = match self.next_flow() {
                Ok(Some(flow)) => flow,
                Ok(None) => return PsbPlus::End,
                Err(error) => return PsbPlus::Bad(error.into()),
            };
            match flow {
                Flow::PsbEnd => return PsbPlus::Complete(status),
                Flow::Ovf => return PsbPlus::Overflow,
                Flow::Fup(ip) => status.ip = ip,
                Flow::Pip { cr3, nr } => status.state.paging = Some((cr3, nr)),
                Flow::Vmcs(base) => status.state.vmcs = Some(base),
                Flow::ModeExec {
                    mode,
                    interrupt_flag,
                } => status.state.mode = Some((mode, interrupt_flag)),
                Flow::ModeTsx(state) => status.state.tsx = Some(state),
                Flow::Psb => {
                    status = Status {
                        last: status.last,
                        ..Status::default()
                    }
                }
                _ => {
                    let kind = FlowErrorKind::unexpected(flow.kind(), Expected::PsbPlus);
                    return PsbPlus::Bad(kind);
                }
            }
        }
    }

    /// Whether the next packet that tells of control is TIP.PGE.
    pub(crate) fn pge_is_next(&self) -> bool {
        is_pge_next(self.reader.clone(), false)
    }

    /// The same, with PSB+s between, whatever they tell.
    pub(crate) fn pge_is_next_over_psbs(&self) -> bool {
        is_pge_next(self.reader.clone(), true)
    }

    /// Whether a FUP stands behind the packet that was put back.
    pub(crate) fn is_fup_behind(&self, flow: Flow) -> bool {
        let mut ahead = self.reader.clone();
        ahead.next() == Some(Ok(flow)) && matches!(ahead.next(), Some(Ok(Flow::Fup(Some(_)))))
    }

    /// Erratum SKD010: whether what comes behind an OVF says that tracing is on, though neither FUP nor TIP.PGE has.
    pub(crate) fn is_on_behind_overflow(&self) -> bool {
        let mut ahead = self.reader.clone();
        // Whether a FUP that comes next belongs to the packet before it, which need not be of traced code.
        let mut is_claimed = false;
        loop {
            match ahead.next() {
                Some(Ok(Flow::Tnt { .. } | Flow::Tip(_) | Flow::Pgd(_))) => return true,
                // While PacketEn is clear, a MODE.TSX has none (33.4.2.8).
                Some(Ok(Flow::Fup(_))) if !is_claimed => return true,
                Some(Ok(Flow::Pge(_) | Flow::Ovf | Flow::Psb | Flow::PsbEnd)) => return false,
                Some(Ok(flow)) => {
                    is_claimed |= match flow {
                        Flow::ExStop { ip } | Flow::Ptw { ip, .. } => ip,
                        Flow::Report(Report::Cfe { .. }) | Flow::ModeExec { .. } => true,
                        Flow::Report(report) => report.has_fup(),
                        _ => false,
                    };
                    if matches!(flow, Flow::Fup(_)) {
                        is_claimed = false;
                    }
                }
                None | Some(Err(_)) => return false,
            }
        }
    }

    /// Whether what comes next says that tracing stopped before the instruction at `next`, because a MOV to CR3 before it let a TraceStop
    /// range count (33.4.2.9).
    pub(crate) fn stop_is_next(&self, next: Ip) -> bool {
        let mut ahead = self.reader.clone();
        let ends = matches!(ahead.next(), Some(Ok(Flow::Pgd(Some(ip)))) if ip == next);
        // With one instruction: a TSC or CBR between them is of a later moment.
        let mut behind =
            Packets::new(&ahead.bytes[ahead.at..]).map(|item| Some(item.ok()?.raw.kind()));
        ends && behind.find(|kind| !matches!(kind, Some(Kind::Pad | Kind::Cyc | Kind::Mtc)))
            == Some(Some(Kind::TraceStop))
    }
}

/// Whether the next packet that tells of control is TIP.PGE, behind PSB+s or not.
fn is_pge_next(mut ahead: Reader<'_, IntelPt>, over_psbs: bool) -> bool {
    let mut is_status = false;
    loop {
        match ahead.next() {
            Some(Ok(Flow::Pge(_))) => return !is_status,
            Some(Ok(Flow::Psb)) if over_psbs => is_status = true,
            Some(Ok(Flow::PsbEnd)) if is_status => is_status = false,
            Some(Ok(Flow::Fup(_))) if is_status => {}
            Some(Ok(
                Flow::Pip { .. }
                | Flow::Vmcs(_)
                | Flow::ModeExec { .. }
                | Flow::ModeTsx(_)
                | Flow::ExStop { .. }
                | Flow::Report(Report::Mwait { .. } | Report::Pwre { .. })
                | Flow::Pwrx { .. }
                | Flow::TraceStop,
            )) => {}
            _ => return false,
        }
    }
}
