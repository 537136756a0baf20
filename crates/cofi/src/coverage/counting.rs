//! How often each instruction ran, in one recording or several.

use crate::args::{Counting, Parallel};
use crate::input;
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

impl Counted {
    /// Decodes the recordings and counts; also the steps between blocks of the files that are wanted, if any are.
    pub(crate) fn of(args: &Counting, of_edges: Option<fn(&Path) -> bool>) -> Result<Self> {
        let mut edges = EdgeMap::default();
        let mut code = CodeCounts::default();
        let mut summaries = Vec::new();
        let mut has_errors = false;
        let mut flow = args.flow.clone();
        let first = flow.input.file.clone();
        for file in std::iter::once(&first).chain(&args.more) {
            flow.input.file.clone_from(file);
            let bytes = input::map(file)?;
            let session = input::open_flow(&flow, &bytes)?;
            input::require_trace(file, &session)?;
            let window = Window::of_range(&args.range, &session)?;
            has_errors |= input::report(&session);
            let mut tally = tally(&session, &window, args.parallel, of_edges);
            code.merge(tally.take_code());
            edges.merge(&tally.take_edges());
            let summary = tally.finish();
            has_errors |= input::report_code(&session);
            has_errors |= summary.gaps() > 0 || summary.proof.seals.broken > 0;
            summaries.push(summary);
        }
        Ok(Self {
            files: code.into_files(),
            edges,
            summaries,
            has_errors,
        })
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

/// Counts the wanted part of a recording, with its code; also the steps between blocks of the files that are wanted, if any are.
pub(crate) fn tally(
    session: &Session<'_>,
    window: &Window,
    parallel: Parallel,
    of_edges: Option<fn(&Path) -> bool>,
) -> Tally {
    let mut tally = Tally::new().with_code();
    if let Some(is_wanted) = of_edges {
        tally = tally.with_edges(is_wanted);
    }
    if window.is_whole_streams(session) {
        return tally_streams(tally, session, &window.streams(session), parallel);
    }
    let (mut found, mut parts) = (Found::default(), Parts::new());
    let tally = tally_part(tally, session, window, &mut found, &mut parts);
    if !window.is_all() {
        window.report_missed(found);
    }
    tally
}
