//! Small programs with hand-made traces: what the manual's tables say must come out.

mod common;

use cofi_flow::{Errata, FlowConfig, FlowDecoder, IpFilter, Item, Part};
use cofi_insn::{CodeSource, Segment};
use cofi_packet::Ip;
use common::{hex, matches, packets, word};

/// Bytes as words.
fn code(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|byte| hex(byte) as u8)
        .collect()
}

/// The flow of `trace` over one piece of code, in words.
fn flow(base: u64, bytes: &[u8], trace: &[u8], config: FlowConfig) -> Vec<String> {
    let code = Segment {
        base: Ip(base),
        bytes,
    };
    FlowDecoder::new(trace, code, config)
        .take(100_000)
        .map(|item| word(&item))
        .collect()
}

/// Each case: a name; the code at 1000; the packets; the flow.
const CASES: &str = include_str!("scenarios.txt");

struct Case<'a> {
    name: &'a str,
    config: FlowConfig,
    code: String,
    trace: String,
    flow: String,
}

fn config(words: &str) -> FlowConfig {
    let mut config = FlowConfig::default();
    let mut errata = Errata::default();
    for word in words.split_whitespace() {
        match word {
            "cr3filter" => config.cr3_filter = true,
            "filter" => config.filter = IpFilter::new(&[(Ip(0x1000), Ip(0x100f))]),
            other => assert!(errata.set(other, true), "no configuration: {other:?}"),
        }
    }
    config.errata = errata;
    config
}

fn cases() -> Vec<Case<'static>> {
    let mut cases: Vec<Case<'static>> = Vec::new();
    for line in CASES
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
    {
        let (key, text) = line
            .split_once(':')
            .unwrap_or_else(|| panic!("no key: {line:?}"));
        let text = text.split(" ; ").next().unwrap();
        if key == "case" {
            cases.push(Case {
                name: text.trim(),
                config: config(""),
                code: String::new(),
                trace: String::new(),
                flow: String::new(),
            });
            continue;
        }
        let case = cases.last_mut().expect("a case begins with its name");
        match key {
            "with" => case.config = config(text),
            "code" => case.code += text,
            "trace" => case.trace += text,
            "flow" => case.flow += text,
            other => panic!("no key: {other:?}"),
        }
    }
    cases
}

#[test]
fn the_flow_is_what_the_manual_says() {
    let cases = cases();
    assert!(cases.len() >= 50, "{} cases", cases.len());
    let mut wrong = 0;
    for case in cases {
        let found = flow(
            0x1000,
            &code(&case.code),
            &packets(&case.trace),
            case.config,
        )
        .join(" ");
        let wanted = case.flow.split_whitespace().collect::<Vec<_>>().join(" ");
        if !matches(&found, &wanted) {
            eprintln!(
                "{}\n  trace:  {}\n  wanted: {wanted}\n  found:  {found}\n",
                case.name, case.trace
            );
            wrong += 1;
        }
    }
    assert_eq!(wrong, 0, "cases are wrong");
}

#[test]
fn the_flow_is_the_same_block_by_block() {
    for case in cases() {
        let (bytes, trace) = (code(&case.code), packets(&case.trace));
        let source = Segment {
            base: Ip(0x1000),
            bytes: &bytes,
        };
        let mut blocks = Vec::new();
        FlowDecoder::new(&trace, source, case.config).for_each(|item| blocks.push(word(&item)));
        let items = flow(0x1000, &bytes, &trace, case.config);
        assert_eq!(blocks, items, "{}", case.name);
    }
}

#[test]
fn every_prefix_of_every_trace_ends_quietly_or_with_a_located_error() {
    for case in cases() {
        let (bytes, trace) = (code(&case.code), packets(&case.trace));
        for len in 0..trace.len() {
            let source = Segment {
                base: Ip(0x1000),
                bytes: &bytes,
            };
            let mut items = 0;
            for item in FlowDecoder::new(&trace[..len], source, case.config) {
                items += 1;
                assert!(items < 10_000, "{} cut to {len}: no end", case.name);
                if let Item::Error(error) = item {
                    assert!(
                        error.offset.0 <= len as u64,
                        "{} cut to {len}: {error}",
                        case.name
                    );
                }
            }
        }
    }
}

#[test]
fn returns_deeper_than_the_stack_are_forgotten() {
    // 1000: call 1000 again and again; the trace then returns more often than 64 times.
    let bytes = code("75 06 e8 f9 ff ff ff c3 c3");
    let calls = "tnt:N ".repeat(70) + "tnt:T " + &"tnt:T ".repeat(65);
    let flow = flow(
        0x1000,
        &bytes,
        &packets(&format!("psb psbend pge:1000 {calls}")),
        FlowConfig::default(),
    );
    let returned = flow
        .iter()
        .filter(|word| ["1007", "1008"].contains(&word.as_str()))
        .count();
    assert_eq!(returned, 64);
    assert!(
        flow.last()
            .unwrap()
            .contains("compressed_return_without_a_call"),
        "{flow:?}"
    );
}

/// Code that changes while it is traced; and a source that notes what was read when.
struct Noted<'a> {
    code: Segment<'a>,
    reads: Vec<u64>,
}

impl CodeSource for Noted<'_> {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        self.reads.push(ip.0);
        self.code.read(ip, buf)
    }
}

#[test]
fn events_come_before_the_code_after_them_is_read() {
    let bytes = code("90 0f 05 90 ff e0");
    let trace =
        packets("psb psbend pge:1000 pgd:- pge:1003 tip:1000 fup:1001 pip:7000 tip:1004 pgd:-");
    let source = Noted {
        code: Segment {
            base: Ip(0x1000),
            bytes: &bytes,
        },
        reads: Vec::new(),
    };
    let mut decoder = FlowDecoder::new(&trace, source, FlowConfig::default());
    let mut reads_before = 0;
    while let Some(item) = decoder.next() {
        let reads = &decoder.code_mut().reads;
        match word(&item).as_str() {
            "enabled:1000" => assert!(reads.is_empty()),
            "resumed:1003" => assert!(reads.iter().all(|ip| *ip < 0x1003)),
            "async:1001>1004" => reads_before = reads.len(),
            "paging:7000" => assert_eq!(reads.len(), reads_before),
            _ => {}
        }
    }
    assert!(reads_before > 0 && decoder.code_mut().reads.len() > reads_before);
}

#[test]
fn changed_code_is_read_anew() {
    let (before, after) = (code("90 ff e0"), code("ff d0 90"));
    let trace = packets("psb psbend pge:1000 tip:1000 tip:1000 pgd:-");
    let source = Segment {
        base: Ip(0x1000),
        bytes: &before,
    };
    let mut decoder = FlowDecoder::new(&trace, source, FlowConfig::default());
    let mut flow = Vec::new();
    while let Some(item) = decoder.next() {
        flow.push(word(&item));
        if flow.len() == 3 {
            *decoder.code_mut() = Segment {
                base: Ip(0x1000),
                bytes: &after,
            };
            decoder.code_changed();
        }
    }
    assert_eq!(
        flow,
        ["enabled:1000", "1000", "1001", "1000", "1000", "disabled:-"]
    );
}

#[test]
fn code_that_becomes_known_heals_a_fault() {
    let bytes = code("90 75 fd 90");
    let trace = packets("psb psbend pge:1000 tnt:TNT psb fup:1000 psbend tnt:N fup:1004 pgd:-");
    let source = Segment {
        base: Ip(0x1000),
        bytes: &bytes[..1],
    };
    let mut decoder = FlowDecoder::new(&trace, source, FlowConfig::default());
    let mut flow = Vec::new();
    while let Some(item) = decoder.next() {
        if let Item::Error(error) = item {
            assert_eq!(error.ip, Some(Ip(0x1001)));
            *decoder.code_mut() = Segment {
                base: Ip(0x1000),
                bytes: &bytes,
            };
        }
        flow.push(word(&item));
    }
    assert_eq!(
        flow[4..],
        ["enabled:1000", "1000", "1001", "1003", "asyncoff:1004>-"]
    );
}

/// A return in 64-bit code to behind a call of 32-bit code: the same address, and other instructions.
#[test]
fn a_call_site_belongs_to_its_mode() {
    let mut bytes = vec![0xcc; 0x3001];
    let mut put = |at: usize, words: &str| {
        let code = code(words);
        bytes[at..at + code.len()].copy_from_slice(&code);
    };
    // call 0x2000; (dec eax; inc eax, or inc rax;) jmp far
    put(0, "e8 fb 0f 00 00 48 ff c0 ff 28");
    put(0x1000, "ff 28");
    put(0x2000, "c3");
    put(0x3000, "c3");
    let trace = packets(
        "psb psbend mode:32 pge:1000 mode:64 tip:3000 tnt:T mode:32 tip:1000 tip:4000 tnt:T pgd:1000",
    );
    let source = Segment {
        base: Ip(0x1000),
        bytes: &bytes,
    };
    let decoder = || FlowDecoder::new(&trace, source, FlowConfig::default());
    let items: Vec<String> = decoder().map(|item| word(&item)).collect();
    assert_eq!(
        items[items.len() - 5..],
        ["4000", "1005", "1006", "1008", "disabled:1000"]
    );
    let mut blocks = Vec::new();
    decoder().for_each(|item| blocks.push(word(&item)));
    assert_eq!(blocks, items);
}

/// A contradiction just before a PSB: the PSB+ is taken at its word.
#[test]
fn a_psb_that_comes_too_early_is_not_lost() {
    let bytes = code("75 00 ff e0 90 90 90 90 90 90 90 90 90 90 90 90 75 00 75 00 0f 05");
    let trace = packets("psb psbend pge:1000 tnt:NT psb mode:64 fup:1010 psbend tnt:TT pgd:-");
    let source = Segment {
        base: Ip(0x1000),
        bytes: &bytes,
    };
    let words: Vec<String> = FlowDecoder::new(&trace, source, FlowConfig::default())
        .map(|item| word(&item))
        .collect();
    let found = words.iter().position(|word| word == "1010");
    assert_eq!(
        words[found.expect("where the PSB+ is")..],
        ["1010", "1012", "1014", "disabled:-"]
    );
}

/// Found by fuzzing: the source knows more when it is asked again, just behind instructions that are still to be told.
#[test]
fn code_that_becomes_known_at_once_costs_nothing() {
    struct Late<'c>(&'c [u8], bool);
    impl CodeSource for Late<'_> {
        fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
            let known = if core::mem::replace(&mut self.1, true) {
                self.0
            } else {
                &self.0[..1]
            };
            Segment {
                base: Ip(0x1000),
                bytes: known,
            }
            .read(ip, buf)
        }
    }
    let bytes = code("90 0f 1f 00 75 fa 0f 05");
    let trace = packets("psb psbend pge:1000 tnt:N pgd:-");
    let decoder = || FlowDecoder::new(&trace, Late(&bytes, false), FlowConfig::default());
    let whole = ["enabled:1000", "1000", "1001", "1004", "1006", "disabled:-"];
    let items: Vec<String> = decoder().map(|item| word(&item)).collect();
    assert_eq!(items, whole);
    let mut blocks = Vec::new();
    decoder().for_each(|item| blocks.push(word(&item)));
    assert_eq!(blocks, whole);
    let mut parts = Vec::new();
    let mut decoder = decoder();
    while let Some(part) = decoder.next_part() {
        match part {
            Part::Run(run) => parts.extend(run.iter().map(|insn| word(&Item::Insn(insn)))),
            Part::Event(event) => parts.push(word(&Item::Event(event))),
            Part::Error(error) => parts.push(word(&Item::Error(error))),
        }
    }
    assert_eq!(parts, whole);
}

#[test]
fn time_and_offset_follow_the_packets_used() {
    let bytes = code("90 75 fd 0f 05");
    let mut config = FlowConfig::default();
    config.tsc_art_ratio = (100, 1);
    config.mtc_freq = 0;
    let trace = packets("psb tsc:10000 tma:5 psbend pge:1000 tnt:T mtc:7 tnt:N mtc:9 pgd:-");
    let source = Segment {
        base: Ip(0x1000),
        bytes: &bytes,
    };
    let mut decoder = FlowDecoder::new(&trace, source, config);
    let mut seen = Vec::new();
    while let Some(item) = decoder.next() {
        seen.push((
            word(&item),
            decoder.time().map(|time| time.tsc.0 - 0x10000),
            decoder.offset().0,
        ));
    }
    let at = |text: &str| seen.iter().find(|(word, ..)| word == text).unwrap();
    assert_eq!((at("enabled:1000").1, at("enabled:1000").2), (Some(0), 33));
    assert_eq!(at("1000").1, Some(0));
    assert_eq!(
        (at("disabled:-").1, at("disabled:-").2),
        (Some(400), trace.len() as u64 - 1)
    );
    assert!(
        seen.is_sorted_by_key(|(_, time, offset)| (*time, *offset)),
        "{seen:?}"
    );
}

#[test]
fn endless_straight_code_is_cut_off() {
    struct Nops;
    impl CodeSource for Nops {
        fn read(&mut self, _: Ip, buf: &mut [u8]) -> usize {
            buf.fill(0x90);
            buf.len()
        }
    }
    let mut config = FlowConfig::default();
    config.max_packetless_run = 100_000;
    config.cache_limit = 1 << 16;
    let trace = packets("psb psbend pge:1000 tnt:T");
    let (mut insns, mut errors) = (0, Vec::new());
    for item in FlowDecoder::new(&trace, Nops, config) {
        match item {
            Item::Insn(_) => insns += 1,
            Item::Error(error) => errors.push(error.to_string()),
            Item::Event(_) => {}
        }
    }
    assert!((90_000..=100_000).contains(&insns), "{insns}");
    assert!(
        errors.len() == 1 && errors[0].contains("without using up a packet"),
        "{errors:?}"
    );
}
