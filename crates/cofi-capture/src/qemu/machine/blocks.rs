//! A machine's translated blocks, decoded once.

use super::super::blocks as user;
use crate::runs::checksum_of;
use crate::{ProcessorState, Step};
use cofi_insn::{Checksum, Class, decode};
use cofi_packet::{ExecMode, Ip};
use cofi_qemu_plugin::layout::state;
use std::ops::Range;

/// A block at a linear address, as a processor runs it in one kind of state.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) start: Ip,
    pub(super) mode: ExecMode,
    pub(super) cpl: u8,
    /// A record says if it was left before its last instruction began.
    pub(super) is_marked: bool,
    steps: Range<u32>,
    /// Of all of them.
    pub(super) checksum: Checksum,
    /// Its bytes, of [`Blocks::code`].
    code: Range<usize>,
    /// Where control goes from it in the simplest way: the next instruction, and the target of a direct branch.
    ways: Option<(Ip, Ip)>,
    /// In which address space, and which epoch of its pages, its code was found to be in place.
    pub(super) placed: (u32, u32),
}

/// All blocks, by number.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    steps: Vec<Step>,
    code: Vec<u8>,
}

impl Blocks {
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Block> {
        self.blocks.get(number as usize)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Block> {
        self.blocks.get_mut(number as usize)
    }

    #[inline]
    pub(super) fn steps(&self, block: &Block) -> &[Step] {
        let Range { start, end } = block.steps;
        self.steps
            .get(start as usize..end as usize)
            .unwrap_or_default()
    }

    pub(super) fn code(&self, block: &Block) -> &[u8] {
        self.code.get(block.code.clone()).unwrap_or_default()
    }

    /// Takes a block. `bits` are those of [`state`].
    pub(super) fn add(&mut self, start: u64, bits: u32, code: &[u8]) {
        let mode = mode_of(bits);
        let begin = self.steps.len() as u32;
        let mut at = 0;
        while at < code.len() {
            // Linear addresses of 16-bit code do not wrap at 64 KiB.
            let ip = Ip(start.wrapping_add(at as u64));
            // QEMU has translated it, or will raise #UD where it stands: then nothing runs behind it.
            let Ok(insn) = decode(&code[at..], ip, mode) else {
                break;
            };
            self.steps.push(Step { ip, insn });
            at += usize::from(insn.len);
        }
        let place = self.code.len()..self.code.len() + at;
        self.code.extend_from_slice(&code[..at]);
        let steps = &self.steps[begin as usize..];
        self.blocks.push(Block {
            start: Ip(start),
            mode,
            cpl: cpl_of(bits),
            is_marked: bits & state::MARKED != 0,
            ways: simple_ways(steps, mode),
            checksum: checksum_of(steps),
            steps: begin..self.steps.len() as u32,
            code: place,
            placed: (0, u32::MAX),
        });
    }
}

/// How code is read, as [`state`]'s bits say it.
pub(super) const fn mode_of(bits: u32) -> ExecMode {
    match (bits & state::BITS_64 != 0, bits & state::BITS_32 != 0) {
        (true, _) => ExecMode::Bits64,
        (false, true) => ExecMode::Bits32,
        (false, false) => ExecMode::Bits16,
    }
}

/// The privilege level, as [`state`]'s bits say it.
pub(super) const fn cpl_of(bits: u32) -> u8 {
    (bits >> state::CPL_SHIFT & 3) as u8
}

impl Block {
    /// The state in which it runs.
    pub(super) const fn state(&self, cr3: u64) -> ProcessorState {
        ProcessorState {
            cpl: self.cpl,
            mode: self.mode,
            cr3,
        }
    }

    /// Whether it leads to `next` in the simplest way: all of it ran, and it has no branch but perhaps a direct one at its end.
    #[inline]
    pub(super) fn simply_leads_to(&self, next: &Self) -> bool {
        self.ways
            .is_some_and(|(after, target)| next.start == after || next.start == target)
            && self.cpl == next.cpl
            && self.mode == next.mode
    }
}

fn simple_ways(steps: &[Step], mode: ExecMode) -> Option<(Ip, Ip)> {
    let (last, body) = steps.split_last()?;
    let plain = |step: &Step| step.insn.class == Class::Other && !step.insn.repeats;
    if !body.iter().all(plain) {
        return None;
    }
    let after = last.insn.next_ip(last.ip, mode);
    match last.insn.class {
        Class::Conditional => Some((after, last.insn.target?)),
        Class::DirectJump | Class::DirectCall => Some((last.insn.target?, last.insn.target?)),
        Class::Other if plain(last) => Some((after, after)),
        _ => None,
    }
}

/// Where control can go after an instruction by itself, also at the privilege levels and in the modes that programs have not.
pub(super) fn may_follow(step: &Step, next: Ip, mode: ExecMode) -> bool {
    matches!(step.insn.class, Class::Into | Class::VmEntry) || user::may_follow(step, next, mode)
}
