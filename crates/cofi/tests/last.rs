//! `cofi last`: how threads end.

mod common;

use common::{STATIC, Scratch, cofi, json, run};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Ends by a fault in a function that others have called, or by itself if it is given an argument.
const ENDS: &str = r#"
#include <pthread.h>
#include <stdlib.h>
__attribute__((noinline)) static int reads(volatile int *from) {
    return *from;
}
__attribute__((noinline)) static int handles(volatile int *from) { return reads(from) + 1; }
static void *works(void *argument) { return argument; }
int main(int count, char **words) {
    (void)words;
    pthread_t thread;
    pthread_create(&thread, 0, works, 0);
    pthread_join(thread, 0);
    if (count > 1) exit(3);
    return handles((int *)0x10);
}
"#;

fn record(scratch: &Scratch, arguments: &[&str]) -> Option<(PathBuf, i32)> {
    let source = scratch.write("ends.c", ENDS);
    let program = scratch.compile(&source, &[STATIC, &["-g"]].concat())?;
    let data = scratch.path("data");
    let mut command = cofi();
    command.args(["record", "--engine", "ptrace", "-o"]);
    command.arg(&data).arg("--").arg(program).args(arguments);
    let status = run(&mut command).code();
    Some((data, status))
}

fn threads(data: &Path) -> Vec<Value> {
    let ran = run(&mut json("last", &[], data));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    ran.text().lines().map(parse).collect()
}

fn names<'v>(list: &'v Value, key: &str) -> Vec<&'v str> {
    let names = list.as_array().expect("a list").iter();
    names.filter_map(|item| item[key].as_str()).collect()
}

#[test]
fn by_a_signal() {
    let scratch = Scratch::new();
    let Some((data, status)) = record(&scratch, &[]) else {
        return;
    };
    assert_eq!(status, 139);
    let threads = threads(&data);
    assert_eq!(threads.len(), 2);
    let (main, other) = (&threads[0], &threads[1]);
    assert_eq!(main["ended"], "signal");
    assert_eq!(
        (&main["signal"], &main["address"]),
        (&"SIGSEGV".into(), &"0x10".into())
    );
    let stack = names(&main["stack"], "at");
    assert_eq!(stack[0], "reads");
    assert!(
        stack[1].starts_with("handles+") && stack[2].starts_with("main+"),
        "{stack:?}"
    );
    assert_eq!(main["stack"][0]["line"], 5);
    assert_eq!(main["stack"][1]["line"], 7);
    let calls = names(&main["calls"], "call");
    assert_eq!(calls.len(), 10);
    assert_eq!(calls[8..], ["handles", "reads"]);
    assert_eq!(names(&main["lines"], "function").last(), Some(&"handles"));
    // The thread has ended before.
    assert_eq!(
        (&other["ended"], &other["process"]),
        (&"exit".into(), &false.into())
    );

    let text = run(cofi().args(["last", "-n", "2"]).arg(&data)).text();
    let main = text.split("\n\nthread ").next().expect("a thread");
    assert!(
        main.contains("SIGSEGV at 0x") && main.contains("about address 0x10"),
        "{main}"
    );
    assert!(
        main.contains("   0  reads") && main.contains("ends.c:5"),
        "{main}"
    );
    let calls = main.split("The last calls:").nth(1).expect("calls");
    let calls = calls.split("The last lines:").next().expect("calls");
    let count = calls.lines().filter(|line| !line.trim().is_empty()).count();
    assert_eq!(count, 3, "heads and two calls: {calls}");
}

#[test]
fn by_itself() {
    let scratch = Scratch::new();
    let Some((data, status)) = record(&scratch, &["leave"]) else {
        return;
    };
    assert_eq!(status, 3);
    let threads = threads(&data);
    let main = &threads[0];
    assert_eq!(
        (&main["ended"], &main["process"]),
        (&"exit".into(), &true.into())
    );
    let stack = names(&main["stack"], "at");
    assert!(
        stack[0].starts_with("_exit+") && stack.iter().any(|at| at.starts_with("main+")),
        "{stack:?}"
    );
    assert_eq!(main["signal"], Value::Null);
}

/// The innermost inlined function is that of the instruction that faulted, and not that of the one that ran last.
#[test]
fn a_fault_in_an_inlined_function() {
    const FAULTS: &str = "
        static inline __attribute__((always_inline)) int reads(volatile int *from) { return *from; }
        static inline __attribute__((always_inline)) int twice(volatile int *from) { return 2 * reads(from); }
        __attribute__((noinline)) int handles(volatile int *from, int *to) {
            *to = 3;
            return twice(from);
        }
        int main(void) { int x; return handles((int *)0x10, &x); }
    ";
    let scratch = Scratch::new();
    let source = scratch.write("faults.c", FAULTS);
    let Some(program) = scratch.compile(&source, &["-O1", "-g"]) else {
        return;
    };
    let data = scratch.path("data");
    let mut command = cofi();
    command.args(["record", "--engine", "ptrace", "-o"]);
    run(command.arg(&data).arg("--").arg(program));
    let ran = run(&mut json("last", &["--inline".as_ref()], &data));
    let main: Value =
        serde_json::from_str(ran.text().lines().next().expect("a thread")).expect("an object");
    let stack = names(&main["stack"], "at");
    assert_eq!(stack[..2], ["reads (inlined)", "twice (inlined)"]);
    assert!(stack[2].starts_with("handles"), "{stack:?}");
    let lines: Vec<_> = (0..3)
        .map(|at| main["stack"][at]["line"].as_u64())
        .collect();
    assert_eq!(lines, [Some(2), Some(3), Some(6)]);
    assert_eq!(main["stack"][0]["kind"], "inline");
    // Without the option there is none of them, and the line is that of the fault.
    let plain = &threads(&data)[0];
    assert!(names(&plain["stack"], "at")[0].starts_with("handles"));
}

/// A recursion is told once, and what no symbol names by where it stands in its file.
#[test]
fn a_deep_stack_without_names() {
    const DEEP: &str = "
        __attribute__((noinline)) int deep(int n) { return n ? deep(n - 1) + 1 : *(volatile int *)8; }
        int main(void) { return deep(300); }
    ";
    let scratch = Scratch::new();
    let source = scratch.write("deep.c", DEEP);
    for (flags, call) in [(&["-O1"][..], "deep+0x"), (&["-O1", "-s"], " in deep")] {
        let Some(program) = scratch.compile(&source, flags) else {
            return;
        };
        let data = scratch.path("data");
        let mut command = cofi();
        command.args(["record", "--engine", "ptrace", "-o"]);
        run(command.arg(&data).arg("--").arg(program));
        let threads = threads(&data);
        let stack = names(&threads[0]["stack"], "at");
        let deep = stack.iter().filter(|at| at.contains(call)).count();
        assert!(deep >= 301 && stack.len() < 310, "{call}: {stack:?}");
        let text = run(cofi().arg("last").arg(&data)).text();
        let stack = text.split("\n\n").nth(1).expect("the stack");
        let shown = stack.lines().filter(|line| line.contains(call)).count();
        assert!(shown <= 5 && stack.lines().count() < 15, "{stack}");
        assert!(stack.contains("… the same call 299 times more"), "{stack}");
    }
}

/// Of a stack of more calls than are kept it says so.
#[test]
fn a_stack_that_overflowed() {
    const ENDLESS: &str = "
        __attribute__((noinline)) int deep(int n) { return n ? deep(n + 1) + 1 : 0; }
        int main(void) { return deep(1); }
    ";
    let scratch = Scratch::new();
    let source = scratch.write("endless.c", ENDLESS);
    let Some(program) = scratch.compile(&source, &["-O1", "-fno-optimize-sibling-calls"]) else {
        return;
    };
    let data = scratch.path("data");
    let mut command = cofi();
    command.args(["record", "--engine", "ptrace", "-o"]);
    // Somewhat more calls than are kept have room.
    let limited = format!("ulimit -s 4600; exec {}", program.display());
    run(command.arg(&data).args(["--", "sh", "-c", &limited]));
    let main = &threads(&data)[0];
    assert_eq!(main["ended"], "signal");
    let kept = main["stack"].as_array().expect("a list").len() as u64;
    let text = run(cofi().arg("last").arg(&data)).text();
    match main["calls_not_kept"].as_u64() {
        Some(more) => {
            assert!(more >= 1 << 17 && kept <= 1 << 18, "{more}, {kept}");
            assert!(text.contains("which are not kept"), "{text}");
        }
        // A small stack, or large frames.
        None => assert!(
            !text.contains("not kept") && text.contains("  main+"),
            "{text}"
        ),
    }
}
