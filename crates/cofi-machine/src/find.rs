//! Finding a QEMU whose plugins can be what the plugin is.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const NAME: &str = "qemu-system-x86_64";
/// Where a newer Debian's files are unpacked, if not elsewhere: below `$XDG_DATA_HOME` or `~/.local/share`.
const FOLDER: &str = "cofi/qemu";
/// The first version whose interface for plugins is 7.
const LEAST: (u32, u32) = (11, 1);
/// QEMU's data in Debian: its own, and that of SeaBIOS.
const DATA: [&str; 2] = ["usr/share/qemu", "usr/share/seabios"];
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "usr/lib"];
const LOADERS: [&str; 2] = [
    "lib64/ld-linux-x86-64.so.2",
    "usr/lib64/ld-linux-x86-64.so.2",
];

/// Why there is no QEMU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QemuError {
    /// None that was looked at will do.
    #[error(
        "no QEMU of version 11.1 or later was found ({looked}): docs/machines.md says how to get one"
    )]
    None {
        /// What was looked at, in words.
        looked: String,
    },
    /// It is not there, or does not run.
    #[error("{} cannot be run: {why}", path.display())]
    Unusable {
        /// The program or folder.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// It is too old.
    #[error(
        "{} is version {version}, and the plugin needs 11.1 or later: docs/machines.md says how to get one",
        path.display()
    )]
    Old {
        /// The program.
        path: PathBuf,
        /// Its version, in its own words.
        version: String,
    },
}

/// Runs a program that is asked for its version, and returns what it says, or why it says nothing. The caller decides how long that may take.
pub type Ask<'a> = &'a dyn Fn(&mut Command) -> Result<String, String>;

/// A QEMU that takes the plugin.
#[derive(Clone, Debug)]
pub struct Qemu {
    path: PathBuf,
    version: String,
    /// The folder of a system whose program it is, if that is not this one.
    root: Option<PathBuf>,
}

impl Qemu {
    /// The one that is named (a program, or a folder with another Debian's files), or the first that will do: on PATH, or in
    /// `cofi/qemu` in the user's data.
    ///
    /// # Errors
    /// [`QemuError`], whose text says what was looked at.
    pub fn find(named: Option<&Path>, ask: Ask<'_>) -> Result<Self, QemuError> {
        if let Some(path) = named {
            return Self::at(path, ask);
        }
        let mut looked = Vec::new();
        for place in places() {
            match Self::at(&place, ask) {
                Ok(qemu) => return Ok(qemu),
                Err(QemuError::Old { path, version }) => {
                    looked.push(format!("{} is version {version}", path.display()));
                }
                Err(_) => looked.push(format!("{} is none", place.display())),
            }
        }
        if looked.is_empty() {
            looked.push("there is none on PATH".into());
        }
        Err(QemuError::None {
            looked: looked.join(", "),
        })
    }

    /// The one at this place: a program, or a folder with another Debian's files.
    fn at(path: &Path, ask: Ask<'_>) -> Result<Self, QemuError> {
        let unusable = |why: String| QemuError::Unusable {
            path: path.to_owned(),
            why,
        };
        let data = fs::metadata(path).map_err(|error| unusable(error.to_string()))?;
        let mut qemu = if data.is_dir() {
            let root = path
                .canonicalize()
                .map_err(|error| unusable(error.to_string()))?;
            let program = root.join("usr/bin").join(NAME);
            if !program.is_file() {
                return Err(unusable(format!("there is no usr/bin/{NAME} in it")));
            }
            Self {
                path: program,
                version: String::new(),
                root: Some(root),
            }
        } else {
            Self {
                path: path.to_owned(),
                version: String::new(),
                root: None,
            }
        };
        qemu.version = qemu.ask(ask).map_err(unusable)?;
        match number(&qemu.version) {
            Some(version) if version >= LEAST => Ok(qemu),
            _ => Err(QemuError::Old {
                path: qemu.path,
                version: qemu.version,
            }),
        }
    }

    /// Its version, as it says.
    fn ask(&self, ask: Ask<'_>) -> Result<String, String> {
        let words = ask(self.command().arg("--version"))?;
        let version = words
            .split_once("version ")
            .and_then(|(_, rest)| rest.split([' ', '\n', '(']).find(|word| !word.is_empty()));
        version
            .map(str::to_owned)
            .ok_or_else(|| "it does not tell its version".to_owned())
    }

    /// The program.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The command that runs it: by the loader and with the libraries of its own system, if that is another one.
    pub(crate) fn command(&self) -> Command {
        let Some(root) = &self.root else {
            return Command::new(&self.path);
        };
        let loader = LOADERS
            .iter()
            .map(|loader| root.join(loader))
            .find(|loader| loader.exists());
        let mut command = Command::new(loader.unwrap_or_else(|| self.path.clone()));
        let libraries = LIBRARIES.map(|folder| root.join(folder).into_os_string());
        command
            .arg("--library-path")
            .arg(libraries.join(OsStr::new(":")))
            .arg(&self.path);
        for folder in DATA {
            command.arg("-L").arg(root.join(folder));
        }
        command
    }
}

/// Where to look, in order.
fn places() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path)
        .map(|folder| folder.join(NAME))
        .filter(|program| program.is_file());
    let data = env::var_os("XDG_DATA_HOME")
        .filter(|data| !data.is_empty())
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".local/share")));
    on_path
        .take(1)
        .chain(
            data.map(|data| data.join(FOLDER))
                .filter(|folder| folder.is_dir()),
        )
        .collect()
}

/// Major and minor number of a version.
fn number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    let mut next = || parts.next()?.parse().ok();
    Some((next()?, next()?))
}

trait Join {
    fn join(&self, by: &OsStr) -> OsString;
}

impl<const N: usize> Join for [OsString; N] {
    fn join(&self, by: &OsStr) -> OsString {
        let mut joined = OsString::new();
        for (index, part) in self.iter().enumerate() {
            if index > 0 {
                joined.push(by);
            }
            joined.push(part);
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn ask(command: &mut Command) -> Result<String, String> {
        let output = command.output().map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A program that says this when it is asked for its version.
    fn program(folder: &Path, says: &str) -> PathBuf {
        let path = folder.join(NAME);
        fs::write(&path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn the_version_decides() {
        let folder = tempfile::tempdir().unwrap();
        let path = program(
            folder.path(),
            "QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1~bpo13+1)",
        );
        assert_eq!(Qemu::find(Some(&path), &ask).unwrap().version(), "11.1.3");
        for (says, error) in [
            ("QEMU emulator version 10.0.2", "is version 10.0.2, and"),
            ("hello", "cannot be run: it does not tell its version"),
        ] {
            let path = program(folder.path(), says);
            let text = Qemu::find(Some(&path), &ask).unwrap_err().to_string();
            assert!(text.contains(error), "{text}");
        }
    }

    #[test]
    fn a_folder_without_it_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let text = Qemu::find(Some(folder.path()), &ask)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("there is no usr/bin/qemu-system-x86_64 in it"),
            "{text}"
        );
        let text = Qemu::find(Some(&folder.path().join("none")), &ask)
            .unwrap_err()
            .to_string();
        assert!(text.contains("No such file"), "{text}");
    }
}
