//! What is counted in several recordings: each is opened, checked and reported in the same way.

use crate::args::{FlowInput, Range};
use crate::input;
use crate::select::{Found, Window};
use anyhow::Result;
use cofi_session::Session;
use std::path::PathBuf;

/// What became of the wanted part of a recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visited {
    /// Something is missing; it was said what.
    pub(crate) has_errors: bool,
    /// What of the part was found.
    pub(crate) found: Found,
}

impl Visited {
    /// Nothing yet.
    pub(crate) fn nothing() -> Self {
        Self {
            has_errors: false,
            found: Found::default(),
        }
    }
}

/// Opens the recording of `flow` and then each of `more`, and shows it to `visit` with the part that is wanted. Gives whether something is missing
/// in any of them.
pub(crate) fn for_each(
    flow: &FlowInput,
    more: &[PathBuf],
    range: &Range,
    mut visit: impl FnMut(&Session<'_>, &Window) -> Result<Visited>,
) -> Result<bool> {
    let mut has_errors = false;
    let first = flow.input.file.clone();
    let mut flow = flow.clone();
    for file in std::iter::once(&first).chain(more) {
        flow.input.file.clone_from(file);
        let bytes = input::map(file)?;
        let session = input::open_flow(&flow, &bytes)?;
        input::require_trace(file, &session)?;
        let window = Window::of_range(range, &session)?;
        has_errors |= input::report(&session);
        let visited = visit(&session, &window)?;
        has_errors |= visited.has_errors;
        if !window.is_all() {
            window.report_missed(visited.found);
        }
        has_errors |= input::report_code(&session);
    }
    Ok(has_errors)
}
