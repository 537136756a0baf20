//! `cofi record --engine qemu`: what it decodes is what ran, and the program notices nothing.

mod common;

use common::{ASM, DYNAMIC, STATIC, Scratch, cofi, repository, run};
use std::path::{Path, PathBuf};
use std::process::Command;

const QEMU: &str = "qemu-x86_64";

fn record(data: &Path) -> Command {
    let mut command = cofi();
    command.args(["record", "--engine", "qemu", "--verify", "-o"]);
    command.arg(data).arg("--");
    command
}

/// Records a program; it must be verified, and its status and output must be those under QEMU alone.
fn verified(program: &Path, args: &[&str]) {
    let scratch = Scratch::new();
    let alone = run(Command::new(QEMU).arg(program).args(args));
    let traced = run(record(&scratch.path("data")).arg(program).args(args));
    let name = program.display();
    assert_eq!(traced.code(), alone.code(), "{name}: {}", traced.stderr);
    assert!(
        traced.stderr.contains("verified"),
        "{name}: {}",
        traced.stderr
    );
    assert_eq!(traced.stdout, alone.stdout, "{name}");
}

/// Programs of the exam.
fn exam(files: &[&str], flags: &[&str]) {
    if !common::has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    for file in files {
        let Some(program) = scratch.program(file, flags) else {
            return;
        };
        verified(&program, &[]);
    }
}

#[test]
fn static_programs() {
    exam(
        &["static.c", "recursion.c", "longjmp.c", "tables.c"],
        STATIC,
    );
    exam(&["vdso.c", "vectors.c", "flags.c", "trapflag.c"], STATIC);
}

#[test]
fn dynamic_program() {
    exam(&["dynamic.c"], DYNAMIC);
}

#[test]
fn every_branch() {
    exam(&["branches.S"], ASM);
}

#[test]
fn code_that_is_made_or_changed() {
    exam(&["jit_rwx.c", "jit_wx.c", "smc.c"], STATIC);
}

#[test]
fn code_that_another_thread_changes() {
    if !common::has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    let Some(program) = scratch.program("patched.c", DYNAMIC) else {
        return;
    };
    for what in ["turns", "running", "remapping", "forks", "text"] {
        verified(&program, &[what, "24"]);
    }
}

#[test]
fn a_library_that_another_thread_loads_in_the_place_of_one() {
    if !common::has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    let Some(program) = scratch.program("patched.c", DYNAMIC) else {
        return;
    };
    let mut args = vec!["loading".to_owned(), "12".to_owned()];
    for (name, body) in [
        (
            "first",
            "int s = 1; for (volatile int i = 0; i < 3 + n; i++) s += i; return s;",
        ),
        (
            "second",
            "int s = 2; for (volatile int i = 0; i < 6 + n; i++) s ^= i * 3; return s;",
        ),
    ] {
        let source = scratch.path(&format!("{name}.c"));
        std::fs::write(&source, format!("int chosen(int n) {{ {body} }}\n")).unwrap();
        let Some(library) = scratch.compile(&source, &["-O1", "-shared", "-fPIC"]) else {
            return;
        };
        args.push(library.to_str().unwrap().to_owned());
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    verified(&program, &args);
}

#[test]
fn signals() {
    exam(&["signals.c", "rep.c", "killed.c"], STATIC);
}

#[test]
fn threads_and_processes() {
    exam(
        &["threads.c", "processes.c", "exec_thread.c", "stormed.c"],
        STATIC,
    );
}

/// Builds one of the engine's test programs.
fn engine_program(scratch: &Scratch, file: &str, flags: &[&str]) -> Option<PathBuf> {
    let folder = repository().join("crates/cofi-capture/tests/programs");
    scratch.compile(&folder.join(file), flags)
}

#[test]
fn programs_of_the_engine() {
    if !common::has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    let names: [(&str, &[&str]); 4] = [
        ("jit.c", &["rwx", "toggled", "private-memfd", "modified"]),
        (
            "stepped_over.c",
            &["unaligned", "patched", "many-threads", "pairs"],
        ),
        (
            "signals.c",
            &["faults", "traps", "nested", "masks", "many", "skipping"],
        ),
        ("tasks.c", &["threads", "fork", "leader-exit", "vfork"]),
    ];
    for (file, names) in names {
        let Some(program) = engine_program(&scratch, file, DYNAMIC) else {
            return;
        };
        for name in names {
            eprintln!("{file} {name}");
            verified(&program, &[name]);
        }
    }
}

/// The two engines' lists of addresses of a program without a C library.
#[test]
fn the_list_of_addresses_is_that_of_ptrace() {
    if !common::has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    for file in ["counts.S", "shadow.S", "smc.S", "smc_loop.S"] {
        let Some(program) = engine_program(&scratch, file, ASM) else {
            return;
        };
        let [seen, truth] = ["qemu", "ptrace"].map(|engine| {
            let (data, list) = (scratch.path("data"), scratch.path(engine));
            let mut command = cofi();
            command.args(["record", "--engine", engine, "-o"]).arg(data);
            run(command.arg("--truth").arg(&list).arg("--").arg(&program));
            let list = std::fs::read_to_string(list).expect("the list");
            let address = |line: &str| line.split_once(' ').map(|(_, ip)| ip.to_owned());
            list.lines().filter_map(address).collect::<Vec<_>>()
        });
        assert!(!truth.is_empty());
        assert_eq!(seen, truth, "{file}");
    }
}

/// Programs of the system that are there.
#[test]
fn real_programs() {
    if !common::has_qemu() {
        return;
    }
    let folder = repository().join("crates/cofi-capture/src");
    let folder = folder.to_str().expect("UTF-8");
    let programs: [(&str, &[&str]); 4] = [
        ("/bin/true", &[]),
        ("/bin/ls", &["-l", folder]),
        ("/usr/bin/perl", &["-e", "print join q(,), sort 1..200"]),
        (
            "/usr/bin/sqlite3",
            &[":memory:", "select hex(zeroblob(20)), sqrt(2), upper('x')"],
        ),
    ];
    for (program, args) in programs {
        if Path::new(program).exists() {
            verified(Path::new(program), args);
        } else {
            cofi_test::skip(format_args!("there is no {program}"));
        }
    }
}
