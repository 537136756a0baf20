//! From packets to what the walk has to reach next.
//!
//! Packets bind to instructions (33.4.1): some to the next branch of their kind, some to an address that a FUP gives,
//! some to nothing. [`FlowDecoder::fetch`] reads as many packets as make up one such thing.

use alloc::vec::Vec;

use cofi_insn::CodeSource;
use cofi_packet::intel::{DecodeError, Kind, TsxState};
use cofi_packet::{ExecMode, Ip, StreamOffset};

use crate::decoder::FlowDecoder;
use crate::reader::Flow;
use crate::{ControlEvent, Event, Expected, FlowError, FlowErrorKind, Item};

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
    /// A `PTWRITE`, whose value waits in [`FlowDecoder::ptwrite`].
    Ptwrite,
    /// A PSB+ tells that control is here.
    Status(Status),
}

impl AtIp {
    /// The packet that gave the address, for messages.
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            AtIp::Status(_) => Kind::PsbEnd,
            _ => Kind::Fup,
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

/// More events than this are never held back for one FUP.
const MAX_HELD: usize = 16;

impl<C: CodeSource> FlowDecoder<'_, C> {
    /// Reads packets until something is pending, TNT bits are there, or an event is due at once.
    pub(crate) fn fetch(&mut self) {
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
                self.load_tnt(bits, len);
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
                    self.load_tnt(bits, len);
                    return;
                }
                Flow::Tip(ip) => self.pending = Pending::Tip(ip),
                Flow::Pgd(ip) => self.pending = Pending::Pgd(ip),
                Flow::Pge(ip) => self.pending = Pending::Pge(ip),
                Flow::Pip { cr3, nr } if self.bound.mode.is_none() => {
                    self.pending = Pending::Paging { cr3, nr };
                }
                Flow::Pip { cr3, nr } => {
                    self.bound.paging = Some((cr3, nr));
                    continue;
                }
                Flow::Vmcs(base) => self.pending = Pending::Vmcs(base),
                Flow::Ptw { payload, size, .. } => {
                    self.pending = Pending::Ptwrite { payload, size };
                }
                Flow::ModeExec {
                    mode,
                    interrupt_flag,
                } => {
                    self.bound.mode = Some((mode, interrupt_flag));
                    continue;
                }
                Flow::ModeTsx(state) => {
                    self.bound.tsx = Some(state);
                    continue;
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
                } => self.push(Event::Pwrx {
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
                | Flow::OwnFup(_)
                | Flow::Fup(_) => {
                    self.pending = Pending::Bad(FlowErrorKind::Unexpected {
                        found: flow.kind(),
                        expected: Expected::TracingOn,
                    });
                }
            }
            return;
        }
    }

    /// Takes packets whose events bind to a FUP that may follow; `false` for others.
    pub(crate) fn hold(&mut self, flow: Flow) -> bool {
        let event = match flow {
            Flow::ExStop { ip: true } => {
                self.claimed = true;
                Event::ExStop { ip: None }
            }
            Flow::Ptw {
                payload,
                size,
                ip: true,
            } => {
                self.release_held(None);
                self.claimed = true;
                self.ptwrite = Some((payload, size));
                return true;
            }
            Flow::OwnFup(_) => {
                self.claimed = true;
                return true;
            }
            Flow::Mwait { hints, ext } => Event::Mwait { hints, ext },
            Flow::Pwre {
                hw,
                state,
                sub_state,
            } => Event::Pwre {
                hw,
                state,
                sub_state,
            },
            Flow::Cfe { ip, kind, vector } => {
                self.claimed |= ip;
                let event = ControlEvent::from_type(kind);
                Event::Control {
                    event,
                    vector: event.has_vector().then_some(vector),
                    ip: None,
                }
            }
            Flow::Evd { kind, payload } => Event::EventData { kind, payload },
            _ => return false,
        };
        if self.held.len() >= MAX_HELD {
            self.release_held(None);
        }
        self.held.push(event);
        true
    }

    /// Whether events wait for a FUP.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.claimed || !self.held.is_empty()
    }

    /// Returns the events held back, now that their place is known, or known to be unknown.
    pub(crate) fn release_held(&mut self, place: Option<Ip>) {
        if !self.holds() {
            return;
        }
        self.claimed = false;
        let mut held = core::mem::take(&mut self.held);
        for mut event in held.drain(..) {
            match &mut event {
                Event::ExStop { ip } | Event::Control { ip, .. } => *ip = place,
                _ => {}
            }
            self.push(event);
        }
        self.held = held;
        if let Some((payload, size)) = self.ptwrite.take() {
            self.push(Event::Ptwrite {
                ip: place,
                payload,
                size,
            });
        }
    }

    /// After a FUP: what it belongs to.
    fn fetch_fup(&mut self, ip: Option<Ip>) {
        let Some(ip) = ip else {
            self.pending = Pending::Bad(FlowErrorKind::SuppressedIp { packet: Kind::Fup });
            return;
        };
        let aborts = self.bound.tsx == Some(TsxState::Aborted);
        if (self.claimed || self.bound.mode.is_some() || self.bound.tsx.is_some()) && !aborts {
            let what = if self.ptwrite.is_some() {
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
        loop {
            let Some(flow) = self.next_flow()? else {
                return Ok(AtIp::Disable { ip: None });
            };
            match flow {
                Flow::Pip { cr3, nr } => self.bound.paging = Some((cr3, nr)),
                Flow::Vmcs(base) => self.bound.vmcs = Some(base),
                Flow::ModeExec {
                    mode,
                    interrupt_flag,
                } => self.bound.mode = Some((mode, interrupt_flag)),
                Flow::Tip(Some(to)) => return Ok(AtIp::Branch { to }),
                Flow::Tip(None) => return Err(FlowErrorKind::SuppressedIp { packet: Kind::Tip }),
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
                | Flow::OwnFup(_)
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
                        found: flow.kind(),
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
        let mut ahead = self.reader.clone();
        loop {
            match ahead.next() {
                Some(Ok(Flow::Pge(_))) => return true,
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

    /// Whether what comes next says that tracing stopped before the instruction at `next`, because a MOV to CR3 before it let a TraceStop
    /// range count (33.4.2.9).
    pub(crate) fn stop_is_next(&self, next: Ip) -> bool {
        let mut ahead = self.reader.clone();
        matches!(ahead.next(), Some(Ok(Flow::Pgd(Some(ip)))) if ip == next)
            && matches!(ahead.next(), Some(Ok(Flow::TraceStop)))
    }

    /// Applies state that was bound to an address, control having got there.
    pub(crate) fn apply(&mut self, state: Bound, place: Option<Ip>) {
        if let Some(mode) = state.mode {
            self.set_mode(mode);
        }
        if let Some(tsx) = state.tsx {
            self.known.tsx = Some(if tsx == TsxState::Aborted {
                TsxState::NotInTx
            } else {
                tsx
            });
            self.push(Event::Tsx {
                state: tsx,
                ip: place,
            });
        }
        if let Some((cr3, nr)) = state.paging {
            self.known.paging = state.paging;
            self.push(Event::Paging { cr3, nr });
        }
        if let Some(base) = state.vmcs {
            self.known.vmcs = state.vmcs;
            self.push(Event::Vmcs { base });
        }
    }

    /// Applies the state that a PSB+ reports, which says nothing of what is known already.
    pub(crate) fn apply_status(&mut self, status: Status) {
        let mut news = status.state;
        news.tsx = news.tsx.filter(|_| news.tsx != self.known.tsx);
        news.paging = news.paging.filter(|_| news.paging != self.known.paging);
        news.vmcs = news.vmcs.filter(|_| news.vmcs != self.known.vmcs);
        self.apply(news, status.ip);
    }

    pub(crate) fn set_mode(&mut self, (mode, interrupt_flag): (ExecMode, bool)) {
        self.mode = mode;
        if self.known.mode != Some((mode, interrupt_flag)) {
            self.known.mode = Some((mode, interrupt_flag));
            self.push(Event::ExecMode {
                mode,
                interrupt_flag,
            });
        }
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.out.push_back(Item::Event(event));
    }

    /// The next packet, its place and time noted. A block without its end is reported, and costs nothing else.
    pub(crate) fn next_flow(&mut self) -> Result<Option<Flow>, DecodeError> {
        loop {
            let next = self.reader.next();
            self.read_at = self.reader.offset();
            // The packet itself is good, and comes next.
            if let Some(Err(error @ DecodeError::InBlock { .. })) = next {
                self.out.push_back(Item::Error(FlowError {
                    offset: StreamOffset(self.read_at as u64),
                    ip: None,
                    kind: error.into(),
                }));
                continue;
            }
            return next.transpose();
        }
    }
}

/// A fresh store for events held back.
pub(crate) fn held() -> Vec<Event> {
    Vec::with_capacity(MAX_HELD)
}
