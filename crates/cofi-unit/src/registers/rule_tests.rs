//! Every rule of 33.2.8, register by register, from the declarations.

use super::{Fault, Registers, WriteContext};
use crate::spec::msr::{self, Access, FieldSpec, Form, RegisterSpec};
use crate::spec::{Capabilities, Ctl, Status};

const HERE: WriteContext = WriteContext {
    in_vmx_operation: false,
};
const ALL: Capabilities = Capabilities {
    max_phys_addr: 46,
    ..Capabilities::ALL
};

/// One capability taken away, with all that depends on it. `ranges` stands for the number of address ranges.
type Lack = (&'static str, fn(&mut Capabilities));

/// The fields of IA32_RTIT_CTL and IA32_RTIT_STATUS, by name, that a capability brings (Tables 33-6 and 33-7).
const LACKS: &[(Lack, &[&str])] = &[
    (("cr3_filter", |c| c.cr3_filter = false), &["CR3Filter"]),
    (
        ("psb_cyc", |c| c.psb_cyc = false),
        &["CYCEn", "CycThresh", "PSBFreq", "PacketByteCnt"],
    ),
    (("mtc", |c| c.mtc = false), &["MTCEn", "MTCFreq"]),
    (("ptwrite", |c| c.ptwrite = false), &["FUPonPTW", "PTWEn"]),
    (("power_event", |c| c.power_event = false), &["PwrEvtEn"]),
    (
        ("psb_pmi_preservation", |c| c.psb_pmi_preservation = false),
        &["InjectPsbPmiOnEnable", "PendPSB", "PendTopaPMI"],
    ),
    (("event_trace", |c| c.event_trace = false), &["EventEn"]),
    (("tnt_disable", |c| c.tnt_disable = false), &["DisTNT"]),
    (("topa", |c| c.topa = false), &["ToPA"]),
    (("transport", |c| c.transport = false), &["FabricEn"]),
    (
        ("ip_filter", |c| {
            c.ip_filter = false;
            c.address_ranges = 0;
        }),
        &["ADDR0_CFG", "ADDR1_CFG", "ADDR2_CFG", "ADDR3_CFG"],
    ),
    (("range 3", |c| c.address_ranges = 3), &["ADDR3_CFG"]),
    (
        ("range 2", |c| c.address_ranges = 2),
        &["ADDR2_CFG", "ADDR3_CFG"],
    ),
    (
        ("range 1", |c| c.address_ranges = 1),
        &["ADDR1_CFG", "ADDR2_CFG", "ADDR3_CFG"],
    ),
];

fn write(caps: &Capabilities, address: u32, value: u64) -> Result<u64, Fault> {
    Registers::new().check(caps, HERE, address, value)
}

/// Why it faults, which it must.
fn rule(result: Result<u64, Fault>) -> &'static str {
    match result {
        Err(Fault::GeneralProtection { rule, .. }) => rule,
        other => panic!("no #GP: {other:?}"),
    }
}

fn field(spec: &RegisterSpec, bit: u32) -> Option<&FieldSpec> {
    spec.fields.iter().find(|f| f.mask() >> bit & 1 == 1)
}

#[test]
fn the_declarations_are_those_of_the_manual() {
    let addresses = [
        0x560, 0x561, 0x570, 0x571, 0x572, 0x580, 0x581, 0x582, 0x583, 0x584, 0x585, 0x586, 0x587,
    ];
    assert!(msr::ALL.iter().map(|spec| spec.address).eq(addresses));
    for spec in msr::ALL {
        let sum: u128 = spec.fields.iter().map(|f| u128::from(f.mask())).sum();
        let union = spec.fields.iter().fold(0, |all, f| all | f.mask());
        assert_eq!(sum, union.into(), "fields of {} overlap", spec.name);
        assert_eq!(Registers::new().get(spec.address), spec.reset());
        assert_eq!(
            Registers::new().read(&ALL, spec.address),
            Ok(spec.reset()),
            "{}",
            spec.name
        );
    }
    assert_eq!(msr::ALL[1].reset(), 0x7f);
    // Tables 33-6 and 33-7: what is reserved.
    let defined = |spec: RegisterSpec| spec.fields.iter().fold(0, |all, f| all | f.mask());
    assert_eq!(!defined(Ctl::SPEC), 0xfe7f_0000_7084_0000);
    assert_eq!(!defined(Status::SPEC), 0xfffe_0000_ffff_ff08);
}

#[test]
fn each_bit_alone_is_written_ignored_or_faults() {
    for spec in msr::ALL {
        for bit in 0..64 {
            let (value, what) = (1 << bit, spec.name);
            let result = write(&ALL, spec.address, value);
            let Some(field) = field(spec, bit) else {
                assert!(rule(result).contains("reserved bit"), "{what} bit {bit}");
                continue;
            };
            match (field.form, field.access) {
                (Form::PhysicalAddress, _) if bit >= 46 => {
                    assert!(rule(result).contains("MAXPHYADDR"), "{what} bit {bit}");
                }
                (Form::LinearAddress, _) if bit >= 47 => {
                    assert!(rule(result).contains("canonical"), "{what} bit {bit}");
                }
                (_, Access::Rw) if field.is_legal(&ALL, value) => {
                    assert_eq!(result, Ok(value | spec.reset()), "{what} bit {bit}");
                }
                (_, Access::Rw) => {
                    assert!(rule(result).contains("an encoding"), "{what} bit {bit}");
                    assert!(field.name.ends_with("_CFG"), "{what} bit {bit}");
                }
                (_, Access::ReadOnly | Access::ForcedOne) => {
                    assert_eq!(result, Ok(spec.reset()), "{what} bit {bit}");
                }
            }
        }
    }
}

#[test]
fn all_ones_and_all_zeros() {
    for spec in msr::ALL {
        let ones = write(&ALL, spec.address, u64::MAX);
        match spec.address {
            msr::IA32_RTIT_OUTPUT_MASK_PTRS => assert_eq!(ones, Ok(u64::MAX)),
            // Minus one is canonical.
            0x580..=0x587 => assert_eq!(ones, Ok(u64::MAX)),
            _ => {
                rule(ones);
            }
        }
        assert_eq!(write(&ALL, spec.address, 0), Ok(spec.reset()));
    }
}

#[test]
fn what_the_processor_owns_survives_a_write() {
    let mut regs = Registers::new();
    let owned = Status(0)
        .with_filter_en(true)
        .with_context_en(true)
        .with_trigger_en(true);
    regs.status = owned.with_stopped(true);
    for value in [0, 7] {
        regs.write(&ALL, HERE, msr::IA32_RTIT_STATUS, value)
            .unwrap();
        assert_eq!(regs.status, owned);
    }
    let error = Status(0).with_error(true).with_packet_byte_cnt(0x1_ffff);
    regs.write(&ALL, HERE, msr::IA32_RTIT_STATUS, error.0)
        .unwrap();
    assert_eq!(regs.status.0, owned.0 | error.0);
}

#[test]
fn a_field_needs_its_capability() {
    for ((lack, take), names) in LACKS {
        let mut caps = ALL;
        take(&mut caps);
        for spec in [Ctl::SPEC, Status::SPEC] {
            for field in spec.fields {
                for bit in (field.low..field.high).map(|bit| 1 << bit) {
                    let result = write(&caps, spec.address, bit);
                    let with_all = write(&ALL, spec.address, bit);
                    if names.contains(&field.name) {
                        assert!(
                            rule(result).contains("lacks"),
                            "{} without {lack}",
                            field.name
                        );
                    } else {
                        assert_eq!(result, with_all, "{} without {lack}", field.name);
                    }
                }
            }
            let defined = spec.fields.iter().fold(0, |all, f| all | f.mask());
            for bit in (0..64).map(|bit| 1 << bit).filter(|bit| defined & bit == 0) {
                let result = write(&caps, spec.address, bit);
                assert!(rule(result).contains("reserved bit"), "without {lack}");
            }
        }
    }
    // Each field either is in the table or every processor has it.
    let always = [
        "TraceEn",
        "OS",
        "User",
        "TSCEn",
        "DisRETC",
        "BranchEn",
        "FilterEn",
        "ContextEn",
        "TriggerEn",
        "Error",
        "Stopped",
    ];
    for field in Ctl::SPEC.fields.iter().chain(Status::SPEC.fields) {
        let somewhere = LACKS.iter().any(|(_, names)| names.contains(&field.name));
        assert_ne!(somewhere, always.contains(&field.name), "{}", field.name);
    }
}

#[test]
fn a_register_needs_its_capability() {
    let exists = |caps: Capabilities, address| {
        let read = Registers::new().read(&caps, address).is_ok();
        assert_eq!(read, write(&caps, address, 0).is_ok(), "{address:#x}");
        read
    };
    for address in [0x55f, 0x562, 0x56f, 0x573, 0x57f, 0x588, 0, u32::MAX] {
        assert!(!exists(ALL, address));
    }
    for spec in msr::ALL {
        let lacking = Capabilities {
            supported: false,
            ..ALL
        };
        assert!(!exists(lacking, spec.address), "{}", spec.name);
        assert!(rule(write(&lacking, spec.address, 0)).contains("33.2.8.1"));
        for ranges in 0..=4 {
            let caps = Capabilities {
                address_ranges: ranges,
                ip_filter: ranges > 0,
                ..ALL
            };
            let there = spec.address < 0x580 || spec.address < 0x580 + 2 * u32::from(ranges);
            assert_eq!(exists(caps, spec.address), there, "{}", spec.name);
        }
    }
    let no_cr3 = Capabilities {
        cr3_filter: false,
        ..ALL
    };
    assert!(!exists(no_cr3, msr::IA32_RTIT_CR3_MATCH));
    for (topa, single_range) in [(false, false), (false, true), (true, false), (true, true)] {
        let caps = Capabilities {
            topa,
            single_range,
            ..ALL
        };
        for address in [msr::IA32_RTIT_OUTPUT_BASE, msr::IA32_RTIT_OUTPUT_MASK_PTRS] {
            assert_eq!(exists(caps, address), topa || single_range);
        }
    }
}

#[test]
fn encodings_are_those_of_cpuid() {
    let caps = Capabilities {
        mtc_periods: 0x0249,
        cycle_thresholds: 0x3fff,
        psb_frequencies: 0x003f,
        ..ALL
    };
    for encoding in 0..16 {
        for (ctl, bitmap) in [
            (Ctl(0).with_mtc_freq(encoding), 0x0249),
            (Ctl(0).with_cyc_thresh(encoding), 0x3fff),
            (Ctl(0).with_psb_freq(encoding), 0x003f),
            (Ctl(0).with_addr0_cfg(encoding), 0b111),
            (Ctl(0).with_addr1_cfg(encoding), 0b111),
            (Ctl(0).with_addr2_cfg(encoding), 0b111),
            (Ctl(0).with_addr3_cfg(encoding), 0b111),
        ] {
            let legal = bitmap >> encoding & 1 == 1;
            let result = write(&caps, msr::IA32_RTIT_CTL, ctl.0);
            assert_eq!(result.is_ok(), legal, "{ctl:?}");
        }
    }
    // Bitmaps of what is not there do not apply: only 0 is legal.
    let without = Capabilities {
        mtc: false,
        mtc_periods: 0xfffe,
        psb_cyc: false,
        cycle_thresholds: 0xfffe,
        psb_frequencies: 0xfffe,
        ..ALL
    };
    assert!(write(&without, msr::IA32_RTIT_CTL, 0).is_ok());
    assert!(
        rule(write(
            &without,
            msr::IA32_RTIT_CTL,
            Ctl(0).with_mtc_freq(1).0
        ))
        .contains("lacks")
    );
}

#[test]
fn addresses_have_the_width_of_the_processor() {
    let range = |max_linear_addr, value| {
        let caps = Capabilities {
            max_linear_addr,
            ..ALL
        };
        write(&caps, msr::IA32_RTIT_ADDR3_B, value).is_ok()
    };
    for (width, highest) in [(48, 0x7fff_ffff_ffff), (57, 0x00ff_ffff_ffff_ffff)] {
        assert!(range(width, 0) && range(width, highest) && range(width, !highest));
        assert!(range(width, u64::MAX));
        assert!(!range(width, highest + 1) && !range(width, !highest - 1));
    }
    assert!(range(32, 0xffff_ffff) && !range(32, 0x1_0000_0000) && !range(32, u64::MAX));
    let base = |max_phys_addr, value| {
        let caps = Capabilities {
            max_phys_addr,
            ..ALL
        };
        write(&caps, msr::IA32_RTIT_OUTPUT_BASE, value).is_ok()
    };
    for width in 32..=52 {
        assert!(base(width, 1 << (width - 1)) && !base(width, 1 << width));
        assert!(base(width, (1 << width) - 0x80) && !base(width, 0x40));
    }
}

#[test]
fn while_tracing_the_same_value_or_a_clear_trace_en_may_be_written() {
    let on = Ctl(0).with_trace_en(true).with_user(true);
    let mut regs = Registers::new();
    regs.write(&ALL, HERE, msr::IA32_RTIT_CTL, on.0).unwrap();
    for spec in msr::ALL.iter().filter(|s| s.address != msr::IA32_RTIT_CTL) {
        let same = regs.read(&ALL, spec.address).unwrap();
        let result = regs.check(&ALL, HERE, spec.address, same);
        assert_eq!(rule(result), "TraceEn is set (33.2.8.1)");
    }
    let ctl = |value: Ctl| regs.check(&ALL, HERE, msr::IA32_RTIT_CTL, value.0);
    assert_eq!(ctl(on), Ok(on.0));
    for field in &Ctl::SPEC.fields[1..] {
        let other = Ctl(on.0 ^ 1 << field.low);
        assert!(rule(ctl(other)).contains("33.2.8.3"), "{}", field.name);
    }
    // The write that clears TraceEn may change other bits, within the other rules.
    let off = Ctl(0).with_os(true).with_psb_freq(3);
    assert_eq!(ctl(off), Ok(off.0));
    assert!(rule(ctl(Ctl(1 << 18))).contains("reserved bit"));
}

#[test]
fn a_trace_needs_somewhere_to_go() {
    for bits in 0..64u32 {
        let is = |bit: u32| bits >> bit & 1 == 1;
        let caps = Capabilities {
            topa: is(0),
            topa_multiple: is(0),
            single_range: is(1),
            transport: is(2),
            ..ALL
        };
        let (topa, fabric, trace) = (is(3), is(4), is(5));
        let ctl = Ctl(0)
            .with_topa(topa)
            .with_fabric_en(fabric)
            .with_trace_en(trace);
        let legal = (!topa || caps.topa)
            && (!fabric || caps.transport)
            && (!trace || topa || fabric || caps.single_range);
        let result = write(&caps, msr::IA32_RTIT_CTL, ctl.0);
        assert_eq!(result.is_ok(), legal, "{caps:?} {ctl:?}");
    }
}

#[test]
fn in_vmx_operation_the_control_register_may_be_closed() {
    let vmx = WriteContext {
        in_vmx_operation: true,
    };
    let old = Capabilities { vmx: false, ..ALL };
    for (caps, context, fails) in [
        (ALL, vmx, false),
        (old, HERE, false),
        (old, vmx, true),
        (ALL, HERE, false),
    ] {
        let regs = Registers::new();
        let ctl = regs.check(&caps, context, msr::IA32_RTIT_CTL, 0);
        assert_eq!(ctl.is_err(), fails);
        assert!(regs.check(&caps, context, msr::IA32_RTIT_STATUS, 0).is_ok());
        if fails {
            assert!(rule(ctl).contains("33.2.9.4"));
        }
    }
}

#[test]
fn a_warm_reset_keeps_the_registers_where_ebx_2_says_so() {
    let mut regs = Registers::new();
    for (address, value) in [
        (msr::IA32_RTIT_OUTPUT_BASE, 0x1_0000),
        (msr::IA32_RTIT_OUTPUT_MASK_PTRS, 0x5_0000_ffff),
        (msr::IA32_RTIT_CR3_MATCH, 0x1000),
        (msr::IA32_RTIT_ADDR2_B, 0x4000),
        (msr::IA32_RTIT_STATUS, Status(0).with_stopped(true).0),
        (
            msr::IA32_RTIT_CTL,
            Ctl(0).with_os(true).with_trace_en(true).0,
        ),
    ] {
        regs.write(&ALL, HERE, address, value).unwrap();
    }
    assert!(regs.in_use() && !Registers::new().in_use());
    regs.status.0 |= 7;
    let mut kept = regs;
    kept.warm_reset(&ALL);
    let mut expected = regs;
    expected.ctl = Ctl(0).with_os(true);
    expected.status = Status(0).with_stopped(true);
    assert_eq!(kept, expected);
    assert!(!kept.in_use());

    let mut cleared = regs;
    cleared.warm_reset(&Capabilities {
        ip_filter: false,
        address_ranges: 0,
        ..ALL
    });
    assert_eq!(cleared, Registers::new());
    regs.reset();
    assert_eq!(regs, Registers::new());
}
