//! `cofi top`: functions, beside the sums over the calls that `cofi calls` lists.

mod common;

use common::{STATIC, Scratch, cofi, json, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Recursion of one and of two functions, a tail call, and a fault that leaves calls open.
const PROGRAM: &str = r#"
__attribute__((noinline)) static int leaf(int n) { return n * 3 + 1; }
__attribute__((noinline)) static int fib(int n) { return n < 2 ? leaf(n) : fib(n - 1) + fib(n - 2); }
__attribute__((noinline)) static int odd(int n);
__attribute__((noinline)) static int even(int n) { return n ? odd(n - 1) + leaf(n) : 1; }
__attribute__((noinline)) static int odd(int n) { return n ? even(n - 1) + leaf(n) : 0; }
__attribute__((noinline)) static int tail(int n) { return even(n); }
__attribute__((noinline)) static int faults(volatile int *at) { return *at; }
int main(void) {
    int sum = fib(9) + tail(8) + tail(5);
    return faults((int *)(long)(sum & 8)) + sum;
}
"#;

fn record(scratch: &Scratch) -> Option<PathBuf> {
    let source = scratch.write("program.c", PROGRAM);
    let program = scratch.compile(&source, &[STATIC, &["-g", "-O1"]].concat())?;
    let data = scratch.path("data");
    let mut command = cofi();
    command.args(["record", "--engine", "ptrace", "-o"]);
    run(command.arg(&data).arg("--").arg(program));
    Some(data)
}

fn objects(command: &str, arguments: &[&str], data: &Path) -> Vec<Value> {
    let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    let ran = run(&mut json(command, &arguments, data));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    ran.text().lines().map(parse).collect()
}

/// Instructions of itself, with callees, and calls, by function.
type Counts = BTreeMap<String, (u64, u64, u64)>;

fn number(object: &Value, key: &str) -> u64 {
    object[key].as_u64().unwrap_or_else(|| panic!("{object}"))
}

fn top(arguments: &[&str], data: &Path) -> Counts {
    let count = |object: Value| {
        let name = object["function"].to_string();
        let counts = ["self_insns", "insns", "calls"].map(|key| number(&object, key));
        (name, (counts[0], counts[1], counts[2]))
    };
    let objects = objects("top", arguments, data);
    objects.into_iter().map(count).collect()
}

/// The same from the list of calls, in which a call's depth says which are around it.
fn from_calls(data: &Path) -> Counts {
    let mut counts = Counts::new();
    let mut around: Vec<String> = Vec::new();
    for call in objects("calls", &[], data) {
        let name = call["call"].to_string();
        around.truncate(number(&call, "depth") as usize);
        let count = counts.entry(name.clone()).or_default();
        count.0 += number(&call, "self_insns");
        if !around.contains(&name) {
            count.1 += number(&call, "insns");
        }
        count.2 += 1;
        around.push(name);
    }
    counts
}

#[test]
fn functions_are_the_sums_of_their_calls() {
    let scratch = Scratch::new();
    let Some(data) = record(&scratch) else {
        return;
    };
    let (top_of, wanted) = (top(&[], &data), from_calls(&data));
    assert_eq!(top_of, wanted);
    assert_eq!(top_of["\"fib\""].2, 109);
    assert_eq!(top_of["\"leaf\""].2, 55 + 13);
    assert_eq!(top_of["\"tail\""].2, 2);
    assert!(top_of["\"fib\""].1 < top_of["\"main\""].1);

    // A second recording is added, function by function.
    let twice = top(&[data.to_str().expect("UTF-8")], &data);
    let doubled = |(own, total, calls): (u64, u64, u64)| (2 * own, 2 * total, 2 * calls);
    let wanted: Counts = wanted.into_iter().map(|(k, v)| (k, doubled(v))).collect();
    assert_eq!(twice, wanted);
}

#[test]
fn the_order_is_as_asked() {
    let scratch = Scratch::new();
    let Some(data) = record(&scratch) else {
        return;
    };
    for (order, key) in [
        ("self", "self_insns"),
        ("total", "insns"),
        ("calls", "calls"),
    ] {
        let list = objects("top", &["--by", order, "-n", "7"], &data);
        assert_eq!(list.len(), 7);
        let numbers: Vec<u64> = list.iter().map(|object| number(object, key)).collect();
        assert!(numbers.is_sorted_by(|a, b| a >= b), "{order}: {numbers:?}");
    }
    let ran = run(cofi().args(["top", "-n", "3", "--by", "calls"]).arg(&data));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    assert_eq!(ran.text().lines().count(), 1 + 3 + 1, "{}", ran.text());
    assert!(ran.text().contains("fib") && ran.text().contains("more function"));
}
