//! What RTIT needs to know of an instruction beyond its class.

use cofi_packet::ExecMode;
use iced_x86::{Code, Decoder, DecoderOptions, Register};

/// Whether the instruction at the start of `bytes` is a MOV to CR0.
#[must_use]
pub fn is_mov_to_cr0(bytes: &[u8], mode: ExecMode) -> bool {
    let insn = Decoder::new(mode.bits(), bytes, DecoderOptions::NO_INVALID_CHECK).decode();
    matches!(insn.code(), Code::Mov_cr_r32 | Code::Mov_cr_r64)
        && insn.op0_register() == Register::CR0
}

/// How many prefixes the instruction at the start of `bytes` has, LOCK and REX among them.
#[must_use]
pub fn prefixes(bytes: &[u8], mode: ExecMode) -> usize {
    let is_prefix = |byte: &&u8| match **byte {
        0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 => true,
        0x40..=0x4f => mode == ExecMode::Bits64,
        _ => false,
    };
    bytes.iter().take_while(is_prefix).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_to_cr0() {
        let is = |bytes: &[u8]| is_mov_to_cr0(bytes, ExecMode::Bits64);
        assert!(is(&[0x0f, 0x22, 0xc0]) && is(&[0x48, 0x0f, 0x22, 0xc7, 0x90]));
        assert!(is(&[0x66, 0x41, 0x0f, 0x22, 0xc0]), "from r8");
        assert!(!is(&[0x0f, 0x22, 0xd8]) && !is(&[0x0f, 0x20, 0xc0]));
        assert!(!is(&[0x44, 0x0f, 0x22, 0xc0]), "to cr8");
        assert!(!is(&[]) && !is(&[0x0f, 0x22]) && !is(&[0x41, 0x66, 0x90]));
        // In other modes 48 is an instruction of its own.
        assert!(!is_mov_to_cr0(&[0x48, 0x0f, 0x22, 0xc0], ExecMode::Bits32));
        assert!(is_mov_to_cr0(&[0x0f, 0x22, 0xc0], ExecMode::Bits16));
    }

    #[test]
    fn prefixes_are_counted() {
        let syscall = [0x2e, 0x66, 0xf0, 0x48, 0x0f, 0x05];
        assert_eq!(prefixes(&syscall, ExecMode::Bits64), 4);
        assert_eq!(prefixes(&syscall, ExecMode::Bits32), 3);
        assert_eq!(prefixes(&[0x0f, 0x05], ExecMode::Bits64), 0);
    }
}
