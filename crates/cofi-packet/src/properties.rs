//! What must hold of both formats: golden lines, and properties of random packets, streams and bytes.

use crate::table::PacketKind;
use crate::{
    Assembler, Buffer, Chunks, DecodeError, EncodeError, Encoder, Format, Full, Item, Listing,
    Packets, Raw, extent,
};
use core::convert::Infallible;
use proptest::collection::vec;
use proptest::prelude::*;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

pub(crate) fn hex(text: &str) -> Vec<u8> {
    text.split_ascii_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"))
        .collect()
}

/// The lines `[CONTEXT:] BYTES | TEXT`.
pub(crate) fn golden(lines: &str) -> impl Iterator<Item = (&str, Vec<u8>, &str)> {
    lines.lines().map(|line| {
        let (bytes, text) = line.split_once(" | ").expect("bytes and text");
        let (context, bytes) = bytes.split_once(": ").unwrap_or(("", bytes));
        (context, hex(bytes), text)
    })
}

fn assemble<F: Format>(context: F::Context, lines: &[String]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut assembler = Assembler::<F, _>::in_context(
        |packet: &[u8]| -> Result<(), Infallible> {
            bytes.extend_from_slice(packet);
            Ok(())
        },
        context,
    );
    for line in lines {
        assembler
            .line(line)
            .map_err(|error| format!("{line}: {error}"))?;
    }
    Ok(bytes)
}

/// Golden lines: bytes → text → bytes; every truncation; emission into a dirty buffer; every kind is there.
pub(crate) fn check_golden<F: Format>(lines: &str, context: impl Fn(&str) -> F::Context) {
    for (word, bytes, text) in golden(lines) {
        let context = context(word);
        let raw = F::decode(context, &bytes).unwrap_or_else(|error| panic!("{text}: {error}"));
        let packet = F::packet(&raw);
        assert_eq!(packet.to_string(), text);
        assert_eq!(raw.len(), bytes.len(), "{text}");
        assert_eq!(raw.reserved(), 0, "{text}");
        // What follows does not matter.
        let followed = [&bytes[..], &[0xa5; 20]].concat();
        assert_eq!(F::decode(context, &followed), Ok(raw), "{text}");

        let encoded = F::encode(&packet);
        assert_eq!(encoded, raw, "{text}");
        let mut dirty = [0xa5; 24];
        assert_eq!(encoded.emit(&mut dirty), Ok(bytes.len()), "{text}");
        assert_eq!(&dirty[..bytes.len()], &bytes[..], "{text}");
        assert!(
            dirty[bytes.len()..].iter().all(|byte| *byte == 0xa5),
            "{text}"
        );
        let mut small = std::vec![0xa5; bytes.len() - 1];
        let full = Full {
            need: bytes.len(),
            room: bytes.len() - 1,
        };
        assert_eq!(encoded.emit(&mut small), Err(full), "{text}");
        assert!(small.iter().all(|byte| *byte == 0xa5), "{text}");

        assert_eq!(
            assemble::<F>(context, &[text.into()]).as_deref(),
            Ok(&bytes[..]),
            "{text}"
        );

        for cut in 0..bytes.len() {
            match F::decode(context, &bytes[..cut]) {
                Err(DecodeError::Truncated { have, need }) => {
                    assert_eq!(usize::from(have), cut, "{text}");
                    let need = usize::from(need);
                    assert!(need > cut && need <= bytes.len(), "{text}: {need}");
                }
                other => panic!("{text} cut to {cut}: {other:?}"),
            }
        }
    }
    for kind in F::Kind::ALL {
        assert!(
            golden(lines).any(|(word, bytes, _)| {
                F::decode(context(word), &bytes).is_ok_and(|raw| raw.kind() == *kind)
            }),
            "{kind:?} has no golden line"
        );
        assert!(!kind.section().is_empty(), "{kind:?}");
    }
}

/// The table of packets in a module's documentation: every kind, its section, and an example that is one.
pub(crate) fn check_documentation<F: Format>(page: &str, context: impl Fn(&str) -> F::Context) {
    let mut told = Vec::new();
    for line in page.lines().skip(2) {
        let cells: Vec<_> = line
            .split('|')
            .map(|cell| cell.trim().trim_matches('`'))
            .collect();
        let [_, name, section, bytes, text, meaning, _] = cells[..] else {
            panic!("{line}");
        };
        let raw =
            F::decode(context(name), &hex(bytes)).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(
            (raw.kind().name(), raw.kind().section()),
            (name, section),
            "{line}"
        );
        assert_eq!(
            (F::packet(&raw).to_string(), raw.len()),
            (text.into(), hex(bytes).len()),
            "{line}"
        );
        assert!(!meaning.is_empty(), "{line}");
        told.push(raw.kind());
    }
    told.sort_by_key(|kind| F::Kind::ALL.iter().position(|other| other == kind));
    assert_eq!(told, F::Kind::ALL);
}

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

/// Items tile any input, are the same in chunks cut anywhere, and what was read is written again.
fn any_bytes_are_tiled<F: Format>(
    context: F::Context,
    bytes: &[u8],
    cuts: &[usize],
) -> Result<(), TestCaseError> {
    let items: Vec<Item<F>> = Packets::<F>::new(bytes).in_context(context).collect();
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
    prop_assert_eq!(chunked, items);

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

use crate::intel::{Block, IntelPt, ItemSize};
use crate::rtit::{Mode, Rtit};

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

    /// No text panics, and what is refused is shown.
    #[test]
    fn any_text_is_assembled_or_refused(line in "\\PC*|(\\.byte|tip|ptw|psb|tnt|x:|[a-z.]{0,6})( ?[a-z]{0,4}=?[-0-9a-fx_TN]{0,20}){0,4}") {
        for result in [refusal::<IntelPt>(Block::Outside, &line), refusal::<Rtit>(Mode::Plain, &line)] {
            if let Err((column, word)) = result {
                prop_assert!(line[column..].starts_with(&word), "{column} {word:?}");
            }
        }
    }
}

fn refusal<F: Format>(context: F::Context, line: &str) -> Result<(), (usize, String)> {
    let mut assembler = Assembler::<F, _>::in_context(crate::Nowhere, context);
    match assembler.line(line) {
        Ok(_) => Ok(()),
        Err(crate::AssembleError::Text(error)) => {
            let (column, word) = error.within(line);
            Err((column, word.into()))
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

#[test]
fn the_encoder_refuses_what_a_reader_would_not_read() {
    use crate::Misfit;
    use crate::intel::{BlockType, Packet, Payload};
    let mut buffer = [0; 64];
    let mut encoder = Encoder::<IntelPt, _>::new(Buffer::new(&mut buffer));
    let id = crate::Uint::truncate(1);
    let item = Packet::Bip {
        id,
        payload: Payload::Eight(0),
    };
    let misfit = |misfit| Err(EncodeError::Misfit(misfit));
    assert_eq!(encoder.packet(&item), misfit(Misfit::OutsideBlock));
    let begin = Packet::Bbp {
        size: ItemSize::Four,
        kind: BlockType::GPR,
    };
    assert_eq!(encoder.packet(&begin), Ok(()));
    assert_eq!(encoder.packet(&item), misfit(Misfit::ItemSize));
    assert_eq!(encoder.packet(&Packet::Psb), misfit(Misfit::InBlock));
    assert_eq!(encoder.packet(&Packet::Pad), Ok(()));
    assert_eq!(encoder.packet(&Packet::Bep { ip: false }), Ok(()));
    assert_eq!(encoder.packet(&Packet::Psb), Ok(()));
    assert_eq!(encoder.sink().written().len(), 3 + 1 + 2 + 16);

    let mut buffer = [0; 17];
    let mut encoder = Encoder::<IntelPt, _>::new(Buffer::new(&mut buffer));
    assert_eq!(encoder.packet(&Packet::Psb), Ok(()));
    let full = EncodeError::Sink(Full { need: 2, room: 1 });
    assert_eq!(encoder.packet(&Packet::PsbEnd), Err(full));
    assert_eq!(encoder.packet(&Packet::Pad), Ok(()));

    let mut buffer = [0; 64];
    let sink = Buffer::new(&mut buffer);
    let mut encoder = Encoder::<Rtit, _>::in_context(sink, Mode::CycleAccurate);
    let stop = crate::rtit::Packet::TraceStop;
    assert_eq!(encoder.packet(&stop), Ok(()));
    let mtc = |cycles| crate::rtit::Packet::Mtc {
        range: crate::Uint::truncate(0),
        tsc: 0,
        cycles,
    };
    assert_eq!(encoder.packet(&mtc(None)), misfit(Misfit::NoCycles));
    let cycles = crate::rtit::CycleCount::new(5);
    assert_eq!(encoder.packet(&mtc(cycles)), Ok(()));
    assert_eq!(encoder.sink().written(), [0xc1, 0xc4, 0, 0x15]);
}

#[test]
fn text_that_is_wrong_is_shown_where() {
    let refused = |line: &str| {
        let mut assembler = Assembler::<IntelPt, _>::new(crate::Nowhere);
        match assembler.line(line) {
            Err(crate::AssembleError::Text(error)) => {
                let (column, word) = error.within(line);
                format!("{column} {word:?}: {error}")
            }
            other => panic!("{line}: {other:?}"),
        }
    };
    for (line, expected) in [
        ("tipp 0x1", "0 \"tipp\": there is no packet of this name"),
        ("  here: tip", "11 \"\": the operand ipc is missing"),
        ("tip 0x1g", "4 \"0x1g\": this cannot be read as a value"),
        (
            "tip 0x100000000 ipc=1",
            "4 \"0x100000000\": the last IP does not allow this address to be sent so",
        ),
        (
            "tip 0x1 ipc=5",
            "12 \"5\": the value is out of range for ipc",
        ),
        ("tnt TNX", "4 \"TNX\": this cannot be read as a value"),
        (
            "tnt.8 TTTTTTT",
            "6 \"TTTTTTT\": the value is out of range for bits",
        ),
        ("mtc 256", "4 \"256\": the value is out of range for ctc"),
        (
            "mtc 5 ip=1",
            "6 \"ip=1\": the packet has no use for this operand",
        ),
        ("psb ; fine\u{0}", ""),
        (
            "bip id=1 payload=1",
            "0 \"bip\": a bip stands only between bbp and bep",
        ),
        (".byte 1 100", "8 \"100\": this cannot be read as a value"),
        ("cyc 5 raw=2d", "10 \"2d\": these bytes are not this packet"),
        (
            "mode.tsx intx=1 abort=1",
            "22 \"1\": the value is out of range for abort",
        ),
    ] {
        if expected.is_empty() {
            assert!(
                Assembler::<IntelPt, _>::new(crate::Nowhere)
                    .line(line)
                    .is_ok()
            );
        } else {
            assert_eq!(refused(line), expected, "{line}");
        }
    }
}

#[test]
fn text_as_people_write_it() {
    let lines = [
        "; a comment, and an empty line",
        "",
        "start:  PSB        # as psb",
        "        psbend",
        "  loop: Tip.Pge 0x40_1000",
        "tnt TNNT",
        "tnt TNNTTNNT",
        "tip 0b1",
        "fup - ; out of context",
        "mode.exec 64 if=1",
        "mode.exec mode=32",
        "cfe type=intr vector=14 ip=1",
        "cfe 1 14 ip=true",
        "ptw 0x1234",
        "ptw size=4 payload=0x1234",
        "bbp 4 gpr",
        "bip 2 7",
        "bep ip=1",
        "cyc 0 raw=070100",
        ".byte 5 ff",
        "1f: mwait 0x20 1",
    ]
    .map(String::from);
    let bytes = assemble::<IntelPt>(Block::Outside, &lines).unwrap();
    let expected = "02 82 02 82 02 82 02 82 02 82 02 82 02 82 02 82 02 23 51 00 10 40 00 32 02 a3 99 01 00 00 00 00 \
        4d 01 00 00 00 1d 99 05 99 02 02 13 81 0e 02 13 81 0e 02 32 34 12 00 00 00 00 00 00 02 12 34 12 00 00 \
        02 63 81 14 07 00 00 00 02 b3 07 01 00 05 ff 02 c2 20 00 00 00 01 00 00 00";
    assert_eq!(bytes, hex(expected));
}
