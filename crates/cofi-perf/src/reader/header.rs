//! The beginning of a file, in either of its forms: with a header and sections, or as a pipe carries it.

use super::attr::{ATTR_MIN, ids_of};
use super::records::Walk;
use super::{Attr, Cursor, File, unpack};
use crate::constants::{Feature, RecordKind, SampleType};
use crate::{Error, ErrorKind};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

pub(super) const MAGIC: &[u8; 8] = b"PERFILE2";
/// Sizes of the file header: today's, and that of the pipe format.
const HEADER_SIZE: u64 = 104;
const PIPE_HEADER_SIZE: u64 = 16;

/// A section: offset and size, as the file states them.
fn section(cursor: &mut Cursor<'_>) -> Option<(u64, u64)> {
    Some((cursor.u64()?, cursor.u64()?))
}

/// The part of a section that lies inside the file.
fn inside(bytes: &[u8], (offset, size): (u64, u64)) -> Range<usize> {
    let len = bytes.len() as u64;
    let start = offset.min(len);
    let end = offset.saturating_add(size).min(len);
    start as usize..end as usize
}

impl<'a> File<'a> {
    /// Reads header, events and the table of features.
    ///
    /// # Errors
    /// When this is no perf.data file, one of an unsupported variant, or one whose header is damaged beyond use. A
    /// file that is merely cut off is read as far as it goes: [`Self::problems`] tells.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut cursor = Cursor::new(bytes);
        let truncated = |needed| {
            let available = bytes.len() as u64;
            Error::new(
                0,
                ErrorKind::Truncated {
                    what: "the file header",
                    needed,
                    available,
                },
            )
        };
        let magic: [u8; 8] = cursor.array().ok_or_else(|| truncated(HEADER_SIZE))?;
        match &magic {
            MAGIC => {}
            b"2ELIFREP" => return Err(Error::new(0, ErrorKind::BigEndian)),
            b"PERFFILE" | b"ELIFFREP" => return Err(Error::new(0, ErrorKind::OldFormat)),
            _ => return Err(Error::new(0, ErrorKind::NotPerfData { magic })),
        }
        let size = cursor.u64().ok_or_else(|| truncated(HEADER_SIZE))?;
        if size == PIPE_HEADER_SIZE {
            return Ok(Self::of_pipe(bytes));
        }
        if size < HEADER_SIZE {
            return Err(Error::new(8, ErrorKind::HeaderSize { size }));
        }
        let mut header = || {
            let attr_size = cursor.u64()?;
            let attrs = section(&mut cursor)?;
            let data = section(&mut cursor)?;
            let _event_types = section(&mut cursor)?;
            let bitmap: [u64; 4] = [cursor.u64()?, cursor.u64()?, cursor.u64()?, cursor.u64()?];
            Some((attr_size, attrs, data, bitmap))
        };
        let (attr_size, attrs, data, bitmap) = header().ok_or_else(|| truncated(HEADER_SIZE))?;
        let mut problems = Vec::new();
        // perf leaves the size at 0 when it dies before it can complete the header; then there are no features.
        let (data_size, complete) = if data.1 == 0 {
            (u64::MAX, false)
        } else {
            (data.1, true)
        };
        let data_range = inside(bytes, (data.0, data_size));
        if complete && (data_range.len() as u64) < data.1 {
            let available = data_range.len() as u64;
            problems.push(Error::new(
                data.0,
                ErrorKind::DataTruncated {
                    stated: data.1,
                    available,
                },
            ));
        }
        // A recorder that keeps the size up to date, as this crate's, leaves features and last records out.
        let unread = (bytes.len() - data_range.end) as u64;
        if !complete || (bitmap == [0; 4] && unread != 0) {
            let at = data_range.end as u64;
            problems.push(Error::new(at, ErrorKind::Unfinished { unread }));
        }
        let mut file = Self {
            data: data_range,
            problems,
            ..Self::empty(bytes)
        };
        file.read_attrs(attr_size, attrs)?;
        if complete {
            file.read_features(data.0.saturating_add(data.1), &bitmap);
        }
        file.unpack();
        Ok(file)
    }

    /// Records without a file around them: what a buffer of one event holds, as the kernel fills it. `sample_type` tells how
    /// they are laid out; `sample_id_all` is taken to be on.
    #[must_use]
    pub fn of_records(bytes: &'a [u8], sample_type: SampleType) -> Self {
        let mut file = Self {
            data: 0..bytes.len(),
            ..Self::empty(bytes)
        };
        file.add_attr(Attr::of_layout(sample_type));
        file
    }

    /// Without anything in it.
    fn empty(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            attrs: Vec::new(),
            attr_of_id: HashMap::new(),
            uniform: true,
            data: 0..0,
            features: Vec::new(),
            piped_build_ids: Vec::new(),
            unpacked: Arc::default(),
            problems: Vec::new(),
        }
    }

    /// Reads what a pipe carries: events and features are records among the others.
    fn of_pipe(bytes: &'a [u8]) -> Self {
        let start = (PIPE_HEADER_SIZE as usize).min(bytes.len());
        let mut file = Self {
            data: start..bytes.len(),
            ..Self::empty(bytes)
        };
        let mut walk = Walk::new(bytes, file.data.clone());
        while let Some(Ok(found)) = walk.next() {
            let body = &bytes[found.body.clone()];
            match found.kind {
                RecordKind::HEADER_ATTR => match Attr::of_record(body) {
                    Some(attr) => file.add_attr(attr),
                    None => {
                        let size = body.len() as u16 + 8;
                        let kind = ErrorKind::RecordShort {
                            kind: found.kind,
                            size,
                        };
                        file.problems.push(Error::new(found.at as u64, kind));
                    }
                },
                RecordKind::HEADER_FEATURE => {
                    let number = Cursor::new(body).u64().unwrap_or(u64::MAX);
                    // perf ends the list with the first number that is none.
                    if let (Ok(number @ 0..256), Some(start)) =
                        (u32::try_from(number), found.body.start.checked_add(8))
                    {
                        file.features.push((Feature(number), start..found.body.end));
                    }
                }
                RecordKind::HEADER_BUILD_ID => {
                    file.piped_build_ids.push(found.at..found.body.end);
                }
                _ => {}
            }
        }
        file.judge_layouts();
        file.unpack();
        file
    }

    fn add_attr(&mut self, attr: Attr) {
        for id in &attr.ids {
            self.attr_of_id.entry(*id).or_insert(self.attrs.len());
        }
        self.attrs.push(attr);
    }

    /// Takes out what compressed records hold.
    fn unpack(&mut self) {
        let mut walk = Walk::new(self.bytes, self.data.clone());
        let mut parts = Vec::new();
        while let Some(Ok(found)) = walk.next() {
            if let Some(part) = unpack::compressed(found.kind, &self.bytes[found.body.clone()]) {
                parts.push((found.at as u64, part));
            }
        }
        if !parts.is_empty() {
            let (unpacked, problem) = unpack::unpack(&parts);
            self.unpacked = unpacked.into();
            self.problems.extend(problem);
        }
    }

    fn read_attrs(&mut self, entry: u64, attrs: (u64, u64)) -> Result<(), Error> {
        let range = inside(self.bytes, attrs);
        if (range.len() as u64) < attrs.1 {
            let file_size = self.bytes.len() as u64;
            let kind = ErrorKind::SectionOutside {
                section: "attribute",
                size: attrs.1,
                file_size,
            };
            return Err(Error::new(attrs.0, kind));
        }
        if entry < ATTR_MIN + 16 {
            return Err(Error::new(
                attrs.0,
                ErrorKind::AttrSize { size: entry, entry },
            ));
        }
        let mut count = 0;
        for (index, raw) in self.bytes[range.clone()]
            .chunks_exact(entry as usize)
            .enumerate()
        {
            let at = (range.start + index * entry as usize) as u64;
            let (attr, tail) = raw.split_at(raw.len() - 16);
            let (Some(mut attr), Some(size)) = (Attr::of(attr), Attr::stated_size(attr)) else {
                continue;
            };
            if size < ATTR_MIN || size > entry - 16 {
                return Err(Error::new(at + 4, ErrorKind::AttrSize { size, entry }));
            }
            let ids = section(&mut Cursor::new(tail)).unwrap_or((0, 0));
            count += ids.1 / 8;
            if count > self.bytes.len() as u64 / 8 {
                return Err(Error::new(at, ErrorKind::TooManyIds { count }));
            }
            attr.ids = ids_of(&self.bytes[inside(self.bytes, ids)]);
            self.add_attr(attr);
        }
        self.judge_layouts();
        Ok(())
    }

    /// Whether it matters which event a record belongs to.
    fn judge_layouts(&mut self) {
        let layout = |attr: &Attr| (attr.sample_type, attr.has_trailer());
        self.uniform = self
            .attrs
            .windows(2)
            .all(|pair| layout(&pair[0]) == layout(&pair[1]));
    }

    fn read_features(&mut self, table: u64, bitmap: &[u64; 4]) {
        let mut cursor = Cursor::new(&self.bytes[inside(self.bytes, (table, u64::MAX))]);
        for bit in (0..256_u32).filter(|bit| bitmap[*bit as usize / 64] >> (bit % 64) & 1 == 1) {
            let Some(stated) = section(&mut cursor) else {
                let available = self.bytes.len() as u64 - table.min(self.bytes.len() as u64);
                let kind = ErrorKind::Truncated {
                    what: "the table of features",
                    needed: 16,
                    available,
                };
                self.problems.push(Error::new(table, kind));
                return;
            };
            let range = inside(self.bytes, stated);
            if (range.len() as u64) < stated.1 {
                let file_size = self.bytes.len() as u64;
                let kind = ErrorKind::SectionOutside {
                    section: "feature",
                    size: stated.1,
                    file_size,
                };
                self.problems.push(Error::new(stated.0, kind));
            }
            self.features.push((Feature(bit), range));
        }
    }
}
