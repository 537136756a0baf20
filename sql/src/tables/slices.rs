//! Streams in slices: how much ran from one PSB to another.

use std::sync::Arc;

use cofi_analysis::StreamClock;
use cofi_packet::StreamOffset;
use cofi_session::StreamKey;

use super::{CPU, RECORDING, TID, head};
use crate::columns::{Column, number};
use crate::limits::Limits;
use crate::recording::Recording;
use crate::table::{Outlet, Table, Unit, Units};

/// A row for each slice.
#[derive(Debug)]
pub(super) struct Slices;

const COLUMNS: &[Column] = &[
    RECORDING,
    TID,
    CPU,
    number("slice", "its number in the stream, from 0 on"),
    number(
        "begin_offset",
        "the byte of the stream at which it begins, with a PSB",
    ),
    number("end_offset", "the byte behind its end"),
    number(
        "begin_tsc",
        "the first time that packets of it tell, in ticks of the time stamp counter",
    ),
    number("end_tsc", "the last one"),
    number(
        "begin_ns",
        "the first one in perf's nanoseconds; NULL if the file does not say how to convert",
    ),
    number("end_ns", "the last one"),
    number(
        "instructions",
        "instructions of which the last packet is in it",
    ),
    number(
        "cycles",
        "core cycles of which its packets tell; NULL without CYC packets",
    ),
];

impl Table for Slices {
    fn name(&self) -> &'static str {
        "slices"
    }

    fn about(&self) -> &'static str {
        "One row for each slice of a stream: from a PSB to another, 4 KiB of packets at least and 4,096 slices of a stream at most; of a processor's stream all of it, and `tid` is NULL. Streams are decoded for it."
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn units(&self, recording: &Arc<Recording>, limits: &Limits) -> Units {
        Units::streams(recording, limits)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let (Some(index), Some(stream)) = (unit.stream, unit.stream()) else {
            return;
        };
        let session = unit.recording.session();
        let parts = unit.recording.parts(index);
        let mut counts = vec![0; parts.count()];
        let mut flow = session.decode(stream);
        loop {
            let item = flow.blocks(|block| {
                if let Some(count) = counts.get_mut(parts.part_at(block.offset())) {
                    *count += block.len() as u64;
                }
            });
            if item.is_none() || out.is_closed() {
                break;
            }
        }
        unit.recording.note_gaps(flow.gaps());
        let key = stream.key();
        for (number, count) in counts.into_iter().enumerate() {
            let begin = parts.start(number);
            let end = match number + 1 < parts.count() {
                true => parts.start(number + 1),
                false => StreamOffset(stream.len() as u64),
            };
            let times = parts.times_of(number, stream, &session.flow_config());
            let mut clock = StreamClock::new(stream.bytes(), begin, &session.flow_config());
            let (_, cycles) = clock.at(StreamOffset(end.0.saturating_sub(1)));
            put(unit, key, (number, begin, end), times, (count, cycles), out);
        }
    }
}

fn put(
    unit: &Unit,
    key: StreamKey,
    (number, begin, end): (usize, StreamOffset, StreamOffset),
    times: Option<(u64, u64)>,
    (count, cycles): (u64, u64),
    out: &mut Outlet,
) {
    let recording = &unit.recording;
    let time = |tsc: u64| recording.nanoseconds(Some(cofi_packet::Tsc(tsc)));
    out.put(|row| {
        head(row, unit, key, key.tid().unwrap_or(0))
            .number(number as u64)
            .number(begin.0)
            .number(end.0)
            .number(times.map(|(first, _)| first))
            .number(times.map(|(_, last)| last))
            .number(times.and_then(|(first, _)| time(first)))
            .number(times.and_then(|(_, last)| time(last)))
            .number(count)
            .number(Some(cycles).filter(|cycles| *cycles > 0));
    });
}
