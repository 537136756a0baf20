//! What went wrong: how the C library says it, and how the plugin says it.
#![allow(
    unsafe_code,
    reason = "calls into the C library; each has its justification"
)]

use core::ffi::{c_int, c_void};
use core::fmt;

#[link(name = "c")]
unsafe extern "C" {
    fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize;
    fn __errno_location() -> *mut c_int;
}

const EINTR: c_int = 4;
const STANDARD_ERROR: c_int = 2;

/// The number of the calling thread's last error.
pub(crate) fn errno() -> c_int {
    // SAFETY: it is where that number of this thread is.
    unsafe { *__errno_location() }
}

/// Whether a call failed only because a signal came.
pub(crate) fn was_interrupted() -> bool {
    errno() == EINTR
}

/// Writes all of this. `None` if that failed.
pub(crate) fn write_all(fd: c_int, bytes: &[u8]) -> Option<()> {
    let mut left = bytes;
    while !left.is_empty() {
        // SAFETY: the kernel only reads what is left.
        let written = unsafe { write(fd, left.as_ptr().cast(), left.len()) };
        match usize::try_from(written) {
            Ok(0) => return None,
            Ok(written) => left = left.get(written..)?,
            Err(_) if was_interrupted() => {}
            Err(_) => return None,
        }
    }
    Some(())
}

/// Where the plugin says what is wrong.
pub(crate) struct StandardError;

impl fmt::Write for StandardError {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write_all(STANDARD_ERROR, text.as_bytes()).ok_or(fmt::Error)
    }
}

/// Writes a line to standard error, all at once.
macro_rules! tell {
    ($($text:tt)*) => {{
        let line = alloc::format!($($text)*) + "\n";
        // There is nobody to be told that this failed.
        let _ = core::fmt::Write::write_str(&mut $crate::tell::StandardError, &line);
    }};
}
pub(crate) use tell;
