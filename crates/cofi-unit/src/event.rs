//! What happens to a processor, as far as its trace unit cares.

use cofi_packet::intel::{BlockType, CState, ItemSize, Payload, WakeReason};
use cofi_packet::{ExecMode, Ip};

/// In which kind of enclave the processor executes (33.2.9.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Enclave {
    /// In none.
    #[default]
    None,
    /// In one that opted out of debugging: ContextEn is forced to 0.
    Production,
    /// In one that opted in: traced like any code.
    Debug,
}

/// The processor state on which filtering and the mode packets depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Context {
    /// Current privilege level, 0 to 3: 0 in real-address mode, 3 in virtual-8086 mode (33.2.5.1).
    pub cpl: u8,
    /// CR3.
    pub cr3: u64,
    /// PAE paging: CR3 bits 11:5 count (33.2.5.2, 33.4.2.7).
    pub pae: bool,
    /// CS.L & LMA and CS.D.
    pub mode: ExecMode,
    /// The base of CS, which IP payloads leave out on processors that report RIPs (33.3.1.1). IPs are linear for the unit.
    pub cs_base: u64,
    /// RFLAGS.IF, which Event Trace shows.
    pub interrupt_flag: bool,
    /// Executing transactionally.
    pub in_tx: bool,
    /// Executing in an enclave.
    pub enclave: Enclave,
}

/// Where an instruction stands and which follows it in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct At {
    /// The instruction's own IP: the manual's Current IP, CLIP.
    pub ip: Ip,
    /// The next sequential IP: Next IP, NLIP.
    pub next: Ip,
}

/// What a retired instruction did to the flow, as Table 33-1 divides them; far transfers are [`Event`]s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Branch {
    /// No branch.
    None,
    /// Jcc, J*CXZ or LOOP, taken to this target or not taken.
    Conditional(Option<Ip>),
    /// Near direct JMP.
    DirectJump(Ip),
    /// Near direct CALL.
    DirectCall(Ip),
    /// Near indirect JMP.
    IndirectJump(Ip),
    /// Near indirect CALL.
    IndirectCall(Ip),
    /// Near RET.
    Return(Ip),
}

/// A retired instruction other than a far transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retired {
    /// Its place.
    pub at: At,
    /// What it did.
    pub branch: Branch,
}

impl Retired {
    /// Where control went.
    #[must_use]
    #[inline]
    pub fn destination(&self) -> Ip {
        match self.branch {
            Branch::None | Branch::Conditional(None) => self.at.next,
            Branch::Conditional(Some(to))
            | Branch::DirectJump(to)
            | Branch::DirectCall(to)
            | Branch::IndirectJump(to)
            | Branch::IndirectCall(to)
            | Branch::Return(to) => to,
        }
    }
}

/// Where a far transfer led, and the state that holds there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Destination {
    /// The first instruction: the manual's BLIP.
    pub ip: Ip,
    /// What holds there.
    pub context: Context,
}

/// A group of a PEBS record (33.4.1.1, Table 33-47).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block<'e> {
    /// What it holds.
    pub kind: BlockType,
    /// How much of each value is sent.
    pub size: ItemSize,
    /// Identifiers (0 to 31, Table 33-47) and values.
    pub items: &'e [(u8, u64)],
}

/// Something that happened, other than the retirement of a near branch or of an instruction without any part in tracing.
///
/// The addresses follow Table 33-23: `from` is NLIP for interrupts, traps, SMI and INIT; CLIP for faults and software
/// interrupts. `to.context` is the state after the event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event<'e> {
    /// A far transfer that the binary shows: far JMP, CALL and RET, SYSCALL, SYSRET, SYSENTER, SYSEXIT (Table 33-55, cases
    /// 8–10; Table 33-56, cases 5 and 6).
    FarBranch {
        /// The instruction.
        at: At,
        /// Where it led.
        to: Destination,
    },
    /// IRET (as [`Event::FarBranch`]; Table 33-59, cases 1 and 2).
    Iret {
        /// The instruction.
        at: At,
        /// Where it led.
        to: Destination,
    },
    /// UIRET.
    Uiret {
        /// The instruction.
        at: At,
        /// Where it led.
        to: Destination,
    },
    /// An interrupt, NMI, exception, fault, trap, machine check or software interrupt was delivered (Table 33-55, cases
    /// 11–13; Table 33-56, cases 5, 7 and 8; Table 33-59, cases 3–7).
    Interrupt {
        /// Where it was taken.
        from: Ip,
        /// Its vector.
        vector: u8,
        /// For a page fault: the address, as in CR2.
        page_fault: Option<u64>,
        /// The handler.
        to: Destination,
    },
    /// A user interrupt was delivered (Table 33-55, case 26).
    UserInterrupt {
        /// Where it was taken (NLIP).
        from: Ip,
        /// The user-interrupt vector.
        vector: u8,
        /// The handler.
        to: Destination,
    },
    /// MOV to CR3 (Table 33-55, case 14).
    MovCr3 {
        /// The instruction.
        at: At,
        /// The new value.
        cr3: u64,
    },
    /// An instruction other than a branch changed RFLAGS.IF: CLI, STI, POPF (Table 33-59, case 22).
    Flags {
        /// The instruction.
        at: At,
        /// RFLAGS.IF after it.
        interrupt_flag: bool,
    },
    /// XBEGIN, or a lock that XACQUIRE elides, began a transaction (Table 33-10). Nested ones are no event.
    TransactionBegin {
        /// The instruction.
        at: At,
    },
    /// XEND or XRELEASE committed the outermost transaction (Table 33-10).
    TransactionCommit {
        /// The instruction.
        at: At,
    },
    /// The transaction was aborted (Table 33-10).
    TransactionAbort {
        /// XABORT, or the instruction at which it happened (CLIP).
        from: Ip,
        /// The fallback handler; for HLE, the XACQUIRE lock.
        to: Ip,
    },
    /// The processor goes to a C-state deeper than C0.1 (Table 33-57, cases 3–6). Until [`Event::Wake`] its clocks stand
    /// still. An instruction that stops execution retires after the wake, and is told then: a PSB+ that came before this event
    /// with the next address would contradict EXSTOP, which has the address of the oldest instruction that has not completed (33.4.2.22).
    Sleep(Sleep),
    /// The processor wakes from a C-state (Table 33-57, cases 6 and 7).
    Wake {
        /// The core C-state at the time of the wake.
        last: CState,
        /// The deepest since C0 was left.
        deepest: CState,
        /// Why.
        reason: WakeReason,
    },
    /// The clocks behind MTC and CYC had stopped without a C-state, and run again (Table 33-55, case 25).
    ClocksResumed,
    /// The core:bus ratio changed (33.4.2.10).
    Frequency {
        /// Where execution stopped meanwhile (the oldest instruction that has not completed), if it did: EXSTOP tells.
        stopped_at: Option<Ip>,
        /// Core clock divided by bus clock.
        ratio: u8,
    },
    /// A condition of the micro-architecture resets the cycle counter; a stand-alone CYC tells its count (33.3.6).
    CycleCounterReset,
    /// A PEBS record goes to the trace, as IA32_PEBS_ENABLE.OUTPUT asks (33.4.2.26).
    Pebs {
        /// The instruction to which it belongs.
        ip: Ip,
        /// The record's groups.
        blocks: &'e [Block<'e>],
    },
    /// INIT on the processor that starts at once (Table 33-55, case 22).
    Init {
        /// Where it was taken (NLIP).
        from: Ip,
        /// The reset vector.
        to: Destination,
    },
    /// INIT on a processor that then waits for SIPI (Table 33-55, case 23).
    InitToWait {
        /// Where it was taken (NLIP).
        from: Ip,
        /// What holds while it waits.
        context: Context,
    },
    /// SIPI (Table 33-55, case 24).
    Sipi {
        /// The SIPI vector.
        vector: u8,
        /// Where execution starts.
        to: Destination,
    },
    /// The processor enters the shutdown state (Table 33-59, case 12), which INIT or NMI ends.
    Shutdown {
        /// The instruction that has not completed.
        at: Ip,
    },
    /// SMI delivery outside of dual-monitor treatment: TraceEn is cleared (33.2.9.3). The embedder saves TraceEn, which it
    /// reads before, in SMRAM.
    Smi {
        /// The IP that is saved into SMRAM.
        from: Ip,
        /// The SMI handler.
        to: Destination,
    },
    /// EENTER or ERESUME (33.2.9.5; Table 33-55, case 17; Table 33-56, case 6).
    EnclaveEntry {
        /// The instruction.
        at: At,
        /// Where it led.
        to: Destination,
    },
    /// EEXIT (33.2.9.5).
    EnclaveExit {
        /// The instruction.
        at: At,
        /// Where it led.
        to: Destination,
    },
    /// An asynchronous enclave exit or enclave exiting event, for an interrupt or exception with this vector (Table 33-59, cases 17–19).
    AsyncEnclaveExit {
        /// Where in the enclave it was taken.
        from: Ip,
        /// The asynchronous exit pointer, which stands for it outside.
        aep: Ip,
        /// The vector.
        vector: u8,
        /// The handler.
        to: Destination,
    },
    /// GETSEC\[SENTER\], or ENTERACCS, or the rendezvous of another processor's SENTER: TraceEn is cleared, for good (33.2.9.6).
    Senter {
        /// The instruction.
        at: At,
    },
    /// An authenticated code module is set up and runs: packet generation is silently disabled (33.2.9.6).
    AcmBegin,
    /// The module is done: TraceEn is as before; only timing packets tell (33.2.9.6).
    AcmEnd,
    /// VMXON. Where IA32_VMX_MISC\[14\] is 0 it clears TraceEn (33.2.9.4).
    Vmxon {
        /// The instruction.
        at: At,
    },
    /// VMXOFF.
    Vmxoff {
        /// The instruction.
        at: At,
    },
    /// VMPTRLD succeeded (33.4.2.15).
    Vmptrld {
        /// The instruction.
        at: At,
        /// The VMCS pointer.
        vmcs: u64,
    },
    /// VMCLEAR of the current VMCS: there is none now.
    Vmclear {
        /// The instruction.
        at: At,
    },
}

/// Entry to a C-state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sleep {
    /// MWAIT, UMWAIT, TPAUSE, HLT or whatever else stopped execution (CLIP); NLIP when hardware chose to.
    pub ip: Ip,
    /// What software asked for, if it used MWAIT, UMWAIT or TPAUSE.
    pub mwait: Option<Mwait>,
    /// Hardware did it on its own (Hardware Duty Cycling).
    pub hardware: bool,
    /// The resolved thread C-state.
    pub state: CState,
    /// The resolved thread sub C-state, 0 to 15.
    pub sub_state: u8,
}

/// The operands of an MWAIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mwait {
    /// Hints (EAX bits 7:0).
    pub hints: u8,
    /// Extensions (ECX bits 1:0).
    pub ext: u8,
}

/// How a guest's TSC differs from the processor's (33.5.2.1, 33.8.3.3): `(tsc × multiplier >> 48) + offset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuestTsc {
    /// The TSC multiplier of the VMCS, with 48 bits behind the point; `1 << 48` scales by one.
    pub multiplier: u64,
    /// The TSC offset of the VMCS.
    pub offset: u64,
}

impl Default for GuestTsc {
    fn default() -> Self {
        Self {
            multiplier: 1 << 48,
            offset: 0,
        }
    }
}

impl GuestTsc {
    /// What RDTSC returns in the guest when the processor's own TSC is `tsc`.
    #[must_use]
    pub const fn apply(self, tsc: u64) -> u64 {
        (((tsc as u128 * self.multiplier as u128) >> 48) as u64).wrapping_add(self.offset)
    }
}

/// A PTWRITE (33.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ptwrite {
    /// The instruction.
    pub at: At,
    /// Its operand, of 4 or 8 bytes.
    pub operand: Payload,
}

/// A VM entry (33.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct VmEntry<'e> {
    /// VMLAUNCH or VMRESUME.
    pub at: At,
    /// The guest.
    pub to: Destination,
    /// "Conceal VMX from PT", the VM-entry control (Table 33-52).
    pub conceal: bool,
    /// "Conceal VMX from PT", the VM-execution control, which holds in the guest (Table 33-52).
    pub conceal_guest: bool,
    /// The guest's TSC.
    pub tsc: GuestTsc,
    /// "Load IA32_RTIT_CTL": the value (33.5.2.2).
    pub load_ctl: Option<u64>,
    /// The trace registers of the VM-entry MSR-load area, in order: address and value.
    pub loads: &'e [(u32, u64)],
    /// Whether the entry returns from SMM to the executive monitor or its guest (33.6).
    pub from_smm: Option<SmmReturn>,
    /// How the entry ends.
    pub outcome: EntryOutcome,
}

/// A VM entry that returns from SMM (33.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SmmReturn {
    /// The VMCS pointer that it loads.
    pub vmcs: u64,
    /// To VMX root operation, the executive monitor itself.
    pub to_root: bool,
}

impl VmEntry<'_> {
    /// A VM entry that succeeds, with no control of Table 33-52 set.
    #[must_use]
    pub fn new(at: At, to: Destination) -> Self {
        Self {
            at,
            to,
            conceal: false,
            conceal_guest: false,
            tsc: GuestTsc::default(),
            load_ctl: None,
            loads: &[],
            from_smm: None,
            outcome: EntryOutcome::Success,
        }
    }
}

/// How a VM entry ends (33.5.2.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryOutcome {
    /// The guest runs.
    Success,
    /// The entry fails and control falls through to the next instruction.
    EarlyFailure,
    /// The entry fails when guest state is loaded, and ends like a VM exit.
    LateFailure {
        /// Where the host goes on.
        host: Destination,
    },
}

/// A VM exit (33.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct VmExit<'e> {
    /// The guest's IP, as saved in the VMCS.
    pub from: Ip,
    /// The host.
    pub to: Destination,
    /// "Conceal VMX from PT", the VM-exit control (Table 33-52).
    pub conceal: bool,
    /// The exit reason.
    pub reason: u64,
    /// The exit qualification.
    pub qualification: u64,
    /// The vector, if an interrupt, exception, fault or NMI caused the exit.
    pub vector: Option<u8>,
    /// "Clear IA32_RTIT_CTL" (33.5.2.2).
    pub clear_ctl: bool,
    /// The trace registers of the VM-exit MSR-load area, in order: address and value.
    pub loads: &'e [(u32, u64)],
    /// Whether the exit leads to the SMM-transfer monitor (33.6).
    pub to_smm: Option<SmmExit>,
    /// The exit ends in a VMX abort (33.5.2.6).
    pub abort: bool,
}

impl VmExit<'_> {
    /// A VM exit with no control of Table 33-52 set, for reason 0 (an exception or NMI) without a vector.
    #[must_use]
    pub const fn new(from: Ip, to: Destination) -> Self {
        Self {
            from,
            to,
            conceal: false,
            reason: 0,
            qualification: 0,
            vector: None,
            clear_ctl: false,
            loads: &[],
            to_smm: None,
            abort: false,
        }
    }
}

/// An SMM VM exit (33.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SmmExit {
    /// The SMM-transfer VMCS pointer.
    pub vmcs: u64,
    /// An SMI caused it, and not VMCALL.
    pub smi: bool,
}

/// RSM (33.2.9.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rsm {
    /// Where it returns to.
    pub to: Destination,
    /// TraceEn as SMI delivery saved it into SMRAM.
    pub trace_en: bool,
    /// IA32_DEBUGCTL as restored enables LBRs.
    pub lbr: bool,
}
