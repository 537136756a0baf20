//! Packet blocks (33.4.1.1): the context in which a packet's first bytes are read.

use super::{ItemSize, Kind, Packet};

/// Whether a block is open. Within one, a byte whose low bits are 100b begins a BIP and no TNT.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Block {
    /// Outside of any block.
    #[default]
    Outside,
    /// After a BBP, its items being of this size.
    Inside(ItemSize),
}

/// The packets of Table 33-15, which cannot stand between BBP and BEP.
const fn is_forbidden(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Tnt8
            | Kind::Tnt64
            | Kind::Tip
            | Kind::TipPge
            | Kind::TipPgd
            | Kind::ModeExec
            | Kind::ModeTsx
            | Kind::Pip
            | Kind::Vmcs
            | Kind::TraceStop
            | Kind::Psb
            | Kind::PsbEnd
            | Kind::Ptw
            | Kind::Mwait
    )
}

impl Block {
    /// The context after `packet`, and whether the packet may stand in this one.
    ///
    /// BBP begins a block, whatever was before; BEP and OVF end it. So does a packet that cannot stand in a block: it
    /// tells that the instruction which made the block is over, and that the block's end is missing.
    #[must_use]
    #[inline]
    pub const fn after(self, packet: &Packet) -> (Self, bool) {
        match packet {
            Packet::Bbp { size, .. } => (Self::Inside(*size), true),
            Packet::Bep { .. } | Packet::Ovf => (Self::Outside, true),
            _ => match self {
                Self::Outside => (self, true),
                Self::Inside(_) if is_forbidden(packet.kind()) => (Self::Outside, false),
                Self::Inside(_) => (self, true),
            },
        }
    }

    /// The size of an item, if a block is open.
    #[must_use]
    pub const fn item_size(self) -> Option<ItemSize> {
        match self {
            Self::Outside => None,
            Self::Inside(size) => Some(size),
        }
    }
}
