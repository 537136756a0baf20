//! Code that no file holds, saved in files of ours beside the trace.

use super::output::{folder_of, private_file, private_folder, with_ending};
use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The folder `FILE.code` beside the trace FILE, made when it is first needed.
#[derive(Debug)]
pub(crate) struct SavedFiles {
    folder: PathBuf,
    count: u32,
    /// Where bytes of a process at an address, of this hash, were saved last.
    saved: HashMap<(u32, u64, u64), PathBuf>,
    pages: Option<Pages>,
}

/// Pages of code, each once, in one file.
#[derive(Debug)]
struct Pages {
    path: PathBuf,
    file: File,
    len: u64,
    /// Where pages of this hash are.
    known: HashMap<u64, Vec<u64>>,
}

const ENDING: &str = "code";
/// A folder with the kernel's memory and its own lists, as perf names and fills it.
const KERNEL: &str = "kcore_dir";

impl SavedFiles {
    /// The folder for the trace at `file`.
    pub(crate) fn beside(file: &Path) -> io::Result<Self> {
        let mut name = file.file_name().unwrap_or_default().to_os_string();
        name.push(".code");
        Ok(Self {
            folder: folder_of(file).canonicalize()?.join(name),
            count: 0,
            saved: HashMap::new(),
            pages: None,
        })
    }

    /// Where they are.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes way in the folder: what an earlier recording of the same name left there goes where that one's trace goes.
    pub(crate) fn begin(&self) -> io::Result<()> {
        let old = with_ending(&self.folder, ".old");
        remove_codes(&old)?;
        match fs::symlink_metadata(&self.folder) {
            Ok(data) if data.is_dir() => {
                private_folder(&old)?;
                for entry in fs::read_dir(&self.folder)? {
                    let path = entry?.path();
                    let there = old.join(path.file_name().unwrap_or_default());
                    if is_code(&path) {
                        fs::rename(&path, there)?;
                    } else {
                        // The user's, who may want it beside both; what is there already stays.
                        let _ = fs::hard_link(&path, there);
                    }
                }
            }
            _ => {}
        }
        // Each stays if something is in it.
        for folder in [&old, &self.folder] {
            let _ = fs::remove_dir(folder);
        }
        Ok(())
    }

    /// Where a file of this name is to be.
    pub(crate) fn place_of(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.{ENDING}"))
    }

    /// Saves bytes there.
    pub(crate) fn save_as(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        private_folder(&self.folder)?;
        private_file(&self.place_of(name))?.write_all(bytes)
    }

    /// Makes the folder for the kernel's code.
    pub(crate) fn kernel_folder(&self) -> io::Result<PathBuf> {
        private_folder(&self.folder)?;
        let folder = self.folder.join(KERNEL);
        private_folder(&folder)?;
        Ok(folder)
    }

    /// Saves a page of a machine's memory; the file's absolute path, and where in it the page is.
    pub(super) fn save_page(&mut self, bytes: &[u8]) -> io::Result<(PathBuf, u64)> {
        let pages = match &mut self.pages {
            Some(pages) => pages,
            none => {
                private_folder(&self.folder)?;
                let path = self.folder.join(format!("memory.{ENDING}"));
                let file = private_file(&path)?;
                none.insert(Pages {
                    path,
                    file,
                    len: 0,
                    known: HashMap::new(),
                })
            }
        };
        let hash = hash(bytes);
        let alike = pages.known.entry(hash).or_default();
        let mut before = vec![0; bytes.len()];
        for offset in &*alike {
            pages.file.read_exact_at(&mut before, *offset)?;
            if before == bytes {
                return Ok((pages.path.clone(), *offset));
            }
        }
        let offset = pages.len;
        pages.file.write_all_at(bytes, offset)?;
        pages.len += bytes.len() as u64;
        alike.push(offset);
        Ok((pages.path.clone(), offset))
    }

    /// Saves bytes that stand at `start` in process `pid`; the file's absolute path. Code that comes back, as where two threads run two
    /// versions of it, is saved once.
    pub(crate) fn save(&mut self, pid: u32, start: u64, bytes: &[u8]) -> io::Result<PathBuf> {
        let place = (pid, start, hash(bytes));
        if let Some(path) = self.saved.get(&place)
            && fs::read(path).is_ok_and(|saved| saved == bytes)
        {
            return Ok(path.clone());
        }
        private_folder(&self.folder)?;
        self.count += 1;
        let path = self
            .folder
            .join(format!("{:05}-{pid}-{start:x}.{ENDING}", self.count));
        private_file(&path)?.write_all(bytes)?;
        self.saved.insert(place, path.clone());
        Ok(path)
    }
}

fn is_code(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == ENDING) || is_kernel(path)
}

fn is_kernel(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == KERNEL)
        && fs::symlink_metadata(path).is_ok_and(|data| data.is_dir())
}

/// Removes what a recorder saved in a folder.
fn remove_codes(folder: &Path) -> io::Result<()> {
    let is_folder = fs::symlink_metadata(folder).is_ok_and(|data| data.is_dir());
    if is_folder {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if is_kernel(&path) {
                fs::remove_dir_all(path)?;
            } else if is_code(&path) {
                fs::remove_file(path)?;
            }
        }
    }
    Ok(())
}

fn hash(bytes: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_makes_way_with_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let saved = SavedFiles::beside(&folder.path().join("data")).unwrap();
        for text in ["first", "second", "third"] {
            saved.begin().unwrap();
            let kernel = saved.kernel_folder().unwrap();
            private_file(&kernel.join("kcore"))
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
        }
        let read = |path: &str| fs::read_to_string(folder.path().join(path)).unwrap();
        assert_eq!(read("data.code/kcore_dir/kcore"), "third");
        assert_eq!(read("data.code.old/kcore_dir/kcore"), "second");
    }

    #[test]
    fn code_that_comes_back_is_saved_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut saved = SavedFiles::beside(&folder.path().join("data")).unwrap();
        let first = saved.save(1, 0x1000, &[1, 2]).unwrap();
        let second = saved.save(1, 0x1000, &[3, 4]).unwrap();
        assert_ne!(first, second);
        assert_eq!(saved.save(1, 0x1000, &[1, 2]).unwrap(), first);
        // Another place, another process: their names say which.
        assert_ne!(saved.save(1, 0x2000, &[1, 2]).unwrap(), first);
        assert_ne!(saved.save(2, 0x1000, &[1, 2]).unwrap(), first);
        // What is not there any more is saved again.
        fs::write(&first, [9, 9]).unwrap();
        let again = saved.save(1, 0x1000, &[1, 2]).unwrap();
        assert_ne!(again, first);
        assert_eq!(fs::read(again).unwrap(), [1, 2]);
    }
}
