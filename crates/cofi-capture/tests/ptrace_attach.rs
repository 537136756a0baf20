//! Attaching to what runs already, letting it go unharmed, and what cannot be started or attached to.

mod common;

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cofi_capture::ProcessCause;
use cofi_capture::ptrace::{self, EngineError, Options, Outcome, Target};
use common::{Event, Flow, Program};

/// Starts the program `busy` and waits until it runs.
fn busy(name: &str) -> Child {
    let program = Program::build(name, "tasks.c", &[]);
    let mut child = Command::new(&program.path)
        .arg("busy")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut byte = [0];
    let stdout = child.stdout.as_mut().expect("piped");
    stdout.read_exact(&mut byte).expect("the program runs");
    // It blocks in its next system call soon.
    std::thread::sleep(Duration::from_millis(200));
    child
}

fn attach(child: &Child, duration: Duration) -> (Outcome, Flow) {
    let mut flow = Flow::default();
    let stop = AtomicBool::new(false);
    let options = Options {
        duration: Some(duration),
        stop: &stop,
        leader: None,
    };
    let outcome = ptrace::run(Target::Attach(child.id()), options, &mut flow).expect("attachable");
    (outcome, flow)
}

#[test]
fn attach_and_detach_many_times() {
    let mut child = busy("attach-busy");
    for _ in 0..20 {
        let (outcome, flow) = attach(&child, Duration::from_millis(150));
        assert_eq!(outcome, Outcome::Detached);
        flow.check();
        assert_eq!(flow.processes.len(), 1);
        assert_eq!(flow.processes[0].2, ProcessCause::Attach);
        assert_eq!(flow.threads.len(), 3);
        assert!(flow.total() > 10, "the spinning thread was not traced");
        assert!(
            child.try_wait().expect("a child").is_none(),
            "it did not survive"
        );
    }
    // Its read goes on as if nothing had happened.
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"more").expect("it reads");
    drop(stdin);
    assert_eq!(child.wait().expect("a child").code(), Some(23));
}

#[test]
fn a_blocked_system_call_is_finished_under_trace() {
    let mut child = busy("attach-blocked");
    let stdin = child.stdin.take().expect("piped");
    let closer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(stdin);
    });
    let (outcome, flow) = attach(&child, Duration::from_secs(20));
    closer.join().expect("no panic");
    assert_eq!(outcome, Outcome::Exited(23));
    flow.check();
    // The call that was interrupted by attaching runs again, and is the first thing that the thread does.
    let events = &flow.threads[&child.id()].events;
    let (Event::Resume(at, _), Event::Sync(call)) = (events[0], events[1]) else {
        panic!("{:?}", &events[..2]);
    };
    assert_eq!(at, call);
    let _ = child.wait();
}

#[test]
fn the_stop_flag_ends_it() {
    let mut child = busy("attach-flag");
    let stop = AtomicBool::new(false);
    let mut flow = Flow::default();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            stop.store(true, Ordering::Relaxed);
        });
        let options = Options {
            duration: None,
            stop: &stop,
            leader: None,
        };
        let outcome = ptrace::run(Target::Attach(child.id()), options, &mut flow);
        assert_eq!(outcome.expect("attachable"), Outcome::Detached);
    });
    assert!(begin.elapsed() < Duration::from_secs(5));
    flow.check();
    drop(child.stdin.take());
    assert_eq!(child.wait().expect("a child").code(), Some(23));
}

#[test]
fn a_stopped_process_stays_stopped() {
    let mut child = Command::new("sleep").arg("1").spawn().expect("sleep");
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).expect("a child");
    std::thread::sleep(Duration::from_millis(100));
    let (outcome, flow) = attach(&child, Duration::from_millis(200));
    assert_eq!(outcome, Outcome::Detached);
    flow.check();
    assert_eq!(flow.total(), 0);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    assert_eq!(
        stat.split(") ").nth(1).and_then(|rest| rest.chars().next()),
        Some('T')
    );
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).expect("a child");
    assert_eq!(child.wait().expect("a child").code(), Some(0));
}

#[test]
fn a_launched_program_that_takes_too_long_runs_on() {
    let program = Program::build("launch-late", "tasks.c", &[]);
    let marker = program.path.with_extension("done");
    let _ = std::fs::remove_file(&marker);
    let script = format!("sleep 0.6; echo done > {}", marker.display());
    let mut flow = Flow::default();
    let stop = AtomicBool::new(false);
    let options = Options {
        duration: Some(Duration::from_millis(300)),
        stop: &stop,
        leader: None,
    };
    let command = ptrace::Command {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
    };
    let outcome = ptrace::run(Target::Launch(command), options, &mut flow).expect("traceable");
    assert_eq!(outcome, Outcome::Detached);
    flow.check();
    let begin = Instant::now();
    while !marker.exists() {
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "the program did not run on"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn launch(program: &str, args: &[&str]) -> Result<Outcome, EngineError> {
    let stop = AtomicBool::new(false);
    let options = Options {
        duration: Some(Duration::from_secs(60)),
        stop: &stop,
        leader: None,
    };
    let command = ptrace::Command {
        program: program.into(),
        args: args.iter().map(Into::into).collect(),
    };
    ptrace::run(Target::Launch(command), options, &mut Flow::default())
}

#[test]
fn what_cannot_be_started() {
    use std::io::ErrorKind;
    for (program, kind) in [
        ("no-such-program-anywhere", ErrorKind::NotFound),
        ("/no/such/program", ErrorKind::NotFound),
        ("/etc/passwd", ErrorKind::PermissionDenied),
        ("/tmp", ErrorKind::PermissionDenied),
        ("", ErrorKind::NotFound),
    ] {
        match launch(program, &[]) {
            Err(EngineError::Launch { source, .. }) => assert_eq!(source.kind(), kind, "{program}"),
            other => panic!("{program}: {other:?}"),
        }
    }
}

#[test]
fn a_script_without_a_first_line() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("script");
    std::fs::write(&path, "exit $1\n").expect("writable");
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, permissions).expect("ours");
    let outcome = launch(path.to_str().expect("UTF-8"), &["9"]);
    assert_eq!(outcome.expect("the shell runs it"), Outcome::Exited(9));
}

#[test]
fn what_cannot_be_attached_to() {
    let stop = AtomicBool::new(false);
    let options = Options {
        duration: None,
        stop: &stop,
        leader: None,
    };
    let gone = ptrace::run(Target::Attach(0x3fff_fff0), options, &mut Flow::default());
    assert!(
        matches!(
            gone,
            Err(EngineError::Attach {
                pid: 0x3fff_fff0,
                ..
            })
        ),
        "{gone:?}"
    );
    // Nobody can attach to a thread of his own process.
    let own = ptrace::run(
        Target::Attach(std::process::id()),
        options,
        &mut Flow::default(),
    );
    assert!(matches!(own, Err(EngineError::Attach { .. })), "{own:?}");
}
