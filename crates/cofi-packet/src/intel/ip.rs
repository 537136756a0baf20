//! The IP payload of TIP, TIP.PGE, TIP.PGD and FUP (Table 33-18).

use super::field::Field;
use super::value::Value;
use core::fmt;

/// A 48-bit number.
pub type U48 = super::Uint<48>;

/// An IP payload as it stands in the packet: which bytes are present, and what fills up the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IpPayload {
    /// IPBytes 000b: no payload, the IP is out of context.
    Suppressed,
    /// IPBytes 001b: bits 15:0; the others are the last IP's.
    Update16(u16),
    /// IPBytes 010b: bits 31:0; the others are the last IP's.
    Update32(u32),
    /// IPBytes 011b: bits 47:0; the others repeat bit 47.
    Sext48(U48),
    /// IPBytes 100b: bits 47:0; the others are the last IP's.
    Update48(U48),
    /// IPBytes 110b: all bits.
    Full(u64),
}

impl IpPayload {
    /// The IPBytes field.
    #[must_use]
    pub const fn ip_bytes(self) -> u8 {
        match self {
            Self::Suppressed => 0b000,
            Self::Update16(_) => 0b001,
            Self::Update32(_) => 0b010,
            Self::Sext48(_) => 0b011,
            Self::Update48(_) => 0b100,
            Self::Full(_) => 0b110,
        }
    }

    /// How many payload bytes an IPBytes value announces; `None` for the reserved 101b and 111b.
    #[must_use]
    pub const fn payload_len(ip_bytes: u8) -> Option<usize> {
        match ip_bytes {
            0b000 => Some(0),
            0b001 => Some(2),
            0b010 => Some(4),
            0b011 | 0b100 => Some(6),
            0b110 => Some(8),
            _ => None,
        }
    }

    /// The payload bits, zero-extended.
    #[must_use]
    pub const fn payload(self) -> u64 {
        match self {
            Self::Suppressed => 0,
            Self::Update16(low) => low as u64,
            Self::Update32(low) => low as u64,
            Self::Sext48(low) | Self::Update48(low) => low.get(),
            Self::Full(ip) => ip,
        }
    }
}

impl fmt::Display for IpPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Suppressed => f.write_str("-"),
            _ => write!(f, "{:#x}", self.payload()),
        }
    }
}

impl Field for IpPayload {
    // The IPBytes field in bits 2:0, the payload above it.
    fn from_bits(bits: u128) -> Option<Self> {
        let payload = (bits >> 3) as u64;
        Some(match bits as u8 & 7 {
            0b000 => Self::Suppressed,
            0b001 => Self::Update16(payload as u16),
            0b010 => Self::Update32(payload as u32),
            0b011 => Self::Sext48(U48::truncate(payload)),
            0b100 => Self::Update48(U48::truncate(payload)),
            0b110 => Self::Full(payload),
            _ => return None,
        })
    }
    fn to_bits(self) -> u128 {
        u128::from(self.payload()) << 3 | u128::from(self.ip_bytes())
    }
    fn value(self) -> Value {
        Value::Ip(self)
    }
    fn visit(self, key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        f("ipc", Value::Number(self.ip_bytes().into()));
        f(key, self.value());
    }
}
