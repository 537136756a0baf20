//! The registers (3.3).

use crate::machine::{KERNEL, Machine, World};
use cofi_packet::Ip;
use cofi_unit::rtit::msr::{self, Access};
use cofi_unit::rtit::{Destination, Event, Implementation, Unit};
use cofi_unit::{At, Fault};

#[test]
fn addresses_and_reset_values_are_those_of_the_tables() {
    let expected = [
        ("RTIT_LIP0", 0x760, 0),
        ("RTIT_LIP1", 0x761, 0),
        ("RTIT_LIP2", 0x762, 0),
        ("RTIT_LIP3", 0x763, 0),
        ("RTIT_CTL", 0x768, 0),
        ("RTIT_STATUS", 0x769, 0),
        ("RTIT_CNTP", 0x76b, 0),
        ("RTIT_EVENTS", 0x76c, 0),
        ("RTIT_LAST_LIP", 0x76e, 0),
        ("RTIT_LAST_CALL_NLIP", 0x76f, 0),
        ("RTIT_BASE_ADDR", 0x770, 0xfdc0_0000),
        ("RTIT_LIMIT_MASK", 0x771, 0x7f),
        ("RTIT_OFFSET", 0x772, 0),
        ("RTIT_CR3_MATCH", 0x777, 0),
        ("RTIT_PKT_CNT", 0x77c, 0x2_0000),
        ("RTIT_TNT_BUFF", 0x77d, 1),
    ];
    let mut unit = Unit::new(KERNEL);
    unit.rdmsr(msr::RTIT_CTL).unwrap();
    assert_eq!(msr::ALL.len(), expected.len());
    for (spec, (name, address, reset)) in msr::ALL.iter().zip(expected) {
        assert_eq!(
            (spec.name, spec.address, spec.reset),
            (name, address, reset)
        );
        assert_eq!(unit.rdmsr(address), Ok(reset), "{name}");
    }
}

#[test]
fn until_rtit_ctl_was_read_everything_else_faults() {
    let mut world = World::default();
    let mut unit = Unit::new(KERNEL);
    let at = At::default();
    for spec in msr::ALL {
        let value = spec.reset;
        let before = unit.clone();
        let written = unit.wrmsr(&mut world, at, spec.address, value);
        assert!(
            matches!(written, Err(Fault::GeneralProtection { msr, .. }) if msr == spec.address),
            "{}",
            spec.name
        );
        if spec.address != msr::RTIT_CTL {
            assert!(unit.rdmsr(spec.address).is_err(), "{}", spec.name);
        }
        assert!(unit == before);
    }
    unit.rdmsr(msr::RTIT_CTL).unwrap();
    for spec in msr::ALL {
        assert_eq!(unit.rdmsr(spec.address), Ok(spec.reset));
        let written = unit.wrmsr(&mut world, at, spec.address, spec.reset);
        assert_eq!(written, Ok(()), "{}", spec.name);
    }
    unit.reset(true, KERNEL);
    assert!(
        unit.rdmsr(msr::RTIT_EVENTS).is_err(),
        "locked anew by a reset"
    );
}

#[test]
fn there_is_no_other_register() {
    let mut machine = Machine::new(Implementation::default());
    for address in (0x750..0x790).filter(|a| msr::ALL.iter().all(|spec| spec.address != *a)) {
        assert!(machine.unit.rdmsr(address).is_err());
        assert!(machine.try_write(address, 0).is_err());
    }
}

#[test]
fn every_bit_is_written_ignored_or_faults_as_declared() {
    for spec in msr::ALL {
        let ones = spec.mask(Access::ReservedOne);
        for bit in (0..64).map(|bit| 1u64 << bit) {
            let mut machine = Machine::new(Implementation::default());
            let before = machine.read(spec.address);
            let value = bit | ones;
            let written = machine.try_write(spec.address, value);
            let has = |access| spec.mask(access) & bit != 0;
            let is_kept = has(Access::Rw) || has(Access::ReservedOne);
            let is_ignored = has(Access::ReadOnly) || has(Access::SignExtension);
            let expected = match (is_kept, is_ignored) {
                (true, _) => value,
                // Not for RTIT_TNT_BUFF, which has none.
                (false, true) => ones,
                (false, false) => {
                    assert!(written.is_err(), "{} {bit:#x}", spec.name);
                    assert_eq!(machine.read(spec.address), before);
                    continue;
                }
            };
            assert_eq!(written, Ok(()), "{} {bit:#x}", spec.name);
            let expected = match (spec.section, bit) {
                ("3.3.6", 0x8000_0000_0000) => 0xffff_8000_0000_0000,
                // Reading ContextEn, TriggerEn: what they are.
                _ => expected,
            };
            assert_eq!(
                machine.read(spec.address),
                expected,
                "{} {bit:#x}",
                spec.name
            );
        }
    }
}

#[test]
fn reserved_ones_of_the_limit_mask_cannot_be_cleared() {
    let mut machine = Machine::new(Implementation::default());
    for clear in 0..6 {
        let value = 0xfff & !(1 << clear);
        assert!(machine.try_write(msr::RTIT_LIMIT_MASK, value).is_err());
    }
    machine.write(msr::RTIT_LIMIT_MASK, 0xfff);
    assert_eq!(machine.read(msr::RTIT_LIMIT_MASK), 0xfff);
}

#[test]
fn sign_extensions_of_lips_are_ignored_and_read_as_bit_47() {
    let mut machine = Machine::new(Implementation::default());
    machine.write(msr::RTIT_LIP0, 0xabcd_0000_0000_1000);
    assert_eq!(machine.read(msr::RTIT_LIP0), 0x1000);
    machine.write(msr::RTIT_LIP0, 0x8000_0000_1000);
    assert_eq!(machine.read(msr::RTIT_LIP0), 0xffff_8000_0000_1000);
}

#[test]
fn tnt_buff_of_zero_faults() {
    let mut machine = Machine::new(Implementation::default());
    assert!(machine.try_write(msr::RTIT_TNT_BUFF, 0).is_err());
    assert_eq!(machine.read(msr::RTIT_TNT_BUFF), 1);
}

#[test]
fn read_only_bits_of_status_are_ignored() {
    let mut machine = Machine::plain();
    machine.write(msr::RTIT_STATUS, 1);
    assert_eq!(machine.status(), 7, "ContextEn and TriggerEn stay");
    machine.set_ctl(|ctl| ctl.with_trace_active(false).with_os(false));
    machine.write(msr::RTIT_STATUS, 7);
    assert_eq!(machine.status(), 1);
}

#[test]
fn init_clears_no_register() {
    let mut machine = Machine::plain();
    machine.write(msr::RTIT_CNTP, 0x123);
    let read = |machine: &mut Machine| {
        msr::ALL
            .iter()
            .filter(|spec| {
                // Packets of INIT itself change these.
                ![msr::RTIT_LAST_LIP, msr::RTIT_OFFSET, msr::RTIT_PKT_CNT].contains(&spec.address)
            })
            .map(|spec| machine.read(spec.address))
            .collect::<Vec<_>>()
    };
    let before = read(&mut machine);
    let (from, to) = (Ip(machine.ip), Destination::default());
    machine.event(Event::Init { from, to });
    assert_eq!(read(&mut machine), before);
}

#[test]
fn a_reset_warm_or_cold_brings_back_every_reset_value() {
    for warm in [false, true] {
        let mut machine = Machine::plain();
        machine.conditionals("TNT");
        machine.pass(100, 100);
        machine.call(0x2000);
        machine.unit.reset(warm, KERNEL);
        for spec in [msr::Ctl::SPEC].iter().chain(msr::ALL) {
            assert_eq!(machine.read(spec.address), spec.reset, "{}", spec.name);
        }
    }
}
