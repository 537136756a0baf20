//! Bundles of LLDB: the flow of a real one, and everything that a description can say.

mod machine;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cofi_flow::Item;
use cofi_session::{FileFormat, Session, SessionError, SessionOptions, StreamKey};
use machine::support::{Fields, record};
use machine::{OUT, kind, psb, time_of, tsc, visit, visits};
use proptest::prelude::*;

struct Bundle {
    folder: tempfile::TempDir,
    json: String,
}

impl Bundle {
    fn new(json: impl Into<String>) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            json: json.into(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("trace.json")
    }

    fn file(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.folder.path().join(name), bytes).unwrap();
    }

    fn open(&self) -> Result<Session<'_>, SessionError> {
        Session::new(self.json.as_bytes(), &SessionOptions::beside(self.path()))
    }
}

/// An ELF file with `plain` plain instructions at its address 0x1000, the first of its only segment.
fn elf(plain: usize) -> Vec<u8> {
    let mut code = vec![0x90; plain];
    code.extend([0x0f, 0x05]);
    let elf = Fields::default().bytes(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // DYN, x86-64; one program header behind the header.
    let elf = elf.u16(3).u16(62).u32(1).u64(0x1000).u64(64).u64(0);
    let elf = elf.u32(0).u16(64).u16(56).u16(1).u16(0).u16(0).u16(0);
    let elf = elf.u32(1).u32(5).u64(120).u64(0x1000).u64(0x1000);
    let elf = elf
        .u64(code.len() as u64)
        .u64(code.len() as u64)
        .u64(0x1000);
    elf.bytes(&code).0
}

/// SWITCH_CPU_WIDE as the kernel's buffer has it: the other thread, then TID and TIME.
fn switch(misc: u16, other: u32, task: u32, at: u64) -> Vec<u8> {
    let body = Fields::default().u32(other).u32(other).u32(task).u32(task);
    record(kind::SWITCH_CPU_WIDE, misc, body.u64(time_of(at)))
}

const TIMES: &str =
    r#""tscPerfZeroConversion": {"timeMult": 1073741824, "timeShift": 31, "timeZero": "0x0"}"#;
const INFO: &str = r#""type": "intel-pt", "cpuInfo": {"vendor": "GenuineIntel", "family": 6, "model": 79, "stepping": 1}"#;

/// The trace that LLDB tests itself with, taken from real hardware, in a bundle around it. It is not part of the repository.
#[test]
fn a_real_thread() {
    let Some(traces) = cofi_test::traces() else {
        return;
    };
    let traces = traces.join("lldb-trace");
    let case = std::fs::read_to_string(traces.join("case.json")).unwrap();
    let json = format!(
        r#"{{{INFO}, "processes": [{{"pid": 1234, "triple": "x86_64-*-linux",
        "threads": [{{"tid": 3842849, "iptTrace": "3842849.trace"}}],
        "modules": [{{"systemPath": "/gone/a.out", "file": "a.out", "loadAddress": "0x0000000000400000",
                     "uuid": "6AA9A4E2-6F28-2F33-377D-59FECE874C71-5B41261A"}}]}}]}}"#
    );
    let bundle = Bundle::new(json);
    for (from, to) in [("trace.pt", "3842849.trace"), ("a.out", "a.out")] {
        bundle.file(to, &std::fs::read(traces.join(from)).unwrap());
    }
    let session = bundle.open().unwrap();
    assert_eq!(session.diagnostics(), []);
    let stream = &session.streams()[0];
    assert_eq!((stream.task().pid, stream.task().tid), (1234, 3842849));
    let items: Vec<_> = session.decode(stream).collect();
    assert!(!items.iter().any(|item| matches!(item, Item::Error(_))));
    let ran = items.iter().filter(|item| matches!(item, Item::Insn(_)));
    assert!(case.contains(&format!("\"instructions\": {},", ran.count())));
    let text = session.code_problems().map(ToString::to_string);
    assert_eq!(text.collect::<Vec<_>>(), Vec::<String>::new());
}

/// A processor's packets, and the switches that tell whose they are; who left first was there before.
#[test]
fn processors_with_context_switches() {
    let json = format!(
        r#"{{{INFO}, {TIMES}, "processes": [
        {{"pid": 5, "threads": [], "modules": [{{"systemPath": "/bin/one", "file": "one", "loadAddress": 4096}}]}},
        {{"pid": 6, "threads": [{{"tid": 6}}], "modules": [{{"systemPath": "two", "loadAddress": "4096"}}]}}],
        "cpus": [{{"id": 3, "iptTrace": "3.trace", "contextSwitchTrace": "3.switches"}}]}}"#
    );
    let bundle = Bundle::new(json);
    bundle.file("one", &elf(1));
    bundle.file("two", &elf(2));
    let packets = [
        psb(1100),
        visit(1200),
        visit(1300),
        visit(2200),
        visit(3200),
        tsc(3300),
    ];
    bundle.file("3.trace", &packets.concat());
    let switches = [
        switch(OUT, 6, 5, 2000),
        switch(0, 5, 6, 2010),
        switch(OUT, 5, 6, 3000),
        switch(0, 6, 5, 3010),
    ];
    bundle.file("3.switches", &switches.concat());
    let session = bundle.open().unwrap();
    assert_eq!(session.diagnostics(), []);
    let key = StreamKey::Cpu(3);
    assert_eq!(visits(&session, key), [(5, 1), (5, 1), (6, 2), (5, 1)]);
    // A buffer that is damaged is told, and read up to there.
    bundle.file(
        "3.switches",
        &[&switches[0][..], &switches[1], &[0; 24]].concat(),
    );
    let session = bundle.open().unwrap();
    assert_eq!(visits(&session, key), [(5, 1), (5, 1), (6, 2), (6, 2)]);
    let text = session.diagnostics()[0].to_string();
    assert!(
        text.contains("3.switches") && text.contains("size 0"),
        "{text}"
    );
}

#[test]
fn the_kernel_alone() {
    let json = format!(
        r#"{{{INFO}, {TIMES}, "kernel": {{"file": "vmlinux", "loadAddress": "0x1000"}},
        "cpus": [{{"id": 0, "iptTrace": "0.trace", "contextSwitchTrace": "none"}}]}}"#
    );
    let bundle = Bundle::new(json);
    bundle.file("vmlinux", &elf(4));
    bundle.file("0.trace", &[psb(1100), visit(1200)].concat());
    bundle.file("none", &[]);
    let session = bundle.open().unwrap();
    assert_eq!(visits(&session, StreamKey::Cpu(0)), [(0, 4)]);
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let wrong = |json: &str| {
        let bundle = Bundle::new(json.replace("INFO", INFO).replace("TIMES", TIMES));
        bundle.file("t", &psb(1));
        let error = bundle.open().map(|_| ()).unwrap_err();
        error.to_string()
    };
    for (json, expected) in [
        ("{", "line 1, column 1: this is no JSON"),
        (r#"{"type": "other"}"#, "bundle.type: expected `intel-pt`"),
        (
            r#"{INFO, "processes": 5}"#,
            "bundle.processes: expected a list",
        ),
        (
            r#"{INFO, "processes": [{}]}"#,
            "bundle.processes[0]: expected the key `pid`",
        ),
        (
            r#"{INFO, "processes": [{"pid": "x"}]}"#,
            "bundle.processes[0].pid: expected a number of 64 bits",
        ),
        (
            r#"{INFO, "processes": [{"pid": 4294967296}]}"#,
            "bundle.processes[0].pid: expected a smaller number",
        ),
        (
            r#"{INFO, "processes": [{"pid": 1, "modules": [{"file": 1, "loadAddress": 0}]}]}"#,
            "bundle.processes[0].modules[0].file: expected a text",
        ),
        (
            r#"{INFO, "cpus": [{"id": 0, "iptTrace": "t"}]}"#,
            "expected the key `tscPerfZeroConversion`",
        ),
        (
            r#"{INFO, TIMES, "cpus": [{"id": 0, "iptTrace": "gone"}]}"#,
            "cannot read ",
        ),
        (
            r#"{INFO, TIMES, "cpus": [{"id": 0, "iptTrace": "."}]}"#,
            "it is no regular file",
        ),
    ] {
        let found = wrong(json);
        assert!(found.contains(expected), "{json}: {found}");
    }
}

#[test]
fn code_that_is_missing_or_another_is_told() {
    let json = format!(
        r#"{{{INFO}, "processes": [{{"pid": 5, "threads": [{{"tid": 5, "iptTrace": "t"}}],
        "modules": [{{"systemPath": "gone", "loadAddress": 0}}]}}]}}"#
    );
    let bundle = Bundle::new(json);
    bundle.file("t", &psb(1));
    let session = bundle.open().unwrap();
    let text: Vec<_> = session
        .diagnostics()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(text.len() == 1 && text[0].contains("gone"), "{text:?}");
}

/// However many threads name a file, by whatever name, it is read once, and its bytes are shared.
#[test]
fn a_file_that_many_threads_name_is_in_memory_once() {
    static OPENED: AtomicU32 = AtomicU32::new(0);
    let names = ["t", "./t", "link"];
    let threads: Vec<_> = (1..=100)
        .map(|tid| format!(r#"{{"tid": {tid}, "iptTrace": "{}"}}"#, names[tid % 3]))
        .collect();
    let threads = threads.join(", ");
    let bundle = Bundle::new(format!(
        r#"{{{INFO}, "processes": [{{"pid": 5, "threads": [{threads}]}}]}}"#
    ));
    // Nothing but its length is stored.
    let file = std::fs::File::create(bundle.folder.path().join("t")).unwrap();
    file.set_len(1 << 20).unwrap();
    std::os::unix::fs::symlink("t", bundle.folder.path().join("link")).unwrap();
    let mut options = SessionOptions::beside(bundle.path());
    options.open = Some(|path| {
        OPENED.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(std::fs::read(path)?))
    });
    for (options, opened) in [(&SessionOptions::beside(bundle.path()), 0), (&options, 1)] {
        let session = Session::new(bundle.json.as_bytes(), options).unwrap();
        let mut places: Vec<_> = session
            .streams()
            .iter()
            .map(|stream| (stream.bytes().as_ptr(), stream.len()))
            .collect();
        assert_eq!(places.len(), 100);
        places.dedup();
        assert!(places.len() == 1 && places[0].1 == 1 << 20, "{places:?}");
        assert_eq!(OPENED.load(Ordering::Relaxed), opened);
    }
}

/// The records of a processor's context switches are not another's.
#[test]
fn context_switches_are_of_one_processor() {
    let bundle = Bundle::new(format!(
        r#"{{{INFO}, {TIMES}, "cpus": [
        {{"id": 0, "iptTrace": "0.trace", "contextSwitchTrace": "switches"}},
        {{"id": 1, "iptTrace": "0.trace", "contextSwitchTrace": "./switches"}}]}}"#
    ));
    bundle.file("0.trace", &psb(1100));
    bundle.file("switches", &[]);
    assert_eq!(
        bundle.open().unwrap_err().to_string(),
        "not a usable trace bundle of LLDB: bundle.cpus[1].contextSwitchTrace: \
         expected a file that no other processor has"
    );
}

#[test]
fn a_bundle_is_recognised_by_its_content() {
    let json = format!(" \n{{{INFO}}}");
    assert_eq!(FileFormat::of(json.as_bytes()), FileFormat::Lldb);
    assert_eq!(FileFormat::of(b"{\"type\": \"other\"}"), FileFormat::Pt);
    assert_eq!(FileFormat::of(&[0x7b; 40]), FileFormat::Pt);
    assert_eq!(FileFormat::of(b"PERFILE2"), FileFormat::Perf);
}

proptest! {
    /// Any byte of a description may be another.
    #[test]
    fn no_description_panics(at: prop::sample::Index, byte: u8) {
        let mut json = format!(
            r#"{{{INFO}, {TIMES}, "processes": [{{"pid": 5, "threads": [{{"tid": 5, "iptTrace": "t"}}],
            "modules": [{{"systemPath": "one", "loadAddress": 4096}}]}}],
            "cpus": [{{"id": 3, "iptTrace": "t", "contextSwitchTrace": "s"}}]}}"#
        ).into_bytes();
        let at = at.index(json.len());
        json[at] = byte;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t"), [psb(10), visit(20)].concat()).unwrap();
        std::fs::write(folder.path().join("s"), switch(OUT, 6, 5, 2000)).unwrap();
        std::fs::write(folder.path().join("one"), elf(1)).unwrap();
        let options = SessionOptions::beside(folder.path().join("trace.json"));
        match Session::new(&json, &options) {
            Ok(session) => for stream in session.streams() {
                prop_assert!(session.decode(stream).count() < 100);
            },
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
