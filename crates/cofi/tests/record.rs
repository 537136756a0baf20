//! `cofi record` on real programs: what it decodes is what ran, and the program notices nothing.

mod common;

use common::{ASM, ASM_32, DYNAMIC, STATIC, Scratch, addresses, cofi, json, record, run, run_with};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Records one of the exam's programs in a configuration; its status and output must be those of a run of its own.
fn verified(file: &str, flags: &[&str], config: Option<&str>) {
    verified_with(file, flags, &[], config);
}

/// As [`verified`], of a program with arguments.
fn verified_with(file: &str, flags: &[&str], args: &[&str], config: Option<&str>) {
    let scratch = Scratch::new();
    let Some(program) = scratch.program(file, flags) else {
        return;
    };
    let alone = run(Command::new(&program).args(args));
    let data = scratch.path("data");
    let traced = run(record(&data, config).arg("--").arg(&program).args(args));
    assert_eq!(traced.code(), alone.code(), "{file}: {}", traced.stderr);
    assert!(
        traced.stderr.contains("verified"),
        "{file}: {}",
        traced.stderr
    );
    assert_eq!(traced.text(), alone.text(), "{file}");
}

#[test]
fn static_program() {
    verified("static.c", STATIC, None);
}

#[test]
fn dynamic_program() {
    verified("dynamic.c", DYNAMIC, None);
}

#[test]
fn threads() {
    verified("threads.c", STATIC, None);
}

#[test]
fn signals() {
    verified("signals.c", STATIC, None);
}

#[test]
fn processes() {
    verified("processes.c", STATIC, None);
}

#[test]
fn generated_code() {
    verified("jit_wx.c", STATIC, None);
    verified("jit_rwx.c", STATIC, None);
}

#[test]
fn code_that_rewrites_itself() {
    verified("smc.c", STATIC, None);
}

#[test]
fn code_that_another_thread_changes() {
    for what in ["turns", "running", "remapping", "forks", "text"] {
        let rounds = if what == "running" { "300" } else { "16" };
        verified_with("patched.c", DYNAMIC, &[what, rounds], None);
    }
}

#[test]
fn repeated_string_instructions() {
    verified("rep.c", STATIC, None);
}

#[test]
fn the_tracer_cannot_be_seen_in_the_flags() {
    verified("flags.c", STATIC, None);
}

#[test]
fn call_stacks() {
    verified("recursion.c", STATIC, None);
    verified("longjmp.c", STATIC, None);
}

#[test]
fn every_branch() {
    verified("branches.S", ASM, None);
    verified("far.S", ASM, None);
    verified("m32_int80.S", ASM_32, None);
}

#[test]
fn without_return_compression() {
    verified("branches.S", ASM, Some("noretcomp"));
    verified("far.S", ASM, Some("noretcomp"));
    verified("recursion.c", STATIC, Some("noretcomp"));
}

#[test]
fn with_all_times() {
    verified("branches.S", ASM, Some("tsc,mtc,cyc"));
    verified("signals.c", STATIC, Some("tsc,mtc,cyc"));
}

#[test]
fn with_many_psbs() {
    verified("recursion.c", STATIC, Some("psb_period=0"));
    verified("smc.c", STATIC, Some("psb_period=0"));
}

#[test]
fn without_times() {
    verified("branches.S", ASM, Some("tsc=0,mtc=0"));
    verified("jit_rwx.c", STATIC, Some("tsc=0,mtc=0"));
}

#[test]
fn the_list_of_addresses_is_what_decodes() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("branches.S", ASM) else {
        return;
    };
    let (data, raw, truth) = (
        scratch.path("data"),
        scratch.path("raw"),
        scratch.path("truth"),
    );
    let traced = run(record(&data, None)
        .arg("--raw-output")
        .arg(&raw)
        .arg("--truth")
        .arg(&truth)
        .arg("--")
        .arg(&program));
    assert_eq!(traced.code(), 42, "{}", traced.stderr);

    let text = std::fs::read_to_string(&truth).expect("the list");
    let listed: Vec<u64> = text
        .lines()
        .map(|line| {
            let (tid, ip) = line.split_once(" 0x").expect("TID 0xADDRESS");
            tid.parse::<u32>().expect("a number");
            u64::from_str_radix(ip, 16).expect("an address")
        })
        .collect();
    // 5 rounds of LOOP and the like: known by reading the program.
    assert!(listed.len() > 60, "{} addresses", listed.len());

    let from_data = run(&mut json("insn", &[], &data));
    assert_eq!(from_data.code(), 0, "{}", from_data.stderr);
    assert_eq!(addresses(&from_data.stdout), listed);

    let elf = [
        OsStr::new("--elf"),
        program.as_os_str(),
        OsStr::new("--format"),
        OsStr::new("pt"),
    ];
    let from_raw = run(&mut json("insn", &elf, &raw));
    assert_eq!(from_raw.code(), 0, "{}", from_raw.stderr);
    assert_eq!(addresses(&from_raw.stdout), listed);
}

#[test]
fn streams_pass_through() {
    let scratch = Scratch::new();
    let input = b"one\n\0two\xff\nno newline at the end";
    let traced = run_with(
        record(&scratch.path("data"), None).args(["--", "cat"]),
        input,
    );
    assert_eq!(traced.code(), 0, "{}", traced.stderr);
    assert_eq!(traced.stdout, input);
    assert!(traced.stderr.contains("verified"), "{}", traced.stderr);
}

#[test]
fn status_passes_through() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    for (script, status) in [
        ("exit 7", 7),
        ("kill -TERM $$", 143),
        ("echo told >&2; exit 255", 255),
    ] {
        let traced = run(cofi()
            .args(["record", "-o"])
            .arg(&data)
            .args(["--", "sh", "-c", script]));
        assert_eq!(traced.code(), status, "{script}: {}", traced.stderr);
        assert_eq!(
            traced.stderr.contains("told\n"),
            script.contains("told"),
            "{}",
            traced.stderr
        );
    }
    let Some(program) = scratch.program("killed.c", STATIC) else {
        return;
    };
    let traced = run(record(&data, None).arg("--").arg(program));
    assert_eq!(traced.code(), 139, "{}", traced.stderr);
    assert!(traced.stderr.contains("verified"), "{}", traced.stderr);
}

/// Wrong usage: status 2 and one sentence that names what is wrong.
fn refused(command: &mut Command, about: &str) {
    let ran = run(command);
    assert_eq!(ran.code(), 2, "{command:?}: {}", ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    assert_eq!(
        ran.stderr.trim_end().lines().count(),
        1,
        "{command:?}: {}",
        ran.stderr
    );
    assert!(ran.stderr.contains(about), "{command:?}: {}", ran.stderr);
    assert!(ran.stdout.is_empty());
}

#[test]
fn what_cannot_run_is_refused() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let plain = scratch.write("plain", "no program");
    let record = || record(&data, None);
    refused(
        record().args(["--", "/no/such/program"]),
        "/no/such/program",
    );
    refused(record().args(["--", "no-such-program-in-path"]), "no-such");
    refused(record().args(["--", "/"]), "/");
    refused(record().arg("--").arg(&plain), "plain");
    refused(record().args(["-p", "999999999"]), "999999999");
    refused(
        cofi().args(["record", "-o", "/no/such/folder/file", "--", "true"]),
        "/no/such/folder/file",
    );
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    for (config, about) in [
        ("nonsense", "nonsense"),
        ("tsc,nonsense=3", "nonsense"),
        ("mtc_period=16", "mtc_period"),
        ("psb_period=x", "psb_period"),
        ("ptw", "--config"),
    ] {
        refused(record(&data, Some(config)).args(["--", "true"]), about);
    }
    let nothing = run(cofi().arg("record"));
    assert_eq!(nothing.code(), 2);
    assert!(nothing.stderr.contains("PROGRAM"), "{}", nothing.stderr);
}

/// Counts for ever; tells the count when asked by SIGUSR1. Anyone may trace it. The loop has a conditional branch: a
/// trace does not tell how often a loop of nothing but direct jumps went round.
const COUNTER: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
static volatile unsigned long count, over;
static void tell(int number)
{
    char text[32];
    int size = snprintf(text, sizeof text, "%lu\n", count);
    (void)number;
    if (write(1, text, size) != size)
        _exit(1);
}
int main(void)
{
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    signal(SIGUSR1, tell);
    tell(0);
    while (!over)
        count++;
    return 0;
}
"#;

/// A running counter; killed in the end.
struct Counter {
    child: Child,
    told: BufReader<std::process::ChildStdout>,
}

impl Counter {
    fn start(scratch: &Scratch) -> Option<Self> {
        let source = scratch.write("counter.c", COUNTER);
        let program = scratch.compile(&source, DYNAMIC)?;
        let mut child = Command::new(program)
            .stdout(Stdio::piped())
            .spawn()
            .expect("starting the counter");
        let told = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut counter = Self { child, told };
        assert_eq!(counter.line(), 0);
        Some(counter)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    fn line(&mut self) -> u64 {
        let mut line = String::new();
        self.told
            .read_line(&mut line)
            .expect("reading from the counter");
        line.trim().parse().expect("a count")
    }

    /// Nobody traces it, it handles signals, and it counts on.
    fn is_well(&mut self) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))
            .expect("the counter lives");
        assert!(status.contains("TracerPid:\t0\n"), "{status}");
        let mut count = || {
            kill(self.pid(), Signal::SIGUSR1).expect("asking the counter");
            self.line()
        };
        let begun = count();
        cofi_test::wait_until("it counts on", || count() > begun);
        assert!(self.child.try_wait().expect("its state").is_none());
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn attach(counter: &Counter, data: &Path) -> Command {
    let mut command = record(data, None);
    command.arg("-p").arg(counter.pid().to_string());
    command
}

#[test]
fn attached_for_a_while() {
    let scratch = Scratch::new();
    let Some(mut counter) = Counter::start(&scratch) else {
        return;
    };
    let data = scratch.path("data");
    // Longer and longer: on a busy machine nothing may run for a while.
    let mut duration = 0.3;
    loop {
        let text = format!("{duration}");
        let traced = run(attach(&counter, &data).args(["--duration", &text]));
        assert_eq!(traced.code(), 0, "{}", traced.stderr);
        assert!(traced.stderr.contains("verified"), "{}", traced.stderr);
        counter.is_well();
        let flow = run(&mut json("insn", &[], &data));
        if addresses(&flow.stdout).len() > 100 {
            break;
        }
        assert!(duration < 30.0, "{}", flow.stderr);
        duration *= 3.0;
    }
    // And once more: the first left nothing behind that is in the way.
    let traced = run(attach(&counter, &data).args(["--duration", "0.1"]));
    assert_eq!(traced.code(), 0, "{}", traced.stderr);
    counter.is_well();
}

#[test]
fn attached_until_interrupted() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let scratch = Scratch::new();
        let Some(mut counter) = Counter::start(&scratch) else {
            return;
        };
        let data = scratch.path("data");
        let cofi = attach(&counter, &data)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starting cofi");
        // The tracer is a process of its own.
        let status = format!("/proc/{}/status", counter.pid());
        cofi_test::wait_until("it is traced", || {
            let status = std::fs::read_to_string(&status);
            !status
                .expect("the counter lives")
                .contains("TracerPid:\t0\n")
        });
        kill(Pid::from_raw(cofi.id() as i32), signal).expect("interrupting cofi");
        let traced = common::wait(cofi);
        assert_eq!(traced.code(), 0, "{signal}: {}", traced.stderr);
        assert!(traced.stderr.contains("verified"), "{}", traced.stderr);
        counter.is_well();
    }
}

/// Packet by packet: how often the program was stopped does not show, and time goes on as it does.
#[test]
fn the_packets_are_the_same_with_single_steps() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("branches.S", ASM) else {
        return;
    };
    for config in [None, Some("tsc,mtc,cyc"), Some("noretcomp")] {
        let packets = |name: &str, options: &[&str]| {
            let (data, raw) = (scratch.path("data"), scratch.path(name));
            let traced = run(record(&data, config)
                .args(options)
                .arg("--raw-output")
                .arg(&raw)
                .arg("--")
                .arg(&program));
            assert!(traced.stderr.contains("verified"), "{}", traced.stderr);
            std::fs::read(raw).expect("packets")
        };
        let (fast, slow) = (packets("fast", &[]), packets("slow", &["--step"]));
        assert!(!fast.is_empty());
        assert!(fast == slow, "{config:?}: the packets differ");
    }
}
