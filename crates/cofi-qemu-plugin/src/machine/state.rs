//! Where the state of an emulated x86 processor is.
//!
//! QEMU's generated code has the address of that state in rbp. Its beginning is the same in QEMU 7.2 and 10.0; in 11.1 it has room for
//! more registers (APX). Before anything is believed, [`State::is_as_known`] compares it with what QEMU says of its registers itself.

use crate::layout::state;
use crate::qemu::Machine;

/// How many general registers the state has room for.
#[cfg(cofi_plugin_api_7)]
const REGISTERS: usize = 32;
#[cfg(not(cofi_plugin_api_7))]
const REGISTERS: usize = 16;

/// Offsets: the registers, of eight bytes each; the rest as they follow.
const RSP: usize = 4 * 8;
const EIP: usize = REGISTERS * 8;
/// QEMU's digest of what decides how code is read.
const HFLAGS: usize = EIP + 48;
const CS: usize = EIP + 80;
const SS: usize = EIP + 104;
const LDT: usize = EIP + 200;
const GDT: usize = EIP + 248;
const IDT: usize = EIP + 272;
const CR3: usize = EIP + 320;
/// Within a segment: selector, base, limit.
const BASE: usize = 8;
const LIMIT: usize = 16;

/// Bits of [`HFLAGS`].
mod hflags {
    pub(super) const CPL: u32 = 3;
    pub(super) const CS32: u32 = 1 << 4;
    pub(super) const SS32: u32 = 1 << 5;
    pub(super) const PE: u32 = 1 << 7;
    pub(super) const LMA: u32 = 1 << 14;
    pub(super) const CS64: u32 = 1 << 15;
    pub(super) const VM: u32 = 1 << 17;
    pub(super) const SMM: u32 = 1 << 19;
    /// What decides how a block runs.
    pub(super) const KIND: u32 = CPL | CS32 | CS64 | VM | SMM;
}

/// How a processor's kinds of segments and interrupts work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// Real mode: interrupts through the table of far pointers.
    Real,
    /// Protected mode, virtual-8086 mode with it.
    Protected,
    /// Long mode, with 64-bit code or not.
    Long,
}

/// A segment register's hidden part, or a table's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Segment {
    pub(super) selector: u16,
    pub(super) base: u64,
    pub(super) limit: u32,
}

/// The state of a processor that is about to run a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct State(*const u8);

impl State {
    /// # Safety
    /// The address is that of a processor's state, and its thread the caller's.
    pub(super) const unsafe fn new(at: *const u8) -> Self {
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

    fn segment(self, offset: usize) -> Segment {
        Segment {
            selector: self.u32(offset) as u16,
            base: self.u64(offset + BASE),
            limit: self.u32(offset + LIMIT),
        }
    }

    /// RIP: an offset into the code segment.
    #[inline]
    pub(super) fn ip(self) -> u64 {
        self.u64(EIP)
    }

    #[inline]
    pub(super) fn cr3(self) -> u64 {
        self.u64(CR3)
    }

    #[inline]
    pub(super) fn cs_selector(self) -> u16 {
        self.u32(CS) as u16
    }

    #[inline]
    pub(super) fn cs_base(self) -> u64 {
        self.u64(CS + BASE)
    }

    pub(super) fn ldt(self) -> Segment {
        self.segment(LDT)
    }

    pub(super) fn gdt(self) -> Segment {
        self.segment(GDT)
    }

    pub(super) fn idt(self) -> Segment {
        self.segment(IDT)
    }

    /// The linear address of the stack's top.
    pub(super) fn stack(self) -> u64 {
        let flags = self.u32(HFLAGS);
        let (rsp, base) = (self.u64(RSP), self.u64(SS + BASE));
        match (flags & hflags::CS64 != 0, flags & hflags::SS32 != 0) {
            (true, _) => rsp,
            (false, true) => base.wrapping_add(rsp & 0xffff_ffff) & 0xffff_ffff,
            (false, false) => base.wrapping_add(rsp & 0xffff) & 0xffff_ffff,
        }
    }

    pub(super) fn mode(self) -> Mode {
        let flags = self.u32(HFLAGS);
        match (flags & hflags::PE != 0, flags & hflags::LMA != 0) {
            (_, true) => Mode::Long,
            (true, false) => Mode::Protected,
            (false, false) => Mode::Real,
        }
    }

    /// Of [`HFLAGS`] what [`Self::bits`] depend on: where it is the same, so are they.
    #[inline]
    pub(super) fn kind(self) -> u32 {
        self.u32(HFLAGS) & hflags::KIND
    }

    /// [`state`]'s bits of a block that runs now.
    pub(super) fn bits(self) -> u32 {
        let flags = self.kind();
        // CPL is 3 in virtual-8086 mode; QEMU's digest says so too.
        let cpl = if flags & hflags::VM != 0 {
            3
        } else {
            flags & hflags::CPL
        };
        let bit = |from: u32, to: u32| if flags & from != 0 { to } else { 0 };
        cpl << state::CPL_SHIFT
            | bit(hflags::CS64, state::BITS_64)
            | bit(hflags::CS32, state::BITS_32)
            | bit(hflags::SMM, state::SMM)
    }

    /// The linear address where it is about to run.
    #[inline]
    pub(super) fn linear(self, bits: u32) -> u64 {
        if bits & state::BITS_64 != 0 {
            self.ip()
        } else {
            self.cs_base().wrapping_add(self.ip()) & 0xffff_ffff
        }
    }

    /// Whether QEMU's own words about its registers agree with what is found here.
    pub(super) fn is_as_known(self, machine: &Machine) -> bool {
        let found = [
            self.ip(),
            self.u64(RSP),
            self.cs_selector().into(),
            self.cr3(),
        ];
        let said = machine.registers(["rip", "rsp", "cs", "cr3"]);
        said.iter()
            .zip(found)
            .all(|(said, found)| *said == Some(found))
    }
}

/// A processor's state that is made for a test: in 64-bit mode unless it is real mode.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct MadeState([u64; 128]);

#[cfg(test)]
impl MadeState {
    pub(super) fn new(ip: u64, is_real: bool, table: (u64, u32)) -> Self {
        let mut words = [0; 128];
        words[EIP / 8] = ip;
        let long = hflags::PE | hflags::LMA | hflags::CS64;
        words[HFLAGS / 8] = if is_real { 0 } else { long.into() };
        words[(IDT + BASE) / 8] = table.0;
        words[(IDT + LIMIT) / 8] = table.1.into();
        Self(words)
    }

    pub(super) fn state(&self) -> State {
        // SAFETY: all that is read is within the words, which outlive the test's use of it.
        unsafe { State::new((&raw const self.0).cast()) }
    }
}
