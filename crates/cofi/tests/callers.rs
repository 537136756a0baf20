//! `cofi calls --callers` beside the callers of each call.

mod common;

use common::{Scratch, cofi, json, on_terminal, record, repository, run};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;

/// The functions that called one, from the innermost up to `main`: each once, as its outermost call has it.
fn folded(callers: &Value) -> Vec<String> {
    let names = callers.as_array().expect("callers").iter().rev();
    let names = names.map(|name| name.as_str().expect("a name").to_owned());
    let mut way: Vec<String> = Vec::new();
    for name in names.skip_while(|name| name != "main") {
        let outer = way.iter().position(|outer| *outer == name);
        way.truncate(outer.unwrap_or(way.len()));
        way.push(name);
    }
    way.reverse();
    way
}

#[test]
fn a_recursion_is_one_caller() {
    let scratch = Scratch::new();
    let path = repository().join("crates/cofi/tests/calls/recursion.c");
    let Some(program) = scratch.compile(&path, &["-O0", "-g", "-no-pie"]) else {
        return;
    };
    let data = scratch.path("data");
    let mut command = record(&data, None);
    command
        .env("CALLS_LOG", scratch.path("log"))
        .arg("--")
        .arg(program);
    let ran = run(&mut command);
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    for (function, recursive) in [
        ("deep", &["deep"][..]),
        ("ackermann", &["ackermann"]),
        ("odd", &["even"]),
        ("leaf", &["factorial", "even"]),
    ] {
        // Calls and instructions of each way, by the names along it.
        let mut wanted: HashMap<Vec<String>, (u64, u64)> = HashMap::new();
        let options = ["--callers", function];
        let listed = run(&mut json("calls", &options.map(OsStr::new), &data));
        assert_eq!((listed.code(), listed.stderr.as_str()), (0, ""));
        for line in listed.text().lines() {
            let call: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
            let way = folded(&call["callers"]);
            // A tail call to this one's caller comes from a function that is none of the callers any more.
            if way[0] == "compare" {
                continue;
            }
            for level in 1..=way.len() {
                let sum = wanted.entry(way[..level].to_vec()).or_default();
                sum.0 += 1;
                sum.1 += call["insns"].as_u64().expect("instructions");
            }
        }
        let mut rows: HashMap<Vec<String>, (u64, u64)> = HashMap::new();
        let mut marked: HashSet<String> = HashSet::new();
        let mut way: Vec<String> = Vec::new();
        let tree = run(cofi().arg("calls").args(options).arg(&data));
        assert_eq!((tree.code(), tree.stderr.as_str()), (0, ""));
        for line in tree.text().lines().skip(2) {
            let what = line[37..].trim_start();
            let name = what.split_once('+').map_or(what, |(name, _)| name);
            way.truncate((line.len() - 37 - what.len()) / 2);
            way.push(name.to_owned());
            let is_beyond = way[..way.len() - 1].iter().any(|name| name == "main");
            if is_beyond || way[0] == "compare" {
                continue;
            }
            if what.ends_with(" (recursive)") {
                marked.insert(name.to_owned());
            }
            let number = |at: usize| -> u64 {
                let word = line.split_whitespace().nth(at).expect("a number");
                word.replace(',', "").parse().expect("a count")
            };
            let sum = rows.entry(way.clone()).or_default();
            sum.0 += number(0);
            sum.1 += number(1);
        }
        assert_eq!(rows, wanted, "{function}");
        let recursive: HashSet<String> = recursive.iter().copied().map(str::to_owned).collect();
        assert_eq!(marked, recursive, "{function}");
    }
}

/// Names that are longer than the terminal is wide are shortened in the middle.
#[test]
fn callers_fit_the_terminal() {
    let scratch = Scratch::new();
    let name = format!("calls_{}_leaf", "in_many_words_".repeat(8));
    let text = format!(
        "__attribute__((noipa)) int leaf(int n) {{ return n; }}\n\
         __attribute__((noipa)) int {name}(int n) {{ return leaf(n) + 1; }}\n\
         int main(int n, char **v) {{ return {name}(n) == 7; }}\n"
    );
    let source = scratch.write("long.c", text);
    let Some(program) = scratch.compile(&source, &["-O1"]) else {
        return;
    };
    let data = scratch.path("data");
    let ran = run(record(&data, None).arg("--").arg(program));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    let command = format!(
        "{} calls --callers leaf --depth 2 {}",
        env!("CARGO_BIN_EXE_cofi"),
        data.display()
    );
    let Some(shown) = on_terminal("80", &command) else {
        return;
    };
    assert!(shown.contains("_leaf+0x"), "{shown}");
    for line in shown.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let plain = run(cofi().args(["calls", "--callers", "leaf"]).arg(&data)).text();
    assert!(plain.contains(&name), "{plain}");
}
