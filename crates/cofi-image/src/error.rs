//! Why code could not be had.

use std::path::PathBuf;

use crate::build_id::BuildId;

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
    /// The trace is an archive, which holds the code that was needed when it was made: not this.
    #[error("{}: its code is not in the archive", path.display())]
    NotPacked {
        /// The path as the mapping named it.
        path: PathBuf,
    },
    /// The file had been deleted when the trace was taken. What stands at its path now, if anything does, is another one.
    #[error(
        "{}: the file was deleted while it was traced, so the code mapped from it is unknown \
         (--ignore-build-ids uses what stands at the path now)",
        path.display()
    )]
    Deleted {
        /// The path as the mapping named it.
        path: PathBuf,
    },
    /// The file was replaced since the trace was taken: another program of the same name.
    #[error(
        "{}: not the file that was traced, so its code is not used: the build id is {}, that of the trace {expected} \
         (--symfs, --buildid-dir name other places to look, --ignore-build-ids uses it anyway)",
        at.display(), Known(*found)
    )]
    OtherBuild {
        /// The path as the mapping named it.
        path: PathBuf,
        /// Where the file was found.
        at: PathBuf,
        /// The build id that the trace tells.
        expected: BuildId,
        /// That of the file, if it has one.
        found: Option<BuildId>,
    },
    /// Somebody wrote to the file while it was being read, so that what was not read before is not used.
    #[error("{}: the file changed while it was being read; the rest of its code is not used", path.display())]
    Changed {
        /// The file that was read.
        path: PathBuf,
    },
    /// The kernel's code, for which there is nothing to read it from.
    #[error(
        "{}: code of the kernel, which no file holds as it ran: record with `perf record --kcore`, or name a copy of the \
         kernel's memory with --kcore (or its vmlinux with --vmlinux)",
        path.display()
    )]
    KernelCode {
        /// The name the mapping had.
        path: PathBuf,
    },
    /// A copy of a kernel's memory is of one that was loaded elsewhere than the one that was traced.
    #[error(
        "{}: of another kernel than was traced: {symbol} stands at {found:#x} there, at {expected:#x} in the trace",
        path.display()
    )]
    OtherKernel {
        /// The file that tells.
        path: PathBuf,
        /// The symbol whose address differs.
        symbol: String,
        /// Its address in the trace.
        expected: u64,
        /// Its address in the file.
        found: u64,
    },
    /// The file was to be read as a jitdump and is not a well-formed one.
    #[error("{}: not a usable jitdump: {reason}", path.display())]
    BadJitdump {
        /// The file that was read.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
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

/// A build id that may be missing.
struct Known(Option<BuildId>);

impl std::fmt::Display for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(id) => id.fmt(f),
            None => f.write_str("missing"),
        }
    }
}

impl ImageError {
    /// The same once more: the first one stays with the file, where it is shared.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Missing { path } => Self::Missing { path: path.clone() },
            Self::NotSaved { path } => Self::NotSaved { path: path.clone() },
            Self::NotPacked { path } => Self::NotPacked { path: path.clone() },
            Self::Deleted { path } => Self::Deleted { path: path.clone() },
            Self::OtherBuild {
                path,
                at,
                expected,
                found,
            } => Self::OtherBuild {
                path: path.clone(),
                at: at.clone(),
                expected: *expected,
                found: *found,
            },
            Self::Changed { path } => Self::Changed { path: path.clone() },
            Self::KernelCode { path } => Self::KernelCode { path: path.clone() },
            Self::OtherKernel {
                path,
                symbol,
                expected,
                found,
            } => Self::OtherKernel {
                path: path.clone(),
                symbol: symbol.clone(),
                expected: *expected,
                found: *found,
            },
            Self::BadJitdump { path, reason } => Self::BadJitdump {
                path: path.clone(),
                reason,
            },
            Self::NotAFile { path } => Self::NotAFile { path: path.clone() },
            Self::Io { path, error } => Self::Io {
                path: path.clone(),
                error: std::io::Error::new(error.kind(), error.to_string()),
            },
            Self::BadElf { path, reason } => Self::BadElf {
                path: path.clone(),
                reason,
            },
        }
    }
}
