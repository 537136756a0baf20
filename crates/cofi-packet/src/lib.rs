//! The packet formats of Processor Trace.
#![no_std]

#[cfg(test)]
extern crate std;

mod addr;
mod asm;
mod chunks;
mod encoder;
mod error;
mod field;
mod format;
pub mod intel;
mod listing;
#[cfg(test)]
mod properties;
pub mod rtit;
mod stream;
mod table;
mod text;
mod tnt;
mod value;
mod word;

pub use addr::{ExecMode, Ip, StreamOffset, Tsc};
pub use asm::{AssembleError, Assembler, Line};
pub use chunks::{Chunks, Feed};
pub use encoder::{Buffer, EncodeError, Encoder, Full, Nowhere, Sink};
pub use error::DecodeError;
pub use field::{Field, Hex, Hex64, Printed, Tail, Uint};
pub use format::{Format, Misfit};
pub use listing::{Listed, Listing};
pub use stream::{Item, Located, Packets, Ring, StreamError, extent};
pub use table::{PacketKind, Raw};
pub use text::{Operands, TextError, TextErrorKind};
pub use tnt::Tnt;
pub use value::Value;
pub use word::MAX_PACKET;
