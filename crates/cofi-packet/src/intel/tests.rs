//! Every packet: golden text, round trip, every truncation, reserved bits kept; and the stream iterator's promises.

use super::*;
use crate::{Ip, StreamOffset};
use proptest::prelude::*;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

/// One line a packet: its bytes, its text.
const GOLDEN: &str = "\
00 | pad
04 | tnt.8 bits=N
06 | tnt.8 bits=T
fe | tnt.8 bits=TTTTTT
aa | tnt.8 bits=NTNTNT
02 a3 02 00 00 00 00 00 | tnt.64 bits=N
02 a3 0d 00 00 00 00 00 | tnt.64 bits=TNT
02 a3 ff ff ff ff ff ff | tnt.64 bits=TTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTT
0d | tip ipc=0 ip=-
2d 34 12 | tip ipc=1 ip=0x1234
4d 78 56 34 12 | tip ipc=2 ip=0x12345678
6d 66 55 44 33 22 11 | tip ipc=3 ip=0x112233445566
8d 66 55 44 33 22 11 | tip ipc=4 ip=0x112233445566
cd 88 77 66 55 44 33 22 11 | tip ipc=6 ip=0x1122334455667788
31 34 12 | tip.pge ipc=1 ip=0x1234
01 | tip.pgd ipc=0 ip=-
dd 88 77 66 55 44 33 22 11 | fup ipc=6 ip=0x1122334455667788
02 43 01 78 56 34 12 00 | pip cr3=0x12345678000 nr=1
02 43 fe 00 00 00 00 00 | pip cr3=0xfe0 nr=0
99 01 | mode.exec mode=64 if=0
99 02 | mode.exec mode=32 if=0
99 04 | mode.exec mode=16 if=1
99 20 | mode.tsx intx=0 abort=0
99 21 | mode.tsx intx=1 abort=0
99 22 | mode.tsx intx=0 abort=1
02 83 | tracestop
02 03 14 00 | cbr ratio=20
19 07 06 05 04 03 02 01 | tsc tsc=283686952306183
59 42 | mtc ctc=66
02 73 34 12 00 ff 01 | tma ctc=4660 fc=511
03 | cyc cycles=0
fb | cyc cycles=31
07 02 | cyc cycles=32
ff fe | cyc cycles=4095
07 01 02 | cyc cycles=4096
02 c8 56 34 12 00 00 | vmcs base=0x123456000
02 f3 | ovf
02 82 02 82 02 82 02 82 02 82 02 82 02 82 02 82 | psb
02 23 | psbend
02 c3 88 08 07 06 05 04 03 02 01 | mnt payload=0x102030405060708
02 62 | exstop ip=0
02 e2 | exstop ip=1
02 c2 11 00 00 00 03 00 00 00 | mwait hints=17 ext=3
02 22 80 21 | pwre hw=1 state=2 sub_state=1
02 a2 21 04 00 00 00 | pwrx last=2 deepest=1 wake=4
02 13 81 0e | cfe ip=1 type=1 vector=14
02 53 00 08 07 06 05 04 03 02 01 | evd type=0 payload=0x102030405060708
";

fn golden() -> impl Iterator<Item = (Vec<u8>, &'static str)> {
    GOLDEN.lines().map(|line| {
        let (bytes, text) = line
            .split_once(" | ")
            .expect("a golden line has bytes and text");
        (
            bytes
                .split(' ')
                .map(|b| u8::from_str_radix(b, 16).expect("hexadecimal"))
                .collect(),
            text,
        )
    })
}

#[test]
fn golden_text_both_ways() {
    for (bytes, text) in golden() {
        let decoded = decode(&bytes).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(decoded.packet.to_string(), text);
        assert_eq!(decoded.raw.len(), bytes.len(), "{text}");
        let encoded = decoded.packet.encode();
        assert_eq!(&encoded.bytes()[..encoded.len()], &bytes[..], "{text}");
        assert_eq!(encoded, decoded.raw, "{text}");
    }
}

#[test]
fn every_kind_has_a_golden_line() {
    for kind in Kind::ALL {
        assert!(
            golden().any(|(_, text)| text.split(' ').next() == Some(kind.name())),
            "{kind:?}"
        );
        assert!(kind.section().starts_with("33.4.2."), "{kind:?}");
    }
}

#[test]
fn every_truncation_is_told_with_what_is_missing() {
    for (bytes, text) in golden() {
        for cut in 0..bytes.len() {
            match decode(&bytes[..cut]) {
                Err(DecodeError::Truncated { have, need }) => {
                    assert_eq!(usize::from(have), cut, "{text}");
                    assert!(
                        usize::from(need) > cut && usize::from(need) <= bytes.len(),
                        "{text}: {need}"
                    );
                }
                other => panic!("{text} cut to {cut}: {other:?}"),
            }
        }
    }
}

#[test]
fn reserved_encodings_are_refused_by_name() {
    let reserved = |bytes: &[u8]| decode(bytes).unwrap_err().to_string();
    assert_eq!(
        reserved(&[0xad, 0, 0, 0, 0, 0, 0, 0, 0]),
        "tip: size holds the reserved value 0x5"
    );
    assert_eq!(
        reserved(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0]),
        "fup: size holds the reserved value 0x7"
    );
    assert_eq!(
        reserved(&[0x99, 0x03]),
        "mode.exec: mode holds the reserved value 0x3"
    );
    assert_eq!(
        reserved(&[0x99, 0x23]),
        "mode.tsx: tx holds the reserved value 0x3"
    );
    assert_eq!(
        reserved(&[2, 0xa3, 1, 0, 0, 0, 0, 0]),
        "tnt.64: bits holds the reserved value 0x1"
    );
    assert_eq!(
        reserved(&[0x99, 0x40]),
        "no packet begins with the bytes 99 40"
    );
    assert_eq!(reserved(&[0x05]), "no packet begins with the bytes 05 00");
    assert_eq!(
        reserved(&[2, 0x82, 2, 0x83]),
        "no packet begins with the bytes 02 82"
    );
    // A count of more than 64 bits: ten bytes with a tenth that says too much, and eleven bytes.
    assert!(matches!(
        decode(&[7, 1, 1, 1, 1, 1, 1, 1, 1, 0xfe]),
        Err(DecodeError::Reserved { .. })
    ));
    assert!(matches!(
        decode(&[0xff; 16]),
        Err(DecodeError::Reserved { packet: "cyc", .. })
    ));
}

#[test]
fn last_ip_follows_table_33_18() {
    let mut writer = LastIp::new();
    let mut reader = LastIp::new();
    let expected = [
        (0x0000_0000_0000_1234, 1),
        (0x0000_0000_0040_1000, 2),
        (0x0000_7f12_3456_789a, 3),
        (0x0000_7f12_3456_0000, 1),
        (0x0000_7f12_9999_0000, 2),
        (0xffff_8000_0000_0000, 3),
        (0x1234_5678_9abc_def0, 6),
        (0x1234_0000_9abc_def0, 4),
        (0x0000_8000_0000_0000, 6),
    ];
    for (ip, ip_bytes) in expected {
        let payload = writer.compress(Ip(ip));
        assert_eq!(payload.ip_bytes(), ip_bytes, "{ip:#x}");
        assert_eq!(reader.apply(payload), Some(Ip(ip)));
    }
    assert_eq!(reader.apply(IpPayload::Suppressed), None);
    assert_eq!(
        reader, writer,
        "a suppressed payload leaves the Last IP alone"
    );
    reader.reset();
    assert_eq!(reader.apply(IpPayload::Update16(7)), Some(Ip(7)));
}

#[test]
fn a_long_run_of_psb_bytes_ends_at_its_last_full_psb() {
    let mut bytes = std::vec![0x82];
    bytes.extend([2, 0x82].repeat(11));
    bytes.extend([2, 0x23]);
    assert_eq!(find_psb(&bytes), Some(1 + 6));
    assert_eq!(sync_forward(&bytes, 8), None);
    assert_eq!(find_psb(&PSB[..15]), None);
}

#[test]
fn after_an_error_listing_goes_on_at_the_next_psb() {
    let mut bytes = std::vec![0x00, 0x05, 0x77, 0x00];
    bytes.extend(PSB);
    bytes.extend([2, 0x23, 0x19]);
    let items: Vec<_> = Packets::new(&bytes)
        .map(|i| {
            (
                i.offset.0,
                i.size,
                i.result.map_or_else(|e| e.to_string(), |p| p.to_string()),
            )
        })
        .collect();
    let expected: [(u64, usize, String); 5] = [
        (0, 1, "pad".into()),
        (1, 3, "no packet begins with the bytes 05 77".into()),
        (4, 16, "psb".into()),
        (20, 2, "psbend".into()),
        (22, 1, "the input ends inside a packet: 1 of 8 bytes".into()),
    ];
    assert_eq!(items, expected);
}

#[test]
fn tnt_holds_what_was_pushed_and_no_more() {
    let mut tnt = Tnt::<6>::new(true);
    for taken in [false, false, true, true, false] {
        assert!(tnt.push(taken));
    }
    assert!(tnt.is_full() && !tnt.push(true));
    assert_eq!(
        tnt.iter().collect::<Vec<_>>(),
        [true, false, false, true, true, false]
    );
    assert_eq!(
        (tnt.get(0), tnt.get(5), tnt.get(6)),
        (Some(true), Some(false), None)
    );
    assert_eq!(Tnt::<6>::collect([]), None);
    assert_eq!(Tnt::<6>::collect([true; 7]), None);
    assert_eq!(Tnt::<47>::collect([true; 47]).map(|t| t.len()), Some(47));
}

proptest! {
    /// Whatever decodes re-encodes: the typed packet to the same bytes less the reserved bits, the raw one to all.
    #[test]
    fn round_trip(first in prop_oneof![any::<u8>(), Just(2), Just(0x99)], rest in prop::array::uniform16(any::<u8>())) {
        let mut bytes = rest;
        bytes[0] = first;
        if let Ok(decoded) = decode(&bytes) {
            let size = decoded.raw.len();
            prop_assert_eq!(&decoded.raw.bytes()[..size], &bytes[..size]);
            let again = decoded.packet.encode();
            let clean = u128::from_le_bytes(decoded.raw.bytes()) & !decoded.raw.reserved();
            // A CYC may carry leading zeros; all else has one encoding only.
            if decoded.packet.kind() != Kind::Cyc {
                prop_assert_eq!(again.bytes(), clean.to_le_bytes());
            }
            prop_assert_eq!(decode(&again.bytes()).map(|d| d.packet), Ok(decoded.packet));
        }
    }

    #[test]
    fn every_cycle_count_round_trips(cycles: u64, shift in 0_u32..64) {
        let packet = Packet::Cyc { cycles: cycles >> shift };
        prop_assert_eq!(decode(&packet.encode().bytes()).map(|d| d.packet), Ok(packet));
    }

    #[test]
    fn ip_compression_is_lossless(ips in prop::collection::vec((any::<u64>(), 0_u32..64, any::<bool>()), 1..20)) {
        let (mut writer, mut reader) = (LastIp::new(), LastIp::new());
        for (ip, shift, high) in ips {
            let ip = Ip(if high { !(ip >> shift) } else { ip >> shift });
            let packet = Packet::Tip { ip: writer.compress(ip) };
            let Ok(Decoded { packet: Packet::Tip { ip: payload }, .. }) = decode(&packet.encode().bytes()) else {
                return Err(TestCaseError::fail(format!("{packet} does not decode")));
            };
            prop_assert_eq!(reader.apply(payload), Some(ip));
        }
    }

    #[test]
    fn items_tile_any_input(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(2), Just(0x82)], 0..400)) {
        let mut at = 0;
        for item in Packets::new(&bytes) {
            prop_assert_eq!(item.offset, StreamOffset(at as u64));
            prop_assert!(item.size > 0);
            at += item.size;
        }
        prop_assert_eq!(at, bytes.len());
    }
}
