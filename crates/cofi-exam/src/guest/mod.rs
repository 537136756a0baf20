//! `cargo xtask exam guest`: machines that have Intel PT, as `cofi machine` runs them.
//!
//! A program on bare metal walks the trace registers, and what each access does is compared with a table written from the manual. Others trace
//! themselves, and of what they send, Cofi's decoder finds just the instructions that the machine lists. Linux
//! boots with one processor and with two, and the perf in it records with Intel PT: perf decodes without an error; and
//! of what leaves the machine, Cofi's decoder finds just the instructions that ran, which the machine lists itself.

mod bare;
mod gdb;
mod linux;
mod load;
mod ring;
mod rules;
mod saved;
mod speed;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser};

use crate::{Boot, Examined};

/// What the part is asked to do.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The folder of a QEMU that takes the plugin of `cofi machine`
    #[arg(long, value_name = "PATH")]
    qemu: Option<PathBuf>,
    #[command(flatten)]
    boot: Boot,
    /// A newer kernel, for the machine of that name
    #[arg(long, value_name = "FILE")]
    newer_kernel: Option<PathBuf>,
    /// The names of the machines with Linux that are booted, with commas; all if it is left out
    #[arg(long, value_name = "NAMES")]
    boots: Option<PathBuf>,
    /// Seconds for which a machine has much to do; it is the only one then
    #[arg(long, value_name = "SECONDS", requires = "kernel")]
    load: Option<u64>,
    /// The folder that was kept of such a machine: its recordings are judged once more
    #[arg(long, value_name = "FOLDER")]
    judge: Option<PathBuf>,
    #[command(flatten)]
    cofi: Examined,
    /// Where everything written stays
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

/// Runs the part and returns whether everything held.
pub(super) fn run(root: &Path, options: &Options) -> Result<bool> {
    let started = Instant::now();
    let exam = Exam::new(root, options)?;
    let mut bad = 0;
    let mut judge = |name: &str, result: Result<String>| match result {
        Ok(words) => println!("{name:<34} {words}"),
        Err(error) => {
            bad += 1;
            println!("{name:<34} FAILED: {error:#}");
        }
    };
    match (options.load, &options.boot.kernel, &options.boot.busybox) {
        _ if options.judge.is_some() => judge("load", exam.judge_all()),
        (Some(seconds), Some(kernel), Some(busybox)) => {
            judge("load", exam.load(seconds, kernel, busybox));
        }
        _ => exam.all(options, &mut judge)?,
    }
    if options.keep.is_none() && options.judge.is_none() {
        exam.remove();
    }
    println!(
        "exam of guests: {bad} failed, {:.0} s",
        started.elapsed().as_secs_f64()
    );
    Ok(bad == 0)
}

/// The arguments of [`speed`].
#[derive(Debug, Parser)]
struct Speed {
    #[command(flatten)]
    options: Options,
}

/// Measures how fast such a machine is, in so many boots, and returns a table. The arguments are those of the part `guest`.
///
/// # Errors
/// The arguments make no sense, or something that is needed cannot be run.
pub fn speed(
    root: &Path,
    arguments: &[String],
    rounds: usize,
    median: impl Fn(Vec<f64>) -> f64,
) -> Result<String> {
    let words = std::iter::once("guest").chain(arguments.iter().map(String::as_str));
    let Speed { options } = Speed::try_parse_from(words)?;
    let (Some(kernel), Some(busybox)) = (&options.boot.kernel, &options.boot.busybox) else {
        bail!("that takes --kernel and --busybox");
    };
    let exam = Exam::new(root, &options)?;
    let table = exam.speed(rounds, kernel, busybox, median);
    if options.keep.is_none() {
        exam.remove();
    }
    table
}

/// What all parts need.
#[derive(Debug)]
struct Exam {
    cofi: PathBuf,
    root: PathBuf,
    folder: PathBuf,
    qemu: Option<PathBuf>,
}

impl Exam {
    fn new(root: &Path, options: &Options) -> Result<Self> {
        let cofi = options.cofi.path(root)?;
        let folder = options
            .judge
            .as_ref()
            .or(options.keep.as_ref())
            .cloned()
            .unwrap_or_else(|| {
                std::env::temp_dir().join(format!("cofi-guest-{}", std::process::id()))
            });
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        Ok(Self {
            cofi,
            root: root.to_owned(),
            folder: folder.canonicalize()?,
            qemu: options.qemu.clone().map(fs::canonicalize).transpose()?,
        })
    }

    /// Removes what was made for it.
    fn remove(&self) {
        // What cannot be removed lies in the folder for temporary files anyway.
        let _ = fs::remove_dir_all(&self.folder);
    }

    /// The machines that take minutes.
    fn all(&self, options: &Options, judge: &mut impl FnMut(&str, Result<String>)) -> Result<()> {
        for (name, table, options) in rules::TABLES {
            judge(name, self.rules(table, options));
        }
        judge("RTIT, from bare metal", self.rtit());
        judge("all modes, from bare metal", self.modes());
        judge("time by instructions", self.clock());
        if let (Some(kernel), Some(busybox)) = (&options.boot.kernel, &options.boot.busybox) {
            judge("a machine that was saved", self.saved(kernel, busybox));
            let initrd = self.initrd(busybox)?;
            let asked = options.boots.as_deref().map(Path::to_string_lossy);
            let is_asked = |name: &str| {
                let asked = asked.as_deref();
                asked.is_none_or(|list| list.split(',').any(|word| word == name))
            };
            for boot in linux::BOOTS.iter().filter(|boot| is_asked(boot.name)) {
                let kernel = match (&options.newer_kernel, boot.is_newer) {
                    (Some(newer), true) => newer,
                    (None, true) => {
                        println!("{}: SKIPPED: that takes --newer-kernel", boot.title());
                        continue;
                    }
                    (_, false) => kernel,
                };
                match self.boot(boot, kernel, &initrd) {
                    Ok(linux) => {
                        for (name, result) in linux.recordings(self) {
                            judge(&format!("{}, {name}", boot.title()), result);
                        }
                    }
                    Err(error) => judge(&boot.title(), Err(error)),
                }
            }
        } else {
            println!("no Linux: that takes --kernel and --busybox");
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// `cofi machine` with these options of its own; `--` and QEMU's arguments are to follow.
    fn machine(&self, options: &[&str]) -> std::process::Command {
        self.machine_within(900, options)
    }

    /// The same, if it runs for no longer than so many seconds.
    fn machine_within(&self, seconds: u64, options: &[&str]) -> std::process::Command {
        // What hangs ends some time.
        let mut command = std::process::Command::new("timeout");
        command
            .args(["--kill-after=5", &seconds.to_string()])
            .arg(&self.cofi)
            .arg("machine");
        if let Some(qemu) = &self.qemu {
            command.arg("--qemu").arg(qemu);
        }
        command
            .args(options)
            .arg("--")
            .args(super::machine::BARE)
            .current_dir(&self.folder)
            .stdin(std::process::Stdio::null());
        command
    }
}
