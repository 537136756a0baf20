//! Bare packets of RTIT in all commands that read a trace, and what must be said of them.

mod common;

use common::{Ran, Scratch, addresses, cofi, json, run, run_with};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// nop; jne to the nop; jmp *%rax; syscall.
const CODE: &[u8] = &[0x90, 0x75, 0xfd, 0xff, 0xe0, 0x0f, 0x05];

/// What ran of it: the loop twice, the jump to the system call, which is not traced.
const STREAM: &str = "\
psb
sts acbr=20 ecbr=20 tsc=0x1000
fup.pge 0x1000
tnt TN
tip 0x1005
mtc range=1 tsc=9
fup.pgd 0x1007
";

const RAN: [u64; 6] = [0x1000, 0x1001, 0x1000, 0x1001, 0x1003, 0x1005];

fn asm(scratch: &Scratch, name: &str, text: &str, more: &[&str]) -> PathBuf {
    let mut command = cofi();
    command
        .args(["asm", "--format", "rtit"])
        .args(more)
        .arg("-");
    let ran = run_with(&mut command, text.as_bytes());
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    scratch.write(name, ran.stdout)
}

/// `--format rtit --raw CODE:0x1000`, and more.
fn options(scratch: &Scratch, more: &[&str]) -> Vec<String> {
    let code = scratch.write("code", CODE);
    let raw = format!("{}:0x1000", code.display());
    let all = ["--format", "rtit", "--raw", &raw];
    all.iter().chain(more).map(ToString::to_string).collect()
}

fn insn(file: &Path, options: &[String]) -> Ran {
    let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    run(&mut json("insn", &options, file))
}

fn objects(ran: &Ran) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    ran.text().lines().map(parse).collect()
}

/// What is no instruction, as `event` and the address that belongs to it.
fn events(ran: &Ran) -> Vec<String> {
    let objects = objects(ran);
    let others = objects.iter().filter(|object| object["insn"].is_null());
    others
        .map(|object| match object["event"].as_str() {
            Some(event) => format!("{event} {}", object["ip"]),
            None => format!("error {}", object["kind"]),
        })
        .collect()
}

#[test]
fn every_command_reads_bare_packets() {
    let scratch = Scratch::new();
    let stream = asm(&scratch, "stream", STREAM, &[]);
    let options = options(&scratch, &[]);
    let ran = insn(&stream, &options);
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""), "{}", ran.text());
    assert_eq!(addresses(&ran.stdout), RAN);
    let mut first = objects(&ran);
    assert_eq!(first[0]["event"], "enabled");
    let last = first.pop().expect("an event");
    assert_eq!(
        (&last["event"], &last["ip"]),
        (&"disabled".into(), &Value::Null)
    );

    let command = |command: &str, more: &[&str]| {
        run(cofi().arg(command).args(&options).args(more).arg(&stream))
    };
    let blocks = command("blocks", &["--json"]);
    assert_eq!(blocks.code(), 0, "{}", blocks.stderr);
    let count = |object: &Value| object["insns"].as_u64();
    assert_eq!(objects(&blocks).iter().filter_map(count).sum::<u64>(), 6);
    let events = command("events", &["--json", "--branches", "--ticks"]);
    assert_eq!(events.code(), 0, "{}", events.stderr);
    assert!(events.text().contains("\"TN\""), "{}", events.text());
    let check = command("check", &[]);
    assert_eq!(check.code(), 0, "{}", check.text());
    assert!(
        check.text().contains("6 instructions decoded"),
        "{}",
        check.text()
    );
    let report = command("report", &[]);
    assert_eq!(report.code(), 0, "{}", report.stderr);
}

#[test]
fn cycle_counts_are_read_where_they_are_said_to_be() {
    let scratch = Scratch::new();
    let text =
        "psb\nfup.pge 0x1000 cycles=3\ntnt TN\ntip 0x1005 cycles=7\nfup.pgd 0x1007 cycles=0\n";
    let stream = asm(&scratch, "stream", text, &["--cycle-accurate"]);
    let ran = insn(&stream, &options(&scratch, &["--cycle-accurate"]));
    assert_eq!((ran.code(), addresses(&ran.stdout)), (0, RAN.to_vec()));
    let wrong = insn(&stream, &options(&scratch, &[]));
    assert_eq!(wrong.code(), 1, "{}", wrong.text());
}

#[test]
fn the_last_branches_are_in_a_register() {
    let scratch = Scratch::new();
    let stream = asm(&scratch, "stream", "psb\nfup.pge 0x1000\ntracestop\n", &[]);
    // Taken, not taken, and then the instruction at 0x1003 would have come.
    let stop = ["--trace-stop", "0x1003-0x1004"];
    let told = insn(
        &stream,
        &options(&scratch, &[&stop[..], &["--tnt-buff", "0x6"]].concat()),
    );
    assert_eq!(told.code(), 0, "{}", told.text());
    assert_eq!(addresses(&told.stdout), RAN[..4]);
    assert!(events(&told).iter().any(|event| event.starts_with("stop")));
    // Without it nothing is guessed.
    let untold = insn(&stream, &options(&scratch, &stop));
    assert!(addresses(&untold.stdout).len() < 4, "{}", untold.text());
    // Three branches, where the jump behind the second has a target: it is another trace's.
    let more = insn(
        &stream,
        &options(&scratch, &[&stop[..], &["--tnt-buff", "0xd"]].concat()),
    );
    assert_eq!(more.code(), 1, "{}", more.text());
    assert!(more.text().contains("found tnt where"), "{}", more.text());
}

#[test]
fn who_walks_out_of_the_filtered_range_is_told_to() {
    let scratch = Scratch::new();
    // Nothing is listed of what stands behind the range, though the target at 0x1003 fits.
    let text = "psb\nfup.pge 0x1000\ntnt N\ntip 0x1005\nfup.pgd 0x1007\n";
    let stream = asm(&scratch, "stream", text, &[]);
    let ran = insn(
        &stream,
        &options(&scratch, &["--ip-filter", "0x1000-0x1002"]),
    );
    assert_eq!(ran.code(), 1, "{}", ran.text());
    assert_eq!(addresses(&ran.stdout), [0x1000, 0x1001]);
}

#[test]
fn who_left_the_filtered_range_is_known_by_the_range() {
    let scratch = Scratch::new();
    // The jump leaves the range (Table 19, line 25).
    let text = "psb\nfup.pge 0x1000\ntnt N\ntip 0x2000\nfup.pgd 0x1005\n";
    let stream = asm(&scratch, "stream", text, &[]);
    let ran = insn(
        &stream,
        &options(&scratch, &["--ip-filter", "0x1000-0x1fff"]),
    );
    assert_eq!(ran.code(), 0, "{}", ran.text());
    assert_eq!(addresses(&ran.stdout), [0x1000, 0x1001, 0x1003]);
}

#[test]
fn modes_are_said() {
    let scratch = Scratch::new();
    let stream = asm(
        &scratch,
        "stream",
        "psb\nfup.pge 0x1000\nfup.pgd 0x1004\n",
        &[],
    );
    // In 32-bit code DEC EAX and NOP, INC EAX; else one instruction with a REX prefix, and so on.
    let code = scratch.write("narrow", [0x48, 0x90, 0x40, 0x90]);
    let raw = format!("{}:0x1000", code.display());
    for (mode, wanted) in [
        ("32", &[0x1000_u64, 0x1001, 0x1002, 0x1003][..]),
        ("64", &[0x1000, 0x1002]),
    ] {
        let words = ["--format", "rtit", "--mode", mode, "--raw", &raw];
        let ran = insn(&stream, &words.map(String::from));
        assert_eq!(ran.code(), 0, "{}", ran.text());
        assert_eq!(addresses(&ran.stdout), wanted, "{mode}");
    }
}

#[test]
fn an_archive_keeps_what_was_said() {
    let scratch = Scratch::new();
    let text =
        "psb\nfup.pge 0x1000 cycles=3\ntnt N\ntip 0x2000 cycles=7\nfup.pgd 0x1005 cycles=0\n";
    let stream = asm(&scratch, "stream", text, &["--cycle-accurate"]);
    let said = [
        "--cycle-accurate",
        "--ip-filter",
        "0x1000-0x1fff",
        "--cpu",
        "6/76/3",
    ];
    let options = options(&scratch, &said);
    let before = insn(&stream, &options);
    assert_eq!(before.code(), 0, "{}", before.text());
    let out = scratch.path("packed");
    let mut archive = cofi();
    archive.arg("archive").args(&options).arg("-o").arg(&out);
    let packed = run(archive.arg(&stream));
    assert_eq!(packed.code(), 0, "{}", packed.stderr);
    let dumped = run(cofi()
        .args(["dump", "--format", "rtit", "--cycle-accurate"])
        .arg(&stream));
    std::fs::remove_file(&stream).expect("it is packed");
    let after = insn(&out, &[]);
    assert_eq!((after.code(), after.text()), (0, before.text()));
    assert_eq!(run(cofi().arg("dump").arg(&out)).text(), dumped.text());
    // It says all that is to be said.
    let again = insn(&out, &["--mode".into(), "64".into()]);
    assert_eq!(again.code(), 2);
    assert!(again.stderr.contains("--mode"), "{}", again.stderr);
}

/// A command that is wrong: status 2, one sentence, no output.
fn refused(command: &mut std::process::Command, about: &str) {
    let ran = run(command);
    assert_eq!(ran.code(), 2, "{about}: {}", ran.stderr);
    assert!(ran.stdout.is_empty(), "{about}");
    assert!(ran.stderr.contains(about), "{about}: {}", ran.stderr);
}

#[test]
fn wrong_words_are_refused() {
    let scratch = Scratch::new();
    let stream = asm(&scratch, "stream", STREAM, &[]);
    let pairs: [(&[&str], &str); 6] = [
        (
            &["--cycle-accurate"],
            "--cycle-accurate is for bare RTIT packets",
        ),
        (
            &["--trace-stop", "0x1-0x2"],
            "--trace-stop is for bare RTIT packets",
        ),
        (&["--cr3-filter"], "--cr3-filter is for bare RTIT packets"),
        (
            &["--tnt-buff", "0x2"],
            "--tnt-buff is for bare RTIT packets",
        ),
        (&["--mode", "32"], "--mode is for bare RTIT packets"),
        (
            &["--tsc-ratio", "20"],
            "--tsc-ratio is for bare RTIT packets",
        ),
    ];
    for (words, about) in pairs {
        for format in [&[][..], &["--format", "pt"]] {
            refused(
                cofi().arg("insn").args(format).args(words).arg(&stream),
                about,
            );
        }
    }
    let rtit = |words: &[&str]| {
        let mut command = cofi();
        command
            .args(["insn", "--format", "rtit"])
            .args(words)
            .arg(&stream);
        command
    };
    refused(
        &mut rtit(&["--ip-filter", "0x2-0x1"]),
        "the last address is before the first",
    );
    refused(
        &mut rtit(&["--ip-filter", "1000"]),
        "as in 0x401000-0x401fff",
    );
    refused(&mut rtit(&["--tnt-buff", "0x0"]), "0x1 to 0x7f");
    refused(&mut rtit(&["--tnt-buff", "0x80"]), "0x1 to 0x7f");
    refused(&mut rtit(&["--mode", "8"]), "expected 16, 32 or 64");
    let three = ["--trace-stop", "0x1-0x2"].repeat(3);
    refused(&mut rtit(&three), "no more than 2 ranges");
    let data = scratch.path("data");
    let record = |words: &[&str]| {
        let mut command = cofi();
        command.args(["record", "-o"]).arg(&data).args(words);
        command.args(["--", "true"]);
        command
    };
    refused(
        &mut record(&["--config", "rtit,tsc"]),
        "`tsc` is one of Intel PT",
    );
    refused(
        &mut record(&["--config", "less_pkts"]),
        "`less_pkts` is one of RTIT",
    );
    refused(
        &mut record(&["--config", "rtit,mtc_range=4"]),
        "from 0 to 3",
    );
    refused(
        &mut record(&["--config", "rtit", "--engine", "hardware"]),
        "Linux has no driver for RTIT",
    );
    for (config, about) in [
        ("rtit,sts=0", "needs the time (sts=1)"),
        ("rtit,less_pkts", "which less_pkts leaves out"),
    ] {
        let words = ["--config", config, "--engine", "qemu-system"];
        refused(&mut record(&words), about);
    }
}

#[test]
fn a_processor_without_rtit_is_told() {
    let scratch = Scratch::new();
    let stream = asm(&scratch, "stream", STREAM, &[]);
    for (cpu, is_one) in [("6/76/3", true), ("6/94/3", false), ("6/76", false)] {
        let ran = insn(&stream, &options(&scratch, &["--cpu", cpu]));
        assert_eq!(addresses(&ran.stdout), RAN, "{cpu}");
        assert_eq!(
            ran.stderr.contains("not a processor with RTIT"),
            !is_one,
            "{cpu}"
        );
    }
}

#[test]
fn errata_are_those_of_the_processor() {
    let scratch = Scratch::new();
    // E5: behind FUP.BuffOvf comes a TIP of a branch that ran during the overflow.
    let text = "psb\nfup.pge 0x1000\nfup.ovf 0x1005\ntip 0x1005\nfup.pgd 0x1007\n";
    let stream = asm(&scratch, "stream", text, &[]);
    let with = |more: &[&str]| insn(&stream, &options(&scratch, more));
    for more in [&["--cpu", "6/76/3"][..], &["--errata", "rtit_e5"]] {
        let ran = with(more);
        assert_eq!(ran.code(), 0, "{}", ran.text());
        assert_eq!(addresses(&ran.stdout).last(), Some(&0x1005));
    }
    for more in [&[][..], &["--cpu", "6/76/3", "--errata=-rtit_e5"]] {
        assert_eq!(with(more).code(), 1, "{more:?}");
    }
}

#[test]
fn lines_come_back_in_order() {
    let scratch = Scratch::new();
    let text = format!(
        "psb\nfup.pge 0x1000\n{}fup.pgd 0x1007\n",
        "tip 0x1000\n".repeat(100)
    );
    let stream = asm(&scratch, "stream", &text, &[]);
    let bytes = std::fs::read(&stream).expect("the stream");
    // A region of 256 bytes at 0xfdc00000, of which each line but the last comes after the one behind it.
    let mut writes: Vec<String> = bytes
        .chunks(64)
        .enumerate()
        .map(|(line, bytes)| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let address = 0xfdc0_0000_u64 + 64 * (line as u64 % 4);
            match line % 2 {
                0 => format!("{address:#x} {hex}"),
                _ => format!("{{\"address\":\"{address:#x}\",\"bytes\":\"{hex}\"}}"),
            }
        })
        .collect();
    assert!(writes.len() > 4, "more than once round");
    writes.chunks_mut(2).for_each(<[String]>::reverse);
    let out = scratch.path("raw");
    let lines = |writes: &[String], more: &[&str]| {
        let capture = scratch.write("capture", writes.join("\n"));
        let mut command = cofi();
        command.args(["lines", "--base", "0xfdc00000", "--mask", "0xff", "-o"]);
        run(command.arg(&out).args(more).arg(capture))
    };
    let ran = lines(&writes, &[]);
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    assert!(std::fs::read(&out).expect("packets") == bytes);
    // One that never comes is told, and what follows stands for itself.
    let lost: Vec<String> = [&writes[..2], &writes[3..]].concat();
    let ran = lines(&lost, &["--at-most", "1"]);
    assert_eq!(ran.code(), 1);
    assert!(ran.stderr.contains("64 bytes missing"), "{}", ran.stderr);
    let parts =
        [out.clone(), scratch.path("raw.1")].map(|path| std::fs::read(path).expect("a part"));
    assert_eq!(parts.map(|part| part.len()), [3 * 64, bytes.len() - 4 * 64]);
    refused(
        cofi()
            .args(["lines", "--base", "0x1000", "--mask", "0x7f", "-o"])
            .arg(&out)
            .arg(scratch.write("outside", "0x1080 ff\n")),
        "outside of the RTIT output region",
    );
    refused(
        cofi()
            .args(["lines", "--base", "0x1000", "--mask", "0x7f", "-o"])
            .arg(&out)
            .arg(scratch.write("nonsense", "\n1000: ff\n")),
        "nonsense:2",
    );
}

/// Behind each PSB comes a call whose place is not known yet, then a compressed return to behind it.
#[test]
fn a_part_begins_where_no_call_has_been_missed() {
    let scratch = Scratch::new();
    // call 1010; jmp *%rbx; at 1010: jmp *%rax; ret
    let mut code = vec![0x90; 0x13];
    code[..7].copy_from_slice(&[0xe8, 0x0b, 0, 0, 0, 0xff, 0xe3]);
    code[0x10..].copy_from_slice(&[0xff, 0xe0, 0xc3]);
    let raw = format!("{}:0x1000", scratch.write("code", code).display());
    let round = "psb\ntip 0x1012\ntnt T\ntip 0x1000\n";
    let text = format!(
        "psb\nfup.pge 0x1000\n{}tip 0x1012\nfup.pgd 0x1012\n",
        round.repeat(6)
    );
    let stream = asm(&scratch, "stream", &text, &[]);
    let part = |more: &[&str]| {
        let all = ["--format", "rtit", "--raw", &raw];
        let all: Vec<String> = all.iter().chain(more).map(ToString::to_string).collect();
        let ran = insn(&stream, &all);
        assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""), "{}", ran.text());
        ran.text()
    };
    let whole = part(&[]);
    assert_eq!(whole.matches("\"insn\"").count(), 6 * 4 + 2);
    let size = std::fs::metadata(&stream).expect("a file").len();
    // Of the last packet alone nothing is left to be told.
    for offset in 0..size - 3 {
        let later = part(&["--from", &format!("offset:{offset}")]);
        assert!(
            whole.ends_with(&later) && !later.is_empty(),
            "{offset}: {later}"
        );
    }
}
