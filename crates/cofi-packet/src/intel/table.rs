//! The one table of Intel PT packets, and what follows from it: type, decoder, encoder, printer.
//!
//! A packet is at most 16 bytes, so it is handled as one little-endian 128-bit word: byte 0 is bits 7:0. A row gives
//! the packet's name and section, its constant head bytes (`value / mask`, the mask being ff when left out), its
//! size rule, and its fields as bit ranges of the word. Whatever neither the head nor a field covers is reserved:
//! ignored by the decoder, as 33.4.2 asks ("not guaranteed to be 0"), kept in [`Raw`], zero from the encoder.

use super::field::Field;
use super::value::Value;
use super::{Cr3, Hex64, IpPayload, Tnt, TsxState, Uint, VmcsBase};
use crate::ExecMode;
use core::fmt;

/// The longest packet, in bytes: PSB.
pub const MAX_PACKET: usize = 16;

/// The 16 bytes of a PSB packet (Table 33-36).
pub const PSB: [u8; 16] = [
    2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82,
];

/// How a packet's size follows from its bytes.
#[derive(Clone, Copy)]
enum Size {
    /// Always this many bytes.
    Fixed(usize),
    /// A head byte, and as many bytes as IPBytes (bits 7:5) announces.
    IpBytes,
    /// As long as the Exp bits go on: bit 2 of the first byte, bit 0 of the others.
    Exp,
}

/// The most bytes in which a 64-bit cycle count can come: 5 bits, then 7 bits a byte. A longer CYC cannot be read.
const MAX_CYC: usize = 10;

impl Size {
    /// The size of the packet that `word` begins with, or the reserved value that denies it one.
    const fn of(self, word: u128) -> Result<usize, u64> {
        match self {
            Self::Fixed(size) => Ok(size),
            Self::IpBytes => {
                let ip_bytes = (word >> 5) as u8 & 7;
                match IpPayload::payload_len(ip_bytes) {
                    Some(len) => Ok(1 + len),
                    None => Err(ip_bytes as u64),
                }
            }
            Self::Exp => {
                if word >> 2 & 1 == 0 {
                    return Ok(1);
                }
                let mut size = 2;
                while word >> (8 * (size - 1)) & 1 == 1 {
                    if size == MAX_CYC {
                        return Err(word as u64);
                    }
                    size += 1;
                }
                Ok(size)
            }
        }
    }
}

/// A cycle count in the CYC packet's own encoding (Table 33-33).
#[derive(Clone, Copy)]
struct Cycles(u64);

impl Cycles {
    /// The word's bits from bit 2 on to the count; `None` when it needs more than 64 bits.
    fn from_bits(bits: u128) -> Option<Self> {
        let mut count = u128::from(bits as u8 >> 1 & 0x1f);
        let (mut rest, mut more, mut at) = (bits >> 6, bits & 1 == 1, 5);
        while more {
            count |= (rest >> 1 & 0x7f) << at;
            more = rest & 1 == 1;
            rest >>= 8;
            at += 7;
        }
        u64::try_from(count).ok().map(Self)
    }

    fn to_bits(self) -> u128 {
        let mut rest = self.0 >> 5;
        let mut bits = u128::from(self.0 & 0x1f) << 1 | u128::from(rest != 0);
        let mut at = 6;
        while rest != 0 {
            let byte = (rest & 0x7f) << 1;
            rest >>= 7;
            bits |= u128::from(byte | u64::from(rest != 0)) << at;
            at += 8;
        }
        bits
    }
}

/// Bits `low..high` of a word.
const fn bits(word: u128, low: u32, high: u32) -> u128 {
    word << (128 - high) >> (128 - high + low)
}

const fn range_mask(low: u32, high: u32) -> u128 {
    bits(u128::MAX, 0, high - low) << low
}

struct Row {
    name: &'static str,
    section: &'static str,
    value: u128,
    mask: u128,
    fields: u128,
    size: Size,
}

const fn head(bytes: &[(u8, u8)]) -> (u128, u128) {
    let (mut value, mut mask, mut i) = (0, 0, 0);
    while i < bytes.len() {
        value |= (bytes[i].0 as u128) << (8 * i);
        mask |= (bytes[i].1 as u128) << (8 * i);
        i += 1;
    }
    (value, mask)
}

macro_rules! mask_or_ff {
    () => {
        0xff
    };
    ($mask:literal) => {
        $mask
    };
}

// A field's type and codec. CYC's count is a plain u64 whose wire form is not, hence `via`.
macro_rules! field_from {
    ($ty:ty, $bits:expr) => {
        <$ty as Field>::from_bits($bits)
    };
    ($ty:ty, $bits:expr, $via:ty) => {
        <$via>::from_bits($bits).map(|c| c.0)
    };
}
macro_rules! field_to {
    ($value:expr) => {
        Field::to_bits($value)
    };
    ($value:expr, $via:ident) => {
        $via($value).to_bits()
    };
}

macro_rules! packets {
    ($(
        $(#[$doc:meta])*
        $Kind:ident $name:literal $section:literal [$($value:literal $(/ $mask:literal)?),+] $size:expr
        $(, { $( $(#[$fdoc:meta])* $field:ident $key:literal: $ty:ty = $low:literal..$high:literal $(via $via:ident)? ),+ })?;
    )*) => {
        /// A packet of Intel PT.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Packet {
            $( $(#[$doc])* #[doc = concat!("\n\nSection ", $section, ".")]
               $Kind $({ $( $(#[$fdoc])* $field: $ty ),+ })? ),*
        }

        /// Which packet it is.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Kind {
            $( $(#[$doc])* $Kind ),*
        }

        const ROWS: &[Row] = &[$({
            const HEAD: (u128, u128) = head(&[$(($value, mask_or_ff!($($mask)?))),+]);
            Row {
                name: $name,
                section: $section,
                value: HEAD.0,
                mask: HEAD.1,
                fields: 0 $($(| range_mask($low, $high))+)?,
                size: $size,
            }
        }),*];

        impl Kind {
            /// Every kind, in the table's order.
            pub const ALL: &[Self] = &[$(Self::$Kind),*];
        }

        impl Packet {
            /// Which packet it is.
            #[must_use]
            pub const fn kind(&self) -> Kind {
                match self { $( Self::$Kind { .. } => Kind::$Kind ),* }
            }

            /// Encodes the packet; reserved bits are zero.
            #[must_use]
            pub fn encode(&self) -> Raw {
                let word = match *self {
                    $( Self::$Kind $({ $($field),+ })? =>
                        ROWS[Kind::$Kind as usize].value $($(| field_to!($field $(, $via)?) << $low)+)? ),*
                };
                // A typed packet's size bits are never reserved ones.
                let len = ROWS[self.kind() as usize].size.of(word).unwrap_or(1) as u8;
                Raw { word, len, kind: self.kind() }
            }

            /// Hands every field to `f` as (key, value), in the table's order. The keys are those of `cofi dump`.
            pub fn visit(&self, f: &mut dyn FnMut(&'static str, Value)) {
                match *self {
                    $( Self::$Kind $({ $($field),+ })? => { $($( Field::visit($field, $key, f); )+)? } ),*
                }
            }
        }

        impl Raw {
            /// The typed packet, reserved bits ignored.
            ///
            /// # Errors
            /// [`DecodeError::Reserved`] when a field holds a reserved encoding.
            #[inline]
            pub fn packet(&self) -> Result<Packet, DecodeError> {
                match self.kind {
                    $( Kind::$Kind => Ok(Packet::$Kind $({ $( $field: {
                        let bits = bits(self.word, $low, $high);
                        match field_from!($ty, bits $(, $via)?) {
                            Some(field) => field,
                            None => return Err(DecodeError::Reserved {
                                packet: $name, field: $key, value: bits as u64, size: self.len,
                            }),
                        }
                    } ),+ })?) ),*
                }
            }
        }
    };
}

packets! {
    /// No operation; processors may emit it for alignment.
    Pad "pad" "33.4.2.20" [0x00] Size::Fixed(1);
    /// Up to 6 taken/not-taken results.
    Tnt8 "tnt.8" "33.4.2.1" [0x00 / 0x01] Size::Fixed(1), {
        /// The results, oldest first.
        bits "bits": Tnt<6> = 1..8
    };
    /// Up to 47 taken/not-taken results.
    Tnt64 "tnt.64" "33.4.2.1" [0x02, 0xa3] Size::Fixed(8), {
        /// The results, oldest first.
        bits "bits": Tnt<47> = 16..64
    };
    /// Target of an indirect branch, uncompressed return, far transfer or event.
    Tip "tip" "33.4.2.2" [0x0d / 0x1f] Size::IpBytes, {
        /// The target.
        ip "ip": IpPayload = 5..72
    };
    /// PacketEn became 1: tracing begins at this IP.
    TipPge "tip.pge" "33.4.2.3" [0x11 / 0x1f] Size::IpBytes, {
        /// Where tracing begins.
        ip "ip": IpPayload = 5..72
    };
    /// PacketEn became 0: tracing ends at this IP, if it may be told.
    TipPgd "tip.pgd" "33.4.2.5" [0x01 / 0x1f] Size::IpBytes, {
        /// Where control went, or suppressed.
        ip "ip": IpPayload = 5..72
    };
    /// Source of an asynchronous event, or the IP to which another packet binds.
    Fup "fup" "33.4.2.6" [0x1d / 0x1f] Size::IpBytes, {
        /// The source.
        ip "ip": IpPayload = 5..72
    };
    /// CR3 was written.
    Pip "pip" "33.4.2.7" [0x02, 0x43] Size::Fixed(8), {
        /// The new value's address part.
        cr3 "cr3": Cr3 = 17..64,
        /// In VMX non-root operation.
        nr "nr": bool = 16..17
    };
    /// CS.L, CS.D, EFER.LMA or RFLAGS.IF.
    ModeExec "mode.exec" "33.4.2.8" [0x99, 0x00 / 0xe0] Size::Fixed(2), {
        /// The width in which instructions are decoded.
        mode "mode": ExecMode = 8..10,
        /// RFLAGS.IF (meaningful with Event Trace).
        interrupt_flag "if": bool = 10..11
    };
    /// TSX state.
    ModeTsx "mode.tsx" "33.4.2.8" [0x99, 0x20 / 0xe0] Size::Fixed(2), {
        /// InTX and TXAbort.
        tx "tx": TsxState = 8..10
    };
    /// Tracing stopped on entry to a TraceStop range.
    TraceStop "tracestop" "33.4.2.9" [0x02, 0x83] Size::Fixed(2);
    /// Core:bus ratio.
    Cbr "cbr" "33.4.2.10" [0x02, 0x03] Size::Fixed(4), {
        /// Core clock divided by bus clock.
        ratio "ratio": u8 = 16..24
    };
    /// Time stamp counter.
    Tsc "tsc" "33.4.2.11" [0x19] Size::Fixed(8), {
        /// The counter's lower 7 bytes.
        tsc "tsc": Uint<56> = 8..64
    };
    /// Mini time counter.
    Mtc "mtc" "33.4.2.12" [0x59] Size::Fixed(2), {
        /// (ART >> MTCFreq) & ff.
        ctc "ctc": u8 = 8..16
    };
    /// TSC/MTC alignment.
    Tma "tma" "33.4.2.13" [0x02, 0x73] Size::Fixed(7), {
        /// The crystal clock's lower 16 bits at the preceding TSC.
        ctc "ctc": u16 = 16..32,
        /// TSC ticks since that crystal clock edge.
        fc "fc": Uint<9> = 40..49
    };
    /// Core clock cycles since the last CYC.
    Cyc "cyc" "33.4.2.14" [0x03 / 0x03] Size::Exp, {
        /// How many.
        cycles "cycles": u64 = 2..80 via Cycles
    };
    /// VMCS pointer.
    Vmcs "vmcs" "33.4.2.15" [0x02, 0xc8] Size::Fixed(7), {
        /// The pointer.
        base "base": VmcsBase = 16..56
    };
    /// Internal buffer overflow: packets were lost before this point.
    Ovf "ovf" "33.4.2.16" [0x02, 0xf3] Size::Fixed(2);
    /// Packet stream boundary: begins a PSB+.
    Psb "psb" "33.4.2.17" [0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82]
        Size::Fixed(16);
    /// Ends a PSB+.
    PsbEnd "psbend" "33.4.2.18" [0x02, 0x23] Size::Fixed(2);
    /// Maintenance: model-specific.
    Mnt "mnt" "33.4.2.19" [0x02, 0xc3, 0x88] Size::Fixed(11), {
        /// The payload.
        payload "payload": Hex64 = 24..88
    };
    /// Execution stopped.
    ExStop "exstop" "33.4.2.22" [0x02, 0x62 / 0x7f] Size::Fixed(2), {
        /// A FUP with the IP follows.
        ip "ip": bool = 15..16
    };
    /// An MWAIT to a C-state deeper than C0.0 completed.
    Mwait "mwait" "33.4.2.23" [0x02, 0xc2] Size::Fixed(10), {
        /// MWAIT hints.
        hints "hints": u8 = 16..24,
        /// MWAIT extensions.
        ext "ext": Uint<2> = 48..50
    };
    /// Entry to a C-state deeper than C0.0.
    Pwre "pwre" "33.4.2.24" [0x02, 0x22] Size::Fixed(4), {
        /// Initiated by hardware.
        hw "hw": bool = 23..24,
        /// Resolved thread C-state, as encoded.
        state "state": Uint<4> = 28..32,
        /// Resolved thread sub C-state, as encoded.
        sub_state "sub_state": Uint<4> = 24..28
    };
    /// Return to C0.
    Pwrx "pwrx" "33.4.2.25" [0x02, 0xa2] Size::Fixed(7), {
        /// Last core C-state, as encoded.
        last "last": Uint<4> = 20..24,
        /// Deepest core C-state, as encoded.
        deepest "deepest": Uint<4> = 16..20,
        /// Wake reason bits.
        wake "wake": Uint<4> = 24..28
    };
    /// Control flow event.
    Cfe "cfe" "33.4.2.29" [0x02, 0x13] Size::Fixed(4), {
        /// A FUP with the IP follows.
        ip "ip": bool = 23..24,
        /// Table 33-50's type.
        kind "type": Uint<5> = 16..21,
        /// The vector, where the type has one.
        vector "vector": u8 = 24..32
    };
    /// Event data, about the following CFE.
    Evd "evd" "33.4.2.30" [0x02, 0x53] Size::Fixed(11), {
        /// Table 33-51's type.
        kind "type": Uint<6> = 16..22,
        /// The payload.
        payload "payload": Hex64 = 24..88
    };
}

impl Kind {
    /// The packet's name as `cofi dump` prints it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        ROWS[self as usize].name
    }

    /// The section of the manual that defines the packet.
    #[must_use]
    pub const fn section(self) -> &'static str {
        ROWS[self as usize].section
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name())?;
        let mut result = Ok(());
        self.visit(&mut |key, value| {
            if result.is_ok() {
                result = write!(f, " {key}={value}");
            }
        });
        result
    }
}

/// A packet's bytes with every bit kept, reserved ones included.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Raw {
    word: u128,
    len: u8,
    kind: Kind,
}

impl Raw {
    /// Which packet it is.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The size in bytes, 1 to [`MAX_PACKET`].
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a packet is never empty")]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// The bytes; those after [`Self::len`] are zero.
    #[must_use]
    pub const fn bytes(&self) -> [u8; MAX_PACKET] {
        self.word.to_le_bytes()
    }

    /// The reserved bits, at their places in the packet's little-endian word.
    #[must_use]
    pub const fn reserved(&self) -> u128 {
        let row = &ROWS[self.kind as usize];
        self.word & !row.mask & !row.fields
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{:02x?}]", self.kind, &self.bytes()[..self.len()])
    }
}

/// Why bytes form no packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The input ends inside a packet.
    #[error("the input ends inside a packet: {have} of {need} bytes")]
    Truncated {
        /// Bytes that are there.
        have: u8,
        /// Bytes that the packet needs, as far as its first bytes tell.
        need: u8,
    },
    /// No packet begins so.
    #[error("no packet begins with the bytes {first:02x} {second:02x}")]
    Unknown {
        /// The first byte.
        first: u8,
        /// The second byte (zero when there is none).
        second: u8,
    },
    /// A field holds a reserved encoding.
    #[error("{packet}: {field} holds the reserved value {value:#x}")]
    Reserved {
        /// The packet's name.
        packet: &'static str,
        /// The field's key.
        field: &'static str,
        /// The bits found.
        value: u64,
        /// The packet's size in bytes, as far as it is known; at least 1.
        size: u8,
    },
}

/// A decoded packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decoded {
    /// The typed packet.
    pub packet: Packet,
    /// Its bytes, every bit kept.
    pub raw: Raw,
}

const NONE: u8 = 0xff;
/// The first byte alone does not tell: look the second up in `SECOND`.
const EXTENDED: u8 = 0xfe;
const MODE: u8 = 0xfd;

/// Row by first byte; the row with the most constant bits wins, as 02 is no TNT and 00 is PAD.
static FIRST: [u8; 256] = first_table();
/// Row by second byte, after 02 and after 99.
static SECOND: [[u8; 256]; 2] = [second_table(0x02), second_table(0x99)];

const fn matches(row: &Row, index: u32, byte: u8) -> bool {
    let mask = (row.mask >> (8 * index)) as u8;
    byte & mask == (row.value >> (8 * index)) as u8
}

const fn first_table() -> [u8; 256] {
    let mut table = [NONE; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut row, mut best) = (0, 0);
        while row < ROWS.len() {
            let constant = (ROWS[row].mask as u8).count_ones();
            if matches(&ROWS[row], 0, byte as u8) && constant > best {
                best = constant;
                table[byte] = row as u8;
            }
            row += 1;
        }
        byte += 1;
    }
    table[0x02] = EXTENDED;
    table[0x99] = MODE;
    table
}

const fn second_table(first: u8) -> [u8; 256] {
    let mut table = [NONE; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut row = 0;
        while row < ROWS.len() {
            if ROWS[row].mask as u8 == 0xff
                && ROWS[row].value as u8 == first
                && matches(&ROWS[row], 1, byte as u8)
            {
                assert!(table[byte] == NONE, "two rows claim the same two bytes");
                table[byte] = row as u8;
            }
            row += 1;
        }
        byte += 1;
    }
    table
}

fn load(bytes: &[u8]) -> u128 {
    if let Some(chunk) = bytes.first_chunk::<MAX_PACKET>() {
        return u128::from_le_bytes(*chunk);
    }
    let mut padded = [0; MAX_PACKET];
    padded[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(padded)
}

/// Decodes the packet at the start of `bytes`.
///
/// # Errors
/// A [`DecodeError`] when the bytes end inside the packet, form none, or hold a reserved encoding.
#[inline]
pub fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let raw = decode_raw(bytes)?;
    Ok(Decoded {
        packet: raw.packet()?,
        raw,
    })
}

#[inline]
fn decode_raw(bytes: &[u8]) -> Result<Raw, DecodeError> {
    let Some(&first) = bytes.first() else {
        return Err(DecodeError::Truncated { have: 0, need: 1 });
    };
    let mut row = FIRST[usize::from(first)];
    if row >= MODE {
        if row == NONE {
            return Err(DecodeError::Unknown {
                first,
                second: bytes.get(1).copied().unwrap_or(0),
            });
        }
        let Some(&second) = bytes.get(1) else {
            return Err(DecodeError::Truncated { have: 1, need: 2 });
        };
        row = SECOND[usize::from(row == MODE)][usize::from(second)];
        if row == NONE {
            return Err(DecodeError::Unknown { first, second });
        }
    }
    let kind = Kind::ALL[usize::from(row)];
    let row = &ROWS[usize::from(row)];
    let have = bytes.len().min(MAX_PACKET);
    let word = load(bytes);
    // Constant bytes that are there must be right, also in a packet that is cut short.
    let there = range_mask(0, 8 * have as u32);
    if (word ^ row.value) & row.mask & there != 0 {
        return Err(DecodeError::Unknown {
            first,
            second: bytes.get(1).copied().unwrap_or(0),
        });
    }
    let size = match row.size.of(word) {
        Ok(size) => size,
        Err(value) => {
            return Err(DecodeError::Reserved {
                packet: row.name,
                field: "size",
                value,
                size: 1,
            });
        }
    };
    if bytes.len() < size {
        return Err(DecodeError::Truncated {
            have: have as u8,
            need: size as u8,
        });
    }
    Ok(Raw {
        word: word & range_mask(0, 8 * size as u32),
        len: size as u8,
        kind,
    })
}
