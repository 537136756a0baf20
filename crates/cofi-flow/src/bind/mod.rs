//! From packets to what the walk has to reach next.
//!
//! Packets bind to instructions (33.4.1): some to the next branch of their kind, some to an address that a FUP gives,
//! some to nothing. [`Binder::fetch`] reads as many packets as make up one such thing.

mod arrive;
mod awaiting_fup;
pub(crate) mod control;
pub(crate) mod emit;
pub(crate) mod loss;
mod probation;
mod resync;

use cofi_packet::intel::{Kind, Packets, TsxState};
use cofi_packet::{ExecMode, Ip};

use crate::bind::awaiting_fup::AwaitingFup;
use crate::bind::control::Control;
use crate::bind::emit::Emit;
use crate::bind::loss::Loss;
use crate::events::origin::{BoundOrigins, Origin};
use crate::reader::decide::{Decision, Run};
use crate::reader::{Flow, Reader};
use crate::rtit::{self, Ends};
use crate::{Event, Expected, FlowConfig, FlowErrorKind, PacketKind};

/// What is known of control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The stream's first PSB has not been found yet.
    Start,
    /// Tracing is on and control is at `ip`.
    On,
    /// Tracing is off.
    Off,
    /// Where control is, is unknown.
    Lost,
    /// The stream is used up.
    Done,
}

/// What the walk has to reach next, once the TNT bits are used up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pending {
    /// Nothing has been read yet.
    None,
    /// The target of the next indirect branch or far transfer.
    Tip(Option<Ip>),
    /// Tracing goes off at the next instruction that fits (table 33-21).
    Pgd(Option<Ip>),
    /// Tracing goes on, though it is on.
    Pge(Option<Ip>),
    /// New page tables, at the next `MOV CR3` or far transfer.
    Paging { cr3: u64, nr: bool },
    /// A new VMCS pointer, at the next `VMPTRLD` or VM entry.
    Vmcs(u64),
    /// A value written, at the next `PTWRITE`.
    Ptwrite { payload: u64, size: u8 },
    /// Something at an address.
    At { ip: Ip, what: AtIp },
    /// An overflow, here.
    Overflow,
    /// A PSB+ without an address.
    Status(Status),
    /// Packets that make no sense, which matter only once the walk needs another.
    Bad(FlowErrorKind),
    /// No more packets.
    End,
    /// Of RTIT: a new CR3 or CR0.PG, at the next MOV to one of them.
    Pip(u64),
    /// Of RTIT: packets were lost, and tracing goes on at an address, if it does.
    OverflowAt(Option<Ip>),
    /// Of RTIT: tracing ended, or the trace, without a packet that tells where.
    Ends(Ends),
}

impl Pending {
    /// Whether this tells how the next branch went.
    #[inline]
    pub(crate) const fn is_decision(&self) -> bool {
        matches!(self, Pending::Tip(Some(_)) | Pending::Pgd(_))
    }
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
    /// Of RTIT, FUP.FAR: control goes elsewhere; where is lost if an overflow or the end comes next.
    Far { to: Option<Ip> },
    /// Of RTIT, FUP.PGD: tracing goes off, with the address that a TIP behind it tells; or a TraceStop behind it says why.
    Pgd { to: Option<Ip>, stops: bool },
    /// Of RTIT: behind a MOV to CR0, which may be the one that a PIP is of.
    Paging { cr3: u64 },
}

impl AtIp {
    /// The packet that gave the address, for messages.
    pub(crate) const fn kind(&self) -> PacketKind {
        match self {
            AtIp::Status(_) => PacketKind::IntelPt(Kind::PsbEnd),
            AtIp::Far { .. } => PacketKind::Rtit(cofi_packet::rtit::Kind::FupFar),
            AtIp::Pgd { .. } => PacketKind::Rtit(cofi_packet::rtit::Kind::FupPgd),
            AtIp::Paging { .. } => PacketKind::Rtit(cofi_packet::rtit::Kind::Pip),
            _ => PacketKind::IntelPt(Kind::Fup),
        }
    }
}

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

/// Binds packets to what they mean together (33.4.1): TNT bits, a target, an event at its place, the end of tracing, a loss.
///
/// It knows whether tracing is on, and where it goes on; where control is in between, only who [follows](Control) it does.
#[derive(Debug)]
pub(crate) struct Binder<'t> {
    pub(crate) config: FlowConfig,
    pub(crate) reader: Reader<'t>,
    pub(crate) state: State,
    pub(crate) mode: ExecMode,
    /// TNT bits not used yet: the oldest on top.
    pub(crate) tnt: u64,
    pub(crate) tnt_len: u8,
    pub(crate) pending: Pending,
    /// State that binds to the next address packet, and the packets that told of it.
    pub(crate) bound: Bound,
    pub(crate) origins: BoundOrigins,
    /// State as last reported.
    pub(crate) known: Bound,
    pub(crate) awaiting: AwaitingFup,
    pub(crate) loss: Loss,
    pub(crate) emit: Emit,
    /// Where control was when tracing went off.
    pub(crate) resume_at: Option<Ip>,
    /// What RTIT needs beside.
    pub(crate) rtit: rtit::State,
    /// Where the packet read last began.
    pub(crate) read_at: usize,
    /// Where the packet used last began.
    pub(crate) offset: usize,
    /// How many packets and TNT bits were used.
    pub(crate) used: u64,
    /// Decoding ends at the first PSB from here on.
    pub(crate) end: usize,
}

impl<'t> Binder<'t> {
    pub(crate) fn new(trace: &'t [u8], config: FlowConfig) -> Self {
        Self {
            reader: Reader::new(trace, &config),
            state: State::Start,
            mode: config.initial_mode,
            tnt: 0,
            tnt_len: 0,
            pending: Pending::None,
            bound: Bound::default(),
            origins: BoundOrigins::default(),
            known: Bound {
                tsx: Some(TsxState::NotInTx),
                ..Bound::default()
            },
            awaiting: AwaitingFup::default(),
            loss: Loss::default(),
            emit: Emit::default(),
            resume_at: None,
            rtit: rtit::State::new(&config),
            read_at: 0,
            offset: 0,
            used: 0,
            end: usize::MAX,
            config,
        }
    }

    /// What decides where control goes next, if it is a TNT, whose bits are in the register then, or a TIP with an address, and nothing comes
    /// before it. Other packets are left where they are.
    #[inline]
    pub(crate) fn reads_decision(&mut self) -> bool {
        if self.reader.is_rtit() {
            let Some((bits, len)) = self.reader.next_tnt_rtit() else {
                return false;
            };
            self.read_at = self.reader.offset();
            self.load_tnt(bits, len);
            return true;
        }
        if !self.reader.is_plain() || self.reader.is_at_other() {
            return false;
        }
        let mut run = self.begin_run();
        let next = run.next();
        self.end_run(&run);
        match next {
            Decision::Tnt => true,
            Decision::Tip(tip) => {
                self.reader.read_tip(&tip);
                self.read_at = self.reader.offset();
                self.await_tip(tip.ip());
                true
            }
            Decision::Other => false,
        }
    }

    /// Begins to use what decides where control goes, with the bits that are left.
    #[inline]
    pub(crate) fn begin_run(&self) -> Run<'t> {
        let mut run = self.reader.begin_run();
        (run.tnt, run.tnt_len, run.offset) = (self.tnt, self.tnt_len, self.offset);
        run
    }

    /// Goes on behind a run.
    #[inline]
    pub(crate) fn end_run(&mut self, run: &Run<'_>) {
        (self.tnt, self.tnt_len) = (run.tnt, run.tnt_len);
        self.reader.end_run(run);
        if run.used != 0 {
            (self.offset, self.read_at) = (run.offset, run.offset);
            self.used += run.used;
        }
    }

    /// Whether a TNT or TIP that comes next decides where control goes, and nothing else: no event waits for a FUP, and no state for a TIP.
    #[inline]
    pub(crate) fn reads_on(&self) -> bool {
        !self.reader.is_rtit()
            && !self.holds()
            && self.bound.is_empty()
            && matches!(self.pending, Pending::None)
            && self.reader.is_plain()
    }

    /// Only what lies between the first PSBs from these places on is decoded.
    pub(crate) fn cut(&mut self, range: core::ops::Range<usize>) {
        self.reader.start_at(range.start);
        self.end = range.end;
    }

    /// Notes that the packets read so far are used.
    #[inline]
    pub(crate) fn consumed(&mut self) {
        self.note_used();
        self.used += 1;
    }

    /// Notes that a packet without effect on control is used.
    #[inline]
    pub(crate) fn note_used(&mut self) {
        self.offset = self.read_at;
        self.reader.time_used();
    }

    #[inline]
    pub(crate) fn load_tnt(&mut self, bits: u64, len: u8) {
        self.tnt = bits << (64 - u32::from(len));
        self.tnt_len = len;
        self.pending = Pending::None;
        self.offset = self.read_at;
        self.used += 1;
        self.reader.time_of_tnt(len);
    }
}

impl Binder<'_> {
    /// Reads packets until something is pending, TNT bits are there, or an event is due at once.
    pub(crate) fn fetch<W: Control>(&mut self, walk: &mut W) {
        if self.reader.is_rtit() {
            return self.fetch_rtit(walk);
        }
        loop {
            let flow = match self.next_flow() {
                Ok(Some(flow)) => flow,
                Ok(None) => {
                    self.release_held(None);
                    self.pending = Pending::End;
                    return;
                }
                Err(error) => {
                    self.pending = Pending::Bad(error.into());
                    return;
                }
            };
            if let (Flow::Tnt { bits, len }, false) = (flow, self.holds()) {
                self.branches(walk, bits, len);
                return;
            }
            if let Some(kind) = self.wrong_event(flow) {
                // The FUP behind it is its own all the same.
                self.fail(walk, kind);
                self.hold(flow);
                return;
            }
            if self.hold(flow) {
                continue;
            }
            if let Flow::Fup(ip) = flow {
                self.fetch_fup(ip);
                return;
            }
            // Whatever waited for a FUP waits in vain.
            self.release_held(None);
            match flow {
                Flow::Tnt { bits, len } => {
                    self.branches(walk, bits, len);
                    return;
                }
                Flow::Tip(ip) => self.pending = Pending::Tip(ip),
                Flow::Pgd(ip) => self.pending = Pending::Pgd(ip),
                Flow::Pge(ip) => self.pending = Pending::Pge(ip),
                Flow::Pip { cr3, nr } if self.bound.mode.is_none() => {
                    self.pending = Pending::Paging { cr3, nr };
                }
                Flow::Pip { .. } | Flow::ModeExec { .. } | Flow::ModeTsx(_) => {
                    self.bind(flow);
                    continue;
                }
                Flow::Vmcs(base) => self.pending = Pending::Vmcs(base),
                Flow::Ptw { payload, size, .. } => {
                    self.pending = Pending::Ptwrite { payload, size };
                }
                Flow::TraceStop => self.push(Event::Stop),
                Flow::Ovf => self.pending = Pending::Overflow,
                Flow::Psb => {
                    self.pending = match self.read_psb_plus() {
                        PsbPlus::Complete(status) => match status.ip {
                            Some(ip) => Pending::At {
                                ip,
                                what: AtIp::Status(status),
                            },
                            None => Pending::Status(status),
                        },
                        PsbPlus::Overflow => Pending::Overflow,
                        PsbPlus::End => Pending::End,
                        PsbPlus::Bad(kind) => Pending::Bad(kind),
                    };
                }
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
                // `hold` and the test above have taken these.
                Flow::PsbEnd
                | Flow::Mwait { .. }
                | Flow::Pwre { .. }
                | Flow::Cfe { .. }
                | Flow::Evd { .. }
                | Flow::Bbp { .. }
                | Flow::Bip { .. }
                | Flow::Bep { .. }
                | Flow::Trig { .. }
                | Flow::Mnt(_)
                | Flow::Fup(_) => {
                    self.pending = Pending::Bad(FlowErrorKind::Unexpected {
                        found: flow.kind().into(),
                        expected: Expected::TracingOn,
                    });
                }
            }
            return;
        }
    }

    /// After a FUP: what it belongs to.
    fn fetch_fup(&mut self, ip: Option<Ip>) {
        let Some(ip) = ip else {
            self.pending = Pending::Bad(FlowErrorKind::SuppressedIp {
                packet: Kind::Fup.into(),
            });
            return;
        };
        self.bind_tsx(ip);
        let aborts = self.bound.tsx == Some(TsxState::Aborted);
        if (self.awaiting.claimed || self.bound.mode.is_some() || self.bound.tsx.is_some())
            && !aborts
        {
            let what = if self.awaiting.ptwrite.is_some() {
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
                    return Err(FlowErrorKind::SuppressedIp {
                        packet: Kind::Tip.into(),
                    });
                }
                Flow::Pgd(ip) => return Ok(AtIp::Disable { ip }),
                // It belongs to the MODE.Exec before it, which tells of RFLAGS.IF while tracing is off.
                Flow::Fup(_) if self.bound.mode.is_some() => {
                    return Ok(AtIp::Disable { ip: None });
                }
                // INIT parks the processor without a word; tracing goes on when it wakes (table 33-55, 23 and 24).
                Flow::Pge(_)
                | Flow::Psb
                | Flow::ModeTsx(_)
                | Flow::TraceStop
                | Flow::Ptw { .. }
                | Flow::Bbp { .. }
                | Flow::Trig { .. }
                | Flow::Fup(_)
                | Flow::Cfe { .. }
                | Flow::Evd { .. }
                | Flow::ExStop { .. }
                | Flow::Mwait { .. }
                | Flow::Pwre { .. }
                | Flow::Pwrx { .. } => {
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
                tsc: self.reader.now(),
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
                    let kind = FlowErrorKind::Unexpected {
                        found: flow.kind().into(),
                        expected: Expected::PsbPlus,
                    };
                    return PsbPlus::Bad(kind);
                }
            }
        }
    }

    /// Whether the PSB just read is where decoding is to end.
    pub(crate) fn at_end(&self) -> bool {
        self.read_at >= self.end
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
                    is_claimed |= matches!(
                        flow,
                        Flow::ExStop { ip: true }
                            | Flow::Ptw { ip: true, .. }
                            | Flow::Cfe { .. }
                            | Flow::Bep { ip: true }
                            | Flow::Trig { ip: true, .. }
                            | Flow::ModeExec { .. }
                    );
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
fn is_pge_next(mut ahead: Reader<'_>, over_psbs: bool) -> bool {
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
                | Flow::Mwait { .. }
                | Flow::Pwre { .. }
                | Flow::Pwrx { .. }
                | Flow::TraceStop,
            )) => {}
            _ => return false,
        }
    }
}

/// What a packet found means for one that was expected.
pub(crate) fn unexpected(found: Flow, expected: Expected) -> FlowErrorKind {
    FlowErrorKind::Unexpected {
        found: found.kind().into(),
        expected,
    }
}
