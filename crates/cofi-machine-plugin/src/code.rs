//! Code that QEMU has translated.

use crate::sync::{Lock, Once};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use cofi_insn::{Class, decode};
use cofi_packet::{ExecMode, Ip};
use cofi_unit::{At, Branch, Retired};
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};

/// An instruction that the plugin has a part in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Special {
    Cpuid,
    Rdmsr,
    Wrmsr,
    Rdtsc,
    Rdpmc,
    Ptwrite,
}

impl Special {
    /// Of an instruction with exactly these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        // Prefixes that change nothing about these.
        let opcode = bytes
            .iter()
            .position(|byte| {
                !matches!(
                    byte,
                    0x66 | 0x67 | 0x40
                        ..=0x4f | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf2 | 0xf3
                )
            })
            .and_then(|at| bytes.get(at..))?;
        match opcode {
            [0x0f, 0xa2] => Some(Self::Cpuid),
            [0x0f, 0x32] => Some(Self::Rdmsr),
            [0x0f, 0x30] => Some(Self::Wrmsr),
            [0x0f, 0x31] | [0x0f, 0x01, 0xf9] => Some(Self::Rdtsc),
            [0x0f, 0x33] => Some(Self::Rdpmc),
            // (Of its length QEMU knows nothing.)
            [0x0f, 0xae, form, ..] if form >> 3 & 7 == 4 && bytes.contains(&0xf3) => {
                Some(Self::Ptwrite)
            }
            _ => None,
        }
    }
}

/// An instruction of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// So far from the block's beginning.
    at: u16,
    len: u8,
    pub(crate) class: Class,
    pub(crate) repeats: bool,
    pub(crate) detail: Detail,
    /// So many prefixes it has.
    pub(crate) prefixes: u8,
    /// It may change RFLAGS.IF.
    pub(crate) flags: Option<Flags>,
    /// Where a direct branch leads, so far from the block's beginning.
    target: u64,
}

/// What tells an instruction from others of its class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Detail {
    Nothing,
    Iret,
    Mwait,
    MovCr0,
}

impl Detail {
    /// Of an instruction of this class with these bytes behind its prefixes.
    fn of(bytes: &[u8], class: Class) -> Self {
        match *bytes {
            [0xcf] if class == Class::FarReturn => Self::Iret,
            [0x0f, 0x01, 0xc9] => Self::Mwait,
            [0x0f, 0x22, form, ..] if form >> 3 & 7 == 0 => Self::MovCr0,
            _ => Self::Nothing,
        }
    }
}

/// An instruction that changes RFLAGS.IF and is no branch. (QEMU ends a block with it, but for CLI.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flags {
    Cli,
    Sti,
    Popf,
}

impl Flags {
    /// Of an instruction with exactly these bytes.
    fn of(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [0xfa] => Some(Self::Cli),
            [0xfb] => Some(Self::Sti),
            [.., 0x9d] if bytes.len() <= 2 => Some(Self::Popf),
            _ => None,
        }
    }
}

/// What a block does, once it is known how its code is read.
#[derive(Debug)]
pub(crate) struct Steps {
    pub(crate) mode: ExecMode,
    steps: Box<[Step]>,
    /// There are instructions in it that may change RFLAGS.IF.
    pub(crate) has_flags: bool,
}

/// How a block of 64-bit code ends that does nothing but near branches, and where.
///
/// It is copied whenever a block runs, and made of whole words for that: parts and padding are copied in pieces that overlap, and what reads them has to wait
/// until they are one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NearEnd {
    /// Where the last instruction leads, so far from the block's beginning.
    target: u64,
    /// From bit 0 on, how far the last instruction is from there, what follows it, how many instructions there are; and what kind it is.
    rest: NonZeroU64,
}

/// What kind a block's last instruction is: how control leaves it (the low bits), and which of several kinds it is.
mod kind {
    /// To what follows it, or to its target.
    pub(super) const AHEAD: u16 = 1;
    pub(super) const TO_TARGET: u16 = 2;
    /// Nothing more than the unit's `retire_direct` is to be told.
    pub(super) const DIRECT: u16 = 4;

    pub(super) const OTHER: u16 = AHEAD | DIRECT;
    pub(super) const CONDITIONAL: u16 = AHEAD | TO_TARGET | DIRECT;
    pub(super) const DIRECT_JUMP: u16 = TO_TARGET | DIRECT;
    pub(super) const DIRECT_CALL: u16 = TO_TARGET;
    pub(super) const INDIRECT_JUMP: u16 = 8;
    pub(super) const INDIRECT_CALL: u16 = 16;
    pub(super) const RETURN: u16 = 24;
}

impl NearEnd {
    fn of(steps: &[Step], mode: ExecMode) -> Option<Self> {
        let last = steps.last()?;
        let kind = match last.class {
            Class::Other if last.detail == Detail::Nothing && !last.repeats => kind::OTHER,
            Class::Conditional => kind::CONDITIONAL,
            Class::DirectJump => kind::DIRECT_JUMP,
            Class::DirectCall => kind::DIRECT_CALL,
            Class::IndirectJump => kind::INDIRECT_JUMP,
            Class::IndirectCall => kind::INDIRECT_CALL,
            Class::Return => kind::RETURN,
            _ => return None,
        };
        if mode != ExecMode::Bits64 || steps.iter().any(|step| step.flags.is_some()) {
            return None;
        }
        let count = u16::try_from(steps.len()).ok()?;
        let parts = [last.at, last.at + u16::from(last.len), count, kind];
        let rest = parts
            .iter()
            .rev()
            .fold(0, |rest, part| rest << 16 | u64::from(*part));
        Some(Self {
            target: last.target,
            rest: NonZeroU64::new(rest)?,
        })
    }

    #[inline]
    const fn part(self, index: u32) -> u16 {
        (self.rest.get() >> (16 * index)) as u16
    }

    /// As [`Self::retired`] of an instruction that is no branch, a direct jump or a conditional branch, of which this is told: whether it is conditional, and taken; `None`
    /// of another, or if it does not lead there.
    #[inline(always)]
    pub(crate) const fn retired_direct(self, start: u64, next: u64) -> Option<(bool, bool)> {
        let kind = self.part(3);
        let is_ahead = next == start.wrapping_add(self.part(1) as u64);
        let is_target = next == start.wrapping_add(self.target);
        let leads_there =
            kind & kind::AHEAD != 0 && is_ahead || kind & kind::TO_TARGET != 0 && is_target;
        if leads_there && kind & kind::DIRECT != 0 {
            Some((kind == kind::CONDITIONAL, !is_ahead))
        } else {
            None
        }
    }

    /// So many instructions there are.
    #[inline]
    pub(crate) const fn count(self) -> u16 {
        self.part(2)
    }

    /// The last instruction of the block at `start` retired, and `next` came after it; `None` if it does not lead there.
    #[inline]
    pub(crate) fn retired(self, start: u64, next: u64) -> Option<Retired> {
        let at = At {
            ip: Ip(start.wrapping_add(self.part(0).into())),
            next: Ip(start.wrapping_add(self.part(1).into())),
        };
        let to = Ip(next);
        let target = Ip(start.wrapping_add(self.target));
        let branch = match self.part(3) {
            kind::CONDITIONAL if to == at.next => Branch::Conditional(None),
            kind::CONDITIONAL if to == target => Branch::Conditional(Some(to)),
            kind::DIRECT_JUMP if to == target => Branch::DirectJump(to),
            kind::DIRECT_CALL if to == target => Branch::DirectCall(to),
            kind::INDIRECT_JUMP => Branch::IndirectJump(to),
            kind::INDIRECT_CALL => Branch::IndirectCall(to),
            kind::RETURN => Branch::Return(to),
            kind::OTHER if to == at.next => Branch::None,
            _ => return None,
        };
        Some(Retired { at, branch })
    }
}

/// A block of code: first what each run of it asks for. Blocks that were translated one after the other lie together, two in a line of the processor's cache: beside a
/// program that needs the cache itself, each line less is worth more than any instruction less.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct Code {
    /// The two words of a [`NearEnd`], if it is known that there is one; otherwise the second is 0.
    near_end: [AtomicU64; 2],
    /// Set before anybody sees it.
    body: Once<&'static Body>,
}

/// What is asked for less often.
#[derive(Debug)]
struct Body {
    bytes: &'static [u8],
    /// The length of each instruction.
    lens: &'static [u8],
    /// Its last instruction is a branch.
    ends_with_branch: bool,
    /// Its last instruction may change the privilege, or waits.
    ends_far: bool,
    steps: Once<Steps>,
}

const _: () = assert!(size_of::<Code>() == 32);

static NO_BODY: Body = Body {
    bytes: &[],
    lens: &[],
    ends_with_branch: false,
    ends_far: false,
    steps: Once::new(),
};

/// So much room for blocks is made at once.
const BLOCKS_AT_ONCE: usize = 256;

/// All code: what is translated anew, because the cache was full, is known.
struct All {
    /// By its address at translation, its bytes, and the lengths of its instructions, which the mode decides.
    known: BTreeMap<(u64, &'static [u8], &'static [u8]), &'static Code>,
    /// Room for more.
    spare: &'static [Code],
}

static ALL: Lock<All> = Lock::new(All {
    known: BTreeMap::new(),
    spare: &[],
});

impl Code {
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "each use is to be one of its own"
    )]
    const EMPTY: Self = Self {
        near_end: [const { AtomicU64::new(0) }; 2],
        body: Once::new(),
    };

    /// The code of these bytes, whose instructions have these lengths. It lives for ever.
    pub(crate) fn of(address: u64, bytes: &[u8], lens: &[u8]) -> &'static Self {
        let mut all = ALL.lock();
        if let Some(known) = all.known.get(&(address, bytes, lens)) {
            return known;
        }
        let body: &'static Body = Box::leak(Box::new(Body::of(bytes, lens)));
        if all.spare.is_empty() {
            all.spare = Box::leak(Box::new([const { Self::EMPTY }; BLOCKS_AT_ONCE]));
        }
        let code = match all.spare.split_first() {
            Some((code, rest)) => {
                all.spare = rest;
                code
            }
            None => Box::leak(Box::new(Self::EMPTY)),
        };
        // (Nobody else has it.)
        code.body.set(body);
        all.known.insert((address, body.bytes, body.lens), code);
        code
    }

    fn body(&self) -> &'static Body {
        self.body.get().copied().unwrap_or(&NO_BODY)
    }

    /// Its last instruction is a branch.
    pub(crate) fn ends_with_branch(&self) -> bool {
        self.body().ends_with_branch
    }

    /// Its last instruction may change the privilege, or waits.
    pub(crate) fn ends_far(&self) -> bool {
        self.body().ends_far
    }

    /// What it does. QEMU translates code for one mode, so the first that asks tells it for all.
    pub(crate) fn steps(&self, mode: ExecMode) -> &'static Steps {
        let body = self.body();
        match body.steps.get() {
            Some(steps) => steps,
            None => self.decode(body, mode),
        }
    }

    /// Finds out what it does. Several threads may do so at once.
    #[cold]
    fn decode(&self, body: &'static Body, mode: ExecMode) -> &'static Steps {
        let (steps, is_first) = body.steps.set_or_get(body.decode(mode));
        if is_first && let Some(end) = NearEnd::of(&steps.steps, steps.mode) {
            let [first, second] = &self.near_end;
            first.store(end.target, Ordering::Relaxed);
            second.store(end.rest.get(), Ordering::Release);
        }
        steps
    }

    /// How it ends, if it is known what it does, and that is nothing but near branches in 64-bit code.
    #[inline]
    pub(crate) fn near_end(&self) -> Option<NearEnd> {
        let [first, second] = &self.near_end;
        let rest = NonZeroU64::new(second.load(Ordering::Acquire))?;
        Some(NearEnd {
            target: first.load(Ordering::Relaxed),
            rest,
        })
    }

    /// Calls `each` with the address of each instruction, if it is known what it does.
    pub(crate) fn for_each(&self, start: u64, mut each: impl FnMut(u64)) {
        if let Some(steps) = self.body().steps.get() {
            for step in steps.all() {
                each(steps.ip(start, step));
            }
        }
    }
}

impl Body {
    fn of(bytes: &[u8], lens: &[u8]) -> Self {
        let last = usize::from(lens.last().copied().unwrap_or(0));
        let class = class_in_any_mode(&bytes[bytes.len() - last..]);
        Self {
            bytes: Box::leak(bytes.into()),
            lens: Box::leak(lens.into()),
            ends_with_branch: class.is_branch(),
            ends_far: matches!(
                class,
                Class::FarCall
                    | Class::FarJump
                    | Class::FarReturn
                    | Class::Syscall
                    | Class::SoftwareInterrupt
                    | Class::Into
                    | Class::Wait
            ),
            steps: Once::new(),
        }
    }

    fn decode(&self, mode: ExecMode) -> Steps {
        // Any address will do: targets are kept as distances. It is one that wraps in no mode.
        const BASE: u64 = 0x10_0000;
        let (mut steps, mut at) = (Vec::new(), 0);
        for len in self.lens {
            let bytes = &self.bytes[at..at + usize::from(*len)];
            let insn = decode(bytes, Ip(BASE + at as u64), mode).ok();
            let class = insn.map_or(Class::Other, |insn| insn.class);
            let target = insn.and_then(|insn| insn.target);
            let prefixes = prefixes(bytes, mode);
            steps.push(Step {
                at: at as u16,
                len: *len,
                class,
                repeats: insn.is_some_and(|insn| insn.repeats),
                flags: Flags::of(bytes),
                detail: Detail::of(&bytes[prefixes..], class),
                prefixes: prefixes as u8,
                target: target.map_or(0, |target| target.0.wrapping_sub(BASE)),
            });
            at += usize::from(*len);
        }
        Steps {
            mode,
            has_flags: steps.iter().any(|step: &Step| step.flags.is_some()),
            steps: steps.into_boxed_slice(),
        }
    }
}

/// What an instruction of exactly these bytes is: the mode is not known, but there is one only in which it has this length.
fn class_in_any_mode(bytes: &[u8]) -> Class {
    [ExecMode::Bits64, ExecMode::Bits32, ExecMode::Bits16]
        .into_iter()
        .filter_map(|mode| decode(bytes, Ip(0x10_0000), mode).ok())
        .find(|insn| usize::from(insn.len) == bytes.len())
        .map_or(Class::Other, |insn| insn.class)
}

/// How many prefixes an instruction has.
fn prefixes(bytes: &[u8], mode: ExecMode) -> usize {
    let is_prefix = |byte: &u8| match byte {
        0x66 | 0x67 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0 | 0xf2 | 0xf3 => true,
        0x40..=0x4f => mode == ExecMode::Bits64,
        _ => false,
    };
    bytes.iter().take_while(|byte| is_prefix(byte)).count()
}

impl Steps {
    #[inline]
    pub(crate) fn all(&self) -> &[Step] {
        &self.steps
    }

    #[inline]
    fn address(&self, start: u64, distance: u64) -> u64 {
        let address = start.wrapping_add(distance);
        if self.mode == ExecMode::Bits64 {
            address
        } else {
            address & 0xffff_ffff
        }
    }

    /// The address of an instruction of the block at `start`.
    #[inline]
    pub(crate) fn ip(&self, start: u64, step: &Step) -> u64 {
        self.address(start, step.at.into())
    }

    /// The address behind it.
    #[inline]
    pub(crate) fn after(&self, start: u64, step: &Step) -> u64 {
        self.address(start, u64::from(step.at) + u64::from(step.len))
    }

    /// Where it stands.
    #[inline]
    pub(crate) fn at(&self, start: u64, step: &Step) -> At {
        At {
            ip: Ip(self.ip(start, step)),
            next: Ip(self.after(start, step)),
        }
    }

    /// Whether control can be at `next` after it without an interrupt.
    pub(crate) fn may_follow(&self, start: u64, step: &Step, next: u64) -> bool {
        let after = self.after(start, step);
        let target = self.address(start, step.target);
        match step.class {
            Class::Conditional => next == after || next == target,
            Class::DirectJump | Class::DirectCall => next == target,
            Class::Into => true,
            class if class.needs_packet() => true,
            _ => next == after || step.repeats && next == self.ip(start, step),
        }
    }

    /// It retired, and `next` came after it.
    #[inline]
    pub(crate) fn retired(&self, start: u64, step: &Step, next: u64) -> Retired {
        let at = self.at(start, step);
        let to = Ip(next);
        let branch = match step.class {
            Class::Conditional => Branch::Conditional((to != at.next).then_some(to)),
            Class::DirectJump => Branch::DirectJump(to),
            Class::DirectCall => Branch::DirectCall(to),
            Class::IndirectJump => Branch::IndirectJump(to),
            Class::IndirectCall => Branch::IndirectCall(to),
            Class::Return => Branch::Return(to),
            _ => Branch::None,
        };
        Retired { at, branch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// Blocks of one NOP and one of these, by how each stands to the short way.
    const ENDS: [(&[u8], bool); 16] = [
        (&[0x90], true),
        (&[0x74, 0x05], true),
        // To what follows it.
        (&[0x74, 0x00], true),
        (&[0xeb, 0xf0], true),
        (&[0xe8, 1, 0, 0, 0], true),
        (&[0xff, 0xe0], true),
        (&[0xff, 0xd0], true),
        (&[0xc3], true),
        (&[0xf3, 0xa4], false),
        (&[0xfa], false),
        (&[0x48, 0xcf], false),
        (&[0x0f, 0x05], false),
        (&[0x0f, 0x22, 0xd8], false),
        (&[0x0f, 0x22, 0xc0], false),
        (&[0x0f, 0x01, 0xc9], false),
        (&[0xcc], false),
    ];

    #[test]
    fn the_short_way_tells_what_the_long_way_does() {
        const START: u64 = 0xffff_8000_0000_1000;
        for (bytes, is_near) in ENDS {
            let lens = vec![1, bytes.len() as u8];
            let code = Code::of(START, &[&[0x90], bytes].concat(), &lens);
            assert!(code.near_end().is_none(), "the mode is not known");
            let steps = code.steps(ExecMode::Bits64);
            let end = code.near_end();
            assert_eq!(end.is_some(), is_near, "{bytes:02x?}");
            let Some(end) = end else { continue };
            assert_eq!(end.count(), 2);
            let last = &steps.all()[1];
            for next in (START - 0x40..START + 0x40).chain([0, 0x1234]) {
                let wanted = steps
                    .may_follow(START, last, next)
                    .then(|| steps.retired(START, last, next));
                assert_eq!(end.retired(START, next), wanted, "{bytes:02x?}, {next:#x}");
                let direct = wanted.and_then(|wanted| match wanted.branch {
                    Branch::None | Branch::DirectJump(_) => Some((false, false)),
                    Branch::Conditional(target) => Some((true, target.is_some())),
                    _ => None,
                });
                let told = end.retired_direct(START, next);
                let told = told.map(|(conditional, taken)| (conditional, conditional && taken));
                assert_eq!(told, direct, "{bytes:02x?}, {next:#x}");
            }
        }
        // Of narrower code IPs wrap.
        let code = Code::of(0x20, &[0x90], &[1]);
        code.steps(ExecMode::Bits32);
        assert!(code.near_end().is_none());
    }
}
