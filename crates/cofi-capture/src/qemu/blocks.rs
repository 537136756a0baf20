//! A process's translated blocks, decoded once, and the code that they are of.

#[cfg(test)]
mod tests;

use super::told::Told;
use crate::runs::{Block, BlockList};
use crate::{Mapping, Observer, Pid, Runs, SavedCode, Step, Steps};
use cofi_insn::{Class, decode};
use cofi_packet::{ExecMode, Ip};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Range;
use std::sync::Arc;

const PAGE: u64 = 4096;

/// The same bytes at the same address. However often QEMU translates them, they are kept once.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// Where all that QEMU translated begins in [`Versions::code`]. It ends where the next version begins.
    code: usize,
    /// Bytes of it that are instructions.
    len: u32,
    /// The first block of it.
    first: u32,
    /// The last of its blocks that was told, from which [`Origin::next`] leads to the others: [`END`] if none is.
    told: u32,
}

/// The end of a list of blocks.
const END: u32 = u32::MAX;
/// What no list leads to: the block is on none.
const NOT_TOLD: u32 = u32::MAX - 1;

/// All versions of a process's code.
#[derive(Clone, Debug, Default)]
struct Versions {
    all: Vec<Version>,
    code: Vec<u8>,
}

impl Versions {
    fn get(&self, version: u32) -> Option<&Version> {
        self.all.get(version as usize)
    }

    /// Adds all that QEMU translated, of which `len` bytes are instructions; the number of the version.
    fn push(&mut self, code: &[u8], len: usize, first: u32) -> u32 {
        self.all.push(Version {
            code: self.code.len(),
            len: len as u32,
            first,
            told: END,
        });
        self.code.extend_from_slice(code);
        self.all.len() as u32 - 1
    }

    /// Leaves out those whose first block is not among the first `blocks`; how many are left.
    fn truncate(&mut self, blocks: usize) -> usize {
        let is_in = |version: &Version| (version.first as usize) < blocks;
        let kept = self.all.partition_point(is_in);
        if let Some(next) = self.all.get(kept) {
            self.code.truncate(next.code);
        }
        self.all.truncate(kept);
        kept
    }

    /// All that QEMU translated of a version.
    fn translated(&self, version: u32) -> &[u8] {
        let begin = |version| self.get(version).map(|version| version.code);
        let end = begin(version + 1).unwrap_or(self.code.len());
        let range = begin(version).map(|begin| begin..end);
        range
            .and_then(|range| self.code.get(range))
            .unwrap_or_default()
    }

    /// The bytes of a version's instructions.
    fn instructions(&self, version: u32) -> &[u8] {
        let len = self.get(version).map_or(0, |version| version.len as usize);
        self.translated(version).get(..len).unwrap_or_default()
    }
}

/// What a block was made of.
#[derive(Clone, Debug)]
struct Origin {
    /// The number of its version.
    version: u32,
    /// The next block of its version that is told, [`END`], or [`NOT_TOLD`]. It is told if what was told last of its addresses is just this.
    next: u32,
    /// What was mapped where it begins.
    mapping: Option<Arc<Mapping>>,
}

impl Origin {
    const fn is_told(&self) -> bool {
        self.next != NOT_TOLD
    }
}

/// The translated blocks of one process, and its code.
///
/// QEMU translates code before any thread runs it, and other threads' records of what stood there before are taken later. So
/// nothing is told of a block that is translated. It is told when a thread has run it ([`Self::tell`]), unless what was told
/// last is just that; so at each instruction of a stream the bytes are told that its thread ran, also where two threads run
/// two versions at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    /// By number.
    list: BlockList,
    /// By number.
    origins: Vec<Origin>,
    versions: Versions,
    /// The last version of which the address and the bytes have this hash.
    known: FxHashMap<u64, u32>,
    /// By the page where they begin, the versions of which blocks are told: those that may have to be told again when something is.
    told_versions: BTreeMap<u64, Vec<u32>>,
    /// Bytes of the longest block.
    longest: u64,
    /// What is mapped, for the next block. By first addresses.
    mapped: BTreeMap<u64, Arc<Mapping>>,
    told: Told,
    /// Addresses of which the observer wants to be told by themselves: blocks with them are no part of runs.
    watched: Vec<u64>,
}

impl Blocks {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The first `count` of them, as a child has them after fork, with the parent's code.
    pub(super) fn inherit(&self, count: usize) -> Self {
        let mut child = self.clone();
        child.list.truncate(count);
        child.origins.truncate(count);
        let kept = child.versions.truncate(count);
        child.known.retain(|_, version| (*version as usize) < kept);
        child.told_versions.clear();
        for version in &mut child.versions.all {
            version.told = END;
        }
        for number in 0..child.origins.len() {
            let origin = child.origins.get_mut(number);
            if origin
                .is_some_and(|origin| std::mem::replace(&mut origin.next, NOT_TOLD) != NOT_TOLD)
            {
                child.list_as_told(number as u32);
            }
        }
        // It tells its own.
        child.mapped.clear();
        child
    }

    /// The block of this number; `None` if the plugin never told of it.
    pub(super) fn get(&self, number: u32) -> Option<&Block> {
        self.list.get(number)
    }

    /// Its instructions.
    pub(super) fn kept_steps(&self, number: u32) -> Steps<'_> {
        self.list.steps(number)
    }

    /// The same in memory of their own.
    pub(super) fn steps(&self, number: u32) -> Vec<Step> {
        self.kept_steps(number).collect()
    }

    /// Whether nothing need be told any more of a block that has run; of one that there is none of, neither.
    pub(super) fn is_told(&self, number: u32) -> bool {
        let origin = self.origins.get(number as usize);
        origin.is_none_or(Origin::is_told)
    }

    /// The blocks of these numbers, which were entered one after the other behind the one of the number `before`. They end
    /// before one that is to be told.
    pub(super) fn runs<'a>(&'a self, before: u32, numbers: &'a [u32]) -> Option<Runs<'a>> {
        self.list.runs(before, numbers)
    }

    /// From the next block on this is mapped.
    pub(super) fn map(&mut self, mapping: Mapping) {
        let alike = self.mapped.get(&mapping.start);
        if alike.is_some_and(|known| **known == mapping) {
            return;
        }
        let before = self.mapped.range(..mapping.start).next_back();
        let before = before.filter(|(_, old)| mapping.start < old.end);
        let overlapped: Vec<u64> = before
            .into_iter()
            .chain(self.mapped.range(mapping.start..mapping.end))
            .map(|(start, _)| *start)
            .collect();
        for start in overlapped {
            self.mapped.remove(&start);
        }
        self.mapped.insert(mapping.start, Arc::new(mapping));
    }

    fn mapping_at(&self, address: u64) -> Option<&Arc<Mapping>> {
        let (_, mapping) = self.mapped.range(..=address).next_back()?;
        (address < mapping.end).then_some(mapping)
    }

    /// Takes a block that QEMU has translated. That it will run is not said.
    pub(super) fn add(&mut self, start: u64, code: &[u8]) {
        let number = self.list.len() as u32;
        let version = self.version_of(number, start, code);
        let mapping = self.mapping_at(start).cloned();
        self.origins.push(Origin {
            version,
            next: NOT_TOLD,
            mapping,
        });
        let is_told = self.is_known(number);
        self.set_told(number, is_told);
    }

    /// Puts the block on the list. Its version, which may be a new one.
    fn version_of(&mut self, number: u32, start: u64, code: &[u8]) -> u32 {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((start, code));
        if let Some(known) = self.known.get(&hash).copied()
            && let Some(first) = self.versions.get(known).map(|version| version.first)
            && self.start_of(first) == start
            && self.versions.translated(known) == code
        {
            self.list.push_again(first);
            return known;
        }
        let mut steps = Vec::new();
        let mut at = 0;
        while at < code.len() && !is_vsyscall(Ip(start)) {
            let ip = Ip(start + at as u64);
            // QEMU has translated it, or will raise #UD where it stands: then nothing runs behind it.
            let Ok(insn) = decode(&code[at..], ip, ExecMode::Bits64) else {
                break;
            };
            steps.push(Step { ip, insn });
            at += usize::from(insn.len);
        }
        let is_resumed = match &steps[..] {
            [step] => !ends_block(step, code),
            _ => false,
        };
        self.list.push(Ip(start), &steps, is_resumed);
        let version = self.versions.push(code, at, number);
        self.known.insert(hash, version);
        self.longest = self.longest.max(at as u64);
        version
    }

    /// Where a block begins.
    fn start_of(&self, number: u32) -> u64 {
        self.list.get(number).map_or(0, |block| block.start().0)
    }

    /// Whether nothing need be told for a block to have run.
    fn is_known(&self, number: u32) -> bool {
        let Some(origin) = self.origins.get(number as usize) else {
            return true;
        };
        let (start, code) = (
            self.start_of(number),
            self.versions.instructions(origin.version),
        );
        let is_mapped = || self.told.is_mapped(start, origin.mapping.as_deref());
        code.is_empty() || is_mapped() && self.told.has(start, code)
    }

    fn set_told(&mut self, number: u32, is_told: bool) {
        self.list
            .set_fresh(number, is_told && !self.is_watched(number));
        if is_told {
            self.list_as_told(number);
        }
    }

    /// Puts a block on the list of those of its version that are told, if it is on none.
    fn list_as_told(&mut self, number: u32) {
        let page = self.start_of(number) / PAGE;
        let Some(origin) = self.origins.get_mut(number as usize) else {
            return;
        };
        let Some(version) = self.versions.all.get_mut(origin.version as usize) else {
            return;
        };
        if origin.is_told() {
            return;
        }
        if version.told == END {
            let versions = self.told_versions.entry(page).or_default();
            versions.push(origin.version);
        }
        origin.next = std::mem::replace(&mut version.told, number);
    }

    /// Whether the observer waits for an instruction of a block. It is asked when the block is told of, and not when it runs.
    fn is_watched(&self, number: u32) -> bool {
        if self.watched.is_empty() {
            return false;
        }
        let addresses = self.addresses(number);
        self.watched.iter().any(|ip| addresses.contains(ip))
    }

    /// Where a block's instructions stand.
    fn addresses(&self, number: u32) -> Range<u64> {
        let version = self.origins.get(number as usize);
        let version = version.and_then(|origin| self.versions.get(origin.version));
        let len = version.map_or(0, |version| version.len);
        let start = self.start_of(number);
        start..start.saturating_add(len.into())
    }

    /// A thread has run this block, or a part of it: sees to it that the observer knows its code before it is told of that.
    pub(super) fn tell(&mut self, observer: &mut dyn Observer, pid: Pid, number: u32) {
        let Some(origin) = self.origins.get(number as usize) else {
            return;
        };
        if origin.is_told() {
            return;
        }
        let (start, code) = (
            self.start_of(number),
            self.versions.instructions(origin.version),
        );
        let mut changed: Vec<Range<u64>> = Vec::new();
        if let Some(mapping) = origin.mapping.as_deref()
            && !self.told.is_mapped(start, Some(mapping))
            && let Some(mapping) = self.told.map(start, mapping)
        {
            observer.mapped(pid, pid, std::slice::from_ref(&mapping));
            changed.push(mapping.start..mapping.end);
        }
        if !self.told.has(start, code) {
            self.told.set(start, code);
            let bytes = code;
            observer.code(pid, pid, SavedCode { start, bytes });
            changed.push(start..start + code.len() as u64);
        }
        if !changed.is_empty() {
            self.watched.clear();
            self.watched.extend_from_slice(observer.watched(pid));
        }
        for range in changed {
            self.doubt(range);
        }
        self.set_told(number, true);
    }

    /// Something was told of these addresses: what else was told there may not be so any more.
    fn doubt(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = range.start.saturating_sub(self.longest) / PAGE;
        let mut doubtful = Vec::new();
        for (_, versions) in self.told_versions.range_mut(first..=(range.end - 1) / PAGE) {
            let overlaps = |version: &mut u32| {
                let version = self.versions.get(*version);
                let block = version.and_then(|version| self.list.get(version.first));
                let (Some(version), Some(block)) = (version, block) else {
                    return false;
                };
                let start = block.start().0;
                start < range.end && range.start < start.saturating_add(version.len.into())
            };
            doubtful.extend(versions.extract_if(.., overlaps));
        }
        for version in doubtful {
            let version = self.versions.all.get_mut(version as usize);
            let mut number =
                version.map_or(END, |version| std::mem::replace(&mut version.told, END));
            while let Some(origin) = self.origins.get_mut(number as usize) {
                self.list.set_fresh(number, false);
                number = std::mem::replace(&mut origin.next, NOT_TOLD);
            }
        }
    }
}

/// Where the kernel's calls stand that QEMU carries out itself, without an instruction.
pub(super) fn is_vsyscall(ip: Ip) -> bool {
    ip.0 / PAGE == 0xffff_ffff_ff60_0000 / PAGE
}

/// Whether QEMU's translator ends a block with this instruction (or the page ends), so that a block of it alone is nothing
/// special. Else QEMU has stopped in the middle of another block, and lets the one instruction run: it writes to code, or is
/// an atomic access that cannot be made while other threads run.
fn ends_block(step: &Step, code: &[u8]) -> bool {
    let after = step.insn.next_ip(step.ip, ExecMode::Bits64).0;
    let is_prefix = |byte: &&u8| matches!(**byte, 0x40..=0x4f | 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3);
    let opcode = &code[code.iter().take_while(is_prefix).count()..];
    step.insn.class != Class::Other
        || step.insn.repeats
        || step.ip.0 / PAGE != after / PAGE
        // POPF, and what loads a segment.
        || matches!(opcode, [0x9d | 0x8e, ..] | [0x0f, 0xa1 | 0xa9 | 0x00 | 0x01 | 0xae | 0xb2 | 0xb4 | 0xb5, ..])
}

/// Where control can go after an instruction, as far as it tells.
pub(super) fn may_follow(step: &Step, next: Ip, mode: ExecMode) -> bool {
    let after = step.insn.next_ip(step.ip, mode);
    match step.insn.class {
        Class::Conditional => next == after || Some(next) == step.insn.target,
        Class::DirectJump | Class::DirectCall => Some(next) == step.insn.target,
        Class::Xbegin => next == after || Some(next) == step.insn.target,
        Class::IndirectJump
        | Class::IndirectCall
        | Class::Return
        | Class::FarCall
        | Class::FarJump
        | Class::FarReturn
        | Class::Syscall
        | Class::SoftwareInterrupt => true,
        _ => next == after,
    }
}
