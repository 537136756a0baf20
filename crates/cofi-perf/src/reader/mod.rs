//! Reads a perf.data file that somebody else holds in memory (or has mapped).
//!
//! Nothing is copied but lists of small things: payloads stay slices of the input, so memory stays bounded whatever a
//! size field claims.

mod attr;
mod body;
mod build_ids;
mod cursor;
mod fields;
mod header;
mod info;
mod record;
mod records;
mod sample;
mod unpack;

pub use attr::Attr;
pub use body::{AuxFlags, Body, IdEntry, ShortClock};
pub use build_ids::BuildIdEntry;
pub(crate) use info::{BY_COFI, INTEL_PT, RTIT};
pub use info::{RtitInfo, TraceInfo};
pub use record::{Record, SampleId};
pub use records::Records;

use crate::Error;
use crate::constants::Feature;
pub(crate) use cursor::Cursor;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

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
    /// The bodies of the HEADER_BUILD_ID records of a pipe.
    piped_build_ids: Vec<Range<usize>>,
    /// What compressed records hold. It takes the place of the first of them.
    unpacked: Arc<[u8]>,
    problems: Vec<Error>,
}

impl<'a> File<'a> {
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
        Records::new(self)
    }

    /// The same bytes, if they are a part of the input itself: payloads are, unless they were compressed. So they may be
    /// kept for longer than the file.
    #[must_use]
    pub fn part_of_input(&self, part: &[u8]) -> Option<&'a [u8]> {
        let start = part
            .as_ptr()
            .addr()
            .checked_sub(self.bytes.as_ptr().addr())?;
        let same = self.bytes.get(start..start.checked_add(part.len())?)?;
        std::ptr::eq(same, part).then_some(same)
    }
}

#[cfg(test)]
mod forms_tests;
#[cfg(test)]
mod kinds_tests;
#[cfg(test)]
mod record_tests;
#[cfg(test)]
#[path = "../../tests/support/mod.rs"]
mod support;
#[cfg(test)]
mod tests;
