//! The register file: a write is checked whole, then committed; the unit acts on it afterwards.

mod component;
#[cfg(test)]
mod driver_tests;
#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod rule_tests;

use crate::spec::Capabilities;
use crate::spec::msr::{
    self, Access, AddressRange, Cr3Match, Ctl, Form, OutputBase, OutputMaskPtrs, RegisterSpec,
    Status,
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
    /// The processor does not support the 1-settings of the controls in Table 33-52 (IA32_VMX_MISC\[14\] is 0): the VM entry fails.
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

/// The state outside the registers that decides whether they can be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WriteContext {
    /// The processor is in VMX operation, root or not: VMXON was executed, and VMXOFF was not (33.2.9.4).
    pub(crate) in_vmx_operation: bool,
}

/// The trace configuration registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Registers {
    /// The address ranges: A and B of each.
    pub(crate) ranges: [[AddressRange; 2]; 4],
    pub(crate) ctl: Ctl,
    pub(crate) status: Status,
    pub(crate) cr3_match: Cr3Match,
    pub(crate) base: OutputBase,
    pub(crate) mask_ptrs: OutputMaskPtrs,
}

const LOWER_MASK: u64 = 0x7f;

impl Registers {
    /// The registers after a power-on reset.
    pub(crate) const fn new() -> Self {
        Self {
            ranges: [[AddressRange(0); 2]; 4],
            ctl: Ctl(0),
            status: Status(0),
            cr3_match: Cr3Match(0),
            base: OutputBase(0),
            mask_ptrs: OutputMaskPtrs(LOWER_MASK),
        }
    }

    /// A power-on (cold) reset: all registers are cleared (33.2.8.1, 33.3.4).
    pub(crate) const fn reset(&mut self) {
        *self = Self::new();
    }

    /// A warm reset: all registers are cleared, too. With CPUID.14H.0:EBX\[2\] only TraceEn is (33.2.8.1, 33.3.4), and
    /// what it took with it in IA32_RTIT_STATUS: FilterEn, ContextEn and TriggerEn.
    pub(crate) fn warm_reset(&mut self, caps: &Capabilities) {
        if caps.ip_filter {
            self.ctl = self.ctl.with_trace_en(false);
            self.status = self
                .status
                .with_filter_en(false)
                .with_context_en(false)
                .with_trigger_en(false);
        } else {
            self.reset();
        }
    }

    /// Whether an agent must take the trace unit for another's: the "enable bits" of 33.8.2. Of all the bits that enable
    /// something, TraceEn is the one without which the others have no effect, and the one that an agent clears to
    /// relinquish the unit.
    pub(crate) const fn in_use(&self) -> bool {
        self.ctl.trace_en()
    }

    /// The declaration of a register that this processor has.
    fn find(caps: &Capabilities, address: u32) -> Result<&'static RegisterSpec, &'static str> {
        let spec = msr::ALL
            .iter()
            .find(|spec| spec.address == address)
            .ok_or("no trace configuration register has this address (33.2.8)")?;
        if !caps.supported {
            return Err("the processor does not support Intel PT (33.2.8.1)");
        }
        if !(spec.present)(caps) {
            return Err(
                "the processor does not have this register (33.2.8.5-8, Table 33-11, Table 33-12)",
            );
        }
        Ok(spec)
    }

    /// The register at this address, where there is one.
    const fn slot(&mut self, address: u32) -> Option<&mut u64> {
        Some(match address {
            msr::IA32_RTIT_CTL => &mut self.ctl.0,
            msr::IA32_RTIT_STATUS => &mut self.status.0,
            msr::IA32_RTIT_CR3_MATCH => &mut self.cr3_match.0,
            msr::IA32_RTIT_OUTPUT_BASE => &mut self.base.0,
            msr::IA32_RTIT_OUTPUT_MASK_PTRS => &mut self.mask_ptrs.0,
            msr::IA32_RTIT_ADDR0_A..=msr::IA32_RTIT_ADDR3_B => {
                let index = (address - msr::IA32_RTIT_ADDR0_A) as usize;
                &mut self.ranges[index / 2][index % 2].0
            }
            _ => return None,
        })
    }

    /// What the register at this address holds; 0 where there is none.
    fn get(mut self, address: u32) -> u64 {
        self.slot(address).map_or(0, |slot| *slot)
    }

    /// RDMSR.
    pub(crate) fn read(&self, caps: &Capabilities, address: u32) -> Result<u64, Fault> {
        match Self::find(caps, address) {
            Ok(_) => Ok(self.get(address)),
            Err(rule) => Err(Fault::GeneralProtection {
                msr: address,
                value: 0,
                rule,
            }),
        }
    }

    /// Checks a WRMSR as a whole. Returns what the register holds after it: that is `value` but for bits that software
    /// does not write.
    pub(crate) fn check(
        &self,
        caps: &Capabilities,
        context: WriteContext,
        address: u32,
        value: u64,
    ) -> Result<u64, Fault> {
        self.checked(caps, context, address, value)
            .map_err(|rule| Fault::GeneralProtection {
                msr: address,
                value,
                rule,
            })
    }

    fn checked(
        &self,
        caps: &Capabilities,
        context: WriteContext,
        address: u32,
        value: u64,
    ) -> Result<u64, &'static str> {
        let spec = Self::find(caps, address)?;
        let is_ctl = address == msr::IA32_RTIT_CTL;
        if is_ctl && context.in_vmx_operation && !caps.vmx {
            return Err("in VMX operation, and IA32_VMX_MISC[14] is 0 (33.2.9.4)");
        }
        if !is_ctl && self.ctl.trace_en() {
            return Err("TraceEn is set (33.2.8.1)");
        }
        let (mut writable, mut ignored, mut forced, mut absent) = (0, 0, 0, 0);
        for field in spec.fields {
            if !(field.present)(caps) {
                absent |= field.mask();
                continue;
            }
            match field.access {
                Access::Rw => writable |= field.mask(),
                Access::ReadOnly => ignored |= field.mask(),
                Access::ForcedOne => forced |= field.mask(),
            }
            if !field.is_legal(caps, value) {
                return Err(
                    "an encoding that is reserved or that CPUID does not enumerate (Table 33-6, Table 33-12)",
                );
            }
            match field.form {
                Form::Bits => {}
                Form::PhysicalAddress if value & field.mask() & beyond_maxphyaddr(caps) != 0 => {
                    return Err("a bit from MAXPHYADDR on is set (Table 33-8)");
                }
                Form::LinearAddress if !is_canonical(caps, value) => {
                    return Err("the address is not canonical (33.2.8.5)");
                }
                Form::PhysicalAddress | Form::LinearAddress => {}
            }
        }
        if value & absent != 0 {
            return Err("a field that the processor lacks is not 0 (33.2.8.1, Table 33-11)");
        }
        if value & !(writable | ignored | forced) != 0 {
            return Err(match address {
                msr::IA32_RTIT_OUTPUT_BASE => {
                    "a reserved bit is set: bits 6:0 are, so the base is a multiple of 128 (33.2.8.7, Table 33-8); with ToPA it is a table's, a multiple of 4096 (33.2.7.2)"
                }
                msr::IA32_RTIT_CR3_MATCH => "a reserved bit is set: bits 4:0 are (33.2.8.6)",
                _ => "a reserved bit is set (33.2.8.1)",
            });
        }
        if is_ctl {
            self.check_ctl(caps, Ctl(value))?;
        }
        Ok(value & writable | self.get(address) & ignored | forced)
    }

    /// What the fields of IA32_RTIT_CTL ask of each other and of the present value.
    fn check_ctl(&self, caps: &Capabilities, new: Ctl) -> Result<(), &'static str> {
        if self.ctl.trace_en() && new.trace_en() && new != self.ctl {
            return Err("a change while TraceEn stays set (33.2.8.3)");
        }
        if new.trace_en() && !new.topa() && !new.fabric_en() && !caps.single_range {
            return Err(
                "TraceEn is set, ToPA and FabricEn are not, and there is no single-range output (Table 33-6, ToPA)",
            );
        }
        Ok(())
    }

    /// Writes what [`Registers::check`] returned.
    pub(crate) const fn commit(&mut self, address: u32, new: u64) {
        if let Some(slot) = self.slot(address) {
            *slot = new;
        }
    }

    /// WRMSR: checks the write as a whole and commits it; nothing changes when it faults.
    pub(crate) fn write(
        &mut self,
        caps: &Capabilities,
        context: WriteContext,
        address: u32,
        value: u64,
    ) -> Result<(), Fault> {
        let new = self.check(caps, context, address, value)?;
        self.commit(address, new);
        Ok(())
    }
}

impl Default for Registers {
    fn default() -> Self {
        Self::new()
    }
}

/// The bits that no physical address has.
fn beyond_maxphyaddr(caps: &Capabilities) -> u64 {
    u64::MAX
        .checked_shl(caps.max_phys_addr.into())
        .unwrap_or_default()
}

/// Canonical: the bits above the width of linear addresses are copies of the highest one within. On a processor without
/// 64-bit mode, where addresses have 32 bits, they are zero.
fn is_canonical(caps: &Capabilities, address: u64) -> bool {
    match caps.max_linear_addr {
        ..=32 => address >> 32 == 0,
        width => {
            let above = 64 - u32::from(width.min(64));
            (address << above) as i64 >> above == address as i64
        }
    }
}
