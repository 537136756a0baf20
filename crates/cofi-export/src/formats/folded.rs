//! Folded stacks, as `flamegraph.pl`, inferno and speedscope read them: `thread;function;function weight`.

use std::io::{self, Write};

use cofi_session::compact;

use crate::tree::Step;
use crate::{Frames, StackTree};

/// The lines of a tree, sorted. A name keeps no character that ends a name or a line.
pub(super) fn lines(tree: &StackTree, frames: &Frames) -> Vec<String> {
    let clean = |step: Step| {
        tree.name(step, frames).replace(
            |character: char| character == ';' || character.is_control(),
            ":",
        )
    };
    let nodes = tree.nodes().iter().enumerate();
    let mut lines: Vec<String> = nodes
        .filter(|(_, node)| node.own > 0)
        .map(|(number, node)| {
            let mut names: Vec<String> = tree.steps(number).map(clean).collect();
            names.reverse();
            format!("{} {}", names.join(";"), node.own)
        })
        .collect();
    compact::sort_by(&mut lines, Ord::cmp);
    lines
}

/// Writes folded stacks.
pub(super) fn write(tree: &StackTree, frames: &Frames, out: &mut dyn Write) -> io::Result<()> {
    for line in lines(tree, frames) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
