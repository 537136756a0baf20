//! Where an event comes from: its packets, its address, its time.

use core::fmt;

use cofi_packet::intel::Kind;
use cofi_packet::{Ip, Tsc};

use crate::AnyKind;

/// More packets than this are never noted for one event. A compound event has at most five (table 33-14).
const MAX_KINDS: usize = 6;

/// The packets of an event, in the order of the stream.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PacketKinds {
    kinds: [Option<AnyKind>; MAX_KINDS],
}

impl PacketKinds {
    /// The packets.
    pub fn iter(&self) -> impl Iterator<Item = AnyKind> + use<> {
        self.kinds.into_iter().flatten()
    }

    fn push(&mut self, kind: AnyKind) {
        if let Some(slot) = self.kinds.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(kind);
        }
    }
}

impl fmt::Display for PacketKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, kind) in self.iter().enumerate() {
            let blank = if place == 0 { "" } else { " " };
            write!(f, "{blank}{}", kind.name())?;
        }
        Ok(())
    }
}

impl fmt::Debug for PacketKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

/// Where an event comes from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin {
    /// Where its first packet begins.
    pub(crate) offset: usize,
    pub(crate) kinds: PacketKinds,
    /// The address to which it is bound.
    pub(crate) ip: Option<Ip>,
    /// The estimate of the time when its first packet was made.
    pub(crate) tsc: Option<Tsc>,
}

impl Origin {
    pub(crate) fn new(offset: usize, kind: impl Into<AnyKind>, tsc: Option<Tsc>) -> Self {
        let mut kinds = PacketKinds::default();
        kinds.push(kind.into());
        Self {
            offset,
            kinds,
            ip: None,
            tsc,
        }
    }

    /// With a further packet.
    pub(crate) fn and(mut self, kind: impl Into<AnyKind>) -> Self {
        self.kinds.push(kind.into());
        self
    }

    /// Bound to an address that a packet of this kind gave, if one did and none had before.
    pub(crate) fn at(self, ip: Option<Ip>, kind: impl Into<AnyKind>) -> Self {
        match (ip, self.ip) {
            (Some(_), None) => Self {
                ip,
                ..self.and(kind)
            },
            _ => self,
        }
    }
}

/// Where the state comes from that waits for the next address packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BoundOrigins {
    pub(crate) mode: Origin,
    pub(crate) tsx: Origin,
    pub(crate) paging: Origin,
    pub(crate) vmcs: Origin,
}

impl BoundOrigins {
    /// All from the same packets.
    pub(crate) fn all(origin: Origin) -> Self {
        Self {
            mode: origin.and(Kind::ModeExec),
            tsx: origin.and(Kind::ModeTsx),
            paging: origin.and(Kind::Pip),
            vmcs: origin.and(Kind::Vmcs),
        }
    }
}
