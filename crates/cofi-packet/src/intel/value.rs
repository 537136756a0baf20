//! What a packet's fields look like to a printer.

use super::IpPayload;
use crate::ExecMode;
use core::fmt;

/// One field's value, as a printer sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// A flag.
    Bool(bool),
    /// A count, time or encoded field: printed in decimal.
    Number(u64),
    /// An address or opaque payload: printed in hexadecimal.
    Hex(u64),
    /// Taken/not-taken results, `bits` in `len` low bits, the oldest in the highest of them.
    Tnt {
        /// The results.
        bits: u64,
        /// How many there are.
        len: u8,
    },
    /// An IP payload, still compressed.
    Ip(IpPayload),
    /// The execution mode.
    Mode(ExecMode),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bool(b) => write!(f, "{}", u8::from(b)),
            Self::Number(n) => write!(f, "{n}"),
            Self::Hex(n) => write!(f, "{n:#x}"),
            Self::Tnt { bits, len } => {
                for i in (0..len).rev() {
                    f.write_str(if bits >> i & 1 == 1 { "T" } else { "N" })?;
                }
                Ok(())
            }
            Self::Ip(ip) => write!(f, "{ip}"),
            Self::Mode(mode) => write!(f, "{}", mode.bits()),
        }
    }
}
