//! Decoded code: a graph of instructions, each of which knows where those are that can follow it.

use cofi_insn::{Class, Insn, advance, decode};
use cofi_packet::{ExecMode, Ip};
use rustc_hash::FxBuildHasher;
use std::collections::HashMap;

use crate::error::Error;
use crate::image::{Asid, Image};

/// `struct pt_insn`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CInsn {
    pub(crate) ip: u64,
    pub(crate) isid: i32,
    pub(crate) mode: u32,
    pub(crate) class: u32,
    pub(crate) raw: [u8; 15],
    pub(crate) size: u8,
    /// Bit 0: speculative; bit 1: truncated.
    pub(crate) flags: u32,
}

impl CInsn {
    /// Whether it goes beyond its section.
    #[inline(always)]
    pub(crate) const fn is_truncated(&self) -> bool {
        self.flags & 2 != 0
    }
}

/// `enum pt_insn_class`.
pub(crate) mod ptic {
    pub(crate) const OTHER: u32 = 1;
    pub(crate) const CALL: u32 = 2;
    pub(crate) const RETURN: u32 = 3;
    pub(crate) const JUMP: u32 = 4;
    pub(crate) const COND_JUMP: u32 = 5;
    pub(crate) const FAR_CALL: u32 = 6;
    pub(crate) const FAR_RETURN: u32 = 7;
    pub(crate) const FAR_JUMP: u32 = 8;
    pub(crate) const PTWRITE: u32 = 9;
}

/// Where control goes behind an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// To the next.
    Next,
    /// To the target, without a word.
    Direct,
    /// To the target, and it can return.
    DirectCall,
    /// To the target or the next.
    Conditional,
    /// Where a TIP says.
    Indirect,
    /// Where a TIP says, and it can return.
    IndirectCall,
    /// Where it was called from, or where a TIP says.
    Return,
    /// Where a TIP says; privileges may change.
    Far,
}

/// What binds to an instruction beside its flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Binds {
    Nothing,
    /// A PIP.
    Paging,
    /// A VMCS.
    Vmcs,
    /// A PTW.
    Ptwrite,
    /// The end of tracing, whatever packets say (SKD022): a VM entry.
    VmEntry,
}

/// Where control can go behind an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) flow: Flow,
    /// The entries of the next and of the target, if they are there.
    pub(crate) next: u32,
    pub(crate) taken: u32,
    /// The addresses of both.
    pub(crate) next_ip: u64,
    pub(crate) target: u64,
}

/// A decoded instruction: a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Entry {
    pub(crate) insn: CInsn,
    target: u64,
    /// The entries of the next and of the target, if they are there.
    edges: [u32; 2],
    /// The block that begins here, if it was put together.
    pub(crate) block: u32,
    pub(crate) flow: Flow,
    pub(crate) binds: Binds,
    /// How many entries are run through in their order from here on, each going to the one that is kept behind it; `NO_RUN` if nobody counted yet.
    run: u8,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// No entry.
pub(crate) const NONE: u32 = u32::MAX;

/// So many instructions are kept: 64 MiB of entries, and with tables, and blocks if these are asked for, up to half a gigabyte.
const ROOM: usize = 1 << 20;

/// A run that was not counted.
const NO_RUN: u8 = u8::MAX;
/// The longest run. Those of longer code are counted anew where they end.
const LONGEST_RUN: usize = 128;

/// How many places of the table that is asked first there are.
const NEAR: usize = 1 << 11;

/// What was decoded of an image, in one address space.
#[derive(Debug)]
pub(crate) struct Code {
    entries: Vec<Entry>,
    by_ip: HashMap<(u64, u32), u32, FxBuildHasher>,
    /// The entry that was found last of all addresses with the same lower bits; none of them says anything that the entry does not confirm.
    near: Vec<u32>,
    asid: Asid,
    pub(crate) blocks: Vec<crate::block::Block>,
    /// Counts how often all was forgotten: numbers of entries from before mean nothing.
    pub(crate) epoch: u64,
}

impl Default for Code {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            by_ip: HashMap::default(),
            near: Vec::new(),
            asid: Asid::ANY,
            blocks: Vec::new(),
            epoch: 0,
        }
    }
}

impl Code {
    /// Forgets all.
    pub(crate) fn forget(&mut self) {
        self.entries.clear();
        self.by_ip.clear();
        self.blocks.clear();
        self.epoch += 1;
    }

    /// The entry of the instruction at an address, if it is there.
    #[inline]
    fn find(&mut self, ip: u64, mode: u32) -> Option<u32> {
        let slot = (ip ^ ip >> 11) as usize % NEAR;
        if let Some(&near) = self.near.get(slot)
            && let Some(entry) = self.get(near)
            && (entry.insn.ip, entry.insn.mode) == (ip, mode)
        {
            return Some(near);
        }
        self.find_far(ip, mode, slot)
    }

    #[cold]
    #[inline(never)]
    fn find_far(&mut self, ip: u64, mode: u32, slot: usize) -> Option<u32> {
        let found = *self.by_ip.get(&(ip, mode))?;
        if self.near.is_empty() {
            self.near.resize(NEAR, 0);
        }
        self.near[slot] = found;
        Some(found)
    }

    /// How many entries are run through in their order from this one on: none of them is a branch, and no event binds to one.
    #[inline]
    pub(crate) fn run(&mut self, index: u32) -> u8 {
        match self.get(index) {
            Some(entry) if entry.run != NO_RUN => entry.run,
            Some(_) => self.count_run(index as usize),
            None => 0,
        }
    }

    #[cold]
    fn count_run(&mut self, first: usize) -> u8 {
        let mut at = first;
        let is_whole = loop {
            let Some([entry, behind]) = self.entries.get(at..at + 2) else {
                break false;
            };
            let goes_on = entry.flow == Flow::Next
                && entry.binds == Binds::Nothing
                && entry.insn.flags == 0
                && entry.insn.isid == behind.insn.isid;
            if !goes_on || entry.edges[0] != at as u32 + 1 {
                // (Where the next is not known yet, it may become longer.)
                break !goes_on || entry.edges[0] != NONE;
            }
            at += 1;
            if at - first == LONGEST_RUN {
                break true;
            }
            if behind.run != NO_RUN {
                at = (at + usize::from(behind.run)).min(first + LONGEST_RUN);
                break true;
            }
        };
        let len = (at - first) as u8;
        if is_whole {
            self.entries[first].run = len;
            for (entry, left) in self.entries[first..at].iter_mut().zip((1..=len).rev()) {
                entry.run = left;
            }
        }
        len
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)
    }
}

/// `enum pt_exec_mode` to Cofi's.
fn mode_of(mode: u32) -> Option<ExecMode> {
    match mode {
        1 => Some(ExecMode::Bits16),
        2 => Some(ExecMode::Bits32),
        3 => Some(ExecMode::Bits64),
        _ => None,
    }
}

impl Entry {
    fn new(insn: &Insn, ip: u64, mode: u32) -> Self {
        use Class as C;
        let (class, flow) = match insn.class {
            C::Conditional => (ptic::COND_JUMP, Flow::Conditional),
            C::DirectJump => (ptic::JUMP, Flow::Direct),
            C::DirectCall => (ptic::CALL, Flow::DirectCall),
            C::IndirectJump => (ptic::JUMP, Flow::Indirect),
            C::IndirectCall => (ptic::CALL, Flow::IndirectCall),
            C::Return => (ptic::RETURN, Flow::Return),
            C::FarCall | C::Syscall | C::SoftwareInterrupt | C::Into => (ptic::FAR_CALL, Flow::Far),
            C::FarJump => (ptic::FAR_JUMP, Flow::Far),
            C::FarReturn | C::VmEntry => (ptic::FAR_RETURN, Flow::Far),
            C::Ptwrite => (ptic::PTWRITE, Flow::Next),
            _ => (ptic::OTHER, Flow::Next),
        };
        let binds = match insn.class {
            C::MovCr3 => Binds::Paging,
            C::VmPtrLoad => Binds::Vmcs,
            C::Ptwrite => Binds::Ptwrite,
            C::VmEntry => Binds::VmEntry,
            _ => Binds::Nothing,
        };
        Self {
            insn: CInsn {
                ip,
                mode,
                class,
                size: insn.len,
                ..CInsn::default()
            },
            target: insn.target.map_or(0, |target| target.0),
            edges: [NONE; 2],
            flow,
            binds,
            block: NONE,
            run: NO_RUN,
        }
    }

    /// How many entries are run through from here on, if somebody counted.
    #[inline(always)]
    pub(crate) fn known_run(&self) -> Option<u32> {
        (self.run != NO_RUN).then(|| self.run.into())
    }

    /// The entries of the next and of the target, if they are there.
    #[inline(always)]
    pub(crate) fn edges(&self) -> [u32; 2] {
        self.edges
    }

    /// Where control can go behind it.
    #[inline(always)]
    pub(crate) fn step(&self) -> Step {
        Step {
            flow: self.flow,
            next: self.edges[0],
            taken: self.edges[1],
            next_ip: self.next_ip(),
            target: self.target,
        }
    }

    /// The address behind it.
    #[inline(always)]
    pub(crate) fn next_ip(&self) -> u64 {
        let CInsn { ip, mode, size, .. } = self.insn;
        match mode {
            3 => ip.wrapping_add(size.into()),
            2 => advance(Ip(ip), size, ExecMode::Bits32).0,
            _ => advance(Ip(ip), size, ExecMode::Bits16).0,
        }
    }

    /// Forgets the entries behind it, for an image that has others.
    pub(crate) fn forget_edges(&mut self) {
        self.edges = [NONE; 2];
    }

    pub(crate) fn is_call(&self) -> bool {
        matches!(self.insn.class, ptic::CALL | ptic::FAR_CALL)
    }

    pub(crate) fn is_far(&self) -> bool {
        self.flow == Flow::Far
    }
}

/// Where control is: an address, and the entry of the instruction there, if it can be kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    pub(crate) ip: u64,
    pub(crate) mode: u32,
    pub(crate) entry: u32,
    pub(crate) epoch: u64,
}

impl Image {
    /// Sees to it that what was decoded is of this address space.
    pub(crate) fn in_space(&mut self, asid: &Asid) {
        if self.code.asid != *asid {
            if self.has_spaces() {
                self.code.forget();
            }
            self.code.asid = *asid;
        }
        if self.code.entries.len() >= ROOM {
            self.code.forget();
        }
    }

    /// The number of the instruction at an address; none if it is nothing to be kept.
    pub(crate) fn entry(&mut self, ip: u64, mode: u32, asid: &Asid) -> Result<Option<u32>, Error> {
        self.in_space(asid);
        if let Some(index) = self.code.find(ip, mode) {
            return Ok(Some(index));
        }
        let (entry, lasting) = self.read_insn(ip, mode, asid)?;
        if !lasting {
            return Ok(None);
        }
        let index = self.code.entries.len() as u32;
        self.code.entries.push(entry);
        self.code.by_ip.insert((ip, mode), index);
        Ok(Some(index))
    }

    /// Decodes the instruction at an address; and says whether all that was looked at lies in sections.
    pub(crate) fn read_insn(
        &self,
        ip: u64,
        mode: u32,
        asid: &Asid,
    ) -> Result<(Entry, bool), Error> {
        let fetched = self.fetch(ip, asid);
        if fetched.len == 0 {
            return Err(Error::NoMap);
        }
        let bytes = &fetched.bytes[..fetched.len];
        let insn = mode_of(mode)
            .and_then(|mode| decode(bytes, Ip(ip), mode).ok())
            .ok_or(Error::BadInsn)?;
        let mut entry = Entry::new(&insn, ip, mode);
        let len = usize::from(insn.len);
        entry.insn.isid = fetched.isid;
        entry.insn.raw[..len].copy_from_slice(&bytes[..len]);
        entry.insn.flags = u32::from(len > fetched.first) << 1;
        Ok((
            entry,
            fetched.lasting || len <= fetched.first && fetched.sectioned,
        ))
    }

    /// The entry at a cursor, if it is known.
    #[inline(always)]
    pub(crate) fn known(&self, cursor: &Cursor) -> Option<&Entry> {
        if cursor.epoch != self.code.epoch {
            return None;
        }
        self.code.get(cursor.entry)
    }

    /// The entry at a cursor and the one that is kept behind it, if both are known.
    #[inline(always)]
    pub(crate) fn known_pair(&self, cursor: &Cursor) -> Option<&[Entry; 2]> {
        if cursor.epoch != self.code.epoch {
            return None;
        }
        let first = cursor.entry as usize;
        self.code.entries.get(first..first + 2)?.first_chunk()
    }

    /// The entry at a cursor, which is looked up if it is not known.
    #[inline]
    pub(crate) fn look_up(&mut self, cursor: &mut Cursor, asid: &Asid) -> Result<Entry, Error> {
        if cursor.epoch == self.code.epoch
            && let Some(entry) = self.code.get(cursor.entry)
        {
            return Ok(*entry);
        }
        self.look_up_anew(cursor, asid)
    }

    #[cold]
    fn look_up_anew(&mut self, cursor: &mut Cursor, asid: &Asid) -> Result<Entry, Error> {
        let found = self.entry(cursor.ip, cursor.mode, asid)?;
        cursor.epoch = self.code.epoch;
        cursor.entry = found.unwrap_or(NONE);
        match self.code.get(cursor.entry) {
            Some(entry) => Ok(*entry),
            None => self
                .read_insn(cursor.ip, cursor.mode, asid)
                .map(|found| found.0),
        }
    }

    /// Goes from an entry to the next or to its target, along the graph where it is known.
    #[inline]
    pub(crate) fn follow(&mut self, cursor: &mut Cursor, to: u64, taken: bool, asid: &Asid) {
        cursor.ip = to;
        let from = cursor.entry;
        let Some(entry) = self.known(cursor) else {
            cursor.entry = NONE;
            return;
        };
        let edge = usize::from(taken);
        let known = entry.edges[edge];
        if known != NONE {
            cursor.entry = known;
            return;
        }
        // (An error is reported when the instruction is wanted.)
        let found = self.entry(to, cursor.mode, asid).ok().flatten();
        cursor.entry = found.unwrap_or(NONE);
        if cursor.epoch != self.code.epoch {
            cursor.epoch = self.code.epoch;
        } else if let (Some(entry), Some(found)) = (self.code.get_mut(from), found) {
            entry.edges[edge] = found;
        }
    }

    /// Goes to an address that a packet told.
    #[inline]
    pub(crate) fn jump(&mut self, cursor: &mut Cursor, to: u64, asid: &Asid) {
        if self.code.asid != *asid {
            self.in_space(asid);
        }
        cursor.ip = to;
        cursor.entry = self.code.find(to, cursor.mode).unwrap_or(NONE);
        cursor.epoch = self.code.epoch;
    }
}
