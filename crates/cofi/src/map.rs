//! Trace files in memory: large ones are mapped, so that what is not needed of them takes no memory and no time.
//!
//! A mapping has two dangers that a copy has not. Somebody may cut the file off meanwhile: then the kernel answers the next
//! access with SIGBUS, which is caught here and ends the command with a sentence and the status 2. And somebody may change
//! the file: then what is decoded is neither the old file nor the new one. Nothing here relies on bytes being the same
//! when they are read twice for more than that (indices are checked where they are used), and a recorder that is still
//! writing only appends.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::Path;
use std::sync::Once;

use memmap2::Mmap;
use nix::sys::signal::Signal;

/// Smaller files are read: that is as fast, and without danger.
const SMALLEST: u64 = 1 << 20;

/// The bytes of a file.
pub(crate) enum Bytes {
    Read(Vec<u8>),
    Mapped(Mmap),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Opens a file: a regular one of some size is mapped, anything else is read to its end.
pub(crate) fn file(path: &Path) -> io::Result<Bytes> {
    let mut file = File::open(path)?;
    let about = file.metadata()?;
    if about.is_file() && about.len() >= SMALLEST {
        survive_cuts();
        // SAFETY: nobody in this process writes to the file. That others may is said above: a cut
        // is caught, and changed bytes are no worse than any other input, as none of the readers trusts any.
        if let Ok(map) = unsafe { Mmap::map(&file) } {
            return Ok(Bytes::Mapped(map));
        }
        // Some file systems map nothing.
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Bytes::Read(bytes))
}

/// Has SIGBUS end the command as errors do.
fn survive_cuts() {
    static ONCE: Once = Once::new();
    const TEXT: &[u8] = b"cofi: the trace file was cut off while it was being read\n";
    ONCE.call_once(|| {
        let end = || {
            // A message that cannot be written is no reason to stay.
            let _ = nix::unistd::write(io::stderr(), TEXT);
            signal_hook::low_level::exit(2);
        };
        // SAFETY: the action does nothing but two system calls, write and _exit, which a signal handler may do.
        let registered = unsafe { signal_hook::low_level::register(Signal::SIGBUS as i32, end) };
        // Without it the signal kills the process, as it would in any case.
        drop(registered);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_are_mapped_and_small_ones_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        for (len, mapped) in [(0, false), (100, false), (1 << 20, true)] {
            let bytes = vec![7; len];
            std::fs::write(&path, &bytes).unwrap();
            let found = file(&path).unwrap();
            assert_eq!(*found, *bytes);
            assert_eq!(matches!(found, Bytes::Mapped(_)), mapped);
        }
        assert!(file(&folder.path().join("none")).is_err());
    }
}
