//! Where a part of a trace is missing: the flow says so there, nothing is decoded across, and all else is there.

mod machine;

use cofi_flow::{FlowErrorKind, Item};
use cofi_packet::StreamOffset;
use cofi_perf::PerfTime;
use cofi_session::{Diagnostic, StreamKey};
use machine::support::Fields;
use machine::{
    DUMMY_ID, Machine, NONE, Seen, Settings, as_perf_sees_it, begin, end, kind, open, psb, seen,
    stream, tsc, visit,
};

const TID: u32 = 5;
const KEY: StreamKey = StreamKey::Thread(TID);

fn visit_of(plain: usize) -> Seen {
    Seen::Visit(TID, plain)
}

fn missing() -> Seen {
    Seen::Error("a part of the trace is missing here; decoding goes on at the next PSB".into())
}

/// The hardware breaks off within a packet, and goes on with another: together the halves would be a third.
#[test]
fn what_was_truncated_is_not_joined() {
    let mut machine = Machine::new(Settings::default());
    let task = machine.process(TID, 2);
    let mut packets = [psb(1100), visit(1200)].concat();
    let whole = begin(0x1000);
    packets.extend(tsc(1300));
    packets.extend(&whole[..whole.len() - 1]);
    let cut = packets.len() as u64;
    // Behind the cut: the rest of another packet, and one that could be used if the cut were none.
    packets.extend([0x10, 0x00]);
    packets.extend([visit(2100), psb(2200), visit(2300)].concat());
    let size = packets.len() as u64;
    machine.aux((task, 0), (0, cut), 1, 1400);
    machine.aux((task, 0), (cut, size - cut), 0, 2400);
    machine.auxtrace((TID, NONE), 0, 1100, &packets);
    let bytes = machine.finish();
    let session = open(&bytes);
    let found = seen(&session, KEY);
    assert_eq!(found.last(), Some(&visit_of(2)));
    assert!(found.contains(&missing()), "{found:?}");
    let visits = found.iter().filter(|seen| matches!(seen, Seen::Visit(..)));
    assert_eq!(visits.count(), 2, "{found:?}");
    let truncated = Diagnostic::Truncated {
        stream: KEY,
        at: cut,
    };
    assert_eq!(session.diagnostics(), [truncated]);
    // When the packets that are missing were made is not known, but from the next on it is again.
    let mut flow = session.decode(&session.streams()[0]);
    let mut times = Vec::new();
    while let Some(item) = flow.next() {
        let is_gap = matches!(item, Item::Error(error) if matches!(error.kind, FlowErrorKind::Missing { .. }));
        times.push((is_gap, flow.perf_time().is_some()));
    }
    assert!(
        times.contains(&(true, false)) && times.last() == Some(&(false, true)),
        "{times:?}"
    );
    // The place is that of the cut.
    let places = session
        .decode(&session.streams()[0])
        .filter_map(|item| match item {
            Item::Error(error) => {
                matches!(error.kind, FlowErrorKind::Missing { .. }).then_some(error.offset)
            }
            _ => None,
        });
    assert_eq!(places.collect::<Vec<_>>(), [StreamOffset(cut)]);
}

/// Where packets are missing while tracing is on, that is one gap; where the trace ends so, it is one, too.
#[test]
fn tracing_that_is_on_where_packets_end_is_one_gap() {
    let mut machine = Machine::new(Settings::default());
    let task = machine.process(TID, 2);
    let mut packets = [psb(1100), visit(1200), tsc(1300), begin(0x1000)].concat();
    let cut = packets.len() as u64;
    packets.extend([psb(2200), visit(2300), tsc(2400), begin(0x1000)].concat());
    let size = packets.len() as u64;
    machine.aux((task, 0), (0, cut), 1, 1400);
    machine.aux((task, 0), (cut, size - cut), 0, 2500);
    machine.auxtrace((TID, NONE), 0, 1100, &packets);
    let bytes = machine.finish();
    let session = open(&bytes);
    let stream = &session.streams()[0];
    let end = stream.bytes().len() as u64;
    let errors = session.decode(stream).filter_map(|item| match item {
        Item::Error(error) => Some((error.kind.name(), error.offset.0, error.packet)),
        _ => None,
    });
    assert_eq!(
        errors.collect::<Vec<_>>(),
        [("missing", cut, None), ("unknown-end", end, None)]
    );
}

/// This project's recorder says so of a stream of whole packets.
#[test]
fn a_recorder_that_loses_no_packets_is_believed() {
    let settings = Settings {
        mark: u32::from_le_bytes(*b"cofi"),
        ..Settings::default()
    };
    let mut machine = Machine::new(settings);
    let task = machine.process(TID, 2);
    let mut packets = [psb(1100), visit(1200)].concat();
    machine.aux((task, 0), (0, packets.len() as u64), 1, 1400);
    packets.extend(visit(2000));
    machine.auxtrace((TID, NONE), 0, 1100, &packets);
    let bytes = machine.finish();
    let session = open(&bytes);
    assert_eq!(seen(&session, KEY), [visit_of(2), visit_of(2)]);
    assert_eq!(session.diagnostics().len(), 1);
}

#[test]
fn every_loss_that_the_kernel_tells_has_its_place() {
    let mut machine = Machine::new(Settings::default());
    let task = machine.process(TID, 1);
    let packets = [psb(1100), visit(1200), visit(1300)].concat();
    let at = (task, 2, 1000);
    let lost = Fields::default().u64(DUMMY_ID).u64(7);
    machine.kernel(kind::LOST, 0, lost, at, DUMMY_ID);
    machine.kernel(
        kind::LOST_SAMPLES,
        0,
        Fields::default().u64(9),
        at,
        DUMMY_ID,
    );
    // Partial, collision, and bits that tell of a format.
    machine.aux((task, 2), (0, 8), 0x10c, 1250);
    machine.aux((task, 2), (16, 8), 0, 1350);
    machine.auxtrace((TID, NONE), 0, 1100, &packets);
    let bytes = machine.finish();
    let session = open(&bytes);
    let (cpu, time) = (Some(2), Some(PerfTime(500)));
    let doubtful = |what| Diagnostic::Doubtful {
        stream: KEY,
        at: 0,
        len: 8,
        what,
    };
    assert_eq!(
        session.diagnostics(),
        [
            Diagnostic::Lost {
                count: 7,
                cpu,
                time
            },
            Diagnostic::LostSamples {
                count: 9,
                cpu,
                time
            },
            doubtful("the trace may have been off for a while"),
            doubtful("samples collided"),
            Diagnostic::Unannounced {
                stream: KEY,
                at: 8,
                len: 8
            },
        ]
    );
    let text = session.diagnostics()[0].to_string();
    assert!(
        text.ends_with("on processor 2, before 0.000000500 s"),
        "{text}"
    );
    // Nothing of the trace itself is missing.
    assert_eq!(seen(&session, KEY), [visit_of(1), visit_of(1)]);
}

/// Pieces of which one is not in the file; its bytes would have ended a packet.
#[test]
fn a_range_ends_and_begins_at_what_is_missing() {
    let mut machine = Machine::new(Settings::default());
    machine.process(TID, 1);
    let first = [psb(1100), visit(1200), psb(1300), visit(1400)].concat();
    let second = [psb(2100), visit(2200), psb(2300), visit(2400)].concat();
    let (one, two) = (first.len() as u64, second.len() as u64);
    // Padded as perf does, and nothing missing that is padding only.
    machine.auxtrace((TID, NONE), 0, 1100, &first);
    machine.auxtrace((TID, NONE), 800, 2100, &second);
    let bytes = machine.finish();
    let session = open(&bytes);
    let padded = one.next_multiple_of(8);
    let gap = Seen::Error(format!(
        "{} bytes of the trace are missing here; decoding goes on at the next PSB",
        800 - padded
    ));
    let all = seen(&session, KEY);
    assert_eq!(
        all,
        [visit_of(1), visit_of(1), gap, visit_of(1), visit_of(1)]
    );
    // Cut anywhere into two ranges, it is the same, and the gap is told once.
    let items = |range: std::ops::Range<u64>| {
        let stream = stream(&session, KEY);
        let range = StreamOffset(range.start)..StreamOffset(range.end);
        let flow = session.decode_within(stream, range);
        flow.filter(|item| !matches!(item, Item::Event(_)))
            .collect::<Vec<_>>()
    };
    let whole = items(0..u64::MAX);
    for cut in 0..padded + two {
        let halves = [items(0..cut), items(cut..u64::MAX)].concat();
        assert_eq!(halves, whole, "{cut}");
    }
}

/// `perf record -S`: each snapshot is the whole ring, as it was then. Offsets are places in the ring.
#[test]
fn snapshots_that_overlap_are_one_flow() {
    let settings = Settings {
        snapshot: true,
        ..Settings::default()
    };
    let all: Vec<Vec<u8>> = (1..=30)
        .map(|number| [psb(number * 1000), visit(number * 1000 + 100)].concat())
        .collect();
    let ring = |from: usize, to: usize| {
        let bytes = all[from..to].concat();
        // The oldest bytes are overwritten in the middle of a packet.
        bytes[5..].to_vec()
    };
    // The second overlaps the first; the third does not; the fourth is the third again.
    let snapshots = [ring(0, 10), ring(4, 14), ring(20, 28), ring(20, 28)];
    let mut machine = Machine::new(settings);
    let task = machine.process(TID, 1);
    for (number, packets) in (1..).zip(&snapshots) {
        // Of a ring, the size is the ring's.
        machine.aux((task, 0), (40, 4096), 2, number * 10_000);
        machine.auxtrace((TID, NONE), 40 % number, 1, packets);
    }
    let bytes = machine.finish();
    let session = open(&bytes);
    let mut expected = vec![visit_of(1); 9 + 4];
    expected.push(missing());
    expected.extend(vec![visit_of(1); 7]);
    assert_eq!(seen(&session, KEY), expected);
    assert_eq!(session.diagnostics(), []);
    as_perf_sees_it(&session, KEY, &machine, &bytes);
}

/// `perf record --aux-sample`: each sample ends with the packets before it, many of which the next has again.
#[test]
fn packets_in_samples_are_a_flow_with_gaps() {
    for per_cpu in [false, true] {
        let mut machine = Machine::new(Settings {
            aux_samples: true,
            per_cpu,
            ..Settings::default()
        });
        let (five, six) = (machine.process(TID, 1), machine.process(6, 3));
        let part = |from: u64, to: u64| {
            let parts = (from..to).map(|at| [psb(at * 1000), visit(at * 1000 + 100)].concat());
            parts.collect::<Vec<_>>().concat()
        };
        machine.aux_sample(five, 2, 4_000, &part(1, 4));
        machine.aux_sample(five, 2, 6_000, &part(2, 6));
        machine.aux_sample(six, 2, 12_000, &part(10, 12));
        let bytes = machine.finish();
        let session = open(&bytes);
        let six = vec![Seen::Visit(6, 3); 2];
        let five = vec![visit_of(1); 5];
        if per_cpu {
            let all = [five, vec![missing()], six].concat();
            assert_eq!(seen(&session, StreamKey::Cpu(2)), all);
        } else {
            assert_eq!(seen(&session, KEY), five);
            assert_eq!(seen(&session, StreamKey::Thread(6)), six);
        }
        assert_eq!(session.diagnostics(), []);
    }
}

/// A sample whose packets begin and end within packets.
#[test]
fn a_sample_without_a_psb_shows_nothing() {
    let mut machine = Machine::new(Settings {
        aux_samples: true,
        ..Settings::default()
    });
    let five = machine.process(TID, 1);
    machine.aux_sample(five, 2, 4_000, &visit(1000));
    machine.aux_sample(
        five,
        2,
        6_000,
        &[psb(2000), visit(2100), begin(0x1000), end()].concat(),
    );
    let bytes = machine.finish();
    let found = seen(&open(&bytes), KEY);
    assert_eq!(found[found.len() - 2..], [visit_of(1), visit_of(1)]);
    assert!(found.contains(&missing()), "{found:?}");
}
