//! The trace's file as the writer sees it, with room kept for the last words: that a disk is full shows while there is still room to
//! say so.

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::fstatvfs;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

/// Bytes that are gathered before they are written.
const GATHERED: usize = 1 << 16;
/// So much more room is asked for at a time.
const STEP: u64 = 1 << 20;
/// How much room is kept: the first of these that is no more than a quarter of what there is, or the last.
const KEPT: [u64; 4] = [1 << 20, 1 << 18, 1 << 16, 1 << 14];

/// A file, and the room that it has.
#[derive(Debug)]
pub(super) struct Sink {
    file: File,
    /// Where `gathered` belongs.
    at: u64,
    gathered: Vec<u8>,
    /// Where the file's room ends; `None` where that is not known.
    room: Option<u64>,
    /// How much of it is kept.
    kept: u64,
    /// The longest that a file may be.
    limit: u64,
    /// What was kept may be used.
    is_ending: bool,
}

impl Sink {
    /// Keeps room in a new file, as far as the file system does that.
    pub(super) fn new(file: File) -> io::Result<Self> {
        let limit = getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(limit, _)| limit);
        let mut sink = Self {
            file,
            at: 0,
            gathered: Vec::with_capacity(GATHERED),
            room: Some(0),
            kept: 0,
            limit,
            is_ending: false,
        };
        let free = fstatvfs(&sink.file).map_or(0, |about| {
            let blocks = about.blocks_available();
            blocks.saturating_mul(about.fragment_size())
        });
        let free = free.min(limit);
        let fits = KEPT.into_iter().find(|kept| *kept <= free / 4);
        sink.kept = fits.unwrap_or(KEPT[KEPT.len() - 1]);
        sink.make_room(0)?;
        Ok(sink)
    }

    /// Keeps more.
    pub(super) fn keep_more(&mut self, bytes: u64) {
        self.kept += bytes;
    }

    /// What was kept may be used from now on; how many bytes there are, if that is known.
    pub(super) fn end(&mut self) -> Option<u64> {
        self.is_ending = true;
        let room = self.room?.min(self.limit);
        Some(room.saturating_sub(self.position()))
    }

    /// Whether there is room for so many bytes more, as far as that is known.
    pub(super) fn has_room(&mut self, bytes: u64) -> bool {
        let end = self.position().saturating_add(bytes);
        self.make_room(end).is_ok()
    }

    /// From now on there is no room for more than the last words.
    #[cfg(test)]
    pub(super) fn limit_to_what_is_kept(&mut self) {
        self.limit = self.position() + self.kept;
    }

    fn position(&self) -> u64 {
        self.at + self.gathered.len() as u64
    }

    /// Makes sure that there is room up to `end`, and what is kept behind it.
    fn make_room(&mut self, end: u64) -> io::Result<()> {
        let kept = if self.is_ending { 0 } else { self.kept };
        let end = end.saturating_add(kept);
        if end > self.limit {
            return Err(Errno::EFBIG.into());
        }
        let Some(room) = self.room.filter(|room| *room < end) else {
            return Ok(());
        };
        let ask = |to: u64| {
            let (from, len) = (room.cast_signed(), (to - room).cast_signed());
            fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, from, len).map(|()| Some(to))
        };
        let asked = ask(end.saturating_add(STEP).min(self.limit.max(end)));
        let asked = asked.or_else(|_| ask(end));
        self.room = match asked {
            Ok(room) => room,
            Err(error @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG | Errno::EIO)) => {
                return Err(error.into());
            }
            // This file system keeps no room, or this is no file.
            Err(_) => None,
        };
        Ok(())
    }

    fn write_gathered(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.gathered, self.at)?;
        self.at += self.gathered.len() as u64;
        self.gathered.clear();
        Ok(())
    }

    /// Takes back what was written from `at` on, of which not all could be.
    pub(super) fn take_back(&mut self, at: u64) {
        match at.checked_sub(self.at) {
            Some(keep) => self.gathered.truncate(keep as usize),
            None => {
                self.gathered.clear();
                self.at = at;
                // It costs room.
                let _ = self.file.set_len(at);
            }
        }
    }

    /// The file is complete: gives back what room is left.
    pub(super) fn complete(mut self) -> io::Result<()> {
        self.write_gathered()?;
        let len = self.file.metadata()?.len();
        if let Some(room) = self.room.filter(|room| *room > len) {
            let flags = FallocateFlags::FALLOC_FL_KEEP_SIZE | FallocateFlags::FALLOC_FL_PUNCH_HOLE;
            let (from, len) = (len.cast_signed(), (room - len).cast_signed());
            // A file that takes more room than it needs is whole all the same.
            let _ = fallocate(&self.file, flags, from, len);
            let _ = self.file.set_len(from.cast_unsigned());
        }
        Ok(())
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.make_room(self.position() + bytes.len() as u64)?;
        if self.gathered.len() + bytes.len() > GATHERED {
            self.write_gathered()?;
        }
        if bytes.len() < GATHERED {
            self.gathered.extend_from_slice(bytes);
        } else {
            self.file.write_all_at(bytes, self.at)?;
            self.at += bytes.len() as u64;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_gathered()
    }
}

impl Seek for Sink {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let SeekFrom::Start(at) = to else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        self.write_gathered()?;
        self.at = at;
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_leaves_room_for_the_last_words() {
        let file = tempfile::tempfile().unwrap();
        let mut sink = Sink::new(file.try_clone().unwrap()).unwrap();
        sink.limit = (1 << 20) + 10_000;
        let mut written = 0;
        let error = loop {
            let before = sink.position();
            match sink.write_all(&[7; 100]) {
                Ok(()) => written += 100,
                Err(error) => {
                    sink.take_back(before);
                    break error;
                }
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
        assert_eq!(written, 10_000);
        let room = sink.end();
        assert!(room.is_none_or(|room| room == 1 << 20), "{room:?}");
        sink.write_all(&[8; 1 << 20]).unwrap();
        assert!(sink.write_all(&[9]).is_err());
        sink.take_back(10_000 + (1 << 20));
        sink.complete().unwrap();
        assert_eq!(file.metadata().unwrap().len(), 10_000 + (1 << 20));
    }

    #[test]
    fn room_that_was_kept_is_given_back() {
        use std::os::unix::fs::MetadataExt;
        let file = tempfile::tempfile().unwrap();
        let mut sink = Sink::new(file.try_clone().unwrap()).unwrap();
        sink.write_all(&[1; 5000]).unwrap();
        sink.seek(SeekFrom::Start(0)).unwrap();
        sink.write_all(&[2; 10]).unwrap();
        sink.seek(SeekFrom::Start(5000)).unwrap();
        sink.complete().unwrap();
        let data = file.metadata().unwrap();
        assert_eq!(data.len(), 5000);
        assert!(data.blocks() * 512 <= 64 << 10, "{} blocks", data.blocks());
        let mut begin = [0; 12];
        file.read_exact_at(&mut begin, 0).unwrap();
        assert_eq!(begin, [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1]);
    }
}
