//! `check`: what it finds does not depend on how a stream is cut, and is what the flow itself tells.

use std::num::NonZeroUsize;

use cofi_analysis::{CheckOptions, GapCause, StreamCheck, Summary, check};
use cofi_flow::{Event, Item};
use cofi_packet::Uint;
use cofi_packet::intel::{IpPayload, PSB, Packet, Tnt, U48};
use cofi_packet::{Ip, StreamOffset, Tsc};
use cofi_session::{Session, SessionOptions};
use proptest::prelude::*;

/// 1000: nop; jne 1000; syscall.
const CODE: [u8; 5] = [0x90, 0x75, 0xfd, 0x0f, 0x05];

fn ip(address: u64) -> IpPayload {
    IpPayload::sext48(U48::truncate(address))
}

fn encode(packets: &[Packet]) -> Vec<u8> {
    packets
        .iter()
        .flat_map(|packet| packet.encode().bytes()[..packet.encode().len()].to_vec())
        .collect()
}

fn tsc(value: u64) -> Packet {
    Packet::Tsc {
        tsc: Uint::truncate(value),
    }
}

fn tnt(bits: &str) -> Packet {
    Packet::Tnt8 {
        bits: Tnt::collect(bits.chars().map(|bit| bit == 'T')).unwrap(),
    }
}

fn options() -> (tempfile::TempDir, SessionOptions) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("code");
    std::fs::write(&path, CODE).unwrap();
    let mut options = SessionOptions::default();
    options
        .raw
        .push(format!("{}:0x1000", path.display()).parse().unwrap());
    (folder, options)
}

/// A stream in `count` parts, each of which begins with a PSB+ in running code but for the first, and loops a while.
fn stream(count: u64) -> Vec<u8> {
    let mut packets = vec![Packet::Psb, tsc(1000), Packet::PsbEnd];
    packets.push(Packet::TipPge { ip: ip(0x1000) });
    for part in 1..=count {
        packets.extend([tnt("TTTTTT"), tnt("TTTTTT"), tnt("TTTN")]);
        packets.push(Packet::TipPgd {
            ip: IpPayload::SUPPRESSED,
        });
        packets.push(Packet::TipPge { ip: ip(0x1000) });
        packets.extend([tnt("TTT")]);
        packets.extend([
            Packet::Psb,
            tsc(1000 + 100 * part),
            Packet::Fup { ip: ip(0x1000) },
            Packet::PsbEnd,
        ]);
    }
    packets.extend([
        Packet::Fup { ip: ip(0x1000) },
        Packet::TipPgd {
            ip: IpPayload::SUPPRESSED,
        },
    ]);
    encode(&packets)
}

fn found(bytes: &[u8], options: &SessionOptions, threads: usize, segment: usize) -> StreamCheck {
    let session = Session::new(bytes, options).unwrap();
    let mut how = CheckOptions::default();
    how.threads = NonZeroUsize::new(threads).unwrap();
    how.segment = NonZeroUsize::new(segment).unwrap();
    check(&session, how, &|_| {}).remove(0)
}

/// What the flow tells of the whole stream, decoded in one go: instructions, errors, overflows.
fn told(bytes: &[u8], options: &SessionOptions) -> (u64, u64, u64) {
    let session = Session::new(bytes, options).unwrap();
    let mut told = (0, 0, 0);
    for item in session.decode(&session.streams()[0]) {
        match item {
            Item::Insn(_) => told.0 += 1,
            Item::Error(_) => told.1 += 1,
            Item::Event(Event::Overflow { .. }) => told.2 += 1,
            Item::Event(_) => {}
        }
    }
    told
}

fn counted(check: &StreamCheck) -> (u64, u64, u64) {
    let overflows = check.kinds.get("overflow").copied().unwrap_or(0);
    (check.instructions, check.gap_count() - overflows, overflows)
}

#[test]
fn a_whole_stream_has_no_gaps() {
    let (_folder, options) = options();
    let bytes = stream(20);
    let whole = found(&bytes, &options, 1, usize::MAX);
    assert_eq!((whole.gap_count(), whole.lost_bytes), (0, 0));
    assert_eq!(counted(&whole), told(&bytes, &options));
    for segment in [1, 40, 64, 100, 1000] {
        let cut = found(&bytes, &options, 2, segment);
        assert_eq!(
            counted(&cut),
            counted(&whole),
            "segments of {segment} bytes"
        );
    }
}

#[test]
fn an_overflow_tells_how_long_it_lasted() {
    let (_folder, options) = options();
    let mut packets = vec![Packet::Psb, tsc(1000), Packet::PsbEnd];
    packets.extend([
        Packet::TipPge { ip: ip(0x1000) },
        tnt("TT"),
        Packet::Ovf,
        tsc(1700),
        Packet::Fup { ip: ip(0x1003) },
        Packet::TipPgd {
            ip: IpPayload::SUPPRESSED,
        },
    ]);
    let bytes = encode(&packets);
    let check = found(&bytes, &options, 1, usize::MAX);
    let [gap] = check.gaps.as_slice() else {
        panic!("{check:?}");
    };
    assert_eq!(gap.cause, GapCause::Overflow);
    assert_eq!((gap.time, gap.ticks()), (Some(Tsc(1000)), Some(700)));
    assert_eq!(gap.bytes, 0, "what is lost is not in the stream");
    assert_eq!(gap.resumed.unwrap().ip, Some(Ip(0x1003)));
    assert_eq!(bytes[gap.offset.0 as usize..][..2], [0x02, 0xf3]);
    assert_eq!(check.lost_ticks, 700);
    let session = Session::new(&bytes, &options).unwrap();
    let summary = Summary::of(&session);
    assert_eq!(summary.threads[0].gaps.lost_ticks, 700);
    assert_eq!(summary.threads[0].gaps.first, check.gaps);
}

#[test]
fn bytes_that_are_no_packet_cost_all_up_to_the_next_psb() {
    let (_folder, options) = options();
    let mut bytes = stream(3);
    let psbs: Vec<usize> = bytes
        .windows(PSB.len())
        .enumerate()
        .filter(|(_, window)| *window == PSB)
        .map(|(at, _)| at)
        .collect();
    // In place of a TNT behind the PSB+.
    let tnt = bytes[psbs[1]..]
        .windows(2)
        .position(|pair| pair == [0x02, 0x23]);
    let at = psbs[1] + tnt.expect("a PSBEND") + 2;
    bytes[at..at + 2].copy_from_slice(&[0x02, 0xff]);
    for segment in [1, usize::MAX] {
        let check = found(&bytes, &options, 2, segment);
        let [gap] = check.gaps.as_slice() else {
            panic!("{check:?}");
        };
        assert_eq!(gap.cause.word(), "packet");
        assert_eq!(gap.offset, StreamOffset(at as u64));
        // The address is told by the FUP of the next PSB+; what was passed over is all before that.
        let resumed = gap.resumed.unwrap();
        assert_eq!(resumed.ip, Some(Ip(0x1000)));
        assert_eq!(gap.bytes, resumed.offset.0 - at as u64);
        assert!(resumed.offset.0 > psbs[2] as u64);
        assert_eq!((gap.time, resumed.time), (Some(Tsc(1100)), Some(Tsc(1200))));
    }
}

#[test]
fn what_stands_before_the_first_psb_is_told() {
    let (_folder, options) = options();
    let bytes = [vec![0x99; 33], stream(2)].concat();
    let check = found(&bytes, &options, 1, 64);
    assert_eq!(
        (check.head, check.lost_bytes, check.gap_count()),
        (33, 33, 0)
    );
    let none = found(&[0x99; 40], &options, 1, 64);
    assert_eq!(none.kinds.get("no-psb"), Some(&1));
    assert_eq!(none.lost_bytes, 40);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn segments_find_what_the_whole_does(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        segment in 1_usize..200,
        threads in 1_usize..4,
    ) {
        let (_folder, options) = options();
        let mut bytes = stream(12);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let whole = found(&bytes, &options, 1, usize::MAX);
        prop_assert_eq!(counted(&whole), told(&bytes, &options));
        let cut = found(&bytes, &options, threads, segment);
        prop_assert_eq!(&cut.kinds, &whole.kinds);
        prop_assert_eq!(cut.instructions, whole.instructions);
        prop_assert_eq!(&cut.gaps, &whole.gaps);
        prop_assert!(whole.lost_bytes <= bytes.len() as u64);
    }
}

#[test]
fn no_byte_of_damage_makes_the_cuts_matter() {
    let (_folder, options) = options();
    for at in 0..stream(3).len() {
        for byte in [0, 2, 113, 130, 243, 255] {
            let mut bytes = stream(3);
            bytes[at] = byte;
            let whole = found(&bytes, &options, 1, usize::MAX);
            let cut = found(&bytes, &options, 1, 1);
            assert_eq!(cut.gaps, whole.gaps, "{byte} at {at}");
            assert_eq!(cut.instructions, whole.instructions, "{byte} at {at}");
        }
    }
}
