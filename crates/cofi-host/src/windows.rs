//! Windows: paths are text of 16-bit units, and a read at a place moves the file's position.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::windows::ffi::{OsStrExt, OsStringExt};
use std::os::windows::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

use crate::{Text, surrogates};

pub(crate) fn text_of(bytes: &[u8]) -> Text<'_> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(OsStr::new(text)),
        Err(_) => Cow::Owned(OsString::from_wide(&surrogates::units_of(bytes))),
    }
}

pub(crate) fn bytes_of(text: &OsStr) -> Cow<'_, [u8]> {
    match text.to_str() {
        Some(text) => Cow::Borrowed(text.as_bytes()),
        None => Cow::Owned(surrogates::bytes_of(text.encode_wide())),
    }
}

pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(bytes, offset)
}

pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.seek_write(bytes, offset)
}

pub(crate) fn mode_of(_: &Metadata) -> u32 {
    0o644
}

pub(crate) fn set_mode(_: &Path, _: u32) -> io::Result<()> {
    Ok(())
}

pub(crate) fn changed(file: &Metadata) -> u64 {
    let seconds = |time: io::Result<SystemTime>| {
        let since = time.ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(since.as_secs())
    };
    // A copy keeps the time of the change, and has one of its own when it was made.
    let times = [file.modified(), file.created()].map(seconds);
    times.into_iter().flatten().max().unwrap_or(0)
}

pub(crate) fn is_ours(_: &Metadata) -> bool {
    true
}
