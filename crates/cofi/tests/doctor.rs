//! `cofi doctor`, on this machine and on machines made strange; and what `--engine auto` says.

mod common;

use common::{ASM, PATIENCE, Scratch, cofi, run};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const THINGS: [&str; 12] = [
    "processor",
    "virtualisation",
    "intel_pt",
    "rtit",
    "perf_event_paranoid",
    "ptrace_scope",
    "block_step",
    "breakpoints",
    "qemu_user",
    "qemu_system",
    "machine",
    "perf",
];

/// The object that `cofi doctor --json` prints, after a look at its form.
fn doctor(command: &mut Command) -> Value {
    let ran = run(command.args(["doctor", "--json"]));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    assert_eq!(ran.stderr, "");
    assert_eq!(ran.text().lines().count(), 1, "{}", ran.text());
    let found: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    for thing in THINGS {
        let thing = &found[thing];
        let status = thing["status"].as_str().expect("a status");
        assert!(["ok", "limited", "missing"].contains(&status), "{thing}");
        assert!(!thing["says"].as_str().expect("a sentence").is_empty());
        assert!(thing["hint"].is_string() || status != "missing", "{thing}");
    }
    found
}

/// `cofi` with only this folder on PATH.
fn cofi_with(path: &Path) -> Command {
    let mut command = cofi();
    command.env("PATH", path);
    command
}

fn script(scratch: &Scratch, name: &str, text: &str) {
    let path = scratch.write(name, format!("#!/bin/sh\n{text}\n"));
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("its mode");
}

#[test]
fn a_line_a_thing_and_the_hint_below() {
    let ran = run(cofi().arg("doctor"));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let text = ran.text();
    let mut things = 0;
    let mut wants_hint = false;
    for line in text.lines() {
        if line.trim_start().starts_with("-> ") {
            wants_hint = false;
            continue;
        }
        assert!(!wants_hint, "no hint before: {line}\n{text}");
        let status = line.split_whitespace().next().expect("a status");
        assert!(["ok", "limited", "missing"].contains(&status), "{line}");
        wants_hint = status == "missing";
        things += 1;
    }
    assert!(!wants_hint, "{text}");
    assert_eq!(things, THINGS.len(), "{text}");
}

#[test]
fn it_agrees_with_what_the_kernel_says() {
    let found = doctor(&mut cofi());
    assert_eq!(found["cofi"], env!("CARGO_PKG_VERSION"));
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").expect("/proc/cpuinfo");
    let said = |key: &str| {
        let value = cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        });
        value.unwrap_or_default()
    };
    let processor = &found["processor"];
    assert_eq!(processor["name"], said("model name").as_str());
    assert_eq!(processor["vendor"], said("vendor_id").as_str());
    assert_eq!(processor["family"].to_string(), said("cpu family"));
    assert_eq!(processor["model"].to_string(), said("model"));
    assert_eq!(processor["stepping"].to_string(), said("stepping"));
    let flags = said("flags");
    let has_flag = |name| flags.split(' ').any(|flag| flag == name);
    // The kernel may hide what it does not want to use, but it invents nothing.
    assert!(found["intel_pt"]["cpuid"] == true || !has_flag("intel_pt"));
    // What has Intel PT is younger than what has RTIT.
    assert!(found["rtit"]["model"] == false || found["intel_pt"]["cpuid"] == false);
    let hypervisor = &found["virtualisation"]["hypervisor"];
    assert_eq!(hypervisor.is_string(), has_flag("hypervisor"));
    for (thing, file) in [
        ("perf_event_paranoid", "kernel/perf_event_paranoid"),
        ("ptrace_scope", "kernel/yama/ptrace_scope"),
    ] {
        let value = fs::read_to_string(Path::new("/proc/sys").join(file)).ok();
        let value = value.and_then(|text| text.trim().parse::<i64>().ok());
        assert_eq!(found[thing]["value"], Value::from(value), "{thing}");
    }
    assert_eq!(
        found["block_step"]["traced"], true,
        "{}",
        found["block_step"]
    );
}

#[test]
fn without_other_programs_it_says_what_to_install() {
    let scratch = Scratch::new();
    // A name alone is not a program: a folder, and a file that may not be executed.
    fs::create_dir(scratch.path("perf")).expect("a folder");
    scratch.write("qemu-x86_64", "#!/bin/sh\n");
    let found = doctor(&mut cofi_with(&scratch.path("")));
    for (thing, package) in [
        ("qemu_user", "qemu-user"),
        ("qemu_system", "qemu-system-x86"),
        ("perf", "linux-perf"),
    ] {
        let thing = &found[thing];
        assert_eq!(thing["status"], "missing", "{thing}");
        assert_eq!(thing["path"], Value::Null);
        let hint = thing["hint"].as_str().expect("a hint");
        assert!(hint.contains(package), "{hint}");
    }
}

#[test]
fn other_programs_may_do_what_they_like() {
    let scratch = Scratch::new();
    script(&scratch, "qemu-x86_64", "exec /bin/sleep 1000");
    script(&scratch, "perf", "while echo yyyyyyyy; do :; done");
    script(
        &scratch,
        "qemu-system-x86_64",
        "printf 'br\\033oken\\377\\n' >&2; kill -SEGV $$",
    );
    let begun = Instant::now();
    let found = doctor(&mut cofi_with(&scratch.path("")));
    assert!(begun.elapsed() < PATIENCE / 2);
    let path = scratch.path("qemu-x86_64");
    for thing in ["qemu_user", "qemu_system"] {
        assert_eq!(found[thing]["status"], "limited", "{}", found[thing]);
        assert_eq!(found[thing]["version"], Value::Null);
    }
    assert_eq!(found["qemu_user"]["path"], path.to_str().expect("a path"));
    assert_eq!(found["qemu_user"]["plugin_version"], Value::Null);
    let says = found["qemu_system"]["says"].as_str().expect("a sentence");
    assert!(says.contains("signal"), "{says}");
    assert!(!says.contains('\x1b'), "{says}");
}

#[test]
fn versions_are_told() {
    let scratch = Scratch::new();
    script(&scratch, "perf", "echo perf version 6.7.g8");
    script(
        &scratch,
        "qemu-system-x86_64",
        "echo 'QEMU emulator version 10.0.2 (Debian 1)'; echo Copyright",
    );
    // It has no plugins, and says so as QEMU does.
    script(
        &scratch,
        "qemu-x86_64",
        "[ \"$1\" = --version ] && echo qemu-x86_64 version 9.2 && exit\n\
         echo \"qemu: unknown option 'plugin'\" >&2; exit 1",
    );
    // What else this machine has is not looked at.
    let mut command = cofi_with(&scratch.path(""));
    let found = doctor(command.env("XDG_DATA_HOME", scratch.path("")));
    assert_eq!(found["perf"]["version"], "6.7.g8");
    assert_eq!(found["qemu_system"]["version"], "10.0.2 (Debian 1)");
    // It is too old to be a machine with Intel PT.
    let machine = &found["machine"];
    assert_eq!(machine["status"], "missing");
    let says = machine["says"].as_str().expect("a sentence");
    assert!(says.contains("is version 10.0.2"), "{says}");
    let qemu = &found["qemu_user"];
    assert_eq!(
        (&qemu["version"], &qemu["status"]),
        (&"9.2".into(), &"limited".into())
    );
    let says = qemu["says"].as_str().expect("a sentence");
    assert!(says.contains("unknown option 'plugin'"), "{says}");
}

#[test]
fn an_empty_environment_is_no_obstacle() {
    doctor(cofi().env_clear());
}

/// The lines of `stderr` that name the engine.
fn choices(stderr: &str) -> Vec<&str> {
    stderr
        .lines()
        .filter(|line| line.starts_with("cofi: recording with "))
        .collect()
}

#[test]
fn auto_says_which_engine_and_why() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("branches.S", ASM) else {
        return;
    };
    let record = |mut cofi: Command, command: &str, engine: &[&str]| {
        cofi.arg(command).args(engine).arg("-o");
        run(cofi.arg(scratch.path("data")).arg("--").arg(&program))
    };
    // Where QEMU is, and takes the plugin, it is QEMU.
    let found = doctor(&mut cofi());
    let qemu = &found["qemu_user"];
    let here = match qemu["status"] == "ok" {
        true => format!(
            "qemu ({}, plugin interface ",
            qemu["path"].as_str().expect("a path")
        ),
        false => "ptrace (".to_owned(),
    };
    let nothing = Scratch::new();
    let nowhere = "ptrace (there is no qemu-x86_64: `cofi doctor` says what to install)";
    for engine in [&[][..], &["--engine", "auto"]] {
        let without = cofi_with(&nothing.path(""));
        for (cofi, wanted) in [(cofi(), here.as_str()), (without, nowhere)] {
            let ran = record(cofi, "record", engine);
            assert_eq!(ran.code(), 42, "{}", ran.stderr);
            let lines = choices(&ran.stderr);
            assert_eq!(lines.len(), 1, "{}", ran.stderr);
            let wanted = format!("cofi: recording with {wanted}");
            assert!(lines[0].starts_with(&wanted), "{} {wanted}", lines[0]);
            assert!(lines[0].ends_with(')'), "{}", lines[0]);
        }
    }
    let ran = record(cofi(), "record", &["--engine", "ptrace"]);
    assert_eq!(choices(&ran.stderr), Vec::<&str>::new(), "{}", ran.stderr);
    let ran = record(cofi_with(&nothing.path("")), "trace", &[]);
    assert_eq!(choices(&ran.stderr).len(), 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("instructions a second"),
        "{}",
        ran.stderr
    );
}

#[test]
fn auto_takes_ptrace_for_what_qemu_cannot_run() {
    let scratch = Scratch::new();
    let record = |program: &Path| {
        let mut cofi = cofi();
        cofi.args(["record", "--verify", "-o"])
            .arg(scratch.path("data"));
        run(cofi.arg("--").arg(program))
    };
    if let Some(program) = scratch.program("branches.S", ASM) {
        // Who is not root cannot make another user's program.
        if common::is_root() {
            std::os::unix::fs::chown(&program, Some(65534), Some(65534)).expect("its owner");
            fs::set_permissions(&program, PermissionsExt::from_mode(0o6755)).expect("its mode");
            let ran = record(&program);
            assert!(
                ran.stderr
                    .contains("ptrace (the program runs as another user"),
                "{}",
                ran.stderr
            );
            assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
        }
    }
    let source = scratch.write(
        "small.S",
        ".globl _start\n_start: mov $1, %eax\nxor %ebx, %ebx\nint $0x80\n",
    );
    if let Some(program) = scratch.compile(&source, common::ASM_32) {
        let ran = record(&program);
        assert!(
            ran.stderr
                .contains("ptrace (qemu runs 64-bit x86 programs only)"),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
        // Who insists gets no empty trace.
        let mut cofi = cofi();
        cofi.args(["record", "--engine", "qemu", "-o"])
            .arg(scratch.path("none"));
        let ran = run(cofi.arg("--").arg(&program));
        assert_eq!(ran.code(), 2, "{}", ran.stderr);
    }
    // A script that names no interpreter.
    script(&scratch, "script", "");
    scratch.write("script", "exit 3\n");
    let ran = record(&scratch.path("script"));
    assert_eq!(choices(&ran.stderr).len(), 1, "{}", ran.stderr);
    assert!(
        ran.stderr
            .contains("recording with ptrace (qemu cannot run"),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.code(), 3);
}

#[test]
fn auto_attaches_with_ptrace() {
    let scratch = Scratch::new();
    let mut sleeper = Command::new("sleep")
        .arg("1000")
        .stdin(Stdio::null())
        .spawn()
        .expect("a process to attach to");
    let mut record = cofi();
    record.args([
        "record",
        "--duration",
        "0.2",
        "-p",
        &sleeper.id().to_string(),
    ]);
    let ran = run(record.arg("-o").arg(scratch.path("data")));
    sleeper.kill().expect("ending it");
    sleeper.wait().expect("its end");
    assert_eq!(
        choices(&ran.stderr),
        ["cofi: recording with ptrace (the process runs already)"],
        "{}",
        ran.stderr
    );
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
}
