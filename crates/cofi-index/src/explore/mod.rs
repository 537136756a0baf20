//! Questions about places of a recording.

mod code;
mod disassemble;
mod events;
mod find;
mod flame;
mod packets;
mod place;
mod pool;
mod step;
mod tree;
mod walk;
mod window;

use std::sync::Arc;

use cofi_analysis::CallTracer;
use cofi_image::{CodeFile, LineFinder, LineTable};
use cofi_session::{Session, Stream};

use crate::index::Index;

pub use code::{Code, CodeInsn};
pub use disassemble::CodeLine;
pub(crate) use events::kind_of;
pub use events::{EventInfo, EventKind, Events};
pub use find::{Hit, Target};
pub use flame::{Flame, FunctionTable, Merged, MergedNode, Neighbours};
pub use packets::PacketInfo;
pub use place::{InsnInfo, PlaceInfo, StackFrame};
pub use pool::ExplorerPool;
pub use step::Step;

/// Places of a row, from one up to another.
pub type PlaceRange = std::ops::Range<u64>;

/// A file of code, and its lines.
type FileLines = (Arc<CodeFile>, LineTable);

/// Answers questions about a recording, one at a time. What it has worked out of the code stays at hand for the next.
///
/// It stays on one thread: see [`ExplorerPool`].
pub struct Explorer<'s> {
    session: &'s Session<'s>,
    index: Arc<Index>,
    /// Tracers of the rows asked about last, the latest last.
    tracers: Vec<(usize, CallTracer<'s>)>,
    lines: LineFinder,
    /// The files of code that ran and have lines, once they were looked for.
    tables: Option<Vec<Arc<FileLines>>>,
}

impl std::fmt::Debug for Explorer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Explorer").finish_non_exhaustive()
    }
}

impl<'s> Explorer<'s> {
    /// So many rows' tracers are at hand.
    const TRACERS: usize = 4;

    /// Answers with an index of this session.
    #[must_use]
    pub fn new(session: &'s Session<'s>, index: Arc<Index>) -> Self {
        Self {
            session,
            index,
            tracers: Vec::new(),
            lines: LineFinder::new(),
            tables: None,
        }
    }

    /// The index.
    #[must_use]
    pub const fn index(&self) -> &Arc<Index> {
        &self.index
    }

    fn stream(&self, row: usize) -> Option<&'s Stream<'s>> {
        self.session.streams().get(row)
    }

    /// A tracer of a row that knows its functions.
    fn tracer(&mut self, row: usize) -> Option<CallTracer<'s>> {
        if let Some(known) = self.tracers.iter().position(|(of, _)| *of == row) {
            return Some(self.tracers.remove(known).1);
        }
        let stream = self.stream(row)?;
        let dictionary = self.index.dictionaries.get(row)?.clone();
        let tracer = CallTracer::new(self.session, stream).with_dictionary(dictionary);
        Some(match self.index.with_inlined {
            true => tracer.with_inlined(),
            false => tracer,
        })
    }

    fn keep(&mut self, row: usize, tracer: CallTracer<'s>) {
        if self.tracers.len() >= Self::TRACERS {
            self.tracers.remove(0);
        }
        self.tracers.push((row, tracer));
    }
}
