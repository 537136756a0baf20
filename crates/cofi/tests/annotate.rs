//! `cofi annotate`: counts of instructions and outcomes of branches, beside the list of what ran.

mod common;

use common::{Scratch, cofi, record, repository, run};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

fn address(value: &Value) -> u64 {
    let text = value.as_str().and_then(|text| text.strip_prefix("0x"));
    u64::from_str_radix(text.expect("an address"), 16).expect("an address")
}

/// Each instruction of each function is counted as often as it is listed, and each branch went where the next instruction stands.
#[test]
fn counts_are_those_of_the_list_of_instructions() {
    let scratch = Scratch::new();
    let source = repository().join("crates/cofi/tests/coverage/counted.c");
    let Some(program) = scratch.compile(&source, &["-g", "-O1", "-fno-inline", "-no-pie"]) else {
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
    let list = objects(&["insn", "--json"]);
    let list = list.iter().filter(|insn| insn["insn"].is_string());
    let list: Vec<u64> = list.map(|insn| address(&insn["insn"])).collect();
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    let mut ways: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for (at, ip) in list.iter().enumerate() {
        *counts.entry(*ip).or_default() += 1;
        if let Some(next) = list.get(at + 1) {
            *ways.entry((*ip, *next)).or_default() += 1;
        }
    }
    let (mut instructions, mut branches, mut sources) = (0, 0, BTreeSet::new());
    for function in ["main", "kind", "compare", "fact", "never"] {
        let mut rows = objects(&["annotate", "--json", function]);
        let head = rows.remove(0);
        assert_eq!(head["function"], function);
        let sum: u64 = rows.iter().map(|row| row["count"].as_u64().unwrap()).sum();
        assert_eq!(head["insns"], sum, "{function}");
        for (at, row) in rows.iter().enumerate() {
            let ip = address(&row["address"]);
            let wanted = counts.get(&ip).copied().unwrap_or(0);
            assert_eq!(row["count"], wanted, "{function} {ip:x}");
            instructions += 1;
            sources.extend(row["line"].as_u64());
            if row["taken"].is_u64() {
                let way = |next: u64| ways.get(&(ip, next)).copied().unwrap_or(0);
                assert_eq!(row["taken"], way(address(&row["target"])), "{ip:x}");
                let next = address(&rows[at + 1]["address"]);
                assert_eq!(row["not_taken"], way(next), "{ip:x}");
                assert_eq!(row["unknown"], 0);
                branches += 1;
            }
        }
    }
    assert!(instructions > 100 && branches > 10 && sources.len() > 20);
}

/// Source and instructions stand side by side; a name that is not known is said, with those like it.
#[test]
fn source_and_instructions() {
    let scratch = Scratch::new();
    let source = repository().join("crates/cofi/tests/coverage/counted.c");
    let Some(program) = scratch.compile(&source, &["-g", "-O0"]) else {
        return;
    };
    let data = scratch.path("data");
    let ran = run(record(&data, None).arg("--").arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let ran = run(cofi().args(["annotate", "collatz"]).arg(&data));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let text = ran.text();
    let head = "line ran  source";
    assert!(
        text.contains(head) && text.contains("came to 50 times"),
        "{text}"
    );
    let line = text.lines().find(|line| line.contains("if (n % 2 == 0)"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert_eq!(line.matches("3,307").count(), 2, "{line}");
    assert!(text.contains("taken 1,106 (33.4 %), not 2,201"), "{text}");
    let ran = run(cofi().args(["annotate", "colla"]).arg(&data));
    assert_eq!((ran.code(), ran.text().as_str()), (2, ""));
    assert!(ran.stderr.contains("near to it: collatz"), "{}", ran.stderr);
}

/// The part of a function that hardly ever runs stands before it in the file, and is shown behind it.
#[test]
fn a_cold_part_comes_last() {
    const COLD: &str = "
        __attribute__((cold, noipa)) void fails(int n) { (void)n; }
        __attribute__((noipa)) int works(int n) {
            if (n == 5) { fails(n); fails(n + 1); return -n; }
            return n * 3;
        }
        int main(void) {
            int sum = 0;
            for (int i = 0; i < 10; i++) sum += works(i);
            return sum == 0;
        }
    ";
    let scratch = Scratch::new();
    let source = scratch.write("cold.cpp", COLD);
    let Some(program) = scratch.compile(&source, &["-g", "-O2"]) else {
        return;
    };
    let data = scratch.path("data");
    run(record(&data, None).arg("--").arg(&program));
    let ran = run(cofi().args(["annotate", "--json", "works"]).arg(&data));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let text = ran.text();
    let objects = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let names: Vec<String> = objects
        .filter_map(|object: Value| Some(object["function"].as_str()?.to_owned()))
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(names[0], "works(int)");
    assert!(names[1].contains(".cold"), "{names:?}");
}
