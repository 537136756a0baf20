//! What a packet's fields look like to a printer.

use crate::{ExecMode, Ip};
use core::fmt;

/// One field's value, as a printer sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Value {
    /// A flag.
    Bool(bool),
    /// A count, time or encoded field: printed in decimal.
    Number(u64),
    /// An enumerated field: its encoding, and its name where the manual gives one.
    Named(u64, Option<&'static str>),
    /// An address or opaque payload: printed in hexadecimal.
    Hex(u64),
    /// Taken/not-taken results, `bits` in `len` low bits, the oldest in the highest of them.
    Tnt {
        /// The results.
        bits: u64,
        /// How many there are.
        len: u8,
    },
    /// The bits of an IP payload, still compressed; `None` when it is suppressed.
    Payload(Option<u64>),
    /// An address, put together from a payload and the last IP; `None` when it is suppressed.
    Address(Option<Ip>),
    /// The execution mode.
    Mode(ExecMode),
    /// The field is not there.
    Absent,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bool(b) => write!(f, "{}", u8::from(b)),
            Self::Number(n) | Self::Named(n, None) => write!(f, "{n}"),
            Self::Named(_, Some(name)) => f.write_str(name),
            Self::Hex(n) | Self::Payload(Some(n)) => write!(f, "{n:#x}"),
            Self::Tnt { bits, len } => {
                for i in (0..len).rev() {
                    f.write_str(if bits >> i & 1 == 1 { "T" } else { "N" })?;
                }
                Ok(())
            }
            Self::Address(Some(ip)) => write!(f, "{ip}"),
            Self::Mode(mode) => write!(f, "{}", mode.bits()),
            Self::Payload(None) | Self::Address(None) | Self::Absent => f.write_str("-"),
        }
    }
}
