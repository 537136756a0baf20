//! One [`CodeFile`] a path.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::build_id::BuildId;
use crate::error::ImageError;
use crate::file::CodeFile;
use crate::places::{Candidate, Places, is_real_path};

/// Hands out files by path, the same one for the same path and build id, and looks in further places for those that are gone.
#[derive(Debug, Default)]
pub struct FileStore {
    folders: Vec<PathBuf>,
    places: Arc<Places>,
    files: HashMap<PathBuf, Builds>,
    order: Vec<Arc<CodeFile>>,
    is_sealed: bool,
}

/// The builds of one file that are asked for.
#[derive(Debug)]
struct Builds {
    first: Arc<CodeFile>,
    others: HashMap<Option<BuildId>, Arc<CodeFile>>,
}

impl Builds {
    fn get(&self, id: Option<BuildId>) -> Option<&Arc<CodeFile>> {
        if self.first.build_id() == id {
            return Some(&self.first);
        }
        self.others.get(&id)
    }
}

impl FileStore {
    /// A store that looks nowhere but at the paths themselves.
    pub fn new() -> Self {
        Self::default()
    }

    /// A store that looks in these places.
    pub fn with_places(places: Places) -> Self {
        Self {
            places: Arc::new(places),
            ..Self::default()
        }
    }

    /// From now on there are no files but those that were [added](Self::add).
    pub fn seal(&mut self) {
        self.is_sealed = true;
    }

    /// Where to look, by a file's last name, for files that are not where their path says. Files asked for before
    /// do not profit from it.
    pub fn add_folder(&mut self, folder: impl Into<PathBuf>) {
        self.folders.push(folder.into());
    }

    /// The file a mapping names, of which no build id is known: see [`file_of`](Self::file_of).
    pub fn file(&mut self, path: &Path) -> Arc<CodeFile> {
        self.file_of(path, None)
    }

    /// The file a mapping names. Nothing is opened yet. Names that are no absolute path (`[vdso]`, `//anon`,
    /// `[kernel.kallsyms]_text`) are looked for in the additional folders only, and by build id; files of a folder `….code`,
    /// which a recorder saved, there first. Where a build id is known, only a file that has it is used.
    pub fn file_of(&mut self, path: &Path, build_id: Option<BuildId>) -> Arc<CodeFile> {
        if let Some(file) = self.files.get(path).and_then(|builds| builds.get(build_id)) {
            return file.clone();
        }
        if self.is_sealed {
            return self.remember(CodeFile::not_packed(path, build_id));
        }
        let mut candidates = self.places.of_code(path, build_id.as_ref());
        if let Some(name) = path.file_name() {
            let at = usize::from(is_real_path(path) && !is_saved_code(path));
            // What lies beside the trace is the trace's own. At the path itself may be by now what another recording of
            // the same name saved.
            let beside = self.folders.iter().map(|folder| Candidate {
                path: folder.join(name),
                only_if_equal: false,
            });
            candidates.splice(at..at, beside);
        }
        self.open_at(path, build_id, candidates)
    }

    /// What a mapping of the kernel's names that no file holds as it stood in memory. It may lie in an additional folder.
    pub fn kernel_file(&mut self, path: &Path) -> Arc<CodeFile> {
        if let Some(file) = self.files.get(path).map(|builds| &builds.first) {
            return file.clone();
        }
        if self.is_sealed {
            return self.remember(CodeFile::not_packed(path, None));
        }
        let named = path.file_name().filter(|_| !is_real_path(path));
        let candidates = named
            .into_iter()
            .flat_map(|name| self.folders.iter().map(move |folder| folder.join(name)))
            .map(|path| Candidate {
                path,
                only_if_equal: false,
            })
            .collect();
        self.remember(CodeFile::kernel(path, candidates))
    }

    /// The file at `path`, if there is one now, of this user's or of root's, or among those packed with a trace.
    ///
    /// In a folder where everybody may write, a file of another's may say anything, and a link may lead anywhere.
    pub fn existing(&mut self, path: &Path) -> Option<Arc<CodeFile>> {
        let is_there = self.files.contains_key(path)
            || !self.is_sealed && cofi_host::is_trusted(&self.places.here(path));
        is_there.then(|| self.file(path))
    }

    /// A file the user named, relative to the current folder if not absolute, and looked for nowhere else.
    pub fn named(&mut self, path: &Path) -> Arc<CodeFile> {
        match self.files.get(path).map(|builds| &builds.first) {
            Some(file) => file.clone(),
            None if self.is_sealed => self.remember(CodeFile::not_packed(path, None)),
            None => {
                let candidate = Candidate {
                    path: path.to_owned(),
                    only_if_equal: false,
                };
                self.open_at(path, None, vec![candidate])
            }
        }
    }

    /// From now on, whoever asks for the path and build id of `file` gets it.
    pub fn add(&mut self, file: Arc<CodeFile>) {
        match self.files.entry(file.path().to_owned()) {
            Entry::Vacant(entry) => {
                entry.insert(Builds {
                    first: file.clone(),
                    others: HashMap::new(),
                });
            }
            Entry::Occupied(mut entry) => {
                let builds = entry.get_mut();
                if builds.first.build_id() == file.build_id() {
                    builds.first = file.clone();
                } else {
                    builds.others.insert(file.build_id(), file.clone());
                }
            }
        }
        self.order.push(file);
    }

    /// The files that were needed and could not be used, each once, in the order they were first asked for.
    pub fn problems(&self) -> impl Iterator<Item = &ImageError> {
        self.order.iter().filter_map(|file| file.problem())
    }

    /// The files that were needed and found, in the order they were first asked for.
    pub fn used(&self) -> impl Iterator<Item = &Arc<CodeFile>> {
        self.order.iter().filter(|file| file.found_at().is_some())
    }

    /// All files that were named so far, needed or not.
    pub fn all(&self) -> impl Iterator<Item = &Arc<CodeFile>> {
        self.order.iter()
    }

    fn open_at(
        &mut self,
        path: &Path,
        build_id: Option<BuildId>,
        candidates: Vec<Candidate>,
    ) -> Arc<CodeFile> {
        let places = self.places.clone();
        self.remember(CodeFile::at(path.to_owned(), build_id, candidates, places))
    }

    fn remember(&mut self, file: Arc<CodeFile>) -> Arc<CodeFile> {
        self.add(file.clone());
        file
    }
}

/// Whether a recorder saved this file, in the folder `FILE.code` of its trace.
fn is_saved_code(path: &Path) -> bool {
    let folder = path.parent().and_then(Path::extension);
    is_real_path(path) && folder.is_some_and(|extension| extension == "code")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_path_gives_the_same_file() {
        let mut store = FileStore::new();
        let first = store.file(Path::new("/a/b"));
        assert!(Arc::ptr_eq(&first, &store.file(Path::new("/a/b"))));
        assert!(!Arc::ptr_eq(&first, &store.file(Path::new("/a/c"))));
    }

    #[test]
    fn moved_files_are_found_by_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("anon-1"), [7; 3]).unwrap();
        std::fs::write(folder.path().join("[vdso]"), [8; 3]).unwrap();
        let mut store = FileStore::new();
        store.add_folder(folder.path());
        let mut byte = [0];
        let moved = store.file(Path::new("/no/such/folder/anon-1"));
        assert_eq!((moved.read_at(2, &mut byte), byte), (1, [7]));
        assert_eq!(moved.path(), Path::new("/no/such/folder/anon-1"));
        assert_eq!(store.file(Path::new("[vdso]")).read_at(0, &mut byte), 1);
        assert_eq!(byte, [8]);
        assert_eq!(store.problems().count(), 0);
    }

    #[test]
    fn saved_code_beside_the_trace_is_the_traces_own() {
        let folder = tempfile::tempdir().unwrap();
        let made = |name: &str, byte: u8| {
            let folder = folder.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("memory"), [byte]).unwrap();
            folder
        };
        let (later, program, copied) =
            (made("a.data.code", 1), made("bin", 2), made("copy.code", 3));
        let mut store = FileStore::new();
        store.add_folder(folder.path().join("none"));
        store.add_folder(&copied);
        let mut read = |folder: &Path| {
            let mut byte = [0];
            assert_eq!(store.file(&folder.join("memory")).read_at(0, &mut byte), 1);
            byte[0]
        };
        assert_eq!(read(&later), 3);
        assert_eq!(read(&program), 2);
        assert_eq!(read(&copied), 3);
        // Only the path itself is left.
        let mut store = FileStore::new();
        store.add_folder(folder.path().join("none"));
        let mut byte = [0];
        assert_eq!(store.file(&later.join("memory")).read_at(0, &mut byte), 1);
        assert_eq!(byte, [1]);
    }

    #[test]
    fn each_problem_is_told_once_and_only_when_met() {
        let mut store = FileStore::new();
        let gone = store.file(Path::new("/no/such/file"));
        let anonymous = store.file(Path::new("//anon"));
        store.file(Path::new("/never/needed"));
        assert_eq!(store.problems().count(), 0);
        for _ in 0..3 {
            assert_eq!(gone.read_at(0, &mut [0]), 0);
            assert_eq!(anonymous.read_at(0, &mut [0]), 0);
        }
        let said: Vec<String> = store.problems().map(ToString::to_string).collect();
        assert_eq!(said.len(), 2);
        assert!(said[0].starts_with("/no/such/file: "), "{said:?}");
        assert!(
            said[1].starts_with("//anon: memory without a file"),
            "{said:?}"
        );
    }
}
