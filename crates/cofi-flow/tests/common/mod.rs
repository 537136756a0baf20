//! Packets as text, and what comes of them as words.
#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) mod any;
mod rtit;
mod words;

#[allow(unused_imports, reason = "each test takes what it needs")]
pub(crate) use rtit::rtit_packets;
#[allow(unused_imports, reason = "each test takes what it needs")]
pub(crate) use words::{event_word, matches, told_word, word};

use cofi_packet::ExecMode;
use cofi_packet::intel::{
    BlockType, CState, CfeType, Cr3, EvdType, Hex64, IpPayload, ItemSize, Packet, Payload, Tnt,
    TsxState, U48, Uint, VmcsBase, WakeReason,
};

pub(crate) fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or_else(|_| panic!("no hexadecimal number: {text:?}"))
}

fn ip(text: &str) -> IpPayload {
    match text {
        "-" => IpPayload::SUPPRESSED,
        // Its low 16 bits.
        text if text.starts_with('~') => IpPayload::update16(hex(&text[1..]) as u16),
        text => IpPayload::sext48(U48::truncate(hex(text))),
    }
}

/// Packets as words: `psb`, `tnt:TNT`, `tip:1000`, `pgd:-`, … Numbers are hexadecimal.
pub(crate) fn packets(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.split_whitespace() {
        let (name, field) = word.split_once(':').unwrap_or((word, ""));
        let number = || hex(field);
        let packet = match name {
            "pad" => Packet::Pad,
            "psb" => Packet::Psb,
            "psbend" => Packet::PsbEnd,
            "ovf" => Packet::Ovf,
            "stop" => Packet::TraceStop,
            "tnt" if field.len() <= 6 => Packet::Tnt8 {
                bits: Tnt::collect(field.chars().map(|bit| bit == 'T')).unwrap(),
            },
            "tnt" => Packet::Tnt64 {
                bits: Tnt::collect(field.chars().map(|bit| bit == 'T')).unwrap(),
            },
            "tip" => Packet::Tip { ip: ip(field) },
            "pge" => Packet::TipPge { ip: ip(field) },
            "pgd" => Packet::TipPgd { ip: ip(field) },
            "fup" => Packet::Fup { ip: ip(field) },
            "pip" => Packet::Pip {
                cr3: Cr3::truncate(number()),
                nr: false,
            },
            "pip.nr" => Packet::Pip {
                cr3: Cr3::truncate(number()),
                nr: true,
            },
            "vmcs" => Packet::Vmcs {
                base: VmcsBase::truncate(number()),
            },
            "mode" => Packet::ModeExec {
                mode: match field {
                    "16" => ExecMode::Bits16,
                    "32" => ExecMode::Bits32,
                    _ => ExecMode::Bits64,
                },
                interrupt_flag: false,
            },
            "tsx" => Packet::ModeTsx {
                tx: match field {
                    "in" => TsxState::InTx,
                    "abort" => TsxState::Aborted,
                    _ => TsxState::NotInTx,
                },
            },
            "tsc" => Packet::Tsc {
                tsc: Uint::truncate(number()),
            },
            "tma" => Packet::Tma {
                ctc: number() as u16,
                fc: Uint::truncate(0),
            },
            "mtc" => Packet::Mtc {
                ctc: number() as u8,
            },
            "cyc" => Packet::Cyc { cycles: number() },
            "cbr" => Packet::Cbr {
                ratio: number() as u8,
            },
            "exstop" => Packet::ExStop { ip: field == "ip" },
            "mwait" => Packet::Mwait {
                hints: number() as u8,
                ext: Uint::truncate(0),
            },
            "pwre" => Packet::Pwre {
                hw: false,
                state: CState::new(number() as u8).expect("4 bits"),
                sub_state: Uint::truncate(0),
            },
            "pwrx" => Packet::Pwrx {
                last: CState::new(number() as u8).expect("4 bits"),
                deepest: CState::new(number() as u8).expect("4 bits"),
                wake: WakeReason::INTERRUPT,
            },
            "cfe" => Packet::Cfe {
                ip: false,
                kind: CfeType::new(number() as u8).expect("5 bits"),
                vector: 14,
            },
            "cfe.ip" => Packet::Cfe {
                ip: true,
                kind: CfeType::new(number() as u8).expect("5 bits"),
                vector: 14,
            },
            "evd" | "evd.1" | "evd.2" => Packet::Evd {
                kind: match name {
                    "evd.1" => EvdType::VMXQ,
                    "evd.2" => EvdType::VMXR,
                    _ => EvdType::PFA,
                },
                payload: Hex64(number()),
            },
            "ptw" | "ptw.ip" => Packet::Ptw {
                payload: Payload::Four(number() as u32),
                ip: word.starts_with("ptw.ip"),
            },
            "ptw.8" => Packet::Ptw {
                payload: Payload::Eight(number()),
                ip: false,
            },
            "bbp" => Packet::Bbp {
                size: ItemSize::Four,
                kind: BlockType::GPR,
            },
            "bip" => Packet::Bip {
                id: Uint::truncate(0),
                payload: Payload::Four(number() as u32),
            },
            "bep" => Packet::Bep { ip: field == "ip" },
            "trig.ip" => Packet::Trig {
                ip: true,
                mult: false,
                vector: 0,
                count: None,
            },
            "mnt" => Packet::Mnt {
                payload: Hex64(number()),
            },
            // An MNT of which the last bytes are lost.
            "cut" => {
                bytes.extend([0x02, 0xc3, 0x88, 1, 2, 3]);
                continue;
            }
            "bad" => {
                bytes.extend([0x02, 0xff]);
                continue;
            }
            _ => panic!("no packet: {word:?}"),
        };
        let raw = packet.encode();
        bytes.extend(&raw.bytes()[..raw.len()]);
    }
    bytes
}
