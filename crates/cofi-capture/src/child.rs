//! Other programs: where they are, and what they answer when asked, without waiting for them longer than is said.

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How much of a program's words is kept.
const MAX_WORDS: u64 = 1 << 16;
/// How often to look whether a program has ended.
const NAP: Duration = Duration::from_millis(2);
/// How long the kernel may take to end a program that was killed, and to hand over its last words.
const GRACE: Duration = Duration::from_secs(1);

/// What a program said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// How it ended.
    pub status: ExitStatus,
    /// The beginning of its standard output.
    pub stdout: String,
    /// The beginning of its standard error.
    pub stderr: String,
}

/// Runs a program with nothing on its standard input until it ends. What it started and left running is ended with it.
///
/// # Errors
/// It cannot be started, or has not ended after `patience` ([`io::ErrorKind::TimedOut`]); it is killed then.
pub fn ask(command: &mut Command, patience: Duration) -> io::Result<Answer> {
    let deadline = Instant::now() + patience;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let stdout = gather(child.stdout.take());
    let stderr = gather(child.stderr.take());
    let group = Pid::from_raw(child.id() as i32);
    let ended = wait_until(group, deadline)?;
    // It is not reaped yet, so the number is still its own.
    let _ = killpg(group, Signal::SIGKILL);
    let status = reap(&mut child);
    if !ended {
        let text = format!("no answer within {} seconds", patience.as_secs_f64());
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    }
    let words = |from: Receiver<Vec<u8>>| {
        let bytes = from.recv_timeout(GRACE).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Answer {
        status: status?,
        stdout: words(stdout),
        stderr: words(stderr),
    })
}

/// Reads the beginning of a pipe on a thread of its own, which may wait for ever: nobody waits for it.
fn gather(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    if let Some(pipe) = pipe {
        let read = move || {
            let mut bytes = Vec::new();
            // What was read before an error is an answer too.
            let _ = pipe.take(MAX_WORDS).read_to_end(&mut bytes);
            let _ = send.send(bytes);
        };
        // Without a thread there are no words, and the sender is gone, which says so.
        let _ = thread::Builder::new().spawn(read);
    }
    receive
}

/// Whether the child ends by then. It is left to be reaped.
fn wait_until(child: Pid, deadline: Instant) -> io::Result<bool> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    loop {
        match waitid(Id::Pid(child), flags) {
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(NAP);
    }
}

fn reap(child: &mut Child) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + GRACE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(NAP);
    }
}

/// The files that a program's name may mean, in the order of PATH.
pub(crate) fn on_path(program: &OsStr) -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let program = program.to_owned();
    folders.into_iter().map(move |folder| {
        // An empty entry is the working directory.
        if folder.as_os_str().is_empty() {
            Path::new(".").join(&program)
        } else {
            folder.join(&program)
        }
    })
}

/// Whether this is a file that may be executed.
pub(crate) fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// The first executable file of this name in the folders of PATH.
#[must_use]
pub fn find_program(name: &OsStr) -> Option<PathBuf> {
    on_path(name).find(|path| is_executable(path))
}

#[cfg(test)]
mod tests {
    use super::{ask, find_program};
    use std::ffi::OsStr;
    use std::io::ErrorKind;
    use std::process::Command;
    use std::time::{Duration, Instant};

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn an_answer_is_given_whole() {
        let script = "echo out; echo err >&2; read line || exit 3";
        let answer = ask(&mut shell(script), Duration::from_secs(60)).expect("an answer");
        assert_eq!(answer.status.code(), Some(3));
        assert_eq!(
            (answer.stdout.as_str(), answer.stderr.as_str()),
            ("out\n", "err\n")
        );
    }

    #[test]
    fn who_does_not_answer_is_ended() {
        let begun = Instant::now();
        let error = ask(
            &mut shell("sleep 1000; echo late"),
            Duration::from_millis(100),
        )
        .expect_err("too late");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(100));
    }

    #[test]
    fn children_left_behind_do_not_hold_the_answer_back() {
        let begun = Instant::now();
        let answer = ask(
            &mut shell("sleep 1000 & echo here"),
            Duration::from_secs(60),
        )
        .expect("an answer");
        assert_eq!(answer.stdout, "here\n");
        assert!(begun.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn endless_words_are_cut() {
        let answer = ask(
            &mut shell("while echo yyyyyyyyyyyyyyyy; do :; done"),
            Duration::from_secs(60),
        );
        let answer = answer.expect("it is told that nobody reads on");
        assert_eq!(answer.stdout.len() as u64, super::MAX_WORDS);
    }

    #[test]
    fn programs_are_found_on_path() {
        assert!(find_program(OsStr::new("sh")).is_some_and(|path| path.ends_with("sh")));
        assert_eq!(find_program(OsStr::new("no-such-program-anywhere")), None);
    }
}
