//! The operand of an instruction that QEMU does not have: PTWRITE (F3 0F AE /4), of a register or of memory.

use crate::state::{Segment, State};
use cofi_packet::ExecMode;

/// Where the operand is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A general register.
    Register(u8),
    /// The linear address.
    Memory(u64),
}

/// A PTWRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Operand {
    pub(crate) place: Place,
    /// It has eight bytes, not four.
    pub(crate) is_wide: bool,
    /// The instruction's length.
    pub(crate) len: u8,
}

/// What an address is made of.
pub(crate) trait Registers {
    /// A general register, by its number.
    fn register(&self, number: u8) -> u64;
    /// Where a segment begins.
    fn base(&self, segment: Segment) -> u64;
}

impl Registers for State {
    fn register(&self, number: u8) -> u64 {
        self.general(number)
    }

    fn base(&self, segment: Segment) -> u64 {
        self.segment_base(segment)
    }
}

/// How wide addresses are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Bits16,
    Bits32,
    Bits64,
}

/// Reads bytes one after the other.
struct Bytes<'b> {
    all: &'b [u8],
    at: usize,
}

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = *self.all.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// A displacement of so many bytes, with its sign.
    fn displacement(&mut self, len: usize) -> Option<u64> {
        let bytes = self.all.get(self.at..self.at + len)?;
        self.at += len;
        Some(match *bytes {
            [] => 0,
            [byte] => i64::from(byte as i8) as u64,
            [low, high] => i64::from(i16::from_le_bytes([low, high])) as u64,
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])) as u64,
            _ => return None,
        })
    }
}

/// Reads a PTWRITE at the offset `ip` into the code segment; `None` if these bytes are none, or not all of one.
pub(crate) fn ptwrite(
    code: &[u8],
    ip: u64,
    mode: ExecMode,
    registers: &impl Registers,
) -> Option<Operand> {
    let mut bytes = Bytes { all: code, at: 0 };
    let (mut has_f3, mut other_width, mut segment, mut rex) = (false, false, None, 0);
    let opcode = loop {
        match bytes.next()? {
            0xf3 => has_f3 = true,
            // With it, the instruction is another one.
            0x66 | 0xf2 => return None,
            0x67 => other_width = true,
            0x26 => segment = Some(Segment::Es),
            0x2e => segment = Some(Segment::Cs),
            0x36 => segment = Some(Segment::Ss),
            0x3e => segment = Some(Segment::Ds),
            0x64 => segment = Some(Segment::Fs),
            0x65 => segment = Some(Segment::Gs),
            byte @ 0x40..=0x4f if mode == ExecMode::Bits64 => {
                rex = byte;
                break bytes.next()?;
            }
            byte => break byte,
        }
    };
    if !has_f3 || opcode != 0x0f || bytes.next()? != 0xae {
        return None;
    }
    let form = bytes.next()?;
    let (kind, rm) = (form >> 6, form & 7);
    if form >> 3 & 7 != 4 {
        return None;
    }
    let is_wide = rex & 8 != 0;
    let (extend_base, extend_index) = ((rex & 1) << 3, (rex & 2) << 2);
    if kind == 3 {
        return Some(Operand {
            place: Place::Register(rm | extend_base),
            is_wide,
            len: bytes.at as u8,
        });
    }
    let width = match (mode, other_width) {
        (ExecMode::Bits64, false) => Width::Bits64,
        (ExecMode::Bits64, true) | (ExecMode::Bits32, false) | (ExecMode::Bits16, true) => {
            Width::Bits32
        }
        _ => Width::Bits16,
    };
    // The sum of registers, whether the stack's segment is meant, and whether the next instruction's address is part of it.
    let (mut sum, mut is_stack, mut is_relative) = (0_u64, false, false);
    if width == Width::Bits16 {
        const BASES: [&[u8]; 8] = [&[3, 6], &[3, 7], &[5, 6], &[5, 7], &[6], &[7], &[5], &[3]];
        let is_absolute = kind == 0 && rm == 6;
        if !is_absolute {
            for number in BASES[usize::from(rm)] {
                sum = sum.wrapping_add(registers.register(*number));
            }
            is_stack = matches!(rm, 2 | 3 | 6);
        }
        let len = match kind {
            0 => usize::from(is_absolute) * 2,
            kind => kind.into(),
        };
        sum = sum.wrapping_add(bytes.displacement(len)?) & 0xffff;
    } else {
        let mut base = Some(rm | extend_base);
        let mut is_absolute = kind == 0 && rm == 5;
        if rm == 4 {
            let sib = bytes.next()?;
            let index = sib >> 3 & 7 | extend_index;
            if index != 4 {
                sum = registers.register(index) << (sib >> 6);
            }
            base = Some(sib & 7 | extend_base);
            is_absolute = kind == 0 && sib & 7 == 5;
        } else if is_absolute {
            is_relative = mode == ExecMode::Bits64;
        }
        if is_absolute {
            base = None;
        }
        if let Some(number) = base {
            sum = sum.wrapping_add(registers.register(number));
            is_stack = matches!(number, 4 | 5);
        }
        let len = match kind {
            0 => usize::from(is_absolute) * 4,
            1 => 1,
            _ => 4,
        };
        sum = sum.wrapping_add(bytes.displacement(len)?);
        if is_relative {
            sum = sum.wrapping_add(ip).wrapping_add(bytes.at as u64);
        }
        if width == Width::Bits32 {
            sum &= 0xffff_ffff;
        }
    }
    let segment = segment.unwrap_or(if is_stack { Segment::Ss } else { Segment::Ds });
    let address = match mode {
        // Only these two begin elsewhere than at 0.
        ExecMode::Bits64 if !matches!(segment, Segment::Fs | Segment::Gs) => sum,
        ExecMode::Bits64 => sum.wrapping_add(registers.base(segment)),
        _ => sum.wrapping_add(registers.base(segment)) & 0xffff_ffff,
    };
    Some(Operand {
        place: Place::Memory(address),
        is_wide,
        len: bytes.at as u8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Register N holds 1000H times N; segments begin at 10000000H times their number.
    struct Known;

    impl Registers for Known {
        fn register(&self, number: u8) -> u64 {
            0x1000 * u64::from(number)
        }

        fn base(&self, segment: Segment) -> u64 {
            0x1000_0000 * segment as u64
        }
    }

    fn read(code: &[u8], mode: ExecMode) -> Option<Operand> {
        ptwrite(code, 0x40_0000, mode, &Known)
    }

    fn memory(code: &[u8], mode: ExecMode) -> u64 {
        let operand = read(code, mode).expect("a PTWRITE");
        assert_eq!(usize::from(operand.len), code.len());
        match operand.place {
            Place::Memory(address) => address,
            Place::Register(number) => panic!("register {number}"),
        }
    }

    #[test]
    fn registers() {
        let operand = read(&[0xf3, 0x0f, 0xae, 0xe0], ExecMode::Bits64).unwrap();
        assert_eq!(
            (operand.place, operand.is_wide),
            (Place::Register(0), false)
        );
        let operand = read(&[0xf3, 0x49, 0x0f, 0xae, 0xe7], ExecMode::Bits64).unwrap();
        assert_eq!(
            (operand.place, operand.is_wide),
            (Place::Register(15), true)
        );
        assert_eq!(operand.len, 5);
    }

    #[test]
    fn addresses_of_64_bits() {
        let at = |code: &[u8]| memory(code, ExecMode::Bits64);
        assert_eq!(at(&[0xf3, 0x0f, 0xae, 0x20]), 0);
        assert_eq!(at(&[0xf3, 0x0f, 0xae, 0x63, 0xf8]), 0x3000 - 8);
        // Beside the next instruction.
        assert_eq!(at(&[0xf3, 0x0f, 0xae, 0x25, 0x10, 0, 0, 0]), 0x40_0018);
        // [r13+r14*4+10H], [rsp+8], and 12345678H of FS.
        assert_eq!(
            at(&[0xf3, 0x4b, 0x0f, 0xae, 0xa4, 0xb5, 0x10, 0, 0, 0]),
            0xd000 + 0xe000 * 4 + 0x10
        );
        assert_eq!(at(&[0xf3, 0x0f, 0xae, 0x64, 0x24, 8]), 0x4008);
        assert_eq!(
            at(&[0x64, 0xf3, 0x0f, 0xae, 0x24, 0x25, 0x78, 0x56, 0x34, 0x12]),
            0x1234_5678 + 0x1000_0000 * Segment::Fs as u64
        );
    }

    #[test]
    fn addresses_of_32_and_16_bits() {
        let stack = 0x1000_0000 * Segment::Ss as u64;
        let data = 0x1000_0000 * Segment::Ds as u64;
        assert_eq!(
            memory(&[0xf3, 0x0f, 0xae, 0x65, 4], ExecMode::Bits32),
            stack + 0x5004
        );
        assert_eq!(
            memory(&[0xf3, 0x0f, 0xae, 0x62, 0x7f], ExecMode::Bits16),
            stack + 0xb07f
        );
        assert_eq!(
            memory(
                &[0xf3, 0x67, 0x0f, 0xae, 0x26, 0x34, 0x12],
                ExecMode::Bits32
            ),
            data + 0x1234
        );
    }

    #[test]
    fn other_instructions_are_none() {
        // XSAVE, XRSTOR with a prefix, INCSSP, and a part.
        for code in [
            &[0x0f, 0xae, 0x20][..],
            &[0xf3, 0x0f, 0xae, 0x28],
            &[0x66, 0xf3, 0x0f, 0xae, 0xe0],
            &[0xf3, 0x0f, 0xae, 0x25, 0x10],
        ] {
            assert_eq!(read(code, ExecMode::Bits64), None, "{code:x?}");
        }
    }
}
