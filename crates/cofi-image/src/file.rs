//! One file of code, looked for and opened on first use.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::build_id::BuildId;
use crate::contents::{Contents, FromFile};
use crate::debug;
use crate::elf::{ElfSegment, Layout};
use crate::error::ImageError;
use crate::places::{Candidate, Places, VDSO, without_deleted};
use crate::stubs::Stubs;
use crate::symbols::{Symbol, Symbols};
use crate::vdso;

/// A file whose bytes were, or may have been, mapped as code. Shared by every mapping of it.
#[derive(Debug)]
pub struct CodeFile {
    path: PathBuf,
    build_id: Option<BuildId>,
    /// Where to look, in order. Empty for a name that is no path.
    candidates: Vec<Candidate>,
    places: Arc<Places>,
    opened: OnceLock<Result<Opened, ImageError>>,
    /// What went wrong only after the file was opened.
    later: OnceLock<ImageError>,
    /// How it is laid out, or why it is not ELF.
    layout: OnceLock<Result<Layout, &'static str>>,
    symbols: OnceLock<Symbols>,
    stubs: OnceLock<Stubs>,
    is_kernel: bool,
    /// There are no files but those packed with the trace.
    is_sealed: bool,
    /// Of a file that was packed with a trace: its file of debugging information, if that was packed, too. No other is looked for.
    packed_debug: Option<Option<PackedDebug>>,
}

/// A file of debugging information that was packed with a trace.
#[derive(Debug)]
enum PackedDebug {
    /// In memory.
    Bytes(Arc<[u8]>),
    /// In a file of its own.
    At(PathBuf),
}

impl PackedDebug {
    fn contents(&self) -> Option<Contents> {
        match self {
            Self::Bytes(bytes) => Some(Contents::Whole(bytes.clone())),
            Self::At(path) => open(path).ok(),
        }
    }
}

/// A file that was found.
#[derive(Debug)]
struct Opened {
    at: PathBuf,
    contents: Contents,
}

impl CodeFile {
    /// A file to be looked for at `candidates`, in order, when it is first needed. `path` is the name it goes by, `build_id` what
    /// the trace says of it.
    pub(crate) fn at(
        path: PathBuf,
        build_id: Option<BuildId>,
        candidates: Vec<Candidate>,
        places: Arc<Places>,
    ) -> Arc<Self> {
        Arc::new(Self::closed(path, build_id, candidates, places))
    }

    fn closed(
        path: PathBuf,
        build_id: Option<BuildId>,
        candidates: Vec<Candidate>,
        places: Arc<Places>,
    ) -> Self {
        CodeFile {
            path,
            build_id,
            candidates,
            places,
            opened: OnceLock::new(),
            later: OnceLock::new(),
            layout: OnceLock::new(),
            symbols: OnceLock::new(),
            stubs: OnceLock::new(),
            is_kernel: false,
            is_sealed: false,
            packed_debug: None,
        }
    }

    /// Bytes already in memory, going by the name `name`.
    pub fn from_bytes(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Arc<Self> {
        Self::made(name.into(), Contents::Whole(bytes.into()), None)
    }

    /// As [`from_bytes`](Self::from_bytes), all of it one function called `symbol`.
    pub fn function(
        name: impl Into<PathBuf>,
        symbol: &str,
        bytes: impl Into<Arc<[u8]>>,
    ) -> Arc<Self> {
        let bytes = bytes.into();
        let symbols = Symbols::of_ranges([(0, bytes.len() as u64, symbol)]);
        Self::made(name.into(), Contents::Whole(bytes), Some(symbols))
    }

    /// A file that was packed with a trace: its name and build id in the trace, its bytes, and those of its file of debugging
    /// information, if it has one, which several may share.
    pub fn packed(
        path: impl Into<PathBuf>,
        build_id: Option<BuildId>,
        bytes: impl Into<Arc<[u8]>>,
        debug: Option<Arc<[u8]>>,
    ) -> Arc<Self> {
        let path = path.into();
        let mut file = CodeFile::closed(path.clone(), build_id, Vec::new(), Arc::default());
        file.packed_debug = Some(debug.map(PackedDebug::Bytes));
        file.opened.get_or_init(|| {
            Ok(Opened {
                at: path,
                contents: Contents::Whole(bytes.into()),
            })
        });
        Arc::new(file)
    }

    /// As [`packed`](Self::packed), of files that several traces share: `at`, and `debug` with the debugging information, are opened when they are
    /// first needed.
    pub fn packed_at(
        path: impl Into<PathBuf>,
        build_id: Option<BuildId>,
        at: PathBuf,
        debug: Option<PathBuf>,
    ) -> Arc<Self> {
        let candidate = Candidate {
            path: at,
            only_if_equal: false,
        };
        // What was packed is what ran, whatever build id it has.
        let places = Places {
            ignore_build_ids: true,
            ..Places::default()
        };
        let mut file = CodeFile::closed(path.into(), build_id, vec![candidate], Arc::new(places));
        file.packed_debug = Some(debug.map(PackedDebug::At));
        Arc::new(file)
    }

    /// A file that is not among those packed with a trace.
    pub(crate) fn not_packed(path: &Path, build_id: Option<BuildId>) -> Arc<Self> {
        Arc::new(Self {
            is_sealed: true,
            ..CodeFile::closed(path.to_owned(), build_id, Vec::new(), Arc::default())
        })
    }

    /// Code of which only its name is known.
    pub fn without_code(name: impl Into<PathBuf>, symbol: &str, len: u64) -> Arc<Self> {
        let file = CodeFile::at(name.into(), None, Vec::new(), Arc::default());
        file.give_symbols(Symbols::of_ranges([(0, len, symbol)]));
        file
    }

    /// The kernel's code, for which there may be nothing to read it from: the error says what to do.
    pub(crate) fn kernel(path: &Path, candidates: Vec<Candidate>) -> Arc<Self> {
        Arc::new(Self {
            is_kernel: true,
            ..CodeFile::closed(path.to_owned(), None, candidates, Arc::default())
        })
    }

    /// The names of what stands in a file that is not ELF, by offset.
    pub(crate) fn give_symbols(&self, symbols: Symbols) {
        self.layout.get_or_init(|| Err("its symbols are given"));
        self.symbols.get_or_init(|| symbols);
    }

    fn made(name: PathBuf, contents: Contents, symbols: Option<Symbols>) -> Arc<Self> {
        let file = CodeFile::at(name.clone(), None, Vec::new(), Arc::default());
        file.opened
            .get_or_init(|| Ok(Opened { at: name, contents }));
        if let Some(symbols) = symbols {
            file.give_symbols(symbols);
        }
        file
    }

    /// The bytes of the file of debugging information that gives the symbols, if it is another one than this.
    pub fn debug_bytes(&self) -> Option<Arc<[u8]>> {
        if let Some(packed) = &self.packed_debug {
            return packed.as_ref()?.contents()?.all().ok();
        }
        let opened = self.opened().ok()?;
        let (_, debug) = debug::find(&opened.at, &opened.contents, &self.places)?;
        debug.all().ok()
    }

    /// What `read` finds in the file, or else in its file of debugging information.
    pub(crate) fn find_with_debug<T>(&self, read: impl Fn(&Contents) -> Option<T>) -> Option<T> {
        let opened = self.opened().ok();
        let own = opened.and_then(|opened| read(&opened.contents));
        own.or_else(|| {
            if let Some(packed) = &self.packed_debug {
                return read(&packed.as_ref()?.contents()?);
            }
            let opened = opened?;
            let (_, debug) = debug::find(&opened.at, &opened.contents, &self.places)?;
            read(&debug)
        })
    }

    /// The name the mapping had, which is not always where the bytes were found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The build id that the trace tells of the file. A file that was read has it.
    pub fn build_id(&self) -> Option<BuildId> {
        self.build_id
    }

    /// The build id that the file itself holds.
    pub fn own_build_id(&self) -> Option<BuildId> {
        self.parse_head().flatten()
    }

    /// Reads the file now, if it was not read before.
    ///
    /// # Errors
    /// The same as at the first attempt, which is the only one made.
    pub fn load(&self) -> Result<(), &ImageError> {
        self.opened().map(|_| ())
    }

    /// Where the bytes were found, if the file was needed and found.
    pub fn found_at(&self) -> Option<&Path> {
        let opened = self.opened.get()?.as_ref().ok()?;
        Some(&opened.at)
    }

    pub(crate) fn was_read(&self) -> bool {
        self.opened
            .get()
            .is_some_and(|opened| opened.as_ref().is_ok_and(|it| it.contents.was_read()))
    }

    /// Why the file could not be used, if it was tried and could not.
    pub fn problem(&self) -> Option<&ImageError> {
        match self.opened.get()? {
            Err(error) => Some(error),
            Ok(opened) if opened.contents.has_changed() => {
                Some(self.later.get_or_init(|| ImageError::Changed {
                    path: opened.at.clone(),
                }))
            }
            Ok(_) => None,
        }
    }

    pub(crate) fn problem_again(&self) -> ImageError {
        let path = || self.path.clone();
        self.problem()
            .map_or_else(|| ImageError::Missing { path: path() }, ImageError::again)
    }

    /// Size in bytes.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn size(&self) -> Result<u64, &ImageError> {
        self.opened().map(|opened| opened.contents.len())
    }

    /// Copies bytes from `offset` on into `buf` and returns how many there were; none for a file that cannot be read.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> usize {
        self.opened()
            .map_or(0, |opened| opened.contents.read_at(offset, buf))
    }

    /// All bytes of the file.
    ///
    /// # Errors
    /// When it cannot be read, or has changed since it was opened.
    pub fn bytes(&self) -> Result<Arc<[u8]>, ImageError> {
        let opened = self.opened().map_err(ImageError::again)?;
        opened.contents.all().map_err(|error| ImageError::Io {
            path: opened.at.clone(),
            error,
        })
    }

    /// The segments an ELF file asks to have loaded; empty for any other file.
    pub fn segments(&self) -> &[ElfSegment] {
        self.layout().map_or(&[], |layout| &layout.segments)
    }

    /// The file's own address (as its symbols use it) of the byte at `offset`.
    pub fn address_of_offset(&self, offset: u64) -> Option<u64> {
        self.layout()?.address_of_offset(offset)
    }

    /// The byte of the file that is at one of its own addresses.
    pub fn offset_of_address(&self, address: u64) -> Option<u64> {
        self.layout()?.offset_of_address(address)
    }

    /// Whether an ELF file begins to run at the byte at `offset`.
    pub fn is_entry(&self, offset: u64) -> bool {
        self.layout()
            .and_then(|layout| layout.offset_of_address(layout.entry))
            .is_some_and(|entry| entry == offset)
    }

    /// The function that holds the byte at `offset` of the file.
    pub fn symbol_at(&self, offset: u64) -> Option<Symbol<'_>> {
        let address = match self.layout() {
            Some(layout) => layout.address_of_offset(offset)?,
            // What is no ELF file has symbols only if they were given, by offset.
            None => offset,
        };
        self.symbols().at(address)
    }

    /// The stub of the procedure linkage table that holds the byte at `offset`, named after the function to which it leads, as `puts@plt`. No
    /// function has that name: [`symbol_at`](Self::symbol_at) knows nothing of it.
    pub fn stub_at(&self, offset: u64) -> Option<Symbol<'_>> {
        let address = self.layout()?.address_of_offset(offset)?;
        self.stubs().at(address)
    }

    fn stubs(&self) -> &Stubs {
        self.stubs.get_or_init(|| match self.opened() {
            Ok(opened) => opened.contents.parse_head(),
            Err(_) => Stubs::default(),
        })
    }

    /// Every function: its name as the symbol table spells it, and the file's byte where its code begins.
    pub fn for_each_function(&self, mut visit: impl FnMut(&str, u64)) {
        self.symbols().for_each(|name, start| {
            if let Some(offset) = self.offset_of_symbol(start) {
                visit(name, offset);
            }
        });
    }

    /// As [`for_each_function`](Self::for_each_function), with all bytes of the file from where the code begins to where it ends. Another function
    /// may lie among them.
    pub fn for_each_function_range(&self, mut visit: impl FnMut(&str, Range<u64>)) {
        self.symbols().for_each_range(|name, range| {
            if let Some(range) = self.offsets_of(range) {
                visit(name, range);
            }
        });
    }

    /// Every name of a function that [`symbol_at`](Self::symbol_at) does not tell, as another one of it is better known: that name, the one that it
    /// tells, and the file's byte where the code begins.
    pub fn for_each_other_name(&self, mut visit: impl FnMut(&str, &str, u64)) {
        self.symbols().for_each_other(|other, name, start| {
            if let Some(offset) = self.offset_of_symbol(start) {
                visit(other, name, offset);
            }
        });
    }

    /// Every stub of the procedure linkage table: its name ([`stub_at`](Self::stub_at)) and its bytes in the file.
    pub fn for_each_stub(&self, mut visit: impl FnMut(&str, Range<u64>)) {
        if self.layout().is_none() {
            return;
        }
        self.stubs().for_each(|name, range| {
            if let Some(range) = self.offsets_of(range) {
                visit(name, range);
            }
        });
    }

    /// Where in the file symbols with an address are.
    fn offset_of_symbol(&self, address: u64) -> Option<u64> {
        match self.layout() {
            Some(layout) => layout.offset_of_address(address),
            // What is no ELF file has symbols only if they were given, by offset.
            None => Some(address),
        }
    }

    fn offsets_of(&self, addresses: Range<u64>) -> Option<Range<u64>> {
        let start = self.offset_of_symbol(addresses.start)?;
        let len = addresses.end.saturating_sub(addresses.start);
        Some(start..start.saturating_add(len))
    }

    /// The file of debugging information that gives the symbols, if it is another one.
    pub fn debug_file(&self) -> Option<PathBuf> {
        if self.packed_debug.is_some() {
            return None;
        }
        let opened = self.opened().ok()?;
        debug::find(&opened.at, &opened.contents, &self.places).map(|(path, _)| path)
    }

    pub(crate) fn layout(&self) -> Option<&Layout> {
        self.try_layout().and_then(Result::ok)
    }

    /// `None` for a file that cannot be read. Otherwise its head is read once, be it ELF or not: this is asked for each address that is
    /// looked up.
    pub(crate) fn try_layout(&self) -> Option<Result<&Layout, &'static str>> {
        let layout = match self.layout.get() {
            Some(layout) => layout,
            None => {
                let layout = self.parse_head()?;
                self.layout.get_or_init(|| layout)
            }
        };
        Some(layout.as_ref().map_err(|reason| *reason))
    }

    fn symbols(&self) -> &Symbols {
        self.symbols.get_or_init(|| {
            let Ok(opened) = self.opened() else {
                return Symbols::default();
            };
            let Some(packed) = &self.packed_debug else {
                return debug::symbols(&opened.at, &opened.contents, &self.places);
            };
            let debug = packed.as_ref().and_then(PackedDebug::contents);
            debug::symbols_of(&opened.contents, debug.as_ref())
        })
    }

    /// Reads a file's head; `None` for a file that cannot be read.
    pub(crate) fn parse_head<T: FromFile>(&self) -> Option<T> {
        #[cfg(test)]
        tests::HEADS.set(tests::HEADS.get() + 1);
        Some(self.opened().ok()?.contents.parse_head())
    }

    fn opened(&self) -> Result<&Opened, &ImageError> {
        self.opened.get_or_init(|| self.open()).as_ref()
    }

    /// Of the candidates that exist the first one is taken. Where the build id is known, it is the first one that has it, and an
    /// error tells of the first one that has not.
    fn open(&self) -> Result<Opened, ImageError> {
        let mut first = None;
        for candidate in &self.candidates {
            match self.try_candidate(candidate) {
                Ok(Some(opened)) => return Ok(opened),
                Ok(None) => {}
                // An unreadable file is reported, not passed over for another that may be a different one.
                Err(error) if self.build_id.is_none() => return Err(error),
                Err(error) => first = first.or(Some(error)),
            }
        }
        if let (Some(id), true) = (&self.build_id, self.path.as_os_str() == VDSO)
            && self.places.this_machine
            && let Some(bytes) = vdso::own(id)
        {
            return Ok(Opened {
                at: self.path.clone(),
                contents: Contents::Whole(bytes.into()),
            });
        }
        let path = || self.path.clone();
        Err(match first {
            Some(error) => error,
            None if self.is_sealed => ImageError::NotPacked { path: path() },
            None if self.is_kernel => ImageError::KernelCode { path: path() },
            None if without_deleted(&self.path).is_some() => ImageError::Deleted { path: path() },
            None if self.candidates.iter().all(|place| place.only_if_equal) => {
                ImageError::NotSaved { path: path() }
            }
            None => ImageError::Missing { path: path() },
        })
    }

    /// The file at a candidate place; `None` if there is none to be had.
    fn try_candidate(&self, candidate: &Candidate) -> Result<Option<Opened>, ImageError> {
        if candidate.only_if_equal && self.build_id.is_none() {
            return Ok(None);
        }
        let at = &candidate.path;
        let contents = match open(at) {
            Ok(contents) => contents,
            Err(ImageError::Io { error, .. })
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            Err(ImageError::NotAFile { .. }) if candidate.only_if_equal => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(expected) = self.build_id
            && (candidate.only_if_equal || !self.places.ignore_build_ids)
        {
            let found: Option<BuildId> = contents.parse_head();
            if found != Some(expected) {
                return Err(ImageError::OtherBuild {
                    path: self.path.clone(),
                    at: at.clone(),
                    expected,
                    found,
                });
            }
        }
        Ok(Some(Opened {
            at: at.clone(),
            contents,
        }))
    }
}

/// Opens a file to read code from.
pub(crate) fn open(path: &Path) -> Result<Contents, ImageError> {
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
    Contents::of(File::open(path).map_err(io)?).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// How often this thread has read the head of a file.
        pub(super) static HEADS: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn the_head_of_what_is_not_elf_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("code");
        std::fs::write(&path, [0x90; 100]).unwrap();
        let file = file(&path, &path);
        HEADS.set(0);
        for offset in 0..100 {
            assert!(file.symbol_at(offset).is_none());
        }
        assert_eq!(HEADS.get(), 1);
        assert_eq!(
            file.try_layout().unwrap().unwrap_err(),
            "it does not begin like one"
        );
    }

    fn file(path: &Path, at: &Path) -> Arc<CodeFile> {
        let candidate = Candidate {
            path: at.into(),
            only_if_equal: false,
        };
        CodeFile::at(path.into(), None, vec![candidate], Arc::default())
    }

    #[test]
    fn reads_inside_and_past_the_end() {
        let file = CodeFile::from_bytes("bytes", (0..10).collect::<Vec<_>>());
        let mut buf = [0xff; 4];
        assert_eq!(file.read_at(8, &mut buf), 2);
        assert_eq!(buf, [8, 9, 0xff, 0xff]);
        assert_eq!(file.read_at(10, &mut buf), 0);
        assert_eq!(file.read_at(u64::MAX, &mut buf), 0);
        assert_eq!(file.size().unwrap(), 10);
        assert!(file.segments().is_empty() && file.symbol_at(0).is_none());
        let named = CodeFile::function("bpf", "bpf_prog_1", vec![0x90; 4]);
        assert_eq!(named.symbol_at(3).unwrap().name, "bpf_prog_1");
        assert_eq!(named.symbol_at(3).unwrap().offset, 3);
        assert!(named.symbol_at(4).is_none());
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let directory = file(folder.path(), folder.path());
        assert!(directory.problem().is_none(), "not tried yet");
        assert!(matches!(directory.load(), Err(ImageError::NotAFile { .. })));
        assert_eq!(directory.read_at(0, &mut [0; 4]), 0);
        let device = file(Path::new("/dev/zero"), Path::new("/dev/zero"));
        assert!(matches!(device.load(), Err(ImageError::NotAFile { .. })));
        let gone = file(Path::new("/none"), &folder.path().join("none"));
        assert!(
            matches!(gone.load(), Err(ImageError::Missing { path }) if path == Path::new("/none"))
        );
        assert!(gone.problem().is_some());
        let anonymous = CodeFile::at("//anon".into(), None, Vec::new(), Arc::default());
        assert!(matches!(anonymous.load(), Err(ImageError::NotSaved { .. })));
    }
}
