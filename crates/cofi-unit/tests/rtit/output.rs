//! Output to memory: the circular region, lines, and the Dest bit (2.3, 3.3.2, 3.3.10–12).

use crate::machine::{Machine, all, buffered, everywhere, stop_in_range1};
use cofi_unit::rtit::{Implementation, Lines, msr};
use std::collections::BTreeMap;

fn with_lines(lines: Lines, seed: u64) -> Implementation {
    let mut choices = Implementation::default();
    choices.lines = lines;
    choices.seed = seed;
    choices
}

/// Traced into this region, with nothing in it yet.
fn into(choices: Implementation, base: u64, mask: u64, offset: u64) -> Machine {
    let mut machine = Machine::traced(choices, everywhere(), all());
    machine.write(msr::RTIT_BASE_ADDR, base);
    machine.write(msr::RTIT_LIMIT_MASK, mask);
    machine.write(msr::RTIT_OFFSET, offset);
    machine.world.writes.clear();
    machine
}

fn lengths(machine: &Machine) -> Vec<(u64, usize)> {
    let writes = machine.world.writes.iter();
    writes.map(|(at, bytes)| (*at, bytes.len())).collect()
}

#[test]
fn after_reset_output_goes_to_the_reset_values() {
    let mut machine = Machine::plain();
    machine.write(msr::RTIT_OFFSET, 0);
    machine.indirect(0x2000);
    assert_eq!(lengths(&machine), [(0xfdc0_0000, 3)]);
}

#[test]
fn the_region_is_base_without_mask_bits_and_offset_under_the_mask() {
    let mut machine = into(Implementation::default(), 0x8_1234_5fc0, 0xfff, 0x2_3f10);
    machine.indirect(0x2000);
    assert_eq!(lengths(&machine), [(0x8_1234_5f10, 3)]);
    assert_eq!(machine.read(msr::RTIT_OFFSET), 0xf13);
}

#[test]
fn it_wraps_around() {
    let mut machine = into(Implementation::default(), 0x10000, 0x7f, 0x7e);
    machine.indirect(0x2000);
    assert_eq!(lengths(&machine), [(0x1007e, 2), (0x10000, 1)]);
    assert_eq!(machine.read(msr::RTIT_OFFSET), 1);
    assert_eq!(machine.said(), "tip 0x2000");
}

#[test]
fn offset_moves_when_bytes_leave_the_internal_buffer() {
    let mut machine = into(buffered(64), 0x10000, 0xfff, 0);
    machine.indirect(0x2000);
    assert_eq!(machine.read(msr::RTIT_OFFSET), 0);
    machine.unit.drain(&mut machine.world, 2);
    assert_eq!(machine.read(msr::RTIT_OFFSET), 2);
    machine.set_ctl(|ctl| ctl);
    assert_eq!(machine.read(msr::RTIT_OFFSET), 3);
}

#[test]
fn full_lines_and_parts_by_an_offset_a_fence_and_a_drain() {
    let mut machine = into(with_lines(Lines::Lines, 0), 0x10000, 0xfff, 0x30);
    for _ in 0..5 {
        machine.indirect(0x2000);
    }
    assert_eq!(lengths(&machine), []);
    machine.indirect(0x2000);
    assert_eq!(lengths(&machine), [(0x10030, 16)], "an unaligned offset");
    machine.unit.fence(&mut machine.world);
    assert_eq!(lengths(&machine)[1..], [(0x10040, 2)], "a fence");
    for _ in 0..22 {
        machine.indirect(0x2000);
    }
    assert_eq!(lengths(&machine)[2..], [(0x10042, 62)], "the rest");
    machine.set_ctl(|ctl| ctl.with_trace_active(false));
    assert_eq!(lengths(&machine)[3..], [(0x10080, 4)], "a drain");
    assert_eq!(machine.said(), ["tip 0x2000"; 28].join(", "));
}

#[test]
fn moving_the_output_writes_what_was_there() {
    let mut machine = into(with_lines(Lines::Lines, 0), 0x10000, 0xfff, 0);
    let writes = [
        (msr::RTIT_OFFSET, 0x100),
        (msr::RTIT_BASE_ADDR, 0x20000),
        (msr::RTIT_LIMIT_MASK, 0x7f),
    ];
    for (index, (address, value)) in writes.into_iter().enumerate() {
        machine.indirect(0x2000);
        assert_eq!(lengths(&machine).len(), index, "a line is open");
        machine.write(address, value);
        assert_eq!(lengths(&machine).len(), index + 1, "it is written at once");
    }
    machine.indirect(0x2000);
    machine.unit.fence(&mut machine.world);
    assert_eq!(
        lengths(&machine),
        [(0x10000, 3), (0x10100, 3), (0x20103, 3), (0x20006, 3)]
    );
}

/// Runs until much is written; checks the order by 2.3.2, and returns whether a line overtook another.
fn overtakes(seed: u64, mask: u64) -> bool {
    let lines_of_region = (mask + 1) / 64;
    let mut machine = into(with_lines(Lines::Reordered, seed), 0x10000, mask, 0);
    let mut expected = Vec::new();
    for step in 0..2000 {
        let to = 0x10_0000 + step * 0x1_0000;
        machine.indirect(to);
        expected.push(format!("tip {to:#x}"));
    }
    machine.unit.fence(&mut machine.world);
    // Which line this is, counted from the first: by its address, how often it came.
    let mut iterations = BTreeMap::new();
    let mut numbered = BTreeMap::new();
    let mut order = Vec::new();
    for (address, bytes) in std::mem::take(&mut machine.world.writes) {
        let line = (address - 0x10000) / 64;
        let iteration = iterations.entry(line).or_insert(0);
        let number = *iteration * lines_of_region + line;
        *iteration += 1;
        order.push(number);
        numbered.insert(number, bytes);
    }
    for (index, number) in order.iter().enumerate() {
        for older in order[index..].iter().filter(|older| *older < number) {
            assert!(older + lines_of_region > *number, "{number} before {older}");
        }
    }
    let in_order = numbered.into_values().flatten().collect();
    machine.world.writes = vec![(0, in_order)];
    let said = machine.said().replace("psb, ", "");
    assert_eq!(said, expected.join(", "));
    !order.is_sorted()
}

#[test]
fn lines_overtake_each_other_as_far_as_2_3_2_allows() {
    assert!(!overtakes(1, 0x3f), "never with one line");
    for seed in 0..20 {
        assert!(overtakes(seed, 0x7f));
        assert!(overtakes(seed, 0xff));
        assert!(overtakes(seed, 0xffff));
    }
}

#[test]
fn the_same_seed_orders_lines_alike() {
    let run = |seed| {
        let mut machine = into(with_lines(Lines::Reordered, seed), 0, 0xfff, 0);
        for _ in 0..500 {
            machine.indirect(0x2000);
        }
        machine.world.writes
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn a_trace_stop_without_dest_goes_to_offset_c0() {
    for lines in [Lines::Immediate, Lines::Lines, Lines::Reordered] {
        for (dest, stop_at) in [(true, 0x10103), (false, 0x101c0)] {
            let mut machine = Machine::traced(with_lines(lines, 0), stop_in_range1(), all());
            machine.set_ctl(|ctl| ctl.with_dest(dest));
            machine.write(msr::RTIT_BASE_ADDR, 0x10000);
            machine.write(msr::RTIT_LIMIT_MASK, 0xfff);
            machine.write(msr::RTIT_OFFSET, 0x100);
            machine.said();
            machine.indirect(0x2000);
            machine.jump(0x5000);
            assert_eq!(machine.read(msr::RTIT_OFFSET), 0x104);
            let last = machine.world.writes.last().cloned();
            match (lines, dest) {
                (Lines::Lines | Lines::Reordered, true) => {
                    assert_eq!(lengths(&machine), [(0x10100, 4)]);
                }
                _ => assert_eq!(last, Some((stop_at, vec![0xc1])), "{lines:?}"),
            }
            assert_eq!(machine.said(), "tip 0x2000, tracestop");
        }
    }
}
