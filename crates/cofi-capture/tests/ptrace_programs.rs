//! Programs in C which behave the same whether they are traced or not, and whose flow is continuous.

mod common;

use cofi_capture::ProcessCause;
use cofi_capture::ptrace::Outcome;
use common::{Event, Program, trace};

fn signals(name: &str) -> common::Flow {
    Program::build(&format!("signals-{name}"), "signals.c", &[]).same(&[name])
}

#[test]
fn faults() {
    let flow = signals("faults");
    assert!(flow.main().interruptions().len() >= 5);
}

#[test]
fn traps() {
    signals("traps");
}

#[test]
fn int1() {
    let program = Program::build("signals-int1", "signals.c", &[]);
    if program.native(&["int1"]).is_none() {
        // KVM on AMD: the exception comes back to INT1 itself, traced or not.
        return cofi_test::skip("on this machine INT1 never ends, without Cofi too");
    }
    program.same(&["int1"]);
}

#[test]
fn a_program_that_steps_itself() {
    signals("own-steps");
    signals("own-steps-over-call");
}

#[test]
fn interrupted_system_calls() {
    signals("restarts");
}

#[test]
fn nested_handlers_on_their_own_stack() {
    signals("nested");
}

#[test]
fn sigtrap_blocked_and_ignored() {
    signals("blocked-trap");
    signals("masks");
}

#[test]
fn many_signals() {
    signals("many");
}

#[test]
fn signals_before_popf() {
    signals("popfs");
}

#[test]
fn job_control() {
    signals("stopped");
}

#[test]
fn a_handler_that_moves_the_instruction_pointer() {
    signals("skipping");
}

#[test]
fn killed_by_a_signal() {
    let program = Program::build("signals-fatal", "signals.c", &[]);
    for (name, signal) in [("abort", 6), ("trap", 5), ("segv", 11), ("kill", 9)] {
        let (outcome, flow) = program.trace(&[name]);
        assert_eq!(outcome, Outcome::Signaled(signal), "{name}");
        flow.check();
    }
}

fn tasks(name: &str) -> common::Flow {
    Program::build(&format!("tasks-{name}"), "tasks.c", &[]).same(&[name])
}

#[test]
fn threads() {
    let flow = tasks("threads");
    assert_eq!(flow.threads.len(), 5);
    assert!(flow.all().all(|thread| thread.pid == flow.order[0]));
    assert_eq!(flow.names.iter().filter(|name| *name == "adder").count(), 4);
}

#[test]
fn forks() {
    let flow = tasks("fork");
    assert_eq!(flow.processes.len(), 4);
    let first = flow.order[0];
    for (pid, parent, cause, _) in &flow.processes[1..] {
        assert_eq!((*parent, *cause), (Some(first), ProcessCause::Fork));
        // A child goes on where the fork returns.
        assert!(matches!(flow.threads[pid].events[0], Event::Resume(..)));
    }
}

#[test]
fn vfork_and_exec() {
    let flow = tasks("vfork");
    let causes: Vec<_> = flow.processes.iter().map(|p| p.2).collect();
    assert_eq!(
        causes,
        [ProcessCause::Launch, ProcessCause::Fork, ProcessCause::Exec]
    );
}

#[test]
fn clone_with_shared_memory() {
    assert_eq!(tasks("clone").processes.len(), 2);
}

#[test]
fn exec_replaces_the_program() {
    let flow = tasks("exec");
    assert_eq!(flow.processes.len(), 2);
    assert_eq!(flow.processes[1].2, ProcessCause::Exec);
    assert_eq!(flow.processes[1].0, flow.processes[0].0);
}

#[test]
fn exec_from_another_thread() {
    let flow = tasks("thread-exec");
    assert_eq!(flow.threads.len(), 4);
    assert_eq!(flow.processes.len(), 2);
}

#[test]
fn exit_group_ends_all_threads() {
    assert_eq!(tasks("exit-group").threads.len(), 4);
}

#[test]
fn the_first_thread_ends_first() {
    tasks("leader-exit");
}

#[test]
fn a_child_is_killed() {
    tasks("kill-child");
}

#[test]
fn many_short_processes() {
    assert_eq!(tasks("tree").processes.len(), 13);
}

#[test]
fn a_daemon_is_left_alone() {
    let program = Program::build("tasks-daemon", "tasks.c", &[]);
    let (outcome, flow) = program.trace(&["daemon"]);
    assert_eq!(outcome, Outcome::Exited(5));
    flow.check();
    // It never ends by itself: nobody waited for it.
    assert_eq!(flow.processes.len(), 2);
    let daemon = nix::unistd::Pid::from_raw(flow.processes[1].0 as i32);
    let status = std::fs::read_to_string(format!("/proc/{daemon}/status")).expect("it lives");
    assert!(status.contains("TracerPid:\t0\n"), "{status}");
    nix::sys::signal::kill(daemon, nix::sys::signal::Signal::SIGKILL).expect("it lives");
}

fn jit(name: &str) -> common::Flow {
    Program::build(&format!("jit-{name}"), "jit.c", &[]).same(&[name])
}

/// Values of N of which `mov $N, %eax; ret` was saved, in order, without repetition.
fn saved_values(flow: &common::Flow) -> Vec<u8> {
    let mut values = Vec::new();
    let mut open = None;
    for (_, start, bytes) in &flow.saved {
        if let Some(at) = bytes
            .windows(6)
            .position(|w| w[0] == 0xb8 && w[2..] == [0, 0, 0, 0xc3])
        {
            values.push(bytes[at + 1]);
        }
        // The function's first three bytes stand at the end of one page.
        if bytes.len() == 4096 && bytes[4093] == 0xb8 {
            open = Some((*start, bytes[4094]));
        }
        if let Some((page, value)) = open
            && *start == page + 4096
        {
            values.push(value);
            open = None;
        }
    }
    values.dedup();
    values
}

#[test]
fn generated_code_across_pages() {
    let flow = jit("rwx");
    let first: Vec<u8> = flow
        .saved
        .iter()
        .filter(|s| s.2.len() == 4096 && s.2[4093] == 0xb8)
        .map(|s| s.2[4094])
        .collect();
    assert_eq!(first, [1, 2, 3, 4, 5]);
}

#[test]
fn generated_code_made_read_only() {
    assert_eq!(saved_values(&jit("toggled")), [1, 2, 3, 4]);
}

#[test]
fn generated_code_through_another_mapping() {
    assert_eq!(saved_values(&jit("twice")), [1, 2, 3, 4, 5]);
}

#[test]
fn code_in_a_private_memory_file() {
    assert_eq!(saved_values(&jit("private-memfd")), [31]);
}

#[test]
fn a_page_of_the_program_is_changed() {
    let values = saved_values(&jit("modified"));
    assert_eq!(values.last(), Some(&50), "{values:?}");
}

#[test]
fn a_deleted_program() {
    let program = Program::build("jit-deleted", "jit.c", &[]);
    let copy = program.path.with_file_name("jit-deleted-copy");
    std::fs::copy(&program.path, &copy).expect("a copy");
    let path = copy.to_str().expect("UTF-8");
    let (outcome, flow) = trace(path, &["deleted", path]);
    assert_eq!(outcome, Outcome::Exited(12));
    flow.check();
    assert!(!copy.exists());
}

#[test]
fn a_32_bit_program() {
    for (name, flags) in [
        ("signals-32", &["-m32"][..]),
        ("signals-32-static", &["-m32", "-static"]),
    ] {
        let Some(program) = Program::try_build(name, "signals32.c", flags) else {
            continue;
        };
        let flow = program.same(&[]);
        assert!(flow.total() > 100);
    }
}
