//! The one table of RTIT packets (Figure 2), and what follows from it: type, decoder, encoder, printer, parser.
//!
//! How to read a row is said in [`crate::table`]. The cycle count of cycle-accurate mode is the tail of the packets that
//! 4.2.15 lists.

use super::{CycleCount, LipPayload, cycles};
use crate::field::{Codec, Field, Printed};
use crate::table::{NONE, Raw, first_table, packets};
use crate::text::{Operands, TextError};
use crate::word::load;
use crate::{DecodeError, Hex, Tnt, Uint, Value};

/// Whether the trace was taken in cycle-accurate mode (RTIT_CTL.Cycle_Acc), which the stream itself does not tell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// No packet carries a cycle count.
    #[default]
    Plain,
    /// A cycle count follows full TNT, TIP, FUP, PIP, MTC and STS.
    CycleAccurate,
}

/// How the size of a packet's fixed part follows from its bytes.
#[derive(Clone, Copy)]
enum Size {
    /// Always this many bytes.
    Fixed(usize),
    /// A head byte, and as many bytes as CNT (bits 1:0) announces.
    Lip,
}

impl Size {
    const fn of(&self, word: u128) -> Result<usize, u64> {
        match *self {
            Self::Fixed(size) => Ok(size),
            Self::Lip => match word as u8 & 3 {
                3 => Err(3),
                cnt => Ok(1 + 2 * (cnt as usize + 1)),
            },
        }
    }
}

/// How long the appended cycle count is.
fn cycles_len(
    mode: Mode,
    packet: &'static str,
    word: u128,
    base: usize,
    have: usize,
) -> Result<usize, DecodeError> {
    match mode {
        Mode::Plain => Ok(0),
        Mode::CycleAccurate if have == base => Err(DecodeError::truncated(have, base + 1)),
        Mode::CycleAccurate => cycles::len((word >> (8 * base)) as u8)
            .ok_or_else(|| DecodeError::reserved(packet, "cycles", 0, base)),
    }
}

/// The six results of a full TNT packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FullTnt(u8);

impl FullTnt {
    /// The results, oldest first.
    #[must_use]
    pub fn new(results: [bool; 6]) -> Self {
        Self(
            results
                .iter()
                .fold(0, |bits, taken| bits << 1 | u8::from(*taken)),
        )
    }
    /// The results as any TNT's.
    #[must_use]
    pub const fn tnt(self) -> Tnt<6> {
        Tnt::from_stopped(1 << 6 | self.0 as u64)
    }
}

impl TryFrom<Tnt<6>> for FullTnt {
    type Error = Tnt<6>;
    /// A TNT of six results; any other comes back.
    fn try_from(tnt: Tnt<6>) -> Result<Self, Tnt<6>> {
        if tnt.is_full() {
            Ok(Self(tnt.bits() as u8))
        } else {
            Err(tnt)
        }
    }
}

impl Printed for FullTnt {
    fn value(self) -> Value {
        self.tnt().value()
    }
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
        let mut ahead = *operands;
        let tnt = Tnt::<6>::parse(key, operands)?;
        match Self::try_from(tnt) {
            Ok(full) => Ok(full),
            Err(_) => Err(TextError::range(ahead.take(key)?, key)),
        }
    }
}

impl Field for FullTnt {
    fn from_bits(bits: u128) -> Option<Self> {
        Some(Self(bits as u8 & 0x3f))
    }
    fn to_bits(self) -> u128 {
        self.0.into()
    }
}

/// The actual core/bus ratio of an STS packet: bits 5:2 in bits 3:0 of the first byte, bits 1:0 in bits 7:6 of the second.
enum Acbr {}

impl Codec<Uint<6>> for Acbr {
    fn from_bits(bits: u128) -> Option<Uint<6>> {
        Some(Uint::truncate(
            (bits as u64 & 0xf) << 2 | bits as u64 >> 14 & 3,
        ))
    }
    fn to_bits(ratio: Uint<6>) -> u128 {
        (ratio.get() >> 2 | (ratio.get() & 3) << 14).into()
    }
    fn visit(ratio: Uint<6>, key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        ratio.visit(key, f);
    }
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Uint<6>, TextError> {
        Printed::parse(key, operands)
    }
}

packets! {
    /// A packet of RTIT.
    ///
    /// An illegal state cannot be written: a partial TNT has no cycle count, a full one has six results. Whether a packet
    /// that can have a cycle count has one is the stream's [`Mode`].
    context Mode, size Size, tail cycles_len, never Psb;

    /// Packet stream boundary.
    Psb "psb" "4.2.1" [0xc0, 0, 0, 0, 0, 0, 0, 0, 0] Size::Fixed(9);
    /// Tracing stopped on entry to a TraceStop range.
    TraceStop "tracestop" "4.2.11" [0xc1] Size::Fixed(1);
    /// Up to 5 taken/not-taken results, sent because another packet follows.
    TntPartial "tnt" "4.2.2" [0x00 / 0xc0] Size::Fixed(1), {
        /// The results, oldest first.
        bits "bits": Tnt<5> = 0..6
    };
    /// 6 taken/not-taken results.
    Tnt "tnt" "4.2.2" [0x40 / 0xc0] Size::Fixed(1), {
        /// The results, oldest first.
        bits "bits": FullTnt = 0..6;
        /// Core clocks since the last cycle count.
        cycles "cycles": Option<CycleCount>
    };
    /// Target of an indirect branch, uncompressed return or far transfer.
    Tip "tip" "4.2.3" [0xb0 / 0xf8] Size::Lip, {
        /// The target.
        ip "ip": LipPayload = 0..56;
        /// Core clocks since the last cycle count.
        cycles "cycles": Option<CycleCount>
    };
    /// PacketEn became 1: tracing begins at this IP.
    FupPge "fup.pge" "4.2.7" [0x80 / 0xf8] Size::Lip, {
        /// Where tracing begins.
        ip "ip": LipPayload = 0..56;
        /// Core clocks since the last cycle count.
        cycles "cycles": Option<CycleCount>
    };
    /// PacketEn became 0.
    FupPgd "fup.pgd" "4.2.8" [0x88 / 0xf8] Size::Lip, {
        /// The next IP of the instruction that did it.
        ip "ip": LipPayload = 0..56;
        /// Core clocks since the last cycle count.
        cycles "cycles": Option<CycleCount>
    };
    /// A buffer overflow is over: packets were lost before this point.
    FupOvf "fup.ovf" "4.2.5" [0x90 / 0xf8] Size::Lip, {
        /// Where tracing goes on.
        ip "ip": LipPayload = 0..56;
        /// Core clocks since the last cycle count.
        cycles "cycles": Option<CycleCount>
    };
    /// Periodic cycle count: the counter is half full.
    FupPcc "fup.pcc" "4.2.6" [0x98 / 0xf8] Size::Lip, {
        /// The next IP.
        ip "ip": LipPayload = 0..56;
        /// Core clocks since the last cycle count.
        cycles "cycles": Option<CycleCount>
    };
    /// Far transfer: where it came from.
    FupFar "fup.far" "4.2.9" [0xb8 / 0xf8] Size::Lip, {
        /// The source.
        ip "ip": LipPayload = 0..56;
        /// Core clocks since the last cycle count.
        cycles "cycles": Option<CycleCount>
    };
    /// CR3 or CR0.PG was written.
    Pip "pip" "4.2.10" [0xc2 / 0xfe] Size::Fixed(6), {
        /// Bits 39:0 of CR3.
        cr3 "cr3": Hex<40> = 8..48,
        /// CR0.PG.
        pg "pg": bool = 0..1;
        /// Core clocks since the last cycle count.
        cycles "cycles": Option<CycleCount>
    };
    /// Mini time counter.
    Mtc "mtc" "4.2.12" [0xc4 / 0xfc] Size::Fixed(2), {
        /// RTIT_CTL.MTC_Range: the payload is the hardware TSC from bit 7 + 2 × range on.
        range "range": Uint<2> = 0..2,
        /// Eight bits of the hardware TSC.
        tsc "tsc": u8 = 8..16;
        /// Core clocks since the last cycle count.
        cycles "cycles": Option<CycleCount>
    };
    /// Super time sync.
    Sts "sts" "4.2.13" [0xd0 / 0xf0] Size::Fixed(7), {
        /// Actual core/bus ratio.
        acbr "acbr": Uint<6> = 0..16 via Acbr,
        /// Effective core/bus ratio.
        ecbr "ecbr": Uint<6> = 8..14,
        /// The hardware TSC's lower 40 bits.
        tsc "tsc": Uint<40> = 16..56;
        /// Core clocks since the last cycle count.
        cycles "cycles": Option<CycleCount>
    };
}

/// Row by first byte.
static FIRST: [u8; 256] = first_table(ROWS, usize::MAX);

/// Decodes the packet at the start of `bytes`.
///
/// ```
/// use cofi_packet::rtit::{Mode, decode};
///
/// let bytes = [0x4d, 0x15]; // TNT NNTTNT, and a cycle count in one byte
/// let raw = decode(Mode::CycleAccurate, &bytes).unwrap();
/// assert_eq!(raw.packet().to_string(), "tnt bits=NNTTNT cycles=5");
/// assert_eq!(decode(Mode::Plain, &bytes).unwrap().packet().to_string(), "tnt NNTTNT");
/// ```
///
/// # Errors
/// A [`DecodeError`] when the bytes end inside the packet, form none, or hold a reserved encoding.
pub fn decode(mode: Mode, bytes: &[u8]) -> Result<Raw<Kind>, DecodeError> {
    let Some(&first) = bytes.first() else {
        return Err(DecodeError::truncated(0, 1));
    };
    let word = load(bytes);
    let row = FIRST[usize::from(first)];
    if row == NONE {
        return Err(DecodeError::unknown(word));
    }
    let kind = KINDS[usize::from(row)];
    // A PSB has constant bytes after the first.
    let head = ROWS[usize::from(row)];
    let there = crate::word::first_bytes(u128::MAX, bytes.len());
    if (word ^ head.value) & head.mask & there != 0 {
        return Err(DecodeError::unknown(word));
    }
    let size = Packet::measure(kind, word, bytes.len(), mode)?;
    Ok(Raw::new(kind, word, size))
}

/// Decodes a TNT, or an MTC, at the start of `bytes` if it is one without a cycle count: nearly all packets are.
#[inline(always)]
pub(super) fn decode_short(mode: Mode, bytes: &[u8]) -> Option<Raw<Kind>> {
    let bytes = bytes.first_chunk()?;
    let (first, word) = (bytes[0], u128::from_le_bytes(*bytes));
    match (first, mode) {
        (0x02..=0x3f, _) => Some(Raw::new(Kind::TntPartial, word, 1)),
        (0x40..=0x7f, Mode::Plain) => Some(Raw::new(Kind::Tnt, word, 1)),
        (0xc4..=0xc7, Mode::Plain) => Some(Raw::new(Kind::Mtc, word, 2)),
        _ => None,
    }
}
