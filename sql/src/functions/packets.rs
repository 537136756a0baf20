//! The packets of streams, one by one.

use std::sync::Arc;

use cofi_flow::TraceFormat;
use cofi_packet::intel::{IntelPt, Repaired, SpoiltBy};
use cofi_packet::rtit::Rtit;
use cofi_packet::{Format, Item, Listing, PacketKind, StreamOffset, extent};

use super::parts::{PartClock, units};
use crate::columns::{Column, number, text};
use crate::limits::Limits;
use crate::recording::Recording;
use crate::table::{Outlet, Table, Unit, Units};
use crate::tables::{CPU, OFFSET, RECORDING, TID, head};

/// A row for each packet.
#[derive(Debug)]
pub(super) struct Packets;

const COLUMNS: &[Column] = &[
    RECORDING,
    TID,
    CPU,
    OFFSET,
    number("size", "its bytes"),
    text(
        "packet",
        "the packet: `psb`, `tnt.8`, `tip`, …; NULL of bytes that form none",
    ),
    text("text", "the packet with its fields, as `cofi asm` takes it"),
    text(
        "error",
        "what is wrong, in a sentence; NULL of a packet that may stand there",
    ),
    number(
        "tsc",
        "the time when it was made, in ticks of the time stamp counter, as far as the packets of its part tell",
    ),
    number(
        "time_ns",
        "the same in perf's nanoseconds; NULL if the file does not say how to convert",
    ),
];

impl Table for Packets {
    fn name(&self) -> &'static str {
        "packets"
    }

    fn about(&self) -> &'static str {
        "One row for each packet, as `cofi dump` lists them. No code is read."
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn units(&self, recording: &Arc<Recording>, limits: &Limits) -> Units {
        units(recording, limits)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let Some(stream) = unit.stream() else { return };
        let config = unit.recording.session().flow_config();
        let by = SpoiltBy {
            skd007: config.errata.skd007,
            skz84: config.errata.skz84,
        };
        // No packet is made of two halves between which something is missing.
        for part in stream.parts() {
            let start = part.start.max(unit.range.start);
            let end = part.end.min(unit.range.end);
            let upto = usize::try_from(part.end.0).unwrap_or(usize::MAX);
            let bytes = stream.bytes().get(..upto).unwrap_or(stream.bytes());
            if start >= end {
                continue;
            }
            match config.format {
                TraceFormat::IntelPt => {
                    let packets = Repaired::starting_at(bytes, start, by);
                    list::<IntelPt>(packets, end, unit, out);
                }
                TraceFormat::Rtit(rtit) => {
                    let packets = cofi_packet::Packets::<Rtit>::starting_at(bytes, start);
                    list::<Rtit>(packets.in_context(rtit.cycles), end, unit, out);
                }
            }
        }
    }
}

/// Puts out the packets that begin before `end`.
fn list<F: Format>(
    packets: impl Iterator<Item = Item<F>>,
    end: StreamOffset,
    unit: &Unit,
    out: &mut Outlet,
) {
    let (Some(index), Some(stream)) = (unit.stream, unit.stream()) else {
        return;
    };
    let mut listing = Listing::<F>::new();
    let mut clock = PartClock::new(unit, stream, unit.recording.parts(index));
    for item in packets {
        let (offset, size) = extent(&item);
        if offset >= end || out.is_closed() {
            return;
        }
        let listed = listing.item(&item);
        let tsc = clock.at(offset);
        let key = stream.key();
        out.put(|row| {
            head(row, unit, key, key.tid().unwrap_or(0))
                .number(offset.0)
                .number(size as u64)
                .text(listed.as_ref().map(|listed| listed.raw().kind().name()));
            let wanted = listed.as_ref().filter(|_| row.wants_next());
            row.text(wanted.map(ToString::to_string).as_deref());
            let error = item.as_ref().err().map(|error| error.error.to_string());
            row.text(error.as_deref())
                .number(tsc.map(|tsc| tsc.0))
                .number(unit.recording.nanoseconds(tsc));
        });
    }
}
