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
pub(super) struct SavedFiles {
    folder: PathBuf,
    count: u32,
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

impl SavedFiles {
    /// The folder for the trace at `file`.
    pub(super) fn beside(file: &Path) -> io::Result<Self> {
        let mut name = file.file_name().unwrap_or_default().to_os_string();
        name.push(".code");
        Ok(Self {
            folder: folder_of(file).canonicalize()?.join(name),
            count: 0,
            pages: None,
        })
    }

    /// Where they are.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes way in the folder: what an earlier recording of the same name left there goes where that one's trace goes.
    pub(super) fn begin(&self) -> io::Result<()> {
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
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(bytes);
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

    /// Saves bytes that stand at `start` in process `pid`; the file's absolute path.
    pub(super) fn save(&mut self, pid: u32, start: u64, bytes: &[u8]) -> io::Result<PathBuf> {
        private_folder(&self.folder)?;
        self.count += 1;
        let path = self
            .folder
            .join(format!("{:05}-{pid}-{start:x}.{ENDING}", self.count));
        private_file(&path)?.write_all(bytes)?;
        Ok(path)
    }
}

fn is_code(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == ENDING)
}

/// Removes what a recorder saved in a folder.
fn remove_codes(folder: &Path) -> io::Result<()> {
    let is_folder = fs::symlink_metadata(folder).is_ok_and(|data| data.is_dir());
    if is_folder {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if is_code(&path) {
                fs::remove_file(path)?;
            }
        }
    }
    Ok(())
}
