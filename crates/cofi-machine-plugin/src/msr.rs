//! The registers that RDMSR and WRMSR reach, as far as they are not QEMU's.

use cofi_unit::msr;

/// The time stamp counter.
const IA32_TIME_STAMP_COUNTER: u32 = 0x10;
/// Bits 15:8: the processor's frequency without turbo, divided by the bus's. Linux takes it for a bound of MTC and CYC.
const MSR_PLATFORM_INFO: u32 = 0xce;
/// Any access to it faults: processors without x2APIC do not have it, and QEMU knows.
pub(crate) const FAULTING: u32 = 0x800;

/// Whose a register is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The trace unit's.
    Unit,
    /// A time stamp counter.
    Clock,
    /// [`MSR_PLATFORM_INFO`].
    Platform,
    /// The counters', or QEMU's.
    Other,
}

impl Owner {
    pub(crate) const fn of(address: u32) -> Self {
        match address {
            msr::IA32_RTIT_OUTPUT_BASE
            | msr::IA32_RTIT_OUTPUT_MASK_PTRS
            | msr::IA32_RTIT_CTL
            | msr::IA32_RTIT_STATUS
            | msr::IA32_RTIT_CR3_MATCH
            | msr::IA32_RTIT_ADDR0_A..=msr::IA32_RTIT_ADDR3_B => Self::Unit,
            IA32_TIME_STAMP_COUNTER => Self::Clock,
            MSR_PLATFORM_INFO => Self::Platform,
            _ => Self::Other,
        }
    }
}
