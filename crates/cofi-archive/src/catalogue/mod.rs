//! A catalogue: recordings, whose code lies beside them, each file once.
//!
//! | name | what it is |
//! |---|---|
//! | `cofi-catalogue` | the version |
//! | `recordings/NAME.cofi` | an archive without what it shares with others |
//! | `code/BUILDID/SHA256` | a file that recordings share, by its own build id (`none` if it has none) and what it holds |
//! | `incoming/` | what is being written, or said of who writes |
//!
//! What is added is put into its place whole: files of code first, and the recording that needs them last. So who is killed meanwhile leaves files that
//! nobody names, which the next pruning removes. Several may add at a time; who prunes is alone, since it must know what is needed. Who reads waits for
//! nobody. Where all this lies is a `Store`: a folder, or what another program keeps for us.

mod add;
mod folder;
mod list;
mod prune;
mod remote;
mod store;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub use add::Added;
pub use list::{Entry, Listed};
pub use prune::Pruned;
pub use store::Work;

use crate::error::{ArchiveError, CatalogueError};
use crate::manifest::{Manifest, is_shared_name};
use folder::Folder;
use remote::Remote;
use store::{Item, Store};

/// The file that a catalogue has, and nothing else.
pub const MARKER: &str = "cofi-catalogue";
const VERSION: &[u8] = b"cofi catalogue 1\n";
/// The folder of a catalogue in which its recordings are.
pub const RECORDINGS: &str = "recordings";
const CODE: &str = "code";
const INCOMING: &str = "incoming";

/// What the names of recordings end with.
const EXTENSION: &str = "cofi";

/// The manifest of a recording has no more bytes.
const MOST_MANIFEST: u64 = 64 << 20;

/// So many recordings are announced to the store before they are opened.
const AHEAD: usize = 128;

/// Recordings that share their code.
#[derive(Debug)]
pub struct Catalogue {
    store: Box<dyn Store>,
}

fn io_error(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> CatalogueError {
    let path = path.into();
    |error| CatalogueError::Io { path, error }
}

/// Refuses a catalogue whose file at `path` tells another version.
fn check_version(text: &[u8], path: PathBuf) -> Result<(), CatalogueError> {
    match text {
        [] => Err(CatalogueError::Unfinished { path }),
        VERSION => Ok(()),
        _ => Err(CatalogueError::Version { path }),
    }
}

impl Catalogue {
    /// Opens a catalogue in a folder.
    ///
    /// # Errors
    /// When it cannot be read, or the folder is something else.
    pub fn open(root: &Path) -> Result<Self, CatalogueError> {
        Ok(Self {
            store: Box::new(Folder::open(root)?),
        })
    }

    /// Whether a folder is a catalogue, be it of another version.
    #[must_use]
    pub fn is_one(root: &Path) -> bool {
        folder::is_marker(&root.join(MARKER)).unwrap_or(false)
    }

    /// Opens a catalogue in a folder, or makes one where nothing is, or an empty folder.
    ///
    /// # Errors
    /// When it cannot be read or made, or the folder is something else.
    pub fn open_or_create(root: &Path) -> Result<Self, CatalogueError> {
        Ok(Self {
            store: Box::new(Folder::open_or_create(root)?),
        })
    }

    /// Opens a catalogue that another program keeps, as [`wire`](crate::wire) says: `place` is where, `to` its standard input, `from` its standard output.
    /// With `create`, it is made where nothing is.
    ///
    /// # Errors
    /// When the program does not reply as it should, or something else lies there.
    pub fn remote(
        place: &str,
        to: Box<dyn Write + Send>,
        from: Box<dyn BufRead + Send>,
        create: bool,
    ) -> Result<Self, CatalogueError> {
        Ok(Self {
            store: Box::new(Remote::open(place, to, from, create)?),
        })
    }

    /// All recordings by their names, with what they say of themselves or why they cannot be read. What has another name than it was given when it was
    /// added is one, too, if it is an archive: it needs its code.
    fn read_all(&self) -> Result<BTreeMap<OsString, Found>, CatalogueError> {
        let items = self.store.recordings()?;
        let mut all = BTreeMap::new();
        for items in items.chunks(AHEAD) {
            let names: Vec<&OsStr> = items.iter().map(|item| &*item.name).collect();
            let announced = self.store.look_ahead(&names);
            announced.map_err(io_error(self.store.path_of(RECORDINGS.as_ref())))?;
            for item in items {
                let file = Path::new(&item.name);
                let is_named = file.extension().is_some_and(|it| it == EXTENSION);
                // It may have been removed meanwhile.
                let Some(mut found) = Found::of(&*self.store, item) else {
                    continue;
                };
                // Nobody asks for these, and there are many.
                if let Ok(manifest) = &mut found.manifest {
                    manifest.files = Vec::new();
                }
                let name = match is_named {
                    true => file.file_stem().unwrap_or_default(),
                    false => &item.name,
                };
                if is_named || found.manifest.is_ok() {
                    all.insert(name.to_owned(), found);
                }
            }
        }
        Ok(all)
    }

    /// The files of code that are there, with their sizes.
    fn code(&self) -> Result<BTreeMap<String, u64>, CatalogueError> {
        let files = self.store.code()?.into_iter();
        let named = files.map(|(id, hash, size)| {
            let [id, hash] = [&id, &hash].map(|name| name.to_string_lossy());
            (format!("{CODE}/{id}/{hash}"), size)
        });
        Ok(named.filter(|(name, _)| is_shared_name(name)).collect())
    }
}

/// A recording, as far as its manifest tells.
struct Found {
    /// Its name in `recordings`.
    file: OsString,
    path: PathBuf,
    size: u64,
    /// When it was added, in seconds since 1970.
    added: u64,
    manifest: Result<Manifest, CatalogueError>,
    /// Where what follows the manifest begins.
    rest: u64,
}

impl Found {
    /// `None` if it is not there any more.
    fn of(store: &dyn Store, item: &Item) -> Option<Self> {
        let path = store.path_of(&Path::new(RECORDINGS).join(&item.name));
        let read = store.open(&item.name, 0).map_err(io_error(&path));
        let (manifest, rest) = match read.and_then(|bytes| manifest_of(&path, bytes)) {
            Ok((manifest, rest)) => (Ok(manifest), rest),
            Err(CatalogueError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => {
                return None;
            }
            Err(error) => (Err(error), 0),
        };
        let kept = manifest.as_ref().ok().and_then(|it| it.kept.as_ref());
        Some(Self {
            file: item.name.clone(),
            size: item.size,
            // What was put there by other means is as old as the file.
            added: kept.map_or(item.changed, |kept| kept.added),
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
fn manifest_of(path: &Path, bytes: impl Read) -> Result<(Manifest, u64), CatalogueError> {
    let io = |error| io_error(path)(error);
    let damaged = |error| CatalogueError::Recording {
        path: path.to_owned(),
        error,
    };
    let mut archive = tar::Archive::new(bytes);
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

fn holds_same(mut first: impl Read, mut second: impl Read) -> io::Result<bool> {
    loop {
        let (mut a, mut b) = ([0; 4096], [0; 4096]);
        let count = first.read(&mut a)?;
        if count == 0 {
            return Ok(second.read(&mut b)? == 0);
        }
        match second.read_exact(&mut b[..count]) {
            Ok(()) if a[..count] == b[..count] => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}
