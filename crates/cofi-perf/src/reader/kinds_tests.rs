//! Records of the rarer kinds, field by field, and samples with everything in them.

use super::support::{Event, Fields, SAMPLE_ID_ALL, file, record};
use super::*;
use crate::constants::RecordKind;
use crate::{CpuMode, ErrorKind, Misc, PerfTime, SampleType, TimeConv};
use cofi_packet::Tsc;

const TRAILED: Event<'_> = Event {
    kind: 8,
    config: 0,
    sample_type: 0x10087,
    flags: SAMPLE_ID_ALL,
    ids: &[70],
};

fn only(bytes: &[u8]) -> Result<Record<'_>, Error> {
    let file = Box::leak(Box::new(File::parse(bytes).unwrap()));
    let mut records = file.records();
    let first = records.next().unwrap();
    assert!(records.next().is_none());
    first
}

/// The fields of a record of the kernel's, with a trailer, which is read, too.
fn kernel(kind: RecordKind, misc: u16, body: Fields) -> Body<'static> {
    let record = record(kind.0, misc, body.trailer(70));
    let bytes = file(&[TRAILED], &record, &[]).leak();
    let record = only(bytes).unwrap();
    assert_eq!((record.kind, record.misc), (kind, Misc(misc)));
    assert_eq!(
        (record.id.cpu, record.id.time, record.id.id),
        (Some(4), Some(PerfTime(3)), Some(70))
    );
    record.body
}

/// The fields of a record of perf's own.
fn perfs(kind: RecordKind, misc: u16, body: Fields) -> Result<Body<'static>, ErrorKind> {
    let bytes = file(&[TRAILED], &record(kind.0, misc, body), &[]).leak();
    only(bytes)
        .map(|record| record.body)
        .map_err(|error| error.kind)
}

fn fields() -> Fields {
    Fields::default()
}

#[test]
fn changes_of_the_kernels_code() {
    let body = fields().u64(0xffff_ffff_c000_0000).u32(0x80).u16(1).u16(1);
    assert_eq!(
        kernel(
            RecordKind::KSYMBOL,
            0,
            body.text(b"bpf_prog_6deef7357e7b4530")
        ),
        Body::Ksymbol {
            address: 0xffff_ffff_c000_0000,
            len: 0x80,
            kind: 1,
            gone: true,
            name: b"bpf_prog_6deef7357e7b4530",
        }
    );
    let body = fields()
        .u16(2)
        .u16(0)
        .u32(15)
        .bytes(b"\x6d\xee\xf7\x35\x7e\x7b\x45\x30");
    assert_eq!(
        kernel(RecordKind::BPF_EVENT, 0, body),
        Body::BpfEvent {
            kind: 2,
            id: 15,
            tag: [0x6d, 0xee, 0xf7, 0x35, 0x7e, 0x7b, 0x45, 0x30],
        }
    );
    let body = fields().u64(0xffff_ffff_8100_0000).u16(5).u16(5);
    let body = body
        .bytes(&[0xf, 0x1f, 0x44, 0, 0])
        .bytes(&[0xe9, 1, 2, 3, 4]);
    assert_eq!(
        kernel(RecordKind::TEXT_POKE, 1, body.bytes(&[0; 2])),
        Body::TextPoke {
            address: 0xffff_ffff_8100_0000,
            old: &[0xf, 0x1f, 0x44, 0, 0],
            new: &[0xe9, 1, 2, 3, 4],
        }
    );
    assert_eq!(Misc(1).cpu_mode(), CpuMode::Kernel);
    let cut = fields().u64(0).u16(9).u16(9).bytes(&[0; 12]).trailer(70);
    let bytes = file(&[TRAILED], &record(RecordKind::TEXT_POKE.0, 1, cut), &[]);
    assert!(matches!(
        only(&bytes).unwrap_err().kind,
        ErrorKind::RecordShort { .. }
    ));
}

#[test]
fn what_the_kernel_tells_of_losses_and_groups() {
    let three = || fields().u64(5).u64(6).u64(7);
    assert_eq!(
        kernel(RecordKind::LOST_SAMPLES, 0, fields().u64(9)),
        Body::LostSamples { count: 9 }
    );
    for (kind, over) in [
        (RecordKind::THROTTLE, false),
        (RecordKind::UNTHROTTLE, true),
    ] {
        let time = PerfTime(5);
        assert_eq!(kernel(kind, 0, three()), Body::Throttle { over, time });
    }
    let body = fields().u32(5).u32(6).u64(2);
    assert_eq!(
        kernel(RecordKind::NAMESPACES, 0, body.u64(1).u64(2).u64(3).u64(4)),
        Body::Namespaces {
            pid: 5,
            tid: 6,
            links: vec![(1, 2), (3, 4)],
        }
    );
    assert_eq!(
        kernel(
            RecordKind::CGROUP,
            0,
            fields().u64(9).text(b"/system.slice")
        ),
        Body::Cgroup {
            id: 9,
            path: b"/system.slice",
        }
    );
    assert_eq!(
        kernel(RecordKind::AUX_OUTPUT_HW_ID, 0, fields().u64(3)),
        Body::AuxOutputHwId { hw_id: 3 }
    );
}

#[test]
fn flags_of_aux_beside_those_that_tell_a_format() {
    // PARTIAL and COLLISION, and the format bits 0x100.
    let body = fields().u64(1).u64(2).u64(0x10c);
    let Body::Aux { flags, .. } = kernel(RecordKind::AUX, 0, body) else {
        panic!("AUX");
    };
    assert!(flags.contains(AuxFlags::PARTIAL) && flags.contains(AuxFlags::COLLISION));
    assert!(!flags.contains(AuxFlags::TRUNCATED) && !flags.contains(AuxFlags::OVERWRITE));
}

#[test]
fn what_a_pipe_carries_in_place_of_the_header() {
    let body = Fields(TRAILED.attr()).u64(70).u64(71);
    let Ok(Body::HeaderAttr(attr)) = perfs(RecordKind::HEADER_ATTR, 0, body) else {
        panic!("HEADER_ATTR");
    };
    assert_eq!((attr.kind, attr.ids.as_slice()), (8, [70, 71].as_slice()));
    assert_eq!(attr.sample_type, SampleType(0x10087));
    let lies = Fields(TRAILED.attr()[..64].to_vec());
    let short = perfs(RecordKind::HEADER_ATTR, 0, lies);
    assert!(matches!(short, Err(ErrorKind::RecordShort { .. })));
    assert_eq!(
        perfs(RecordKind::HEADER_FEATURE, 0, fields().u64(9).bytes(b"abc")),
        Ok(Body::HeaderFeature {
            feature: Feature::CPUID,
            payload: b"abc",
        })
    );
    let body = fields().u32(u32::MAX).bytes(&[0xab; 20]).u32(0);
    assert_eq!(
        perfs(RecordKind::HEADER_BUILD_ID, 2, body.text(b"/bin/a")),
        Ok(Body::HeaderBuildId(BuildIdEntry {
            pid: u32::MAX,
            id: &[0xab; 20],
            path: b"/bin/a",
        }))
    );
    assert_eq!(
        perfs(RecordKind::FINISHED_INIT, 0, fields()),
        Ok(Body::FinishedInit)
    );
}

#[test]
fn maps_of_ids_threads_and_processors() {
    let index = fields().u64(1).u64(70).u64(0).u64(3).u64(u64::MAX);
    let entry = IdEntry {
        id: 70,
        idx: 0,
        cpu: 3,
        tid: u64::MAX,
    };
    assert_eq!(
        perfs(RecordKind::ID_INDEX, 0, index),
        Ok(Body::IdIndex(vec![entry]))
    );
    let threads = fields()
        .u64(1)
        .u64(42)
        .bytes(b"sleep\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(
        perfs(RecordKind::THREAD_MAP, 0, threads),
        Ok(Body::ThreadMap(vec![(42, b"sleep".as_slice())]))
    );
    for body in [
        // A list; bits in words of 8 and of 4 bytes; a range.
        fields().u16(0).u16(2).u16(3).u16(9),
        fields().u16(1).u16(1).u16(8).u16(0).u64(1 << 3 | 1 << 9),
        fields().u16(1).u16(1).u16(4).u32(1 << 3 | 1 << 9),
    ] {
        assert_eq!(
            perfs(RecordKind::CPU_MAP, 0, body),
            Ok(Body::CpuMap(vec![3, 9]))
        );
    }
    let range = fields().u16(2).u16(0).u16(4).u16(6);
    assert_eq!(
        perfs(RecordKind::CPU_MAP, 0, range),
        Ok(Body::CpuMap(vec![4, 5, 6]))
    );
    // Numbers of entries that are not there.
    for (kind, body) in [
        (RecordKind::ID_INDEX, fields().u64(u64::MAX)),
        (RecordKind::THREAD_MAP, fields().u64(1 << 60).u64(0)),
        (RecordKind::CPU_MAP, fields().u16(1).u16(u16::MAX).u16(8)),
    ] {
        let size = body.0.len() as u16 + 8;
        assert_eq!(
            perfs(kind, 0, body),
            Err(ErrorKind::RecordShort { kind, size })
        );
    }
}

#[test]
fn errors_that_perf_found() {
    let head = |format| {
        let ids = fields().u32(1).u32(5).u32(2).u32(10).u32(11);
        ids.u32(format).u64(0x40_1000)
    };
    let text = |body: Fields| body.bytes(b"Lost trace data").bytes(&[0; 49]);
    let expected = |time| Body::AuxtraceError {
        kind: 1,
        code: 5,
        cpu: 2,
        pid: 10,
        tid: 11,
        ip: 0x40_1000,
        time,
        text: b"Lost trace data",
    };
    assert_eq!(
        perfs(RecordKind::AUXTRACE_ERROR, 0, text(head(0))),
        Ok(expected(None))
    );
    assert_eq!(
        perfs(RecordKind::AUXTRACE_ERROR, 0, text(head(1).u64(77))),
        Ok(expected(Some(PerfTime(77))))
    );
}

#[test]
fn a_counter_that_is_narrower_than_its_register() {
    let conv = TimeConv {
        shift: 1,
        mult: 2,
        zero: 3,
    };
    let old = fields().u64(1).u64(2).u64(3);
    assert_eq!(
        perfs(RecordKind::TIME_CONV, 0, old.clone()),
        Ok(Body::TimeConv { conv, short: None })
    );
    let new = |short: u8| {
        let body = old.clone().u64(0x5_ff00).u64(0xffff);
        body.bytes(&[1, short, 0, 0, 0, 0, 0, 0])
    };
    let clock = ShortClock {
        cycles: 0x5_ff00,
        mask: 0xffff,
    };
    let short = Some(clock);
    assert_eq!(
        perfs(RecordKind::TIME_CONV, 0, new(1)),
        Ok(Body::TimeConv { conv, short })
    );
    assert_eq!(
        perfs(RecordKind::TIME_CONV, 0, new(0)),
        Ok(Body::TimeConv { conv, short: None })
    );
    assert_eq!(clock.widen(Tsc(0xff01)), Tsc(0x5_ff01));
    assert_eq!(clock.widen(Tsc(0x0001)), Tsc(0x6_0001));
}

/// Every field that a sample can have stands before the piece of the AUX area.
#[test]
fn a_sample_with_everything() {
    // All bits up to CODE_PAGE_SIZE; WEIGHT is there, WEIGHT_STRUCT takes the same place.
    let everything = 0xff_ffff;
    let mut attr = Event {
        sample_type: everything,
        ..TRAILED
    }
    .attr();
    // read_format GROUP|ID|LOST|ENABLED|RUNNING; branch stacks with HW_INDEX and COUNTERS; registers.
    attr[32..40].copy_from_slice(&31_u64.to_le_bytes());
    attr[72..80].copy_from_slice(&(1_u64 << 17 | 1 << 19).to_le_bytes());
    attr[80..88].copy_from_slice(&0b111_u64.to_le_bytes());
    attr[96..104].copy_from_slice(&0b1_u64.to_le_bytes());
    let body = fields().u64(70).u64(0x40_1000).u32(5).u32(6).u64(99);
    let body = body.u64(0).u64(70).u64(70).u32(3).u32(0).u64(1);
    // Two counters; a chain of three; raw data.
    let body = body.u64(2).u64(0).u64(0).bytes(&[1; 48]);
    let body = body.u64(3).bytes(&[2; 24]);
    let body = body.u32(12).bytes(&[3; 12]);
    // One branch; registers; a stack; weight, source, transaction; registers that are not there.
    let body = body.u64(1).u64(0).bytes(&[4; 24]).u64(0);
    let body = body.u64(2).bytes(&[5; 24]).u64(8).u64(0).u64(8);
    let body = body.u64(0).u64(0).u64(0).u64(0);
    // Physical address, group, sizes of pages; the AUX area.
    let body = body.u64(0).u64(0).u64(0).u64(0).u64(8).bytes(&[9; 8]);
    let expected = Body::Sample {
        ip: Some(0x40_1000),
        raw: Some(&[3; 12]),
        aux: Some(&[9; 8]),
    };
    let mut bytes = file(&[TRAILED], &record(9, 2, body.clone()), &[]);
    bytes[112..112 + attr.len()].copy_from_slice(&attr);
    let sample = only(&bytes).unwrap();
    assert_eq!(sample.body, expected);
    assert_eq!(
        (sample.id.time, sample.id.cpu),
        (Some(PerfTime(99)), Some(3))
    );
    // Cut anywhere, it is an error.
    for len in 0..body.0.len() {
        let cut = Fields(body.0[..len].to_vec());
        let mut bytes = file(&[TRAILED], &record(9, 2, cut), &[]);
        bytes[112..112 + attr.len()].copy_from_slice(&attr);
        let kind = only(&bytes).unwrap_err().kind;
        assert!(matches!(kind, ErrorKind::RecordShort { .. }), "{len}");
    }
}
