//! Files for what a query may not hold in memory. They have no name, so that none is left however the process ends.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use futures::Stream;
use futures::stream::try_unfold;

/// So many bytes are read at once.
const CHUNK: usize = 1 << 17;

/// Makes such files in a folder.
#[derive(Debug)]
pub(crate) struct SpillFolder(PathBuf);

impl SpillFolder {
    /// A folder that somebody names, which is made if it is not there.
    ///
    /// # Errors
    /// When no file can be made in it.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let folder = folder.to_path_buf();
        let made = std::fs::create_dir_all(&folder).and_then(|()| tempfile::tempfile_in(&folder));
        match made {
            Ok(_) => Ok(Self(folder)),
            Err(error) => Err(about(
                &error,
                &format!("cannot write into {}", folder.display()),
            )),
        }
    }
}

impl Default for SpillFolder {
    /// The system's. Whether it can be had shows when something is to be written.
    fn default() -> Self {
        Self(std::env::temp_dir())
    }
}

impl TempFileFactory for SpillFolder {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        match tempfile::tempfile_in(&self.0) {
            Ok(file) => Ok(Arc::new(Spilled(Arc::new(file)))),
            Err(error) => {
                let folder = self.0.display();
                Err(about(
                    &error,
                    &format!("{description}: no file in {folder}"),
                ))
            }
        }
    }
}

/// A file without a name.
struct Spilled(Arc<File>);

impl SpillFile for Spilled {
    fn size(&self) -> Option<u64> {
        self.0.metadata().ok().map(|metadata| metadata.len())
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let chunks = try_unfold((self.0.clone(), 0), |(file, offset)| async move {
            // A file may be on a disk that is slow: whoever computes does not wait for it.
            let read = tokio::task::spawn_blocking(move || {
                let mut chunk = vec![0; CHUNK];
                let count = file.read_at(&mut chunk, offset)?;
                chunk.truncate(count);
                Ok::<_, io::Error>((file, chunk))
            });
            let (file, chunk) = read
                .await
                .map_err(|error| DataFusionError::External(Box::new(error)))??;
            let next = offset + chunk.len() as u64;
            Ok((!chunk.is_empty()).then(|| (Bytes::from(chunk), (file, next))))
        });
        Ok(Box::pin(chunks))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(Writer(self.0.clone())))
    }
}

struct Writer(Arc<File>);

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self.0).flush()
    }
}

impl SpillWriter for Writer {
    fn finish(&mut self) -> Result<()> {
        // Nothing is held back.
        Ok(())
    }
}

fn about(error: &io::Error, what: &str) -> DataFusionError {
    DataFusionError::IoError(io::Error::new(error.kind(), format!("{what}: {error}")))
}
