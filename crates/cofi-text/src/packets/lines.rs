//! The lines of whole streams.

use super::filter::Filter;
use super::known::Known;
use super::objects;
use super::text::Text;
use crate::json::Line;
use cofi_packet::intel::SpoiltBy;
use cofi_packet::{Listing, StreamItem, StreamOffset, extent};
use std::io::{self, Write};
use std::ops::Range;

/// So much text is written at once.
const FULL: usize = 1 << 16;

/// A stream to be listed.
#[derive(Clone, Debug)]
pub struct PacketStream<'b> {
    /// Its bytes, from offset 0 on.
    pub bytes: &'b [u8],
    /// What there is of it: between two parts something is missing, so that no packet is made of two halves.
    pub parts: Vec<Range<StreamOffset>>,
    /// Which errata have spoilt packets (Intel PT).
    pub spoilt_by: SpoiltBy,
}

impl<'b> PacketStream<'b> {
    /// All items. `outside` is what must be known beside the bytes where a stream begins.
    pub(super) fn items<F: Known>(
        &self,
        outside: F::Context,
    ) -> impl Iterator<Item = StreamItem<F>> + use<'_, 'b, F> {
        let bytes = self.bytes;
        self.parts.iter().flat_map(move |part| {
            let upto = usize::try_from(part.end.0).unwrap_or(usize::MAX);
            let bytes = bytes.get(..upto).unwrap_or(bytes);
            F::packets(bytes, part.start, outside, self.spoilt_by)
        })
    }
}

/// Writes the lines of packets that are wanted.
#[derive(Debug)]
pub struct PacketLines<'l> {
    /// Which packets are wanted.
    pub filter: &'l Filter,
    /// Items before this offset are not wanted.
    pub from: u64,
    /// So many items at most.
    pub most: u64,
    /// The members that each object ends with, if the lines are JSON.
    pub json: Option<&'l [u8]>,
    /// How lines look that are not.
    pub text: &'l mut Text,
    /// Whether there were errors, wanted or not.
    pub errors: bool,
    /// How many errors were not wanted.
    pub hidden: u64,
}

impl PacketLines<'_> {
    // (Within a caller it would be compiled as that is.)
    #[inline(never)]
    pub(super) fn write<F: Known>(
        &mut self,
        stream: &PacketStream<'_>,
        outside: F::Context,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mut left = self.most;
        let mut listing = Listing::<F>::new();
        let mut memory = F::Memory::default();
        let mut line = Line::default();
        let mut full = Vec::with_capacity(2 * FULL);
        for item in stream.items::<F>(outside) {
            if left == 0 {
                break;
            }
            // What is not written has its effect on what comes after it all the same.
            let listed = listing.item(&item);
            let name = listed
                .as_ref()
                .and_then(|listed| F::name(&mut memory, listed.packet()));
            let is_wanted = listed
                .as_ref()
                .is_some_and(|listed| self.filter.has::<F>(listed.raw().kind()))
                || item.is_err() && self.filter.has_errors();
            let is_shown = is_wanted && extent(&item).0.0 >= self.from;
            if item.is_err() {
                self.errors = true;
                self.hidden += u64::from(!is_shown);
            }
            if !is_shown {
                continue;
            }
            left -= 1;
            if let Some(members) = self.json {
                objects::describe(&item, listed.as_ref(), name, &mut line);
                full.extend_from_slice(line.splice(members).end());
            } else {
                let bytes = stream.bytes;
                self.text
                    .item(&item, listed.as_ref(), name, bytes, &mut full)?;
            }
            if full.len() >= FULL {
                out.write_all(&full)?;
                full.clear();
            }
        }
        out.write_all(&full)
    }
}
