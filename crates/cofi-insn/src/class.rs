//! The classes of instructions, as a trace sees them.

use iced_x86::{Code, FlowControl, Instruction, Register};

/// How an instruction takes part in the flow of control, in the terms of the trace manual (33.2.1, table 33-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Class {
    /// Goes on with the next instruction and concerns no packet.
    Other,
    /// A conditional direct branch: `Jcc`, `JCXZ` and its kin, `LOOPcc`. One TNT bit.
    Conditional,
    /// An unconditional direct near jump. No packet.
    DirectJump,
    /// A direct near call. No packet.
    DirectCall,
    /// A near jump through a register or memory, or `JMPABS`. A TIP packet.
    IndirectJump,
    /// A near call through a register or memory. A TIP packet.
    IndirectCall,
    /// A near return. A TIP packet, or a TNT bit if compressed.
    Return,
    /// A far call, direct or through memory. A TIP packet.
    FarCall,
    /// A far jump, direct or through memory. A TIP packet.
    FarJump,
    /// A far return: `RETF`, `IRET`, `SYSRET`, `SYSEXIT`, `UIRET`, `ERETU`, `ERETS`, `RSM`. A TIP packet.
    FarReturn,
    /// `SYSCALL` or `SYSENTER`: a far transfer without a FUP.
    Syscall,
    /// `INT n`, `INT3` or `INT1`: a FUP with the instruction's own address, then a TIP packet.
    SoftwareInterrupt,
    /// `INTO`: a software interrupt if the overflow flag is set, nothing otherwise.
    Into,
    /// `VMLAUNCH` or `VMRESUME` (or AMD's `VMRUN`). A TIP packet where guests are traced too.
    VmEntry,
    /// `VMCALL`, `VMFUNC`, `VMXOFF` and the like: may leave a guest, goes on with the next instruction otherwise.
    VmOther,
    /// `VMPTRLD`, to which a VMCS packet binds.
    VmPtrLoad,
    /// `MOV` to CR3, to which a PIP packet binds.
    MovCr3,
    /// `PTWRITE`, to which a PTW packet binds.
    Ptwrite,
    /// `XBEGIN`: may begin a transaction.
    Xbegin,
    /// `XEND`: may commit a transaction.
    Xend,
    /// `XABORT`: aborts the transaction, if there is one.
    Xabort,
    /// `MWAIT`, `UMWAIT`, `TPAUSE` or `HLT`, to which power packets bind.
    Wait,
    /// `ENCLU`, `ENCLS` or `ENCLV`: some of their leaves enter or leave an enclave.
    Enclave,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::Other,
        Self::Conditional,
        Self::DirectJump,
        Self::DirectCall,
        Self::IndirectJump,
        Self::IndirectCall,
        Self::Return,
        Self::FarCall,
        Self::FarJump,
        Self::FarReturn,
        Self::Syscall,
        Self::SoftwareInterrupt,
        Self::Into,
        Self::VmEntry,
        Self::VmOther,
        Self::VmPtrLoad,
        Self::MovCr3,
        Self::Ptwrite,
        Self::Xbegin,
        Self::Xend,
        Self::Xabort,
        Self::Wait,
        Self::Enclave,
    ];

    /// Its place in [`Self::ALL`].
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in listings: `conditional`, `far_return`, …
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Other => "other",
            Self::Conditional => "conditional",
            Self::DirectJump => "direct_jump",
            Self::DirectCall => "direct_call",
            Self::IndirectJump => "indirect_jump",
            Self::IndirectCall => "indirect_call",
            Self::Return => "return",
            Self::FarCall => "far_call",
            Self::FarJump => "far_jump",
            Self::FarReturn => "far_return",
            Self::Syscall => "syscall",
            Self::SoftwareInterrupt => "software_interrupt",
            Self::Into => "into",
            Self::VmEntry => "vm_entry",
            Self::VmOther => "vm_other",
            Self::VmPtrLoad => "vm_ptr_load",
            Self::MovCr3 => "mov_cr3",
            Self::Ptwrite => "ptwrite",
            Self::Xbegin => "xbegin",
            Self::Xend => "xend",
            Self::Xabort => "xabort",
            Self::Wait => "wait",
            Self::Enclave => "enclave",
        }
    }

    /// Whether the instruction's direct target or the next instruction is all that can follow it, without any packet.
    #[inline]
    #[must_use]
    pub const fn is_direct(self) -> bool {
        matches!(self, Class::DirectJump | Class::DirectCall)
    }

    /// Whether the instruction is a branch that always tells its outcome in the trace: with a TNT bit or a TIP packet.
    #[inline]
    #[must_use]
    pub const fn needs_packet(self) -> bool {
        matches!(
            self,
            Class::Conditional
                | Class::IndirectJump
                | Class::IndirectCall
                | Class::Return
                | Class::FarCall
                | Class::FarJump
                | Class::FarReturn
                | Class::Syscall
                | Class::SoftwareInterrupt
                | Class::VmEntry
        )
    }

    /// Whether the instruction is a branch of any kind.
    #[inline]
    #[must_use]
    pub const fn is_branch(self) -> bool {
        self.is_direct() || self.needs_packet()
    }

    /// Whether the instruction is a far transfer.
    #[inline]
    #[must_use]
    pub const fn is_far(self) -> bool {
        matches!(
            self,
            Class::FarCall
                | Class::FarJump
                | Class::FarReturn
                | Class::Syscall
                | Class::SoftwareInterrupt
                | Class::VmEntry
        )
    }
}

/// Classifies by the exact encoding: the disassembler's own notion of control flow differs from the trace's.
#[inline]
pub(crate) fn classify(raw: &Instruction) -> Class {
    // What is certain to go on with the next instruction is most of all code, and is looked up in one step.
    if raw.code().flow_control() == FlowControl::Next && !is_noted(raw.code()) {
        return Class::Other;
    }
    by_code(raw)
}

/// Whether this goes on with the next instruction and nevertheless is of a class of its own.
#[inline]
fn is_noted(code: Code) -> bool {
    matches!(
        code,
        Code::Vmptrld_m64
            | Code::Mov_cr_r32
            | Code::Mov_cr_r64
            | Code::Ptwrite_rm32
            | Code::Ptwrite_rm64
            | Code::Xend
            | Code::Xabort_imm8
            | Code::Vmxoff
            | Code::Vmfunc
            | Code::Mwait
            | Code::Mwaitx
            | Code::Umwait_r32
            | Code::Umwait_r64
            | Code::Tpause_r32
            | Code::Tpause_r64
            | Code::Hlt
            | Code::Enclu
            | Code::Encls
            | Code::Enclv
    )
}

fn by_code(raw: &Instruction) -> Class {
    let code = raw.code();
    if code.is_jcc_short_or_near() || code.is_loop() || code.is_loopcc() || code.is_jcx_short() {
        return Class::Conditional;
    }
    if code.is_jmp_short_or_near() {
        return Class::DirectJump;
    }
    if code.is_call_near() {
        return Class::DirectCall;
    }
    if code.is_jmp_near_indirect() {
        return Class::IndirectJump;
    }
    if code.is_call_near_indirect() {
        return Class::IndirectCall;
    }
    if code.is_jmp_far() || code.is_jmp_far_indirect() {
        return Class::FarJump;
    }
    if code.is_call_far() || code.is_call_far_indirect() {
        return Class::FarCall;
    }
    match code {
        Code::Retnw
        | Code::Retnd
        | Code::Retnq
        | Code::Retnw_imm16
        | Code::Retnd_imm16
        | Code::Retnq_imm16 => Class::Return,
        Code::Retfw
        | Code::Retfd
        | Code::Retfq
        | Code::Retfw_imm16
        | Code::Retfd_imm16
        | Code::Retfq_imm16
        | Code::Iretw
        | Code::Iretd
        | Code::Iretq
        | Code::Sysretd
        | Code::Sysretq
        | Code::Sysexitd
        | Code::Sysexitq
        | Code::Uiret
        | Code::Eretu
        | Code::Erets
        | Code::Rsm => Class::FarReturn,
        Code::Syscall | Code::Sysenter => Class::Syscall,
        Code::Int_imm8 | Code::Int3 | Code::Int1 => Class::SoftwareInterrupt,
        Code::Into => Class::Into,
        Code::Vmlaunch | Code::Vmresume | Code::Vmrunw | Code::Vmrund | Code::Vmrunq => {
            Class::VmEntry
        }
        Code::Vmcall
        | Code::Vmmcall
        | Code::Vmfunc
        | Code::Vmxoff
        | Code::Vmgexit
        | Code::Vmgexit_F2
        | Code::Tdcall
        | Code::Seamcall
        | Code::Seamret => Class::VmOther,
        Code::Vmptrld_m64 => Class::VmPtrLoad,
        Code::Mov_cr_r32 | Code::Mov_cr_r64 if raw.op0_register() == Register::CR3 => Class::MovCr3,
        Code::Ptwrite_rm32 | Code::Ptwrite_rm64 => Class::Ptwrite,
        Code::Xbegin_rel16 | Code::Xbegin_rel32 => Class::Xbegin,
        Code::Xend => Class::Xend,
        Code::Xabort_imm8 => Class::Xabort,
        Code::Mwait
        | Code::Mwaitx
        | Code::Umwait_r32
        | Code::Umwait_r64
        | Code::Tpause_r32
        | Code::Tpause_r64
        | Code::Hlt => Class::Wait,
        Code::Enclu | Code::Encls | Code::Enclv => Class::Enclave,
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn the_quick_answer_is_that_of_the_list() {
        let (mut quick, mut missing) = (0, Vec::new());
        for code in Code::values() {
            let mut raw = Instruction::default();
            raw.set_code(code);
            raw.set_op0_register(Register::CR3);
            if classify(&raw) != by_code(&raw) {
                missing.push(code);
            }
            quick += u32::from(code.flow_control() == FlowControl::Next && !is_noted(code));
        }
        assert_eq!(missing, []);
        assert!(quick > 4000, "most are quick, not {quick}");
    }
}
