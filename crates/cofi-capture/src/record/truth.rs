//! The engine's own list of what ran, kept on disk for the comparison at the end.

use cofi_packet::Ip;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Lists of executed addresses, one a stream, written as they come: memory stays bounded whatever the run's length.
#[derive(Debug)]
pub struct Truth {
    folder: PathBuf,
    writers: BTreeMap<u32, List>,
}

/// A list that is being written: each address as its distance from the last one, in as few bytes as it takes (mostly one, so that
/// a run of billions finds room on a disk).
#[derive(Debug)]
pub(super) struct List {
    tid: u32,
    last: u64,
    writer: BufWriter<File>,
}

/// One stream's list, complete.
#[derive(Debug)]
pub struct TruthStream {
    /// Number of the stream, as in the file's AUXTRACE records.
    pub index: u32,
    /// Its thread.
    pub tid: u32,
    path: PathBuf,
}

impl Truth {
    /// Lists kept in `folder`, which must exist.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.into(),
            writers: BTreeMap::new(),
        }
    }

    fn path(&self, index: u32) -> PathBuf {
        self.folder.join(format!("{index}.truth"))
    }

    pub(super) fn begin(&mut self, index: u32, tid: u32) -> io::Result<()> {
        if self.writers.contains_key(&index) {
            return Ok(());
        }
        let file = super::output::private_file(&self.path(index))?;
        let list = List {
            tid,
            last: 0,
            writer: BufWriter::with_capacity(1 << 16, file),
        };
        self.writers.insert(index, list);
        Ok(())
    }

    /// The list of a stream that has begun.
    pub(super) fn list(&mut self, index: u32) -> Option<&mut List> {
        self.writers.get_mut(&index)
    }

    /// All lists, by stream.
    pub(super) fn lists(&mut self) -> BTreeMap<u32, &mut List> {
        self.writers
            .iter_mut()
            .map(|(index, list)| (*index, list))
            .collect()
    }

    pub(super) fn push(&mut self, index: u32, ip: Ip) -> io::Result<()> {
        match self.writers.get_mut(&index) {
            Some(list) => list.push(ip.0),
            None => Ok(()),
        }
    }

    pub(super) fn finish(mut self) -> io::Result<Vec<TruthStream>> {
        let mut streams = Vec::new();
        for (index, mut list) in std::mem::take(&mut self.writers) {
            list.writer.flush()?;
            streams.push(TruthStream {
                index,
                tid: list.tid,
                path: self.path(index),
            });
        }
        Ok(streams)
    }
}

impl List {
    #[inline]
    pub(super) fn push(&mut self, ip: u64) -> io::Result<()> {
        let distance = ip.wrapping_sub(self.last).cast_signed();
        self.last = ip;
        // The sign at the lowest bit, then seven bits a byte, the highest bit saying that more follow.
        let mut rest = (distance << 1 ^ distance >> 63).cast_unsigned();
        let mut bytes = [0; 10];
        let mut len = 0;
        for byte in &mut bytes {
            *byte = rest as u8 & 0x7f;
            rest >>= 7;
            len += 1;
            if rest == 0 {
                break;
            }
            *byte |= 0x80;
        }
        self.writer.write_all(&bytes[..len])
    }
}

/// The next distance of a list; `None` at its end.
fn distance(reader: &mut impl BufRead) -> io::Result<Option<i64>> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let Some(&byte) = reader.fill_buf()?.first() else {
            // The list is written in whole entries, so this is its end.
            return Ok(None);
        };
        reader.consume(1);
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Ok(Some(
        (value >> 1).cast_signed() ^ -(value & 1).cast_signed(),
    ))
}

impl TruthStream {
    /// Reads the addresses in order.
    ///
    /// # Errors
    /// When the list's file cannot be opened; each item is an error when it cannot be read.
    pub fn addresses(&self) -> io::Result<impl Iterator<Item = io::Result<Ip>> + use<>> {
        let mut reader = BufReader::with_capacity(1 << 16, File::open(&self.path)?);
        let mut last = 0_u64;
        Ok(std::iter::from_fn(move || {
            let distance = distance(&mut reader).transpose()?;
            Some(distance.map(|distance| {
                last = last.wrapping_add_signed(distance);
                Ip(last)
            }))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::Truth;
    use cofi_packet::Ip;

    #[test]
    fn lists_come_back_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let mut truth = Truth::new(folder.path());
        truth.begin(3, 77).unwrap();
        let list = [
            0x40_1000,
            0x40_1003,
            0x40_1001,
            0,
            u64::MAX,
            1 << 63,
            0x7fff_ffff_ffff_ffff,
            0xffff_ffff_8100_0000,
            0xffff_ffff_8100_0000,
            5,
        ];
        for ip in list {
            truth.push(3, Ip(ip)).unwrap();
        }
        truth.push(4, Ip(1)).unwrap();
        let streams = truth.finish().unwrap();
        let [stream] = &streams[..] else {
            panic!("one list, not {}", streams.len());
        };
        assert_eq!((stream.index, stream.tid), (3, 77));
        let read: Vec<u64> = stream
            .addresses()
            .unwrap()
            .map(|ip| ip.unwrap().0)
            .collect();
        assert_eq!(read, list);
    }
}
