//! What an engine changes for a program is said before or where it bites: each row of the table in docs/engines.md.

mod common;

use common::{DYNAMIC, Scratch, cofi, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program with this body of `main`, built in the test's folder.
fn program(scratch: &Scratch, name: &str, body: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = format!(
        "#define _GNU_SOURCE\n#include <errno.h>\n#include <signal.h>\n#include <stdio.h>\n#include <sys/ptrace.h>\n\
         #include <sys/prctl.h>\n#include <sys/syscall.h>\n#include <sys/wait.h>\n#include <linux/filter.h>\n\
         #include <linux/seccomp.h>\n#include <stddef.h>\n#include <unistd.h>\nint main(void) {{ {body} }}\n"
    );
    scratch.compile(&scratch.write(&format!("{name}.c"), source), flags)
}

fn record(engine: &str, data: &Path, program: &Path) -> common::Ran {
    let mut command = cofi();
    command.args(["record", "--verify", "--engine", engine, "-o"]);
    run(command.arg(data).arg("--").arg(program))
}

/// What is said beside the verdict, without the command's name.
fn said(ran: &common::Ran) -> Vec<&str> {
    let lines = ran.stderr.lines();
    let said = lines.filter_map(|line| line.strip_prefix("cofi: "));
    said.filter(|line| !line.starts_with("verified")).collect()
}

/// Its child wants to be traced, three times; its status is the error's number.
const TRACER: &str = "int s = 0; if (!fork()) { for (int i = 0; i < 2; i++) ptrace(PTRACE_TRACEME, 0, 0, 0); \
    _exit(ptrace(PTRACE_TRACEME, 0, 0, 0) ? errno : 0); } wait(&s); return WEXITSTATUS(s);";

#[test]
fn who_traces_others_is_refused_and_it_is_said_once() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch, "tracer", TRACER, DYNAMIC) else {
        return;
    };
    let ran = record("ptrace", &scratch.path("data"), &program);
    let sentence = "tracer wants to trace processes (ptrace), which the kernel refuses: Cofi traces them already";
    assert_eq!(
        (ran.code(), said(&ran)),
        (nix::errno::Errno::EPERM as i32, vec![sentence])
    );
    if common::has_qemu() {
        let ran = record("qemu", &scratch.path("data"), &program);
        let sentence = "tracer wants to trace processes (ptrace), which does not work under QEMU, nor with --engine ptrace";
        assert_eq!(
            (ran.code(), said(&ran)),
            (nix::errno::Errno::ENOSYS as i32, vec![sentence])
        );
    }
}

/// Forbids getppid, which then says 77.
const SANDBOX: &str = "struct sock_filter f[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)), \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 77), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) }; struct sock_fprog p = { 4, f }; prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); \
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p)) return 1; errno = 0; syscall(SYS_getppid); return errno;";

#[test]
fn a_sandbox_holds_under_ptrace_and_is_refused_by_qemu() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch, "sandbox", SANDBOX, DYNAMIC) else {
        return;
    };
    let alone = run(&mut Command::new(&program));
    assert_eq!(alone.code(), 77);
    let ran = record("ptrace", &scratch.path("data"), &program);
    assert_eq!((ran.code(), said(&ran)), (77, Vec::new()));
    if common::has_qemu() {
        let ran = record("qemu", &scratch.path("data"), &program);
        let sentence = "sandbox wants to restrict its system calls (seccomp), which QEMU refuses: with --engine ptrace it can";
        assert_eq!((ran.code(), said(&ran)), (1, vec![sentence]));
    }
}

#[test]
fn who_dies_of_sigill_under_qemu_hears_of_the_other_engine() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch, "illegal", "__asm__(\"ud2\"); return 0;", DYNAMIC) else {
        return;
    };
    let ran = record("ptrace", &scratch.path("data"), &program);
    assert_eq!((ran.code(), said(&ran)), (128 + 4, Vec::new()));
    if common::has_qemu() {
        let ran = record("qemu", &scratch.path("data"), &program);
        assert_eq!(ran.code(), 128 + 4);
        let said = said(&ran);
        let about = said.iter().filter(|line| {
            line.starts_with("illegal died of SIGILL") && line.contains("--engine ptrace")
        });
        assert_eq!(about.count(), 1, "{said:?}");
    }
}

#[test]
fn auto_sees_a_program_coming_that_needs_avx_512() {
    if !common::has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    let flags = [DYNAMIC, &["-static", "-Wl,-z,x86-64-v4"]].concat();
    let Some(program) = program(&scratch, "wide", "return 0;", &flags) else {
        return;
    };
    let ran = record("auto", &scratch.path("data"), &program);
    let sentence = format!(
        "recording with ptrace ({} needs AVX-512 (x86-64-v4), which qemu's processor does not have)",
        program.display()
    );
    assert_eq!(said(&ran), [sentence.as_str()]);
    // Who insists runs it there: it may need less than it says.
    let ran = record("qemu", &scratch.path("data"), &program);
    assert_eq!(said(&ran), Vec::<&str>::new());
}

/// As nobody, a set-user-ID program of root's, and the same started by another program.
#[test]
fn lost_rights_are_told() {
    if !common::is_root() || !cofi_test::has_program("setpriv") {
        return;
    }
    let scratch = Scratch::new();
    let mode = |path: &Path, mode| {
        let mode = PermissionsExt::from_mode(mode);
        fs::set_permissions(path, mode).expect("its mode");
    };
    mode(&scratch.path(""), 0o755);
    let copy = scratch.path("cofi");
    fs::copy(env!("CARGO_BIN_EXE_cofi"), &copy).expect("a copy");
    let out = scratch.path("out");
    fs::create_dir(&out).expect("a folder");
    mode(&out, 0o777);
    let body = "return geteuid() ? 1 : 2;";
    let Some(rights) = program(&scratch, "rights", body, DYNAMIC) else {
        return;
    };
    mode(&rights, 0o4755);
    let body = format!(
        "execl(\"{}\", \"rights\", NULL); return 3;",
        rights.display()
    );
    let Some(starts) = program(&scratch, "starts", &body, DYNAMIC) else {
        return;
    };
    mode(&starts, 0o755);
    let nobody = |program: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command
            .arg(program)
            .env("HOME", &out)
            .env("TMPDIR", &out)
            .current_dir(&out);
        command
    };
    let alone = run(&mut nobody(&rights));
    if alone.code() != 2 {
        return cofi_test::skip(
            "set-user-ID has no effect in the folder of temporary files (nosuid)",
        );
    }
    let sentence = format!(
        "{} is set-user-ID or set-group-ID: the kernel ignores that under tracing, and it runs without these rights",
        rights.display()
    );
    let mut engines = vec!["ptrace"];
    if common::has_qemu() {
        engines.push("qemu");
    }
    for engine in engines {
        for program in [&rights, &starts] {
            let mut command = nobody(&copy);
            command.args(["record", "--verify", "--engine", engine, "-o"]);
            let ran = run(command.arg(out.join("data")).arg("--").arg(program));
            assert_eq!(
                (ran.code(), said(&ran)),
                (1, vec![sentence.as_str()]),
                "{engine}"
            );
        }
    }
    // Root's tracer may trace everybody: nothing is lost, and nothing is said.
    std::os::unix::fs::chown(&rights, Some(65534), None).expect("its owner");
    mode(&rights, 0o4755);
    let ran = record("ptrace", &out.join("data"), &rights);
    assert_eq!((ran.code(), said(&ran)), (1, Vec::new()));
}
