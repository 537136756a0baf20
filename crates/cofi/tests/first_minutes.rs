//! What somebody meets who uses the command for the first time: the command line, signals, points, parts, names.

mod common;

use common::{Scratch, cofi, on_terminal, run};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Does what its first argument says. It has a thread of its own name, and one without.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static sigjmp_buf back;
static volatile int handled;
static void on_usr1(int number) { handled++; }
static void on_fault(int number, siginfo_t *info, void *context) { siglongjmp(back, 1); }
__attribute__((noinline, noclone)) static int read_it(int *at) { return *(volatile int *)at + 1; }
__attribute__((noinline, noclone)) static int first_half(int n) { volatile int sum = 0; for (int i = 0; i < n; i++) sum += i; return sum; }
__attribute__((noinline, noclone)) static int second_half(int n) { volatile int sum = 1; for (int i = 0; i < n; i++) sum ^= i; return sum; }
static void *crashes(void *at) { return (void *)(long)read_it(at); }
static void *leaves(void *arg) { return arg; }
static void in_thread(void *(*work)(void *), void *arg) {
    pthread_t thread;
    pthread_create(&thread, 0, work, arg);
    pthread_join(thread, 0);
}
static int jit(void) {
    // The same function three times, 4 KiB apart, as a compiler does that comes back to it, and one that has no name.
    unsigned char code[] = { 0xb8, 7, 0, 0, 0, 0xc3 };
    unsigned char *at = mmap(0, 16 * 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(path, "w");
    int sum = 0;
    for (int i = 0; i < 8; i++) {
        memcpy(at + 4096 * i, code, sizeof code);
        if (i < 3) fprintf(map, "%lx %x jitted_by_test\n", (long)(at + 4096 * i), (int)sizeof code);
    }
    fclose(map);
    for (int i = 0; i < 8; i++) sum += ((int (*)(void))(at + 4096 * i))();
    return sum == 56 ? 0 : 1;
}
int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "crash")) in_thread(crashes, (void *)0x1234);
    if (!strcmp(what, "abort")) abort();
    if (!strcmp(what, "kill")) kill(getpid(), SIGKILL);
    if (!strcmp(what, "jit")) return jit();
    if (!strcmp(what, "handle")) {
        struct sigaction usr1 = { .sa_handler = on_usr1 };
        struct sigaction fault = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
        sigaction(SIGUSR1, &usr1, 0);
        sigaction(SIGSEGV, &fault, 0);
        signal(SIGUSR2, SIG_IGN);
        raise(SIGUSR1);
        raise(SIGUSR2);
        if (!sigsetjmp(back, 1)) read_it((int *)0x5678);
        return handled == 1 ? 0 : 1;
    }
    if (!strcmp(what, "threads")) {
        in_thread(leaves, 0);
        if (fork() == 0) _exit(first_half(10) != 45);
        wait(0);
        return 0;
    }
    if (!strcmp(what, "halves")) return first_half(200) == second_half(200);
    for (int i = 1; i < argc; i++) puts(argv[i]);
    return 0;
}
"#;

fn program(scratch: &Scratch) -> Option<PathBuf> {
    scratch.compile(
        &scratch.write("first.c", PROGRAM),
        &["-O1", "-static", "-pthread"],
    )
}

/// The engines that there are here.
fn engines() -> Vec<&'static str> {
    match Command::new("qemu-x86_64").arg("--version").output() {
        Ok(_) => vec!["ptrace", "qemu"],
        Err(_) => {
            eprintln!("skipped: qemu is not installed");
            vec!["ptrace"]
        }
    }
}

/// A recording of the program, which ends with `status`; it decodes to what ran.
fn recorded(engine: &str, program: &Path, args: &[&str], status: i32, data: &Path) {
    let mut command = cofi();
    command.args(["record", "--verify", "--engine", engine, "-o"]);
    let ran = run(command.arg(data).arg(program).args(args));
    assert_eq!(ran.code(), status, "{engine} {args:?}: {}", ran.stderr);
    assert!(ran.stderr.contains("verified"), "{engine}: {}", ran.stderr);
}

/// A command's JSON objects.
fn objects(args: &[&str], data: &Path) -> Vec<Value> {
    let ran = run(cofi().args(args).arg(data));
    let lines = ran.text();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect(line));
    lines.collect()
}

/// The signals that a command shows: name, address, whether it ended the process.
fn signals(args: &[&str], data: &Path) -> Vec<(String, Option<String>, bool)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    objects(args, data)
        .iter()
        .filter(|object| object["event"] == "signal")
        .map(|object| {
            let name = text(&object["signal"]).expect("a name");
            assert!(object["tid"].is_u64(), "{object}");
            (name, text(&object["address"]), object["fatal"] == true)
        })
        .collect()
}

const ALL: [&[&str]; 5] = [
    &["insn", "--json"],
    &["insn", "--json", "--time"],
    &["blocks", "--json"],
    &["blocks", "--json", "--time"],
    &["events", "--json"],
];

#[test]
fn the_first_argument_that_is_no_option_begins_the_program() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    let data = scratch.path("data");
    for (before, words, said) in [
        (&[][..], &["-o", "x", "--json"][..], "-o\nx\n--json\n"),
        (&[], &["a", "--", "-l"], "a\n--\n-l\n"),
        (&["--"], &["-v"], "-v\n"),
    ] {
        for name in ["record", "trace"] {
            let mut command = cofi();
            command.args([name, "--engine", "ptrace", "-o"]).arg(&data);
            let ran = run(command.args(before).arg(&program).args(words));
            assert_eq!(
                (ran.code(), ran.text().as_str()),
                (0, said),
                "{}",
                ran.stderr
            );
        }
    }
    let mut command = cofi();
    let wrong = run(command.args(["record", "--no-such-option"]).arg(&program));
    assert_eq!(wrong.code(), 2);
    assert!(
        wrong.stderr.contains("--no-such-option"),
        "{}",
        wrong.stderr
    );
}

#[test]
fn a_signal_that_ends_a_thread_is_shown_by_name_with_its_address() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    for engine in engines() {
        let data = scratch.path("data");
        recorded(engine, &program, &["crash"], 128 + 11, &data);
        for args in ALL {
            let wanted = ("SIGSEGV".to_owned(), Some("0x1234".to_owned()), true);
            assert_eq!(signals(args, &data), [wanted], "{engine} {args:?}");
        }
        // It is the last that its thread shows, and stands where that was.
        let all = objects(&["insn", "--json", "--symbols"], &data);
        let at = all
            .iter()
            .position(|object| object["event"] == "signal")
            .expect("it");
        let tid = &all[at]["tid"];
        assert!(
            !all[at + 1..].iter().any(|object| object["tid"] == *tid),
            "{engine}"
        );
        let before = all[..at]
            .iter()
            .rev()
            .find(|object| object.get("insn").is_some());
        assert_eq!(
            before.expect("an instruction")["symbol"],
            "crashes",
            "{engine}"
        );
        let report = run(cofi().arg("report").arg(&data)).text();
        let line = report
            .lines()
            .find(|line| line.contains("SIGSEGV"))
            .expect("a row");
        for word in ["read_it", "0x1234", "ended the process"] {
            assert!(line.contains(word), "{engine}: {line}");
        }
        for args in ["insn", "blocks", "events"] {
            let text = run(cofi().arg(args).arg(&data)).text();
            let line = text
                .lines()
                .find(|line| line.contains("SIGSEGV"))
                .expect("a line");
            assert!(
                line.contains("about address 0x1234: it ends the process"),
                "{line}"
            );
        }
    }
}

#[test]
fn signals_that_are_handled_and_those_that_nobody_catches() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    let signal = |name: &str, address: Option<&str>, fatal| {
        (name.to_owned(), address.map(str::to_owned), fatal)
    };
    for engine in engines() {
        let data = scratch.path("data");
        for (what, status, wanted) in [
            (
                "handle",
                0,
                vec![
                    signal("SIGUSR1", None, false),
                    signal("SIGSEGV", Some("0x5678"), false),
                ],
            ),
            ("abort", 128 + 6, vec![signal("SIGABRT", None, true)]),
            ("kill", 128 + 9, vec![signal("SIGKILL", None, true)]),
        ] {
            recorded(engine, &program, &[what], status, &data);
            for args in ALL {
                assert_eq!(signals(args, &data), wanted, "{engine} {what} {args:?}");
            }
        }
    }
}

#[test]
fn trace_shows_the_thread_that_crashed_and_says_which_engine_ran() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    for engine in engines() {
        let mut command = cofi();
        command.args(["trace", "--engine", engine, "--last", "3", "-o"]);
        let ran = run(command.arg(scratch.path("data")).arg(&program).arg("crash"));
        assert_eq!(ran.code(), 128 + 11, "{}", ran.stderr);
        let text = &ran.stderr;
        let (_, last) = text.split_once("The last instructions of ").expect("them");
        let mut lines = last.lines();
        let head = lines.next().expect("a head");
        assert!(head.ends_with(", which SIGSEGV hit:"), "{head}");
        let calls = lines.next_back().expect("a line");
        assert!(!calls.is_empty());
        assert!(last.contains("crashes"), "{last}");
        assert!(last.contains("SIGSEGV at "), "{last}");
        assert!(
            text.contains(&format!("\nRecorded with {engine}, ")),
            "{text}"
        );
    }
}

#[test]
fn threads_and_forks_have_the_name_of_the_program() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    for engine in engines() {
        let data = scratch.path("data");
        recorded(engine, &program, &["threads"], 0, &data);
        let threads = objects(&["report", "--json"], &data);
        let names: Vec<_> = threads
            .iter()
            .filter_map(|object| object.get("thread"))
            .collect();
        assert_eq!(names, ["first", "first", "first"], "{engine}");
    }
}

#[test]
fn every_object_has_its_thread_even_if_there_is_only_one() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    let data = scratch.path("data");
    recorded("ptrace", &program, &[], 0, &data);
    for args in [
        &["insn", "--json"][..],
        &["insn", "--json", "--time"],
        &["blocks", "--json"],
        &["blocks", "--json", "--time"],
        &["events", "--json"],
        &["dump", "--json"],
        &["dump", "--json", "--stats"],
    ] {
        let all = objects(args, &data);
        assert!(!all.is_empty());
        let without = all.iter().find(|object| !object["tid"].is_u64());
        assert_eq!(without, None, "{args:?}");
    }
}

/// How many instructions `cofi insn` lists.
fn listed(more: &[&str], data: &Path) -> usize {
    let objects = objects(&[&["insn", "--json"], more].concat(), data);
    objects
        .iter()
        .filter(|object| object.get("insn").is_some())
        .count()
}

/// What `cofi report` counts: instructions, and functions by name.
fn counted(more: &[&str], data: &Path) -> (usize, Vec<(String, usize)>) {
    let number = |value: &Value| value.as_u64().expect("a number") as usize;
    let all = objects(&[&["report", "--json"], more].concat(), data);
    let summary = &all.last().expect("a summary")["summary"];
    let functions = all.iter().filter_map(|object| {
        let name = object.get("function")?.as_str().unwrap_or_default();
        Some((name.to_owned(), number(&object["instructions"])))
    });
    (number(&summary["instructions"]), functions.collect())
}

#[test]
fn report_counts_a_part_and_a_thread() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    let data = scratch.path("data");
    recorded("ptrace", &program, &["halves"], 0, &data);
    let names = |list: &[(String, usize)]| -> Vec<String> {
        list.iter().map(|(name, _)| name.clone()).collect()
    };
    let (all, functions) = counted(&[], &data);
    assert_eq!(all, listed(&[], &data));
    assert_eq!(functions.iter().map(|(_, count)| count).sum::<usize>(), all);
    let window = ["--from", "sym:first_half", "--to", "sym:second_half"];
    let (part, functions) = counted(&window, &data);
    let found = names(&functions);
    assert!(found.contains(&"first_half".to_owned()), "{found:?}");
    // It ends with the piece in which the other half begins.
    let second = functions.iter().find(|(name, _)| name == "second_half");
    assert!(second.is_none_or(|(_, count)| *count < 32), "{functions:?}");
    assert!(part.abs_diff(listed(&window, &data)) < 32, "{part}");
    let from = ["--from", "sym:second_half"];
    let (rest, functions) = counted(&from, &data);
    assert!(
        !names(&functions).contains(&"first_half".to_owned()),
        "{functions:?}"
    );
    assert!(rest.abs_diff(listed(&from, &data)) < 32, "{rest}");
    let text = run(cofi().arg("report").args(window).arg(&data)).text();
    assert!(
        text.contains("No gaps found in this part of the trace"),
        "{text}"
    );

    recorded("ptrace", &program, &["threads"], 0, &data);
    let threads = objects(&["report", "--json"], &data);
    let threads: Vec<_> = threads
        .iter()
        .filter(|object| object.get("thread").is_some())
        .collect();
    assert_eq!(threads.len(), 3);
    for thread in threads {
        let tid = thread["tid"].as_u64().expect("a number").to_string();
        let (count, _) = counted(&["--tid", &tid], &data);
        assert_eq!(thread["instructions"], count as u64);
        assert_eq!(listed(&["--tid", &tid], &data), count);
    }
}

#[test]
fn points_by_function_and_from_the_end() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    let data = scratch.path("data");
    recorded("ptrace", &program, &["halves"], 0, &data);
    let around = [
        "insn",
        "--json",
        "--symbols",
        "--around",
        "sym:second_half",
        "-C",
        "1",
    ];
    let shown = objects(&around, &data);
    let symbols: Vec<_> = shown
        .iter()
        .filter_map(|object| object["symbol"].as_str())
        .collect();
    assert_eq!(symbols, ["main", "second_half"]);
    let from = ["--json", "--symbols", "--from", "sym:first_half"];
    let first = &objects(&[&["insn"], &from[..]].concat(), &data)[0];
    let place = (&first["symbol"], &first["symbol_offset"]);
    assert_eq!(place, (&"first_half".into(), &0.into()));
    // The block in which it begins may have begun before.
    let first = &objects(&[&["blocks"], &from[..]].concat(), &data)[0];
    let symbol = first["symbol"].as_str().expect("a name");
    assert!(["main", "first_half"].contains(&symbol), "{first}");
    let all = listed(&[], &data);
    let nearer = ["time:-1us", "time:-10us", "time:-0.1ms", "time:-3600s"];
    let counts = nearer.map(|point| listed(&["--from", point], &data));
    assert!(counts.is_sorted() && counts[0] > 0, "{counts:?}");
    assert!(counts[0] < counts[2], "{counts:?}");
    assert_eq!(counts[3], all);
}

#[test]
fn what_cannot_be_is_said_in_a_sentence() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    let data = scratch.path("data");
    recorded("ptrace", &program, &["halves"], 0, &data);
    let says = |args: &[&str], status: i32, sentence: &str| {
        for command in ["insn", "blocks", "report"] {
            let ran = run(cofi().arg(command).args(args).arg(&data));
            assert_eq!(ran.code(), status, "{command} {args:?}: {}", ran.stderr);
            assert!(
                ran.stderr.contains(sentence),
                "{command} {args:?}: {}",
                ran.stderr
            );
            assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        }
    };
    says(
        &["--from", "sym:second_hal"],
        2,
        "is called so; near to it: second_half",
    );
    says(
        &["--from", "sym:no_such_thing_at_all"],
        2,
        "no function of the traced code is called so",
    );
    says(&["--from", "sym:read_it"], 0, "sym:read_it never ran");
    says(
        &["--to", "sym:read_it"],
        0,
        "sym:read_it never ran: what there is ends before it",
    );
    says(
        &["--from", "time:9s"],
        0,
        "nothing that was traced is at or after time:9.000000000",
    );
    says(
        &["--to", "time:9s"],
        0,
        "nothing that was traced is at or after time:9.000000000: what there is ends before it",
    );
    says(
        &["--from", "time:2ms", "--to", "time:1ms"],
        2,
        "--to time:0.001000000 lies before --from time:0.002000000",
    );
    says(
        &["--from", "offset:9", "--to", "offset:0x8"],
        2,
        "lies before --from",
    );
    says(
        &["--tid", "1"],
        2,
        "--tid 1: no such thread; the trace has thread ",
    );
}

#[test]
fn pieces_of_a_generated_function_are_one_row() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    for engine in engines() {
        let data = scratch.path("data");
        recorded(engine, &program, &["jit"], 0, &data);
        let all = objects(&["report", "--json"], &data);
        let pid = all[0]["pid"].as_u64().expect("a number");
        let generated: Vec<_> = all
            .iter()
            .filter(|object| object["file"] == "[generated]")
            .collect();
        let rows: Vec<_> = generated
            .iter()
            .map(|object| (object["function"].as_str(), object["instructions"].as_u64()))
            .collect();
        // Three of two instructions, and five that nobody has named.
        assert_eq!(
            rows,
            [(None, Some(10)), (Some("jitted_by_test"), Some(6))],
            "{engine}"
        );
        let _ = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
    }
}

#[test]
fn a_cause_is_said_once() {
    let scratch = Scratch::new();
    let file = scratch.write("cut", b"PERFILE2\x68");
    let ran = run(cofi().arg("insn").arg(&file));
    assert_eq!(ran.code(), 2);
    let (head, cause) = ran.stderr.split_once("perf.data file: ").expect("a cause");
    assert!(
        head.starts_with("cofi: ") && !cause.is_empty(),
        "{}",
        ran.stderr
    );
    let begin: String = cause.chars().take(20).collect();
    assert_eq!(ran.stderr.matches(&begin).count(), 1, "{}", ran.stderr);
}

/// What a terminal shows of a line.
fn letters(line: &str) -> usize {
    let mut count = 0;
    let mut escaped = false;
    for letter in line.chars() {
        match letter {
            '\u{1b}' => escaped = true,
            'm' if escaped => escaped = false,
            _ => count += usize::from(!escaped),
        }
    }
    count
}

#[test]
fn names_are_shortened_where_the_terminal_is_narrow() {
    const LONG: &str = r#"
    __attribute__((noinline)) int a_function_with_a_name_that_is_much_longer_than_any_terminal_is_wide_and_ends_so(int n) {
        volatile int sum = 0;
        for (int i = 0; i < n; i++) sum += i;
        return sum;
    }
    int main() { return a_function_with_a_name_that_is_much_longer_than_any_terminal_is_wide_and_ends_so(100000) == 0; }
    "#;
    let scratch = Scratch::new();
    let source = scratch.write("long.c", LONG);
    let Some(program) = scratch.compile(&source, &["-O1", "-static"]) else {
        return;
    };
    let data = scratch.path("data");
    recorded("ptrace", &program, &[], 0, &data);
    let bin = env!("CARGO_BIN_EXE_cofi");
    let report = format!("{bin} report {}", data.display());
    let insn = format!("{bin} insn --around sym:main -C 40 {}", data.display());
    for columns in [60, 80] {
        for command in [&report, &insn] {
            let Some(text) = on_terminal(&columns.to_string(), command) else {
                return;
            };
            let name = text
                .lines()
                .find(|line| line.contains("a_fun"))
                .expect("the function");
            assert!(name.contains('…'), "{name}");
            if command == &report {
                assert!(name.contains("_so"), "{name}");
                let widest = text.lines().map(letters).max();
                assert!(
                    widest.is_some_and(|widest| widest <= columns),
                    "{columns}:\n{text}"
                );
            }
        }
    }
    let plain = run(cofi().arg("report").arg(&data).env("COLUMNS", "60")).text();
    assert!(plain.contains("_is_wide_and_ends_so"), "{plain}");
}

/// What shows lines of source fits a terminal of 80 columns; the source stands above the instructions there, and beside them in a wide one.
#[test]
fn source_fits_the_terminal() {
    const SOURCE: &str = "static int times_two_if_it_is_odd(int number)\n{\n    if (number % 2) /* a comment that makes this line longer than eighty columns are */\n        return 2 * number;\n    return number;\n}\nint main(void)\n{\n    int sum = 0;\n    for (int i = 0; i < 100; i++)\n        sum += times_two_if_it_is_odd(i);\n    return sum != 7450;\n}\n";
    let scratch = Scratch::new();
    let source = scratch.write("a_file_with_a_name_that_is_rather_long.c", SOURCE);
    let Some(program) = scratch.compile(&source, &["-g", "-O0"]) else {
        return;
    };
    let data = scratch.path("data");
    recorded("ptrace", &program, &[], 0, &data);
    let bin = env!("CARGO_BIN_EXE_cofi");
    for (command, wanted) in [
        (
            "annotate times_two_if_it_is_odd",
            "       3:     if (number % 2)",
        ),
        ("coverage", "long.c"),
        ("top --of lines --from sym:main", "sum +="),
        ("top --of branches --from sym:main", "times_"),
        (
            "top --of instructions --by total --from sym:main",
            "main+0x",
        ),
    ] {
        let line = format!("{bin} {command} {}", data.display());
        let Some(text) = on_terminal("80", &line) else {
            return;
        };
        assert!(text.contains(wanted), "{command}:\n{text}");
        // (How long the folder's name is depends on where the test runs.)
        let lines = text.lines().filter(|line| !line.contains("long.c:1  in "));
        let lines = lines.filter(|line| !line.starts_with("  in ") && !line.starts_with("  /"));
        let widest = lines.map(letters).max();
        assert!(
            widest.is_some_and(|widest| widest <= 80),
            "{command}:\n{text}"
        );
    }
    let line = format!("{bin} annotate times_two_if_it_is_odd {}", data.display());
    let wide = on_terminal("160", &line).unwrap_or_default();
    let line = wide.lines().find(|line| line.contains("if (number % 2)"));
    assert!(line.is_some_and(|line| line.contains("mov eax")), "{wide}");
}
