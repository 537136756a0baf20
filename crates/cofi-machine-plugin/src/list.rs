//! What each processor ran while it was traced, for whoever wants to compare: the address of each instruction.
#![allow(
    unsafe_code,
    reason = "calls into the C library; each has its justification"
)]

use crate::tell::{errno, tell, was_interrupted, write_all};
use alloc::ffi::CString;
use alloc::format;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_uint};
use core::fmt;

#[link(name = "c")]
unsafe extern "C" {
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn __xpg_strerror_r(number: c_int, text: *mut c_char, len: usize) -> c_int;
}

const O_WRONLY: c_int = 1;
const O_CREAT: c_int = 0o100;
const O_TRUNC: c_int = 0o1000;
const O_CLOEXEC: c_int = 0o2_000_000;
/// Whoever the mask of the process allows it may read and write it.
const ALL: c_uint = 0o666;
const ENOENT: c_int = 2;

/// So many bytes are written at once.
const WRITTEN_AT_ONCE: usize = 1 << 16;

/// A processor's list: addresses of eight bytes, the least significant one first.
#[derive(Debug)]
pub(crate) struct List(Option<Output>);

/// A file that is written in large parts.
#[derive(Debug)]
struct Output {
    file: c_int,
    waiting: Vec<u8>,
}

/// The number of an error of the system's; it is told in its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Error(c_int);

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 128];
        // SAFETY: it writes a terminated string into `text`, which is as long as it is told, or nothing. (Of a number that it does not know it says so,
        // and fails.)
        unsafe {
            __xpg_strerror_r(self.0, text.as_mut_ptr().cast(), text.len());
        }
        let words = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        let words = words.to_str().unwrap_or_default();
        write!(out, "{words} (os error {})", self.0)
    }
}

impl List {
    /// A processor's, in this folder.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn create(folder: &str, vcpu: u32) -> Result<Self, Error> {
        let path = CString::new(format!("{folder}/cpu{vcpu}.ips")).map_err(|_| Error(ENOENT))?;
        let flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
        loop {
            // SAFETY: the path is terminated; the mode is there for what may be made.
            let file = unsafe { open(path.as_ptr(), flags, ALL) };
            if file >= 0 {
                let waiting = Vec::with_capacity(WRITTEN_AT_ONCE);
                return Ok(Self(Some(Output { file, waiting })));
            }
            if !was_interrupted() {
                return Err(Error(errno()));
            }
        }
    }

    /// An instruction at this address ran, PacketEn being 1.
    #[inline]
    pub(crate) fn ran(&mut self, ip: u64) {
        if let Some(output) = &mut self.0 {
            output.waiting.extend_from_slice(&ip.to_le_bytes());
            if output.waiting.len() >= WRITTEN_AT_ONCE {
                self.flush();
            }
        }
    }

    /// Everything is to be in the file.
    pub(crate) fn flush(&mut self) {
        if let Some(output) = &mut self.0
            && let Err(error) = output.flush()
        {
            tell!("cofi: the list of what ran is not complete: {error}");
            self.0 = None;
        }
    }
}

impl Output {
    #[cold]
    fn flush(&mut self) -> Result<(), Error> {
        let written = write_all(self.file, &self.waiting).ok_or_else(|| Error(errno()));
        self.waiting.clear();
        written
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // Where that fails, there is nobody to be told any more.
        let _ = self.flush();
        // SAFETY: it is open, and nobody uses it any more.
        unsafe {
            close(self.file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::{env, fs, process};

    #[test]
    fn addresses_are_written_in_their_order() {
        let folder = env::temp_dir().join(format!("cofi-list-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut list = List::create(folder.to_str().unwrap(), 3).unwrap();
        // More than is written at once.
        let ran: Vec<u64> = (0..20_000)
            .map(|at| 0x1234 + at * at)
            .chain([u64::MAX - 1])
            .collect();
        for ip in &ran {
            list.ran(*ip);
        }
        list.flush();
        let bytes = fs::read(folder.join("cpu3.ips")).unwrap();
        list.ran(7);
        drop(list);
        let all = fs::read(folder.join("cpu3.ips")).unwrap();
        // It is made anew.
        drop(List::create(folder.to_str().unwrap(), 3).unwrap());
        let none = fs::read(folder.join("cpu3.ips")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let wanted = ran.iter().flat_map(|ip| ip.to_le_bytes());
        assert!(bytes.iter().copied().eq(wanted.clone()));
        assert!(all.into_iter().eq(wanted.chain(7_u64.to_le_bytes())));
        assert!(none.is_empty());
    }

    #[test]
    fn errors_are_told_in_the_systems_words() {
        let error = List::create("/no such folder", 0).unwrap_err();
        assert_eq!(error.to_string(), "No such file or directory (os error 2)");
        // As std has them.
        for number in [1, 13, 28, 133, 4000] {
            let wanted = std::io::Error::from_raw_os_error(number);
            assert_eq!(Error(number).to_string(), wanted.to_string());
        }
        // What cannot be written is told once, and then there is no list.
        let file = fs::File::open("/dev/null").unwrap();
        let mut list = List(Some(Output {
            file: std::os::fd::IntoRawFd::into_raw_fd(file),
            waiting: Vec::new(),
        }));
        list.ran(1);
        list.flush();
        assert!(list.0.is_none());
    }
}
