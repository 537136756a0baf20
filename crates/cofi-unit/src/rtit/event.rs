//! What happens to a processor, as far as its RTIT unit cares, and what the unit asks of its embedder.

use crate::client::{Clock, PhysAddr};
use crate::event::At;
use cofi_packet::Ip;

/// The world around the unit: clock and memory.
pub trait Client {
    /// The time at which the present instruction or event happens. It must not run backwards.
    fn now(&mut self) -> Clock;

    /// Stores trace output to physical memory. One call is one write of a 64-byte line or of a part of one (2.3.2).
    fn store(&mut self, address: PhysAddr, bytes: &[u8]);
}

/// The processor state on which ContextEn and the PIP depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Context {
    /// Current privilege level, 0 to 3.
    pub cpl: u8,
    /// CR3.
    pub cr3: u64,
    /// CR0.PG.
    pub paging: bool,
}

/// Where a far transfer led, and the state that holds there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Destination {
    /// The first instruction: BLIP.
    pub ip: Ip,
    /// What holds there.
    pub context: Context,
}

/// A sleep state, as far as they differ for RTIT (Appendix B 4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SleepState {
    /// C1, HLT or shutdown: the buffer stops draining.
    C1,
    /// C2: as C1.
    C2,
    /// C4: the buffer drains before.
    C4,
    /// C6: as C4.
    C6,
    /// S0i1, S0i2 or S0i3: as C4.
    S0i,
}

/// Something that happened, other than the retirement of a near branch or of an instruction of no interest.
///
/// Instructions among them stand for their own retirement: they are not given to [`super::Unit::retire`], too. The addresses
/// follow Table 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// An instruction that is a far transfer: far JMP, CALL and RET, SYSCALL, SYSRET, SYSENTER, SYSEXIT, IRET.
    FarBranch {
        /// The instruction.
        at: At,
        /// Where it led.
        to: Destination,
        /// How many prefixes it has (erratum E1).
        prefixes: u8,
    },
    /// An interrupt, trap, exception or fault.
    Interrupt {
        /// NLIP for interrupts, NMI, traps and software interrupts; CLIP for faults (Table 1).
        from: Ip,
        /// The handler.
        to: Destination,
    },
    /// MOV to CR3.
    MovCr3 {
        /// The instruction.
        at: At,
        /// The new value.
        cr3: u64,
    },
    /// MOV to CR0.
    MovCr0 {
        /// The instruction.
        at: At,
        /// CR0.PG as written.
        paging: bool,
    },
    /// SMI (2.6.1).
    Smi {
        /// The IP that is saved into SMRAM.
        from: Ip,
    },
    /// RSM (2.6.1).
    Rsm {
        /// Where it returned.
        to: Destination,
    },
    /// VMXON: the processor is in VMX root operation, where RTIT is disabled (2.6.2).
    Vmxon {
        /// The instruction.
        at: At,
    },
    /// VMXOFF.
    Vmxoff {
        /// The instruction.
        at: At,
    },
    /// VM exit (2.6.2).
    VmExit {
        /// The IP that is saved into the VMCS.
        from: Ip,
    },
    /// VM entry (2.6.2). What its MSR-load table writes is told before, as WRMSR.
    VmEntry {
        /// The guest.
        to: Destination,
    },
    /// INIT. No register changes (3.3.1).
    Init {
        /// Where it was taken (NLIP).
        from: Ip,
        /// Where execution goes on, or what holds while the processor waits for SIPI.
        to: Destination,
    },
    /// SIPI.
    Sipi {
        /// Where execution starts.
        to: Destination,
    },
    /// The processor goes to sleep (Appendix B 4.1). The instruction that did it has retired before.
    ///
    /// It sleeps until [`Event::Wake`], or until anything else than [`Event::Frequency`] or another [`Event::Sleep`] happens to it: an
    /// instruction that retires, an access to a register by WRMSR or an interrupt is proof that it is awake. That wakes it then and there,
    /// with the STS of [`Event::Wake`], and the time up to it was asleep.
    Sleep(SleepState),
    /// The processor wakes. An interrupt that wakes it is told behind this. STS is sent, even if the processor was not asleep.
    Wake,
    /// The core frequency or the clock modulation changed (4.2.13).
    Frequency {
        /// Core clock divided by bus clock, 6 bits.
        actual: u8,
        /// The same with clock modulation factored in, 6 bits.
        effective: u8,
    },
}
