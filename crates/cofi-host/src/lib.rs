#![doc = include_str!("../README.md")]
//!
//! Each system has a module, with the same functions in it. They are few, and nothing else in what reads asks for which system it is compiled.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::path::Path;

#[cfg(any(windows, test))]
mod surrogates;
#[cfg(unix)]
#[path = "unix.rs"]
mod system;
#[cfg(windows)]
#[path = "windows.rs"]
mod system;

/// The path that these bytes of a trace are, so that [`bytes_of`] gives them back.
#[must_use]
pub fn path_of(bytes: &[u8]) -> Cow<'_, Path> {
    match system::text_of(bytes) {
        Cow::Borrowed(text) => Cow::Borrowed(Path::new(text)),
        Cow::Owned(text) => Cow::Owned(text.into()),
    }
}

/// The bytes of a path as they stand in traces.
#[must_use]
pub fn bytes_of(path: &Path) -> Cow<'_, [u8]> {
    system::bytes_of(path.as_os_str())
}

/// Whether a path of a trace begins at the root of the traced machine. ([`Path::is_absolute`] asks for this machine: none of Linux is, on Windows.)
#[must_use]
pub fn is_absolute(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(b"/")
}

/// Reads bytes of a file at a place; how many there were.
///
/// Where the file's own position is afterwards, no one may rely on.
///
/// # Errors
/// When the file cannot be read.
pub fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    system::read_at(file, bytes, offset)
}

/// Fills `bytes` from a place of a file. Several threads may do so at once.
///
/// # Errors
/// When the file cannot be read, or ends before.
pub fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match read_at(file, bytes, offset) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                bytes = bytes.get_mut(count..).unwrap_or_default();
                offset += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `bytes` to a place of a file.
///
/// # Errors
/// When the file cannot be written.
pub fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match system::write_at(file, bytes, offset) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = bytes.get(count..).unwrap_or_default();
                offset += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Who may do what with a file, in the bits of Unix. Where there are none, everyone may read, and only the owner write: as archives say of their members.
#[must_use]
pub fn mode_of(file: &Metadata) -> u32 {
    system::mode_of(file)
}

/// Gives a file these bits. Where there are none, its folder says who may read it, and nothing is done.
///
/// # Errors
/// When the file is not ours, or not there.
pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    system::set_mode(path, mode)
}

/// When a file was changed last, or came here, in seconds since 1970; 0 if that is not known.
#[must_use]
pub fn changed(file: &Metadata) -> u64 {
    system::changed(file)
}

/// Whether a regular file is there, no link, of this user or of root. Where files have no such owners, whether a regular file is there.
#[must_use]
pub fn is_trusted(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|file| file.is_file() && system::is_ours(&file))
}

/// A name as [`path_of`] makes it, without a copy where it can be borrowed.
type Text<'b> = Cow<'b, OsStr>;

#[cfg(test)]
mod tests;
