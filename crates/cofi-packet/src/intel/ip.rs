//! The IP payload of TIP, TIP.PGE, TIP.PGD and FUP (Table 33-18).

use crate::field::{Field, Printed};
use crate::text::{Operands, TextError, TextErrorKind, parse_number};
use crate::value::Value;
use core::fmt;

/// A 48-bit number.
pub type U48 = crate::Uint<48>;

/// The IPBytes field: how many bytes of the IP are there, and what fills up the others (Table 33-18).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum IpBytes {
    /// 000b: no payload, the IP is out of context.
    Suppressed = 0b000,
    /// 001b: bits 15:0; the others are the last IP's.
    Update16 = 0b001,
    /// 010b: bits 31:0; the others are the last IP's.
    Update32 = 0b010,
    /// 011b: bits 47:0; the others repeat bit 47.
    Sext48 = 0b011,
    /// 100b: bits 47:0; the others are the last IP's.
    Update48 = 0b100,
    /// 110b: all bits.
    Full = 0b110,
}

/// Payload bytes by IPBytes value; 0xff where that is reserved.
const LEN: [u8; 8] = [0, 2, 4, 6, 6, 0xff, 8, 0xff];
/// Payload bits by IPBytes value.
const MASK: [u64; 8] = [0, 0xffff, 0xffff_ffff, LOW48, LOW48, 0, u64::MAX, 0];
const LOW48: u64 = 0xffff_ffff_ffff;

impl IpBytes {
    /// Every encoding that is not reserved.
    pub const ALL: [Self; 6] = [
        Self::Suppressed,
        Self::Update16,
        Self::Update32,
        Self::Sext48,
        Self::Update48,
        Self::Full,
    ];

    /// The encoding `bits`; `None` for the reserved 101b and 111b and for what three bits do not hold.
    #[must_use]
    #[inline(always)]
    pub const fn new(bits: u8) -> Option<Self> {
        Some(match bits {
            0b000 => Self::Suppressed,
            0b001 => Self::Update16,
            0b010 => Self::Update32,
            0b011 => Self::Sext48,
            0b100 => Self::Update48,
            0b110 => Self::Full,
            _ => return None,
        })
    }

    /// How many payload bytes there are.
    #[must_use]
    #[inline(always)]
    pub const fn payload_len(self) -> usize {
        LEN[self as usize] as usize
    }

    /// Which bits of the IP the payload holds.
    #[must_use]
    #[inline(always)]
    pub const fn mask(self) -> u64 {
        MASK[self as usize]
    }
}

/// An IP payload as it stands in the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpPayload {
    bytes: IpBytes,
    /// The payload bits, zero-extended.
    bits: u64,
}

impl IpPayload {
    /// No payload: the IP is out of context.
    pub const SUPPRESSED: Self = Self {
        bytes: IpBytes::Suppressed,
        bits: 0,
    };

    /// The payload of `ip` in as many bytes as `bytes` says; its other bits are dropped.
    #[must_use]
    #[inline(always)]
    pub const fn truncate(bytes: IpBytes, ip: u64) -> Self {
        Self {
            bytes,
            bits: ip & bytes.mask(),
        }
    }

    /// IPBytes 001b.
    #[must_use]
    pub const fn update16(low: u16) -> Self {
        Self::truncate(IpBytes::Update16, low as u64)
    }
    /// IPBytes 010b.
    #[must_use]
    pub const fn update32(low: u32) -> Self {
        Self::truncate(IpBytes::Update32, low as u64)
    }
    /// IPBytes 011b.
    #[must_use]
    pub const fn sext48(low: U48) -> Self {
        Self::truncate(IpBytes::Sext48, low.get())
    }
    /// IPBytes 100b.
    #[must_use]
    pub const fn update48(low: U48) -> Self {
        Self::truncate(IpBytes::Update48, low.get())
    }
    /// IPBytes 110b.
    #[must_use]
    pub const fn full(ip: u64) -> Self {
        Self::truncate(IpBytes::Full, ip)
    }

    /// The IPBytes field.
    #[must_use]
    #[inline(always)]
    pub const fn ip_bytes(self) -> IpBytes {
        self.bytes
    }

    /// The payload bits, zero-extended.
    #[must_use]
    #[inline(always)]
    pub const fn payload(self) -> u64 {
        self.bits
    }

    /// How many payload bytes the IPBytes bits `ip_bytes` announce; `None` for the reserved 101b and 111b.
    #[inline(always)]
    pub(crate) const fn payload_len(ip_bytes: u8) -> Option<usize> {
        match LEN[(ip_bytes & 7) as usize] {
            0xff => None,
            len => Some(len as usize),
        }
    }
}

impl fmt::Display for IpPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value().fmt(f)
    }
}

impl Printed for IpPayload {
    fn value(self) -> Value {
        Value::Payload((self.bytes != IpBytes::Suppressed).then_some(self.bits))
    }
    fn visit(self, key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        f("ipc", Value::Number(self.bytes as u64));
        f(key, self.value());
    }
    // The payload alone, as `Display` prints it; addresses are the assembler's business.
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
        let Some(word) = operands.key("ipc") else {
            return Err(operands.lacks_compression(key, "ipc"));
        };
        let bytes = parse_ip_bytes(word)?;
        let word = operands.take(key)?;
        if bytes == IpBytes::Suppressed {
            return match word {
                "-" => Ok(Self::SUPPRESSED),
                _ => Err(TextError::range(word, key)),
            };
        }
        let bits = parse_number(word)?;
        if bits & !bytes.mask() == 0 {
            Ok(Self { bytes, bits })
        } else {
            Err(TextError::range(word, key))
        }
    }
}

/// The operand `ipc`.
pub(crate) fn parse_ip_bytes(word: &str) -> Result<IpBytes, TextError> {
    u8::try_from(parse_number(word)?)
        .ok()
        .and_then(IpBytes::new)
        .ok_or_else(|| TextError::new(TextErrorKind::Range("ipc"), word))
}

impl Field for IpPayload {
    // The IPBytes field in bits 2:0, the payload above it.
    #[inline(always)]
    fn from_bits(bits: u128) -> Option<Self> {
        let bytes = IpBytes::new(bits as u8 & 7)?;
        Some(Self::truncate(bytes, (bits >> 3) as u64))
    }
    #[inline(always)]
    fn to_bits(self) -> u128 {
        u128::from(self.bits) << 3 | self.bytes as u128
    }
}
