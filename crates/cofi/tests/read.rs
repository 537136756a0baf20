//! `cofi dump`, `insn` and `report` on whole, damaged and senseless files: the rest is read, nothing panics or hangs.

mod common;

use common::{ASM, Ran, STATIC, Scratch, addresses, cofi, json, record, run};
use proptest::prelude::*;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError, Weak};

const PSB: [u8; 16] = [
    2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82,
];

/// A small recording: the program, its perf.data file, its bare packets, the addresses it executed.
struct Recorded {
    scratch: Scratch,
    program: PathBuf,
    data: Vec<u8>,
    raw: Vec<u8>,
    executed: Vec<u64>,
}

/// Recorded once for the tests that run beside each other; nothing where programs cannot be built. The last of them removes it.
fn recorded() -> Option<Arc<Recorded>> {
    static RECORDED: Mutex<Weak<Recorded>> = Mutex::new(Weak::new());
    // Each test has a thread of its own.
    thread_local!(static HELD: RefCell<Option<Arc<Recorded>>> = const { RefCell::new(None) });
    let mut shared = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(recorded) = shared.upgrade() {
        HELD.set(Some(Arc::clone(&recorded)));
        return Some(recorded);
    }
    let scratch = Scratch::new();
    let program = scratch.program("branches.S", ASM)?;
    let (data, raw) = (scratch.path("data"), scratch.path("raw"));
    let ran = run(record(&data, None)
        .arg("--raw-output")
        .arg(&raw)
        .arg("--")
        .arg(&program));
    assert_eq!(ran.code(), 42, "{}", ran.stderr);
    let flow = run(&mut json("insn", &[], &data));
    assert_eq!(flow.code(), 0, "{}", flow.stderr);
    let recorded = Arc::new(Recorded {
        data: std::fs::read(&data).expect("the recording"),
        raw: std::fs::read(&raw).expect("the packets"),
        executed: addresses(&flow.stdout),
        scratch,
        program,
    });
    *shared = Arc::downgrade(&recorded);
    HELD.set(Some(Arc::clone(&recorded)));
    Some(recorded)
}

impl Recorded {
    /// The arguments that give the code for bare packets.
    fn code(&self) -> [&OsStr; 4] {
        [
            OsStr::new("--format"),
            OsStr::new("pt"),
            OsStr::new("--elf"),
            self.program.as_os_str(),
        ]
    }
}

const AS_PACKETS: [&str; 2] = ["--format", "pt"];

/// What holds for every input: one of the three statuses, no panic, and a sentence where nothing could be read.
fn sound(ran: &Ran) -> i32 {
    let status = ran.status.code().expect("an exit, not a signal");
    assert!((0..=2).contains(&status), "{status}: {}", ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    if status == 2 {
        assert!(ran.stdout.is_empty());
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        assert!(ran.stderr.starts_with("cofi: "), "{}", ran.stderr);
    }
    status
}

/// The objects in JSON Lines.
fn lines(ran: &Ran) -> Vec<Value> {
    ran.text()
        .lines()
        .map(|line| {
            let value: Value = serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{line:?} is no JSON: {error}"));
            assert!(value.is_object(), "{line}");
            value
        })
        .collect()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} of {value}"))
}

/// `cofi dump --json`: sound, and every stream is told from its first byte to its last without hole or overlap. Also
/// gives the streams' sizes.
fn dump(file: &Path, more: &[&str]) -> (i32, Vec<Value>, Vec<u64>) {
    let more: Vec<&OsStr> = more.iter().map(OsStr::new).collect();
    let ran = run(&mut json("dump", &more, file));
    let status = sound(&ran);
    let items = lines(&ran);
    let mut ends: BTreeMap<(Option<u64>, Option<u64>), u64> = BTreeMap::new();
    let mut errors = 0;
    for item in &items {
        let stream = (item["tid"].as_u64(), item["cpu"].as_u64());
        let end = ends.entry(stream).or_default();
        assert_eq!(number(item, "offset"), *end, "{item}");
        // Where a packet has a field called size, `length` is the item's.
        let key = if item["length"].is_u64() {
            "length"
        } else {
            "size"
        };
        let size = number(item, key);
        assert!(size > 0, "{item}");
        *end += size;
        // A packet where it may not stand is both.
        let is_error = item["error"].is_string();
        assert!(is_error || item["packet"].is_string(), "{item}");
        errors += u32::from(is_error);
    }
    if errors > 0 {
        assert_eq!(status, 1, "{}", ran.stderr);
    }
    (status, items, ends.into_values().collect())
}

/// `cofi insn --json`: sound, and every error tells where.
fn insn(file: &Path, more: &[&OsStr]) -> (i32, Vec<u64>) {
    let ran = run(&mut json("insn", more, file));
    let status = sound(&ran);
    let mut errors = 0;
    for item in lines(&ran) {
        if !item["error"].is_null() {
            errors += 1;
            number(&item, "offset");
            assert!(item.get("ip").is_some(), "{item}");
        } else {
            assert_ne!(
                item["insn"].is_string(),
                item["event"].is_string(),
                "{item}"
            );
        }
    }
    if errors > 0 {
        assert_eq!(status, 1, "{}", ran.stderr);
    }
    (status, addresses(&ran.stdout))
}

fn report(file: &Path) -> i32 {
    sound(&run(cofi().arg("report").arg(file)))
}

/// Packets as bare ones are listed, which are of no thread.
fn without_thread(mut items: Vec<Value>) -> Vec<Value> {
    for item in &mut items {
        let thread = item.as_object_mut().and_then(|item| item.remove("tid"));
        assert!(thread.is_some(), "{item}");
    }
    items
}

#[test]
fn a_whole_file() {
    let Some(recorded) = recorded() else { return };
    let data = recorded.scratch.path("data");
    let (status, items, sizes) = dump(&data, &[]);
    assert_eq!(status, 0);
    assert!(items.iter().any(|item| item["packet"] == "tip.pge"));
    assert_eq!(report(&data), 0);

    let raw = recorded.scratch.path("raw");
    let (status, bare, bare_sizes) = dump(&raw, &[]);
    assert_eq!(status, 0);
    assert_eq!(bare_sizes, [recorded.raw.len() as u64]);
    // In the file the stream ends with padding.
    let items = without_thread(items);
    let (same, padding) = items.split_at(bare.len());
    assert_eq!(same, bare);
    assert!(padding.iter().all(|item| item["packet"] == "pad"));
    assert_eq!(sizes, [bare_sizes[0] + padding.len() as u64]);
    assert_eq!(insn(&raw, &recorded.code()), (0, recorded.executed.clone()));
}

#[test]
fn several_threads() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("processes.c", STATIC) else {
        return;
    };
    let data = scratch.path("data");
    let ran = run(record(&data, Some("psb_period=0")).arg("--").arg(program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let (status, items, sizes) = dump(&data, &[]);
    assert_eq!(status, 0);
    assert!(sizes.len() > 1, "{sizes:?}");
    assert!(items.iter().all(|item| item["tid"].is_u64()));
    assert_eq!(insn(&data, &[]).0, 0);
    assert_eq!(report(&data), 0);
}

#[test]
fn text_for_people() {
    let Some(recorded) = recorded() else { return };
    let data = recorded.scratch.path("data");
    let dumped = run(cofi().arg("dump").arg(&data));
    assert_eq!(sound(&dumped), 0);
    assert!(dumped.text().contains("psbend"), "{}", dumped.text());
    let flow = run(cofi().arg("insn").arg(&data));
    assert_eq!(sound(&flow), 0);
    assert!(flow.text().contains("_start"), "{}", flow.text());
    let report = run(cofi().arg("report").arg(&data));
    assert!(report.text().contains("No gaps"), "{}", report.text());
}

#[test]
fn nothing_to_read() {
    let scratch = Scratch::new();
    let missing = scratch.path("missing");
    let folder = scratch.path("");
    let empty = scratch.write("empty", "");
    for command in ["dump", "insn", "report"] {
        for (file, wanted) in [(&missing, Some(2)), (&folder, Some(2)), (&empty, None)] {
            let ran = run(cofi().arg(command).arg(file));
            let status = sound(&ran);
            assert_eq!(
                status,
                wanted.unwrap_or(status),
                "{command}: {}",
                ran.stderr
            );
        }
    }
    let as_perf = run(cofi().args(["dump", "--format", "perf"]).arg(&empty));
    assert_ne!(sound(&as_perf), 0);
    let no_code = run(cofi().args(["insn", "--elf", "/no/such/file"]).arg(&empty));
    assert_eq!(sound(&no_code), 2);
    let no_cpu = run(cofi().args(["insn", "--cpu", "six"]).arg(&empty));
    assert_eq!(sound(&no_cpu), 2);
}

#[test]
fn a_cut_file() {
    let Some(recorded) = recorded() else { return };
    let scratch = Scratch::new();
    let len = recorded.data.len();
    let whole = dump(&recorded.scratch.path("data"), &[]).1;
    for keep in (0..len)
        .step_by(len / 30)
        .chain([1, 7, 8, 9, 103, 104, 105, len - 1])
    {
        let file = scratch.write("cut", &recorded.data[..keep]);
        let (_, items, _) = dump(&file, &[]);
        if keep >= 8 {
            // What is still told was so before. (Less than the magic is taken for packets.)
            let good = items.iter().take_while(|item| item["error"].is_null());
            assert!(
                good.zip(&whole).all(|(now, then)| now == then),
                "{keep} bytes"
            );
        }
        insn(&file, &[]);
        report(&file);
    }
    let bare = without_thread(whole);
    for keep in 0..recorded.raw.len() {
        let file = scratch.write("cut", &recorded.raw[..keep]);
        let (_, items, sizes) = dump(&file, &AS_PACKETS);
        assert_eq!(sizes.iter().sum::<u64>(), keep as u64);
        let good = items.iter().filter(|item| item["error"].is_null()).count();
        assert_eq!(items[..good], bare[..good], "{keep} bytes");
        if keep % 5 == 0 {
            let (_, flow) = insn(&file, &recorded.code());
            assert!(recorded.executed.starts_with(&flow), "{keep} bytes");
        }
    }
}

#[test]
fn damage_costs_what_it_touches() {
    let Some(recorded) = recorded() else { return };
    let scratch = Scratch::new();
    let one = recorded.raw.len();
    let copies = 5;
    let clean = recorded.raw.repeat(copies);
    let (_, whole, _) = dump(&scratch.write("clean", &clean), &AS_PACKETS);
    let (status, flow) = insn(&scratch.path("clean"), &recorded.code());
    assert_eq!(status, 0);
    assert_eq!(flow, recorded.executed.repeat(copies));
    assert_eq!(recorded.raw[..16], PSB);

    // A byte that begins no packet, in the place of every packet of the third copy.
    let starts: Vec<usize> = whole
        .iter()
        .map(|item| number(item, "offset") as usize)
        .filter(|offset| (2 * one..3 * one).contains(offset))
        .collect();
    for start in starts.iter().copied().step_by(3) {
        let mut bytes = clean.clone();
        bytes[start] = 2;
        bytes[start + 1] = 0xff;
        let file = scratch.write("damaged", &bytes);
        let (status, items, sizes) = dump(&file, &AS_PACKETS);
        assert_eq!((status, sizes), (1, vec![bytes.len() as u64]));
        let before = whole
            .iter()
            .filter(|item| (number(item, "offset") as usize) < start);
        // Damage in one packet's last byte reaches into the next packet; the next PSB is that of the copy after it.
        let next = if start + 2 > 3 * one {
            4 * one
        } else {
            3 * one
        };
        let after = whole
            .iter()
            .filter(|item| number(item, "offset") as usize >= next);
        for item in before.chain(after) {
            assert!(items.contains(item), "damage at {start}: {item}");
        }
        let errors: Vec<u64> = items
            .iter()
            .filter(|item| item["error"].is_string())
            .map(|item| number(item, "offset"))
            .collect();
        assert_eq!(errors, [start as u64]);

        let (status, flow) = insn(&file, &recorded.code());
        assert_eq!(status, 1, "damage at {start}");
        assert!(flow.starts_with(&recorded.executed.repeat(2)));
        let copies_after = (bytes.len() - next) / one;
        assert!(
            flow.ends_with(&recorded.executed.repeat(copies_after)),
            "damage at {start}"
        );
    }
}

#[test]
fn flipped_bits() {
    let Some(recorded) = recorded() else { return };
    let scratch = Scratch::new();
    for at in (0..recorded.data.len()).step_by(recorded.data.len() / 120) {
        let mut bytes = recorded.data.clone();
        bytes[at] ^= 1 << (at % 8);
        let file = scratch.write("flipped", &bytes);
        dump(&file, &[]);
        insn(&file, &[]);
        report(&file);
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let Some(recorded) = recorded() else { return };
    let scratch = Scratch::new();
    let file = scratch.write("long", recorded.raw.repeat(3000));
    for command in ["dump", "insn"] {
        let mut child = cofi()
            .arg(command)
            .args(
                recorded
                    .code()
                    .iter()
                    .skip(if command == "dump" { 4 } else { 0 }),
            )
            .arg(&file)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starting cofi");
        let mut line = String::new();
        let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
        reader.read_line(&mut line).expect("a line");
        assert!(!line.is_empty());
        drop(reader);
        let ran = common::wait(child);
        assert_eq!(ran.status.code(), Some(0), "{command}: {}", ran.stderr);
        assert_eq!(ran.stderr, "", "{command}");
    }
}

/// One change to a file.
#[derive(Clone, Debug)]
enum Change {
    Set(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, u8),
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        8 => (index(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => index().prop_map(Change::Cut),
        2 => (index(), prop::collection::vec(any::<u8>(), 1..20))
            .prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        2 => (index(), 1..20_u8).prop_map(|(at, count)| Change::Remove(at, count)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    let len = bytes.len();
    if len == 0 {
        return;
    }
    match change {
        Change::Set(at, byte) => bytes[at.index(len)] = *byte,
        Change::Cut(at) => bytes.truncate(at.index(len)),
        Change::Insert(at, more) => {
            let at = at.index(len);
            bytes.splice(at..at, more.iter().copied());
        }
        Change::Remove(at, count) => {
            let at = at.index(len);
            bytes.drain(at..len.min(at + usize::from(*count)));
        }
    }
}

/// More than any honest answer about so small a file.
const OUTPUT_LIMIT: usize = 8 << 20;

fn bounded(mut command: std::process::Command) {
    let ran = run(&mut command);
    sound(&ran);
    assert!(ran.stdout.len() < OUTPUT_LIMIT, "{command:?}");
    assert!(ran.stderr.len() < OUTPUT_LIMIT, "{command:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_change(changes in prop::collection::vec(change(), 1..6), whole in any::<bool>()) {
        let Some(recorded) = recorded() else { return Ok(()) };
        let scratch = Scratch::new();
        let mut bytes = if whole { recorded.data.clone() } else { recorded.raw.repeat(3) };
        for change in &changes {
            apply(&mut bytes, change);
        }
        let file = scratch.write("changed", &bytes);
        if whole {
            dump(&file, &[]);
            bounded(json("insn", &[], &file));
            report(&file);
        } else {
            dump(&file, &AS_PACKETS);
            bounded(json("insn", &recorded.code(), &file));
        }
    }

    #[test]
    fn any_bytes(start in 0..3_usize, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let Some(recorded) = recorded() else { return Ok(()) };
        let scratch = Scratch::new();
        let mut all = [&b""[..], &PSB, b"PERFILE2"][start].to_vec();
        all.extend(bytes);
        let file = scratch.write("bytes", &all);
        dump(&file, &[]);
        dump(&file, &AS_PACKETS);
        bounded(json("insn", &recorded.code(), &file));
        report(&file);
    }
}

#[test]
fn real_perf_data() {
    let Some(folder) = cofi_test::traces() else {
        return;
    };
    let file = folder.join("quipper-perf-data/perf.data");
    let (status, items, _) = dump(&file, &[]);
    assert_eq!(status, 0);
    assert!(items.len() > 1000, "{}", items.len());
    assert!(items.iter().any(|item| item["packet"] == "tma"));
    assert!(
        items
            .iter()
            .all(|item| item["cpu"].is_u64() || item["tid"].is_u64())
    );
}
