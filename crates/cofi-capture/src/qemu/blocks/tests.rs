//! What is told of code, and when, from hand-made blocks and records of two threads.

use super::super::thread::Thread;
use super::*;
use crate::{Entry, MappingKind, ProcessCause};
use cofi_insn::Insn;
use cofi_qemu_plugin::layout::record;
use std::fs::File;
use std::io::Write;
use std::path::Path;

const PID: Pid = 7;

/// What was told, a line each; addresses in hexadecimal.
#[derive(Debug, Default)]
struct Log(Vec<String>);

impl Observer for Log {
    fn process(&mut self, _: Pid, _: Option<Pid>, _: ProcessCause, _: &str) {}
    fn thread_start(&mut self, _: Pid, _: Pid, _: Option<Pid>) {}
    fn thread_exit(&mut self, _: Pid, _: Pid) {}
    fn comm(&mut self, _: Pid, _: Pid, _: &str) {}

    fn mapped(&mut self, _: Pid, _: Pid, mappings: &[Mapping]) {
        for mapping in mappings {
            let name = mapping.path.file_name().unwrap_or_default();
            let (start, end) = (mapping.start, mapping.end);
            self.0.push(format!(
                "{} at {start:x} to {end:x}",
                name.to_string_lossy()
            ));
        }
    }

    fn code(&mut self, _: Pid, _: Pid, code: SavedCode<'_>) {
        self.0
            .push(format!("code {:x}: {:02x?}", code.start, code.bytes));
    }

    fn resume_user(&mut self, tid: Pid, ip: Ip, _: ExecMode) {
        self.0.push(format!("{tid} begins {:x}", ip.0));
    }

    fn retired(&mut self, tid: Pid, ip: Ip, _: &Insn, next: Ip) {
        self.0.push(format!("{tid} ran {:x}", ip.0));
        assert_ne!(ip, next);
    }

    fn far_branch(&mut self, _: Pid, _: Ip, _: &Insn, _: Ip, _: ExecMode) {}

    fn enter_kernel(&mut self, tid: Pid, _: Entry) {
        self.0.push(format!("{tid} leaves"));
    }
}

/// A process with two threads, 0 and 1.
struct Bench {
    blocks: Blocks,
    threads: [Thread; 2],
    log: Log,
}

impl Bench {
    fn new() -> Self {
        Self {
            blocks: Blocks::default(),
            threads: [Thread::new(PID, 0), Thread::new(PID, 1)],
            log: Log::default(),
        }
    }

    fn block(&mut self, start: u64, code: &[u8]) -> u32 {
        self.blocks.add(start, code);
        self.blocks.len() as u32 - 1
    }

    /// What is told when a thread enters these blocks one after the other.
    fn enter(&mut self, thread: usize, numbers: &[u32]) -> Vec<String> {
        let thread = &mut self.threads[thread];
        let mut rest = numbers;
        while !rest.is_empty() {
            rest = thread.run(&mut self.log as &mut dyn Observer, &self.blocks, rest);
            if let [first, behind @ ..] = rest {
                thread.enter(&mut self.log, &mut self.blocks, *first);
                rest = behind;
            }
        }
        std::mem::take(&mut self.log.0)
    }
}

/// jmp to 0x1010, and to 0x1020, from 0x1000
const TO_10: [u8; 2] = [0xeb, 0x0e];
const TO_20: [u8; 2] = [0xeb, 0x1e];
/// jmp back to 0x1000 from 0x1010, and from 0x1020
const FROM_10: [u8; 2] = [0xeb, 0xee];
const FROM_20: [u8; 2] = [0xeb, 0xde];

#[test]
fn what_is_translated_is_told_once_it_has_run() {
    let mut bench = Bench::new();
    let [first, second] = [(0x1000, TO_10), (0x1010, FROM_10)].map(|(at, code)| {
        bench.blocks.add(at, &code);
        bench.blocks.len() as u32 - 1
    });
    assert_eq!(bench.log.0, [""; 0]);
    assert_eq!(bench.enter(0, &[first]), ["0 begins 1000"]);
    assert_eq!(
        bench.enter(0, &[second, first, second]),
        [
            "code 1000: [eb, 0e]",
            "0 ran 1000",
            "code 1010: [eb, ee]",
            "0 ran 1010",
            "0 ran 1000",
        ]
    );
}

#[test]
fn a_thread_behind_a_change_has_run_what_stood_there() {
    let mut bench = Bench::new();
    let old = bench.block(0x1000, &TO_10);
    let ten = bench.block(0x1010, &FROM_10);
    let new = bench.block(0x1000, &TO_20);
    let twenty = bench.block(0x1020, &FROM_20);
    bench.enter(0, &[old, ten, old, ten, old]);
    // The other one runs the new code, while the first has entered the old.
    assert_eq!(
        bench.enter(1, &[new, twenty, new]),
        [
            "1 begins 1000",
            "code 1000: [eb, 1e]",
            "1 ran 1000",
            "code 1020: [eb, de]",
            "1 ran 1020",
        ]
    );
    assert_eq!(
        bench.enter(0, &[ten, old]),
        ["code 1000: [eb, 0e]", "0 ran 1000", "0 ran 1010"]
    );
    // Now the first does. What it left, and what did not change, is not told again.
    assert_eq!(
        bench.enter(0, &[ten, new, twenty, new]),
        [
            "0 ran 1000",
            "0 ran 1010",
            "code 1000: [eb, 1e]",
            "0 ran 1000",
            "0 ran 1020",
        ]
    );
    assert_eq!(bench.enter(1, &[twenty]), ["1 ran 1000"]);
}

#[test]
fn the_same_code_translated_again_is_the_same() {
    let mut bench = Bench::new();
    let first = bench.block(0x1000, &TO_10);
    let ten = bench.block(0x1010, &FROM_10);
    bench.enter(0, &[first, ten, first, ten, first]);
    let again: Vec<u32> = (0..1000).map(|_| bench.block(0x1000, &TO_10)).collect();
    assert_eq!(bench.blocks.versions.all.len(), 2);
    assert_eq!(bench.blocks.versions.code.len(), 4);
    let numbers: Vec<u32> = again.iter().flat_map(|number| [ten, *number]).collect();
    let told = bench.enter(0, &numbers);
    assert_eq!(told.len(), 2000);
    assert!(told.iter().all(|line| line.contains("ran")), "{told:?}");
    // All of them are told again when others took their place.
    let other = bench.block(0x1000, &TO_20);
    let twenty = bench.block(0x1020, &FROM_20);
    bench.enter(1, &[other, twenty]);
    assert_eq!(
        bench.enter(0, &[ten, again[0], ten]),
        [
            "code 1000: [eb, 0e]",
            "0 ran 1000",
            "0 ran 1010",
            "0 ran 1000"
        ]
    );
}

#[test]
fn only_what_overlaps_is_doubted() {
    let mut bench = Bench::new();
    // Two NOPs and a jump to the block behind them.
    let long = bench.block(0x1000, &[0x90, 0x90, 0xeb, 0x0c]);
    let ten = bench.block(0x1010, &FROM_10);
    let inner = bench.block(0x1001, &[0x66, 0x90, 0xeb, 0x0b]);
    bench.enter(0, &[long, ten, long, ten]);
    let is_told = |bench: &Bench, number: u32| bench.blocks.origins[number as usize].is_told();
    assert!(is_told(&bench, long) && is_told(&bench, ten));
    assert_eq!(
        bench.enter(1, &[inner, ten]),
        [
            "1 begins 1001",
            "code 1001: [66, 90, eb, 0b]",
            "1 ran 1001",
            "1 ran 1003"
        ]
    );
    assert!(!is_told(&bench, long) && is_told(&bench, ten) && is_told(&bench, inner));
}

#[test]
fn a_child_goes_on_from_what_its_parent_was_told() {
    let mut bench = Bench::new();
    let old = bench.block(0x1000, &TO_10);
    let ten = bench.block(0x1010, &FROM_10);
    bench.enter(0, &[old, ten, old]);
    let new = bench.block(0x1000, &TO_20);
    let twenty = bench.block(0x1020, &FROM_20);
    bench.enter(1, &[new, twenty, new]);
    // The child was forked before the change, and taken up after it.
    let mut child = Bench::new();
    child.blocks = bench.blocks.inherit(2);
    assert_eq!(child.blocks.len(), 2);
    assert_eq!(
        child.enter(0, &[old, ten, old]),
        [
            "0 begins 1000",
            "code 1000: [eb, 0e]",
            "0 ran 1000",
            "0 ran 1010"
        ]
    );
    // Its blocks have numbers of their own from there on.
    let its = child.block(0x1000, &TO_20);
    assert_eq!(its, new);
    let twenty = child.block(0x1020, &FROM_20);
    assert_eq!(
        child.enter(0, &[ten, its, twenty, its]),
        [
            "0 ran 1000",
            "0 ran 1010",
            "code 1000: [eb, 1e]",
            "0 ran 1000",
            "0 ran 1020"
        ]
    );
}

fn mapping(path: &Path, inode: u64, start: u64, end: u64) -> Mapping {
    Mapping {
        start,
        end,
        offset: 0,
        prot: 5,
        device: (1, 2),
        inode,
        path: path.into(),
        kind: MappingKind::File,
    }
}

/// Memory, as a program maps it for its code.
fn memory(start: u64, end: u64) -> Mapping {
    Mapping {
        kind: MappingKind::Memory,
        ..mapping(Path::new(""), 0, start, end)
    }
}

/// Files with two blocks each: from 0x1000 to 0x1010 or 0x1020, if mapped at 0x1000.
fn libraries(folder: &Path) -> [Mapping; 2] {
    let write = |name: &str, code: &[u8]| {
        let path = folder.join(name);
        let mut bytes = code.to_vec();
        bytes.resize(0x30, 0x90);
        bytes[0x10..0x12].copy_from_slice(&FROM_10);
        bytes[0x20..0x22].copy_from_slice(&FROM_20);
        let mut file = File::create(&path).unwrap();
        file.write_all(&bytes).unwrap();
        path
    };
    [
        mapping(&write("first.so", &TO_10), 1, 0x1000, 0x2000),
        mapping(&write("second.so", &TO_20), 2, 0x1000, 0x3000),
    ]
}

#[test]
fn what_is_mapped_is_told_by_who_runs_it() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = libraries(folder.path());
    let mut bench = Bench::new();
    bench.blocks.map(first.clone());
    let old = bench.block(0x1000, &TO_10);
    let ten = bench.block(0x1010, &FROM_10);
    bench.blocks.map(second);
    let new = bench.block(0x1000, &TO_20);
    let twenty = bench.block(0x1020, &FROM_20);
    assert_eq!(bench.log.0, [""; 0]);
    assert_eq!(
        bench.enter(0, &[old, ten, old]),
        [
            "0 begins 1000",
            "first.so at 1000 to 2000",
            "0 ran 1000",
            "0 ran 1010"
        ]
    );
    assert_eq!(
        bench.enter(1, &[new, twenty, new]),
        [
            "1 begins 1000",
            "second.so at 1000 to 3000",
            "1 ran 1000",
            "1 ran 1020"
        ]
    );
    // Behind the change.
    assert_eq!(
        bench.enter(0, &[ten]),
        ["first.so at 1000 to 2000", "0 ran 1000"]
    );
}

#[test]
fn memory_in_a_files_place_is_told_and_the_rest_of_the_file_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let [_, file] = libraries(folder.path());
    let mut bench = Bench::new();
    bench.blocks.map(file.clone());
    let old = bench.block(0x1000, &TO_20);
    let twenty = bench.block(0x1020, &FROM_20);
    bench.enter(0, &[old, twenty, old]);
    // The same bytes as in the file, but not the file's.
    bench.blocks.map(memory(0x1000, 0x2000));
    let new = bench.block(0x1000, &TO_20);
    assert_eq!(
        bench.enter(0, &[twenty, new, twenty]),
        [
            "0 ran 1000",
            "0 ran 1020",
            "code 1000: [eb, 1e]",
            "0 ran 1000"
        ]
    );
    assert!(bench.blocks.told.is_mapped(0x2000, Some(&file)));
    assert!(!bench.blocks.told.is_mapped(0x1020, Some(&file)));
}

#[test]
fn a_mapping_that_is_cut_in_pieces_stays() {
    let folder = tempfile::tempdir().unwrap();
    let [_, file] = libraries(folder.path());
    let mut bench = Bench::new();
    bench.blocks.map(file.clone());
    let old = bench.block(0x1000, &TO_20);
    let twenty = bench.block(0x1020, &FROM_20);
    bench.enter(0, &[old, twenty, old]);
    // Other rights in one of its pages.
    bench.blocks.map(Mapping {
        end: 0x2000,
        ..file
    });
    let again = bench.block(0x1000, &TO_20);
    assert_eq!(
        bench.enter(0, &[twenty, again]),
        ["0 ran 1000", "0 ran 1020"]
    );
}

/// What is left of these records where a thread may tell only what is its own, and what is told.
fn apart(bench: &mut Bench, records: &[u32]) -> (Vec<u32>, Vec<String>) {
    let log = &mut bench.log as &mut dyn Observer;
    let rest = bench.threads[0].run_apart(log, &bench.blocks, records);
    (rest.to_vec(), std::mem::take(&mut bench.log.0))
}

#[test]
fn a_thread_by_itself_tells_what_is_its_own() {
    let mut bench = Bench::new();
    let there = bench.block(0x1000, &TO_10);
    let back = bench.block(0x1010, &FROM_10);
    // (Its code is to be told when it has run.)
    assert_eq!(
        apart(&mut bench, &[there, back, there]),
        (vec![back, there], vec!["0 begins 1000".to_owned()])
    );
    bench.enter(0, &[back, there, back, there]);
    let ran = |from: &[u64]| -> Vec<String> {
        let line = |ip: &u64| format!("0 ran {ip:x}");
        from.iter().map(line).collect()
    };
    assert_eq!(
        apart(&mut bench, &[back, there, back]),
        (vec![], ran(&[0x1000, 0x1010, 0x1000]))
    );
    // A block that is not known yet, a thread's end, a signal: others have a part in these.
    for other in [
        &[99, there][..],
        &[record::EXIT],
        &[record::SIGNAL, 0, 0, 11, 0, 0, 0],
    ] {
        assert_eq!(apart(&mut bench, other), (other.to_vec(), vec![]));
    }
    // Most system calls are nobody else's business; one that QEMU refuses is told of.
    let call = [record::SYSCALL, 1, there];
    assert_eq!(apart(&mut bench, &call), (vec![], ran(&[0x1010])));
    let call = [record::SYSCALL, libc::SYS_ptrace as u32, back];
    assert_eq!(apart(&mut bench, &call), (call.to_vec(), vec![]));
    // Half a record.
    assert_eq!(apart(&mut bench, &call[..1]), (call[..1].to_vec(), vec![]));
    // Other code at the place: what ran of the old is told anew, and the thread waits for that.
    let other = bench.block(0x1010, &[0x90, 0xeb, 0xed]);
    bench.enter(1, &[other, there]);
    let (rest, told) = apart(&mut bench, &[back, there]);
    assert_eq!((rest, told), (vec![there], ran(&[0x1000])));
}
