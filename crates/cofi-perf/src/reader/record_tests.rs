//! Files made by hand: records and events that the writer does not write.

use super::support::{Event, Fields, SAMPLE_ID_ALL};
use super::*;
use crate::ErrorKind;
use crate::PerfTime;
use crate::constants::RecordKind;
use proptest::prelude::*;

const IP_TID_TIME_CPU_IDENTIFIER: u64 = 0x10087;
const IP_TID_TIME_PERIOD_IDENTIFIER: u64 = 0x10107;

fn record(kind: RecordKind, misc: u16, body: Fields) -> Vec<u8> {
    support::record(kind.0, misc, body)
}

fn round() -> Vec<u8> {
    record(RecordKind::FINISHED_ROUND, 0, Fields::default())
}

/// A file with these events (type, sample_type, flags, ids), records and one feature.
fn file(
    events: &[(u32, u64, u64, &[u64])],
    data: &[u8],
    feature: Option<(Feature, &[u8])>,
) -> Vec<u8> {
    let events: Vec<_> = events
        .iter()
        .map(|(kind, sample_type, flags, ids)| Event {
            kind: *kind,
            sample_type: *sample_type,
            flags: *flags,
            ids,
            ..Event::default()
        })
        .collect();
    let feature = feature.map(|(number, payload)| (number.0, payload));
    support::file(&events, data, feature.as_slice())
}

/// The events of `perf record -e intel_pt// -e cycles`, whose trailers differ.
const MIXED: [(u32, u64, u64, &[u64]); 2] = [
    (8, IP_TID_TIME_CPU_IDENTIFIER, SAMPLE_ID_ALL, &[70, 71]),
    (0, IP_TID_TIME_PERIOD_IDENTIFIER, SAMPLE_ID_ALL, &[80]),
];

fn only(bytes: &[u8]) -> Result<Record<'_>, Error> {
    let file = Box::leak(Box::new(File::parse(bytes).unwrap()));
    let mut records = file.records();
    let first = records.next().unwrap();
    assert!(records.next().is_none());
    first
}

/// The fields of one record with a trailer of the first event.
fn body_of(kind: RecordKind, misc: u16, body: Fields) -> Body<'static> {
    let bytes = file(&MIXED, &record(kind, misc, body.trailer(71)), None).leak();
    let record = only(bytes).unwrap();
    let expected = SampleId {
        task: Some((1, 2)),
        time: Some(PerfTime(3)),
        cpu: Some(4),
        id: Some(71),
    };
    assert_eq!((record.kind, record.id), (kind, expected));
    record.body
}

#[test]
fn records_that_the_kernel_writes() {
    let start = || Fields::default().u32(5).u32(6);
    let map = || start().u64(0x1000).u64(0x2000).u64(0x3000);
    let mapped = |prot, build_id| Body::Mmap {
        pid: 5,
        tid: 6,
        start: 0x1000,
        len: 0x2000,
        pgoff: 0x3000,
        prot,
        build_id,
        path: b"/x",
    };
    let body = map().bytes(b"/x\0\0\0\0\0\0");
    assert_eq!(body_of(RecordKind::MMAP, 1, body), mapped(None, None));
    let name = b"/x\0\0\0\0\0\0";
    let inode = map().bytes(&[9; 24]).u32(5).u32(2).bytes(name);
    assert_eq!(
        body_of(RecordKind::MMAP2, 2, inode.clone()),
        mapped(Some(5), None)
    );
    let with_id = body_of(RecordKind::MMAP2, 2 | 1 << 14, inode);
    assert_eq!(with_id, mapped(Some(5), Some(&[9; 9])));
    let out = body_of(RecordKind::SWITCH, 1 << 13, Fields::default());
    assert_eq!(
        out,
        Body::Switch {
            out: true,
            other: None
        }
    );
    let into = body_of(RecordKind::SWITCH_CPU_WIDE, 0, start());
    assert_eq!(
        into,
        Body::Switch {
            out: false,
            other: Some((5, 6))
        }
    );
    let lost = body_of(RecordKind::LOST, 0, Fields::default().u64(70).u64(12));
    assert_eq!(lost, Body::Lost { count: 12 });
    let other = body_of(RecordKind::READ, 0, Fields::default().u64(1));
    assert_eq!(other, Body::Other(&[1, 0, 0, 0, 0, 0, 0, 0]));
}

#[test]
fn a_sample_is_laid_out_by_the_event_that_its_id_names() {
    let first = Fields::default().u64(70).u64(0x40_0000).u32(5).u32(6);
    let bytes = file(
        &MIXED,
        &record(RecordKind::SAMPLE, 2, first.u64(99).u32(3).u32(0)),
        None,
    );
    let sample = only(&bytes).unwrap();
    assert_eq!(
        sample.body,
        Body::Sample {
            ip: Some(0x40_0000),
            raw: None,
            aux: None,
        }
    );
    let id = sample.id;
    assert_eq!(
        (id.task, id.time, id.cpu, id.id),
        (Some((5, 6)), Some(PerfTime(99)), Some(3), Some(70))
    );
    let second = Fields::default().u64(80).u64(0x40_0001).u32(5).u32(6);
    let bytes = file(
        &MIXED,
        &record(RecordKind::SAMPLE, 2, second.u64(98).u64(1000)),
        None,
    );
    let sample = only(&bytes).unwrap();
    assert_eq!((sample.id.time, sample.id.cpu), (Some(PerfTime(98)), None));
}

#[test]
fn an_unknown_id_matters_only_where_the_layouts_differ() {
    let comm = || Fields::default().u32(5).u32(6).bytes(b"name\0\0\0\0");
    let bytes = record(RecordKind::COMM, 0, comm().trailer(99));
    let differ = file(&MIXED, &bytes, None);
    let kind = ErrorKind::UnknownEventId {
        kind: RecordKind::COMM,
        id: 99,
    };
    assert_eq!(only(&differ).unwrap_err().kind, kind);
    let alike = [MIXED[0], (1, MIXED[0].1, MIXED[0].2, &[81])];
    assert_eq!(only(&file(&alike, &bytes, None)).unwrap().id.id, Some(99));
    // perf's own records have the id 0 and the first event's layout.
    let own = record(RecordKind::COMM, 0, comm().trailer(0));
    assert_eq!(only(&file(&MIXED, &own, None)).unwrap().id.cpu, Some(4));
    // The shorter trailer of the second event: pid, tid, time, id.
    let second = comm().u32(1).u32(2).u64(3).u64(80);
    let bytes = file(&MIXED, &record(RecordKind::COMM, 0, second), None);
    let read = only(&bytes).unwrap();
    assert_eq!((read.id.time, read.id.cpu), (Some(PerfTime(3)), None));
    assert!(matches!(read.body, Body::Comm { name: b"name", .. }));
}

#[test]
fn without_identifier_the_id_is_beside_the_other_fields() {
    // TID, TIME, ID, CPU; in the second event ID, but no CPU.
    let events = [
        (8, 0xc7, SAMPLE_ID_ALL, [70].as_slice()),
        (1, 0xc7, SAMPLE_ID_ALL, &[80]),
    ];
    let body = Fields::default().u64(0).u64(64).u64(1);
    let body = body.u32(1).u32(2).u64(3).u64(80).u32(7).u32(0);
    let bytes = file(&events, &record(RecordKind::AUX, 0, body), None);
    let read = only(&bytes).unwrap();
    assert_eq!((read.id.id, read.id.cpu), (Some(80), Some(7)));
    let aux = Body::Aux {
        offset: 0,
        size: 64,
        flags: AuxFlags::TRUNCATED,
    };
    assert_eq!(read.body, aux);
}

#[test]
fn a_record_too_small_for_its_trailer_is_told_and_the_next_one_read() {
    let mut data = record(RecordKind::SWITCH, 0, Fields::default().u64(0));
    data.extend(round());
    let bytes = file(&MIXED, &data, None);
    let file = File::parse(&bytes).unwrap();
    let items: Vec<_> = file.records().collect();
    let kind = ErrorKind::RecordShort {
        kind: RecordKind::SWITCH,
        size: 16,
    };
    assert_eq!(items[0].as_ref().unwrap_err().kind, kind);
    assert_eq!(items[1].as_ref().unwrap().body, Body::FinishedRound);
    assert_eq!(items.len(), 2);
}

#[test]
fn every_record_cut_short_says_which_it_is() {
    let fields = Fields::default().bytes(&[1; 48]);
    for number in (0..90).filter(|number| ![71, 81, 83].contains(number)) {
        let kind = RecordKind(number);
        for len in 0..48 {
            let data = record(kind, 0, Fields(fields.0[..len].to_vec()));
            // No events: no trailers.
            let bytes = file(&[], &data, None);
            if let Err(error) = only(&bytes) {
                assert!(
                    error.to_string().contains(&kind.to_string()) || number == 70,
                    "{error}"
                );
                assert_eq!(error.offset, 104);
            }
        }
    }
}

#[test]
fn tracing_data_are_passed_over() {
    let mut data = record(
        RecordKind::HEADER_TRACING_DATA,
        0,
        Fields::default().u32(13),
    );
    data.extend([0xff; 16]);
    data.extend(round());
    let bytes = file(&[], &data, None);
    let file = File::parse(&bytes).unwrap();
    let kinds: Vec<_> = file.records().map(|record| record.unwrap().kind).collect();
    assert_eq!(
        kinds,
        [RecordKind::HEADER_TRACING_DATA, RecordKind::FINISHED_ROUND]
    );
}

#[test]
fn a_payload_whose_size_lies_is_what_is_there() {
    let body = Fields::default().u64(u64::MAX).u64(0).u64(5);
    let body = body.u32(0).u32(7).u32(u32::MAX).u32(0);
    let mut data = record(RecordKind::AUXTRACE, 0, body);
    data.extend([0; 24]);
    let bytes = file(&MIXED, &data, None);
    let read = only(&bytes).unwrap().body;
    let expected = Body::Auxtrace {
        offset: 0,
        reference: 5,
        idx: 0,
        tid: 7,
        cpu: u32::MAX,
        stated: u64::MAX,
        payload: &[0; 24],
    };
    assert_eq!(read, expected);
}

#[test]
fn other_traces_are_named() {
    let arm = file(
        &[],
        &record(RecordKind(70), 0, Fields::default().u64(3)),
        None,
    );
    assert_eq!(
        only(&arm).unwrap_err().kind,
        ErrorKind::OtherTrace { found: 3 }
    );
}

#[test]
fn ids_that_the_file_cannot_hold_are_refused() {
    let mut bytes = file(&[MIXED[0]; 40], &[], None);
    let attrs_at = 104 + 40 * 16;
    for event in 0..40 {
        // Every event claims the whole file as its ids.
        let at = attrs_at + event * 128 + 112;
        let size = bytes.len() as u64;
        bytes[at..at + 16].copy_from_slice(&Fields::default().u64(0).u64(size).0);
    }
    let error = File::parse(&bytes).unwrap_err();
    assert!(
        matches!(error.kind, ErrorKind::TooManyIds { .. }),
        "{error}"
    );
}

/// As many ids as records: looking an id up must not walk all of them.
#[test]
fn many_ids_and_many_records_take_no_quadratic_time() {
    let ids: Vec<u64> = (1..=60_000).collect();
    let events = [
        (8, 0x10000, SAMPLE_ID_ALL, ids.as_slice()),
        (1, 0x10000, SAMPLE_ID_ALL, &[]),
    ];
    let one = record(RecordKind::SWITCH, 0, Fields::default().u64(60_000));
    let bytes = file(&events, &one.repeat(60_000), None);
    let file = File::parse(&bytes).unwrap();
    let begun = std::time::Instant::now();
    assert_eq!(file.records().filter(Result::is_ok).count(), 60_000);
    // 3.6 thousand million steps would take longer.
    assert!(begun.elapsed().as_secs() < 5);
}

#[test]
fn build_ids_are_read_to_the_first_that_is_damaged() {
    let entry = |misc: u16, pad: &[u8; 4]| {
        let body = Fields::default()
            .u32(u32::MAX)
            .bytes(&[0xab; 20])
            .bytes(pad);
        record(RecordKind::HEADER_BUILD_ID, misc, body.bytes(b"/bin/a\0\0"))
    };
    let mut payload = entry(2, &[0; 4]);
    payload.extend(entry(1 << 15, &[16, 0, 0, 0]));
    payload.extend([67, 0, 0, 0, 0, 0, 255, 0]);
    let bytes = file(&[], &round(), Some((Feature::BUILD_ID, &payload)));
    let file = File::parse(&bytes).unwrap();
    let read: Vec<_> = file.build_ids().collect();
    assert_eq!(read.len(), 3);
    let lens = read[..2].iter().map(|entry| entry.unwrap().id.len());
    assert_eq!(lens.collect::<Vec<_>>(), [20, 16]);
    assert_eq!(read[0].unwrap().path, b"/bin/a");
    let error = read[2].unwrap_err();
    assert_eq!(error.offset, bytes.len() as u64 - 8);
    assert!(matches!(
        error.kind,
        ErrorKind::RecordTruncated { size: 255, .. }
    ));
}

proptest! {
    #[test]
    fn no_build_id_section_panics_or_hangs(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = file(&[], &round(), Some((Feature::BUILD_ID, &payload)));
        let file = File::parse(&bytes).unwrap();
        prop_assert!(file.build_ids().count() <= payload.len() / 8 + 1);
    }

    /// Records of sound sizes with anything in them.
    #[test]
    fn no_record_panics(kind in 0_u32..90, misc: u16, body in prop::collection::vec(any::<u8>(), 0..200)) {
        let data = record(RecordKind(kind), misc, Fields(body));
        let bytes = file(&MIXED, &data, None);
        let file = File::parse(&bytes).unwrap();
        for record in file.records() {
            match record {
                Ok(record) => prop_assert!(record.offset >= 104),
                Err(error) => prop_assert!(error.offset < bytes.len() as u64),
            }
        }
    }
}
