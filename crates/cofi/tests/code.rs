//! Where code comes from, end to end: traces of ours, with perf's own tools in between where they are installed.

mod common;

use cofi_packet::intel::{IpPayload, Packet, U48, Uint};
use cofi_packet::{StreamOffset, Tsc};
use cofi_perf::{Mmap2, PtConfig, Subject, Task, TimeConv, Writer, WriterOptions};
use common::{ASM, Scratch, cofi, json, record, run};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const TIME: TimeConv = TimeConv {
    shift: 31,
    mult: 1 << 30,
    zero: 0,
};

/// Runs perf in the test's folder, with its cache there too; skipped where it is not installed.
#[track_caller]
fn perf(scratch: &Scratch, args: &[&OsStr]) -> Option<common::Ran> {
    let mut command = Command::new("perf");
    command.env("HOME", scratch.path("")).args(args);
    command.current_dir(scratch.path(""));
    if !cofi_test::has_program("perf") {
        return None;
    }
    Some(run(&mut command))
}

#[test]
fn a_program_that_was_built_anew_is_not_taken_for_the_one_that_ran() {
    let scratch = Scratch::new();
    let source = |answer: u8| {
        format!(".globl _start\n_start: mov ${answer}, %edi\n mov $60, %eax\n syscall\n")
    };
    let build = |answer| {
        let source = scratch.write("program.S", source(answer));
        let flags = [ASM, &["-Wl,--build-id"]].concat();
        scratch.compile(&source, &flags)
    };
    let Some(program) = build(0) else { return };
    let data = scratch.path("plain.data");
    let ran = run(record(&data, None).arg("--").arg(&program));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    // Our recorder tells no build ids; perf adds them.
    let told = scratch.path("trace.data");
    let args = ["inject", "-b", "-i"].map(OsStr::new);
    let args = [
        &args[..],
        &[data.as_os_str(), OsStr::new("-o"), told.as_os_str()],
    ]
    .concat();
    let Some(injected) = perf(&scratch, &args) else {
        return;
    };
    assert_eq!(injected.code(), 0, "{}", injected.stderr);
    let insn = |more: &[&str]| {
        let more: Vec<&OsStr> = more.iter().map(OsStr::new).collect();
        run(json("insn", &more, &told).env("HOME", scratch.path("nobody")))
    };
    let before = insn(&[]);
    assert_eq!(
        (before.code(), common::addresses(&before.stdout).len()),
        (0, 3)
    );
    let kept = scratch.path("kept");
    std::fs::rename(&program, &kept).unwrap();
    build(1);
    let after = insn(&[]);
    assert_eq!(after.code(), 1);
    assert!(
        after.stderr.contains("not the file that was traced"),
        "{}",
        after.stderr
    );
    let none: [u64; 0] = [];
    assert_eq!(
        common::addresses(&after.stdout),
        none,
        "no instruction of another program"
    );
    let forced = insn(&["--ignore-build-ids"]);
    assert_eq!((forced.code(), forced.stdout == before.stdout), (0, true));
    // Somewhere else is the right one.
    let root = scratch.path("root");
    let there = root.join(program.strip_prefix("/").unwrap());
    std::fs::create_dir_all(there.parent().unwrap()).unwrap();
    std::fs::copy(&kept, there).unwrap();
    let found = insn(&["--symfs", root.to_str().unwrap()]);
    assert_eq!(
        (found.code(), found.stdout == before.stdout),
        (0, true),
        "{}",
        found.stderr
    );
}

/// So many plain instructions, then a system call.
fn code(plain: usize) -> Vec<u8> {
    let mut bytes = vec![0x90; plain];
    bytes.extend([0x0f, 0x05]);
    bytes
}

/// Writes `jit-7.dump`: code of one plain instruction at 0x7000 from 1000 on, of two from 3000 on.
fn jitdump(scratch: &Scratch) -> PathBuf {
    let mut out = Vec::new();
    for field in [0x4a69_5444u32, 1, 40, 62, 0, 7] {
        out.extend(field.to_le_bytes());
    }
    out.extend(0u64.to_le_bytes());
    // Times are those of the time stamp counter.
    out.extend(1u64.to_le_bytes());
    for (index, time) in [(0u64, 1000u64), (1, 3000)] {
        let code = code(index as usize + 1);
        let name = format!("generated_{index}\0");
        let size = 16 + 40 + name.len() + code.len();
        out.extend([0u32, size as u32].iter().flat_map(|v| v.to_le_bytes()));
        out.extend(time.to_le_bytes());
        out.extend([7u32, 7].iter().flat_map(|v| v.to_le_bytes()));
        for field in [0x7000, 0x7000, code.len() as u64, index] {
            out.extend(field.to_le_bytes());
        }
        out.extend(name.bytes());
        out.extend(code);
    }
    scratch.write("jit-7.dump", out)
}

fn encode(packets: &[Packet]) -> Vec<u8> {
    let raw = packets.iter().map(Packet::encode);
    raw.flat_map(|raw| raw.bytes()[..raw.len()].to_vec())
        .collect()
}

/// A trace of three visits to 0x7000, before and after the code there was generated anew.
fn visits(scratch: &Scratch, dump: &Path) -> PathBuf {
    let map = Mmap2 {
        start: 0x10_0000,
        len: 0x1000,
        pgoff: 0,
        device: (8, 1),
        inode: 3,
        prot: 5,
        path: dump.as_os_str().as_bytes(),
    };
    trace(scratch, 7, &map, 0x7000)
}

/// A trace of three visits to an address, with one mapping.
fn trace(scratch: &Scratch, pid: u32, map: &Mmap2<'_>, address: u64) -> PathBuf {
    let task = Task { pid: 7, tid: 7 };
    let now = |tsc: u64| TIME.time_of(Tsc(tsc)).unwrap();
    let mut options = WriterOptions::new(PtConfig::default().into(), TIME);
    options.tsc_ctc_ratio = (80, 1);
    options.max_nonturbo_ratio = 20;
    options.command_line = vec!["jit".into()];
    options.subject = Subject::Processes;
    let mut writer = Writer::new(std::io::Cursor::new(Vec::new()), options).unwrap();
    writer.comm(task, b"jit", true, now(500)).unwrap();
    let owner = Task {
        pid,
        tid: if pid == u32::MAX { 0 } else { pid },
    };
    writer.mmap2(owner, map, now(600)).unwrap();
    writer.itrace_start(task, now(700)).unwrap();
    let mut packets = encode(&[
        Packet::Psb,
        Packet::Tsc {
            tsc: Uint::truncate(1500),
        },
        Packet::ModeExec {
            mode: cofi_packet::intel::ExecMode::Bits64,
            interrupt_flag: false,
        },
        Packet::PsbEnd,
    ]);
    for tsc in [2000, 2500, 4000] {
        packets.extend(encode(&[
            Packet::Tsc {
                tsc: Uint::truncate(tsc),
            },
            Packet::TipPge {
                ip: IpPayload::sext48(U48::truncate(address)),
            },
            Packet::TipPgd {
                ip: IpPayload::SUPPRESSED,
            },
        ]));
    }
    writer
        .aux(task, StreamOffset(0), packets.len() as u64, 0, now(4100))
        .unwrap();
    writer
        .auxtrace(0, 7, StreamOffset(0), 1500, &packets)
        .unwrap();
    writer.exit(task, now(5000)).unwrap();
    writer.finished_round().unwrap();
    scratch.write("visits.data", writer.finish().unwrap().into_inner())
}

const EXPECTED: [u64; 7] = [0x7000, 0x7001, 0x7000, 0x7001, 0x7000, 0x7001, 0x7002];

#[test]
fn generated_code_by_its_dump_and_by_what_perf_makes_of_it() {
    let scratch = Scratch::new();
    let dump = jitdump(&scratch);
    let data = visits(&scratch, &dump);
    let direct = run(&mut json("insn", &[], &data));
    assert_eq!((direct.code(), &*direct.stderr), (0, ""));
    assert_eq!(common::addresses(&direct.stdout), EXPECTED);
    let text = run(cofi().arg("insn").arg(&data)).text();
    assert!(
        text.contains("generated_0") && text.contains("generated_1+0x2"),
        "{text}"
    );

    // perf makes ELF files of it, which it maps instead.
    let injected = scratch.path("injected.data");
    let args = ["inject", "--jit", "-i"].map(OsStr::new);
    let args = [
        &args[..],
        &[data.as_os_str(), OsStr::new("-o"), injected.as_os_str()],
    ]
    .concat();
    let Some(ran) = perf(&scratch, &args) else {
        return;
    };
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    assert!(scratch.path("jitted-7-0.so").exists() && scratch.path("jitted-7-1.so").exists());
    std::fs::rename(&dump, scratch.path("gone")).unwrap();
    let files = run(&mut json("insn", &[], &injected));
    assert_eq!(
        common::addresses(&files.stdout),
        EXPECTED,
        "{}",
        files.stderr
    );
    let text = run(cofi().arg("insn").arg(&injected)).text();
    assert!(
        text.contains("generated_0") && text.contains("generated_1+0x2"),
        "{text}"
    );
    // And what perf decodes.
    let args = ["script", "--itrace=i1i", "-F", "ip", "-i"].map(OsStr::new);
    let args = [&args[..], &[injected.as_os_str()]].concat();
    let Some(script) = perf(&scratch, &args) else {
        return;
    };
    let theirs: Vec<u64> = script
        .text()
        .split_ascii_whitespace()
        .filter_map(|ip| u64::from_str_radix(ip, 16).ok())
        .collect();
    assert_eq!(theirs, EXPECTED, "{}", script.stderr);

    // The dump goes into an archive.
    std::fs::rename(scratch.path("gone"), &dump).unwrap();
    let packed = scratch.path("packed.cofi");
    let ran = run(cofi().arg("archive").arg(&data).arg("-o").arg(&packed));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    std::fs::remove_file(&dump).unwrap();
    let after = run(&mut json("insn", &[], &packed));
    assert!(after.stdout == direct.stdout, "{}", after.stderr);
    // Without it there is a gap, and a reason.
    let without = run(&mut json("insn", &[], &data));
    assert_eq!(without.code(), 1);
    assert!(
        without.stderr.contains("jit-7.dump: no such file"),
        "{}",
        without.stderr
    );
}

/// An ELF core file with one segment of code.
fn kcore(address: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let halves =
        |out: &mut Vec<u8>, list: &[u16]| out.extend(list.iter().flat_map(|v| v.to_le_bytes()));
    let words =
        |out: &mut Vec<u8>, list: &[u64]| out.extend(list.iter().flat_map(|v| v.to_le_bytes()));
    halves(&mut out, &[4, 62, 1, 0]);
    words(&mut out, &[0, 64, 0]);
    halves(&mut out, &[0, 0, 64, 56, 1, 64, 0, 0]);
    halves(&mut out, &[1, 0, 5, 0]);
    // More than is there, as of a copy that was cut off.
    words(&mut out, &[120, address, address, 0x10_0000, 0x10_0000, 1]);
    out.extend(bytes);
    out
}

#[test]
fn the_kernels_code_goes_into_an_archive_with_its_names() {
    const TEXT: u64 = 0xffff_ffff_8100_0000;
    let scratch = Scratch::new();
    let map = Mmap2 {
        start: TEXT,
        len: 0x20_0000,
        pgoff: TEXT,
        device: (0, 0),
        inode: 0,
        prot: 5,
        path: b"[kernel.kallsyms]_text",
    };
    let data = trace(&scratch, u32::MAX, &map, TEXT + 0x10);
    let folder = scratch.path("copy");
    std::fs::create_dir(&folder).unwrap();
    let mut text = vec![0xcc; 0x10];
    text.extend(code(2));
    std::fs::write(folder.join("kcore"), kcore(TEXT, &text)).unwrap();
    let list = format!("{TEXT:x} T _text\n{:x} t do_nothing_twice\n", TEXT + 0x10);
    std::fs::write(folder.join("kallsyms"), list).unwrap();

    let bare = run(&mut json("insn", &[], &data));
    assert_eq!(bare.code(), 1);
    assert!(
        bare.stderr.contains("perf record --kcore"),
        "{}",
        bare.stderr
    );
    let more = [OsStr::new("--kcore"), folder.as_os_str()];
    let before = run(&mut json("insn", &more, &data));
    assert_eq!((before.code(), &*before.stderr), (0, ""));
    let once = [TEXT + 0x10, TEXT + 0x11, TEXT + 0x12];
    assert_eq!(common::addresses(&before.stdout), once.repeat(3));
    let text = run(cofi().arg("insn").args(more).arg(&data)).text();
    assert!(text.contains("do_nothing_twice+0x2"), "{text}");

    let packed = scratch.path("packed.cofi");
    let ran = run(cofi()
        .arg("archive")
        .args(more)
        .arg(&data)
        .arg("-o")
        .arg(&packed));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    std::fs::remove_dir_all(&folder).unwrap();
    let after = run(&mut json("insn", &[], &packed));
    assert!(after.stdout == before.stdout, "{}", after.stderr);
    assert!(run(cofi().arg("insn").arg(&packed)).text() == text);
    // A folder that perf made holds both.
    let perfs = scratch.path("perf.data");
    std::fs::create_dir_all(perfs.join("kcore_dir")).unwrap();
    std::fs::rename(&data, perfs.join("data")).unwrap();
    std::fs::write(
        perfs.join("kcore_dir/kcore"),
        kcore(TEXT, &[&[0xcc; 0x10][..], &code(2)].concat()),
    )
    .unwrap();
    let folder = run(&mut json("insn", &[], &perfs));
    assert!(folder.stdout == before.stdout, "{}", folder.stderr);
}
