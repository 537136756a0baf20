//! What packets tell without code, case by case: tables 33-14, 33-55 to 33-59, and what goes wrong.

mod common;

use cofi_flow::{Event, EventDecoder, FlowConfig, FlowDecoder, Item, LocatedEvent};
use cofi_insn::Segment;
use cofi_packet::Ip;
use common::{hex, matches, packets, told_word};

fn told(trace: &str) -> Vec<LocatedEvent> {
    let trace = packets(trace);
    let decoder = EventDecoder::new(&trace, FlowConfig::default());
    decoder.with_branches().with_ticks().collect()
}

#[test]
fn packets_are_bound_as_the_manual_says() {
    let (mut cases, mut wrong) = (0, 0);
    let mut name = "";
    let mut trace = "";
    for line in include_str!("events.txt").lines() {
        match line.split_once(": ") {
            Some(("case", text)) => name = text,
            Some(("trace", text)) => trace = text,
            Some(("told", wanted)) => {
                let found: Vec<String> = told(trace).iter().map(told_word).collect();
                let found = found.join(" ");
                cases += 1;
                if !matches(&found, wanted) {
                    eprintln!("{name}\n  trace:  {trace}\n  wanted: {wanted}\n  found:  {found}\n");
                    wrong += 1;
                }
            }
            _ => assert!(line.is_empty() || line.starts_with('#'), "{line:?}"),
        }
    }
    assert!(cases >= 40, "{cases} cases");
    assert_eq!(wrong, 0, "cases are wrong");
}

#[test]
fn offsets_are_those_of_first_packets_and_times_those_of_the_timing_packets_before() {
    let text = "psb tsc:1000 psbend mode:32 pge:1000 cfe:1 tsc:2000 fup:1002 pip:5000 tip:2000";
    let seen: Vec<(String, u64, Option<u64>)> = told(text)
        .iter()
        .map(|told| (told_word(told), told.offset.0, told.tsc.map(|tsc| tsc.0)))
        .collect();
    let seen: Vec<(&str, u64, Option<u64>)> = seen
        .iter()
        .map(|(word, offset, tsc)| (word.as_str(), *offset, *tsc))
        .collect();
    assert_eq!(
        seen,
        [
            ("tsc[tsc]", 16, Some(0x1000)),
            ("enabled:1000[tip.pge]", 28, Some(0x1000)),
            ("mode:32@1000[mode.exec+tip.pge]", 26, Some(0x1000)),
            ("tsc[tsc]", 39, Some(0x2000)),
            ("Interrupt:14@1002[cfe+fup]", 35, Some(0x1000)),
            ("async:1002>2000[fup+tip]", 47, Some(0x2000)),
            ("paging:5000@2000[pip+tip]", 54, Some(0x2000)),
        ]
    );
}

/// Cases of the instruction level with code: where no instruction is needed to bind them, both levels tell the same events in the same order.
#[test]
fn both_levels_tell_the_same() {
    let code: Vec<u8> = "90 75 fd 90 90 0f 05 48 cf 90 90 0f 05"
        .split(' ')
        .map(|byte| hex(byte) as u8)
        .collect();
    let text = "psb psbend mode:64 pge:1000 tnt:TN fup:1004 pip:5000 tip:1007 cfe.ip:2 fup:1007 mode:64 tip:1004 \
                exstop:ip fup:1004 pwrx:1 bbp bip:7 bep:ip fup:1004 mnt:9 pgd:- mwait:1 exstop pip:6000 stop pge:1009 ovf fup:100a \
                psb pip:7000 psbend fup:100a pgd:-";
    let trace = packets(text);
    let source = Segment {
        base: Ip(0x1000),
        bytes: &code,
    };
    let events: Vec<Event> = FlowDecoder::new(&trace, source, FlowConfig::default())
        .filter_map(|item| match item {
            Item::Insn(_) => None,
            Item::Event(event) => Some(event),
            Item::Error(error) => panic!("{error}"),
        })
        .collect();
    let told: Vec<Event> = EventDecoder::new(&trace, FlowConfig::default())
        .map(|told| told.what.expect("no error"))
        .collect();
    assert!(events.len() >= 18, "{events:?}");
    assert_eq!(told, events);
}
