//! Where the tables of an ELF file stand that tell of its symbols.

use object::elf::{
    FileHeader32, FileHeader64, SHT_DYNSYM, SHT_STRTAB, SHT_SYMTAB, SHT_SYMTAB_SHNDX,
};
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, FileKind, ReadRef};

use crate::contents::FromFile;

/// First byte and length of each, in order; no byte is in two of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tables(pub(crate) Vec<(u64, u64)>);

impl Tables {
    fn of_class<'data, E, R>(data: R) -> Option<Self>
    where
        E: FileHeader<Endian = Endianness>,
        R: ReadRef<'data>,
    {
        let header = E::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, data).ok()?;
        let sections = header.section_headers(endian, data).ok()?;
        let mut list = vec![
            (0, size_of::<E>() as u64),
            (header.e_phoff(endian).into(), size_of_val(segments) as u64),
            (header.e_shoff(endian).into(), size_of_val(sections) as u64),
        ];
        for section in sections {
            if let SHT_SYMTAB | SHT_DYNSYM | SHT_STRTAB | SHT_SYMTAB_SHNDX = section.sh_type(endian)
            {
                list.extend(section.file_range(endian));
            }
        }
        Some(Self(joined(list)?))
    }
}

impl FromFile for Option<Tables> {
    fn parse<'data, R: ReadRef<'data>>(data: R) -> Self {
        match FileKind::parse(data) {
            Ok(FileKind::Elf32) => Tables::of_class::<FileHeader32<Endianness>, R>(data),
            Ok(FileKind::Elf64) => Tables::of_class::<FileHeader64<Endianness>, R>(data),
            _ => None,
        }
    }
}

/// The same bytes, each once: damaged files name them any number of times. None if an end is no number.
fn joined(mut list: Vec<(u64, u64)>) -> Option<Vec<(u64, u64)>> {
    list.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, len) in list.into_iter().filter(|(_, len)| *len > 0) {
        let end = start.checked_add(len)?;
        match joined.last_mut() {
            Some((first, len)) if start <= *first + *len => *len = (*len).max(end - *first),
            _ => joined.push((start, len)),
        }
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::Contents;
    use crate::symbols::Symbols;
    use std::fs::{self, File};

    /// The symbols of a file are the same, whether all of it is read or only its tables. Where a table is cut off, none is taken for zeros.
    #[test]
    fn the_tables_are_all_that_symbols_need() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("tables.c");
        fs::write(
            &source,
            "int one(int n) { return n; }\nint main(void) { return one(7); }\n",
        )
        .expect("room");
        let program = folder.path().join("tables");
        if !cofi_test::compile(&source, &program, &["-O0"]) {
            return;
        }
        let whole = fs::read(&program).expect("a program");
        for len in [whole.len(), whole.len() - 1, whole.len() / 2, 100, 3] {
            let bytes = &whole[..len];
            fs::write(&program, bytes).expect("room");
            let of = |contents: Contents| {
                let mut list = Vec::new();
                contents
                    .parse::<Symbols>()
                    .for_each(|name, start| list.push((name.to_owned(), start)));
                list
            };
            let pieces = Contents::of(File::open(&program).expect("a program")).expect("a file");
            let found = of(pieces);
            assert_eq!(found, of(Contents::Whole(bytes.into())), "{len}");
            assert_eq!(
                found.iter().any(|(name, _)| name == "one"),
                len == whole.len()
            );
        }
    }

    #[test]
    fn each_byte_is_read_once() {
        let list = vec![(50, 10), (0, 0), (10, 10), (12, 2), (20, 5), (55, 20)];
        assert_eq!(joined(list), Some(vec![(10, 15), (50, 25)]));
        assert_eq!(joined(vec![(u64::MAX, 2)]), None);
    }
}
