//! What comes out of a scenario: packets, and between them what is no packet.

use cofi_packet::Format;
use cofi_unit::{Clock, Fault, PhysAddr};

/// A scenario that makes more bytes of packets than these is not run to its end.
pub(super) const MOST_BYTES: usize = 16 << 20;

/// Something that is no packet, or a place in the scenario.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Note {
    /// An operation begins.
    Begin(String),
    /// An operation faulted.
    Fault { name: &'static str, rule: String },
    /// A ToPA PMI was signalled.
    Pmi,
    /// A register was read.
    Read { msr: u32, value: u64 },
    /// Bytes were written to memory, where stores are what is listed.
    Store { address: u64, bytes: Vec<u8> },
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
    pub(super) fn take(&mut self, bytes: &[u8]) {
        if self.stream.len() + bytes.len() > MOST_BYTES {
            self.is_full = true;
        } else {
            self.stream.extend_from_slice(bytes);
        }
    }

    /// Bytes were stored here.
    pub(super) fn store(&mut self, address: PhysAddr, bytes: &[u8]) {
        if self.lists_stores && !self.is_full {
            self.mark(Note::Store {
                address: address.0,
                bytes: bytes.to_vec(),
            });
        }
        self.take(bytes);
    }

    /// The packets that are listed.
    pub(super) fn packets(&self) -> &[u8] {
        if self.lists_stores { &[] } else { &self.stream }
    }
}
