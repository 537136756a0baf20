//! What the observer was told last of a process's code.

use crate::{Mapping, MappingKind};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const PAGE: u64 = 4096;
/// PROT_EXEC. QEMU maps a program's code for itself to read, not to run.
const PROT_EXEC: u32 = 4;

/// A range that the observer knows to be mapped from a file.
#[derive(Clone, Debug)]
struct FileRange {
    mapping: Mapping,
    file: Option<Arc<File>>,
}

impl FileRange {
    /// The part of it from `start` to `end`, which may be none.
    fn part(&self, start: u64, end: u64) -> Option<Self> {
        let start = start.max(self.mapping.start);
        let end = end.min(self.mapping.end);
        (start < end).then(|| Self {
            mapping: part(&self.mapping, start, end),
            file: self.file.clone(),
        })
    }
}

/// The code of one process, as its readers see it.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// By their first addresses.
    files: BTreeMap<u64, FileRange>,
    /// Bytes that were told as they ran, by page. Where there are some, a file's do not count.
    memory: BTreeMap<u64, Box<[Option<u8>]>>,
}

impl Told {
    /// Whether nothing need be told for this to be mapped at an address.
    pub(super) fn is_mapped(&self, address: u64, mapping: Option<&Mapping>) -> bool {
        let told = self.file_at(address).map(|range| origin(&range.mapping));
        match mapping {
            Some(mapping) if mapping.kind == MappingKind::File => told == Some(origin(mapping)),
            Some(_) => told.is_none(),
            None => true,
        }
    }

    /// This is mapped at an address, where something else was; what is to be told of it.
    pub(super) fn map(&mut self, address: u64, mapping: &Mapping) -> Option<Mapping> {
        let (mut start, mut end) = (mapping.start, mapping.end);
        if mapping.kind == MappingKind::File {
            // What is known around it of the same mapping stays: it is cut in pieces when rights in it change.
            for old in self.files.values().map(|range| &range.mapping) {
                match origin(old) == origin(mapping) {
                    true if old.end <= address => start = start.max(old.end),
                    true if old.start > address => end = end.min(old.start),
                    _ => {}
                }
            }
        }
        let overlapped: Vec<u64> = self
            .files
            .values()
            .map(|range| &range.mapping)
            .filter(|old| old.start < end && start < old.end)
            .map(|old| old.start)
            .collect();
        for old in overlapped {
            let Some(old) = self.files.remove(&old) else {
                continue;
            };
            for part in [old.part(0, start), old.part(end, u64::MAX)] {
                self.files
                    .extend(part.map(|part| (part.mapping.start, part)));
            }
        }
        if mapping.kind != MappingKind::File {
            // Its bytes are told as they run.
            return None;
        }
        self.memory
            .retain(|page, _| (page + 1) * PAGE <= start || end <= page * PAGE);
        let mut mapping = part(mapping, start, end);
        mapping.prot |= PROT_EXEC;
        let range = FileRange {
            mapping: mapping.clone(),
            file: File::open(&mapping.path).ok().map(Arc::new),
        };
        self.files.insert(start, range);
        Some(mapping)
    }

    /// Whether these bytes are known to stand at an address.
    pub(super) fn has(&self, start: u64, code: &[u8]) -> bool {
        let mut on_file = None;
        (start..).zip(code).enumerate().all(|(i, (address, byte))| {
            let page = self.memory.get(&(address / PAGE));
            let told = page.and_then(|bytes| bytes[(address % PAGE) as usize]);
            let told = told.or_else(|| {
                let on_file = on_file.get_or_insert_with(|| self.on_file(start, code.len()));
                on_file.as_ref().map(|bytes| bytes[i])
            });
            told == Some(*byte)
        })
    }

    /// From now on they are.
    pub(super) fn set(&mut self, start: u64, code: &[u8]) {
        for (address, byte) in (start..).zip(code) {
            let page = self
                .memory
                .entry(address / PAGE)
                .or_insert_with(|| vec![None; PAGE as usize].into());
            page[(address % PAGE) as usize] = Some(*byte);
        }
    }

    fn file_at(&self, address: u64) -> Option<&FileRange> {
        let (_, range) = self.files.range(..=address).next_back()?;
        (address < range.mapping.end).then_some(range)
    }

    /// What a file has at these addresses, if one is mapped there.
    ///
    /// That the range can be written counts for nothing: QEMU takes that right away itself, from pages with code that it has
    /// translated. So the bytes are compared.
    fn on_file(&self, start: u64, len: usize) -> Option<Vec<u8>> {
        let range = self.file_at(start)?;
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

/// A part of a mapping.
fn part(mapping: &Mapping, start: u64, end: u64) -> Mapping {
    Mapping {
        start,
        end,
        offset: mapping.offset + (start - mapping.start),
        ..mapping.clone()
    }
}
