//! The registers that RDMSR and WRMSR reach, as far as they are not QEMU's.

use cofi_unit::{msr, rtit};

/// The time stamp counter.
const IA32_TIME_STAMP_COUNTER: u32 = 0x10;
/// Bits 15:8: the processor's frequency without turbo, divided by the bus's. Linux takes it for a bound of MTC and CYC.
const MSR_PLATFORM_INFO: u32 = 0xce;
/// Which of some frequencies the bus has: Linux, on processors with RTIT, takes it for that of its timers, which here have another.
const MSR_FSB_FREQ: u32 = 0xcd;
/// One that says none.
pub(crate) const NO_BUS_FREQUENCY: u64 = 7;
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
    /// [`MSR_FSB_FREQ`].
    Bus,
    /// The counters', or QEMU's.
    Other,
}

impl Owner {
    /// On a processor with Intel PT, or with RTIT: none has the registers of the other.
    pub(crate) const fn of(address: u32, is_rtit: bool) -> Self {
        match address {
            MSR_FSB_FREQ if is_rtit => Self::Bus,
            // (Where there is none between them, the unit says so.)
            rtit::msr::RTIT_LIP0..=rtit::msr::RTIT_TNT_BUFF if is_rtit => Self::Unit,
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
