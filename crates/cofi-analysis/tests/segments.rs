//! What is counted does not depend on how a stream is cut, nor on the number of threads.

use std::num::NonZeroUsize;

use cofi_analysis::{Summary, Tally};
use cofi_packet::Uint;
use cofi_packet::intel::{Cr3, IpPayload, PSB, Packet, Tnt, U48};
use cofi_session::{Session, SessionOptions};
use proptest::prelude::*;

/// 1000: nop; jne 1000; nop; jne 1000; syscall.
const CODE: [u8; 8] = [0x90, 0x75, 0xfd, 0x90, 0x75, 0xfa, 0x0f, 0x05];

fn ip(address: u64) -> IpPayload {
    IpPayload::sext48(U48::truncate(address))
}

fn tnt(bits: &str) -> Packet {
    Packet::Tnt8 {
        bits: Tnt::collect(bits.chars().map(|bit| bit == 'T')).unwrap(),
    }
}

fn tsc(value: u64) -> Packet {
    Packet::Tsc {
        tsc: Uint::truncate(value),
    }
}

fn cr3(number: u64) -> Packet {
    let cr3 = Cr3::truncate(number << 12);
    Packet::Pip { cr3, nr: false }
}

const OFF: Packet = Packet::TipPgd {
    ip: IpPayload::SUPPRESSED,
};

fn psb(part: u64, address: u64) -> [Packet; 5] {
    let time = 1000 + 100 * part;
    let address = ip(address);
    let tables = cr3(1 + part / 4);
    [
        Packet::Psb,
        tsc(time),
        tables,
        Packet::Fup { ip: address },
        Packet::PsbEnd,
    ]
}

/// A stream in which the PSBs stand behind branches that were taken and that were not, behind events, and with other page tables at some.
fn packets(count: u64) -> Vec<Packet> {
    let mut packets = vec![Packet::Psb, tsc(1000), cr3(1), Packet::PsbEnd];
    packets.push(Packet::TipPge { ip: ip(0x1000) });
    for part in 1..=count {
        match part % 5 {
            0 => {
                packets.extend([tnt("TTNTN"), tnt("T")]);
                packets.extend(psb(part, 0x1000));
            }
            1 => {
                packets.extend([tnt("TTNTN")]);
                packets.extend(psb(part, 0x1003));
                packets.push(tnt("T"));
            }
            2 => {
                packets.extend([tnt("NN"), OFF, tsc(1000 + 100 * part)]);
                packets.push(Packet::TipPge { ip: ip(0x1000) });
                packets.extend(psb(part, 0x1000));
            }
            3 => {
                packets.push(tnt("TN"));
                packets.extend(psb(part, 0x1003));
                // An interrupt.
                packets.extend([Packet::Fup { ip: ip(0x1003) }, OFF, tsc(1050 + 100 * part)]);
                packets.push(Packet::TipPge { ip: ip(0x1003) });
                packets.push(tnt("T"));
            }
            _ => {
                packets.push(tnt("TTT"));
                packets.extend(psb(part, 0x1000));
                packets.extend([Packet::Ovf, tsc(1020 + 100 * part)]);
                packets.push(Packet::Fup { ip: ip(0x1003) });
                packets.push(tnt("T"));
            }
        }
    }
    packets.extend([Packet::Fup { ip: ip(0x1000) }, OFF]);
    packets
}

fn encode(packets: &[Packet]) -> Vec<u8> {
    let bytes = |packet: &Packet| packet.encode().bytes()[..packet.encode().len()].to_vec();
    packets.iter().flat_map(bytes).collect()
}

fn stream(count: u64) -> Vec<u8> {
    encode(&packets(count))
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

fn summary(bytes: &[u8], options: &SessionOptions, threads: usize, segment: usize) -> Summary {
    let session = Session::new(bytes, options).unwrap();
    let mut tally = Tally::new().with_segments(NonZeroUsize::new(segment).unwrap());
    let streams: Vec<_> = session.streams().iter().collect();
    let threads = NonZeroUsize::new(threads).unwrap();
    tally.add_all(&session, &streams, threads, &|_| {});
    tally.finish()
}

/// Everything that a summary says. Where time stamps are damaged, how the time goes on depends on what stands before them: that depends on the
/// cuts, but not on the threads.
fn said(summary: &Summary, with_time: bool) -> String {
    let Summary {
        total,
        trace_bytes,
        proof,
        functions,
        spaces,
        files,
        ..
    } = summary;
    let threads = summary.threads.iter().map(|thread| {
        let times = with_time.then_some(thread.times);
        (
            thread.task,
            thread.counts,
            thread.trace_bytes,
            &thread.gaps,
            times,
        )
    });
    let threads: Vec<_> = threads.collect();
    format!("{total:?} {trace_bytes} {proof:?} {functions:?} {spaces:?} {files:?} {threads:#?}")
}

#[test]
fn a_stream_counts_as_much_however_it_is_cut() {
    let (_folder, options) = options();
    let bytes = stream(40);
    let whole = summary(&bytes, &options, 1, usize::MAX);
    assert!(whole.total.taken > 50 && whole.total.instructions > 300);
    assert_eq!(whole.gaps(), 8, "the overflows");
    assert!(whole.spaces.len() > 5);
    assert!(whole.threads[0].times.on_ticks > 0);
    for (threads, segment) in [(1, 1), (2, 1), (3, 1), (3, 50), (2, 200), (2, 700)] {
        let cut = summary(&bytes, &options, threads, segment);
        assert_eq!(said(&cut, true), said(&whole, true), "{segment} bytes");
    }
}

/// Before a PSB, within a PSB+ and elsewhere, all cycle counts are counted once.
#[test]
fn no_cycle_is_counted_twice_or_not_at_all() {
    let (_folder, options) = options();
    let (mut with_cycles, mut sum) = (Vec::new(), 0);
    for (number, packet) in packets(40).into_iter().enumerate() {
        let is_told = matches!(
            packet,
            Packet::Psb | Packet::Tnt8 { .. } | Packet::TipPge { .. }
        );
        let cycles = 1 + number as u64 % 30;
        let cyc = Packet::Cyc { cycles };
        if is_told {
            with_cycles.push(cyc);
            sum += cycles;
        }
        with_cycles.push(packet);
        if matches!(packet, Packet::Tsc { .. }) {
            with_cycles.push(cyc);
            sum += cycles;
        }
    }
    // Nobody reads what stands before the first PSB.
    let bytes = encode(&with_cycles[1..]);
    let cycles = |segment| {
        let summary = summary(&bytes, &options, 2, segment);
        summary.threads[0].times.cycles
    };
    assert_eq!(cycles(usize::MAX), sum - 1);
    for segment in [1, 50, 200, 700] {
        assert_eq!(cycles(segment), sum - 1, "{segment} bytes");
    }
}

#[test]
fn no_byte_of_damage_makes_the_cuts_matter() {
    let (_folder, options) = options();
    let bytes = stream(10);
    for at in 0..bytes.len() {
        for damage in [0x00, 0xff, 0x82] {
            let mut bytes = bytes.clone();
            bytes[at] = damage;
            let whole = summary(&bytes, &options, 1, usize::MAX);
            let cut = summary(&bytes, &options, 2, 1);
            assert_eq!(
                said(&cut, false),
                said(&whole, false),
                "{damage:#x} at {at}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn nor_does_more_damage(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        len in 0..60_usize,
        segment in 1..300_usize,
    ) {
        let (_folder, options) = options();
        let mut bytes = stream(20);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let cut = cut.index(bytes.len());
        bytes.drain(cut..bytes.len().min(cut + len));
        prop_assume!(bytes.windows(PSB.len()).any(|window| window == PSB));
        let whole = summary(&bytes, &options, 1, usize::MAX);
        let cut = summary(&bytes, &options, 2, segment);
        prop_assert_eq!(said(&cut, false), said(&whole, false));
        let one = summary(&bytes, &options, 1, segment);
        prop_assert_eq!(said(&cut, true), said(&one, true));
    }
}
