//! `cofi archive`: what was packed decodes as before, wherever it is, and nothing in it is trusted.

mod common;

use common::{DYNAMIC, Ran, Scratch, cofi, json, record, run};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

fn archive(file: &Path, out: &Path, more: &[&OsStr]) -> Ran {
    let mut command = cofi();
    command.arg("archive").args(more).arg("-o").arg(out);
    run(command.arg(file))
}

fn insn(file: &Path) -> Ran {
    run(&mut json("insn", &[], file))
}

/// A program that is linked with libraries and reads the time through the vDSO, recorded.
fn recorded(scratch: &Scratch) -> Option<PathBuf> {
    let source = scratch.write(
        "program.c",
        "#include <stdio.h>\n#include <time.h>\nint main(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);\n\
         for (int i = 0; i < 3; i++) printf(\"%d\\n\", i); return 0; }\n",
    );
    let program = scratch.compile(&source, DYNAMIC)?;
    let data = scratch.path("trace.data");
    let ran = run(record(&data, None).arg("--").arg(program));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    Some(data)
}

#[test]
fn an_archive_decodes_when_everything_else_is_gone() {
    let scratch = Scratch::new();
    let Some(data) = recorded(&scratch) else {
        return;
    };
    let out = scratch.path("packed.cofi");
    let packed = archive(&data, &out, &[]);
    assert_eq!(packed.code(), 0, "{}", packed.stderr);
    assert!(packed.stdout.is_empty());
    let before = insn(&data);
    assert_eq!(before.code(), 0);
    let report = |file: &Path| run(cofi().arg("report").arg(file)).text();
    let told = report(&data);
    assert!(told.contains("main") && told.contains("libc"), "{told}");
    // Another program of the same name, no trace, no saved code.
    scratch.write("program", "#!/bin/sh\n");
    std::fs::remove_file(&data).unwrap();
    std::fs::remove_dir_all(scratch.path("trace.data.code")).unwrap();
    let moved = scratch.path("elsewhere");
    std::fs::rename(&out, &moved).unwrap();
    let after = insn(&moved);
    assert_eq!((after.code(), &*after.stderr), (0, ""));
    assert!(before.stdout == after.stdout, "other instructions");
    assert_eq!(report(&moved), told);
    let dumped = run(cofi().arg("dump").arg(&moved));
    assert_eq!(
        (dumped.code(), dumped.text().starts_with("       0: psb")),
        (0, true)
    );
    // Through a pipe, and packed once more: it is the same file.
    let piped = common::run_with(
        &mut json("insn", &[], Path::new("-")),
        &std::fs::read(&moved).unwrap(),
    );
    assert!(piped.stdout == before.stdout);
    let again = scratch.path("again.cofi");
    assert_eq!(archive(&moved, &again, &[]).code(), 0);
    assert!(std::fs::read(&again).unwrap() == std::fs::read(&moved).unwrap());
    // Onto itself it is not written.
    let onto = archive(&moved, &moved, &[]);
    assert_eq!(onto.code(), 2);
    assert!(
        onto.stderr.contains("is the trace itself"),
        "{}",
        onto.stderr
    );
}

#[test]
fn bare_packets_go_with_what_was_said_of_their_code() {
    let scratch = Scratch::new();
    // psb, psbend, tip.pge 0x401000, tip.pgd without an address; two nops and a system call.
    let text = scratch.write("packets.txt", "psb\npsbend\ntip.pge 0x401000\ntip.pgd -\n");
    let packets = scratch.path("packets.pt");
    let made = run(cofi().arg("asm").arg(&text).arg("-o").arg(&packets));
    assert_eq!(made.code(), 0, "{}", made.stderr);
    let code = scratch.write("code.bin", [0x90, 0x90, 0x0f, 0x05]);
    let raw = format!("{}:0x401000", code.display());
    let more = ["--raw", &raw, "--cpu", "6/94", "--format", "pt"].map(OsStr::new);
    let before = run(&mut json("insn", &more, &packets));
    assert_eq!(
        common::addresses(&before.stdout),
        [0x401000, 0x401001, 0x401002]
    );
    let out = scratch.path("packed.cofi");
    assert_eq!(archive(&packets, &out, &more).code(), 0);
    for file in [&packets, &code] {
        std::fs::remove_file(file).unwrap();
    }
    let after = insn(&out);
    assert_eq!((after.code(), &*after.stderr), (0, ""));
    assert_eq!(before.stdout, after.stdout);
}

/// A tar of members, the first of which is the manifest.
fn tar(manifest: &str, members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let all = [("cofi-archive.json", manifest.as_bytes())];
    for (name, bytes) in all.iter().chain(members) {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, name, *bytes).unwrap();
    }
    tar.into_inner().unwrap()
}

#[test]
fn files_that_an_archive_names_are_not_opened() {
    let scratch = Scratch::new();
    let code = scratch.write("code.bin", [0x90, 0x90, 0x0f, 0x05]);
    let packets = [
        &[0x02, 0x82].repeat(8)[..],
        &[0x02, 0x23, 0x71, 0, 0x10, 0x40, 0, 0, 0, 0x01],
    ]
    .concat();
    let raw = format!("{}:0x401000", code.display());
    let manifest = |raw: &str, kind: &str| {
        format!(
            "{{\"cofi_archive\": 1, \"trace\": \"trace\", \"format\": \"pt\", \"{kind}\": [\"{raw}\"]}}"
        )
    };
    for kind in ["raw", "elf", "jitdumps"] {
        let bytes = tar(&manifest(&raw, kind), &[("trace", &packets)]);
        let ran = insn(&scratch.write("evil.cofi", bytes));
        assert_eq!(ran.code(), 2, "{kind}: {}", ran.text());
        assert!(ran.stderr.contains("is not in it"), "{}", ran.stderr);
        assert!(ran.stdout.is_empty());
    }
    // With its code in it, the same is an archive.
    let with = manifest(&raw, "raw").replace(
        "\"format\"",
        &format!(
            "\"files\": [{{\"member\": \"x\", \"path\": \"{}\"}}], \"format\"",
            code.display()
        ),
    );
    let bytes = tar(&with, &[("trace", &packets), ("x", &[0x90, 0x0f, 0x05])]);
    let ran = insn(&scratch.write("good.cofi", bytes));
    assert_eq!(
        common::addresses(&ran.stdout),
        [0x401000, 0x401001],
        "{}",
        ran.stderr
    );
    // Of another version, or without a manifest that makes sense.
    for manifest in ["{\"cofi_archive\": 2}", "{}", "[", ""] {
        let ran = insn(&scratch.write("bad.cofi", tar(manifest, &[("trace", &packets)])));
        assert_eq!(ran.code(), 2, "{manifest}");
        assert!(
            ran.stderr.contains("the archive cannot be read"),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn an_archive_that_is_cut_off_or_damaged_is_told() {
    let scratch = Scratch::new();
    let Some(data) = recorded(&scratch) else {
        return;
    };
    let out = scratch.path("packed.cofi");
    assert_eq!(archive(&data, &out, &[]).code(), 0);
    let whole = std::fs::read(&out).unwrap();
    // What is shorter than the first header is taken for bare packets. Within each header, each member, at their edges, and where the code of a library is missing.
    for at in [
        511,
        512,
        700,
        1024,
        1536,
        4096,
        10_000,
        40_000,
        whole.len() / 2,
    ] {
        let ran = insn(&scratch.write("cut.cofi", &whole[..at]));
        assert!(
            (1..=2).contains(&ran.code()),
            "{at}: {} {}",
            ran.code(),
            ran.stderr
        );
        assert!(
            !ran.stderr.is_empty() && !ran.stderr.contains("panicked"),
            "{}",
            ran.stderr
        );
    }
    for at in (0..6000).step_by(97) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        let ran = insn(&scratch.write("damaged.cofi", damaged));
        assert!(
            (0..=2).contains(&ran.code()) && !ran.stderr.contains("panicked"),
            "{at}: {}",
            ran.stderr
        );
    }
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_replaced() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let scratch = Scratch::new();
    let text = scratch.write("packets.txt", "psb\npsbend\n");
    let trace = scratch.path("trace.pt");
    let made = run(cofi().arg("asm").arg(&text).arg("-o").arg(&trace));
    assert_eq!(made.code(), 0, "{}", made.stderr);
    let refused = archive(&trace, Path::new("/dev/null"), &[]);
    assert_eq!(refused.code(), 2);
    assert!(
        refused.stderr.contains("no regular file"),
        "{}",
        refused.stderr
    );
    // A link leads to the file that is written, and the trace's readers are the archive's.
    let (target, link) = (scratch.write("target", "old"), scratch.path("link"));
    symlink(&target, &link).unwrap();
    std::fs::set_permissions(&trace, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(archive(&trace, &link, &[]).code(), 0);
    assert!(link.is_symlink() && std::fs::metadata(&target).unwrap().len() > 512);
    let mode = std::fs::metadata(&target).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A link to the trace is the trace.
    let same = scratch.path("same");
    symlink(&trace, &same).unwrap();
    let refused = archive(&trace, &same, &[]);
    assert!(
        refused.stderr.contains("is the trace itself"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_bundle_is_packed_with_all_its_files() {
    let scratch = Scratch::new();
    let folder = scratch.path("bundle");
    std::fs::create_dir(&folder).unwrap();
    // Code at 0x401000: two nops and a system call, in an ELF file of one segment; packets of a visit.
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([2u16, 62, 1, 0].iter().flat_map(|v| v.to_le_bytes()));
    elf.extend([0x40_1000u64, 64, 0].iter().flat_map(|v| v.to_le_bytes()));
    let sizes = [0u16, 0, 64, 56, 1, 64, 0, 0, 1, 0, 5, 0];
    elf.extend(sizes.iter().flat_map(|v| v.to_le_bytes()));
    let segment = [120u64, 0x40_1000, 0x40_1000, 4, 4, 1];
    elf.extend(segment.iter().flat_map(|v| v.to_le_bytes()));
    elf.extend([0x90, 0x90, 0x0f, 0x05]);
    std::fs::write(folder.join("program"), elf).unwrap();
    let text = scratch.write("packets.txt", "psb\npsbend\ntip.pge 0x401000\ntip.pgd -\n");
    let packets = folder.join("thread.pt");
    let made = run(cofi().arg("asm").arg(&text).arg("-o").arg(&packets));
    assert_eq!(made.code(), 0, "{}", made.stderr);
    let json = r#"{"type": "intel-pt", "processes": [{"pid": 5, "threads": [{"tid": 5, "iptTrace": "thread.pt"}],
        "modules": [{"systemPath": "program", "loadAddress": "0x401000"}]}]}"#;
    let bundle = folder.join("trace.json");
    std::fs::write(&bundle, json).unwrap();
    let before = insn(&bundle);
    assert_eq!((before.code(), &*before.stderr), (0, ""));
    assert_eq!(
        common::addresses(&before.stdout),
        [0x401000, 0x401001, 0x401002]
    );
    let out = scratch.path("packed.cofi");
    // The folder stands for the description in it.
    let packed = archive(&folder, &out, &[]);
    assert_eq!(packed.code(), 0, "{}", packed.stderr);
    std::fs::remove_dir_all(&folder).unwrap();
    let after = insn(&out);
    assert_eq!((after.code(), &*after.stderr), (0, ""));
    assert_eq!(after.stdout, before.stdout);
    let again = scratch.path("again.cofi");
    assert_eq!(archive(&out, &again, &[]).code(), 0);
    assert!(std::fs::read(&again).unwrap() == std::fs::read(&out).unwrap());
    // Files that a packed bundle names, but that are not packed, are not opened.
    let packets = scratch.write("outside.pt", [0x02, 0x82].repeat(8));
    let json = json.replace("thread.pt", packets.to_str().unwrap());
    let manifest = r#"{"cofi_archive": 1, "trace": "trace", "path": "trace.json"}"#;
    let evil = scratch.write("evil.cofi", tar(manifest, &[("trace", json.as_bytes())]));
    let ran = insn(&evil);
    assert_eq!(ran.code(), 2);
    assert!(ran.stderr.contains("not in the archive"), "{}", ran.stderr);
}
