//! `cargo xtask bench record`: what each part of recording with QEMU takes, by block that runs.
//!
//! The bench `record` of cofi-capture has the programs, and measures: it calls the engine itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::load;

/// The first program of the guest that is booted: a shell that says so and switches the machine off.
const INIT: &str = "#!/bin/busybox sh\n\
    /bin/busybox mount -t devtmpfs dev /dev\n\
    echo the shell runs > /dev/ttyS0\n\
    /bin/busybox poweroff -f\n";

/// Runs it: `--rounds` and `--only` (a part of a program's name), `--json` for a file with all figures, and of the machine `--kernel` with
/// `--busybox`, or with an `--initrd` that does what [`INIT`] does.
pub(super) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let mut handed = Vec::new();
    let mut made = None;
    let (mut kernels, mut initrds) = (0, 0);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let value = words
            .next()
            .with_context(|| format!("{word} wants a value"))?;
        // The bench runs in another folder.
        let path = || -> Result<String> {
            let path = std::path::absolute(value)?;
            Ok(path.to_string_lossy().into_owned())
        };
        let (word, value) = match word.as_str() {
            "--rounds" | "--only" => (word.as_str(), value.clone()),
            "--json" => ("--json", path()?),
            "--kernel" => {
                kernels += 1;
                ("--kernel", path()?)
            }
            "--initrd" => {
                initrds += 1;
                ("--initrd", path()?)
            }
            "--busybox" => {
                initrds += 1;
                let file = made.insert(Made::new(Path::new(value))?);
                ("--initrd", file.0.to_string_lossy().into_owned())
            }
            _ => bail!("{word}: there is no such option"),
        };
        handed.extend([word.to_owned(), value]);
    }
    ensure!(
        kernels == initrds && kernels <= 1,
        "a kernel is booted with files: --kernel goes with --busybox or --initrd"
    );
    println!("load before: {}", load());
    let status = Command::new("cargo")
        .args(["bench", "--quiet", "--package", "cofi-capture"])
        .args(["--bench", "record", "--"])
        .args(handed)
        .current_dir(root)
        .status()
        .context("running cargo bench")?;
    Ok(status.success())
}

/// A file for a kernel, until it is dropped.
struct Made(PathBuf);

impl Made {
    fn new(busybox: &Path) -> Result<Self> {
        let name = format!("cofi-bench-{}.initrd", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, cofi_exam::initrd(busybox, INIT)?)
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // What cannot be removed lies in the folder for temporary files anyway.
        let _ = fs::remove_file(&self.0);
    }
}
