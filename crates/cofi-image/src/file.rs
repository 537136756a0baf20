//! One file of code, read on first use.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use object::{ReadCache, ReadRef};

use crate::elf::{Layout, Segment};
use crate::error::ImageError;
use crate::symbols::{Symbol, Symbols};

/// Files up to this size are kept in memory; larger ones are read piecewise. A memory map would be quicker to set
/// up, but a file that is truncated while mapped kills the process, and code files of running systems do change.
const WHOLE_LIMIT: u64 = 64 << 20;

/// How much of a large file is kept at a time.
const WINDOW: usize = 64 << 10;

/// A file whose bytes were, or may have been, mapped as code. Shared by every mapping of it.
#[derive(Debug)]
pub struct CodeFile {
    path: PathBuf,
    /// Where to look, in order. Empty for a name that is no path.
    candidates: Vec<PathBuf>,
    contents: OnceLock<Result<Contents, ImageError>>,
    layout: OnceLock<Option<Layout>>,
    symbols: OnceLock<Symbols>,
}

#[derive(Debug)]
enum Contents {
    Whole(Vec<u8>),
    Large { len: u64, window: Mutex<Window> },
}

/// The part of a large file that was read last.
#[derive(Debug)]
struct Window {
    file: File,
    start: u64,
    bytes: Vec<u8>,
}

/// Something read from a file's bytes, however they are held.
pub(crate) trait FromFile {
    fn parse<'data, R: ReadRef<'data>>(data: R) -> Self;
}

impl CodeFile {
    /// A file to be looked for at `candidates`, in order, when it is first needed. `path` is the name it goes by.
    pub(crate) fn at(path: PathBuf, candidates: Vec<PathBuf>) -> Arc<Self> {
        Arc::new(CodeFile {
            path,
            candidates,
            contents: OnceLock::new(),
            layout: OnceLock::new(),
            symbols: OnceLock::new(),
        })
    }

    /// Bytes already in memory, going by the name `name`.
    pub fn from_bytes(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Arc<Self> {
        let file = CodeFile::at(name.into(), Vec::new());
        file.contents.get_or_init(|| Ok(Contents::Whole(bytes)));
        file
    }

    /// The name the mapping had, which is not always where the bytes were found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file now, if it was not read before.
    ///
    /// # Errors
    /// The same as at the first attempt, which is the only one made.
    pub fn load(&self) -> Result<(), &ImageError> {
        self.contents().map(|_| ())
    }

    /// Why the file could not be used, if it was tried and could not.
    pub fn problem(&self) -> Option<&ImageError> {
        self.contents.get()?.as_ref().err()
    }

    /// Size in bytes.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn size(&self) -> Result<u64, &ImageError> {
        self.contents().map(|contents| match contents {
            Contents::Whole(bytes) => bytes.len() as u64,
            Contents::Large { len, .. } => *len,
        })
    }

    /// Copies bytes from `offset` on into `buf` and returns how many there were; none for a file that cannot be read.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> usize {
        match self.contents() {
            Ok(Contents::Whole(bytes)) => copy_from(bytes, offset, buf),
            Ok(Contents::Large { window, .. }) => {
                // A panic of another thread inside `read_at` leaves the window usable: it is refilled below.
                let mut window = window.lock().unwrap_or_else(PoisonError::into_inner);
                window.read_at(offset, buf)
            }
            Err(_) => 0,
        }
    }

    /// The segments an ELF file asks to have loaded; empty for any other file.
    pub fn segments(&self) -> &[Segment] {
        self.layout().map_or(&[], |layout| &layout.segments)
    }

    /// The file's own address (as its symbols use it) of the byte at `offset`.
    pub fn address_of_offset(&self, offset: u64) -> Option<u64> {
        self.layout()?.address_of_offset(offset)
    }

    /// The function that holds the byte at `offset` of the file.
    pub fn symbol_at(&self, offset: u64) -> Option<Symbol<'_>> {
        let address = self.address_of_offset(offset)?;
        self.symbols().at(address)
    }

    pub(crate) fn layout(&self) -> Option<&Layout> {
        self.try_layout().and_then(Result::ok)
    }

    /// `None` for a file that cannot be read; the reason for one that is not ELF is found anew and not kept.
    pub(crate) fn try_layout(&self) -> Option<Result<&Layout, &'static str>> {
        if let Some(Some(layout)) = self.layout.get() {
            return Some(Ok(layout));
        }
        let parsed = self.parse::<Result<Layout, &'static str>>()?;
        match parsed {
            Ok(layout) => self.layout.get_or_init(|| Some(layout)).as_ref().map(Ok),
            Err(reason) => {
                self.layout.get_or_init(|| None);
                Some(Err(reason))
            }
        }
    }

    fn symbols(&self) -> &Symbols {
        self.symbols
            .get_or_init(|| self.parse().unwrap_or_default())
    }

    /// Parses the file's bytes, whichever way they are held; `None` for a file that cannot be read.
    fn parse<T: FromFile>(&self) -> Option<T> {
        match self.contents().ok()? {
            Contents::Whole(bytes) => Some(T::parse(bytes.as_slice())),
            Contents::Large { window, .. } => {
                let window = window.lock().unwrap_or_else(PoisonError::into_inner);
                Some(T::parse(&ReadCache::new(&window.file)))
            }
        }
    }

    fn contents(&self) -> Result<&Contents, &ImageError> {
        self.contents.get_or_init(|| self.open()).as_ref()
    }

    fn open(&self) -> Result<Contents, ImageError> {
        if self.candidates.is_empty() {
            return Err(ImageError::NotSaved {
                path: self.path.clone(),
            });
        }
        // The first candidate that exists decides: an unreadable file is reported, not passed over for another.
        for candidate in &self.candidates {
            match open_file(candidate) {
                Err(ImageError::Io { error, .. })
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                    ) => {}
                result => return result,
            }
        }
        Err(ImageError::Missing {
            path: self.path.clone(),
        })
    }
}

fn open_file(path: &Path) -> Result<Contents, ImageError> {
    let io = |error| ImageError::Io {
        path: path.to_owned(),
        error,
    };
    // Looked at before it is opened: opening a pipe would wait for its other end.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(ImageError::NotAFile {
            path: path.to_owned(),
        });
    }
    let file = File::open(path).map_err(io)?;
    let len = file.metadata().map_err(io)?.len();
    if len > WHOLE_LIMIT {
        let window = Mutex::new(Window {
            file,
            start: 0,
            bytes: Vec::new(),
        });
        return Ok(Contents::Large { len, window });
    }
    let mut bytes = Vec::new();
    // No further than the size it had: some files of /proc claim none and never end.
    file.take(len).read_to_end(&mut bytes).map_err(io)?;
    Ok(Contents::Whole(bytes))
}

fn copy_from(bytes: &[u8], offset: u64, buf: &mut [u8]) -> usize {
    let Some(rest) = usize::try_from(offset)
        .ok()
        .and_then(|offset| bytes.get(offset..))
    else {
        return 0;
    };
    let count = rest.len().min(buf.len());
    buf[..count].copy_from_slice(&rest[..count]);
    count
}

impl Window {
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let Some(at) = offset.checked_add(done as u64) else {
                break;
            };
            let mut count = at
                .checked_sub(self.start)
                .map_or(0, |inside| copy_from(&self.bytes, inside, &mut buf[done..]));
            if count == 0 && self.fill(at).is_ok() {
                count = copy_from(&self.bytes, 0, &mut buf[done..]);
            }
            if count == 0 {
                break;
            }
            done += count;
        }
        done
    }

    fn fill(&mut self, start: u64) -> std::io::Result<()> {
        self.bytes.clear();
        self.start = start;
        self.file.seek(SeekFrom::Start(start))?;
        (&self.file)
            .take(WINDOW as u64)
            .read_to_end(&mut self.bytes)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn reads_inside_and_past_the_end() {
        let file = CodeFile::from_bytes("bytes", (0..10).collect());
        let mut buf = [0xff; 4];
        assert_eq!(file.read_at(8, &mut buf), 2);
        assert_eq!(buf, [8, 9, 0xff, 0xff]);
        assert_eq!(file.read_at(10, &mut buf), 0);
        assert_eq!(file.read_at(u64::MAX, &mut buf), 0);
        assert_eq!(file.size().unwrap(), 10);
    }

    #[test]
    fn large_files_are_read_piecewise() {
        let mut disk = tempfile::NamedTempFile::new().unwrap();
        let len = WHOLE_LIMIT + 100;
        disk.as_file().set_len(len).unwrap();
        disk.seek(SeekFrom::Start(WINDOW as u64 - 2)).unwrap();
        disk.write_all(&[1, 2, 3, 4]).unwrap();
        disk.seek(SeekFrom::Start(len - 2)).unwrap();
        disk.write_all(&[8, 9]).unwrap();
        let file = CodeFile::at(disk.path().into(), vec![disk.path().into()]);
        assert_eq!(file.size().unwrap(), len);
        assert!(matches!(file.contents(), Ok(Contents::Large { .. })));
        let mut buf = [0xff; 4];
        assert_eq!(file.read_at(0, &mut buf), 4);
        assert_eq!(
            file.read_at(WINDOW as u64 - 2, &mut buf),
            4,
            "straddles the window"
        );
        assert_eq!(buf, [1, 2, 3, 4]);
        assert_eq!(file.read_at(len - 2, &mut buf), 2);
        assert_eq!(buf[..2], [8, 9]);
        assert_eq!(file.read_at(0, &mut buf), 4);
        assert_eq!(buf, [0; 4]);
        assert!(file.segments().is_empty());
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = CodeFile::at(folder.path().into(), vec![folder.path().into()]);
        assert!(file.problem().is_none(), "not tried yet");
        assert!(matches!(file.load(), Err(ImageError::NotAFile { .. })));
        assert_eq!(file.read_at(0, &mut [0; 4]), 0);
        let device = CodeFile::at("/dev/zero".into(), vec!["/dev/zero".into()]);
        assert!(matches!(device.load(), Err(ImageError::NotAFile { .. })));
        let gone = CodeFile::at("/none".into(), vec![folder.path().join("none")]);
        assert!(
            matches!(gone.load(), Err(ImageError::Missing { path }) if path == Path::new("/none"))
        );
        assert!(gone.problem().is_some());
        let anonymous = CodeFile::at("//anon".into(), Vec::new());
        assert!(matches!(anonymous.load(), Err(ImageError::NotSaved { .. })));
    }
}
