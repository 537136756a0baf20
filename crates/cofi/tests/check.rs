//! `cofi check`: gaps of whole, damaged and senseless files.

#[path = "common/cases.rs"]
mod cases;
mod common;

use common::{Ran, STATIC, Scratch, addresses, cofi, json, record, run};
use serde_json::Value;
use std::path::Path;

fn lines(ran: &Ran) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    ran.text().lines().map(parse).collect()
}

/// The summary, and the lines before it.
fn check(file: &Path, options: &[&str]) -> (i32, Value, Vec<Value>) {
    let ran = run(cofi().args(["check", "--json"]).args(options).arg(file));
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    let mut all = lines(&ran);
    let summary = all.pop().expect("a summary")["summary"].clone();
    assert!(summary.is_object(), "{}", ran.text());
    let gaps = all.iter().filter(|line| line["gap"].is_string()).count();
    assert_eq!(summary["gaps"], gaps);
    (ran.code(), summary, all)
}

#[test]
fn a_clock_that_is_set_back_is_told() {
    let scratch = Scratch::new();
    let text = "psb\ntsc 0x10000\npsbend\ntip.pge 0x1000\ntnt T\ntsc 0x500\ntnt N\ntip.pgd -\n";
    let text = scratch.write("packets.txt", text);
    let packets = scratch.path("packets.pt");
    let made = run(cofi().arg("asm").arg(&text).arg("-o").arg(&packets));
    assert_eq!(made.code(), 0, "{}", made.stderr);
    let code = scratch.write("code", b"\x90\x75\xfd\x0f\x05");
    let code = format!("{}:0x1000", code.display());
    let (status, summary, rest) = check(&packets, &["--raw", &code]);
    assert_eq!((status, &summary["gaps"]), (0, &Value::from(0)));
    let [jump] = rest.as_slice() else {
        panic!("one line: {rest:?}");
    };
    let jump = &jump["time_jump"];
    assert_eq!(
        (&jump["tsc_from"], &jump["tsc_to"]),
        (&Value::from(0x10000), &Value::from(0x500))
    );
    let mut insn = cofi();
    insn.args(["insn", "--json", "--time", "--raw", &code]);
    let insns = lines(&run(insn.arg(&packets)));
    let marked: Vec<_> = insns
        .iter()
        .filter(|item| item["tsc_set_back_from"] == 0x10000)
        .collect();
    assert_eq!((marked.len(), &marked[0]["tsc"]), (1, &Value::from(0x500)));
}

#[test]
fn a_whole_file_and_damage_in_it() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("static.c", STATIC) else {
        return;
    };
    let (data, raw) = (scratch.path("data"), scratch.path("raw"));
    let ran = run(record(&data, Some("psb_period=0"))
        .arg("--raw-output")
        .arg(&raw)
        .arg("--")
        .arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let listed = addresses(&run(&mut json("insn", &[], &data)).stdout);
    let (status, summary, rest) = check(&data, &[]);
    assert_eq!((status, rest.len()), (0, 0), "{rest:?}");
    assert_eq!(summary["instructions"], listed.len());
    assert_eq!(summary["decoded_share"], 1.0);
    let text = run(cofi().arg("check").arg(&data));
    assert_eq!((text.code(), text.stderr.as_str()), (0, ""));
    assert!(text.text().contains("No gaps"), "{}", text.text());

    // The bare packets many times over, with damage behind some of the PSB+.
    let clean = std::fs::read(&raw).expect("the packets");
    let mut bytes = clean.repeat((100 << 10) / clean.len() + 1);
    const DAMAGED: usize = 7;
    for k in 1..=DAMAGED {
        let from = k * bytes.len() / (DAMAGED + 1);
        let plus = bytes[from..]
            .windows(2)
            .position(|pair| pair == [0x02, 0x23]);
        let at = from + plus.expect("a PSBEND") + 2;
        bytes[at..at + 2].copy_from_slice(&[0x02, 0xff]);
    }
    let file = scratch.write("damaged", &bytes);
    let elf = program.to_str().expect("UTF-8");
    let code = ["--format", "pt", "--elf", elf];
    let more: Vec<_> = code.iter().map(std::ffi::OsStr::new).collect();
    let flow = run(&mut json("insn", &more, &file));
    assert_eq!(flow.code(), 1);
    let errors: Vec<Value> = lines(&flow)
        .into_iter()
        .filter(|line| line["error"].is_string())
        .collect();
    assert!(errors.len() >= DAMAGED);
    let (status, one, gaps) = check(&file, &[&code[..], &["-j", "1"]].concat());
    assert_eq!(status, 1);
    assert_eq!(one["instructions"], addresses(&flow.stdout).len());
    let (jumps, gaps): (Vec<_>, Vec<_>) = gaps
        .into_iter()
        .partition(|line| line["time_jump"].is_object());
    assert!(!jumps.is_empty(), "each repetition begins at the same time");
    assert_eq!(gaps.len(), errors.len());
    for (gap, error) in gaps.iter().zip(&errors) {
        assert_eq!(gap["offset"], error["offset"]);
        assert_eq!(gap["reason"], error["error"]);
        assert_eq!(gap["ip"], error["ip"]);
        let lost = gap["lost_bytes"].as_u64().expect("bytes");
        let resumed = gap["resumed_offset"].as_u64();
        assert!(resumed.is_none_or(|at| at == gap["offset"].as_u64().unwrap() + lost));
    }
    assert!(one["decoded_share"].as_f64() > Some(0.8), "{one}");
    let (_, four, mut same) = check(&file, &[&code[..], &["--threads", "4"]].concat());
    same.retain(|line| line["gap"].is_string());
    assert_eq!((&four, &same), (&one, &gaps));

    let text = run(cofi().arg("check").args(code).arg(&file));
    assert_eq!((text.code(), text.stderr.as_str()), (1, ""));
    let offset = format!("{:#x}", gaps[0]["offset"].as_u64().expect("a number"));
    assert!(text.text().contains(&offset), "{}", text.text());
}

#[test]
fn missing_code_is_told() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("static.c", STATIC) else {
        return;
    };
    let data = scratch.path("data");
    let ran = run(record(&data, None).arg("--").arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    std::fs::remove_file(&program).expect("removing the program");
    let (status, summary, rest) = check(&data, &[]);
    assert_eq!(status, 1);
    assert!(
        summary["gaps_by_kind"]["no-code"].as_u64() > Some(0),
        "{summary}"
    );
    assert_eq!(summary["code_problems"], 1);
    let problem = rest.iter().find(|line| line["code_problem"].is_string());
    let problem = problem.expect("the file is told")["code_problem"].to_string();
    assert!(problem.contains("static"), "{problem}");
    let report = run(cofi().arg("report").arg(&data));
    assert_eq!(report.code(), 1);
}

#[test]
fn broken_files() {
    let scratch = Scratch::new();
    let missing = run(cofi().arg("check").arg(scratch.path("missing")));
    assert_eq!((missing.code(), missing.stdout.len()), (2, 0));
    let broken = scratch.write("broken", b"PERFILE2 and nothing else");
    let ran = run(cofi().arg("check").arg(&broken));
    assert_eq!((ran.code(), ran.stdout.len()), (2, 0), "{}", ran.stderr);
    let noise: Vec<u8> = (0..100_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let (status, summary, _) = check(&scratch.write("noise", &noise), &[]);
    assert_eq!((status, &summary["lost_bytes"]), (1, &Value::from(100_000)));
    assert_eq!(summary["gaps_by_kind"]["no-psb"], 1);
    // Nothing can be said of nothing.
    let empty = run(cofi().arg("check").arg(scratch.write("empty", "")));
    assert_eq!((empty.code(), empty.stdout.len()), (2, 0));
}

#[test]
fn real_traces() {
    let Some(folder) = cofi_test::traces() else {
        return;
    };
    for name in ["xdc-mruby", "xdc-foo", "lldb-trace", "arcus-ovf-01-ben"] {
        let folder = folder.join(name);
        let case = std::fs::read(folder.join("case.json")).expect("the case");
        let case: Value = serde_json::from_slice(&case).expect("JSON");
        let options = cases::options(&folder);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let (status, summary, rest) = check(&folder.join("trace.pt"), &options);
        assert_eq!(summary["instructions"], case["instructions"], "{name}");
        // The reference decoder does not call an overflow an error.
        assert!(
            rest.iter().all(|line| line["gap"] == "overflow"),
            "{rest:?}"
        );
        assert_eq!(status, i32::from(!rest.is_empty()), "{name}");
    }
}
