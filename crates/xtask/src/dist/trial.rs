//! What was built, tried where there is next to nothing: the archive in a folder that has it, busybox and the kernel's files; the Debian package in a bare Debian 12.
//!
//! All of it happens in a mount and a process namespace of its own, whose end ends it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Made;
use cofi_exam::build::tool;

/// What is run in the new namespaces, with the folder as its argument.
const ALONE: &str = include_str!("alone.sh");
const DEBIAN: &str = include_str!("debian.sh");

/// What is needed beside dpkg, before what takes minutes.
pub(super) fn is_possible() -> Result<()> {
    let user = tool(Command::new("id").arg("-u"))?;
    if user.trim_ascii() != b"0" {
        bail!("only root can try the packages (chroot, mount); --untried leaves that out");
    }
    tool(Command::new("unshare").args(["--mount", "--pid", "--fork", "true"])).context(
        "this machine allows no namespaces of mounts and processes; --untried leaves that out",
    )?;
    Ok(())
}

/// Tries what was made. A Debian is made by debootstrap, or copied.
pub(super) fn run(work: &Path, made: &Made, system: Option<&Path>) -> Result<()> {
    alone(work, &made.archive).context("trying the archive")?;
    debian(work, &made.package, system).context("trying the package")
}

/// The archive in a folder without a C library, a shell, or a place for temporary files.
fn alone(work: &Path, archive: &Path) -> Result<()> {
    let folder = work.join("bare");
    for inner in ["proc", "dev"] {
        fs::create_dir_all(folder.join(inner))?;
    }
    tool(
        Command::new("tar")
            .arg("-C")
            .arg(&folder)
            .arg("-xzf")
            .arg(archive),
    )?;
    fs::copy(busybox(work)?, folder.join("busybox"))?;
    inside(ALONE, &folder)
}

/// A program that needs no library, either: Debian's.
fn busybox(work: &Path) -> Result<PathBuf> {
    let folder = work.join("busybox");
    fs::create_dir_all(&folder)?;
    tool(
        Command::new("apt-get")
            .args(["download", "-qq", "-o", "APT::Sandbox::User=root"])
            .arg("busybox-static")
            .current_dir(&folder),
    )?;
    let mut packages = fs::read_dir(&folder)?;
    let package = packages
        .next()
        .context("apt-get has downloaded nothing")??;
    tool(
        Command::new("dpkg-deb")
            .arg("-x")
            .arg(package.path())
            .arg(&folder),
    )?;
    Ok(folder.join("bin/busybox"))
}

/// The package in Debian 12's smallest system.
fn debian(work: &Path, package: &Path, system: Option<&Path>) -> Result<()> {
    let folder = work.join("debian");
    match system {
        Some(system) => tool(Command::new("cp").arg("-a").arg(system).arg(&folder))?,
        None => tool(
            Command::new("debootstrap")
                .args(["--variant=minbase", "bookworm"])
                .arg(&folder),
        )?,
    };
    fs::copy(package, folder.join("cofi.deb"))?;
    inside(DEBIAN, &folder)
}

/// Runs a script in namespaces of its own, and prints what it says.
fn inside(script: &str, folder: &Path) -> Result<()> {
    let said = tool(
        Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child"])
            .args(["--propagation", "private", "sh", "-euc"])
            .arg(script)
            .arg("sh")
            .arg(folder),
    )?;
    print!("{}", String::from_utf8_lossy(&said));
    Ok(())
}
