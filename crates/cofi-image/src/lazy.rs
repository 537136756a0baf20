//! Sections of debugging information of which those pages are read that are wanted, as gimli reads them.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use gimli::{Error, Reader as _, ReaderOffsetId, Result, RunTimeEndian};
use object::read::CompressionFormat;

use crate::contents::{Contents, Opened};
use crate::sections::Sections;

/// How much is read at a time.
const PAGE: usize = 16 << 10;

/// A section.
#[derive(Debug)]
struct Section {
    /// Tells its offsets from those of other sections, where an error names one.
    number: u64,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    /// One that is compressed, or of a file that is in memory.
    Whole(Arc<[u8]>),
    Pages {
        file: Arc<Opened>,
        start: u64,
        len: usize,
        pages: Box<[OnceLock<Box<[u8]>>]>,
    },
}

impl Bytes {
    fn pages(file: &Arc<Opened>, start: u64, len: usize) -> Self {
        let pages = (0..len.div_ceil(PAGE)).map(|_| OnceLock::new());
        Self::Pages {
            file: file.clone(),
            start,
            len,
            pages: pages.collect(),
        }
    }
}

impl Section {
    fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Whole(bytes) => bytes.len(),
            Bytes::Pages { len, .. } => *len,
        }
    }

    /// Some bytes from `at` on; none if they cannot be read.
    #[inline]
    fn at(&self, at: usize) -> &[u8] {
        match &self.bytes {
            Bytes::Whole(bytes) => bytes.get(at..).unwrap_or_default(),
            Bytes::Pages {
                file,
                start,
                len,
                pages,
            } => {
                let Some(page) = pages.get(at / PAGE) else {
                    return &[];
                };
                let page = page.get_or_init(|| {
                    let first = at / PAGE * PAGE;
                    let mut bytes = vec![0; PAGE.min(len - first)];
                    match file.read_exact_at(&mut bytes, start + first as u64) {
                        Ok(()) => bytes.into(),
                        Err(_) => Box::default(),
                    }
                });
                page.get(at % PAGE..).unwrap_or_default()
            }
        }
    }
}

/// Reads a part of a section.
#[derive(Clone, Debug)]
pub(crate) struct LazyReader {
    section: Arc<Section>,
    at: usize,
    end: usize,
    endian: RunTimeEndian,
}

impl LazyReader {
    /// Of a section; empty if there is none, or if it cannot be read.
    pub(crate) fn of(
        sections: &Sections,
        name: &str,
        contents: &Contents,
        endian: RunTimeEndian,
        number: u64,
    ) -> Self {
        let plain = sections.place(name);
        let plain = plain.filter(|place| place.format == CompressionFormat::None);
        let bytes = match (plain, contents.opened()) {
            (Some(place), Some(file)) => {
                let end = place.offset.checked_add(place.compressed_size);
                let len = usize::try_from(place.compressed_size).ok();
                // What is not there as a whole is taken for nothing, as in sections that are read at once.
                let len = len.filter(|_| end.is_some_and(|end| end <= contents.len()));
                let len = len.unwrap_or(0);
                Bytes::pages(file, place.offset, len)
            }
            _ => Bytes::Whole(sections.read(name, contents).unwrap_or_default()),
        };
        Self::new(Section { number, bytes }, endian)
    }

    /// Of nothing.
    pub(crate) fn empty_of(endian: RunTimeEndian) -> Self {
        let bytes = Bytes::Whole(Arc::default());
        Self::new(Section { number: 0, bytes }, endian)
    }

    /// Of the same section, without what has been read of it.
    pub(crate) fn anew(&self) -> Self {
        let Bytes::Pages {
            file, start, len, ..
        } = &self.section.bytes
        else {
            return self.clone();
        };
        let section = Section {
            number: self.section.number,
            bytes: Bytes::pages(file, *start, *len),
        };
        Self {
            section: Arc::new(section),
            ..*self
        }
    }

    /// Some of its bytes, which are not kept; none if not all of them are there.
    pub(crate) fn part(&self, offset: u64, len: u64) -> Option<Self> {
        let mut part = self.clone();
        part.skip(usize::try_from(offset).ok()?).ok()?;
        part.truncate(usize::try_from(len).ok()?).ok()?;
        let Bytes::Pages { file, start, .. } = &self.section.bytes else {
            return Some(part);
        };
        let mut bytes = vec![0; part.len()];
        let place = start.checked_add(part.at as u64)?;
        file.read_exact_at(&mut bytes, place).ok()?;
        let section = Section {
            number: self.section.number,
            bytes: Bytes::Whole(bytes.into()),
        };
        Some(Self::new(section, self.endian))
    }

    fn new(section: Section, endian: RunTimeEndian) -> Self {
        Self {
            end: section.len(),
            section: Arc::new(section),
            at: 0,
            endian,
        }
    }

    fn ended<T>(&self) -> Result<T> {
        Err(Error::UnexpectedEof(self.offset_id()))
    }
}

impl gimli::Reader for LazyReader {
    type Endian = RunTimeEndian;
    type Offset = usize;

    fn endian(&self) -> RunTimeEndian {
        self.endian
    }

    #[inline]
    fn len(&self) -> usize {
        self.end - self.at
    }

    fn empty(&mut self) {
        self.end = self.at;
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        if len > self.len() {
            return self.ended();
        }
        self.end = self.at + len;
        Ok(())
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.at.saturating_sub(base.at)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.section.number << 48 | self.at as u64)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let at = usize::try_from(id.0.checked_sub(self.section.number << 48)?).ok()?;
        (self.at..=self.end).contains(&at).then(|| at - self.at)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let mut at = self.at;
        while at < self.end {
            let bytes = self.section.at(at);
            let bytes = bytes.get(..self.end - at).unwrap_or(bytes);
            if let Some(found) = bytes.iter().position(|found| *found == byte) {
                return Ok(at + found - self.at);
            }
            if bytes.is_empty() {
                break;
            }
            at += bytes.len();
        }
        self.ended()
    }

    fn skip(&mut self, len: usize) -> Result<()> {
        if len > self.len() {
            return self.ended();
        }
        self.at += len;
        Ok(())
    }

    fn split(&mut self, len: usize) -> Result<Self> {
        let mut split = self.clone();
        split.truncate(len)?;
        self.at += len;
        Ok(split)
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        let bytes = self.section.at(self.at);
        if let Some(bytes) = bytes.get(..self.len()) {
            return Ok(bytes.into());
        }
        let mut copy = Vec::new();
        let mut rest = self.clone();
        while rest.at < rest.end {
            let bytes = rest.section.at(rest.at);
            let bytes = bytes.get(..rest.len()).unwrap_or(bytes);
            if bytes.is_empty() {
                return rest.ended();
            }
            copy.extend_from_slice(bytes);
            let len = bytes.len();
            rest.at += len;
        }
        Ok(copy.into())
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        match self.to_slice()? {
            Cow::Borrowed(bytes) => match str::from_utf8(bytes) {
                Ok(text) => Ok(text.into()),
                Err(_) => Err(Error::BadUtf8),
            },
            Cow::Owned(bytes) => match String::from_utf8(bytes) {
                Ok(text) => Ok(text.into()),
                Err(_) => Err(Error::BadUtf8),
            },
        }
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        Ok(match self.to_slice()? {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
            Cow::Owned(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
        })
    }

    #[inline]
    fn read_slice(&mut self, mut buf: &mut [u8]) -> Result<()> {
        if buf.len() > self.len() {
            return self.ended();
        }
        while !buf.is_empty() {
            let bytes = self.section.at(self.at);
            let len = bytes.len().min(buf.len());
            if len == 0 {
                return self.ended();
            }
            let (now, later) = buf.split_at_mut(len);
            now.copy_from_slice(&bytes[..len]);
            self.at += len;
            buf = later;
        }
        Ok(())
    }

    #[inline]
    fn read_u8(&mut self) -> Result<u8> {
        match self.section.at(self.at).first() {
            Some(byte) if self.at < self.end => {
                self.at += 1;
                Ok(*byte)
            }
            _ => self.ended(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::endian_of;
    use std::fs::{self, File};

    /// A section of several pages, read in pieces that lie across them, is the same as in memory.
    #[test]
    fn pages_meet() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("pages.c");
        let mut text = String::new();
        for number in 0..2000 {
            text +=
                &format!("int function_with_a_long_name_{number}(void) {{ return {number}; }}\n");
        }
        fs::write(&source, text + "int main(void) { return 0; }\n").expect("room");
        let program = folder.path().join("pages");
        if !cofi_test::compile(&source, &program, &["-g", "-gz=none"]) {
            return;
        }
        let whole = Contents::Whole(fs::read(&program).expect("a program").into());
        let pieces = Contents::of(File::open(&program).expect("a program")).expect("a file");
        let [whole, pages] = [&whole, &pieces].map(|contents| {
            let sections = Sections::of(contents).expect("ELF");
            LazyReader::of(&sections, ".debug_info", contents, endian_of(&sections), 1)
        });
        assert!(matches!(whole.section.bytes, Bytes::Whole(_)));
        assert!(matches!(pages.section.bytes, Bytes::Pages { .. }));
        assert!(pages.len() > 3 * PAGE, "{}", pages.len());
        assert_eq!(whole.len(), pages.len());
        for at in [0, PAGE - 3, 2 * PAGE - 1, pages.len() - 8] {
            let (mut one, mut other) = (whole.clone(), pages.clone());
            one.skip(at).expect("so many bytes");
            other.skip(at).expect("so many bytes");
            assert_eq!(one.to_slice(), other.to_slice());
            assert_eq!(one.find(0), other.find(0));
            assert_eq!(one.read_u64(), other.read_u64());
            assert_eq!(one.read_uleb128(), other.read_uleb128());
            assert_eq!(other.offset_from(&pages), one.offset_from(&whole));
        }
        let mut end = pages.clone();
        end.skip(pages.len() - 1).expect("so many bytes");
        assert!(end.clone().read_u16().is_err());
        assert!(end.clone().split(2).is_err() && end.clone().skip(2).is_err());
        assert!(end.read_u8().is_ok() && end.read_u8().is_err());
        for at in [0, PAGE as u64 - 3] {
            let one = whole.part(at, 9).expect("so many bytes");
            let other = pages.part(at, 9).expect("so many bytes");
            assert_eq!(one.to_slice(), other.to_slice());
            assert_eq!(other.len(), 9);
        }
        assert!(pages.part(pages.len() as u64 - 3, 4).is_none());
        assert_eq!(pages.anew().to_slice(), pages.to_slice());
        let mut part = pages.clone().split(5).expect("five bytes");
        assert!(part.read_u8_array::<[u8; 6]>().is_err());
        assert_eq!(part.lookup_offset_id(part.offset_id()), Some(0));
    }

    /// A file that was cut off since gives errors.
    #[test]
    fn a_file_that_changes_is_not_read_further() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("cut.c");
        fs::write(&source, "int main(void) { return 0; }\n").expect("room");
        let program = folder.path().join("cut");
        if !cofi_test::compile(&source, &program, &["-g", "-gz=none"]) {
            return;
        }
        let contents = Contents::of(File::open(&program).expect("a program")).expect("a file");
        let sections = Sections::of(&contents).expect("ELF");
        let mut info = LazyReader::of(&sections, ".debug_info", &contents, endian_of(&sections), 1);
        fs::write(&program, "short").expect("room");
        assert!(!info.is_empty());
        assert!(info.read_u32().is_err() && info.find(0).is_err() && info.to_slice().is_err());
    }
}
