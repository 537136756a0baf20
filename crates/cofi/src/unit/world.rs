//! What stands around the unit in a scenario: clocks and memory that the scenario sets, and a record of what comes out.

use cofi_packet::intel::Kind;
use cofi_unit::{Client, Clock, PhysAddr};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

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

/// The unit's client.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) clock: Clock,
    /// Times of packets of the present operation that differ from `clock`.
    pub(super) packet_times: Vec<(Kind, Clock)>,
    /// Physical memory, by the address of each 8 bytes. What nobody wrote is zero.
    pub(super) memory: BTreeMap<u64, u64>,
    /// Memory to which no output may go.
    pub(super) restricted: Vec<RangeInclusive<u64>>,
    /// All packets, in order, wherever they were stored.
    pub(super) stream: Vec<u8>,
    pub(super) marks: Vec<Mark>,
    pub(super) op: u64,
    /// There were more packets than may be.
    pub(super) is_full: bool,
}

impl World {
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

    fn take(&mut self, bytes: &[u8]) {
        if self.stream.len() + bytes.len() > MOST_BYTES {
            self.is_full = true;
        } else {
            self.stream.extend_from_slice(bytes);
        }
    }
}

impl Client for World {
    fn now(&mut self) -> Clock {
        self.clock
    }
    fn store(&mut self, _: PhysAddr, bytes: &[u8]) {
        self.take(bytes);
    }
    fn packet_time(&mut self, kind: Kind) -> Clock {
        let own = self.packet_times.iter().find(|(own, _)| *own == kind);
        own.map_or(self.clock, |&(_, clock)| clock)
    }
    fn load(&mut self, address: PhysAddr) -> u64 {
        self.memory.get(&(address.0 & !7)).copied().unwrap_or(0)
    }
    fn is_restricted(&mut self, address: PhysAddr, len: u64) -> bool {
        let last = address.0.saturating_add(len.saturating_sub(1));
        self.restricted
            .iter()
            .any(|range| *range.start() <= last && address.0 <= *range.end())
    }
    fn transport(&mut self, bytes: &[u8]) {
        self.take(bytes);
    }
    fn topa_pmi(&mut self) {
        self.mark(Note::Pmi);
    }
}
