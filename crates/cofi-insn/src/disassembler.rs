//! Length, class and target of an instruction by the disassembler: what the tables are not sure of, and what they are
//! compared with.

use cofi_packet::{ExecMode, Ip};
use iced_x86::{Decoder, DecoderError, DecoderOptions, Instruction, OpKind};

use crate::{Class, Insn, InsnError, MAX_INSN_LEN, checksum, class, wrap_target};

/// Decodes the instruction at the start of `bytes` as [`decode`](crate::decode) does, and as slowly as a disassembler.
///
/// # Errors
///
/// As [`decode`](crate::decode).
#[inline(never)]
pub fn by_disassembler(bytes: &[u8], ip: Ip, mode: ExecMode) -> Result<Insn, InsnError> {
    let bytes = &bytes[..bytes.len().min(MAX_INSN_LEN)];
    let options = DecoderOptions::NO_INVALID_CHECK;
    let mut decoder = Decoder::with_ip(mode.bits(), bytes, ip.0, options);
    let mut raw = Instruction::default();
    decoder.decode_out(&mut raw);
    match decoder.last_error() {
        DecoderError::None => {
            let class = class::classify(&raw);
            Ok(Insn {
                len: raw.len() as u8,
                class,
                target: direct_target(&raw, class, ip, mode),
                repeats: raw.code().is_string_instruction()
                    && (raw.has_rep_prefix() || raw.has_repne_prefix()),
                digest: digest(bytes, raw.len() as u8),
            })
        }
        DecoderError::NoMoreBytes if bytes.len() < MAX_INSN_LEN => Err(InsnError::Truncated {
            ip,
            available: bytes.len() as u8,
        }),
        _ => match jmpabs(bytes, mode) {
            Jmpabs::Complete(insn) => Ok(insn),
            Jmpabs::Truncated => Err(InsnError::Truncated {
                ip,
                available: bytes.len() as u8,
            }),
            Jmpabs::No => Err(InsnError::invalid(ip, mode, bytes)),
        },
    }
}

/// The target of a direct branch, wrapped as the processor wraps it.
fn direct_target(raw: &Instruction, class: Class, ip: Ip, mode: ExecMode) -> Option<Ip> {
    if !matches!(
        class,
        Class::Conditional | Class::DirectJump | Class::DirectCall | Class::Xbegin
    ) {
        return None;
    }
    match raw.op0_kind() {
        OpKind::NearBranch16 => Some(wrap_target(raw.near_branch16(), raw.len() as u8, ip, mode)),
        OpKind::NearBranch32 | OpKind::NearBranch64 => Some(Ip(raw.near_branch_target())),
        _ => None,
    }
}

/// The digest of the first `len` of these bytes.
fn digest(bytes: &[u8], len: u8) -> u32 {
    checksum::digest(bytes.get(..usize::from(len)).unwrap_or(bytes))
}

/// What [`jmpabs`] found.
enum Jmpabs {
    Complete(Insn),
    Truncated,
    No,
}

/// Recognises `JMPABS` (REX2 prefix, opcode A1, 64-bit target), which the disassembler does not know yet.
///
/// Its target stands in the instruction, but may be patched while the program runs; so the processor emits a TIP
/// packet for it as for an indirect jump.
fn jmpabs(bytes: &[u8], mode: ExecMode) -> Jmpabs {
    const LEN: u8 = 11;
    match (mode, bytes) {
        (ExecMode::Bits64, [0xd5, payload, 0xa1, rest @ ..]) if payload & 0x80 == 0 => {
            if rest.len() < 8 {
                return Jmpabs::Truncated;
            }
            Jmpabs::Complete(Insn {
                len: LEN,
                class: Class::IndirectJump,
                target: None,
                repeats: false,
                digest: digest(bytes, LEN),
            })
        }
        (ExecMode::Bits64, [0xd5] | [0xd5, ..=0x7f]) => Jmpabs::Truncated,
        _ => Jmpabs::No,
    }
}
