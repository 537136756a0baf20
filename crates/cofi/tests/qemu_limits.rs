//! `cofi record --engine qemu` where there is little: memory to share, address space, rights.

mod common;

use common::{Ran, Scratch, cofi, run};
use std::path::Path;
use std::process::Command;

/// Whether QEMU and perl are installed; skipped if not.
#[track_caller]
fn can_run() -> bool {
    common::has_qemu() && cofi_test::has_program("perl")
}

/// A perl program that forks so many children, which all live at the same time, and then work; its status is 7 if all ended well. Every
/// tenth works long enough to fill its ring of 4096 blocks several times; for the others a little is enough.
const FORKS: &str = "pipe(R, W); for $c (1..$ARGV[0]) { my $p = fork; die unless defined $p; \
    unless ($p) { close W; sysread(R, $b, 1); for (1..($c % 10 ? 100 : 2000)) { $x += $_ } exit 0 } } \
    close W; my $n = 0; while (wait != -1) { $n++ if $? == 0 } exit($n == $ARGV[0] ? 7 : 1)";

fn record(data: &Path, forks: u32) -> Command {
    let mut command = cofi();
    command.args(["record", "--engine", "qemu", "--verify", "-o"]);
    let forks = forks.to_string();
    command.arg(data).args(["--", "perl", "-e", FORKS, &forks]);
    command
}

/// Runs a command in a shell, after what `before` does.
fn shell(before: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before} && exec \"$@\""), "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    shell
}

/// Runs a command where /dev/shm has only so much room and nothing can be loaded from it, as in a container. `None` if that
/// cannot be made here.
#[track_caller]
fn with_room(room: &str, command: &Command) -> Option<Ran> {
    let mount = format!("mount -t tmpfs -o noexec,size={room} none /dev/shm");
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "sh", "-c", &mount]);
    if !unshare.status().is_ok_and(|status| status.success()) {
        cofi_test::skip("no right to mount");
        return None;
    }
    let shell = shell(&mount, command);
    let mut unshare = Command::new("unshare");
    unshare
        .arg("-m")
        .arg(shell.get_program())
        .args(shell.get_args());
    Some(run(&mut unshare))
}

#[track_caller]
fn assert_verified(ran: &Ran, status: i32) {
    assert_eq!(ran.code(), status, "{}", ran.stderr);
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
}

/// How often it is said on standard error that something with these words is missing.
fn counted(ran: &Ran, words: &str) -> u64 {
    let lines = ran.stderr.lines().filter(|line| line.contains(words));
    let times = lines.map(|line| {
        let times = line
            .strip_suffix(" times)")
            .and_then(|line| line.rsplit('(').next());
        times.map_or(1, |times| times.parse().expect("a number"))
    });
    times.sum()
}

#[test]
fn a_containers_memory_is_enough() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new();
    if let Some(ran) = with_room("64m", &record(&scratch.path("data"), 20)) {
        assert_verified(&ran, 7);
        assert_eq!(counted(&ran, "not in the trace"), 0, "{}", ran.stderr);
    }
}

#[test]
fn who_gets_no_memory_runs_on_and_is_counted() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new();
    if let Some(ran) = with_room("17m", &record(&scratch.path("data"), 150)) {
        assert_verified(&ran, 7);
        let untraced = counted(&ran, "not in the trace");
        assert!((1..150).contains(&untraced), "{}", ran.stderr);
        let traced = ran.stderr.lines().find(|line| line.contains("verified"));
        let traced = traced.expect("a line").split(" of ").nth(1);
        let traced = traced.and_then(|words| words.split(' ').next());
        let traced: u64 = traced.expect("a number").parse().expect("a number");
        assert_eq!(traced + untraced, 151, "{}", ran.stderr);
        // The file says so as well.
        let check = run(cofi().arg("check").arg(scratch.path("data")));
        assert_eq!(check.code(), 1, "{}", check.text());
        assert!(
            check.text().contains("not in the trace"),
            "{}",
            check.text()
        );
        assert!(!check.text().contains("No gaps"), "{}", check.text());
    }
}

#[test]
fn an_address_space_that_is_limited() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let ran = run(&mut shell("ulimit -v 1000000", &record(&data, 40)));
    assert_verified(&ran, 7);
    assert_eq!(counted(&ran, "not in the trace"), 0, "{}", ran.stderr);
    // Too little for QEMU itself.
    let ran = run(&mut shell("ulimit -v 150000", &record(&data, 1)));
    assert_eq!(ran.code(), 2, "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("ulimit -v"), "{}", ran.stderr);
    assert!(ran.stderr.contains("150000 KiB"), "{}", ran.stderr);
}

#[test]
fn names_and_masks_that_are_unusual() {
    if !can_run() {
        return;
    }
    // The program's mask is no obstacle either: its child makes a file, which the recorder opens.
    let scratch = Scratch::new();
    let folder = scratch.path("with, comma=and %p");
    std::fs::create_dir(&folder).expect("a folder");
    let mut command = cofi();
    command.args(["record", "--engine", "qemu", "--verify", "-o"]);
    command.arg(scratch.path("data"));
    command.args([
        "--",
        "perl",
        "-e",
        "umask 0777; exit(fork ? (wait, $? >> 8)[1] + 3 : 4)",
    ]);
    let mount = "mount -t tmpfs -o size=100k none /dev/shm";
    let before = format!(
        "umask 0277 && export TMPDIR='{}' && {mount}",
        folder.display()
    );
    let shell = shell(&before, &command);
    let mut unshare = Command::new("unshare");
    unshare
        .arg("-m")
        .arg(shell.get_program())
        .args(shell.get_args());
    let ran = run(&mut unshare);
    if ran.stderr.contains("permission denied") || ran.stderr.contains("not permitted") {
        return cofi_test::skip("no right to mount");
    }
    assert_verified(&ran, 7);
    assert_eq!(counted(&ran, "not in the trace"), 0, "{}", ran.stderr);
    let left = std::fs::read_dir(&folder).expect("the folder").count();
    assert_eq!(left, 0);
}
