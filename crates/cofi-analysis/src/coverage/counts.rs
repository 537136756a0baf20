//! Counts of runs of instructions by where they stand in files.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cofi_image::{CodeFile, Place};
use cofi_insn::{Class, advance};
use cofi_packet::{ExecMode, Ip};
use cofi_session::compact;
use rustc_hash::FxHashMap;

use super::file::{FileCode, FileKey};
use crate::block_table::{Era, Outcomes, RunCount};

/// A run of instructions of one file.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// The lengths of its instructions.
    pub(super) lens: Arc<[u8]>,
    /// The class of the last one, where it is another than [`Class::Other`].
    pub(super) class: Option<Class>,
    pub(super) mode: ExecMode,
}

/// Where a run begins: the number of its file and the offset there. And how many instructions it has.
type RunKey = (u32, u64, u32);

/// How often which instructions ran, by file and offset.
///
/// What it takes of memory depends on how much code ran, not on how often.
#[derive(Debug, Default)]
pub struct CodeCounts {
    files: Vec<Arc<CodeFile>>,
    /// By where a file is in memory, where it is kept.
    numbers: FxHashMap<usize, u32>,
    pub(super) runs: FxHashMap<RunKey, (Shape, u64)>,
    pub(super) outcomes: FxHashMap<(u32, u64), Outcomes>,
}

impl CodeCounts {
    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    fn file(&mut self, file: &Arc<CodeFile>) -> u32 {
        let next = self.files.len() as u32;
        let number = *self.numbers.entry(Arc::as_ptr(file).addr()).or_insert(next);
        if number == next {
            self.files.push(file.clone());
        }
        number
    }

    fn add_run(&mut self, file: u32, offset: u64, shape: &Shape, times: u64) {
        let key = (file, offset, shape.lens.len() as u32);
        match self.runs.get_mut(&key) {
            Some((_, sum)) => *sum += times,
            None => {
                self.runs.insert(key, (shape.clone(), times));
            }
        }
    }

    /// Adds outcomes of the conditional branch there.
    pub(crate) fn add_outcomes(&mut self, place: &Place, outcomes: Outcomes) {
        if outcomes == Outcomes::default() {
            return;
        }
        let key = (self.file(&place.file), place.offset);
        let sum = self.outcomes.entry(key).or_default();
        sum.taken += outcomes.taken;
        sum.unknown += outcomes.unknown;
    }

    /// Adds what was counted elsewhere, of this recording or another.
    pub fn merge(&mut self, other: Self) {
        if self.is_empty() && self.outcomes.is_empty() {
            *self = other;
            return;
        }
        let numbers: Vec<u32> = other.files.iter().map(|file| self.file(file)).collect();
        let number = |file: u32| numbers.get(file as usize).copied();
        for ((file, offset, _), (shape, times)) in other.runs {
            if let Some(file) = number(file) {
                self.add_run(file, offset, &shape, times);
            }
        }
        for ((file, offset), outcomes) in other.outcomes {
            if let Some(file) = number(file) {
                let sum = self.outcomes.entry((file, offset)).or_default();
                sum.taken += outcomes.taken;
                sum.unknown += outcomes.unknown;
            }
        }
    }

    /// The files of which something ran, with where in their own terms the instructions stand that did, in order. Files are the same as in
    /// [`into_files`](Self::into_files).
    #[must_use]
    pub fn addresses(&self) -> Vec<(FileKey, Arc<CodeFile>, Vec<u64>)> {
        let mut found: HashMap<FileKey, usize> = HashMap::new();
        let mut list: Vec<(FileKey, Arc<CodeFile>, Vec<u64>)> = Vec::new();
        let numbers = self.files.iter().map(|file| {
            let key = FileKey::of(file);
            *found.entry(key.clone()).or_insert_with(|| {
                list.push((key, file.clone(), Vec::new()));
                list.len() - 1
            })
        });
        let numbers: Vec<usize> = numbers.collect();
        for ((file, offset, _), (shape, _)) in &self.runs {
            let number = numbers.get(*file as usize);
            let Some((_, file, addresses)) = number.and_then(|number| list.get_mut(*number)) else {
                continue;
            };
            let mut offset = *offset;
            for len in shape.lens.iter() {
                addresses.extend(file.address_of_offset(offset));
                offset = offset.saturating_add(u64::from(*len));
            }
        }
        for (_, _, addresses) in &mut list {
            addresses.sort_unstable();
            addresses.dedup();
        }
        list
    }

    /// What ran of each file, the one with the most instructions first. Files of several recordings are the same if their build ids are; those
    /// without one, if their paths are.
    #[must_use]
    pub fn into_files(self) -> Vec<FileCode> {
        let mut found: HashMap<FileKey, usize> = HashMap::new();
        let mut list: Vec<FileCode> = Vec::new();
        let numbers = self.files.iter().map(|file| {
            let key = FileKey::of(file);
            *found.entry(key.clone()).or_insert_with(|| {
                list.push(FileCode::new(key, file.clone()));
                list.len() - 1
            })
        });
        let numbers: Vec<usize> = numbers.collect();
        let mut runs: Vec<_> = self.runs.into_iter().collect();
        compact::sort_by_key(&mut runs, |(key, _)| *key);
        for ((file, offset, _), (shape, times)) in &runs {
            let number = numbers.get(*file as usize);
            if let Some(file) = number.and_then(|number| list.get_mut(*number)) {
                file.add_run(*offset, shape, *times);
            }
        }
        for ((file, offset), outcomes) in &self.outcomes {
            let number = numbers.get(*file as usize);
            if let Some(file) = number.and_then(|number| list.get_mut(*number)) {
                file.add_outcomes(*offset, *outcomes);
            }
        }
        for file in &mut list {
            file.finish();
        }
        list.retain(|file| !file.insns().is_empty());
        compact::sort_by(&mut list, |a, b| {
            (b.total(), a.path()).cmp(&(a.total(), b.path()))
        });
        list
    }
}

/// Where runs lie in files. Each is looked up once.
#[derive(Debug, Default)]
pub(crate) struct CodeRuns {
    /// By where a run begins and how many instructions it has: where in `parts`.
    known: FxHashMap<(Era, Ip, u32), Range<usize>>,
    parts: Vec<Part>,
}

/// A part of a run that lies in one file.
#[derive(Debug)]
struct Part {
    file: Arc<CodeFile>,
    offset: u64,
    shape: Shape,
}

impl CodeRuns {
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Adds a run to `counts`. `place` tells where an address lies, as the code is that the run was of.
    pub(crate) fn count(
        &mut self,
        run: &RunCount<'_>,
        mode: ExecMode,
        place: impl Fn(Ip) -> Option<Place>,
        counts: &mut CodeCounts,
    ) {
        let Self { known, parts } = self;
        let key = (run.era, run.ip, run.lens.len() as u32);
        let range = known.entry(key).or_insert_with(|| {
            let first = parts.len();
            split(run, mode, place, parts);
            first..parts.len()
        });
        for part in parts.get(range.clone()).into_iter().flatten() {
            let file = counts.file(&part.file);
            counts.add_run(file, part.offset, &part.shape, run.times);
        }
    }
}

/// Cuts a run where it goes on in another file, or elsewhere in the same.
fn split(
    run: &RunCount<'_>,
    mode: ExecMode,
    place: impl Fn(Ip) -> Option<Place>,
    parts: &mut Vec<Part>,
) {
    let mut open: Option<(Place, u64, Vec<u8>)> = None;
    let mut close = |open: Option<(Place, u64, Vec<u8>)>, class| {
        if let Some((place, _, lens)) = open {
            parts.push(Part {
                file: place.file,
                offset: place.offset,
                shape: Shape {
                    lens: lens.into(),
                    class,
                    mode,
                },
            });
        }
    };
    let mut ip = run.ip;
    for len in run.lens {
        let here = place(ip);
        match (&mut open, &here) {
            (Some((before, next, lens)), Some(here))
                if Arc::ptr_eq(&before.file, &here.file) && *next == here.offset =>
            {
                *next += u64::from(*len);
                lens.push(*len);
            }
            _ => {
                let next = |place: Place| {
                    let next = place.offset.saturating_add(u64::from(*len));
                    (place, next, vec![*len])
                };
                close(std::mem::replace(&mut open, here.map(next)), None);
            }
        }
        ip = advance(ip, *len, mode);
    }
    close(open, run.class);
}
