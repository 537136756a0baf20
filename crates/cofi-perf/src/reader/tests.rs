//! What the writer wrote is read back; damage is told and never panics.

use super::*;
use crate::ErrorKind;
use crate::constants::RecordKind;
use crate::{
    Mmap2, PerfTime, PtConfig, RtitConfig, Subject, Task, TimeConv, TraceConfig, Writer,
    WriterOptions,
};
use cofi_packet::StreamOffset;
use proptest::prelude::*;
use std::io::Cursor as IoCursor;

const TASK: Task = Task { pid: 10, tid: 11 };
const TIME: TimeConv = TimeConv {
    shift: 31,
    mult: 1 << 30,
    zero: 0,
};

pub(super) fn written(config: impl Into<TraceConfig>) -> Vec<u8> {
    written_of(config, Subject::Processes)
}

fn written_of(config: impl Into<TraceConfig>, subject: Subject) -> Vec<u8> {
    let options = WriterOptions {
        config: config.into(),
        time: TIME,
        tsc_ctc_ratio: (80, 1),
        max_nonturbo_ratio: 20,
        command_line: vec!["cofi".into(), "record".into()],
        subject,
    };
    let mut writer = Writer::new(IoCursor::new(Vec::new()), options).unwrap();
    writer
        .comm(TASK, b"a name that is long", true, PerfTime(1))
        .unwrap();
    let map = Mmap2 {
        start: 0x40_1000,
        len: 0x2000,
        pgoff: 0x1000,
        device: (8, 2),
        inode: 77,
        prot: 5,
        path: b"/bin/a",
    };
    writer.mmap2(TASK, &map, PerfTime(2)).unwrap();
    writer
        .fork(Task { pid: 10, tid: 12 }, TASK, PerfTime(3))
        .unwrap();
    writer.itrace_start(TASK, PerfTime(4)).unwrap();
    writer
        .aux(TASK, StreamOffset(0), 5, 0, PerfTime(5))
        .unwrap();
    writer
        .auxtrace(3, 11, StreamOffset(0), 9, &[1, 2, 3, 4, 5])
        .unwrap();
    writer.exit(TASK, PerfTime(6)).unwrap();
    writer.finished_round().unwrap();
    writer.finish().unwrap().into_inner()
}

#[test]
fn what_was_written_is_read() {
    let config = PtConfig::default();
    let bytes = written(config);
    let file = File::parse(&bytes).unwrap();
    assert_eq!(file.problems(), []);
    assert_eq!(file.attrs().len(), 2);
    assert_eq!(
        PtConfig::from_bits(file.attr_of_pmu(8).unwrap().config),
        config
    );
    assert_eq!(file.feature_text(Feature::ARCH), Some("x86_64"));
    let records: Vec<_> = file.records().map(Result::unwrap).collect();
    let bodies: Vec<_> = records.iter().map(|record| record.body.clone()).collect();
    let info = TraceInfo {
        pmu_type: 8,
        time: Some(TIME),
        tsc_bit: 0x400,
        per_cpu: false,
        have_sched_switch: 0,
        snapshot_mode: false,
        by_cofi: true,
        mtc_freq_bits: 0x3c000,
        tsc_ctc_ratio: (80, 1),
        max_nonturbo_ratio: 20,
        rtit: None,
    };
    assert_eq!(info.mtc_freq(config.bits()), 3);
    let expected = [
        Body::AuxtraceInfo(info),
        Body::TimeConv {
            conv: TIME,
            short: None,
        },
        Body::Comm {
            pid: 10,
            tid: 11,
            exec: true,
            name: b"a name that is ",
        },
        Body::Mmap {
            pid: 10,
            tid: 11,
            start: 0x40_1000,
            len: 0x2000,
            pgoff: 0x1000,
            prot: Some(5),
            build_id: None,
            path: b"/bin/a",
        },
        Body::Fork {
            pid: 10,
            ppid: 10,
            tid: 12,
            ptid: 11,
            apart: false,
        },
        Body::ItraceStart { pid: 10, tid: 11 },
        Body::Aux {
            offset: 0,
            size: 5,
            flags: AuxFlags(0),
        },
        Body::Auxtrace {
            offset: 0,
            reference: 9,
            idx: 3,
            tid: 11,
            cpu: u32::MAX,
            stated: 8,
            payload: &[1, 2, 3, 4, 5, 0, 0, 0],
        },
        Body::Exit { pid: 10, tid: 11 },
        Body::FinishedRound,
    ];
    assert_eq!(bodies, expected);
    let times: Vec<_> = records
        .iter()
        .filter_map(|r| r.id.time)
        .map(|t| t.0)
        .collect();
    assert_eq!(times, [1, 2, 3, 4, 5, 6]);
    assert_eq!(records[2].id.task, Some((10, 11)));
    assert_eq!((records[2].id.id, records[5].id.id), (Some(2), Some(1)));
}

#[test]
fn an_rtit_trace_says_how_it_was_taken() {
    let info_of = |config, subject| {
        let bytes = written_of(config, subject);
        let file = File::parse(&bytes).unwrap();
        assert_eq!(file.problems(), []);
        let info = file.records().find_map(|record| match record.ok()?.body {
            Body::AuxtraceInfo(info) => Some(info),
            _ => None,
        });
        let info = info.unwrap();
        let config = file.attr_of_pmu(info.pmu_type).unwrap().config;
        (info, config & info.tsc_bit != 0)
    };
    let config = RtitConfig {
        cyc: true,
        psb_period: 3,
        ..RtitConfig::default()
    };
    let (info, is_timed) = info_of(config, Subject::Processes);
    let registers = info.rtit.unwrap();
    assert!(is_timed && info.by_cofi && registers.is_cycle_accurate());
    assert_eq!((info.time, info.max_nonturbo_ratio), (Some(TIME), 20));
    // User, and the configuration's own bits.
    assert_eq!(registers.ctl, 0x8 | config.bits());
    assert_eq!(registers.pkt_cnt, 0x3_0000);
    assert_eq!((registers.filter(), registers.stop()), (vec![], vec![]));
    assert_eq!(registers.processor, (0, 0, 0));

    let (info, is_timed) = info_of(
        RtitConfig::NONE,
        Subject::Guest {
            os: true,
            user: true,
        },
    );
    let registers = info.rtit.unwrap();
    assert!(!is_timed && info.time.is_none() && !registers.is_cycle_accurate());
    // Cmprs_Ret, User, OS.
    assert_eq!(registers.ctl, 0x80c);
}

/// The flags of the two attributes, and whether the first is that of a guest.
fn flags_of(subject: Subject) -> ([u64; 2], bool) {
    let bytes = written_of(PtConfig::default(), subject);
    let file = File::parse(&bytes).unwrap();
    assert_eq!(file.problems(), []);
    let flags = [0, 1].map(|index| file.attrs()[index].flags);
    // The feature with the events' names holds them once more.
    let described = file.feature(Feature::EVENT_DESC).unwrap();
    for flags in flags {
        let found = described
            .windows(8)
            .filter(|part| **part == flags.to_le_bytes());
        assert_eq!(found.count(), 1, "{flags:x}");
    }
    let pt = file.attr_of_pmu(8).unwrap();
    assert_eq!(pt.flags, flags[0]);
    (flags, pt.is_guest_only())
}

#[test]
fn whose_trace_it_is_stands_in_the_attributes() {
    const EXCLUDE_USER: u64 = 1 << 4;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HOST: u64 = 1 << 19;
    // As `perf record -e intel_pt//u` writes them.
    assert_eq!(
        flags_of(Subject::Processes),
        ([0x4_1063, 0x184_3363], false)
    );
    for (os, user, excluded) in [
        (true, true, 0),
        (true, false, EXCLUDE_USER),
        (false, true, EXCLUDE_KERNEL),
    ] {
        let all = EXCLUDE_HOST | excluded;
        assert_eq!(
            flags_of(Subject::Guest { os, user }),
            ([0x4_1003 | all, 0x184_3303 | all], true)
        );
    }
}

#[test]
fn code_that_all_address_spaces_share_is_the_kernels() {
    const KERNEL: u16 = 1;
    const USER: u16 = 2;
    let options = WriterOptions {
        config: PtConfig::default().into(),
        time: TIME,
        tsc_ctc_ratio: (80, 1),
        max_nonturbo_ratio: 20,
        command_line: Vec::new(),
        subject: Subject::Guest {
            os: true,
            user: true,
        },
    };
    let mut writer = Writer::new(IoCursor::new(Vec::new()), options).unwrap();
    for pid in [5, u32::MAX] {
        let map = Mmap2 {
            start: 0xffff_ffff_ffff_f000,
            len: 0x1000,
            pgoff: 0,
            device: (0, 0),
            inode: 0,
            prot: 5,
            path: b"/memory",
        };
        writer
            .mmap2(Task { pid, tid: pid }, &map, PerfTime(1))
            .unwrap();
    }
    let bytes = writer.finish().unwrap().into_inner();
    let file = File::parse(&bytes).unwrap();
    let maps: Vec<_> = file
        .records()
        .map(Result::unwrap)
        .filter_map(|record| match record.body {
            Body::Mmap { pid, start, .. } => Some((pid, start, record.misc.0 & 7)),
            _ => None,
        })
        .collect();
    let start = 0xffff_ffff_ffff_f000;
    assert_eq!(maps, [(5, start, USER), (u32::MAX, start, KERNEL)]);
}

#[test]
fn a_timeless_file_has_no_times() {
    let bytes = written(PtConfig {
        tsc: false,
        mtc: false,
        cyc: false,
        ..PtConfig::default()
    });
    let file = File::parse(&bytes).unwrap();
    let records: Vec<_> = file.records().map(Result::unwrap).collect();
    assert!(records.iter().all(|record| record.id.time.is_none()));
    assert!(
        records
            .iter()
            .any(|record| matches!(record.body, Body::Auxtrace { reference: 0, .. }))
    );
    assert!(
        records
            .iter()
            .any(|record| matches!(record.body, Body::Comm { pid: 10, .. }))
    );
}

#[test]
fn a_chunk_without_a_time_is_refused_where_perf_would_silently_decode_nothing() {
    let options = WriterOptions {
        config: PtConfig::default().into(),
        time: TIME,
        tsc_ctc_ratio: (80, 1),
        max_nonturbo_ratio: 20,
        command_line: Vec::new(),
        subject: Subject::Processes,
    };
    let mut writer = Writer::new(IoCursor::new(Vec::new()), options).unwrap();
    let error = writer
        .auxtrace(0, 1, StreamOffset(64), 0, &[0])
        .unwrap_err();
    assert!(error.to_string().contains("offset 64"), "{error}");
}

#[test]
fn the_header_is_what_perf_expects() {
    let bytes = written(PtConfig::default());
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(&bytes[..8], b"PERFILE2");
    assert_eq!((number(8), number(16)), (104, 144));
    assert_eq!(
        (number(24), number(32)),
        (120, 288),
        "attrs after the header and two ids"
    );
    assert_eq!(number(40), 120 + 288, "data after the attrs");
    assert_eq!((number(56), number(64)), (0, 0));
    assert_eq!(number(72), 1 << 6 | 1 << 11 | 1 << 12 | 1 << 18);
}

#[test]
fn what_is_no_perf_data_is_refused_with_what_it_is() {
    let text = |bytes: &[u8]| File::parse(bytes).unwrap_err().to_string();
    assert!(text(b"PERFILE").contains("7 are left"));
    assert!(text(b"\x7fELF....").contains("not a perf.data file"));
    assert!(text(b"2ELIFREP........").contains("big-endian"));
    assert!(text(b"PERFILE2\x20\0\0\0\0\0\0\0").contains("header size 32"));
}

#[test]
fn every_truncation_keeps_what_was_complete() {
    let bytes = written(PtConfig::default());
    let whole = File::parse(&bytes).unwrap().records().count();
    let data_end = 408 + u64::from_le_bytes(bytes[48..56].try_into().unwrap()) as usize;
    for cut in 0..bytes.len() {
        match File::parse(&bytes[..cut]) {
            Err(_) => assert!(cut < 408, "{cut}"),
            Ok(file) => {
                assert!(!file.problems().is_empty(), "{cut}: the cut goes unnoticed");
                let read = file.records().filter(Result::is_ok).count();
                assert!(
                    read <= whole && (cut < data_end || read == whole),
                    "{cut}: {read}"
                );
            }
        }
    }
}

#[test]
fn a_file_that_perf_did_not_complete_is_read_to_its_end() {
    let mut bytes = written(PtConfig::default());
    let whole = File::parse(&bytes).unwrap().records().count();
    let data_end = 408 + u64::from_le_bytes(bytes[48..56].try_into().unwrap()) as usize;
    bytes[48..56].fill(0);
    bytes.truncate(data_end);
    let file = File::parse(&bytes).unwrap();
    assert_eq!(file.records().filter(Result::is_ok).count(), whole);
    let unfinished = ErrorKind::Unfinished { unread: 0 };
    assert_eq!(file.problems(), [Error::new(data_end as u64, unfinished)]);
}

/// The file as it is after each step, when writing stops there.
#[test]
fn a_killed_recorder_leaves_its_packets() {
    let options = WriterOptions {
        config: PtConfig::default().into(),
        time: TIME,
        tsc_ctc_ratio: (80, 1),
        max_nonturbo_ratio: 20,
        command_line: Vec::new(),
        subject: Subject::Processes,
    };
    let mut bytes = IoCursor::new(Vec::new());
    let mut writer = Writer::new(&mut bytes, options).unwrap();
    writer.comm(TASK, b"x", true, PerfTime(1)).unwrap();
    for offset in [0, 8, 16] {
        writer
            .auxtrace(0, 11, StreamOffset(offset), 9, &[7; 8])
            .unwrap();
    }
    writer.itrace_start(TASK, PerfTime(4)).unwrap();
    drop(writer);
    let bytes = bytes.into_inner();
    let file = File::parse(&bytes).unwrap();
    let unread = 16 + 24 + 8;
    let at = bytes.len() as u64 - unread;
    assert_eq!(
        file.problems(),
        [Error::new(at, ErrorKind::Unfinished { unread })]
    );
    let records: Vec<_> = file.records().map(Result::unwrap).collect();
    assert_eq!(records.len(), 6);
    let last = records.last().map(|record| &record.body);
    assert!(matches!(last, Some(Body::Auxtrace { offset: 16, .. })));
}

proptest! {
    #[test]
    fn damage_never_panics_and_records_end(flips in prop::collection::vec((any::<usize>(), any::<u8>()), 1..20), cut: usize) {
        let mut bytes = written(PtConfig::default());
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let cut = cut % (bytes.len() + 1);
        for bytes in [&bytes[..], &bytes[..cut]] {
            if let Ok(file) = File::parse(bytes) {
                prop_assert!(file.records().count() <= bytes.len() / 8 + 1);
            }
        }
    }

    #[test]
    fn any_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..600), magic: bool) {
        if magic && bytes.len() >= 16 {
            bytes[..16].copy_from_slice(b"PERFILE2\x68\0\0\0\0\0\0\0");
        }
        if let Ok(file) = File::parse(&bytes) {
            prop_assert!(file.records().count() <= bytes.len() / 8 + 1);
        }
    }
}

/// A file that real hardware and Linux wrote. It is not part of the repository.
#[test]
fn a_file_of_real_hardware() {
    let Some(traces) = cofi_test::traces() else {
        return;
    };
    let bytes = std::fs::read(traces.join("quipper-perf-data/perf.data")).unwrap();
    let file = File::parse(&bytes).unwrap();
    assert_eq!(file.problems(), []);
    let records: Vec<_> = file.records().map(Result::unwrap).collect();
    let count = |kind| records.iter().filter(|record| record.kind == kind).count();
    // What `perf report -D` counts.
    for (kind, expected) in [
        (RecordKind::MMAP, 56),
        (RecordKind::MMAP2, 10),
        (RecordKind::COMM, 3),
        (RecordKind::SAMPLE, 15),
        (RecordKind::AUX, 10),
        (RecordKind::ITRACE_START, 2),
        (RecordKind::SWITCH_CPU_WIDE, 152),
        (RecordKind::AUXTRACE, 2),
    ] {
        assert_eq!(count(kind), expected, "{kind}");
    }
    let found = records.iter().find_map(|record| match record.body {
        Body::AuxtraceInfo(info) => Some(info),
        _ => None,
    });
    let info = TraceInfo {
        pmu_type: 6,
        time: Some(TimeConv {
            shift: 31,
            mult: 1_789_569_706,
            zero: 18_446_744_041_015_200_657,
        }),
        tsc_bit: 0x400,
        per_cpu: true,
        have_sched_switch: 3,
        snapshot_mode: false,
        by_cofi: false,
        mtc_freq_bits: 0x3c000,
        tsc_ctc_ratio: (100, 2),
        max_nonturbo_ratio: 12,
        rtit: None,
    };
    assert_eq!(found, Some(info));
    let event = file.attr_of_pmu(6).expect("the event");
    assert_eq!(PtConfig::from_bits(event.config), PtConfig::default());
    assert_eq!(event.ids, [124, 125, 126, 127]);
    assert_eq!(
        file.feature_text(Feature::CPUID),
        Some("GenuineIntel,6,78,3")
    );
    let traces: Vec<_> = records
        .iter()
        .filter_map(|record| match record.body {
            Body::Auxtrace {
                payload,
                stated,
                reference,
                idx,
                tid,
                cpu,
                ..
            } => Some((
                payload.len() as u64 == stated,
                stated,
                reference,
                idx,
                tid,
                cpu,
            )),
            _ => None,
        })
        .collect();
    let expected = [
        (true, 0x2fd0, 0xbc_4cd5_19a6, 0, 3174, 0),
        (true, 0x2_1a00, 0xbc_4cd5_84c2, 3, 3174, 3),
    ];
    assert_eq!(traces, expected);
    // The samples' times are told by an event of another layout than that of the trace.
    let sampled = records
        .iter()
        .filter(|record| record.kind == RecordKind::SAMPLE);
    assert!(
        sampled
            .clone()
            .all(|record| record.id.time.is_some() && record.id.cpu.is_none())
    );
    let ids = file.build_ids().filter(Result::is_ok).count();
    assert_eq!(ids, file.build_ids().count());
    assert!(ids > 0, "perf lists the binaries that samples hit");
}
