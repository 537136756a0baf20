//! Sessions over contents made by hand.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use cofi_flow::{FlowConfig, Item};
use cofi_packet::intel::{IpPayload, Packet, U48, Uint};
use cofi_perf::{PerfTime, TimeConv};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::clock::Clock;
use crate::perf::Contents;
use crate::stream::Piece;
use crate::timeline::{Entry, SidebandChange};
use crate::{Diagnostic, Session, SessionOptions, StreamKey, Task};

/// What the files of code hold: so many plain instructions, then a system call.
struct Code {
    folder: TempDir,
    paths: Vec<PathBuf>,
}

impl Code {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = (0..8)
            .map(|plain| {
                let path = folder.path().join(format!("code-{plain}"));
                let mut bytes = vec![0x90; plain];
                bytes.extend([0x0f, 0x05]);
                std::fs::write(&path, bytes).unwrap();
                path
            })
            .collect();
        Self { folder, paths }
    }

    /// Maps the file with `plain` instructions at 0x1000.
    fn map(&self, pid: u32, plain: usize) -> SidebandChange<'_> {
        SidebandChange::Map {
            pid,
            start: 0x1000,
            len: 0x1000,
            offset: 0,
            path: self.paths[plain].as_os_str().as_bytes(),
            build_id: None,
        }
    }
}

/// Packets of visits to 0x1000, each with the time before it if there is one.
fn visits(times: &[Option<u64>]) -> (Vec<u8>, Vec<u64>) {
    let ip = IpPayload::sext48(U48::truncate(0x1000));
    let mut bytes = encode(&[Packet::Psb, Packet::PsbEnd]);
    let mut ends = Vec::new();
    for time in times {
        if let Some(tsc) = *time {
            bytes.extend(encode(&[Packet::Tsc {
                tsc: Uint::truncate(tsc),
            }]));
        }
        bytes.extend(encode(&[
            Packet::TipPge { ip },
            Packet::TipPgd {
                ip: IpPayload::SUPPRESSED,
            },
        ]));
        ends.push(bytes.len() as u64);
    }
    (bytes, ends)
}

pub(crate) fn encode(packets: &[Packet]) -> Vec<u8> {
    packets
        .iter()
        .flat_map(|packet| packet.encode().bytes()[..packet.encode().len()].to_vec())
        .collect()
}

/// How many plain instructions each visit ran, which tells the file that was mapped then; an error is 99.
fn decoded(session: &Session<'_>, stream: usize) -> Vec<usize> {
    let mut visits = Vec::new();
    for item in session.decode(&session.streams()[stream]) {
        match item {
            Item::Event(cofi_flow::Event::Enabled { .. }) => visits.push(0),
            Item::Insn(insn) if insn.class == cofi_insn::Class::Other => {
                *visits.last_mut().unwrap() += 1
            }
            Item::Error(_) => *visits.last_mut().unwrap() = 99,
            _ => {}
        }
    }
    // The faster way must do the same.
    let mut flow = session.decode(&session.streams()[stream]);
    let (mut items, mut parts) = (session.decode(&session.streams()[stream]), 0);
    while let Some(part) = flow.next_part() {
        match part {
            cofi_flow::Part::Run(run) => {
                for insn in run.iter() {
                    assert_eq!(items.next(), Some(Item::Insn(insn)));
                }
            }
            cofi_flow::Part::Event(event) => assert_eq!(items.next(), Some(Item::Event(event))),
            cofi_flow::Part::Error(error) => assert_eq!(items.next(), Some(Item::Error(error))),
        }
        parts += 1;
    }
    assert!(items.next().is_none() && parts > 0);
    visits
}

pub(crate) fn contents<'t>(
    streams: Vec<(StreamKey, &'t [u8])>,
    entries: impl IntoIterator<Item = (Option<u64>, SidebandChange<'t>)>,
) -> Contents<'t, 't> {
    Contents {
        streams: streams
            .into_iter()
            .map(|(key, bytes)| (key, vec![Piece::new(0, bytes)].into()))
            .collect(),
        entries: entries
            .into_iter()
            .map(|(time, what)| Entry {
                time: time.map(PerfTime),
                what,
            })
            .collect(),
        time: Some(Clock {
            conv: TimeConv {
                shift: 1,
                mult: 1,
                zero: 0,
            },
            short: None,
        }),
        ..Contents::new(FlowConfig::default())
    }
}

fn join<'t>(contents: Contents<'_, 't>) -> Session<'t> {
    Session::join(contents, &SessionOptions::default()).unwrap()
}

pub(crate) const ONE: StreamKey = StreamKey::Thread(1);
const TWO: StreamKey = StreamKey::Thread(2);

#[test]
fn marks_tell_the_packet_at_which_code_was_replaced() {
    let code = Code::new();
    let (bytes, ends) = visits(&[None; 5]);
    let mark = |visit: usize| {
        (
            None,
            SidebandChange::Mark {
                stream: ONE,
                end: ends[visit],
            },
        )
    };
    let map = |plain| (None, code.map(1, plain));
    let session = join(contents(
        vec![(ONE, &bytes)],
        [
            map(1),
            mark(0),
            map(2),
            mark(1),
            map(3),
            mark(3),
            map(4),
            mark(4),
            map(5),
        ],
    ));
    assert_eq!(decoded(&session, 0), [1, 2, 3, 3, 4]);
    assert!(session.diagnostics().is_empty());
    assert_eq!(session.code_problems().count(), 0);
}

#[test]
fn marks_of_the_same_time_are_as_good_as_none() {
    // The clock of the stream lags: the file's order still counts.
    let code = Code::new();
    let (bytes, ends) = visits(&[Some(100), Some(100), Some(100)]);
    let session = join(contents(
        vec![(ONE, &bytes)],
        [
            (Some(0), code.map(1, 1)),
            (
                Some(400),
                SidebandChange::Mark {
                    stream: ONE,
                    end: ends[0],
                },
            ),
            (Some(400), code.map(1, 2)),
            (
                Some(500),
                SidebandChange::Mark {
                    stream: ONE,
                    end: ends[1],
                },
            ),
            (Some(500), code.map(1, 3)),
        ],
    ));
    assert_eq!(decoded(&session, 0), [1, 2, 3]);
}

#[test]
fn without_marks_the_time_tells() {
    let code = Code::new();
    // Times of the counter are twice those of perf.
    let (bytes, _) = visits(&[Some(100), Some(200), Some(300), Some(400)]);
    let session = join(contents(
        vec![(ONE, &bytes)],
        // Not in the order of time.
        [
            (Some(170), code.map(1, 4)),
            (Some(60), code.map(1, 2)),
            (None, code.map(1, 1)),
            (Some(150), code.map(1, 3)),
        ],
    ));
    assert_eq!(decoded(&session, 0), [1, 2, 3, 4]);
}

#[test]
fn the_next_mark_bounds_what_the_time_cannot_tell() {
    let code = Code::new();
    let (bytes, ends) = visits(&[Some(100), None, None, None]);
    let session = join(contents(
        vec![(ONE, &bytes)],
        [
            (None, code.map(1, 1)),
            (Some(80), code.map(1, 2)),
            (
                Some(90),
                SidebandChange::Mark {
                    stream: ONE,
                    end: ends[1],
                },
            ),
        ],
    ));
    assert_eq!(decoded(&session, 0), [1, 1, 2, 2]);
}

#[test]
fn new_mappings_do_not_wait_for_a_time() {
    let code = Code::new();
    let (bytes, _) = visits(&[Some(100)]);
    let session = join(contents(
        vec![(ONE, &bytes)],
        [(Some(1000), code.map(1, 3))],
    ));
    assert_eq!(decoded(&session, 0), [3]);
}

#[test]
fn every_thread_of_a_process_has_its_own_place_for_a_change() {
    let code = Code::new();
    let (first, ends) = visits(&[None; 4]);
    let (second, _) = visits(&[None; 4]);
    let session = join(contents(
        vec![(ONE, &first), (TWO, &second)],
        [
            (None, SidebandChange::Task(Task { pid: 1, tid: 2 })),
            (None, code.map(1, 1)),
            (
                None,
                SidebandChange::Mark {
                    stream: ONE,
                    end: ends[0],
                },
            ),
            (
                None,
                SidebandChange::Mark {
                    stream: TWO,
                    end: ends[2],
                },
            ),
            (None, code.map(1, 2)),
        ],
    ));
    assert_eq!(decoded(&session, 0), [1, 2, 2, 2]);
    assert_eq!(decoded(&session, 1), [1, 1, 1, 2]);
    assert_eq!(session.streams()[1].task(), Task { pid: 1, tid: 2 });
}

#[test]
fn forks_copy_and_programs_replace() {
    let code = Code::new();
    let (first, ends) = visits(&[None; 3]);
    let (second, _) = visits(&[None; 3]);
    let session = join(contents(
        vec![(ONE, &first), (TWO, &second)],
        [
            (
                None,
                SidebandChange::Name {
                    tid: 1,
                    name: b"parent",
                },
            ),
            (None, code.map(1, 1)),
            (None, SidebandChange::Fork { pid: 2, parent: 1 }),
            (
                None,
                SidebandChange::Mark {
                    stream: ONE,
                    end: ends[0],
                },
            ),
            (None, code.map(1, 4)),
            (
                None,
                SidebandChange::Mark {
                    stream: TWO,
                    end: ends[1],
                },
            ),
            (None, SidebandChange::Exec { pid: 2 }),
            (
                None,
                SidebandChange::Name {
                    tid: 2,
                    name: b"child",
                },
            ),
            (None, code.map(2, 5)),
        ],
    ));
    assert_eq!(decoded(&session, 0), [1, 4, 4]);
    assert_eq!(
        decoded(&session, 1),
        [1, 1, 5],
        "the child keeps what the parent replaced"
    );
    assert_eq!(session.streams()[0].comm(), Some("parent"));
    assert_eq!(session.streams()[1].comm(), Some("child"));
}

#[test]
fn after_exec_the_old_code_is_gone() {
    let code = Code::new();
    let (bytes, ends) = visits(&[None; 2]);
    let session = join(contents(
        vec![(ONE, &bytes)],
        [
            (None, code.map(1, 1)),
            (
                None,
                SidebandChange::Mark {
                    stream: ONE,
                    end: ends[0],
                },
            ),
            (None, SidebandChange::Exec { pid: 1 }),
        ],
    ));
    assert_eq!(decoded(&session, 0), [1, 99]);
}

#[test]
fn a_processor_runs_one_thread_after_the_other() {
    let code = Code::new();
    let (bytes, _) = visits(&[Some(100), Some(200), Some(300), Some(400)]);
    let run = |at, pid| {
        (
            Some(at),
            SidebandChange::Run {
                stream: StreamKey::Cpu(3),
                task: Task { pid, tid: pid + 10 },
            },
        )
    };
    let contents = contents(
        vec![(StreamKey::Cpu(3), &bytes)],
        [
            (None, code.map(1, 1)),
            (None, code.map(2, 2)),
            run(40, 1),
            run(90, 2),
            (Some(120), code.map(1, 3)),
            run(130, 1),
            (Some(180), code.map(2, 4)),
            run(190, 2),
        ],
    );
    let session = join(contents);
    assert_eq!(decoded(&session, 0), [1, 2, 3, 4]);
    let mut flow = session.decode(&session.streams()[0]);
    let mut tasks = Vec::new();
    while flow.next().is_some() {
        let tid = flow.task().tid;
        if tasks.last() != Some(&tid) {
            tasks.push(tid);
        }
    }
    assert_eq!(tasks, [11, 12, 11, 12]);
}

#[test]
fn pieces_make_one_stream() {
    let code = Code::new();
    let (whole, ends) = visits(&[None; 6]);
    let cut = ends[2] as usize;
    let mut padded = whole[..cut].to_vec();
    padded.resize(cut.next_multiple_of(8), 0);
    let mut contents = contents(
        vec![],
        [
            (None, code.map(1, 1)),
            (
                None,
                SidebandChange::Mark {
                    stream: ONE,
                    end: ends[3],
                },
            ),
            (None, code.map(1, 2)),
        ],
    );
    contents.streams.push((
        ONE,
        vec![
            Piece::new(cut as u64, &whole[cut..]),
            Piece::new(0, padded.as_slice()),
        ]
        .into(),
    ));
    let session = join(contents);
    assert_eq!(session.streams()[0].bytes(), whole);
    assert_eq!(decoded(&session, 0), [1, 1, 1, 1, 2, 2]);
}

#[test]
fn missing_bytes_are_told_and_marks_still_fit() {
    let code = Code::new();
    let (first, ends) = visits(&[None; 3]);
    let (second, _) = visits(&[None; 3]);
    let later = 1000;
    let mut contents = contents(
        vec![],
        [
            (None, code.map(1, 1)),
            (
                None,
                SidebandChange::Mark {
                    stream: ONE,
                    end: later + ends[1],
                },
            ),
            (None, code.map(1, 2)),
        ],
    );
    contents.streams.push((
        ONE,
        vec![
            Piece::new(0, first.as_slice()),
            Piece::new(later, second.as_slice()),
        ]
        .into(),
    ));
    let session = join(contents);
    let at = first.len() as u64;
    assert_eq!(
        session.diagnostics(),
        [Diagnostic::Gap {
            stream: ONE,
            at,
            len: later - at
        }]
    );
    assert_eq!(decoded(&session, 0), [1, 1, 99, 1, 1, 2]);
}

#[test]
fn bare_packets_run_in_what_is_told() {
    let code = Code::new();
    let (bytes, _) = visits(&[None; 2]);
    let mut options = SessionOptions::default();
    let raw = format!("{}:0x1000", code.paths[3].display());
    options.raw.push(raw.parse().unwrap());
    let session = Session::new(&bytes, &options).unwrap();
    assert_eq!(decoded(&session, 0), [3, 3]);
    assert_eq!(session.streams()[0].key(), StreamKey::Only);
    assert!(std::ptr::eq(session.streams()[0].bytes(), bytes.as_slice()));
    options.raw.push("/no/such/file:0x0".parse().unwrap());
    let error = Session::new(&bytes, &options).unwrap_err();
    assert!(
        error.to_string().starts_with("/no/such/file: no such file"),
        "{error}"
    );
}

#[test]
fn moved_traces_find_their_code() {
    let code = Code::new();
    let trace = code.folder.path().join("moved.data");
    let folder = code.folder.path().join("moved.data.code");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(&code.paths[2], folder.join("00001-1-1000.code")).unwrap();
    let (bytes, _) = visits(&[None]);
    let map = |path| SidebandChange::Map {
        pid: 1,
        start: 0x1000,
        len: 0x1000,
        offset: 0,
        path,
        build_id: None,
    };
    let gone = contents(
        vec![(ONE, &bytes)],
        [(
            None,
            map(b"/gone/old.data.code/00001-1-1000.code".as_slice()),
        )],
    );
    let session = Session::join(gone, &SessionOptions::beside(&trace)).unwrap();
    assert_eq!(decoded(&session, 0), [2]);
    assert_eq!(session.code_problems().count(), 0);
    let gone = contents(
        vec![(ONE, &bytes)],
        [(None, map(b"/gone/nowhere".as_slice()))],
    );
    let session = Session::join(gone, &SessionOptions::beside(&trace)).unwrap();
    assert_eq!(decoded(&session, 0), [99]);
    assert_eq!(session.code_problems().count(), 1);
}

#[test]
fn a_session_can_be_shared() {
    fn shared<T: Sync + Send>(_: &T) {}
    let (bytes, _) = visits(&[None]);
    shared(&Session::new(&bytes, &SessionOptions::default()).unwrap());
}

/// What happens in the histories: the same for a model that keeps no versions.
#[derive(Clone, Debug)]
enum Step {
    Visit(usize),
    Map(usize, usize),
    Exec(usize),
    Fork(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..3).prop_map(Step::Visit),
        3 => (0usize..3, 0usize..8).prop_map(|(process, plain)| Step::Map(process, plain)),
        1 => (0usize..3).prop_map(Step::Exec),
        1 => (0usize..3, 0usize..3).prop_map(|(child, parent)| Step::Fork(child, parent)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_visit_sees_the_code_of_its_moment(steps in prop::collection::vec(step(), 1..60)) {
        let code = Code::new();
        let key = |process: usize| StreamKey::Thread(process as u32 + 1);
        let visits_of = |process: usize| steps.iter().filter(|s| matches!(s, Step::Visit(p) if *p == process)).count();
        let streams: Vec<_> = (0..3).map(|process| visits(&vec![None; visits_of(process)])).collect();
        let (mut mapped, mut seen) = ([None; 3], vec![Vec::new(); 3]);
        let mut entries = Vec::new();
        for step in &steps {
            let marks = (0..3).filter_map(|process| {
                let end = streams[process].1.get(seen[process].len().checked_sub(1)?)?;
                Some((None, SidebandChange::Mark { stream: key(process), end: *end }))
            });
            match *step {
                Step::Visit(process) => seen[process].push(mapped[process].unwrap_or(99)),
                Step::Map(process, plain) => {
                    entries.extend(marks);
                    entries.push((None, code.map(process as u32 + 1, plain)));
                    mapped[process] = Some(plain);
                }
                Step::Exec(process) => {
                    entries.extend(marks);
                    entries.push((None, SidebandChange::Exec { pid: process as u32 + 1 }));
                    mapped[process] = None;
                }
                Step::Fork(child, parent) => {
                    entries.extend(marks);
                    entries.push((None, SidebandChange::Fork { pid: child as u32 + 1, parent: parent as u32 + 1 }));
                    mapped[child] = mapped[parent];
                }
            }
        }
        let list = (0..3).map(|process| (key(process), streams[process].0.as_slice())).collect();
        let session = join(contents(list, entries));
        for (process, seen) in seen.iter().enumerate() {
            // A mapping where nothing was may be known before its time.
            let found = if seen.is_empty() { Vec::new() } else { decoded(&session, process) };
            prop_assert_eq!(found.len(), seen.len());
            for (found, seen) in found.iter().zip(seen) {
                prop_assert!(found == seen || *seen == 99, "{:?} instead of {:?}", found, seen);
            }
        }
    }
}
