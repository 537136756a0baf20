//! The index in a file of its own.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use cofi_session::{Fingerprint, Session};

use crate::build::{IndexOptions, Partial};
use crate::index::Index;

/// The first bytes of such a file. The number is that of what follows: any change of it is another format.
const MAGIC: &[u8; 16] = b"cofi index v\0\0\0\x06";

/// Why an index could not be read or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// There is none, or it cannot be read or written.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is no index, or one of another version of Cofi.
    #[error("{path}: not an index of this version of Cofi", path = path.display())]
    Version {
        /// The file.
        path: PathBuf,
    },
    /// It is the index of another trace, or the trace is decoded with other code now.
    #[error("{path}: the index of another trace, or of one with other code", path = path.display())]
    Other {
        /// The file.
        path: PathBuf,
    },
    /// It is damaged.
    #[error("{path}: a damaged index", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// Where an index came from.
#[derive(Debug)]
#[non_exhaustive]
pub enum Origin {
    /// It was read from the file.
    Kept,
    /// It was built, and kept.
    Built,
    /// It was built, and cannot be kept.
    NotKept(IndexError),
}

impl Index {
    /// The index that is kept in a file, if it fits; else builds it, and keeps it there. None if `cancel` is set meanwhile. Without a file, it is built.
    pub fn at_hand(
        session: &Session<'_>,
        bytes: &[u8],
        path: Option<&Path>,
        options: &IndexOptions,
        cancel: &AtomicBool,
        publish: &(dyn Fn(Partial) + Sync),
    ) -> Option<(Self, Origin)> {
        let kept = path.map(|path| (path, Fingerprint::of(session, bytes)));
        if let Some((path, print)) = &kept
            && let Ok(index) = Self::load(path, print)
            && index.with_inlined() == options.inlined
        {
            return Some((index, Origin::Kept));
        }
        let index = Self::build(session, options, cancel, publish)?;
        let origin = match kept.map(|(path, print)| index.save(path, &print)) {
            None | Some(Ok(())) => Origin::Built,
            Some(Err(error)) => Origin::NotKept(error),
        };
        Some((index, origin))
    }

    /// Where the index of a recording is kept: beside it.
    #[must_use]
    pub fn path_beside(recording: &Path) -> PathBuf {
        let mut name = recording.as_os_str().to_owned();
        name.push(".index");
        name.into()
    }

    /// Reads an index.
    ///
    /// # Errors
    ///
    /// If there is none, if it is of another version, of another trace, or damaged.
    pub fn load(path: &Path, print: &Fingerprint) -> Result<Self, IndexError> {
        let io = |error| IndexError::Io {
            path: path.into(),
            error,
        };
        let path = path.to_owned();
        let bytes = std::fs::read(&path).map_err(io)?;
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Err(IndexError::Version { path });
        };
        let Some(rest) = rest.strip_prefix(print.as_bytes()) else {
            return Err(IndexError::Other { path });
        };
        let Some((crc, body)) = rest.split_first_chunk::<4>() else {
            return Err(IndexError::Damaged { path });
        };
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return Err(IndexError::Damaged { path });
        }
        let index = postcard::from_bytes::<Self>(body).ok();
        let Some(mut index) = index.filter(Self::is_sound) else {
            return Err(IndexError::Damaged { path });
        };
        index.prepare();
        Ok(index)
    }

    /// Keeps it in a file, whole or not at all.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn save(&self, path: &Path, print: &Fingerprint) -> Result<(), IndexError> {
        let io = |error| IndexError::Io {
            path: path.into(),
            error,
        };
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let body = postcard::to_stdvec(self).map_err(|error| io(io::Error::other(error)))?;
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
        let mut write = || {
            file.write_all(MAGIC)?;
            file.write_all(print.as_bytes())?;
            file.write_all(&crc32fast::hash(&body).to_le_bytes())?;
            file.write_all(&body)
        };
        write().map_err(io)?;
        file.persist(path).map_err(|failed| io(failed.error))?;
        Ok(())
    }
}
