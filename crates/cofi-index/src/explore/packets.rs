//! The packets around a byte of a stream.

use std::collections::VecDeque;

use cofi_flow::TraceFormat;
use cofi_packet::intel::{self, IntelPt};
use cofi_packet::rtit::{self, Rtit};
use cofi_packet::{Format, Listing, StreamItem, StreamOffset};

use super::Explorer;

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketInfo {
    /// Where it begins.
    pub offset: u64,
    /// How many bytes it has.
    pub len: u64,
    /// It in the text form that `cofi dump` prints, or what is wrong with bytes that form none.
    pub text: String,
    /// The bytes form no packet, or it stands where it may not.
    pub is_error: bool,
}

impl Explorer<'_> {
    /// The packets of a row around a byte: at most so many that begin before it, and so many others.
    pub fn packets(
        &mut self,
        row: usize,
        offset: u64,
        before: usize,
        behind: usize,
    ) -> Vec<PacketInfo> {
        let index = self.index.clone();
        let Some((known, stream)) = index.rows.get(row).zip(self.stream(row)) else {
            return Vec::new();
        };
        let next = known.chunks.partition_point(|chunk| chunk.offset <= offset);
        // Addresses are told against those before, from a PSB on.
        let start = next.checked_sub(1).and_then(|n| known.chunks.get(n));
        let start = StreamOffset(start.map_or(0, |chunk| chunk.offset));
        let bytes = stream.bytes();
        match self.session.flow_config().format {
            TraceFormat::IntelPt => {
                let packets = intel::Packets::starting_at(bytes, start);
                around::<IntelPt>(packets, offset, before, behind)
            }
            TraceFormat::Rtit(config) => {
                let packets = rtit::Packets::starting_at(bytes, start).in_context(config.cycles);
                around::<Rtit>(packets, offset, before, behind)
            }
        }
    }
}

fn around<F: Format>(
    packets: impl Iterator<Item = StreamItem<F>>,
    offset: u64,
    before: usize,
    behind: usize,
) -> Vec<PacketInfo>
where
    cofi_packet::Listed<F>: std::fmt::Display,
{
    let mut listing = Listing::<F>::new();
    let mut found = VecDeque::new();
    let mut left = behind;
    for item in packets {
        let listed = listing.item(&item);
        let (at, len) = match &item {
            Ok(located) => (located.offset.0, located.raw.bytes().len() as u64),
            Err(error) => (error.offset.0, error.size as u64),
        };
        let text = match (&item, listed) {
            (Ok(_), Some(listed)) => listed.to_string(),
            (Err(error), Some(listed)) => format!("{listed}: {}", error.error),
            (Err(error), None) => error.error.to_string(),
            (Ok(_), None) => continue,
        };
        found.push_back(PacketInfo {
            offset: at,
            len,
            text,
            is_error: item.is_err(),
        });
        if at < offset {
            if found.len() > before {
                found.pop_front();
            }
        } else {
            left = left.saturating_sub(1);
            if left == 0 {
                break;
            }
        }
    }
    found.into()
}
