//! Ticks that are read a second time are the same, and take no memory that grows with the stream.

use alloc::vec::Vec;

use cofi_packet::intel::PSB;
use cofi_packet::rtit;

use super::replay::LISTED;
use crate::decoder::on;
use crate::{Event, EventDecoder, FlowConfig, LocatedEvent, RtitFlowConfig, Tick, TraceFormat};

/// What is told of a stream, and how many items waited at the most.
fn told(stream: &[u8], config: FlowConfig) -> (Vec<LocatedEvent>, usize) {
    let mut decoder = EventDecoder::new(stream, config).with_ticks();
    let (mut all, mut most) = (Vec::new(), 0);
    while let Some(told) = decoder.next() {
        all.push(told);
        let waiting = on!(&decoder.bind, bind => {
            let ticks = bind.reader.ticks.as_ref();
            let emit = &bind.emit;
            // Each replay has a clock, which is as large as several items.
            let replays = 8 * emit.replays.len();
            emit.items.len() + emit.origins.len() + replays + ticks.map_or(0, |ticks| ticks.queue.len())
        });
        most = most.max(waiting);
    }
    (all, most)
}

/// `count` of the packets `part`, behind a PSB+ with a TSC, and tracing switched on at last.
fn stream(part: &[u8], count: usize) -> Vec<u8> {
    let mut stream = PSB.to_vec();
    stream.extend([0x19, 0x10, 0x27, 0, 0, 0, 0, 0]);
    stream.extend([0x02, 0x23]);
    stream.extend(part.repeat(count));
    stream.extend([0x71, 0, 0x10, 0, 0, 0, 0]);
    stream
}

/// A CYC of 3 cycles; an MNT; a PIP, which a PSB+ may hold any number of times.
const CYC: [u8; 1] = [0x1b];
const MNT: [u8; 11] = [0x02, 0xc3, 0x88, 1, 2, 3, 4, 5, 6, 7, 8];
const PIP: [u8; 8] = [0x02, 0x43, 0, 5, 0, 0, 0, 0];

#[test]
fn a_million_ticks_before_the_next_packet_are_not_kept() {
    let count = 1_000_000;
    let (told, most) = told(&stream(&CYC, count), FlowConfig::default());
    let cycs = told
        .iter()
        .filter(|told| matches!(told.what, Ok(Event::Tick(Tick::Cyc { .. }))));
    assert_eq!(cycs.count(), count);
    assert!(matches!(
        told.last().unwrap().what,
        Ok(Event::Enabled { .. })
    ));
    assert!(most <= 4 * LISTED, "{most} items waited");
}

#[test]
fn ticks_among_mnt_packets_are_not_kept() {
    let part = [&CYC[..], &MNT, &CYC].concat();
    let count = 50_000;
    let (told, most) = told(&stream(&part, count), FlowConfig::default());
    let mnts = told
        .iter()
        .filter(|told| matches!(told.what, Ok(Event::Maintenance { .. })));
    assert_eq!(mnts.count(), count);
    // The PSB+ has a TSC.
    assert_eq!(told.len(), 3 * count + 2);
    assert!(told.is_sorted_by_key(|told| told.offset));
    assert!(most <= 4 * LISTED, "{most} items waited");
}

#[test]
fn ticks_in_a_psb_plus_without_end_are_not_kept() {
    let mut stream = PSB.to_vec();
    stream.extend([&CYC[..], &PIP].concat().repeat(50_000));
    let (told, most) = told(&stream, FlowConfig::default());
    assert!(told.len() >= 50_000, "{}", told.len());
    assert!(most <= 4 * LISTED, "{most} items waited");
}

#[test]
fn ticks_of_rtit_are_not_kept() {
    let config = FlowConfig {
        format: TraceFormat::Rtit(RtitFlowConfig {
            cycles: rtit::Mode::Plain,
            ..RtitFlowConfig::default()
        }),
        ..FlowConfig::default()
    };
    let mtc = rtit::Packet::Mtc {
        range: cofi_packet::Uint::truncate(1),
        tsc: 7,
        cycles: None,
    };
    let mtc = rtit::Packet::encode(&mtc);
    let mut stream = rtit::PSB.to_vec();
    stream.extend(mtc.bytes()[..mtc.len()].repeat(100_000));
    let (told, most) = told(&stream, config);
    assert_eq!(told.len(), 100_000);
    assert!(most <= 4 * LISTED, "{most} items waited");
}

/// With little room all ticks but a few are read twice, and nothing changes.
#[test]
fn whether_ticks_are_kept_or_read_again_they_are_the_same() {
    let part = [
        &CYC[..],
        &MNT,
        &[0x59, 7],
        &CYC,
        &[0x02, 0x03, 0x20, 0],
        &PIP,
        &[0x06],
    ]
    .concat();
    for count in [1, 20, 60, 700] {
        let mut stream = stream(&part, 1);
        stream.extend(part.repeat(count));
        stream.extend([&CYC[..], &CYC, &[0x59, 9]].concat().repeat(count));
        stream.extend([0x02, 0xf3, 0x1b, 0x02, 0x23]);
        stream.extend(&PSB);
        let (kept, _) = told(&stream, FlowConfig::default());
        let mut decoder = EventDecoder::new(&stream, FlowConfig::default()).with_ticks();
        on!(&mut decoder.bind, bind => bind.emit.listed = 3);
        let again: Vec<_> = decoder.collect();
        assert_eq!(again, kept);
    }
}
