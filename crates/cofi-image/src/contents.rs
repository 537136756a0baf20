//! The bytes of a file, read piece by piece when they are first wanted, and then kept.
//!
//! Every piece is read once, without a lock or an allocation after that, and shared by all threads. It is what a memory
//! map would do, but for two things. A file that somebody truncates kills whoever has it mapped (SIGBUS), and a file that
//! somebody writes to changes under a `&[u8]`, which Rust does not allow; libraries that a package manager or a compiler
//! replaces are just such files. Here the first is a short read and the second is noticed: a piece is only used as long as
//! the file is as old and as long as it was when it was opened.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::SystemTime;

use cofi_host::{read_at, read_exact_at};
use object::{ReadCache, ReadRef};

use crate::tables::Tables;

/// How much is read at a time.
const PIECE: usize = 64 << 10;

/// Up to this size every piece of a file has its place in a table. Those of larger ones (a kernel's memory seems to be
/// terabytes long) are looked up.
const DENSE_LIMIT: u64 = 4 << 30;

/// Up to this size there is room in memory for all of a file that is looked through for its symbols.
const WHOLE_LIMIT: u64 = 256 << 20;

/// Something read from a file's bytes, however they are held.
pub(crate) trait FromFile {
    fn parse<'data, R: ReadRef<'data>>(data: R) -> Self;
}

/// A file's bytes.
#[derive(Debug)]
pub(crate) enum Contents {
    Whole(Arc<[u8]>),
    Pieces(Pieces),
}

/// A file, as long and as old as it was when it was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    file: File,
    len: u64,
    written: Option<SystemTime>,
    /// A kernel's memory says that it was written just now.
    is_steady: bool,
}

impl Opened {
    /// Reads bytes, if all of them are there and the file is still the one that was opened.
    pub(crate) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        read_exact_at(&self.file, bytes, offset)?;
        if self.is_stale() {
            return Err(io::Error::other("it changed while it was read"));
        }
        Ok(())
    }

    /// Whether the file is another than the one that was opened.
    fn is_stale(&self) -> bool {
        self.is_steady
            && self.file.metadata().map_or(true, |now| {
                now.len() != self.len || now.modified().ok() != self.written
            })
    }
}

#[derive(Debug)]
pub(crate) struct Pieces {
    opened: Arc<Opened>,
    len: u64,
    table: Table,
    changed: OnceLock<()>,
}

#[derive(Debug)]
enum Table {
    Dense(Box<[OnceLock<Box<[u8]>>]>),
    Sparse(RwLock<HashMap<u64, Arc<[u8]>>>),
}

impl Contents {
    /// The contents of a file that was just opened.
    pub(crate) fn of(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let len = metadata.len();
        let table = if len <= DENSE_LIMIT {
            let count = len.div_ceil(PIECE as u64) as usize;
            Table::Dense((0..count).map(|_| OnceLock::new()).collect())
        } else {
            Table::Sparse(RwLock::default())
        };
        Ok(Self::Pieces(Pieces {
            opened: Arc::new(Opened {
                file,
                len,
                written: metadata.modified().ok(),
                is_steady: matches!(table, Table::Dense(_)),
            }),
            len,
            table,
            changed: OnceLock::new(),
        }))
    }

    /// The file, if the bytes are not all in memory.
    pub(crate) const fn opened(&self) -> Option<&Arc<Opened>> {
        match self {
            Self::Whole(_) => None,
            Self::Pieces(pieces) => Some(&pieces.opened),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Whole(bytes) => bytes.len() as u64,
            Self::Pieces(pieces) => pieces.len,
        }
    }

    /// Copies bytes from `offset` on into `buf`; how many there were.
    pub(crate) fn read_at(&self, offset: u64, buf: &mut [u8]) -> usize {
        match self {
            Self::Whole(bytes) => copy_from(bytes, offset, buf),
            Self::Pieces(pieces) => pieces.read_at(offset, buf),
        }
    }

    /// Whether the file was changed after it was opened, so that a part of it could not be used.
    pub(crate) fn has_changed(&self) -> bool {
        matches!(self, Self::Pieces(pieces) if pieces.changed.get().is_some())
    }

    /// Whether any code was read.
    pub(crate) fn was_read(&self) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Pieces(pieces) => match &pieces.table {
                Table::Dense(table) => table.iter().any(|piece| piece.get().is_some()),
                Table::Sparse(table) => !table
                    .read()
                    .unwrap_or_else(PoisonError::into_inner)
                    .is_empty(),
            },
        }
    }

    /// Reads what stands in few places of the file: its headers.
    pub(crate) fn parse_head<T: FromFile>(&self) -> T {
        match self {
            Self::Whole(bytes) => T::parse(&bytes[..]),
            Self::Pieces(pieces) => T::parse(&ReadCache::new(At::new(&pieces.opened.file))),
        }
    }

    /// Reads what stands in the tables of symbols, many pieces of it.
    pub(crate) fn parse<T: FromFile>(&self) -> T {
        match self {
            Self::Pieces(pieces) if pieces.len <= WHOLE_LIMIT => {
                let tables = self
                    .parse_head::<Option<Tables>>()
                    .and_then(|tables| pieces.tables(&tables));
                T::parse(tables.unwrap_or_else(|| pieces.whole()).as_slice())
            }
            _ => self.parse_head(),
        }
    }

    /// All bytes, for whoever wants to keep them.
    pub(crate) fn all(&self) -> io::Result<Arc<[u8]>> {
        match self {
            Self::Whole(bytes) => Ok(bytes.clone()),
            // As much as there is of them, without a second copy.
            Self::Pieces(pieces) if matches!(pieces.table, Table::Dense(_)) => {
                pieces.copy(0, pieces.len)
            }
            Self::Pieces(pieces) => {
                let mut bytes = Vec::new();
                At::new(&pieces.opened.file)
                    .take(pieces.len)
                    .read_to_end(&mut bytes)?;
                Ok(bytes.into())
            }
        }
    }

    /// Bytes that are wanted once, as a whole: they are not kept. None if not all of them are there.
    pub(crate) fn copy(&self, offset: u64, len: u64) -> Option<Arc<[u8]>> {
        match self {
            Self::Whole(bytes) => {
                let start = usize::try_from(offset).ok()?;
                let end = start.checked_add(usize::try_from(len).ok()?)?;
                Some(bytes.get(start..end)?.into())
            }
            Self::Pieces(pieces) => pieces.copy(offset, len).ok(),
        }
    }
}

impl Pieces {
    /// The file with its tables, and zeros elsewhere, which take no memory: pages that nobody has written to. None if not all of them are there.
    fn tables(&self, tables: &Tables) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.len).ok()?];
        for (start, len) in &tables.0 {
            let from = usize::try_from(*start).ok()?;
            let to = from.checked_add(usize::try_from(*len).ok()?)?;
            let part = bytes.get_mut(from..to)?;
            read_exact_at(&self.opened.file, part, *start).ok()?;
        }
        Some(bytes)
    }

    /// All bytes. What cannot be read is missing, as behind the end of a file that was cut off.
    fn whole(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = At::new(&self.opened.file)
            .take(self.len)
            .read_to_end(&mut bytes);
        bytes
    }

    fn copy(&self, offset: u64, len: u64) -> io::Result<Arc<[u8]>> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        let len = end.and_then(|_| usize::try_from(len).ok());
        let len = len.ok_or(io::ErrorKind::UnexpectedEof)?;
        // A sparse file may be larger than any memory: that is an error, and no end of the program.
        let room = Vec::<u8>::new().try_reserve_exact(len);
        room.map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len).collect();
        if let Some(bytes) = Arc::get_mut(&mut bytes) {
            self.opened.read_exact_at(bytes, offset)?;
        }
        Ok(bytes)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let Some(at) = offset.checked_add(done as u64).filter(|at| *at < self.len) else {
                break;
            };
            let (number, inside) = (at / PIECE as u64, at % PIECE as u64);
            let out = &mut buf[done..];
            let count = match &self.table {
                Table::Dense(table) => table.get(number as usize).map_or(0, |piece| {
                    copy_from(piece.get_or_init(|| self.fill(number).into()), inside, out)
                }),
                Table::Sparse(table) => copy_from(&self.sparse(table, number), inside, out),
            };
            if count == 0 {
                break;
            }
            done += count;
        }
        done
    }

    fn sparse(&self, table: &RwLock<HashMap<u64, Arc<[u8]>>>, number: u64) -> Arc<[u8]> {
        // Nothing is done under the lock that could leave the table half written.
        let known = table.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(piece) = known.get(&number) {
            return piece.clone();
        }
        drop(known);
        let piece: Arc<[u8]> = self.fill(number).into();
        let mut known = table.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(number).or_insert(piece).clone()
    }

    /// Reads a piece; as much of it as there is.
    fn fill(&self, number: u64) -> Vec<u8> {
        let start = number * PIECE as u64;
        let len = (self.len - start).min(PIECE as u64);
        let mut bytes = vec![0; len as usize];
        let mut done = 0;
        while done < bytes.len() {
            match read_at(&self.opened.file, &mut bytes[done..], start + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        bytes.truncate(done);
        if self.opened.is_stale() {
            self.changed.get_or_init(|| ());
            bytes.clear();
        }
        bytes
    }
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

/// Reads a file without moving the place at which others read it.
struct At<'f> {
    file: &'f File,
    place: u64,
}

impl<'f> At<'f> {
    fn new(file: &'f File) -> Self {
        Self { file, place: 0 }
    }
}

impl Read for At<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = read_at(self.file, buf, self.place)?;
        self.place += count as u64;
        Ok(count)
    }
}

impl Seek for At<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::End(more) => self.file.metadata()?.len().checked_add_signed(more),
            SeekFrom::Current(more) => self.place.checked_add_signed(more),
        };
        self.place = place.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn pieces_meet_and_end_where_the_file_does() {
        let len = (3 * PIECE + 100) as u64;
        let mut disk = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        disk.write_all(&bytes).unwrap();
        let contents = Contents::of(disk.reopen().unwrap()).unwrap();
        assert_eq!(contents.len(), len);
        let check = |at: u64, len: usize| {
            let mut buf = vec![0xff; len];
            let count = contents.read_at(at, &mut buf);
            let from = (at as usize).min(bytes.len());
            assert_eq!(buf[..count], bytes[from..(from + len).min(bytes.len())]);
            assert!(buf[count..].iter().all(|byte| *byte == 0xff));
        };
        check(0, 4);
        check(PIECE as u64 - 2, 4);
        check(PIECE as u64 - 2, 2 * PIECE);
        check(len - 2, 8);
        check(len, 8);
        check(u64::MAX, 8);
        assert_eq!(contents.all().unwrap()[..], bytes);
        assert!(!contents.has_changed());
    }

    #[test]
    fn a_file_that_changes_is_not_used_further() {
        let disk = tempfile::NamedTempFile::new().unwrap();
        disk.as_file().set_len(2 * PIECE as u64).unwrap();
        let contents = Contents::of(disk.reopen().unwrap()).unwrap();
        assert_eq!(contents.read_at(0, &mut [1; 4]), 4);
        disk.as_file().set_len(4).unwrap();
        assert_eq!(contents.read_at(8, &mut [1; 4]), 4, "read before");
        assert!(!contents.has_changed());
        assert_eq!(contents.read_at(PIECE as u64, &mut [1; 4]), 0);
        assert!(contents.has_changed());
        assert!(contents.all().is_err());
    }

    #[test]
    fn files_of_terabytes_take_only_what_is_read() {
        let disk = tempfile::NamedTempFile::new().unwrap();
        let len = 1 << 40;
        if disk.as_file().set_len(len).is_err() {
            panic!("the file system of the test has no sparse files");
        }
        cofi_host::write_all_at(disk.as_file(), &[1, 2], len - 2).unwrap();
        let contents = Contents::of(disk.reopen().unwrap()).unwrap();
        let mut buf = [0xff; 4];
        assert_eq!(contents.read_at(len - 3, &mut buf), 3);
        assert_eq!(buf, [0, 1, 2, 0xff]);
        assert_eq!(contents.read_at(len - 3, &mut buf), 3);
        assert_eq!(contents.read_at(1 << 20, &mut buf), 4);
        assert_eq!(buf, [0; 4]);
    }
}
