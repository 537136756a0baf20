//! A machine that was saved and is loaded again, in QEMU's monitor: what the trace units held is not in it, and the plugin says so.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::super::build::tool;
use super::super::machine::archive;
use super::Exam;
use super::linux::which;

/// What the guest says, time and again.
const TURN: &str = "TURN ";
/// What the plugin says for each processor.
const SAID: &str = "its registers were written while the machine stood still";
/// So long nothing takes, however busy the host is.
const LONG: Duration = Duration::from_secs(300);

impl Exam {
    /// Saves a machine with two processors, loads it, and looks for the plugin's words.
    pub(super) fn saved(&self, kernel: &Path, busybox: &Path) -> Result<String> {
        if which("qemu-img").is_none() {
            return Ok("SKIPPED: there is no qemu-img to make a disk for it".into());
        }
        let [disk, initrd, console, errors] =
            ["saved.qcow2", "saved.initrd", "saved.console", "saved.err"]
                .map(|name| self.path(name));
        tool(
            std::process::Command::new("qemu-img")
                .args(["create", "-q", "-f", "qcow2"])
                .arg(&disk)
                .arg("1G"),
        )?;
        let script = format!(
            "#!/bin/busybox sh\nwhile true; do echo \"{TURN}$((i++))\"; /bin/busybox sleep 0.2; done\n"
        );
        let files = [
            ("init", script.into_bytes()),
            ("bin/busybox", fs::read(busybox)?),
        ];
        fs::write(&initrd, archive(&["bin", "dev"], &files))?;
        let mut machine = self
            .machine(&["--verbose"])
            // (The last of these counts.)
            .args(["-monitor", "stdio", "-m", "512M", "-smp", "2", "-serial"])
            .arg(format!("file:{}", console.display()))
            .arg("-drive")
            .arg(format!("file={},if=virtio", disk.display()))
            .arg("-initrd")
            .arg(&initrd)
            .arg("-kernel")
            .arg(kernel.canonicalize()?)
            .args(["-append", "console=ttyS0 quiet tsc=reliable"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&errors)?)
            .spawn()
            .context("running cofi machine")?;
        let result = talk(&mut machine, &console, &errors);
        let _ = machine.kill();
        machine.wait()?;
        result
    }
}

/// How often a text stands in a file.
fn count(path: &Path, text: &str) -> usize {
    let all = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&all).matches(text).count()
}

fn talk(machine: &mut Child, console: &Path, errors: &Path) -> Result<String> {
    let mut monitor = machine.stdin.take().context("it has no monitor")?;
    let mut until = |what: &str, is_so: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is_so() {
            if let Some(status) = machine.try_wait()? {
                bail!("it ended, {status}, before {what}");
            }
            ensure!(begun.elapsed() < LONG, "it took too long until {what}");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    };
    let turns = || count(console, TURN);
    until("the guest ran", &|| turns() >= 3)?;
    // While it is saved it stands still, and nobody writes its registers.
    monitor.write_all(b"savevm begin\n")?;
    let before = turns();
    until("it went on after it was saved", &|| turns() >= before + 5)?;
    let wrong = count(errors, SAID);
    ensure!(
        wrong == 0,
        "before anything was loaded, the plugin said {wrong} times that it was"
    );
    monitor.write_all(b"loadvm begin\n")?;
    until("both processors said what was lost", &|| {
        count(errors, SAID) >= 2
    })?;
    let before = turns();
    until("it went on after it was loaded", &|| turns() >= before + 3)?;
    monitor.write_all(b"quit\n")?;
    until("it ended", &|| count(errors, "unexplained") >= 2)?;
    let said = count(errors, SAID);
    ensure!(said == 2, "two processors said it {said} times");
    Ok("each of two processors said what was not loaded".into())
}
