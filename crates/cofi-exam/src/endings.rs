//! `cargo xtask exam endings`: everything that can end or damage a recording, and what comes of it. The table must be the one in
//! `docs/endings.md`; `--write` puts it there.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::Examined;
use serde_json::Value;

use super::build;

/// Longer than anything takes, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often to look.
const NAP: Duration = Duration::from_millis(30);
/// Where the table stands in its document.
const DOCUMENT: &str = "docs/endings.md";
const BEGIN: &str = "<!-- begin of the table -->\n";
const END: &str = "<!-- end of the table -->\n";

/// How a program comes to be recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Ptrace,
    Qemu,
    Attached,
}

impl How {
    const fn name(self) -> &'static str {
        match self {
            Self::Ptrace => "ptrace",
            Self::Qemu => "qemu",
            Self::Attached => "attached",
        }
    }
}

/// What happens to a recording that is under way.
#[derive(Clone, Copy)]
enum What {
    /// Nothing: the program ends.
    Nothing,
    /// The program gets a signal.
    ToProgram(&'static str),
    /// The command gets signals, one after the other.
    ToCofi(&'static [&'static str]),
    /// The tracer of the command gets a signal.
    ToTracer(&'static str),
    /// It runs until the file says that something is missing.
    RunsOut,
}

/// What is prepared before it begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// These words of a shell come before the command.
    Shell(&'static str),
    /// A file system of so many bytes is where the file goes.
    Room(&'static str),
    /// There is no such folder.
    NoFolder,
    /// FILE.code is a file.
    NoCode,
    /// FILE is a symbolic link.
    Link,
    /// FILE is a pipe that nobody reads.
    Pipe,
    /// Packets go to a pipe whose reader goes away.
    Unread,
    /// There is no such program.
    NoProgram,
    /// FILE is standard output.
    Output,
}

struct Case {
    title: &'static str,
    how: &'static [How],
    before: Before,
    what: What,
    mode: &'static str,
}

const LAUNCHED: &[How] = &[How::Ptrace, How::Qemu];
const ALL: &[How] = &[How::Ptrace, How::Qemu, How::Attached];
const ATTACHED: &[How] = &[How::Attached];

const fn case(title: &'static str, how: &'static [How], what: What) -> Case {
    let (before, mode) = (Before::Nothing, "busy");
    Case {
        title,
        how,
        before,
        what,
        mode,
    }
}

const fn prepared(title: &'static str, how: &'static [How], before: Before, what: What) -> Case {
    Case {
        before,
        ..case(title, how, what)
    }
}

const CASES: &[Case] = &[
    case("the program ends", ALL, What::Nothing),
    case("SIGTERM to the program", ALL, What::ToProgram("TERM")),
    case("SIGSEGV to the program", ALL, What::ToProgram("SEGV")),
    case("SIGKILL to the program", ALL, What::ToProgram("KILL")),
    case("SIGINT to `cofi`", LAUNCHED, What::ToCofi(&["INT"])),
    case("SIGINT to `cofi`", ATTACHED, What::ToCofi(&["INT"])),
    case("SIGQUIT to `cofi`", LAUNCHED, What::ToCofi(&["QUIT"])),
    case("SIGTERM to `cofi`", ALL, What::ToCofi(&["TERM"])),
    case("SIGHUP to `cofi`", ALL, What::ToCofi(&["HUP"])),
    Case {
        mode: "deaf",
        ..case(
            "SIGTERM and SIGHUP to `cofi`, the program ignores both",
            LAUNCHED,
            What::ToCofi(&["TERM", "HUP"]),
        )
    },
    case("SIGPIPE to `cofi`", LAUNCHED, What::ToCofi(&["PIPE"])),
    case("SIGUSR1 to `cofi`", ALL, What::ToCofi(&["USR1"])),
    case("SIGKILL to `cofi`", ALL, What::ToCofi(&["KILL"])),
    Case {
        mode: "idle",
        ..case(
            "SIGKILL to the tracer of `cofi`, the program sleeps",
            ATTACHED,
            What::ToTracer("KILL"),
        )
    },
    case(
        "SIGTERM to the tracer of `cofi`",
        ATTACHED,
        What::ToTracer("TERM"),
    ),
    prepared("a full disk", ALL, Before::Room("128k"), What::RunsOut),
    prepared(
        "a limit of the file's size (`ulimit -f`)",
        &[How::Ptrace, How::Attached],
        Before::Shell("ulimit -f 100"),
        What::RunsOut,
    ),
    prepared(
        "/dev/shm is full",
        &[How::Qemu],
        Before::Shell("mount -t tmpfs -o size=4k none /dev/shm"),
        What::Nothing,
    ),
    prepared(
        "an address space of 150 MB (`ulimit -v`)",
        LAUNCHED,
        Before::Shell("ulimit -v 150000"),
        What::Nothing,
    ),
    prepared(
        "the folder of FILE is missing",
        LAUNCHED,
        Before::NoFolder,
        What::Nothing,
    ),
    Case {
        mode: "clock",
        ..prepared(
            "FILE.code cannot be made, where code is saved",
            &[How::Ptrace, How::Attached],
            Before::NoCode,
            What::RunsOut,
        )
    },
    prepared(
        "FILE is a symbolic link",
        LAUNCHED,
        Before::Link,
        What::Nothing,
    ),
    prepared(
        "FILE is a pipe that nobody reads",
        LAUNCHED,
        Before::Pipe,
        What::Nothing,
    ),
    prepared("FILE is `-`", LAUNCHED, Before::Output, What::Nothing),
    prepared(
        "the reader of `--raw-output` goes away",
        LAUNCHED,
        Before::Unread,
        What::Nothing,
    ),
    prepared(
        "there is no such program",
        LAUNCHED,
        Before::NoProgram,
        What::Nothing,
    ),
];

/// One line of the table.
struct Line {
    title: &'static str,
    how: How,
    program: String,
    cofi: String,
    file: String,
    check: String,
}

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Put the table into docs/endings.md
    #[arg(long = "write")]
    writes: bool,
    /// Only what has these words in its title
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
    #[command(flatten)]
    cofi: Examined,
}

/// Runs all cases and compares.
pub(super) fn run(root: &Path, options: &Options) -> Result<bool> {
    let Options { only, writes, .. } = options;
    let writes = *writes;
    let begun = Instant::now();
    let cofi = options.cofi.path(root)?;
    let folder = std::env::temp_dir().join(format!("cofi-endings-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let program = folder.join("endless");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-o"]).arg(&program);
    build::tool(gcc.arg(root.join("exam/programs/endless.c")))?;
    let mut lines = Vec::new();
    let mut number = 0;
    for case in CASES {
        if only
            .as_ref()
            .is_some_and(|only| !case.title.contains(only.as_str()))
        {
            continue;
        }
        for how in case.how {
            number += 1;
            let here = folder.join(number.to_string());
            fs::create_dir(&here)?;
            let trial = Trial {
                cofi: &cofi,
                program: &program,
                data: here.join("disk/trace"),
                here: here.clone(),
                case,
                how: *how,
            };
            let line = trial.run();
            let line = line.with_context(|| format!("{}, {}", case.title, how.name()))?;
            eprintln!("{}", row(&line));
            lines.push(line);
        }
    }
    fs::remove_dir_all(&folder)?;
    let table = table(&lines);
    println!(
        "exam endings: {} endings, {:.0} s",
        lines.len(),
        begun.elapsed().as_secs_f64()
    );
    compare(root, &table, writes, only.is_some())
}

/// Whether the table is the one of the document.
fn compare(root: &Path, table: &str, writes: bool, is_part: bool) -> Result<bool> {
    let path = root.join(DOCUMENT);
    let text = fs::read_to_string(&path)?;
    let parts = text.split_once(BEGIN).zip(text.split_once(END));
    let ((before, rest), (_, after)) = parts.context("the document has no place for the table")?;
    let known = rest.split(END).next().unwrap_or_default();
    if writes {
        fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}"))?;
        return Ok(true);
    }
    let mut is_same = is_part || known.lines().count() == table.lines().count();
    for line in table
        .lines()
        .filter(|line| !known.lines().any(|known| known == *line))
    {
        is_same = false;
        println!("not in {DOCUMENT}: {line}");
    }
    Ok(is_same)
}

fn row(line: &Line) -> String {
    let Line {
        title,
        how,
        program,
        cofi,
        file,
        check,
    } = line;
    let how = how.name();
    format!("| {title} | {how} | {program} | {cofi} | {file} | {check} |")
}

fn table(lines: &[Line]) -> String {
    let mut table = "| what | how | the program | `cofi record` | FILE | `cofi check` |\n|---|---|---|---|---|---|\n".to_owned();
    for line in lines {
        table.push_str(&row(line));
        table.push('\n');
    }
    table
}

struct Trial<'a> {
    cofi: &'a Path,
    program: &'a Path,
    here: PathBuf,
    data: PathBuf,
    case: &'a Case,
    how: How,
}

/// Waits until something is so.
fn wait_for<T>(what: &str, mut so: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(found) = so()? {
            return Ok(found);
        }
        sleep(NAP);
    }
    bail!("{what} did not come within {} s", PATIENCE.as_secs())
}

fn signal(pid: u32, name: &str) -> Result<()> {
    build::tool(Command::new("kill").args([format!("-{name}"), pid.to_string()]))?;
    Ok(())
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| {
        let state = rest.trim_start();
        !state.is_empty() && !state.starts_with('Z')
    })
}

/// An end that is to come in any case: what is started is ended.
struct Guard(Vec<u32>, Option<PathBuf>);

impl Drop for Guard {
    fn drop(&mut self) {
        for pid in &self.0 {
            if is_alive(*pid) {
                let _ = signal(*pid, "KILL");
            }
        }
        if let Some(mounted) = &self.1 {
            let _ = Command::new("umount").arg("-l").arg(mounted).status();
        }
    }
}

impl Trial<'_> {
    fn go(&self) -> PathBuf {
        self.here.join("go")
    }

    fn begun(&self) -> Option<u32> {
        let text = fs::read_to_string(self.here.join("go.begun")).ok()?;
        text.trim().parse().ok()
    }

    fn prepare(&self) -> Result<Option<PathBuf>> {
        let disk = self.here.join("disk");
        if self.case.before == Before::NoFolder {
            return Ok(None);
        }
        fs::create_dir(&disk)?;
        let mut mounted = None;
        match self.case.before {
            Before::Room(size) => {
                let mut mount = Command::new("mount");
                mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]);
                build::tool(mount.arg(&disk)).context("a full disk is made by root")?;
                mounted = Some(disk);
            }
            Before::NoCode => fs::write(self.here.join("disk/trace.code"), "")?,
            Before::Link => std::os::unix::fs::symlink("elsewhere", &self.data)?,
            Before::Pipe => drop(build::tool(Command::new("mkfifo").arg(&self.data))?),
            Before::Unread => {
                drop(build::tool(
                    Command::new("mkfifo").arg(self.here.join("raw")),
                )?);
            }
            _ => {}
        }
        if !matches!(self.case.before, Before::Link | Before::Pipe) {
            fs::write(&self.data, "earlier")?;
        }
        Ok(mounted)
    }

    fn command(&self, attached: Option<u32>) -> Command {
        let mut words: Vec<String> = vec![self.cofi.display().to_string(), "record".into()];
        let data = match self.case.before {
            Before::Output => "-".into(),
            _ => self.data.display().to_string(),
        };
        words.extend(["-o".into(), data]);
        if self.case.before == Before::Unread {
            let raw = self.here.join("raw").display().to_string();
            words.extend(["--raw-output".into(), raw]);
        }
        match attached {
            Some(pid) => words.extend(["-p".into(), pid.to_string()]),
            None => {
                words.extend(["--engine".into(), self.how.name().into(), "--".into()]);
                words.extend(match self.case.before {
                    Before::NoProgram => ["/no/such/program".into(), String::new(), String::new()],
                    _ => [
                        self.program.display().to_string(),
                        self.go().display().to_string(),
                        self.case.mode.into(),
                    ],
                });
                // So that it is hardly ever in a system call.
                words.push(
                    if self.how == How::Qemu {
                        "200000"
                    } else {
                        "2000"
                    }
                    .into(),
                );
            }
        }
        let mut command = match self.case.before {
            Before::Shell(before) => {
                let mut command = Command::new("unshare");
                let script = format!("{before} && exec \"$@\"");
                command
                    .args(["-m", "bash", "-c", &script, "bash"])
                    .args(words);
                command
            }
            _ => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                command
            }
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .env_remove("RUST_BACKTRACE");
        command
    }

    /// What `cofi check` says of the file now.
    fn check(&self) -> Result<(i32, Value)> {
        let mut command = Command::new(self.cofi);
        let output = command.args(["check", "--json"]).arg(&self.data).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().unwrap_or("null");
        let summary = serde_json::from_str::<Value>(last)?["summary"].clone();
        Ok((output.status.code().unwrap_or(-1), summary))
    }

    fn run(&self) -> Result<Line> {
        let mut guard = Guard(Vec::new(), self.prepare()?);
        let own = match self.how {
            How::Attached => {
                let mut command = Command::new(self.program);
                command.arg(self.go()).arg(self.case.mode);
                let child = command.spawn()?;
                guard.0.push(child.id());
                wait_for("the program", || Ok(self.begun()))?;
                Some(child)
            }
            _ => None,
        };
        let pid = own.as_ref().map(Child::id);
        let words = fs::File::create(self.here.join("words"))?;
        let reader = self.reader()?;
        let mut cofi = self.command(pid).stderr(words).spawn()?;
        guard.0.insert(0, cofi.id());
        let has_begun = wait_for("the recording", || self.has_begun(&mut cofi))?;
        drop(reader);
        let pid = pid.or_else(|| self.begun());
        guard.0.extend(pid);
        if has_begun {
            self.act(&cofi, pid.context("a program")?)?;
        }
        let runs_out = matches!(self.case.what, What::RunsOut) && has_begun;
        if runs_out {
            wait_for("a word of what is missing", || {
                let (_, summary) = self.check()?;
                let missing = summary["missing"].as_array().map_or(0, Vec::len);
                Ok((missing > 1
                    || summary["finished"] == true
                    || missing == 1 && self.is_over(&summary))
                .then_some(()))
            })?;
        }
        // Whoever still runs, ends now.
        if self.may_run_on() {
            fs::write(self.go(), "")?;
        }
        let status = wait_for("the end of cofi", || Ok(cofi.try_wait()?))?;
        fs::write(self.go(), "")?;
        if self.how == How::Attached && status.signal().is_some() {
            // The tracer outlives the command, and completes the file.
            wait_for("the end of the tracer", || {
                let (_, summary) = self.check()?;
                Ok((summary["finished"] == true).then_some(()))
            })?;
        }
        let program = self.fate(own, pid)?;
        let (file, check) = self.file()?;
        Ok(Line {
            title: self.case.title,
            how: self.how,
            program,
            cofi: exit(status),
            file,
            check,
        })
    }

    /// Whether it was said that something could not be written.
    fn is_over(&self, summary: &Value) -> bool {
        summary["missing"].to_string().contains("cannot write")
    }

    /// A reader of the pipe for bare packets, until it is dropped.
    fn reader(&self) -> Result<Option<fs::File>> {
        use std::os::unix::fs::OpenOptionsExt;
        if self.case.before != Before::Unread {
            return Ok(None);
        }
        // O_NONBLOCK: the other end comes later.
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(0o4000)
            .open(self.here.join("raw"))?;
        Ok(Some(file))
    }

    /// Whether the recording is under way; that it is not is known when the command has ended.
    fn has_begun(&self, cofi: &mut Child) -> Result<Option<bool>> {
        if cofi.try_wait()?.is_some() {
            return Ok(Some(false));
        }
        if self.begun().is_none() || fs::read(&self.data).is_ok_and(|bytes| bytes == b"earlier") {
            return Ok(None);
        }
        let (_, summary) = self.check()?;
        let says = summary["missing"]
            .as_array()
            .is_some_and(|missing| missing.len() > 1)
            || self.is_over(&summary);
        let ran = summary["instructions"].as_u64().unwrap_or(0) > 0;
        Ok((ran || says).then_some(true))
    }

    /// Whether the program is to end by itself, or is let go for other reasons.
    fn may_run_on(&self) -> bool {
        match self.case.what {
            What::Nothing | What::RunsOut => true,
            What::ToProgram(_) => false,
            // What is handed on ends the program, if it listens.
            What::ToCofi(["INT" | "QUIT" | "PIPE"]) => self.how != How::Attached,
            What::ToCofi(_) | What::ToTracer(_) => false,
        }
    }

    fn act(&self, cofi: &Child, pid: u32) -> Result<()> {
        match self.case.what {
            What::Nothing | What::RunsOut => {}
            What::ToProgram(name) => signal(pid, name)?,
            What::ToCofi(names) => {
                for name in names {
                    signal(cofi.id(), name)?;
                }
            }
            What::ToTracer(name) => {
                let children = format!("/proc/{0}/task/{0}/children", cofi.id());
                let children = fs::read_to_string(children)?;
                let tracer = children.split_whitespace().next().context("a tracer")?;
                signal(tracer.parse()?, name)?;
            }
        }
        Ok(())
    }

    /// What became of the program.
    fn fate(&self, own: Option<Child>, pid: Option<u32>) -> Result<String> {
        let Some(pid) = pid else {
            return Ok("is not started".into());
        };
        if let Some(mut child) = own {
            let status = wait_for("the program's end", || Ok(child.try_wait()?))?;
            return Ok(match status.signal() {
                Some(signal) => format!("is ended by signal {signal}"),
                None => format!("runs to its end, status {}", status.code().unwrap_or(-1)),
            });
        }
        wait_for("the program's end", || Ok((!is_alive(pid)).then_some(())))?;
        let ended = self.here.join("go.ended").exists();
        Ok(if ended { "runs to its end" } else { "is ended" }.into())
    }

    /// What the file holds, and what `cofi check` says.
    fn file(&self) -> Result<(String, String)> {
        let data = fs::symlink_metadata(&self.data).ok();
        let nothing = |text: &str| Ok((text.to_owned(), "–".to_owned()));
        let Some(data) = data else {
            return nothing("none");
        };
        if data.is_symlink() || !data.is_file() {
            return nothing("untouched");
        }
        if fs::read(&self.data).is_ok_and(|bytes| bytes == b"earlier") {
            let beside = fs::read_dir(self.here.join("disk"))?.count();
            return nothing(if beside == 1 {
                "the earlier one"
            } else {
                "the earlier one, and leftovers"
            });
        }
        let old = fs::read(self.data.with_extension("old")).unwrap_or_default();
        ensure!(old == b"earlier", "FILE.old is not the earlier one");
        let (status, summary) = self.check()?;
        let missing: Vec<&str> = summary["missing"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        // Whether packets end with the last flush, or at a PSB behind it, tracing being on there, is chance.
        let ends = summary["gaps_by_kind"]["unknown-end"].as_u64().unwrap_or(0);
        let gaps = summary["gaps"].as_u64().unwrap_or(0) - ends;
        let file = match (missing.is_empty(), summary["finished"] == true) {
            _ if summary["instructions"].as_u64().unwrap_or(0) == 0 => {
                "nothing that can be decoded"
            }
            _ if gaps != 0 || summary["diagnostics"] != 0 => "what ran until then, with gaps",
            (true, true) => "everything",
            (false, true) => "what ran until then, and what is missing",
            (_, false) => "what ran until then",
        };
        // How much of the last packets finds room is chance.
        let missing = missing
            .iter()
            .filter(|text| !text.contains("found no room"));
        let mut words: Vec<String> = missing.map(|text| self.plain(text)).collect();
        words.insert(0, format!("status {status}"));
        Ok((file.into(), words.join("; ")))
    }

    /// A sentence without what is other each time.
    fn plain(&self, text: &str) -> String {
        let text = text.replace(&self.data.display().to_string(), "FILE");
        let mut plain = String::new();
        for word in text.split(' ') {
            if !plain.is_empty() {
                plain.push(' ');
            }
            let number = word
                .strip_suffix(':')
                .filter(|word| word.parse::<u32>().is_ok());
            plain.push_str(number.map_or(word, |_| "N:"));
        }
        plain
    }
}

fn exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(signal)) => format!("is ended by signal {signal}"),
        _ => "?".into(),
    }
}
