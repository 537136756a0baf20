//! Cycle counts, FUP.PCC, MTC, STS and sleep (3.3.4, 4.2.6, 4.2.10, 4.2.12–15, Table 17, Appendix B).

use crate::machine::{KERNEL, Machine, all, everywhere, filter};
use cofi_unit::rtit::{Ctl, Event, Events, Implementation, InternalBuffer, SleepState, Unit, msr};

fn with_ctl(ctl: Ctl) -> Machine {
    Machine::traced(Implementation::default(), everywhere(), ctl)
}

/// Traced in RANGE0 only.
fn in_region(ctl: Ctl) -> Machine {
    Machine::traced(Implementation::default(), filter(Events::RANGE0), ctl)
}

const HALF: u64 = 1 << 21;

#[test]
fn a_cycle_count_behind_the_packets_of_4_2_15() {
    let mut machine = with_ctl(
        all()
            .with_cycle_acc(true)
            .with_mtc_en(true)
            .with_sts_en(true),
    );
    machine.pass(5, 0);
    machine.conditionals("N");
    machine.pass(2, 0);
    machine.indirect(0x2000);
    assert_eq!(machine.said(), "tnt N, tip 0x2000 cycles=7");
    machine.pass(100, 0);
    machine.far(0x3000, KERNEL);
    assert_eq!(
        machine.said(),
        "fup.far 0x2004 cycles=100, tip 0x3000 cycles=0"
    );
    machine.conditionals("NNNNN");
    machine.pass(9, 0);
    machine.conditionals("N");
    assert_eq!(machine.said(), "tnt bits=NNNNNN cycles=9");
    machine.pass(1, 0x80);
    machine.special(|at| Event::MovCr3 { at, cr3: 0x4000 });
    assert_eq!(
        machine.said(),
        "mtc range=0 tsc=1 cycles=1, pip cr3=0x4000 pg=1 cycles=0"
    );
    machine.pass(HALF - 1, 0);
    machine.event(Event::Frequency {
        actual: 20,
        effective: 10,
    });
    assert_eq!(machine.said(), "sts acbr=20 ecbr=10 tsc=128 cycles=2097151");
    machine.write(msr::RTIT_PKT_CNT, 0x800);
    assert_eq!(machine.said(), "psb");
}

#[test]
fn the_count_wraps_at_22_bits_and_can_be_written() {
    let mut machine = Machine::plain();
    machine.write(msr::RTIT_CNTP, 0x3f_ffff);
    machine.pass(3, 0);
    machine.nop();
    assert_eq!(machine.read(msr::RTIT_CNTP), 2);
    machine.indirect(0x2000);
    assert_eq!(machine.read(msr::RTIT_CNTP), 2, "no count was sent");
}

#[test]
fn where_the_count_runs_by_table_17() {
    for (less_pkts, runs) in [(false, 0), (true, 10)] {
        let mut machine = in_region(all().with_less_pkts(less_pkts));
        machine.pass(10, 0);
        machine.jump(0x2000);
        assert_eq!(machine.read(msr::RTIT_CNTP), 10);
        machine.pass(10, 0);
        machine.nop();
        let outside = 10 + runs;
        assert_eq!(machine.read(msr::RTIT_CNTP), outside);
        machine.set_ctl(|ctl| ctl.with_os(false));
        machine.pass(10, 0);
        machine.nop();
        assert_eq!(machine.read(msr::RTIT_CNTP), outside);
    }
}

#[test]
fn pcc_at_the_beginning_of_an_instruction() {
    let mut machine = with_ctl(all().with_cycle_acc(true));
    machine.conditionals("N");
    machine.pass(HALF - 1, 0);
    machine.nop();
    assert_eq!(machine.said(), "");
    machine.pass(1, 0);
    machine.jump(0x2000);
    assert_eq!(machine.said(), "tnt N, fup.pcc 0x100c cycles=2097152");
}

#[test]
fn pcc_before_the_packets_of_its_instruction() {
    let mut machine = with_ctl(all().with_cycle_acc(true));
    machine.pass(HALF, 0);
    machine.ret(0x2000);
    machine.nop();
    assert_eq!(
        machine.said(),
        "fup.pcc 0x1004 cycles=2097152, tip 0x2000 cycles=0",
        "the address is never executed"
    );
}

#[test]
fn pcc_needs_cycle_accurate_mode_and_the_states_of_table_17() {
    let mut machine = Machine::plain();
    machine.write(msr::RTIT_CNTP, HALF);
    machine.nop();
    assert_eq!(machine.said(), "", "Cycle_Acc is clear");

    let mut machine = in_region(all().with_cycle_acc(true));
    machine.jump(0x2000);
    machine.said();
    machine.write(msr::RTIT_CNTP, HALF);
    machine.nop();
    assert_eq!(machine.said(), "fup.pcc 0x2008 cycles=2097152");

    let mut machine = in_region(all().with_cycle_acc(true).with_less_pkts(true));
    machine.jump(0x2000);
    machine.said();
    machine.write(msr::RTIT_CNTP, HALF);
    machine.nop();
    assert_eq!(machine.said(), "", "FilterEn is clear");
    machine.set_ctl(|ctl| ctl.with_os(false).with_less_pkts(false));
    machine.nop();
    assert_eq!(machine.said(), "", "ContextEn is clear");
}

#[test]
fn mtc_by_range() {
    for range in 0..4 {
        let shift = 7 + 2 * range;
        let mut machine = with_ctl(all().with_mtc_en(true).with_mtc_range(range));
        machine.pass(0, (1 << shift) - 1);
        machine.nop();
        assert_eq!(machine.said(), "");
        machine.pass(0, 1);
        machine.nop();
        assert_eq!(machine.said(), format!("mtc range={range} tsc=1"));
        machine.pass(0, 0xfe << shift);
        machine.conditionals("N");
        let every: Vec<_> = (2..=255)
            .map(|bits| format!("mtc range={range} tsc={bits}"))
            .collect();
        assert_eq!(machine.said(), every.join(", "));
        machine.pass(0, 1 << shift);
        machine.interrupt(0x2000, KERNEL);
        assert_eq!(
            machine.said(),
            format!("mtc range={range} tsc=0, tnt N, fup.far 0x100c, tip 0x2000")
        );
        machine.set_ctl(|ctl| ctl.with_mtc_en(false));
        machine.pass(0, 1 << shift);
        machine.nop();
        assert_eq!(machine.said(), "");
    }
}

#[test]
fn a_jump_beyond_what_mtcs_can_tell_sends_sts() {
    for (sts_en, expected) in [
        (true, "mtc range=0 tsc=1, sts acbr=0 ecbr=0 tsc=32896"),
        (false, "mtc range=0 tsc=1"),
    ] {
        let mut machine = with_ctl(all().with_mtc_en(true).with_sts_en(sts_en));
        machine.pass(0, 0x101 << 7);
        machine.nop();
        assert_eq!(machine.said(), expected);
    }
}

#[test]
fn mtc_and_sts_where_table_17_says() {
    let ctl = all().with_mtc_en(true).with_sts_en(true);
    for (less_pkts, expected) in [
        (false, "mtc range=0 tsc=1, sts acbr=0 ecbr=0 tsc=128"),
        (true, ""),
    ] {
        for hide in [true, false] {
            let mut machine = in_region(ctl.with_less_pkts(less_pkts));
            machine.jump(0x2000);
            machine.set_ctl(|ctl| ctl.with_os(!hide));
            machine.said();
            machine.pass(0, 0x80);
            machine.nop();
            machine.event(Event::Wake);
            assert_eq!(machine.said(), expected);
        }
    }
    let mut machine = in_region(ctl.with_less_pkts(true));
    machine.pass(0, 0x80);
    machine.event(Event::Wake);
    assert_eq!(
        machine.said(),
        "mtc range=0 tsc=1, sts acbr=0 ecbr=0 tsc=128"
    );
    machine.set_ctl(|ctl| ctl.with_trace_active(false));
    machine.pass(0, 0x80);
    machine.nop();
    machine.event(Event::Wake);
    assert_eq!(machine.said(), "");
}

#[test]
fn sts_tells_ratios_and_40_bits_of_time() {
    let mut machine = with_ctl(all().with_sts_en(true));
    machine.world.clock.tsc = 0x12_3456_789a_bcde;
    machine.event(Event::Frequency {
        actual: 0x3f,
        effective: 0x15,
    });
    assert_eq!(machine.said(), "sts acbr=63 ecbr=21 tsc=371390594270");
    machine.set_ctl(|ctl| ctl.with_sts_en(false));
    machine.event(Event::Wake);
    assert_eq!(machine.said(), "");
}

#[test]
fn no_pip_with_cr3_en_or_without_context_en() {
    let mut machine = with_ctl(
        all()
            .with_cr3_en(true)
            .with_sts_en(true)
            .with_sts_on_cr3(true),
    );
    machine.special(|at| Event::MovCr3 { at, cr3: 0 });
    assert_eq!(
        machine.said(),
        "sts acbr=0 ecbr=0 tsc=0, fup.pge 0x1004",
        "but STS"
    );
    let mut machine = with_ctl(all().with_os(false));
    machine.special(|at| Event::MovCr3 { at, cr3: 0x5000 });
    assert_eq!(machine.said(), "");
}

#[test]
fn sts_on_cr3_with_less_pkts_asks_for_the_state_behind_it() {
    let ctl = all()
        .with_cr3_en(true)
        .with_sts_en(true)
        .with_sts_on_cr3(true)
        .with_less_pkts(true);
    let mut machine = with_ctl(ctl);
    machine.special(|at| Event::MovCr3 { at, cr3: 0 });
    assert_eq!(machine.said(), "sts acbr=0 ecbr=0 tsc=0, fup.pge 0x1004");
    machine.special(|at| Event::MovCr3 { at, cr3: 0x5000 });
    assert_eq!(machine.said(), "fup.pgd 0x1008");
}

#[test]
fn asleep_nothing_counts_and_waking_tells_the_time() {
    for state in [
        SleepState::C1,
        SleepState::C2,
        SleepState::C4,
        SleepState::C6,
        SleepState::S0i,
    ] {
        let mut machine = with_ctl(
            all()
                .with_cycle_acc(true)
                .with_mtc_en(true)
                .with_sts_en(true),
        );
        machine.pass(3, 0);
        machine.event(Event::Sleep(state));
        machine.pass(1000, 0x1000);
        assert_eq!(machine.read(msr::RTIT_CNTP), 3);
        machine.event(Event::Wake);
        machine.nop();
        assert_eq!(
            machine.said(),
            "sts acbr=0 ecbr=0 tsc=4096 cycles=3",
            "and no MTC is owed"
        );
        machine.pass(4, 0x80);
        machine.nop();
        assert_eq!(machine.said(), "mtc range=0 tsc=33 cycles=4");
    }
}

#[test]
fn the_buffer_drains_before_deep_sleep_and_not_in_light_sleep() {
    for (state, drained) in [
        (SleepState::C1, false),
        (SleepState::C2, false),
        (SleepState::C4, true),
        (SleepState::C6, true),
        (SleepState::S0i, true),
    ] {
        let mut choices = Implementation::default();
        choices.buffer = Some(InternalBuffer {
            size: 64,
            drain_bytes: 1,
            drain_cycles: 10,
        });
        let mut machine = Machine::traced(choices, everywhere(), all());
        machine.indirect(0x2000);
        machine.event(Event::Sleep(state));
        machine.pass(1000, 0);
        machine.event(Event::Wake);
        machine.nop();
        let expected = if drained { "tip 0x2000" } else { "" };
        assert_eq!(machine.said(), expected);
        machine.pass(1000, 0);
        machine.nop();
        let expected = if drained { "" } else { "tip 0x2000" };
        assert_eq!(machine.said(), expected);
    }
}

#[test]
fn a_restored_unit_is_equal_whatever_time_has_been_noted() {
    let restored = |machine: &Machine| {
        let choices = *machine.unit.implementation();
        Unit::restore(choices, &machine.unit.save()).unwrap()
    };
    let ctl = all().with_mtc_en(true).with_cycle_acc(true);
    for ctl in [all(), all().with_mtc_en(true), ctl] {
        let mut machine = with_ctl(ctl);
        for _ in 0..3 {
            machine.pass(7, 100);
            machine.nop();
            assert_eq!(restored(&machine), machine.unit);
        }
        let before = machine.unit.clone();
        machine.conditionals("T");
        assert_ne!(before, machine.unit, "another result waits");
        let before = machine.unit.clone();
        machine.pass(1, 0);
        machine.nop();
        assert_ne!(before, machine.unit, "the cycle counter is another");
    }
    let plain = Unit::new(crate::machine::KERNEL);
    let mut seed = Implementation::default();
    seed.seed = 1;
    assert_ne!(plain, Unit::with(seed, crate::machine::KERNEL));
}

#[test]
fn whatever_happens_to_a_sleeper_wakes_it() {
    let clock = all().with_sts_en(true).with_cycle_acc(true);
    let asleep = || {
        let mut machine = with_ctl(clock);
        machine.pass(3, 0);
        machine.event(Event::Sleep(SleepState::C6));
        machine.pass(1000, 0x1000);
        machine
    };
    let woken = "sts acbr=0 ecbr=0 tsc=4096 cycles=3";
    let mut machine = asleep();
    machine.nop();
    assert_eq!(machine.said(), woken);
    machine.pass(5, 0);
    machine.indirect(0x2000);
    assert_eq!(machine.said(), "tip 0x2000 cycles=5", "it counts again");
    let mut machine = asleep();
    machine.interrupt(0x2000, crate::machine::KERNEL);
    let expected = format!("{woken}, fup.far 0x1000 cycles=0, tip 0x2000 cycles=0");
    assert_eq!(machine.said(), expected);
    let mut machine = asleep();
    machine.write(msr::RTIT_PKT_CNT, 0);
    assert_eq!(machine.said(), woken);
    let mut machine = asleep();
    let (actual, effective) = (1, 2);
    machine.event(Event::Frequency { actual, effective });
    machine.nop();
    let expected = "sts acbr=1 ecbr=2 tsc=4096 cycles=3, sts acbr=1 ecbr=2 tsc=4096 cycles=0";
    assert_eq!(machine.said(), expected, "that did not wake it");
}

#[test]
fn a_reset_keeps_the_ratios() {
    let mut machine = with_ctl(all());
    let (actual, effective) = (8, 4);
    machine.event(Event::Frequency { actual, effective });
    machine.unit.reset(false, crate::machine::KERNEL);
    let ctl = machine.ctl().with_os(true).with_sts_en(true);
    machine.write(msr::RTIT_CTL, ctl.with_trace_en(true).0);
    machine.set_ctl(|ctl| ctl.with_trace_active(true));
    machine.event(Event::Wake);
    assert_eq!(machine.said(), "psb, sts acbr=8 ecbr=4 tsc=0");
}
