//! Finding QEMU, and what it takes to run a program under it.

use super::plugins::plugins;
use super::program::{self, Unfit};
use super::runtime_dir::{self, RuntimeDir};
use super::shared;
use crate::child;
use crate::ptrace::Command;
use nix::sys::resource::{Resource, getrlimit};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const QEMU: &str = "qemu-x86_64";
/// How long QEMU may take to load the plugin and end.
const PATIENCE: Duration = Duration::from_secs(5);
/// QEMU takes about 270 MB of address space for itself, and then there is the program's.
const LEAST_SPACE: u64 = 384 << 20;

/// Why the QEMU engine cannot run here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QemuError {
    /// There is none.
    #[error(
        "there is no {QEMU} on PATH: install Debian's package qemu-user (7.2), or use --engine ptrace"
    )]
    Missing,
    /// It is built without plugins, or takes no version of them that Cofi has.
    #[error(
        "{} takes none of Cofi's plugins (versions 1, 4 and 7): install Debian 12's package qemu-user (7.2), or use --engine \
         ptrace; it says: {says}",
        path.display()
    )]
    NoPlugins {
        /// The program.
        path: PathBuf,
        /// Its own words.
        says: String,
    },
    /// No program runs under it in an address space as small as this.
    #[error(
        "the address space is limited to {} KiB (ulimit -v), and QEMU takes {} KiB: raise the limit, or use --engine ptrace",
        limit / 1024,
        LEAST_SPACE / 1024
    )]
    AddressSpace {
        /// The limit in bytes.
        limit: u64,
    },
    /// There is nowhere to put the plugin and the memory that it shares.
    #[error(
        "there is no room for the qemu engine's plugin and memory in {looked}: free some, or name another folder with TMPDIR, or \
         use --engine ptrace"
    )]
    NoRoom {
        /// Where it was looked for.
        looked: String,
        /// The last refusal.
        source: io::Error,
    },
    /// A file or folder cannot be made.
    #[error("cannot make {}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A part of what recording does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The plugin is called for each block that runs, and does nothing.
    Called,
    /// It tells of each, too.
    Told,
}

/// A QEMU that takes the plugin.
#[derive(Debug)]
pub struct Qemu {
    path: PathBuf,
    /// The version of its plugin interface that is used.
    version: u32,
    /// Holds the processes' shared memory, until it is dropped.
    memory: RuntimeDir,
    /// Holds the plugin, if it cannot be loaded from where the memory is.
    library: Option<RuntimeDir>,
}

impl Qemu {
    /// Looks for QEMU and asks it which plugin it takes.
    ///
    /// # Errors
    /// [`QemuError`], whose text says what to install.
    pub fn find() -> Result<Self, QemuError> {
        let path = child::find_program(OsStr::new(QEMU)).ok_or(QemuError::Missing)?;
        if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_AS)
            && limit < LEAST_SPACE
        {
            return Err(QemuError::AddressSpace { limit });
        }
        let (memory, library) = runtime_dir::make(&runtime_dir::parents()).map_err(|none| {
            let (looked, source) = (none.looked, none.source);
            QemuError::NoRoom { looked, source }
        })?;
        let mut qemu = Self {
            path,
            version: 0,
            memory,
            library,
        };
        let mut says = String::new();
        for (version, bytes) in plugins() {
            qemu.version = version;
            let file = qemu.plugin();
            fs::write(&file, bytes).map_err(|source| QemuError::File { path: file, source })?;
            match qemu.takes_plugin() {
                Ok(()) => return Ok(qemu),
                Err(error) => says = error,
            }
        }
        Err(QemuError::NoPlugins {
            path: qemu.path,
            says,
        })
    }

    /// The program.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the plugin interface that it takes.
    #[must_use]
    pub const fn plugin_version(&self) -> u32 {
        self.version
    }

    /// Whether this is a program that QEMU's user mode can run as it should: a 64-bit x86 one of this user's, or a script of
    /// one.
    ///
    /// # Errors
    /// Why not.
    pub fn suits(program: &Command) -> Result<(), Unfit> {
        program::suits(program)
    }

    /// Runs a program with a part of what recording does, which nobody hears of: how many blocks ran, if they were told of. What it starts
    /// takes part if that is QEMU, which is told of the plugin by its environment. This is to measure what the parts take.
    ///
    /// # Errors
    /// When it cannot be started, or its shared memory cannot be read.
    pub fn run_stage(&self, stage: Stage, command: &mut std::process::Command) -> io::Result<u64> {
        let folder = self.memory.path().join("stage");
        fs::create_dir_all(&folder)?;
        let mut option = self.plugin_option(&folder);
        option.push(match stage {
            Stage::Called => ",stage=called",
            Stage::Told => ",stage=told",
        });
        let mut words = vec![command.get_program().to_owned()];
        words.extend(command.get_args().map(OsStr::to_owned));
        let mut qemu = std::process::Command::new(&self.path);
        qemu.args(words).env("QEMU_PLUGIN", option);
        qemu.stdin(Stdio::null()).stdout(Stdio::null());
        let status = qemu.status()?;
        let mut blocks = 0;
        for entry in fs::read_dir(&folder)? {
            blocks += shared::told(&fs::File::open(entry?.path())?)?;
        }
        fs::remove_dir_all(&folder)?;
        match status.success() {
            true => Ok(blocks),
            false => Err(io::Error::other(format!("QEMU ended with {status}"))),
        }
    }

    /// The plugin's file.
    pub(super) fn plugin(&self) -> PathBuf {
        let folder = self.library.as_ref().unwrap_or(&self.memory);
        folder.path().join(format!("plugin_{}.so", self.version))
    }

    /// Where the plugin makes each process's shared memory.
    pub(super) fn folder(&self) -> PathBuf {
        self.memory.path().join("run")
    }

    /// Whether QEMU loads the plugin: asked to run nothing, it does that first.
    fn takes_plugin(&self) -> Result<(), String> {
        let probe = self.memory.path().join("probe");
        fs::create_dir_all(&probe).map_err(|error| error.to_string())?;
        let answer = child::ask(self.command(&probe).arg("/dev/null"), PATIENCE);
        // The plugin makes its shared memory when it is installed.
        let installed = fs::read_dir(&probe).is_ok_and(|mut entries| entries.next().is_some());
        let _ = fs::remove_dir_all(&probe);
        let answer = answer.map_err(|error| error.to_string())?;
        if installed {
            return Ok(());
        }
        Err(answer.stderr.lines().next().unwrap_or("nothing").to_owned())
    }

    /// The option that makes QEMU load the plugin.
    fn plugin_option(&self, folder: &Path) -> OsString {
        let mut option = b"file=".to_vec();
        put_escaped(&mut option, self.plugin().as_os_str());
        option.extend_from_slice(b",folder=");
        put_escaped(&mut option, folder.as_os_str());
        OsString::from_vec(option)
    }

    fn command(&self, folder: &Path) -> std::process::Command {
        let mut command = std::process::Command::new(&self.path);
        command.arg("-plugin").arg(self.plugin_option(folder));
        // What is there for QEMU is not from us.
        for (name, _) in std::env::vars_os() {
            if name.as_bytes().starts_with(b"QEMU_") {
                command.env_remove(name);
            }
        }
        command
    }

    /// What stands before a program and its arguments in QEMU's command line: for one of this name and with so many variables
    /// in its environment, each of which the plugin has to give back.
    pub(super) fn prefix(&self, comm: &[u8], variables: usize) -> [OsString; 3] {
        let mut plugin = self.plugin_option(&self.folder());
        // In hexadecimal: it may hold anything.
        let comm: String = comm.iter().map(|byte| format!("{byte:02x}")).collect();
        plugin.push(format!(",comm={comm},variables={variables}"));
        [self.path.clone().into_os_string(), "-plugin".into(), plugin]
    }
}

/// A comma in an option's value is written twice.
pub(super) fn put_escaped(option: &mut Vec<u8>, value: &OsStr) {
    for byte in value.as_bytes() {
        option.push(*byte);
        if *byte == b',' {
            option.push(b',');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Qemu, QemuError};
    use std::process::Command;

    /// Where there is no memory to share, here as its folder is missing, a program runs as it should nevertheless.
    #[test]
    fn the_environment_comes_back_without_memory() {
        let qemu = match Qemu::find() {
            Ok(qemu) => qemu,
            Err(error @ (QemuError::Missing | QemuError::NoPlugins { .. })) => {
                return cofi_test::skip(error);
            }
            Err(error) => panic!("{error}"),
        };
        let answer = Command::new(qemu.path())
            .args(&qemu.prefix(b"name", 2)[1..])
            .args(["-0", "env", "/usr/bin/env"])
            .env_clear()
            .envs([("000001", "B=2"), ("000000", "QEMU_STRACE=1")])
            .output()
            .expect("QEMU starts");
        assert_eq!(String::from_utf8_lossy(&answer.stderr), "");
        assert_eq!(
            String::from_utf8_lossy(&answer.stdout),
            "QEMU_STRACE=1\nB=2\n"
        );
    }
}
