//! What a recording leaves behind, however it ends: `cargo xtask exam endings` tries everything, these are the points by name.

mod common;

use common::{Ran, Scratch, cofi, run};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const NAP: Duration = Duration::from_millis(30);

fn check(data: &Path) -> Ran {
    run(cofi().args(["check", "--json"]).arg(data))
}

fn summary(data: &Path) -> serde_json::Value {
    let text = check(data).text();
    let last = text.lines().last().unwrap_or("null").to_owned();
    serde_json::from_str::<serde_json::Value>(&last).expect("JSON")["summary"].clone()
}

/// Waits until something is so.
#[track_caller]
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < common::PATIENCE, "{what} did not come");
        sleep(NAP);
    }
}

/// A program that works until a file is there, and then ends with status 7; the file, too.
fn endless(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../exam/programs/endless.c");
    let program = scratch.compile(&source, &["-O1"]).expect("a C compiler");
    (program, scratch.path("go"))
}

fn end(mut child: Child) -> i32 {
    let status = child.wait().expect("its end");
    common::Ran {
        status,
        stdout: Vec::new(),
        stderr: String::new(),
    }
    .code()
}

fn quiet(command: &mut Command) -> &mut Command {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
}

#[test]
fn a_killed_recorder_leaves_what_ran_until_then() {
    let scratch = Scratch::new();
    let (program, go) = endless(&scratch);
    let data = scratch.path("data");
    let mut command = cofi();
    command
        .args(["record", "--engine", "ptrace", "-o"])
        .arg(&data);
    let recorder = quiet(command.arg("--").arg(&program).arg(&go)).spawn();
    let recorder = recorder.expect("cofi");
    // Written long before a mebibyte of packets has gathered.
    until("a part of the trace", || {
        data.exists() && summary(&data)["instructions"].as_u64() > Some(0)
    });
    kill(Pid::from_raw(recorder.id() as i32), Signal::SIGKILL).expect("it runs");
    assert_eq!(end(recorder), 137);
    let last = summary(&data);
    assert_eq!(last["finished"], false, "{last}");
    assert_eq!(
        (&last["gaps"], &last["diagnostics"]),
        (&0.into(), &0.into()),
        "{last}"
    );
    assert!(last["instructions"].as_u64() > Some(0), "{last}");
    assert_eq!(check(&data).code(), 1);
    let text = run(cofi().arg("check").arg(&data)).text();
    assert!(text.contains("did not come to its end"), "{text}");
    assert!(!text.contains("No gaps"), "{text}");
    let report = run(cofi().arg("report").arg(&data)).text();
    assert!(report.contains("did not come to its end"), "{report}");
    assert!(!report.contains("No gaps"), "{report}");
}

#[test]
fn a_killed_command_leaves_the_attached_process_running() {
    let scratch = Scratch::new();
    let (program, go) = endless(&scratch);
    let data = scratch.path("data");
    let target = quiet(Command::new(&program).arg(&go)).spawn().expect("it");
    until("the program", || go.with_extension("begun").exists());
    let mut command = cofi();
    command.args(["record", "-p", &target.id().to_string(), "-o"]);
    let recorder = quiet(command.arg(&data)).spawn().expect("cofi");
    until("a part of the trace", || {
        data.exists() && summary(&data)["instructions"].as_u64() > Some(0)
    });
    kill(Pid::from_raw(recorder.id() as i32), Signal::SIGKILL).expect("it runs");
    assert_eq!(end(recorder), 137);
    // The tracer completes the file.
    until("the end of the tracer", || {
        summary(&data)["finished"] == true
    });
    fs::write(&go, "").expect("a file");
    assert_eq!(end(target), 7);
    let missing = summary(&data)["missing"].to_string();
    assert!(missing.contains("tracing was stopped"), "{missing}");
}

/// As with a full disk.
#[test]
fn a_limit_of_the_file_leaves_the_program_running() {
    let scratch = Scratch::new();
    let (program, go) = endless(&scratch);
    let data = scratch.path("data");
    let mut shell = Command::new("bash");
    shell.args(["-c", "ulimit -f 60 && exec \"$@\"", "bash"]);
    shell.arg(cofi().get_program());
    shell
        .args(["record", "--engine", "ptrace", "-o"])
        .arg(&data);
    let recorder = quiet(shell.arg("--").arg(&program).arg(&go)).spawn();
    let recorder = recorder.expect("bash");
    until("its last words", || {
        data.exists()
            && summary(&data)["missing"]
                .to_string()
                .contains("cannot write")
    });
    fs::write(&go, "").expect("a file");
    assert_eq!(end(recorder), 7);
    assert!(go.with_extension("ended").exists());
    let last = summary(&data);
    assert_eq!(last["finished"], true, "{last}");
    // How much waits when the file is full is chance. What found no room is said, and is all that is missing: the trace then ends where
    // tracing was on, if the last packet is not one that ends it.
    let is_cut = last["missing"].to_string().contains("found no room");
    let ends = last["gaps_by_kind"]["unknown-end"].as_u64().unwrap_or(0);
    assert!(ends <= u64::from(is_cut), "{last}");
    assert_eq!(
        (&last["gaps"], &last["diagnostics"]),
        (&ends.into(), &0.into()),
        "{last}"
    );
    assert!(last["trace_bytes"].as_u64() > Some(10_000), "{last}");
    assert!(fs::metadata(&data).expect("the file").len() <= 60 << 10);
}

#[test]
fn code_that_cannot_be_saved_leaves_the_program_running() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    scratch.write("data.code", "");
    let mut command = cofi();
    command
        .args(["record", "--engine", "ptrace", "-o"])
        .arg(&data);
    let ran = run(command.args(["--", "bash", "-c", "date >&2; echo still here; exit 5"]));
    assert_eq!(
        (ran.code(), ran.text().as_str()),
        (5, "still here\n"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("data.code"), "{}", ran.stderr);
    let missing = summary(&data)["missing"].to_string();
    assert!(missing.contains("data.code"), "{missing}");
}

#[test]
fn a_recording_that_cannot_start_leaves_everything_as_it_was() {
    let scratch = Scratch::new();
    let data = scratch.write("data", "earlier");
    fs::create_dir(scratch.path("data.code")).expect("a folder");
    let code = scratch.write("data.code/00001.code", "code");
    for engine in ["auto", "ptrace"] {
        let mut command = cofi();
        command
            .args(["record", "--engine", engine, "-o"])
            .arg(&data);
        let ran = run(command.args(["--", "/no/such/program"]));
        assert_eq!(ran.code(), 2, "{}", ran.stderr);
        assert_eq!(fs::read(&data).expect("the file"), b"earlier");
        assert_eq!(fs::read(&code).expect("the file"), b"code");
        let folder = data.parent().expect("a folder");
        assert_eq!(fs::read_dir(folder).expect("it").count(), 2);
    }
}

#[test]
fn the_earlier_recording_is_kept_as_old_with_its_code() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let record = |words: &str| {
        let mut command = cofi();
        command
            .args(["record", "--engine", "ptrace", "-o"])
            .arg(&data);
        let ran = run(command.args(["--", "echo", words]));
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
    };
    let count = |data: &Path| {
        let ran = check(data);
        assert_eq!(ran.code(), 0, "{}", ran.text());
        summary(data)["instructions"].as_u64()
    };
    record("one");
    let first = count(&data);
    record("and another one, of other words");
    assert_eq!(count(&scratch.path("data.old")), first);
    assert!(count(&data).is_some());
    // Single steps save the vDSO.
    let codes = |name: &str| fs::read_dir(scratch.path(name)).map_or(0, Iterator::count);
    assert_eq!(codes("data.code"), codes("data.code.old"));
}

#[test]
fn files_are_for_their_owner_alone_whatever_the_mask() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    for mask in ["000", "777"] {
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("umask {mask} && exec \"$@\""), "bash"]);
        shell.arg(cofi().get_program());
        shell
            .args(["record", "--engine", "ptrace", "-o"])
            .arg(&data);
        shell.arg("--raw-output").arg(scratch.path("raw"));
        shell.arg("--truth").arg(scratch.path("truth"));
        let ran = run(shell.args(["--", "true"]));
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        let mode = |path: &Path| {
            let data = fs::symlink_metadata(path).expect("it is there");
            data.permissions().mode() & 0o7777
        };
        for name in ["data", "raw", "truth"] {
            assert_eq!(mode(&scratch.path(name)), 0o600, "{name}, {mask}");
        }
        let folder = scratch.path("data.code");
        if folder.exists() {
            assert_eq!(mode(&folder), 0o700);
            for entry in fs::read_dir(folder).expect("the folder") {
                assert_eq!(mode(&entry.expect("a file").path()), 0o600);
            }
        }
    }
}

#[test]
fn links_and_pipes_in_the_place_of_the_file_are_refused() {
    let scratch = Scratch::new();
    let target = scratch.write("target", "mine");
    let link = scratch.path("link");
    symlink(&target, &link).expect("a link");
    let pipe = scratch.path("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
    for (path, words) in [
        (link.as_path(), "symbolic link"),
        (&pipe, "a pipe"),
        (Path::new("-"), "standard output"),
    ] {
        let mut command = cofi();
        command
            .args(["record", "--engine", "ptrace", "-o"])
            .arg(path);
        let ran = run(command.args(["--", "echo", "ran"]));
        assert_eq!((ran.code(), ran.text().as_str()), (2, ""), "{}", ran.stderr);
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
    assert_eq!(fs::read(&target).expect("the file"), b"mine");
}

#[test]
fn where_there_is_no_trace_nothing_can_be_checked() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let mut command = cofi();
    command
        .args(["record", "--engine", "ptrace", "-o"])
        .arg(&data);
    assert_eq!(run(command.args(["--", "true"])).code(), 0);
    let bytes = fs::read(&data).expect("the file");
    let empty = scratch.write("empty", "");
    let header = scratch.write("header", &bytes[..104]);
    for path in [&empty, &header, Path::new("/dev/null")] {
        for name in ["check", "report"] {
            let ran = run(cofi().arg(name).arg(path));
            assert_eq!(ran.code(), 2, "{name} {}: {}", path.display(), ran.stderr);
            assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        }
    }
}
