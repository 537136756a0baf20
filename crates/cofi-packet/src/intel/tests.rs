//! Intel PT: every packet's golden bytes and text; reserved encodings; blocks; last IP; stream boundaries.
//!
//! What holds for both formats is in `crate::tests`.

use super::*;
use crate::tests::{check_documentation, check_golden, golden};
use crate::{DecodeError, Format, Ip, Listing, StreamOffset};
use std::format;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

/// One line a packet: its bytes, as the manual's tables have them, and its text. `4:` and `8:` stand for an open block.
const GOLDEN: &str = "\
00 | pad
04 | tnt.8 N
06 | tnt.8 T
fe | tnt.8 TTTTTT
aa | tnt.8 NTNTNT
02 a3 02 00 00 00 00 00 | tnt.64 N
02 a3 0d 00 00 00 00 00 | tnt.64 TNT
02 a3 ff ff ff ff ff ff | tnt.64 TTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTT
0d | tip ipc=0 ip=-
2d 34 12 | tip ipc=1 ip=0x1234
4d 78 56 34 12 | tip ipc=2 ip=0x12345678
6d 66 55 44 33 22 11 | tip ipc=3 ip=0x112233445566
8d 66 55 44 33 22 11 | tip ipc=4 ip=0x112233445566
cd 88 77 66 55 44 33 22 11 | tip ipc=6 ip=0x1122334455667788
31 34 12 | tip.pge ipc=1 ip=0x1234
01 | tip.pgd ipc=0 ip=-
dd 88 77 66 55 44 33 22 11 | fup ipc=6 ip=0x1122334455667788
02 43 01 78 56 34 12 00 | pip 0x12345678000 nr=1
02 43 fe 00 00 00 00 00 | pip 0xfe0 nr=0
99 01 | mode.exec 64 if=0
99 02 | mode.exec 32 if=0
99 04 | mode.exec 16 if=1
99 20 | mode.tsx intx=0 abort=0
99 21 | mode.tsx intx=1 abort=0
99 22 | mode.tsx intx=0 abort=1
99 5f | mode leaf=2 bits=31
99 e0 | mode leaf=7 bits=0
02 83 | tracestop
02 03 14 00 | cbr 20
19 07 06 05 04 03 02 01 | tsc 283686952306183
59 42 | mtc 66
02 73 34 12 00 ff 01 | tma ctc=4660 fc=511
03 | cyc 0
fb | cyc 31
07 02 | cyc 32
ff fe | cyc 4095
07 01 02 | cyc 4096
ff ff ff ff ff ff ff ff ff 0e | cyc 18446744073709551615
02 c8 56 34 12 00 00 | vmcs 0x123456000
02 c8 ff ff ff ff ff | vmcs 0xffffffffff000
02 f3 | ovf
02 82 02 82 02 82 02 82 02 82 02 82 02 82 02 82 | psb
02 23 | psbend
02 c3 88 08 07 06 05 04 03 02 01 | mnt 0x102030405060708
02 12 78 56 34 12 | ptw size=4 payload=0x12345678 ip=0
02 b2 08 07 06 05 04 03 02 01 | ptw size=8 payload=0x102030405060708 ip=1
02 62 | exstop ip=0
02 e2 | exstop ip=1
02 c2 11 00 00 00 03 00 00 00 | mwait hints=17 ext=3
02 22 80 21 | pwre hw=1 state=C3 sub_state=1
02 22 00 f0 | pwre hw=0 state=C0 sub_state=0
02 a2 21 04 00 00 00 | pwrx last=C3 deepest=C2 wake=STORE
02 a2 00 03 00 00 00 | pwrx last=C1 deepest=C1 wake=3
02 63 01 | bbp size=8 type=GPR
02 63 90 | bbp size=4 type=XMM
02 63 1f | bbp size=8 type=31
4: 04 78 56 34 12 | bip id=0 payload=0x12345678
4: fc ff ff ff ff | bip id=31 payload=0xffffffff
8: 8c 08 07 06 05 04 03 02 01 | bip id=17 payload=0x102030405060708
8: 03 | cyc 0
8: 02 33 | bep ip=0
02 b3 | bep ip=1
02 13 81 0e | cfe ip=1 type=INTR vector=14
02 13 0b 00 | cfe ip=0 type=11 vector=0
02 13 0f 00 | cfe ip=0 type=SYSCALL vector=0
02 53 00 08 07 06 05 04 03 02 01 | evd type=PFA payload=0x102030405060708
02 53 3f 00 00 00 00 00 00 00 80 | evd type=63 payload=0x8000000000000000
d9 00 05 | trig ip=0 mult=0 vector=5
d9 e0 05 34 12 | trig ip=1 mult=1 vector=5 icnt=4660
";

fn context(word: &str) -> Block {
    match word {
        "4" => Block::Inside(ItemSize::Four),
        "8" => Block::Inside(ItemSize::Eight),
        _ => Block::Outside,
    }
}

#[test]
fn golden_packets() {
    check_golden::<IntelPt>(GOLDEN, context);
}

#[test]
fn the_documentation_tells_every_packet() {
    check_documentation::<IntelPt>(include_str!("packets.md"), |name| match name {
        "bip" => context("4"),
        _ => Block::Outside,
    });
}

#[test]
fn every_section_is_the_manuals_or_says_that_it_is_not() {
    for kind in Kind::ALL {
        let beyond = kind.section() == "beyond chapter 33";
        assert!(
            beyond == (*kind == Kind::Trig) && (beyond || kind.section().starts_with("33.4.2.")),
            "{kind:?}"
        );
    }
}

#[test]
fn reserved_bits_are_kept_and_told() {
    let reserved = [
        // Bits that are RSVD or 0 in the packet's table; 33.4.2 lets readers rely on neither.
        ("99 19", "mode.exec 64 if=0", 0x18 << 8),
        ("99 3d", "mode.tsx intx=1 abort=0", 0x1c << 8),
        ("02 03 14 ff", "cbr 20", 0xff << 24),
        ("02 73 00 00 ff 00 fe", "tma ctc=0 fc=0", 0xfe_00ff << 32),
        (
            "02 c2 00 ff ff ff fc ff ff ff",
            "mwait hints=0 ext=0",
            0x00ff_ffff_fcff_ffff << 24,
        ),
        ("02 22 7f 00", "pwre hw=0 state=C1 sub_state=0", 0x7f << 16),
        (
            "02 a2 00 f1 ff ff ff",
            "pwrx last=C1 deepest=C1 wake=INTERRUPT",
            0xffff_fff0 << 24,
        ),
        ("02 63 61", "bbp size=8 type=GPR", 0x60 << 16),
        ("02 13 61 00", "cfe ip=0 type=INTR vector=0", 0x60 << 16),
        (
            "02 53 c0 00 00 00 00 00 00 00 00",
            "evd type=PFA payload=0x0",
            0xc0 << 16,
        ),
        ("d9 1f 00", "trig ip=0 mult=0 vector=0", 0x1f << 8),
    ];
    for (bytes, text, bits) in reserved {
        let bytes = crate::tests::hex(bytes);
        let raw = decode(&bytes).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(raw.packet().to_string(), text);
        assert_eq!(raw.reserved(), bits, "{text}");
        assert_eq!(&raw.bytes()[..raw.len()], &bytes[..], "{text}");
        assert_eq!(raw.packet().encode().word(), raw.word() & !bits, "{text}");
    }
}

#[test]
fn reserved_encodings_are_refused_by_name() {
    let refused = |bytes: &[u8]| decode(bytes).unwrap_err().to_string();
    for ip_bytes in [5, 7] {
        for (head, name) in [
            (0x0d, "tip"),
            (0x11, "tip.pge"),
            (0x01, "tip.pgd"),
            (0x1d, "fup"),
        ] {
            // FUP's 110b, 1 1101b is no other packet's first byte; TIP.PGD's 101b neither.
            let bytes = [ip_bytes << 5 | head, 0, 0, 0, 0, 0, 0, 0, 0];
            let expected = format!("{name}: size holds the reserved value {ip_bytes:#x}");
            assert_eq!(refused(&bytes), expected);
        }
    }
    for (bytes, expected) in [
        (
            &[0x99, 0x03][..],
            "mode.exec: mode holds the reserved value 0x3",
        ),
        (&[0x99, 0x23], "mode.tsx: tx holds the reserved value 0x3"),
        (
            &[2, 0xa3, 1, 0, 0, 0, 0, 0],
            "tnt.64: bits holds the reserved value 0x1",
        ),
        (
            &[2, 0xa3, 0, 0, 0, 0, 0, 0],
            "tnt.64: bits holds the reserved value 0x0",
        ),
        (
            &[2, 0x52, 0, 0, 0, 0],
            "ptw: size holds the reserved value 0x2",
        ),
        (
            &[2, 0xf2, 0, 0, 0, 0],
            "ptw: size holds the reserved value 0x3",
        ),
        (&[0x05], "no packet begins with the bytes 05 00"),
        (&[0x05, 0x77], "no packet begins with the bytes 05 77"),
        (&[2, 0x82, 2, 0x83], "no packet begins with the bytes 02 82"),
        (&[2, 0xc3, 0x89], "no packet begins with the bytes 02 c3"),
        (&[2, 0x00], "no packet begins with the bytes 02 00"),
    ] {
        assert_eq!(refused(bytes), expected, "{bytes:02x?}");
    }
}

#[test]
fn a_cycle_count_has_64_bits_and_no_more() {
    // 5 + 7 × 8 = 61 bits in nine bytes: the tenth has room for three.
    let count = |last| decode(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, last]);
    assert_eq!(
        count(0x0e).map(|raw| raw.packet()),
        Ok(Packet::Cyc { cycles: u64::MAX })
    );
    assert!(matches!(
        count(0x10),
        Err(DecodeError::Reserved { packet: "cyc", .. })
    ));
    assert!(matches!(
        count(0x0f),
        Err(DecodeError::Reserved { packet: "cyc", .. })
    ));
    assert!(matches!(
        decode(&[0xff; 16]),
        Err(DecodeError::Reserved { packet: "cyc", .. })
    ));
    // Longer than it needs be.
    let raw = decode(&[0x07, 0x01, 0x00]).unwrap();
    assert_eq!((raw.packet(), raw.len()), (Packet::Cyc { cycles: 0 }, 3));
}

#[test]
fn first_bytes_that_begin_no_packet() {
    let mut none = Vec::new();
    for first in 0..=255_u8 {
        // Whatever follows: no second byte makes a packet of it.
        if (0..=255).all(|second| {
            matches!(
                decode(&[first, second, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
                Err(DecodeError::Unknown { .. })
            )
        }) {
            none.push(first);
        }
    }
    // Odd bytes that are no CYC (011b), no IP packet (table 33-17) and none of 19, 59, 99, D9.
    let expected: Vec<u8> = (0..=255_u8)
        .filter(|byte| byte % 4 == 1)
        .filter(|byte| !matches!(byte & 0x1f, 0x01 | 0x0d | 0x11 | 0x1d))
        .filter(|byte| !matches!(byte, 0x19 | 0x59 | 0x99 | 0xd9))
        .collect();
    assert_eq!(none, expected);
}

#[test]
fn last_ip_follows_table_33_18() {
    let (mut writer, mut reader) = (LastIp::new(), LastIp::new());
    let expected = [
        (0x0000_0000_0000_1234, IpBytes::Update16),
        (0x0000_0000_0040_1000, IpBytes::Update32),
        (0x0000_7f12_3456_789a, IpBytes::Sext48),
        (0x0000_7f12_3456_0000, IpBytes::Update16),
        (0x0000_7f12_9999_0000, IpBytes::Update32),
        (0xffff_8000_0000_0000, IpBytes::Sext48),
        (0x1234_5678_9abc_def0, IpBytes::Full),
        (0x1234_0000_9abc_def0, IpBytes::Update48),
        (0x0000_8000_0000_0000, IpBytes::Full),
    ];
    for (ip, bytes) in expected {
        let payload = writer.compress(Ip(ip));
        assert_eq!(payload.ip_bytes(), bytes, "{ip:#x}");
        assert_eq!(reader.apply(payload), Some(Ip(ip)));
    }
    assert_eq!(reader.apply(IpPayload::SUPPRESSED), None);
    assert_eq!(
        reader, writer,
        "a suppressed payload leaves the last IP alone"
    );
    reader.reset();
    assert_eq!(reader.apply(IpPayload::update16(7)), Some(Ip(7)));
    // As told: every encoding that a reader would read as the same address.
    let mut told = LastIp::new();
    assert_eq!(told.compress_as(Ip(0x1_0000), IpBytes::Update16), None);
    assert_eq!(told, LastIp::new());
    for bytes in [
        IpBytes::Update32,
        IpBytes::Sext48,
        IpBytes::Update48,
        IpBytes::Full,
    ] {
        let payload = LastIp::new().compress_as(Ip(0x1_0000), bytes).unwrap();
        assert_eq!((payload.ip_bytes(), payload.payload()), (bytes, 0x1_0000));
    }
}

fn items(bytes: &[u8]) -> Vec<(u64, usize, String)> {
    let mut listing = Listing::<IntelPt>::new();
    Packets::new(bytes)
        .map(|item| {
            let (offset, size) = crate::extent(&item);
            let text = match item {
                Ok(located) => listing.next(&located.raw).to_string(),
                Err(error) => error.error.to_string(),
            };
            (offset.0, size, text)
        })
        .collect()
}

#[test]
fn in_a_block_bytes_are_items_until_bep_bbp_or_ovf() {
    let block = [0x02, 0x63, 0x81, 0x14, 1, 0, 0, 0];
    for (end, after) in [(&[0x02, 0xb3][..], "bep ip=1"), (&[0x02, 0xf3], "ovf")] {
        let bytes = [&block, end, &[0x14]].concat();
        let texts: Vec<_> = items(&bytes).into_iter().map(|(_, _, text)| text).collect();
        assert_eq!(
            texts,
            [
                "bbp size=4 type=GPR",
                "bip id=2 payload=0x1",
                after,
                "tnt.8 NTN"
            ]
        );
    }
    // Another BBP begins a block of another size; timing packets may stand in it, and CFE and EVD.
    let bytes = [
        &block[..],
        &[
            0x02, 0x63, 0x04, 0x59, 0x01, 0x0c, 1, 0, 0, 0, 0, 0, 0, 0x80,
        ],
    ]
    .concat();
    let texts: Vec<_> = items(&bytes)
        .into_iter()
        .skip(2)
        .map(|(_, _, text)| text)
        .collect();
    assert_eq!(
        texts,
        [
            "bbp size=8 type=PEBS_BASIC",
            "mtc 1",
            "bip id=1 payload=0x8000000000000001"
        ]
    );
}

#[test]
fn what_table_33_15_forbids_in_a_block_is_told_and_read() {
    let forbidden = [
        "06",
        "02 a3 02 00 00 00 00 00",
        "2d 34 12",
        "31 34 12",
        "01",
        "99 01",
        "99 20",
        "02 43 00 00 00 00 00 00",
        "02 c8 00 00 00 00 00",
        "02 83",
        "02 82 02 82 02 82 02 82 02 82 02 82 02 82 02 82",
        "02 23",
        "02 12 00 00 00 00",
        "02 c2 00 00 00 00 00 00 00 00",
    ];
    let mut kinds = Vec::new();
    for bytes in forbidden {
        let bytes = crate::tests::hex(bytes);
        // After it the block is over: 14 is a TNT again.
        let stream = [&[0x02, 0x63, 0x81][..], &bytes, &[0x14]].concat();
        let mut packets = Packets::new(&stream).skip(1);
        let error = packets.next().unwrap().unwrap_err();
        let raw = error.packet.expect("the packet was read");
        assert_eq!((error.offset, error.size), (StreamOffset(3), bytes.len()));
        assert_eq!(&raw.bytes()[..raw.len()], &bytes[..]);
        assert_eq!(
            error.error,
            DecodeError::InBlock {
                packet: raw.kind().name()
            }
        );
        kinds.push(raw.kind());
        assert_eq!(
            packets.next().unwrap().unwrap().packet().to_string(),
            "tnt.8 NTN"
        );
    }
    let inside = Block::Inside(ItemSize::Four);
    for kind in Kind::ALL {
        let example = golden(GOLDEN)
            .filter_map(|(word, bytes, _)| decode_in(context(word), &bytes).ok())
            .find(|raw| raw.kind() == *kind)
            .expect("every kind has a golden line");
        let allowed = inside.after(&example.packet()).1;
        assert_eq!(allowed, !kinds.contains(kind), "{kind:?}");
        let misfit = <IntelPt as Format>::misfit(inside, &example.packet());
        assert_eq!(
            misfit.is_some(),
            !allowed || *kind == Kind::Bip && example.len() == 9,
            "{kind:?}"
        );
    }
}

#[test]
fn a_long_run_of_psb_bytes_ends_at_its_last_full_psb() {
    for before in 0..40 {
        for pairs in 8..30 {
            let mut bytes = std::vec![0x82; before];
            bytes.extend([2, 0x82].repeat(pairs));
            bytes.extend([2, 0x23]);
            let psb = before + 2 * (pairs - 8);
            assert_eq!(find_psb(&bytes), Some(psb), "{before} {pairs}");
            assert_eq!(sync_forward(&bytes, psb), Some(psb));
            assert_eq!(sync_forward(&bytes, psb + 1), None);
            assert_eq!(rfind_psb(&bytes), Some(psb));
            assert_eq!(sync_backward(&bytes, bytes.len()), Some(psb));
            assert_eq!(sync_backward(&bytes, psb + 1), Some(psb));
            assert_eq!(
                sync_backward(&bytes, psb),
                None,
                "nothing else in a run counts"
            );
        }
    }
    assert_eq!(find_psb(&PSB[..15]), None);
    assert_eq!(sync_backward(&PSB, 0), None);
    assert_eq!(sync_forward(&PSB, 17), None);
}

/// A PSB is unique in a stream (33.4.2.17), so a packet in which one begins has lost its end.
#[test]
fn a_packet_that_was_cut_does_not_swallow_the_next_psb() {
    let whole: &[&[u8]] = &[
        // MNT, TIP, FUP, TSC, TNT.64, MTC, a CYC of 3 bytes.
        &[0x02, 0xc3, 0x88, 8, 7, 6, 5, 4, 3, 2, 1],
        &[0xcd, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0x7d, 1, 2, 3, 4, 5, 6],
        &[0x19, 1, 2, 3, 4, 5, 6, 7],
        &[0x02, 0xa3, 1, 2, 3, 4, 5, 6],
        &[0x59, 0x11],
        &[0x07, 0x11, 0x10],
    ];
    for packet in whole {
        let kind = decode(packet).expect("a packet").kind().name();
        for have in 1..packet.len() {
            let mut bytes = vec![0x04];
            bytes.extend(&packet[..have]);
            bytes.extend(PSB);
            bytes.extend([0x02, 0x23, 0x0c]);
            let items: Vec<_> = Packets::new(&bytes).collect();
            let lost = items[1].expect_err("a packet without its end");
            assert_eq!(
                (lost.offset.0, lost.size),
                (1, have),
                "{kind} cut to {have}"
            );
            let names: Vec<_> = items[2..].iter().map(kind_of).collect();
            assert_eq!(
                names,
                [Some(Kind::Psb), Some(Kind::PsbEnd), Some(Kind::Tnt8)],
                "{kind} cut to {have}"
            );
            // Wherever the stream is cut into chunks.
            for at in 0..bytes.len() {
                let mut chunks = Chunks::new();
                let mut found: Vec<_> = chunks.feed(&bytes[..at]).collect();
                found.extend(chunks.feed(&bytes[at..]));
                found.extend(chunks.finish());
                assert_eq!(found, items, "{kind} cut to {have}, chunks at {at}");
            }
        }
    }
}

#[test]
fn a_packet_that_ends_like_a_psb_is_whole() {
    // Payloads that end with pairs, or the first half of one; then a PSB, or what only looks like one.
    for pairs in 0..4 {
        let mut bytes = vec![0x02, 0xc3, 0x88];
        bytes.resize(11 - 2 * pairs, 0x11);
        bytes.extend([0x02, 0x82].repeat(pairs));
        bytes.extend(PSB);
        bytes.extend([0x02, 0x23]);
        let kinds: Vec<_> = Packets::new(&bytes).map(|item| kind_of(&item)).collect();
        assert_eq!(
            kinds,
            [Some(Kind::Mnt), Some(Kind::Psb), Some(Kind::PsbEnd)],
            "{pairs}"
        );
    }
}

fn kind_of(item: &crate::StreamItem<IntelPt>) -> Option<Kind> {
    item.ok().map(|located| located.raw.kind())
}

#[test]
fn after_an_error_listing_goes_on_at_the_next_psb() {
    let mut bytes = std::vec![0x00, 0x05, 0x77, 0x00];
    bytes.extend(PSB);
    bytes.extend([2, 0x23, 0x19]);
    let expected: [(u64, usize, String); 5] = [
        (0, 1, "pad".into()),
        (1, 3, "no packet begins with the bytes 05 77".into()),
        (4, 16, "psb".into()),
        (20, 2, "psbend".into()),
        (22, 1, "the input ends inside a packet: 1 of 8 bytes".into()),
    ];
    assert_eq!(items(&bytes), expected);
}

#[test]
fn a_ring_buffer_is_read_from_its_first_psb_to_its_last_whole_packet() {
    let mut bytes = std::vec![0x05, 0x19, 0x05];
    bytes.extend(PSB);
    bytes.extend([2, 0x23, 0x06, 0x19, 0x00]);
    let mut ring = crate::Packets::<IntelPt>::ring(&bytes);
    assert_eq!(ring.offset(), StreamOffset(3));
    let kinds: Vec<_> = ring.by_ref().map(|item| item.unwrap().raw.kind()).collect();
    assert_eq!(kinds, [Kind::Psb, Kind::PsbEnd, Kind::Tnt8]);
    assert_eq!((ring.offset().0, ring.rest()), (22, &[0x19, 0x00][..]));
    let mut nothing = crate::Packets::<IntelPt>::ring(&bytes[..10]);
    assert_eq!((nothing.offset().0, nothing.next().is_none()), (10, true));
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
    assert_eq!(tnt.get(usize::MAX), None);
    assert_eq!(Tnt::<62>::collect([false; 62]).map(|t| t.len()), Some(62));
    assert_eq!(Tnt::<47>::collect([true; 47]).map(|t| t.len()), Some(47));
}

#[test]
fn the_names_of_table_33_47() {
    let name = |kind, id| StateValue::new(kind, id).map(|value| value.to_string());
    for (kind, id, expected) in [
        (BlockType::GPR, 0x00, "R/EFLAGS"),
        (BlockType::GPR, 0x05, "R/EBX"),
        (BlockType::GPR, 0x11, "R15"),
        (BlockType::PEBS_BASIC, 0x02, "Timestamp"),
        (BlockType::PEBS_MEMORY, 0x03, "TSXAuxInfo"),
        (BlockType::LBR_0, 0x00, "LBR[TOS-0]_FROM_IP"),
        (BlockType::LBR_0, 0x1f, "LBR[TOS-10]_TO_IP"),
        (BlockType::LBR_1, 0x00, "LBR[TOS-10]_INFO"),
        (BlockType::LBR_1, 0x1f, "LBR[TOS-21]_FROM_IP"),
        (BlockType::LBR_2, 0x00, "LBR[TOS-21]_TO_IP"),
        (BlockType::LBR_2, 0x1f, "LBR[TOS-31]_INFO"),
        (BlockType::XMM, 0x0b, "XMM5_Q1"),
        (BlockType::XMM, 0x1f, "XMM15_Q1"),
    ] {
        assert_eq!(name(kind, id).as_deref(), Some(expected));
    }
    for (kind, id) in [
        (BlockType::GPR, 0x12),
        (BlockType::PEBS_BASIC, 3),
        (BlockType::PEBS_MEMORY, 4),
        (BlockType::XMM, 0x20),
        (BlockType::new(0).unwrap(), 0),
    ] {
        assert_eq!(name(kind, id), None);
    }
}

/// What is read over is what is decoded, whatever stands behind it.
#[test]
fn a_short_cyc_is_as_long_as_it_is_decoded() {
    for first in 0..=u8::MAX {
        for second in 0..=u8::MAX {
            for third in [0, 0x02, 0x82, 0xff] {
                let bytes = [first, second, third, 0x02, 0x82, 0, 0];
                let len = short_cyc([first, second, third]);
                let decoded = decode(&bytes)
                    .ok()
                    .filter(|raw| raw.kind() == Kind::Cyc && raw.len() <= 2);
                match (len, decoded) {
                    (Some(len), decoded) => assert_eq!(decoded.map(|raw| raw.len()), Some(len)),
                    // It may be left to `decode`.
                    (None, Some(raw)) => assert!(raw.len() == 2 && third == second ^ 0x80),
                    (None, None) => {}
                }
            }
        }
    }
}
