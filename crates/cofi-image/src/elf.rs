//! What of an ELF file goes where.

use std::path::Path;

use object::elf::{FileHeader32, FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadRef};

use crate::contents::FromFile;
use crate::error::ImageError;
use crate::space::{AddressSpace, Version};
use crate::store::FileStore;

/// One loadable segment, in the file's own terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfSegment {
    /// Address it is linked to.
    pub address: u64,
    /// Offset of its first byte in the file.
    pub offset: u64,
    /// How many bytes of the file belong to it.
    pub len: u64,
    /// Whether its bytes may be executed.
    pub executable: bool,
}

/// The loadable segments of a file.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) segments: Vec<ElfSegment>,
    pub(crate) entry: u64,
}

impl FromFile for Result<Layout, &'static str> {
    fn parse<'data, R: ReadRef<'data>>(data: R) -> Self {
        match FileKind::parse(data) {
            Ok(FileKind::Elf32) => Layout::parse_class::<FileHeader32<Endianness>, R>(data),
            Ok(FileKind::Elf64) => Layout::parse_class::<FileHeader64<Endianness>, R>(data),
            _ => Err("it does not begin like one"),
        }
    }
}

impl Layout {
    fn parse_class<'data, E, R>(data: R) -> Result<Layout, &'static str>
    where
        E: FileHeader<Endian = Endianness>,
        R: ReadRef<'data>,
    {
        let header = E::parse(data).map_err(|_| "its header is cut short or invalid")?;
        let endian = header.endian().map_err(|_| "its byte order is unknown")?;
        let machine = header.e_machine(endian);
        if ![
            object::elf::EM_X86_64,
            object::elf::EM_386,
            object::elf::EM_IAMCU,
        ]
        .contains(&machine)
        {
            return Err("it is not for an x86 processor");
        }
        let headers = header
            .program_headers(endian, data)
            .map_err(|_| "its program headers lie outside of it")?;
        let segments = headers
            .iter()
            .filter(|header| header.p_type(endian) == PT_LOAD)
            .map(|header| {
                let (offset, len) = header.file_range(endian);
                let executable = header.p_flags(endian).contains(object::elf::PF_X);
                ElfSegment {
                    address: header.p_vaddr(endian).into(),
                    offset,
                    len,
                    executable,
                }
            })
            .collect();
        Ok(Layout {
            segments,
            entry: header.e_entry(endian).into(),
        })
    }

    /// The offset of what the file itself has at an address, in an executable segment.
    pub(crate) fn offset_of_address(&self, address: u64) -> Option<u64> {
        self.segments
            .iter()
            .filter(|segment| segment.executable)
            .find_map(|segment| {
                let inside = address.checked_sub(segment.address)?;
                (inside < segment.len).then(|| segment.offset.wrapping_add(inside))
            })
    }

    /// The file's own address for an offset. Executable segments are asked first: segments may share a page.
    pub(crate) fn address_of_offset(&self, offset: u64) -> Option<u64> {
        let inside = |segment: &&ElfSegment| {
            offset
                .checked_sub(segment.offset)
                .is_some_and(|inside| inside < segment.len)
        };
        let executable = self
            .segments
            .iter()
            .filter(|segment| segment.executable)
            .find(inside);
        let segment = executable.or_else(|| self.segments.iter().find(inside))?;
        Some(segment.address.wrapping_add(offset - segment.offset))
    }
}

/// Where an ELF file was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadedElf {
    /// The address of its lowest segment.
    pub base: u64,
    /// Its entry point.
    pub entry: u64,
}

/// Maps the loadable segments of the ELF file at `path` at their link addresses, or moved so that the lowest one
/// begins at `base`.
///
/// # Errors
/// When the file cannot be read, is not an x86 ELF file, or has nothing to load.
pub fn load_elf(
    space: &mut AddressSpace,
    store: &mut FileStore,
    path: &Path,
    base: Option<u64>,
    at: Version,
) -> Result<LoadedElf, ImageError> {
    let file = store.named(path);
    let bad = |reason| ImageError::BadElf {
        path: path.to_owned(),
        reason,
    };
    let layout = match file.try_layout() {
        Some(layout) => layout.map_err(bad)?,
        None => return Err(file.problem_again()),
    };
    let Some(lowest) = layout.segments.iter().map(|segment| segment.address).min() else {
        return Err(bad("it has no segment to load"));
    };
    let base = base.unwrap_or(lowest);
    let moved = |address: u64| address.wrapping_sub(lowest).wrapping_add(base);
    for segment in &layout.segments {
        space.map(
            moved(segment.address),
            segment.len,
            &file,
            segment.offset,
            at,
        );
    }
    Ok(LoadedElf {
        base,
        entry: moved(layout.entry),
    })
}

/// Maps the whole file at `path` at `address`.
///
/// # Errors
/// When the file cannot be read.
pub fn load_raw(
    space: &mut AddressSpace,
    store: &mut FileStore,
    path: &Path,
    address: u64,
    at: Version,
) -> Result<(), ImageError> {
    let file = store.named(path);
    match file.size() {
        Ok(len) => space.map(address, len, &file, 0, at),
        Err(error) => return Err(error.again()),
    }
    Ok(())
}
