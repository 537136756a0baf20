//! What tells two builds of a file apart.

use std::fmt;

use object::elf::{FileHeader32, FileHeader64, NT_GNU_BUILD_ID};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader, SectionHeader};
use object::{Endianness, FileKind, ReadRef};

use crate::contents::FromFile;

/// The linker's name for the contents of a file (its note NT_GNU_BUILD_ID): two files of the same name that differ have
/// different ones.
///
/// perf keeps 20 bytes of it, and in older files does not say how many there are. So those behind the twentieth do not
/// count, nor do zeros at the end.
#[derive(Clone, Copy)]
pub struct BuildId {
    bytes: [u8; Self::MAX],
    len: u8,
}

/// Notes longer than this hold no build id, and more than so many are not looked at.
const NOTE_LIMIT: u64 = 64 << 10;
const NOTES: usize = 64;

impl BuildId {
    /// How many bytes count.
    pub const MAX: usize = 20;

    /// The build id that begins with these bytes; `None` if there are none but zeros.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.iter().all(|byte| *byte == 0) {
            return None;
        }
        let len = bytes.len().min(Self::MAX);
        let mut this = Self {
            bytes: [0; Self::MAX],
            len: len as u8,
        };
        this.bytes[..len].copy_from_slice(&bytes[..len]);
        Some(this)
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Parses hexadecimal digits, as [`Display`](fmt::Display) prints them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
        let bytes: Vec<u8> = digits
            .chunks_exact(2)
            .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
            .collect();
        Self::new(&bytes)
    }

    /// The build id among the notes of a kernel that runs, `/sys/kernel/notes`.
    #[must_use]
    pub fn in_notes(bytes: &[u8]) -> Option<Self> {
        let endian = Endianness::Little;
        let notes = NoteIterator::<FileHeader64<Endianness>>::new(endian, 4, bytes).ok()?;
        Self::among(notes, endian)
    }

    fn among<E: FileHeader<Endian = Endianness>>(
        mut notes: NoteIterator<'_, E>,
        endian: Endianness,
    ) -> Option<Self> {
        while let Ok(Some(note)) = notes.next() {
            if note.name() == b"GNU" && note.n_type(endian) == NT_GNU_BUILD_ID {
                return Self::new(note.desc());
            }
        }
        None
    }

    fn of_class<'data, E, R>(data: R) -> Option<Self>
    where
        E: FileHeader<Endian = Endianness>,
        R: ReadRef<'data>,
    {
        let header = E::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let short = |size: u64| size <= NOTE_LIMIT;
        // A file of debugging information has both, but only its sections say which notes are there.
        let sections = header.section_headers(endian, data).unwrap_or_default();
        let in_sections = sections
            .iter()
            .filter(|section| short(section.sh_size(endian).into()))
            .filter_map(|section| section.notes(endian, data).ok()?)
            .take(NOTES)
            .find_map(|notes| Self::among(notes, endian));
        in_sections.or_else(|| {
            let segments = header.program_headers(endian, data).ok()?;
            segments
                .iter()
                .filter(|segment| short(segment.p_filesz(endian).into()))
                .filter_map(|segment| segment.notes(endian, data).ok()?)
                .take(NOTES)
                .find_map(|notes| Self::among(notes, endian))
        })
    }
}

impl FromFile for Option<BuildId> {
    fn parse<'data, R: ReadRef<'data>>(data: R) -> Self {
        match FileKind::parse(data) {
            Ok(FileKind::Elf32) => BuildId::of_class::<FileHeader32<Endianness>, R>(data),
            Ok(FileKind::Elf64) => BuildId::of_class::<FileHeader64<Endianness>, R>(data),
            _ => None,
        }
    }
}

impl PartialEq for BuildId {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for BuildId {}

impl std::hash::Hash for BuildId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts() {
        assert!(BuildId::new(&[]).is_none() && BuildId::new(&[0; 20]).is_none());
        let short = BuildId::new(&[1, 2, 3]).unwrap();
        let mut padded = [0; 20];
        padded[..3].copy_from_slice(&[1, 2, 3]);
        assert_eq!(short, BuildId::new(&padded).unwrap());
        assert_eq!(short.to_string(), "010203");
        assert_eq!(BuildId::parse("010203"), Some(short));
        assert_eq!(BuildId::parse("01020"), None);
        assert_eq!(BuildId::parse("0102xy"), None);
        let long = BuildId::new(&[7; 32]).unwrap();
        assert_eq!(long, BuildId::new(&[7; 20]).unwrap());
        assert_ne!(long, short);
    }

    #[test]
    fn in_the_notes_of_a_kernel() {
        let mut notes = Vec::new();
        for (kind, desc) in [(0x101_u32, &b"none"[..]), (3, &[9; 20])] {
            notes.extend(4u32.to_le_bytes());
            notes.extend((desc.len() as u32).to_le_bytes());
            notes.extend(kind.to_le_bytes());
            notes.extend(b"GNU\0");
            notes.extend(desc);
        }
        assert_eq!(BuildId::in_notes(&notes), BuildId::new(&[9; 20]));
        assert_eq!(BuildId::in_notes(&notes[..30]), None);
    }
}
