//! Errata in the packet stream, and the short way to short TNTs.

use alloc::vec::Vec;

use cofi_packet::intel::{Kind, Packet, decode};

use super::intel::{Flow, short_tnt};
use super::*;
use crate::Errata;
use crate::family::{IntelPt, ReadFamily};

fn kinds(bytes: &[u8], errata: &Errata) -> Vec<Option<Kind>> {
    let config = FlowConfig {
        errata: *errata,
        ..FlowConfig::default()
    };
    let mut reader = Reader::<IntelPt>::new(bytes, &config, &());
    core::iter::from_fn(|| reader.next())
        .take(8)
        .map(|next| next.ok().map(|flow| flow.kind()))
        .collect()
}

#[test]
fn erratum_skd007_an_overflow_within_a_cyc() {
    // A CYC that claims to go on, then OVF, then TIP.PGE without IP.
    let bytes = [0x07, 0x02, 0xf3, 0x11];
    let errata = Errata {
        skd007: true,
        ..Errata::default()
    };
    assert_eq!(
        kinds(&bytes, &errata),
        [Some(Kind::Ovf), Some(Kind::TipPge)]
    );
    // Without the workaround the overflow would go unnoticed: 07 02 and F3 are CYC packets too.
    assert_eq!(kinds(&bytes, &Errata::default()), [Some(Kind::TipPge)]);
}

#[test]
fn erratum_skz84_a_stray_byte_behind_a_tma() {
    let errata = Errata {
        skz84: true,
        ..Errata::default()
    };
    // TMA, a byte that begins no packet, or none on these processors, OVF.
    for stray in [0x05, 0xd9] {
        let bytes = [0x02, 0x73, 1, 0, 0, 0, 0, stray, 0x02, 0xf3];
        assert_eq!(kinds(&bytes, &errata), [Some(Kind::Ovf)]);
        assert_ne!(kinds(&bytes, &Errata::default()), [Some(Kind::Ovf)]);
    }
}

/// Where nothing is spoilt, the workarounds change no time: a short TNT between a CYC and an MTC is not seen then, either.
#[test]
fn workarounds_of_spoilt_packets_change_no_time() {
    // TSC, TMA, CBR
    let mut bytes = alloc::vec![0x19, 0, 0, 1, 0, 0, 0, 0];
    bytes.extend([0x02, 0x73, 0, 0, 0, 0, 0, 0x02, 0x03, 0x20, 0]);
    for round in 0..40_u8 {
        // CYC, TNT, MTC, CYC, TNT
        bytes.extend([(round % 7 + 1) << 3 | 3, 0x04, 0x59, round + 1, 0x1b, 0x04]);
    }
    let times = |errata: Errata| {
        let config = FlowConfig {
            errata,
            max_nonturbo_ratio: 0x20,
            ..FlowConfig::default()
        };
        let mut reader = Reader::<IntelPt>::new(&bytes, &config, &());
        core::iter::from_fn(move || {
            reader.next()?.ok()?;
            let now = IntelPt::now(&mut reader);
            // What the tracker knows counts, of which a time shows a part.
            Some((now, alloc::format!("{:?}", reader.own.shown.tracker)))
        })
        .collect::<Vec<_>>()
    };
    let without = times(Errata::default());
    assert_eq!(without.len(), 80);
    assert!(without.first() != without.last());
    for (skd007, skz84) in [(true, false), (false, true)] {
        let errata = Errata {
            skd007,
            skz84,
            ..Errata::default()
        };
        assert_eq!(times(errata), without);
    }
}

#[test]
fn short_tnts_are_what_the_packet_table_says() {
    for byte in 0..=255_u8 {
        let by_table = match decode(&[byte, 0xff]) {
            Ok(decoded) => match decoded.packet() {
                Packet::Tnt8 { bits } => Some(Flow::Tnt {
                    bits: bits.bits(),
                    len: bits.len() as u8,
                }),
                _ => None,
            },
            Err(_) => None,
        };
        assert_eq!(short_tnt(byte), by_table, "{byte:#04x}");
    }
}

#[test]
fn what_was_skipped_tells_no_time() {
    let tsc = |value: u64| [&[0x19][..], &value.to_le_bytes()[..7]].concat();
    // A TSC, a byte that begins no packet, a TSC that is skipped, and a PSB.
    let bytes = [
        &tsc(1000)[..],
        &[0x05],
        &tsc(999_999),
        &cofi_packet::intel::PSB,
    ]
    .concat();
    let mut reader = Reader::<IntelPt>::new(&bytes, &FlowConfig::default(), &());
    assert!(matches!(reader.next(), Some(Err(_))));
    assert!(reader.skip_to_psb());
    assert_eq!(reader.next(), Some(Ok(Flow::Psb)));
    assert_eq!(IntelPt::now(&mut reader), Some(Tsc(1000)));
}
