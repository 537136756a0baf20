//! `struct pt_packet` to bytes.

use cofi_packet::intel::{IpBytes, PSB};

use crate::error::Error;
use crate::packets::{CPacket, ppt};

/// The packet as a little-endian word, and its length.
pub(crate) fn encode(packet: &CPacket) -> Result<(u128, usize), Error> {
    let [first, second] = packet.payload;
    let long = |head: u16, payload: u128| u128::from(head) | payload << 16;
    Ok(match packet.kind {
        ppt::PAD => (0, 1),
        ppt::PSB => (u128::from_le_bytes(PSB), 16),
        ppt::PSBEND => (0x2302, 2),
        ppt::STOP => (0x8302, 2),
        ppt::OVF => (0xf302, 2),
        ppt::FUP => ip(0x1d, packet)?,
        ppt::TIP => ip(0x0d, packet)?,
        ppt::TIP_PGE => ip(0x11, packet)?,
        ppt::TIP_PGD => ip(0x01, packet)?,
        ppt::TNT_8 => (u128::from(stopped(packet, 6)?) << 1, 1),
        ppt::TNT_64 => (long(0xa302, stopped(packet, 47)?.into()), 8),
        ppt::MODE => {
            let bits = (first >> 32) as u8 & 3;
            match first as u32 {
                leaf @ (0 | 0x20) => (0x99 | u128::from(bits | leaf as u8) << 8, 2),
                _ => return Err(Error::BadPacket),
            }
        }
        ppt::PIP => {
            let payload = first >> 5 << 1 | second & 1;
            (long(0x4302, u128::from(payload & 0xffff_ffff_ffff)), 8)
        }
        ppt::VMCS => (long(0xc802, u128::from(first >> 12 & 0xff_ffff_ffff)), 7),
        ppt::CBR => (long(0x0302, u128::from(first & 0xff)), 4),
        ppt::TSC => (0x19 | u128::from(first & 0xff_ffff_ffff_ffff) << 8, 8),
        ppt::TMA => {
            let (ctc, fast) = (first & 0xffff, first >> 16 & 0xffff);
            if fast > 0x1ff {
                return Err(Error::BadPacket);
            }
            (long(0x7302, u128::from(ctc | fast << 24)), 7)
        }
        ppt::MTC => (0x59 | u128::from(first & 0xff) << 8, 2),
        ppt::CYC => cycles(first),
        ppt::MNT => (0x88_c302 | u128::from(first) << 24, 11),
        ppt::EXSTOP => (long(0x6202 | (first as u16 & 1) << 15, 0), 2),
        ppt::MWAIT => (long(0xc202, first.into()), 10),
        ppt::PWRE => {
            let (state, sub, hardware) = (first & 0xf, first >> 8 & 0xf, first >> 16 & 1);
            (
                long(0x2202, u128::from(hardware << 3 | (state << 4 | sub) << 8)),
                4,
            )
        }
        ppt::PWRX => {
            let (last, deepest, flags) = (first & 0xf, first >> 8 & 0xf, first >> 16 & 7);
            let wake = flags & 1 | (flags & 0b110) << 1;
            (long(0xa202, u128::from(last << 4 | deepest | wake << 8)), 7)
        }
        ppt::PTW => {
            let (code, ip) = (second as u8, second >> 8 & 1);
            let (payload, len) = match code {
                0 => (first & 0xffff_ffff, 6),
                1 => (first, 10),
                _ => return Err(Error::BadPacket),
            };
            let head = 0x1202 | u16::from(code) << 13 | (ip as u16) << 15;
            (long(head, payload.into()), len)
        }
        _ => return Err(Error::BadOpcode),
    })
}

/// A packet with an address; of it, as many bytes as the compression says.
fn ip(opcode: u8, packet: &CPacket) -> Result<(u128, usize), Error> {
    let [compression, address] = packet.payload;
    let bytes = u8::try_from(compression as u32)
        .ok()
        .and_then(IpBytes::new)
        .ok_or(Error::Invalid)?;
    let payload = u128::from(address & bytes.mask()) << 8;
    let head = u128::from(opcode | (bytes as u8) << 5);
    Ok((head | payload, 1 + bytes.payload_len()))
}

/// TNT results below their stop bit.
fn stopped(packet: &CPacket, most: u8) -> Result<u64, Error> {
    let [len, bits] = packet.payload;
    let len = len as u8;
    if len > most {
        return Err(Error::BadPacket);
    }
    Ok(bits & ((1 << len) - 1) | 1 << len)
}

/// A cycle count: five bits, then seven a byte.
fn cycles(count: u64) -> (u128, usize) {
    let mut rest = count >> 5;
    let mut word = u128::from(count & 0x1f) << 3 | 3 | u128::from(rest != 0) << 2;
    let mut len = 1;
    while rest != 0 {
        let byte = (rest & 0x7f) << 1;
        rest >>= 7;
        word |= u128::from(byte | u64::from(rest != 0)) << (8 * len);
        len += 1;
    }
    (word, len)
}
