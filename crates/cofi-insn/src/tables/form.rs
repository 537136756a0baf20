//! What an opcode's cell of a map says: which bytes follow it, with which prefixes it exists, and its class.

use cofi_packet::ExecMode;

use crate::Class;

/// A set of mandatory prefixes: bit 0 none, bit 1 66, bit 2 F3, bit 3 F2 (the order of VEX.pp).
pub(super) type Prefixes = u32;
/// No mandatory prefix.
pub(super) const NP: Prefixes = 1;
/// The prefix 66.
pub(super) const P66: Prefixes = 2;
/// The prefix F3.
pub(super) const F3: Prefixes = 4;
/// The prefix F2.
pub(super) const F2: Prefixes = 8;
/// With any prefix: none of them is mandatory.
pub(super) const ANY: Prefixes = 15;

/// The size of the immediate with an operand size of 16 bits; 4 bits each for 32 and 64 bits follow.
const IMM: u32 = 0;
/// The prefixes with which the form with an operand in memory exists; 4 bits for that of registers follow.
const VALID: u32 = 12;
const MODRM: u32 = 1 << 20;
const STRING: u32 = 1 << 21;
const PREFIX: u32 = 1 << 22;
const KIND: u32 = 24;

/// The cell of one opcode in one map, packed so that a look-up is one load.
#[derive(Clone, Copy)]
pub(super) struct Form(u32);

/// What must be done for an opcode besides adding up its length, or its class.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Kind(u8);

impl Kind {
    /// An instruction of [`Class::Other`].
    pub(super) const PLAIN: Self = Self(0);
    /// From here on no classes, but what needs more than the cell.
    const FIRST_SPECIAL: u8 = CLASSES.len() as u8;
    /// The escape to the map 0F.
    pub(super) const ESCAPE: Self = Self::special(0);
    /// VEX with two bytes, or LDS.
    pub(super) const VEX2: Self = Self::special(1);
    /// VEX with three bytes, or LES.
    pub(super) const VEX3: Self = Self::special(2);
    /// EVEX, or BOUND.
    pub(super) const EVEX: Self = Self::special(3);
    /// XOP, or POP.
    pub(super) const XOP: Self = Self::special(4);
    /// MOV between the accumulator and an address in the instruction.
    pub(super) const MOFFS: Self = Self::special(5);
    /// The coprocessor's instructions.
    pub(super) const X87: Self = Self::special(6);
    /// The map 0F 38.
    pub(super) const MAP38: Self = Self::special(7);
    /// The map 0F 3A.
    pub(super) const MAP3A: Self = Self::special(8);
    /// 3DNow!, whose opcode stands behind the operands.
    pub(super) const NOW: Self = Self::special(9);
    /// VMREAD, or EXTRQ and INSERTQ with two immediate bytes.
    pub(super) const EXTRQ: Self = Self::special(10);
    /// MOV to a control register.
    pub(super) const MOV_TO_CR: Self = Self::special(11);
    /// What the register form of 0F 01 is, all of the ModRM byte tells.
    pub(super) const SYSTEM: Self = Self::special(12);
    /// The prefix 66.
    pub(super) const OPERAND_SIZE: Self = Self::special(13);
    /// The prefix 67.
    pub(super) const ADDRESS_SIZE: Self = Self::special(14);
    /// The prefix F2.
    pub(super) const REPNE: Self = Self::special(15);
    /// The prefix F3.
    pub(super) const REP: Self = Self::special(16);
    /// Prefixes that change no length and no class: LOCK and segments.
    pub(super) const IGNORED: Self = Self::special(17);
    /// REX.
    pub(super) const REX: Self = Self::special(18);
    /// The first group of opcodes that share a cell.
    const FIRST_GROUP: u8 = Self::special(19).0;

    const fn special(number: u8) -> Self {
        Self(Self::FIRST_SPECIAL + number)
    }

    /// The group with this number.
    pub(super) const fn group(number: u8) -> Self {
        Self(Self::FIRST_GROUP + number)
    }

    /// The number of the group, if this is one.
    #[inline(always)]
    pub(super) const fn as_group(self) -> Option<usize> {
        match self.0.checked_sub(Self::FIRST_GROUP) {
            Some(number) => Some(number as usize),
            None => None,
        }
    }

    const fn of(class: Class) -> Self {
        let mut number = 0;
        while CLASSES[number] as u8 != class as u8 {
            number += 1;
        }
        Self(number as u8)
    }

    /// The kind as a byte.
    #[inline(always)]
    pub(super) const fn bits(self) -> u8 {
        self.0
    }

    /// The kind that is this byte.
    #[inline(always)]
    pub(super) const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Whether more must be known than the cell says.
    #[inline(always)]
    pub(super) const fn is_special(self) -> bool {
        self.0 >= Self::FIRST_SPECIAL
    }

    /// Whether the instruction is a relative branch.
    #[inline(always)]
    pub(super) const fn is_relative(self) -> bool {
        self.0.wrapping_sub(RELATIVE.start) < RELATIVE.end - RELATIVE.start
    }

    /// The class; of a special kind it is not known.
    #[inline(always)]
    pub(super) fn class(self) -> Class {
        CLASSES[usize::from(self.0) % CLASSES.len()]
    }
}

/// The kinds that are relative branches.
const RELATIVE: core::ops::Range<u8> = 1..4;

/// The classes, by the number of their kind.
const CLASSES: [Class; 32] = {
    let mut classes = [Class::Other; 32];
    let known = [
        Class::Other,
        Class::Conditional,
        Class::DirectJump,
        Class::DirectCall,
        Class::IndirectJump,
        Class::IndirectCall,
        Class::Return,
        Class::FarCall,
        Class::FarJump,
        Class::FarReturn,
        Class::Syscall,
        Class::SoftwareInterrupt,
        Class::Into,
        Class::VmEntry,
        Class::VmOther,
        Class::VmPtrLoad,
        Class::MovCr3,
        Class::Xend,
        Class::Wait,
        Class::Enclave,
    ];
    let mut number = 0;
    while number < known.len() {
        classes[number] = known[number];
        number += 1;
    }
    classes
};

/// No instruction, or one that the tables leave to the disassembler.
pub(super) const UNSURE: Form = Form(0);
/// Nothing but the opcode.
pub(super) const BARE: Form = Form((ANY | ANY << 4) << VALID);
/// The opcode and a ModRM byte.
pub(super) const M: Form = Form(BARE.0 | MODRM);

impl Form {
    /// With an immediate of this many bytes, whatever the operand size is.
    pub(super) const fn imm(self, bytes: u32) -> Self {
        self.imms(bytes, bytes, bytes)
    }

    /// With an immediate of so many bytes at operand sizes of 16, 32 and 64 bits.
    pub(super) const fn imms(self, at16: u32, at32: u32, at64: u32) -> Self {
        Self(self.0 & !(0xfff << IMM) | (at16 | at32 << 4 | at64 << 8) << IMM)
    }

    /// With the manual's Iz: 16 bits, or 32 with greater operands.
    pub(super) const fn iz(self) -> Self {
        self.imms(2, 4, 4)
    }

    /// Only with these prefixes.
    pub(super) const fn with(self, prefixes: Prefixes) -> Self {
        self.mem(prefixes).reg(prefixes)
    }

    /// With an operand in memory only with these prefixes.
    pub(super) const fn mem(self, prefixes: Prefixes) -> Self {
        Self(self.0 & !(ANY << VALID) | prefixes << VALID)
    }

    /// With registers only with these prefixes.
    pub(super) const fn reg(self, prefixes: Prefixes) -> Self {
        Self(self.0 & !(ANY << (VALID + 4)) | prefixes << (VALID + 4))
    }

    /// A string instruction, which a prefix repeats.
    pub(super) const fn string(self) -> Self {
        Self(self.0 | STRING)
    }

    /// Of this class.
    pub(super) const fn class(self, class: Class) -> Self {
        self.kind(Kind::of(class))
    }

    /// Of this kind.
    pub(super) const fn kind(self, kind: Kind) -> Self {
        Self(self.0 & !(0xff << KIND) | (kind.0 as u32) << KIND)
    }

    /// A prefix.
    pub(super) const fn prefix(kind: Kind) -> Self {
        Self(PREFIX).kind(kind)
    }

    /// The kind.
    #[inline(always)]
    pub(super) const fn get_kind(self) -> Kind {
        Kind((self.0 >> KIND) as u8)
    }

    /// Whether this is a prefix.
    #[inline(always)]
    pub(super) const fn is_prefix(self) -> bool {
        self.0 & PREFIX != 0
    }

    /// This length if a ModRM byte follows, and 0 if none does.
    #[inline(always)]
    pub(super) const fn if_modrm(self, len: u32) -> u32 {
        (self.0 & MODRM) / MODRM * len
    }

    /// Whether this is a string instruction.
    #[inline(always)]
    pub(super) const fn is_string(self) -> bool {
        self.0 & STRING != 0
    }

    /// Whether the form exists with this mandatory prefix, by its number.
    #[inline(always)]
    pub(super) const fn is_valid(self, registers: bool, prefix: u32) -> bool {
        self.0 >> (VALID + 4 * registers as u32 + prefix) & 1 != 0
    }

    /// The size of the immediate at this operand size.
    #[inline(always)]
    pub(super) const fn imm_size(self, operands: OperandSize) -> u32 {
        self.0 >> (IMM + 4 * operands.0) & 15
    }
}

/// The operand size that mode and prefixes give: a number, so that REX.W can be added to it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct OperandSize(u32);

impl OperandSize {
    pub(super) const BITS16: Self = Self(0);
    pub(super) const BITS32: Self = Self(1);
    pub(super) const BITS64: Self = Self(2);

    /// What REX says, without the prefix 66.
    #[inline(always)]
    pub(super) const fn of_rex(rex: u8) -> Self {
        Self(Self::BITS32.0 + (rex as u32 >> 3 & 1))
    }
}

/// In which modes a row holds.
#[derive(Clone, Copy)]
pub(super) enum Modes {
    All,
    Not64,
    Only64,
}

/// Opcodes that stand one behind the other in a map and have the same form.
pub(super) struct Row(u8, u8, Modes, Form);

/// One opcode.
pub(super) const fn one(opcode: u8, form: Form) -> Row {
    Row(opcode, opcode, Modes::All, form)
}

/// The opcodes from `first` to `last`.
pub(super) const fn many(first: u8, last: u8, form: Form) -> Row {
    Row(first, last, Modes::All, form)
}

/// The opcodes from `first` to `last`, outside 64-bit mode.
pub(super) const fn not64(first: u8, last: u8, form: Form) -> Row {
    Row(first, last, Modes::Not64, form)
}

/// The opcodes from `first` to `last`, in 64-bit mode.
pub(super) const fn only64(first: u8, last: u8, form: Form) -> Row {
    Row(first, last, Modes::Only64, form)
}

/// The map that these rows make in this mode; a later row overrides an earlier one.
pub(super) const fn map(rows: &[Row], mode: ExecMode) -> [Form; 256] {
    let is_64 = matches!(mode, ExecMode::Bits64);
    let mut map = [UNSURE; 256];
    let mut at = 0;
    while at < rows.len() {
        let Row(first, last, modes, form) = rows[at];
        let holds = match modes {
            Modes::All => true,
            Modes::Not64 => !is_64,
            Modes::Only64 => is_64,
        };
        let mut opcode = first as usize;
        while holds && opcode <= last as usize {
            map[opcode] = form;
            opcode += 1;
        }
        at += 1;
    }
    map
}
