//! What Intel PT and RTIT have in common, for code that serves both.

use crate::table::{PacketKind, Raw};
use crate::text::{Operands, TextError};
use crate::{DecodeError, Ip, PacketVisitor, Value};
use core::fmt::{Debug, Display};

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// A packet format: [`IntelPt`](crate::intel::IntelPt) or [`Rtit`](crate::rtit::Rtit).
///
/// Streams, encoders and assemblers are generic over it. It cannot be implemented outside of this crate.
pub trait Format: sealed::Sealed + Copy + Eq + Debug + 'static {
    /// Which packet it is.
    type Kind: PacketKind;
    /// The typed packet.
    type Packet: Copy + Eq + Debug + Display;
    /// What must be known beside the bytes in order to read a packet.
    type Context: Copy + Eq + Debug + Default;
    /// The state against which addresses are compressed.
    type LastIp: Copy + Eq + Debug + Default;

    /// The packet that marks a stream boundary.
    const PSB: &'static [u8];
    /// How many bytes after a PSB decide whether it is the last of its run.
    #[doc(hidden)]
    const PSB_LOOKAHEAD: usize;

    /// Offset of the first PSB in `bytes`.
    fn find_psb(bytes: &[u8]) -> Option<usize>;
    /// Offset of the last PSB that begins before `before`.
    fn sync_backward(bytes: &[u8], before: usize) -> Option<usize>;

    /// Decodes the packet at the start of `bytes`.
    ///
    /// # Errors
    /// A [`DecodeError`] when the bytes end inside the packet, form none, or hold a reserved encoding.
    fn decode(context: Self::Context, bytes: &[u8]) -> Result<Raw<Self::Kind>, DecodeError>;
    /// Decodes the packet at the start of `bytes` if that is quickly done and leaves the context as it is.
    #[doc(hidden)]
    fn decode_short(context: Self::Context, bytes: &[u8]) -> Option<Raw<Self::Kind>>;
    /// Shows a visitor the packets from `at` on that [`Self::decode_short`] decodes, up to the first that it does not; where that stands.
    #[doc(hidden)]
    #[inline(always)]
    fn visit_short(
        _context: Self::Context,
        _bytes: &[u8],
        at: usize,
        _visitor: &mut impl PacketVisitor<Self>,
    ) -> usize {
        at
    }
    /// Whether `have` bytes, where the input goes on behind them, leave open if this is the packet at their start.
    #[doc(hidden)]
    fn is_open(_raw: &Raw<Self::Kind>, _have: usize) -> bool {
        false
    }
    /// The typed packet.
    fn packet(raw: &Raw<Self::Kind>) -> Self::Packet;
    /// The context after `packet`, and whether the packet may stand in this one.
    fn after(context: Self::Context, packet: &Self::Packet) -> (Self::Context, bool);
    /// The context after bytes that were no packet.
    fn after_error(context: Self::Context) -> Self::Context;
    /// Why `packet` cannot be read again in this context, if it cannot.
    fn misfit(context: Self::Context, packet: &Self::Packet) -> Option<Misfit>;

    /// Which packet it is.
    fn kind(packet: &Self::Packet) -> Self::Kind;
    /// Encodes a packet; reserved bits are zero.
    fn encode(packet: &Self::Packet) -> Raw<Self::Kind>;
    /// The one byte of a packet that has no more, and leaves state and context as they are.
    #[doc(hidden)]
    fn encode_byte(context: Self::Context, packet: &Self::Packet) -> Option<u8>;
    /// Hands every field to `f` as (key, value).
    fn visit(packet: &Self::Packet, f: &mut dyn FnMut(&'static str, Value));

    /// Takes note of `packet`.
    fn note(last_ip: &mut Self::LastIp, packet: &Self::Packet);
    /// Takes note of `packet`. If it is one with an IP: which (`None` when suppressed), and whether its compression is the
    /// one that [`Self::compress`] chooses.
    fn resolve(last_ip: &mut Self::LastIp, packet: &Self::Packet) -> Option<(Option<Ip>, bool)>;
    /// The packet `kind` with `ip` in its shortest form; `None` if the kind has no IP, or none this long.
    fn compress(last_ip: &mut Self::LastIp, kind: Self::Kind, ip: Ip) -> Option<Self::Packet>;

    /// Reads a packet from text.
    #[doc(hidden)]
    fn parse(
        operands: &mut Operands<'_>,
        context: Self::Context,
        last_ip: &mut Self::LastIp,
    ) -> Result<Self::Packet, TextError>;
}

/// Why a packet cannot be written here: a reader would not read the same packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// A packet of Table 33-15 between BBP and BEP.
    #[error("the packet may not stand between bbp and bep")]
    InBlock,
    /// A BIP outside of a block.
    #[error("a bip stands only between bbp and bep")]
    OutsideBlock,
    /// A BIP whose payload is not of its block's size.
    #[error("the payload is not of the size that the block's bbp announced")]
    ItemSize,
    /// A packet without a cycle count in cycle-accurate mode, where it must have one.
    #[error("in cycle-accurate mode the packet needs a cycle count")]
    NoCycles,
    /// A packet with a cycle count outside of cycle-accurate mode.
    #[error("a cycle count is there only in cycle-accurate mode")]
    Cycles,
}
