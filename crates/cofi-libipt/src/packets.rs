//! The packet level: `struct pt_packet`, and bytes to packets as libipt reads them.

use std::ffi::c_int;

use cofi_packet::intel::{self, IpPayload, ItemSize, Kind, PSB, decode, decode_short};
use cofi_packet::{DecodeError, Raw};

use crate::boundary::Context;
use crate::config::{Config, Errata};
use crate::error::Error;

/// `struct pt_packet_unknown`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct UnknownPacket {
    pub(crate) packet: *const u8,
    pub(crate) private: Context,
}

/// `struct pt_packet`. The payload is two words, whose bytes mean what the type says.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CPacket {
    pub(crate) kind: u32,
    pub(crate) size: u8,
    pub(crate) payload: [u64; 2],
}

/// `enum pt_packet_type`.
pub(crate) mod ppt {
    pub(crate) const UNKNOWN: u32 = 1;
    pub(crate) const PAD: u32 = 2;
    pub(crate) const PSB: u32 = 3;
    pub(crate) const PSBEND: u32 = 4;
    pub(crate) const FUP: u32 = 5;
    pub(crate) const TIP: u32 = 6;
    pub(crate) const TIP_PGE: u32 = 7;
    pub(crate) const TIP_PGD: u32 = 8;
    pub(crate) const TNT_8: u32 = 9;
    pub(crate) const TNT_64: u32 = 10;
    pub(crate) const MODE: u32 = 11;
    pub(crate) const PIP: u32 = 12;
    pub(crate) const VMCS: u32 = 13;
    pub(crate) const CBR: u32 = 14;
    pub(crate) const TSC: u32 = 15;
    pub(crate) const TMA: u32 = 16;
    pub(crate) const MTC: u32 = 17;
    pub(crate) const CYC: u32 = 18;
    pub(crate) const STOP: u32 = 19;
    pub(crate) const OVF: u32 = 20;
    pub(crate) const MNT: u32 = 21;
    pub(crate) const EXSTOP: u32 = 22;
    pub(crate) const MWAIT: u32 = 23;
    pub(crate) const PWRE: u32 = 24;
    pub(crate) const PWRX: u32 = 25;
    pub(crate) const PTW: u32 = 26;
}

/// The longest CYC that libipt reads.
const LONGEST_CYC: usize = 9;
/// SKZ84: a TMA, and a byte that means nothing.
const SPOILT_TMA: usize = 8;

/// A packet as it stands in the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) kind: Kind,
    len: u8,
    payload: [u64; 2],
}

/// What stands at some place.
pub(crate) enum Found {
    /// A packet.
    Packet(Packet),
    /// So many bytes that the caller's function knows.
    Unknown(UnknownPacket, usize),
    /// So many bytes that an erratum has spoilt.
    Spoilt(usize),
}

/// The packet at the start of `bytes`, as libipt delimits packets.
///
/// It differs from Cofi's own reading in what 33.4.2 leaves to the reader: reserved bits of TMA are corruption, a CYC of ten bytes is refused, MODE bits
/// that the manual calls N/A are not, packets that came after libipt 2.0.5 are unknown, and a PSB inside of a packet is part of it.
pub(crate) fn read(bytes: &[u8]) -> Result<Packet, Error> {
    let raw = match (bytes, decode(bytes)) {
        ([], _) => return Err(Error::End),
        ([0x99, bits, ..], _) => return mode(*bits),
        // BBP, BEP, CFE, EVD, TRIG.
        ([0x02, 0x63 | 0x33 | 0xb3 | 0x13 | 0x53, ..] | [0xd9, ..], _) => {
            return Err(Error::BadOpcode);
        }
        ([0x02, 0x82, ..], found) => {
            if bytes.len() < PSB.len() {
                return Err(Error::End);
            }
            found.map_err(|_| Error::BadPacket)?
        }
        (_, Ok(raw)) => raw,
        (_, Err(DecodeError::Cut { need, .. })) => {
            let whole = bytes.get(..usize::from(need)).unwrap_or(bytes);
            decode(whole).map_err(|_| Error::BadPacket)?
        }
        (_, Err(DecodeError::Truncated { .. })) => return Err(Error::End),
        (_, Err(DecodeError::Unknown { .. })) => return Err(Error::BadOpcode),
        (_, Err(_)) => return Err(Error::BadPacket),
    };
    let refused = match raw.kind() {
        Kind::Tma => raw.reserved() != 0,
        Kind::Cyc => raw.len() > LONGEST_CYC,
        _ => false,
    };
    if refused {
        return Err(Error::BadPacket);
    }
    Ok(Packet::new(&raw, 0))
}

/// As [`read`], of most packets with an address or the time, sooner; none of others, and where the stream ends soon.
#[inline(always)]
pub(crate) fn read_short(bytes: &[u8]) -> Option<Packet> {
    let raw = decode_short(bytes)?;
    // (In an arm of its own the kind is known when this is compiled.)
    match raw.kind() {
        Kind::Tip => Some(Packet::new(&raw, 0)),
        Kind::TipPge => Some(Packet::new(&raw, 0)),
        Kind::TipPgd => Some(Packet::new(&raw, 0)),
        Kind::Fup => Some(Packet::new(&raw, 0)),
        Kind::Mtc => Some(Packet::new(&raw, 0)),
        Kind::Tsc => Some(Packet::new(&raw, 0)),
        Kind::Cyc if raw.len() <= LONGEST_CYC => Some(Packet::new(&raw, 0)),
        _ => None,
    }
}

/// A MODE packet, of which bits that say nothing sensible are left to who reads them.
fn mode(bits: u8) -> Result<Packet, Error> {
    // With none of them set it is one of the table's.
    let raw = decode(&[0x99, bits & !3]).map_err(|_| Error::BadPacket)?;
    match raw.kind() {
        Kind::ModeExec | Kind::ModeTsx => Ok(Packet::new(&raw, bits & 3)),
        _ => Err(Error::BadPacket),
    }
}

/// As [`read`] at an offset; what is unknown is shown to the caller's function, if there is one.
#[inline]
pub(crate) fn read_at(config: &Config, at: usize) -> Result<Found, Error> {
    match read_short(config.bytes().get(at..).unwrap_or_default()) {
        Some(packet) => Ok(Found::Packet(packet)),
        None => read_any(config, at),
    }
}

#[inline(never)]
fn read_any(config: &Config, at: usize) -> Result<Found, Error> {
    let bytes = config.bytes().get(at..).unwrap_or_default();
    match (read(bytes), config.callback) {
        (Ok(packet), _) => Ok(Found::Packet(packet)),
        (Err(Error::BadOpcode), Some(callback)) => {
            let mut unknown = UnknownPacket {
                packet: bytes.as_ptr(),
                private: std::ptr::null_mut(),
            };
            // SAFETY: the function is the caller's, and gets what the header says: a packet to fill, the configuration, where it stands.
            let status = unsafe { callback(&mut unknown, config, bytes.as_ptr(), config.context) };
            match usize::try_from(status) {
                Err(_) => Err(Error::from_code(status)),
                // Who does not say how long it is must not keep the decoder where it is.
                Ok(0) => Ok(Found::Unknown(unknown, 1)),
                Ok(len) if len > bytes.len() => Err(Error::End),
                Ok(len) => Ok(Found::Unknown(unknown, len)),
            }
        }
        // A corrupted TMA, and the byte behind it.
        (Err(Error::BadPacket), _)
            if config.errata.has(Errata::SKZ84) && bytes.starts_with(&[0x02, 0x73]) =>
        {
            let len = SPOILT_TMA;
            if bytes.len() < len {
                return Err(Error::End);
            }
            Ok(Found::Spoilt(len))
        }
        (Err(error), _) => Err(error),
    }
}

impl Default for Packet {
    /// Padding.
    fn default() -> Self {
        Self {
            kind: Kind::Pad,
            len: 1,
            payload: [0; 2],
        }
    }
}

impl Packet {
    /// The packet, as the table reads it; and of a MODE packet the lower two bits, which may be such as the table refuses.
    #[inline(always)]
    fn new(raw: &Raw<Kind>, mode: u8) -> Self {
        Self {
            kind: raw.kind(),
            len: raw.len() as u8,
            payload: Self::payload_of(raw, mode),
        }
    }

    /// How many bytes it has.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.into()
    }

    /// The fields of `struct pt_packet`'s payload: two words, of one packet the one, of another both.
    #[inline]
    pub(crate) fn payload(&self) -> [u64; 2] {
        self.payload
    }

    #[inline(always)]
    fn payload_of(raw: &Raw<Kind>, mode: u8) -> [u64; 2] {
        use intel::Packet as Typed;
        let address = |ip: IpPayload| [ip.ip_bytes() as u64, ip.payload()];
        match raw.packet() {
            Typed::Tnt8 { bits } => [bits.len() as u64, bits.bits()],
            Typed::Tnt64 { bits } => [bits.len() as u64, bits.bits()],
            Typed::Tip { ip } | Typed::TipPge { ip } | Typed::TipPgd { ip } | Typed::Fup { ip } => {
                address(ip)
            }
            Typed::Pip { cr3, nr } => [cr3.get(), nr.into()],
            Typed::ModeExec { .. } => [u64::from(mode) << 32, 0],
            Typed::ModeTsx { .. } => [0x20 | u64::from(mode) << 32, 0],
            Typed::Cbr { ratio } => [ratio.into(), 0],
            Typed::Tsc { tsc } => [tsc.get(), 0],
            Typed::Mtc { ctc } => [ctc.into(), 0],
            Typed::Tma { ctc, fc } => [u64::from(ctc) | fc.get() << 16, 0],
            Typed::Cyc { cycles } => [cycles, 0],
            Typed::Vmcs { base } => [base.get(), 0],
            Typed::Mnt { payload } => [payload.0, 0],
            Typed::Ptw { payload, ip } => {
                let code = u64::from(payload.size() == ItemSize::Eight);
                [payload.get(), code | u64::from(ip) << 8]
            }
            Typed::ExStop { ip } => [ip.into(), 0],
            // Hints and extensions are of 32 bits each to libipt, whatever the table says of them.
            Typed::Mwait { .. } => [(raw.word() >> 16) as u64, 0],
            Typed::Pwre {
                state, sub_state, ..
            } => {
                // The flag is bit 3 of byte 2 to libipt, and bit 7 in Table 33-43; programs see what libipt shows them.
                let hardware = (raw.word() >> 19) as u64 & 1;
                [
                    u64::from(state.get()) | sub_state.get() << 8 | hardware << 16,
                    0,
                ]
            }
            Typed::Pwrx {
                last,
                deepest,
                wake,
            } => {
                // The structure has three of the four reasons to wake.
                let wake = u64::from(wake.get());
                let flags = wake & 1 | wake >> 1 & 0b110;
                let states = u64::from(last.get()) | u64::from(deepest.get()) << 8;
                [states | flags << 16, 0]
            }
            _ => [0; 2],
        }
    }

    /// IPBytes and payload of a packet with an address.
    #[inline]
    pub(crate) fn ip(&self) -> (u8, u64) {
        let [code, bits] = self.payload();
        (code as u8, bits)
    }

    /// How many TNT results there are, and the results, the oldest in the highest of so many bits.
    #[inline]
    pub(crate) fn tnt(&self) -> (u8, u64) {
        let [len, bits] = self.payload();
        (len as u8, bits)
    }
}

impl CPacket {
    /// The packet in C.
    pub(crate) fn of(packet: &Packet) -> Self {
        let kind = match packet.kind {
            Kind::Pad => ppt::PAD,
            Kind::Tnt8 => ppt::TNT_8,
            Kind::Tnt64 => ppt::TNT_64,
            Kind::Tip => ppt::TIP,
            Kind::TipPge => ppt::TIP_PGE,
            Kind::TipPgd => ppt::TIP_PGD,
            Kind::Fup => ppt::FUP,
            Kind::Pip => ppt::PIP,
            Kind::ModeExec | Kind::ModeTsx => ppt::MODE,
            Kind::TraceStop => ppt::STOP,
            Kind::Cbr => ppt::CBR,
            Kind::Tsc => ppt::TSC,
            Kind::Mtc => ppt::MTC,
            Kind::Tma => ppt::TMA,
            Kind::Cyc => ppt::CYC,
            Kind::Vmcs => ppt::VMCS,
            Kind::Ovf => ppt::OVF,
            Kind::Psb => ppt::PSB,
            Kind::PsbEnd => ppt::PSBEND,
            Kind::Mnt => ppt::MNT,
            Kind::Ptw => ppt::PTW,
            Kind::ExStop => ppt::EXSTOP,
            Kind::Mwait => ppt::MWAIT,
            Kind::Pwre => ppt::PWRE,
            Kind::Pwrx => ppt::PWRX,
            // `read` gives none of the others.
            _ => 0,
        };
        Self {
            kind,
            size: packet.len() as u8,
            payload: packet.payload(),
        }
    }

    /// Bytes that an erratum has spoilt, which libipt shows as a packet of no type.
    pub(crate) fn spoilt(len: usize) -> Self {
        Self {
            kind: 0,
            size: len as u8,
            payload: [0; 2],
        }
    }

    /// A packet that the caller's function read.
    pub(crate) fn unknown(packet: UnknownPacket, len: usize) -> Self {
        Self {
            kind: ppt::UNKNOWN,
            size: u8::try_from(len).unwrap_or(u8::MAX),
            payload: [
                packet.packet.expose_provenance() as u64,
                packet.private.expose_provenance() as u64,
            ],
        }
    }
}

/// Length of a packet as functions return it.
pub(crate) fn length(len: usize) -> c_int {
    c_int::try_from(len).unwrap_or(c_int::MAX)
}
