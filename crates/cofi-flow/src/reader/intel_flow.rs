//! Intel PT's packets as the layers above the reader see them.

use cofi_packet::intel::{BlockType, CfeType, Kind, TsxState};
use cofi_packet::{ExecMode, Ip};

use crate::{AnyKind, ControlEvent, Event};

/// A packet that concerns the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Tnt {
        bits: u64,
        len: u8,
    },
    Tip(Option<Ip>),
    Pge(Option<Ip>),
    Pgd(Option<Ip>),
    Fup(Option<Ip>),
    Pip {
        cr3: u64,
        nr: bool,
    },
    ModeExec {
        mode: ExecMode,
        interrupt_flag: bool,
    },
    ModeTsx(TsxState),
    TraceStop,
    Vmcs(u64),
    Ovf,
    Psb,
    PsbEnd,
    ExStop {
        ip: bool,
    },
    Pwrx {
        last: u8,
        deepest: u8,
        wake: u8,
    },
    Ptw {
        payload: u64,
        size: u8,
        ip: bool,
    },
    Mnt(u64),
    Report(Report),
}

/// A packet of an event whose place a FUP may tell (33.4.2.21 to 33.4.2.30), and of which control knows nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Report {
    Mwait {
        hints: u8,
        ext: u8,
    },
    Pwre {
        hw: bool,
        state: u8,
        sub_state: u8,
    },
    Cfe {
        ip: bool,
        kind: CfeType,
        vector: u8,
    },
    Evd {
        kind: u8,
        payload: u64,
    },
    Bbp {
        kind: BlockType,
        size: u8,
    },
    Bip {
        block: BlockType,
        id: u8,
        payload: u64,
    },
    Bep {
        ip: bool,
    },
    Trig {
        ip: bool,
        multiple: bool,
        vector: u8,
        count: Option<u16>,
    },
}

impl Report {
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Mwait { .. } => Kind::Mwait,
            Self::Pwre { .. } => Kind::Pwre,
            Self::Cfe { .. } => Kind::Cfe,
            Self::Evd { .. } => Kind::Evd,
            Self::Bbp { .. } => Kind::Bbp,
            Self::Bip { .. } => Kind::Bip,
            Self::Bep { .. } => Kind::Bep,
            Self::Trig { .. } => Kind::Trig,
        }
    }

    /// Whether the packet says that a FUP follows that belongs to it.
    pub(crate) const fn has_fup(&self) -> bool {
        matches!(
            self,
            Self::Cfe { ip: true, .. } | Self::Bep { ip: true } | Self::Trig { ip: true, .. }
        )
    }

    /// Its event, as long as its place is not known; a BEP has none.
    pub(crate) fn event(self) -> Option<Event> {
        Some(match self {
            Self::Mwait { hints, ext } => Event::Mwait { hints, ext },
            Self::Pwre {
                hw,
                state,
                sub_state,
            } => Event::Pwre {
                hw,
                state,
                sub_state,
            },
            Self::Cfe { kind, vector, .. } => {
                let event = ControlEvent::from_type(kind);
                Event::Control {
                    event,
                    vector: event.has_vector().then_some(vector),
                    ip: None,
                }
            }
            Self::Evd { kind, payload } => Event::EventData { kind, payload },
            Self::Bbp { kind, size } => Event::Block {
                kind,
                size,
                ip: None,
            },
            Self::Bip { block, id, payload } => Event::BlockItem { block, id, payload },
            Self::Bep { .. } => return None,
            Self::Trig {
                multiple,
                vector,
                count,
                ..
            } => Event::Trigger {
                vector,
                multiple,
                count,
                ip: None,
            },
        })
    }
}

impl Flow {
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Flow::Tnt { len: ..=6, .. } => Kind::Tnt8,
            Flow::Tnt { .. } => Kind::Tnt64,
            Flow::Tip(_) => Kind::Tip,
            Flow::Pge(_) => Kind::TipPge,
            Flow::Pgd(_) => Kind::TipPgd,
            Flow::Fup(_) => Kind::Fup,
            Flow::Pip { .. } => Kind::Pip,
            Flow::ModeExec { .. } => Kind::ModeExec,
            Flow::ModeTsx(_) => Kind::ModeTsx,
            Flow::TraceStop => Kind::TraceStop,
            Flow::Vmcs(_) => Kind::Vmcs,
            Flow::Ovf => Kind::Ovf,
            Flow::Psb => Kind::Psb,
            Flow::PsbEnd => Kind::PsbEnd,
            Flow::ExStop { .. } => Kind::ExStop,
            Flow::Pwrx { .. } => Kind::Pwrx,
            Flow::Ptw { .. } => Kind::Ptw,
            Flow::Mnt(_) => Kind::Mnt,
            Flow::Report(report) => report.kind(),
        }
    }
}

impl From<Flow> for AnyKind {
    fn from(flow: Flow) -> Self {
        flow.kind().into()
    }
}
