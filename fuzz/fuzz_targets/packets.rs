//! Any bytes as a stream of packets, PT or RTIT: items tile them, are the same for a visitor and in chunks, and are written again as the same
//! bytes, by the encoder and by way of text.
#![no_main]

use arbitrary::Arbitrary;
use cofi_packet::intel::{Block, IntelPt, ItemSize};
use cofi_packet::rtit::{Mode, Rtit};
use cofi_packet::{
    Assembler, Chunks, Encoder, Format, Listing, Located, PacketVisitor, Packets, StreamError, StreamItem,
    extent,
};
use libfuzzer_sys::fuzz_target;
use std::convert::Infallible;

#[derive(Arbitrary, Debug)]
enum Context {
    Plain,
    Block4,
    Block8,
    Rtit,
    CycleAccurate,
}

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    context: Context,
    /// Where the stream is cut, over and over.
    chunk: u8,
    bytes: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    match input.context {
        Context::Plain => check::<IntelPt>(Block::Outside, &input),
        Context::Block4 => check::<IntelPt>(Block::Inside(ItemSize::Four), &input),
        Context::Block8 => check::<IntelPt>(Block::Inside(ItemSize::Eight), &input),
        Context::Rtit => check::<Rtit>(Mode::Plain, &input),
        Context::CycleAccurate => check::<Rtit>(Mode::CycleAccurate, &input),
    }
});

/// Keeps what it is shown.
struct Seen<F: Format>(Vec<StreamItem<F>>);

impl<F: Format> PacketVisitor<F> for Seen<F> {
    fn packet(&mut self, packet: Located<F>) {
        self.0.push(Ok(packet));
    }

    fn error(&mut self, error: &StreamError<F>) {
        self.0.push(Err(*error));
    }
}

fn check<F: Format>(context: F::Context, input: &Input<'_>) {
    let items: Vec<StreamItem<F>> = Packets::<F>::new(input.bytes).in_context(context).collect();

    let mut at = 0;
    let (mut encoded, mut assembled) = (Vec::new(), Vec::new());
    let store = |into: &mut Vec<u8>, packet: &[u8]| -> Result<(), Infallible> {
        into.extend_from_slice(packet);
        Ok(())
    };
    let mut encoder =
        Encoder::<F, _>::in_context(|packet: &[u8]| store(&mut encoded, packet), context);
    let mut assembler =
        Assembler::<F, _>::in_context(|packet: &[u8]| store(&mut assembled, packet), context);
    let mut listing = Listing::<F>::new();
    for item in &items {
        let (offset, size) = extent(item);
        assert_eq!(offset.0, at as u64, "items leave a gap or overlap");
        assert!(size > 0, "an item takes no bytes");
        let bytes = &input.bytes[at..at + size];
        at += size;
        // Bytes that form no packet are told too: an address may have been in there.
        let listed = listing.item(item);
        let raw = match item {
            Ok(located) => located.raw,
            Err(error) => match error.packet {
                Some(raw) => raw,
                // The state is lost with them: what follows begins at a PSB, or the end.
                None => {
                    encoder.bytes(bytes).expect("bytes can be written");
                    let bytes: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    assembler
                        .line(&format!(".byte {}", bytes.join(" ")))
                        .expect("bytes are text");
                    continue;
                }
            },
        };
        assert_eq!(
            &raw.bytes()[..raw.len()],
            bytes,
            "a packet's bytes are not those of the stream"
        );
        encoder.raw(&raw).expect("what was read can be written");
        let typed = F::encode(&F::packet(&raw));
        assert_eq!(
            F::packet(&typed),
            F::packet(&raw),
            "encoding changed the packet"
        );
        assert!(
            typed.len() <= raw.len(),
            "encoding takes more bytes than the original"
        );
        let line = listed.expect("a packet is listed").to_string();
        assembler
            .line(&line)
            .unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    assert_eq!(at, input.bytes.len(), "items end before the input does");
    assert_eq!(encoded, input.bytes, "encoding changed the bytes");
    assert_eq!(
        assembled, input.bytes,
        "the way through text changed the bytes"
    );

    let mut chunks = Chunks::<F>::in_context(context);
    let mut chunked = Vec::new();
    for chunk in input.bytes.chunks(usize::from(input.chunk).max(1)) {
        chunked.extend(chunks.feed(chunk));
    }
    chunked.extend(chunks.finish());
    assert_eq!(chunked, items, "chunks give other items than the whole");

    let mut seen = Seen(Vec::new());
    Packets::new(input.bytes).in_context(context).visit(&mut seen);
    assert_eq!(seen.0, items, "a visitor is shown other items");
}
