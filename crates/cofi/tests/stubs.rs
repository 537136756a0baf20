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

/// A function that is shown by another name than the one that the source calls.
const ALIASED: &str = r#"
#include <stdlib.h>
__attribute__((noipa)) int _shown(int n) { return labs(n) + 1; }
extern int asked(int n) __attribute__((weak, alias("_shown")));
int main(int count, char **names) { return asked(count) + asked(-count) == 7; }
"#;

#[test]
fn any_name_of_a_function_may_be_asked_for() {
    let scratch = Scratch::new();
    let source = scratch.write("program.c", ALIASED);
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
    let ask = |arguments: &[&str]| run(cofi().args(arguments).arg(&data));

    for option in ["--function", "--callers"] {
        let by_other = ask(&["calls", "--json", option, "asked"]);
        let by_shown = ask(&["calls", "--json", option, "_shown"]);
        assert_eq!(by_other.text(), by_shown.text(), "{option}");
        assert_eq!(by_other.text().matches("\"call\":\"_shown\"").count(), 2);
        assert_eq!(by_shown.stderr, "");
        let told = "cofi: asked is another name of what is shown as _shown\n";
        assert_eq!(by_other.stderr, told);
    }
    let from = |name: &str| ask(&["insn", "--from", &format!("sym:{name}")]);
    assert!(from("asked").text().contains("_shown"));
    assert_eq!(from("asked").text(), from("_shown").text());
    let annotated = ask(&["annotate", "asked"]).text();
    assert!(annotated.starts_with("_shown "), "{annotated}");

    // A stub is a place, and no call.
    let at_stub = from("labs@plt");
    let first = at_stub.text().lines().next().map(str::to_owned);
    assert!(
        first.is_some_and(|line| line.contains(" labs@plt ")),
        "{}",
        at_stub.stderr
    );
    let called = ask(&["calls", "--function", "labs@plt"]);
    assert_eq!(called.text(), "", "no head without a call");
    assert!(
        called.stderr.contains("ask for labs\n"),
        "{}",
        called.stderr
    );
    let annotated = ask(&["annotate", "labs@plt"]);
    assert_eq!(annotated.code(), 2);
    assert!(
        annotated.stderr.contains("is a stub"),
        "{}",
        annotated.stderr
    );
}
