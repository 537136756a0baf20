//! `cargo xtask exam machine`: whole machines, recorded by `cofi record --engine qemu-system`.
//!
//! A boot sector of ours goes from the reset vector through every mode and kind of interrupt; what `cofi insn` prints is compared with
//! QEMU's own log of what it executed. A Linux kernel boots to its shell on one processor and on two; its trace must decode
//! without a gap, and with the kernel's names.

mod calls;
mod log;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{Boot, Examined};
use serde_json::Value;

use self::calls::Calls;

/// What the part is asked to do.
#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    boot: Boot,
    #[command(flatten)]
    cofi: Examined,
    /// Where everything written stays
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

/// Runs the part and returns whether everything held.
pub(super) fn run(root: &Path, options: &Options) -> Result<bool> {
    let started = Instant::now();
    let cofi = options.cofi.path(root)?;
    let folder = options.keep.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("cofi-machines-{}", std::process::id()))
    });
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let exam = Exam {
        cofi,
        folder: folder.canonicalize()?,
    };
    let mut bad = 0;
    let mut judge = |name: &str, result: Result<String>| match result {
        Ok(words) => println!("{name:<24} {words}"),
        Err(error) => {
            bad += 1;
            println!("{name:<24} FAILED: {error:#}");
        }
    };
    let image = exam.boot_sector(root)?;
    judge("boot, against QEMU's log", exam.boot_against_log(&image));
    for privilege in ["all", "os", "user"] {
        let name = format!("boot, --privilege {privilege}");
        judge(&name, exam.boot_verified(&image, privilege, "tsc"));
        let name = format!("boot as RTIT, {privilege}");
        judge(&name, exam.boot_verified(&image, privilege, "rtit"));
    }
    if let (Some(kernel), Some(busybox)) = (&options.boot.kernel, &options.boot.busybox) {
        let initrd = exam.initrd(busybox)?;
        for processors in [1, 2] {
            let name = format!("Linux, {processors} processor(s)");
            let booted = exam.linux(kernel, &initrd, processors);
            let is_there = booted.is_ok();
            judge(&name, booted);
            if is_there {
                judge("  its calls", exam.linux_calls(processors));
            }
        }
    } else {
        println!("no Linux: that takes --kernel and --busybox");
    }
    if options.keep.is_none() {
        // What cannot be removed lies in the folder for temporary files anyway.
        let _ = fs::remove_dir_all(&folder);
    }
    println!(
        "exam of machines: {bad} failed, {:.0} s",
        started.elapsed().as_secs_f64()
    );
    Ok(bad == 0)
}

struct Exam {
    cofi: PathBuf,
    folder: PathBuf,
}

/// QEMU's arguments for a machine without anything that is not needed.
pub(super) const BARE: [&str; 8] = [
    "-display",
    "none",
    "-monitor",
    "none",
    "-net",
    "none",
    "-no-reboot",
    "-nodefaults",
];

impl Exam {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs a tool to its end; what it says on standard error.
    fn tool(&self, command: &mut Command) -> Result<String> {
        let output = command
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("running {}", command.get_program().display()))?;
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        ensure!(
            output.status.success(),
            "{} ended with {}: {words}",
            command.get_program().display(),
            output.status
        );
        Ok(words)
    }

    fn record(&self, name: &str, options: &[&str], machine: &[&str]) -> Result<String> {
        // What hangs ends some time.
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", "600"])
            .arg(&self.cofi)
            .args(["record", "--engine", "qemu-system", "-o", name])
            .args(options)
            .arg("--")
            .args(BARE)
            .args(machine);
        self.tool(&mut command)
    }

    /// Assembles the boot sector.
    fn boot_sector(&self, root: &Path) -> Result<PathBuf> {
        let (object, image) = (self.path("boot.o"), self.path("boot.img"));
        self.tool(
            Command::new("gcc")
                .arg("-c")
                .arg(root.join("exam/machine/boot.S"))
                .arg("-o")
                .arg(&object),
        )?;
        self.tool(
            Command::new("ld")
                .args(["-Ttext", "0x7c00", "--oformat", "binary", "-o"])
                .args([&image, &object]),
        )?;
        // A disk of whole tracks.
        File::options().write(true).open(&image)?.set_len(1 << 20)?;
        Ok(image)
    }

    fn disk(image: &Path) -> String {
        format!("file={},format=raw", image.display())
    }

    fn boot_against_log(&self, image: &Path) -> Result<String> {
        let disk = Self::disk(image);
        let logged = [
            "-drive",
            &disk,
            "-d",
            "in_asm,exec,nochain,int",
            "-D",
            "exec.log",
        ];
        let words = self.record("log.data", &[], &logged)?;
        ensure!(words.is_empty(), "cofi says: {words}");
        let mut child = Command::new(&self.cofi)
            .args(["insn", "--json", "log.data"])
            .current_dir(&self.folder)
            .stdout(Stdio::piped())
            .spawn()
            .context("running cofi insn")?;
        let out = child.stdout.take().context("no output of cofi insn")?;
        let list = BufReader::new(out).lines().filter_map(|line| {
            let parsed = line
                .map_err(anyhow::Error::from)
                .and_then(|line| address(&line));
            parsed.transpose()
        });
        let log = BufReader::new(File::open(self.path("exec.log")).context("opening QEMU's log")?);
        let agreed = log::compare(log, list);
        let status = child.wait()?;
        let agreed = agreed?;
        ensure!(status.success(), "cofi insn ended with {status}");
        // The sector's own: its interrupts and faults, of which each kind is there.
        ensure!(
            agreed.interrupts >= 13,
            "QEMU tells of {} interrupts only",
            agreed.interrupts
        );
        Ok(format!(
            "{} instructions in {} blocks, {} interrupts, {} blocks left early",
            agreed.instructions, agreed.blocks, agreed.interrupts, agreed.partial
        ))
    }

    fn boot_verified(&self, image: &Path, privilege: &str, config: &str) -> Result<String> {
        let disk = Self::disk(image);
        let options = ["--verify", "--privilege", privilege, "--config", config];
        let words = self.record("boot.data", &options, &["-drive", &disk])?;
        ensure!(
            words.lines().count() == 1 && words.contains("verified"),
            "cofi says: {words}"
        );
        Ok(words.trim_start_matches("cofi: ").to_owned())
    }

    /// Files for the kernel's first program: a shell script that says so and switches the machine off.
    fn initrd(&self, busybox: &Path) -> Result<PathBuf> {
        const INIT: &str = "#!/bin/busybox sh\n\
            /bin/busybox mount -t proc proc /proc\n\
            /bin/busybox mount -t devtmpfs dev /dev\n\
            echo 0 > /proc/sys/kernel/kptr_restrict\n\
            /bin/busybox cat /proc/kallsyms > /dev/ttyS1\n\
            echo the shell runs > /dev/ttyS0\n\
            /bin/busybox poweroff -f\n";
        let path = self.path("initrd");
        fs::write(&path, initrd(busybox, INIT)?)?;
        Ok(path)
    }

    fn linux(&self, kernel: &Path, initrd: &Path, processors: u32) -> Result<String> {
        let name = format!("linux{processors}.data");
        let (serial, names) = (format!("{name}.serial"), format!("{name}.kallsyms"));
        let kernel = kernel.canonicalize()?;
        let begun = Instant::now();
        let words = self.record(
            &name,
            &[],
            &[
                "-m",
                "256",
                "-smp",
                &processors.to_string(),
                "-serial",
                &format!("file:{serial}"),
                "-serial",
                &format!("file:{names}"),
                "-kernel",
                &kernel.to_string_lossy(),
                "-initrd",
                &initrd.to_string_lossy(),
                "-append",
                "console=ttyS0 quiet",
            ],
        )?;
        let recorded = begun.elapsed();
        // Which processors still ran when the machine ended is chance.
        let complaint = words
            .lines()
            .find(|line| !line.contains("ran when the machine ended"));
        ensure!(complaint.is_none(), "cofi says: {words}");
        let said = fs::read_to_string(self.path(&serial)).context("reading what the guest said")?;
        ensure!(
            said.contains("the shell runs"),
            "the guest did not come to its shell: {said}"
        );
        let begun = Instant::now();
        let output = Command::new(&self.cofi)
            .args(["report", "--functions", "40", "--kallsyms", &names, &name])
            .current_dir(&self.folder)
            .output()
            .context("running cofi report")?;
        let report = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success()
                && (report.contains("No gaps") || report.contains("ran when the machine ended")),
            "cofi report ended with {}: {report}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let total = report
            .lines()
            .rev()
            .find_map(|line| line.trim().strip_suffix("memory.code").map(|_| line))
            .unwrap_or_default();
        ensure!(
            report.contains("[kernel]"),
            "no function of the kernel has a name: {report}"
        );
        let sum: Vec<&str> = report
            .lines()
            .filter(|line| line.contains("CPU") || line.trim_start().starts_with("all "))
            .collect();
        Ok(format!(
            "to the shell in {:.0} s, decoded in {:.0} s; {} {total}",
            recorded.as_secs_f64(),
            begun.elapsed().as_secs_f64(),
            sum.join("; ")
        ))
    }
}

/// Parts of the boot of which the calls are looked at: before the kernel knows which processor this is, when its indirect calls and its
/// returns go through thunks; and up to the end, when programs run.
const PARTS: [&[&str]; 2] = [
    &["--from", "sym:setup_arch", "--to", "sym:trap_init"],
    &["--from", "time:-12ms"],
];

impl Exam {
    /// What must hold of the calls of a kernel that has booted.
    fn linux_calls(&self, processors: u32) -> Result<String> {
        let begun = Instant::now();
        let mut words = Vec::new();
        let mut entries = BTreeMap::new();
        // (Early, a second processor does not run yet.)
        let parts = if processors == 1 {
            &PARTS[..]
        } else {
            &PARTS[1..]
        };
        for part in parts {
            let calls = self
                .calls_of(part, processors)
                .with_context(|| part.join(" "))?;
            words.push(format!(
                "{} instructions in {} functions on {} stacks",
                calls.insns,
                calls.functions.len(),
                calls.stacks
            ));
            for (name, count) in calls.entries {
                *entries.entry(name).or_insert(0) += count;
            }
        }
        for name in [
            "entry_SYSCALL_64",
            "irq_entries_start",
            "asm_sysvec_apic_timer_interrupt",
            "asm_exc_page_fault",
        ] {
            ensure!(entries.contains_key(name), "no {name}: {entries:?}");
        }
        let seconds = begun.elapsed().as_secs_f64();
        let count: u64 = entries.values().sum();
        Ok(format!(
            "{}; {count} entries of the kernel; {seconds:.0} s",
            words.join(", ")
        ))
    }

    /// The calls of a part, which agree with what `cofi report` and `cofi top` have of it.
    fn calls_of(&self, part: &[&str], processors: u32) -> Result<Calls> {
        let name = format!("linux{processors}.data");
        let names = format!("{name}.kallsyms");
        let command = |word: &str| {
            let mut command = Command::new(&self.cofi);
            command.args([word, "--json", "--kallsyms", &names]);
            command.args(part).arg(&name).current_dir(&self.folder);
            command
        };
        let mut child = command("calls")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("running cofi calls")?;
        let out = child.stdout.take().context("no output of cofi calls")?;
        let calls = Calls::read(BufReader::new(out));
        let output = child.wait_with_output()?;
        let calls = calls?;
        self.may_end(&output)?;
        // A task that goes on upon another processor leaves its calls behind on this one, where they look like a stack that waits: a few may
        // be taken for another's.
        calls.all_left(if processors == 1 { 0 } else { 20 })?;
        // Signals and programs that are executed: few among thousands of entries.
        ensure!(calls.led_away < 20, "{} entries led away", calls.led_away);
        // A task has a stack of its own, and each program and thread of the kernel is one.
        ensure!(calls.stacks < 300, "{} stacks", calls.stacks);
        let sum = |word: &str, kind: &str, key: &str| -> Result<u64> {
            let output = command(word).output()?;
            self.may_end(&output)?;
            let text = String::from_utf8_lossy(&output.stdout);
            let objects = text.lines().map(serde_json::from_str::<Value>);
            objects.into_iter().try_fold(0, |sum, object| {
                let object = object.with_context(|| format!("{word} prints no JSON"))?;
                let number = object[key].as_u64().filter(|_| !object[kind].is_null());
                Ok(sum + number.unwrap_or(0))
            })
        };
        let counted = sum("report", "thread", "instructions")?;
        ensure!(
            calls.insns == counted,
            "{} instructions in calls, of {counted}",
            calls.insns
        );
        let output = command("top").output()?;
        self.may_end(&output)?;
        let top = String::from_utf8_lossy(&output.stdout);
        let mut functions: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for line in top.lines() {
            let object: Value = serde_json::from_str(line).context("cofi top prints no JSON")?;
            let number = |key: &str| object[key].as_u64().unwrap_or(0);
            let (own, with_callees) = (number("self_insns"), number("insns"));
            ensure!(own <= with_callees, "more of itself than in all: {line}");
            let function = functions
                .entry(object["function"].as_str().unwrap_or_default().to_owned())
                .or_default();
            *function = (function.0 + number("calls"), function.1 + own);
        }
        ensure!(functions == calls.functions, "cofi top has other counts");
        Ok(calls)
    }

    /// A command has read a recording whose machine ended while its processors ran, perhaps.
    fn may_end(&self, output: &Output) -> Result<()> {
        let words = String::from_utf8_lossy(&output.stderr);
        let complaint = words
            .lines()
            .find(|line| !line.contains("ran when the machine ended"));
        ensure!(
            complaint.is_none(),
            "it ended with {}: {words}",
            output.status
        );
        Ok(())
    }
}

/// The address of a line of `cofi insn --json`, if it is of an instruction.
pub(super) fn address(line: &str) -> Result<Option<u64>> {
    let item: serde_json::Value =
        serde_json::from_str(line).with_context(|| format!("{line:?} is no JSON"))?;
    if item.get("error").is_some() {
        bail!("cofi insn tells of an error: {line}");
    }
    let Some(ip) = item.get("insn").and_then(serde_json::Value::as_str) else {
        return Ok(None);
    };
    Ok(Some(u64::from_str_radix(ip.trim_start_matches("0x"), 16)?))
}

/// Files for a kernel: busybox, and its first program, which is a script.
pub fn initrd(busybox: &Path, init: &str) -> Result<Vec<u8>> {
    let busybox = fs::read(busybox).with_context(|| format!("reading {}", busybox.display()))?;
    let members = [("bin/busybox", busybox), ("init", init.into())];
    Ok(archive(&["bin", "proc", "dev"], &members))
}

/// An archive of folders and programs.
pub(super) fn archive(folders: &[&str], programs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for folder in folders {
        member(&mut archive, folder, 0o40755, &[]);
    }
    for (name, bytes) in programs {
        member(&mut archive, name, 0o100_755, bytes);
    }
    member(&mut archive, "TRAILER!!!", 0, &[]);
    archive
}

/// Adds a member to an archive of cpio's new format, as the kernel unpacks it.
fn member(archive: &mut Vec<u8>, name: &str, mode: u32, bytes: &[u8]) {
    let number = archive.len();
    let fields = [
        number,
        mode as usize,
        0,
        0,
        1,
        0,
        bytes.len(),
        0,
        0,
        0,
        0,
        name.len() + 1,
        0,
    ];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08x}").bytes());
    }
    archive.extend(name.bytes().chain([0]));
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend(bytes);
    archive.resize(archive.len().next_multiple_of(4), 0);
}
