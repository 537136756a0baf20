//! Other programs: QEMU and perf.

use super::{Finding, Status, plain};
use crate::machine::said_by;
use cofi_capture::child::{ask, find_program};
use cofi_capture::qemu::machine::{MachineError, MachineQemu};
use cofi_capture::qemu::{Qemu, QemuError};
use std::error::Error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a program may take to say its version.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much of a program's first line is shown.
const MAX_LETTERS: usize = 160;

/// A program's first line.
fn first_line(words: &str) -> String {
    let line = words.lines().map(str::trim).find(|line| !line.is_empty());
    plain(line.unwrap_or_default())
        .chars()
        .take(MAX_LETTERS)
        .collect()
}

/// What `--version` gives behind the word "version", or why it gives nothing.
fn version(path: &Path) -> Result<String, String> {
    let answer = ask(Command::new(path).arg("--version"), PATIENCE)
        .map_err(|error| plain(&error.to_string()))?;
    if !answer.status.success() {
        let words = first_line(&answer.stderr);
        let status = answer.status;
        return Err(if words.is_empty() {
            status.to_string()
        } else {
            format!("{status}: {words}")
        });
    }
    let line = first_line(&answer.stdout);
    let version = match line.split_once("version ") {
        Some((_, version)) => version,
        None => &line,
    };
    if version.is_empty() {
        return Err("it says nothing".into());
    }
    Ok(version.to_owned())
}

fn path_text(path: &Path) -> String {
    plain(&path.to_string_lossy())
}

/// A program of which only the version matters.
fn program(key: &'static str, name: &'static str, hint: &str) -> Finding {
    let Some(path) = find_program(OsStr::new(name)) else {
        return Finding::new(
            key,
            name,
            Status::Missing,
            format!("there is no {name} on PATH"),
        )
        .hint(hint)
        .fact("path", None::<String>)
        .fact("version", None::<String>);
    };
    let shown = path_text(&path);
    match version(&path) {
        Ok(version) => Finding::new(key, name, Status::Ok, format!("{shown}, version {version}"))
            .fact("path", shown)
            .fact("version", version),
        Err(why) => {
            let says = format!("{shown} does not tell its version ({why})");
            Finding::new(key, name, Status::Limited, says)
                .hint(hint)
                .fact("path", shown)
                .fact("version", None::<String>)
        }
    }
}

pub(super) fn perf() -> Finding {
    program(
        "perf",
        "perf",
        "optional, reads Cofi's files too: install linux-perf (Debian), linux-tools-generic (Ubuntu) or perf (Fedora)",
    )
}

/// Why a QEMU is of no use.
enum Useless {
    /// There is none.
    Missing,
    /// It takes none of the plugins.
    NoPlugins { path: PathBuf, says: String },
    /// Something else.
    Other(String),
}

/// A QEMU, which is of use if it takes the plugin.
fn emulator(
    key: &'static str,
    name: &'static str,
    hint: &str,
    found: Result<(PathBuf, u32), Useless>,
) -> Finding {
    let make = |status, says: String| Finding::new(key, name, status, says);
    let about = |path: &Path| {
        let version = version(path);
        let known = match &version {
            Ok(version) => format!("version {version}"),
            Err(why) => format!("version unknown ({why})"),
        };
        (path_text(path), version.ok(), known)
    };
    match found {
        Ok((path, plugin)) => {
            let (shown, version, known) = about(&path);
            let says = format!("{shown}, {known}, takes Cofi's plugin for interface {plugin}");
            make(Status::Ok, says)
                .fact("path", shown)
                .fact("version", version)
                .fact("plugin_version", plugin)
        }
        Err(Useless::Missing) => make(Status::Missing, format!("there is no {name} on PATH"))
            .hint(hint)
            .fact("path", None::<String>)
            .fact("version", None::<String>)
            .fact("plugin_version", None::<u32>),
        Err(Useless::NoPlugins { path, says }) => {
            let (shown, version, known) = about(&path);
            let words = format!(
                "{shown}, {known}, takes none of Cofi's plugins; it says: {}",
                first_line(&says)
            );
            make(Status::Limited, words)
                .hint(hint)
                .fact("path", shown)
                .fact("version", version)
                .fact("plugin_version", None::<u32>)
        }
        Err(Useless::Other(says)) => make(Status::Limited, plain(&says))
            .hint("Cofi keeps its plugin in a folder of its own in /dev/shm, or where TMPDIR says")
            .fact("path", None::<String>)
            .fact("version", None::<String>)
            .fact("plugin_version", None::<u32>),
    }
}

/// An error and what caused it.
fn with_cause(error: &dyn Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

pub(super) fn qemu_system() -> Finding {
    let found = match MachineQemu::find() {
        Ok(qemu) => Ok((qemu.path().to_owned(), qemu.plugin_version())),
        Err(MachineError::Missing) => Err(Useless::Missing),
        Err(MachineError::NoPlugins { path, says }) => Err(Useless::NoPlugins { path, says }),
        Err(error) => Err(Useless::Other(with_cause(&error))),
    };
    let hint = "for --engine qemu-system, which records whole machines: install qemu-system-x86 (Debian 12: 10.0 from \
                bookworm-backports; its own 7.2 cannot tell enough)";
    emulator("qemu_system", "qemu-system-x86_64", hint, found)
}

/// The QEMU of `cofi machine`.
pub(super) fn machine() -> Finding {
    let (key, name) = ("machine", "cofi machine");
    match cofi_machine::Qemu::find(None, &|command| said_by(command, PATIENCE)) {
        Ok(qemu) => {
            let (shown, version) = (path_text(qemu.path()), plain(qemu.version()));
            let says = format!("{shown}, version {version}, takes Cofi's plugin");
            Finding::new(key, name, Status::Ok, says)
                .fact("path", shown)
                .fact("version", version)
        }
        Err(error) => Finding::new(key, name, Status::Missing, plain(&error.to_string()))
            .hint(
                "for virtual machines that have Intel PT: unpack the QEMU of Debian 13's backports: mkdir -p ~/.local/share/cofi/qemu; \
                 mmdebstrap --variant=extract --include=qemu-system-x86 --aptopt='APT::Default-Release \"trixie-backports\"' trixie - \
                 'deb http://deb.debian.org/debian trixie main' 'deb http://deb.debian.org/debian trixie-backports main' | \
                 tar -x -C ~/.local/share/cofi/qemu --exclude './dev/*'",
            )
            .fact("path", None::<String>)
            .fact("version", None::<String>),
    }
}

pub(super) fn qemu_user() -> Finding {
    let found = match Qemu::find() {
        Ok(qemu) => Ok((qemu.path().to_owned(), qemu.plugin_version())),
        Err(QemuError::Missing) => Err(Useless::Missing),
        Err(QemuError::NoPlugins { path, says, .. }) => Err(Useless::NoPlugins { path, says }),
        Err(error) => Err(Useless::Other(with_cause(&error))),
    };
    let hint = "for --engine qemu: install Debian 12's package qemu-user (7.2; later packages take no plugins), or build \
                QEMU with --enable-plugins";
    emulator("qemu_user", "qemu-x86_64", hint, found)
}

#[cfg(test)]
mod tests {
    use super::{MAX_LETTERS, first_line};

    #[test]
    fn first_lines_are_short_and_plain() {
        assert_eq!(first_line("\n  \n hello\x1b[1m \nworld"), "hello [1m");
        assert_eq!(first_line(""), "");
        assert_eq!(first_line(&"é".repeat(9999)).chars().count(), MAX_LETTERS);
    }
}
