//! `cofi diff`: recordings of programs of which it is known how their runs differ.

mod common;

use common::{DYNAMIC, Ran, STATIC, Scratch, cofi, has_qemu, run};
use serde_json::Value;
use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What runs depends on its arguments: a number each, or something that is none.
const PROGRAM: &str = r#"
__attribute__((noinline)) static int parse(const char *s) {
    int n = 0;
    while (*s) {
        if (*s < '0' || *s > '9')
            return -1;
        n = n * 10 + (*s++ - '0');
    }
    return n;
}
__attribute__((noinline)) static unsigned work(int n) {
    unsigned x = 1;
    for (int i = 0; i < n; i++)
        x = x * 1103515245 + 12345;
    return x;
}
__attribute__((noinline)) static int refuse(int n) {
    return n + 7;
}
int main(int argc, char **argv) {
    unsigned sum = 0;
    for (int i = 1; i < argc; i++) {
        int n = parse(argv[i]);
        if (n < 0)
            sum += refuse(i);
        else
            sum += work(n);
    }
    return sum == 12345;
}
"#;

const G: &[&str] = &["-g", "-O1"];

fn build(scratch: &Scratch, name: &str, text: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = scratch.write(name, text);
    scratch.compile(&source, flags)
}

fn record(
    scratch: &Scratch,
    name: &str,
    engine: &str,
    program: &Path,
    arguments: &[&str],
) -> PathBuf {
    let data = scratch.path(name);
    let mut command = cofi();
    command
        .args(["record", "--engine", engine, "-o"])
        .arg(&data);
    let ran = run(command.arg("--").arg(program).args(arguments));
    assert!(data.exists(), "{}", ran.stderr);
    data
}

fn diff(arguments: &[&str], a: &Path, b: &Path) -> Ran {
    run(cofi().arg("diff").args(arguments).arg(a).arg(b))
}

/// The objects of `cofi diff --json`: the first, and those of functions.
fn objects(arguments: &[&str], a: &Path, b: &Path) -> (Value, Vec<Value>, i32) {
    let ran = diff(&[&["--json"], arguments].concat(), a, b);
    assert_eq!(ran.stderr, "");
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    let mut list: Vec<Value> = ran.text().lines().map(parse).collect();
    let code = ran.code();
    (list.remove(0), list, code)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// The line of the source with this text.
fn line_of(source: &str, text: &str) -> u64 {
    let index = source.lines().position(|line| line.contains(text));
    index.expect("such a line") as u64 + 1
}

#[test]
fn two_runs_at_other_addresses_are_the_same() {
    let scratch = Scratch::new();
    // The dynamic linker compares strings, whose way depends on where the stack lies.
    for (name, flags) in [("fixed.c", STATIC), ("moved.c", DYNAMIC)] {
        let Some(program) = build(&scratch, name, PROGRAM, &[flags, G].concat()) else {
            return;
        };
        let [a, b] =
            ["a", "b"].map(|data| record(&scratch, data, "ptrace", &program, &["12", "x"]));
        let (first, functions, code) = objects(&[], &a, &b);
        assert_eq!((code, &first["same"]), (0, &Value::Bool(true)), "{first}");
        assert!(functions.is_empty());
        let thread = &first["threads"][0];
        assert_eq!(first["insns"], thread["a_equal"]);
        let aside = thread["aside"]["a_insns"].as_u64().unwrap_or(0);
        assert_eq!(number(&thread["a_insns"]), number(&first["insns"]) + aside);
        let text = diff(&[], &a, &b);
        assert_eq!(text.code(), 0);
        assert!(
            text.text().starts_with("No difference: "),
            "{}",
            text.text()
        );
        assert!(
            text.text()
                .contains("every instruction of the trace is accounted for")
        );
    }
}

#[test]
fn the_first_place_where_inputs_make_a_difference() {
    let scratch = Scratch::new();
    let Some(program) = build(&scratch, "program.c", PROGRAM, &[STATIC, G].concat()) else {
        return;
    };
    let a = record(&scratch, "a", "ptrace", &program, &["12", "x7", "30"]);
    let b = record(&scratch, "b", "ptrace", &program, &["12", "77", "30"]);
    let (first, functions, code) = objects(&["--from", "sym:main"], &a, &b);
    assert_eq!(code, 1);
    let parts = &first["parts"];
    let refused = line_of(PROGRAM, "return -1");
    let taken = line_of(PROGRAM, "n = n * 10");
    assert_eq!(
        (&parts["a"]["symbol"], number(&parts["a"]["line"])),
        (&"parse".into(), refused)
    );
    assert_eq!(
        (&parts["b"]["symbol"], number(&parts["b"]["line"])),
        (&"parse".into(), taken)
    );
    assert!(
        parts["a"]["file"]
            .as_str()
            .is_some_and(|file| file.ends_with("program.c"))
    );
    for side in ["a", "b"] {
        assert_eq!(parts[side]["stack"][0], "parse");
        assert_eq!(parts[side]["stack"][1], "main");
        assert!(
            parts[side]["ip"]
                .as_str()
                .is_some_and(|ip| ip.starts_with("0x"))
        );
        assert_eq!(parts[side]["next"][0]["function"], "parse");
    }
    assert_eq!(parts["together"]["a"]["symbol"], "main");
    // All that is equal before it, and nothing else: the lists of instructions say the same.
    let insns = |data: &Path| -> Vec<String> {
        let mut command = cofi();
        let ran = run(command
            .args(["insn", "--json", "--from", "sym:main"])
            .arg(data));
        let address = |line: &str| line.split('"').nth(3).map(str::to_owned);
        ran.text()
            .lines()
            .filter(|line| line.contains("\"insn\""))
            .filter_map(address)
            .collect()
    };
    let (one, other) = (insns(&a), insns(&b));
    let equal = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    assert_eq!(number(&parts["index"]), equal as u64);
    assert_eq!(parts["a"]["ip"], Value::from(one[equal].as_str()));
    assert_eq!(parts["b"]["ip"], Value::from(other[equal].as_str()));
    // What ran oftener, in all: as many instructions as the lists have.
    let of = |name: &str| {
        functions
            .iter()
            .find(|function| function["function"] == name)
    };
    let refuse = of("refuse").expect("it ran in A only");
    assert_eq!((number(&refuse["a_calls"]), number(&refuse["b"])), (1, 0));
    let work = of("work").expect("it ran oftener in B");
    assert_eq!((number(&work["a_calls"]), number(&work["b_calls"])), (2, 3));
    let lines = work["lines"].as_array().expect("lines");
    let body = line_of(PROGRAM, "x = x * 1103515245");
    let body = lines
        .iter()
        .find(|line| number(&line["line"]) == body)
        .expect("the loop");
    assert_eq!(
        (number(&body["a"]), number(&body["b"])),
        (12 + 30, 12 + 77 + 30)
    );
    let sum = |key: &str| {
        functions
            .iter()
            .map(|function| number(&function[key]))
            .sum::<u64>() as i64
    };
    assert_eq!(sum("a") - sum("b"), one.len() as i64 - other.len() as i64);
    // The text names the same.
    let text = diff(&[], &a, &b);
    assert_eq!(text.code(), 1);
    for words in [
        "in parse ← main",
        "return -1;",
        "n = n * 10",
        "Together again at main",
        "refuse",
    ] {
        assert!(text.text().contains(words), "{words}:\n{}", text.text());
    }
    // Between other points there is nothing.
    let ran = diff(&["--from", "sym:main", "--to", "sym:work"], &a, &b);
    assert_eq!(ran.code(), 0, "{}", ran.text());
}

#[test]
fn a_changed_line() {
    let scratch = Scratch::new();
    // Two lines more before the change, so that what is behind them is at other lines and offsets.
    let parse = "__attribute__((noinline)) static int parse";
    let changed = PROGRAM
        .replace("return n;", "return n > 20 ? n - 1 : n;")
        .replace(parse, &format!("\n\n{parse}"));
    // (Optimised code of another build goes to and fro between lines in another way.)
    let flags = [STATIC, &["-g", "-O0"]].concat();
    let Some(old) = build(&scratch, "old.c", PROGRAM, &flags) else {
        return;
    };
    let Some(new) = build(&scratch, "new.c", &changed, &flags) else {
        return;
    };
    let a = record(&scratch, "a", "ptrace", &old, &["12", "30"]);
    let b = record(&scratch, "b", "ptrace", &new, &["12", "30"]);
    let (first, functions, code) = objects(&[], &a, &b);
    assert_eq!(code, 1);
    let file = &first["files"][0];
    assert_eq!(file["match"], "rebuilt", "{first}");
    assert!(
        number(&file["by_line"]) == 1 && number(&file["alike"]) > 10,
        "{file}"
    );
    let parts = &first["parts"];
    // The same lines of `parse` run in both; what it gives makes the loop end earlier.
    let lines = ["a", "b"].map(|side| number(&parts[side]["line"]));
    assert_eq!(parts["a"]["symbol"], "work");
    assert_eq!(lines[0], line_of(PROGRAM, "x = x * 1103515245"));
    assert!(
        lines[1] > line_of(&changed, "x = x * 1103515245"),
        "{parts}"
    );
    // One round less of the loop that the other number makes.
    let work = functions
        .iter()
        .find(|function| function["function"] == "work")
        .expect("work");
    let body = &work["lines"]
        .as_array()
        .expect("lines")
        .iter()
        .find(|line| number(&line["line"]) == line_of(PROGRAM, "x = x * 1103515245"));
    let body = body.expect("the loop");
    assert_eq!((number(&body["a"]), number(&body["b"])), (42, 41));
    assert_eq!(
        number(&body["b_line"]),
        line_of(&changed, "x = x * 1103515245")
    );
    // Where the change makes no difference there is none.
    let a = record(&scratch, "a", "ptrace", &old, &["x"]);
    let b = record(&scratch, "b", "ptrace", &new, &["x"]);
    let ran = diff(&[], &a, &b);
    assert_eq!(ran.code(), 0, "{}", ran.text());
    assert!(
        ran.text().starts_with("Two builds of old (A) and new (B)"),
        "{}",
        ran.text()
    );
}

#[test]
fn optimised_or_not_the_same_functions_run() {
    let scratch = Scratch::new();
    let mut list = Vec::new();
    for (name, flag) in [("plain.c", "-O0"), ("fast.c", "-O2")] {
        let Some(program) = build(&scratch, name, PROGRAM, &["-static", "-g", flag]) else {
            return;
        };
        list.push(record(&scratch, flag, "ptrace", &program, &["12", "x"]));
    }
    let ran = diff(
        &[
            "--by",
            "functions",
            "--only",
            &scratch.path("").to_string_lossy(),
        ],
        &list[0],
        &list[1],
    );
    assert_eq!(ran.code(), 0, "{}", ran.text());
    assert!(
        ran.text().contains("No difference function by function"),
        "{}",
        ran.text()
    );
    assert_eq!(diff(&[], &list[0], &list[1]).code(), 1);
}

/// Who comes first makes the difference, and the threads are matched by their names.
const THREADS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int balance = 100;
__attribute__((noinline)) static void broke(void) { balance = 0; }
__attribute__((noinline)) static void withdraw(int n) {
    if (balance >= n)
        balance -= n;
    else
        broke();
}
static void *run(void *arg) {
    pthread_setname_np(pthread_self(), *(int *)arg == 70 ? "seventy" : "sixty");
    pthread_mutex_lock(&lock);
    withdraw(*(int *)arg);
    pthread_mutex_unlock(&lock);
    return 0;
}
int main(int argc, char **argv) {
    pthread_t threads[2];
    int wanted[2] = {60, 70};
    int first = argc > 1 ? *argv[1] - '0' : 0;
    for (int i = 0; i < 2; i++) {
        int which = i ^ first;
        pthread_create(&threads[which], 0, run, &wanted[which]);
        pthread_join(threads[which], 0);
    }
    return 0;
}
"#;

#[test]
fn threads_by_their_names() {
    let scratch = Scratch::new();
    let Some(program) = build(&scratch, "threads.c", THREADS, &[STATIC, &["-g"]].concat()) else {
        return;
    };
    let a = record(&scratch, "a", "ptrace", &program, &["0"]);
    let b = record(&scratch, "b", "ptrace", &program, &["1"]);
    let (first, functions, code) = objects(&["-n", "50"], &a, &b);
    assert_eq!(code, 1);
    let threads = first["threads"].as_array().expect("threads");
    assert_eq!(threads.len(), 3, "{first}");
    // Each has one name in both recordings, and neither is alone.
    for thread in threads {
        assert!(
            thread["a_tid"].is_u64() && thread["b_tid"].is_u64(),
            "{thread}"
        );
    }
    // Only one of them may find nothing left; which one it is parts them.
    let all: Vec<&Value> = std::iter::once(&first["parts"])
        .chain(first["more"].as_array().expect("more"))
        .collect();
    let in_withdraw =
        |part: &&&Value| part["a"]["symbol"] == "withdraw" || part["b"]["symbol"] == "withdraw";
    assert_eq!(all.iter().filter(in_withdraw).count(), 2, "{first}");
    assert!(
        functions
            .iter()
            .all(|function| function["function"] != "broke"),
        "it runs once in both"
    );
    // One of them alone.
    let seventy = threads
        .iter()
        .find(|thread| thread["thread"] == "seventy")
        .expect("its name");
    let tid = number(&seventy["a_tid"]).to_string();
    let (one, functions, code) = objects(&["--tid", &tid], &a, &b);
    assert_eq!(
        (code, one["threads"].as_array().map(Vec::len)),
        (1, Some(1))
    );
    let broke = functions
        .iter()
        .find(|function| function["function"] == "broke")
        .expect("in A only");
    assert_eq!(
        (number(&broke["a_calls"]), number(&broke["b_calls"])),
        (1, 0)
    );
}

#[test]
fn a_thread_that_only_one_has() {
    let scratch = Scratch::new();
    let text = THREADS.replace("i < 2; i++", "i < (argc > 2 ? 1 : 2); i++");
    let Some(program) = build(&scratch, "threads.c", &text, &[STATIC, &["-g"]].concat()) else {
        return;
    };
    let a = record(&scratch, "a", "ptrace", &program, &["0", "-"]);
    let b = record(&scratch, "b", "ptrace", &program, &["0"]);
    let (first, _, code) = objects(&[], &a, &b);
    assert_eq!(code, 1);
    let alone = first["threads"]
        .as_array()
        .expect("threads")
        .iter()
        .filter(|thread| thread["a_tid"].is_null());
    assert_eq!(alone.count(), 1, "{first}");
}

/// The two engines record the same program: what differs is what the C library finds out of the processor.
#[test]
fn single_steps_and_qemu() {
    if !has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    let Some(program) = build(&scratch, "program.c", PROGRAM, &[STATIC, G].concat()) else {
        return;
    };
    let a = record(&scratch, "a", "ptrace", &program, &["12", "x"]);
    let b = record(&scratch, "b", "qemu", &program, &["12", "x"]);
    // (A function behind which the process ends is not left.)
    let ran = diff(&["--from", "sym:main", "--to", "sym:exit"], &a, &b);
    assert_eq!(ran.code(), 0, "{}", ran.text());
    assert!(
        ran.text()
            .contains("Only what lies between the points was compared.")
    );
}

/// What is missing is said, and a comparison with it never says that the recordings are the same.
#[test]
fn gaps_are_never_the_same() {
    let scratch = Scratch::new();
    let Some(program) = build(&scratch, "program.c", PROGRAM, &[STATIC, G].concat()) else {
        return;
    };
    // Many PSBs, so that what is lost is a part.
    let a = scratch.path("a");
    let mut command = cofi();
    command.args([
        "record",
        "--engine",
        "ptrace",
        "--config",
        "psb_period=0",
        "-o",
    ]);
    run(command.arg(&a).arg(&program).args(["30000", "12"]));
    // The packets of a part of the trace, overwritten with what is none.
    let mut bytes = std::fs::read(&a).expect("the recording");
    let psbs: Vec<usize> = (0..bytes.len() - 16)
        .filter(|at| bytes[*at..].starts_with(&[2, 0x82].repeat(8)))
        .collect();
    // What is overwritten is packets alone: it lies in one piece of the trace, of which a record of type 71 and 48 bytes tells how long it is.
    let begins = |at: &usize| {
        bytes[*at..].starts_with(&[71, 0, 0, 0]) && bytes[at + 6..].starts_with(&[48, 0])
    };
    let pieces: Vec<_> = (0..bytes.len() - 48)
        .filter(begins)
        .map(|at| {
            let len = bytes[at + 8..at + 16]
                .try_into()
                .map_or(0, u64::from_le_bytes);
            at + 48..(at + 48).saturating_add(len as usize)
        })
        .collect();
    let far = psbs.windows(2).filter(|pair| {
        let is_within =
            |piece: &Range<usize>| piece.contains(&pair[0]) && pair[0] + 100 <= piece.end;
        pair[1] - pair[0] > 400 && pieces.iter().any(is_within)
    });
    let far: Vec<usize> = far.map(|pair| pair[0]).collect();
    let middle = far[far.len() / 2];
    bytes[middle + 40..middle + 100].fill(0xff);
    let b = scratch.write("b", &bytes);
    std::fs::create_dir_all(scratch.path("b.code")).expect("a folder");
    for entry in std::fs::read_dir(scratch.path("a.code"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let _ = std::fs::copy(entry.path(), scratch.path("b.code").join(entry.file_name()));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofi"));
    let ran = run(command
        .args(["diff", "--json"])
        .args([&a, &b].map(OsStr::new)));
    assert_eq!(ran.code(), 1, "{}", ran.stderr);
    let first: Value =
        serde_json::from_str(ran.text().lines().next().expect("a line")).expect("JSON");
    assert_ne!(first["same"], true, "{first}");
    assert!(number(&first["b_gaps"]) > 0, "{first}");
    assert_eq!(number(&first["a_gaps"]), 0);
    assert_eq!(first["parts"]["cause"], "gap");
    let text = diff(&[], &a, &b).text();
    assert!(text.contains("something is missing at offset"), "{text}");
    assert!(text.contains("Together again"), "{text}");
    // Both have the same gap: nothing differs, but nobody knows what is missing.
    let (first, _, code) = objects(&[], &b, &b);
    assert_eq!(
        (code, first.get("same")),
        (1, Some(&Value::Null)),
        "{first}"
    );
}

#[test]
fn wrong_usage() {
    let scratch = Scratch::new();
    let Some(program) = build(&scratch, "program.c", PROGRAM, &[STATIC, G].concat()) else {
        return;
    };
    let a = record(&scratch, "a", "ptrace", &program, &["12"]);
    let nothing = scratch.path("nothing");
    let ran = diff(&[], &a, &nothing);
    assert_eq!(ran.code(), 2);
    assert!(ran.stderr.contains("nothing"), "{}", ran.stderr);
    let ran = diff(&["--tid", "1"], &a, &a);
    assert_eq!(ran.code(), 2);
    assert!(
        ran.stderr.contains("neither recording has such a thread"),
        "{}",
        ran.stderr
    );
    // One recording alone is compared with the one before it.
    let ran = run(cofi().arg("diff").arg(&a));
    assert_eq!(ran.code(), 2, "{}", ran.text());
    assert!(
        ran.stderr.contains("a.old") && ran.stderr.contains("name a second recording"),
        "{}",
        ran.stderr
    );
    record(&scratch, "a", "ptrace", &program, &["12"]);
    let ran = run(cofi().arg("diff").arg(&a));
    assert_eq!(ran.code(), 0, "{}", ran.text());
}
