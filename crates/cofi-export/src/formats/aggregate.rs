//! Formats that hold each distinct stack once: written when all calls are known.

use std::io::{self, Write};

use cofi_analysis::FinishedCall;

use crate::{Exporter, FrameId, Frames, StackTree, Track, Weight};

/// Writes a tree in some format.
pub(super) type WriteTree = fn(&StackTree, &Frames, &mut dyn Write) -> io::Result<()>;

/// Adds stacks up, then writes them.
pub(super) struct Aggregate<W> {
    tree: StackTree,
    out: W,
    write: WriteTree,
}

impl<W: Write> Aggregate<W> {
    pub(super) fn new(weight: Weight, out: W, write: WriteTree) -> Self {
        Self {
            tree: StackTree::new(weight),
            out,
            write,
        }
    }
}

impl<W: Write> Exporter for Aggregate<W> {
    fn begin_part(&mut self, track: &Track, at: u64) -> io::Result<()> {
        self.tree.begin_part(track, at)
    }

    fn enter(
        &mut self,
        frame: FrameId,
        at: u64,
        call: Option<&FinishedCall>,
        frames: &Frames,
    ) -> io::Result<()> {
        self.tree.enter(frame, at, call, frames)
    }

    fn leave(&mut self, frame: FrameId, at: u64) -> io::Result<()> {
        self.tree.leave(frame, at)
    }

    fn end_part(&mut self, at: u64) -> io::Result<()> {
        self.tree.end_part(at)
    }

    fn finish(&mut self, frames: &Frames) -> io::Result<()> {
        (self.write)(&self.tree, frames, &mut self.out)?;
        self.out.flush()
    }
}
