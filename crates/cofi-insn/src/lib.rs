#![doc = include_str!("../README.md")]
//! # What it says, and what it does not
//!
//! [`decode`] answers; [`CodeSource`] is the trait by which decoders ask for code bytes.
//!
//! The classification follows the trace manual's tables of change-of-flow instructions, not a disassembler's notion of
//! control flow: `SYSCALL` is a far transfer and not a call, `RETF` and `IRET` do not pop the return stack, and a far
//! call through memory is not an indirect call.
//!
//! The decoder is deliberately lenient about validity: a trace says that an instruction retired, so this crate does
//! not refuse an encoding for reasons such as a `LOCK` prefix on an unlockable operation.
//!
//! Tables answer ([`by_tables`]); where they are not sure, a disassembler does ([`by_disassembler`]), which says the same
//! wherever both answer.
//!
//! This is the only crate of the project that names its disassembler.
#![no_std]

#[cfg(feature = "text")]
extern crate alloc;

mod checksum;
mod class;
mod code;
mod disassembler;
mod encoding;
mod error;
mod tables;
#[cfg(feature = "text")]
mod text;

pub use checksum::{Checksum, RunningChecksum};
pub use class::Class;
pub use code::{CodeSource, InSegment, Segment};
pub use disassembler::by_disassembler;
pub use encoding::{is_mov_to_cr0, prefixes};
pub use error::InsnError;
pub use tables::by_tables;
#[cfg(feature = "text")]
pub use text::text;

use core::fmt;

use cofi_packet::{ExecMode, Ip};

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
#[inline(always)]
pub fn decode(bytes: &[u8], ip: Ip, mode: ExecMode) -> Result<Insn, InsnError> {
    match by_tables(bytes, ip, mode) {
        Some(insn) => Ok(insn),
        None => by_disassembler(bytes, ip, mode),
    }
}

/// Decodes instructions that stand one after the other.
pub struct LinearDecoder<'b> {
    rest: &'b [u8],
    ip: Ip,
    mode: ExecMode,
}

impl<'b> LinearDecoder<'b> {
    /// Begins at the start of `bytes`, which stands at `ip` and runs in `mode`.
    #[inline]
    #[must_use]
    pub const fn new(bytes: &'b [u8], ip: Ip, mode: ExecMode) -> Self {
        Self {
            rest: bytes,
            ip,
            mode,
        }
    }

    /// The address of the next instruction.
    #[inline]
    #[must_use]
    pub const fn ip(&self) -> Ip {
        self.ip
    }

    /// The bytes that are left.
    #[inline]
    #[must_use]
    pub const fn rest(&self) -> &'b [u8] {
        self.rest
    }

    /// The next instruction.
    ///
    /// # Errors
    ///
    /// As [`decode`]. Nothing can be decoded after an error.
    #[inline(always)]
    pub fn decode_next(&mut self) -> Result<Insn, InsnError> {
        let insn = decode(self.rest, self.ip, self.mode)?;
        self.rest = self.rest.get(usize::from(insn.len)..).unwrap_or_default();
        self.ip = insn.next_ip(self.ip, self.mode);
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

/// Where a branch with an operand size of 16 bits goes, which says no more of `target`.
fn wrap_target(target: u16, len: u8, ip: Ip, mode: ExecMode) -> Ip {
    if mode != ExecMode::Bits16 || ip.0 <= 0xffff {
        return Ip(target.into());
    }
    // Wrapped at 64 KiB is right for an offset into the code segment only: of a
    // linear address take the distance, which is the same modulo 64 KiB. Which of the two addresses it is that the
    // segment holds, its base would tell, which no trace does. The nearer one is right wherever code is small; a segment
    // that begins at a multiple of 64 KiB, as that of a PC's firmware, is all there is beside it.
    const FAR: u16 = 0x4000;
    let next = ip.0.wrapping_add(len.into());
    let distance = target.wrapping_sub(next as u16) as i16;
    let near = next.wrapping_add_signed(i64::from(distance)) & 0xffff_ffff;
    let in_segment = next & 0xffff_0000 | u64::from(target);
    let is_near = distance.unsigned_abs() < FAR;
    Ip(if is_near { near } else { in_segment })
}
