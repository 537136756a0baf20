//! Any bytes behind a PSB: the event level comes to an end, stays within the stream, and tells no more than the packets can; TNT bits
//! and targets change nothing of the rest.
#![no_main]

mod format;

use arbitrary::Arbitrary;
use cofi_flow::{Event, EventDecoder, LocatedEvent};
use format::Format;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    format: Format,
    ticks: bool,
    stream: &'a [u8],
}

fn decode(input: &Input<'_>, stream: &[u8], branches: bool) -> Vec<LocatedEvent> {
    let mut decoder = EventDecoder::new(stream, input.format.config(0));
    if branches {
        decoder = decoder.with_branches();
    }
    if input.ticks {
        decoder = decoder.with_ticks();
    }
    // A packet of a byte tells a few things at the most; a PSB+ as many as there is state.
    let bound = stream.len() * 16 + 64;
    let told: Vec<LocatedEvent> = decoder.take(bound + 1).collect();
    assert!(told.len() <= bound, "{} events of {} bytes", told.len(), stream.len());
    told
}

fuzz_target!(|input: Input<'_>| {
    let stream = input.format.stream(input.stream);
    let told = decode(&input, &stream, true);
    for told in &told {
        assert!(told.offset.0 <= stream.len() as u64, "outside of the stream: {told:?}");
        if let Err(error) = &told.what {
            assert!(!error.to_string().is_empty());
        }
    }
    let fewer = decode(&input, &stream, false);
    let others = told
        .iter()
        .filter(|told| !matches!(told.what, Ok(Event::Target { .. } | Event::Branches { .. })));
    assert!(others.eq(&fewer), "branches change what else is told");
});
