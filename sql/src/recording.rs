//! Recordings that are open, and what is worked out of one once for all tables.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cofi_analysis::{CheckOptions, StreamCheck, Summary, Tally};
use cofi_archive::{Archive, ArchiveError};
use cofi_image::Kallsyms;
use cofi_packet::Tsc;
use cofi_packet::intel::find_psb;
use cofi_session::{FileFormat, OwnedSession, Session, SessionError, SessionOptions, Stream};
use thiserror::Error;

use crate::functions::StreamParts;
use crate::kept::{self, KeptError};

/// Why a recording cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is no trace, or something that belongs to it cannot be had.
    #[error("{}: {error}", .path.display())]
    Session {
        /// The file.
        path: PathBuf,
        /// Why.
        error: SessionError,
    },
    /// It is an archive, and damaged.
    #[error("{}: {error}", .path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// Why.
        error: ArchiveError,
    },
    /// It is of a kind that is not read.
    #[error("{}: {what}", .path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        what: &'static str,
    },
    /// The packets are missing.
    #[error("{} holds no trace", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Nothing says what it is, and it has nothing of what packets begin with.
    #[error("{} is no recording: no perf.data, no archive, and no PSB is in it (--format pt, if it is packets all the same)", .path.display())]
    NoTrace {
        /// The file.
        path: PathBuf,
    },
    /// Two recordings have one name.
    #[error("{name} is given twice")]
    Twice {
        /// The name.
        name: String,
    },
}

/// What is the same for all recordings that are opened.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The format, if it is not to be recognised.
    pub format: Option<FileFormat>,
    /// ELF files, as `--elf` has them.
    pub elf: Vec<cofi_image::ElfSpec>,
    /// Raw code, as `--raw` has it.
    pub raw: Vec<cofi_image::RawSpec>,
    /// Further folders in which to look for files of code.
    pub folders: Vec<PathBuf>,
}

/// How many gaps were counted.
pub(crate) fn gaps(summary: &Summary) -> u64 {
    let threads = summary.threads.iter();
    threads.map(|thread| thread.gaps.count()).sum()
}

/// A recording.
#[derive(Debug)]
pub struct Recording {
    name: String,
    size: u64,
    session: OwnedSession,
    summary: OnceLock<Summary>,
    checks: OnceLock<Vec<StreamCheck>>,
    /// The file with the packets, and all of it.
    file: PathBuf,
    bytes: Arc<Within>,
    /// How it was opened, as far as that decides what is decoded.
    how: String,
    kernel_names: Option<Arc<Kallsyms>>,
    kept: Option<kept::Kept>,
    parts: Vec<OnceLock<StreamParts>>,
    /// Rows were made of a flow of which something is missing; since that was told, and ever.
    gap_is_new: AtomicBool,
    met_gap: AtomicBool,
}

/// The trace in a file that may hold more.
#[derive(Debug)]
struct Within {
    bytes: cofi_file::Bytes,
    trace: Range<usize>,
}

impl AsRef<[u8]> for Within {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(self.trace.clone()).unwrap_or_default()
    }
}

/// The names of the kernel's functions beside a trace. A list that is of no use is no reason not to read the trace.
fn kernel_names(folders: &[PathBuf]) -> Option<Arc<Kallsyms>> {
    let texts = folders
        .iter()
        .filter_map(|folder| std::fs::read(folder.join("kallsyms")).ok());
    let mut parsed = texts.filter_map(|text| Kallsyms::parse(&text).ok());
    parsed.next().map(Arc::new)
}

impl Recording {
    /// Opens a recording, whose name in the tables is the path as it is given.
    ///
    /// # Errors
    /// When the file cannot be read, is no trace, or holds no packets.
    pub fn open(path: &Path, how: &OpenOptions) -> Result<Self, OpenError> {
        Self::open_as(path.to_string_lossy().into_owned(), path, how)
    }

    /// Opens a recording that has another name in the tables than its path.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_as(name: String, path: &Path, how: &OpenOptions) -> Result<Self, OpenError> {
        let file = cofi_file::inside(path);
        if cofi_file::is_divided(path) {
            return Err(OpenError::Unsupported {
                path: path.into(),
                what: cofi_file::DIVIDED,
            });
        }
        let bytes = cofi_file::file(&file).map_err(|error| OpenError::Read {
            path: file.clone(),
            error,
        })?;
        let size = bytes.len() as u64;
        let mut options = SessionOptions::beside(path);
        options.path = Some(file.clone());
        options.format = how.format;
        let wrong = |error| OpenError::Archive {
            path: path.into(),
            error,
        };
        let mut trace = 0..bytes.len();
        let archive = match how.format {
            None => Archive::open(&bytes, Some(&file)).map_err(wrong)?,
            Some(_) => None,
        };
        if let Some(archive) = &archive {
            archive.configure(&mut options).map_err(wrong)?;
            let names = archive.kernel_names().map_err(wrong)?;
            options.kernel_names = names.map(Arc::new);
            trace = archive.trace_range().map_err(wrong)?;
        }
        let is_archive = archive.is_some();
        drop(archive);
        options.elf.extend(how.elf.iter().cloned());
        options.raw.extend(how.raw.iter().cloned());
        options.folders.extend(how.folders.iter().cloned());
        if !is_archive {
            options.kernel_names = kernel_names(&options.folders);
        }
        options.open = Some(|path| Ok(Arc::new(cofi_file::file(path)?)));
        options.join = Some(cofi_file::join);
        let bytes = Arc::new(Within { bytes, trace });
        let session =
            OwnedSession::of(bytes.clone(), &options).map_err(|error| OpenError::Session {
                path: path.into(),
                error,
            })?;
        if session.streams().iter().all(Stream::is_empty) {
            return Err(OpenError::Empty { path: path.into() });
        }
        // Any file may be packets. Of one without a PSB nothing could be decoded, and all tables would be empty.
        let is_guessed = how.format.is_none() && !is_archive;
        let is_named = FileFormat::of(bytes.as_ref().as_ref()) == FileFormat::Perf;
        let has_psb = |stream: &Stream<'_>| find_psb(stream.bytes()).is_some();
        if is_guessed && !is_named && !session.streams().iter().any(has_psb) {
            return Err(OpenError::NoTrace { path: path.into() });
        }
        Ok(Self {
            name,
            size,
            parts: session.streams().iter().map(|_| OnceLock::new()).collect(),
            session,
            summary: OnceLock::new(),
            checks: OnceLock::new(),
            file,
            bytes,
            how: format!("{:?} {:?} {:?}", how.format, how.elf, how.raw),
            kernel_names: options.kernel_names,
            kept: None,
            gap_is_new: AtomicBool::new(false),
            met_gap: AtomicBool::new(false),
        })
    }

    /// Opens several, each of which has another name.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and when one is given twice.
    pub fn open_all(paths: &[PathBuf], how: &OpenOptions) -> Result<Vec<Arc<Self>>, OpenError> {
        let mut all: Vec<Arc<Self>> = Vec::new();
        for path in paths {
            all.push(Arc::new(Self::open(path, how)?));
        }
        Self::check_distinct(&all)?;
        Ok(all)
    }

    /// That each has another name.
    ///
    /// # Errors
    /// When two have the same.
    pub fn check_distinct(all: &[Arc<Self>]) -> Result<(), OpenError> {
        let mut names = BTreeSet::new();
        match all.iter().find(|recording| !names.insert(&recording.name)) {
            Some(recording) => Err(OpenError::Twice {
                name: recording.name.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Its name in the tables.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes the file has.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// What is known of it before anything is decoded.
    #[must_use]
    pub fn session(&self) -> &Session<'_> {
        self.session.session()
    }

    /// A moment in nanoseconds, where the recording says how to convert.
    #[must_use]
    pub fn nanoseconds(&self, tsc: Option<Tsc>) -> Option<u64> {
        Some(self.session().time_conversion()?.time_of(tsc?)?.0)
    }

    /// So many ticks in nanoseconds, where the recording says how to convert.
    #[must_use]
    pub fn lasted(&self, ticks: Option<u64>) -> Option<u64> {
        let conversion = self.session().time_conversion()?;
        let (end, begin) = (
            conversion.time_of(Tsc(ticks?))?,
            conversion.time_of(Tsc(0))?,
        );
        Some(end.0.wrapping_sub(begin.0))
    }

    /// The parts of a stream that can be decoded apart.
    pub(crate) fn parts(&self, index: usize) -> &StreamParts {
        static NONE: StreamParts = StreamParts::none();
        let session = self.session();
        match (self.parts.get(index), session.streams().get(index)) {
            (Some(parts), Some(stream)) => parts.get_or_init(|| {
                let kept = self.kept().and_then(|kept| kept.stream(index));
                StreamParts::of(session, stream, kept.map(kept::KeptStream::times))
            }),
            _ => &NONE,
        }
    }

    fn belonging(&self) -> kept::Belonging {
        let bytes = &self.bytes.bytes;
        kept::Belonging::of(
            self.session(),
            bytes,
            &self.how,
            self.kernel_names.as_deref(),
        )
    }

    /// Takes what is kept beside the recording (`FILE.parts`), if it belongs to it and to the code that is there: conditions on functions and addresses
    /// then leave out parts of streams. Only who opens it alone may.
    ///
    /// # Errors
    /// When there is none, or it is of no use.
    pub fn take_kept(&mut self) -> Result<(), KeptError> {
        let path = kept::path_beside(&self.file);
        // Most often there is none, and then there is nothing to compare.
        if let Err(error) = std::fs::metadata(&path) {
            return Err(KeptError::Io { path, error });
        }
        self.kept = Some(kept::Kept::load(&path, &self.belonging(), self.session())?);
        Ok(())
    }

    /// The same, and if there is none, decodes the recording by so many threads and keeps what is found beside it.
    ///
    /// # Errors
    /// When it cannot be kept; what was found is used all the same.
    pub fn keep(&mut self, threads: NonZeroUsize) -> Result<(), KeptError> {
        if self.take_kept().is_ok() {
            return Ok(());
        }
        let mut kept = kept::Kept::build(self.session(), threads);
        let saved = kept.save(&kept::path_beside(&self.file), &self.belonging());
        self.kept = Some(kept);
        saved
    }

    /// A sum over what is kept beside it, if that was taken.
    #[must_use]
    pub fn kept_sum(&self) -> Option<u32> {
        self.kept.as_ref().map(kept::Kept::sum)
    }

    /// As if nothing were kept beside it.
    pub fn forget_kept(&mut self) {
        self.kept = None;
    }

    /// What is kept beside it, if that was taken.
    pub(crate) fn kept(&self) -> Option<&kept::Kept> {
        self.kept.as_ref()
    }

    /// Rows are made of a flow in which there are so many gaps.
    pub(crate) fn note_gaps(&self, gaps: u64) {
        if gaps > 0 {
            self.gap_is_new.store(true, Ordering::Relaxed);
            self.met_gap.store(true, Ordering::Relaxed);
        }
    }

    /// Whether rows were made of a flow of which something is missing, since this was asked last. (What other machines have decoded is not known here.)
    #[must_use]
    pub fn take_gap(&self) -> bool {
        self.gap_is_new.swap(false, Ordering::Relaxed)
    }

    /// Whether such rows were ever made.
    #[must_use]
    pub fn met_gap(&self) -> bool {
        self.met_gap.load(Ordering::Relaxed)
    }

    /// What `cofi report` counts: all is decoded when it is asked for first, by so many threads.
    pub fn summary(&self, threads: NonZeroUsize) -> &Summary {
        let summary = self.summary.get_or_init(|| {
            let session = self.session();
            let streams: Vec<_> = session.streams().iter().collect();
            let mut tally = Tally::new();
            tally.add_all(session, &streams, threads, &|_| {});
            tally.finish()
        });
        self.note_gaps(gaps(summary));
        summary
    }

    /// What `cofi check` finds in each stream: all is decoded when it is asked for first, by so many threads.
    pub fn checks(&self, threads: NonZeroUsize) -> &[StreamCheck] {
        self.checks.get_or_init(|| {
            let mut options = CheckOptions::default();
            options.threads = threads;
            cofi_analysis::check(self.session(), options, &|_| {})
        })
    }
}
