//! Any bytes as a stream, of Intel PT or RTIT, over any bytes as code: decoding ends, and errors lie in the stream.
#![no_main]

mod format;

use arbitrary::Arbitrary;
use cofi_flow::{FlowDecoder, Item};
use cofi_insn::{CodeSource, Segment};
use cofi_packet::Ip;
use format::Format;
use libfuzzer_sys::fuzz_target;

/// Instructions that may pass without a packet.
const RUN: u32 = 256;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Where the code stands: near 0, or near the end of the address space.
    high: bool,
    base: u16,
    format: Format,
    code: &'a [u8],
    stream: &'a [u8],
}

/// Code that repeats for ever, so that random addresses hit some.
#[derive(Clone, Copy)]
struct Tiled<'a>(Segment<'a>);

impl CodeSource for Tiled<'_> {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        let len = self.0.bytes.len() as u64;
        if len == 0 || ip < self.0.base {
            return 0;
        }
        for (index, byte) in buf.iter_mut().enumerate() {
            let at = (ip.0 - self.0.base.0).wrapping_add(index as u64) % len;
            *byte = self.0.bytes[at as usize];
        }
        buf.len()
    }
}

fuzz_target!(|input: Input<'_>| {
    let stream = input.format.stream(input.stream);
    let base = if input.high {
        u64::MAX - u64::from(input.base)
    } else {
        u64::from(input.base)
    };
    let code = Tiled(Segment {
        base: Ip(base),
        bytes: input.code,
    });
    let mut config = input.format.config(base);
    config.max_packetless_run = RUN;
    config.cache_limit = 1 << 16;

    // A packet of one byte decides at most 47 branches' worth of bits per 8 bytes; each may be followed by a whole run.
    let bound = (stream.len() as u64 * 8 + 64) * (u64::from(RUN) + 4);
    let mut decoder = FlowDecoder::new(&stream, code, config);
    let mut by_blocks = FlowDecoder::new(&stream, code, config);
    let mut ahead = std::collections::VecDeque::new();
    let mut items = 0;
    while let Some(item) = decoder.next() {
        items += 1;
        // Blocks hold the same, in the same order.
        if ahead.is_empty() {
            let end = by_blocks.blocks(|block| block.for_each(|insn| ahead.push_back(Item::Insn(insn))));
            ahead.extend(end);
        }
        assert_eq!(ahead.pop_front().as_ref(), Some(&item), "by blocks");
        assert!(
            items <= bound,
            "{items} items out of {} bytes",
            stream.len()
        );
        if let Item::Error(error) = item {
            assert!(
                error.offset.0 <= stream.len() as u64,
                "an error lies outside the stream: {error}"
            );
        }
        assert!(
            decoder.offset().0 <= stream.len() as u64,
            "the decoder stands outside the stream"
        );
    }
    assert!(ahead.is_empty() && by_blocks.next().is_none(), "blocks go on");
    assert!(decoder.next().is_none(), "a decoder that has ended goes on");
});
