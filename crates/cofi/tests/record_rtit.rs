//! `cofi record --config rtit` on real programs: what it decodes is what ran, whole and as bare packets.

mod common;

use common::{
    ASM, ASM_32, DYNAMIC, STATIC, Scratch, addresses, cofi, json, record, repository, run,
};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// The configurations that change what decoding has to do.
const CONFIGS: [&str; 3] = [
    "rtit",
    "rtit,cyc,mtc_range=0,psb_period=0",
    "rtit,noretcomp,mtc=0,sts=0,less_pkts",
];

/// Records a program; it must be verified, and its status and output those of a run of its own.
fn verified(program: &Path, config: &str) {
    let scratch = Scratch::new();
    let alone = run(&mut Command::new(program));
    let data = scratch.path("data");
    let traced = run(record(&data, Some(config)).arg("--").arg(program));
    let name = format!("{} {config}", program.display());
    assert_eq!(traced.code(), alone.code(), "{name}: {}", traced.stderr);
    assert!(
        traced.stderr.contains("verified"),
        "{name}: {}",
        traced.stderr
    );
    assert_eq!(traced.text(), alone.text(), "{name}");
}

/// Programs of the exam.
fn exam(files: &[&str], flags: &[&str], configs: &[&str]) {
    let scratch = Scratch::new();
    for file in files {
        let Some(program) = scratch.program(file, flags) else {
            return;
        };
        for config in configs {
            verified(&program, config);
        }
    }
}

#[test]
fn every_branch() {
    exam(&["branches.S", "far.S"], ASM, &CONFIGS);
    exam(&["m32_int80.S"], ASM_32, &CONFIGS);
}

#[test]
fn programs() {
    exam(&["static.c", "rep.c", "flags.c"], STATIC, &["rtit"]);
    exam(&["dynamic.c"], DYNAMIC, &["rtit,cyc"]);
}

#[test]
fn call_stacks() {
    exam(&["recursion.c", "longjmp.c"], STATIC, &CONFIGS);
}

#[test]
fn threads_and_processes() {
    exam(
        &["threads.c", "processes.c", "exec_thread.c"],
        STATIC,
        &["rtit,psb_period=0"],
    );
}

#[test]
fn signals() {
    exam(&["signals.c", "killed.c"], STATIC, &CONFIGS[..2]);
}

#[test]
fn generated_code() {
    exam(&["jit_wx.c", "jit_rwx.c", "smc.c"], STATIC, &CONFIGS);
}

#[test]
fn by_qemu() {
    if !common::has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    let programs: [(&str, &[&str]); 6] = [
        ("branches.S", ASM),
        ("static.c", STATIC),
        ("threads.c", STATIC),
        ("processes.c", STATIC),
        ("signals.c", STATIC),
        ("jit_rwx.c", STATIC),
    ];
    for (file, flags) in programs {
        let Some(program) = scratch.program(file, flags) else {
            return;
        };
        for config in CONFIGS {
            let data = scratch.path("data");
            let traced = run(cofi()
                .args(["record", "--engine", "qemu", "--verify", "--config", config])
                .arg("-o")
                .arg(&data)
                .arg("--")
                .arg(&program));
            assert!(
                traced.stderr.contains("verified"),
                "{file} {config}: {}",
                traced.stderr
            );
        }
    }
}

/// Of the first thread: from perf.data, and from its bare packets with the ELF file.
#[test]
fn the_list_of_addresses_is_what_decodes() {
    let scratch = Scratch::new();
    for (file, flags, mode) in [("branches.S", ASM, "64"), ("m32_int80.S", ASM_32, "32")] {
        let Some(program) = scratch.program(file, flags) else {
            return;
        };
        for (config, more) in [("rtit", None), ("rtit,cyc", Some("--cycle-accurate"))] {
            let [data, raw, truth] = ["data", "raw", "truth"].map(|name| scratch.path(name));
            let traced = run(record(&data, Some(config))
                .arg("--raw-output")
                .arg(&raw)
                .arg("--truth")
                .arg(&truth)
                .arg("--")
                .arg(&program));
            assert!(traced.stderr.contains("verified"), "{}", traced.stderr);
            let text = std::fs::read_to_string(&truth).expect("the list");
            let address = |line: &str| {
                let (_, digits) = line.split_once(" 0x").expect("TID 0xADDRESS");
                u64::from_str_radix(digits, 16).expect("an address")
            };
            let listed: Vec<u64> = text.lines().map(address).collect();
            assert!(listed.len() > 60, "{} addresses", listed.len());

            let from_data = run(&mut json("insn", &[], &data));
            assert_eq!(from_data.code(), 0, "{}", from_data.stderr);
            assert_eq!(addresses(&from_data.stdout), listed);

            let options = ["--format", "rtit", "--mode", mode, "--elf"].map(OsStr::new);
            let mut options = [&options[..], &[program.as_os_str()]].concat();
            options.extend(more.map(OsStr::new));
            let from_raw = run(&mut json("insn", &options, &raw));
            assert_eq!(from_raw.code(), 0, "{}", from_raw.stderr);
            assert_eq!(addresses(&from_raw.stdout), listed);

            // The same packets, whatever they came in.
            let mut dump = cofi();
            dump.args(["dump", "--format", "rtit"]).args(more).arg(&raw);
            let dumped = run(&mut dump);
            assert_eq!(dumped.code(), 0, "{}", dumped.stderr);
            assert_eq!(dumped.text(), run(cofi().arg("dump").arg(&data)).text());
        }
    }
}

/// `--from` and `--to`, wherever packets tell place and time, and what is made of all of it.
#[test]
fn parts_are_those_of_the_whole() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("recursion.c", STATIC) else {
        return;
    };
    let data = scratch.path("data");
    let traced = run(record(&data, Some("rtit,cyc,psb_period=0"))
        .arg("--")
        .arg(&program));
    assert!(traced.stderr.contains("verified"), "{}", traced.stderr);
    let insn = |more: &[&str]| {
        let more: Vec<&OsStr> = more.iter().map(OsStr::new).collect();
        let ran = run(&mut json("insn", &more, &data));
        assert_eq!(ran.code(), 0, "{more:?}: {}", ran.stderr);
        ran.text()
    };
    let plain = insn(&[]);
    let timed = insn(&["--time"]);
    let stats = run(cofi().args(["dump", "--stats", "--json"]).arg(&data));
    let stats: serde_json::Value = serde_json::from_str(&stats.text()).expect("statistics");
    let size = stats["bytes"].as_u64().expect("a size");
    assert!(size > 3 * 2048, "{size}");
    for place in (0..7).map(|part| part * size / 7) {
        let from = format!("offset:{place}");
        let part = insn(&["--from", &from]);
        assert!(plain.ends_with(&part) && !part.is_empty(), "{from}");
        let part = insn(&["--from", &from, "--time"]);
        assert!(timed.ends_with(&part) && !part.is_empty(), "{from}");
    }
    let tsc = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        line["tsc"].as_u64()
    };
    let times: Vec<u64> = timed.lines().filter_map(tsc).collect();
    assert_eq!(times.len(), timed.lines().count(), "all have a time");
    let middle = format!("tsc:{}", times[times.len() / 2]);
    let (before, after) = (
        insn(&["--to", &middle, "--time"]),
        insn(&["--from", &middle, "--time"]),
    );
    assert_eq!(before + &after, timed);

    let check = run(cofi().arg("check").arg(&data));
    assert!(check.text().contains("No gaps"), "{}", check.text());
    let report = run(cofi().arg("report").arg(&data));
    assert_eq!(report.code(), 0, "{}", report.stderr);
    assert!(report.text().contains("main"), "{}", report.text());
    let packed = scratch.path("packed");
    let archive = run(cofi().arg("archive").arg(&data).arg("-o").arg(&packed));
    assert_eq!(archive.code(), 0, "{}", archive.stderr);
    std::fs::remove_file(&program).expect("it is packed");
    assert_eq!(
        run(&mut json("insn", &[], &packed)).text(),
        plain,
        "from the archive"
    );
}

/// A machine from the reset vector through all its modes: its packets tell neither those nor, behind a gap, the address space.
#[test]
fn a_machine() {
    let scratch = Scratch::new();
    let source = repository().join("exam/machine/boot.S");
    let (object, image) = (scratch.path("boot.o"), scratch.path("boot.img"));
    let assembled = Command::new("cc")
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .status();
    let linked = Command::new("ld")
        .args(["-Ttext", "0x7c00", "--oformat", "binary", "-o"])
        .args([&image, &object])
        .status();
    let is_built = |status: std::io::Result<std::process::ExitStatus>| {
        status.is_ok_and(|status| status.success())
    };
    if !(is_built(assembled) && is_built(linked)) {
        return cofi_test::skip("no C compiler or linker");
    }
    let file = std::fs::File::options().write(true).open(&image);
    // A disk of whole tracks.
    file.and_then(|file| file.set_len(1 << 20))
        .expect("an image");
    let disk = format!("file={},format=raw", image.display());
    for (config, privilege) in [("rtit", "all"), ("rtit,cyc", "os"), ("rtit", "user")] {
        let data = scratch.path("data");
        let mut command = cofi();
        command.args(["record", "--engine", "qemu-system", "--verify"]);
        command.args(["--config", config, "--privilege", privilege, "-o"]);
        command.arg(&data).args(["--", "-drive", &disk]);
        command.args(["-display", "none", "-monitor", "none", "-net", "none"]);
        command.args(["-no-reboot", "-nodefaults"]);
        let ran = run(&mut command);
        if ran.code() == 2 {
            return cofi_test::skip(ran.stderr);
        }
        assert!(
            ran.stderr.contains("verified"),
            "{config} {privilege}: {}",
            ran.stderr
        );
    }
}
