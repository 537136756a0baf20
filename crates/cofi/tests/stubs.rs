//! Stubs of the procedure linkage table: commands that count or list instructions name them, and no call is one.

mod common;

use common::{Scratch, cofi, json, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

/// `labs` is called often, by a stub each time.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **names) {
    int sum = 0;
    for (int i = 0; i < 30; i++)
        sum += labs(i - 5 * count);
    printf("%d\n", sum);
    return 0;
}
"#;

fn objects(command: &str, arguments: &[&str], data: &Path) -> Vec<Value> {
    let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    let ran = run(&mut json(command, &arguments, data));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let parse = |line: &str| serde_json::from_str(line).expect("JSON");
    ran.text().lines().map(parse).collect()
}

#[test]
fn stubs_are_named_where_instructions_are_and_are_no_calls() {
    let scratch = Scratch::new();
    let source = scratch.write("program.c", PROGRAM);
    let flags = ["-O1", "-fno-builtin", "-Wl,-z,now"];
    let Some(program) = scratch.compile(&source, &flags) else {
        return;
    };
    let data = scratch.path("data");
    let recorded = run(cofi()
        .args(["record", "--engine", "ptrace", "-o"])
        .arg(&data)
        .arg("--")
        .arg(&program));
    assert_eq!(recorded.code(), 0, "{}", recorded.stderr);
    let stub = |object: &Value, key: &str| object[key] == "labs@plt";

    // By stub: what `insn` lists one by one, and what `report` counts.
    let mut listed: BTreeMap<String, u64> = BTreeMap::new();
    for insn in objects("insn", &["--symbols"], &data) {
        if let Some(name) = insn["symbol"]
            .as_str()
            .filter(|name| name.ends_with("@plt"))
        {
            *listed.entry(name.to_owned()).or_default() += 1;
        }
    }
    assert!(listed["labs@plt"] >= 30, "{listed:?}");
    let report = objects("report", &[], &data);
    let counted: BTreeMap<String, u64> = report
        .iter()
        .filter_map(|object| {
            Some((
                object["function"].as_str()?,
                object["instructions"].as_u64()?,
            ))
        })
        .filter(|(name, _)| name.ends_with("@plt"))
        .map(|(name, instructions)| (name.to_owned(), instructions))
        .collect();
    assert_eq!(counted, listed);
    let counted = report.iter().find(|object| stub(object, "function"));
    assert_eq!(counted.expect("a stub")["entries"], 30);

    let text = run(cofi().arg("insn").arg(&data)).text();
    let lines = text.lines().filter(|line| line.contains(" labs@plt "));
    assert_eq!(lines.count(), 30, "the first instruction of each");
    let hot = objects("top", &["--of", "instructions"], &data);
    let hot: u64 = hot
        .iter()
        .filter(|row| stub(row, "function"))
        .map(|row| row["count"].as_u64().expect("a count"))
        .sum();
    assert_eq!(hot, listed["labs@plt"]);
    let annotated = run(cofi().args(["annotate", "main"]).arg(&data)).text();
    assert!(annotated.contains("labs@plt"), "{annotated}");

    // Calls go from where the stub was called to where it led.
    let calls = objects("calls", &[], &data);
    let called = calls.iter().filter(|call| call["call"] == "labs");
    assert_eq!(called.count(), 30);
    let names = calls.iter().filter_map(|call| call["call"].as_str());
    assert_eq!(names.filter(|name| name.ends_with("@plt")).count(), 0);
}
