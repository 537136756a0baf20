//! Properties of random packets, streams, bytes and lines.

use super::assemble;
use crate::intel::{Block, IntelPt, ItemSize};
use crate::rtit::{Mode, Rtit};
use crate::table::PacketKind;
use crate::{
    Assembler, Buffer, Chunks, Encoder, Format, Listing, Located, PacketVisitor, Packets, Raw,
    StreamError, StreamItem, TextErrorKind, extent,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::string::{String, ToString};
use std::vec::Vec;

/// Any packet of any kind, with anything in its reserved bits; `None` where those bits make none.
fn any_packet<F: Format>(context: F::Context, kind: usize, bits: u128) -> Option<Raw<F::Kind>> {
    let kind = F::Kind::ALL[kind % F::Kind::ALL.len()];
    let row = kind.row();
    let word = row.value | bits & !row.mask;
    F::decode(context, &word.to_le_bytes()).ok()
}

/// A random stream of packets that may follow each other, as packets and as bytes.
fn stream<F: Format>(context: F::Context, seeds: &[(usize, u128)]) -> (Vec<Raw<F::Kind>>, Vec<u8>) {
    let (mut now, mut packets, mut bytes) = (context, Vec::new(), Vec::new());
    for (kind, bits) in seeds {
        let Some(raw) = any_packet::<F>(now, *kind, *bits) else {
            continue;
        };
        let (after, allowed) = F::after(now, &F::packet(&raw));
        if allowed {
            now = after;
            packets.push(raw);
            bytes.extend_from_slice(&raw.bytes()[..raw.len()]);
        }
    }
    (packets, bytes)
}

/// decode(encode(packets)) = packets, and so do text and chunks; whatever decodes encodes to the same bytes.
fn streams_round_trip<F: Format>(
    context: F::Context,
    seeds: &[(usize, u128)],
) -> Result<(), TestCaseError> {
    let (packets, bytes) = stream::<F>(context, seeds);
    let read: Vec<_> = Packets::<F>::new(&bytes)
        .in_context(context)
        .map(|item| item.map(|located| located.raw))
        .collect();
    prop_assert_eq!(read.len(), packets.len());
    for (read, packet) in read.iter().zip(&packets) {
        prop_assert_eq!(read.as_ref(), Ok(packet));
    }

    let mut buffer = std::vec![0; bytes.len()];
    let mut encoder = Encoder::<F, _>::in_context(Buffer::new(&mut buffer), context);
    for raw in &packets {
        prop_assert_eq!(encoder.raw(raw), Ok(()));
    }
    prop_assert_eq!(encoder.sink().written(), &bytes[..]);

    // The typed packets, reserved bits gone.
    let mut buffer = std::vec![0xa5; bytes.len()];
    let mut encoder = Encoder::<F, _>::in_context(Buffer::new(&mut buffer), context);
    for raw in &packets {
        prop_assert_eq!(encoder.packet(&F::packet(raw)), Ok(()), "{:?}", raw);
    }
    let typed: Vec<_> = Packets::<F>::new(encoder.sink().written())
        .in_context(context)
        .map(|item| item.map(|located| located.packet()))
        .collect();
    let expected: Vec<_> = packets.iter().map(|raw| Ok(F::packet(raw))).collect();
    prop_assert_eq!(typed, expected);

    let mut listing = Listing::<F>::new();
    let lines: Vec<_> = packets
        .iter()
        .map(|raw| listing.next(raw).to_string())
        .collect();
    prop_assert_eq!(assemble::<F>(context, &lines), Ok(bytes));
    // And without state: what `Display` prints is the packet without its reserved bits.
    for raw in packets
        .iter()
        .filter(|raw| F::encode(&F::packet(raw)) == **raw)
    {
        let bytes = &raw.bytes()[..raw.len()];
        if F::decode(context, bytes) == Ok(*raw) {
            let line = F::packet(raw).to_string();
            prop_assert_eq!(assemble::<F>(context, &[line]), Ok(bytes.to_vec()));
        }
    }
    Ok(())
}

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

/// Items tile any input, are the same for a visitor and in chunks cut anywhere, and what was read is written again.
fn any_bytes_are_tiled<F: Format>(
    context: F::Context,
    bytes: &[u8],
    cuts: &[usize],
) -> Result<(), TestCaseError> {
    let items: Vec<StreamItem<F>> = Packets::<F>::new(bytes).in_context(context).collect();
    let mut seen = Seen(Vec::new());
    Packets::new(bytes).in_context(context).visit(&mut seen);
    prop_assert_eq!(&seen.0, &items);
    let mut at = 0;
    for item in &items {
        let (offset, size) = extent(item);
        prop_assert_eq!(offset.0, at as u64);
        prop_assert!(size > 0);
        let raw = match item {
            Ok(located) => Some(located.raw),
            Err(error) => error.packet,
        };
        if let Some(raw) = raw {
            prop_assert_eq!(&raw.bytes()[..raw.len()], &bytes[at..at + size]);
        }
        at += size;
    }
    prop_assert_eq!(at, bytes.len());

    let mut chunks = Chunks::<F>::in_context(context);
    let (mut chunked, mut rest) = (Vec::new(), bytes);
    for cut in cuts.iter().copied().cycle() {
        let (chunk, behind) = rest.split_at(cut.min(rest.len()));
        chunked.extend(chunks.feed(chunk));
        rest = behind;
        if rest.is_empty() {
            break;
        }
    }
    chunked.extend(chunks.finish());
    prop_assert_eq!(&chunked, &items);

    // Who stops looking misses items, and no more.
    let mut chunks = Chunks::<F>::in_context(context);
    let mut missed = Vec::new();
    for chunk in bytes.chunks(150) {
        missed.extend(chunks.feed(chunk).take(3));
    }
    missed.extend(chunks.finish());
    prop_assert!(missed.iter().all(|item| items.contains(item)));
    prop_assert_eq!(chunks.offset().0, bytes.len() as u64);

    // Backward from PSB to PSB finds those that forward finds.
    let (mut forward, mut from) = (Vec::new(), 0);
    while let Some(psb) = F::find_psb(&bytes[from..]).map(|psb| from + psb) {
        forward.push(psb);
        from = psb + 1;
    }
    let (mut backward, mut before) = (Vec::new(), bytes.len());
    while let Some(psb) = F::sync_backward(bytes, before) {
        backward.push(psb);
        before = psb;
    }
    backward.reverse();
    prop_assert_eq!(backward, forward);
    Ok(())
}

fn seeds() -> impl Strategy<Value = Vec<(usize, u128)>> {
    // Bits that are mostly zero, mostly one, and in between.
    let bits = (any::<u128>(), any::<u128>(), 0_u8..4).prop_map(|(a, b, how)| match how {
        0 => a & b,
        1 => a | b,
        2 => a >> (b % 128) as u32,
        _ => a,
    });
    vec((any::<usize>(), bits), 0..60)
}

/// Bytes of which packets and their boundaries are made more often than by chance.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => any::<u8>().prop_map(|byte| std::vec![byte]),
        2 => Just(std::vec![2]),
        1 => Just(crate::intel::PSB.to_vec()),
        1 => Just(crate::rtit::PSB.to_vec()),
        1 => (1..20_usize).prop_map(|pairs| [2, 0x82].repeat(pairs)),
        1 => (1..20_usize).prop_map(|zeros| std::vec![0; zeros]),
        1 => Just(std::vec![2, 0x63, 0x81, 0x14]),
        1 => Just(std::vec![0xc0]),
    ];
    vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    vec(prop_oneof![3 => 1..8_usize, 1 => 1..200_usize], 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn pt_streams_round_trip(seeds in seeds()) {
        streams_round_trip::<IntelPt>(Block::Outside, &seeds)?;
    }

    #[test]
    fn pt_streams_round_trip_from_within_a_block(seeds in seeds(), four: bool) {
        let size = if four { ItemSize::Four } else { ItemSize::Eight };
        streams_round_trip::<IntelPt>(Block::Inside(size), &seeds)?;
    }

    #[test]
    fn rtit_streams_round_trip(seeds in seeds(), cycle_accurate: bool) {
        let mode = if cycle_accurate { Mode::CycleAccurate } else { Mode::Plain };
        streams_round_trip::<Rtit>(mode, &seeds)?;
    }

    #[test]
    fn pt_items_tile_any_bytes(bytes in bytes(), cuts in cuts()) {
        any_bytes_are_tiled::<IntelPt>(Block::Outside, &bytes, &cuts)?;
    }

    #[test]
    fn rtit_items_tile_any_bytes(bytes in bytes(), cuts in cuts(), cycle_accurate: bool) {
        let mode = if cycle_accurate { Mode::CycleAccurate } else { Mode::Plain };
        any_bytes_are_tiled::<Rtit>(mode, &bytes, &cuts)?;
    }

    /// Whatever address is sent, it is the address that is read, and no longer than it must be.
    #[test]
    fn pt_addresses_are_read_as_sent(ips in vec((any::<u64>(), 0_u32..64, any::<bool>()), 1..20)) {
        addresses::<IntelPt>(Block::Outside, crate::intel::Kind::Tip, &ips)?;
    }

    #[test]
    fn rtit_addresses_are_read_as_sent(ips in vec((any::<u64>(), 17_u32..64, any::<bool>()), 1..20)) {
        addresses::<Rtit>(Mode::Plain, crate::rtit::Kind::FupFar, &ips)?;
    }

    #[test]
    fn rtit_addresses_with_cycles(ips in vec((any::<u64>(), 17_u32..64, 0..1_u32 << 22), 1..20)) {
        let mut buffer = [0; 400];
        let sink = Buffer::new(&mut buffer);
        let mut encoder = Encoder::<Rtit, _>::in_context(sink, Mode::CycleAccurate);
        for (ip, shift, cycles) in &ips {
            let cycles = crate::rtit::CycleCount::new(*cycles).expect("22 bits");
            let ip = crate::Ip(ip >> shift);
            prop_assert_eq!(encoder.ip_with_cycles(crate::rtit::Kind::Tip, ip, cycles), Ok(()));
        }
        let mut listing = Listing::<Rtit>::new();
        let read: Vec<_> = Packets::<Rtit>::new(encoder.sink().written())
            .in_context(Mode::CycleAccurate)
            .filter_map(|item| listing.item(&item))
            .map(|listed| (listed.ip(), listed.packet().cycles().flatten().map(|cycles| cycles.get())))
            .collect();
        let sent: Vec<_> = ips
            .into_iter()
            .map(|(ip, shift, cycles)| (Some(Some(crate::Ip(ip >> shift))), Some(cycles)))
            .collect();
        prop_assert_eq!(read, sent);
    }

    /// No text panics, and what is refused is shown.
    #[test]
    fn any_text_is_assembled_or_refused(line in "\\PC*|(\\.byte|tip|ptw|psb|tnt|x:|[a-z.]{0,6})( ?[a-z]{0,4}=?[-0-9a-fx_TN]{0,20}){0,4}") {
        for result in [refusal::<IntelPt>(Block::Outside, &line), refusal::<Rtit>(Mode::Plain, &line)] {
            if let Err((column, word, kind)) = result {
                prop_assert!(line.is_char_boundary(column));
                prop_assert_eq!(word.is_empty(), matches!(kind, TextErrorKind::Missing(_)), "{}: {:?}", column, kind);
            }
        }
    }
}

fn refusal<F: Format>(
    context: F::Context,
    line: &str,
) -> Result<(), (usize, String, TextErrorKind)> {
    let mut assembler = Assembler::<F, _>::in_context(crate::Nowhere, context);
    match assembler.line(line) {
        Ok(_) => Ok(()),
        Err(crate::AssembleError::Text(error)) => {
            let (column, word) = error.within(line);
            Err((column, word.into(), error.kind))
        }
        Err(crate::AssembleError::Sink(never)) => match never {},
    }
}

fn addresses<F: Format>(
    context: F::Context,
    kind: F::Kind,
    ips: &[(u64, u32, bool)],
) -> Result<(), TestCaseError> {
    let mut buffer = [0; 400];
    let mut encoder = Encoder::<F, _>::in_context(Buffer::new(&mut buffer), context);
    let ips: Vec<_> = ips
        .iter()
        .map(|(ip, shift, high)| crate::Ip(if *high { !(ip >> shift) } else { ip >> shift }))
        .collect();
    for ip in &ips {
        prop_assert_eq!(encoder.ip(kind, *ip), Ok(()));
    }
    let mut listing = Listing::<F>::new();
    let read: Vec<_> = Packets::<F>::new(encoder.sink().written())
        .in_context(context)
        .map(|item| item.expect("a packet"))
        .map(|located| listing.next(&located.raw).ip().flatten())
        .collect();
    prop_assert_eq!(read, ips.into_iter().map(Some).collect::<Vec<_>>());
    Ok(())
}
