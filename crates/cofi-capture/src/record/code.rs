//! Code that no file holds, saved in files of ours beside the trace.

use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
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
    /// The folder for the trace at `file`. What an earlier recording of the same name left there is removed.
    pub(super) fn beside(file: &Path) -> io::Result<Self> {
        let mut name = file.file_name().unwrap_or_default().to_os_string();
        name.push(".code");
        let parent = match file.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let folder = parent.canonicalize()?.join(name);
        if let Ok(entries) = fs::read_dir(&folder) {
            for entry in entries {
                let path = entry?.path();
                if path.extension().is_some_and(|e| e == ENDING) {
                    fs::remove_file(path)?;
                }
            }
            // It stays if something else is in it.
            let _ = fs::remove_dir(&folder);
        }
        Ok(Self {
            folder,
            count: 0,
            pages: None,
        })
    }

    /// Saves a page of a machine's memory; the file's absolute path, and where in it the page is.
    pub(super) fn save_page(&mut self, bytes: &[u8]) -> io::Result<(PathBuf, u64)> {
        let pages = match &mut self.pages {
            Some(pages) => pages,
            none => {
                fs::create_dir_all(&self.folder)?;
                let path = self.folder.join(format!("memory.{ENDING}"));
                let file = File::options()
                    .create(true)
                    .truncate(true)
                    .read(true)
                    .write(true)
                    .open(&path)?;
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
        fs::create_dir_all(&self.folder)?;
        self.count += 1;
        let path = self
            .folder
            .join(format!("{:05}-{pid}-{start:x}.{ENDING}", self.count));
        fs::write(&path, bytes)?;
        Ok(path)
    }
}
