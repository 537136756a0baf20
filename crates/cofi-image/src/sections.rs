//! Sections of an ELF file, each read by itself: debugging information is large, and little of a file is wanted of it.

use std::collections::HashMap;
use std::sync::Arc;

use object::read::{CompressedData, CompressedFileRange, CompressionFormat};
use object::{Object, ObjectSection, ReadRef};

use crate::contents::{Contents, FromFile};

/// A section is not uncompressed to more than so many times its size: what compresses better than anything can is a trap.
const MOST: u64 = 1100;

/// Where the sections of a file stand.
#[derive(Debug)]
pub(crate) struct Sections {
    places: HashMap<String, CompressedFileRange>,
    pub(crate) is_little_endian: bool,
}

impl FromFile for Option<Sections> {
    fn parse<'data, R: ReadRef<'data>>(data: R) -> Self {
        let file = object::File::parse(data).ok()?;
        let mut places = HashMap::new();
        for section in file.sections() {
            if let (Ok(name), Ok(place)) = (section.name(), section.compressed_file_range()) {
                places.entry(name.to_owned()).or_insert(place);
            }
        }
        Some(Sections {
            places,
            is_little_endian: file.is_little_endian(),
        })
    }
}

impl Sections {
    /// Those of a file; none if it is no file of code.
    pub(crate) fn of(contents: &Contents) -> Option<Self> {
        contents.parse_head()
    }

    pub(crate) fn place(&self, name: &str) -> Option<&CompressedFileRange> {
        let found = self.places.get(name);
        // Old compilers say by the name that a section is compressed.
        found.or_else(|| self.places.get(&format!(".z{}", name.strip_prefix('.')?)))
    }

    /// Whether there is a section of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.place(name).is_some()
    }

    /// The bytes of a section, uncompressed; none if there is no such section, or if it cannot be read.
    pub(crate) fn read(&self, name: &str, contents: &Contents) -> Option<Arc<[u8]>> {
        let place = self.place(name)?;
        let bytes = contents.copy(place.offset, place.compressed_size)?;
        if place.format == CompressionFormat::None {
            return Some(bytes);
        }
        if place.uncompressed_size > MOST.saturating_mul(bytes.len() as u64) {
            return None;
        }
        let data = CompressedData {
            format: place.format,
            data: &bytes,
            uncompressed_size: place.uncompressed_size,
        };
        Some(data.decompress().ok()?.into())
    }
}

/// A section of which parts are read when they are wanted. One that is compressed is held as a whole.
#[derive(Debug)]
pub(crate) struct Parts<'c> {
    contents: &'c Contents,
    start: u64,
    len: u64,
    whole: Option<Arc<[u8]>>,
}

impl<'c> Parts<'c> {
    /// Those of a section; empty if there is none.
    pub(crate) fn of(sections: &Sections, name: &str, contents: &'c Contents) -> Self {
        let place = sections.place(name);
        let plain = place.filter(|place| place.format == CompressionFormat::None);
        let whole = match plain {
            Some(_) => None,
            None => sections.read(name, contents),
        };
        let (start, len) = match (plain, &whole) {
            (Some(place), _) => (place.offset, place.compressed_size),
            (None, Some(bytes)) => (0, bytes.len() as u64),
            (None, None) => (0, 0),
        };
        Self {
            contents,
            start,
            len,
            whole,
        }
    }

    /// How many bytes it has.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Some of its bytes; none if not all of them are there.
    pub(crate) fn read(&self, offset: u64, len: u64) -> Option<Arc<[u8]>> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len)?;
        match &self.whole {
            Some(bytes) => Some(bytes.get(offset as usize..end as usize)?.into()),
            None => self.contents.copy(self.start.checked_add(offset)?, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    /// Compressed or not, from a file or from memory, a section has the bytes that it was compiled with.
    #[test]
    fn sections_are_read_each_by_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("sections.c");
        fs::write(&source, "int main(void) { return 7; }\n").expect("room");
        let mut read = Vec::new();
        for flag in ["-gz=none", "-gz=zlib", "-gz=zlib-gnu"] {
            let program = folder.path().join("sections");
            if !cofi_test::compile(&source, &program, &["-g", flag]) {
                // Newer assemblers do not know the old way any more.
                continue;
            }
            let whole = Contents::Whole(fs::read(&program).expect("a program").into());
            let pieces = Contents::of(File::open(&program).expect("a program")).expect("a file");
            for contents in [&whole, &pieces] {
                let sections = Sections::of(contents).expect("ELF");
                assert!(sections.has(".debug_line") && !sections.has(".debug_nothing"));
                assert!(sections.read(".debug_nothing", contents).is_none());
                let lines = sections.read(".debug_line", contents).expect("lines");
                let parts = Parts::of(&sections, ".debug_line", contents);
                assert_eq!(parts.len(), lines.len() as u64);
                assert_eq!(parts.read(3, 9).as_deref(), lines.get(3..12));
                assert!(parts.read(parts.len() - 3, 4).is_none());
                assert_eq!(Parts::of(&sections, ".debug_nothing", contents).len(), 0);
                read.push(lines);
            }
        }
        assert!(read.windows(2).all(|pair| pair[0] == pair[1]));
        assert!(read.iter().all(|lines| !lines.is_empty()));
    }

    #[test]
    fn what_is_no_program_has_no_sections() {
        assert!(Sections::of(&Contents::Whole(vec![0x7f; 99].into())).is_none());
    }
}
