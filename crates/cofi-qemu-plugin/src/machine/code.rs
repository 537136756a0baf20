//! A machine's translated code.
//!
//! QEMU keeps translated code by its physical place, and runs it wherever that is mapped. A [`Variant`] is such code at one
//! linear address, in one kind of state; the recorder knows it by its number.

#[cfg(test)]
mod tests;

use super::state::State;
use crate::layout::state;
use crate::plugin;
use crate::sync::{Lock, Once};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::ptr;

/// Code that QEMU has translated. What is read whenever it runs comes first, and is in as few lines of the cache as it can be.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Code {
    /// The first variant: mostly the only one.
    first: Once<Variant>,
    end: End,
    bytes: Box<[u8]>,
    /// The length of each instruction.
    lens: Box<[u8]>,
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
    /// Whether an interrupt's handler cannot be told from where it leads by itself.
    #[inline]
    pub(super) const fn is_anywhere(self) -> bool {
        matches!(self, Self::Near | Self::Far | Self::FarCall)
    }

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
    /// [`State::kind`] where it runs.
    kind: u32,
    /// What the recorder knows it by.
    pub(super) number: u32,
    /// The address behind it.
    pub(super) after: u64,
    /// Where else its last instruction leads by itself; else the address behind it.
    pub(super) target: u64,
    pub(super) end: End,
    /// Control can come from its end into itself, or anywhere: it tells when its last instruction begins.
    pub(super) is_marked: bool,
    code: &'static Code,
}

impl Variant {
    /// [`State::kind`] where it runs.
    #[inline]
    pub(super) const fn kind(&self) -> u32 {
        self.kind
    }

    /// Whether 64-bit code of it is what runs at an address in this kind of state.
    #[inline]
    pub(super) fn is_at(&self, kind: u32, address: u64) -> bool {
        self.kind == kind && self.start == address
    }

    /// Whether it is what runs in this state, if its code does.
    #[inline]
    fn is_in(&self, state: State) -> bool {
        self.kind == state.kind() && self.start == state.linear(self.bits)
    }

    /// Whether its last instruction leads to that block, as far as the instruction says by itself where it leads.
    #[inline]
    pub(super) const fn leads_by_itself_to(&self, next: &Self) -> bool {
        next.start == self.after || next.start == self.target
    }

    /// Whether one of its instructions begins at this address.
    pub(super) fn has_instruction_at(&self, address: u64) -> bool {
        let mut at = self.start;
        self.code.lens.iter().any(|len| {
            let here = at;
            at = at.wrapping_add((*len).into());
            here == address
        })
    }
}

/// Variants that a processor ran of late, by a digest of code and address.
#[derive(Debug)]
pub(super) struct Recent(Vec<Option<&'static Variant>>);

impl Recent {
    const SIZE: usize = 1 << 13;

    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    fn place(code: &'static Code, start: u64) -> usize {
        let key = (&raw const *code).addr() as u64 ^ start.rotate_left(20);
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as usize % Self::SIZE
    }
}

/// Code by its address at translation, its bytes, and the lengths of its instructions, which the mode decides.
type Known = BTreeMap<(u64, Box<[u8]>, Box<[u8]>), &'static Code>;

/// Variants other than the first of a code, by the code's address, their own and their bits.
type Others = BTreeMap<(usize, u64, u32), &'static Variant>;

static OTHERS: Lock<Others> = Lock::new(BTreeMap::new());

/// All code: what is translated anew, because the cache was full, is known.
static ALL: Lock<Known> = Lock::new(BTreeMap::new());

impl Code {
    /// The code of these bytes, whose instructions have these lengths.
    pub(super) fn of(address: u64, bytes: Vec<u8>, lens: Vec<u8>) -> &'static Self {
        let mut all = ALL.lock();
        let (bytes, lens) = (bytes.into_boxed_slice(), lens.into_boxed_slice());
        all.entry((address, bytes.clone(), lens.clone()))
            .or_insert_with(|| {
                let last = lens.last().map_or(0, |len| usize::from(*len));
                let end = End::of(bytes.get(bytes.len() - last..).unwrap_or_default());
                Box::leak(Box::new(Self {
                    bytes,
                    lens,
                    end,
                    first: Once::new(),
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

    /// The variant that runs in this state; and whether it is a new one.
    #[inline]
    pub(super) fn variant(
        &'static self,
        state: State,
        recent: &mut Recent,
    ) -> (&'static Variant, bool) {
        match self.first() {
            Some(first) if first.is_in(state) => (first, false),
            _ => self.other(state, recent),
        }
    }

    /// The first variant, if there is one yet.
    #[inline]
    pub(super) fn first(&'static self) -> Option<&'static Variant> {
        self.first.get()
    }

    /// As [`Self::variant`], if it is not the first one.
    #[inline(never)]
    fn other(&'static self, state: State, recent: &mut Recent) -> (&'static Variant, bool) {
        let bits = state.bits();
        let start = state.linear(bits);
        if recent.0.is_empty() {
            recent.0.resize(Recent::SIZE, None);
        }
        let Some(place) = recent.0.get_mut(Recent::place(self, start)) else {
            return self.look_up(state);
        };
        match place {
            Some(known)
                if known.start == start && known.bits == bits && ptr::eq(known.code, self) =>
            {
                (known, false)
            }
            _ => {
                let found = self.look_up(state);
                *place = Some(found.0);
                found
            }
        }
    }

    fn look_up(&'static self, state: State) -> (&'static Variant, bool) {
        // With the lock, nobody else makes one.
        let mut others = OTHERS.lock();
        let bits = state.bits();
        let start = state.linear(bits);
        let mut is_new = false;
        let first = self.first.get_or_init(|| {
            is_new = true;
            self.make(state)
        });
        if first.start == start && first.bits == bits {
            return (first, is_new);
        }
        let key = ((&raw const *self).addr(), start, bits);
        match others.entry(key) {
            Entry::Occupied(known) => (known.get(), false),
            Entry::Vacant(place) => (place.insert(Box::leak(Box::new(self.make(state)))), true),
        }
    }

    /// Makes a variant, and tells the recorder of it.
    fn make(&'static self, state: State) -> Variant {
        let (bits, ip) = (state.bits(), state.ip());
        let start = state.linear(bits);
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
        Variant {
            start,
            bits,
            kind: state.kind(),
            number: plugin::put_machine_block(start, told, &self.bytes),
            after,
            target,
            end: self.end,
            is_marked,
            code: self,
        }
    }
}
