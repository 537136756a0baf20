//! A piece of a file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use crate::error::Error;

/// So many bytes of a file, from an offset on. They are read when somebody wants them.
#[derive(Debug)]
pub(crate) struct Section {
    /// The file's name, as the caller gave it.
    pub(crate) file: Vec<u8>,
    pub(crate) offset: u64,
    /// How many bytes, no more than the file has.
    pub(crate) size: u64,
    bytes: OnceLock<Vec<u8>>,
}

fn path(name: &[u8]) -> &std::path::Path {
    std::path::Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name))
}

impl Section {
    /// The section of a file that must be there, cut to what the file has.
    pub(crate) fn new(file: &[u8], offset: u64, size: u64) -> Result<Self, Error> {
        let metadata = std::fs::metadata(path(file)).map_err(|_| Error::Invalid)?;
        let rest = metadata.len().checked_sub(offset).filter(|rest| *rest > 0);
        Ok(Self {
            file: file.to_owned(),
            offset,
            size: size.min(rest.ok_or(Error::Invalid)?),
            bytes: OnceLock::new(),
        })
    }

    /// The bytes; fewer than `size` if the file has become shorter, none if it cannot be read.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get_or_init(|| self.read().unwrap_or_default())
    }

    fn read(&self) -> std::io::Result<Vec<u8>> {
        let file = File::open(path(&self.file))?;
        let len = usize::try_from(self.size).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len)?;
        bytes.resize(len, 0);
        let mut have = 0;
        while have < len {
            match file.read_at(&mut bytes[have..], self.offset + have as u64)? {
                0 => break,
                more => have += more,
            }
        }
        bytes.truncate(have);
        Ok(bytes)
    }
}
