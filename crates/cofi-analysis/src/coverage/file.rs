//! What ran of one file, instruction by instruction.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofi_image::{BuildId, CodeFile};
use cofi_insn::{Class, Insn, MAX_INSN_LEN, decode};
use cofi_packet::{ExecMode, Ip};

use super::counts::Shape;
use crate::block_table::Outcomes;

/// What tells a file of code from others, in any recording.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKey {
    /// Its build id, wherever it lies.
    BuildId(Vec<u8>),
    /// Its path, if it has no build id.
    Path(PathBuf),
}

impl FileKey {
    /// Of a file.
    #[must_use]
    pub fn of(file: &CodeFile) -> Self {
        let id = file.build_id().or_else(|| file.own_build_id());
        match id {
            Some(id) => Self::BuildId(BuildId::bytes(&id).to_vec()),
            None => Self::Path(file.path().to_owned()),
        }
    }
}

/// An instruction of a file, and how often it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InsnCount {
    /// Where it stands in the file.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u8,
    /// The mode in which it ran.
    pub mode: ExecMode,
    /// The class, where it is another than [`Class::Other`].
    pub class: Option<Class>,
    /// How often it ran.
    pub times: u64,
    /// If it is a conditional branch, how often it did not go on with the next instruction.
    pub taken: u64,
    /// If it is a conditional branch, how often nobody knows where it led.
    pub unknown: u64,
}

impl InsnCount {
    /// One that never ran.
    #[must_use]
    pub fn never(offset: u64, len: u8, mode: ExecMode, class: Class) -> Self {
        Self {
            offset,
            len,
            mode,
            class: (class != Class::Other).then_some(class),
            times: 0,
            taken: 0,
            unknown: 0,
        }
    }

    /// If it is a conditional branch, how often it went on with the next instruction.
    #[must_use]
    pub const fn not_taken(&self) -> u64 {
        self.times.saturating_sub(self.taken + self.unknown)
    }

    /// Whether it is a conditional branch.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        self.class == Some(Class::Conditional)
    }

    /// Where the next instruction of the file stands.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }
}

/// What ran of a file.
#[derive(Debug)]
pub struct FileCode {
    key: FileKey,
    file: Arc<CodeFile>,
    gathered: BTreeMap<u64, InsnCount>,
    insns: Vec<InsnCount>,
    total: u64,
}

impl FileCode {
    pub(super) const fn new(key: FileKey, file: Arc<CodeFile>) -> Self {
        Self {
            key,
            file,
            gathered: BTreeMap::new(),
            insns: Vec::new(),
            total: 0,
        }
    }

    pub(super) fn add_run(&mut self, mut offset: u64, shape: &Shape, times: u64) {
        for (index, len) in shape.lens.iter().enumerate() {
            let class = shape.class.filter(|_| index + 1 == shape.lens.len());
            let insn = self
                .gathered
                .entry(offset)
                .or_insert_with(|| InsnCount::never(offset, *len, shape.mode, Class::Other));
            // A run may have been interrupted before a branch.
            insn.class = insn.class.or(class);
            insn.times += times;
            self.total += times;
            offset = insn.end();
        }
    }

    pub(super) fn add_outcomes(&mut self, offset: u64, outcomes: Outcomes) {
        if let Some(insn) = self.gathered.get_mut(&offset) {
            insn.taken += outcomes.taken;
            insn.unknown += outcomes.unknown;
        }
    }

    pub(super) fn finish(&mut self) {
        self.insns = std::mem::take(&mut self.gathered).into_values().collect();
    }

    /// What tells the file from others.
    #[must_use]
    pub const fn key(&self) -> &FileKey {
        &self.key
    }

    /// The file; of several recordings, that of the first.
    #[must_use]
    pub const fn file(&self) -> &Arc<CodeFile> {
        &self.file
    }

    /// The name that the file had when it was mapped.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The instructions that ran, by offset.
    #[must_use]
    pub fn insns(&self) -> &[InsnCount] {
        &self.insns
    }

    /// Where in the file's own terms they stand, in order.
    #[must_use]
    pub fn addresses(&self) -> Vec<u64> {
        let at = |insn: &InsnCount| self.file.address_of_offset(insn.offset);
        let mut addresses: Vec<u64> = self.insns.iter().filter_map(at).collect();
        addresses.sort_unstable();
        addresses
    }

    /// How many instructions ran, each as often as it did.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The instruction at an offset, if it ran.
    #[must_use]
    pub fn at(&self, offset: u64) -> Option<&InsnCount> {
        let index = self.insns.binary_search_by_key(&offset, |insn| insn.offset);
        self.insns.get(index.ok()?)
    }

    /// The instructions from one offset up to another.
    #[must_use]
    pub fn between(&self, start: u64, end: u64) -> &[InsnCount] {
        let at = |offset| self.insns.partition_point(|insn| insn.offset < offset);
        self.insns.get(at(start)..at(end)).unwrap_or_default()
    }

    /// An instruction as the file's bytes have it, as if the file's byte 0 stood at address 0.
    #[must_use]
    pub fn decode(&self, insn: &InsnCount) -> Option<Insn> {
        let mut bytes = [0; MAX_INSN_LEN];
        let len = self.file.read_at(insn.offset, &mut bytes);
        decode(bytes.get(..len)?, Ip(insn.offset), insn.mode).ok()
    }
}
