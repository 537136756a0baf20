//! What perf.data's own records and features tell of code: build ids, changes of the kernel, BPF programs.

mod machine;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cofi_image::ImageError;
use cofi_session::{Session, SessionOptions, StreamKey, Task};
use machine::support::Fields;
use machine::{DUMMY_ID, Machine, Settings, begin, end, kind, open, psb, tsc, visit, visits};

const KEY: StreamKey = StreamKey::Thread(5);
const TASK: Task = Task { pid: 5, tid: 5 };
const BUILD_ID: u32 = 2;
const BPF_PROG_INFO: u32 = 25;

fn finish(mut machine: Machine, packets: &[u8]) -> Vec<u8> {
    machine.aux((TASK, 0), (0, packets.len() as u64), 0, 9000);
    machine.auxtrace((5, machine::NONE), 0, 1000, packets);
    machine.finish()
}

/// The entry of a file in the feature BUILD_ID.
fn entry(path: &Path, id: &[u8]) -> Vec<u8> {
    let mut bytes = [0; 24];
    bytes[..id.len()].copy_from_slice(id);
    bytes[20] = id.len() as u8;
    let body = Fields::default().u32(u32::MAX).bytes(&bytes);
    let body = body.text(path.as_os_str().as_bytes());
    // The size of the id is told.
    machine::support::record(0, 1 << 15, body)
}

/// Three visits to 0x1000 by a process whose code there has three plain instructions.
fn recording() -> (Machine, Vec<u8>) {
    let mut machine = Machine::new(Settings::default());
    machine.process(5, 3);
    let packets = [psb(1100), visit(1200), visit(1300), visit(1400)].concat();
    (machine, packets)
}

#[test]
fn the_table_of_build_ids_tells_which_files_are_right() {
    let (mut machine, packets) = recording();
    // A file of plain bytes has no build id: if the trace tells one, it is another file.
    let path = machine.folder.path().join("code-3");
    machine.features = vec![(BUILD_ID, entry(&path, &[7; 20]))];
    let _folder = std::mem::replace(&mut machine.folder, tempfile::tempdir().unwrap());
    let bytes = finish(machine, &packets);
    let session = open(&bytes);
    assert_eq!(session.diagnostics(), []);
    let seen = machine::seen(&session, KEY);
    assert!(!seen.contains(&machine::Seen::Visit(5, 3)), "{seen:?}");
    let problems: Vec<_> = session.code_problems().collect();
    assert!(
        matches!(&problems[..], [ImageError::OtherBuild { at, expected, found: None, .. }]
            if *at == path && expected.bytes() == [7; 20]),
        "{problems:?}"
    );
    let mut options = SessionOptions::default();
    options.code.places.ignore_build_ids = true;
    let session = Session::new(&bytes, &options).unwrap();
    assert_eq!(visits(&session, KEY), [(5, 3); 3]);
}

#[test]
fn a_mapping_may_tell_the_build_id_itself() {
    let (mut machine, packets) = recording();
    let path = machine.folder.path().join("code-3");
    let map = Fields::default()
        .u32(5)
        .u32(5)
        .u64(0x1000)
        .u64(0x1000)
        .u64(0);
    // The size of the build id, and its bytes, in the place of the file's numbers.
    let map = map.u32(3).bytes(&[1, 2, 3]).bytes(&[0; 17]).u32(5).u32(2);
    let map = map.text(path.as_os_str().as_bytes());
    machine.kernel(kind::MMAP2, 2 | 1 << 14, map, (TASK, 0, 20), DUMMY_ID);
    let _folder = std::mem::replace(&mut machine.folder, tempfile::tempdir().unwrap());
    let bytes = finish(machine, &packets);
    let session = open(&bytes);
    machine::seen(&session, KEY);
    let problems: Vec<_> = session.code_problems().collect();
    assert!(
        matches!(&problems[..], [ImageError::OtherBuild { expected, .. }] if expected.bytes() == [1, 2, 3]),
        "{problems:?}"
    );
}

const TEXT: u64 = 0xffff_ffff_8100_0000;
const PROGRAM: u64 = 0xffff_ffff_c000_0000;

#[test]
fn the_kernels_changes_and_programs_by_their_records() {
    let mut machine = Machine::new(Settings::default());
    machine.process(5, 1);
    // A jump over two bytes is written, and later taken out again.
    let poke = |old: &[u8], new: &[u8]| {
        let body = Fields::default()
            .u64(TEXT)
            .u16(old.len() as u16)
            .u16(new.len() as u16);
        let mut body = body.bytes(old).bytes(new);
        // Records are of eight bytes.
        body.0.resize((body.0.len() + 8).next_multiple_of(8) - 8, 0);
        body
    };
    let plain = [0x90, 0x90, 0x90, 0x90, 0x0f, 0x05];
    let jump = [0xeb, 0x02, 0x90, 0x90, 0x0f, 0x05];
    for (at, old, new) in [
        (100, &[][..], &plain[..]),
        (2000, &plain, &jump),
        (4000, &jump, &plain),
    ] {
        machine.kernel(kind::TEXT_POKE, 1, poke(old, new), (TASK, 0, at), DUMMY_ID);
    }
    // A program of one function with a plain instruction.
    let name = b"bpf_prog_0123456789abcdef_test";
    for (at, flags) in [(100, 0), (4000, 1)] {
        let body = Fields::default()
            .u64(PROGRAM)
            .u32(3)
            .u16(1)
            .u16(flags)
            .text(name);
        machine.kernel(kind::KSYMBOL, 1, body, (TASK, 0, at), DUMMY_ID);
    }
    let mut info = vec![0; 128];
    for (at, value) in [(16, 3u64), (24, 0), (104, 1), (108, 1), (112, 8), (120, 16)] {
        let bytes = value.to_le_bytes();
        let len = if [16, 104, 108].contains(&at) { 4 } else { 8 };
        info[at..at + len].copy_from_slice(&bytes[..len]);
    }
    let data = Fields::default().bytes(&[0x90, 0x0f, 0x05, 0, 0, 0, 0, 0]);
    let data = data.u64(PROGRAM).u32(3).u32(0).0;
    let feature = Fields::default()
        .u32(1)
        .u32(info.len() as u32)
        .u32(data.len() as u32);
    let feature = feature.u64(0).bytes(&info).bytes(&data).0;
    machine.features = vec![(BPF_PROG_INFO, feature)];

    let visit = |time, ip| [tsc(time), begin(ip), end()].concat();
    let packets = [
        psb(1100),
        visit(1200, TEXT),
        visit(1300, PROGRAM),
        visit(3000, TEXT),
        visit(5000, TEXT),
    ];
    let gone = visit(5100, PROGRAM);
    let bytes = finish(machine, &[&packets.concat()[..], &gone].concat());
    let session = open(&bytes);
    assert_eq!(session.diagnostics(), []);
    let seen = machine::seen(&session, KEY);
    let visit = |plain| machine::Seen::Visit(5, plain);
    assert_eq!(
        seen[..4],
        [visit(4), visit(1), visit(0), visit(4)],
        "{seen:?}"
    );
    assert!(
        matches!(
            &seen[4..],
            [machine::Seen::Visit(5, 0), machine::Seen::Error(_)]
        ),
        "{seen:?}"
    );
    let mut flow = session.decode(machine::stream(&session, KEY));
    let names: Vec<String> = std::iter::from_fn(|| {
        flow.next().map(|item| match item {
            cofi_flow::Item::Insn(insn) => flow.place(insn.ip).unwrap().to_string(),
            _ => String::new(),
        })
    })
    .collect();
    assert!(
        names
            .iter()
            .any(|name| name == "bpf_prog_0123456789abcdef_test+0x1"),
        "{names:?}"
    );
}
