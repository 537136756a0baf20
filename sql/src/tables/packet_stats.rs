//! Of which packets streams consist, as `cofi dump --stats` counts them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofi_packet::{Format, PacketKind, StreamItem, StreamOffset, extent};

use super::{CPU, RECORDING, TID, head};
use crate::columns::{Column, number, text};
use crate::limits::Limits;
use crate::packets_of::{TakePackets, packets_of};
use crate::recording::Recording;
use crate::table::{Outlet, Table, Unit, Units};

/// A row for each kind of packet of each stream.
#[derive(Debug)]
pub(super) struct PacketStats;

const COLUMNS: &[Column] = &[
    RECORDING,
    TID,
    CPU,
    text(
        "packet",
        "the packet: `psb`, `tnt.8`, `tip`, …; NULL of bytes that form none",
    ),
    number(
        "count",
        "how many there are; of bytes that form none, how many places",
    ),
    number("bytes", "the bytes of all of them"),
    number("misplaced", "how many of them stand where they may not"),
];

impl Table for PacketStats {
    fn name(&self) -> &'static str {
        "packet_stats"
    }

    fn about(&self) -> &'static str {
        "One row for each kind of packet of each stream, as `cofi dump --stats --json` has them. Packets are read for it, and no code."
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn units(&self, recording: &Arc<Recording>, limits: &Limits) -> Units {
        Units::streams(recording, limits)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let Some(stream) = unit.stream() else { return };
        let mut sums = Sums::default();
        packets_of(unit, unit.range.start, &mut sums);
        let key = stream.key();
        for (packet, sum) in sums.0 {
            out.put(|row| {
                head(row, unit, key, key.tid().unwrap_or(0))
                    .text(packet)
                    .number(sum.count)
                    .number(sum.bytes)
                    .number(sum.misplaced);
            });
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    bytes: u64,
    misplaced: u64,
}

/// The sums of each kind, by name.
#[derive(Debug, Default)]
struct Sums(BTreeMap<Option<&'static str>, Sum>);

impl TakePackets for Sums {
    // A stream is counted as a whole.
    fn take<F: Format>(
        &mut self,
        packets: impl Iterator<Item = StreamItem<F>>,
        _end: StreamOffset,
    ) {
        // Kinds are few: by a number each, and by name in the end.
        let mut kinds = vec![Sum::default(); F::Kind::ALL.len() + 1];
        for item in packets {
            let (_, size) = extent(&item);
            let (raw, is_misplaced) = match &item {
                Ok(located) => (Some(located.raw), false),
                Err(error) => (error.packet, error.packet.is_some()),
            };
            let place = raw.and_then(|raw| F::Kind::ALL.iter().position(|k| *k == raw.kind()));
            if let Some(sum) = kinds.get_mut(place.unwrap_or(F::Kind::ALL.len())) {
                sum.count += 1;
                sum.bytes += size as u64;
                sum.misplaced += u64::from(is_misplaced);
            }
        }
        let names = F::Kind::ALL.iter().map(|kind| Some(kind.name()));
        for (name, sum) in names.chain([None]).zip(kinds) {
            if sum.count == 0 {
                continue;
            }
            let known = self.0.entry(name).or_default();
            known.count += sum.count;
            known.bytes += sum.bytes;
            known.misplaced += sum.misplaced;
        }
    }
}
