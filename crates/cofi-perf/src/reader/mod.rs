//! Reads a perf.data file that somebody else holds in memory (or has mapped).
//!
//! Nothing is copied but lists of small things: payloads stay slices of the input, so memory stays bounded whatever a
//! size field claims.

mod attr;
mod body;
mod build_ids;
mod cursor;
mod fields;
mod info;
mod record;
mod sample;

pub use attr::Attr;
pub use body::{AuxFlags, Body, IdEntry, ShortClock};
pub use build_ids::BuildId;
pub use info::IntelPtInfo;
pub use record::{Record, SampleId};

use crate::constants::{Feature, RecordKind};
use crate::{Error, ErrorKind};
use attr::{ATTR_MIN, ids_of};
use cursor::Cursor;
use std::collections::HashMap;
use std::ops::Range;

const MAGIC: &[u8; 8] = b"PERFILE2";
/// Sizes of the file header: today's, and that of the pipe format.
const HEADER_SIZE: u64 = 104;
const PIPE_HEADER_SIZE: u64 = 16;

/// An opened file.
#[derive(Clone, Debug)]
pub struct File<'a> {
    bytes: &'a [u8],
    attrs: Vec<Attr>,
    /// Which of `attrs` an id names.
    attr_of_id: HashMap<u64, usize>,
    /// Whether all events' records are laid out alike, so that an unknown id does not matter.
    uniform: bool,
    data: Range<usize>,
    features: Vec<(Feature, Range<usize>)>,
    problems: Vec<Error>,
}

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
            return Err(Error::new(8, ErrorKind::PipeMode));
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
            bytes,
            attrs: Vec::new(),
            attr_of_id: HashMap::new(),
            uniform: true,
            data: data_range,
            features: Vec::new(),
            problems,
        };
        file.read_attrs(attr_size, attrs)?;
        if complete {
            file.read_features(data.0.saturating_add(data.1), &bitmap);
        }
        Ok(file)
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
            for id in &attr.ids {
                self.attr_of_id.entry(*id).or_insert(self.attrs.len());
            }
            self.attrs.push(attr);
        }
        let layout = |attr: &Attr| (attr.sample_type, attr.has_trailer());
        self.uniform = self
            .attrs
            .windows(2)
            .all(|pair| layout(&pair[0]) == layout(&pair[1]));
        Ok(())
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

    /// The file's events.
    #[must_use]
    pub fn attrs(&self) -> &[Attr] {
        &self.attrs
    }

    /// The event of the PMU with this number.
    #[must_use]
    pub fn attr_of_pmu(&self, kind: u32) -> Option<&Attr> {
        self.attrs.iter().find(|attr| attr.kind == kind)
    }

    /// The payload of a feature section.
    #[must_use]
    pub fn feature(&self, feature: Feature) -> Option<&'a [u8]> {
        self.bytes.get(self.feature_range(feature)?)
    }

    fn feature_range(&self, feature: Feature) -> Option<Range<usize>> {
        let (_, range) = self.features.iter().find(|(f, _)| *f == feature)?;
        Some(range.clone())
    }

    /// A feature section that is a text.
    #[must_use]
    pub fn feature_text(&self, feature: Feature) -> Option<&'a str> {
        let mut cursor = Cursor::new(self.feature(feature)?);
        let len = cursor.u32()? as usize;
        let bytes = cursor.take(len)?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..end]).ok()
    }

    /// What is wrong with the file as a whole.
    #[must_use]
    pub fn problems(&self) -> &[Error] {
        &self.problems
    }

    /// The records, in file order.
    #[must_use]
    pub fn records(&self) -> Records<'a, '_> {
        Records {
            file: self,
            at: self.data.start,
        }
    }

    /// The event by whose settings a kernel record is laid out; `None` in a file without events.
    ///
    /// As in perf: where the id stands follows from the first event, and the id 0 is that of records that perf made
    /// up itself, which are laid out as the first event's.
    fn attr_of(&self, offset: u64, kind: RecordKind, body: &[u8]) -> Result<Option<&Attr>, Error> {
        let Some(first) = self.attrs.first() else {
            return Ok(None);
        };
        if self.attrs.len() == 1 || (kind != RecordKind::SAMPLE && !first.has_trailer()) {
            return Ok(Some(first));
        }
        let place = if kind == RecordKind::SAMPLE {
            first.sample_type.sample_id_place()
        } else {
            let from_end = first.sample_type.trailer_id_place();
            from_end.and_then(|from_end| body.len().checked_sub(from_end))
        };
        let id = place
            .and_then(|place| Cursor::new(body.get(place..)?).u64())
            .unwrap_or(0);
        match self.attr_of_id.get(&id) {
            _ if id == 0 => Ok(Some(first)),
            Some(index) => Ok(self.attrs.get(*index)),
            None if self.uniform => Ok(Some(first)),
            None => Err(Error::new(offset, ErrorKind::UnknownEventId { kind, id })),
        }
    }
}

/// The records of a file, in file order. A record that cannot be read is an error item; where its size is damaged, the
/// rest of the data cannot be told apart, and that error is the last item.
#[derive(Clone, Debug)]
pub struct Records<'a, 'f> {
    file: &'f File<'a>,
    at: usize,
}

impl<'a> Iterator for Records<'a, '_> {
    type Item = Result<Record<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let end = self.file.data.end;
        let rest = self
            .file
            .bytes
            .get(self.at..end)
            .filter(|rest| !rest.is_empty())?;
        let at = self.at as u64;
        let mut cursor = Cursor::new(rest);
        let mut header = || Some((RecordKind(cursor.u32()?), cursor.u16()?, cursor.u16()?));
        let Some((kind, misc, size)) = header() else {
            self.at = end;
            let available = rest.len() as u64;
            let kind = ErrorKind::Truncated {
                what: "a record's header",
                needed: 8,
                available,
            };
            return Some(Err(Error::new(at, kind)));
        };
        if size < 8 {
            self.at = end;
            return Some(Err(Error::new(at, ErrorKind::RecordSize { kind, size })));
        }
        let Some(body) = rest.get(8..usize::from(size)) else {
            self.at = end;
            let available = rest.len() as u64;
            return Some(Err(Error::new(
                at,
                ErrorKind::RecordTruncated {
                    kind,
                    size,
                    available,
                },
            )));
        };
        self.at += usize::from(size);
        // Some records are followed by bytes that their size does not count. What is there of a payload that is cut
        // off is given out, with the size that it should have.
        let stated = match kind {
            RecordKind::AUXTRACE => Cursor::new(body).u64(),
            RecordKind::HEADER_TRACING_DATA => Cursor::new(body)
                .u32()
                .map(|size| u64::from(size).next_multiple_of(8)),
            _ => None,
        };
        let available = (end - self.at) as u64;
        let len = stated.unwrap_or(0).min(available) as usize;
        let payload = &self.file.bytes[self.at..self.at + len];
        self.at += len;
        let attr = match kind.is_kernel() {
            true => self.file.attr_of(at, kind, body),
            false => Ok(None),
        };
        Some(attr.and_then(|attr| record::parse(attr, at, kind, misc, body, payload)))
    }
}

impl std::iter::FusedIterator for Records<'_, '_> {}

#[cfg(test)]
mod kinds_tests;
#[cfg(test)]
mod record_tests;
#[cfg(test)]
#[path = "../../tests/support/mod.rs"]
mod support;
#[cfg(test)]
mod tests;
