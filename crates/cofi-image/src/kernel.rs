//! The kernel's code: its memory as a file (kcore), or the file it was linked to (vmlinux).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use object::read::elf::{ElfFile64, Sym};
use object::{Endianness, FileKind, ReadRef};

use crate::build_id::BuildId;
use crate::contents::FromFile;
use crate::elf::ElfSegment;
use crate::error::ImageError;
use crate::file::CodeFile;
use crate::places::Places;
use crate::store::FileStore;

/// What a trace tells of the kernel that ran.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct KernelHints {
    /// A symbol's name and the address that it had: `_text` or `_stext`.
    pub anchor: Option<(String, u64)>,
    /// The kernel's build id.
    pub build_id: Option<BuildId>,
}

/// Code of a kernel, by its addresses.
#[derive(Debug)]
pub struct KernelCode {
    file: Arc<CodeFile>,
    segments: Vec<ElfSegment>,
    /// The kernel's own list of its symbols that goes with the code.
    pub kallsyms: Option<PathBuf>,
}

/// perf's name of the folder with copies of kernels' memory.
const KCORE_FOLDER: &str = "[kernel.kcore]";

impl KernelCode {
    /// A copy of the kernel's memory, as `perf record --kcore` or `perf buildid-cache --kcore` make it: a file, or a folder with the
    /// files kcore and kallsyms.
    ///
    /// # Errors
    /// When it cannot be read, is no such copy, or kallsyms beside it is of a kernel that was loaded elsewhere.
    pub fn kcore(
        path: &Path,
        hints: &KernelHints,
        files: &mut FileStore,
    ) -> Result<Self, ImageError> {
        let (file, list) = if path.is_dir() {
            (path.join("kcore"), path.join("kallsyms"))
        } else {
            (path.to_owned(), path.with_file_name("kallsyms"))
        };
        let list = list.is_file().then_some(list);
        Self::kcore_of(&file, list, hints, files)
    }

    fn kcore_of(
        path: &Path,
        list: Option<PathBuf>,
        hints: &KernelHints,
        files: &mut FileStore,
    ) -> Result<Self, ImageError> {
        if let (Some(list), Some((name, expected))) = (&list, &hints.anchor) {
            let text = std::fs::read(list).map_err(|error| ImageError::Io {
                path: list.clone(),
                error,
            })?;
            let found = address_in(&text, name);
            if found.is_some_and(|found| found != *expected && found != 0) {
                return Err(ImageError::OtherKernel {
                    path: list.clone(),
                    symbol: name.clone(),
                    expected: *expected,
                    found: found.unwrap_or(0),
                });
            }
        }
        let file = files.named(path);
        let segments = segments(&file, path)?;
        Ok(Self {
            file,
            segments,
            kallsyms: list,
        })
    }

    /// The file that the kernel was linked to, moved to where it ran. A kernel changes its code when it boots, of which such a
    /// file knows nothing.
    ///
    /// # Errors
    /// When it cannot be read, is of another build, or does not hold the symbol that tells how far it was moved.
    pub fn vmlinux(
        path: &Path,
        hints: &KernelHints,
        places: &Places,
        files: &mut FileStore,
    ) -> Result<Self, ImageError> {
        let file = files.named(path);
        let mut segments = segments(&file, path)?;
        let found: Option<BuildId> = file.parse_head().flatten();
        if let Some(expected) = hints.build_id
            && found != Some(expected)
            && !places.ignore_build_ids
        {
            return Err(ImageError::OtherBuild {
                path: "[kernel.kallsyms]".into(),
                at: path.to_owned(),
                expected,
                found,
            });
        }
        if let Some((name, address)) = &hints.anchor {
            let anchors: Anchors = file.parse_head().unwrap_or_default();
            let linked = anchors.0.iter().find(|(known, _)| known == name);
            let (_, linked) = linked.ok_or(ImageError::BadElf {
                path: path.to_owned(),
                reason: "it has no symbol _text or _stext to tell where the kernel was loaded",
            })?;
            for segment in &mut segments {
                segment.address = segment.address.wrapping_add(address.wrapping_sub(*linked));
            }
            segments = apart(segments);
        }
        Ok(Self {
            file,
            segments,
            kallsyms: None,
        })
    }

    /// What can be found without being told: the copies in perf's cache, this machine's own memory if it still runs the same
    /// kernel at the same place, a vmlinux in perf's cache. The build id must be known.
    pub fn find(hints: &KernelHints, places: &Places, files: &mut FileStore) -> Option<Self> {
        let id = hints.build_id?;
        if let Some(cache) = &places.build_ids {
            let folder = cache.join(KCORE_FOLDER).join(id.to_string());
            let mut copies: Vec<PathBuf> = std::fs::read_dir(folder)
                .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
                .unwrap_or_default();
            // They are named by the time.
            copies.sort();
            let copies = copies.iter().rev();
            let mut sound = copies
                .filter(|copy| copy.join("kallsyms").is_file())
                .filter_map(|copy| Self::kcore(copy, hints, files).ok());
            if let Some(found) = sound.next() {
                return Some(found);
            }
        }
        if places.this_machine
            && std::fs::read("/sys/kernel/notes")
                .is_ok_and(|notes| BuildId::in_notes(&notes) == Some(id))
            && let Some((name, address)) = &hints.anchor
            && std::fs::read("/proc/kallsyms")
                .is_ok_and(|text| address_in(&text, name) == Some(*address))
            && let Ok(found) = Self::kcore(Path::new("/proc/kcore"), hints, files)
        {
            return Some(found);
        }
        let elf = places.of_build_id(&id, "elf");
        elf.iter()
            .filter(|path| path.is_file())
            .find_map(|path| Self::vmlinux(path, hints, places, files).ok())
    }

    /// What it has of the `len` bytes from `start`: address, length, file offset of each part.
    pub fn parts(&self, start: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let last = start.saturating_add(len.saturating_sub(1));
        let first = self
            .segments
            .partition_point(|segment| segment.address + (segment.len - 1) < start);
        let met = self.segments[first..]
            .iter()
            .take_while(move |segment| len != 0 && segment.address <= last);
        met.filter_map(move |segment| {
            let end = segment.address + (segment.len - 1);
            let (from, to) = (start.max(segment.address), last.min(end));
            let more = to.checked_sub(from)?;
            let offset = segment.offset.checked_add(from - segment.address)?;
            Some((from, more.saturating_add(1), offset))
        })
    }

    /// The copy that [`to_kcore`](Self::to_kcore) made.
    ///
    /// # Errors
    /// When it is none.
    pub fn packed(file: Arc<CodeFile>) -> Result<Self, ImageError> {
        let segments = segments(&file, file.path())?;
        Ok(Self {
            file,
            segments,
            kallsyms: None,
        })
    }

    /// A copy of what it has of these ranges (address, length), as an ELF core file; `None` if no code was read from it.
    pub fn to_kcore(&self, ranges: &[(u64, u64)]) -> Option<Vec<u8>> {
        const HEADER: u64 = 64;
        const PROGRAM_HEADER: u64 = 56;
        if !self.file.was_read() {
            return None;
        }
        // A file whose segments show the same bytes again and again has no more of them for that.
        let mut left = self.file.size().unwrap_or(0);
        let told = ranges
            .iter()
            .flat_map(|&(start, len)| self.parts(start, len));
        // More than so many a header cannot tell of.
        let parts: Vec<(u64, Vec<u8>)> = told
            .take(usize::from(u16::MAX - 1))
            .map(|(address, len, offset)| {
                let bytes = self.read_part(offset, len.min(left));
                left -= bytes.len() as u64;
                (address, bytes)
            })
            .collect();
        let mut out = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        // A core file for x86-64, version 1.
        for half in [4u16, 62, 1, 0] {
            out.extend(half.to_le_bytes());
        }
        for word in [0, HEADER, 0] {
            out.extend(word.to_le_bytes());
        }
        out.extend([0; 4]);
        for half in [
            HEADER as u16,
            PROGRAM_HEADER as u16,
            parts.len() as u16,
            64,
            0,
            0,
        ] {
            out.extend(half.to_le_bytes());
        }
        let mut offset = HEADER + PROGRAM_HEADER * parts.len() as u64;
        for (address, bytes) in &parts {
            // PT_LOAD, to be read and executed.
            out.extend([1u32, 5].iter().flat_map(|word| word.to_le_bytes()));
            let len = bytes.len() as u64;
            for word in [offset, *address, *address, len, len, 1] {
                out.extend(word.to_le_bytes());
            }
            offset += len;
        }
        parts.iter().for_each(|(_, bytes)| out.extend(bytes));
        Some(out)
    }

    /// Bytes of the file, as many as there are: a range may be longer than what it has.
    fn read_part(&self, offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut page = [0; 4096];
        while (bytes.len() as u64) < len {
            let left = (len - bytes.len() as u64).min(page.len() as u64) as usize;
            let count = self
                .file
                .read_at(offset + bytes.len() as u64, &mut page[..left]);
            if count == 0 {
                break;
            }
            bytes.extend(&page[..count]);
        }
        bytes
    }

    /// The file with the code.
    pub fn file(&self) -> &Arc<CodeFile> {
        &self.file
    }
}

/// By address, none across another.
fn segments(file: &CodeFile, path: &Path) -> Result<Vec<ElfSegment>, ImageError> {
    let layout = match file.try_layout() {
        Some(Ok(layout)) => layout,
        Some(Err(reason)) => {
            return Err(ImageError::BadElf {
                path: path.to_owned(),
                reason,
            });
        }
        None => return Err(file.problem_again()),
    };
    Ok(apart(layout.segments.clone()))
}

/// Leaves out what would lie across others or past the end of the address space.
fn apart(mut segments: Vec<ElfSegment>) -> Vec<ElfSegment> {
    segments.sort_by_key(|segment| segment.address);
    let mut free = Some(0);
    segments.retain(|segment| {
        if !free.is_some_and(|free| segment.len > 0 && segment.address >= free) {
            return false;
        }
        let Some(last) = segment.address.checked_add(segment.len - 1) else {
            return false;
        };
        free = last.checked_add(1);
        true
    });
    segments
}

/// The address of a symbol in the text of a kallsyms.
fn address_in(text: &[u8], name: &str) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find(|line| {
        let mut words = line.split(u8::is_ascii_whitespace);
        words.nth(2) == Some(name.as_bytes())
    })?;
    let address = line.split(u8::is_ascii_whitespace).next()?;
    u64::from_str_radix(std::str::from_utf8(address).ok()?, 16).ok()
}

/// The symbols of a vmlinux by which perf tells where a kernel was loaded.
#[derive(Debug, Default)]
struct Anchors(Vec<(String, u64)>);

impl FromFile for Anchors {
    fn parse<'data, R: ReadRef<'data>>(data: R) -> Self {
        if !matches!(FileKind::parse(data), Ok(FileKind::Elf64)) {
            return Self::default();
        }
        let Ok(file) = ElfFile64::<Endianness, R>::parse(data) else {
            return Self::default();
        };
        let (endian, table) = (file.endian(), file.elf_symbol_table());
        let anchors = table.iter().filter_map(|symbol| {
            let name = table.symbol_name(endian, symbol).ok()?;
            let is_anchor = name == b"_text" || name == b"_stext";
            let address = Sym::st_value(symbol, endian);
            is_anchor.then(|| (String::from_utf8_lossy(name).into_owned(), address))
        });
        // More than these two there are only in a file made to do harm.
        Self(anchors.take(8).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(address: u64, len: u64) -> ElfSegment {
        ElfSegment {
            address,
            offset: address,
            len,
            executable: true,
        }
    }

    #[test]
    fn parts_of_segments_that_lie_apart() {
        let told = [
            (0x30, 8),
            (0x10, 0),
            (0x10, 0x10),
            (0x18, 4),
            (0x20, 8),
            (u64::MAX, 1),
            (u64::MAX, 2),
        ];
        let told = told.map(|(address, len)| segment(address, len));
        let segments = apart(told.to_vec());
        let places: Vec<_> = segments.iter().map(|s| (s.address, s.len)).collect();
        assert_eq!(places, [(0x10, 0x10), (0x20, 8), (0x30, 8), (u64::MAX, 1)]);
        let kernel = KernelCode {
            file: CodeFile::from_bytes("kernel", Vec::new()),
            segments,
            kallsyms: None,
        };
        let parts = |start, len| kernel.parts(start, len).collect::<Vec<_>>();
        assert_eq!(parts(0, 0x10), []);
        assert_eq!(parts(0x18, 0), []);
        assert_eq!(
            parts(0x18, 0x1c),
            [(0x18, 8, 0x18), (0x20, 8, 0x20), (0x30, 4, 0x30)]
        );
        assert_eq!(parts(0x31, 2), [(0x31, 2, 0x31)]);
        assert_eq!(parts(0x38, u64::MAX), [(u64::MAX, 1, u64::MAX)]);
    }
}
