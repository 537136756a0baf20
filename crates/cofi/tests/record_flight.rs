//! `cofi record --last`: the last packets of each thread are kept, and what they tell is proven.

mod common;

use common::{DYNAMIC, Scratch, addresses, cofi, has_qemu, json, run};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Some work, and then what the first argument says.
const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
__attribute__((noinline)) unsigned mix(unsigned x) {
    for (int i = 0; i < 20; i++) { if (x & 1) x = x * 3 + 1; else x >>= 1; x ^= x << 7; }
    return x;
}
__attribute__((noinline)) unsigned work(unsigned n) {
    unsigned sum = 1;
    for (unsigned i = 0; i < n; i++) sum += mix(sum + i);
    return sum;
}
__attribute__((noinline)) void crash(volatile int *p) { *p = 1; }
static void *thread(void *arg) { return (void *)(long)work((unsigned)(long)arg); }
int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    pthread_t threads[3];
    if (!strcmp(what, "threads")) {
        for (int i = 0; i < 3; i++) pthread_create(threads + i, 0, thread, (void *)1500L);
        for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    }
    printf("%u\n", work(1500));
    fflush(stdout);
    if (!strcmp(what, "crash")) crash(0);
    if (!strcmp(what, "exec")) execl(argv[0], argv[0], NULL);
    return 0;
}
"#;

/// The engines that are there.
fn engines() -> Vec<&'static str> {
    let mut engines = vec!["ptrace"];
    if has_qemu() {
        engines.push("qemu");
    }
    engines
}

fn program(scratch: &Scratch) -> Option<PathBuf> {
    let source = scratch.write("flight.c", SOURCE);
    scratch.compile(&source, DYNAMIC)
}

/// `cofi record --last SIZE` with a PSB each 2 KiB.
fn record_last(engine: &str, size: &str, data: &Path) -> Command {
    let mut command = cofi();
    command.args(["record", "--engine", engine, "--config", "psb_period=0"]);
    command.args(["--last", size, "-o"]).arg(data);
    command
}

/// The summary of `cofi check`, which finds nothing wrong.
fn summary_of(data: &Path) -> Value {
    let ran = run(cofi().args(["check", "--json"]).arg(data));
    assert_eq!(ran.code(), 0, "{}{}", ran.text(), ran.stderr);
    let lines: Vec<Value> = ran
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 1, "nothing but a summary: {lines:?}");
    lines[0]["summary"].clone()
}

#[test]
fn what_is_kept_is_the_end_of_what_ran() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    for engine in engines() {
        let (data, raw, truth) = (
            scratch.path("data"),
            scratch.path("raw"),
            scratch.path("truth"),
        );
        let ran = run(record_last(engine, "8K", &data)
            .arg("--raw-output")
            .arg(&raw)
            .arg("--truth")
            .arg(&truth)
            .arg("--")
            .arg(&program));
        assert_eq!(ran.code(), 0, "{engine}: {}", ran.stderr);
        let summary = summary_of(&data);
        assert_eq!(summary["seals_broken"], 0, "{engine}: {summary}");
        assert_eq!(summary["unsealed_bytes"], 0, "{engine}: {summary}");
        assert_eq!(summary["finished"], true, "{engine}: {summary}");
        let not_kept = summary["not_kept"].as_array().expect("a list");
        assert_eq!(not_kept.len(), 1, "{engine}: {summary}");
        let bytes = summary["trace_bytes"].as_u64().expect("a number");
        // As many as were asked for, and no more before them than two periods of PSBs.
        assert!((8 << 10..13 << 10).contains(&bytes), "{engine}: {bytes}");
        let raw = std::fs::metadata(&raw).expect("the bare packets").len();
        assert!(raw <= bytes && bytes < raw + 8 * 10, "{engine}: {raw}");

        let list = std::fs::read_to_string(&truth).expect("the list");
        let listed: Vec<u64> = list
            .lines()
            .map(|line| {
                let (_, ip) = line.split_once(" 0x").expect("TID 0xADDRESS");
                u64::from_str_radix(ip, 16).expect("an address")
            })
            .collect();
        let decoded = run(&mut json("insn", &[], &data));
        let decoded = addresses(&decoded.stdout);
        assert!(decoded.len() > 10_000, "{engine}: {}", decoded.len());
        assert!(decoded.len() < listed.len(), "{engine}");
        assert!(listed.ends_with(&decoded), "{engine}");

        let text = run(cofi().arg("check").arg(&data)).text();
        assert!(text.contains("Not kept, as asked: thread"), "{text}");
        assert!(
            text.contains("every instruction of what was kept is accounted for"),
            "{text}"
        );
    }
}

#[test]
fn each_thread_and_each_program_keeps_its_end() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    for engine in engines() {
        for (what, threads) in [("threads", 4), ("exec", 1)] {
            let data = scratch.path("data");
            let ran = run(record_last(engine, "4K", &data)
                .args(["--verify", "--"])
                .arg(&program)
                .arg(what));
            assert_eq!(ran.code(), 0, "{engine} {what}: {}", ran.stderr);
            assert!(ran.stderr.contains("verified"), "{engine}: {}", ran.stderr);
            let summary = summary_of(&data);
            assert_eq!(summary["streams"], threads, "{engine}: {summary}");
            assert_eq!(summary["unsealed_bytes"], 0, "{engine}: {summary}");
            let not_kept = summary["not_kept"].as_array().expect("a list");
            assert_eq!(not_kept.len() as u64, threads, "{engine}: {summary}");
        }
    }
}

#[test]
fn a_crash_is_in_what_is_kept() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    for engine in engines() {
        let data = scratch.path("data");
        let ran = run(record_last(engine, "4K", &data)
            .arg("--")
            .arg(&program)
            .arg("crash"));
        assert_eq!(ran.code(), 139, "{engine}: {}", ran.stderr);
        let last = run(cofi().arg("last").arg(&data)).text();
        assert!(last.contains("SIGSEGV"), "{engine}: {last}");
        let calls = last.split("innermost first:").nth(1).expect("its calls");
        let innermost = calls.trim_start().lines().next().expect("a call");
        assert!(innermost.contains("crash"), "{engine}: {last}");
        assert_eq!(summary_of(&data)["seals_broken"], 0, "{engine}");
    }
}

#[test]
fn what_fits_is_kept_whole() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    let data = scratch.path("data");
    let ran = run(record_last("ptrace", "16M", &data)
        .args(["--verify", "--"])
        .arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let text = run(cofi().arg("check").arg(&data)).text();
    assert!(!text.contains("Not kept"), "{text}");
    assert!(
        text.contains("every instruction of the trace is accounted for"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    for (args, sentence) in [
        (&["--last", "0"][..], "no number of bytes"),
        (&["--last", "12Q"], "no number of bytes"),
        (&["--last", "99999999999G"], "no number of bytes"),
        (
            &["--last", "64K", "--config", "rtit"],
            "--last is for Intel PT",
        ),
        (
            &["--last", "64K", "--config", "tsc=0,mtc=0"],
            "--last needs the time",
        ),
        (
            &["--last", "64K", "--engine", "qemu-system"],
            "ptrace and qemu",
        ),
    ] {
        let ran = run(cofi()
            .arg("record")
            .args(args)
            .arg("-o")
            .arg(&data)
            .args(["--", "true"]));
        assert_eq!(ran.code(), 2, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(sentence), "{args:?}: {}", ran.stderr);
        assert!(!data.exists(), "{args:?}");
    }
}
