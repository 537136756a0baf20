//! The code of a process as it runs: decoded once where it cannot change, compared each time where it can.

use super::branch_target::{BranchTarget, branch_target};
use super::maps::{self, Mappings};
use super::plan::Source;
use super::special::{Special, special};
use super::sys;
use crate::{MappingKind, Observer, Pid, SavedCode};
use cofi_insn::{Class, Insn, InsnError, MAX_INSN_LEN, decode};
use cofi_packet::{ExecMode, Ip};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;

/// The size of a page.
const PAGE: u64 = 0x1000;

/// One instruction, and what the engine must know of it beside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code {
    pub(super) insn: Insn,
    pub(super) special: Special,
    pub(super) branch: BranchTarget,
    /// The bytes come from a file and cannot change.
    pub(super) stable: bool,
    bytes: [u8; MAX_INSN_LEN],
}

impl Code {
    fn bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.insn.len))
            .unwrap_or_default()
    }

    /// Whether this makes a system call.
    pub(super) fn is_system_call(&self) -> bool {
        self.insn.class == Class::Syscall || self.special == Special::SystemCall
    }
}

/// A decoded instruction that may be used again.
#[derive(Clone, Copy, Debug)]
struct Slot {
    ip: u64,
    /// The state of the mappings for which it holds; 0 for an empty slot.
    generation: u32,
    mode: ExecMode,
    code: Code,
}

const EMPTY: Slot = Slot {
    ip: 0,
    generation: 0,
    mode: ExecMode::Bits64,
    code: Code {
        insn: Insn {
            len: 1,
            class: Class::Other,
            target: None,
            repeats: false,
            digest: 0,
        },
        special: Special::None,
        branch: BranchTarget::Step,
        stable: false,
        bytes: [0; MAX_INSN_LEN],
    },
};

/// How many decoded instructions are kept.
const SLOTS: usize = 1 << 14;

/// How many branches' histories are kept.
const HISTORIES: usize = 1 << 12;
/// What is thought of a branch that has none.
const NO_HISTORY: u8 = 1;

/// What is known of a page that has been executed.
#[derive(Clone, Debug)]
enum Page {
    /// Its file holds the same bytes, and it is not writable.
    AsInFile,
    /// No file holds it; the bytes that were told last. They begin at this address: the vDSO is told whole.
    Saved(u64, Rc<[u8]>),
}

/// The code of one address space.
#[derive(Debug)]
pub(super) struct CodeSpace {
    mappings: Mappings,
    pages: FxHashMap<u64, Page>,
    files: FxHashMap<PathBuf, Option<File>>,
    slots: Vec<Slot>,
    generation: u32,
    /// How conditional branches went of late, by a hash of their addresses.
    histories: Vec<u8>,
}

impl Default for CodeSpace {
    fn default() -> Self {
        Self {
            mappings: Mappings::default(),
            pages: FxHashMap::default(),
            files: FxHashMap::default(),
            slots: Vec::new(),
            generation: 1,
            histories: vec![NO_HISTORY; HISTORIES],
        }
    }
}

impl CodeSpace {
    /// The address space that a fork makes of this one.
    pub(super) fn fork(&self) -> Self {
        Self {
            mappings: self.mappings.clone(),
            pages: self.pages.clone(),
            ..Self::default()
        }
    }

    /// Whether anything executable lies in `len` bytes from `start`.
    pub(super) fn executes_in(&self, start: u64, len: u64) -> bool {
        self.mappings.overlaps(start, start.saturating_add(len))
    }

    /// Whether other processes may write anything in `len` bytes from `start`.
    pub(super) fn shares_in(&self, start: u64, len: u64) -> bool {
        self.mappings.shares(start, start.saturating_add(len))
    }

    /// Reads the mappings anew and tells what files have come to be mapped. Whether anything has changed.
    pub(super) fn refresh(&mut self, pid: Pid, tid: Pid, observer: &mut dyn Observer) -> bool {
        let Some(change) = self.mappings.refresh(pid) else {
            return false;
        };
        // Generations are told apart only as long as they do not wrap; then the slots start anew.
        self.generation = self.generation.checked_add(1).unwrap_or_else(|| {
            self.slots.clear();
            1
        });
        self.files.clear();
        let told = |page: u64| {
            change
                .fresh
                .iter()
                .any(|m| (m.start..m.end).contains(&page))
        };
        self.pages.retain(|page, state| match state {
            Page::AsInFile => false,
            // What a file holds now is told by the mapping; what is not mapped any more need not be kept.
            Page::Saved(..) => !told(*page) && change.is_mapped(*page),
        });
        if !change.fresh.is_empty() {
            observer.mapped(pid, tid, &change.fresh);
        }
        true
    }

    /// The instruction at `ip`, if there is one that can be executed. Bytes that no file holds are told first when they
    /// are new.
    #[inline]
    pub(super) fn fetch(
        &mut self,
        who: (Pid, Pid),
        ip: u64,
        mode: ExecMode,
        observer: &mut dyn Observer,
    ) -> Option<Code> {
        if self.slots.is_empty() {
            self.slots.resize(SLOTS, EMPTY);
        }
        let slot = &self.slots[ip as usize % SLOTS];
        let hit = slot.ip == ip && slot.generation == self.generation && slot.mode == mode;
        let code = slot.code;
        if hit && (code.stable || stands(who.1, ip, &code)) {
            self.tell(who, ip, &code, observer);
            return Some(code);
        }
        self.decode(who, ip, mode, observer)
    }

    /// The instruction at `ip`, if it is sure to be the same when it runs: nothing can change it, or nobody but the stopped
    /// thread could (`alone`), and it only by a system call.
    fn steady(
        &mut self,
        who: (Pid, Pid),
        ip: u64,
        mode: ExecMode,
        alone: bool,
        observer: &mut dyn Observer,
    ) -> Option<Code> {
        let slot = self.slots.get(ip as usize % SLOTS);
        let hit = |slot: &&Slot| slot.ip == ip && slot.generation == self.generation;
        if let Some(slot) = slot.filter(hit)
            && slot.mode == mode
            && slot.code.stable
        {
            return Some(slot.code);
        }
        let mapping = self.mappings.find(ip)?;
        let end = mapping.end;
        let is_kept = match mapping.kind {
            MappingKind::File | MappingKind::Vdso => true,
            // Memory of its own which it cannot write.
            MappingKind::Memory => {
                alone && mapping.inode == 0 && mapping.prot & maps::PROT_WRITE == 0
            }
        };
        if !is_kept {
            return None;
        }
        let code = self.fetch(who, ip, mode, observer)?;
        let whole = ip.saturating_add(u64::from(code.insn.len)) <= end;
        (code.stable || (alone && whole)).then_some(code)
    }

    /// Remembers how a conditional branch went.
    pub(super) fn learn(&mut self, ip: u64, taken: bool) {
        let history = &mut self.histories[history_of(ip)];
        *history = if taken {
            (*history + 1).min(3)
        } else {
            history.saturating_sub(1)
        };
    }

    fn decode(
        &mut self,
        who: (Pid, Pid),
        ip: u64,
        mode: ExecMode,
        observer: &mut dyn Observer,
    ) -> Option<Code> {
        if self.mappings.find(ip).is_none() {
            // A thread may run what another one has mapped before we hear of it.
            self.refresh(who.0, who.1, observer);
            self.mappings.find(ip)?;
        }
        let mut code = read(who.1, ip, mode)?;
        code.stable = self.tell(who, ip, &code, observer);
        self.slots[ip as usize % SLOTS] = Slot {
            ip,
            generation: self.generation,
            mode,
            code,
        };
        Some(code)
    }

    /// The instruction at `ip` as a thread has run it, which was `known` before. Another thread may have changed it before that, or
    /// after; whether an instruction leads to where the thread is now, `explains` says. It is told again if something else was
    /// told since, for another thread.
    pub(super) fn as_it_ran(
        &mut self,
        who: (Pid, Pid),
        (ip, mode): (u64, ExecMode),
        known: Code,
        explains: impl Fn(&Code) -> bool,
        observer: &mut dyn Observer,
    ) -> Code {
        if known.stable {
            return known;
        }
        let ran = if stands(who.1, ip, &known) {
            known
        } else {
            // Where both versions lead there, they are the same flow.
            let now = read(who.1, ip, mode).filter(|now| explains(now) && !explains(&known));
            now.unwrap_or(known)
        };
        self.tell(who, ip, &ran, observer);
        ran
    }

    /// Tells the pages of the instruction at `ip` that no file holds, unless what was told of them last is just that.
    /// Whether the instruction cannot change without a change of the mappings.
    #[inline]
    fn tell(
        &mut self,
        (pid, tid): (Pid, Pid),
        ip: u64,
        code: &Code,
        observer: &mut dyn Observer,
    ) -> bool {
        if code.stable {
            return true;
        }
        let bytes = code.bytes();
        let mut stable = true;
        let mut done = 0;
        while done < bytes.len() {
            let at = ip.wrapping_add(done as u64);
            let page = at & !(PAGE - 1);
            let len = ((PAGE - (at - page)) as usize).min(bytes.len() - done);
            let part = &bytes[done..done + len];
            done += len;
            let kind = self.mappings.find(at).map(|mapping| mapping.kind);
            let saved = match self.pages.get(&page) {
                Some(Page::AsInFile) => continue,
                Some(Page::Saved(start, bytes)) => {
                    let offset = (at - start) as usize;
                    bytes.get(offset..offset + len) == Some(part)
                }
                None => {
                    if kind == Some(MappingKind::File) && self.is_as_in_file(tid, page) {
                        self.pages.insert(page, Page::AsInFile);
                        continue;
                    }
                    false
                }
            };
            stable &= kind == Some(MappingKind::Vdso);
            if !saved {
                self.save((pid, tid), at, part, observer);
            }
        }
        stable
    }

    /// Whether the file behind a page holds the very bytes of the page.
    fn is_as_in_file(&mut self, tid: Pid, page: u64) -> bool {
        let Some(mapping) = self.mappings.find(page) else {
            return false;
        };
        let offset = mapping.offset + (page - mapping.start);
        if !self.files.contains_key(&mapping.path) {
            let file = File::open(&mapping.path).ok();
            self.files.insert(mapping.path.clone(), file);
        }
        let Some(Some(file)) = self.files.get(&mapping.path) else {
            return false;
        };
        let mut here = [0; PAGE as usize];
        let mut there = [0; PAGE as usize];
        let mut len = 0;
        // What lies after the file's end is zero.
        while len < there.len() {
            match file.read_at(&mut there[len..], offset + len as u64) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        sys::read_memory(tid as i32, page, &mut here) == here.len() && here == there
    }

    /// Tells the page of `at` as it is now, but for this part of it, which is as it ran.
    fn save(&mut self, (pid, tid): (Pid, Pid), at: u64, part: &[u8], observer: &mut dyn Observer) {
        let page = at & !(PAGE - 1);
        // The vDSO is told whole, so that the saved bytes are an ELF image.
        let (start, end) = self
            .mappings
            .find(at)
            .filter(|mapping| mapping.kind == MappingKind::Vdso)
            .map_or((page, page + PAGE), |mapping| (mapping.start, mapping.end));
        let mut bytes = maps::read(tid, start, (end - start) as usize);
        if bytes.is_empty()
            && let Some(Page::Saved(told, before)) = self.pages.get(&page)
            && *told == start
        {
            // Another thread has unmapped it since it ran.
            bytes = before.to_vec();
        }
        bytes.resize((end - start) as usize, 0);
        let offset = (at - start) as usize;
        bytes[offset..offset + part.len()].copy_from_slice(part);
        let bytes: Rc<[u8]> = bytes.into();
        observer.code(
            pid,
            tid,
            SavedCode {
                start,
                bytes: &bytes,
            },
        );
        for page in (start..end).step_by(PAGE as usize) {
            self.pages
                .insert(page, Page::Saved(start, Rc::clone(&bytes)));
        }
    }
}

/// Whether this is what stands at an address now.
fn stands(tid: Pid, ip: u64, code: &Code) -> bool {
    let mut bytes = [0; MAX_INSN_LEN];
    let bytes = &mut bytes[..usize::from(code.insn.len)];
    sys::read_memory(tid as i32, ip, bytes) == bytes.len() && code.bytes() == bytes
}

/// The instruction that stands at an address now.
fn read(tid: Pid, ip: u64, mode: ExecMode) -> Option<Code> {
    let mut bytes = [0; MAX_INSN_LEN];
    // The next page need not be there.
    let in_page = (PAGE - ip % PAGE).min(MAX_INSN_LEN as u64) as usize;
    let mut len = sys::read_memory(tid as i32, ip, &mut bytes[..in_page]);
    let insn = match decode(&bytes[..len], Ip(ip), mode) {
        Ok(insn) => insn,
        Err(InsnError::Truncated { .. }) if len == in_page => {
            len += sys::read_memory(tid as i32, ip.wrapping_add(len as u64), &mut bytes[len..]);
            decode(&bytes[..len], Ip(ip), mode).ok()?
        }
        Err(_) => return None,
    };
    let text = &bytes[..usize::from(insn.len)];
    let special = special(text, mode);
    Some(Code {
        insn,
        special,
        branch: branch_target(text, ip, &insn, special, mode),
        stable: false,
        bytes,
    })
}

fn history_of(ip: u64) -> usize {
    (ip ^ ip >> 12) as usize % HISTORIES
}

/// The code of a stopped thread's process, as far as it is sure.
pub(super) struct Steady<'a> {
    pub(super) space: &'a mut CodeSpace,
    pub(super) who: (Pid, Pid),
    pub(super) mode: ExecMode,
    /// Nobody but this thread can write the process's memory.
    pub(super) alone: bool,
    pub(super) observer: &'a mut dyn Observer,
}

impl Source for Steady<'_> {
    fn code(&mut self, ip: u64) -> Option<Code> {
        self.space
            .steady(self.who, ip, self.mode, self.alone, &mut *self.observer)
    }

    fn history(&self, ip: u64) -> u8 {
        self.space.histories[history_of(ip)]
    }
}
