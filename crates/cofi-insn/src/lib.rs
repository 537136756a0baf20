//! Branch class, length and direct target of one x86 instruction.
//!
//! Reconstructing a processor trace asks very little of an instruction: how long it is, whether it can change the
//! flow of control, in which way the trace tells of that, and where a direct branch goes. This crate answers exactly
//! that, through [`decode`], and defines [`CodeSource`], the trait by which decoders ask for code bytes.
//!
//! The classification follows the trace manual's tables of change-of-flow instructions, not a disassembler's notion of
//! control flow: `SYSCALL` is a far transfer and not a call, `RETF` and `IRET` do not pop the return stack, and a far
//! call through memory is not an indirect call.
//!
//! The decoder is deliberately lenient about validity: a trace says that an instruction retired, so this crate does
//! not refuse an encoding for reasons such as a `LOCK` prefix on an unlockable operation.
//!
//! `#![no_std]`, no allocation. This is the only crate of the project that names its disassembler.
#![no_std]

#[cfg(feature = "text")]
extern crate alloc;

mod class;
mod code;
mod error;
#[cfg(feature = "text")]
mod text;

pub use class::Class;
pub use code::{CodeSource, Segment};
pub use error::InsnError;
#[cfg(feature = "text")]
pub use text::text;

use cofi_packet::{ExecMode, Ip};
use iced_x86::{Decoder, DecoderError, DecoderOptions, Instruction, OpKind};

/// The longest an x86 instruction can be, in bytes.
pub const MAX_INSN_LEN: usize = 15;

/// What a trace decoder needs to know of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Insn {
    /// Length in bytes, 1 to 15.
    pub len: u8,
    /// How the instruction takes part in the flow of control.
    pub class: Class,
    /// Where a direct branch goes when it is taken: set for [`Class::Conditional`], [`Class::DirectJump`],
    /// [`Class::DirectCall`], and for [`Class::Xbegin`], whose target is the fallback handler.
    pub target: Option<Ip>,
    /// Whether this is a string instruction with a repeat prefix, which retires once however often it iterates.
    pub repeats: bool,
}

impl Insn {
    /// The address of the next sequential instruction, for an instruction at `ip`.
    #[inline]
    #[must_use]
    pub const fn next_ip(&self, ip: Ip, mode: ExecMode) -> Ip {
        advance(ip, self.len, mode)
    }

    /// Whether this is a direct near call to the next instruction.
    ///
    /// Such calls read the instruction pointer and have no matching return; the processor keeps them off its stack of
    /// return addresses.
    #[inline]
    #[must_use]
    pub fn is_zero_length_call(&self, ip: Ip, mode: ExecMode) -> bool {
        self.class == Class::DirectCall && self.target == Some(self.next_ip(ip, mode))
    }
}

/// The address `len` bytes after `ip`, wrapped as `mode` wraps its instruction pointer.
///
/// In 16-bit mode an address up to 0xffff wraps at 64 KiB; a greater one is taken for a linear address (the trace may
/// report either, see CPUID leaf 14H), which does not.
#[inline]
#[must_use]
pub const fn advance(ip: Ip, len: u8, mode: ExecMode) -> Ip {
    let next = ip.0.wrapping_add(len as u64);
    match mode {
        ExecMode::Bits64 => Ip(next),
        ExecMode::Bits32 => Ip(next & 0xffff_ffff),
        ExecMode::Bits16 if ip.0 <= 0xffff => Ip(next & 0xffff),
        ExecMode::Bits16 => Ip(next & 0xffff_ffff),
    }
}

/// Decodes the instruction at the start of `bytes`, which stands at `ip` and runs in `mode`.
///
/// `bytes` may be longer than the instruction; at most [`MAX_INSN_LEN`] of them are looked at.
///
/// # Errors
///
/// [`InsnError::Truncated`] if `bytes` ends inside the instruction, and [`InsnError::Invalid`] if the bytes are no
/// instruction in this mode.
///
/// # Example
///
/// ```
/// use cofi_insn::{Class, decode};
/// use cofi_packet::{ExecMode, Ip};
///
/// // jne 0x1000 from 0x1002
/// let insn = decode(&[0x75, 0xfc], Ip(0x1002), ExecMode::Bits64)?;
/// assert_eq!(insn.class, Class::Conditional);
/// assert_eq!(insn.target, Some(Ip(0x1000)));
/// # Ok::<(), cofi_insn::InsnError>(())
/// ```
pub fn decode(bytes: &[u8], ip: Ip, mode: ExecMode) -> Result<Insn, InsnError> {
    let bytes = &bytes[..bytes.len().min(MAX_INSN_LEN)];
    let mut decoder = Decoder::with_ip(mode.bits(), bytes, ip.0, DecoderOptions::NO_INVALID_CHECK);
    let mut raw = Instruction::default();
    decoder.decode_out(&mut raw);
    match decoder.last_error() {
        DecoderError::None => {}
        DecoderError::NoMoreBytes if bytes.len() < MAX_INSN_LEN => {
            return Err(InsnError::Truncated {
                ip,
                available: bytes.len() as u8,
            });
        }
        _ => {
            return match jmpabs(bytes, mode) {
                Jmpabs::Complete(insn) => Ok(insn),
                Jmpabs::Truncated => Err(InsnError::Truncated {
                    ip,
                    available: bytes.len() as u8,
                }),
                Jmpabs::No => Err(InsnError::invalid(ip, mode, bytes)),
            };
        }
    }
    let class = class::classify(&raw);
    Ok(Insn {
        len: raw.len() as u8,
        class,
        target: direct_target(&raw, class, ip, mode),
        repeats: raw.code().is_string_instruction()
            && (raw.has_rep_prefix() || raw.has_repne_prefix()),
    })
}

/// The target of a direct branch, wrapped as the processor wraps it.
fn direct_target(raw: &Instruction, class: Class, ip: Ip, mode: ExecMode) -> Option<Ip> {
    if !matches!(
        class,
        Class::Conditional | Class::DirectJump | Class::DirectCall | Class::Xbegin
    ) {
        return None;
    }
    let target = match raw.op0_kind() {
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
            raw.near_branch_target()
        }
        _ => return None,
    };
    if mode == ExecMode::Bits16 && raw.op0_kind() == OpKind::NearBranch16 && ip.0 > 0xffff {
        // The disassembler wrapped the target at 64 KiB, which is right for an offset into the code segment only: of a
        // linear address take the distance, which is the same modulo 64 KiB. Which of the two addresses it is that the
        // segment holds, its base would tell, which no trace does. The nearer one is right wherever code is small; a segment
        // that begins at a multiple of 64 KiB, as that of a PC's firmware, is all there is beside it.
        const FAR: u16 = 0x4000;
        let next = ip.0.wrapping_add(raw.len() as u64);
        let distance = (target as u16).wrapping_sub(next as u16) as i16;
        let near = next.wrapping_add_signed(i64::from(distance)) & 0xffff_ffff;
        let in_segment = next & 0xffff_0000 | target & 0xffff;
        let is_near = distance.unsigned_abs() < FAR;
        return Some(Ip(if is_near { near } else { in_segment }));
    }
    Some(Ip(target))
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
            })
        }
        (ExecMode::Bits64, [0xd5] | [0xd5, ..=0x7f]) => Jmpabs::Truncated,
        _ => Jmpabs::No,
    }
}
