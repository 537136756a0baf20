//! What each thread did, as `cofi report` counts it.

use std::sync::Arc;

use super::{CPU, RECORDING, TID, head};
use crate::columns::{Column, number, text};
use crate::limits::Limits;
use crate::recording::Recording;
use crate::table::{Outlet, Table, Unit, Units};

/// A row for each thread of each stream.
#[derive(Debug)]
pub(super) struct Threads;

const COLUMNS: &[Column] = &[
    RECORDING,
    TID,
    CPU,
    number("pid", "its process; NULL where no thread is known"),
    text("name", "what it was called last"),
    number("instructions", "instructions that ran"),
    number(
        "branches",
        "branches of all kinds, system calls and other far transfers included",
    ),
    number("conditional", "conditional branches"),
    number("taken", "conditional branches that were taken"),
    number("calls", "near calls"),
    number("returns", "near returns"),
    number("system_calls", "system calls"),
    number("interruptions", "interrupts, exceptions and the like"),
    number(
        "trace_bytes",
        "bytes of packets; of a processor's stream its first thread has all",
    ),
    number("gaps", "places where a part of its flow is missing"),
    number(
        "lost_bytes",
        "bytes of packets that could not be used there",
    ),
    number(
        "begin_tsc",
        "the first time that packets tell, in ticks of the time stamp counter",
    ),
    number("end_tsc", "the last one"),
    number(
        "begin_ns",
        "the first time in perf's nanoseconds; NULL if the file does not say how to convert",
    ),
    number("end_ns", "the last one"),
];

impl Table for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn about(&self) -> &'static str {
        "One row for each thread, as `cofi report --json` has them; of a processor's stream one for each thread that ran in it. All is decoded for it, once for `threads` and `functions`."
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn units(&self, recording: &Arc<Recording>, _: &Limits) -> Units {
        Units::whole(recording)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let recording = &unit.recording;
        for thread in &recording.summary(out.threads).threads {
            let (counts, times) = (&thread.counts, &thread.times);
            let (key, task) = (thread.stream, thread.task);
            out.put(|row| {
                head(row, unit, key, task.tid)
                    .number(super::tid_of(key, task.tid).map(|_| task.pid.into()))
                    .text(thread.comm.as_deref())
                    .number(counts.instructions)
                    .number(counts.branches)
                    .number(counts.conditional)
                    .number(counts.taken)
                    .number(counts.calls)
                    .number(counts.returns)
                    .number(counts.system_calls)
                    .number(counts.interruptions)
                    .number(thread.trace_bytes)
                    .number(thread.gaps.count())
                    .number(thread.gaps.lost_bytes)
                    .number(times.first.map(|tsc| tsc.0))
                    .number(times.last.map(|tsc| tsc.0))
                    .number(recording.nanoseconds(times.first))
                    .number(recording.nanoseconds(times.last));
            });
        }
    }
}
