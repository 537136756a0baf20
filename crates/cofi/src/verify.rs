//! `cofi record --verify`: the decoded flow against the engine's own list.

use anyhow::Result;
use cofi_capture::record::TruthStream;
use std::path::Path;

pub(crate) fn run(_file: &Path, _truth: &[TruthStream]) -> Result<bool> {
    anyhow::bail!("waiting for the session")
}
