//! Any text as packets, PT or RTIT: a line is refused with a place in it, or its bytes are listed as text that gives them again.
#![no_main]

use arbitrary::Arbitrary;
use cofi_packet::intel::{Block, IntelPt};
use cofi_packet::rtit::{Mode, Rtit};
use cofi_packet::{AssembleError, Assembler, Format, Listing, Packets};
use libfuzzer_sys::fuzz_target;
use std::convert::Infallible;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    format: u8,
    text: &'a str,
}

fuzz_target!(|input: Input<'_>| {
    match input.format % 3 {
        0 => check::<IntelPt>(Block::Outside, input.text),
        1 => check::<Rtit>(Mode::Plain, input.text),
        _ => check::<Rtit>(Mode::CycleAccurate, input.text),
    }
});

fn assemble<F: Format>(context: F::Context, text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut assembler = Assembler::<F, _>::in_context(
        |packet: &[u8]| -> Result<(), Infallible> {
            bytes.extend_from_slice(packet);
            Ok(())
        },
        context,
    );
    for line in text.lines() {
        match assembler.line(line) {
            Err(AssembleError::Text(error)) => {
                let (column, word) = error.within(line);
                assert!(
                    line[column..].starts_with(word),
                    "the place is not in the line"
                );
            }
            Err(AssembleError::Sink(never)) => match never {},
            Ok(_) => {}
        }
    }
    bytes
}

fn check<F: Format>(context: F::Context, text: &str) {
    let bytes = assemble::<F>(context, text);
    let mut listing = Listing::<F>::new();
    let mut again = String::new();
    for item in Packets::<F>::new(&bytes).in_context(context) {
        let raw = match item {
            Ok(located) => located.raw,
            Err(error) => match error.packet {
                Some(raw) => raw,
                // `.byte` made no packets; from there on the text stands for other bytes.
                None => return,
            },
        };
        again.push_str(&listing.next(&raw).to_string());
        again.push('\n');
    }
    assert_eq!(
        assemble::<F>(context, &again),
        bytes,
        "text and bytes do not agree:\n{again}"
    );
}
