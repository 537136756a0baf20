//! The BUILD_ID feature: which version of each binary ran.

use super::{Cursor, File};
use crate::constants::Misc;
use crate::{Error, ErrorKind, Feature, RecordKind};
use std::ops::Range;

/// The build id of a binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildIdEntry<'a> {
    /// The process, or `u32::MAX` for any.
    pub pid: u32,
    /// The build id: 20 bytes or fewer.
    pub id: &'a [u8],
    /// The binary.
    pub path: &'a [u8],
}

impl<'a> File<'a> {
    /// The binaries whose build ids perf collected. After an entry that cannot be read, which is an error item, there
    /// are no more in the section that has it.
    pub fn build_ids(&self) -> impl Iterator<Item = Result<BuildIdEntry<'a>, Error>> + use<'a, '_> {
        let section = self.feature_range(Feature::BUILD_ID);
        let ranges = section.into_iter().chain(self.piped_build_ids.clone());
        ranges.flat_map(|range| self.entries(range))
    }

    fn entries(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = Result<BuildIdEntry<'a>, Error>> + use<'a> {
        let mut at = range.start as u64;
        let mut rest = self.bytes.get(range).unwrap_or_default();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (size, entry) = match entry(rest) {
                Ok(read) => read,
                Err(kind) => {
                    rest = &[];
                    return Some(Err(Error::new(at, kind)));
                }
            };
            // The size was checked, and is not 0.
            rest = rest.get(size..).unwrap_or_default();
            at += size as u64;
            Some(Ok(entry))
        })
    }
}

/// Reads an entry, which looks like a record, and its size.
fn entry(bytes: &[u8]) -> Result<(usize, BuildIdEntry<'_>), ErrorKind> {
    let mut c = Cursor::new(bytes);
    let header = (c.u32(), c.u16(), c.u16());
    let (Some(_), Some(misc), Some(size)) = header else {
        return Err(ErrorKind::Truncated {
            what: "a build id",
            needed: 8,
            available: bytes.len() as u64,
        });
    };
    let kind = RecordKind::HEADER_BUILD_ID;
    let available = bytes.len() as u64;
    let body = bytes.get(8..usize::from(size).max(8));
    let body = body.ok_or(ErrorKind::RecordTruncated {
        kind,
        size,
        available,
    })?;
    let mut c = Cursor::new(body);
    let entry = fields(Misc(misc), &mut c).ok_or(ErrorKind::RecordShort { kind, size })?;
    Ok((usize::from(size), entry))
}

/// Reads the fields of an entry.
pub(super) fn fields<'a>(misc: Misc, c: &mut Cursor<'a>) -> Option<BuildIdEntry<'a>> {
    let pid = c.u32()?;
    // 20 bytes for the id, and one for its size in files that tell one.
    let id = c.take(24)?;
    let len = if misc.has(Misc::BUILD_ID_SIZE) {
        usize::from(*id.get(20)?).min(20)
    } else {
        20
    };
    let id = id.get(..len)?;
    let path = c.text();
    Some(BuildIdEntry { pid, id, path })
}
