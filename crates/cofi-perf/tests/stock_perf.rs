//! Stock perf reads what the writer writes, and Cofi reads what perf rewrites.
//!
//! These need `perf` and `gcc`, and say so where they are absent.

mod support;

use cofi_test::{has_program, skip};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cofi_packet::{StreamOffset, Tsc};
use cofi_perf::{
    Body, Feature, File, Mmap2, PerfTime, PtConfig, Remark, RtitConfig, Seal, Task, TimeConv,
    TraceConfig, Writer, WriterOptions,
};
use support::{Parts, raw_frame};

const TASK: Task = Task {
    pid: 4321,
    tid: 4321,
};
const TIME: TimeConv = TimeConv {
    shift: 31,
    mult: 1 << 30,
    zero: 0,
};
const BEGIN: Tsc = Tsc(0x1000_0000);

/// A program of three instructions, built once for a test.
struct Program {
    folder: tempfile::TempDir,
    path: PathBuf,
    entry: u64,
    /// The executable segment: file offset, address, size.
    code: (u64, u64, u64),
}

impl Program {
    fn build() -> Option<Self> {
        if !has_program("perf") || !has_program("gcc") {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("three.s");
        let path = folder.path().join("three");
        let text = ".globl _start\n_start:\n mov $60, %eax\n xor %edi, %edi\n syscall\n.section .note.GNU-stack\n";
        std::fs::write(&source, text).expect("a source file");
        let gcc = Command::new("gcc")
            .args(["-nostdlib", "-static", "-no-pie", "-o"])
            .args([&path, &source])
            .status();
        assert!(gcc.is_ok_and(|status| status.success()), "gcc failed");
        let elf = std::fs::read(&path).expect("the program");
        let number = |at: usize, len: usize| {
            elf[at..at + len]
                .iter()
                .rev()
                .fold(0, |n, byte| n << 8 | u64::from(*byte))
        };
        let entry = number(24, 8);
        let code = (0..number(56, 2) as usize)
            .map(|index| number(32, 8) as usize + 56 * index)
            .find(|at| number(*at, 4) == 1 && number(at + 4, 4) & 1 != 0)
            .map(|at| (number(at + 8, 8), number(at + 16, 8), number(at + 40, 8)))
            .expect("an executable segment");
        Some(Self {
            folder,
            path,
            entry,
            code,
        })
    }

    /// The packets of the program's run.
    fn packets(&self, config: PtConfig) -> Vec<u8> {
        let mut bytes = [0x02, 0x82].repeat(8); // PSB
        if config.tsc {
            bytes.push(0x19);
            bytes.extend(&BEGIN.0.to_le_bytes()[..7]);
        }
        bytes.extend([0x02, 0x03, 0x14, 0x00]); // CBR
        bytes.extend([0x02, 0x23]); // PSBEND
        bytes.extend([0x99, 0x01]); // MODE.Exec: 64 bits
        bytes.push(0x71); // TIP.PGE with six bytes
        bytes.extend(&self.entry.to_le_bytes()[..6]);
        bytes.push(0x01); // TIP.PGD without address
        bytes
    }

    /// The perf.data file; not finished: as it is when the recorder is killed.
    fn trace(&self, name: &str, config: PtConfig, finish: bool) -> PathBuf {
        self.trace_of(name, config.into(), &self.packets(config), finish)
    }

    fn trace_of(&self, name: &str, config: TraceConfig, packets: &[u8], finish: bool) -> PathBuf {
        let mut options = WriterOptions::new(config, TIME);
        options.tsc_ctc_ratio = (80, 1);
        options.max_nonturbo_ratio = 20;
        options.command_line = vec!["three".into()];
        let time = TIME.time_of(BEGIN).expect("a time");
        let before = PerfTime(time.0 - 10);
        let mut bytes = Cursor::new(Vec::new());
        let mut writer = Writer::new(&mut bytes, options).expect("memory");
        assert!(writer.describe(Feature::CPUID, "GenuineIntel,6,94,3"));
        assert!(writer.describe(Feature::HOSTNAME, "here"));
        assert!(!writer.describe(Feature::NRCPUS, "4"));
        let map = Mmap2 {
            start: self.code.1 & !0xfff,
            len: (self.code.2 + (self.code.1 & 0xfff)).next_multiple_of(4096),
            pgoff: self.code.0 & !0xfff,
            device: (8, 1),
            inode: 17,
            prot: 5,
            path: self.path.as_os_str().as_encoded_bytes(),
        };
        let mut write = || {
            writer.remark(&Remark::Began { engine: b"ptrace" })?;
            writer.comm(TASK, b"three", true, before)?;
            writer.mmap2(TASK, &map, before)?;
            writer.itrace_start(TASK, before)?;
            writer.finished_round()?;
            writer.aux(TASK, StreamOffset(0), packets.len() as u64, 0, time)?;
            writer.auxtrace(0, TASK.tid, StreamOffset(0), BEGIN.0, packets)?;
            writer.remark(&Remark::Seals {
                index: 0,
                seals: vec![Seal::default(); Remark::SEALS],
            })?;
            writer.exit(TASK, PerfTime(time.0 + 1000))?;
            writer.finished_round()?;
            writer.remark(&Remark::Finished)
        };
        write().expect("memory");
        if finish {
            writer.finish().expect("memory");
        }
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes.into_inner()).expect("a file");
        path
    }
}

fn perf(arguments: &[&str]) -> String {
    let output = Command::new("perf")
        .args(arguments)
        .env("HOME", "/nonexistent")
        .output()
        .expect("perf runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "perf {arguments:?}: {errors}");
    // Remarks are nothing to it.
    assert!(!errors.contains("0x41"), "perf {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What perf shows of the mappings and threads that a pipe tells of.
fn perf_reads_pipe(file: &Path) -> String {
    // A true pipe: of a file as its standard input perf 6.1 does not skip the packets.
    let mut cat = Command::new("cat")
        .arg(file)
        .stdout(Stdio::piped())
        .spawn()
        .expect("cat runs");
    let output = Command::new("perf")
        .args([
            "script",
            "--show-mmap-events",
            "--show-task-events",
            "-i",
            "-",
        ])
        .env("HOME", "/nonexistent")
        .stdin(cat.stdout.take().expect("a pipe"))
        .output()
        .expect("perf runs");
    assert!(
        cat.wait().is_ok_and(|status| status.success()),
        "cat failed"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The instructions that perf finds in a file.
fn instructions(file: &Path) -> Vec<String> {
    let file = file.to_str().expect("a plain name");
    let text = perf(&["script", "-i", file, "--itrace=i1i", "-F", "comm,tid,ip"]);
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

impl Program {
    /// The instructions of its run, as perf prints them.
    fn expected(&self) -> Vec<String> {
        [self.entry, self.entry + 5, self.entry + 7]
            .iter()
            .map(|ip| format!("three 4321 {ip:x}"))
            .collect()
    }
}

#[test]
fn perf_decodes_what_was_written() {
    let Some(program) = Program::build() else {
        return;
    };
    let expected = program.expected();
    let mut timeless = PtConfig::default();
    timeless.tsc = false;
    timeless.mtc = false;
    let mut fine = PtConfig::default();
    fine.cyc = true;
    fine.noretcomp = true;
    for (name, config) in [
        ("timed", PtConfig::default()),
        ("timeless", timeless),
        ("fine", fine),
    ] {
        let file = program.trace(name, config, true);
        assert_eq!(instructions(&file), expected, "{name}");
    }
    let killed = program.trace("killed", PtConfig::default(), false);
    assert_eq!(instructions(&killed), expected, "a file not finished");
    let bytes = std::fs::read(killed).expect("the file");
    let file = File::parse(&bytes).expect("a header");
    assert!(file.records().all(|record| record.is_ok()));
    assert!(
        file.records()
            .any(|record| record.is_ok_and(|record| matches!(record.body, Body::Auxtrace { .. })))
    );
}

/// perf knows nothing of RTIT: it says so, and takes nothing for Intel PT.
#[test]
fn perf_refuses_rtit() {
    let Some(program) = Program::build() else {
        return;
    };
    // Packets of RTIT that would be some of Intel PT: PSB, FUP.PGE, FUP.PGD.
    let packets = [
        0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0x84, 0x00, 0x10, 0x8c, 0x05, 0x10,
    ];
    let file = program.trace_of("rtit", RtitConfig::default().into(), &packets, true);
    for arguments in [["script", "--itrace=i1i"], ["script", "-D"]] {
        let output = Command::new("perf")
            .args(arguments)
            .arg("-i")
            .arg(&file)
            .env("HOME", "/nonexistent")
            .output()
            .expect("perf runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(errors.contains("failed to process type: 70"), "{errors}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!text.contains("PERF_RECORD_AUXTRACE size"), "{text}");
    }
}

#[test]
fn perf_shows_times_and_descriptions() {
    let Some(program) = Program::build() else {
        return;
    };
    let file = program.trace("timed", PtConfig::default(), true);
    let file = file.to_str().expect("a plain name");
    let text = perf(&["script", "--ns", "-i", file, "--itrace=i1i", "-F", "time"]);
    let time = TIME.time_of(BEGIN).expect("a time");
    assert_eq!(text.lines().count(), 3);
    assert!(
        text.lines().all(|line| line.trim() == format!("{time}:")),
        "{text} is not {time}"
    );
    let header = perf(&["report", "--header-only", "-i", file]);
    for line in [
        "cpuid : GenuineIntel,6,94,3",
        "hostname : here",
        "arch : x86_64",
        "cmdline : three",
    ] {
        assert!(header.contains(line), "{line} in {header}");
    }
    assert!(header.contains("name = intel_pt//u"), "{header}");
}

/// What matters of a file: every record's fields, and the packets, whatever the file offsets.
fn contents(bytes: &[u8]) -> Vec<String> {
    let file = File::parse(bytes).expect("a perf.data file");
    assert_eq!(file.problems(), []);
    let records = file.records().map(|record| record.expect("a record"));
    records
        .filter(|record| {
            matches!(
                record.body,
                Body::Mmap { .. }
                    | Body::Auxtrace { .. }
                    | Body::AuxtraceInfo(_)
                    | Body::Comm { .. }
                    | Body::Aux { .. }
            )
        })
        .map(|record| format!("{:?} {:?} {:?}", record.kind, record.id, record.body))
        .collect()
}

/// What a pipe carries is read as perf reads it, and what perf writes to a pipe holds what its file held.
#[test]
fn perf_and_cofi_agree_on_pipes() {
    let Some(program) = Program::build() else {
        return;
    };
    let plain = program.trace("plain", PtConfig::default(), true);
    let bytes = std::fs::read(&plain).expect("the file");
    let piped = program.folder.path().join("piped");
    let ours = Parts::of(&bytes).pipe();
    std::fs::write(&piped, &ours).expect("a file");
    // perf says itself that it decodes no Intel PT from pipes as it should, and 6.1 finds nothing in what it piped
    // itself. What happened beside the trace it reads.
    let shown = perf_reads_pipe(&piped);
    for line in ["COMM exec: three:4321/4321", "MMAP2 4321/4321: [0x401000("] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    assert_eq!(contents(&ours), contents(&bytes));
    let perfs = Command::new("perf")
        .args(["inject", "-o", "-", "-i"])
        .arg(&plain)
        .output()
        .expect("perf runs");
    assert!(perfs.status.success());
    let file = File::parse(&perfs.stdout).expect("a pipe");
    assert_eq!(file.attrs().len(), 2);
    assert_eq!(file.feature_text(Feature::ARCH), Some("x86_64"));
    assert_eq!(contents(&perfs.stdout), contents(&bytes));
}

#[test]
fn perf_and_cofi_agree_on_compressed_files() {
    let Some(program) = Program::build() else {
        return;
    };
    let plain = program.trace("plain", PtConfig::default(), true);
    let bytes = std::fs::read(&plain).expect("the file");
    let mut expected = contents(&bytes);
    expected.sort();
    for chunk in [33, 4000] {
        let mut parts = Parts::of(&bytes);
        parts.compress(chunk, |bytes| raw_frame(bytes, 50));
        let packed = program.folder.path().join("packed");
        std::fs::write(&packed, parts.file()).expect("a file");
        assert_eq!(instructions(&packed), program.expected());
        let mut found = contents(&parts.file());
        found.sort();
        assert_eq!(found, expected);
    }
}

/// Compressed by perf itself: a recording without packets, as any machine can make it.
#[test]
fn what_perf_compressed_is_read() {
    if !has_program("perf") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("packed");
    let recorded = Command::new("perf")
        .args(["record", "-q", "-e", "cpu-clock:u", "-z", "-o"])
        .arg(&path)
        .args(["--", "perf", "--version"])
        .env("HOME", "/nonexistent")
        .output()
        .expect("perf runs");
    if !recorded.status.success() {
        let why = String::from_utf8_lossy(&recorded.stderr);
        return skip(format_args!("perf may not record here: {why}"));
    }
    let bytes = std::fs::read(&path).expect("the file");
    let file = File::parse(&bytes).expect("a perf.data file");
    assert_eq!(file.problems(), []);
    let records: Vec<_> = file
        .records()
        .map(|record| record.expect("a record"))
        .collect();
    assert!(
        records
            .iter()
            .any(|record| matches!(record.body, Body::Compressed(_)))
    );
    let name = path.to_str().expect("a plain name");
    let shown = perf(&["script", "--show-mmap-events", "-i", name]);
    let maps = shown
        .lines()
        .filter(|line| line.contains("PERF_RECORD_MMAP"))
        .count();
    let found = records
        .iter()
        .filter(|record| matches!(record.body, Body::Mmap { .. }))
        .count();
    assert!(maps > 3, "{shown}");
    assert_eq!(found, maps);
}

fn rewritten(file: &Path, arguments: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let new = folder.path().join("new.data");
    let (old, out) = (
        file.to_str().expect("a name"),
        new.to_str().expect("a name"),
    );
    perf(&[&["inject", "-i", old, "-o", out], arguments].concat());
    std::fs::read(new).expect("the new file")
}

fn same_after_inject(file: &Path) {
    let original = std::fs::read(file).expect("the file");
    let mut expected = contents(&original);
    assert!(
        expected.iter().any(|line| line.starts_with("AUXTRACE ")),
        "{expected:?}"
    );
    assert_eq!(contents(&rewritten(file, &[])), expected);
    // With build ids, perf sorts the records by time; each is still there, and so are the packets.
    let mut with_ids = contents(&rewritten(file, &["-b"]));
    expected.sort();
    with_ids.sort();
    assert_eq!(with_ids, expected);
}

#[test]
fn what_perf_inject_rewrites_reads_the_same() {
    let Some(program) = Program::build() else {
        return;
    };
    same_after_inject(&program.trace("timed", PtConfig::default(), true));
}

/// A file that real hardware and Linux wrote. It is not part of the repository.
#[test]
fn a_real_file_rewritten_by_perf_inject_reads_the_same() {
    let Some(traces) = cofi_test::traces() else {
        return;
    };
    if has_program("perf") {
        same_after_inject(&traces.join("quipper-perf-data/perf.data"));
    }
}
