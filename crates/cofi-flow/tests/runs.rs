//! Runs of packets, and phrases, which came before: whoever goes by blocks finds what comes one by one.

mod common;

use cofi_flow::{FlowConfig, FlowDecoder, Item};
use cofi_insn::Segment;
use cofi_packet::Ip;
use common::any::{check_times, check_ways};
use common::packets;

/// Ways through code are remembered at once.
fn config() -> FlowConfig {
    let mut config = FlowConfig::default();
    config.warm_after = 0;
    config
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

/// A bit is left of the last of many TNTs where another packet is needed.
#[test]
fn a_bit_is_left_behind_many_others() {
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
fn a_run_ends_anywhere() {
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

/// The same few bytes, of 32-bit and of 64-bit code, where the last IP ends in other bits each time, with calls that return by a TNT bit.
#[test]
fn a_phrase_does_not_depend_on_the_low_bits_of_the_last_ip() {
    let mut code = vec![0x90_u8; 0x100];
    // 1000: call 1040; jz 1007; jmp eax
    code[..9].copy_from_slice(&[0xe8, 0x3b, 0, 0, 0, 0x74, 0, 0xff, 0xe0]);
    // 1020 and 1030: jz 1022; jmp eax
    for at in [0x20, 0x30] {
        code[at..at + 4].copy_from_slice(&[0x74, 0, 0xff, 0xe0]);
    }
    // 1040: jz 1042; ret
    code[0x40..0x43].copy_from_slice(&[0x74, 0, 0xc3]);
    let segment = Segment {
        base: Ip(0x1000),
        bytes: &code,
    };
    for mode in [32, 64] {
        let round = "tnt:TTN tip:1020 tnt:N tip:1000 tnt:TTN tip:1030 tnt:N tip:1000 ";
        // (Ways are remembered from the second walk on, and a PSB ends one.)
        let begin = format!("psb mode:{mode} fup:1000 psbend {} ", round.repeat(5));
        let trace = packets(&(begin.repeat(8) + "tnt:T"));
        let found = by_blocks(&trace, segment);
        assert!(found.len() > 40 * 2 * 7, "{found:?}");
        assert_eq!(found, one_by_one(&trace, segment));
        let ways = check_ways(&trace, segment, config());
        ways.unwrap_or_else(|error| panic!("{mode}: {error}"));
    }
}
