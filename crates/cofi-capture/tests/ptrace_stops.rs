//! Stops at branches tell what stops at every instruction tell.

mod common;

use cofi_capture::ptrace::{BreakpointStop, Outcome, Stops, breakpoint_stop};
use common::{BARE, Event, Flow, Program, exam_source, trace_by};
use nix::sys::personality::{self, Persona};
use std::sync::LazyLock;

/// Addresses are the same in each run: what a program does may depend on them.
fn without_randomisation() {
    let persona = personality::get().expect("Linux");
    personality::set(persona | Persona::ADDR_NO_RANDOMIZE).expect("allowed");
}

/// What all threads did, in the order in which they began, without interruptions after which a thread goes on where it was: when the
/// SIGCHLD of a child comes, which its parent ignores, is chance.
fn events(flow: &Flow) -> Vec<Vec<Event>> {
    let of_thread = |tid| {
        let mut kept: Vec<Event> = Vec::new();
        for event in &flow.threads[tid].events {
            match (kept.last(), event) {
                (Some(Event::Async(from)), Event::Resume(to, _)) if from == to => {
                    kept.pop();
                }
                _ => kept.push(*event),
            }
        }
        kept
    };
    flow.order.iter().map(of_thread).collect()
}

/// Executes a program with an empty environment. A C library goes through each variable as it starts, for each of its own settings: of
/// 53,000 instructions that a short program has with cargo's variables, 42,000 are that, and each is a stop.
static ALONE: LazyLock<Program> = LazyLock::new(|| {
    // Where no other program is: the tests count addresses.
    let flags = [BARE, &["-Wl,-Ttext-segment=0x10000000"]].concat();
    Program::build("stops-alone", "alone.S", &flags)
});

/// Traces it both ways and expects the same of each, event by event. The flow by stops at branches comes first.
fn both(path: &str, args: &[&str]) -> (Flow, Flow) {
    without_randomisation();
    let words = [&[path], args].concat();
    let alone = ALONE.path.to_str().expect("UTF-8");
    let (outcome, flow) = trace_by(Stops::Branches, alone, &words);
    let (wanted_outcome, wanted) = trace_by(Stops::Instructions, alone, &words);
    flow.check();
    wanted.check();
    assert_eq!(outcome, wanted_outcome, "{path} {args:?}");
    assert_eq!(flow.order.len(), wanted.order.len(), "{path} {args:?}");
    let threads = events(&flow).into_iter().zip(events(&wanted));
    for (number, (got, wanted)) in threads.enumerate() {
        let differs = got.iter().zip(&wanted).position(|(a, b)| a != b);
        if let Some(at) = differs {
            let from = at.saturating_sub(5);
            let part =
                |events: &[Event]| format!("{:x?}", &events[from..(at + 5).min(events.len())]);
            panic!(
                "{path} {args:?}, thread {number}, event {at}: {}, should be {}",
                part(&got),
                part(&wanted)
            );
        }
        assert_eq!(got.len(), wanted.len(), "{path} {args:?}, thread {number}");
    }
    assert_ne!(outcome, Outcome::Exited(127), "{path} cannot be executed");
    (flow, wanted)
}

fn same(program: &Program, args: &[&str]) -> Flow {
    both(program.path.to_str().expect("UTF-8"), args).0
}

const FIXED: &[&str] = &["-static", "-no-pie", "-pthread"];

#[test]
fn debug_registers_work_here() {
    // Without them the other tests of this file say nothing, so it is to be seen.
    let found = breakpoint_stop().expect("a child can be traced");
    if found != BreakpointStop::Works {
        cofi_test::skip(format_args!("breakpoints are {found:?} on this machine"));
    }
}

#[test]
fn ways_that_divide_and_join() {
    let program = Program::build("stops-ways", "ways.S", BARE);
    let flow = same(&program, &[]);
    for (symbol, times) in [
        ("back", 300),
        ("odd", 150),
        ("self_loop", 900),
        ("tight", 600),
        ("inner", 1800),
        ("twice", 900),
        ("last", 1),
    ] {
        assert_eq!(flow.main().count(program.symbol(symbol)), times, "{symbol}");
    }
}

#[test]
fn bare_programs() {
    for source in [
        "counts.S",
        "flags.S",
        "shadow.S",
        "smc.S",
        "umip.S",
        "vsyscall.S",
    ] {
        let name = format!("stops-{}", source.trim_end_matches(".S"));
        same(&Program::build(&name, source, BARE), &[]);
    }
    for source in ["branches.S", "far.S"] {
        let name = format!("stops-{}", source.trim_end_matches(".S"));
        same(&Program::exam(&name, source, BARE), &[]);
    }
}

#[test]
fn both_modes_and_32_bits() {
    same(
        &Program::build("stops-modes", "modes.S", &[BARE, &["-no-pie"]].concat()),
        &[],
    );
    let flags = [BARE, &["-m32", "-no-pie"]].concat();
    if let Some(program) = Program::try_build("stops-int80", &exam_source("m32_int80.S"), &flags) {
        same(&program, &[]);
    }
    let flags = ["-m32", "-static", "-no-pie"];
    if let Some(program) = Program::try_build("stops-32-plain", "plain.c", &flags) {
        same(&program, &[]);
    }
}

#[test]
fn faults_traps_and_handlers() {
    let program = Program::build("stops-signals", "signals.c", FIXED);
    for name in [
        "faults",
        "traps",
        "own-steps",
        "own-steps-over-call",
        "nested",
        "masks",
        "skipping",
        "abort",
        "trap",
        "segv",
        "kill",
    ] {
        same(&program, &[name]);
    }
}

#[test]
fn generated_and_changing_code() {
    let program = Program::build("stops-jit", "jit.c", FIXED);
    for name in ["rwx", "toggled", "twice", "private-memfd", "modified"] {
        let (flow, wanted) = both(program.path.to_str().expect("UTF-8"), &[name]);
        let saved = |flow: &Flow| {
            flow.saved
                .iter()
                .map(|s| (s.1, s.2.clone()))
                .collect::<Vec<_>>()
        };
        assert!(
            saved(&flow) == saved(&wanted),
            "{name}: other code was saved"
        );
    }
    for source in ["smc.c", "jit_rwx.c", "jit_wx.c"] {
        let name = format!("stops-{}", source.trim_end_matches(".c"));
        same(&Program::exam(&name, source, FIXED), &[]);
    }
}

#[test]
fn ordinary_programs() {
    for source in [
        "longjmp.c",
        "recursion.c",
        "tables.c",
        "flags.c",
        "trapflag.c",
        "vectors.c",
    ] {
        let name = format!("stops-{}", source.trim_end_matches(".c"));
        same(&Program::exam(&name, source, FIXED), &[]);
    }
    same(&Program::build("stops-plain", "plain.c", &[]), &[]);
    both("/bin/true", &[]);
}

#[test]
fn processes_and_programs() {
    let program = Program::build("stops-tasks", "tasks.c", FIXED);
    for name in ["vfork", "exec"] {
        same(&program, &[name]);
    }
}

/// Signals come when they like; how often the loops run does not change.
#[test]
fn loops_under_a_storm_of_signals() {
    let program = Program::build("stops-stormed", "stormed_loops.c", FIXED);
    for _ in 0..5 {
        let flow = program.same(&[]);
        assert!(!flow.main().interruptions().is_empty());
        for (symbol, times) in [
            ("one_instruction", 3000),
            ("two_instructions", 3000),
            ("many_instructions", 1000),
            ("every_other", 500),
            ("copies", 500),
        ] {
            assert_eq!(flow.main().count(program.symbol(symbol)), times, "{symbol}");
        }
    }
}

/// The kernel moves a thread out of a restartable sequence in which it was stopped: no code explains where it goes on.
#[test]
fn a_thread_that_the_kernel_moves() {
    let program = Program::build("stops-restartable", "restartable.c", &["-no-pie"]);
    if program.native(&[]) == Some(3) {
        return cofi_test::skip("this kernel or C library has no restartable sequences");
    }
    program.same(&[]);
}
