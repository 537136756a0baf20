//! The code of a process as it runs: decoded once where it cannot change, compared each time where it can.

use super::maps::{Mappings, read};
use crate::{MappingKind, Observer, Pid, SavedCode};
use cofi_insn::{Insn, MAX_INSN_LEN, decode};
use cofi_packet::{ExecMode, Ip};
use std::collections::{BTreeMap, HashMap};

const PAGE: u64 = 0x1000;

/// One instruction, and what the engine must know of it beside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code {
    pub(super) insn: Insn,
    pub(super) special: Special,
}

/// Instructions that a single step treats in its own way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Special {
    None,
    /// PUSHF: stores the trap flag of the step; the operand's size in bytes.
    PushFlags(u8),
    /// POPF: replaces the trap flag; the operand's size in bytes.
    PopFlags(u8),
    /// MOV SS or POP SS: the next instruction runs without a stop.
    LoadsStackSegment,
}

fn special(bytes: &[u8], mode: ExecMode) -> Special {
    let mut operand_16 = false;
    let mut rest = bytes;
    while let [prefix, tail @ ..] = rest {
        match prefix {
            0x66 => operand_16 = true,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x67 | 0xf0 | 0xf2 | 0xf3 => {}
            0x40..=0x4f if mode == ExecMode::Bits64 => {}
            _ => break,
        }
        rest = tail;
    }
    match rest {
        [opcode @ (0x9c | 0x9d), ..] => {
            let size = match mode {
                _ if operand_16 => 2,
                ExecMode::Bits64 => 8,
                _ => 4,
            };
            if *opcode == 0x9c {
                Special::PushFlags(size)
            } else {
                Special::PopFlags(size)
            }
        }
        [0x8e, modrm, ..] if modrm >> 3 & 7 == 2 => Special::LoadsStackSegment,
        [0x17, ..] if mode != ExecMode::Bits64 => Special::LoadsStackSegment,
        _ => Special::None,
    }
}

#[derive(Clone, Copy, Debug)]
struct Cached {
    code: Code,
    bytes: [u8; MAX_INSN_LEN],
    /// The bytes come from a file and cannot change.
    stable: bool,
}

/// The code of one address space.
#[derive(Clone, Debug, Default)]
pub(super) struct CodeSpace {
    pub(super) mappings: Mappings,
    decoded: HashMap<(u64, ExecMode), Cached>,
    /// Pages that no file holds, as they were last told.
    saved: BTreeMap<u64, Vec<u8>>,
}

/// Instructions that may be kept decoded; beyond that the cache starts anew.
const MAX_DECODED: usize = 1 << 20;

impl CodeSpace {
    /// Reads the mappings anew and tells what files have come to be mapped.
    pub(super) fn refresh(&mut self, pid: Pid, tid: Pid, observer: &mut dyn Observer) {
        let fresh = self.mappings.refresh(pid);
        self.decoded.clear();
        if !fresh.is_empty() {
            // What a file holds now need not be saved.
            for mapping in &fresh {
                self.saved
                    .retain(|page, _| !(mapping.start..mapping.end).contains(page));
            }
            observer.mapped(pid, tid, &fresh);
        }
    }

    /// The instruction at `ip`, if it can be read; bytes that no file holds are told first when they are new.
    pub(super) fn fetch(
        &mut self,
        (pid, tid): (Pid, Pid),
        ip: u64,
        mode: ExecMode,
        observer: &mut dyn Observer,
    ) -> Option<Code> {
        let cached = self.decoded.get(&(ip, mode));
        if let Some(cached) = cached.filter(|c| c.stable) {
            return Some(cached.code);
        }
        let bytes = read(
            tid,
            ip,
            cached.map_or(MAX_INSN_LEN, |c| c.code.insn.len.into()),
        );
        if let Some(cached) = cached
            && cached.bytes[..bytes.len()] == bytes[..]
            && bytes.len() == usize::from(cached.code.insn.len)
        {
            return Some(cached.code);
        }
        let bytes = read(tid, ip, MAX_INSN_LEN);
        let insn = decode(&bytes, Ip(ip), mode).ok()?;
        let end = ip.wrapping_add(u64::from(insn.len));
        let in_file = |at: u64| {
            self.mappings
                .find(at)
                .is_some_and(|m| m.kind == MappingKind::File)
        };
        let stable = in_file(ip) && in_file(end.wrapping_sub(1));
        if !stable {
            self.save(pid, tid, ip, end, observer);
        }
        let code = Code {
            insn,
            special: special(&bytes, mode),
        };
        let mut kept = [0; MAX_INSN_LEN];
        kept[..bytes.len()].copy_from_slice(&bytes);
        if self.decoded.len() >= MAX_DECODED {
            self.decoded.clear();
        }
        self.decoded.insert(
            (ip, mode),
            Cached {
                code,
                bytes: kept,
                stable,
            },
        );
        Some(code)
    }

    /// Tells the pages of `start..end` that no file holds and that are not known as they are now.
    fn save(&mut self, pid: Pid, tid: Pid, start: u64, end: u64, observer: &mut dyn Observer) {
        let mut page = start & !(PAGE - 1);
        while page < end {
            let mapping = self.mappings.find(page.max(start));
            let is_file = mapping.is_some_and(|m| m.kind == MappingKind::File);
            // The vDSO is told whole, so that the saved file is an ELF image.
            let whole = mapping
                .filter(|m| m.kind == MappingKind::Vdso)
                .map(|m| (m.start, m.end));
            let (from, to) = whole.unwrap_or((page, page + PAGE));
            if !is_file {
                let bytes = read(tid, from, (to - from) as usize);
                if !bytes.is_empty() && self.saved.get(&from) != Some(&bytes) {
                    observer.code(
                        pid,
                        tid,
                        SavedCode {
                            start: from,
                            bytes: &bytes,
                        },
                    );
                    self.saved.insert(from, bytes);
                }
            }
            page = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_instructions_with_their_prefixes() {
        use ExecMode::{Bits32, Bits64};
        assert_eq!(special(&[0x9c], Bits64), Special::PushFlags(8));
        assert_eq!(special(&[0x66, 0x9c], Bits64), Special::PushFlags(2));
        assert_eq!(special(&[0x48, 0x9c], Bits64), Special::PushFlags(8));
        assert_eq!(special(&[0x9c], Bits32), Special::PushFlags(4));
        assert_eq!(special(&[0x8e, 0xd0], Bits64), Special::LoadsStackSegment);
        assert_eq!(special(&[0x8e, 0xd8], Bits64), Special::None);
        assert_eq!(special(&[0x17], Bits32), Special::LoadsStackSegment);
        assert_eq!(special(&[0x48, 0x9d], Bits64), Special::PopFlags(8));
        assert_eq!(special(&[0x66, 0x9d], Bits32), Special::PopFlags(2));
        assert_eq!(special(&[0x90], Bits64), Special::None);
        assert_eq!(special(&[], Bits64), Special::None);
    }
}
