//! The few things that the plugin does with files.
#![allow(
    unsafe_code,
    reason = "calls into the C library; each has its justification"
)]

use crate::tell::was_interrupted;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

unsafe extern "C" {
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn read(fd: c_int, bytes: *mut c_void, len: usize) -> isize;
    fn fchmod(fd: c_int, mode: c_uint) -> c_int;
    fn ftruncate(fd: c_int, len: i64) -> c_int;
    fn rename(from: *const c_char, to: *const c_char) -> c_int;
    fn unlink(path: *const c_char) -> c_int;
}

const O_RDONLY: c_int = 0;
const O_RDWR: c_int = 2;
const O_CREAT: c_int = 0o100;
const O_EXCL: c_int = 0o200;
/// A program that this one executes does not have it.
const O_CLOEXEC: c_int = 0o2_000_000;
/// The owner reads and writes it, and nobody else does.
const OWN: c_uint = 0o600;

/// An open file; it is closed when this is dropped.
pub(crate) struct File(c_int);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: it is open, and nobody uses it any more.
        unsafe {
            close(self.0);
        }
    }
}

/// What a call returns, which is made again where only a signal came; `None` if it failed.
fn complete(mut call: impl FnMut() -> c_int) -> Option<c_int> {
    loop {
        match call() {
            -1 if was_interrupted() => {}
            -1 => return None,
            result => return Some(result),
        }
    }
}

impl File {
    fn open(path: &CStr, flags: c_int) -> Option<Self> {
        // SAFETY: the path is terminated; the mode is there for what may be made.
        complete(|| unsafe { open(path.as_ptr(), flags | O_CLOEXEC, OWN) }).map(Self)
    }

    /// Opens a file that is there, for reading and writing.
    pub(crate) fn of(path: &CStr) -> Option<Self> {
        Self::open(path, O_RDWR)
    }

    /// Makes a file that is not there yet, for reading and writing.
    pub(crate) fn new(path: &CStr) -> Option<Self> {
        Self::open(path, O_RDWR | O_CREAT | O_EXCL)
    }

    /// Whatever mask the program has set, the owner may read and write it, and nobody else may do anything.
    pub(crate) fn keep_from_others(&self) -> Option<()> {
        // SAFETY: the file is open.
        complete(|| unsafe { fchmod(self.0, OWN) }).map(|_| ())
    }

    pub(crate) fn set_len(&self, len: u64) -> Option<()> {
        let len = i64::try_from(len).ok()?;
        // SAFETY: the file is open.
        complete(|| unsafe { ftruncate(self.0, len) }).map(|_| ())
    }

    /// Its number in this process.
    pub(crate) fn number(&self) -> c_int {
        self.0
    }
}

/// The path of a file in a folder. `None` if there can be no such one.
pub(crate) fn within(folder: &CStr, name: &str) -> Option<CString> {
    CString::new([folder.to_bytes(), b"/", name.as_bytes()].concat()).ok()
}

/// All that is in a file, also in one of the kernel's that have no length. `None` if it cannot be read.
pub(crate) fn content(path: &CStr) -> Option<Vec<u8>> {
    let file = File::open(path, O_RDONLY)?;
    let mut all = Vec::new();
    let mut part = [0; 4096];
    loop {
        // SAFETY: the kernel writes into `part`, as far as it reaches.
        let len = unsafe { read(file.0, part.as_mut_ptr().cast(), part.len()) };
        match usize::try_from(len) {
            Ok(0) => return Some(all),
            Ok(len) => all.extend_from_slice(part.get(..len)?),
            Err(_) if was_interrupted() => {}
            Err(_) => return None,
        }
    }
}

/// Gives a file another name.
pub(crate) fn name_anew(from: &CStr, to: &CStr) -> Option<()> {
    // SAFETY: both paths are terminated.
    (unsafe { rename(from.as_ptr(), to.as_ptr()) } == 0).then_some(())
}

/// Removes a file, if that is possible.
pub(crate) fn remove(path: &CStr) {
    // SAFETY: the path is terminated.
    unsafe {
        unlink(path.as_ptr());
    }
}

#[cfg(test)]
impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> Self {
        use std::os::fd::IntoRawFd;
        Self(file.into_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::{File, content, name_anew, remove, within};
    use std::ffi::CString;
    use std::format;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::string::String;

    #[test]
    fn files_are_made_read_named_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
        let (one, other) = (
            within(&path, "one").unwrap(),
            within(&path, "other").unwrap(),
        );
        assert!(File::of(&one).is_none() && content(&one).is_none());
        let made = File::new(&one).unwrap();
        made.set_len(10_000).unwrap();
        assert!(File::new(&one).is_none());
        made.keep_from_others().unwrap();
        let mode = fs::metadata(folder.path().join("one"))
            .unwrap()
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        assert_eq!(content(&one).unwrap(), [0; 10_000]);
        assert!(made.set_len(u64::MAX).is_none());
        name_anew(&one, &other).unwrap();
        assert!(name_anew(&one, &other).is_none());
        let text: String = (0..3000).map(|line| format!("{line}\n")).collect();
        fs::write(folder.path().join("other"), &text).unwrap();
        assert_eq!(content(&other).unwrap(), text.as_bytes());
        assert!(File::of(&other).is_some());
        remove(&other);
        assert!(content(&other).is_none());
        assert_eq!(within(&path, "a\0b"), None);
    }

    #[test]
    fn the_kernels_files_are_read_to_their_end() {
        let maps = content(c"/proc/self/maps").unwrap();
        assert!(maps.ends_with(b"\n") && maps.windows(7).any(|part| part == b"[stack]"));
    }
}
