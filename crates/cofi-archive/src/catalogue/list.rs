//! What is in a catalogue.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use super::Catalogue;
use crate::error::CatalogueError;
use crate::manifest::NO_BUILD_ID;

/// A recording of a catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// When it was added, in seconds since 1970.
    pub added: u64,
    /// Its bytes, without what it shares.
    pub size: u64,
    /// How many instructions were decoded when it was added.
    pub instructions: Option<u64>,
    /// The build ids of its code.
    pub build_ids: Vec<String>,
    /// How many files of code it needs.
    pub code_files: usize,
    /// Their bytes.
    pub code_bytes: u64,
    /// The bytes of those that other recordings need, too.
    pub shared_bytes: u64,
    /// How many of the files are not there, or of another size.
    pub missing_files: usize,
}

/// All that is in a catalogue.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Listed {
    /// The recordings, by their names.
    pub entries: Vec<Entry>,
    /// Those that cannot be read, and why.
    pub problems: Vec<CatalogueError>,
    /// How many files of code there are.
    pub code_files: usize,
    /// Their bytes.
    pub code_bytes: u64,
    /// How many of them no recording needs, as after an interrupted adding.
    pub unused_files: usize,
    /// The bytes of these.
    pub unused_bytes: u64,
}

impl Catalogue {
    /// What is in it.
    ///
    /// # Errors
    /// When its folders cannot be read. A recording that cannot be read is one of the problems.
    pub fn list(&self) -> Result<Listed, CatalogueError> {
        let recordings = self.read_all()?;
        let code = self.code()?;
        let mut users: HashMap<&str, usize> = HashMap::new();
        for (name, _) in recordings.values().flat_map(|it| it.shared()) {
            *users.entry(name).or_default() += 1;
        }
        let mut listed = Listed::default();
        for (name, found) in &recordings {
            let Ok(manifest) = &found.manifest else {
                continue;
            };
            let mut entry = Entry {
                name: name.to_string_lossy().into_owned(),
                path: found.path.clone(),
                added: found.added,
                size: found.size,
                instructions: manifest.kept.as_ref().and_then(|kept| kept.instructions),
                ..Entry::default()
            };
            let mut ids = BTreeSet::new();
            for (member, size) in found.shared() {
                entry.code_files += 1;
                entry.code_bytes = entry.code_bytes.saturating_add(*size);
                if users.get(&**member).is_some_and(|count| *count > 1) {
                    entry.shared_bytes = entry.shared_bytes.saturating_add(*size);
                }
                entry.missing_files += usize::from(code.get(member) != Some(size));
                ids.extend(member.split('/').nth(1).filter(|id| *id != NO_BUILD_ID));
            }
            entry.build_ids = ids.into_iter().map(str::to_owned).collect();
            listed.entries.push(entry);
        }
        let used: HashSet<&str> = users.into_keys().collect();
        for (name, size) in &code {
            let unused = u64::from(!used.contains(&**name));
            listed.code_files += 1;
            listed.code_bytes += size;
            listed.unused_files += unused as usize;
            listed.unused_bytes += unused * size;
        }
        let problems = recordings.into_values().filter_map(|it| it.manifest.err());
        listed.problems = problems.collect();
        Ok(listed)
    }
}
