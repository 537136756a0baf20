//! Packets of RTIT as text.

use cofi_packet::Ip;
use cofi_packet::rtit::{
    CycleCount, FullTnt, Hex, Kind, LastLip, LipBytes, LipPayload, Packet, Tnt, Uint,
};

use super::hex;

/// Packets as words: `psb`, `tnt:TNT`, `tip:1000`, `pge:`, `pgd:`, `far:`, `ovf:`, `pcc:`, `pip:CR3`, `pip.off:CR3` (CR0.PG clear),
/// `mtc:RANGE.TSC`, `sts:TSC`, `stop`, `bad`. Numbers are hexadecimal.
///
/// Addresses are written as short as the spec says. `psb.late` is a PSB behind which they still match older ones; `tip:~1000` has only the
/// low 16 bits. `/5` behind a word is its cycle count.
pub(crate) fn rtit_packets(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut last = LastLip::new();
    for word in text.split_whitespace() {
        let (word, count) = match word.split_once('/') {
            Some((word, count)) => (word, Some(hex(count) as u32)),
            None => (word, None),
        };
        let cycles = count.map(|count| CycleCount::new(count).expect("22 bits"));
        let (name, field) = word.split_once(':').unwrap_or((word, ""));
        let number = || hex(field);
        let lip = |kind, last: &mut LastLip| {
            let payload = match field.strip_prefix('~') {
                Some(low) => LipPayload::truncate(LipBytes::Update16, hex(low)),
                None => last.compress(Ip(number())).expect("48 bits"),
            };
            Packet::with_lip(kind, payload, cycles).expect("an address")
        };
        let packet = match name {
            "psb" => {
                last.reset();
                Packet::Psb
            }
            "psb.late" => Packet::Psb,
            "stop" => Packet::TraceStop,
            "tnt" => {
                let bits: Vec<bool> = field.chars().map(|bit| bit == 'T').collect();
                match <[bool; 6]>::try_from(&bits[..]) {
                    Ok(bits) => Packet::Tnt {
                        bits: FullTnt::new(bits),
                        cycles,
                    },
                    Err(_) => Packet::TntPartial {
                        bits: Tnt::collect(bits).expect("up to five"),
                    },
                }
            }
            "tip" => lip(Kind::Tip, &mut last),
            "pge" => lip(Kind::FupPge, &mut last),
            "pgd" => lip(Kind::FupPgd, &mut last),
            "far" => lip(Kind::FupFar, &mut last),
            "pcc" => lip(Kind::FupPcc, &mut last),
            "ovf" => {
                last.reset();
                let packet = lip(Kind::FupOvf, &mut last);
                last.reset();
                packet
            }
            "pip" | "pip.off" => Packet::Pip {
                cr3: Hex::new(number()).expect("40 bits"),
                pg: name == "pip",
                cycles,
            },
            "mtc" => {
                let (range, tsc) = field.split_once('.').expect("RANGE.TSC");
                Packet::Mtc {
                    range: Uint::truncate(hex(range)),
                    tsc: hex(tsc) as u8,
                    cycles,
                }
            }
            "sts" => Packet::Sts {
                acbr: Uint::truncate(16),
                ecbr: Uint::truncate(16),
                tsc: Uint::truncate(number()),
                cycles,
            },
            "zeros" => {
                bytes.extend([0; 20]);
                continue;
            }
            "bad" => {
                bytes.push(0xe0);
                continue;
            }
            _ => panic!("no packet: {word:?}"),
        };
        let raw = packet.encode();
        bytes.extend(&raw.bytes()[..raw.len()]);
    }
    bytes
}
