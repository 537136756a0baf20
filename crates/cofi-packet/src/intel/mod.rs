//! The packets of Intel PT (chapter 33 of the manual's volume 3).
//!
#![doc = include_str!("packets.md")]
//!
//! The text of an IP packet that stands alone has the payload as it was sent; [`Listing`](crate::Listing) shows the whole
//! address.
//!
//! # From bytes to packets
//!
//! [`Packets`] iterates over a byte slice, [`Chunks`] over a stream that comes in pieces; [`decode`] reads one packet. What
//! they give is a [`Raw`], which has every bit; [`Raw::packet`](crate::Raw) makes the typed [`Packet`] of it. A packet's
//! reserved bits are ignored, as 33.4.2 says of them, and kept in the [`Raw`]; a field with a reserved encoding is an error.
//!
//! Two things must be known beside a packet's bytes:
//!
//! - whether it stands in a **block** (33.4.1.1): there `xxxxx100b` is the header of a BIP and no TNT. [`Block`] is that
//!   context; the iterators keep it.
//! - the **last IP**, of which compressed addresses are completed (Table 33-18): [`LastIp`].
//!
//! ```
//! use cofi_packet::intel::{LastIp, Packet, Packets};
//!
//! let bytes = [0x51, 0x00, 0x10, 0x40, 0x00, 0x32, 0x2d, 0x34, 0x12];
//! let mut last_ip = LastIp::new();
//! for item in Packets::new(&bytes) {
//!     let raw = match item {
//!         Ok(located) => located.raw,
//!         Err(error) => {
//!             eprintln!("{error}");
//!             match error.packet {
//!                 // In a block where it may not stand; but it was read.
//!                 Some(raw) => raw,
//!                 None => continue,
//!             }
//!         }
//!     };
//!     match raw.packet() {
//!         Packet::Psb => last_ip.reset(),
//!         Packet::TipPge { ip } | Packet::Tip { ip } => println!("{:?}", last_ip.apply(ip)),
//!         Packet::Tnt8 { bits } => println!("{bits:?}"),
//!         _ => {}
//!     }
//! }
//! # assert_eq!(last_ip.get(), cofi_packet::Ip(0x401234));
//! ```
//!
//! # From packets to bytes
//!
//! [`Packet::encode`] gives one packet's bytes. [`Encoder`] writes a stream, chooses how addresses are compressed, and
//! refuses what a reader would not read. [`Assembler`] reads the text form.
//!
//! # Synchronisation
//!
//! [`find_psb`], [`sync_forward`] and [`sync_backward`] find stream boundaries; [`Packets::ring`](crate::Packets::ring) reads
//! what is whole of a ring buffer.

mod address;
mod block;
mod format;
mod ip;
mod last_ip;
mod names;
mod payload;
mod psb;
mod spoilt;
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
pub use spoilt::{Repaired, Spoilt, SpoiltBy};
pub use table::{Kind, Packet, decode, decode_in, decode_short, short_cyc};

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
