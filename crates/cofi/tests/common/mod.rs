//! What the tests of the command share: programs built into a folder of their own, and runs that cannot hang.
#![allow(dead_code)] // each test file uses a part

pub(crate) mod index;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::flag::register_conditional_default;
use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Once};
use tempfile::TempDir;

/// Longer than any run takes, even on a busy machine.
pub(crate) use cofi_test::PATIENCE;

pub(crate) const STATIC: &[&str] = &["-O1", "-static", "-pthread"];
pub(crate) const DYNAMIC: &[&str] = &["-O1", "-pthread"];
pub(crate) const ASM: &[&str] = &["-nostdlib", "-static", "-no-pie"];
pub(crate) const ASM_32: &[&str] = &["-m32", "-nostdlib", "-static", "-no-pie"];

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ran {
    /// The exit status as a shell gives it.
    pub(crate) fn code(&self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// The command under test, with those variables that it or its programs need. Cargo has some 40 more for a test: a C library goes through each of
/// them as a program starts, for each of its own settings, and of 53,000 recorded instructions of a short program 42,000 would be that.
pub(crate) fn cofi() -> Command {
    hand_on_no_ignored_signals();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofi"));
    let needed = |name: &OsStr| {
        let name = name.as_encoded_bytes();
        let wholes = ["PATH", "HOME", "TMPDIR", "LANG"];
        let beginnings = ["COFI_", "XDG_", "LLVM_PROFILE_"];
        wholes.iter().any(|whole| name == whole.as_bytes())
            || beginnings
                .iter()
                .any(|part| name.starts_with(part.as_bytes()))
    };
    command.env_clear();
    command.envs(std::env::vars_os().filter(|(name, _)| needed(name)));
    command
}

/// Has the command start with the usual effect of the signals that tests send, whatever started the tests: a shell has SIGINT ignored by what it
/// runs in the background, `nohup` SIGHUP, and what is ignored stays so in each program that is started. What is caught does not, so these are
/// caught here, and do what they do by themselves.
fn hand_on_no_ignored_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status =
            std::fs::read_to_string("/proc/self/status").expect("the state of this process");
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = u64::from_str_radix(ignored.expect("ignored signals").trim(), 16);
        let ignored = ignored.expect("a number");
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            if ignored & 1 << (signal as i32 - 1) != 0 {
                let always = Arc::new(AtomicBool::new(true));
                register_conditional_default(signal as i32, always).expect("a handler");
            }
        }
    });
}

/// Waits for `child`, and kills it when it takes too long.
pub(crate) fn wait(child: Child) -> Ran {
    let pid = Pid::from_raw(child.id() as i32);
    let (send, receive) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = send.send(child.wait_with_output());
        });
        let output = match receive.recv_timeout(PATIENCE) {
            Ok(output) => output.expect("waiting for the command"),
            Err(RecvTimeoutError::Timeout) => {
                let _ = kill(pid, Signal::SIGKILL);
                panic!("the command did not end within {PATIENCE:?}");
            }
            Err(RecvTimeoutError::Disconnected) => panic!("waiting for the command failed"),
        };
        Ran {
            status: output.status,
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    })
}

/// Runs a command with `input` on its standard input.
pub(crate) fn run_with(command: &mut Command, input: &[u8]) -> Ran {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starting the command");
    let mut stdin = child.stdin.take().expect("a pipe");
    match stdin.write_all(input) {
        // It need not read what it is given, as after wrong usage.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.expect("writing to the command"),
    }
    drop(stdin);
    wait(child)
}

/// Runs a command with nothing on its standard input.
pub(crate) fn run(command: &mut Command) -> Ran {
    run_with(command, b"")
}

/// A folder of its own for what a test makes.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder for the test"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("writing a file of the test");
        path
    }

    /// Builds a source file. Nothing, and the rest is skipped, where the compiler does not take these flags.
    #[track_caller]
    pub(crate) fn compile(&self, source: &Path, flags: &[&str]) -> Option<PathBuf> {
        let stem = source.file_stem().expect("a file name").to_string_lossy();
        let program = self.path(&stem);
        cofi_test::compile(source, &program, flags).then_some(program)
    }

    /// Builds one of the exam's programs.
    #[track_caller]
    pub(crate) fn program(&self, file: &str, flags: &[&str]) -> Option<PathBuf> {
        self.compile(&repository().join("exam/programs").join(file), flags)
    }
}

/// The repository's folder.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `cofi record` of `program`, comparing, into `data`.
pub(crate) fn record(data: &Path, config: Option<&str>) -> Command {
    let mut command = cofi();
    command.args(["record", "--engine", "ptrace", "--verify", "-o"]);
    command.arg(data);
    if let Some(config) = config {
        command.args(["--config", config]);
    }
    command
}

/// `cofi COMMAND --json` of `file`.
pub(crate) fn json(command: &str, more: &[&OsStr], file: &Path) -> Command {
    let mut cofi = cofi();
    cofi.args([command, "--json"]).args(more).arg(file);
    cofi
}

/// The addresses in the output of `cofi insn --json`.
pub(crate) fn addresses(output: &[u8]) -> Vec<u64> {
    output
        .split(|byte| *byte == b'\n')
        .filter_map(address)
        .collect()
}

/// The address in a line of `cofi insn --json`, if it is an instruction.
pub(crate) fn address(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b"{\"insn\":\"0x")?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    let digits = std::str::from_utf8(&rest[..end]).ok()?;
    Some(u64::from_str_radix(digits, 16).expect("an address in hexadecimal"))
}

/// Whether QEMU's user mode is installed; skipped if not.
#[track_caller]
pub(crate) fn has_qemu() -> bool {
    cofi_test::has_program("qemu-x86_64")
}

/// Whether this is root; skipped if not.
#[track_caller]
pub(crate) fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        cofi_test::skip("for root only");
    }
    is_root
}

/// Runs a command on a terminal of so many columns; nothing where there is no `script`.
pub(crate) fn on_terminal(columns: &str, command: &str) -> Option<String> {
    let ran = Command::new("script")
        .args(["-qec", command, "/dev/null"])
        .env("COLUMNS", columns)
        .env("TERM", "dumb")
        .output();
    match ran {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).replace('\r', "")),
        Err(error) => {
            eprintln!("skipped: no `script`: {error}");
            None
        }
    }
}
