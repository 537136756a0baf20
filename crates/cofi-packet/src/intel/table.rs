//! The one table of Intel PT packets, and what follows from it: type, decoder, encoder, printer, parser.
//!
//! How to read a row is said in [`crate::table`].

use super::payload::{Icnt as TrigCount, Ptw as PtwPayload};
use super::psb::{may_hold_psb, psb_inside};
use super::{
    Block, BlockType, CState, CfeType, Cr3, EvdType, IntelPt, IpPayload, ItemSize, ModeLeaf,
    Payload, TsxState, VmcsBase, WakeReason,
};
use crate::field::Codec;
use crate::table::{NONE, Raw, first_table, packets, second_table};
use crate::text::{Operands, TextError};
use crate::word::{MAX_PACKET, load};
use crate::{DecodeError, ExecMode, Hex64, Located, PacketVisitor, StreamOffset, Tnt, Uint, Value};

/// How the size of a packet's fixed part follows from its bytes.
#[derive(Clone, Copy)]
enum Size {
    /// Always this many bytes.
    Fixed(usize),
    /// A head byte, and as many bytes as IPBytes (bits 7:5) announces.
    IpBytes,
    /// As long as the Exp bits go on: bit 2 of the first byte, bit 0 of the others.
    Exp,
    /// Two bytes, and as many as PayloadBytes (bits 6:5 of the second) says.
    Ptw,
    /// Three bytes, and two more if ICNTV (bit 6 of the second) is set.
    Trig,
}

/// The most bytes in which a 64-bit cycle count can come: 5 bits, then 7 bits a byte. A longer CYC cannot be read.
const MAX_CYC: usize = 10;

impl Size {
    /// The size of the packet that `word` begins with, or the reserved value that denies it one.
    #[inline(always)]
    const fn of(&self, word: u128) -> Result<usize, u64> {
        match *self {
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
            Self::Ptw => match (word >> 13) as u64 & 3 {
                0 => Ok(6),
                1 => Ok(10),
                reserved => Err(reserved),
            },
            Self::Trig => Ok(if word >> 14 & 1 == 0 { 3 } else { 5 }),
        }
    }
}

/// How long a block item's payload is, which only the block tells.
#[inline(always)]
fn item_len(
    block: Block,
    packet: &'static str,
    _word: u128,
    _base: usize,
    _have: usize,
) -> Result<usize, DecodeError> {
    match block {
        Block::Inside(size) => Ok(size.bytes()),
        Block::Outside => Err(DecodeError::reserved(packet, "id", 0, 1)),
    }
}

/// A cycle count in the CYC packet's own encoding (Table 33-33).
enum Cycles {}

impl Codec<u64> for Cycles {
    /// The word's bits from bit 2 on to the count; `None` when it needs more than 64 bits.
    #[inline]
    fn from_bits(bits: u128) -> Option<u64> {
        let low = bits as u64 >> 1 & 0x1f;
        if bits & 1 == 0 {
            return Some(low);
        }
        let (mut count, mut rest, mut at) = (u128::from(low), bits >> 6, 5);
        loop {
            count |= (rest >> 1 & 0x7f) << at;
            if rest & 1 == 0 {
                return u64::try_from(count).ok();
            }
            rest >>= 8;
            at += 7;
        }
    }

    #[inline]
    fn to_bits(count: u64) -> u128 {
        // Of one byte and of two.
        if count < 1 << 5 {
            return u128::from(count << 1);
        }
        if count < 1 << 12 {
            return u128::from((count & 0x1f) << 1 | 1 | count >> 5 << 7);
        }
        let mut rest = count >> 5;
        let mut bits = u128::from(count & 0x1f) << 1 | u128::from(rest != 0);
        let mut at = 6;
        while rest != 0 {
            let byte = (rest & 0x7f) << 1;
            rest >>= 7;
            bits |= u128::from(byte | u64::from(rest != 0)) << at;
            at += 8;
        }
        bits
    }

    fn visit(count: u64, key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        f(key, Value::Number(count));
    }

    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<u64, TextError> {
        crate::field::Printed::parse(key, operands)
    }
}

packets! {
    /// A packet of Intel PT.
    ///
    /// An illegal state cannot be written: a field's type holds what the field can encode, and no more. Reserved bits are
    /// not part of it ([`Raw`](crate::Raw) keeps them).
    context Block, size Size, tail item_len, never Pad;

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
    TipPge "tip.pge" "33.4.2.4" [0x11 / 0x1f] Size::IpBytes, {
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
    /// A MODE leaf that the chapter does not define.
    Mode "mode" "33.4.2.8" [0x99] Size::Fixed(2), {
        /// The leaf.
        leaf "leaf": ModeLeaf = 13..16,
        /// The mode bits below it.
        mode "bits": Uint<5> = 8..13
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
    /// The operand of a PTWRITE instruction.
    Ptw "ptw" "33.4.2.21" [0x02, 0x12 / 0x1f] Size::Ptw, {
        /// The operand.
        payload "payload": Payload = 13..80 via PtwPayload,
        /// A FUP with the instruction's IP follows.
        ip "ip": bool = 15..16
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
        state "state": CState = 28..32,
        /// Resolved thread sub C-state, as encoded.
        sub_state "sub_state": Uint<4> = 24..28
    };
    /// Return to C0.
    Pwrx "pwrx" "33.4.2.25" [0x02, 0xa2] Size::Fixed(7), {
        /// Last core C-state, as encoded.
        last "last": CState = 20..24,
        /// Deepest core C-state, as encoded.
        deepest "deepest": CState = 16..20,
        /// Why.
        wake "wake": WakeReason = 24..28
    };
    /// A block begins; it ends at BEP, OVF or another BBP.
    Bbp "bbp" "33.4.2.26" [0x02, 0x63] Size::Fixed(3), {
        /// How long its items' payloads are.
        size "size": ItemSize = 23..24,
        /// What it holds.
        kind "type": BlockType = 16..21
    };
    /// An item of a block; outside of blocks the same first byte is a TNT.
    Bip "bip" "33.4.2.27" [0x04 / 0x07] Size::Fixed(1), {
        /// Which state value of the block's type it holds ([`StateValue`](super::StateValue)).
        id "id": Uint<5> = 3..8;
        /// The value, in the block's item size.
        payload "payload": Payload
    };
    /// A block ends.
    Bep "bep" "33.4.2.28" [0x02, 0x33 / 0x7f] Size::Fixed(2), {
        /// A FUP follows, to whose IP the block belongs.
        ip "ip": bool = 15..16
    };
    /// Control flow event.
    Cfe "cfe" "33.4.2.29" [0x02, 0x13] Size::Fixed(4), {
        /// A FUP with the IP follows.
        ip "ip": bool = 23..24,
        /// Table 33-50's type.
        kind "type": CfeType = 16..21,
        /// The vector, where the type has one.
        vector "vector": u8 = 24..32
    };
    /// Event data, about the following CFE.
    Evd "evd" "33.4.2.30" [0x02, 0x53] Size::Fixed(11), {
        /// Table 33-51's type.
        kind "type": EvdType = 16..22,
        /// The payload.
        payload "payload": Hex64 = 24..88
    };
    /// A trigger fired. Beyond the chapter.
    Trig "trig" "beyond chapter 33" [0xd9] Size::Trig, {
        /// A FUP with the IP follows.
        ip "ip": bool = 15..16,
        /// More than one trigger fired.
        mult "mult": bool = 13..14,
        /// The trigger vector.
        vector "vector": u8 = 16..24,
        /// The instruction count, if the packet has one (ICNTV).
        count "icnt": Option<u16> = 14..40 via TrigCount
    };
}

/// The first byte alone does not tell: look the second up in `SECOND`.
const EXTENDED: u8 = 0xfe;
const MODE: u8 = 0xfd;

/// Row by first byte.
static FIRST: [u8; 256] = {
    let mut table = first_table(ROWS, Kind::Bip as usize);
    table[0x02] = EXTENDED;
    table[0x99] = MODE;
    table
};
/// Row by second byte, after 02 and after 99.
static SECOND: [[u8; 256]; 2] = [second_table(ROWS, 0x02), second_table(ROWS, 0x99)];

/// Decodes the packet at the start of `bytes`, outside of a block.
///
/// ```
/// use cofi_packet::intel::{Packet, decode};
///
/// let raw = decode(&[0x02, 0x03, 0x14, 0x00]).unwrap();
/// assert_eq!(raw.packet(), Packet::Cbr { ratio: 20 });
/// assert_eq!(raw.len(), 4);
/// assert_eq!(raw.packet().to_string(), "cbr 20");
/// ```
///
/// # Errors
/// A [`DecodeError`] when the bytes end inside the packet, form none, or hold a reserved encoding.
#[inline]
pub fn decode(bytes: &[u8]) -> Result<Raw<Kind>, DecodeError> {
    decode_in(Block::Outside, bytes)
}

/// Decodes the packet at the start of `bytes`, in a block or outside. Whether the packet may stand there is told by
/// [`Block::after`].
///
/// # Errors
/// As [`decode`].
#[inline]
pub fn decode_in(block: Block, bytes: &[u8]) -> Result<Raw<Kind>, DecodeError> {
    let Some(&first) = bytes.first() else {
        return Err(DecodeError::truncated(0, 1));
    };
    let word = load(bytes);
    let mut row = FIRST[usize::from(first)];
    if row >= MODE {
        if row == NONE {
            return Err(DecodeError::unknown(word));
        }
        if bytes.len() < 2 {
            return Err(DecodeError::truncated(1, 2));
        }
        row = SECOND[usize::from(row == MODE)][usize::from((word >> 8) as u8)];
        if row == NONE {
            return Err(DecodeError::unknown(word));
        }
    }
    let kind = match block {
        Block::Inside(_) if first & 7 == 4 => Kind::Bip,
        _ => KINDS[usize::from(row)],
    };
    let size = Packet::measure(kind, word, bytes.len(), block)?;
    if may_be_cut(kind, size, bytes[size - 1]) {
        if let Some(have) = psb_inside(bytes, size) {
            return Err(DecodeError::cut(kind.name(), have, size));
        }
    }
    Ok(Raw::new(kind, word, size))
}

/// Whether a PSB may begin inside a packet that ends with the byte `last`. (One that begins inside another is a run of them, which ends
/// with the one that counts.)
#[inline(always)]
pub(super) const fn may_be_cut(kind: Kind, len: usize, last: u8) -> bool {
    may_hold_psb(last) && len > 1 && !matches!(kind, Kind::Psb)
}

/// What the first byte says when it says all: the packet's size, or 0.
#[derive(Clone, Copy)]
struct Short {
    kind: Kind,
    len: u8,
}

/// The packets of which the first byte alone tells kind and size. None of them has a field that can be refused.
static SHORT: [Short; 256] = {
    let mut table = [Short {
        kind: Kind::Pad,
        len: 0,
    }; 256];
    let mut byte = 0;
    while byte < 256 {
        let row = FIRST[byte];
        if row < MODE {
            let (kind, size) = (KINDS[row as usize], &SIZES[row as usize]);
            // Whatever follows the first byte.
            let (least, most) = (size.of(byte as u128), size.of(byte as u128 | !0xff));
            table[byte] = match (least, most) {
                (Ok(len), Ok(same)) if len == same => Short {
                    kind,
                    len: len as u8,
                },
                _ => table[byte],
            };
            let (one, long) = (table[byte].len != 0, table[byte].len == 0);
            assert!(
                is_pad_or_tnt(byte as u8) == (one && matches!(kind, Kind::Pad | Kind::Tnt8))
                    && is_long_cyc(byte as u8) == (long && matches!(kind, Kind::Cyc))
                    && is_one_byte_cyc(byte as u8) == (one && matches!(kind, Kind::Cyc)),
                "a short cut is not the table's"
            );
        }
        byte += 1;
    }
    table
};

/// What [`SHORT`] says of most packets' first bytes, without looking there.
#[inline(always)]
const fn is_pad_or_tnt(first: u8) -> bool {
    first & 1 == 0 && first != 2
}

/// Whether it begins a CYC of more than one byte, in the same way.
#[inline(always)]
const fn is_long_cyc(first: u8) -> bool {
    first & 7 == 7
}

/// Whether a PSB may begin within a packet that ends with the byte `last`, given what stands behind: the other one of a PSB's two bytes.
#[inline(always)]
const fn begins_psb(last: u8, behind: u8) -> bool {
    may_hold_psb(last) && behind == last ^ 0x80
}

/// Whether it is a CYC of one byte, in the same way.
#[inline(always)]
const fn is_one_byte_cyc(first: u8) -> bool {
    first & 7 == 3
}

/// The length of the CYC packet that begins with these bytes, if it has one byte or two: what [`decode`] says of it, for those who read over CYC
/// packets, which may be most of a stream.
#[inline(always)]
#[must_use]
pub const fn short_cyc([first, second, behind]: [u8; 3]) -> Option<usize> {
    if is_one_byte_cyc(first) {
        Some(1)
    } else if is_long_cyc(first) && second & 1 == 0 && !begins_psb(second, behind) {
        Some(2)
    } else {
        None
    }
}

/// Decodes the packet at the start of `bytes`, if its first byte tells nearly all and there are 16 bytes: padding, short TNTs, and most TIPs,
/// FUPs and timing packets. It is what [`decode`] returns, but comes sooner, and takes more code where it is called.
///
/// Only outside of blocks; none of these packets begins one.
#[inline(always)]
#[must_use]
pub fn decode_short(bytes: &[u8]) -> Option<Raw<Kind>> {
    let bytes = bytes.first_chunk()?;
    let (first, word) = (bytes[0], u128::from_le_bytes(*bytes));
    // Most packets are padding and short TNTs. That their size is not looked up lets the processor run ahead.
    if is_pad_or_tnt(first) {
        let kind = if first == 0 { Kind::Pad } else { Kind::Tnt8 };
        return Some(Raw::new(kind, word, 1));
    }
    // A CYC of two bytes. A longer one is rare, and may hold more than 64 bits.
    if is_long_cyc(first) {
        let len = short_cyc([first, bytes[1], bytes[2]]);
        return len.map(|len| Raw::new(Kind::Cyc, word, len));
    }
    let Short { kind, len } = SHORT[usize::from(first)];
    let last = bytes[usize::from(len).wrapping_sub(1) & 15];
    let may_hold = len > 15 || begins_psb(last, bytes[usize::from(len & 15)]);
    (len != 0 && !may_hold).then(|| Raw::new(kind, word, usize::from(len)))
}

/// Shows a visitor the packets from `at` on that [`decode_short`] decodes, up to the first that it does not; where that stands. Each kind has
/// an arm of its own, in which it is known when this is compiled.
///
/// It says once more what [`decode_short`] says, which a test compares: made of that, it would load all bytes of a packet before its kind is
/// known, and take a quarter longer.
#[inline]
pub(super) fn visit_short(
    bytes: &[u8],
    at: usize,
    visitor: &mut impl PacketVisitor<IntelPt>,
) -> usize {
    let mut rest = bytes.get(at..).unwrap_or_default();
    while let Some(chunk) = rest.first_chunk::<MAX_PACKET>() {
        let first = chunk[0];
        let offset = StreamOffset((bytes.len() - rest.len()) as u64);
        macro_rules! show {
            ($kind:expr, $word:expr, $len:expr) => {{
                let raw = Raw::new($kind, $word, $len);
                visitor.packet(Located { offset, raw });
            }};
        }
        if first == 0 {
            show!(Kind::Pad, 0, 1);
            rest = &rest[1..];
            continue;
        }
        if is_pad_or_tnt(first) {
            show!(Kind::Tnt8, u128::from(first), 1);
            rest = &rest[1..];
            continue;
        }
        if is_long_cyc(first) {
            let Some(len) = short_cyc([first, chunk[1], chunk[2]]) else {
                break;
            };
            show!(
                Kind::Cyc,
                u128::from(u16::from_le_bytes([first, chunk[1]])),
                len
            );
            rest = &rest[len & 15..];
            continue;
        }
        let Short { kind, len } = SHORT[usize::from(first)];
        let len = usize::from(len & 15);
        if len == 0 || begins_psb(chunk[len - 1], chunk[len]) {
            break;
        }
        let word = load(chunk);
        match kind {
            Kind::Tip => show!(Kind::Tip, word, len),
            Kind::TipPge => show!(Kind::TipPge, word, len),
            Kind::TipPgd => show!(Kind::TipPgd, word, len),
            Kind::Fup => show!(Kind::Fup, word, len),
            Kind::Tsc => show!(Kind::Tsc, word, len),
            Kind::Mtc => show!(Kind::Mtc, word, len),
            Kind::Cyc => show!(Kind::Cyc, word, len),
            _ => break,
        }
        rest = &rest[len..];
    }
    bytes.len() - rest.len()
}
