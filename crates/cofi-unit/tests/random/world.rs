//! Clock and memory.

use super::Dice;
use cofi_packet::intel::{Kind, Packets};
use cofi_unit::spec::topa::Entry;
use cofi_unit::{Client, Clock, PhysAddr};

/// So many entries of a Table of Physical Addresses; memory is full of them.
const ENTRIES: usize = 8;

/// The world around a unit.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct World {
    pub(crate) clock: Clock,
    /// What was stored or sent to the transport subsystem since tracing began.
    pub(crate) stored: Vec<u8>,
    /// Some of it may be missing, or have been cut off.
    pub(crate) is_cut: bool,
    pub(crate) pmis: u64,
    entries: [u64; ENTRIES],
    /// Memory with this address bit set is restricted.
    restricted: Option<u32>,
}

impl World {
    pub(crate) fn new(dice: &mut Dice<'_>) -> Self {
        let mut world = Self {
            clock: Clock {
                tsc: dice.number(),
                cycles: dice.number(),
            },
            stored: Vec::new(),
            is_cut: false,
            pmis: 0,
            entries: [0; ENTRIES],
            restricted: dice.once_in(4).then(|| dice.pick(&[8, 12, 13, 16, 20, 51])),
        };
        for index in 0..ENTRIES {
            world.change_entry(dice, index);
        }
        world
    }

    fn change_entry(&mut self, dice: &mut Dice<'_>, index: usize) {
        // Small regions, so that their ends are reached.
        let base = (dice.word() & 0xffff) << 12;
        let size = 4096 << dice.pick(&[0, 0, 0, 1, 4]);
        let entry = match dice.below(32) {
            0 => Entry::table(base),
            1 => Entry(dice.number()),
            _ => Entry::region(base & !(size - 1), size).expect("entries know such sizes"),
        };
        self.entries[index] =
            entry.0 | (u64::from(dice.once_in(4)) << 2) | (u64::from(dice.once_in(16)) << 4);
    }

    /// Software changes an entry.
    pub(crate) fn change(&mut self, dice: &mut Dice<'_>) {
        let index = dice.below(ENTRIES as u8);
        self.change_entry(dice, index.into());
    }

    /// Time goes on; or it jumps, or runs backwards, which it must not.
    pub(crate) fn time(&mut self, dice: &mut Dice<'_>) {
        let Clock { tsc, cycles } = &mut self.clock;
        for count in [tsc, cycles] {
            let by = match dice.below(16) {
                0 => 0,
                1 => 1 << 63,
                2 => dice.number(),
                3 => 0u64.wrapping_sub(dice.byte().into()),
                4 | 5 => dice.word() & 0xfffff,
                _ => dice.byte().into(),
            };
            *count = count.wrapping_add(by);
        }
    }

    /// That what was stored is packets and nothing else; and where the last PSB among them stands.
    pub(crate) fn check_stream(&self) -> Option<usize> {
        let mut psb = None;
        for item in Packets::new(&self.stored) {
            match item {
                Ok(located) if located.raw.kind() == Kind::Psb => {
                    psb = Some(located.offset.0 as usize);
                }
                Ok(_) => {}
                Err(error) => panic!("{error}, in {:02x?}", self.stored),
            }
        }
        psb
    }
}

impl Client for World {
    fn now(&mut self) -> Clock {
        self.clock
    }

    fn store(&mut self, address: PhysAddr, bytes: &[u8]) {
        assert!(!bytes.is_empty());
        assert!(address.0.checked_add(bytes.len() as u64 - 1).is_some());
        self.stored.extend(bytes);
    }

    fn load(&mut self, address: PhysAddr) -> u64 {
        self.entries[(address.0 / 8) as usize % ENTRIES]
    }

    fn is_restricted(&mut self, address: PhysAddr, len: u64) -> bool {
        let Some(bit) = self.restricted else {
            return false;
        };
        let last = address.0.saturating_add(len - 1);
        // Some address in between has the bit set.
        let is = address.0 >> bit & 1 != 0 || address.0 >> bit != last >> bit;
        self.is_cut |= is;
        is
    }

    fn transport(&mut self, bytes: &[u8]) {
        self.stored.extend(bytes);
    }

    fn topa_pmi(&mut self) {
        self.pmis += 1;
    }
}
