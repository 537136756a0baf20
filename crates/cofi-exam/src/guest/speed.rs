//! `cargo xtask bench machine`: how fast a machine with Intel PT is, not traced and traced, beside QEMU alone in the same run.
//!
//! By turns a guest with one processor is booted by QEMU alone and by `cofi machine`. Its script compresses a file, and each time tells the seconds in user mode.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::super::build::tool;
use super::super::machine::BARE;
use super::Exam;

/// So often each is measured in one boot.
const TIMES: usize = 3;
/// What is compressed: so many bytes of a program.
const BYTES: usize = 3_000_000;

/// What is measured, and how it is called in the guest.
const ALONE: (&str, &str) = ("QEMU alone", "alone");
const KINDS: [(&str, &str); 4] = [
    ALONE,
    ("not traced", "plain"),
    ("traced, user", "user"),
    ("traced, kernel too, cyc", "cyc"),
];

/// What was told, by the name of what it is of.
#[derive(Debug, Default)]
struct Told(BTreeMap<String, Vec<f64>>);

impl Told {
    /// Takes what a guest said: lines of `SPEED name number`.
    fn take(&mut self, said: &str) -> Result<()> {
        for line in said.lines() {
            let Some(rest) = line.trim().strip_prefix("SPEED ") else {
                continue;
            };
            let (name, number) = rest
                .split_once(' ')
                .with_context(|| format!("{line:?} tells of nothing"))?;
            let number = number
                .trim()
                .parse()
                .with_context(|| format!("{line:?} has no number"))?;
            self.0.entry(name.to_owned()).or_default().push(number);
        }
        Ok(())
    }

    fn of(&self, name: &str) -> Result<Vec<f64>> {
        let all = self.0.get(name).filter(|all| !all.is_empty());
        all.cloned()
            .with_context(|| format!("the guest told nothing of {name}"))
    }

    fn least(&self, name: &str) -> Result<f64> {
        Ok(self.of(name)?.into_iter().fold(f64::INFINITY, f64::min))
    }
}

impl Exam {
    /// Measures in so many boots of each, and returns a table.
    pub(super) fn speed(
        &self,
        rounds: usize,
        kernel: &Path,
        busybox: &Path,
        median: impl Fn(Vec<f64>) -> f64,
    ) -> Result<String> {
        let qemu = self.qemu.as_deref().context("that takes --qemu")?;
        let initrd = self.initrd_that_runs(busybox, &script())?;
        let mut told = Told::default();
        for _ in 0..rounds {
            told.take(&self.guest(&mut alone(qemu)?, "alone", kernel, &initrd)?)?;
            let mut machine = self.machine(&["--processor", "skylake"]);
            told.take(&self.guest(&mut machine, "machine", kernel, &initrd)?)?;
        }
        let millions = |name| Ok::<_, anyhow::Error>(median(told.of(name)?) / 1e6);
        let (instructions, branches) = (millions("instructions")?, millions("branches")?);
        let mut table = format!(
            "gzip -c of {BYTES} bytes: {instructions:.0} million instructions, {branches:.0} million branches; seconds in user mode\n\
             {:<26} {:>6} {:>6} {:>6} {:>20}\n",
            "", "least", "median", "times", "M branches a second"
        );
        let alone = told.least(ALONE.1)?;
        for (title, name) in KINDS {
            let (least, median) = (told.least(name)?, median(told.of(name)?));
            table += &format!(
                "{title:<26} {least:>6.2} {median:>6.2} {:>6.2} {:>20.1}\n",
                least / alone,
                branches / least
            );
        }
        let boots = ["boot-alone", "boot-machine"].map(|name| told.least(name));
        let [alone, machine] = boots.map(|least| least.unwrap_or(f64::NAN));
        table += &format!(
            "seconds to the first program: QEMU alone {alone:.2}, cofi machine {machine:.2}, not traced\n"
        );
        Ok(table)
    }

    /// Boots a machine, and returns what it said.
    fn guest(
        &self,
        machine: &mut Command,
        name: &str,
        kernel: &Path,
        initrd: &Path,
    ) -> Result<String> {
        let console = self.path(name).with_extension("console");
        let words = machine
            .args(["-m", "1G", "-smp", "1", "-serial"])
            .arg(format!("file:{}", console.display()))
            .arg("-initrd")
            .arg(initrd)
            .arg("-kernel")
            .arg(kernel.canonicalize()?)
            .arg("-append")
            .arg(format!("console=ttyS0 quiet tsc=reliable part={name}"))
            .current_dir(&self.folder);
        let words = tool(words)?;
        let said = fs::read_to_string(&console).context("reading what the guest said")?;
        ensure!(
            said.contains("DONE"),
            "the guest did not come to its end: {}\n{said}",
            String::from_utf8_lossy(&words)
        );
        Ok(said)
    }
}

/// The QEMU that `cofi machine` would run, without a plugin: its folder is another Debian's.
fn alone(qemu: &Path) -> Result<Command> {
    ensure!(
        qemu.is_dir(),
        "{} is no folder with another Debian's QEMU",
        qemu.display()
    );
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", "900"])
        .arg(qemu.join("usr/lib64/ld-linux-x86-64.so.2"))
        .arg("--library-path")
        .arg(qemu.join("usr/lib/x86_64-linux-gnu"))
        .arg(qemu.join("usr/bin/qemu-system-x86_64"));
    for data in ["usr/share/qemu", "usr/share/seabios"] {
        command.arg("-L").arg(qemu.join(data));
    }
    command.args(["-cpu", "max"]).args(BARE);
    Ok(command)
}

/// What the guest does.
fn script() -> String {
    // (`time -p` has a line for the seconds in user mode.)
    let times = |name: &str, before: &str| {
        format!(
            "for i in $(seq {TIMES}); do {before} sh /tmp/work 2>&1 | sed -n 's/^user/SPEED {name}/p'; done\n"
        )
    };
    let traced = times("user", "perf record -q -B -S -m,64 -o t -e intel_pt//u --")
        + &times("cyc", "perf record -q -B -S -m,64 -o t -e intel_pt/cyc/ --");
    format!(
        "#!/bin/busybox sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/bin HOME=/root\n\
         mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp\n\
         echo \"SPEED boot-$part $(cut -d' ' -f1 /proc/uptime)\"\n\
         echo -1 > /proc/sys/kernel/perf_event_paranoid\n\
         cd /tmp; head -c {BYTES} /bin/perf > data\n\
         echo 'time -p gzip -c /tmp/data > /dev/null' > work; sh work 2>/dev/null\n\
         if [ $part = alone ]; then {}else\n{}{traced}\
         perf stat -x' ' -e instructions:u,branches:u -o counts gzip -c data > /dev/null\n\
         sed -n 's/^\\([0-9]*\\) *\\([a-z]*\\):u.*/SPEED \\2 \\1/p' counts\nfi\n\
         echo DONE; poweroff -f\n",
        times("alone", ""),
        times("plain", ""),
    )
}
