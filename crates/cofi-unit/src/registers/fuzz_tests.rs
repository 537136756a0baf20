//! Random accesses on random processors, against the tables of 33.2.8 written down a second time as masks.

use super::{Registers, WriteContext};
use crate::spec::Capabilities;
use crate::spec::cpuid_tests::consistent;
use crate::spec::msr;
use crate::xsave::XsaveArea;
use proptest::prelude::*;
use std::vec::Vec;

/// The bits from `low` to `high`, both included, where `there` holds.
fn bits(there: bool, high: u32, low: u32) -> u64 {
    if there {
        u64::MAX >> (63 - high) & u64::MAX << low
    } else {
        0
    }
}

/// Table 33-6: the bits that a processor has.
fn ctl_bits(caps: &Capabilities) -> u64 {
    let ranges = if caps.ip_filter {
        caps.address_ranges
    } else {
        0
    };
    0b10_1100_0000_1101
        | bits(caps.psb_cyc, 1, 1)
        | bits(caps.power_event, 4, 4)
        | bits(caps.ptwrite, 5, 5)
        | bits(caps.transport, 6, 6)
        | bits(caps.cr3_filter, 7, 7)
        | bits(caps.topa, 8, 8)
        | bits(caps.mtc, 9, 9)
        | bits(caps.ptwrite, 12, 12)
        | bits(caps.mtc, 17, 14)
        | bits(caps.psb_cyc, 22, 19)
        | bits(caps.psb_cyc, 27, 24)
        | bits(caps.event_trace, 31, 31)
        | (0..u32::from(ranges)).fold(0, |all, n| all | bits(true, 35 + 4 * n, 32 + 4 * n))
        | bits(caps.tnt_disable, 55, 55)
        | bits(caps.psb_pmi_preservation, 56, 56)
}

fn ctl_is_legal(caps: &Capabilities, old: u64, value: u64) -> bool {
    let encoding = |low: u32| value >> low & 0xf;
    let in_bitmap = |there: bool, bitmap: u16, low: u32| !there || bitmap >> encoding(low) & 1 == 1;
    value & !ctl_bits(caps) == 0
        && in_bitmap(caps.mtc, caps.mtc_periods, 14)
        && in_bitmap(caps.psb_cyc, caps.cycle_thresholds, 19)
        && in_bitmap(caps.psb_cyc, caps.psb_frequencies, 24)
        && (0..4).all(|n| encoding(32 + 4 * n) <= 2)
        && (value & 1 == 0 || value & 0x140 != 0 || caps.single_range)
        && (old & 1 == 0 || value & 1 == 0 || value == old)
}

/// What a register reads as after a write; `None` for a #GP.
fn model(
    caps: &Capabilities,
    regs: &Registers,
    in_vmx: bool,
    address: u32,
    value: u64,
) -> Option<u64> {
    let memory = caps.topa || caps.single_range;
    let only = |there: bool, mask: u64| (there && value & !mask == 0).then_some(value);
    if !caps.supported || address != 0x570 && regs.ctl.trace_en() {
        return None;
    }
    match address {
        0x560 => only(memory, bits(true, u32::from(caps.max_phys_addr) - 1, 7)),
        0x561 => memory.then_some(value | 0x7f),
        0x570 => (ctl_is_legal(caps, regs.ctl.0, value) && (caps.vmx || !in_vmx)).then_some(value),
        0x571 => {
            let writable =
                0x30 | bits(caps.psb_pmi_preservation, 7, 6) | bits(caps.psb_cyc, 48, 32);
            only(true, writable | 7).map(|value| value & writable | regs.status.0 & 7)
        }
        0x572 => only(caps.cr3_filter, bits(true, 63, 5)),
        0x580..=0x587 => {
            let there = caps.ip_filter && (address - 0x580) / 2 < u32::from(caps.address_ranges);
            let upper = value >> (caps.max_linear_addr - 1);
            let all_ones = u64::MAX >> (caps.max_linear_addr - 1);
            let canonical = if caps.max_linear_addr == 32 {
                value <= u32::MAX.into()
            } else {
                upper == 0 || upper == all_ones
            };
            (there && canonical).then_some(value)
        }
        _ => None,
    }
}

#[derive(Clone, Debug)]
enum Action {
    Read(u32),
    Write(u32, u64, bool),
    /// A write that differs from the present value in these bits only.
    Change(u32, u64, bool),
    WarmReset,
    Save,
    Restore(bool),
    /// What only the processor does.
    Status(u64),
}

fn address() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => Just(msr::IA32_RTIT_CTL),
        8 => (0..msr::ALL.len()).prop_map(|index| msr::ALL[index].address),
        1 => 0x550u32..0x590,
        1 => any::<u32>(),
    ]
}

fn value() -> impl Strategy<Value = u64> {
    let few = prop::collection::vec(0u32..64, 0..4)
        .prop_map(|bits| bits.iter().fold(0, |all, bit| all | 1 << bit));
    prop_oneof![
        2 => any::<u64>(),
        6 => few,
        1 => Just(0),
        1 => Just(1),
        1 => Just(u64::MAX),
        1 => (any::<u64>(), 0u32..64).prop_map(|(value, shift)| (value.cast_signed() >> shift).cast_unsigned()),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        2 => address().prop_map(Action::Read),
        8 => (address(), value(), prop::bool::weighted(0.1)).prop_map(|(a, v, x)| Action::Write(a, v, x)),
        8 => (address(), value(), prop::bool::weighted(0.1)).prop_map(|(a, v, x)| Action::Change(a, v, x)),
        1 => Just(Action::WarmReset),
        1 => Just(Action::Save),
        1 => any::<bool>().prop_map(Action::Restore),
        1 => (0u64..8).prop_map(Action::Status),
    ]
}

fn run(caps: &Capabilities, actions: Vec<Action>) -> Result<(), TestCaseError> {
    let mut regs = Registers::new();
    let mut area = XsaveArea::default();
    for action in actions {
        let before = regs;
        match action {
            Action::Read(address) => {
                let exists = {
                    let mut idle = regs;
                    idle.ctl.0 &= !1;
                    model(caps, &idle, false, address, idle.get(address)).is_some()
                };
                prop_assert_eq!(regs.read(caps, address).is_ok(), exists);
            }
            Action::Write(address, bits, in_vmx) | Action::Change(address, bits, in_vmx) => {
                let value = match action {
                    Action::Change(..) => bits ^ regs.get(address),
                    _ => bits,
                };
                let context = WriteContext {
                    in_vmx_operation: in_vmx,
                };
                let expected = model(caps, &regs, in_vmx, address, value);
                let checked = regs.check(caps, context, address, value);
                prop_assert_eq!(checked.ok(), expected, "{:#x} {:#x}", address, value);
                prop_assert_eq!(regs, before);
                let written = regs.write(caps, context, address, value);
                prop_assert_eq!(written.is_ok(), expected.is_some());
                if let Some(expected) = expected {
                    prop_assert_eq!(regs.read(caps, address), Ok(expected));
                    // Nothing else has changed.
                    regs.commit(address, before.get(address));
                    prop_assert_eq!(regs, before);
                    regs.commit(address, expected);
                } else {
                    prop_assert_eq!(regs, before);
                }
            }
            Action::WarmReset => {
                regs.warm_reset(caps);
                prop_assert!(!regs.in_use());
                if !caps.ip_filter {
                    prop_assert_eq!(regs, Registers::new());
                }
            }
            Action::Save => area = regs.save_component(caps),
            Action::Restore(initial) => {
                let from = (!initial).then_some(&area);
                let restored = regs.check_component(caps, WriteContext::default(), from);
                // An area that was never saved is all zeros, which the registers can hold.
                prop_assert_eq!(restored.is_ok(), !regs.in_use());
                if let Ok(new) = restored {
                    let saved = new.save_component(caps);
                    let wanted = from
                        .copied()
                        .unwrap_or(Registers::new().save_component(caps));
                    prop_assert_eq!(saved.ctl, wanted.ctl);
                    prop_assert_eq!(saved.ranges, wanted.ranges);
                    prop_assert_eq!(saved.output_base, wanted.output_base);
                    prop_assert_eq!(&new.ranges[2..], &regs.ranges[2..]);
                    regs = new;
                }
            }
            Action::Status(bits) => regs.status.0 = regs.status.0 & !7 | bits,
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn accesses_do_what_the_tables_say(
        caps in consistent(),
        actions in prop::collection::vec(action(), 1..80),
    ) {
        run(&caps, actions)?;
    }

    /// Capabilities that no processor has do no harm either.
    #[test]
    fn nonsense_widths_do_not_panic(
        caps in consistent(),
        (max_phys_addr, max_linear_addr, address_ranges) in any::<(u8, u8, u8)>(),
        address in address(),
        value in value(),
    ) {
        let caps = Capabilities { max_phys_addr, max_linear_addr, address_ranges, ..caps };
        let mut regs = Registers::new();
        let _ = regs.write(&caps, WriteContext::default(), address, value);
        let _ = regs.read(&caps, address);
        let _ = caps.validate();
    }
}
