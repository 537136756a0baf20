//! Other programs: QEMU and perf.

use super::{Finding, Status, plain};
use cofi_capture::child::{ask, find_program};
use cofi_capture::qemu::{Qemu, QemuError};
use std::error::Error;
use std::ffi::OsStr;
use std::path::Path;
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

pub(super) fn qemu_system() -> Finding {
    program(
        "qemu_system",
        "qemu-system-x86_64",
        "for whole machines, which this version does not record yet: install qemu-system-x86 (Debian 12: 10.0 from \
         bookworm-backports)",
    )
}

pub(super) fn qemu_user() -> Finding {
    let make = |status, says: String| Finding::new("qemu_user", "qemu-x86_64", status, says);
    let hint = "for --engine qemu: install Debian 12's package qemu-user (7.2; later packages take no plugins), or build \
                QEMU with --enable-plugins";
    match Qemu::find() {
        Ok(qemu) => {
            let shown = path_text(qemu.path());
            let plugin = qemu.plugin_version();
            let version = version(qemu.path());
            let known = match &version {
                Ok(version) => format!("version {version}"),
                Err(why) => format!("version unknown ({why})"),
            };
            let says = format!("{shown}, {known}, takes Cofi's plugin for interface {plugin}");
            make(Status::Ok, says)
                .fact("path", shown)
                .fact("version", version.ok())
                .fact("plugin_version", plugin)
        }
        Err(QemuError::Missing) => make(Status::Missing, "there is no qemu-x86_64 on PATH".into())
            .hint(hint)
            .fact("path", None::<String>)
            .fact("version", None::<String>)
            .fact("plugin_version", None::<u32>),
        Err(QemuError::NoPlugins { path, says, .. }) => {
            let shown = path_text(&path);
            let version = version(&path);
            let known = match &version {
                Ok(version) => format!("version {version}"),
                Err(why) => format!("version unknown ({why})"),
            };
            let words = format!(
                "{shown}, {known}, takes none of Cofi's plugins (interfaces 1 and 4); it says: {}",
                first_line(&says)
            );
            make(Status::Limited, words)
                .hint(hint)
                .fact("path", shown)
                .fact("version", version.ok())
                .fact("plugin_version", None::<u32>)
        }
        Err(error) => {
            let cause = error.source().map(|cause| format!(": {cause}"));
            let says = format!("{error}{}", cause.unwrap_or_default());
            make(Status::Limited, plain(&says))
                .hint("Cofi keeps its plugin in a folder of its own in /dev/shm, or where TMPDIR says")
                .fact("path", None::<String>)
                .fact("version", None::<String>)
                .fact("plugin_version", None::<u32>)
        }
    }
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
