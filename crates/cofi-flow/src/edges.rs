//! Coverage as fuzzers take it: a map of counts, by edges.

use alloc::vec::Vec;
use cofi_packet::{Ip, StreamOffset};

use crate::{Block, Event, Executed, FlowError, Path, Visitor};

/// Counts the edges of a flow in a map, as coverage-guided fuzzers do: [`Edges::count_in`].
///
/// A *step* is what runs from behind one branch whose outcome the trace tells up to the next, direct jumps and calls included. An *edge*
/// leads from one step to the next, and is known by the two addresses where they begin. It counts in one byte of the map, in which others may count too; a byte stays at
/// 255. So the same ways of a thread through the same code give the same map, whatever an untraced kernel does in between: where an interrupt ends a step in the
/// middle and tracing goes on there, it is one step. No edge leads to a handler that is traced; one leads from its end to where it returns.
///
/// Processes are not told apart: a stream of a processor should be of one.
///
/// What was learned of paths is kept from one flow to the next, which is of use if the decoded code is handed on, too
/// ([`FlowDecoder::take_code_cache`](crate::FlowDecoder::take_code_cache)).
///
/// ```
/// use cofi_flow::{Edges, FlowConfig, FlowDecoder};
/// use cofi_insn::Segment;
/// use cofi_packet::{Ip, intel::PSB};
///
/// // nop; jne to the nop; syscall
/// let code = Segment { base: Ip(0x1000), bytes: &[0x90, 0x75, 0xfd, 0x0f, 0x05] };
/// let mut trace = Vec::from(PSB);
/// trace.extend([0x02, 0x23]); // PSBEND
/// trace.extend([0x51, 0x00, 0x10, 0x00, 0x00]); // TIP.PGE 0x1000
/// trace.extend([0b11100 | 0b100000, 0x01]); // TNT: taken, taken, taken, not taken; TIP.PGD without IP
/// let (mut edges, mut map) = (Edges::new(), [0; 1 << 12]);
/// FlowDecoder::new(&trace, code, FlowConfig::default()).visit(&mut edges.count_in(&mut map));
/// assert_eq!(map.iter().filter(|count| **count > 0).count(), 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Edges {
    /// Whose paths are known.
    generation: Option<usize>,
    /// By the index of a path's number.
    known: Vec<Option<Known>>,
    /// The edges within known paths, one path's behind the other's.
    edges: Vec<u32>,
}

/// A path of which the first step begins with it.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Where it begins.
    ip: u64,
    /// Its edges, in [`Edges::edges`].
    first: u32,
    count: u32,
    /// What it leaves.
    after: Place,
}

/// Where a flow stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Nothing is known of what ran before.
    Nowhere,
    /// Within the step that begins there.
    Within(u64),
    /// Behind it.
    Behind(u64),
}

impl Place {
    /// Goes on by instructions that begin at `to`, with a branch that the trace tells only at their end, if at all; the edge to them, if there is one.
    #[inline]
    fn go_on(&mut self, to: Ip, ends_with_branch: bool) -> Option<u32> {
        let (start, edge) = match *self {
            Self::Nowhere => (to.0, None),
            Self::Within(start) => (start, None),
            Self::Behind(from) => (to.0, Some(edge(from, to.0))),
        };
        *self = match ends_with_branch {
            true => Self::Behind(start),
            false => Self::Within(start),
        };
        edge
    }

    fn go_on_by(&mut self, block: &Block<'_>) -> Option<u32> {
        let last = block.last();
        self.go_on(
            block.ip(),
            last.is_some_and(|last| last.class.needs_packet()),
        )
    }
}

/// What an edge is known by: spread over all numbers, so that edges of code that stands close together do not meet.
#[inline]
const fn edge(from: u64, to: u64) -> u32 {
    // Of the golden ratio, and of the square root of 3: odd, as multipliers that lose nothing are.
    let mixed = from.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ to.wrapping_mul(0xbb67_ae85_84ca_a73b);
    ((mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

impl Edges {
    /// Knows no path.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A visitor that counts the edges of one flow in `map`, of any size up to 4 GiB. To what is there it adds.
    pub fn count_in<'a>(&'a mut self, map: &'a mut [u8]) -> EdgeCounter<'a> {
        EdgeCounter {
            edges: self,
            map,
            place: Place::Nowhere,
            is_struck: false,
        }
    }

    /// Where in a map of `len` bytes the edge counts that leads from the step that begins at `from` to the one that begins at `to`.
    #[must_use]
    pub const fn place(from: Ip, to: Ip, len: usize) -> usize {
        place(edge(from.0, to.0), len)
    }

    /// The path, which was looked at once.
    fn known(&mut self, path: &Path<'_>) -> Option<Known> {
        let number = path.number()?;
        if self.generation != Some(number.generation()) {
            self.generation = Some(number.generation());
            self.known.clear();
            self.edges.clear();
        }
        if let Some(Some(known)) = self.known.get(number.index()) {
            return Some(*known);
        }
        let first = self.edges.len();
        let mut after = Place::Nowhere;
        path.for_each(|block| self.edges.extend(after.go_on_by(block)));
        let known = Known {
            ip: path.ip().0,
            first: u32::try_from(first).ok()?,
            count: (self.edges.len() - first) as u32,
            after,
        };
        if self.known.len() <= number.index() {
            self.known.resize(number.index() + 1, None);
        }
        *self.known.get_mut(number.index())? = Some(known);
        Some(known)
    }
}

/// Counts the edges of a flow: [`Edges::count_in`].
#[derive(Debug)]
pub struct EdgeCounter<'a> {
    edges: &'a mut Edges,
    map: &'a mut [u8],
    place: Place,
    /// Tracing has gone off between two instructions.
    is_struck: bool,
}

#[inline]
const fn place(edge: u32, len: usize) -> usize {
    ((edge as u64 * len as u64) >> 32) as usize
}

#[inline]
fn count(map: &mut [u8], edge: u32) {
    let place = place(edge, map.len());
    if let Some(count) = map.get_mut(place) {
        *count = count.saturating_add(1);
    }
}

impl Visitor for EdgeCounter<'_> {
    #[inline]
    fn path(&mut self, path: &Path<'_>) {
        let known = match self.place {
            // It is a step's rest, and no edge leads to it.
            Place::Within(_) => None,
            _ => self.edges.known(path),
        };
        let Some(known) = known else {
            return path.for_each(|block| self.block(block));
        };
        if let Place::Behind(from) = self.place {
            count(self.map, edge(from, known.ip));
        }
        let first = known.first as usize;
        let edges = self.edges.edges.get(first..first + known.count as usize);
        for edge in edges.unwrap_or_default() {
            count(self.map, *edge);
        }
        self.place = known.after;
    }

    fn block(&mut self, block: &Block<'_>) {
        if let Some(edge) = self.place.go_on_by(block) {
            count(self.map, edge);
        }
    }

    fn instruction(&mut self, insn: &Executed) {
        if let Some(edge) = self.place.go_on(insn.ip, insn.class.needs_packet()) {
            count(self.map, edge);
        }
    }

    fn event(&mut self, event: &Event, _offset: StreamOffset) {
        match event {
            Event::AsyncDisabled { .. } => self.is_struck = true,
            Event::Enabled { resumed, .. } => {
                let was_struck = core::mem::take(&mut self.is_struck);
                if was_struck && !resumed {
                    self.place = Place::Nowhere;
                }
            }
            Event::AsyncBranch { .. } | Event::Overflow { .. } | Event::Resync { .. } => {
                self.place = Place::Nowhere;
            }
            _ => {}
        }
    }

    fn error(&mut self, _error: &FlowError) {
        self.place = Place::Nowhere;
    }
}
