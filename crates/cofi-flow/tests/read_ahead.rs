//! Packets that are read ahead, and followed because they came before: whoever goes by blocks finds what comes one by one.

mod common;

use cofi_flow::{FlowConfig, FlowDecoder, Item};
use cofi_insn::Segment;
use cofi_packet::Ip;
use common::any::{check_times, check_ways};
use common::packets;

/// Ways through code are remembered at once.
fn config() -> FlowConfig {
    FlowConfig {
        warm_after: 0,
        ..FlowConfig::default()
    }
}

/// Each instruction, event and error, and the packet used last by then.
fn one_by_one(trace: &[u8], code: Segment<'_>) -> Vec<(Item, u64)> {
    let mut decoder = FlowDecoder::new(trace, code, config());
    let mut found = Vec::new();
    while let Some(item) = decoder.next() {
        found.push((item, decoder.offset().0));
    }
    found
}

fn by_blocks(trace: &[u8], code: Segment<'_>) -> Vec<(Item, u64)> {
    let mut decoder = FlowDecoder::new(trace, code, config());
    let mut found = Vec::new();
    loop {
        let item = decoder.blocks(|block| {
            found.extend(
                block
                    .iter()
                    .map(|insn| (Item::Insn(insn), block.offset().0)),
            );
        });
        match item {
            Some(item) => found.push((item, decoder.offset().0)),
            None => return found,
        }
    }
}

/// 64 TNTs of one bit wait in the register behind the one in use, and then comes what needs another packet.
#[test]
fn the_packet_in_use_is_known_behind_64_others() {
    let mut code = [0x74, 0x00].repeat(57);
    code.extend([0xff, 0xe0]);
    let segment = Segment {
        base: Ip(0x1000),
        bytes: &code,
    };
    let tnts = "tnt:N ".repeat(160);
    let trace = packets(&format!(
        "psb mode:64 fup:1000 psbend {tnts} tip:1000 tnt:NNNNNN"
    ));
    assert_eq!(by_blocks(&trace, segment), one_by_one(&trace, segment));
}

/// However many branches there are before something that is not walked along the graph, with and without timing packets.
#[test]
fn what_is_read_ahead_is_given_back_anywhere() {
    let jumps = [0xeb, 0x00].repeat(70);
    for count in (1..70).chain(110..122).chain(170..176) {
        for (end, gap) in [
            (&[0xff, 0xe0][..], ""),
            (&jumps, ""),
            (&[0xff, 0xe0], "cyc:3 "),
            (&jumps, "mtc:5 "),
        ] {
            let mut code = [0x74, 0x00].repeat(count);
            code.extend(end);
            code.extend([0x74, 0x00].repeat(200));
            let segment = Segment {
                base: Ip(0x1000),
                bytes: &code,
            };
            let tnts = format!("tnt:N {gap}").repeat(250);
            let trace = packets(&format!(
                "psb mode:64 fup:1000 psbend {tnts} tip:1000 tnt:NNNN"
            ));
            let ways = check_ways(&trace, segment, FlowConfig::default());
            ways.unwrap_or_else(|error| panic!("{count} {gap}: {error}"));
            let times = check_times(&trace, segment, FlowConfig::default());
            times.unwrap_or_else(|error| panic!("{count} {gap}: {error}"));
        }
    }
}

/// A TIP whose last byte is the first one of a PSB came before as a whole one.
#[test]
fn a_tip_that_a_psb_cuts_is_no_part_of_a_phrase() {
    let mut code = vec![0x90_u8; 0x40];
    code[..4].copy_from_slice(&[0x74, 0, 0xff, 0xe0]);
    code[6..10].copy_from_slice(&[0x74, 0, 0xff, 0xe0]);
    code[0x10..0x12].copy_from_slice(&[0xff, 0xe0]);
    let segment = Segment {
        base: Ip(0x200),
        bytes: &code,
    };
    let begin = "psb mode:64 fup:200 psbend tnt:N tip:206 tnt:N";
    let round = "tip:210 tip:200 tnt:N tip:206 tnt:N ";
    let mut trace = packets(&format!("{begin} {} tip:210 tip:200", round.repeat(3)));
    for _ in 0..5 {
        trace.extend(packets(begin));
        trace.extend([0, 0x2d, 0x10]);
    }
    trace.extend(packets(&format!("{begin} tip:210 tip:200")));
    let items = |found: Vec<(Item, u64)>| found.into_iter().map(|(item, _)| item);
    let expected: Vec<Item> = items(one_by_one(&trace, segment)).collect();
    let errors = expected
        .iter()
        .filter(|item| matches!(item, Item::Error(_)));
    assert!(errors.count() >= 5);
    assert!(items(by_blocks(&trace, segment)).eq(expected));
}
