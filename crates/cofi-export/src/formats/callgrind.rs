//! Callgrind's format, as `callgrind_annotate` and KCachegrind read it.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};

use super::CREATOR;
use crate::tree::Step;
use crate::{FrameId, Frames, StackTree};

/// What is known of a function's calls of another one.
#[derive(Default)]
struct Edge {
    calls: u64,
    /// With all that was called. A call within one of the same edge, as in recursion, is counted there.
    weight: u64,
}

/// Writes what each function weighs, and its calls of others.
pub(super) fn write(tree: &StackTree, frames: &Frames, out: &mut dyn Write) -> io::Result<()> {
    let totals = tree.totals();
    let mut own: BTreeMap<FrameId, u64> = BTreeMap::new();
    let mut edges: BTreeMap<(FrameId, FrameId), Edge> = BTreeMap::new();
    for (number, node) in tree.nodes().iter().enumerate() {
        let Step::Function(frame) = node.step else {
            continue;
        };
        *own.entry(frame).or_default() += node.own;
        let steps: Vec<Step> = tree.steps(number).collect();
        let Some([_, Step::Function(caller)]) = steps.get(..2) else {
            continue;
        };
        let pair = [steps[0], steps[1]];
        let is_inner = steps[1..].windows(2).any(|around| around == pair);
        let edge = edges.entry((*caller, frame)).or_default();
        edge.calls += node.calls;
        if !is_inner {
            edge.weight += totals.get(number).copied().unwrap_or(0);
        }
    }
    let event = match tree.weight() {
        crate::Weight::Time => "ns",
        crate::Weight::Instructions => "Instructions",
    };
    let summary: u64 = own.values().sum();
    writeln!(out, "# callgrind format\nversion: 1\ncreator: {CREATOR}")?;
    writeln!(out, "positions: line\nevents: {event}\nsummary: {summary}")?;
    let mut names = Names {
        frames,
        known: HashSet::new(),
        files: Vec::new(),
    };
    for (frame, own) in &own {
        writeln!(out)?;
        names.put(["ob", "fl", "fn"], *frame, out)?;
        writeln!(out, "0 {own}")?;
        let begin = (*frame, FrameId(0));
        for ((_, callee), edge) in edges.range(begin..).take_while(|((of, _), _)| of == frame) {
            names.put(["cob", "cfi", "cfn"], *callee, out)?;
            writeln!(out, "calls={} 0\n0 {}", edge.calls, edge.weight)?;
        }
    }
    writeln!(out, "\ntotals: {summary}")
}

/// Names are said once, and then go by numbers.
struct Names<'a> {
    frames: &'a Frames,
    known: HashSet<FrameId>,
    files: Vec<String>,
}

impl Names<'_> {
    fn put(&mut self, keys: [&str; 3], frame: FrameId, out: &mut dyn Write) -> io::Result<()> {
        let file = self.frames.get(frame).and_then(|frame| frame.file.as_ref());
        let file = file.map_or_else(|| "???".into(), |file| clean(&file.to_string_lossy()));
        let known = self.files.iter().position(|known| *known == file);
        let number = known.unwrap_or(self.files.len()) + 1;
        match known {
            Some(_) => writeln!(out, "{}=({number})", keys[0])?,
            None => {
                writeln!(out, "{}=({number}) {file}", keys[0])?;
                self.files.push(file);
            }
        }
        // Files of source are not known.
        writeln!(out, "{}=???", keys[1])?;
        let number = frame.0 + 1;
        match self.known.insert(frame) {
            true => writeln!(
                out,
                "{}=({number}) {}",
                keys[2],
                clean(self.frames.name(frame))
            ),
            false => writeln!(out, "{}=({number})", keys[2]),
        }
    }
}

/// A name on one line.
fn clean(name: &str) -> String {
    name.replace(char::is_control, " ")
}
