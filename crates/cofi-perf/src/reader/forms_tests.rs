//! The other forms of a file: as a pipe carries it, and compressed. They hold what the plain form holds.

use super::support::{Fields, Parts, raw_frame, record};
use super::tests::written;
use super::*;
use crate::constants::RecordKind;
use crate::{ErrorKind, PtConfig};
use proptest::prelude::*;

/// What matters of a file's records: all but those of the form itself, and without their places.
fn content(file: &File<'_>) -> Vec<String> {
    const FORM: [RecordKind; 5] = [
        RecordKind::HEADER_ATTR,
        RecordKind::HEADER_FEATURE,
        RecordKind::HEADER_BUILD_ID,
        RecordKind::COMPRESSED,
        RecordKind::COMPRESSED2,
    ];
    let records = file.records().map(Result::unwrap);
    records
        .filter(|record| !FORM.contains(&record.kind))
        .map(|record| format!("{:?} {:?}", record.id, record.body))
        .collect()
}

fn sorted(mut content: Vec<String>) -> Vec<String> {
    content.sort();
    content
}

fn plain() -> Vec<u8> {
    written(PtConfig::default())
}

fn encoded(bytes: &[u8]) -> Vec<u8> {
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    ruzstd::encoding::compress_to_vec(bytes, level)
}

#[test]
fn a_pipe_carries_what_a_file_holds() {
    let plain = plain();
    let file = File::parse(&plain).unwrap();
    let mut parts = Parts::of(&plain);
    // The last entry of the section, which a pipe has as a record instead.
    let entry = Fields::default().u32(7).bytes(&[0xab; 24]).text(b"/bin/a");
    parts.data.extend(record(67, 0, entry));
    let piped = parts.pipe();
    let pipe = File::parse(&piped).unwrap();
    assert_eq!(pipe.problems(), []);
    assert_eq!(pipe.attrs(), file.attrs());
    assert_eq!(content(&pipe), content(&file));
    for feature in [Feature::ARCH, Feature::CMDLINE, Feature::EVENT_DESC] {
        assert!(pipe.feature(feature).is_some());
        assert_eq!(pipe.feature(feature), file.feature(feature));
    }
    let ids: Vec<_> = pipe.build_ids().map(Result::unwrap).collect();
    assert_eq!(
        (ids.len(), ids[0].pid, ids[0].path),
        (1, 7, b"/bin/a".as_slice())
    );
}

#[test]
fn a_pipe_that_breaks_is_read_up_to_there() {
    let whole = Parts::of(&plain()).pipe();
    let all = File::parse(&whole).unwrap().records().count();
    for len in 16..whole.len() {
        let file = File::parse(&whole[..len]).unwrap();
        let mut good = 0;
        for record in file.records() {
            match record {
                Ok(_) => good += 1,
                Err(error) => assert!(error.offset < len as u64, "{error}"),
            }
        }
        assert!(good < all || len > whole.len() - 8);
    }
    let headless = [&whole[..16], &record(64, 0, Fields::default().u64(0))].concat();
    let file = File::parse(&headless).unwrap();
    let kind = ErrorKind::RecordShort {
        kind: RecordKind::HEADER_ATTR,
        size: 16,
    };
    assert_eq!(file.problems()[0].kind, kind);
}

#[test]
fn what_was_compressed_is_there() {
    let plain = plain();
    let expected = sorted(content(&File::parse(&plain).unwrap()));
    for (chunk, raw) in [(9, true), (9, false), (40, true), (4000, false)] {
        let mut parts = Parts::of(&plain);
        parts.compress(chunk, |bytes| match raw {
            true => raw_frame(bytes, 70),
            false => encoded(bytes),
        });
        for bytes in [parts.file(), parts.pipe()] {
            let file = File::parse(&bytes).unwrap();
            assert_eq!(file.problems(), []);
            assert_eq!(sorted(content(&file)), expected);
            // Packets are not compressed, so they are a part of the input.
            for record in file.records().map(Result::unwrap) {
                if let Body::Auxtrace { payload, .. } = record.body {
                    assert!(file.part_of_input(payload).is_some());
                }
            }
        }
    }
}

#[test]
fn newer_compressed_records_say_their_size() {
    let plain = plain();
    let mut parts = Parts::of(&plain);
    parts.compress(60, |bytes| raw_frame(bytes, 50));
    let newer: Vec<_> = parts
        .records()
        .into_iter()
        .map(|old| match old[0] {
            81 => {
                let size = old.len() as u64 - 8;
                let body = Fields::default().u64(size).bytes(&old[8..]);
                record(83, 0, body.bytes(&[0xff; 5]))
            }
            _ => old,
        })
        .collect();
    parts.data = newer.concat();
    let bytes = parts.file();
    let file = File::parse(&bytes).unwrap();
    assert_eq!(file.problems(), []);
    let expected = content(&File::parse(&plain).unwrap());
    assert_eq!(sorted(content(&file)), sorted(expected));
}

#[test]
fn damage_within_compressed_records_loses_what_is_behind_it() {
    let plain = plain();
    let mut parts = Parts::of(&plain);
    // The third block is of the kind that is reserved.
    parts.compress(4000, |bytes| {
        let mut frame = raw_frame(bytes, 100);
        frame[6 + 2 * 103] |= 3 << 1;
        frame
    });
    let bytes = parts.file();
    let file = File::parse(&bytes).unwrap();
    let problem = file.problems()[0];
    assert!(matches!(problem.kind, ErrorKind::Zstd { .. }), "{problem}");
    let comms = file.records().filter(|record| {
        let body = record.as_ref().map(|record| &record.body);
        matches!(body, Ok(Body::Comm { .. }))
    });
    assert_eq!(comms.count(), 1);
}

/// 128 KiB come out for each four bytes that go in.
#[test]
fn a_bomb_goes_off_in_a_small_room() {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 10 << 3];
    let block = (0x2_0000_u32 << 3 | 1 << 1).to_le_bytes();
    for _ in 0..4000 {
        frame.extend(&block[..3]);
        frame.push(0);
    }
    let mut parts = Parts::of(&plain());
    parts.data = record(81, 0, Fields(frame.clone()));
    let bytes = parts.file();
    let file = File::parse(&bytes).unwrap();
    let kind = file.problems()[0].kind;
    let ErrorKind::ZstdTooMuch { limit } = kind else {
        panic!("{kind}");
    };
    assert!(limit <= 256 * frame.len() + (1 << 20));
    assert!(file.unpacked.len() <= limit);
}

proptest! {
    #[test]
    fn no_damage_panics(chunk in 8_usize..300, raw: bool, pipe: bool, at: prop::sample::Index, bits: u8) {
        let mut parts = Parts::of(&plain());
        parts.compress(chunk, |bytes| if raw { raw_frame(bytes, 64) } else { encoded(bytes) });
        let mut bytes = if pipe { parts.pipe() } else { parts.file() };
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
        if let Ok(file) = File::parse(&bytes) {
            for record in file.records() {
                match record {
                    Ok(record) => prop_assert!(record.offset < bytes.len() as u64),
                    Err(error) => prop_assert!(error.offset <= bytes.len() as u64),
                }
            }
        }
    }

    #[test]
    fn nothing_that_is_no_zstd_panics(stream in prop::collection::vec(any::<u8>(), 0..200), whole: bool) {
        let mut parts = Parts::of(&plain());
        let mut frame = if whole { vec![0x28, 0xb5, 0x2f, 0xfd] } else { Vec::new() };
        frame.extend(stream);
        parts.data = record(81, 0, Fields(frame));
        let bytes = parts.file();
        let file = File::parse(&bytes).unwrap();
        prop_assert!(file.unpacked.len() <= 256 * bytes.len() + (1 << 20));
    }
}
