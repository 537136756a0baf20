//! What must hold of both formats.

mod examples;
mod properties;

use crate::table::PacketKind;
use crate::{DecodeError, Format, Full};
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

pub(crate) fn assemble<F: Format>(
    context: F::Context,
    lines: &[String],
) -> Result<Vec<u8>, String> {
    crate::assemble::<F, _>(&lines.join("\n"), context)
        .map_err(|error| format!("{}: {}", lines[error.line - 1], error.error))
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
