//! RTIT: every packet's golden bytes and text; LIP compression; stream boundaries.
//!
//! What holds for both formats is in `crate::tests`.

use super::*;
use crate::tests::{check_documentation, check_golden};
use crate::{DecodeError, Ip, Listing, StreamOffset};
use std::string::{String, ToString};
use std::vec::Vec;

/// One line a packet: its bytes, as Figure 2 to Figure 13 have them, and its text. `c:` stands for cycle-accurate mode.
const GOLDEN: &str = "\
c0 00 00 00 00 00 00 00 00 | psb
c: c0 00 00 00 00 00 00 00 00 | psb
c1 | tracestop
c: c1 | tracestop
02 | tnt N
03 | tnt T
3a | tnt TTNTN
c: 3f | tnt TTTTT
40 | tnt NNNNNN
56 | tnt NTNTTN
c: 7f 01 | tnt bits=TTTTTT cycles=0
c: 40 fd | tnt bits=NNNNNN cycles=63
b0 34 12 | tip cnt=0 zext=0 ip=0x1234
b4 34 12 | tip cnt=0 zext=1 ip=0x1234
b1 78 56 34 12 | tip cnt=1 zext=0 ip=0x12345678
b5 78 56 34 12 | tip cnt=1 zext=1 ip=0x12345678
b2 bc 9a 78 56 34 12 | tip cnt=2 zext=0 ip=0x123456789abc
c: b4 34 12 02 01 | tip cnt=0 zext=1 ip=0x1234 cycles=64
84 00 10 | fup.pge cnt=0 zext=1 ip=0x1000
8c 00 10 | fup.pgd cnt=0 zext=1 ip=0x1000
92 00 10 00 00 00 80 | fup.ovf cnt=2 zext=0 ip=0x800000001000
9c 00 10 | fup.pcc cnt=0 zext=1 ip=0x1000
c: 9c 00 10 03 00 80 | fup.pcc cnt=0 zext=1 ip=0x1000 cycles=2097152
bc 00 10 | fup.far cnt=0 zext=1 ip=0x1000
c: b9 78 56 34 12 fe ff | fup.far cnt=1 zext=0 ip=0x12345678 cycles=16383
c3 05 04 03 02 01 | pip 0x102030405 pg=1
c2 00 00 00 00 ff | pip 0xff00000000 pg=0
c: c3 00 10 00 00 00 05 | pip cr3=0x1000 pg=1 cycles=1
c4 00 | mtc range=0 tsc=0
c7 ff | mtc range=3 tsc=255
c: c5 80 ff ff ff | mtc range=1 tsc=128 cycles=4194303
da 95 05 04 03 02 01 | sts acbr=42 ecbr=21 tsc=4328719365
c: d0 7f 00 00 00 00 00 03 00 01 | sts acbr=1 ecbr=63 tsc=0 cycles=16384
";

fn context(word: &str) -> Mode {
    match word {
        "c" => Mode::CycleAccurate,
        _ => Mode::Plain,
    }
}

#[test]
fn golden_packets() {
    check_golden::<Rtit>(GOLDEN, context);
}

#[test]
fn the_documentation_tells_every_packet() {
    check_documentation::<Rtit>(include_str!("packets.md"), context);
}

#[test]
fn reserved_encodings_are_refused_by_name() {
    let refused = |mode, bytes: &[u8]| decode(mode, bytes).unwrap_err().to_string();
    for (bytes, expected) in [
        (&[0x00, 0x02][..], "tnt: bits holds the reserved value 0x0"),
        (&[0x01, 0x02], "tnt: bits holds the reserved value 0x1"),
        (&[0xa0, 0x00], "no packet begins with the bytes a0 00"),
        (&[0xaf, 0x01], "no packet begins with the bytes af 01"),
        (&[0xc8, 0x00], "no packet begins with the bytes c8 00"),
        (&[0xcf, 0x00], "no packet begins with the bytes cf 00"),
        (&[0xe0, 0x00], "no packet begins with the bytes e0 00"),
        (&[0xff, 0x00], "no packet begins with the bytes ff 00"),
        (&[0xc0, 0x00, 0x01], "no packet begins with the bytes c0 00"),
        (
            &[0xb3, 0x00, 0x01],
            "tip: size holds the reserved value 0x3",
        ),
        (
            &[0x87, 0x00, 0x01],
            "fup.pge: size holds the reserved value 0x3",
        ),
    ] {
        assert_eq!(refused(Mode::Plain, bytes), expected, "{bytes:02x?}");
    }
    let error = refused(Mode::CycleAccurate, &[0x40, 0x04]);
    assert_eq!(error, "tnt: cycles holds the reserved value 0x0");
}

#[test]
fn zext_has_nothing_to_extend_above_six_bytes() {
    let raw = decode(Mode::Plain, &[0xb6, 1, 0, 0, 0, 0, 0x80]).unwrap();
    assert_eq!(
        raw.packet().to_string(),
        "tip cnt=2 zext=0 ip=0x800000000001"
    );
    assert_eq!(raw.bytes()[0], 0xb6, "the bit is kept");
}

/// Table 18, a row a line: last LIP, LIP, CNT, Zext.
#[test]
fn lip_compression_follows_table_18() {
    let rows = [
        (0x1111_2222_0000, 0x1111_2222_3333, LipBytes::Update16),
        (0x1111_0000_5555, 0x1111_0000_3333, LipBytes::Update16),
        (0x0000_2222_0000, 0x0000_2222_3333, LipBytes::Update16),
        (0x0000_0000_0000, 0x0000_0000_3333, LipBytes::Zext16),
        (0x1111_2222_0000, 0x0000_0000_3333, LipBytes::Zext16),
        (0x1111_2222_0000, 0x1111_4444_3333, LipBytes::Update32),
        (0x1111_2222_0000, 0x1111_0000_3333, LipBytes::Update32),
        (0x0000_2222_0000, 0x0000_4444_3333, LipBytes::Zext32),
        (0x1111_2222_0000, 0x0000_2222_3333, LipBytes::Zext32),
        (0x1111_2222_0000, 0x5555_2222_3333, LipBytes::Full),
        (0x0000_0000_0000, 0x5555_0000_0000, LipBytes::Full),
    ];
    for (last, lip, bytes) in rows {
        let mut writer = LastLip::new();
        assert!(writer.compress(Ip(last)).is_some());
        let mut reader = writer;
        let payload = writer.compress(Ip(lip)).unwrap();
        assert_eq!(payload.lip_bytes(), bytes, "{last:#x} {lip:#x}");
        assert_eq!(reader.apply(payload), Some(Ip(lip)));
        assert_eq!(reader, writer);
    }
    // Bit 47 is repeated above.
    let mut last = LastLip::new();
    let payload = last.compress(Ip(0xffff_8000_1234_5678)).unwrap();
    assert_eq!(
        (payload.lip_bytes(), payload.payload()),
        (LipBytes::Full, 0x8000_1234_5678)
    );
    assert_eq!(
        LastLip::new().apply(payload),
        Some(Ip(0xffff_8000_1234_5678))
    );
    assert_eq!(last.compress(Ip(0xffff_0000_0000_0000)), None);
    assert_eq!(last.compress(Ip(0x0000_8000_0000_0000)), None);
}

fn texts(mode: Mode, bytes: &[u8]) -> Vec<String> {
    let mut listing = Listing::<Rtit>::new();
    Packets::new(bytes)
        .in_context(mode)
        .map(|item| match item {
            Ok(located) => listing.next(&located.raw).to_string(),
            Err(error) => error.error.to_string(),
        })
        .collect()
}

#[test]
fn what_a_psb_clears_is_still_there_for_a_reader() {
    let tip = [0xb0, 0x34, 0x12];
    let full = [0xb2, 0, 0, 0, 0x40, 0, 0];
    let bytes = [&tip, &full[..], &tip, &PSB, &tip].concat();
    assert_eq!(
        texts(Mode::Plain, &bytes),
        [
            // Against what was before this stream.
            "tip cnt=0 zext=0 ip=0x1234",
            "tip 0x40000000 cnt=2 zext=0",
            "tip 0x40001234",
            "psb",
            // Up to four packets behind a PSB this is no error (3.3.9).
            "tip 0x40001234 cnt=0 zext=0",
        ]
    );
}

/// 4.2.5: the last LIP is cleared before the packet is sent, which does not become it (3.3.7).
#[test]
fn an_overflow_and_what_follows_it_are_never_compressed_against_an_address_before() {
    let full = [0xb2, 0, 0, 0, 0x40, 0, 0];
    let tip = [0xb0, 0x34, 0x12];
    let zext = [0xb4, 0x34, 0x12];
    for (overflow, text) in [
        (&[0x90, 0x00, 0x10][..], "fup.ovf cnt=0 zext=0 ip=0x1000"),
        (
            &[0x91, 0x00, 0x10, 0x00, 0x50],
            "fup.ovf cnt=1 zext=0 ip=0x50001000",
        ),
        (&[0x95, 0x00, 0x10, 0x00, 0x50], "fup.ovf 0x50001000"),
    ] {
        let bytes = [&full[..], overflow, &tip, &zext, &tip].concat();
        let expected = [
            "tip 0x40000000 cnt=2 zext=0",
            text,
            "tip cnt=0 zext=0 ip=0x1234",
            "tip 0x1234",
            "tip 0x1234 cnt=0 zext=0",
        ];
        assert_eq!(texts(Mode::Plain, &bytes), expected);
        // What was sent is told beside the address that is not known, and text that asks for an address is refused.
        let mut listing = Listing::<Rtit>::new();
        let raw = decode(Mode::Plain, overflow).expect("a packet");
        let mut fields = Vec::new();
        let listed = listing.next(&raw);
        listed.visit(&mut |key, value| fields.push((key, value)));
        let sent = fields.iter().any(|(key, _)| *key == "payload");
        assert_eq!(sent, listed.ip() == Some(None), "{fields:?}");
    }
    let mut assembler = crate::Assembler::<Rtit, _>::new(crate::Nowhere);
    for (line, is_read) in [
        ("tip 0x40000000", true),
        ("fup.ovf 0x40001000 cnt=0 zext=0", false),
        ("fup.ovf 0x40001000", true),
        ("tip 0x40001000 cnt=0 zext=0", false),
        ("tip 0x40001000", true),
    ] {
        assert_eq!(assembler.line(line).is_ok(), is_read, "{line}");
    }
}

#[test]
fn nothing_is_compressed_against_a_cleared_last_lip() {
    let ip = Ip(0x7fff_1234_5678);
    let mut last = LastLip::new();
    for expected in [LipBytes::Full, LipBytes::Update16] {
        let payload = last.compress(ip).unwrap();
        assert_eq!(payload.lip_bytes(), expected);
    }
    last.reset();
    assert_eq!(last.compress(ip).unwrap().lip_bytes(), LipBytes::Full);
}

#[test]
fn a_partial_tnt_has_no_cycle_count_and_a_full_one_has() {
    let bytes = [0x06, 0x46, 0x01, 0xc1, 0xb4, 0x00, 0x10, 0x05];
    assert_eq!(
        texts(Mode::CycleAccurate, &bytes),
        [
            "tnt TN",
            "tnt bits=NNNTTN cycles=0",
            "tracestop",
            "tip 0x1000 cycles=1",
        ]
    );
    let plain = texts(Mode::Plain, &bytes);
    assert_eq!(plain[..2], ["tnt TN", "tnt NNNTTN"]);
    assert_eq!(plain[2], "tnt: bits holds the reserved value 0x1");
}

#[test]
fn a_bare_value_is_the_first_fields() {
    let sts = crate::tests::assemble::<Rtit>(Mode::Plain, &["sts 42 ecbr=21 tsc=5".into()]);
    assert_eq!(sts, Ok(std::vec![0xda, 0x95, 5, 0, 0, 0, 0]));
    let zext = crate::tests::assemble::<Rtit>(Mode::Plain, &["tip 0x1000 zext=1".into()]);
    assert_eq!(
        zext,
        Err("tip 0x1000 zext=1: the operand cnt is missing".into())
    );
}

#[test]
fn stream_boundaries_wherever_they_are() {
    for before in 0..30 {
        let mut bytes = std::vec![0xc0; before];
        bytes.extend(PSB);
        bytes.extend([0, 0, 0xc1]);
        assert_eq!(find_psb(&bytes), Some(before));
        assert_eq!(rfind_psb(&bytes), Some(before));
        assert_eq!(sync_forward(&bytes, before + 1), None);
        assert_eq!(sync_backward(&bytes, before + 1), Some(before));
        assert_eq!(sync_backward(&bytes, before), None);
    }
    let twice = [PSB, PSB].concat();
    assert_eq!(sync_forward(&twice, 1), Some(9));
    assert_eq!(sync_backward(&twice, 9), Some(0));
    assert_eq!(find_psb(&PSB[..8]), None);
}

#[test]
fn an_error_says_where_and_how_much() {
    let bytes = [&[0xc1, 0xe0, 0x11][..], &PSB, &[0xd0]].concat();
    let items: Vec<_> = Packets::new(&bytes).collect();
    let error = items[1].unwrap_err();
    assert_eq!((error.offset, error.size), (StreamOffset(1), 2));
    assert_eq!(
        error.error,
        DecodeError::Unknown {
            first: 0xe0,
            second: 0x11
        }
    );
    let cut = items[3].unwrap_err();
    assert_eq!((cut.offset, cut.size), (StreamOffset(12), 1));
    assert_eq!(cut.error, DecodeError::Truncated { have: 1, need: 7 });
}

#[test]
fn short_packets_are_what_the_table_says() {
    for first in 0..=u8::MAX {
        for mode in [Mode::Plain, Mode::CycleAccurate] {
            let mut bytes = [0x55; 16];
            bytes[0] = first;
            if let Some(raw) = super::table::decode_short(mode, &bytes) {
                assert_eq!(decode(mode, &bytes), Ok(raw), "{first:#04x}");
            }
            assert_eq!(super::table::decode_short(mode, &bytes[..15]), None);
        }
    }
}

/// Found by fuzzing, in the target itself, which did not show the listing what forms no packet.
#[test]
fn an_address_behind_what_forms_no_packet_is_not_completed_across_a_psb() {
    use crate::{Assembler, Collected, Packets, StreamItem};

    let mut bytes = Vec::from([0x86, 0x99, 0x99, 0x99, 0x99, 0x00, 0x00]); // FUP.PGE with all of its address
    bytes.extend([0xff; 4]);
    bytes.extend(PSB);
    bytes.extend([0x88, 0x7b, 0x03]); // FUP.PGD with two bytes
    let items: Vec<StreamItem<Rtit>> = Packets::<Rtit>::new(&bytes).collect();
    assert!(items.iter().any(Result::is_err));
    let mut listing = Listing::<Rtit>::new();
    let lines: Vec<_> = items.iter().filter_map(|item| listing.item(item)).collect();
    let last = lines.last().expect("a line").to_string();
    assert_eq!(last, "fup.pgd cnt=0 zext=0 ip=0x37b");
    let mut assembler = Assembler::<Rtit, _>::in_context(Collected(Vec::new()), Mode::Plain);
    for line in &lines {
        assembler
            .line(&line.to_string())
            .expect("it can be sent so");
    }
}
