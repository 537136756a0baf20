//! Ctrl-C while a trace is read.

mod common;

use cofi_test::wait_until;
use common::{Scratch, cofi, run};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use std::io::Read;
use std::process::{Child, Stdio};

fn interrupt(child: &Child) {
    let pid = child.id();
    let waits = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & 1 << (Signal::SIGINT as i32 - 1) != 0)
    };
    wait_until("it waits for SIGINT", waits);
    kill(Pid::from_raw(pid as i32), Signal::SIGINT).expect("a signal");
}

/// Waits until the command knows that it is to end: its thread for signals sleeps between two tries to get between two lines, or it has ended.
fn wait_for_the_last_line(child: &Child) {
    let pid = child.id();
    let tasks = format!("/proc/{pid}/task");
    let sleeps = || {
        let tasks = std::fs::read_dir(&tasks).expect("threads").flatten();
        let read = |task: &std::fs::DirEntry, name: &str| {
            std::fs::read_to_string(task.path().join(name)).unwrap_or_default()
        };
        let mut signals = tasks.filter(|task| read(task, "comm").trim() == "signals");
        let sleep = format!("{} ", nix::libc::SYS_clock_nanosleep);
        let tries = signals.any(|task| read(&task, "syscall").starts_with(&sleep));
        tries || cofi_test::thread_state(pid) == Some('Z')
    };
    wait_until("it is about to end", sleeps);
}

/// Whatever it is about to do: here it waits for a trace that does not come.
#[test]
fn commands_that_print_nothing_yet_end_at_once() {
    let scratch = Scratch::new();
    let path = scratch.path("fifo");
    mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
    for command in ["report", "check", "insn", "blocks", "events", "dump"] {
        let child = cofi()
            .arg(command)
            .arg(&path)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        interrupt(&child);
        let ran = common::wait(child);
        assert_eq!(ran.code(), 130, "{command}: {}", ran.stderr);
        assert_eq!(
            (ran.stdout.len(), ran.stderr.as_str()),
            (0, ""),
            "{command}"
        );
    }
}

#[test]
fn what_was_printed_is_whole_lines() {
    let scratch = Scratch::new();
    // Far more lines than a pipe takes up.
    let text = "psb\npsbend\ntip.pge 0x401000\ntip.pgd -\n".repeat(20_000);
    let (text, packets) = (
        scratch.write("packets.txt", text),
        scratch.path("packets.pt"),
    );
    let made = run(cofi().arg("asm").arg(&text).arg("-o").arg(&packets));
    assert_eq!(made.code(), 0, "{}", made.stderr);
    for options in [
        &["events", "-j1"][..],
        &["events", "-j2", "--json"],
        &["insn", "-j1"],
        &["blocks", "-j1", "--json"],
        &["dump"],
    ] {
        let mut command = cofi();
        command.args(options).args(["--format", "pt"]).arg(&packets);
        let whole = run(&mut command).stdout;
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = vec![0; 100];
        let out = child.stdout.as_mut().unwrap();
        out.read_exact(&mut printed).unwrap();
        // It waits for somebody to read more, now or soon.
        interrupt(&child);
        wait_for_the_last_line(&child);
        let ran = common::wait(child);
        printed.extend_from_slice(&ran.stdout);
        assert_eq!(ran.code(), 130, "{options:?}: {}", ran.stderr);
        assert!(printed.ends_with(b"\n"), "{options:?}");
        assert!(whole.starts_with(&printed), "{options:?}");
        assert!(printed.len() < whole.len(), "{options:?}");
    }
}
