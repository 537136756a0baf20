//! Programs under QEMU: they behave as they do under QEMU alone and, where that is possible, as natively; their flow is
//! continuous, and nothing in it is unknown that need not be.

mod common;

use cofi_capture::ProcessCause;
use cofi_capture::ptrace::Outcome;
use cofi_capture::qemu::{Qemu, Unknown};
use common::{BARE, Event, Flow, Program, qemu, trace_under_qemu};
use std::process::{Command, Stdio};
use std::thread::available_parallelism;

const STATIC: &[&str] = &["-static", "-pthread"];
const THREADS: &[&str] = &["-pthread"];

fn text(program: &Program) -> &str {
    program.path.to_str().expect("UTF-8")
}

/// Exit status under QEMU without the plugin: what QEMU makes of a program is not ours to judge.
fn alone(qemu: &Qemu, program: &Program, args: &[&str]) -> Option<i32> {
    Command::new(qemu.path())
        .arg(&program.path)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .expect("QEMU starts")
        .code()
}

/// Traces a program that exits by itself. Its status is that under QEMU alone; the flow is continuous.
fn follow(qemu: &Qemu, program: &Program, args: &[&str]) -> (Unknown, Flow) {
    let status = alone(qemu, program, args).expect("exits by itself under QEMU");
    let (outcome, unknown, flow) = trace_under_qemu(qemu, text(program), args);
    flow.check();
    assert_eq!(outcome, Outcome::Exited(status), "{args:?}");
    (unknown, flow)
}

/// As `follow`, and nothing is unknown.
fn known(qemu: &Qemu, program: &Program, args: &[&str]) -> Flow {
    let (unknown, flow) = follow(qemu, program, args);
    assert_eq!(unknown, Unknown::default(), "{args:?}");
    flow
}

/// As `known`, and the status is that of a native run.
fn same(qemu: &Qemu, program: &Program, args: &[&str]) -> Flow {
    let native = program.native(args);
    assert_eq!(alone(qemu, program, args), native, "{args:?} without Cofi");
    known(qemu, program, args)
}

/// What ran, each thread's in the order of their beginnings: instructions and interruptions.
fn addresses(flow: &Flow) -> Vec<Vec<Event>> {
    let thread = |tid| {
        let events = &flow.threads[tid].events;
        let is_told = |event: &&Event| !matches!(event, Event::Resume(..));
        events.iter().filter(is_told).copied().collect()
    };
    flow.order.iter().map(thread).collect()
}

/// Programs without a C library: exactly what the processor does.
fn as_ptrace_sees_it(program: &Program, args: &[&str]) {
    let Some(qemu) = qemu() else { return };
    let flow = same(&qemu, program, args);
    let truth = program.same(args);
    assert_eq!(addresses(&flow), addresses(&truth), "{}", text(program));
}

fn bare(source: &str) -> Program {
    let name = source.strip_suffix(".S").unwrap_or(source);
    Program::build(&format!("qemu-{name}"), source, BARE)
}

fn exam(source: &str, flags: &[&str]) -> Program {
    let name = source.split('.').next().unwrap_or(source);
    Program::exam(&format!("qemu-exam-{name}"), source, flags)
}

#[test]
fn every_instruction_counts_once() {
    as_ptrace_sees_it(&bare("counts.S"), &[]);
}

#[test]
fn every_branch() {
    as_ptrace_sees_it(&exam("branches.S", BARE), &[]);
}

#[test]
fn loads_of_ss() {
    as_ptrace_sees_it(&bare("shadow.S"), &[]);
}

#[test]
fn code_that_changes_in_its_own_block() {
    as_ptrace_sees_it(&bare("smc.S"), &[]);
    as_ptrace_sees_it(&bare("smc_loop.S"), &[]);
}

#[test]
fn the_vsyscall_page() {
    let program = bare("vsyscall.S");
    if program.native(&[]) != Some(0) {
        return cofi_test::skip("this kernel has no vsyscall page");
    }
    as_ptrace_sees_it(&program, &[]);
}

#[test]
fn a_fork_without_a_library() {
    let Some(qemu) = qemu() else { return };
    let flow = same(&qemu, &bare("flags.S"), &[]);
    assert_eq!(flow.order.len(), 2);
}

/// QEMU carries these out; the kernel may have to, and then ptrace sees an interruption.
#[test]
fn what_the_kernel_forbids() {
    let Some(qemu) = qemu() else { return };
    let flow = same(&qemu, &bare("umip.S"), &[]);
    assert_eq!(flow.main().instructions().count(), 11);
}

/// The program's own functions of a static program; the library chooses other functions for QEMU's processor.
#[test]
fn a_static_program() {
    let Some(qemu) = qemu() else { return };
    let program = exam("static.c", STATIC);
    let flow = same(&qemu, &program, &[]);
    let truth = program.same(&[]);
    let nm = Command::new("nm").arg("-nS").arg(&program.path).output();
    let nm = String::from_utf8(nm.expect("nm").stdout).expect("ASCII");
    let own: Vec<_> = nm
        .lines()
        .filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let [start, size, _, "main" | "by_value" | "checksum"] = words[..] else {
                return None;
            };
            let [start, size] = [start, size].map(|hex| u64::from_str_radix(hex, 16).ok());
            Some(start?..start? + size?)
        })
        .collect();
    assert!(own.len() >= 2, "{own:?}");
    let of_its_own = |flow: &Flow| -> Vec<u64> {
        let is_own = |ip: &u64| own.iter().any(|range| range.contains(ip));
        flow.main().instructions().filter(is_own).collect()
    };
    let (seen, truth) = (of_its_own(&flow), of_its_own(&truth));
    assert!(truth.len() > 10_000, "{}", truth.len());
    assert!(seen == truth, "{} and {}", seen.len(), truth.len());
}

#[test]
fn programs_of_the_exam() {
    let Some(qemu) = qemu() else { return };
    for source in [
        "flags.c",
        "jit_rwx.c",
        "jit_wx.c",
        "longjmp.c",
        "recursion.c",
        "rep.c",
        "signals.c",
        "smc.c",
        "stormed.c",
        "tables.c",
        "trapflag.c",
        "vdso.c",
    ] {
        eprintln!("{source}");
        same(&qemu, &exam(source, STATIC), &[]);
    }
    // AVX-512 is not QEMU's.
    known(&qemu, &exam("vectors.c", STATIC), &[]);
    same(&qemu, &exam("dynamic.c", &["-O1"]), &[]);
}

#[test]
fn threads_of_the_exam() {
    let Some(qemu) = qemu() else { return };
    // When the process ends, one has begun or has not; most often it sleeps in a system call.
    let program = exam("threads.c", STATIC);
    let (outcome, unknown, flow) = trace_under_qemu(&qemu, text(&program), &[]);
    assert_eq!(outcome, Outcome::Exited(0));
    assert!(flow.breaches.is_empty(), "{:#x?}", flow.breaches);
    assert!(
        (5..=6).contains(&flow.threads.len()),
        "{}",
        flow.threads.len()
    );
    assert!(unknown.cut <= 1 && unknown.unexplained == 0, "{unknown:?}");
}

#[test]
fn faults() {
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-faults", "signals.c", &[]);
    let flow = same(&qemu, &program, &["faults"]);
    assert!(flow.main().interruptions().len() >= 5);
}

#[test]
fn signals() {
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-signals", "signals.c", &[]);
    for name in [
        "traps",
        "nested",
        "blocked-trap",
        "masks",
        "many",
        "stopped",
        "skipping",
        "restarts",
    ] {
        eprintln!("{name}");
        same(&qemu, &program, &[name]);
    }
    // QEMU counts other steps than the processor.
    known(&qemu, &program, &["own-steps"]);
    known(&qemu, &program, &["own-steps-over-call"]);
}

#[test]
fn killed_by_a_signal() {
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-fatal", "signals.c", &[]);
    // Those that kill themselves by a system call are known to the end, and those that die of an access to memory.
    for (name, signal, cut) in [
        ("abort", 6, 0),
        ("kill", 9, 0),
        ("trap", 5, 1),
        ("segv", 11, 0),
    ] {
        let (outcome, unknown, flow) = trace_under_qemu(&qemu, text(&program), &[name]);
        assert_eq!(outcome, Outcome::Signaled(signal), "{name}");
        assert!(flow.breaches.is_empty(), "{name}: {:#x?}", flow.breaches);
        assert_eq!((unknown.cut, unknown.unexplained), (cut, 0), "{name}");
    }
}

#[test]
fn threads_that_run_at_a_time() {
    /// As in the program.
    const ROUNDS: usize = 60_000;
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-busy", "busy.c", STATIC);
    let step = program.symbol("step");
    let run = || {
        let flow = same(&qemu, &program, &[]);
        assert_eq!(flow.threads.len(), 4);
        // Each did all that it does, and nothing twice.
        for tid in &flow.order[1..] {
            assert_eq!(flow.threads[tid].count(step), ROUNDS, "thread {tid}");
        }
        flow.apart
    };
    if available_parallelism().is_ok_and(|count| count.get() > 1) {
        // A program that is slow for once has told little of each when somebody looks.
        assert!((0..20).any(|_| run() > 0), "never told of at the same time");
    } else {
        assert_eq!(run(), 0);
    }
}

#[test]
fn threads_and_processes() {
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-tasks", "tasks.c", THREADS);
    let flow = same(&qemu, &program, &["threads"]);
    assert_eq!(flow.threads.len(), 5);
    let flow = same(&qemu, &program, &["fork"]);
    let first = flow.order[0];
    assert_eq!(flow.processes.len(), 4);
    for (pid, parent, cause, _) in &flow.processes[1..] {
        assert_eq!((*parent, *cause), (Some(first), ProcessCause::Fork));
        assert!(matches!(flow.threads[pid].events[0], Event::Resume(..)));
    }
    assert_eq!(same(&qemu, &program, &["leader-exit"]).threads.len(), 2);
    // QEMU refuses.
    known(&qemu, &program, &["clone"]);
}

/// Threads that are in the middle of something when their process ends: of each the last block is unknown.
#[test]
fn threads_that_are_killed() {
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-killed", "tasks.c", THREADS);
    for (name, threads, processes) in [("exit-group", 4, 1), ("kill-child", 2, 2), ("tree", 19, 13)]
    {
        let status = program.native(&[name]).expect("exits by itself");
        let (outcome, unknown, flow) = trace_under_qemu(&qemu, text(&program), &[name]);
        assert_eq!(outcome, Outcome::Exited(status), "{name}");
        assert!(flow.breaches.is_empty(), "{name}: {:#x?}", flow.breaches);
        assert!(flow.all().all(|thread| thread.ended), "{name}");
        assert!(flow.threads.len() <= threads, "{name}: {flow:?}");
        assert_eq!(flow.processes.len(), processes, "{name}");
        // How many, is a matter of the moment.
        assert!((unknown.cut as usize) < threads, "{name}: {unknown:?}");
        assert_eq!((unknown.unexplained, unknown.escaped), (0, 0), "{name}");
    }
}

/// Even of a program that is over before anyone has looked, the file is known that its code is of.
#[test]
fn files_of_short_programs() {
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-short", "counts.S", BARE);
    for _ in 0..10 {
        let flow = known(&qemu, &program, &[]);
        assert_eq!(flow.saved, []);
        let [(_, mapping)] = &flow.mappings[..] else {
            panic!("{:?}", flow.mappings);
        };
        assert_eq!(
            mapping.path,
            program.path.canonicalize().expect("it exists")
        );
        assert!((mapping.start..mapping.end).contains(&program.symbol("_start")));
    }
}

/// Values of N in the saved code `mov $N, %eax; ret`, in order.
fn saved_values(flow: &Flow) -> Vec<u8> {
    let saved = flow.saved.iter().map(|(_, _, bytes)| bytes.as_slice());
    let mut values: Vec<u8> = saved
        .filter_map(|bytes| match bytes {
            [0xb8, value, 0, 0, 0, 0xc3] => Some(*value),
            _ => None,
        })
        .collect();
    values.dedup();
    values
}

#[test]
fn generated_code() {
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-jit", "jit.c", &[]);
    let flow = same(&qemu, &program, &["rwx"]);
    // It lies across two pages, so in two blocks.
    assert!(flow.saved.len() >= 5, "{:x?}", flow.saved);
    let flow = same(&qemu, &program, &["toggled"]);
    assert_eq!(saved_values(&flow), [1, 2, 3, 4]);
    let flow = same(&qemu, &program, &["private-memfd"]);
    assert_eq!(saved_values(&flow), [31]);
    let flow = same(&qemu, &program, &["modified"]);
    assert_eq!(saved_values(&flow), [50]);
    // QEMU does not notice what is written through another mapping; what it ran is told, and that it may be the older code.
    let (mut unknown, flow) = follow(&qemu, &program, &["twice"]);
    assert_eq!(std::mem::take(&mut unknown.shared_code), 1);
    assert_eq!(unknown, Unknown::default());
    assert_eq!(saved_values(&flow), [1]);
}

#[test]
fn what_qemu_does_in_steps_of_its_own() {
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-stepped-over", "stepped_over.c", THREADS);
    let flow = same(&qemu, &program, &["unaligned"]);
    assert_eq!(flow.threads.len(), 4);
    same(&qemu, &program, &["patched"]);
    same(&qemu, &program, &["closed"]);
}

#[test]
fn two_signals_at_once() {
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-pairs", "stepped_over.c", THREADS);
    same(&qemu, &program, &["pairs"]);
}

/// A function that ran before it became a handler: QEMU has translated it, and does not tell when a signal calls it. The
/// flow is continuous nevertheless, and what is not known is told.
#[test]
fn a_handler_that_was_called_before() {
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-called", "stepped_over.c", THREADS);
    let (unknown, flow) = follow(&qemu, &program, &["handler-called"]);
    assert_eq!(unknown.unexplained, 0);
    assert!(!flow.main().events.is_empty());
    let (unknown, _) = follow(&qemu, &program, &["handler-called-timer"]);
    assert!(unknown.unexplained <= 20, "{unknown:?}");
}

#[test]
fn many_threads() {
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-many-threads", "stepped_over.c", THREADS);
    assert_eq!(same(&qemu, &program, &["many-threads"]).threads.len(), 301);
    let (unknown, flow) = follow(&qemu, &program, &["rolling-threads"]);
    assert_eq!(flow.threads.len(), 1101);
    assert_eq!((unknown.unexplained, unknown.untraced), (0, 0));
}

/// What `exec` starts runs under QEMU too.
#[test]
fn exec_is_followed() {
    let Some(qemu) = qemu() else { return };
    let program = Program::build("qemu-exec", "tasks.c", THREADS);
    for name in ["exec", "vfork"] {
        let (unknown, flow) = follow(&qemu, &program, &[name]);
        assert_eq!((unknown.escaped, unknown.unexplained), (0, 0), "{name}");
        let last = flow.processes.last().expect("a process");
        assert_eq!(last.2, ProcessCause::Exec, "{name}: {:?}", flow.processes);
    }
}
