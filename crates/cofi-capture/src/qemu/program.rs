//! Which file a command means, for who must know before it is started.

use super::isa;
use crate::child::{is_executable, on_path};
use crate::ptrace::Command;
use nix::unistd::{getegid, geteuid};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// How often an interpreter may itself be a script, as in Linux.
const MAX_SCRIPTS: usize = 5;

/// Why QEMU is not for a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// It is another processor's, or a 32-bit one.
    #[error("qemu runs 64-bit x86 programs only")]
    OtherMachine,
    /// It is to run as another user or group, and would leave QEMU: that one cannot share memory with us.
    #[error("the program runs as another user or group (set-user-ID, set-group-ID)")]
    OtherUser,
    /// It needs instructions that QEMU's processor does not have.
    #[error("{file} needs AVX-512 (x86-64-v4), which qemu's processor does not have", file = .file.display())]
    OtherProcessor {
        /// The program, its interpreter or a library of it.
        file: PathBuf,
    },
    /// There is none that can be executed, or it cannot be read.
    #[error("qemu cannot run {program:?}: {source}")]
    Unreadable {
        /// The command.
        program: OsString,
        /// Why.
        source: io::Error,
    },
}

/// Whether QEMU can run what a command means.
pub(super) fn suits(command: &Command) -> Result<(), Unfit> {
    resolve(command).unwrap_or_else(|source| {
        let program = command.program.clone();
        Err(Unfit::Unreadable { program, source })
    })
}

/// Looks at the program that will run: of a script its interpreter, as the kernel does it.
fn resolve(command: &Command) -> io::Result<Result<(), Unfit>> {
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
                return Ok(Err(Unfit::OtherMachine));
            }
            let data = file.metadata()?;
            let user = data.mode() & libc::S_ISUID != 0 && data.uid() != geteuid().as_raw();
            let group = data.mode() & libc::S_ISGID != 0 && data.gid() != getegid().as_raw();
            return Ok(if user || group {
                Err(Unfit::OtherUser)
            } else if let Some(file) = isa::needs_v4(&path) {
                Err(Unfit::OtherProcessor { file })
            } else {
                Ok(())
            });
        }
        let Some(line) = begin.strip_prefix(b"#!") else {
            break;
        };
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = line.trim_ascii();
        let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t'));
        let interpreter = &line[..end.unwrap_or(line.len())];
        path = PathBuf::from(OsString::from_vec(interpreter.to_vec()));
    }
    Err(io::Error::from_raw_os_error(libc::ENOEXEC))
}
