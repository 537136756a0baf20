//! `cargo xtask exam jit`: programs whose threads write code while others run it, through QEMU and through ptrace, and guests whose
//! processors do.
//!
//! Each is recorded several times, with other processes at work beside it; each time the recorder's own list must be the decoded
//! flow (`--verify`), and the program must print what it prints without Cofi.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{Boot, Examined};
use clap::builder::PossibleValuesParser;

use super::{build, machine};

/// A command for a shell in the exam's folder.
struct Program {
    name: &'static str,
    /// The program that must be there.
    needs: &'static str,
    /// Run before, unrecorded.
    before: &'static str,
    line: &'static str,
    engine: &'static str,
    /// How often, for each round that is asked for.
    times: u32,
}

const fn qemu(name: &'static str, needs: &'static str, line: &'static str) -> Program {
    Program {
        name,
        needs,
        before: "",
        line,
        engine: "qemu",
        times: 1,
    }
}

/// One of the ways of `exam/programs/patched.c`.
const fn patched(name: &'static str, line: &'static str, engine: &'static str) -> Program {
    Program {
        name,
        needs: "gcc",
        before: "",
        line,
        engine,
        times: 10,
    }
}

/// Java's programs are compiled before they are recorded.
const fn java(name: &'static str, line: &'static str) -> Program {
    Program {
        before: "test -e Busy.class || javac Busy.java",
        ..qemu(name, "javac", line)
    }
}

const PROGRAMS: [Program; 19] = [
    patched("turns", "./patched turns 40", "qemu"),
    patched("running", "./patched running 200", "qemu"),
    patched("remapping", "./patched remapping 40", "qemu"),
    patched(
        "loading",
        "./patched loading 40 ./first.so ./second.so",
        "qemu",
    ),
    patched("forks", "./patched forks 40", "qemu"),
    patched("turns, ptrace", "./patched turns 40", "ptrace"),
    patched("running, ptrace", "./patched running 1000", "ptrace"),
    patched("remapping, ptrace", "./patched remapping 40", "ptrace"),
    patched(
        "loading, ptrace",
        "./patched loading 8 ./first.so ./second.so",
        "ptrace",
    ),
    patched("forks, ptrace", "./patched forks 40", "ptrace"),
    java("java", "java Busy 3000"),
    java("java, serial", "java -XX:+UseSerialGC Busy 3000"),
    java("java, parallel", "java -XX:+UseParallelGC Busy 3000"),
    java("java, C1", "java -XX:TieredStopAtLevel=1 Busy 3000"),
    java("java, interpreted", "java -Xint Busy 500"),
    qemu("node", "node", "node busy.js"),
    qemu("luajit", "luajit", "luajit busy.lua"),
    qemu("pypy3", "pypy3", "pypy3 busy.py"),
    qemu("python3", "python3", "python3 -I -S busy.py"),
];

/// Libraries of which one takes the other's place.
const LIBRARIES: [(&str, &str); 2] = [
    (
        "first",
        "int s = 1; for (volatile int i = 0; i < 3 + n; i++) s += i; return s;",
    ),
    (
        "second",
        "int s = 2; for (volatile int i = 0; i < 6 + n; i++) s ^= i * 3; return s;",
    ),
];

/// What a guest runs: the program above in two threads, filters that its kernel compiles, and tracers and branches that the kernel
/// patches into its own code.
const GUEST: &str = "#!/bin/busybox sh\n\
    b=/bin/busybox\n\
    $b mount -t proc proc /proc\n\
    $b mount -t sysfs sys /sys\n\
    $b mount -t devtmpfs dev /dev\n\
    t=/sys/kernel/tracing\n\
    $b mount -t tracefs tracefs $t\n\
    exec > /dev/ttyS0 2>&1\n\
    echo 1 > /proc/sys/net/core/bpf_jit_enable\n\
    /bin/patched turns 20 & /bin/patched running 60\n\
    /bin/patched forks 16\n\
    wait\n\
    /bin/guest\n\
    for i in 1 2; do for v in 1 0; do echo $v > /proc/sys/kernel/sched_schedstats; $b true; done; done\n\
    /bin/patched turns 20 &\n\
    for f in 'vfs_*' 'schedule*' 'do_sys*'; do\n\
    echo \"$f\" > $t/set_ftrace_filter; echo function > $t/current_tracer; $b true\n\
    $b head -c 2000 $t/trace > /dev/null; echo nop > $t/current_tracer\n\
    done\n\
    wait\n\
    echo the guest has done all\n\
    $b poweroff -f\n";

/// What the guest must have said.
const SAID: [&str; 4] = [
    "turns ",
    "running 1",
    "filters 60, received",
    "the guest has done all",
];

/// What the part is asked to do.
#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    cofi: Examined,
    #[command(flatten)]
    boot: Boot,
    /// A program, or `guest`, that is recorded, if not all; again for each further one
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(PROGRAMS.iter().map(|program| program.name).chain(["guest"])))]
    only: Vec<String>,
    /// How often each is recorded
    #[arg(long, value_name = "N", default_value_t = 2)]
    rounds: u32,
    /// Processes that work beside
    #[arg(long, value_name = "N", default_value_t = 2)]
    load: u32,
}

/// Processes that do nothing but work, until this is dropped.
struct Load(Vec<Child>);

impl Load {
    fn begin(processes: u32) -> Result<Self> {
        let mut load = Self(Vec::new());
        for _ in 0..processes {
            let mut shell = Command::new("sh");
            let child = shell.args(["-c", "while :; do :; done"]).spawn();
            load.0.push(child.context("starting a shell")?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Who is gone already need not be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the part and returns whether everything held.
pub(super) fn run(root: &Path, options: &Options) -> Result<bool> {
    let cofi = options.cofi.path(root)?;
    let started = Instant::now();
    let folder = std::env::temp_dir().join(format!("cofi-jit-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let exam = Exam {
        cofi,
        folder: folder.canonicalize()?,
        rounds: options.rounds,
    };
    exam.prepare(root)?;
    let load = Load::begin(options.load)?;
    let is_chosen =
        |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut results = BTreeMap::from([(true, 0), (false, 0)]);
    let mut judge = |name: &str, result: Result<String>| {
        *results.entry(result.is_ok()).or_default() += 1;
        match result {
            Ok(words) => println!("{name:<20} {words}"),
            Err(error) => println!("{name:<20} FAILED: {error:#}"),
        }
    };
    for program in PROGRAMS.iter().filter(|program| is_chosen(program.name)) {
        if exam.has(program.needs)? {
            judge(program.name, exam.sit(program));
        } else {
            println!(
                "{:<20} skipped: there is no {}",
                program.name, program.needs
            );
        }
    }
    if is_chosen("guest") {
        match (&options.boot.kernel, &options.boot.busybox) {
            (Some(kernel), Some(busybox)) => {
                let initrd = exam.initrd(root, busybox)?;
                for processors in [1, 2] {
                    let name = format!("guest, {processors} processor(s)");
                    judge(&name, exam.guest(kernel, &initrd, processors));
                }
            }
            _ => println!("guest                skipped: that takes --kernel and --busybox"),
        }
    }
    drop(load);
    // What cannot be removed lies in the folder for temporary files anyway.
    let _ = fs::remove_dir_all(&folder);
    println!(
        "exam of code that changes: {} held, {} failed, {:.0} s",
        results[&true],
        results[&false],
        started.elapsed().as_secs_f64()
    );
    ensure!(results.values().sum::<u32>() > 0, "nothing was recorded");
    Ok(results[&false] == 0)
}

struct Exam {
    cofi: PathBuf,
    folder: PathBuf,
    rounds: u32,
}

impl Exam {
    fn shell(&self, line: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir(&self.folder);
        shell.stdin(Stdio::null());
        shell
    }

    fn has(&self, program: &str) -> Result<bool> {
        let status = self
            .shell(&format!("command -v {program} > /dev/null"))
            .status()
            .context("starting a shell")?;
        Ok(status.success())
    }

    /// Puts everything in its place that is recorded.
    fn prepare(&self, root: &Path) -> Result<()> {
        for file in ["Busy.java", "busy.js", "busy.lua", "busy.py"] {
            fs::copy(root.join("exam/jit").join(file), self.folder.join(file))
                .with_context(|| format!("copying {file}"))?;
        }
        if !self.has("gcc")? {
            return Ok(());
        }
        let gcc = |out: &str, source: &Path, flags: &[&str]| {
            let mut command = Command::new("gcc");
            command.args(["-O1", "-o"]).arg(self.folder.join(out));
            build::tool(command.arg(source).args(flags))
        };
        gcc(
            "patched",
            &root.join("exam/programs/patched.c"),
            &["-pthread"],
        )?;
        for (name, body) in LIBRARIES {
            let source = self.folder.join(format!("{name}.c"));
            fs::write(&source, format!("int chosen(int n) {{ {body} }}\n"))?;
            gcc(&format!("{name}.so"), &source, &["-shared", "-fPIC"])?;
        }
        Ok(())
    }

    /// Records a program as often as is asked for.
    fn sit(&self, program: &Program) -> Result<String> {
        if !program.before.is_empty() {
            build::tool(&mut self.shell(program.before))?;
        }
        let alone = build::tool(&mut self.shell(program.line))?;
        let runs = program.times * self.rounds;
        let begun = Instant::now();
        let mut instructions = 0;
        for run in 1..=runs {
            let record = format!(
                "timeout --kill-after=5 900 {:?} record --engine {} --verify -o data -- {}",
                self.cofi, program.engine, program.line
            );
            let output = self.shell(&record).output().context("running cofi")?;
            let words = String::from_utf8_lossy(&output.stderr);
            let verified = words.lines().find(|line| line.contains("verified"));
            let (true, Some(verified)) = (output.status.success(), verified) else {
                bail!("run {run} of {runs} ended with {}: {words}", output.status);
            };
            ensure!(
                output.stdout == alone,
                "run {run} of {runs} printed {:?} and not {:?}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&alone)
            );
            instructions += count(verified);
        }
        Ok(format!(
            "{runs} runs exact, {} M instructions, {:.0} s",
            instructions / 1_000_000,
            begun.elapsed().as_secs_f64()
        ))
    }

    /// Files for the guest's kernel.
    fn initrd(&self, root: &Path, busybox: &Path) -> Result<PathBuf> {
        let busybox =
            fs::read(busybox).with_context(|| format!("reading {}", busybox.display()))?;
        let mut members = vec![("bin/busybox", busybox)];
        for (name, source) in [
            ("bin/patched", "exam/programs/patched.c"),
            ("bin/guest", "exam/machine/guest.c"),
        ] {
            let out = self.folder.join("static");
            let mut gcc = Command::new("gcc");
            gcc.args(["-O1", "-static", "-pthread", "-o"]).arg(&out);
            build::tool(gcc.arg(root.join(source)))?;
            members.push((name, fs::read(&out).context("reading a program")?));
        }
        members.push(("init", GUEST.into()));
        let archive = machine::archive(&["bin", "proc", "sys", "dev"], &members);
        let path = self.folder.join("initrd");
        fs::write(&path, archive)?;
        Ok(path)
    }

    fn guest(&self, kernel: &Path, initrd: &Path, processors: u32) -> Result<String> {
        let begun = Instant::now();
        let kernel = kernel.canonicalize()?;
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", "3600"])
            .arg(&self.cofi)
            .args(["record", "--engine", "qemu-system", "--verify"])
            .args(["-o", "guest.data", "--"])
            .args(machine::BARE)
            .args(["-m", "256", "-smp", &processors.to_string()])
            .args(["-serial", "file:guest.serial", "-kernel"])
            .arg(&kernel)
            .arg("-initrd")
            .arg(initrd)
            .args(["-append", "console=ttyS0 quiet panic=-1"])
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        let output = command.output().context("running cofi")?;
        let words = String::from_utf8_lossy(&output.stderr);
        let verified = words.lines().find(|line| line.contains("verified"));
        let (true, Some(verified)) = (output.status.success(), verified) else {
            bail!("it ended with {}: {words}", output.status);
        };
        let said = fs::read_to_string(self.folder.join("guest.serial"))
            .context("reading what the guest said")?;
        for part in SAID {
            ensure!(
                said.contains(part),
                "the guest did not say {part:?}: {said}"
            );
        }
        Ok(format!(
            "exact, {} M instructions, {:.0} s",
            count(verified) / 1_000_000,
            begun.elapsed().as_secs_f64()
        ))
    }
}

/// The first number in what Cofi says of a verified recording: its instructions.
fn count(words: &str) -> u64 {
    let digits = words
        .split_whitespace()
        .map(|word| word.replace(',', ""))
        .find_map(|word| word.parse().ok());
    digits.unwrap_or_default()
}
