//! A machine's translated code.
//!
//! QEMU keeps translated code by its physical place, and runs it wherever that is mapped. A [`Variant`] is such code at one
//! linear address, in one kind of state; the recorder knows it by its number.

#[cfg(test)]
mod tests;

use crate::layout::state;
use crate::plugin;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Code that QEMU has translated.
#[derive(Debug)]
pub(super) struct Code {
    bytes: Box<[u8]>,
    /// The length of each instruction.
    lens: Box<[u8]>,
    end: End,
    /// All variants so far.
    variants: AtomicPtr<Variant>,
}

/// How a block's last instruction can go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// With the next instruction.
    Plain,
    /// With the next instruction, or so far from it.
    Direct(i32, bool),
    /// With the next instruction or itself: a repeated string instruction.
    Repeat,
    /// Anywhere in the same code segment.
    Near,
    /// Anywhere: also INT and SYSCALL.
    Far,
    /// Anywhere, behind a far call whose return address looks like an interrupt's.
    FarCall,
}

impl End {
    /// Of an instruction with exactly these bytes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        // Outside 64-bit mode a byte from 0x40 on is INC or DEC, and nothing follows it.
        let most = bytes.len().saturating_sub(1);
        let prefixes = bytes
            .iter()
            .take(most)
            .take_while(|byte| {
                matches!(
                    byte,
                    0x66 | 0x67
                        | 0xf0
                        | 0xf2
                        | 0xf3
                        | 0x26
                        | 0x2e
                        | 0x36
                        | 0x3e
                        | 0x64
                        | 0x65
                        | 0x40..=0x4f
                )
            })
            .count();
        let (prefixes, opcode) = bytes.split_at(prefixes);
        let repeats = prefixes.iter().any(|byte| matches!(byte, 0xf2 | 0xf3));
        let has_66 = prefixes.contains(&0x66);
        let distance = |rest: &[u8]| match *rest {
            [a] => Some(i32::from(a.cast_signed())),
            [a, b] => Some(i32::from(i16::from_le_bytes([a, b]))),
            [a, b, c, d] => Some(i32::from_le_bytes([a, b, c, d])),
            _ => None,
        };
        let direct = |rest: &[u8]| distance(rest).map_or(Self::Near, |by| Self::Direct(by, has_66));
        match opcode {
            [0x70..=0x7f | 0xe0..=0xe3 | 0xe8 | 0xe9 | 0xeb, rest @ ..]
            | [0x0f, 0x80..=0x8f, rest @ ..] => direct(rest),
            [0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf, ..] if repeats => Self::Repeat,
            [0xc2 | 0xc3, ..] => Self::Near,
            [0x9a, ..] => Self::FarCall,
            [0xca | 0xcb | 0xcc | 0xcd | 0xce | 0xcf | 0xea | 0xf1, ..]
            // SYSCALL, SYSRET, SYSENTER, SYSEXIT, RSM, and the instructions of virtual machines.
            | [0x0f, 0x05 | 0x07 | 0x34 | 0x35 | 0xaa, ..]
            | [0x0f, 0x01, 0xc0..=0xdf, ..] => Self::Far,
            [0xff, modrm, ..] => match modrm >> 3 & 7 {
                2 | 4 => Self::Near,
                3 => Self::FarCall,
                5 => Self::Far,
                _ => Self::Plain,
            },
            _ => Self::Plain,
        }
    }
}

/// Where a direct branch leads `by` so far from its end, as offsets into the code segment.
fn target(after: u64, by: i32, has_66: bool, bits: u32) -> u64 {
    let to = after.wrapping_add_signed(by.into());
    let has_32 = bits & state::BITS_32 != 0;
    match bits & state::BITS_64 != 0 {
        true => to,
        false if has_32 == has_66 => to & 0xffff,
        false => to & 0xffff_ffff,
    }
}

/// Code at a linear address, in a kind of state.
#[derive(Debug)]
pub(super) struct Variant {
    /// Where it begins.
    pub(super) start: u64,
    /// [`state`]'s bits.
    pub(super) bits: u32,
    /// What the recorder knows it by.
    pub(super) number: u32,
    /// The address behind it.
    pub(super) after: u64,
    /// Where else its last instruction leads by itself; else the address behind it.
    pub(super) target: u64,
    pub(super) end: End,
    /// Control can come from its end into itself, or anywhere: it tells when its last instruction begins.
    pub(super) is_marked: bool,
    lens: *const [u8],
    next: *const Variant,
}

impl Variant {
    /// Whether one of its instructions begins at this address.
    pub(super) fn has_instruction_at(&self, address: u64) -> bool {
        let mut at = self.start;
        self.lens().iter().any(|len| {
            let here = at;
            at = at.wrapping_add((*len).into());
            here == address
        })
    }

    fn lens(&self) -> &[u8] {
        // SAFETY: they are the code's, which is never freed.
        unsafe { &*self.lens }
    }
}

/// Code by its address at translation and its bytes.
type Known = HashMap<(u64, Box<[u8]>), &'static Code>;

/// All code: what is translated anew, because the cache was full, is known.
static ALL: Mutex<Option<Known>> = Mutex::new(None);

impl Code {
    /// The code of these bytes, whose instructions have these lengths.
    pub(super) fn of(address: u64, bytes: Vec<u8>, lens: Vec<u8>) -> &'static Self {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = bytes.into_boxed_slice();
        all.get_or_insert_default()
            .entry((address, bytes.clone()))
            .or_insert_with(|| {
                let last = lens.last().map_or(0, |len| usize::from(*len));
                let end = End::of(bytes.get(bytes.len() - last..).unwrap_or_default());
                Box::leak(Box::new(Self {
                    bytes,
                    lens: lens.into(),
                    end,
                    variants: AtomicPtr::new(ptr::null_mut()),
                }))
            })
    }

    /// Whether its last instruction's beginning is to be told.
    pub(super) fn wants_mark(&self) -> bool {
        match self.end {
            End::Plain | End::Repeat => false,
            End::Direct(by, _) => by < 0 && by.unsigned_abs() as usize <= self.bytes.len(),
            End::Near | End::Far | End::FarCall => true,
        }
    }

    /// The variant at `start`, where `ip` is the offset in the code segment.
    #[inline]
    pub(super) fn variant(&'static self, start: u64, bits: u32) -> Option<&'static Variant> {
        let mut next: *const Variant = self.variants.load(Ordering::Acquire);
        // SAFETY: variants are never freed or changed once they are in the list.
        while let Some(variant) = unsafe { next.as_ref() } {
            if variant.start == start && variant.bits == bits {
                return Some(variant);
            }
            next = variant.next;
        }
        None
    }

    /// Adds the variant at `start`, the offset `ip` into the code segment.
    #[cold]
    pub(super) fn add(&'static self, start: u64, ip: u64, bits: u32) -> &'static Variant {
        static ADDING: Mutex<()> = Mutex::new(());
        let _guard = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(variant) = self.variant(start, bits) {
            return variant;
        }
        let len = self.bytes.len() as u64;
        let wide = bits & state::BITS_64 != 0;
        let wrap = |address: u64| if wide { address } else { address & 0xffff_ffff };
        let after = wrap(start.wrapping_add(len));
        let target = match self.end {
            End::Direct(by, has_66) => {
                let to = target(ip.wrapping_add(len), by, has_66, bits);
                wrap(start.wrapping_sub(ip).wrapping_add(to))
            }
            End::Repeat => {
                let last = self.lens.last().map_or(0, |len| u64::from(*len));
                wrap(after.wrapping_sub(last))
            }
            _ => after,
        };
        let is_marked = self.wants_mark();
        let told = self.lens.len() as u32 | bits | if is_marked { state::MARKED } else { 0 };
        let variant = Box::leak(Box::new(Variant {
            start,
            bits,
            number: plugin::put_machine_block(start, told, &self.bytes),
            after,
            target,
            end: self.end,
            is_marked,
            lens: &raw const *self.lens,
            next: self.variants.load(Ordering::Acquire),
        }));
        self.variants.store(variant, Ordering::Release);
        variant
    }
}
