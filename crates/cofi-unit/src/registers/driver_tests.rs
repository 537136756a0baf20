//! What system software does to the registers: Linux's driver for perf, and context switches by XSAVES and XRSTORS.

use super::{Fault, Registers, WriteContext};
use crate::spec::msr::{self, AddressRange};
use crate::spec::{Capabilities, Ctl, Generation, Status};
use crate::xsave::XsaveArea;
use std::string::ToString;

const HERE: WriteContext = WriteContext {
    in_vmx_operation: false,
};

/// The registers of a processor, and what its software does with them.
struct Cpu {
    caps: Capabilities,
    regs: Registers,
}

impl Cpu {
    fn wrmsr(&mut self, address: u32, value: u64) {
        self.regs.write(&self.caps, HERE, address, value).unwrap();
    }

    fn rdmsr(&self, address: u32) -> u64 {
        self.regs.read(&self.caps, address).unwrap()
    }

    /// The event starts: buffer, status, filters, and the control register last, with TraceEn.
    fn start(&mut self, config: Ctl, base: u64, table: bool) -> Ctl {
        self.wrmsr(msr::IA32_RTIT_OUTPUT_BASE, base);
        let (index, offset) = (3, 0x140);
        self.wrmsr(
            msr::IA32_RTIT_OUTPUT_MASK_PTRS,
            0x7f | index << 7 | offset << 32,
        );
        self.wrmsr(msr::IA32_RTIT_STATUS, 0);
        let mut ctl = config;
        if self.caps.address_ranges > 0 {
            self.wrmsr(msr::IA32_RTIT_ADDR0_A, 0xffff_ffff_8100_0000);
            self.wrmsr(msr::IA32_RTIT_ADDR0_B, 0xffff_ffff_81ff_ffff);
            ctl = ctl.with_addr0_cfg(1);
        }
        if self.caps.address_ranges > 1 {
            self.wrmsr(msr::IA32_RTIT_ADDR1_A, 0x40_1000);
            self.wrmsr(msr::IA32_RTIT_ADDR1_B, 0x40_1fff);
            ctl = ctl.with_addr1_cfg(2);
        }
        ctl = ctl.with_topa(table).with_branch_en(true);
        self.wrmsr(msr::IA32_RTIT_CTL, ctl.with_trace_en(true).0);
        ctl
    }

    /// It stops: TraceEn is cleared, the write pointer is read, what the status tells is taken back.
    fn stop(&mut self, ctl: Ctl) {
        self.wrmsr(msr::IA32_RTIT_CTL, ctl.0);
        assert_eq!(self.rdmsr(msr::IA32_RTIT_OUTPUT_MASK_PTRS) & 0x7f, 0x7f);
        let status = Status(self.rdmsr(msr::IA32_RTIT_STATUS));
        self.wrmsr(
            msr::IA32_RTIT_STATUS,
            status.with_error(false).with_stopped(false).0,
        );
    }
}

/// What perf asks of this processor: all that it has.
fn config(caps: &Capabilities) -> Ctl {
    let highest = |bitmap: u16| u64::from(bitmap.checked_ilog2().unwrap_or(0));
    let mut ctl = Ctl(0)
        .with_os(true)
        .with_user(true)
        .with_tsc_en(true)
        .with_dis_retc(true);
    if caps.mtc {
        ctl = ctl
            .with_mtc_en(true)
            .with_mtc_freq(highest(caps.mtc_periods));
    }
    if caps.psb_cyc {
        ctl = ctl
            .with_cyc_en(true)
            .with_cyc_thresh(highest(caps.cycle_thresholds))
            .with_psb_freq(highest(caps.psb_frequencies));
    }
    ctl.with_ptw_en(caps.ptwrite)
        .with_fup_on_ptw(caps.ptwrite)
        .with_pwr_evt_en(caps.power_event)
        .with_event_en(caps.event_trace)
        .with_dis_tnt(caps.tnt_disable)
}

#[test]
fn linux_starts_and_stops_on_every_generation() {
    for &generation in Generation::ALL {
        let caps = generation.capabilities();
        let mut cpu = Cpu {
            caps,
            regs: Registers::new(),
        };
        // The driver leaves a unit alone that is in use when it comes.
        assert!(!Ctl(cpu.rdmsr(msr::IA32_RTIT_CTL)).trace_en() && !cpu.regs.in_use());
        for table in [true, false] {
            if !table && !caps.single_range {
                continue;
            }
            for _ in 0..2 {
                let ctl = cpu.start(config(&caps), 0x1234_5000, table);
                assert!(cpu.regs.in_use());
                assert_eq!(cpu.rdmsr(msr::IA32_RTIT_CTL), ctl.0 | 1);
                // The processor stops for its own reasons.
                cpu.regs.status = cpu.regs.status.with_error(true).with_trigger_en(true);
                cpu.regs.status = cpu.regs.status.with_trigger_en(false);
                cpu.stop(ctl);
                assert!(!cpu.regs.in_use());
                assert_eq!(cpu.rdmsr(msr::IA32_RTIT_STATUS), 0);
            }
        }
        // Under KVM the driver does not touch the control register where VMXON has closed it.
        let vmx = WriteContext {
            in_vmx_operation: true,
        };
        let result = cpu.regs.check(&caps, vmx, msr::IA32_RTIT_CTL, 0);
        assert_eq!(
            result.is_ok(),
            generation != Generation::Broadwell,
            "{generation}"
        );
    }
}

fn configured(caps: Capabilities) -> Registers {
    let mut cpu = Cpu {
        caps,
        regs: Registers::new(),
    };
    cpu.start(config(&caps), 0x1234_5000, caps.topa);
    cpu.regs
}

#[test]
fn a_context_switch_brings_the_registers_back() {
    for caps in Generation::ALL.iter().map(|g| g.capabilities()) {
        let tracing = configured(caps);
        let area = tracing.save_component(&caps);
        assert_eq!(area.ctl, tracing.ctl.0);
        assert!(tracing.ctl.trace_en(), "the area keeps TraceEn");
        if caps.address_ranges == 0 {
            assert_eq!(area.ranges, [[0; 2]; 2]);
        }
        // XSAVES clears TraceEn; another thread has no trace; the first one comes back.
        let mut regs = tracing;
        regs.ctl = regs.ctl.with_trace_en(false);
        let idle = regs.check_component(&caps, HERE, None).unwrap();
        assert_eq!(idle, Registers::new());
        let back = XsaveArea::from_bytes(&area.to_bytes());
        let again = idle.check_component(&caps, HERE, Some(&back)).unwrap();
        assert_eq!(again, tracing);
        // It is a #GP while TraceEn is set, even to bring the same.
        for area in [None, Some(&area)] {
            let fault = tracing.check_component(&caps, HERE, area).unwrap_err();
            assert!(fault.to_string().contains("XRSTORS"), "{fault}");
        }
    }
}

#[test]
fn each_word_of_the_area_is_checked_as_by_wrmsr() {
    let caps = Capabilities::default();
    let idle = Registers::new();
    let legal = configured(caps).save_component(&caps);
    type Spoil = fn(&mut XsaveArea);
    let spoils: [(u32, Spoil); 9] = [
        (msr::IA32_RTIT_CTL, |a| a.ctl |= 1 << 18),
        (msr::IA32_RTIT_OUTPUT_BASE, |a| a.output_base |= 1),
        (msr::IA32_RTIT_STATUS, |a| a.status |= 1 << 3),
        (msr::IA32_RTIT_CR3_MATCH, |a| a.cr3_match |= 1),
        (msr::IA32_RTIT_ADDR0_A, |a| a.ranges[0][0] = 1 << 63),
        (msr::IA32_RTIT_ADDR0_B, |a| a.ranges[0][1] = 1 << 63),
        (msr::IA32_RTIT_ADDR1_A, |a| a.ranges[1][0] = 1 << 63),
        (msr::IA32_RTIT_ADDR1_B, |a| a.ranges[1][1] = 1 << 63),
        (msr::IA32_RTIT_CTL, |a| a.ctl = 1 << 36 | 0xf << 32),
    ];
    for (address, spoil) in spoils {
        let mut area = legal;
        spoil(&mut area);
        match idle.check_component(&caps, HERE, Some(&area)) {
            Err(Fault::GeneralProtection { msr, .. }) => assert_eq!(msr, address),
            other => panic!("{address:#x}: {other:?}"),
        }
    }
    // Words without a register must be zero.
    let broadwell = Generation::Broadwell.capabilities();
    let mut area = configured(broadwell).save_component(&broadwell);
    assert!(idle.check_component(&broadwell, HERE, Some(&area)).is_ok());
    area.ranges[0][0] = 0x1000;
    assert!(idle.check_component(&broadwell, HERE, Some(&area)).is_err());
    // The control register is closed in VMX operation of old processors.
    let vmx = WriteContext {
        in_vmx_operation: true,
    };
    assert!(idle.check_component(&broadwell, vmx, None).is_err());
    assert!(idle.check_component(&caps, vmx, None).is_ok());
}

#[test]
fn ranges_beyond_the_second_are_no_part_of_the_component() {
    let caps = Capabilities::default();
    let mut regs = configured(caps);
    regs.ranges[3] = [AddressRange(0x5000), AddressRange(0x6000)];
    let area = regs.save_component(&caps);
    regs.ctl = Ctl(0);
    for area in [None, Some(&area)] {
        let new = regs.check_component(&caps, HERE, area).unwrap();
        assert_eq!(new.ranges[3], regs.ranges[3]);
    }
}
