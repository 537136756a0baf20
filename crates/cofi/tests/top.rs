//! `cofi top`: functions, lines, instructions and branches, beside the lists of `cofi calls`, `coverage` and `insn`.

mod common;

use common::{STATIC, Scratch, cofi, json, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

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

fn hex(value: &Value) -> u64 {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    u64::from_str_radix(digits.unwrap_or_else(|| panic!("{value}")), 16).expect("an address")
}

/// The addresses of what ran, in order; of a program that stands where its file says.
fn executed(data: &Path) -> Vec<u64> {
    let list = objects("insn", &[], data);
    let insns = list.iter().filter(|object| object["insn"].is_string());
    insns.map(|object| hex(&object["insn"])).collect()
}

#[test]
fn instructions_and_branches_are_those_of_the_list() {
    let scratch = Scratch::new();
    let Some(data) = record(&scratch) else {
        return;
    };
    let list = executed(&data);
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    let mut ways: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for (at, ip) in list.iter().enumerate() {
        *counts.entry(*ip).or_default() += 1;
        if let Some(next) = list.get(at + 1) {
            *ways.entry((*ip, *next)).or_default() += 1;
        }
    }
    let rows = objects("top", &["--of", "instructions"], &data);
    let listed = rows.iter();
    let listed: BTreeMap<u64, u64> = listed
        .map(|row| (hex(&row["address"]), number(row, "count")))
        .collect();
    assert_eq!(listed, counts);
    let numbers: Vec<u64> = rows.iter().map(|row| number(row, "count")).collect();
    assert!(numbers.is_sorted_by(|a, b| a >= b), "{numbers:?}");

    let branches = objects("top", &["--of", "branches"], &data);
    assert!(branches.len() > 20);
    for row in &branches {
        let (ip, target) = (hex(&row["address"]), hex(&row["target"]));
        assert!(text(&row["disasm"]).starts_with('j'), "{row}");
        assert_eq!(number(row, "count"), counts[&ip]);
        let taken = ways.get(&(ip, target)).copied().unwrap_or(0);
        assert_eq!(number(row, "taken"), taken, "{row}");
        let rest = number(row, "not_taken") + number(row, "unknown");
        assert_eq!(taken + rest, counts[&ip], "{row}");
        let rate = row["taken_rate"].as_f64().expect("a rate");
        assert!(
            (rate - taken as f64 / counts[&ip] as f64).abs() < 1e-6,
            "{row}"
        );
    }
    let in_fib = branches.iter().filter(|row| row["function"] == "fib");
    assert_eq!(in_fib.map(|row| number(row, "count")).max(), Some(109));

    let ran = run(cofi()
        .args(["top", "--of", "branches", "--by", "total"])
        .arg(&data));
    assert_eq!((ran.code(), ran.text().as_str()), (2, ""));
    assert!(ran.stderr.contains("calls nothing"), "{}", ran.stderr);
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn lines_are_those_of_the_coverage() {
    let scratch = Scratch::new();
    let Some(data) = record(&scratch) else {
        return;
    };
    let mut wanted: BTreeMap<(String, u64), (u64, u64)> = BTreeMap::new();
    let mut all = 0;
    for object in objects("coverage", &["--all"], &data) {
        if object["count"].is_u64() && number(&object, "insns") > 0 {
            let place = (text(&object["file"]).to_owned(), number(&object, "line"));
            let counts = (number(&object, "insns"), number(&object, "count"));
            wanted.insert(place, counts);
        } else if object["summary"].is_object() {
            all = number(&object["summary"], "insns");
        }
    }
    let (mut listed, mut sum) = (BTreeMap::new(), 0);
    for row in objects("top", &["--of", "lines"], &data) {
        sum += number(&row, "self_insns");
        if row["source"].is_string() {
            let place = (text(&row["source"]).to_owned(), number(&row, "line"));
            listed.insert(place, (number(&row, "self_insns"), number(&row, "count")));
        }
    }
    assert_eq!(listed, wanted);
    assert!(listed.len() > 6, "{listed:?}");
    assert_eq!(sum, all, "what has no line is there, too");
    // A second recording is added.
    let twice = objects(
        "top",
        &["--of", "lines", data.to_str().expect("UTF-8")],
        &data,
    );
    let sum: u64 = twice.iter().map(|row| number(row, "self_insns")).sum();
    assert_eq!(sum, 2 * all);
}

/// What ran in calls from `place_of` the instruction that called; those within another one from there once. And how many lay within another one.
fn called_from<K: Ord + Clone>(
    data: &Path,
    place_of: impl Fn(u64) -> Option<K>,
) -> BTreeMap<K, (u64, u64)> {
    let mut counts: BTreeMap<K, (u64, u64)> = BTreeMap::new();
    let mut around: Vec<Option<K>> = Vec::new();
    for call in objects("calls", &[], data) {
        let is_call = call["kind"] == "call" && call["from"].is_string();
        let place = is_call.then(|| place_of(hex(&call["from"]))).flatten();
        around.truncate(number(&call, "depth") as usize);
        if let Some(place) = &place {
            let count = counts.entry(place.clone()).or_default();
            match around.contains(&Some(place.clone())) {
                true => count.1 += 1,
                false => count.0 += number(&call, "insns"),
            }
        }
        around.push(place);
    }
    counts
}

#[test]
fn totals_are_the_sums_of_calls() {
    let scratch = Scratch::new();
    let Some(data) = record(&scratch) else {
        return;
    };
    let by_ip = called_from(&data, Some);
    let mut lines: BTreeMap<u64, (String, u64)> = BTreeMap::new();
    let rows = objects("top", &["--of", "instructions", "--by", "total"], &data);
    let mut nested_somewhere = false;
    for row in &rows {
        let ip = hex(&row["address"]);
        let (callees, nested) = by_ip.get(&ip).copied().unwrap_or_default();
        nested_somewhere |= nested > 0;
        assert_eq!(number(row, "callee_insns"), callees, "{row}");
        let total = number(row, "count") - nested + callees;
        assert_eq!(number(row, "insns"), total, "{row}");
        if row["source"].is_string() {
            lines.insert(ip, (text(&row["source"]).to_owned(), number(row, "line")));
        }
    }
    assert!(nested_somewhere, "fib calls itself");
    let totals: Vec<u64> = rows.iter().map(|row| number(row, "insns")).collect();
    assert!(totals.is_sorted_by(|a, b| a >= b), "{totals:?}");

    let by_line = called_from(&data, |ip| lines.get(&ip).cloned());
    let (mut exact, mut open) = (0, 0);
    for row in objects("top", &["--of", "lines", "--by", "total"], &data) {
        if !row["source"].is_string() {
            continue;
        }
        let place = (text(&row["source"]).to_owned(), number(&row, "line"));
        let (callees, nested) = by_line.get(&place).copied().unwrap_or_default();
        assert_eq!(number(&row, "callee_insns"), callees, "{row}");
        if nested == 0 {
            exact += 1;
            assert_eq!(number(&row, "insns"), number(&row, "self_insns") + callees);
        } else {
            open += 1;
            assert!(row["insns"].is_null(), "{row}");
        }
    }
    assert!(exact > 3 && open > 0, "{exact} {open}");
}

/// Of a program without symbols the same counts as with them, by the addresses at which its functions begin.
#[test]
fn functions_without_names() {
    let scratch = Scratch::new();
    let source = scratch.write("program.c", PROGRAM);
    // Where its code lies in memory is not where its file says.
    let Some(named) = scratch.compile(&source, &["-O1", "-pie", "-fPIE"]) else {
        return;
    };
    let stripped = scratch.path("stripped");
    for program in ["nm", "strip"] {
        if !cofi_test::has_program(program) {
            return;
        }
    }
    let mut strip = Command::new("strip");
    let strip = strip.arg("-o").arg(&stripped).arg(&named).status();
    assert!(strip.expect("strip").success());
    let listing = Command::new("nm").arg(&named).output().expect("nm");
    let listing = String::from_utf8(listing.stdout).expect("text");
    let address_of = |name: &str| {
        let mut lines = listing.lines().map(|line| line.split_whitespace());
        let line = lines.find(|line| line.clone().nth(2) == Some(name));
        let address = line.and_then(|mut line| u64::from_str_radix(line.next()?, 16).ok());
        address.unwrap_or_else(|| panic!("{name}"))
    };
    let counts = |program: &Path, key: &str| {
        let data = scratch.path("data");
        let mut command = cofi();
        command.args(["record", "--engine", "ptrace", "-o"]);
        run(command.arg(&data).arg("--").arg(program));
        let of_program = |object: &Value| object["file"] == program.to_str().expect("a path");
        let rows = objects("top", &[], &data).into_iter().filter(of_program);
        let count = |row: Value| {
            let counts = ["self_insns", "insns", "calls"].map(|key| number(&row, key));
            (row[key].as_str().map(str::to_owned), counts)
        };
        rows.map(count).collect::<BTreeMap<_, _>>()
    };
    let (wanted, got) = (counts(&named, "function"), counts(&stripped, "address"));
    for name in ["leaf", "fib", "odd", "even", "main"] {
        let address = format!("{:#x}", address_of(name));
        let counted = wanted.get(&Some(name.to_owned()));
        assert!(
            counted.is_some() && counted == got.get(&Some(address)),
            "{name}: {wanted:?} {got:?}"
        );
    }
}

/// What no symbol names is not of the function before it.
#[test]
fn lines_of_a_library_without_all_its_symbols() {
    let scratch = Scratch::new();
    let library = "__attribute__((noipa)) int first(void) { return 1; }\n\
        __attribute__((noipa)) static int hidden(int n) { int s = 0; while (n--) s += n; return s; }\n\
        __attribute__((noipa)) int last(int n) { return hidden(n) + first(); }\n";
    let source = scratch.write("library.c", library);
    let built = scratch.path("libpart.so");
    let main = "int last(int); int main(int n, char **v) { return last(n * 200) == 7; }\n";
    let main = scratch.write("main.c", main);
    if !["cc", "strip"].into_iter().all(cofi_test::has_program) {
        return;
    }
    let cc = |arguments: &[&OsStr]| {
        Command::new("cc")
            .args(arguments)
            .status()
            .unwrap()
            .success()
    };
    let word = OsStr::new;
    let as_library = ["-O1", "-shared", "-fPIC", "-fno-toplevel-reorder", "-o"].map(word);
    assert!(cc(&[
        &as_library[..],
        &[built.as_os_str(), source.as_os_str()]
    ]
    .concat()));
    assert!(
        Command::new("strip")
            .arg(&built)
            .status()
            .unwrap()
            .success()
    );
    let program = scratch.path("main");
    let run_path = format!("-Wl,-rpath,{}", scratch.path("").display());
    let files = [
        program.as_os_str(),
        main.as_os_str(),
        built.as_os_str(),
        word(&run_path),
    ];
    assert!(cc(&[&["-o"].map(word)[..], &files].concat()));
    let data = scratch.path("data");
    let recorded = run(cofi()
        .args(["record", "--engine", "ptrace", "-o"])
        .arg(&data)
        .arg("--")
        .arg(program));
    assert_eq!(recorded.code(), 0, "{}", recorded.stderr);

    let of_library = |row: &Value| row["file"].as_str().unwrap().ends_with("libpart.so");
    let mut lines = objects("top", &["--of", "lines"], &data);
    lines.retain(of_library);
    // As the instructions have it, one by one.
    let mut wanted: BTreeMap<Option<String>, u64> = BTreeMap::new();
    for row in objects("top", &["--of", "instructions"], &data) {
        if of_library(&row) {
            let name = row["function"].as_str().map(str::to_owned);
            *wanted.entry(name).or_default() += number(&row, "count");
        }
    }
    let of_line = |row: &Value| {
        let name = row["function"].as_str().map(str::to_owned);
        (name, number(row, "self_insns"))
    };
    assert_eq!(
        lines.iter().map(of_line).collect::<BTreeMap<_, _>>(),
        wanted
    );
    assert!(wanted[&None] > 600, "{wanted:?}");
    assert!(wanted[&Some("first".into())] < 10, "{wanted:?}");
    assert!(wanted.contains_key(&Some("first@plt".into())), "{wanted:?}");
    let listed = run(cofi().args(["annotate", "--json", "first"]).arg(&data));
    let insns = listed.text().matches("\"address\"").count();
    assert!((1..10).contains(&insns), "{}", listed.text());
}

/// Two coroutines in one function at the same time: neither calls the other, so what ran in each counts.
const TURNS: &str = r#"
#include <ucontext.h>
static ucontext_t contexts[2], back;
static char stacks[2][1 << 16];
__attribute__((noipa)) static void leaf(void) {}
__attribute__((noipa)) static void works(int me) {
    for (int i = 0; i < 5; i++) { leaf(); swapcontext(&contexts[me], &back); }
    swapcontext(&contexts[me], &back);
}
static void one(void) { works(0); }
static void two(void) { works(1); }
int main(void) {
    void (*functions[])(void) = {one, two};
    for (int i = 0; i < 2; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = sizeof stacks[i];
        contexts[i].uc_link = &back;
        makecontext(&contexts[i], functions[i], 0);
    }
    for (int i = 0; i < 12; i++) swapcontext(&back, &contexts[i & 1]);
    return 0;
}
"#;

#[test]
fn coroutines_do_not_call_each_other() {
    let scratch = Scratch::new();
    let source = scratch.write("turns.c", TURNS);
    let Some(program) = scratch.compile(&source, &[STATIC, &["-O1"]].concat()) else {
        return;
    };
    let data = scratch.path("data");
    let mut command = cofi();
    command.args(["record", "--engine", "ptrace", "-o"]);
    run(command.arg(&data).arg("--").arg(program));
    let calls = objects("calls", &["--function", "works"], &data);
    let of_works = calls.iter().filter(|call| call["call"] == "works");
    let insns: Vec<u64> = of_works.map(|call| number(call, "insns")).collect();
    assert_eq!(insns.len(), 2, "{calls:?}");
    let counts = top(&[], &data);
    let (own, with_callees, times) = counts["\"works\""];
    assert_eq!((with_callees, times), (insns.iter().sum(), 2));
    assert!(own < with_callees, "{own} {with_callees}");
}
