//! `struct pt_packet` to bytes, by the table of packets; and what libipt writes that is no packet of the table.

use cofi_packet::intel::{
    CState, Cr3, IpBytes, IpPayload, ItemSize, Packet, Payload, TsxState, VmcsBase, WakeReason,
};
use cofi_packet::{ExecMode, Hex64, Tnt, Uint};

use crate::error::Error;
use crate::packets::{CPacket, ppt};

/// The packet as a little-endian word, and its length.
pub(crate) fn encode(packet: &CPacket) -> Result<(u128, usize), Error> {
    let [first, second] = packet.payload;
    // Bits that the table does not have, or not in any combination: (which, and from where on in the packet).
    let mut more = (0, 0);
    let nibble = |from: u32| (first >> from) as u8 & 0xf;
    let state = |from| CState::new(nibble(from)).ok_or(Error::BadPacket);
    let encoded = match packet.kind {
        ppt::PAD => Packet::Pad,
        ppt::PSB => Packet::Psb,
        ppt::PSBEND => Packet::PsbEnd,
        ppt::STOP => Packet::TraceStop,
        ppt::OVF => Packet::Ovf,
        ppt::FUP => Packet::Fup { ip: ip(packet)? },
        ppt::TIP => Packet::Tip { ip: ip(packet)? },
        ppt::TIP_PGE => Packet::TipPge { ip: ip(packet)? },
        ppt::TIP_PGD => Packet::TipPgd { ip: ip(packet)? },
        ppt::TNT_8 => return tnt_8(packet),
        ppt::TNT_64 => return tnt_64(packet),
        ppt::MODE => {
            // Both bits may be set: that says nothing, and is written.
            more = (u128::from(first >> 32 & 3), 8);
            match first as u32 {
                0 => Packet::ModeExec {
                    mode: ExecMode::Bits16,
                    interrupt_flag: false,
                },
                0x20 => Packet::ModeTsx {
                    tx: TsxState::NotInTx,
                },
                _ => return Err(Error::BadPacket),
            }
        }
        ppt::PIP => Packet::Pip {
            cr3: Cr3::truncate(first),
            nr: second & 1 != 0,
        },
        ppt::VMCS => Packet::Vmcs {
            base: VmcsBase::truncate(first),
        },
        ppt::CBR => Packet::Cbr { ratio: first as u8 },
        ppt::TSC => Packet::Tsc {
            tsc: Uint::truncate(first),
        },
        ppt::TMA => Packet::Tma {
            ctc: first as u16,
            fc: Uint::new(first >> 16 & 0xffff).ok_or(Error::BadPacket)?,
        },
        ppt::MTC => Packet::Mtc { ctc: first as u8 },
        ppt::CYC => Packet::Cyc { cycles: first },
        ppt::MNT => Packet::Mnt {
            payload: Hex64(first),
        },
        ppt::EXSTOP => Packet::ExStop { ip: first & 1 != 0 },
        ppt::MWAIT => {
            // Hints and extensions are of 32 bits each to libipt.
            more = (first.into(), 16);
            Packet::Mwait {
                hints: 0,
                ext: Uint::truncate(0),
            }
        }
        ppt::PWRE => {
            // The flag that Table 33-43 has in bit 7 of this byte.
            more = (u128::from(first >> 16 & 1), 19);
            Packet::Pwre {
                hw: false,
                state: state(0)?,
                sub_state: Uint::truncate(first >> 8),
            }
        }
        ppt::PWRX => {
            // The structure has three of the four reasons to wake.
            let wake = nibble(16) & 1 | (nibble(16) & 0b110) << 1;
            Packet::Pwrx {
                last: state(0)?,
                deepest: state(8)?,
                wake: WakeReason::new(wake).ok_or(Error::BadPacket)?,
            }
        }
        ppt::PTW => Packet::Ptw {
            payload: match second as u8 {
                0 => Payload::truncate(ItemSize::Four, first),
                1 => Payload::truncate(ItemSize::Eight, first),
                _ => return Err(Error::BadPacket),
            },
            ip: second >> 8 & 1 != 0,
        },
        _ => return Err(Error::BadOpcode),
    };
    let raw = encoded.encode();
    Ok((raw.word() | more.0 << more.1, raw.len()))
}

/// An address; of it, as many bytes as the compression says.
fn ip(packet: &CPacket) -> Result<IpPayload, Error> {
    let [compression, address] = packet.payload;
    let bytes = u8::try_from(compression as u32).ok().and_then(IpBytes::new);
    bytes
        .map(|bytes| IpPayload::truncate(bytes, address))
        .ok_or(Error::Invalid)
}

/// Up to six TNT results in a byte. Without one the byte is its stop bit, and results beyond their number run into it, as libipt writes both.
fn tnt_8(packet: &CPacket) -> Result<(u128, usize), Error> {
    let [len, bits] = packet.payload;
    let len = len as u8;
    if len > 6 {
        return Err(Error::BadPacket);
    }
    Ok((u128::from((bits as u8 | 1 << len) << 1), 1))
}

/// Up to 47 TNT results.
fn tnt_64(packet: &CPacket) -> Result<(u128, usize), Error> {
    let [len, bits] = packet.payload;
    let len = len as u8;
    if len > 47 || bits >> len != 0 {
        return Err(Error::Invalid);
    }
    // Without one there is the stop bit alone: one result that was not taken, and the stop bit one lower.
    let known = Tnt::from_bits(bits, len.max(1).into()).ok_or(Error::Invalid)?;
    let raw = Packet::Tnt64 { bits: known }.encode();
    let word = match len {
        0 => raw.word() ^ (0b11 << 16),
        _ => raw.word(),
    };
    Ok((word, raw.len()))
}
