//! `cofi record --start-at`, `--stop-at`: tracing of a process begins and ends at functions.

mod common;

use common::{ASM, DYNAMIC, STATIC, Scratch, addresses, cofi, has_qemu, json, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `work` runs between `begin_here` and `end_here`, `before` and `after` outside of them, each round.
const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
volatile unsigned sum;
__attribute__((noinline)) void before(void) { for (int i = 0; i < 50; i++) sum += i; }
__attribute__((noinline)) void begin_here(void) { sum += 1; }
__attribute__((noinline)) void work(void) { for (int i = 0; i < 50; i++) sum ^= i * 3; getppid(); }
__attribute__((noinline)) void end_here(void) { sum += 2; }
__attribute__((noinline)) void after(void) { for (int i = 0; i < 50; i++) sum -= i; }
static void round_of_it(void) { before(); begin_here(); work(); end_here(); after(); }
static void *thread(void *arg) { (void)arg; round_of_it(); return 0; }
int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    round_of_it();
    round_of_it();
    if (!strcmp(what, "threads")) {
        pthread_t other;
        pthread_create(&other, 0, thread, 0);
        pthread_join(other, 0);
    }
    if (!strcmp(what, "fork")) {
        if (fork() == 0) { round_of_it(); _exit(0); }
        wait(0);
    }
    return 0;
}
"#;

/// Functions that are come to by a jump, by falling through, and in the middle of what is a block.
const JUMPS: &str = "
    .globl _start, fallen, jumped, done
    .type fallen, @function
    .type jumped, @function
    .type done, @function
_start:
    mov $1, %eax
    mov $2, %ebx
fallen:
    mov $3, %ecx
    jmp jumped
    hlt
jumped:
    mov $4, %edx
    nop
done:
    mov $60, %eax
    xor %edi, %edi
    syscall
    .section .note.GNU-stack
";

fn engines() -> Vec<&'static str> {
    let mut engines = vec!["ptrace"];
    if has_qemu() {
        engines.push("qemu");
    }
    engines
}

fn record(engine: &str, args: &[&str], data: &Path) -> Command {
    let mut command = cofi();
    command.args(["record", "--engine", engine]).args(args);
    command.arg("-o").arg(data);
    command
}

fn program(scratch: &Scratch, flags: &[&str]) -> Option<PathBuf> {
    let source = scratch.write("window.c", SOURCE);
    scratch.compile(&source, flags)
}

/// How often the first instruction of a function is in the flow.
fn calls_of(data: &Path, name: &str) -> u64 {
    let ran = run(cofi().args(["insn", "--json", "--symbols"]).arg(data));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    let lines = ran.text();
    let entries = lines.lines().filter(|line| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        line["symbol"] == name && line["symbol_offset"] == 0
    });
    entries.count() as u64
}

#[test]
fn what_runs_between_two_functions_is_traced() {
    let scratch = Scratch::new();
    for flags in [DYNAMIC, STATIC] {
        let Some(program) = program(&scratch, flags) else {
            continue;
        };
        for engine in engines() {
            for (what, rounds) in [("", 2), ("threads", 3), ("fork", 3)] {
                let data = scratch.path("data");
                let gates = ["--start-at", "sym:begin_here", "--stop-at", "sym:end_here"];
                let ran = run(record(engine, &gates, &data)
                    .args(["--verify", "--"])
                    .arg(&program)
                    .arg(what));
                let about = format!("{engine} {what}");
                assert_eq!(ran.code(), 0, "{about}: {}", ran.stderr);
                assert!(ran.stderr.contains("verified"), "{about}: {}", ran.stderr);
                for (name, count) in [
                    ("begin_here", rounds),
                    ("work", rounds),
                    ("end_here", 0),
                    ("before", 0),
                    ("after", 0),
                    ("main", 0),
                ] {
                    assert_eq!(calls_of(&data, name), count, "{about}: {name}");
                }
                let check = run(cofi().arg("check").arg(&data));
                let text = check.text();
                assert_eq!(check.code(), 0, "{about}: {text}");
                assert!(text.contains("Not kept, as asked"), "{about}: {text}");
                let began = format!("tracing began {rounds} times");
                assert!(text.contains(&began), "{about}: {text}");
            }
        }
    }
}

#[test]
fn one_of_the_two_is_enough() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch, DYNAMIC) else {
        return;
    };
    for engine in engines() {
        let data = scratch.path("data");
        for (gates, before, after) in [
            (["--start-at", "sym:work"], 1, 2),
            (["--stop-at", "sym:work"], 1, 0),
        ] {
            let ran = run(record(engine, &gates, &data)
                .args(["--verify", "--"])
                .arg(&program));
            assert!(ran.stderr.contains("verified"), "{engine}: {}", ran.stderr);
            assert_eq!(calls_of(&data, "before"), before, "{engine} {gates:?}");
            assert_eq!(calls_of(&data, "after"), after, "{engine} {gates:?}");
        }
        // A library's function, and only the last packets.
        let args = ["--start-at", "sym:getppid", "--last", "64K"];
        let ran = run(record(engine, &args, &data)
            .args(["--verify", "--"])
            .arg(&program));
        assert!(ran.stderr.contains("verified"), "{engine}: {}", ran.stderr);
        assert_eq!(calls_of(&data, "after"), 2, "{engine}");
        assert_eq!(calls_of(&data, "before"), 1, "{engine}");
    }
}

#[test]
fn any_way_into_a_function_counts() {
    let scratch = Scratch::new();
    let source = scratch.write("jumps.s", JUMPS);
    let Some(program) = scratch.compile(&source, ASM) else {
        return;
    };
    for engine in engines() {
        for config in ["tsc=1", "rtit", "tsc=0,mtc=0"] {
            for (start, stop, count) in [
                ("sym:fallen", "sym:jumped", 2),
                ("sym:jumped", "sym:done", 2),
                ("sym:fallen", "sym:done", 4),
                ("sym:_start", "sym:fallen", 2),
            ] {
                let data = scratch.path("data");
                let gates = ["--config", config, "--start-at", start, "--stop-at", stop];
                let ran = run(record(engine, &gates, &data)
                    .args(["--verify", "--"])
                    .arg(&program));
                let about = format!("{engine} {config} {start}");
                assert!(ran.stderr.contains("verified"), "{about}: {}", ran.stderr);
                let decoded = run(&mut json("insn", &[], &data));
                assert_eq!(addresses(&decoded.stdout).len(), count, "{about}");
            }
        }
    }
}

#[test]
fn what_is_never_come_to_and_what_is_not_there_are_said() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch, DYNAMIC) else {
        return;
    };
    let data = scratch.path("data");
    let gates = ["--start-at", "sym:no_such_function"];
    let ran = run(record("ptrace", &gates, &data).arg("--").arg(&program));
    assert_eq!(ran.code(), 2, "{}", ran.stderr);
    let sentence =
        "--start-at sym:no_such_function: no file that was mapped has a function of this name";
    assert!(ran.stderr.contains(sentence), "{}", ran.stderr);

    let gates = ["--start-at", "0x10"];
    let ran = run(record("ptrace", &gates, &data).arg("--").arg(&program));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    let check = run(cofi().arg("check").arg(&data));
    assert_eq!(check.code(), 2);
    assert!(
        check.stderr.contains("nothing came to 0x10"),
        "{}",
        check.stderr
    );

    for wrong in ["main", "sym:", "0x", "ip:12"] {
        let ran = run(record("ptrace", &["--stop-at", wrong], &data).args(["--", "true"]));
        assert_eq!(ran.code(), 2, "{wrong}");
        assert!(ran.stderr.contains("sym:NAME"), "{wrong}: {}", ran.stderr);
    }
    let ran = run(record("qemu-system", &["--stop-at", "0x1"], &data).args(["--", "true"]));
    assert_eq!(ran.code(), 2);
    assert!(ran.stderr.contains("ptrace and qemu"), "{}", ran.stderr);
}
