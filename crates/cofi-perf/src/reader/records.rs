//! Records, one after the other.

use super::{Attr, Cursor, File, Record, record};
use crate::constants::RecordKind;
use crate::{Error, ErrorKind};
use std::ops::Range;

/// Where a record's parts are.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) at: usize,
    pub(super) kind: RecordKind,
    pub(super) misc: u16,
    pub(super) body: Range<usize>,
    /// What follows the record without being counted in its size, as far as it is there.
    pub(super) payload: Range<usize>,
}

/// Goes from record to record.
#[derive(Clone, Debug)]
pub(super) struct Walk<'b> {
    bytes: &'b [u8],
    at: usize,
    end: usize,
}

impl<'b> Walk<'b> {
    /// The records in a part of `bytes`.
    pub(super) fn new(bytes: &'b [u8], range: Range<usize>) -> Self {
        Self {
            bytes,
            at: range.start,
            end: range.end,
        }
    }

    fn error(&mut self, at: usize, kind: ErrorKind) -> Option<Result<Found, Error>> {
        self.at = self.end;
        Some(Err(Error::new(at as u64, kind)))
    }

    /// The next record. After an error there are no more.
    pub(super) fn next(&mut self) -> Option<Result<Found, Error>> {
        let at = self.at;
        let rest = self.bytes.get(at..self.end)?;
        if rest.is_empty() {
            return None;
        }
        let available = rest.len() as u64;
        let mut cursor = Cursor::new(rest);
        let mut header = || Some((RecordKind(cursor.u32()?), cursor.u16()?, cursor.u16()?));
        let Some((kind, misc, size)) = header() else {
            let kind = ErrorKind::Truncated {
                what: "a record's header",
                needed: 8,
                available,
            };
            return self.error(at, kind);
        };
        if size < 8 {
            return self.error(at, ErrorKind::RecordSize { kind, size });
        }
        let Some(body) = rest.get(8..usize::from(size)) else {
            let kind = ErrorKind::RecordTruncated {
                kind,
                size,
                available,
            };
            return self.error(at, kind);
        };
        let end = at + usize::from(size);
        // What is there of a payload that is cut off is given out, with the size that it should have.
        let stated = match kind {
            RecordKind::AUXTRACE => Cursor::new(body).u64(),
            RecordKind::HEADER_TRACING_DATA => Cursor::new(body)
                .u32()
                .map(|size| u64::from(size).next_multiple_of(8)),
            _ => None,
        };
        let len = stated.unwrap_or(0).min((self.end - end) as u64) as usize;
        self.at = end + len;
        Some(Ok(Found {
            at,
            kind,
            misc,
            body: at + 8..end,
            payload: end..end + len,
        }))
    }
}

/// The records of a file, in file order. A record that cannot be read is an error item; where its size is damaged, the
/// rest of the data cannot be told apart, and that error is the last item.
///
/// What compressed records hold takes the place of the first of them, and has its offset.
#[derive(Clone, Debug)]
pub struct Records<'a, 'f> {
    file: &'f File<'a>,
    walk: Walk<'a>,
    /// Within what compressed records hold, and where the first of them stands.
    unpacked: Option<(Walk<'f>, usize)>,
    /// There was a compressed record.
    opened: bool,
}

impl<'a, 'f> Records<'a, 'f> {
    pub(super) fn new(file: &'f File<'a>) -> Self {
        Self {
            file,
            walk: Walk::new(file.bytes, file.data.clone()),
            unpacked: None,
            opened: false,
        }
    }

    fn read(&self, found: &Found, bytes: &'f [u8]) -> Result<Record<'f>, Error> {
        let Found { at, kind, misc, .. } = *found;
        let (body, payload) = (&bytes[found.body.clone()], &bytes[found.payload.clone()]);
        let attr = if kind.is_kernel() {
            self.file.attr_of(at as u64, kind, body)?
        } else {
            None
        };
        record::parse(attr, at as u64, kind, misc, body, payload)
    }
}

impl<'a, 'f> Iterator for Records<'a, 'f> {
    type Item = Result<Record<'f>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some((walk, at)) = &mut self.unpacked {
            let at = *at;
            match walk.next() {
                Some(found) => {
                    let read = found.and_then(|found| self.read(&found, &self.file.unpacked));
                    let place = |mut record: Record<'f>| {
                        record.offset = at as u64;
                        record
                    };
                    return Some(read.map(place).map_err(|mut error| {
                        error.offset = at as u64;
                        error
                    }));
                }
                None => self.unpacked = None,
            }
        }
        let found = match self.walk.next()? {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        let compressed = [RecordKind::COMPRESSED, RecordKind::COMPRESSED2];
        if compressed.contains(&found.kind) && !std::mem::replace(&mut self.opened, true) {
            let unpacked = &self.file.unpacked;
            self.unpacked = Some((Walk::new(unpacked, 0..unpacked.len()), found.at));
        }
        Some(self.read(&found, self.file.bytes))
    }
}

impl std::iter::FusedIterator for Records<'_, '_> {}

impl File<'_> {
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
