//! Small programs with hand-made RTIT traces: what the programming reference says must come out.

mod common;

use cofi_flow::{FlowConfig, FlowDecoder, IpFilter, Item, RtitFlowConfig, StopRanges, TraceFormat};
use cofi_insn::Segment;
use cofi_packet::{ExecMode, Ip, StreamOffset, Tsc, rtit};
use common::any::check_ways;
use common::{hex, matches, rtit_packets, word};

struct Case {
    name: &'static str,
    config: FlowConfig,
    at: Ip,
    code: Vec<u8>,
    trace: Vec<u8>,
    flow: String,
}

impl Case {
    fn code(&self) -> Segment<'_> {
        Segment {
            base: self.at,
            bytes: &self.code,
        }
    }

    fn decoder(&self) -> FlowDecoder<'_, Segment<'_>> {
        FlowDecoder::new(&self.trace, self.code(), self.config)
    }
}

fn range(text: &str) -> (Ip, Ip) {
    let (first, last) = text.split_once('-').expect("FIRST-LAST");
    (Ip(hex(first)), Ip(hex(last)))
}

fn config(words: &str) -> FlowConfig {
    let mut config = FlowConfig::default();
    let mut format = RtitFlowConfig::default();
    let mut filter = Vec::new();
    for word in words.split_whitespace() {
        match word.split_once(':').unwrap_or((word, "")) {
            ("cycles", _) => format.cycles = rtit::Mode::CycleAccurate,
            ("mode", "16") => config.initial_mode = ExecMode::Bits16,
            ("mode", "32") => config.initial_mode = ExecMode::Bits32,
            ("cr3filter", _) => config.cr3_filter = true,
            ("filter", text) => filter.push(range(text)),
            ("stop", text) => format.stop = StopRanges::new(&[range(text)]),
            ("buffer", bits) => {
                let bits = bits.chars().map(|bit| u8::from(bit == 'T'));
                format.tnt_buff = Some(bits.fold(1, |value, bit| value << 1 | bit));
            }
            (other, _) => assert!(
                config.errata.set(other, true),
                "no configuration: {other:?}"
            ),
        }
    }
    config.filter = IpFilter::new(&filter);
    config.format = TraceFormat::Rtit(format);
    config
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let lines = include_str!("rtit.txt").lines();
    for line in lines.filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let (key, text) = line
            .split_once(':')
            .unwrap_or_else(|| panic!("no key: {line:?}"));
        if key == "case" {
            cases.push(Case {
                name: text.trim(),
                config: config(""),
                at: Ip(0x1000),
                code: Vec::new(),
                trace: Vec::new(),
                flow: String::new(),
            });
            continue;
        }
        let text = text.split(" ; ").next().unwrap_or_default();
        let case = cases.last_mut().expect("a case begins with its name");
        match key {
            "with" => case.config = config(text),
            "at" => case.at = Ip(hex(text.trim())),
            "code" => {
                let bytes = text.split_whitespace();
                case.code = bytes.map(|byte| hex(byte) as u8).collect();
            }
            "trace" => case.trace = rtit_packets(text),
            "flow" => case.flow = text.trim().into(),
            other => panic!("no key: {other:?}"),
        }
    }
    cases
}

#[test]
fn the_flow_is_what_the_reference_says() {
    let cases = cases();
    assert!(cases.len() >= 80, "{} cases", cases.len());
    let mut wrong = 0;
    for case in cases {
        let words: Vec<String> = case.decoder().take(100).map(|item| word(&item)).collect();
        let found = words.join(" ");
        if !matches(&found, &case.flow) {
            eprintln!(
                "{}\n  wanted: {}\n  found:  {found}\n",
                case.name, case.flow
            );
            wrong += 1;
        }
    }
    assert_eq!(wrong, 0, "cases are wrong");
}

#[test]
fn all_ways_through_a_flow_give_the_same() {
    for case in cases() {
        check_ways(&case.trace, case.code(), case.config)
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
    }
}

/// Items, of which there is an end.
fn items(decoder: FlowDecoder<'_, Segment<'_>>) -> Vec<Item> {
    let items: Vec<Item> = decoder.take(10_000).collect();
    assert!(items.len() < 10_000, "no end");
    items
}

#[test]
fn every_prefix_of_every_trace_ends_quietly_or_with_a_located_error() {
    for case in cases() {
        for len in 0..case.trace.len() {
            let decoder = FlowDecoder::new(&case.trace[..len], case.code(), case.config);
            for item in items(decoder) {
                if let Item::Error(error) = item {
                    assert!(error.offset.0 <= len as u64, "{} cut to {len}", case.name);
                }
            }
        }
    }
}

/// The flow of a trace that is cut at each PSB in turn is the flow of the whole, as far as calls do not matter that ran before the cut.
#[test]
fn a_trace_may_be_cut_at_its_psbs() {
    let mut cuts = 0;
    // Where E8 spoils what stands behind a PSB, only who saw what stands before it may notice.
    for case in cases()
        .into_iter()
        .filter(|case| !case.name.starts_with("E8"))
    {
        let whole = instructions(case.decoder());
        let mut at = 0;
        while let Some(psb) = rtit::sync_forward(&case.trace, at) {
            at = psb + 1;
            let cut = StreamOffset(psb as u64);
            let end = StreamOffset(case.trace.len() as u64);
            let first = instructions(case.decoder().within(StreamOffset(0)..cut));
            let second = instructions(case.decoder().within(cut..end));
            assert_eq!([first, second].concat(), whole, "{} at {psb}", case.name);
            cuts += 1;
        }
    }
    assert!(cuts > 100, "{cuts}");
}

fn instructions(decoder: FlowDecoder<'_, Segment<'_>>) -> Vec<Ip> {
    decoder
        .filter_map(|item| match item {
            Item::Insn(insn) => Some(insn.ip),
            _ => None,
        })
        .collect()
}

#[test]
fn behind_the_highest_address_of_the_mode_stands_the_lowest() {
    let code = [0x90; 0x100];
    let code = Segment {
        base: Ip(0xffc0),
        bytes: &code,
    };
    // FUP.PGE 0xffff, and a result that no branch takes.
    let trace = [&rtit::PSB[..], &[0x84, 0xff, 0xff, 0b11, 0xc1]].concat();
    let config = config("mode:16");
    let decoder = FlowDecoder::new(&trace, code, config);
    // What stands at 0x10000 is not what stands at 0.
    assert_eq!(instructions(decoder), [Ip(0xffff)]);
}

/// The instructions of code at 0x1000, and the earliest time of each.
fn earliest(code: &[u8], trace: &[u8]) -> Vec<(Ip, Tsc)> {
    let segment = Segment {
        base: Ip(0x1000),
        bytes: code,
    };
    let mut decoder = FlowDecoder::new(trace, segment, config(""));
    let mut times = Vec::new();
    while let Some(item) = decoder.next() {
        if let Item::Insn(insn) = item {
            let time = decoder.time().expect("it is told");
            times.push((insn.ip, time.earliest));
        }
    }
    times
}

/// A PIP of a MOV to CR0 is bound to the first on the way; but it may be of a later one, as one that leaves PG as it is has none.
#[test]
fn what_follows_a_mov_to_cr0_may_be_older_than_its_pip() {
    // mov cr3; mov cr0; nop; mov cr0
    let code = [0x0f, 0x22, 0xd8, 0x0f, 0x22, 0xc0, 0x90, 0x0f, 0x22, 0xc0];
    let trace =
        rtit_packets("psb sts:1000 pge:1000 pip:5000 sts:2000 pip.off:5000 sts:3000 pgd:100a");
    let all = [0x1000, 0x1003, 0x1006, 0x1007];
    assert_eq!(earliest(&code, &trace), all.map(|ip| (Ip(ip), Tsc(0x1000))));
}

/// If a PIP of a MOV to CR0 may be of the MOV to CR3 behind it, the next PIP may be of the one behind that.
#[test]
fn a_mov_to_cr3_behind_a_mov_to_cr0_may_be_older_than_its_pip() {
    // mov cr0; nop; mov cr3; nop; mov cr3
    let code = [
        0x0f, 0x22, 0xc0, 0x90, 0x0f, 0x22, 0xd8, 0x90, 0x0f, 0x22, 0xd8,
    ];
    let trace =
        rtit_packets("psb sts:1000 pge:1000 sts:1100 pip:5000 sts:2000 pip:6000 sts:3000 pgd:100b");
    let all = [0x1000, 0x1003, 0x1004, 0x1007, 0x1008];
    assert_eq!(earliest(&code, &trace), all.map(|ip| (Ip(ip), Tsc(0x1000))));
}

/// Each part of a trace is looked at ahead only once, whatever stands there.
#[test]
fn many_trace_stops_before_an_overflow_come_to_an_end() {
    let mut trace = rtit_packets("psb pge:1000");
    trace.extend(rtit_packets("stop").repeat(60_000));
    trace.extend(rtit_packets("ovf:1000 pgd:1001"));
    let code = Segment {
        base: Ip(0x1000),
        bytes: &[0x90],
    };
    // Were each to look ahead, this would not end for hours.
    let items = FlowDecoder::new(&trace, code, config("rtit_e4")).count();
    assert_eq!(items, 1 + 60_000 + 3);
}
