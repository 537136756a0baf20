//! Code that no file holds, saved in files of ours beside the trace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder `FILE.code` beside the trace FILE, made when it is first needed.
#[derive(Debug)]
pub(super) struct SavedFiles {
    folder: PathBuf,
    count: u32,
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
        Ok(Self { folder, count: 0 })
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
