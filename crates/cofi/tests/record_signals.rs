//! Signals to `cofi record`, and to the program under it: the program decides, and the file is whole.

mod common;

use common::{Ran, Scratch, cofi, run, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

/// Tells its number, and waits. Asked to end, it says so and ends with status 3; with an argument it does not listen: `deaf`
/// ignores the signals, and of `busy` the number is that of a child that is at work, whose end becomes its own.
const PROGRAM: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static void on_signal(int signal) { if (write(1, "got\n", 4)) _exit(3); }
int main(int argc, char **argv) {
    for (int signal = 1; signal <= 15; signal += 14)
        if (argc == 1) { struct sigaction a = { .sa_handler = on_signal }; sigaction(signal, &a, 0); }
        else if (!strcmp(argv[1], "deaf")) sigaction(signal, &(struct sigaction){ .sa_handler = SIG_IGN }, 0);
    // Who waits for our end does not wait for the end of standard error.
    close(2);
    pid_t pid = getpid();
    if (argc > 1 && !strcmp(argv[1], "busy")) {
        volatile unsigned *count = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pid = fork();
        if (pid == 0)
            while (++*count) {}
        while (*count < 1000) usleep(1000);
    }
    printf("%d\n", pid);
    fflush(stdout);
    if (pid != getpid()) {
        int status;
        waitpid(pid, &status, 0);
        return 128 + WTERMSIG(status);
    }
    for (;;) pause();
}
"#;

/// The engines that there are here; without QEMU a part of the test is skipped.
#[track_caller]
fn engines() -> Vec<&'static str> {
    if common::has_qemu() {
        vec!["ptrace", "qemu"]
    } else {
        vec!["ptrace"]
    }
}

/// A recording under way: `cofi` and the program have begun.
struct Recording {
    cofi: std::process::Child,
    /// The program's output.
    lines: BufReader<ChildStdout>,
    program: Pid,
}

impl Recording {
    fn begin(engine: &str, program: &Path, args: &[&str], data: &Path) -> Self {
        // What whoever runs the tests ignores, as nohup does, cofi would rightly ignore too.
        let mut command = Command::new("env");
        command
            .arg("--default-signal=HUP,TERM")
            .arg(env!("CARGO_BIN_EXE_cofi"))
            .args(["record", "--verify", "--engine", engine, "-o"])
            .arg(data);
        command.arg("--").arg(program).args(args);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut cofi = command.spawn().expect("starting cofi");
        let mut lines = BufReader::new(cofi.stdout.take().expect("a pipe"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        let program = Pid::from_raw(line.trim().parse().expect("a number"));
        Self {
            cofi,
            lines,
            program,
        }
    }

    fn signal_cofi(&self, signal: Signal) {
        kill(Pid::from_raw(self.cofi.id() as i32), signal).expect("cofi runs");
    }

    /// The end, and the program's last words.
    fn end(self) -> (Ran, String) {
        let Self {
            cofi, mut lines, ..
        } = self;
        let ran = wait(cofi);
        let mut words = String::new();
        if ran.code() == 3 {
            lines.read_line(&mut words).expect("words");
        }
        (ran, words)
    }
}

fn program(scratch: &Scratch) -> Option<std::path::PathBuf> {
    let source = scratch.write("listens.c", PROGRAM);
    scratch.compile(&source, &["-static", "-O1"])
}

fn assert_readable(data: &Path) {
    for command in ["report", "insn"] {
        let ran = run(cofi().arg(command).arg(data));
        assert_eq!(ran.code(), 0, "{command}: {}", ran.stderr);
        assert!(!ran.stdout.is_empty());
    }
}

#[test]
fn who_ends_cofi_ends_the_program_and_the_file_is_whole() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    for engine in engines() {
        for signal in [Signal::SIGTERM, Signal::SIGHUP] {
            let data = scratch.path("data");
            let recording = Recording::begin(engine, &program, &[], &data);
            recording.signal_cofi(signal);
            let (ran, words) = recording.end();
            assert_eq!(
                (ran.code(), words.as_str()),
                (3, "got\n"),
                "{engine}: {}",
                ran.stderr
            );
            assert!(ran.stderr.contains("verified"), "{engine}: {}", ran.stderr);
            assert_readable(&data);
        }
    }
}

#[test]
fn asked_twice_it_leaves_the_program_alone() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    for engine in engines() {
        let data = scratch.path("data");
        let recording = Recording::begin(engine, &program, &["deaf"], &data);
        let deaf = recording.program;
        recording.signal_cofi(Signal::SIGTERM);
        // Another one, for two of the same may become one.
        recording.signal_cofi(Signal::SIGHUP);
        let (ran, _) = recording.end();
        assert_eq!(ran.code(), 0, "{engine}: {}", ran.stderr);
        assert!(ran.stderr.contains("verified"), "{engine}: {}", ran.stderr);
        kill(deaf, Signal::SIGKILL).expect("it runs on");
        assert_readable(&data);
    }
}

#[test]
fn a_program_that_is_killed() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    for engine in engines() {
        for (args, signal) in [
            (&["deaf"][..], Signal::SIGKILL),
            (&["busy"], Signal::SIGKILL),
            (&["busy"], Signal::SIGTERM),
        ] {
            let data = scratch.path("data");
            let recording = Recording::begin(engine, &program, args, &data);
            kill(recording.program, signal).expect("it runs");
            let (ran, _) = recording.end();
            let status = 128 + signal as i32;
            assert_eq!(ran.code(), status, "{engine} {args:?}: {}", ran.stderr);
            assert!(ran.stderr.contains("verified"), "{engine}: {}", ran.stderr);
            // In its work, not in a system call: where it was is not known.
            if engine == "qemu" && args == ["busy"] {
                assert!(
                    ran.stderr
                        .contains(": it was killed: the block that it was in is not in the trace"),
                    "{}",
                    ran.stderr
                );
            }
            assert_readable(&data);
        }
    }
}
