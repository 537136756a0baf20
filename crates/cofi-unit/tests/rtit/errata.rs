//! The errata of Appendix E: each does what it says, and nothing without its switch (which the other tests show).

use crate::machine::{KERNEL, Machine, USER, all, buffered, everywhere, filter, stop_in_range1};
use cofi_packet::Ip;
use cofi_unit::At;
use cofi_unit::rtit::{Destination, Errata, Event, Events, Implementation, msr};

/// A processor with one of the errata: each time that it can happen, if the seed is 0.
fn only(change: fn(&mut Errata), seed: u64) -> Implementation {
    let mut errata = Errata::default();
    change(&mut errata);
    let mut choices = Implementation::default();
    choices.errata = errata;
    choices.seed = seed;
    choices
}

#[test]
fn e1_fup_far_within_an_instruction_of_many_prefixes() {
    for seed in 0..50 {
        let choices = only(|errata| errata.e1 = true, seed);
        for (prefixes, len) in [(0, 2), (3, 5), (4, 5), (5, 9), (14, 15)] {
            let mut machine = Machine::traced(choices, everywhere(), all());
            let at = At {
                ip: Ip(0x1000),
                next: Ip(0x1000 + len),
            };
            let to = Destination {
                ip: Ip(0x2000),
                context: KERNEL,
            };
            machine.event(Event::FarBranch { at, to, prefixes });
            let said = machine.said();
            let is_inside =
                (0x1001..0x1000 + len - 1).any(|ip| said == format!("fup.far {ip:#x}, tip 0x2000"));
            assert_eq!(is_inside, prefixes > 3, "{said}");
            if prefixes <= 3 {
                assert_eq!(said, format!("fup.far {:#x}, tip 0x2000", 0x1000 + len));
            }
        }
    }
}

#[test]
fn e2_extra_fup_pgd_by_ip_filtering() {
    let choices = only(|errata| errata.e2 = true, 0);
    let mut machine = Machine::traced(choices, filter(Events::RANGE0), all().with_os(false));
    machine.far(0x1000, USER);
    machine.interrupt(0x8000, KERNEL);
    assert_eq!(machine.said(), "fup.pge 0x1000, fup.pgd 0x1000");
    machine.far(0x3000, USER);
    assert_eq!(machine.said(), "fup.pgd 0x8004", "FilterEn had stayed");
    machine.interrupt(0x8000, KERNEL);
    machine.far(0x3000, USER);
    assert_eq!(machine.said(), "", "FilterEn was clear");
}

#[test]
fn e2_extra_fup_pgd_by_trace_stop_or_enabling() {
    let choices = only(|errata| errata.e2 = true, 0);
    let mut machine = Machine::traced(choices, stop_in_range1(), all().with_os(false));
    machine.far(0x5000, USER);
    assert_eq!(machine.said(), "fup.pgd 0x1004, tracestop");
    machine.write(
        msr::RTIT_EVENTS,
        everywhere().with_trace_stop(Events::ALWAYS_ON).0,
    );
    machine.set_ctl(|ctl| ctl.with_trace_active(true));
    assert_eq!(machine.said(), "psb, fup.pgd 0x5008, tracestop");
    // Without a transition of ContextEn or TriggerEn there is none.
    machine.write(msr::RTIT_EVENTS, filter(Events::RANGE0).0);
    machine.set_ctl(|ctl| ctl.with_trace_active(true));
    machine.jump(0x3000);
    assert_eq!(machine.said(), "psb");
}

#[test]
fn e2_needs_a_transition_of_context_en_or_trigger_en() {
    let choices = only(|errata| errata.e2 = true, 0);
    let events = filter(Events::RANGE0).with_trace_stop(Events::RANGE1);
    let mut machine = Machine::traced(choices, events, all());
    machine.set_ctl(|ctl| ctl.with_trace_active(false));
    machine.far(0x3000, KERNEL);
    assert_eq!((machine.said(), machine.status()), (String::new(), 2));
    machine.set_ctl(|ctl| ctl.with_trace_active(true));
    machine.far(0x5000, KERNEL);
    assert_eq!(machine.said(), "psb, tracestop");
}

#[test]
fn e3_a_psb_one_packet_late() {
    let choices = only(|errata| errata.e3 = true, 0);
    let mut machine = Machine::traced(choices, everywhere(), all());
    machine.write(msr::RTIT_PKT_CNT, 0x7fe);
    for _ in 0..3 {
        machine.indirect(0x2000);
    }
    assert_eq!(machine.said(), "tip 0x2000, tip 0x2000, psb, tip 0x2000");
    assert_eq!(machine.read(msr::RTIT_PKT_CNT), 12);
    let late = |seed| {
        let choices = only(|errata| errata.e3 = true, seed);
        let mut machine = Machine::traced(choices, everywhere(), all());
        machine.write(msr::RTIT_PKT_CNT, 0x7fe);
        machine.indirect(0x2000);
        machine.said() == "tip 0x2000"
    };
    let count = (1..100).filter(|seed| late(*seed)).count();
    assert!((20..80).contains(&count), "only sometimes: {count}");
}

#[test]
fn e4_a_trace_stop_in_an_overflow_does_not_stop() {
    let mut choices = buffered(32);
    choices.errata = {
        let mut errata = Errata::default();
        errata.e4 = true;
        errata
    };
    let mut machine = Machine::traced(choices, stop_in_range1(), all());
    machine.conditionals("N");
    machine.overflow();
    // Its buffer is empty: it is resolved as soon as it is met.
    machine.jump(0x5000);
    machine.drain();
    assert_eq!(machine.said(), "tracestop, tnt N, fup.ovf 0x5000");
    assert!(machine.ctl().trace_active());
    machine.indirect(0x2000);
    machine.drain();
    assert_eq!(machine.said(), "tip 0x2000");
}

#[test]
fn e5_a_tip_behind_fup_buff_ovf() {
    let choices = only(|errata| errata.e5 = true, 0);
    let mut machine = Machine::traced(choices, everywhere(), all());
    machine.overflow();
    machine.indirect(0x7fff_0000_0000);
    assert_eq!(machine.said(), "fup.ovf 0x7fff00000000, tip 0x7fff00000000");
    machine.overflow();
    machine.far(0x2000, KERNEL);
    assert_eq!(machine.said(), "fup.ovf 0x2000, tip 0x2000");
    machine.overflow();
    machine.jump(0x3000);
    assert_eq!(machine.said(), "fup.ovf 0x3000", "no indirect branch");
}

#[test]
fn e6_cycle_counts_are_one_too_low() {
    let choices = only(|errata| errata.e6 = true, 0);
    let mut machine = Machine::traced(choices, everywhere(), all().with_cycle_acc(true));
    for cycles in [0, 1, 2, 64, 100_000] {
        machine.pass(cycles, 0);
        machine.indirect(0x2000);
        let payload = cycles.saturating_sub(1);
        assert_eq!(machine.said(), format!("tip 0x2000 cycles={payload}"));
    }
}

#[test]
fn e7_the_first_mtc_at_the_wrong_time() {
    let choices = only(|errata| errata.e7 = true, 0);
    let mut machine = Machine::traced(choices, everywhere(), all().with_mtc_en(true));
    machine.pass(0, 0x10);
    machine.nop();
    assert_eq!(machine.said(), "mtc range=0 tsc=0");
    machine.pass(0, 0x60);
    machine.nop();
    machine.pass(0, 0x10);
    machine.nop();
    assert_eq!(machine.said(), "mtc range=0 tsc=1");
}

#[test]
fn e8_packets_after_a_psb_are_muddled() {
    let mut kinds = [0; 2];
    for seed in 1..60 {
        let choices = only(|errata| errata.e8 = true, seed);
        let mut machine = Machine::traced(choices, everywhere(), all());
        machine.said();
        machine.write(msr::RTIT_PKT_CNT, 0x800);
        let mut expected = vec!["psb".to_owned()];
        for target in 0..30 {
            let target = 0x2000 + 8 * target;
            machine.indirect(target);
            expected.push(format!("tip {target:#x}"));
        }
        machine.set_ctl(|ctl| ctl.with_trace_active(false));
        let said = machine.said();
        let said: Vec<_> = said.split(", ").map(str::to_owned).collect();
        assert_eq!(said[22..].last(), expected.last());
        let mut sorted = said.clone();
        sorted.sort();
        if said == expected {
            continue;
        }
        let at = said.iter().zip(&expected).position(|(a, b)| a != b);
        assert!(at.is_some_and(|at| (1..=21).contains(&at)), "{said:?}");
        assert_eq!(said[0], "psb");
        if said.len() == expected.len() {
            let mut all = expected.clone();
            all.sort();
            assert_eq!(sorted, all, "the same packets");
            kinds[0] += 1;
        } else {
            assert_eq!(said.len() + 1, expected.len(), "one is overwritten");
            kinds[1] += 1;
        }
    }
    assert!(kinds[0] > 5 && kinds[1] > 5, "{kinds:?}");
}

#[test]
fn the_same_seed_does_the_same() {
    let run = |seed| {
        let mut choices = Implementation::default();
        choices.errata = Errata::ALL;
        choices.seed = seed;
        let ctl = all().with_mtc_en(true).with_cycle_acc(true);
        let mut machine = Machine::traced(choices, everywhere(), ctl);
        machine.write(msr::RTIT_PKT_CNT, 0);
        for _ in 0..3000 {
            machine.pass(3, 7);
            machine.indirect(0x2000);
            machine.conditionals("T");
        }
        machine.bytes()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn e4_its_trace_stop_packet_can_cause_a_psb() {
    let choices = only(|errata| errata.e4 = true, 0);
    let mut machine = Machine::traced(choices, stop_in_range1(), all());
    machine.write(msr::RTIT_PKT_CNT, 3 << 16 | 0x3fff);
    machine.overflow();
    machine.jump(0x5000);
    assert_eq!(machine.said(), "tracestop, fup.ovf 0x5000, psb");
    assert_eq!(machine.read(msr::RTIT_PKT_CNT), 3 << 16 | 9);
    // By software that ends the overflow.
    let choices = {
        let mut new_choices = buffered(32);
        new_choices.errata = choices.errata;
        new_choices
    };
    let mut machine = Machine::traced(choices, stop_in_range1(), all());
    machine.write(msr::RTIT_PKT_CNT, 3 << 16 | 0x3ffc);
    machine.indirect(0x2000);
    machine.overflow();
    machine.jump(0x5000);
    machine.write(msr::RTIT_STATUS, 1);
    machine.drain();
    assert_eq!(machine.said(), "tip 0x2000, tracestop, psb");
    assert_eq!(machine.read(msr::RTIT_PKT_CNT), 3 << 16 | 9);
}
