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

mod checksum;
mod class;
mod code;
mod encoding;
mod error;
#[cfg(feature = "text")]
mod text;

pub use checksum::{Checksum, RunningChecksum};
pub use class::Class;
pub use code::{CodeSource, InSegment, Segment};
pub use encoding::{is_mov_to_cr0, prefixes};
pub use error::InsnError;
#[cfg(feature = "text")]
pub use text::text;

use core::fmt;

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
    /// A digest of its bytes, for [`Checksum::of`].
    pub digest: u32,
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
    LinearDecoder::new(bytes, ip, mode).decode_next()
}

/// Decodes instructions that stand one after the other, which is faster than [`decode`] for each.
pub struct LinearDecoder<'b> {
    bytes: &'b [u8],
    ip: Ip,
    mode: ExecMode,
    decoder: Decoder<'b>,
}

impl<'b> LinearDecoder<'b> {
    /// Begins at the start of `bytes`, which stands at `ip` and runs in `mode`.
    #[must_use]
    pub fn new(bytes: &'b [u8], ip: Ip, mode: ExecMode) -> Self {
        let options = DecoderOptions::NO_INVALID_CHECK;
        Self {
            bytes,
            ip,
            mode,
            decoder: Decoder::with_ip(mode.bits(), bytes, ip.0, options),
        }
    }

    /// The address of the next instruction.
    #[must_use]
    pub const fn ip(&self) -> Ip {
        self.ip
    }

    /// The bytes that are left.
    #[must_use]
    pub fn rest(&self) -> &'b [u8] {
        self.bytes
            .get(self.decoder.position()..)
            .unwrap_or_default()
    }

    /// The next instruction.
    ///
    /// # Errors
    ///
    /// As [`decode`]. Nothing can be decoded after an error.
    pub fn decode_next(&mut self) -> Result<Insn, InsnError> {
        let rest = self.rest();
        let (ip, mode) = (self.ip, self.mode);
        self.decoder.set_ip(ip.0);
        let mut raw = Instruction::default();
        self.decoder.decode_out(&mut raw);
        let insn = match self.decoder.last_error() {
            DecoderError::None => {
                let class = class::classify(&raw);
                Insn {
                    len: raw.len() as u8,
                    class,
                    target: direct_target(&raw, class, ip, mode),
                    repeats: raw.code().is_string_instruction()
                        && (raw.has_rep_prefix() || raw.has_repne_prefix()),
                    digest: digest(rest, raw.len() as u8),
                }
            }
            DecoderError::NoMoreBytes if rest.len() < MAX_INSN_LEN => {
                return Err(InsnError::Truncated {
                    ip,
                    available: rest.len() as u8,
                });
            }
            _ => match jmpabs(rest, mode) {
                Jmpabs::Complete(insn) => {
                    let end = self.bytes.len() - rest.len() + usize::from(insn.len);
                    // The instruction lies within the bytes, so that this cannot fail.
                    let _ = self.decoder.set_position(end);
                    insn
                }
                Jmpabs::Truncated => {
                    return Err(InsnError::Truncated {
                        ip,
                        available: rest.len() as u8,
                    });
                }
                Jmpabs::No => return Err(InsnError::invalid(ip, mode, rest)),
            },
        };
        self.ip = insn.next_ip(ip, mode);
        Ok(insn)
    }
}

impl fmt::Debug for LinearDecoder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinearDecoder")
            .field("ip", &self.ip)
            .field("rest", &self.rest().len())
            .finish_non_exhaustive()
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
