//! Removing old recordings from a catalogue, and the code that nobody needs any more.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::store::{Store, Work};
use super::{Catalogue, RECORDINGS, io_error, seconds};
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
    pub fn prune(&self, age: Duration, mut waits: impl FnMut()) -> Result<Pruned, CatalogueError> {
        let hold = self.store.hold(Work::Pruning, &mut waits)?;
        // Once others take this one for dead, they add what it knows nothing of.
        let go_on = || match hold.is_held()? {
            true => Ok(()),
            false => Err(CatalogueError::Disturbed {
                path: self.store.path_of("".as_ref()),
            }),
        };
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
            let file = Path::new(RECORDINGS).join(&found.file);
            if age_of.is_some_and(|old| old >= age.as_secs()) && pruned.remove(&*self.store, &file)
            {
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
            go_on()?;
            if pruned.remove(&*self.store, name.as_ref()) {
                pruned.code_files += 1;
                pruned.code_bytes += size;
            }
        }
        let (unfinished, problems) = self.store.remove_unfinished()?;
        pruned.unfinished = unfinished;
        pruned.problems.extend(problems);
        Ok(pruned)
    }
}

impl Pruned {
    /// Removes something; whether it is gone.
    fn remove(&mut self, store: &dyn Store, name: &Path) -> bool {
        let removed = store.remove(name);
        let problem = removed.err().map(io_error(store.path_of(name)));
        let is_gone = problem.is_none();
        self.problems.extend(problem);
        is_gone
    }
}
