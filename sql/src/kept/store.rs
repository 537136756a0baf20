//! The file beside a recording in which it is kept.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use cofi_image::Kallsyms;
use cofi_session::{Fingerprint, Session};
use thiserror::Error;

use super::Kept;

/// The first bytes of such a file. The number is that of what follows: any change of it is another format.
const MAGIC: &[u8; 16] = b"cofi parts v\0\0\0\x02";

/// Why what is kept of a recording cannot be read or kept.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeptError {
    /// There is no such file, or it cannot be read or written.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is something else, or of another version of Cofi.
    #[error("{}: not of this version of Cofi", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
    },
    /// It belongs to another recording, or the recording is decoded with other code, or names, now.
    #[error("{}: of another recording, or of one with other code", .path.display())]
    Other {
        /// The file.
        path: PathBuf,
    },
    /// It is damaged.
    #[error("{}: damaged", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// What such a file belongs to: a recording, the code with which it is decoded, and the names of its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Belonging {
    print: Fingerprint,
    names: u32,
}

impl Belonging {
    /// Of a recording whose file has these bytes, opened in a way that `how` tells.
    pub(crate) fn of(
        session: &Session<'_>,
        bytes: &[u8],
        how: &str,
        kernel: Option<&Kallsyms>,
    ) -> Self {
        let mut names = crc32fast::Hasher::new();
        names.update(how.as_bytes());
        for file in session.code_files().chain(session.lists_of_generated()) {
            file.for_each_function(|name, start| {
                names.update(name.as_bytes());
                names.update(&start.to_le_bytes());
            });
        }
        if let Some(kernel) = kernel {
            kernel.for_each_function(|name, start| {
                names.update(name.as_bytes());
                names.update(&start.to_le_bytes());
            });
        }
        Self {
            print: Fingerprint::of(session, bytes),
            names: names.finalize(),
        }
    }
}

/// Where it is kept: beside the recording.
pub(crate) fn path_beside(recording: &Path) -> PathBuf {
    let mut name = recording.as_os_str().to_owned();
    name.push(".parts");
    name.into()
}

/// What is packed in a file is no larger than this, for a recording of so many bytes.
fn most(recording: u64) -> u64 {
    recording.saturating_mul(8).saturating_add(16 << 20)
}

impl Kept {
    /// Reads what is kept of a recording.
    ///
    /// # Errors
    /// If there is none, if it is of another version, of another recording, or damaged.
    pub(crate) fn load(
        path: &Path,
        belonging: &Belonging,
        session: &Session<'_>,
    ) -> Result<Self, KeptError> {
        let io = |error| KeptError::Io {
            path: path.into(),
            error,
        };
        let damaged = || KeptError::Damaged { path: path.into() };
        let whole: u64 = session.streams().iter().map(|s| s.len() as u64).sum();
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(io)?;
        file.take(most(whole)).read_to_end(&mut bytes).map_err(io)?;
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Err(KeptError::Version { path: path.into() });
        };
        let rest = rest.strip_prefix(belonging.print.as_bytes());
        let rest = rest.and_then(|rest| rest.strip_prefix(&belonging.names.to_le_bytes()));
        let Some(rest) = rest else {
            return Err(KeptError::Other { path: path.into() });
        };
        let (crc, body) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return Err(damaged());
        }
        let mut unpacked = Vec::new();
        let unpack = zstd::stream::read::Decoder::with_buffer(body).map_err(|_| damaged())?;
        let read = unpack.take(most(whole)).read_to_end(&mut unpacked);
        read.map_err(|_| damaged())?;
        let mut kept: Self = rmp_serde::from_slice(&unpacked).map_err(|_| damaged())?;
        kept.sum = u32::from_le_bytes(*crc);
        let streams = session.streams();
        let mut pairs = kept.streams.iter().zip(streams);
        let is_sound = kept.streams.len() == streams.len()
            && pairs.all(|(kept, stream)| kept.is_sound(stream.len() as u64));
        is_sound.then_some(kept).ok_or_else(damaged)
    }

    /// Keeps it in a file, whole or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn save(&mut self, path: &Path, belonging: &Belonging) -> Result<(), KeptError> {
        let io = |error| KeptError::Io {
            path: path.into(),
            error,
        };
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let body = rmp_serde::to_vec(self).map_err(|error| io(io::Error::other(error)))?;
        let body = zstd::stream::encode_all(&*body, 3).map_err(io)?;
        self.sum = crc32fast::hash(&body);
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
        let mut write = || {
            file.write_all(MAGIC)?;
            file.write_all(belonging.print.as_bytes())?;
            file.write_all(&belonging.names.to_le_bytes())?;
            file.write_all(&self.sum.to_le_bytes())?;
            file.write_all(&body)
        };
        write().map_err(io)?;
        file.persist(path).map_err(|failed| io(failed.error))?;
        Ok(())
    }
}
