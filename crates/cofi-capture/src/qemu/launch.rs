//! Finding QEMU, and starting a program under it.

use crate::child::{self, is_executable, on_path};
use crate::ptrace::{Command, EngineError};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

const QEMU: &str = "qemu-x86_64";
/// How long QEMU may take to load the plugin and end.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often an interpreter may itself be a script, as in Linux.
const MAX_SCRIPTS: usize = 5;

/// The plugin, built for each version of QEMU's interface.
const PLUGINS: [(u32, &[u8]); 2] = [
    (4, include_bytes!(concat!(env!("OUT_DIR"), "/plugin_4.so"))),
    (1, include_bytes!(concat!(env!("OUT_DIR"), "/plugin_1.so"))),
];

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
        "{} takes none of Cofi's plugins (versions 1 and 4): install Debian 12's package qemu-user (7.2), or use --engine \
         ptrace; it says: {says}",
        path.display()
    )]
    NoPlugins {
        /// The program.
        path: PathBuf,
        /// Its own words.
        says: String,
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

/// A QEMU that takes the plugin.
#[derive(Debug)]
pub struct Qemu {
    path: PathBuf,
    /// The version of its plugin interface that is used.
    version: u32,
    /// Holds the plugin and the processes' shared memory, until it is dropped.
    folder: tempfile::TempDir,
}

impl Qemu {
    /// Looks for QEMU and asks it which plugin it takes.
    ///
    /// # Errors
    /// [`QemuError`], whose text says what to install.
    pub fn find() -> Result<Self, QemuError> {
        let path = child::find_program(OsStr::new(QEMU)).ok_or(QemuError::Missing)?;
        // Memory, if there is such a folder: what is shared there is never written to a disk.
        let shared = Path::new("/dev/shm");
        let parent = if shared.is_dir() {
            shared.to_owned()
        } else {
            std::env::temp_dir()
        };
        let folder = tempfile::Builder::new()
            .prefix("cofi-")
            .tempdir_in(&parent)
            .map_err(|source| QemuError::File {
                path: parent,
                source,
            })?;
        let mut qemu = Self {
            path,
            version: 0,
            folder,
        };
        let mut says = String::new();
        for (version, bytes) in PLUGINS {
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

    /// Whether this is a program that QEMU's user mode can run: a 64-bit x86 one, or a script of one.
    ///
    /// # Errors
    /// Why not.
    pub fn suits(program: &Command) -> io::Result<()> {
        resolve(program).map(drop)
    }

    fn plugin(&self) -> PathBuf {
        self.folder
            .path()
            .join(format!("plugin_{}.so", self.version))
    }

    /// Where the plugin makes each process's shared memory.
    pub(super) fn folder(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Whether QEMU loads the plugin: asked to run nothing, it does that first.
    fn takes_plugin(&self) -> Result<(), String> {
        let probe = self.folder.path().join("probe");
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

    fn command(&self, folder: &Path) -> std::process::Command {
        let mut option = self.plugin().into_os_string();
        option.push(",folder=");
        option.push(folder);
        let mut command = std::process::Command::new(&self.path);
        command.arg("-plugin").arg(option);
        command
    }

    /// Starts a program.
    pub(super) fn launch(&self, program: &Command) -> Result<(Child, PathBuf), EngineError> {
        let fail = |source| EngineError::Launch {
            program: program.program.clone(),
            source,
        };
        let (path, args) = resolve(program).map_err(fail)?;
        fs::create_dir_all(self.folder()).map_err(fail)?;
        let child = self
            .command(&self.folder())
            .arg("-0")
            .arg(&args[0])
            .arg(&path)
            .args(&args[1..])
            .spawn()
            .map_err(fail)?;
        Ok((child, path))
    }
}

/// The file to run and its arguments, argv[0] first: scripts are run by their interpreters, as the kernel does it.
fn resolve(command: &Command) -> io::Result<(PathBuf, Vec<OsString>)> {
    let not_found = || io::Error::from_raw_os_error(libc::ENOENT);
    let mut path = if command.program.is_empty() {
        return Err(not_found());
    } else if command.program.as_bytes().contains(&b'/') {
        PathBuf::from(&command.program)
    } else {
        on_path(&command.program)
            .find(|path| is_executable(path))
            .ok_or_else(not_found)?
    };
    let mut args = vec![command.program.clone()];
    args.extend(command.args.iter().cloned());
    for _ in 0..MAX_SCRIPTS {
        let mut begin = [0; 256];
        // Looked at before it is opened: to open a pipe would be to wait for its other end.
        if !is_executable(&path) {
            fs::metadata(&path)?;
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        let mut file = fs::File::open(&path)?;
        let mut len = 0;
        while let 1.. = {
            let read = file.read(&mut begin[len..])?;
            len += read;
            read
        } {}
        let begin = &begin[..len];
        if begin.starts_with(b"\x7fELF") {
            if begin.get(4) != Some(&2) || begin.get(18..20) != Some(&[62, 0]) {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "the qemu engine runs 64-bit x86 programs; use --engine ptrace",
                ));
            }
            return Ok((path, args));
        }
        let Some(line) = begin.strip_prefix(b"#!") else {
            break;
        };
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = line.trim_ascii();
        let (interpreter, argument) =
            match line.iter().position(|byte| matches!(byte, b' ' | b'\t')) {
                Some(at) => (&line[..at], line[at..].trim_ascii()),
                None => (line, &b""[..]),
            };
        let script = std::mem::replace(
            &mut path,
            PathBuf::from(OsString::from_vec(interpreter.to_vec())),
        );
        let mut before = vec![path.clone().into_os_string()];
        if !argument.is_empty() {
            before.push(OsString::from_vec(argument.to_vec()));
        }
        before.push(script.into_os_string());
        args.splice(..1, before);
    }
    Err(io::Error::from_raw_os_error(libc::ENOEXEC))
}
