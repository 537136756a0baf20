//! What can be wrong with archives and catalogues.

use std::io;
use std::path::PathBuf;

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// Its first member is not whole.
    #[error("the archive cannot be read: its manifest is cut off")]
    CutManifest,
    /// Its first member is not what it should be.
    #[error("the archive cannot be read: its manifest is damaged: {reason}")]
    Manifest {
        /// What is wrong with it.
        reason: String,
    },
    /// It was written by a later version.
    #[error(
        "the archive cannot be read: version {found} of archives is not known to this version of cofi"
    )]
    Version {
        /// The version that it tells.
        found: u64,
    },
    /// The trace is not in it.
    #[error("the archive is cut off: the trace is not in it")]
    NoTrace,
    /// A file that it names is not in it.
    #[error("the archive is cut off or damaged: {path} is not in it")]
    NotInIt {
        /// The file, as the archive names it.
        path: String,
    },
    /// What was said of the trace makes no sense.
    #[error("the archive is damaged: {reason}")]
    Said {
        /// What is wrong with it.
        reason: String,
    },
    /// A file that it shares with others is not there, or is another one.
    #[error("{path}: {reason}; a recording of a catalogue is read in its place there, DIR/recordings", path = path.display())]
    Shared {
        /// Where the file should be.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Why something cannot be done with a catalogue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// A file or folder of it cannot be read or written.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The folder is something else.
    #[error("{path} is no catalogue: it is not empty, and has no file {marker}", path = path.display())]
    NotOne {
        /// The folder.
        path: PathBuf,
        /// The file that a catalogue has.
        marker: &'static str,
    },
    /// It was made by a later version.
    #[error("{path}: a catalogue of another version of cofi", path = path.display())]
    Version {
        /// Its file that tells the version.
        path: PathBuf,
    },
    /// Who made it was interrupted.
    #[error("{path} is empty: who made the catalogue was interrupted; it is one again when something is added", path = path.display())]
    Unfinished {
        /// Its file that would tell the version.
        path: PathBuf,
    },
    /// What stands in the place of one of its folders, or of its file that tells the version, is something else.
    #[error("{path} is a link, or something else that a catalogue does not have there", path = path.display())]
    Foreign {
        /// Where.
        path: PathBuf,
    },
    /// A recording cannot be read, so that nobody knows which code it needs.
    #[error("no code is removed: {path} cannot be read, so that it is not known which it needs: {error}", path = path.display())]
    Unknown {
        /// The recording.
        path: PathBuf,
        /// Why.
        error: Box<CatalogueError>,
    },
    /// A recording is damaged.
    #[error("{path}: {error}", path = path.display())]
    Recording {
        /// The recording.
        path: PathBuf,
        /// What is wrong with it.
        error: ArchiveError,
    },
    /// There are very many of a name.
    #[error("{path}: there are too many recordings of this name", path = path.display())]
    Names {
        /// The first of them.
        path: PathBuf,
    },
    /// Somebody who prunes, or added meanwhile, took this one for dead.
    #[error("{path}: others have taken this process for dead, since it stood still for long; do it again", path = path.display())]
    Disturbed {
        /// Where.
        path: PathBuf,
    },
}
