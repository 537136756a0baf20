//! Scenarios from 33.2.7, one after the other.

use super::topa::Malformed;
use super::*;
use crate::client::Clock;
use crate::spec::topa::{Entry, LAST_ENTRY_OFFSET, PAGE};
use crate::spec::{Ctl, OutputBase, OutputMaskPtrs, Status};
use std::collections::HashMap;
use std::ops::Range;
use std::vec;
use std::vec::Vec;

/// Tables are at A and B; regions at R and S, far from each other.
const A: u64 = 0x1000;
const B: u64 = 0x5000;
const R: u64 = 0x1000_0000;
const S: u64 = 0x2000_0000;
const K4: u64 = 4096;

/// What the output does, as one sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    Store(u64, Vec<u8>),
    Transport(Vec<u8>),
    Pmi,
}
use Effect::Pmi;

/// Memory that logs.
#[derive(Clone, Default)]
pub(super) struct World {
    pub(super) tables: HashMap<u64, u64>,
    pub(super) restricted: Vec<Range<u64>>,
    pub(super) effects: Vec<Effect>,
    pub(super) loads: usize,
}

impl Client for World {
    fn now(&mut self) -> Clock {
        Clock::default()
    }
    fn store(&mut self, address: PhysAddr, bytes: &[u8]) {
        assert!(!bytes.is_empty());
        self.effects.push(Effect::Store(address.0, bytes.into()));
    }
    fn load(&mut self, address: PhysAddr) -> u64 {
        self.loads += 1;
        self.tables.get(&address.0).copied().unwrap_or(0)
    }
    fn is_restricted(&mut self, address: PhysAddr, len: u64) -> bool {
        assert_ne!(len, 0);
        let last = address.0 + (len - 1);
        self.restricted
            .iter()
            .any(|range| range.start <= last && address.0 < range.end)
    }
    fn transport(&mut self, bytes: &[u8]) {
        self.effects.push(Effect::Transport(bytes.into()));
    }
    fn topa_pmi(&mut self) {
        self.effects.push(Pmi);
    }
}

/// An output with all that it works on.
struct Bench {
    out: Output,
    regs: Registers,
    caps: Capabilities,
    world: World,
}

impl Bench {
    fn new(ctl: Ctl) -> Self {
        let mut regs = Registers::new();
        regs.ctl = ctl.with_trace_en(true);
        regs.status = Status(0).with_trigger_en(true);
        Self {
            out: Output::default(),
            regs,
            caps: Capabilities::default(),
            world: World::default(),
        }
    }

    fn range(base: u64, mask: u64, offset: u64) -> Self {
        let mut bench = Self::new(Ctl(0));
        bench.regs.base = OutputBase(base);
        bench.regs.mask_ptrs = OutputMaskPtrs(mask).with_offset(offset);
        bench
    }

    /// ToPA output by a table at A.
    fn topa(entries: &[Entry]) -> Self {
        let mut bench = Self::new(Ctl(0).with_topa(true)).table(A, entries);
        bench.regs.base = OutputBase(A);
        bench
    }

    fn table(mut self, base: u64, entries: &[Entry]) -> Self {
        self.world.tables.extend(
            (base..=u64::MAX)
                .step_by(8)
                .zip(entries.iter().map(|entry| entry.0)),
        );
        self
    }

    fn at(mut self, index: u64, offset: u64) -> Self {
        self.regs.mask_ptrs = self.regs.mask_ptrs.with_mask(index).with_offset(offset);
        self
    }

    fn single_region(mut self) -> Self {
        self.caps.topa_multiple = false;
        self
    }

    fn inject(mut self) -> Self {
        self.regs.ctl = self.regs.ctl.with_inject(true);
        self
    }

    fn start(&mut self) -> bool {
        self.regs.status = self.regs.status.with_trigger_en(true);
        self.out.start(&mut self.regs, &self.caps, &mut self.world)
    }

    fn started(mut self) -> Self {
        assert!(self.start());
        self
    }

    fn store(&mut self, bytes: &[u8]) -> bool {
        self.out
            .store(&mut self.regs, &self.caps, &mut self.world, bytes)
    }

    /// Stores so many bytes, in one go.
    fn fill(&mut self, count: u64) -> bool {
        self.store(&vec![0x5a; count as usize])
    }

    /// The effects since the last question, with the sizes of stores.
    fn effects(&mut self) -> Vec<(u64, u64)> {
        core::mem::take(&mut self.world.effects)
            .into_iter()
            .map(|effect| match effect {
                Effect::Store(address, bytes) => (address, bytes.len() as u64),
                Effect::Transport(_) => panic!("not here"),
                Pmi => PMI,
            })
            .collect()
    }

    /// Table base, entry, offset.
    fn pointers(&self) -> (u64, u64, u64) {
        let ptrs = self.regs.mask_ptrs;
        assert_eq!(ptrs.lower_mask(), 0x7f);
        (self.regs.base.0, ptrs.mask(), ptrs.offset())
    }

    fn has_error(&self) -> bool {
        self.regs.status.error() && !self.regs.status.trigger_en()
    }

    /// Tracing has ended: nothing is stored any more.
    fn is_over(&mut self) {
        let before = (self.regs, self.world.effects.len());
        assert!(!self.regs.status.trigger_en());
        assert!(!self.store(&[1, 2, 3]));
        assert!(!self.store(&[]));
        assert_eq!(before, (self.regs, self.world.effects.len()));
    }
}

/// A PMI among the effects.
const PMI: (u64, u64) = (u64::MAX, 0);

fn region(base: u64, size: u64) -> Entry {
    Entry::region(base, size).expect("a size that entries have")
}

fn back_to(table: u64) -> Entry {
    Entry::table(table)
}

// 33.2.7.1

#[test]
fn a_single_range_wraps() {
    let mut bench = Bench::range(R, 0x7f, 0x70).started();
    assert!(bench.fill(10));
    assert!(bench.fill(10));
    assert_eq!(bench.effects(), [(R + 0x70, 10), (R + 0x7a, 6), (R, 4)]);
    assert_eq!(bench.regs.mask_ptrs.offset(), 4);
    // The pointer wraps with the last byte, not with the next one.
    assert!(bench.fill(124));
    assert_eq!(bench.regs.mask_ptrs.offset(), 0);
    // A store longer than the range.
    assert!(bench.fill(300));
    bench.effects().iter().for_each(|(address, len)| {
        assert!((R..R + 0x80).contains(address) && address + len <= R + 0x80);
    });
    assert_eq!(bench.regs.mask_ptrs.offset(), 300 % 128);
    assert!(bench.store(&[]));
}

#[test]
fn the_largest_single_range() {
    let mut bench = Bench::range(R << 8, 0xffff_ffff, 0xffff_fffe).started();
    assert!(bench.fill(2));
    assert_eq!(bench.effects(), [((R << 8) + 0xffff_fffe, 2)]);
    assert_eq!(bench.regs.mask_ptrs.0, 0xffff_ffff);
    let top = u64::MAX << 32;
    let mut bench = Bench::range(top, 0xffff_ffff, 0xffff_ffff).started();
    assert!(bench.fill(2));
    assert_eq!(bench.effects(), [(u64::MAX, 1), (top, 1)]);
}

#[test]
fn single_range_errors() {
    // The mask is not contiguous; base and mask overlap; the offset is beyond the mask.
    for (base, mask, offset) in [(0, 0x17f, 0), (0x80, 0xff, 0), (0, 0xff, 0x100)] {
        let mut bench = Bench::range(base, mask, offset);
        assert!(!bench.start());
        assert!(bench.has_error());
        bench.is_over();
    }
    assert!(Bench::range(0x100, 0xff, 0xff).start());
}

// ToPA

#[test]
fn regions_follow_each_other() {
    let table = [region(R, K4), region(S, 2 * K4), back_to(A)];
    let mut bench = Bench::topa(&table).started();
    assert!(bench.fill(K4 - 1));
    assert_eq!(bench.pointers(), (A, 0, K4 - 1));
    // A packet spans two regions.
    assert!(bench.fill(3));
    assert_eq!(bench.pointers(), (A, 1, 2));
    assert_eq!(bench.effects(), [(R, K4 - 1), (R + K4 - 1, 1), (S, 2)]);
    // The last byte moves the pointers, and END leads back.
    assert!(bench.fill(2 * K4 - 2));
    assert_eq!(bench.pointers(), (A, 0, 0));
    // A store that spans three.
    assert!(bench.fill(3 * K4 + 1));
    assert_eq!(bench.pointers(), (A, 0, 1));
    assert_eq!(
        bench.effects(),
        [(S + 2, 2 * K4 - 2), (R, K4), (S, 2 * K4), (R, 1)]
    );
}

#[test]
fn end_leads_to_another_table() {
    let mut bench = Bench::topa(&[region(R, K4), back_to(B)])
        .table(B, &[region(S, K4), region(S + K4, K4), back_to(A)])
        .at(0, K4 - 4)
        .started();
    assert!(bench.fill(4));
    assert_eq!(bench.pointers(), (B, 0, 0));
    assert!(bench.fill(2 * K4));
    assert_eq!(bench.pointers(), (A, 0, 0));
    assert_eq!(bench.effects(), [(R + K4 - 4, 4), (S, K4), (S + K4, K4)]);
}

#[test]
fn an_end_entry_in_use_is_followed_at_start() {
    let mut bench = Bench::topa(&[region(R, K4), back_to(B)])
        .table(B, &[region(S, K4)])
        .at(1, 0xffff_ffff)
        .started();
    assert_eq!(bench.pointers(), (B, 0, 0));
    assert!(bench.fill(1));
    assert_eq!(bench.effects(), [(S, 1)]);
}

#[test]
fn all_sizes() {
    for code in 0..16 {
        let size = K4 << code;
        let mut bench = Bench::topa(&[region(S, size), region(R, K4)])
            .at(0, size - 2)
            .started();
        assert!(bench.fill(3));
        assert_eq!(bench.effects(), [(S + size - 2, 2), (R, 1)]);
        let mut bench = Bench::topa(&[region(S, size)]).at(0, size);
        assert!(!bench.start() && bench.has_error());
    }
    assert_eq!(Entry::region(0, 256 << 20), None);
    assert_eq!(Entry::region(0, 2048), None);
    assert_eq!(Entry::region(0, 3 * K4), None);
    assert_eq!(Entry::region(0, 0), None);
}

#[test]
fn the_largest_table_wraps() {
    let last = LAST_ENTRY_OFFSET / 8;
    let mut bench = Bench::topa(&[region(R, K4)])
        .table(A + LAST_ENTRY_OFFSET, &[region(S, K4)])
        .at(last, K4 - 1)
        .started();
    assert_eq!(bench.regs.mask_ptrs.mask(), 0x1ff_ffff);
    assert!(bench.fill(2));
    assert_eq!(bench.effects(), [(S + K4 - 1, 1), (R, 1)]);
    assert_eq!(bench.pointers(), (A, 0, 1));
}

#[test]
fn a_table_that_leaves_memory_is_an_error() {
    let top = (1 << 52) - PAGE;
    let mut bench = Bench::topa(&[])
        .table(top, &[region(R, K4); 512])
        .at(510, 0);
    bench.regs.base = OutputBase(top);
    assert!(bench.start());
    assert!(bench.fill(K4));
    assert!(!bench.fill(K4 + 1));
    assert_eq!(bench.pointers(), (top, 512, 0));
    assert!(bench.has_error());
    bench.is_over();
    // And one that wraps at 64 bits.
    let mut bench = Bench::topa(&[]).at(0x1ff_ffff, 0);
    bench.caps.max_phys_addr = 64;
    bench.regs.base = OutputBase(!0xfff);
    assert!(!bench.start() && bench.has_error());
}

#[test]
fn entries_are_read_once() {
    let mut bench = Bench::topa(&[region(R, K4), region(S, K4), back_to(A)]).started();
    assert_eq!(bench.world.loads, 1);
    assert!(bench.fill(K4 - 1));
    assert_eq!(bench.world.loads, 1);
    assert!(bench.fill(1));
    assert_eq!(bench.world.loads, 2);
    // A change of the entry in use counts when TraceEn is set again; the pointers go on.
    let mut bench = bench.table(A + 8, &[region(S + K4, K4)]);
    assert!(bench.fill(3));
    assert!(bench.start());
    assert!(bench.fill(3));
    assert_eq!(bench.pointers(), (A, 1, 6));
    assert_eq!(bench.effects()[2..], [(S, 3), (S + K4 + 3, 3)]);
}

// STOP and INT

#[test]
fn stop() {
    let mut bench = Bench::topa(&[region(R, K4).with_stop(), region(S, K4).with_int()]).started();
    assert!(bench.fill(K4 - 2));
    // The packet is cut off.
    assert!(!bench.fill(5));
    assert_eq!(bench.effects(), [(R, K4 - 2), (R + K4 - 2, 2)]);
    assert_eq!(bench.pointers(), (A, 0, K4));
    assert!(bench.regs.status.stopped() && !bench.regs.status.error());
    bench.is_over();
    assert_eq!(bench.world.loads, 1);
    // Enabled again with Stopped set: nothing, and no error.
    assert!(!bench.start());
    assert!(!bench.regs.status.error());
    bench.is_over();
    // With Stopped cleared: an operational error (ToPA STOP, last paragraph).
    bench.regs.status = bench.regs.status.with_stopped(false);
    assert!(!bench.start());
    assert!(bench.has_error());
    // Software moves on.
    bench.regs.status = Status(0);
    let mut bench = bench.at(1, 0).started();
    assert!(bench.fill(1));
    assert_eq!(bench.effects(), [(S, 1)]);
}

#[test]
fn int() {
    let table = [region(R, K4).with_int(), region(S, K4), back_to(A)];
    let mut bench = Bench::topa(&table).started();
    assert!(bench.fill(K4 + 4));
    assert_eq!(bench.effects(), [(R, K4), PMI, (S, 4)]);
    assert!(!bench.regs.status.pend_topa_pmi());
    assert!(bench.fill(2 * K4));
    assert_eq!(bench.effects(), [(S + 4, K4 - 4), (R, K4), PMI, (S, 4)]);
}

#[test]
fn stop_and_int() {
    for inject in [false, true] {
        let mut bench = Bench::topa(&[region(R, K4).with_stop().with_int()]);
        if inject {
            bench = bench.inject();
        }
        let mut bench = bench.started();
        assert!(!bench.fill(K4));
        assert_eq!(bench.effects(), [(R, K4), PMI]);
        assert!(bench.regs.status.stopped());
        assert_eq!(bench.regs.status.pend_topa_pmi(), inject);
        assert_eq!(bench.pointers(), (A, 0, K4));
        bench.is_over();
    }
}

#[test]
fn pmi_preservation() {
    let table = [region(R, K4).with_int(), region(S, K4), back_to(A)];
    let mut bench = Bench::topa(&table).inject().started();
    assert!(bench.fill(K4));
    assert!(bench.regs.status.pend_topa_pmi());
    assert_eq!(bench.effects(), [(R, K4), PMI]);
    // Not handled: pended again at each enabling, even one that ends in an error.
    assert!(bench.start());
    assert_eq!(bench.effects(), [PMI]);
    assert!(bench.regs.status.pend_topa_pmi());
    let mut bench = bench.at(1, K4);
    assert!(!bench.start());
    assert_eq!(bench.effects(), [PMI]);
    // Without InjectPsbPmiOnEnable the bit is not used.
    let mut bench = Bench::topa(&table);
    bench.regs.status = bench.regs.status.with_pend_topa_pmi(true);
    let mut bench = bench.started();
    assert_eq!(bench.effects(), []);
}

#[test]
fn a_single_region_has_an_early_pmi() {
    let early = K4 - EARLY_PMI_BYTES;
    let table = [region(R, K4).with_int(), back_to(A)];
    let mut bench = Bench::topa(&table).single_region().started();
    assert!(bench.fill(early - 1));
    assert_eq!(bench.effects(), [(R, early - 1)]);
    assert!(bench.fill(1));
    assert_eq!(bench.effects(), [(R + early - 1, 1), PMI]);
    assert_eq!(bench.pointers(), (A, 0, early));
    // Once for each round.
    assert!(bench.fill(K4));
    assert_eq!(bench.effects(), [(R + early, K4 - early), (R, early), PMI]);
    // Enabled where it was: no PMI before the region is filled.
    assert!(bench.start());
    assert!(bench.fill(K4 - early - 1));
    assert_eq!(bench.effects(), [(R + early, K4 - early - 1)]);
    assert!(bench.fill(1));
    assert_eq!(bench.effects(), [(R + K4 - 1, 1), PMI]);
    // With STOP: first the PMI, then the stop.
    let table = [region(R, K4).with_int().with_stop(), back_to(A)];
    let mut bench = Bench::topa(&table).single_region().started();
    assert!(!bench.fill(K4 + 1));
    assert_eq!(bench.effects(), [(R, early), PMI, (R + early, K4 - early)]);
    assert!(bench.regs.status.stopped());
    bench.is_over();
}

// ToPA errors

/// An entry of a table that breaks a rule, found at start and when it is reached after other regions.
#[track_caller]
fn malformed(entry: Entry, index: u64, single: bool, rule: Malformed) {
    let with = |table: &[Entry]| {
        let bench = Bench::topa(table);
        if single { bench.single_region() } else { bench }
    };
    let mut table = vec![region(R, K4); index as usize];
    table.extend([entry, region(R, K4)]);
    let mut bench = with(&table).at(index, 0);
    assert_eq!(
        topa::enter(&mut bench.regs, &bench.caps, &mut bench.world),
        Err(rule)
    );
    assert!(!bench.start(), "at start");
    assert!(bench.has_error());
    assert_eq!(bench.pointers(), (A, index, 0));
    bench.is_over();
    assert_eq!(bench.effects(), []);

    // Reached from the region before it, which has INT; its PMI comes. Entry 0 is reached from another table.
    let mut bench = if index == 0 {
        with(&table).table(B, &[region(R, K4).with_int(), back_to(A)])
    } else {
        table[index as usize - 1] = region(R, K4).with_int();
        with(&table).at(index - 1, 0)
    };
    if index == 0 {
        bench.regs.base = OutputBase(B);
        // Where a table can have only one region, no other table is reached.
        bench.caps.topa_multiple = true;
    }
    assert!(bench.start());
    let room = if bench.caps.topa_multiple {
        K4
    } else {
        K4 - EARLY_PMI_BYTES
    };
    assert!(!bench.fill(K4 + 3), "when reached");
    let mut expected = vec![(R, room), PMI];
    if room < K4 {
        expected.push((R + room, K4 - room));
    }
    assert_eq!(bench.effects(), expected);
    assert!(bench.has_error());
    assert_eq!(bench.pointers(), (A, index, 0));
    bench.is_over();
}

#[test]
fn error_1_reserved_bits() {
    for bit in [1, 3, 5, 10, 11] {
        for index in [0, 1, 2] {
            let entry = Entry(region(R, K4).0 | 1 << bit);
            malformed(entry, index, false, Malformed::Reserved);
        }
    }
    for bit in [1, 3, 5] {
        let entry = Entry(back_to(A).0 | 1 << bit);
        malformed(entry, 1, false, Malformed::Reserved);
        malformed(entry, 1, true, Malformed::Reserved);
    }
}

#[test]
fn error_2a_table_alignment() {
    for bit in 7..12 {
        let mut bench = Bench::topa(&[region(R, K4)]);
        bench.regs.base = OutputBase(A | 1 << bit);
        assert_eq!(
            topa::enter(&mut bench.regs, &bench.caps, &mut bench.world),
            Err(Malformed::TableAlignment)
        );
        assert!(!bench.start() && bench.has_error());
        assert_eq!(bench.world.loads, 0);
    }
    for bit in [10, 11] {
        let entry = Entry(back_to(A).0 | 1 << bit);
        malformed(entry, 1, false, Malformed::TableAlignment);
    }
    // The size field means nothing in an END entry.
    let mut bench = Bench::topa(&[region(R, K4), Entry(back_to(A).0 | 0xf << 6)]).started();
    assert!(bench.fill(K4 + 1));
}

#[test]
fn error_2b_region_alignment() {
    for code in 1..16 {
        let size = K4 << code;
        for bit in [12, 11 + code] {
            let entry = region(S | 1 << bit, size);
            malformed(entry, 0, false, Malformed::RegionAlignment);
            malformed(entry, 3, false, Malformed::RegionAlignment);
        }
    }
}

#[test]
fn error_2c_upper_address_bits() {
    for entry in [region(1 << 52, K4), region(1 << 63, K4), back_to(1 << 52)] {
        malformed(entry, 1, false, Malformed::UpperAddressBits);
    }
    let mut bench = Bench::topa(&[region(1 << 39, K4)]);
    bench.caps.max_phys_addr = 39;
    assert!(!bench.start() && bench.has_error());
    bench.caps.max_phys_addr = 40;
    bench.regs.status = Status(0);
    assert!(bench.start());
}

#[test]
fn error_3_output_offset() {
    // Only registers that software wrote can hold this.
    for offset in [K4, K4 + 1, 0xffff_ffff] {
        let mut bench = Bench::topa(&[region(R, K4)]).at(0, offset);
        assert_eq!(
            topa::enter(&mut bench.regs, &bench.caps, &mut bench.world),
            Err(Malformed::OutputOffset)
        );
        assert!(!bench.start() && bench.has_error());
        assert_eq!(bench.pointers(), (A, 0, offset));
        bench.is_over();
    }
    assert!(Bench::topa(&[region(R, K4)]).at(0, K4 - 1).start());
}

#[test]
fn error_4a_end_with_stop_or_int() {
    for entry in [back_to(A).with_stop(), back_to(A).with_int()] {
        malformed(entry, 1, false, Malformed::EndWithStopOrInt);
        malformed(entry, 1, true, Malformed::EndWithStopOrInt);
    }
}

#[test]
fn error_4b_end_in_entry_0() {
    malformed(back_to(A), 0, false, Malformed::EndFirst);
    malformed(back_to(B), 0, false, Malformed::EndFirst);
    // A chain of tables that are nothing but links ends with the first of them.
    let mut bench = Bench::topa(&[region(R, K4), back_to(B)])
        .table(B, &[back_to(A)])
        .started();
    assert!(!bench.fill(K4));
    assert_eq!(bench.pointers(), (B, 0, 0));
    assert!(bench.has_error());
}

#[test]
fn error_4c_single_region() {
    malformed(region(S, K4), 1, true, Malformed::SingleWithoutEnd);
    malformed(back_to(B), 1, true, Malformed::SingleNotCircular);
    // No entry behind the second one has a region either.
    let mut bench = Bench::topa(&[region(R, K4), back_to(A), region(R, K4)])
        .single_region()
        .at(2, 0);
    assert!(!bench.start() && bench.has_error());
    // The second entry is looked at when it is reached.
    let mut bench = Bench::topa(&[region(R, K4), back_to(B)])
        .single_region()
        .started();
    assert!(bench.fill(K4 - 1));
    assert!(!bench.fill(1));
}

// 33.2.7.3

#[test]
fn transport() {
    // ToPA and the output registers are ignored.
    let ctl = Ctl(0).with_fabric_en(true).with_topa(true);
    let mut bench = Bench::new(ctl);
    bench.regs.base = OutputBase(0x80);
    let mut bench = bench.started();
    let before = bench.regs;
    assert!(bench.store(&[1, 2]));
    assert!(bench.store(&[]));
    assert!(bench.store(&[3]));
    assert_eq!(
        bench.world.effects,
        [Effect::Transport(vec![1, 2]), Effect::Transport(vec![3])]
    );
    assert_eq!(bench.regs, before);
}

// 33.2.7.4

#[test]
fn restricted_output_is_dropped() {
    let mut bench = Bench::range(R, 0xff, 0);
    bench.world.restricted.push(R + 4..R + 8);
    let mut bench = bench.started();
    assert!(bench.fill(2));
    assert!(bench.fill(4));
    assert!(bench.fill(1));
    assert!(bench.fill(3));
    assert_eq!(
        bench.effects(),
        [(R, 2), (R + 2, 1), (R + 3, 1), (R + 8, 1), (R + 9, 1)]
    );
    assert_eq!(bench.regs.mask_ptrs.offset(), 10);

    let table = [region(R, K4).with_int(), region(S, K4), back_to(A)];
    let mut bench = Bench::topa(&table);
    bench.world.restricted.push(R..R + K4);
    let mut bench = bench.started();
    assert!(bench.fill(K4 + 1));
    assert_eq!(bench.effects(), [PMI, (S, 1)]);
    assert!(!bench.regs.status.error());
}

#[test]
fn a_restricted_table_is_an_error() {
    let mut bench = Bench::topa(&[region(R, K4), region(S, K4)]);
    bench.world.restricted.push(A + 15..A + 16);
    let mut bench = bench.started();
    assert!(!bench.fill(K4 + 1));
    assert_eq!(bench.effects(), [(R, K4)]);
    assert!(bench.has_error());
    assert_eq!(bench.pointers(), (A, 1, 0));
    assert_eq!(bench.world.loads, 1, "it is not read");
    bench.is_over();
    bench.regs.status = Status(0);
    assert_eq!(
        topa::enter(&mut bench.regs, &bench.caps, &mut bench.world),
        Err(Malformed::Restricted)
    );
}

#[test]
fn nothing_is_stored_before_start() {
    let mut bench = Bench::range(R, 0x7f, 0);
    assert!(!bench.store(&[1]));
    assert_eq!(bench.world.effects, []);
}
