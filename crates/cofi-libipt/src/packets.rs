//! The packet level: `struct pt_packet`, and bytes to packets as libipt reads them.

use std::ffi::c_int;

use cofi_packet::DecodeError;
use cofi_packet::intel::{Kind, PSB, decode};

use crate::boundary::Context;
use crate::config::Config;
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

/// A packet as it stands in the stream: what it is, how long, and its bytes as a little-endian word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) kind: Kind,
    pub(crate) len: usize,
    pub(crate) word: u128,
}

/// What stands at some place.
pub(crate) enum Found {
    /// A packet.
    Packet(Packet),
    /// So many bytes that the caller's function knows.
    Unknown(UnknownPacket, usize),
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
    let packet = Packet {
        kind: raw.kind(),
        len: raw.len(),
        word: raw.word(),
    };
    let refused = match packet.kind {
        Kind::Tma => (packet.word >> 32) as u8 != 0 || (packet.word >> 49) as u8 & 0x7f != 0,
        Kind::Cyc => packet.len > LONGEST_CYC,
        _ => false,
    };
    if refused {
        return Err(Error::BadPacket);
    }
    Ok(packet)
}

/// A MODE packet, of which bits that say nothing sensible are left to who reads them.
fn mode(bits: u8) -> Result<Packet, Error> {
    let kind = match bits & 0xe0 {
        0 => Kind::ModeExec,
        0x20 => Kind::ModeTsx,
        _ => return Err(Error::BadPacket),
    };
    Ok(Packet {
        kind,
        len: 2,
        word: 0x99 | u128::from(bits) << 8,
    })
}

/// As [`read`] at an offset; what is unknown is shown to the caller's function, if there is one.
pub(crate) fn read_at(config: &Config, at: usize) -> Result<Found, Error> {
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
        (Err(error), _) => Err(error),
    }
}

/// Payload bits by IPBytes.
const IP_BITS: [u32; 8] = [0, 16, 32, 48, 48, 0, 64, 0];

impl Packet {
    /// IPBytes and payload of a packet with an address.
    #[inline]
    pub(crate) fn ip(&self) -> (u8, u64) {
        let code = self.word as u8 >> 5;
        let bits = IP_BITS[usize::from(code)];
        let mask = ((1_u128 << bits) - 1) as u64;
        (code, (self.word >> 8) as u64 & mask)
    }

    /// How many TNT results there are, and the results, the oldest in the highest of so many bits.
    #[inline]
    pub(crate) fn tnt(&self) -> (u8, u64) {
        let stopped = match self.kind {
            Kind::Tnt8 => self.word as u64 >> 1 & 0x7f,
            _ => (self.word >> 16) as u64,
        };
        let len = 63_u32.saturating_sub(stopped.leading_zeros());
        (len as u8, stopped & !(1 << len))
    }

    /// The count of a CYC.
    #[inline]
    pub(crate) fn cycles(&self) -> u64 {
        let mut count = u64::from(self.word as u8 >> 3);
        for at in 1..self.len {
            let bits = (self.word >> (8 * at + 1)) as u64 & 0x7f;
            count |= bits << (7 * at - 2);
        }
        count
    }
}

impl CPacket {
    /// The packet in C.
    pub(crate) fn of(packet: &Packet) -> Self {
        let word = packet.word;
        let (low, high) = (word as u64, (word >> 64) as u64);
        let pair = |(first, second): (u8, u64)| [first.into(), second];
        let (kind, payload) = match packet.kind {
            Kind::Pad => (ppt::PAD, [0; 2]),
            Kind::Tnt8 => (ppt::TNT_8, pair(packet.tnt())),
            Kind::Tnt64 => (ppt::TNT_64, pair(packet.tnt())),
            Kind::Tip => (ppt::TIP, pair(packet.ip())),
            Kind::TipPge => (ppt::TIP_PGE, pair(packet.ip())),
            Kind::TipPgd => (ppt::TIP_PGD, pair(packet.ip())),
            Kind::Fup => (ppt::FUP, pair(packet.ip())),
            Kind::Pip => (ppt::PIP, [cr3(low), low >> 16 & 1]),
            Kind::ModeExec => (ppt::MODE, [(low >> 8 & 3) << 32, 0]),
            Kind::ModeTsx => (ppt::MODE, [0x20 | (low >> 8 & 3) << 32, 0]),
            Kind::TraceStop => (ppt::STOP, [0; 2]),
            Kind::Cbr => (ppt::CBR, [low >> 16 & 0xff, 0]),
            Kind::Tsc => (ppt::TSC, [low >> 8, 0]),
            Kind::Mtc => (ppt::MTC, [low >> 8 & 0xff, 0]),
            Kind::Tma => {
                let (ctc, fast) = tma(low);
                (ppt::TMA, [u64::from(ctc) | u64::from(fast) << 16, 0])
            }
            Kind::Cyc => (ppt::CYC, [packet.cycles(), 0]),
            Kind::Vmcs => (ppt::VMCS, [vmcs_base(low), 0]),
            Kind::Ovf => (ppt::OVF, [0; 2]),
            Kind::Psb => (ppt::PSB, [0; 2]),
            Kind::PsbEnd => (ppt::PSBEND, [0; 2]),
            Kind::Mnt => (ppt::MNT, [(word >> 24) as u64, 0]),
            Kind::Ptw => (
                ppt::PTW,
                [ptw_payload(word), (low >> 13 & 3) | (low >> 15 & 1) << 8],
            ),
            Kind::ExStop => (ppt::EXSTOP, [low >> 15 & 1, 0]),
            Kind::Mwait => (ppt::MWAIT, [low >> 16 | high << 48, 0]),
            Kind::Pwre => (ppt::PWRE, [pwre(low), 0]),
            Kind::Pwrx => (ppt::PWRX, [pwrx(low), 0]),
            // `read` gives none of the others.
            _ => (0, [0; 2]),
        };
        Self {
            kind,
            size: packet.len as u8,
            payload,
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

/// CR3 of a PIP.
pub(crate) fn cr3(word: u64) -> u64 {
    word >> 17 << 5
}

/// The base of a VMCS packet.
pub(crate) fn vmcs_base(word: u64) -> u64 {
    (word >> 16 & 0xff_ffff_ffff) << 12
}

/// The crystal clock's and the fast counter's value of a TMA.
pub(crate) fn tma(word: u64) -> (u16, u16) {
    ((word >> 16) as u16, (word >> 40 & 0x1ff) as u16)
}

/// The payload of a PTW.
pub(crate) fn ptw_payload(word: u128) -> u64 {
    let payload = (word >> 16) as u64;
    if word >> 13 & 3 == 0 {
        payload & 0xffff_ffff
    } else {
        payload
    }
}

/// The fields of `struct pt_packet_pwre`: the state, the sub-state, whether hardware began it. That flag is bit 3 of byte 2 to libipt, and bit 7 in
/// Table 33-43; programs see what libipt shows them.
pub(crate) fn pwre(word: u64) -> u64 {
    (word >> 28 & 0xf) | (word >> 24 & 0xf) << 8 | (word >> 19 & 1) << 16
}

/// The fields of `struct pt_packet_pwrx`: last and deepest state, and the reasons to wake, of which the structure has three.
pub(crate) fn pwrx(word: u64) -> u64 {
    let wake = word >> 24;
    let flags = (wake & 1) | (wake >> 1 & 0b110);
    (word >> 20 & 0xf) | (word >> 16 & 0xf) << 8 | flags << 16
}

/// Length of a packet as functions return it.
pub(crate) fn length(len: usize) -> c_int {
    c_int::try_from(len).unwrap_or(c_int::MAX)
}
