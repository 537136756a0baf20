//! A catalogue: a folder of recordings, whose code lies beside them, each file once.
//!
//! | path | what it is |
//! |---|---|
//! | `cofi-catalogue` | the version; who changes something locks it |
//! | `recordings/NAME.cofi` | an archive without what it shares with others |
//! | `code/BUILDID/SHA256` | a file that recordings share, by its own build id (`none` if it has none) and what it holds |
//! | `incoming/` | what is being written |
//!
//! What is added is written to `incoming`, and put into its place whole: files of code first, and the recording that needs them last. So who is killed
//! meanwhile leaves files that nobody names, which the next pruning removes. Those who add share the lock; who prunes has it alone, since it must know
//! what is needed. Who reads takes none.

mod add;
mod list;
mod prune;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub use add::Added;
pub use list::{Entry, Listed};
pub use prune::Pruned;

use crate::error::{ArchiveError, CatalogueError};
use crate::manifest::{Manifest, is_shared_name};

const MARKER: &str = "cofi-catalogue";
const VERSION: &[u8] = b"cofi catalogue 1\n";
pub(crate) const RECORDINGS: &str = "recordings";
const CODE: &str = "code";
const INCOMING: &str = "incoming";
const FOLDERS: [&str; 3] = [RECORDINGS, CODE, INCOMING];
/// What the names of files that are being written begin with: those of tempfile.
const UNFINISHED: &str = ".tmp";

/// The manifest of a recording has no more bytes.
const MOST_MANIFEST: u64 = 64 << 20;

/// A folder of recordings that share their code.
#[derive(Debug)]
pub struct Catalogue {
    root: PathBuf,
    marker: File,
}

fn io_error(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> CatalogueError {
    let path = path.into();
    |error| CatalogueError::Io { path, error }
}

impl Catalogue {
    /// Opens a catalogue.
    ///
    /// # Errors
    /// When it cannot be read, or the folder is something else.
    pub fn open(root: &Path) -> Result<Self, CatalogueError> {
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

    /// Whether a folder is a catalogue, be it of another version.
    #[must_use]
    pub fn is_one(root: &Path) -> bool {
        is_marker(&root.join(MARKER)).unwrap_or(false)
    }

    /// Opens a catalogue, or makes one where nothing is, or an empty folder.
    ///
    /// # Errors
    /// When it cannot be read or made, or the folder is something else.
    pub fn open_or_create(root: &Path) -> Result<Self, CatalogueError> {
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
        if len == 0 {
            return Err(CatalogueError::Unfinished { path });
        }
        if &text[..len] != VERSION {
            return Err(CatalogueError::Version { path });
        }
        Ok(Self {
            root: root.to_owned(),
            marker,
        })
    }

    /// Where recordings lie.
    fn recordings(&self) -> PathBuf {
        self.root.join(RECORDINGS)
    }

    /// Holds the lock as long as what it gives is there.
    fn lock(&self, how: impl FnOnce(&File) -> io::Result<()>) -> Result<Lock<'_>, CatalogueError> {
        how(&self.marker).map_err(io_error(self.root.join(MARKER)))?;
        Ok(Lock(&self.marker))
    }

    /// All recordings by their names, with what they say of themselves or why they cannot be read. What has another name than it was given when it was
    /// added is one, too, if it is an archive: it needs its code.
    fn read_all(&self) -> Result<BTreeMap<OsString, Found>, CatalogueError> {
        let folder = self.recordings();
        let mut all = BTreeMap::new();
        for entry in entries_of(&folder)? {
            let path = entry.map_err(io_error(&folder))?.path();
            let is_named = path.extension().is_some_and(|it| it == EXTENSION);
            // It may have been removed meanwhile.
            let Some(mut found) = Found::of(path.clone()) else {
                continue;
            };
            // Nobody asks for these, and there are many.
            if let Ok(manifest) = &mut found.manifest {
                manifest.files = Vec::new();
            }
            let name = match is_named {
                true => path.file_stem(),
                false => path.file_name(),
            };
            if is_named || found.manifest.is_ok() {
                all.insert(name.unwrap_or_default().to_owned(), found);
            }
        }
        Ok(all)
    }

    /// The files of code that are there, with their sizes.
    fn code(&self) -> Result<BTreeMap<String, u64>, CatalogueError> {
        let root = self.root.join(CODE);
        let mut all = BTreeMap::new();
        for folder in entries_of(&root)? {
            let folder = folder.map_err(io_error(&root))?;
            if !folder.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            for file in entries_of(&folder.path())? {
                let file = file.map_err(io_error(folder.path()))?;
                let names = [folder.file_name(), file.file_name()];
                let [id, hash] = names.map(|name| name.to_string_lossy().into_owned());
                let name = format!("{CODE}/{id}/{hash}");
                if let Ok(about) = file.metadata()
                    && about.is_file()
                    && is_shared_name(&name)
                {
                    all.insert(name, about.len());
                }
            }
        }
        Ok(all)
    }
}

/// What the names of recordings end with.
const EXTENSION: &str = "cofi";

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
fn is_marker(path: &Path) -> Result<bool, CatalogueError> {
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

/// The lock of a catalogue, as long as this is there.
struct Lock<'c>(&'c File);

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // It ends with the file at the latest.
        let _ = self.0.unlock();
    }
}

/// A recording, as far as its manifest tells.
struct Found {
    path: PathBuf,
    size: u64,
    /// When it was added, in seconds since 1970.
    added: u64,
    manifest: Result<Manifest, CatalogueError>,
    /// Where what follows the manifest begins.
    rest: u64,
}

impl Found {
    /// `None` if it is not there, or no regular file.
    fn of(path: PathBuf) -> Option<Self> {
        let about = path.symlink_metadata().ok().filter(fs::Metadata::is_file)?;
        let changed = cofi_host::changed(&about);
        let (manifest, rest) = match manifest_of(&path) {
            Ok((manifest, rest)) => (Ok(manifest), rest),
            Err(CatalogueError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => {
                return None;
            }
            Err(error) => (Err(error), 0),
        };
        let kept = manifest.as_ref().ok().and_then(|it| it.kept.as_ref());
        Some(Self {
            size: about.len(),
            // What was put there by other means is as old as the file.
            added: kept.map_or(changed, |kept| kept.added),
            manifest,
            rest,
            path,
        })
    }

    /// The files of the catalogue that it names, with their sizes.
    fn shared(&self) -> &[(String, u64)] {
        let kept = self.manifest.as_ref().ok().and_then(|it| it.kept.as_ref());
        kept.map_or(&[], |kept| &kept.shared)
    }
}

/// What a recording says of itself, and where the rest of the file begins.
fn manifest_of(path: &Path) -> Result<(Manifest, u64), CatalogueError> {
    let io = |error| io_error(path)(error);
    let damaged = |error| CatalogueError::Recording {
        path: path.to_owned(),
        error,
    };
    let mut archive = tar::Archive::new(File::open(path).map_err(io)?);
    let first = archive.entries().map_err(io)?.next();
    let mut first = match first {
        Some(Ok(first)) => first,
        Some(Err(_)) | None => return Err(damaged(ArchiveError::CutManifest)),
    };
    let mut text = Vec::new();
    let read = first.by_ref().take(MOST_MANIFEST).read_to_end(&mut text);
    if first.path_bytes() != crate::MANIFEST.as_bytes()
        || read.is_err()
        || text.len() as u64 != first.size()
    {
        return Err(damaged(ArchiveError::CutManifest));
    }
    let rest = first.raw_file_position() + first.size().next_multiple_of(512);
    Ok((Manifest::parse(&text).map_err(damaged)?, rest))
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}
