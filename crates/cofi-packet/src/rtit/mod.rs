//! The packets of Real Time Instruction Trace, Intel PT's ancestor on Silvermont and Airmont (chapter 4 of its programming
//! reference).
//!
#![doc = include_str!("packets.md")]
//!
//! The text of a packet that stands alone has the LIP payload as it was sent; [`Listing`](crate::Listing) shows the whole
//! address, bit 47 repeated above.
//!
//! # What the bytes do not tell
//!
//! In **cycle-accurate mode** ([`Mode`]) a cycle count follows full TNT, TIP, FUP, PIP, MTC and STS, and nothing in the
//! stream says so. A packet that can have one has a field `cycles`; the iterator is told the mode with
//! [`in_context`](crate::Packets::in_context).
//!
//! ```
//! use cofi_packet::rtit::{Mode, Packets};
//!
//! let bytes = [0x56, 0x15, 0xb4, 0x00, 0x10, 0x09];
//! let text: Vec<_> = Packets::new(&bytes)
//!     .in_context(Mode::CycleAccurate)
//!     .map(|item| item.unwrap().packet().to_string())
//!     .collect();
//! assert_eq!(text, ["tnt bits=NTNTTN cycles=5", "tip cnt=0 zext=1 ip=0x1000 cycles=2"]);
//! ```
//!
//! The **last LIP** ([`LastLip`]) completes compressed addresses (Table 18). It is cleared by a PSB, or up to four packets later,
//! and by a buffer overflow, whose own packet neither uses nor sets it.

mod cycles;
mod format;
mod lip;
mod processors;
mod psb;
mod table;

pub use crate::{DecodeError, Hex, MAX_PACKET, Tnt, Uint, Value};
pub use cycles::CycleCount;
pub use format::Rtit;
pub use lip::{LastLip, LipBytes, LipPayload};
pub use processors::has_rtit;
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
