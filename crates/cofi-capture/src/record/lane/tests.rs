//! Threads that are told at the same time against the same ones in turn.

use super::*;
use crate::record::Settings;
use crate::runs::BlockList;
use crate::{Observer, ProcessCause, SavedCode, Step};
use cofi_insn::Class;
use cofi_packet::Tsc;
use cofi_packet::intel::{self, Packet};
use cofi_perf::TraceConfig;
use std::path::Path;

const TIDS: [Pid; 3] = [7, 8, 9];

fn recorder(folder: &Path, config: &str) -> Recorder {
    let settings = Settings {
        file: folder.join("cofi.data"),
        raw_output: None,
        config: TraceConfig::of_lists([config]).unwrap(),
        command_line: Vec::new(),
        subject: Subject::Processes,
        engine: "qemu".into(),
        patience: Settings::PATIENCE,
        last: None,
        window: None,
    };
    let mut recorder = Recorder::create(settings, Some(Truth::new(folder))).unwrap();
    recorder.process(TIDS[0], None, ProcessCause::Launch, "test");
    for tid in TIDS {
        recorder.thread_start(TIDS[0], tid, Some(TIDS[0]));
    }
    recorder
}

/// A loop of two blocks: a conditional branch over a call, and what jumps back.
fn list() -> BlockList {
    let mut list = BlockList::default();
    let mut add = |ip: u64, class, target: Option<u64>| {
        let target = target.map(Ip);
        let (len, repeats, digest) = (2, false, ip as u32);
        let insn = Insn {
            class,
            len,
            target,
            repeats,
            digest,
        };
        list.push(Ip(ip), &[Step { ip: Ip(ip), insn }], false);
    };
    add(0x1000, Class::Conditional, Some(0x1010));
    add(0x1002, Class::IndirectJump, None);
    add(0x1010, Class::DirectJump, Some(0x1000));
    list
}

/// What the thread of this number runs: other branches than the next one.
fn numbers(seed: usize) -> Vec<u32> {
    let taken = |i: usize| (i * (seed + 3)) % 7 < 3;
    let round = |i| if taken(i) { vec![2, 0] } else { vec![1, 2, 0] };
    (0..500 + 100 * seed).flat_map(round).collect()
}

fn tell(lane: &mut (impl Lane + ?Sized), tid: Pid, list: &BlockList, numbers: &[u32]) {
    lane.resume_user(tid, Ip(0x1000));
    let mut runs = list.runs(0, numbers).unwrap();
    lane.ran(tid, &mut runs);
    assert_eq!(runs.left(), 0);
}

/// Every thread's packets, and its list of what ran.
fn outcome(mut recorder: Recorder) -> (Vec<Vec<u8>>, Vec<Vec<Ip>>, u64) {
    let mut bytes = Vec::new();
    for thread in recorder.threads.all_mut() {
        thread.stop(recorder.clock);
        bytes.push(thread.take(true).unwrap().bytes);
    }
    let recorded = recorder.finish().unwrap();
    let ran = |stream: &crate::record::TruthStream| {
        stream.addresses().unwrap().map(Result::unwrap).collect()
    };
    (
        bytes,
        recorded.truth.iter().map(ran).collect(),
        recorded.instructions,
    )
}

#[test]
fn lanes_tell_what_is_told_in_turn() {
    let list = list();
    // Without times: each thread's clock goes on by itself.
    for config in ["tsc=0,mtc=0", "tsc=0,mtc=0,noretcomp", "rtit,sts=0,mtc=0"] {
        let folder = tempfile::tempdir().unwrap();
        let mut in_turn = recorder(folder.path(), config);
        for (seed, tid) in TIDS.into_iter().enumerate() {
            tell(
                &mut in_turn as &mut dyn Observer,
                tid,
                &list,
                &numbers(seed),
            );
        }
        let in_turn = outcome(in_turn);
        let folder = tempfile::tempdir().unwrap();
        let mut apart = recorder(folder.path(), config);
        let before = apart.clock;
        let told = apart.apart(&TIDS, &mut |lanes| {
            std::thread::scope(|scope| {
                for (seed, (lane, tid)) in lanes.iter_mut().zip(TIDS).enumerate() {
                    let list = &list;
                    scope.spawn(move || tell(*lane, tid, list, &numbers(seed)));
                }
            });
        });
        assert!(told);
        // It goes on from where the longest has come to.
        let longest = in_turn.1.iter().map(Vec::len).max().unwrap() as u64;
        assert_eq!(apart.clock.instructions_since(before), longest);
        let apart = outcome(apart);
        assert_eq!(apart, in_turn);
        assert!(apart.2 > 3 * 1000, "{} instructions", apart.2);
        assert!(apart.0[0] != apart.0[1] && apart.0[1] != apart.0[2]);
    }
}

#[test]
fn who_is_not_traced_has_no_lane() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = recorder(folder.path(), "");
    let nobody = &mut |_: &mut [&mut (dyn Lane + Send)]| panic!("told");
    assert!(!recorder.apart(&[TIDS[0], 1234], nobody));
    recorder.finish().unwrap();
}

/// Has the threads told apart what their numbers say, one after the other.
fn tell_all(recorder: &mut Recorder, list: &BlockList) {
    let told = recorder.apart(&TIDS, &mut |lanes| {
        for (seed, (lane, tid)) in lanes.iter_mut().zip(TIDS).enumerate() {
            tell(*lane, tid, list, &numbers(seed));
            let from = Ip(0x1000);
            lane.enter_kernel(tid, Entry::Event { from });
        }
    });
    assert!(told);
}

#[test]
fn times_never_go_back() {
    let list = list();
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = recorder(folder.path(), "mtc_period=0");
    let mut times = vec![recorder.clock];
    for code in [[0x90], [0x91], [0x92]] {
        tell_all(&mut recorder, &list);
        times.push(recorder.clock);
        let (start, bytes) = (0x5000, &code[..]);
        recorder.code(TIDS[0], TIDS[0], SavedCode { start, bytes });
        times.push(recorder.clock);
    }
    assert!(times.is_sorted_by(|a, b| a.tsc() < b.tsc()), "{times:?}");
    let last = recorder.clock.tsc();
    let (bytes, ..) = outcome(recorder);
    for bytes in bytes {
        let packets = intel::Packets::new(&bytes).map(Result::unwrap);
        let times: Vec<Tsc> = packets
            .filter_map(|packet| match packet.packet() {
                Packet::Tsc { tsc } => Some(Tsc(tsc.get())),
                _ => None,
            })
            .collect();
        // One at each change of code at least.
        assert!(times.len() >= 3 && times.is_sorted(), "{times:?}");
        assert!(times.iter().all(|time| *time <= last), "{times:?}");
    }
}

#[test]
fn a_thread_that_ran_nothing_has_nothing_to_be_written() {
    let list = list();
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = recorder(folder.path(), "");
    tell_all(&mut recorder, &list);
    recorder.flush();
    tell(&mut recorder as &mut dyn Observer, TIDS[0], &list, &[2, 0]);
    Observer::ran(&mut recorder, TIDS[1], &mut list.runs(0, &[]).unwrap());
    let dirty: Vec<Pid> = recorder
        .threads
        .all()
        .filter(|thread| thread.is_dirty())
        .map(|thread| thread.tid)
        .collect();
    assert_eq!(dirty, [TIDS[0]]);
    recorder.finish().unwrap();
}
