//! `cofi blocks` beside `cofi insn`: the same flow in larger pieces, whichever way it is decoded.

#[path = "common/cases.rs"]
mod cases;
mod common;

use common::{STATIC, Scratch, cofi, json, record, run};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

fn lines(command: &str, options: &[&str], file: &Path) -> (i32, Vec<Value>) {
    let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    let ran = run(&mut json(command, &options, file));
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    (ran.code(), ran.text().lines().map(parse).collect())
}

/// Which classes only the trace tells the outcome of.
const DECISIONS: [&str; 9] = [
    "conditional",
    "indirect_jump",
    "indirect_call",
    "return",
    "far_call",
    "far_jump",
    "far_return",
    "syscall",
    "software_interrupt",
];

/// The blocks hold the instructions that `cofi insn` lists, with the same events between them, whether a part was asked for
/// or not, in JSON and in text. Gives how many blocks there are.
fn agree(options: &[&str], file: &Path) -> usize {
    let (status, blocks) = lines("blocks", options, file);
    let (insn_status, insns) = lines("insn", options, file);
    assert_eq!(status, insn_status);
    let mut rest = insns.iter();
    let mut was_open = false;
    for block in &blocks {
        let Some(first) = block["block"].as_str() else {
            // An event or error, in its place.
            assert_eq!(Some(block), rest.next());
            was_open = false;
            continue;
        };
        assert!(!was_open, "nothing ended the block before {block}");
        let count = block["insns"].as_u64().expect("a count") as usize;
        let own: Vec<&str> = rest
            .by_ref()
            .take(count)
            .map(|item| item["insn"].as_str().expect("an instruction"))
            .collect();
        assert_eq!((own.len(), own[0]), (count, first), "{block}");
        assert_eq!(own.last().copied(), block["end"].as_str(), "{block}");
        let last = block["last"].as_str().expect("a class");
        was_open = !DECISIONS.contains(&last);
    }
    assert!(rest.next().is_none());

    let (_, windowed) = lines("blocks", &[options, &["--from", "offset:0"]].concat(), file);
    assert!(windowed == blocks, "the other way to decode gives others");

    let text = run(cofi().arg("blocks").args(options).arg(file));
    assert_eq!(text.code(), status);
    let text = text.text();
    let items = text
        .lines()
        .filter(|line| line.starts_with("  --") || line.starts_with("  !!"));
    let items = items.count();
    let counts = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once("  to ")?;
        rest.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let instructions = insns.iter().filter(|item| item["insn"].is_string()).count() as u64;
    assert_eq!(counts.sum::<u64>(), instructions);
    assert_eq!(items as u64, insns.len() as u64 - instructions);
    blocks
        .iter()
        .filter(|block| block["block"].is_string())
        .count()
}

#[test]
fn of_recordings() {
    let scratch = Scratch::new();
    for (source, config) in [
        ("static.c", "cyc,psb_period=0"),
        ("signals.c", "noretcomp"),
        ("recursion.c", "psb_period=0"),
    ] {
        let Some(program) = scratch.program(source, STATIC) else {
            return;
        };
        let data = scratch.path("data");
        let ran = run(record(&data, Some(config)).arg("--").arg(&program));
        assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
        assert!(agree(&[], &data) > 1000);
    }
}

#[test]
fn time_symbols_and_parts() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("static.c", STATIC) else {
        return;
    };
    let data = scratch.path("data");
    let ran = run(record(&data, Some("cyc,psb_period=0"))
        .arg("--")
        .arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let (_, all) = lines("blocks", &["--time", "--symbols"], &data);
    let main = all.iter().find(|block| block["symbol"] == "main");
    let main = main.expect("a block in main");
    assert_eq!(main["symbol_offset"], 0);
    let mut last = 0;
    for item in &all {
        let tsc = item["tsc"].as_u64().expect("a time");
        assert!(tsc >= last, "{item}");
        last = tsc;
    }
    let point = format!("ip:{}", main["block"].as_str().expect("an address"));
    let (status, around) = lines("blocks", &["--around", &point, "-C", "50"], &data);
    assert_eq!(status, 0);
    assert!(around.iter().any(|block| block["block"] == main["block"]));
    let insns: u64 = around
        .iter()
        .filter_map(|block| block["insns"].as_u64())
        .sum();
    assert!((100..400).contains(&insns), "{insns}");
    // By time: what ends in it.
    let (from, to) = (last / 2 + last / 4, last / 2 + last / 3);
    let (from_point, to_point) = (format!("tsc:{from}"), format!("tsc:{to}"));
    let wanted = all
        .iter()
        .filter(|item| (from..to).contains(&item["tsc"].as_u64().expect("a time")))
        .map(|item| &item["block"]);
    let (_, part) = lines("blocks", &["--from", &from_point, "--to", &to_point], &data);
    assert!(part.iter().map(|item| &item["block"]).eq(wanted));
}

#[test]
fn of_damaged_traces() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("branches.S", common::ASM) else {
        return;
    };
    let (data, raw) = (scratch.path("data"), scratch.path("raw"));
    let ran = run(record(&data, None)
        .arg("--raw-output")
        .arg(&raw)
        .arg("--")
        .arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let bytes = std::fs::read(&raw).expect("the packets").repeat(3);
    let options = ["--format", "pt", "--elf", program.to_str().expect("UTF-8")];
    for at in (0..bytes.len()).step_by(7) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        agree(&options, &scratch.write("flipped", &bytes));
    }
    for file in ["", "PERFILE2 and no more"] {
        let ran = run(cofi().arg("blocks").arg(scratch.write("file", file)));
        assert!((0..=2).contains(&ran.code()), "{}", ran.stderr);
    }
    // A closed pipe ends quietly.
    let long = scratch.write("long", bytes.repeat(3000));
    for more in [&["--json"][..], &[]] {
        let mut child = cofi()
            .arg("blocks")
            .args(more)
            .args(options)
            .arg(&long)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starting cofi");
        let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
        reader.read_line(&mut String::new()).expect("a line");
        drop(reader);
        let ran = common::wait(child);
        assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    }
}

#[test]
fn of_real_traces() {
    let Some(folder) = cofi_test::traces() else {
        return;
    };
    for name in [
        "xdc-foo",
        "lldb-trace",
        "arcus-int-01-poc",
        "xdc-icelake_tip",
    ] {
        let folder = folder.join(name);
        let options = cases::options(&folder);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        assert!(agree(&options, &folder.join("trace.pt")) > 0, "{name}");
    }
}
