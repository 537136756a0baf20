//! Why code could not be had.

use std::path::PathBuf;

/// A file of code that could not be used. Always names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Neither the path itself nor its name in the additional folders exists.
    #[error("{}: no such file, so the code mapped from it is unknown", path.display())]
    Missing {
        /// The path as the mapping named it.
        path: PathBuf,
    },
    /// The mapping names no file: anonymous memory, a stack, kernel text.
    #[error("{}: memory without a file, and its code was not saved", path.display())]
    NotSaved {
        /// The name the mapping had.
        path: PathBuf,
    },
    /// A folder, a pipe or a device, none of which code is read from.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// The file that was looked at.
        path: PathBuf,
    },
    /// The file exists but the system would not let us read it.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file that was tried.
        path: PathBuf,
        /// What the system answered.
        #[source]
        error: std::io::Error,
    },
    /// The file was to be loaded as ELF and is not a well-formed one.
    #[error("{}: not a usable ELF file: {reason}", path.display())]
    BadElf {
        /// The file that was read.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
}
