//! What comes out of a scenario: packets, and between them what is no packet.

use super::registers::Traced;
use cofi_packet::Format;
use cofi_unit::{Clock, Fault};

/// A scenario that makes more bytes of packets than these is not run to its end.
pub(super) const MOST_BYTES: usize = 16 << 20;

/// Where output went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Where {
    /// To memory, from this address on.
    Memory(u64),
    /// Nowhere: it was for this address, which is restricted.
    Dropped(u64),
    /// To the trace transport subsystem.
    Transport,
}

impl Where {
    /// Where the byte goes that comes behind so many.
    const fn behind(self, bytes: u64) -> Self {
        match self {
            Self::Memory(address) => Self::Memory(address.wrapping_add(bytes)),
            Self::Dropped(address) => Self::Dropped(address.wrapping_add(bytes)),
            Self::Transport => Self::Transport,
        }
    }
}

/// Something that is no packet, or a place in the scenario.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Note {
    /// An operation begins.
    Begin(String),
    /// An operation faulted.
    Fault { name: &'static str, rule: String },
    /// A ToPA PMI was signalled.
    Pmi,
    /// A register was read; of what is expected, the bits of `mask` count.
    Read { msr: u32, value: u64, mask: u64 },
    /// Bytes came out, where stores are what is listed.
    Store { to: Where, bytes: Vec<u8> },
}

impl Note {
    pub(super) fn fault(fault: Fault) -> Self {
        let (name, rule) = match fault {
            Fault::GeneralProtection { rule, .. } => ("#GP", rule),
            Fault::InvalidOpcode { rule } => ("#UD", rule),
            Fault::Shutdown { rule } => ("shutdown", rule),
            _ => ("fault", ""),
        };
        let rule = rule.to_owned();
        Self::Fault { name, rule }
    }
}

/// A note and its place among the packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    /// So many bytes of packets were there before.
    pub(super) offset: usize,
    /// The operation, from 1; 0 is `[start]`.
    pub(super) op: u64,
    pub(super) note: Note,
}

/// What came out, or should.
pub(super) struct Output<'w, F: Traced> {
    pub(super) stream: &'w [u8],
    pub(super) context: F::Context,
    /// Where reading begins anew, as a packet before may be cut off.
    pub(super) cuts: &'w [usize],
    pub(super) marks: &'w [Mark],
}

/// The record of a run, and its clock.
#[derive(Debug)]
pub(super) struct Record<F: Format> {
    pub(super) clock: Clock,
    /// All packets, in order, wherever they were stored.
    pub(super) stream: Vec<u8>,
    /// What must be known to read them.
    pub(super) context: F::Context,
    /// Stores are listed, and no packets.
    pub(super) lists_stores: bool,
    /// What one operation stores to addresses that follow each other is one store.
    pub(super) joins_stores: bool,
    /// Where output ended in the stream by a STOP or an error: perhaps in the middle of a packet.
    pub(super) cuts: Vec<usize>,
    /// Why output ended by an operational error, which the trace itself does not tell.
    pub(super) errors: Vec<String>,
    /// So many bytes were dropped.
    dropped: usize,
    pub(super) marks: Vec<Mark>,
    pub(super) op: u64,
    /// How many operations have been done.
    pub(super) done: u64,
    /// There were more packets than may be.
    pub(super) is_full: bool,
}

impl<F: Format> Default for Record<F> {
    fn default() -> Self {
        Self {
            clock: Clock::default(),
            stream: Vec::new(),
            context: F::Context::default(),
            lists_stores: false,
            joins_stores: false,
            cuts: Vec::new(),
            errors: Vec::new(),
            dropped: 0,
            marks: Vec::new(),
            op: 0,
            done: 0,
            is_full: false,
        }
    }
}

impl<F: Format> Record<F> {
    pub(super) fn mark(&mut self, note: Note) {
        let (offset, op) = (self.stream.len(), self.op);
        if let (Some(last), Note::Begin(_)) = (self.marks.last_mut(), &note)
            && last.offset == offset
            && matches!(last.note, Note::Begin(_))
        {
            // Nothing came of the operation before.
            self.marks.pop();
        }
        self.marks.push(Mark { offset, op, note });
    }

    /// Bytes came out.
    pub(super) fn output(&mut self, to: Where, bytes: &[u8]) {
        if self.stream.len() + self.dropped + bytes.len() > MOST_BYTES {
            self.is_full = true;
            return;
        }
        if self.lists_stores {
            self.store(to, bytes);
        }
        match to {
            Where::Dropped(_) => self.dropped += bytes.len(),
            Where::Memory(_) | Where::Transport => self.stream.extend_from_slice(bytes),
        }
    }

    fn store(&mut self, to: Where, bytes: &[u8]) {
        if let Some(Mark { note, .. }) = self.marks.last_mut()
            && let Note::Store {
                to: first,
                bytes: before,
            } = note
            && self.joins_stores
            && first.behind(before.len() as u64) == to
        {
            return before.extend_from_slice(bytes);
        }
        let bytes = bytes.to_vec();
        self.mark(Note::Store { to, bytes });
    }

    /// Output has ended, for good or until software acts: what comes next begins anew.
    pub(super) fn cut(&mut self) {
        self.cuts.push(self.stream.len());
    }

    /// What is listed.
    pub(super) fn listed(&self) -> Output<'_, F>
    where
        F: Traced,
    {
        let (stream, cuts) = match self.lists_stores {
            true => (&[][..], &[][..]),
            false => (&self.stream[..], &self.cuts[..]),
        };
        Output {
            stream,
            context: self.context,
            cuts,
            marks: &self.marks,
        }
    }
}
