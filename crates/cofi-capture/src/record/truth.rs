//! The engine's own list of what ran, kept on disk for the comparison at the end.

use cofi_packet::Ip;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// Lists of executed addresses, one a stream, written as they come: memory stays bounded whatever the run's length.
#[derive(Debug)]
pub struct Truth {
    folder: PathBuf,
    writers: BTreeMap<u32, (u32, BufWriter<File>)>,
}

/// One stream's list, complete.
#[derive(Debug)]
pub struct TruthStream {
    /// Number of the stream, as in the file's AUXTRACE records.
    pub index: u32,
    /// Its thread.
    pub tid: u32,
    path: PathBuf,
}

impl Truth {
    /// Lists kept in `folder`, which must exist.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.into(),
            writers: BTreeMap::new(),
        }
    }

    fn path(&self, index: u32) -> PathBuf {
        self.folder.join(format!("{index}.truth"))
    }

    pub(super) fn begin(&mut self, index: u32, tid: u32) -> io::Result<()> {
        if self.writers.contains_key(&index) {
            return Ok(());
        }
        let file = File::create(self.path(index))?;
        self.writers.insert(index, (tid, BufWriter::new(file)));
        Ok(())
    }

    pub(super) fn push(&mut self, index: u32, ip: Ip) -> io::Result<()> {
        match self.writers.get_mut(&index) {
            Some((_, writer)) => writer.write_all(&ip.0.to_le_bytes()),
            None => Ok(()),
        }
    }

    pub(super) fn finish(mut self) -> io::Result<Vec<TruthStream>> {
        let mut streams = Vec::new();
        for (index, (tid, mut writer)) in std::mem::take(&mut self.writers) {
            writer.flush()?;
            streams.push(TruthStream {
                index,
                tid,
                path: self.path(index),
            });
        }
        Ok(streams)
    }
}

impl TruthStream {
    /// Reads the addresses in order.
    ///
    /// # Errors
    /// When the list's file cannot be opened; each item is an error when it cannot be read.
    pub fn addresses(&self) -> io::Result<impl Iterator<Item = io::Result<Ip>> + use<>> {
        let mut reader = BufReader::new(File::open(&self.path)?);
        Ok(std::iter::from_fn(move || {
            let mut bytes = [0; 8];
            match reader.read_exact(&mut bytes) {
                Ok(()) => Some(Ok(Ip(u64::from_le_bytes(bytes)))),
                // The list is written in whole entries, so this is its end.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
                Err(error) => Some(Err(error)),
            }
        }))
    }
}
