//! Unix: paths are bytes.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use crate::Text;

pub(crate) fn text_of(bytes: &[u8]) -> Text<'_> {
    Cow::Borrowed(OsStr::from_bytes(bytes))
}

pub(crate) fn bytes_of(text: &OsStr) -> Cow<'_, [u8]> {
    Cow::Borrowed(text.as_bytes())
}

pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    file.read_at(bytes, offset)
}

pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.write_at(bytes, offset)
}

pub(crate) fn mode_of(file: &Metadata) -> u32 {
    file.permissions().mode()
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

pub(crate) fn changed(file: &Metadata) -> u64 {
    // Who copies a file may keep the time when it was changed, and not that when it came here.
    u64::try_from(file.mtime().max(file.ctime())).unwrap_or(0)
}

pub(crate) fn is_ours(file: &Metadata) -> bool {
    let ours = std::fs::metadata("/proc/self").map(|this| this.uid());
    file.uid() == 0 || ours.is_ok_and(|uid| uid == file.uid())
}
