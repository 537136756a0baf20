//! Instructions that a single step treats in its own way.

use cofi_packet::ExecMode;

/// What is special about an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Special {
    /// Nothing.
    None,
    /// PUSHF: stores the trap flag of the step; it is in the second byte stored.
    PushFlags,
    /// POPF or IRET: loads the trap flag.
    LoadsFlags,
    /// MOV SS or POP SS: the next instruction runs without a stop.
    LoadsStackSegment,
    /// SGDT, SIDT, SLDT, STR, SMSW: where UMIP forbids them, the kernel executes them and the next instruction runs
    /// without a stop.
    Emulated,
    /// INT 0x80: a system call.
    SystemCall,
    /// INTO: does nothing unless the last result overflowed.
    Into,
    /// INT1: its SIGTRAP looks like that of a step.
    Int1,
}

/// Recognises special instructions, whatever their prefixes are.
pub(super) fn special(bytes: &[u8], mode: ExecMode) -> Special {
    let mut rest = bytes;
    while let [prefix, tail @ ..] = rest {
        match prefix {
            0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 => {}
            0x40..=0x4f if mode == ExecMode::Bits64 => {}
            _ => break,
        }
        rest = tail;
    }
    let reg = |modrm: &u8| modrm >> 3 & 7;
    match rest {
        [0x9c, ..] => Special::PushFlags,
        [0x9d | 0xcf, ..] => Special::LoadsFlags,
        [0x8e, modrm, ..] if reg(modrm) == 2 => Special::LoadsStackSegment,
        [0x17, ..] if mode != ExecMode::Bits64 => Special::LoadsStackSegment,
        [0x0f, 0x00, modrm, ..] if reg(modrm) <= 1 => Special::Emulated,
        [0x0f, 0x01, modrm, ..] if reg(modrm) == 4 || (reg(modrm) <= 1 && *modrm < 0xc0) => {
            Special::Emulated
        }
        [0xcd, 0x80, ..] => Special::SystemCall,
        [0xce, ..] => Special::Into,
        [0xf1, ..] => Special::Int1,
        _ => Special::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_and_without_prefixes() {
        use ExecMode::{Bits32, Bits64};
        for bytes in [
            &[0x9c][..],
            &[0x66, 0x9c],
            &[0x48, 0x9c],
            &[0x2e, 0x66, 0x9c],
        ] {
            assert_eq!(special(bytes, Bits64), Special::PushFlags);
        }
        assert_eq!(special(&[0x48, 0x9c], Bits32), Special::None);
        assert_eq!(special(&[0x8e, 0xd0], Bits64), Special::LoadsStackSegment);
        assert_eq!(special(&[0x8e, 0xd8], Bits64), Special::None);
        assert_eq!(special(&[0x17], Bits32), Special::LoadsStackSegment);
        assert_eq!(special(&[0x0f, 0x01, 0x07], Bits64), Special::Emulated); // sgdt
        assert_eq!(special(&[0x0f, 0x01, 0x0f], Bits64), Special::Emulated); // sidt
        assert_eq!(special(&[0x0f, 0x01, 0xe0], Bits64), Special::Emulated); // smsw
        assert_eq!(special(&[0x0f, 0x01, 0xd0], Bits64), Special::None); // xgetbv
        assert_eq!(special(&[0x0f, 0x01, 0xc8], Bits64), Special::None); // monitor
        assert_eq!(special(&[0x0f, 0x00, 0xc8], Bits64), Special::Emulated); // str
        assert_eq!(special(&[0xf1], Bits64), Special::Int1);
        assert_eq!(special(&[0xcd, 0x80], Bits32), Special::SystemCall);
        assert_eq!(special(&[0xcd, 0x03], Bits32), Special::None);
        assert_eq!(special(&[0x66, 0x9d], Bits64), Special::LoadsFlags);
        assert_eq!(special(&[0x48, 0xcf], Bits64), Special::LoadsFlags);
        assert_eq!(special(&[0x90], Bits64), Special::None);
        assert_eq!(special(&[], Bits64), Special::None);
    }
}
