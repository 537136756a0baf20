//! What packets of RTIT tell without code, case by case.

mod common;

use cofi_flow::{Event, EventDecoder, FlowConfig, IpFilter, RtitFlowConfig, TraceFormat};
use cofi_packet::{Ip, StreamOffset, rtit};
use common::{matches, rtit_packets, told_word};

fn config(words: &str) -> FlowConfig {
    let mut config = FlowConfig::default();
    let mut format = RtitFlowConfig::default();
    for word in words.split_whitespace() {
        match word {
            "cycles" => format.cycles = rtit::Mode::CycleAccurate,
            "filter" => config.filter = IpFilter::new(&[(Ip(0x1000), Ip(0x10ff))]),
            other => assert!(
                config.errata.set(other, true),
                "no configuration: {other:?}"
            ),
        }
    }
    config.format = TraceFormat::Rtit(format);
    config
}

#[test]
fn packets_are_bound_as_the_reference_says() {
    let (mut cases, mut wrong) = (0, 0);
    let (mut name, mut trace, mut with) = ("", "", "");
    for line in include_str!("rtit_events.txt").lines() {
        match line.split_once(": ") {
            Some(("case", text)) => (name, with) = (text, ""),
            Some(("with", text)) => with = text,
            Some(("trace", text)) => trace = text,
            Some(("told", wanted)) => {
                let trace_bytes = rtit_packets(trace);
                let decoder = EventDecoder::new(&trace_bytes, config(with));
                let told = decoder.with_branches().with_ticks().take(1000);
                let found: Vec<String> = told.map(|told| told_word(&told)).collect();
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
    assert!(cases >= 15, "{cases} cases");
    assert_eq!(wrong, 0, "cases are wrong");
}

/// Parts of a stream tell together what the whole tells: only a compound event belongs to the part in which it begins.
#[test]
fn parts_tell_what_the_whole_tells() {
    let trace = rtit_packets(
        "psb pge:1000 tnt:TN psb tip:1004 far:1005 psb tip:2000 tnt:T psb tnt:TTTTTT pgd:2001 psb pge:1000 tip:1002",
    );
    let events = |range: core::ops::Range<usize>| -> Vec<Event> {
        let range = StreamOffset(range.start as u64)..StreamOffset(range.end as u64);
        EventDecoder::new(&trace, config(""))
            .with_branches()
            .within(range)
            .map(|told| told.what.expect("no error"))
            .collect()
    };
    let whole = events(0..trace.len());
    assert_eq!(whole.len(), 9, "{whole:?}");
    let mut at = 1;
    while let Some(psb) = rtit::sync_forward(&trace, at) {
        at = psb + 1;
        let parts = [events(0..psb), events(psb..trace.len())].concat();
        // The TIP of the FUP.FAR before the cut is told again, as the target that it is.
        let repeated = Event::Target { ip: Ip(0x2000) };
        let parts: Vec<Event> = parts
            .into_iter()
            .filter(|event| *event != repeated)
            .collect();
        assert_eq!(parts, whole, "cut at {psb}");
    }
}
