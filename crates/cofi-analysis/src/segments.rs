//! Where a stream may be cut into segments that are decoded apart.

use std::num::NonZeroUsize;
use std::ops::Range;

use cofi_flow::TraceFormat;
use cofi_packet::StreamOffset;
use cofi_packet::intel::{PSB, Packet, Packets, sync_forward};
use cofi_session::{Session, Stream};

/// With what PSB a segment may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentStart {
    /// One whose PSB+ means the same to who begins there and to who has read what stands before.
    Plain,
    /// Such a one behind which tracing is on.
    Traced,
}

/// What a PSB+ tells of tracing, and which packet follows it.
fn start_of(bytes: &[u8], psb: usize) -> Option<SegmentStart> {
    let (mut told, mut ended) = (false, false);
    for item in Packets::starting_at(bytes, StreamOffset(psb as u64)).skip(1) {
        match item.map(|located| located.packet()) {
            Ok(Packet::PsbEnd) => ended = true,
            Ok(Packet::Fup { .. }) if !ended => told = true,
            // A PSB+ that tells an address but is followed by TIP.PGE contradicts itself: to whom tracing is on already, that is an error.
            Ok(Packet::TipPge { .. }) if told || !ended => return None,
            Ok(
                Packet::TipPge { .. }
                | Packet::Tnt8 { .. }
                | Packet::Tnt64 { .. }
                | Packet::Tip { .. }
                | Packet::TipPgd { .. }
                | Packet::Fup { .. }
                | Packet::Psb,
            ) => break,
            Ok(Packet::Ovf) | Err(_) => return None,
            Ok(_) => {}
        }
    }
    match (ended, told) {
        (true, true) => Some(SegmentStart::Traced),
        (true, false) => Some(SegmentStart::Plain),
        (false, _) => None,
    }
}

/// Whether a flow of a stream ended with the segment, whose last packet used is at `last`: no later than the PSB+ at `end`. Damage may hide
/// the PSB there, as part of what is taken for another packet: then the flow went on to the next.
#[must_use]
pub fn ended_with_segment(stream: &Stream<'_>, last: StreamOffset, end: StreamOffset) -> bool {
    if last < end {
        return true;
    }
    let mut packets = Packets::starting_at(stream.bytes(), end).map_while(Result::ok);
    let psb_end = packets.find(|located| located.packet() == Packet::PsbEnd);
    psb_end.is_some_and(|psb_end| last <= psb_end.offset)
}

/// Cuts a stream at PSBs into segments of about `size` bytes, each of which begins as `start` says, but for the first.
///
/// Of Intel PT nothing needs to be known across a PSB (33.3.7). A PSB of RTIT tells nothing of where control is: such a stream is one
/// segment. Where there are seals the cuts are theirs, so that each is of one segment.
#[must_use]
pub fn segments(
    session: &Session<'_>,
    stream: &Stream<'_>,
    size: NonZeroUsize,
    start: SegmentStart,
) -> Vec<Range<StreamOffset>> {
    let bytes = stream.bytes();
    let mut cuts = vec![0];
    let mut from = match session.flow_config().format {
        TraceFormat::IntelPt => size.get(),
        TraceFormat::Rtit(_) => bytes.len(),
    };
    let seals = stream.seals();
    let next_cut = |from| match seals {
        [] => sync_forward(bytes, from),
        seals => {
            let next = seals.partition_point(|seal| seal.end.0 < from as u64);
            // Some end where tracing was off for a moment, or with the stream.
            let mut ends = seals.iter().skip(next).map(|seal| seal.end.0 as usize);
            ends.find(|end| bytes.get(*end..).is_some_and(|rest| rest.starts_with(&PSB)))
        }
    };
    while let Some(psb) = next_cut(from) {
        let found = start_of(bytes, psb);
        if found.is_some_and(|found| found == start || start == SegmentStart::Plain) {
            cuts.push(psb);
            from = psb.saturating_add(size.get());
        } else {
            from = psb + 1;
        }
    }
    let ends = cuts.iter().skip(1).map(|cut| *cut as u64);
    cuts.iter()
        .zip(ends.chain([u64::MAX]))
        .map(|(start, end)| StreamOffset(*start as u64)..StreamOffset(end))
        .collect()
}
