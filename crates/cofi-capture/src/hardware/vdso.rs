//! The kernel's shared object, which no file holds: it is saved beside the trace, and records name it there.

use crate::record::SavedFiles;
use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MMAP2: u32 = 10;
const NAME: &[u8] = b"[vdso]\0";
/// Where a record tells the address, the length and the name of a mapping.
const ADDRESS: usize = 16;
const LENGTH: usize = 24;
const NAME_AT: usize = 72;
/// What stands behind the name: thread, time, processor and event.
const TRAILER: usize = 32;

/// The vDSO of 64-bit programs, which is the same for all.
#[derive(Debug)]
pub(super) struct Vdso {
    files: SavedFiles,
    /// Its bytes, if they can be had.
    bytes: Option<Vec<u8>>,
    state: State,
}

/// What has become of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nobody has asked for it.
    Unused,
    /// Records name it, but the recording has not begun yet.
    Promised,
    /// It is there.
    Saved,
}

/// The file's name, without ending.
const FILE: &str = "vdso";

impl Vdso {
    /// For a trace at this place.
    pub(super) fn beside(file: &Path) -> io::Result<Self> {
        Ok(Self {
            files: SavedFiles::beside(file)?,
            bytes: own().ok(),
            state: State::Unused,
        })
    }

    /// Makes way for what is saved, and saves what has been named.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.files.begin()?;
        if self.state == State::Promised {
            self.save()?;
        }
        Ok(())
    }

    fn save(&mut self) -> io::Result<()> {
        if self.state != State::Saved
            && let Some(bytes) = &self.bytes
        {
            self.files.save_as(FILE, bytes)?;
            self.state = State::Saved;
        }
        Ok(())
    }

    /// The folder for the kernel's code.
    pub(super) fn kernel_folder(&self) -> io::Result<PathBuf> {
        self.files.kernel_folder()
    }

    /// Before the recording begins: the file that will hold what a process has mapped under this name, if that is the vDSO.
    pub(super) fn promised(&mut self, name: &[u8], start: u64, len: u64) -> Option<PathBuf> {
        let bytes = self.bytes.as_ref()?;
        let is_ours = name == b"[vdso]" && start >> 32 != 0 && len == bytes.len() as u64;
        is_ours.then(|| {
            self.state = State::Promised;
            self.files.place_of(FILE)
        })
    }

    /// The records, of which those that map the vDSO name the file that holds it. Where it cannot be saved they stay as they are.
    pub(super) fn named<'r>(&mut self, records: &'r [u8]) -> Cow<'r, [u8]> {
        let mut rest = records;
        let mut is_there = false;
        while let Some((record, behind)) = split(rest) {
            is_there |= self.is_vdso(record);
            rest = behind;
        }
        if !is_there || self.save().is_err() {
            return Cow::Borrowed(records);
        }
        let path = self.files.place_of(FILE);
        let mut all = Vec::with_capacity(records.len() + 4096);
        let mut rest = records;
        while let Some((record, behind)) = split(rest) {
            if self.is_vdso(record) {
                all.extend(with_name(record, &path));
            } else {
                all.extend(record);
            }
            rest = behind;
        }
        all.extend(rest);
        Cow::Owned(all)
    }

    /// Whether a record maps just this vDSO; that of 32-bit programs is another one.
    fn is_vdso(&self, record: &[u8]) -> bool {
        let word = |at: usize| {
            let bytes = record
                .get(at..at + 8)
                .and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        let len = self.bytes.as_ref().map_or(0, Vec::len);
        record.starts_with(&MMAP2.to_le_bytes())
            && record
                .get(NAME_AT..)
                .is_some_and(|name| name.starts_with(NAME))
            && record.len() >= NAME_AT + NAME.len() + TRAILER
            && word(ADDRESS) >> 32 != 0
            && word(LENGTH) == len as u64
    }
}

/// The first record, and what follows; `None` if there is no whole one.
fn split(records: &[u8]) -> Option<(&[u8], &[u8])> {
    let size = usize::from(u16::from_le_bytes([*records.get(6)?, *records.get(7)?]));
    records.split_at_checked(size.max(8))
}

/// A record of a mapping with another name.
fn with_name(record: &[u8], path: &Path) -> Vec<u8> {
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.resize((name.len() + 1).next_multiple_of(8), 0);
    let size = NAME_AT + name.len() + TRAILER;
    let trailer = &record[record.len() - TRAILER..];
    let mut renamed = record[..6].to_vec();
    renamed.extend((size as u16).to_le_bytes());
    renamed.extend(&record[8..NAME_AT]);
    renamed.extend(name);
    renamed.extend(trailer);
    renamed
}

/// The bytes of this process's.
fn own() -> io::Result<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let range = maps.lines().find_map(|line| {
        let (begin, end) = line
            .strip_suffix("[vdso]")?
            .split_once(' ')?
            .0
            .split_once('-')?;
        let number = |word: &str| u64::from_str_radix(word, 16).ok();
        Some((number(begin)?, number(end)?))
    });
    let (begin, end) = range.ok_or(io::ErrorKind::NotFound)?;
    let mut bytes = vec![0; (end - begin) as usize];
    File::open(PathBuf::from("/proc/self/mem"))?.read_exact_at(&mut bytes, begin)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(address: u64, len: u64, name: &[u8]) -> Vec<u8> {
        let mut record = MMAP2.to_le_bytes().to_vec();
        record.extend([2, 0, 0, 0]);
        record.extend([7, 0, 0, 0, 7, 0, 0, 0]);
        record.extend(address.to_le_bytes());
        record.extend(len.to_le_bytes());
        record.resize(NAME_AT, 0);
        record.extend(name);
        record.resize(record.len().next_multiple_of(8), 0);
        record.extend([9; TRAILER]);
        let size = record.len() as u16;
        record[6..8].copy_from_slice(&size.to_le_bytes());
        record
    }

    #[test]
    fn the_vdso_is_saved_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut vdso = Vdso::beside(&folder.path().join("data")).unwrap();
        let bytes = vdso.bytes.clone().expect("this process has one");
        assert!(bytes.starts_with(b"\x7fELF"));
        let len = bytes.len() as u64;
        let plain = mapping(0x40_0000, 0x1000, b"/bin/true\0");
        let of_32_bits = mapping(0xf7f0_0000, len, NAME);
        let ours = mapping(0x7fff_0000_0000, len, NAME);
        let none = [plain.clone(), of_32_bits.clone()].concat();
        assert_eq!(*vdso.named(&none), *none);
        let all = [plain.clone(), ours.clone(), of_32_bits.clone()].concat();
        let named = vdso.named(&all).into_owned();
        let (first, rest) = split(&named).unwrap();
        let (second, rest) = split(rest).unwrap();
        assert_eq!((first, rest), (&plain[..], &of_32_bits[..]));
        assert_eq!(second[8..NAME_AT], ours[8..NAME_AT]);
        assert!(second.ends_with(&[9; TRAILER]));
        let name = second[NAME_AT..].split(|byte| *byte == 0).next().unwrap();
        let path = Path::new(std::ffi::OsStr::from_bytes(name));
        assert_eq!(fs::read(path).unwrap(), bytes);
        // One that is named before there is a folder is there when the recording has begun.
        let mut vdso = Vdso::beside(&folder.path().join("second")).unwrap();
        assert_eq!(vdso.promised(b"/bin/true", 1 << 40, len), None);
        let path = vdso.promised(b"[vdso]", 1 << 40, len).unwrap();
        assert!(!path.exists());
        vdso.begin().unwrap();
        assert_eq!(fs::read(path).unwrap(), bytes);
    }
}
