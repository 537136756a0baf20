//! What a catalogue asks of the place in which it lies. Which recordings are old, which code is new, and what nobody needs is decided by who asks.

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::io::{self, Read};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::CatalogueError;

/// What somebody is about to do in a catalogue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Add: several may at the same time, as long as nobody prunes.
    Adding,
    /// Prune: alone.
    Pruning,
}

/// A file of a store, by its name in its folder there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    pub(crate) name: OsString,
    pub(crate) size: u64,
    /// When it came to be what it is, in seconds since 1970.
    pub(crate) changed: u64,
}

/// What keeps others from the catalogue, until it is dropped.
pub(crate) trait Hold {
    /// Whether it has kept them out all the time: it may be that somebody took the holder for dead.
    fn is_held(&self) -> Result<bool, CatalogueError>;
}

/// The place in which a catalogue lies. Names are `recordings/…`, `code/BUILDID/SHA256` and the like, wherever that is.
/// Threads may share a catalogue, wherever it lies.
pub(crate) trait Store: Debug + Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Where something is, as people are told it.
    fn path_of(&self, name: &Path) -> PathBuf;

    /// Waits until nobody is in the way; `waits` is called if somebody is.
    fn hold(
        &self,
        work: Work,
        waits: &mut dyn FnMut(),
    ) -> Result<Box<dyn Hold + '_>, CatalogueError>;

    /// What lies in `recordings`.
    fn recordings(&self) -> Result<Vec<Item>, CatalogueError>;

    /// What lies in the folders of `code`, by folder and name there, with the sizes.
    fn code(&self) -> Result<Vec<(OsString, OsString, u64)>, CatalogueError>;

    /// That these recordings are about to be opened one after the other.
    fn look_ahead(&self, _recordings: &[&OsStr]) -> io::Result<()> {
        Ok(())
    }

    /// One of `recordings`; nothing if it is not there.
    fn recording(&self, name: &OsStr) -> io::Result<Option<Item>>;

    /// The bytes of one of `recordings`, from one on.
    fn open(&self, recording: &OsStr, from: u64) -> io::Result<Box<dyn Read + '_>>;

    /// Has a file of code in its place; whether it was not there before, or damaged. Others may read what `mode` lets them read.
    fn put_code(&self, name: &str, bytes: &[u8], mode: u32) -> Result<bool, CatalogueError>;

    /// The folder for a recording that is being written.
    fn incoming(&self) -> PathBuf;

    /// Puts a recording into its place, if nothing is there; gives it back if something is.
    fn put_recording(
        &self,
        name: &OsStr,
        file: NamedTempFile,
    ) -> Result<Option<NamedTempFile>, CatalogueError>;

    /// Removes something, which may be gone already.
    fn remove(&self, name: &Path) -> io::Result<()>;

    /// Removes what was being written when its writer was killed: how much that was, and what is left all the same. To be called by who prunes.
    fn remove_unfinished(&self) -> Result<(usize, Vec<CatalogueError>), CatalogueError>;
}
