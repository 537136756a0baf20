//! `cofi calls` beside a program in Go whose goroutines keep lists of their own calls.

mod common;

use common::{Scratch, cofi, has_qemu, json, repository, run};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A call as a goroutine sees it: the function, the one of the program's around it, how many are around it.
type Seen = (String, String, usize);

/// What goroutines called, by the first function of each.
type Goroutines = BTreeMap<String, Vec<Vec<Seen>>>;

fn by_first_function<K>(goroutines: HashMap<K, Vec<Seen>>) -> Goroutines {
    let mut list = Goroutines::new();
    for calls in goroutines.into_values() {
        list.entry(calls[0].0.clone()).or_default().push(calls);
    }
    list
}

/// What the program wrote down, and the first functions of goroutines that went on upon another thread.
fn logged(path: &Path) -> (Goroutines, HashSet<String>) {
    let text = std::fs::read_to_string(path).expect("the program's list");
    let mut goroutines: HashMap<String, Vec<Seen>> = HashMap::new();
    let mut moved = HashSet::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(',').collect();
        let depth = words[2].parse().expect("a depth");
        let calls = goroutines.entry(words[3].to_owned()).or_default();
        calls.push((words[0].to_owned(), words[1].to_owned(), depth));
        if words[4] == "true" {
            moved.insert(calls[0].0.clone());
        }
    }
    (by_first_function(goroutines), moved)
}

/// The same of the calls that were reconstructed, of those functions alone that the program knows of.
fn reconstructed(calls: &[Value], known: &HashSet<String>) -> Goroutines {
    let mut goroutines: HashMap<(u64, u64), Vec<Seen>> = HashMap::new();
    let mut open: HashMap<(u64, u64), Vec<(String, u64)>> = HashMap::new();
    for call in calls {
        let number = |key: &str| call[key].as_u64().unwrap_or(0);
        let goroutine = (number("tid"), number("stack"));
        let depth = number("depth");
        let open = open.entry(goroutine).or_default();
        while open.last().is_some_and(|(_, other)| *other >= depth) {
            open.pop();
        }
        let name = name(call).to_owned();
        if known.contains(&name) {
            let around = open.iter().filter(|(name, _)| known.contains(name));
            let parent = around.clone().next_back();
            let parent = parent.map_or_else(String::new, |(name, _)| name.clone());
            let seen = (name.clone(), parent, around.count());
            goroutines.entry(goroutine).or_default().push(seen);
        }
        open.push((name, depth));
    }
    by_first_function(goroutines)
}

fn name(call: &Value) -> &str {
    call["call"].as_str().unwrap_or_default()
}

/// Whether each goroutine called what it wrote down, in this order.
fn same_calls(mut got: Goroutines, mut wanted: Goroutines, what: &str) {
    let names = |list: &Goroutines| list.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&got), names(&wanted), "{what}");
    for ((first, got), wanted) in got.iter_mut().zip(wanted.values_mut()) {
        assert_eq!(got.len(), wanted.len(), "{what}: {first}");
        if let ([got], [wanted]) = (&got[..], &wanted[..]) {
            assert_eq!(got, wanted, "{what}: {first}");
            continue;
        }
        // Where several goroutines wait in the same calls, nothing tells which of them goes on.
        let together = |list: &mut Vec<Vec<Seen>>| {
            let mut all = list.concat();
            all.sort();
            all
        };
        assert_eq!(together(got), together(wanted), "{what}: {first}");
    }
}

/// How often each function was called, whoever called it.
fn same_counts(calls: &[Value], wanted: &Goroutines, what: &str) {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for (function, ..) in wanted.values().flatten().flatten() {
        *counts.entry(function).or_default() += 1;
    }
    for call in calls.iter().filter(|call| call["kind"] != "assumed") {
        if let Some(count) = counts.get_mut(name(call)) {
            *count -= 1;
        }
    }
    let differ: Vec<_> = counts.iter().filter(|(_, count)| **count != 0).collect();
    assert!(differ.is_empty(), "{what}: {differ:?}");
}

fn build(scratch: &Scratch, flags: &str) -> PathBuf {
    let program = scratch.path("goroutines");
    let mut go = Command::new("go");
    go.args(["build", &format!("-gcflags={flags}"), "-o"]);
    go.arg(&program);
    go.arg(repository().join("crates/cofi/tests/calls/goroutines.go"));
    let built = run(&mut go);
    assert_eq!(built.code(), 0, "{}", built.stderr);
    program
}

#[test]
fn goroutines() {
    if !cofi_test::has_program("go") {
        return;
    }
    let scratch = Scratch::new();
    // With signals that take the processor from a goroutine, and without.
    let quiet = "asyncpreemptoff=1";
    for (flags, runs) in [
        ("", &[("ptrace", ""), ("qemu", quiet)][..]),
        ("-N -l", &[("qemu", quiet)]),
    ] {
        let program = build(&scratch, flags);
        for (engine, debug) in runs {
            if *engine == "qemu" && !has_qemu() {
                continue;
            }
            let what = format!("{flags} {engine}");
            let (data, log) = (scratch.path("data"), scratch.path("log"));
            let mut command = cofi();
            // On one thread at a time: what is known of a goroutine ends where it goes on upon another one.
            command.env("GOMAXPROCS", "1").env("GODEBUG", debug);
            command.env("CALLS_LOG", &log);
            command.args(["record", "--verify", "--engine", engine, "-o"]);
            let ran = run(command.arg(&data).arg("--").arg(&program));
            assert_eq!(ran.code(), 0, "{}", ran.stderr);
            assert!(ran.stderr.contains("verified"), "{}", ran.stderr);

            let (mut wanted, moved) = logged(&log);
            let seen = wanted.values().flatten().flatten();
            let known = seen.map(|(function, ..)| function.clone()).collect();
            let listed = run(&mut json("calls", &[], &data));
            assert_eq!((listed.code(), listed.stderr.as_str()), (0, ""), "{what}");
            let parse = |line: &str| serde_json::from_str(line).expect("JSON");
            let calls: Vec<Value> = listed.text().lines().map(parse).collect();
            same_counts(&calls, &wanted, &what);
            // A goroutine that is interrupted before it has returned to where it differs from others cannot be told from these.
            let interrupts = ["runtime.gopreempt_m", "runtime.preemptPark"];
            if calls.iter().any(|call| interrupts.contains(&name(call))) {
                continue;
            }
            let mut got = reconstructed(&calls, &known);
            for first in &moved {
                wanted.remove(first);
                got.remove(first);
            }
            same_calls(got, wanted, &what);
        }
    }
}
