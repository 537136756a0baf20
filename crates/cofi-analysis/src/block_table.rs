//! How often each distinct block of a stream ran.
//!
//! Its instructions are looked at when the table is emptied, once for each distinct run.

use std::ops::Range;

use cofi_flow::{Executed, Path, PathNumber};
use cofi_insn::{Class, advance};
use cofi_packet::Ip;
use rustc_hash::FxHashMap;

use crate::block_index::BlockIndex;
use crate::stretch::Entry;

/// Which code a block is of: whoever uses the table numbers that.
pub(crate) type Era = u32;

/// What is known of a distinct block.
#[derive(Debug)]
struct Shape {
    era: Era,
    is_conditional: bool,
    /// Its runs.
    runs: Range<u32>,
}

/// Instructions that stand one behind the other.
#[derive(Clone, Copy, Debug)]
struct Run {
    ip: Ip,
    /// Where in `lens` the lengths of its instructions begin.
    first: usize,
    len: u32,
    class: Option<Class>,
    /// The address behind the instruction that ends it.
    end: Ip,
}

/// Takes the runs of a new block.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    list: Vec<Run>,
    lens: Vec<u8>,
}

impl Runs {
    /// The next run: the lengths of the instructions with which it begins, and the one of another class that ends it.
    pub(crate) fn push(&mut self, ip: Ip, plain: &[u8], last: Option<Executed>) {
        let first = self.lens.len();
        self.lens.extend_from_slice(plain);
        self.lens.extend(last.map(|last| last.len));
        self.list.push(Run {
            ip,
            first,
            len: (self.lens.len() - first) as u32,
            class: last.map(|last| last.class),
            end: last.map_or(ip, |last| advance(last.ip, last.len, last.mode)),
        });
    }
}

impl Runs {
    /// Those of a block.
    fn of(&self, shape: &Shape) -> &[Run] {
        let (start, end) = (shape.runs.start as usize, shape.runs.end as usize);
        self.list.get(start..end).unwrap_or_default()
    }

    /// The lengths of a run's instructions.
    fn lens(&self, run: &Run) -> &[u8] {
        let lens = self.lens.get(run.first..run.first + run.len as usize);
        lens.unwrap_or_default()
    }

    /// Where the last instruction of a block stands.
    fn branch(&self, shape: &Shape) -> Option<Ip> {
        let last = self.of(shape).last()?;
        let (_, before) = self.lens(last).split_last()?;
        let before: u64 = before.iter().map(|len| u64::from(*len)).sum();
        // Code that wraps around the end of the address space is that of no branch that is looked for.
        Some(Ip(last.ip.0.wrapping_add(before)))
    }
}

/// A distinct run, and how often it ran.
#[derive(Debug)]
pub(crate) struct RunCount<'t> {
    pub(crate) era: Era,
    pub(crate) ip: Ip,
    /// The lengths of its instructions.
    pub(crate) lens: &'t [u8],
    /// The class of the last one, where it is another than [`Class::Other`].
    pub(crate) class: Option<Class>,
    pub(crate) times: u64,
}

/// A conditional branch whose outcome is not known yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    pub(crate) era: Era,
    /// Where it stands.
    pub(crate) ip: Ip,
    /// Where control goes on if it is not taken.
    pub(crate) not_taken: Ip,
}

/// How often which outcome of a conditional branch was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcomes {
    /// It did not go on with the next instruction.
    pub(crate) taken: u64,
    /// Nobody knows.
    pub(crate) unknown: u64,
}

/// The blocks that ran, and how often each did.
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    index: BlockIndex,
    shapes: Vec<Shape>,
    runs: Runs,
    /// A conditional branch that ran last, whose block is not in the table any more.
    carried: Option<Carried>,
    /// That such branches were taken.
    taken: Vec<(Era, Ip)>,
    /// Conditional branches of which nobody knows where they led.
    unknown: FxHashMap<(Era, Ip), u64>,
    /// Where control went first, since a stretch began.
    entry: Option<Entry>,
}

impl BlockTable {
    /// Beyond so many entries the table is to be emptied.
    const FULL: usize = 1 << 18;

    /// Begins with a stretch of a stream.
    pub(crate) fn begin(&mut self) {
        *self = Self::default();
    }

    /// Control came to `ip`, where a block begins. To be called behind what is not counted by a block; every time does no harm.
    pub(crate) fn enter(&mut self, ip: Ip) {
        self.entry.get_or_insert(Entry::To(ip));
    }

    /// Of the stretch, when the table has been emptied: where control went first, and the conditional branch at the end.
    pub(crate) const fn joints(&self) -> (Option<Entry>, Option<Carried>) {
        (self.entry, self.carried)
    }

    /// Whether the table holds so much that it is to be emptied.
    pub(crate) fn is_full(&self) -> bool {
        self.index.len() >= Self::FULL || self.index.known_of_paths() >= Self::FULL * 8
    }

    /// Whether nothing was counted since the table was emptied.
    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Counts a block. Control came to it from the end of the last one, if that has not been forgotten. `push` gives its runs if it
    /// is new.
    #[inline(always)]
    pub(crate) fn count(
        &mut self,
        era: Era,
        ip: Ip,
        len: u32,
        push: impl FnOnce(&mut Runs),
    ) -> usize {
        let Self {
            index,
            shapes,
            runs,
            carried,
            taken,
            ..
        } = self;
        index.number(era, ip, len, || {
            // Where the table was emptied, the next block is new.
            if let Some(branch) = carried.take()
                && ip != branch.not_taken
            {
                taken.push((branch.era, branch.ip));
            }
            let first = runs.list.len();
            push(runs);
            let last = runs.list.get(first..).and_then(<[Run]>::last);
            shapes.push(Shape {
                era,
                is_conditional: last.is_some_and(|last| last.class == Some(Class::Conditional)),
                runs: first as u32..runs.list.len() as u32,
            });
            last.map_or(ip, |last| last.end)
        })
    }

    /// Counts the blocks of a path: each as [`count`](Self::count) does. If it was counted before, a number is returned, from 0 on, which it has until
    /// the table is emptied.
    #[inline(always)]
    pub(crate) fn count_path(&mut self, era: Era, path: &Path<'_>) -> Option<usize> {
        let number = path.number();
        let known = number.and_then(|number| self.index.known_path(era, number));
        if known.is_none() {
            self.count_new(era, path, number);
        }
        known
    }

    #[inline(never)]
    fn count_new(&mut self, era: Era, path: &Path<'_>, number: Option<PathNumber>) {
        self.index.begin_path();
        path.for_each(|block| {
            let counted = self.count(era, block.ip(), block.len() as u32, |runs| {
                for run in block.runs() {
                    runs.push(run.ip(), run.plain(), run.last());
                }
            });
            if number.is_some() {
                self.index.note_block(counted);
            }
        });
        if let Some(number) = number {
            self.index.add_path(number);
        }
    }

    /// The conditional branch that ends the last block, if it ran last.
    fn last_branch(&self) -> Option<Carried> {
        let (last, not_taken) = self.index.last()?;
        let shape = self.shapes.get(last).filter(|shape| shape.is_conditional)?;
        Some(Carried {
            era: shape.era,
            ip: self.runs.branch(shape)?,
            not_taken,
        })
    }

    /// Empties the table. `run` is called for each distinct run, in the order in which they came first; `branch` with the outcomes of conditional
    /// branches, each of which may come several times.
    pub(crate) fn empty(
        &mut self,
        mut run: impl FnMut(&RunCount<'_>),
        mut branch: impl FnMut(Era, Ip, Outcomes),
    ) {
        self.index.settle();
        if !self.index.is_empty() {
            self.carried = self.last_branch();
        }
        let runs = std::mem::take(&mut self.runs);
        let mut numbers: FxHashMap<(Era, Ip, u32), usize> = FxHashMap::default();
        let mut distinct: Vec<(Era, &Run, u64)> = Vec::new();
        for (number, shape) in self.shapes.drain(..).enumerate() {
            let times = self.index.times(number);
            if shape.is_conditional
                && let Some(ip) = runs.branch(&shape)
            {
                let taken = self.index.elsewhere(number);
                branch(shape.era, ip, Outcomes { taken, unknown: 0 });
            }
            for run in runs.of(&shape) {
                let new = distinct.len();
                let key = (shape.era, run.ip, run.len);
                match distinct.get_mut(*numbers.entry(key).or_insert(new)) {
                    Some((.., sum)) => *sum += times,
                    None => distinct.push((shape.era, run, times)),
                }
            }
        }
        self.index.clear();
        for (era, ip) in self.taken.drain(..) {
            let (taken, unknown) = (1, 0);
            branch(era, ip, Outcomes { taken, unknown });
        }
        for ((era, ip), unknown) in self.unknown.drain() {
            branch(era, ip, Outcomes { taken: 0, unknown });
        }
        for (era, distinct, times) in distinct {
            run(&RunCount {
                era,
                ip: distinct.ip,
                lens: runs.lens(distinct),
                class: distinct.class,
                times,
            });
        }
    }

    /// Control went on at `ip`, where no block begins.
    pub(crate) fn went_to(&mut self, ip: Ip) {
        self.entry.get_or_insert(Entry::To(ip));
        if let Some(branch) = self.carried.take()
            && ip != branch.not_taken
        {
            self.taken.push((branch.era, branch.ip));
        }
        self.index.went_to(ip);
    }

    /// The branch at the end of the last block was taken, out of what is traced.
    pub(crate) fn left(&mut self) {
        self.entry.get_or_insert(Entry::Out);
        let branch = self.carried.take();
        self.taken
            .extend(branch.map(|branch| (branch.era, branch.ip)));
        self.index.left();
    }

    /// Where control went from the end of the last block is not known.
    pub(crate) fn forget(&mut self) {
        self.entry.get_or_insert(Entry::Unknown);
        if let Some(branch) = self.carried.take().or_else(|| self.last_branch()) {
            *self.unknown.entry((branch.era, branch.ip)).or_default() += 1;
        }
        self.index.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofi_packet::ExecMode;

    fn insn(ip: u64, len: u8, class: Class) -> Executed {
        Executed {
            ip: Ip(ip),
            len,
            class,
            mode: ExecMode::Bits64,
            digest: 0,
        }
    }

    /// The counts of a loop of one block whose branch is taken but for the last time, where nothing is known if `is_lost`: instructions, runs, and
    /// the outcomes of the branch.
    fn counts(rounds: u64, emptied_every: u64, is_lost: bool) -> (u64, u64, Outcomes) {
        let mut table = BlockTable::default();
        let (mut instructions, mut runs, mut all) = (0, 0, Outcomes::default());
        let mut empty = |table: &mut BlockTable| {
            table.empty(
                |run| {
                    instructions += run.times * run.lens.len() as u64;
                    runs += run.times;
                },
                |_, ip, outcomes| {
                    assert_eq!(ip, Ip(0x1011));
                    all.taken += outcomes.taken;
                    all.unknown += outcomes.unknown;
                },
            );
        };
        for round in 0..rounds {
            table.count(0, Ip(0x1000), 4, |runs| {
                let jump = insn(0x1001, 2, Class::DirectJump);
                runs.push(Ip(0x1000), &[1], Some(jump));
                let branch = insn(0x1011, 2, Class::Conditional);
                runs.push(Ip(0x1010), &[1], Some(branch));
            });
            if round % emptied_every == 0 {
                empty(&mut table);
            }
        }
        match is_lost {
            true => table.forget(),
            false => table.went_to(Ip(0x1013)),
        }
        empty(&mut table);
        assert!(table.is_empty());
        (instructions, runs, all)
    }

    #[test]
    fn emptying_the_table_loses_no_branch() {
        for every in [1, 2, 7, 1000] {
            for is_lost in [false, true] {
                let (taken, unknown) = (19, u64::from(is_lost));
                let wanted = (80, 40, Outcomes { taken, unknown });
                assert_eq!(counts(20, every, is_lost), wanted, "emptied every {every}");
            }
        }
    }
}
