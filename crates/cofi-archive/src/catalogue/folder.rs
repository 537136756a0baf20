//! A catalogue in a folder.
//!
//! Who adds and who prunes lock the file that tells the version. What is written is written in `incoming`, and put into its place whole.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::store::{Hold, Item, Store, Work};
use super::{CODE, INCOMING, MARKER, RECORDINGS, VERSION, check_version, holds_same, io_error};
use crate::error::CatalogueError;
use crate::writer::readers;

const FOLDERS: [&str; 3] = [RECORDINGS, CODE, INCOMING];

/// What the names of files that are being written begin with: those of tempfile.
const UNFINISHED: &str = ".tmp";

/// A folder with a catalogue.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    marker: File,
}

impl Folder {
    /// Opens one that is there.
    pub(super) fn open(root: &Path) -> Result<Self, CatalogueError> {
        let path = root.join(MARKER);
        if !is_marker(&path)? && root.is_dir() {
            return Err(not_one(root));
        }
        let marker = File::open(&path).map_err(io_error(path))?;
        let this = Self::checked(root, marker)?;
        for folder in FOLDERS {
            check_folder(&root.join(folder))?;
        }
        Ok(this)
    }

    /// Opens one, or makes it where nothing is, or an empty folder.
    pub(super) fn open_or_create(root: &Path) -> Result<Self, CatalogueError> {
        let path = root.join(MARKER);
        fs::create_dir_all(root).map_err(io_error(root))?;
        // It is the first file of a catalogue: where it is not, nothing else is.
        let mut entries = fs::read_dir(root).map_err(io_error(root))?;
        if !is_marker(&path)? && entries.next().is_some() {
            return Err(not_one(root));
        }
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        let marker = match options.open(&path) {
            // Another user's can be locked all the same.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => File::open(&path),
            opened => opened,
        }
        .map_err(io_error(&path))?;
        // Several may make it at the same time, and who made it may have been killed before it was written.
        marker.lock().map_err(io_error(&path))?;
        if marker.metadata().map_err(io_error(&path))?.len() == 0 {
            (&marker).write_all(VERSION).map_err(io_error(&path))?;
        }
        marker.unlock().map_err(io_error(&path))?;
        let this = Self::checked(root, marker)?;
        for folder in FOLDERS {
            create_folder(&root.join(folder))?;
        }
        Ok(this)
    }

    fn checked(root: &Path, marker: File) -> Result<Self, CatalogueError> {
        let path = root.join(MARKER);
        // Wherever it was written last.
        let mut text = [0; VERSION.len() + 1];
        let len = cofi_host::read_at(&marker, &mut text, 0).map_err(io_error(&path))?;
        check_version(&text[..len], path)?;
        Ok(Self {
            root: root.to_owned(),
            marker,
        })
    }

    fn path_of_recording(&self, name: &OsStr) -> PathBuf {
        self.root.join(RECORDINGS).join(name)
    }
}

/// The lock of a folder.
struct Lock<'c>(&'c File);

impl Hold for Lock<'_> {
    fn is_held(&self) -> Result<bool, CatalogueError> {
        // Nobody can take it away.
        Ok(true)
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // It ends with the file at the latest.
        let _ = self.0.unlock();
    }
}

impl Store for Folder {
    fn path_of(&self, name: &Path) -> PathBuf {
        self.root.join(name)
    }

    fn hold(
        &self,
        work: Work,
        waits: &mut dyn FnMut(),
    ) -> Result<Box<dyn Hold + '_>, CatalogueError> {
        let marker = &self.marker;
        let tried = match work {
            Work::Adding => marker.try_lock_shared(),
            Work::Pruning => marker.try_lock(),
        };
        match (tried, work) {
            (Ok(()), _) => Ok(()),
            (Err(TryLockError::Error(error)), _) => Err(error),
            (Err(TryLockError::WouldBlock), Work::Adding) => {
                waits();
                marker.lock_shared()
            }
            (Err(TryLockError::WouldBlock), Work::Pruning) => {
                waits();
                marker.lock()
            }
        }
        .map_err(io_error(self.root.join(MARKER)))?;
        Ok(Box::new(Lock(marker)))
    }

    fn recordings(&self) -> Result<Vec<Item>, CatalogueError> {
        let folder = self.root.join(RECORDINGS);
        let mut all = Vec::new();
        for entry in entries_of(&folder)? {
            let name = entry.map_err(io_error(&folder))?.file_name();
            let item = self
                .recording(&name)
                .map_err(io_error(folder.join(&name)))?;
            // It may have been removed meanwhile.
            all.extend(item);
        }
        Ok(all)
    }

    fn code(&self) -> Result<Vec<(OsString, OsString, u64)>, CatalogueError> {
        let root = self.root.join(CODE);
        let mut all = Vec::new();
        for folder in entries_of(&root)? {
            let folder = folder.map_err(io_error(&root))?;
            if !folder.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            for file in entries_of(&folder.path())? {
                let file = file.map_err(io_error(folder.path()))?;
                if let Ok(about) = file.metadata()
                    && about.is_file()
                {
                    all.push((folder.file_name(), file.file_name(), about.len()));
                }
            }
        }
        Ok(all)
    }

    fn recording(&self, name: &OsStr) -> io::Result<Option<Item>> {
        let about = match self.path_of_recording(name).symlink_metadata() {
            Ok(about) => about,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(about.is_file().then(|| Item {
            name: name.to_owned(),
            size: about.len(),
            changed: cofi_host::changed(&about),
        }))
    }

    fn open(&self, recording: &OsStr, from: u64) -> io::Result<Box<dyn Read + '_>> {
        let mut file = File::open(self.path_of_recording(recording))?;
        file.seek(SeekFrom::Start(from))?;
        Ok(Box::new(file))
    }

    fn put_code(&self, name: &str, bytes: &[u8], mode: u32) -> Result<bool, CatalogueError> {
        let path = self.root.join(name);
        if let Ok(about) = path.symlink_metadata()
            && about.is_file()
            && about.len() == bytes.len() as u64
        {
            // Somebody else's stays as it is, as long as it can be read.
            let now = cofi_host::mode_of(&about);
            let wider = now | mode & 0o044;
            if wider != now {
                let _ = cofi_host::set_mode(&path, wider);
            }
            let file = File::open(&path).map_err(io_error(&path))?;
            if holds_same(bytes, BufReader::new(file)).map_err(io_error(&path))? {
                return Ok(false);
            }
        }
        for folder in [
            Path::new(CODE),
            Path::new(name).parent().unwrap_or(Path::new(CODE)),
        ] {
            create_folder(&self.root.join(folder))?;
        }
        let write = || -> io::Result<()> {
            let mut file = NamedTempFile::new_in(self.incoming())?;
            file.write_all(bytes)?;
            readers(&file, mode)?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            Ok(())
        };
        write().map_err(io_error(&path))?;
        Ok(true)
    }

    fn incoming(&self) -> PathBuf {
        self.root.join(INCOMING)
    }

    fn put_recording(
        &self,
        name: &OsStr,
        file: NamedTempFile,
    ) -> Result<Option<NamedTempFile>, CatalogueError> {
        // The disk has it before its name is there.
        file.as_file().sync_all().map_err(io_error(file.path()))?;
        let path = self.path_of_recording(name);
        match file.persist_noclobber(&path) {
            Ok(_) => Ok(None),
            Err(failed) if failed.error.kind() == ErrorKind::AlreadyExists => Ok(Some(failed.file)),
            Err(failed) => Err(io_error(path)(failed.error)),
        }
    }

    fn remove(&self, name: &Path) -> io::Result<()> {
        let path = self.root.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if name.starts_with(CODE) {
            // Its folder goes with its last file.
            let _ = path.parent().map(fs::remove_dir);
        }
        Ok(())
    }

    fn remove_unfinished(&self) -> Result<(usize, Vec<CatalogueError>), CatalogueError> {
        let incoming = self.incoming();
        let (mut count, mut problems) = (0, Vec::new());
        for entry in entries_of(&incoming)? {
            let entry = entry.map_err(io_error(&incoming))?;
            let name = entry.file_name();
            let is_ours = name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes());
            if is_ours && entry.file_type().is_ok_and(|kind| kind.is_file()) {
                match self.remove(&Path::new(INCOMING).join(name)) {
                    Ok(()) => count += 1,
                    Err(error) => problems.push(io_error(entry.path())(error)),
                }
            }
        }
        Ok((count, problems))
    }
}

/// What is in a folder; nothing of one that is not there.
fn entries_of(
    folder: &Path,
) -> Result<impl Iterator<Item = io::Result<fs::DirEntry>>, CatalogueError> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(Some(entries).into_iter().flatten()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None.into_iter().flatten()),
        Err(error) => Err(io_error(folder)(error)),
    }
}

fn create_folder(path: &Path) -> Result<(), CatalogueError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => check_folder(path),
        made => made.map_err(io_error(path)),
    }
}

/// Refuses what stands in the place of a folder and is none: a link would lead out of the catalogue.
fn check_folder(path: &Path) -> Result<(), CatalogueError> {
    match path.symlink_metadata() {
        Ok(about) if !about.is_dir() => Err(CatalogueError::Foreign { path: path.into() }),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error(path)(error)),
        _ => Ok(()),
    }
}

/// Whether the file that a catalogue has is there. A link, or what is no file, is refused.
pub(super) fn is_marker(path: &Path) -> Result<bool, CatalogueError> {
    match path.symlink_metadata() {
        Ok(about) if about.is_file() => Ok(true),
        Ok(_) => Err(CatalogueError::Foreign { path: path.into() }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error(path)(error)),
    }
}

fn not_one(root: &Path) -> CatalogueError {
    CatalogueError::NotOne {
        path: root.to_owned(),
        marker: MARKER,
    }
}
