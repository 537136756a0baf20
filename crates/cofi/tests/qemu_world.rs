//! What a program under `cofi record --engine qemu` sees of itself, and who it is: all as if nobody were there.

mod common;

use common::{Ran, Scratch, cofi, repository, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn record(data: &Path) -> Command {
    let mut command = cofi();
    command.args(["record", "--engine", "qemu", "--verify", "-o"]);
    command.arg(data).arg("--");
    command
}

#[track_caller]
fn assert_verified(ran: &Ran) {
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
}

/// Runs a program by itself and recorded, with these variables alone; what it prints is the same.
#[track_caller]
fn same(program: &Path, args: &[&str], variables: &[(&str, &str)]) {
    let scratch = Scratch::new();
    let vars = || variables.iter().copied().chain([("PATH", "/usr/bin:/bin")]);
    let alone = run(Command::new(program).args(args).env_clear().envs(vars()));
    let mut recorded = record(&scratch.path("data"));
    let recorded = run(recorded.arg(program).args(args).env_clear().envs(vars()));
    assert_verified(&recorded);
    assert_eq!(recorded.code(), alone.code(), "{}", recorded.stderr);
    assert_eq!(recorded.text(), alone.text());
    assert_eq!(recorded.stderr.lines().count(), 1, "{}", recorded.stderr);
}

#[test]
fn the_environment_is_the_programs_own() {
    if !common::has_qemu() {
        return;
    }
    let variables = [
        ("ZERO", ""),
        ("A", "x=y,z"),
        ("QEMU_STRACE", "1"),
        ("QEMU_LD_PREFIX", "/nowhere"),
        ("QEMU_VERSION", "1"),
        ("QEMU_SET_ENV", "B=2"),
        ("QEMU_UNSET_ENV", "A"),
        ("QEMU_CPU", "486"),
        ("QEMU_PLUGIN", "/nowhere"),
    ];
    same(Path::new("/usr/bin/env"), &[], &variables);
    // Of programs that it starts, too, and with what no library would make: a name twice, or none.
    let Some(program) = strange(&Scratch::new()) else {
        return;
    };
    same(program.0.as_path(), &[], &variables);
}

/// Executes `env` with a strange environment.
fn strange(scratch: &Scratch) -> Option<(std::path::PathBuf, tempfile::TempDir)> {
    let source = "#include <unistd.h>\n\
        int main(void) { char *env[] = {\"B=1\", \"A=1\", \"B=2\", \"none\", \"QEMU_STRACE=1\", 0}; \
        char *args[] = {\"env\", 0}; return execve(\"/usr/bin/env\", args, env); }\n";
    let built = scratch.compile(&scratch.write("strange.c", source), &["-static"])?;
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("strange");
    fs::copy(built, &program).expect("a copy");
    Some((program, folder))
}

#[test]
fn many_arguments_and_long_variables() {
    if !common::has_qemu() {
        return;
    }
    let long = "x".repeat(100_000);
    let many: Vec<_> = (0..30_000).map(|i| i.to_string()).collect();
    let script = "echo $# ${#LONG}; echo \"$@\" | cksum";
    let mut args = vec!["-c", script, "sh"];
    args.extend(many.iter().map(String::as_str));
    same(Path::new("/bin/sh"), &args, &[("LONG", &long)]);
}

#[test]
fn names_are_those_of_the_program() {
    if !common::has_qemu() {
        return;
    }
    let show = "cat /proc/self/comm /proc/$$/comm; readlink /proc/self/exe; \
        tr '\\0' '|' < /proc/$$/cmdline; tr '\\0' '|' < /proc/$$/environ; echo $0";
    same(
        Path::new("/bin/sh"),
        &["-c", show, "name", "a b"],
        &[("A", "1")],
    );
    // A script's name is its own, not its interpreter's.
    let scratch = Scratch::new();
    let script = scratch.write("a script, with=signs", format!("#!/bin/sh\n{show}\n"));
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("its mode");
    same(&script, &["x"], &[("A", "1")]);
}

#[test]
fn a_program_without_a_name() {
    if !common::has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    let source = "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <sys/mman.h>\n#include <sys/sendfile.h>\n#include <unistd.h>\n\
        int main(int n, char **v, char **e) { int to = memfd_create(\"x\", 0), from = open(\"/bin/true\", O_RDONLY); \
        while (sendfile(to, from, 0, 1 << 20) > 0) {} char *a[] = {\"true\", 0}; return fexecve(to, a, e); }\n";
    let source = scratch.write("nameless.c", source);
    let Some(program) = scratch.compile(&source, &["-static"]) else {
        return;
    };
    let ran = run(record(&scratch.path("data")).arg(program));
    assert_verified(&ran);
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    assert!(
        ran.stderr
            .contains("\"3\" could not run under QEMU (its file has another name by now)"),
        "{}",
        ran.stderr
    );
}

/// Who has left our root or our user cannot share memory with us any more: all such processes run, and each is counted.
#[test]
fn who_cannot_be_traced_is_counted() {
    if !common::has_qemu() || !common::is_root() {
        return;
    }
    let scratch = Scratch::new();
    let source = r#"
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static int wait_all(void) { int status, bad = 0; while (wait(&status) != -1) bad |= status; return bad != 0; }
int main(int argc, char **argv) {
    if (fork() == 0) {
        if (chroot(argv[1])) _exit(1);
        if (fork() == 0) { if (fork() == 0) _exit(0); _exit(wait_all()); }
        if (fork() == 0) _exit(0);
        _exit(wait_all());
    }
    if (fork() == 0) {
        if (setuid(65534)) _exit(1);
        for (int i = 0; i < 2; i++) if (fork() == 0) _exit(0);
        if (fork() == 0) { execl("/bin/sh", "sh", "-c", "(exit 0); /bin/true", NULL); _exit(1); }
        _exit(wait_all());
    }
    return wait_all() ? 1 : 7;
}
"#;
    let Some(program) = scratch.compile(&scratch.write("leaves.c", source), &["-static"]) else {
        return;
    };
    let ran = run(record(&scratch.path("data"))
        .arg(&program)
        .arg(scratch.path("")));
    assert_verified(&ran);
    assert_eq!(ran.code(), 7, "{}", ran.stderr);
    // Two and one of their children; three; and what the shell forks, which runs by itself: a subshell and `true`, which the
    // last command may replace it with.
    let counts = |words: &str| -> u32 {
        let lines = ran.stderr.lines().filter(|line| line.contains(words));
        lines
            .map(|line| match line.rsplit_once('(') {
                Some((_, times)) if times.ends_with(" times)") => {
                    let number = times.trim_end_matches(" times)");
                    number.parse().expect("a number")
                }
                _ => 1,
            })
            .sum()
    };
    assert!(
        (7..=8).contains(&counts(" is not in the trace: ")),
        "{}",
        ran.stderr
    );
    assert_eq!(counts("could not run under QEMU"), 2, "{}", ran.stderr);
}

#[test]
fn another_user_can_record() {
    if !common::has_qemu() || !common::is_root() {
        return;
    }
    let scratch = Scratch::new();
    let mode = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
    mode(&scratch.path(""), 0o755).expect("the folder's mode");
    let copy = scratch.path("cofi");
    fs::copy(env!("CARGO_BIN_EXE_cofi"), &copy).expect("a copy");
    let out = scratch.path("out");
    fs::create_dir(&out).expect("a folder");
    mode(&out, 0o777).expect("its mode");
    let source = repository().join("crates/cofi-capture/tests/programs/tasks.c");
    let Some(program) = scratch.compile(&source, &["-pthread"]) else {
        return;
    };
    for args in [["threads"], ["fork"], ["exec"]] {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&copy);
        command
            .args(record(&out.join("data")).get_args())
            .arg(&program)
            .args(args);
        let alone = run(Command::new(&program).args(args));
        let ran = run(&mut command);
        assert_verified(&ran);
        assert_eq!(ran.code(), alone.code(), "{args:?}: {}", ran.stderr);
    }
}

/// When the first process ends, others may be half way to QEMU: they must get there, or not begin.
#[test]
fn who_outlives_the_first_process_runs_on() {
    if !common::has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    let source = "#include <stdlib.h>\n#include <unistd.h>\n\
        int main(int argc, char **argv) { if (fork()) { usleep(atoi(argv[1])); return 0; } \
        return execl(\"/bin/echo\", \"echo\", \"late\", NULL); }\n";
    let Some(program) = scratch.compile(&scratch.write("outlived.c", source), &["-static"]) else {
        return;
    };
    for round in 0..30 {
        let pause = (round * 1000).to_string();
        let ran = run(record(&scratch.path("data")).arg(&program).arg(pause));
        assert_verified(&ran);
        assert_eq!(
            (ran.code(), ran.text().as_str()),
            (0, "late\n"),
            "{round}: {}",
            ran.stderr
        );
        // Beside this nothing is said but that the other one ran on, if it did.
        let mut others = ran.stderr.lines().filter(|line| {
            !line.contains("verified")
                && !line.contains("a process ran on when the first one had ended")
        });
        assert_eq!(others.next(), None, "{round}: {}", ran.stderr);
    }
}
