//! A machine's translated blocks, decoded once.

use super::super::blocks as user;
use crate::runs::BlockList;
use crate::{Pid, ProcessorState, Runs, Step};
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
    number: u32,
    /// It runs at level 0, in 64-bit mode and in the upper half of addresses: an operating system's code, which all processors see alike.
    is_kernel: bool,
    /// Its bytes, of [`Blocks::code`].
    code: Range<u32>,
    /// Whether control can go from it in the simplest way, and where: to the next instruction, and to the target of a direct branch.
    is_simple: bool,
    ways: (Ip, Ip),
    /// In which address space, and which epoch of its pages, its code was found to be in place.
    pub(super) placed: (u32, u32),
}

/// All blocks, by number.
#[derive(Debug)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    /// The same blocks, as runs have them. Much of a machine's code is told one instruction at a time, so these are at hand.
    list: BlockList,
    /// The numbers of those that may be part of runs: of an operating system, and found to be in place in this epoch of the pages.
    in_place: Vec<u32>,
    epoch: u32,
    code: Vec<u8>,
}

impl Default for Blocks {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            list: BlockList::with_steps_at_hand(),
            in_place: Vec::new(),
            epoch: 0,
            code: Vec::new(),
        }
    }
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
    pub(super) fn steps(&self, block: &Block) -> &[Step] {
        self.list.steps_at_hand(block.number)
    }

    /// The checksum of a block's instructions, if only the last may be a branch.
    #[inline]
    pub(super) fn checksum(&self, block: &Block) -> Option<Checksum> {
        self.list.checksum(block.number)
    }

    /// The blocks of these numbers, which were entered one after the other behind the one of the number `before`, if that may be part of a run.
    pub(super) fn runs<'a>(&'a self, before: u32, numbers: &'a [u32]) -> Option<Runs<'a>> {
        let block = self.list.get(before)?;
        block.is_fresh().then(|| self.list.runs(before, numbers))?
    }

    /// The code of a block is in place, in this address space and epoch.
    pub(super) fn set_placed(&mut self, number: u32, space: Pid, epoch: u32) {
        if epoch != self.epoch {
            for number in self.in_place.drain(..) {
                self.list.set_fresh(number, false);
            }
            self.epoch = epoch;
        }
        let Some(block) = self.blocks.get_mut(number as usize) else {
            return;
        };
        block.placed = (space, epoch);
        if block.is_kernel {
            self.list.set_fresh(number, true);
            self.in_place.push(number);
        }
    }

    pub(super) fn code(&self, block: &Block) -> &[u8] {
        let Range { start, end } = block.code;
        self.code
            .get(start as usize..end as usize)
            .unwrap_or_default()
    }

    /// Takes a block. `bits` are those of [`state`].
    pub(super) fn add(&mut self, start: u64, bits: u32, code: &[u8]) {
        let mode = mode_of(bits);
        let number = self.blocks.len() as u32;
        let mut steps = Vec::new();
        let mut at = 0;
        while at < code.len() {
            // Linear addresses of 16-bit code do not wrap at 64 KiB.
            let ip = Ip(start.wrapping_add(at as u64));
            // QEMU has translated it, or will raise #UD where it stands: then nothing runs behind it.
            let Ok(insn) = decode(&code[at..], ip, mode) else {
                break;
            };
            steps.push(Step { ip, insn });
            at += usize::from(insn.len);
        }
        let first = self.code.len() as u32;
        self.code.extend_from_slice(&code[..at]);
        self.list.push(Ip(start), &steps, false);
        self.list.set_fresh(number, false);
        let cpl = cpl_of(bits);
        let is_kernel = mode == ExecMode::Bits64 && cpl == 0 && start >> 63 != 0;
        self.list.set_state(number, is_kernel.into());
        let ways = simple_ways(&steps, mode);
        self.blocks.push(Block {
            number,
            start: Ip(start),
            mode,
            cpl,
            is_marked: bits & state::MARKED != 0,
            is_simple: ways.is_some(),
            ways: ways.unwrap_or_default(),
            is_kernel,
            code: first..self.code.len() as u32,
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
        self.is_simple
            && (next.start == self.ways.0 || next.start == self.ways.1)
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
