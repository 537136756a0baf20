#![doc = include_str!("../README.md")]
//! # Levels
//!
//! Each format ([`intel`], [`rtit`]) is one table of rows (`table.rs` in its folder), from which follow the packet type, its decoder, its encoder, its printer
//! and its parser.
//!
//! | level | type | what it is |
//! |---|---|---|
//! | bytes | `&[u8]` | a stream: whole, in [`Chunks`], or a [`Ring`] buffer's content |
//! | raw | [`Raw`] | a packet with every bit it has, reserved ones included |
//! | typed | [`intel::Packet`], [`rtit::Packet`] | what the packet says; an illegal state cannot be written |
//! | text | [`Listing`], [`Assembler`] | a line that a person can read and write, from which the same bytes come |
//!
//! Whatever decodes is encoded to the same bytes. What does not decode is a [`StreamError`] with its offset, its length and
//! its cause, and decoding goes on at the next PSB. No input panics.
//!
//! What both formats have in common is [`Format`]; [`Packets`], [`Encoder`] and the others are generic over it, and each
//! format's module has them under their plain names.
//!
//! Addresses, stream offsets and clocks have types of their own ([`Ip`], [`StreamOffset`], [`Tsc`]), which the other
//! crates share.
#![no_std]

#[cfg(test)]
extern crate std;

mod addr;
mod asm;
mod chunks;
mod counted;
mod encoder;
mod error;
mod field;
mod format;
pub mod intel;
mod listing;
pub mod rtit;
mod stream;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod tnt;
mod value;
mod word;

pub use addr::{ExecMode, Ip, StreamOffset, Tsc};
pub use asm::{AssembleError, Assembler, Line, LineError, assemble};
pub use chunks::{Chunks, Feed};
pub use counted::{Counted, agreeing, counted};
pub use encoder::{Buffer, Collected, EncodeError, Encoder, Full, Nowhere, Sink};
pub use error::DecodeError;
pub use field::{Hex, Hex64, Uint};
pub use format::{Format, Misfit};
pub use listing::{Listed, Listing};
pub use stream::{Located, PacketVisitor, Packets, Ring, StreamError, StreamItem, extent};
pub use table::{PacketKind, Raw};
pub use text::{TextError, TextErrorKind};
pub use tnt::Tnt;
pub use value::Value;
pub use word::MAX_PACKET;
