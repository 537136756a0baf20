//! The packets of Intel PT (33.4.2): decode, encode, print, last IP, blocks, synchronisation.

mod address;
mod block;
mod format;
mod ip;
mod last_ip;
mod names;
mod payload;
mod psb;
mod table;

pub use crate::{DecodeError, ExecMode, Hex64, MAX_PACKET, Tnt, Uint, Value};
pub use address::{Cr3, VmcsBase};
pub use block::Block;
pub use format::IntelPt;
pub use ip::{IpBytes, IpPayload, U48};
pub use last_ip::LastIp;
pub use names::{BlockType, CState, CfeType, EvdType, ModeLeaf, StateValue, TsxState, WakeReason};
pub use payload::{ItemSize, Payload};
pub use psb::{PSB, find_psb, rfind_psb, sync_backward, sync_forward};
pub use table::{Kind, Packet, decode, decode_in};

/// A packet's bytes with every bit kept.
pub type Raw = crate::Raw<Kind>;
/// A packet of a stream, where it stands.
pub type Located = crate::Located<IntelPt>;
/// Bytes of a stream that form no packet, or a packet where it may not stand.
pub type StreamError = crate::StreamError<IntelPt>;
/// Iterates over the packets of a byte slice.
pub type Packets<'a> = crate::Packets<'a, IntelPt>;
/// Decodes a stream that comes in chunks.
pub type Chunks = crate::Chunks<IntelPt>;
/// Writes packets.
pub type Encoder<S> = crate::Encoder<IntelPt, S>;
/// Reads the text form.
pub type Assembler<S> = crate::Assembler<IntelPt, S>;

#[cfg(test)]
mod tests;
