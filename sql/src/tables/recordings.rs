//! What is known of recordings and their processes before anything is decoded.

use std::sync::Arc;

use cofi_analysis::bytes_before_first_psb;
use cofi_flow::TraceFormat;
use cofi_session::{Recording as Said, StreamKey};

use super::RECORDING;
use crate::columns::{Column, flag, number, text};
use crate::limits::Limits;
use crate::recording::Recording;
use crate::table::{Outlet, Table, Unit, Units};

/// A row for each recording.
#[derive(Debug)]
pub(super) struct Recordings;

const RECORDINGS: &[Column] = &[
    RECORDING,
    text("packets", "the packets: `pt` or `rtit`"),
    number("file_bytes", "bytes of the file"),
    number("trace_bytes", "bytes of packets"),
    number(
        "streams",
        "how many streams: one a thread, or one a processor",
    ),
    text(
        "engine",
        "the engine that recorded it; NULL if it was not Cofi's recorder",
    ),
    flag(
        "is_machine",
        "it is of a whole machine: address spaces stand for processes",
    ),
    flag("has_time", "it says how its clock converts to nanoseconds"),
    flag(
        "is_finished",
        "the recorder came to its end; NULL if it was not Cofi's",
    ),
    number(
        "missing",
        "how many sentences the recorder says of what is missing; NULL if it was not Cofi's",
    ),
    number(
        "problems",
        "what is wrong with the file as a whole: how many sentences",
    ),
    number(
        "bytes_before_first_psb",
        "bytes of packets that cannot be used, as it is not known where packets begin; no other table has them among what is lost",
    ),
];

impl Table for Recordings {
    fn name(&self) -> &'static str {
        "recordings"
    }

    fn about(&self) -> &'static str {
        "One row for each recording. Nothing is decoded for it."
    }

    fn columns(&self) -> &'static [Column] {
        RECORDINGS
    }

    fn units(&self, recording: &Arc<Recording>, _: &Limits) -> Units {
        Units::whole(recording)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let recording = &unit.recording;
        let session = recording.session();
        let streams = session.streams();
        let said = session.recording();
        let packets = match session.flow_config().format {
            TraceFormat::IntelPt => "pt",
            TraceFormat::Rtit(_) => "rtit",
        };
        let heads = streams
            .iter()
            .map(|stream| bytes_before_first_psb(session, stream));
        out.put(|row| {
            row.text(recording.name())
                .text(packets)
                .number(recording.size())
                .number(
                    streams
                        .iter()
                        .map(|stream| stream.len() as u64)
                        .sum::<u64>(),
                )
                .number(streams.len() as u64)
                .text(said.map(|said| said.engine.as_str()))
                .flag(session.is_guest())
                .flag(session.time_conversion().is_some())
                .flag(said.map(|said| said.is_finished))
                .number(said.map(Said::sentences).map(|said| said.count() as u64))
                .number(session.diagnostics().len() as u64)
                .number(heads.sum::<u64>());
        });
    }
}

/// A row for each process of which the file tells.
#[derive(Debug)]
pub(super) struct Processes;

const PROCESSES: &[Column] = &[
    RECORDING,
    number("pid", "the process"),
    text("name", "what its first thread was called last"),
    number("threads", "how many threads of it the file tells of"),
    number(
        "traced_threads",
        "how many threads of it have a stream; 0 where streams are those of processors",
    ),
];

impl Table for Processes {
    fn name(&self) -> &'static str {
        "processes"
    }

    fn about(&self) -> &'static str {
        "One row for each process that the file tells of. Nothing is decoded for it."
    }

    fn columns(&self) -> &'static [Column] {
        PROCESSES
    }

    fn units(&self, recording: &Arc<Recording>, _: &Limits) -> Units {
        Units::whole(recording)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let session = unit.recording.session();
        let tasks = session.tasks();
        for threads in tasks.chunk_by(|one, next| one.pid == next.pid) {
            let Some(pid) = threads.first().map(|task| task.pid) else {
                continue;
            };
            let traced = session.streams().iter().filter(|stream| {
                matches!(stream.key(), StreamKey::Thread(_)) && stream.task().pid == pid
            });
            out.put(|row| {
                row.text(unit.recording.name())
                    .number(u64::from(pid))
                    .text(session.comm_of(pid))
                    .number(threads.len() as u64)
                    .number(traced.count() as u64);
            });
        }
    }
}
