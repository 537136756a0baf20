//! Removing old recordings from a catalogue, and the code that nobody needs any more.

use std::collections::HashSet;
use std::fs::{self, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{Catalogue, INCOMING, UNFINISHED, entries_of, io_error, seconds};
use crate::error::CatalogueError;

/// What was removed.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Pruned {
    /// The recordings, with their bytes.
    pub recordings: Vec<(String, u64)>,
    /// How many recordings are left.
    pub left: usize,
    /// How many files of code.
    pub code_files: usize,
    /// The bytes of these.
    pub code_bytes: u64,
    /// How many files that were being written when their writer was killed.
    pub unfinished: usize,
    /// What could not be removed, and why. The code of such a recording is left.
    pub problems: Vec<CatalogueError>,
}

impl Catalogue {
    /// Removes the recordings that were added so long ago or longer, and then all code that no recording needs. Waits until nobody adds anything;
    /// `waits` is called if that is so.
    ///
    /// # Errors
    /// When a recording cannot be read, so that it is not known which code it needs: then nothing is removed. What cannot be removed is one of the problems.
    pub fn prune(&self, age: Duration, waits: impl FnOnce()) -> Result<Pruned, CatalogueError> {
        let _lock = self.lock(|marker| match marker.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => {
                waits();
                marker.lock()
            }
            Err(TryLockError::Error(error)) => Err(error),
        })?;
        let mut recordings = self.read_all()?;
        let bad = recordings.iter().find(|(_, it)| it.manifest.is_err());
        if let Some(name) = bad.map(|(name, _)| name.clone())
            && let Some(found) = recordings.remove(&name)
            && let Err(error) = found.manifest
        {
            return Err(CatalogueError::Unknown {
                path: found.path,
                error: Box::new(error),
            });
        }
        let now = seconds(SystemTime::now());
        let mut pruned = Pruned::default();
        let mut used = HashSet::new();
        for (name, found) in &recordings {
            // One that was added later than now, by another clock, is new.
            let age_of = now.checked_sub(found.added);
            if age_of.is_some_and(|old| old >= age.as_secs()) && pruned.remove(&found.path) {
                let name = name.to_string_lossy().into_owned();
                pruned.recordings.push((name, found.size));
            } else {
                used.extend(found.shared().iter().map(|(name, _)| name.as_str()));
                pruned.left += 1;
            }
        }
        for (name, size) in &self.code()? {
            if used.contains(&**name) {
                continue;
            }
            let path = self.root.join(name);
            if !pruned.remove(&path) {
                continue;
            }
            pruned.code_files += 1;
            pruned.code_bytes += size;
            // It goes with its last file.
            let _ = path.parent().map(fs::remove_dir);
        }
        let incoming = self.root.join(INCOMING);
        for entry in entries_of(&incoming)? {
            let entry = entry.map_err(io_error(&incoming))?;
            let is_ours = entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(UNFINISHED.as_bytes());
            if is_ours && entry.file_type().is_ok_and(|kind| kind.is_file()) {
                pruned.unfinished += usize::from(pruned.remove(&entry.path()));
            }
        }
        Ok(pruned)
    }
}

impl Pruned {
    /// Removes a file; whether it is gone.
    fn remove(&mut self, path: &Path) -> bool {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.problems.push(io_error(path)(error));
                false
            }
            _ => true,
        }
    }
}
