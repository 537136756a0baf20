#![doc = include_str!("../README.md")]
//! # Systems
//!
//! On Linux files are held as far as they are being read, as the module `region` says. On others they are read whole.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofi_session::FileBytes;

#[cfg(not(target_os = "linux"))]
mod absent;
#[cfg(target_os = "linux")]
mod region;

#[cfg(not(target_os = "linux"))]
pub use absent::Region;
#[cfg(target_os = "linux")]
pub use region::Region;

/// Smaller files are read: that is as fast, and without all this.
const SMALLEST: u64 = 1 << 20;

/// Why a trace that is [divided](is_divided) is not read.
pub const DIVIDED: &str =
    "`perf record --threads` writes several files, which are not read; record without it";

/// Whether a trace is the folder that `perf record --threads` makes.
#[must_use]
pub fn is_divided(path: &Path) -> bool {
    path.join("data.0").is_file()
}

/// The file that holds a trace: `perf record --kcore` makes a folder, and so does LLDB.
#[must_use]
pub fn inside(path: &Path) -> PathBuf {
    let names = ["data", "trace.json"].map(|name| path.join(name));
    let found = names
        .into_iter()
        .find(|name| path.is_dir() && name.is_file());
    found.unwrap_or_else(|| path.into())
}

/// The bytes of a file.
#[derive(Debug)]
pub enum Bytes {
    /// All of them, in memory.
    Read(Vec<u8>),
    /// As many of them as are being read.
    Held(&'static Region),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            Self::Held(region) => region.bytes(),
        }
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Opens a file: a regular one of some size is held as far as it is being read, anything else is read to its end.
///
/// # Errors
/// When the file cannot be opened or read.
pub fn file(path: &Path) -> io::Result<Bytes> {
    let mut file = File::open(path)?;
    let about = file.metadata()?;
    if about.is_file() && about.len() >= SMALLEST {
        let len = usize::try_from(about.len()).map_err(io::Error::other)?;
        if let Some(region) = Region::of_file(&file, len)? {
            return Ok(Bytes::Held(region));
        }
        // There may be a limit to addresses.
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Bytes::Read(bytes))
}

/// Puts pieces of files that are held one behind the other; none if a piece is not of such a file, or if it is not worth it.
#[must_use]
pub fn join(pieces: &[&[u8]]) -> Option<FileBytes> {
    let len: usize = pieces.iter().map(|piece| piece.len()).sum();
    if (len as u64) < SMALLEST {
        return None;
    }
    Some(Arc::new(Bytes::Held(Region::of_pieces(pieces)?)))
}
