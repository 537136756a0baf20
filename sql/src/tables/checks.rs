//! What is missing of a recording, and what proves that nothing is: as `cofi check` finds it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofi_analysis::{Gap, StreamCheck};
use cofi_session::{SealCount, Stream, StreamKey};

use super::{CPU, RECORDING, TID, head};
use crate::columns::{Column, address, flag, number, text};
use crate::limits::Limits;
use crate::recording::Recording;
use crate::table::{Outlet, Table, Unit, Units};

/// A row for each gap.
#[derive(Debug)]
pub(super) struct Gaps;

const GAPS: &[Column] = &[
    RECORDING,
    TID,
    CPU,
    number(
        "count",
        "how many gaps the row stands for: 1, but for those behind the first 10,000 of a stream, which are one row for each kind, with NULL for all that tells one",
    ),
    text(
        "kind",
        "the word for the cause: `overflow`, `missing`, `no-code`, …",
    ),
    text("reason", "the cause in a sentence"),
    number(
        "stream_offset",
        "the byte of the stream at which the packet begins that was lost or does not fit",
    ),
    address("ip", "the instruction reached last, if that is known"),
    number("lost_bytes", "bytes of packets that could not be used"),
    number(
        "tsc",
        "the last time before it, in ticks of the time stamp counter",
    ),
    number("time_ns", "the same in perf's nanoseconds"),
    number(
        "lost_ticks",
        "how long it lasted, in ticks of the time stamp counter; NULL if that is not known",
    ),
    number("lost_ns", "the same in nanoseconds"),
    number(
        "resumed_offset",
        "the byte of the stream from which on the flow is known again; NULL if it is not",
    ),
    address(
        "resumed_ip",
        "the instruction that comes next there; NULL where tracing is off",
    ),
];

impl Table for Gaps {
    fn name(&self) -> &'static str {
        "gaps"
    }

    fn about(&self) -> &'static str {
        "One row for each place where a part of the flow is missing, as `cofi check --json` has them. All is decoded for it, once."
    }

    fn columns(&self) -> &'static [Column] {
        GAPS
    }

    fn units(&self, recording: &Arc<Recording>, _: &Limits) -> Units {
        Units::whole(recording)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let streams = unit.recording.session().streams();
        let checks = unit.recording.checks(out.threads);
        for (stream, check) in streams.iter().zip(checks) {
            for gap in &check.gaps {
                put_gap(unit, stream, gap, out);
            }
            put_more(unit, stream.key(), check, out);
        }
    }
}

fn put_gap(unit: &Unit, stream: &Stream<'_>, gap: &Gap, out: &mut Outlet) {
    let recording = &unit.recording;
    let key = stream.key();
    let tid = key.tid().unwrap_or(gap.task.tid);
    let (ticks, resumed) = (gap.ticks(), gap.resumed);
    out.put(|row| {
        head(row, unit, key, tid)
            .number(1)
            .text(gap.cause.word())
            .text(gap.cause.to_string().as_str())
            .number(gap.offset.0)
            .address(gap.ip.map(|ip| ip.0))
            .number(gap.bytes)
            .number(gap.time.map(|tsc| tsc.0))
            .number(recording.nanoseconds(gap.time))
            .number(ticks)
            .number(recording.lasted(ticks))
            .number(resumed.map(|resumed| resumed.offset.0))
            .address(resumed.and_then(|resumed| resumed.ip).map(|ip| ip.0));
    });
}

/// Those that are counted and not listed.
fn put_more(unit: &Unit, key: StreamKey, check: &StreamCheck, out: &mut Outlet) {
    let mut listed: BTreeMap<&str, u64> = BTreeMap::new();
    for gap in &check.gaps {
        *listed.entry(gap.cause.word()).or_default() += 1;
    }
    for (kind, count) in &check.kinds {
        let more = count.saturating_sub(listed.get(kind).copied().unwrap_or(0));
        if more == 0 {
            continue;
        }
        out.put(|row| {
            head(row, unit, key, key.tid().unwrap_or(0))
                .number(more)
                .text(*kind)
                .text(None::<&str>)
                .number(None::<u64>)
                .address(None::<u64>)
                .number(None::<u64>)
                .number(None::<u64>)
                .number(None::<u64>)
                .number(None::<u64>)
                .number(None::<u64>)
                .number(None::<u64>)
                .address(None::<u64>);
        });
    }
}

/// A row for each seal.
#[derive(Debug)]
pub(super) struct Seals;

const SEALS: &[Column] = &[
    RECORDING,
    TID,
    CPU,
    number("seal", "its number in the stream, from 0 on"),
    number(
        "start_offset",
        "the byte of the stream at which the sealed stretch begins",
    ),
    number("end_offset", "the byte behind its end"),
    number(
        "instructions",
        "how many instructions ran in it, as the recorder saw",
    ),
    flag(
        "is_verified",
        "what was decoded is what ran; false if it is not; NULL if decoding never came to it, or passed it together with others of which only some were verified",
    ),
];

impl Table for Seals {
    fn name(&self) -> &'static str {
        "seals"
    }

    fn about(&self) -> &'static str {
        "One row for each seal: what the recorder says that ran in a stretch of a stream. Streams are decoded for `is_verified`, those of threads that are asked for by `tid` alone."
    }

    fn columns(&self) -> &'static [Column] {
        SEALS
    }

    fn units(&self, recording: &Arc<Recording>, limits: &Limits) -> Units {
        Units::streams(recording, limits)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let Some(stream) = unit.stream() else { return };
        if stream.seals().is_empty() {
            return;
        }
        let mut flow = unit.recording.session().decode(stream);
        let mut verdicts = Verdicts::default();
        while !out.is_closed() {
            let is_over = flow.next_part().is_none();
            verdicts.take(flow.seals(), |number, is_verified| {
                put_seal(unit, stream, number, is_verified, out);
            });
            if is_over {
                break;
            }
        }
        unit.recording.note_gaps(flow.gaps());
        for number in verdicts.count..stream.seals().len() {
            put_seal(unit, stream, number, None, out);
        }
    }
}

fn put_seal(
    unit: &Unit,
    stream: &Stream<'_>,
    number: usize,
    is_verified: Option<bool>,
    out: &mut Outlet,
) {
    let Some(seal) = stream.seals().get(number) else {
        return;
    };
    let key = stream.key();
    out.put(|row| {
        head(row, unit, key, key.tid().unwrap_or(0))
            .number(number as u64)
            .number(seal.start.0)
            .number(seal.end.0)
            .number(seal.instructions)
            .flag(is_verified);
    });
}

/// Tells from the counts of seals which was verified: they are passed in their order.
#[derive(Debug, Default)]
struct Verdicts {
    count: usize,
    known: SealCount,
}

impl Verdicts {
    /// Takes the counts behind a piece of the flow. Which is which of several that one piece passed, verified ones and broken ones, the counts do
    /// not tell.
    fn take(&mut self, now: SealCount, mut passed: impl FnMut(usize, Option<bool>)) {
        let verified = now.verified.saturating_sub(self.known.verified);
        let broken = now.broken.saturating_sub(self.known.broken);
        let verdict = match (verified, broken) {
            (_, 0) => Some(true),
            (0, _) => Some(false),
            _ => None,
        };
        for _ in 0..verified + broken {
            passed(self.count, verdict);
            self.count += 1;
        }
        self.known = now;
    }
}
