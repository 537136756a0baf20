//! A flame graph: widths are weights.

use std::io::{self, Write};

use inferno::flamegraph::{Options, from_lines};

use super::folded;
use crate::{Frames, StackTree};

/// Writes a flame graph; one that says so if nothing weighs anything.
pub(super) fn write(tree: &StackTree, frames: &Frames, out: &mut dyn Write) -> io::Result<()> {
    let lines = folded::lines(tree, frames);
    let mut options = Options::default();
    options.title = "Calls".to_owned();
    options.subtitle = Some(format!("by {}", tree.weight().unit()));
    options.count_name = tree.weight().unit().to_owned();
    // The same calls give the same picture.
    options.deterministic = true;
    options.no_sort = true;
    // What is wrong with the output should be told as such: the picture is made first.
    let mut picture = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut picture)
        .map_err(io::Error::other)?;
    out.write_all(&picture)
}
