//! A process's translated blocks, decoded once, and the code that they are of.

use crate::runs::{Block, BlockList};
use crate::{Mapping, MappingKind, Observer, Pid, Runs, SavedCode, Step};
use cofi_insn::{Class, decode};
use cofi_packet::{ExecMode, Ip};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

const PAGE: u64 = 4096;
/// PROT_EXEC. QEMU maps a program's code for itself to read, not to run.
const PROT_EXEC: u32 = 4;

/// A range that the observer knows to be mapped from a file.
#[derive(Clone, Debug)]
struct FileRange {
    mapping: Mapping,
    file: Option<Rc<File>>,
}

/// The translated blocks of one process, and its code.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    /// By number.
    list: BlockList,
    /// By their first addresses.
    files: BTreeMap<u64, FileRange>,
    /// Bytes that were told as they ran, by page. Where there are some, a file's do not count.
    memory: BTreeMap<u64, Box<[Option<u8>]>>,
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
        child
    }

    /// The block of this number and its instructions; `None` if the plugin never told of it.
    pub(super) fn get(&self, number: u32) -> Option<(&Block, &[Step])> {
        self.list.get(number)
    }

    /// The blocks of these numbers, which were entered one after the other behind the one of the number `before`.
    pub(super) fn runs<'a>(&'a self, before: u32, numbers: &'a [u32]) -> Option<Runs<'a>> {
        self.list.runs(before, numbers)
    }

    /// At an address whose code is about to be told, this is mapped.
    pub(super) fn map(
        &mut self,
        observer: &mut dyn Observer,
        pid: Pid,
        address: u64,
        mapping: Mapping,
    ) {
        let (mut start, mut end) = (mapping.start, mapping.end);
        if mapping.kind == MappingKind::File {
            // What is known around it of the same mapping stays: it is cut in pieces when rights in it change.
            for old in self.files.values().map(|range| &range.mapping) {
                match origin(old) == origin(&mapping) {
                    true if old.end <= address => start = start.max(old.end),
                    true if old.start > address => end = end.min(old.start),
                    true => return,
                    false => {}
                }
            }
        }
        self.files
            .retain(|_, old| old.mapping.end <= start || end <= old.mapping.start);
        if mapping.kind != MappingKind::File {
            return;
        }
        self.memory
            .retain(|page, _| (page + 1) * PAGE <= start || end <= page * PAGE);
        let mapping = Mapping {
            start,
            end,
            offset: mapping.offset + (start - mapping.start),
            prot: mapping.prot | PROT_EXEC,
            ..mapping
        };
        observer.mapped(pid, pid, std::slice::from_ref(&mapping));
        let file = File::open(&mapping.path).ok().map(Rc::new);
        self.files.insert(start, FileRange { mapping, file });
    }

    /// Takes a block that QEMU has translated. The observer is told of its code if that is new.
    pub(super) fn add(&mut self, observer: &mut dyn Observer, pid: Pid, start: u64, code: &[u8]) {
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
        self.know(observer, pid, start, &code[..at]);
    }

    /// Makes sure that the observer knows these bytes at this address.
    fn know(&mut self, observer: &mut dyn Observer, pid: Pid, start: u64, code: &[u8]) {
        let on_file = self.on_file(start, code.len());
        let told = |i: usize, address: u64| {
            let byte = self
                .memory
                .get(&(address / PAGE))
                .and_then(|bytes| bytes[(address % PAGE) as usize]);
            byte.or_else(|| on_file.as_ref().map(|bytes| bytes[i]))
        };
        let known = |(i, byte): (usize, &u8)| told(i, start + i as u64) == Some(*byte);
        if code.iter().enumerate().all(known) {
            return;
        }
        for (address, byte) in (start..).zip(code) {
            let page = self
                .memory
                .entry(address / PAGE)
                .or_insert_with(|| vec![None; PAGE as usize].into());
            page[(address % PAGE) as usize] = Some(*byte);
        }
        observer.code(pid, pid, SavedCode { start, bytes: code });
    }

    /// What a file has at these addresses, if one is mapped there.
    ///
    /// That the range can be written counts for nothing: QEMU takes that right away itself, from pages with code that it has
    /// translated. So the bytes are compared.
    fn on_file(&self, start: u64, len: usize) -> Option<Vec<u8>> {
        let (_, range) = self.files.range(..=start).next_back()?;
        if start + len as u64 > range.mapping.end {
            return None;
        }
        let mut bytes = vec![0; len];
        let offset = start - range.mapping.start + range.mapping.offset;
        let file = range.file.as_ref()?;
        file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}

/// Equal in two parts of one mapping.
fn origin(mapping: &Mapping) -> ((u32, u32), u64, u64) {
    let at = mapping.offset.wrapping_sub(mapping.start);
    (mapping.device, mapping.inode, at)
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
