//! Attaching to what runs already, letting it go unharmed, and what cannot be started or attached to.

mod common;

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofi_capture::ptrace::{self, EngineError, Options, Outcome, Target};
use cofi_capture::{Pid, ProcessCause};
use cofi_test::{system_call, thread_state, wait_until};
use common::{Event, Flow, Program, limited};

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
    wait_until("it blocks in its next system call, a read", || {
        system_call(child.id()) == Some(libc::SYS_read)
    });
    child
}

/// Attaches until `enough` of something has happened.
fn attach_until(
    child: &Child,
    mut enough: impl FnMut(Pid, Event) -> bool + Send + 'static,
) -> (Outcome, Flow) {
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let mut flow = Flow::watched(move |tid, event| {
        if enough(tid, event) {
            told.store(true, Ordering::Relaxed);
        }
    });
    let outcome = ptrace::run(Target::Attach(child.id()), limited(&stop), &mut flow);
    let outcome = outcome.expect("attachable");
    // Not by the limit.
    assert!(outcome != Outcome::Detached || stop.load(Ordering::Relaxed));
    (outcome, flow)
}

/// Whether so many instructions have been seen.
fn instructions(count: usize) -> impl FnMut(Pid, Event) -> bool + 'static {
    let mut seen = 0;
    move |_, event| {
        seen += usize::from(matches!(event, Event::Insn(..)));
        seen >= count
    }
}

#[test]
fn attach_and_detach_many_times() {
    let mut child = busy("attach-busy");
    for _ in 0..20 {
        let (outcome, flow) = attach_until(&child, instructions(100));
        assert_eq!(outcome, Outcome::Detached);
        flow.check();
        assert_eq!(flow.processes.len(), 1);
        assert_eq!(flow.processes[0].2, ProcessCause::Attach);
        assert_eq!(flow.threads.len(), 3);
        assert!(flow.total() >= 100, "the spinning thread was not traced");
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
    // Its input ends when it has begun to read under trace.
    let mut stdin = child.stdin.take();
    let leader = child.id();
    let (outcome, flow) = attach_until(&child, move |tid, event| {
        if tid == leader && matches!(event, Event::Sync(_)) {
            stdin.take();
        }
        false
    });
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
    let begun = Arc::new(AtomicBool::new(false));
    let seen = begun.clone();
    let mut flow = Flow::watched(move |_, _| seen.store(true, Ordering::Relaxed));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("the trace begins", || begun.load(Ordering::Relaxed));
            stop.store(true, Ordering::Relaxed);
        });
        // Without the flag this would never end.
        let mut options = limited(&stop);
        options.duration = None;
        let outcome = ptrace::run(Target::Attach(child.id()), options, &mut flow);
        assert_eq!(outcome.expect("attachable"), Outcome::Detached);
    });
    flow.check();
    drop(child.stdin.take());
    assert_eq!(child.wait().expect("a child").code(), Some(23));
}

#[test]
fn a_stopped_process_stays_stopped() {
    let mut cat = Command::new("cat");
    let mut child = cat.stdin(Stdio::piped()).spawn().expect("cat");
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).expect("a child");
    let is_stopped = || thread_state(child.id()) == Some('T');
    wait_until("it is stopped", is_stopped);
    let mut flow = Flow::default();
    let stop = AtomicBool::new(false);
    // It does nothing, however long one looks.
    let mut options = limited(&stop);
    options.duration = Some(Duration::from_millis(200));
    let outcome = ptrace::run(Target::Attach(child.id()), options, &mut flow);
    assert_eq!(outcome.expect("attachable"), Outcome::Detached);
    flow.check();
    assert_eq!(flow.total(), 0);
    wait_until("it is stopped as before", is_stopped);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).expect("a child");
    drop(child.stdin.take());
    assert_eq!(child.wait().expect("a child").code(), Some(0));
}

#[test]
fn a_launched_program_that_takes_too_long_runs_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let [leave, marker] = ["leave", "done"].map(|name| folder.path().join(name));
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; echo done > {}",
        leave.display(),
        marker.display()
    );
    let mut flow = Flow::default();
    let stop = AtomicBool::new(false);
    let mut options = limited(&stop);
    options.duration = Some(Duration::from_millis(300));
    let command = ptrace::Command {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
    };
    let outcome = ptrace::run(Target::Launch(command), options, &mut flow).expect("traceable");
    assert_eq!(outcome, Outcome::Detached);
    flow.check();
    std::fs::write(leave, "").expect("a file");
    wait_until("the program ran on", || marker.exists());
}

fn launch(program: &str, args: &[&str]) -> Result<Outcome, EngineError> {
    let stop = AtomicBool::new(false);
    let command = ptrace::Command {
        program: program.into(),
        args: args.iter().map(Into::into).collect(),
    };
    ptrace::run(
        Target::Launch(command),
        limited(&stop),
        &mut Flow::default(),
    )
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
    let options = Options::new(&stop);
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
