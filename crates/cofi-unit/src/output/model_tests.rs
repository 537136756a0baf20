//! The output against a model of it that goes byte by byte, on random registers, tables and stores.

use super::tests::{Effect, World};
use super::*;
use crate::spec::{Ctl, OutputBase, OutputMaskPtrs, Status};
use proptest::prelude::*;
use std::vec::Vec;

/// What happens to one byte, or the PMI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Byte(u64, u8),
    Transported(u8),
    Pmi,
}

/// The output as 33.2.7 tells it, in its words, without a thought of speed.
#[derive(Default)]
struct Model {
    alive: bool,
    error: bool,
    stopped: bool,
    pend_topa_pmi: bool,
    fabric: bool,
    topa: bool,
    inject: bool,
    multiple: bool,
    width: u32,
    output_base: u64,
    mask_or_table_offset: u64,
    output_offset: u64,
    /// The entry in use, as it was when it was reached.
    entry: u64,
    /// The PMI of the region in use has been raised.
    raised: bool,
    /// The write pointer entered the region in use in its last 512 bytes.
    late: bool,
    steps: Vec<Step>,
}

impl Model {
    fn start(&mut self, world: &World) {
        self.alive = false;
        if self.inject && self.pend_topa_pmi {
            self.steps.push(Step::Pmi);
        }
        if self.error || self.stopped {
            return;
        }
        self.alive = true;
        if self.fabric {
        } else if self.topa {
            self.reach(world);
        } else {
            let mask = self.mask_or_table_offset << 7 | 0x7f;
            let ones = (0..32).take_while(|bit| mask >> bit & 1 == 1).count();
            if mask.count_ones() as usize != ones
                || (0..64).any(|bit| (mask & self.output_base) >> bit & 1 == 1)
                || self.output_offset > mask
            {
                self.fail();
            }
        }
    }

    fn fail(&mut self) {
        (self.alive, self.error) = (false, true);
    }

    fn bit(&self, bit: u32) -> bool {
        self.entry >> bit & 1 == 1
    }

    fn region_size(&self) -> u64 {
        let code = (6..10)
            .rev()
            .fold(0, |code, bit| code * 2 + u32::from(self.bit(bit)));
        4096 * 2u64.pow(code)
    }

    fn address(&self) -> u64 {
        self.entry / 4096 * 4096
    }

    /// proc_trace_table_offset has come to point to an entry.
    fn reach(&mut self, world: &World) {
        for _ in 0..2 {
            let pointer = u128::from(self.output_base) + u128::from(self.mask_or_table_offset) * 8;
            if !self.output_base.is_multiple_of(4096) || pointer >= 1 << self.width {
                return self.fail();
            }
            let pointer = pointer as u64;
            // Its 8 bytes; the address is a multiple of 8.
            if (pointer..=pointer + 7).any(|byte| is_restricted(world, byte)) {
                return self.fail();
            }
            self.entry = world.tables.get(&pointer).copied().unwrap_or(0);
            let reserved = [1, 3, 5, 10, 11].into_iter().chain(self.width..64);
            if reserved.into_iter().any(|bit| self.bit(bit)) {
                return self.fail();
            }
            let (end, int, stop) = (self.bit(0), self.bit(2), self.bit(4));
            let first = self.mask_or_table_offset == 0;
            let wrong = if end {
                int || stop || first || !self.multiple && self.address() != self.output_base
            } else {
                !self.multiple && !first || !self.address().is_multiple_of(self.region_size())
            };
            if wrong {
                return self.fail();
            }
            if !end {
                break;
            }
            self.output_base = self.address();
            self.mask_or_table_offset = 0;
            self.output_offset = 0;
        }
        if self.output_offset >= self.region_size() {
            return self.fail();
        }
        self.raised = false;
        self.late = self.region_size() - self.output_offset <= 512;
    }

    fn byte(&mut self, world: &World, byte: u8) {
        if !self.alive {
            return;
        }
        if self.fabric {
            self.steps.push(Step::Transported(byte));
            return;
        }
        if !self.topa {
            let mask = self.mask_or_table_offset << 7 | 0x7f;
            let address = (self.output_base & !mask) + (self.output_offset & mask);
            self.put(world, address, byte);
            self.output_offset = (self.output_offset + 1) % (mask + 1);
            return;
        }
        self.put(world, self.address() + self.output_offset, byte);
        self.output_offset += 1;
        let filled = self.output_offset == self.region_size();
        let early = !self.multiple && !self.late && self.region_size() - self.output_offset == 512;
        if filled && self.bit(4) {
            (self.alive, self.stopped) = (false, true);
        }
        if self.bit(2) && (early || filled && !self.raised) {
            self.raised = true;
            self.pend_topa_pmi |= self.inject;
            self.steps.push(Step::Pmi);
        }
        if filled && self.alive {
            self.mask_or_table_offset = (self.mask_or_table_offset + 1) % (1 << 25);
            self.output_offset = 0;
            self.reach(world);
        }
    }

    fn put(&mut self, world: &World, address: u64, byte: u8) {
        if !is_restricted(world, address) {
            self.steps.push(Step::Byte(address, byte));
        }
    }
}

fn is_restricted(world: &World, byte: u64) -> bool {
    world.restricted.iter().any(|range| range.contains(&byte))
}

/// What the output did, byte by byte.
fn steps(effects: &[Effect]) -> Vec<Step> {
    effects
        .iter()
        .flat_map(|effect| -> Vec<Step> {
            match effect {
                Effect::Store(address, bytes) => (*address..=u64::MAX)
                    .zip(bytes)
                    .map(|(address, byte)| Step::Byte(address, *byte))
                    .collect(),
                Effect::Transport(bytes) => bytes.iter().copied().map(Step::Transported).collect(),
                Effect::Pmi => [Step::Pmi].into(),
            }
        })
        .collect()
}

#[derive(Clone, Debug)]
enum Action {
    Store(usize),
    /// TraceEn is cleared and set.
    Restart,
    /// As the former, with Error and Stopped cleared and the pointers moved.
    Configure(u64, u64, u64),
    /// Software writes a table entry.
    Poke(u64, u64),
}

fn table() -> impl Strategy<Value = u64> {
    (1u64..4).prop_map(|number| number << 12)
}

fn entry() -> impl Strategy<Value = u64> {
    let region = (0u64..24, 0u64..2, any::<[bool; 2]>(), 0u32..4).prop_map(
        |(page, code, [int, stop], whim)| {
            let int = u64::from(int) << 2;
            let stop = u64::from(stop && whim < 2) << 4;
            ((page << 12) + 0x10_0000) | code << 6 | int | stop
        },
    );
    prop_oneof![
        12 => region,
        4 => table().prop_map(|table| table | 1),
        1 => any::<u64>(),
        1 => (table(), 0u32..64).prop_map(|(table, bit)| table | 1 | 1 << bit),
    ]
}

fn slot() -> impl Strategy<Value = u64> {
    (table(), 0u64..5).prop_map(|(table, index)| table + index * 8)
}

/// Values for OUTPUT_BASE, MaskOrTableOffset and OutputOffset.
fn pointers() -> impl Strategy<Value = (u64, u64, u64)> {
    let base = prop_oneof![6 => table(), 1 => any::<u64>().prop_map(|base| base & !0x7f), 1 => Just(!0xfffu64)];
    let mask = prop_oneof![
        6 => 0u64..5,
        2 => (0u32..26).prop_map(|ones| (1 << ones) - 1),
        1 => 0u64..1 << 25,
    ];
    let offset =
        prop_oneof![4 => 0u64..4096, 4 => 3500u64..4096, 1 => any::<u32>().prop_map(u64::from)];
    (base, mask, offset)
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (0usize..20).prop_map(Action::Store),
        4 => (0usize..9000).prop_map(Action::Store),
        2 => Just(Action::Restart),
        3 => pointers().prop_map(|(base, mask, offset)| Action::Configure(base, mask, offset)),
        1 => (slot(), entry()).prop_map(|(slot, entry)| Action::Poke(slot, entry)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn every_byte_lands_where_the_manual_says(
        tables in prop::collection::vec(entry(), 15),
        restricted in prop::collection::vec((0u64..40, 0u64..0x900), 0..3),
        (topa, fabric, inject, multiple) in (
            prop::bool::weighted(0.8), prop::bool::weighted(0.05), any::<bool>(), prop::bool::weighted(0.5)
        ),
        pend in any::<bool>(),
        width in prop_oneof![Just(52u8), Just(64), Just(36), Just(21), any::<u8>()],
        (base, mask, offset) in pointers(),
        actions in prop::collection::vec(action(), 1..20),
    ) {
        let mut world = World::default();
        let slots = (1..4).flat_map(|table| (0..5).map(move |index| (table << 12) + index * 8));
        world.tables.extend(slots.zip(tables));
        // Pages of the regions and, rarely, of the tables.
        world.restricted.extend(restricted.into_iter().map(|(page, len)| {
            let start = if page < 36 { 0x10_0800 + (page << 12) } else { (page - 36) << 12 | 0x18 };
            start..start + len
        }));
        let caps = Capabilities { topa_multiple: multiple, max_phys_addr: width, ..Capabilities::default() };
        let mut regs = Registers::new();
        regs.ctl = Ctl(0).with_trace_en(true).with_topa(topa).with_fabric_en(fabric).with_inject(inject);
        regs.status = Status(0).with_pend_topa_pmi(pend);
        regs.base = OutputBase(base);
        regs.mask_ptrs = OutputMaskPtrs(0x7f).with_mask(mask).with_offset(offset);
        let mut model = Model {
            pend_topa_pmi: pend, fabric, topa, inject, multiple,
            width: u32::from(width).clamp(8, 64),
            output_base: base, mask_or_table_offset: mask, output_offset: offset,
            ..Model::default()
        };
        let mut out = Output::default();
        let mut next_byte = 0u8;
        for action in [Action::Restart].into_iter().chain(actions) {
            let alive = match action {
                Action::Store(len) => {
                    let bytes: Vec<u8> = (0..len).map(|_| { next_byte = next_byte.wrapping_add(1); next_byte }).collect();
                    bytes.iter().for_each(|byte| model.byte(&world, *byte));
                    out.store(&mut regs, &caps, &mut world, &bytes)
                }
                Action::Restart | Action::Configure(..) => {
                    if let Action::Configure(base, mask, offset) = action {
                        regs.base = OutputBase(base);
                        regs.mask_ptrs = regs.mask_ptrs.with_mask(mask).with_offset(offset);
                        regs.status = regs.status.with_error(false).with_stopped(false);
                        (model.output_base, model.mask_or_table_offset, model.output_offset) = (base, mask, offset);
                        (model.error, model.stopped) = (false, false);
                    }
                    regs.status = regs.status.with_trigger_en(true);
                    model.start(&world);
                    out.start(&mut regs, &caps, &mut world)
                }
                Action::Poke(slot, entry) => {
                    world.tables.insert(slot, entry);
                    continue;
                }
            };
            prop_assert_eq!(alive, model.alive);
            prop_assert_eq!(regs.status.trigger_en(), alive);
            prop_assert_eq!(regs.status.error(), model.error);
            prop_assert_eq!(regs.status.stopped(), model.stopped);
            prop_assert_eq!(regs.status.pend_topa_pmi(), model.pend_topa_pmi);
            prop_assert_eq!(regs.base.0, model.output_base);
            prop_assert_eq!(regs.mask_ptrs.mask(), model.mask_or_table_offset);
            prop_assert_eq!(regs.mask_ptrs.offset(), model.output_offset);
            prop_assert_eq!(steps(&world.effects), core::mem::take(&mut model.steps));
            world.effects.clear();
        }
    }
}
