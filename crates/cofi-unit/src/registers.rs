//! The register file: a write is checked whole, then committed; the unit acts on it afterwards.

use crate::spec::Capabilities;
use crate::spec::msr::{
    self, Access, AddressRange, Cr3Match, Ctl, OutputBase, OutputMaskPtrs, RegisterSpec, Status,
};

/// The fault that an access to a register raises.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// General protection fault, with the rule that was broken.
    #[error("#GP: MSR {msr:#x}, value {value:#x}: {rule}")]
    GeneralProtection {
        /// The MSR's address.
        msr: u32,
        /// The value written (zero for a read).
        value: u64,
        /// The rule, with its section.
        rule: &'static str,
    },
    /// Invalid opcode fault: PTWRITE on a processor without it (Table 33-11).
    #[error("#UD: {rule}")]
    InvalidOpcode {
        /// The rule that was broken, with its section.
        rule: &'static str,
    },
    /// The processor shuts down: RSM (33.2.9.3).
    #[error("shutdown: {rule}")]
    Shutdown {
        /// The rule that was broken, with its section.
        rule: &'static str,
    },
}

/// Why a VM entry or exit cannot be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransitionError {
    /// The processor does not support the 1-settings of the controls in Table 33-52 (IA32_VMX_MISC\\[14\\] is 0): the VM entry fails.
    #[error("VM entry fails: a control of Table 33-52 is 1, and IA32_VMX_MISC[14] is 0 (33.5.1)")]
    Controls,
    /// The write of an MSR-load area, or of a "load IA32_RTIT_CTL" control, faults. A VM entry then fails late, a VM exit ends in a VMX abort; nothing
    /// has been done.
    #[error("entry {index} of the MSR-load area: {fault}")]
    MsrLoad {
        /// Which entry; the control counts as the entry before the first, so entries are numbered from 1.
        index: usize,
        /// What a WRMSR would have raised.
        fault: Fault,
    },
}

/// The trace configuration registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Registers {
    /// The address ranges: A and B of each.
    pub(crate) ranges: [[AddressRange; 2]; 4],
    pub(crate) ctl: Ctl,
    pub(crate) status: Status,
    pub(crate) cr3_match: Cr3Match,
    pub(crate) base: OutputBase,
    pub(crate) mask_ptrs: OutputMaskPtrs,
}

/// stand-in
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteContext {
    pub(crate) in_vmx_operation: bool,
}

const LOWER_MASK: u64 = 0x7f;

impl Registers {
    pub(crate) fn new() -> Self {
        Self {
            mask_ptrs: OutputMaskPtrs(LOWER_MASK),
            ..Self::default()
        }
    }

    pub(crate) fn warm_reset(&mut self, _: &Capabilities) {}
    pub(crate) fn save_component(&self, _: &Capabilities) -> crate::xsave::XsaveArea {
        crate::xsave::XsaveArea
    }
    pub(crate) fn check_component(
        &self,
        _: &Capabilities,
        _: WriteContext,
        _: Option<&crate::xsave::XsaveArea>,
    ) -> Result<Self, Fault> {
        Ok(*self)
    }

    fn spec(caps: &Capabilities, address: u32) -> Option<&'static RegisterSpec> {
        let spec = msr::ALL.iter().find(|spec| spec.address == address)?;
        let exists = match address {
            msr::IA32_RTIT_CR3_MATCH => caps.cr3_filter,
            msr::IA32_RTIT_OUTPUT_BASE | msr::IA32_RTIT_OUTPUT_MASK_PTRS => caps.single_range,
            _ => true,
        };
        exists.then_some(spec)
    }

    fn slot(&mut self, address: u32) -> Option<&mut u64> {
        Some(match address {
            msr::IA32_RTIT_CTL => &mut self.ctl.0,
            msr::IA32_RTIT_STATUS => &mut self.status.0,
            msr::IA32_RTIT_CR3_MATCH => &mut self.cr3_match.0,
            msr::IA32_RTIT_OUTPUT_BASE => &mut self.base.0,
            msr::IA32_RTIT_OUTPUT_MASK_PTRS => &mut self.mask_ptrs.0,
            _ => return None,
        })
    }

    pub(crate) fn read(&self, caps: &Capabilities, address: u32) -> Result<u64, Fault> {
        let absent = Fault::GeneralProtection {
            msr: address,
            value: 0,
            rule: "no such register (33.2.8, Table 33-11)",
        };
        Self::spec(caps, address).ok_or(absent)?;
        let mut copy = *self;
        copy.slot(address).map(|slot| *slot).ok_or(absent)
    }

    /// Checks a write as a whole and commits it; nothing changes when it faults.
    pub(crate) fn write(
        &mut self,
        caps: &Capabilities,
        _context: WriteContext,
        address: u32,
        value: u64,
    ) -> Result<(), Fault> {
        let gp = |rule| {
            Err(Fault::GeneralProtection {
                msr: address,
                value,
                rule,
            })
        };
        let Some(spec) = Self::spec(caps, address) else {
            return gp("no such register (33.2.8, Table 33-11)");
        };
        if self.ctl.trace_en() && address != msr::IA32_RTIT_CTL {
            return gp("TraceEn is set (33.2.8.1)");
        }
        let mut writable = 0;
        let mut ignored = 0;
        let mut forced = 0;
        for field in spec.fields.iter().filter(|field| (field.present)(caps)) {
            match field.access {
                Access::Rw => writable |= field.mask(),
                Access::ReadOnly => ignored |= field.mask(),
                Access::ForcedOne => forced |= field.mask(),
            }
            let encoding = (value & field.mask()) >> field.low;
            if field.high - field.low <= 4 && (field.encodings)(caps) >> encoding & 1 == 0 {
                return gp("an encoding that CPUID does not enumerate (Table 33-6, Table 33-12)");
            }
        }
        if address == msr::IA32_RTIT_OUTPUT_BASE {
            writable &= u64::MAX >> (64 - u32::from(caps.max_phys_addr.clamp(8, 64)));
        }
        if value & !(writable | ignored | forced) != 0 {
            return gp("a reserved bit is set (33.2.8.1)");
        }
        if address == msr::IA32_RTIT_CTL {
            let new = Ctl(value);
            if self.ctl.trace_en() && new.trace_en() && new != self.ctl {
                return gp("a change while TraceEn stays set (33.2.8.3)");
            }
            if new.trace_en() && !caps.single_range {
                return gp(
                    "TraceEn without an output scheme that the processor has (Table 33-6, ToPA)",
                );
            }
        }
        if let Some(slot) = self.slot(address) {
            *slot = value & writable | *slot & ignored | forced;
        }
        Ok(())
    }
}
