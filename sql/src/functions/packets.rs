//! The packets of streams, one by one.

use std::sync::Arc;

use cofi_packet::{Format, Listing, PacketKind, StreamItem, StreamOffset, extent};

use super::parts::{PartClock, Window, cut, lead, units};
use crate::columns::{Column, number, text};
use crate::limits::Limits;
use crate::packets_of::{TakePackets, packets_of};
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
        let Some(index) = unit.stream else { return };
        let start = lead(unit, unit.recording.parts(index));
        let is_exact = list(unit, start, out);
        if !is_exact {
            list(unit, unit.range.start, out);
        }
    }

    fn cut(&self, unit: Unit, pieces: usize) -> Vec<Unit> {
        cut(unit, pieces)
    }
}

/// Lists a unit's packets, from `start` on. False if nothing was put out, as what stands before the unit's rows forms no packets, and so might have
/// begun before `start`.
fn list(unit: &Unit, start: StreamOffset, out: &mut Outlet) -> bool {
    let mut list = List {
        unit,
        start,
        window: Window::new(unit, 0),
        is_lost: false,
        out,
    };
    packets_of(unit, start, &mut list);
    !list.is_lost
}

/// Puts out packets.
struct List<'a> {
    unit: &'a Unit,
    start: StreamOffset,
    window: Window,
    is_lost: bool,
    out: &'a mut Outlet,
}

impl TakePackets for List<'_> {
    fn take<F: Format>(&mut self, packets: impl Iterator<Item = StreamItem<F>>, end: StreamOffset) {
        let Self {
            unit,
            start,
            window,
            is_lost,
            out,
        } = self;
        let (Some(index), Some(stream)) = (unit.stream, unit.stream()) else {
            return;
        };
        let mut listing = Listing::<F>::new();
        let mut clock = PartClock::new(unit, stream, unit.recording.parts(index), *start);
        for item in packets {
            let (offset, size) = extent(&item);
            if offset >= end || out.is_closed() || window.is_over() || *is_lost {
                return;
            }
            let listed = listing.item(&item);
            let tsc = clock.at(offset);
            let is_taken = window.takes(offset);
            *is_lost = item.is_err() && !window.has_begun() && *start != unit.range.start;
            if !is_taken {
                continue;
            }
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
}
