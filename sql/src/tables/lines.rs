//! Lines of the source, as `cofi coverage` counts them.

use std::sync::Arc;

use cofi_analysis::{InsnCount, SourceCover, Tally};

use super::RECORDING;
use crate::columns::{Column, number, text};
use crate::limits::Limits;
use crate::recording::{Recording, gaps};
use crate::table::{Outlet, Table, Unit, Units};

/// A row for each line that has code.
#[derive(Debug)]
pub(super) struct Lines;

const COLUMNS: &[Column] = &[
    RECORDING,
    text("file", "the file of code"),
    text(
        "source",
        "the source file, as the debugging information names it",
    ),
    number("line", "the line"),
    number(
        "count",
        "how often it ran, by gcov's rule; 0 of a line that never did",
    ),
    number("instructions", "instructions of it that ran"),
    number(
        "taken",
        "how often its conditional branches were taken; NULL if it has none",
    ),
    number("not_taken", "how often they were not"),
    number(
        "unknown",
        "how often they ran where the trace does not tell what they did",
    ),
];

impl Table for Lines {
    fn name(&self) -> &'static str {
        "lines"
    }

    fn about(&self) -> &'static str {
        "One row for each line of the source that has code in a file of which anything ran, as `cofi coverage --json --all` has them; a line that several files of code have is a row of each. All is decoded for it, and the debugging information is read; files without any have no rows."
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn units(&self, recording: &Arc<Recording>, _: &Limits) -> Units {
        Units::whole(recording)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let session = unit.recording.session();
        let streams: Vec<_> = session.streams().iter().collect();
        let mut tally = Tally::new().with_code();
        tally.add_all(session, &streams, out.threads, &|_| {});
        let code = tally.take_code();
        unit.recording.note_gaps(gaps(&tally.finish()));
        for code in code.into_files() {
            if out.is_closed() {
                return;
            }
            let cover = SourceCover::of(&code);
            let file = code.path().to_string_lossy();
            for ((source, line), count) in &cover.lines {
                let Some(source) = cover.files.get(*source as usize) else {
                    continue;
                };
                let branches = &count.branches;
                let sum = |of: fn(&InsnCount) -> u64| {
                    (!branches.is_empty()).then(|| branches.iter().map(of).sum::<u64>())
                };
                out.put(|row| {
                    row.text(unit.recording.name())
                        .text(&*file)
                        .text(source.as_str())
                        .number(u64::from(*line))
                        .number(count.count)
                        .number(count.insns)
                        .number(sum(|branch| branch.taken))
                        .number(sum(|branch| branch.not_taken()))
                        .number(sum(|branch| branch.unknown));
                });
            }
        }
    }
}
