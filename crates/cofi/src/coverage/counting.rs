//! How often each instruction ran, in one recording or several.

use crate::args::{Counting, Parallel};
use crate::recordings::{Visited, for_each};
use crate::report::{Parts, tally_part, tally_streams};
use crate::select::{Found, Window};
use anyhow::Result;
use cofi_analysis::{CodeCounts, EdgeMap, FileCode, Summary, Tally};
use cofi_session::Session;
use std::path::Path;

/// What was counted.
#[derive(Debug)]
pub(crate) struct Counted {
    /// What ran of each file, the one with the most instructions first.
    pub(crate) files: Vec<FileCode>,
    /// What each recording came to.
    pub(crate) summaries: Vec<Summary>,
    /// Steps from block to block, if they are wanted.
    pub(crate) edges: EdgeMap,
    /// Something is missing; it was said what.
    pub(crate) has_errors: bool,
}

/// Counts what runs in one recording after the other.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    code: CodeCounts,
    edges: EdgeMap,
    summaries: Vec<Summary>,
}

impl Counter {
    /// Decodes the wanted part of a recording and counts; also the steps between blocks of the files that are wanted, if any are.
    pub(crate) fn add(
        &mut self,
        session: &Session<'_>,
        window: &Window,
        parallel: Parallel,
        of_edges: Option<fn(&Path) -> bool>,
    ) -> Visited {
        let mut visited = Visited::nothing();
        let mut tally = tally(session, window, parallel, of_edges, &mut visited.found);
        self.code.merge(tally.take_code());
        self.edges.merge(&tally.take_edges());
        let summary = tally.finish();
        visited.has_errors = summary.gaps() > 0 || summary.proof.seals.broken > 0;
        self.summaries.push(summary);
        visited
    }

    /// How often which instruction ran so far.
    pub(crate) const fn code(&self) -> &CodeCounts {
        &self.code
    }

    /// What was counted in all of them.
    pub(crate) fn finish(self, has_errors: bool) -> Counted {
        Counted {
            files: self.code.into_files(),
            edges: self.edges,
            summaries: self.summaries,
            has_errors,
        }
    }
}

impl Counted {
    /// Decodes the recordings and counts; also the steps between blocks of the files that are wanted, if any are.
    pub(crate) fn of(args: &Counting, of_edges: Option<fn(&Path) -> bool>) -> Result<Self> {
        let mut counter = Counter::default();
        let has_errors = for_each(&args.flow, &args.more, &args.range, |session, window| {
            Ok(counter.add(session, window, args.parallel, of_edges))
        })?;
        Ok(counter.finish(has_errors))
    }

    /// Where the flow is missing, in all recordings, how often.
    pub(crate) fn gaps(&self) -> u64 {
        self.summaries.iter().map(Summary::gaps).sum()
    }

    /// How many instructions ran in all of them.
    pub(crate) fn instructions(&self) -> u64 {
        let counts = self
            .summaries
            .iter()
            .map(|summary| summary.total.instructions);
        counts.sum()
    }
}

/// Counts the wanted part of a recording, with its code; also the steps between blocks of the files that are wanted, if any are. Whether the ends
/// of the part were found is added to `found`.
pub(crate) fn tally(
    session: &Session<'_>,
    window: &Window,
    parallel: Parallel,
    of_edges: Option<fn(&Path) -> bool>,
    found: &mut Found,
) -> Tally {
    let mut tally = Tally::new().with_code();
    if let Some(is_wanted) = of_edges {
        tally = tally.with_edges(is_wanted);
    }
    if window.is_whole_streams(session) {
        return tally_streams(tally, session, &window.streams(session), parallel);
    }
    tally_part(tally, session, window, found, &mut Parts::new())
}
