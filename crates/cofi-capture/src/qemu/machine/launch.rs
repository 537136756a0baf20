//! Finding QEMU's system emulation, and what it takes to run a machine.

use super::super::launch::put_escaped;
use super::super::plugins::plugins;
use super::super::runtime_dir::{self, RuntimeDir};
use crate::child;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const QEMU: &str = "qemu-system-x86_64";
/// How long QEMU may take to load the plugin and end.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first version of the plugin interface that reads the guest's memory.
const LEAST_VERSION: u32 = 4;
/// A device that there is none of: QEMU looks for it after it has loaded its plugins, and ends.
const NO_DEVICE: &str = "cofi-asks-whether-plugins-load";

/// Why a machine cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// There is no QEMU.
    #[error(
        "there is no {QEMU} on PATH: install Debian's package qemu-system-x86 (10.0, from bookworm-backports)"
    )]
    Missing,
    /// It does not take the plugin, or cannot tell what tracing a machine takes.
    #[error(
        "{} does not take Cofi's plugin for machines: install Debian's package qemu-system-x86 in version 10.0 (from \
         bookworm-backports), as 7.2 cannot tell what an interrupt interrupted; it says: {says}",
        path.display()
    )]
    NoPlugins {
        /// The program.
        path: PathBuf,
        /// Its own words.
        says: String,
    },
    /// The plugin sees nothing of machines that the processor itself runs.
    #[error(
        "{argument:?} lets the processor itself run the machine, of which QEMU sees nothing: leave it out"
    )]
    Accelerated {
        /// The argument.
        argument: OsString,
    },
    /// QEMU would leave for the background, and nobody could wait for it.
    #[error(
        "\"-daemonize\" takes QEMU out of Cofi's sight: leave it out, and put cofi into the background instead"
    )]
    Daemon,
    /// QEMU does not start.
    #[error("cannot run {}", path.display())]
    Launch {
        /// The program.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The memory that is shared with QEMU cannot be made or read.
    #[error("the memory that is shared with QEMU cannot be used")]
    Memory(#[source] io::Error),
    /// There is no room for the plugin and the memory.
    #[error(
        "there is no room for the plugin and the memory that is shared with QEMU in {looked}: free some, or name another folder \
         with TMPDIR"
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

/// A QEMU that runs machines and takes the plugin.
#[derive(Debug)]
pub struct MachineQemu {
    path: PathBuf,
    /// The version of its plugin interface that is used.
    version: u32,
    plugin: PathBuf,
    /// Holds the shared memory, until it is dropped.
    memory: RuntimeDir,
    /// Holds the plugin, if it cannot be loaded from where the memory is.
    _library: Option<RuntimeDir>,
}

impl MachineQemu {
    /// Looks for QEMU and asks it whether it takes the plugin.
    ///
    /// # Errors
    /// [`MachineError`], whose text says what to install.
    pub fn find() -> Result<Self, MachineError> {
        let path = child::find_program(OsStr::new(QEMU)).ok_or(MachineError::Missing)?;
        let (memory, library) = runtime_dir::make(&runtime_dir::parents()).map_err(|none| {
            let (looked, source) = (none.looked, none.source);
            MachineError::NoRoom { looked, source }
        })?;
        let folder = library.as_ref().unwrap_or(&memory).path().to_owned();
        let mut says = String::new();
        for (version, bytes) in plugins() {
            if version < LEAST_VERSION {
                continue;
            }
            let plugin = folder.join(format!("plugin_{version}.so"));
            fs::write(&plugin, bytes).map_err(|source| MachineError::File {
                path: plugin.clone(),
                source,
            })?;
            match takes(&path, &plugin, memory.path()) {
                Ok(()) => {
                    return Ok(Self {
                        path,
                        version,
                        plugin,
                        memory,
                        _library: library,
                    });
                }
                Err(error) => says = error,
            }
        }
        Err(MachineError::NoPlugins { path, says })
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

    pub(super) fn folder(&self) -> PathBuf {
        self.memory.path().join("run")
    }

    /// The command that runs a machine with these arguments.
    ///
    /// # Errors
    /// When they ask for a way to run in which there is nothing to be seen.
    pub(super) fn command(&self, args: &[OsString]) -> Result<Command, MachineError> {
        if args
            .iter()
            .any(|arg| arg == "-daemonize" || arg == "--daemonize")
        {
            return Err(MachineError::Daemon);
        }
        for (i, arg) in args.iter().enumerate() {
            let value = args.get(i + 1).map(|value| value.to_string_lossy());
            let names_kvm = |value: &str| {
                value
                    .split([',', ':', '='])
                    .any(|word| matches!(word, "kvm" | "xen" | "whpx" | "hvf"))
            };
            let is_kvm = match &*arg.to_string_lossy() {
                "-enable-kvm" | "--enable-kvm" => true,
                "-accel" | "--accel" => value.as_deref().is_some_and(names_kvm),
                "-machine" | "--machine" | "-M" => value.as_deref().is_some_and(|value| {
                    let mut options = value.split(',');
                    options.any(|option| option.strip_prefix("accel=").is_some_and(names_kvm))
                }),
                _ => false,
            };
            if is_kvm {
                let argument = match value {
                    Some(value) if !arg.to_string_lossy().ends_with("kvm") => {
                        format!("{} {value}", arg.to_string_lossy()).into()
                    }
                    _ => arg.clone(),
                };
                return Err(MachineError::Accelerated { argument });
            }
        }
        let mut command = Command::new(&self.path);
        command
            .arg("-plugin")
            .arg(option(&self.plugin, &self.folder()))
            .args(args);
        Ok(command)
    }
}

fn option(plugin: &Path, folder: &Path) -> OsString {
    let mut option = b"file=".to_vec();
    put_escaped(&mut option, plugin.as_os_str());
    option.extend_from_slice(b",folder=");
    put_escaped(&mut option, folder.as_os_str());
    OsString::from_vec(option)
}

/// Whether QEMU loads the plugin: asked to run nothing, it does that first.
fn takes(qemu: &Path, plugin: &Path, folder: &Path) -> Result<(), String> {
    let probe = folder.join("probe");
    fs::create_dir_all(&probe).map_err(|error| error.to_string())?;
    let mut command = Command::new(qemu);
    command
        .args(["-machine", "none", "-display", "none", "-device", NO_DEVICE])
        .arg("-plugin")
        .arg(option(plugin, &probe));
    let answer = child::ask(&mut command, PATIENCE);
    // The plugin makes its shared memory when it is installed, and ends QEMU if it cannot trace machines.
    let installed = fs::read_dir(&probe).is_ok_and(|mut entries| entries.next().is_some());
    let _ = fs::remove_dir_all(&probe);
    let answer = answer.map_err(|error| error.to_string())?;
    if installed && answer.stderr.contains(NO_DEVICE) {
        return Ok(());
    }
    Err(answer.stderr.lines().next().unwrap_or("nothing").to_owned())
}
