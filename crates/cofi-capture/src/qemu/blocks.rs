//! A process's translated blocks, decoded once, and the code that they are of.

use crate::ptrace::mapping_at;
use crate::{Mapping, MappingKind, Observer, Pid, SavedCode, Step};
use cofi_insn::{Class, decode};
use cofi_packet::{ExecMode, Ip};
use std::collections::BTreeMap;
use std::ops::Range;

const PAGE: u64 = 4096;
/// PROT_EXEC. QEMU maps a program's code for itself to read, not to run.
const PROT_EXEC: u32 = 4;

/// A translated block.
#[derive(Clone, Debug)]
struct Block {
    start: Ip,
    /// Its instructions, of [`Blocks::steps`].
    steps: Range<u32>,
    /// The places where control goes from it in the simplest way, if there is one: the next instruction and the target of
    /// its conditional or direct branch. Whatever else happens takes the long way.
    ways: Option<(Ip, Ip)>,
}

/// What is known of an executable range.
#[derive(Clone, Debug)]
enum Region {
    /// A file's bytes.
    File { end: u64 },
    /// Bytes that were told as they ran, page by page; `None` where none have.
    Memory { bytes: Vec<Option<u8>> },
}

/// The translated blocks of one process, and its code.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    steps: Vec<Step>,
    regions: BTreeMap<u64, Region>,
    /// Mappings may have changed: what is known of them is looked at again.
    stale: bool,
}

impl Blocks {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The first `count` of them, as a child has them after fork, with the parent's code.
    pub(super) fn inherit(&self, count: usize) -> Self {
        let mut child = self.clone();
        child.blocks.truncate(count);
        child
    }

    /// Where the block of this number begins; `None` if the plugin never told of it.
    #[inline]
    pub(super) fn start(&self, number: u32) -> Option<Ip> {
        Some(self.blocks.get(number as usize)?.start)
    }

    /// The instructions of a block.
    pub(super) fn steps(&self, number: u32) -> &[Step] {
        self.blocks
            .get(number as usize)
            .map_or(&[], |block| self.of(block))
    }

    #[inline]
    fn of(&self, block: &Block) -> &[Step] {
        self.steps
            .get(block.steps.start as usize..block.steps.end as usize)
            .unwrap_or_default()
    }

    /// The instructions of a block that ran to its end if control went from there to `next` in the simplest way.
    #[inline]
    pub(super) fn simply_ran(&self, number: u32, next: Ip) -> Option<&[Step]> {
        let block = self.blocks.get(number as usize)?;
        let (after, target) = block.ways?;
        (next == after || next == target).then(|| self.of(block))
    }

    /// The program has asked for memory to be mapped, unmapped or protected.
    pub(super) fn mappings_change(&mut self) {
        self.stale = true;
    }

    /// Takes a block that QEMU has translated. The observer is told of its code if that is new.
    pub(super) fn add(&mut self, observer: &mut dyn Observer, pid: Pid, start: u64, code: &[u8]) {
        let begin = self.steps.len() as u32;
        let mut at = 0;
        while at < code.len() {
            let ip = Ip(start + at as u64);
            // QEMU has translated it, or will raise #UD where it stands: then nothing runs behind it.
            let Ok(insn) = decode(&code[at..], ip, ExecMode::Bits64) else {
                break;
            };
            self.steps.push(Step { ip, insn });
            at += usize::from(insn.len);
        }
        let ways = simple_ways(&self.steps[begin as usize..]);
        self.blocks.push(Block {
            start: Ip(start),
            steps: begin..self.steps.len() as u32,
            ways,
        });
        self.know(observer, pid, start, &code[..at]);
    }

    /// Makes sure that the observer knows these bytes at this address.
    fn know(&mut self, observer: &mut dyn Observer, pid: Pid, start: u64, code: &[u8]) {
        if std::mem::take(&mut self.stale) {
            // A file's range is looked at again when code of it is translated again; QEMU translates anew what is
            // mapped anew.
            self.regions
                .retain(|_, region| matches!(region, Region::Memory { .. }));
        }
        let end = start + code.len() as u64;
        if let Some((_, Region::File { end: known })) = self.regions.range(..=start).next_back()
            && end <= *known
        {
            return;
        }
        if let Some(mapping) = mapping_at(pid, start)
            && mapping.kind == MappingKind::File
            && mapping.prot & libc::PROT_WRITE as u32 == 0
            && end <= mapping.end
        {
            self.regions
                .insert(mapping.start, Region::File { end: mapping.end });
            let mapping = Mapping {
                prot: mapping.prot | PROT_EXEC,
                ..mapping
            };
            observer.mapped(pid, pid, &[mapping]);
            return;
        }
        self.know_memory(observer, pid, start, code);
    }

    fn know_memory(&mut self, observer: &mut dyn Observer, pid: Pid, start: u64, code: &[u8]) {
        let mut news = false;
        for (address, byte) in (start..).zip(code) {
            let page = address / PAGE * PAGE;
            let region = self.regions.entry(page).or_insert_with(|| Region::Memory {
                bytes: vec![None; PAGE as usize],
            });
            if let Region::File { .. } = region {
                *region = Region::Memory {
                    bytes: vec![None; PAGE as usize],
                };
            }
            if let Region::Memory { bytes } = region {
                let known = &mut bytes[(address - page) as usize];
                news |= *known != Some(*byte);
                *known = Some(*byte);
            }
        }
        if news {
            observer.code(pid, pid, SavedCode { start, bytes: code });
        }
    }
}

/// Where a block leads that has no branch but perhaps a direct one at its end.
fn simple_ways(steps: &[Step]) -> Option<(Ip, Ip)> {
    let (last, body) = steps.split_last()?;
    let plain = |step: &Step| step.insn.class == Class::Other && !step.insn.repeats;
    if !body.iter().all(plain) {
        return None;
    }
    let after = last.insn.next_ip(last.ip, ExecMode::Bits64);
    match last.insn.class {
        Class::Conditional => Some((after, last.insn.target?)),
        Class::DirectJump | Class::DirectCall => Some((last.insn.target?, last.insn.target?)),
        Class::Other if plain(last) => Some((after, after)),
        _ => None,
    }
}

/// Where control can go after an instruction, as far as it tells.
pub(super) fn may_follow(step: &Step, next: Ip) -> bool {
    let after = step.insn.next_ip(step.ip, ExecMode::Bits64);
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
