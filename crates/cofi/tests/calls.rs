//! `cofi calls` beside programs that keep a list of their own calls.

mod common;

use common::{Scratch, cofi, has_qemu, json, repository, run};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A call as a program sees it: the function, the one of its functions around it, how many are around it.
type Seen = (u64, u64, usize);

/// What a program logged, by thread.
fn logged(path: &Path) -> HashMap<u64, Vec<Seen>> {
    let text = std::fs::read_to_string(path).expect("the program's list");
    let mut threads: HashMap<u64, Vec<Seen>> = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let hex = |at: usize| u64::from_str_radix(words[at], 16).expect("an address");
        let tid = words[3].parse().expect("a thread");
        let seen = (hex(0), hex(1), words[2].parse().expect("a depth"));
        threads.entry(tid).or_default().push(seen);
    }
    threads
}

fn calls(data: &Path, options: &[&str]) -> Vec<Value> {
    let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    let ran = run(&mut json("calls", &options, data));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    ran.text().lines().map(parse).collect()
}

fn address(value: &Value) -> u64 {
    let text = value.as_str().expect("an address");
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hexadecimal")
}

/// The same of the calls that were reconstructed, of those functions alone that the program knows of.
fn reconstructed(calls: &[Value], known: &HashSet<u64>) -> HashMap<u64, Vec<Seen>> {
    let mut threads: HashMap<u64, Vec<Seen>> = HashMap::new();
    let mut open: HashMap<(u64, u64), Vec<(u64, u64)>> = HashMap::new();
    for call in calls {
        let tid = call["tid"].as_u64().expect("a thread");
        let depth = call["depth"].as_u64().expect("a depth");
        // A coroutine's calls lie within each other, whatever runs between them.
        let open = open
            .entry((tid, call["stack"].as_u64().unwrap_or(0)))
            .or_default();
        while open.last().is_some_and(|(_, other)| *other >= depth) {
            open.pop();
        }
        let ip = address(&call["ip"]);
        if known.contains(&ip) {
            let around = open
                .iter()
                .map(|(ip, _)| *ip)
                .filter(|ip| known.contains(ip));
            let around: Vec<u64> = around.collect();
            let seen = (ip, around.last().copied().unwrap_or(0), around.len());
            threads.entry(tid).or_default().push(seen);
        }
        open.push((ip, depth));
    }
    threads
}

/// What adds up in any list of calls.
fn adds_up(calls: &[Value]) {
    let mut open: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut within: Vec<u64> = vec![0; calls.len()];
    let number = |call: &Value, key: &str| call[key].as_u64().unwrap_or_else(|| panic!("{call}"));
    for (index, call) in calls.iter().enumerate() {
        let open = open.entry(number(call, "tid")).or_default();
        let depth = number(call, "depth") as usize;
        open.truncate(depth);
        assert_eq!(open.len(), depth, "{call} lies in nothing");
        if let Some(parent) = open.last() {
            within[*parent] += number(call, "insns");
            let begins = |call: &Value| number(call, "begin");
            assert!(begins(&calls[*parent]) <= begins(call), "{call}");
        }
        open.push(index);
        if let Some(end) = call["end"].as_u64() {
            assert!(end >= number(call, "begin"), "{call}");
        } else {
            assert_eq!(call["left"], "end", "{call}");
        }
    }
    for (call, within) in calls.iter().zip(within) {
        let insns = number(call, "self_insns") + within;
        assert_eq!(number(call, "insns"), insns, "{call}");
    }
}

/// A program of this test's folder, built.
fn program(scratch: &Scratch, source: &str, optimize: &str) -> Option<PathBuf> {
    let path = repository().join("crates/cofi/tests/calls").join(source);
    let flags = [
        optimize,
        "-g",
        "-no-pie",
        "-pthread",
        "-finstrument-functions",
        "-finstrument-functions-exclude-file-list=/usr/",
        "-lstdc++",
    ];
    scratch.compile(&path, &flags)
}

fn record(scratch: &Scratch, program: &Path, engine: &str) -> (PathBuf, PathBuf) {
    let (data, log) = (scratch.path("data"), scratch.path("log"));
    let mut command = cofi();
    command.env("CALLS_LOG", &log);
    command.args(["record", "--verify", "--engine", engine, "-o"]);
    command.arg(&data).arg("--").arg(program);
    let ran = run(&mut command);
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    (data, log)
}

fn name_of(calls: &[Value], ip: u64) -> String {
    let is_it = |call: &&Value| address(&call["ip"]) == ip;
    let call = calls.iter().find(is_it);
    call.map_or_else(|| format!("{ip:#x}"), |call| call["call"].to_string())
}

/// What the program logged, call by call, is what is reconstructed: as compiled in two ways, and by both engines.
fn agrees(source: &str, adds: bool) {
    let scratch = Scratch::new();
    for optimize in ["-O0", "-O2"] {
        let Some(program) = program(&scratch, source, optimize) else {
            return;
        };
        for engine in ["ptrace", "qemu"] {
            if engine == "qemu" && !has_qemu() {
                continue;
            }
            let (data, log) = record(&scratch, &program, engine);
            let wanted = logged(&log);
            let known: HashSet<u64> = wanted.values().flatten().map(|seen| seen.0).collect();
            let calls = calls(&data, &[]);
            if adds {
                adds_up(&calls);
            }
            let got = reconstructed(&calls, &known);
            assert_eq!(
                got.len(),
                wanted.len(),
                "{source} {optimize} {engine}: threads"
            );
            for (tid, wanted) in wanted {
                let got = &got[&tid];
                for (at, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                    let spell = |seen: &Seen| {
                        let (function, parent) = (name_of(&calls, seen.0), name_of(&calls, seen.1));
                        format!("{function} in {parent} at {}", seen.2)
                    };
                    assert_eq!(
                        spell(got),
                        spell(wanted),
                        "{source} {optimize} {engine}: call {at} of thread {tid}"
                    );
                }
                assert_eq!(got.len(), wanted.len(), "{source} {optimize} {engine}");
            }
        }
    }
}

#[test]
fn recursion_and_callbacks() {
    agrees("recursion.c", true);
}

#[test]
fn longjmp_out_of_calls_and_handlers() {
    agrees("jumps.c", true);
}

#[test]
fn handlers_of_signals() {
    agrees("handlers.c", true);
}

#[test]
fn coroutines() {
    agrees("coroutines.c", false);
}

#[test]
fn threads() {
    agrees("threads.c", true);
}

#[test]
fn returns_to_elsewhere() {
    agrees("odd.c", false);
}

#[test]
fn exceptions() {
    agrees("exceptions.cpp", true);
}
