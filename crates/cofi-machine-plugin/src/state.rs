//! The state of an emulated x86 processor, where QEMU keeps it.
//!
//! QEMU's generated code has its address in RBP. Its beginning is that of QEMU 11.1; before anything is believed, [`State::is_as_known`]
//! compares it with what QEMU says of its registers itself.
#![allow(
    unsafe_code,
    reason = "memory of another program's making; each use has its justification"
)]

use crate::qemu::Qemu;
use cofi_packet::ExecMode;
use cofi_unit::Context;

/// Offsets: thirty-two registers of eight bytes (of which the processors have sixteen), the rest as they follow.
const RSP: usize = 4 * 8;
const EIP: usize = 32 * 8;
const EFLAGS: usize = EIP + 8;
/// QEMU's digest of what decides how code is read.
const HFLAGS: usize = EIP + 48;
const SEGMENTS: usize = EIP + 56;
const SEGMENT: usize = 24;
const CS: usize = SEGMENTS + SEGMENT;
const SS: usize = EIP + 104;
const IDT: usize = EIP + 272;
const CR0: usize = EIP + 296;
const CR2: usize = CR0 + 16;
const CR3: usize = CR0 + 24;
const CR4: usize = CR0 + 32;
/// Within a segment or a table.
const BASE: usize = 8;
const LIMIT: usize = 16;

/// Bits of [`HFLAGS`].
mod hflags {
    pub(super) const CPL: u32 = 3;
    pub(super) const CS32: u32 = 1 << 4;
    pub(super) const SS32: u32 = 1 << 5;
    pub(super) const LMA: u32 = 1 << 14;
    pub(super) const CS64: u32 = 1 << 15;
    pub(super) const VM: u32 = 1 << 17;
    pub(super) const SMM: u32 = 1 << 19;
}

/// The offset of the SMI handler in its code segment.
const SMI_HANDLER: u64 = 0x8000;
/// RFLAGS.IF.
const INTERRUPT_FLAG: u64 = 1 << 9;
/// CR0.PE, CR0.PG and CR4.PAE.
const PROTECTED: u64 = 1;
const PAGING: u64 = 1 << 31;
const PAE: u64 = 1 << 5;
/// CR4.PCE.
const COUNTERS_FOR_USERS: u64 = 1 << 8;

/// A segment, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Segment {
    Es = 0,
    Cs = 1,
    Ss = 2,
    Ds = 3,
    Fs = 4,
    Gs = 5,
}

/// In which mode and at which privilege a block runs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Manner(u32);

impl Manner {
    const BITS: u32 =
        hflags::CPL | hflags::CS32 | hflags::LMA | hflags::CS64 | hflags::VM | hflags::SMM;

    /// Whether it is 64-bit code.
    #[inline]
    pub(crate) const fn is_64_bit(self) -> bool {
        self.0 & hflags::CS64 != 0
    }
}

/// A general register, by its number in instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Register {
    Rax = 0,
    Rcx = 1,
    Rdx = 2,
    Rbx = 3,
}

/// See [`State::snapshot`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Snapshot([u64; 16], u64, u64);

/// The state of a processor that stands between two instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State(*mut u8);

impl State {
    /// # Safety
    /// The address is that of a processor's state, and its thread the caller's, in a callback.
    pub(crate) const unsafe fn new(at: *mut u8) -> Self {
        Self(at)
    }

    #[inline]
    fn u64(self, offset: usize) -> u64 {
        // SAFETY: the offset is within the state, which its own thread reads, aligned.
        unsafe { self.0.add(offset).cast::<u64>().read() }
    }

    #[inline]
    fn u32(self, offset: usize) -> u32 {
        // SAFETY: as above.
        unsafe { self.0.add(offset).cast::<u32>().read() }
    }

    /// A general register.
    #[inline]
    pub(crate) fn get(self, register: Register) -> u64 {
        self.u64(register as usize * 8)
    }

    /// What no processor changes that stands still: its general registers, RIP and CR3.
    pub(crate) fn snapshot(self) -> Snapshot {
        let general = core::array::from_fn(|number| self.general(number as u8));
        Snapshot(general, self.u64(EIP), self.cr3())
    }

    /// A general register, by its number (0 to 15).
    pub(crate) fn general(self, number: u8) -> u64 {
        self.u64(usize::from(number & 15) * 8)
    }

    /// The linear address at which a segment begins.
    pub(crate) fn segment_base(self, segment: Segment) -> u64 {
        self.u64(SEGMENTS + SEGMENT * segment as usize + BASE)
    }

    /// Whether the processor is where a reset puts it, about to run its first instruction.
    pub(crate) fn is_reset(self) -> bool {
        self.u64(EIP) == 0xfff0
            && self.u64(CS + BASE) == 0xffff_0000
            && self.u64(CR0) & PROTECTED == 0
    }

    /// Sets a general register.
    #[inline]
    pub(crate) fn set(self, register: Register, value: u64) {
        // SAFETY: as above; QEMU has been told that the callback writes registers.
        unsafe {
            self.0.add(register as usize * 8).cast::<u64>().write(value);
        }
    }

    /// EDX:EAX, as RDMSR and RDTSC have it.
    pub(crate) fn set_pair(self, value: u64) {
        self.set(Register::Rax, value & 0xffff_ffff);
        self.set(Register::Rdx, value >> 32);
    }

    /// EDX:EAX, as WRMSR has it.
    pub(crate) fn pair(self) -> u64 {
        self.get(Register::Rdx) << 32 | self.get(Register::Rax) & 0xffff_ffff
    }

    #[inline]
    pub(crate) fn cr3(self) -> u64 {
        self.u64(CR3)
    }

    /// The address whose page was not there, of the last page fault.
    pub(crate) fn cr2(self) -> u64 {
        self.u64(CR2)
    }

    /// Where the table of interrupts is, and its limit.
    pub(crate) fn interrupt_table(self) -> (u64, u32) {
        (self.u64(IDT + BASE), self.u32(IDT + LIMIT))
    }

    /// Whether it is in protected mode, long mode with it.
    pub(crate) fn is_protected(self) -> bool {
        self.u64(CR0) & PROTECTED != 0
    }

    /// Whether it is in system management mode.
    #[inline]
    pub(crate) fn is_smm(self) -> bool {
        self.u32(HFLAGS) & hflags::SMM != 0
    }

    /// Whether it is where an SMI leads, about to run the first instruction of its handler.
    #[inline]
    pub(crate) fn is_at_smi_handler(self) -> bool {
        self.is_smm() && self.u64(EIP) == SMI_HANDLER
    }

    /// CR0.PG.
    pub(crate) fn has_paging(self) -> bool {
        self.u64(CR0) & PAGING != 0
    }

    /// Whether it is in long mode, with 64-bit code or not.
    pub(crate) fn is_long(self) -> bool {
        self.u32(HFLAGS) & hflags::LMA != 0
    }

    /// The linear address where it is about to run. Only at the beginning of a block.
    #[inline]
    pub(crate) fn linear(self) -> u64 {
        let ip = self.u64(EIP);
        if self.u32(HFLAGS) & hflags::CS64 != 0 {
            ip
        } else {
            self.u64(CS + BASE).wrapping_add(ip) & 0xffff_ffff
        }
    }

    /// As [`Self::linear`], of 64-bit code.
    #[inline]
    pub(crate) fn linear_64(self) -> u64 {
        self.u64(EIP)
    }

    #[inline]
    pub(crate) fn manner(self) -> Manner {
        Manner(self.u32(HFLAGS) & Manner::BITS)
    }

    #[inline]
    pub(crate) fn cs_selector(self) -> u16 {
        self.u32(CS) as u16
    }

    /// The linear address of the stack's top.
    pub(crate) fn stack(self) -> u64 {
        let flags = self.u32(HFLAGS);
        let (rsp, base) = (self.u64(RSP), self.u64(SS + BASE));
        match (flags & hflags::CS64 != 0, flags & hflags::SS32 != 0) {
            (true, _) => rsp,
            (false, true) => base.wrapping_add(rsp & 0xffff_ffff) & 0xffff_ffff,
            (false, false) => base.wrapping_add(rsp & 0xffff) & 0xffff_ffff,
        }
    }

    /// What is added to RIP for a linear address.
    pub(crate) fn code_base(self) -> u64 {
        match self.mode() {
            ExecMode::Bits64 => 0,
            _ => self.u64(CS + BASE),
        }
    }

    /// CR4.PCE.
    pub(crate) fn lets_users_read_counters(self) -> bool {
        self.u64(CR4) & COUNTERS_FOR_USERS != 0
    }

    /// How code is read.
    #[inline]
    pub(crate) fn mode(self) -> ExecMode {
        let flags = self.u32(HFLAGS);
        if flags & hflags::CS64 != 0 {
            ExecMode::Bits64
        } else if flags & hflags::CS32 != 0 {
            ExecMode::Bits32
        } else {
            ExecMode::Bits16
        }
    }

    #[inline]
    pub(crate) fn cpl(self) -> u8 {
        let flags = self.u32(HFLAGS);
        if flags & hflags::VM != 0 {
            3
        } else {
            (flags & hflags::CPL) as u8
        }
    }

    /// What the trace unit must know.
    #[inline]
    pub(crate) fn context(self) -> Context {
        let mode = self.mode();
        Context {
            cpl: self.cpl(),
            cr3: self.cr3(),
            pae: !self.is_long() && self.u64(CR4) & PAE != 0 && self.u64(CR0) & PAGING != 0,
            mode,
            cs_base: if mode == ExecMode::Bits64 {
                0
            } else {
                self.u64(CS + BASE)
            },
            interrupt_flag: self.u64(EFLAGS) & INTERRUPT_FLAG != 0,
            ..Context::default()
        }
    }

    /// Whether QEMU's own words about its registers agree with what is found here.
    pub(crate) fn is_as_known(self, qemu: &Qemu) -> bool {
        let names = [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15", "rip", "cs", "cr0", "cr2", "cr3", "cr4",
        ];
        let said = qemu.registers(names);
        said.iter().enumerate().all(|(index, said)| {
            let found = match index {
                16 => self.u64(EIP),
                17 => self.u32(CS).into(),
                18 => self.u64(CR0),
                19 => self.u64(CR2),
                20 => self.u64(CR3),
                21 => self.u64(CR4),
                _ => self.u64(index * 8),
            };

            *said == Some(found)
        })
    }
}
