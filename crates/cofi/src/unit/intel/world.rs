//! What stands around the unit in a scenario: clocks and memory that the scenario sets, and the record.

use crate::unit::record::{Note, Record, Where};
use cofi_packet::intel::{IntelPt, Kind};
use cofi_unit::{Client, Clock, PhysAddr};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The unit's client.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) record: Record<IntelPt>,
    /// Times of packets of the present operation that differ from the clock.
    pub(super) packet_times: Vec<(Kind, Clock)>,
    /// Physical memory, by the address of each 8 bytes. What nobody wrote is zero.
    pub(super) memory: BTreeMap<u64, u64>,
    /// Memory to which no output may go.
    pub(super) restricted: Vec<RangeInclusive<u64>>,
}

impl Client for World {
    fn now(&mut self) -> Clock {
        self.record.clock
    }
    fn store(&mut self, address: PhysAddr, bytes: &[u8]) {
        self.record.output(Where::Memory(address.0), bytes);
    }
    fn packet_time(&mut self, kind: Kind) -> Clock {
        let own = self.packet_times.iter().find(|(own, _)| *own == kind);
        own.map_or(self.record.clock, |&(_, clock)| clock)
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
    fn dropped(&mut self, address: PhysAddr, bytes: &[u8]) {
        self.record.output(Where::Dropped(address.0), bytes);
    }
    fn transport(&mut self, bytes: &[u8]) {
        self.record.output(Where::Transport, bytes);
    }
    fn topa_pmi(&mut self) {
        self.record.mark(Note::Pmi);
    }
}
