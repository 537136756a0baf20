//! `cofi report`: times and gaps beside the counts.

mod common;

use common::{STATIC, Scratch, cofi, record, run};
use serde_json::Value;
use std::collections::BTreeMap;

#[test]
fn times_and_cycles() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("static.c", STATIC) else {
        return;
    };
    let data = scratch.path("data");
    let ran = run(record(&data, Some("cyc")).arg("--").arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let report = run(cofi().arg("report").arg(&data));
    assert_eq!((report.code(), report.stderr.as_str()), (0, ""));
    let text = report.text();
    let mut lines = text
        .lines()
        .skip_while(|line| !line.contains("instructions a cycle"));
    let heads = lines.next().expect("a table of times");
    assert!(
        heads.contains("covers") && heads.contains("tracing on"),
        "{heads}"
    );
    let row = lines.next().expect("a thread");
    // The recorder's clock has two core cycles an instruction.
    assert!(row.ends_with("0.50"), "{row}");
    let without = run(record(&data, Some("tsc=0,mtc=0")).arg("--").arg(&program));
    assert!(without.stderr.contains("verified"), "{}", without.stderr);
    let text = run(cofi().arg("report").arg(&data)).text();
    assert!(!text.contains("covers"), "{text}");
}

/// What `cofi insn` lists one by one, with where each stands, adds up to what the report says of functions and threads.
#[test]
fn the_report_is_what_a_count_of_each_instruction_gives() {
    let scratch = Scratch::new();
    for file in ["static.c", "threads.c"] {
        let Some(program) = scratch.program(file, STATIC) else {
            return;
        };
        let data = scratch.path("data");
        let ran = run(record(&data, None).arg("--").arg(&program));
        assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
        let objects = |arguments: &[&str]| -> Vec<Value> {
            let ran = run(cofi().args(arguments).arg(&data));
            assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
            let parse = |line: &str| serde_json::from_str(line).expect("JSON");
            ran.text().lines().map(parse).collect()
        };
        // By function and file: instructions, and those that are a function's first.
        let mut functions: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
        let mut threads: BTreeMap<u64, u64> = BTreeMap::new();
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        for insn in objects(&["insn", "--json", "--symbols", "-j1"]) {
            if insn["insn"].is_null() {
                continue;
            }
            let key = (text(&insn["symbol"]), text(&insn["file"]));
            let counts = functions.entry(key).or_default();
            counts.0 += 1;
            counts.1 += u64::from(insn["symbol_offset"] == 0);
            *threads
                .entry(insn["tid"].as_u64().expect("a thread"))
                .or_default() += 1;
        }
        for threads_used in ["1", "3"] {
            let mut reported: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
            for object in objects(&["report", "--json", "-j", threads_used]) {
                let number = |key: &str| object[key].as_u64().expect("a number");
                if object.get("function").is_some() {
                    let key = (text(&object["function"]), text(&object["file"]));
                    let counts = reported.entry(key).or_default();
                    counts.0 += number("instructions");
                    counts.1 += number("entries");
                } else if object.get("thread").is_some() {
                    let counted = threads.get(&number("tid")).copied();
                    assert_eq!(counted, Some(number("instructions")), "{object}");
                }
            }
            assert_eq!(reported, functions, "{file}");
        }
    }
}

#[test]
fn gaps_tell_what_was_lost() {
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
    let mut bytes = std::fs::read(&raw).expect("the packets");
    let half = bytes.len() / 2;
    let plus = bytes[half..]
        .windows(2)
        .position(|pair| pair == [0x02, 0x23]);
    let at = half + plus.expect("a PSBEND") + 2;
    bytes[at..at + 2].copy_from_slice(&[0x02, 0xff]);
    let file = scratch.write("damaged", &bytes);
    let mut command = cofi();
    command
        .args(["report", "--format", "pt", "--elf"])
        .arg(&program);
    let report = run(command.arg(&file));
    assert_eq!(report.code(), 1, "{}", report.stderr);
    let text = report.text();
    assert!(text.contains("Gaps: 1"), "{text}");
    assert!(text.contains("1 error, 0 overflows; lost: "), "{text}");
    let offset = format!(" {at:#x} ");
    let row = text
        .lines()
        .find(|line| line.contains(&offset))
        .expect("the gap");
    assert!(row.contains(" packet ") && row.contains(" ticks "), "{row}");
}
