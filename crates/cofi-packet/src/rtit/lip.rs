//! The LIP payload of TIP and FUP packets, and the last LIP against which it is compressed (4.2.3.1, Table 18).

use crate::Ip;
use crate::field::{Field, Printed};
use crate::text::{Operands, TextError, parse_flag, parse_number};
use crate::value::Value;

/// CNT and Zext: how many bytes of the LIP are there, and what fills up the others of its six (Table 18).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum LipBytes {
    /// CNT 0, Zext 0: bits 15:0; the others are the last LIP's.
    Update16 = 0b000,
    /// CNT 0, Zext 1: bits 15:0; the others are zero.
    Zext16 = 0b100,
    /// CNT 1, Zext 0: bits 31:0; the others are the last LIP's.
    Update32 = 0b001,
    /// CNT 1, Zext 1: bits 31:0; the others are zero.
    Zext32 = 0b101,
    /// CNT 2: bits 47:0. Zext has nothing to extend; Table 18 sends it as 0, and a 1 is passed over.
    Full = 0b010,
}

impl LipBytes {
    /// Every encoding that is not reserved.
    pub const ALL: [Self; 5] = [
        Self::Update16,
        Self::Zext16,
        Self::Update32,
        Self::Zext32,
        Self::Full,
    ];

    /// CNT in bits 1:0 and Zext in bit 2; `None` for the reserved CNT 3.
    #[must_use]
    pub const fn new(bits: u8) -> Option<Self> {
        Some(match bits & 0b111 {
            0b000 => Self::Update16,
            0b100 => Self::Zext16,
            0b001 => Self::Update32,
            0b101 => Self::Zext32,
            0b010 | 0b110 => Self::Full,
            _ => return None,
        })
    }

    /// The CNT field.
    #[must_use]
    pub const fn cnt(self) -> u8 {
        self as u8 & 3
    }
    /// The Zext bit.
    #[must_use]
    pub const fn zext(self) -> bool {
        self as u8 & 4 != 0
    }
    /// How many payload bytes there are.
    #[must_use]
    pub const fn payload_len(self) -> usize {
        2 * (self.cnt() as usize + 1)
    }
    /// Which bits of the LIP the payload holds.
    #[must_use]
    pub const fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.payload_len())
    }
}

/// A LIP payload as it stands in the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LipPayload {
    bytes: LipBytes,
    bits: u64,
}

impl LipPayload {
    /// The payload of `lip` in as many bytes as `bytes` says; its other bits are dropped.
    #[must_use]
    pub const fn truncate(bytes: LipBytes, lip: u64) -> Self {
        Self {
            bytes,
            bits: lip & bytes.mask(),
        }
    }
    /// CNT and Zext.
    #[must_use]
    pub const fn lip_bytes(self) -> LipBytes {
        self.bytes
    }
    /// The payload bits, zero-extended.
    #[must_use]
    pub const fn payload(self) -> u64 {
        self.bits
    }
}

impl Printed for LipPayload {
    fn value(self) -> Value {
        Value::Payload(Some(self.bits))
    }
    fn visit(self, key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        f("cnt", Value::Number(self.bytes.cnt().into()));
        f("zext", Value::Bool(self.bytes.zext()));
        f(key, self.value());
    }
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
        let bytes = match parse_lip_bytes(operands)? {
            Some(bytes) => bytes,
            None => return Err(operands.lacks_compression(key, "cnt")),
        };
        let word = operands.take(key)?;
        let bits = parse_number(word)?;
        if bits & !bytes.mask() == 0 {
            Ok(Self { bytes, bits })
        } else {
            Err(TextError::range(word, key))
        }
    }
}

/// The operands `cnt` and `zext`; `None` without `cnt`.
pub(super) fn parse_lip_bytes(operands: &mut Operands<'_>) -> Result<Option<LipBytes>, TextError> {
    let zext = operands.key("zext").map(parse_flag).transpose()?;
    let Some(word) = operands.key("cnt") else {
        return match zext {
            None => Ok(None),
            Some(_) => Err(operands.missing("cnt")),
        };
    };
    let zext = zext.unwrap_or(false);
    let bytes = match (parse_number(word)?, zext) {
        (cnt @ 0..=2, zext) => LipBytes::new(cnt as u8 | u8::from(zext) << 2),
        _ => None,
    };
    match bytes {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(TextError::range(word, "cnt")),
    }
}

impl Field for LipPayload {
    // The head byte in bits 7:0, of which CNT and Zext are bits 2:0; the payload above it.
    fn from_bits(bits: u128) -> Option<Self> {
        let bytes = LipBytes::new(bits as u8)?;
        Some(Self::truncate(bytes, (bits >> 8) as u64))
    }
    fn to_bits(self) -> u128 {
        u128::from(self.bits) << 8 | self.bytes as u128
    }
}

/// The last LIP: the same state in whoever writes a stream and in whoever reads it (RTIT_LAST_LIP, Table 9).
///
/// A PSB and a buffer overflow clear it. For a writer nothing matches then, so no address that follows is compressed against
/// what was before. But the clearing may take effect only some packets behind the PSB (3.3.9), which the stream does not show.
/// A reader therefore goes on with the address before: a packet that needs it was written before the clearing. And a reader
/// that began behind that address does not know it. An overflow clears it before its packet is sent (4.2.5): there, both begin anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LastLip {
    lip: u64,
    /// All 48 bits have been read or written.
    is_known: bool,
    /// It has not been cleared since: CMPRS_LIP_Valid.
    is_valid: bool,
}

const LOW48: u64 = 0xffff_ffff_ffff;

impl LastLip {
    /// The state of a writer before its first address, and of a reader that has read none.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            lip: 0,
            is_known: false,
            is_valid: false,
        }
    }

    /// Clears it, as a PSB does.
    pub const fn reset(&mut self) {
        self.is_valid = false;
    }

    /// Reads a payload, which becomes the last LIP: the address, bit 47 of the LIP repeated above it. `None` if bits of it are
    /// those of an earlier address that has not been read.
    pub const fn apply(&mut self, payload: LipPayload) -> Option<Ip> {
        let bytes = payload.lip_bytes();
        let is_whole = bytes.zext() || matches!(bytes, LipBytes::Full);
        let above = if is_whole {
            0
        } else {
            self.lip & !bytes.mask() & LOW48
        };
        *self = Self {
            lip: above | payload.payload(),
            is_known: self.is_known || is_whole,
            is_valid: true,
        };
        if self.is_known {
            Some(Ip(((self.lip << 16) as i64 >> 16) as u64))
        } else {
            None
        }
    }

    /// Writes an address as Table 18 says, and it becomes the last LIP; `None`, and no change, if bit 47 is not repeated
    /// above.
    ///
    /// Zero extension is preferred over a match, so the bits to be matched are never zero, and without a last LIP nothing
    /// matches.
    pub const fn compress(&mut self, ip: Ip) -> Option<LipPayload> {
        let lip = ip.0 & LOW48;
        let (high_zero, middle_zero) = (lip >> 32 == 0, lip >> 16 & 0xffff == 0);
        let differing = if self.is_valid && self.is_known {
            lip ^ self.lip
        } else {
            lip
        };
        let (high_match, middle_match) = (differing >> 32 == 0, differing >> 16 & 0xffff == 0);
        let bytes = if high_zero && middle_zero {
            LipBytes::Zext16
        } else if high_match && middle_match {
            LipBytes::Update16
        } else if high_zero {
            LipBytes::Zext32
        } else if high_match {
            LipBytes::Update32
        } else {
            LipBytes::Full
        };
        self.compress_as(ip, bytes)
    }

    /// Writes an address in as many bytes as told, and it becomes the last LIP; `None`, and no change, when a reader would
    /// not get this address from them.
    pub const fn compress_as(&mut self, ip: Ip, bytes: LipBytes) -> Option<LipPayload> {
        let payload = LipPayload::truncate(bytes, ip.0);
        let mut after = *self;
        match after.apply(payload) {
            Some(read) if read.0 == ip.0 => {
                *self = after;
                Some(payload)
            }
            _ => None,
        }
    }
}
