//! Symbols that a file does not hold itself: distributions put them into files of their own.

use std::path::{Path, PathBuf};

use object::elf::{FileHeader32, FileHeader64};
use object::read::elf::{ElfFile, FileHeader};
use object::{Endianness, FileKind, Object, ReadRef};

use crate::build_id::BuildId;
use crate::contents::{Contents, FromFile};
use crate::file::open;
use crate::places::Places;
use crate::symbols::Symbols;

/// What an ELF file tells of its debugging information.
#[derive(Debug, Default)]
struct Links {
    id: Option<BuildId>,
    /// The file's name and checksum.
    link: Option<(Vec<u8>, u32)>,
    has_symbols: bool,
}

impl Links {
    fn of_class<'data, E, R>(data: R) -> Self
    where
        E: FileHeader<Endian = Endianness>,
        R: ReadRef<'data>,
    {
        let Ok(file) = ElfFile::<E, R>::parse(data) else {
            return Self::default();
        };
        let link = file.gnu_debuglink().ok().flatten();
        Self {
            id: None,
            link: link.map(|(name, sum)| (name.to_vec(), sum)),
            has_symbols: !file.elf_symbol_table().is_empty(),
        }
    }
}

impl FromFile for Links {
    fn parse<'data, R: ReadRef<'data>>(data: R) -> Self {
        let links = match FileKind::parse(data) {
            Ok(FileKind::Elf32) => Self::of_class::<FileHeader32<Endianness>, R>(data),
            Ok(FileKind::Elf64) => Self::of_class::<FileHeader64<Endianness>, R>(data),
            _ => return Self::default(),
        };
        Self {
            id: FromFile::parse(data),
            ..links
        }
    }
}

/// The symbols of the file whose code was found at `at`: its own, or those of its file of debugging information if it was
/// stripped and that can be found.
pub(crate) fn symbols(at: &Path, contents: &Contents, places: &Places) -> Symbols {
    let debug = find(at, contents, places).map(|(_, debug)| debug);
    symbols_of(contents, debug.as_ref())
}

/// Those of the file of debugging information, if there is one that has any; else the file's own.
pub(crate) fn symbols_of(contents: &Contents, debug: Option<&Contents>) -> Symbols {
    let found = debug.map(Contents::parse::<Symbols>);
    let found = found.filter(|symbols| !symbols.is_empty());
    found.unwrap_or_else(|| contents.parse())
}

/// The file of debugging information for a file that was stripped.
pub(crate) fn find(at: &Path, contents: &Contents, places: &Places) -> Option<(PathBuf, Contents)> {
    let links: Links = contents.parse_head();
    if links.has_symbols {
        return None;
    }
    let name = links.link.as_ref().map(|(name, _)| name.as_slice());
    let candidates = places.of_debug(at, links.id.as_ref(), name);
    candidates.into_iter().find_map(|path| {
        let debug = open(&path).ok()?;
        let is_right = match (&links.id, &links.link) {
            (Some(_), _) => debug.parse_head::<Option<BuildId>>() == links.id,
            (None, Some((_, sum))) => crc32fast::hash(&debug.all().ok()?) == *sum,
            (None, None) => false,
        };
        is_right.then_some((path, debug))
    })
}
