//! Length, class and target of an instruction by tables.
//!
//! A trace decoder asks so little of an instruction that a disassembler does most of its work for nothing. What it asks is in
//! tables here, one load an opcode. They say nothing ("not sure") of bytes that are no instruction, that end too early, or
//! that are so rare or so odd that the disassembler may decide; whatever they say is what the disassembler would
//! ([`by_disassembler`](crate::by_disassembler)), which tests, an exam and a fuzz target compare.

mod form;
mod legacy;
mod vector;

use cofi_packet::{ExecMode, Ip};

use crate::{Class, Insn, MAX_INSN_LEN, checksum, wrap_target};
use form::{BARE, Form, Kind, M, OperandSize};
use legacy::Maps;

/// How many bytes are looked at: one more than an instruction can have, so that they are two words.
const WINDOW: usize = 16;

/// Decodes the instruction at the start of `bytes` as [`decode`](crate::decode) does, if the tables are sure of it.
#[inline(always)]
#[must_use]
pub fn by_tables(bytes: &[u8], ip: Ip, mode: ExecMode) -> Option<Insn> {
    find(bytes, ip, mode).insn()
}

/// What is known of an instruction, in two registers: as an [`Insn`] it would go through memory, byte by byte in and in one out,
/// for which a processor waits longer than all look-ups take.
#[derive(Clone, Copy)]
struct Found {
    /// From the lowest byte on: length, kind, whether it repeats, nothing; and the digest. 0 if the tables are not sure.
    word: u64,
    /// The target of a relative branch.
    target: u64,
}

impl Found {
    const NOTHING: Self = Self { word: 0, target: 0 };

    #[inline(always)]
    fn insn(self) -> Option<Insn> {
        let [len, kind, repeats, ..] = self.word.to_le_bytes();
        let kind = Kind::from_bits(kind);
        (len != 0).then(|| Insn {
            len,
            class: kind.class(),
            target: kind.is_relative().then_some(Ip(self.target)),
            repeats: repeats != 0,
            digest: (self.word >> 32) as u32,
        })
    }
}

#[inline(always)]
fn find(bytes: &[u8], ip: Ip, mode: ExecMode) -> Found {
    let Some(window) = bytes.first_chunk() else {
        return short(bytes, ip, mode);
    };
    match mode {
        ExecMode::Bits64 => decode::<64>(window, MAX_INSN_LEN as u32, ip),
        // Apart, so that what is inlined everywhere is one mode's only.
        _ => other_modes(window, MAX_INSN_LEN as u32, ip, mode),
    }
}

/// The first bytes of what is decoded. What is behind their end is anything: an instruction that needs it is longer than they.
type Window = [u8; WINDOW];

/// The byte at this place; behind the window it is any byte, and no instruction is that long.
#[inline(always)]
fn byte(window: &Window, at: u32) -> u8 {
    window[at as usize % WINDOW]
}

/// [`by_tables`] of fewer bytes than a window has.
#[inline(never)]
fn short(bytes: &[u8], ip: Ip, mode: ExecMode) -> Found {
    let mut window = [0; WINDOW];
    window[..bytes.len()].copy_from_slice(bytes);
    match mode {
        ExecMode::Bits64 => decode::<64>(&window, bytes.len() as u32, ip),
        _ => other_modes(&window, bytes.len() as u32, ip, mode),
    }
}

#[inline(never)]
fn other_modes(window: &Window, available: u32, ip: Ip, mode: ExecMode) -> Found {
    match mode {
        ExecMode::Bits16 => decode::<16>(window, available, ip),
        _ => decode::<32>(window, available, ip),
    }
}

/// What the prefixes say.
#[derive(Clone, Copy)]
struct Prefixes {
    operands: OperandSize,
    /// The mandatory prefix: none, 66, F3, F2.
    mandatory: u32,
    /// Whether the prefix 67 is there.
    address_size: bool,
    rex: u8,
}

impl Prefixes {
    #[inline(always)]
    const fn none(bits: u32) -> Self {
        Self {
            operands: if bits == 16 {
                OperandSize::BITS16
            } else {
                OperandSize::BITS32
            },
            mandatory: 0,
            address_size: false,
            rex: 0,
        }
    }

    /// How many bytes an address has.
    #[inline(always)]
    const fn address_len(self, bits: u32) -> u32 {
        match (bits, self.address_size) {
            (64, false) => 8,
            (64, true) | (32, false) | (16, true) => 4,
            _ => 2,
        }
    }
}

/// A form, and where the byte behind its opcode stands.
type Opcode = (Form, u32);

#[inline(always)]
fn decode<const BITS: u32>(window: &Window, available: u32, ip: Ip) -> Found {
    let maps: &Maps = match BITS {
        16 => &legacy::BITS16,
        32 => &legacy::BITS32,
        _ => &legacy::BITS64,
    };
    let mut prefixes = Prefixes::none(BITS);
    // Every second instruction has a REX prefix: no predictor would guess which, so that this is no branch.
    let rex = u32::from(BITS == 64 && window[0] & 0xf0 == 0x40);
    let mut at = 1 + rex;
    if BITS == 64 {
        prefixes.rex = window[0] * rex as u8;
        prefixes.operands = OperandSize::of_rex(prefixes.rex);
    }
    let mut form = maps.one[usize::from(window[rex as usize % WINDOW])];
    if form.is_prefix() {
        // Only the last prefix before the opcode is a REX prefix.
        if rex != 0 {
            return Found::NOTHING;
        }
        let Some((opcode, all)) = read_prefixes::<BITS>(window, maps) else {
            return Found::NOTHING;
        };
        ((form, at), prefixes) = (opcode, all);
    }
    if form.get_kind() == Kind::ESCAPE {
        form = maps.two[usize::from(byte(window, at))];
        at += 1;
    }
    if form.get_kind().is_special() {
        let Some(opcode) = special::<BITS>(window, (form, at), prefixes) else {
            return Found::NOTHING;
        };
        (form, at) = opcode;
    }
    // Without a ModRM byte this is any byte, and the form's answers are the same for each.
    let modrm = byte(window, at);
    if !form.is_valid(modrm >= 0xc0, prefixes.mandatory) {
        return Found::NOTHING;
    }
    at += form.if_modrm(operand_len::<BITS>(window, at, prefixes));
    let immediate = form.imm_size(prefixes.operands);
    let len = at + immediate;
    if len > available {
        return Found::NOTHING;
    }
    let kind = form.get_kind();
    let target = if kind.is_relative() {
        let distance = distance(window, at, immediate);
        target::<BITS>(ip, len, distance, prefixes.operands).0
    } else {
        0
    };
    let repeats = form.is_string() && prefixes.mandatory >= 2;
    let digest = checksum::digest_of_window(window, len);
    Found {
        word: u64::from(len)
            | u64::from(kind.bits()) << 8
            | u64::from(repeats) << 16
            | u64::from(digest) << 32,
        target,
    }
}

/// Reads the prefixes, and finds the form of the opcode behind them.
#[inline(never)]
fn read_prefixes<const BITS: u32>(window: &Window, maps: &Maps) -> Option<(Opcode, Prefixes)> {
    let mut prefixes = Prefixes::none(BITS);
    let mut operand_size = false;
    let mut at = 0;
    loop {
        let form = maps.one[usize::from(byte(window, at))];
        at += 1;
        match form.get_kind() {
            _ if !form.is_prefix() || at as usize > MAX_INSN_LEN => {
                prefixes.operands = match BITS {
                    _ if prefixes.rex & 8 != 0 => OperandSize::BITS64,
                    16 if operand_size => OperandSize::BITS32,
                    16 => OperandSize::BITS16,
                    _ if operand_size => OperandSize::BITS16,
                    _ => OperandSize::BITS32,
                };
                return Some(((form, at), prefixes));
            }
            // Only the last prefix before the opcode is a REX prefix.
            _ if prefixes.rex != 0 => return None,
            Kind::REX => prefixes.rex = byte(window, at - 1),
            Kind::OPERAND_SIZE => {
                operand_size = true;
                prefixes.mandatory = prefixes.mandatory.max(1);
            }
            Kind::ADDRESS_SIZE => prefixes.address_size = true,
            Kind::REP => prefixes.mandatory = 2,
            Kind::REPNE => prefixes.mandatory = 3,
            _ => {}
        }
    }
}

/// The form of an opcode of which its cell does not tell all.
#[inline(never)]
fn special<const BITS: u32>(
    window: &Window,
    (form, at): Opcode,
    prefixes: Prefixes,
) -> Option<Opcode> {
    let kind = form.get_kind();
    let modrm = byte(window, at);
    let registers = modrm >= 0xc0;
    let reg = usize::from(modrm >> 3 & 7);
    if let Some(group) = kind.as_group() {
        let half = if registers { 8 } else { 0 };
        return Some((legacy::GROUPS[group][half + reg], at));
    }
    // Outside 64-bit mode two register operands tell a vector's prefix from what was there before it.
    let is_vector = registers || BITS == 64;
    let plain = form.kind(Kind::PLAIN);
    let form = match kind {
        Kind::MAP38 => return Some((legacy::MAP38[usize::from(modrm)], at + 1)),
        Kind::MAP3A => return Some((legacy::MAP3A[usize::from(modrm)], at + 1)),
        Kind::VEX2 if is_vector => return vector::<BITS>(window, at, Vector::Vex2, prefixes),
        Kind::VEX3 if is_vector => return vector::<BITS>(window, at, Vector::Vex3, prefixes),
        Kind::EVEX if is_vector => return vector::<BITS>(window, at, Vector::Evex, prefixes),
        Kind::XOP if modrm & 0x1f >= 8 => {
            return vector::<BITS>(window, at, Vector::Xop, prefixes);
        }
        Kind::VEX2 | Kind::VEX3 | Kind::EVEX => plain,
        Kind::XOP => legacy::GROUPS[legacy::POP][reg],
        Kind::MOFFS => plain.imm(prefixes.address_len(BITS)),
        Kind::X87 => {
            let number = usize::from(byte(window, at - 1) & 7);
            let known = if registers {
                legacy::X87_REG[number] >> (modrm & 0x3f) & 1 != 0
            } else {
                legacy::X87_MEM[number] >> reg & 1 != 0
            };
            known.then_some(plain)?
        }
        Kind::SYSTEM if registers => legacy::SYSTEM_REG[usize::from(modrm & 0x3f)],
        Kind::SYSTEM => legacy::SYSTEM_MEM[reg],
        Kind::MOV_TO_CR if reg == 3 && prefixes.rex & 4 == 0 => form.class(Class::MovCr3),
        Kind::MOV_TO_CR => plain,
        Kind::EXTRQ if prefixes.mandatory == 0 => plain,
        Kind::EXTRQ if prefixes.mandatory != 1 || reg == 0 => plain.imm(2),
        Kind::NOW => {
            let operation = byte(window, at + operand_len::<BITS>(window, at, prefixes));
            legacy::NOW.contains(&operation).then_some(plain)?
        }
        _ => return None,
    };
    Some((form, at))
}

/// How many bytes ModRM, SIB and displacement are, where ModRM is at this place.
#[inline(always)]
fn operand_len<const BITS: u32>(window: &Window, at: u32, prefixes: Prefixes) -> u32 {
    let modrm = usize::from(byte(window, at));
    if BITS != 64 && prefixes.address_len(BITS) == 2 {
        return u32::from(legacy::MODRM_16[modrm]);
    }
    let len = legacy::MODRM_32[modrm];
    let has_base = byte(window, at + 1) & 7 != 5;
    let displacement = u32::from(len & legacy::SIB_BASE != 0 && !has_base) * 4;
    u32::from(len & !legacy::SIB_BASE) + displacement
}

/// Encodings with prefixes of their own.
#[derive(Clone, Copy)]
enum Vector {
    Vex2,
    Vex3,
    Xop,
    Evex,
}

/// The form of an instruction of VEX, XOP or EVEX, whose prefix goes on at this place behind its first byte.
#[inline]
fn vector<const BITS: u32>(
    window: &Window,
    at: u32,
    vector: Vector,
    prefixes: Prefixes,
) -> Option<Opcode> {
    // With these the processor has no such instruction; what the disassembler makes of them is for it to say.
    if prefixes.mandatory != 0 || prefixes.rex != 0 {
        return None;
    }
    let first = byte(window, at);
    let second = byte(window, at + 1);
    let (number, second, at) = match vector {
        Vector::Vex2 => (1, first & 0x7f, at + 1),
        Vector::Vex3 | Vector::Xop => (first & 0x1f, second, at + 2),
        Vector::Evex => (first & 0x0f, second, at + 3),
    };
    let wide = second & 0x80 != 0;
    let prefix = u32::from(second & 3);
    let (map, key, rounding) = match (vector, number) {
        (Vector::Evex, 1..=3 | 5..=6) => {
            let index = usize::from(number) - if number < 4 { 1 } else { 2 };
            let third = byte(window, at - 1);
            // Bit 2 is always set; in other modes there are no registers from 16 on.
            if second & 4 == 0 || BITS != 64 && third & 8 == 0 {
                return None;
            }
            let key = vector::key(prefix, wide, u32::from(third >> 5 & 3), 4);
            // With registers the length may be the rounding, of vectors of 512 bits or of scalars.
            let rounding = (third & 0x10 != 0).then_some(vector::key(prefix, wide, 2, 4));
            (&vector::EVEX[index], key, rounding)
        }
        (Vector::Vex2 | Vector::Vex3, 1..=3) => {
            let key = vector::key(prefix, wide, u32::from(second >> 2 & 1), 2);
            (&vector::VEX[usize::from(number) - 1], key, None)
        }
        (Vector::Xop, 8..=10) => {
            let key = vector::key(prefix, wide, u32::from(second >> 2 & 1), 2);
            (&vector::XOP[usize::from(number) - 8], key, None)
        }
        _ => return None,
    };
    let opcode = byte(window, at);
    let at = at + 1;
    // VZEROUPPER and VZEROALL.
    if let (Vector::Vex2 | Vector::Vex3, 1, 0x77, 0) = (vector, number, opcode, prefix) {
        return Some((BARE, at));
    }
    let cell = &map[usize::from(opcode)];
    let modrm = byte(window, at);
    let known = if modrm >= 0xc0 {
        cell.reg >> key & 1 != 0 && rounding.is_none_or(|key| cell.reg >> key & 1 != 0)
    } else {
        cell.mem >> key & 1 != 0
    };
    if !known || cell.regs[usize::from(wide)] >> (modrm >> 3 & 7) & 1 == 0 {
        return None;
    }
    let immediate = match (vector, number, opcode) {
        (Vector::Xop, 8, _) => 1,
        (Vector::Xop, 10, _) => 4,
        (Vector::Xop, ..) => 0,
        (_, 1, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) | (_, 3, _) => 1,
        _ => 0,
    };
    Some((M.imm(immediate), at))
}

/// The distance of a relative branch, of one, two or four bytes at this place.
#[inline(always)]
fn distance(window: &Window, at: u32, bytes: u32) -> i64 {
    let byte = |offset| byte(window, at + offset);
    match bytes {
        1 => i64::from(byte(0) as i8),
        2 => i64::from(i16::from_le_bytes([byte(0), byte(1)])),
        _ => i64::from(i32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])),
    }
}

/// Where a relative branch goes.
#[inline(always)]
fn target<const BITS: u32>(ip: Ip, len: u32, distance: i64, operands: OperandSize) -> Ip {
    let next = ip.0.wrapping_add(u64::from(len));
    let target = next.wrapping_add_signed(distance);
    match (BITS, operands) {
        (64, _) => Ip(target),
        (_, OperandSize::BITS16) => {
            let mode = if BITS == 16 {
                ExecMode::Bits16
            } else {
                ExecMode::Bits32
            };
            wrap_target(target as u16, len as u8, ip, mode)
        }
        _ => Ip(target & 0xffff_ffff),
    }
}
