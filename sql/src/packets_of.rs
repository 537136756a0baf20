//! The packets of a stream's parts, whichever format they have.

use cofi_flow::TraceFormat;
use cofi_packet::intel::{IntelPt, Repaired, SpoiltBy};
use cofi_packet::rtit::Rtit;
use cofi_packet::{Format, Packets, StreamItem, StreamOffset};

use crate::table::Unit;

/// Takes packets of any format.
pub(crate) trait TakePackets {
    /// The packets of a piece without a hole; of the part, those that begin before `end`.
    fn take<F: Format>(&mut self, packets: impl Iterator<Item = StreamItem<F>>, end: StreamOffset);
}

/// Gives a part's packets from `from` on to `taker`, piece by piece: no packet is made of two halves between which something is missing.
pub(crate) fn packets_of(unit: &Unit, from: StreamOffset, taker: &mut impl TakePackets) {
    let Some(stream) = unit.stream() else { return };
    let config = unit.recording.session().flow_config();
    let by = SpoiltBy {
        skd007: config.errata.skd007,
        skz84: config.errata.skz84,
    };
    for part in stream.parts() {
        let start = part.start.max(from);
        let end = part.end.min(unit.range.end);
        if start >= end {
            continue;
        }
        let upto = usize::try_from(part.end.0).unwrap_or(usize::MAX);
        let bytes = stream.bytes().get(..upto).unwrap_or(stream.bytes());
        match config.format {
            TraceFormat::IntelPt => {
                taker.take::<IntelPt>(Repaired::starting_at(bytes, start, by), end);
            }
            TraceFormat::Rtit(rtit) => {
                let packets = Packets::<Rtit>::starting_at(bytes, start);
                taker.take::<Rtit>(packets.in_context(rtit.cycles), end);
            }
        }
    }
}
