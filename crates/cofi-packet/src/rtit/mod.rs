//! The packets of Real Time Instruction Trace (chapter 4 of its programming reference): decode, encode, print, last LIP,
//! synchronisation.

mod cycles;
mod format;
mod lip;
mod psb;
mod table;

pub use crate::{DecodeError, Hex, MAX_PACKET, Tnt, Uint, Value};
pub use cycles::CycleCount;
pub use format::Rtit;
pub use lip::{LastLip, LipBytes, LipPayload};
pub use psb::{PSB, find_psb, rfind_psb, sync_backward, sync_forward};
pub use table::{FullTnt, Kind, Mode, Packet, decode};

/// A packet's bytes with every bit kept.
pub type Raw = crate::Raw<Kind>;
/// A packet of a stream, where it stands.
pub type Located = crate::Located<Rtit>;
/// Bytes of a stream that form no packet.
pub type StreamError = crate::StreamError<Rtit>;
/// Iterates over the packets of a byte slice.
pub type Packets<'a> = crate::Packets<'a, Rtit>;
/// Decodes a stream that comes in chunks.
pub type Chunks = crate::Chunks<Rtit>;
/// Writes packets.
pub type Encoder<S> = crate::Encoder<Rtit, S>;
/// Reads the text form.
pub type Assembler<S> = crate::Assembler<Rtit, S>;

#[cfg(test)]
mod tests;
