//! Blocks with how often each ran.

use std::sync::Arc;

use cofi_flow::{Executed, Part};
use cofi_image::ImageView;
use cofi_insn::Class;
use cofi_packet::Ip;
use rustc_hash::FxHashMap;

use super::{CPU, RECORDING, TID, head};
use crate::columns::{Column, address, number, text};
use crate::functions::Places;
use crate::limits::Limits;
use crate::recording::Recording;
use crate::table::{Outlet, Table, Unit, Units};

/// A row for each distinct block of each thread.
#[derive(Debug)]
pub(super) struct BlockCounts;

const COLUMNS: &[Column] = &[
    RECORDING,
    TID,
    CPU,
    text(
        "function",
        "the function that holds its first instruction, demangled; NULL if nothing names it",
    ),
    text(
        "file",
        "the file that holds it; NULL where nothing is mapped",
    ),
    address("ip", "the address of its first instruction"),
    address("last_ip", "the address of its last instruction"),
    text(
        "class",
        "what its last instruction does to the flow: `conditional`, `indirect_call`, `return`, …",
    ),
    number("count", "how often it ran"),
    number(
        "instructions",
        "instructions of it that ran, those of all times together",
    ),
    number(
        "taken",
        "how often the conditional branch at its end was taken; NULL if it ends with none",
    ),
    number(
        "not_taken",
        "how often it was not (or led to the instruction behind it)",
    ),
    number(
        "unknown",
        "how often it ran where the trace does not tell what it did",
    ),
];

impl Table for BlockCounts {
    fn name(&self) -> &'static str {
        "block_counts"
    }

    fn about(&self) -> &'static str {
        "One row for each distinct block of each thread and function, with how often it ran: the function `blocks` in sums. Streams are decoded for it; memory grows with the code that ran."
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn units(&self, recording: &Arc<Recording>, limits: &Limits) -> Units {
        Units::streams(recording, limits)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let Some(stream) = unit.stream() else { return };
        let mut flow = unit.recording.session().decode(stream);
        let mut sums = Sums::default();
        let mut tid = flow.task().tid;
        loop {
            if sums.open.is_none() {
                sums.look_at(flow.view());
            }
            let is_item = match flow.next_part() {
                Some(Part::Run(run)) => {
                    if let Some(last) = run.last().or_else(|| run.iter().last()) {
                        sums.extend(run.ip(), last, run.len() as u64, tid);
                    }
                    false
                }
                Some(Part::Event(_) | Part::Error(_)) => true,
                None => break,
            };
            if is_item {
                sums.close(tid);
                sums.branch = None;
                tid = flow.task().tid;
            }
            if out.is_closed() {
                return;
            }
        }
        sums.close(tid);
        unit.recording.note_gaps(flow.gaps());
        let key = stream.key();
        // In the order of addresses: what is alike is together, and a Parquet file takes half as much.
        let mut blocks: Vec<_> = sums.blocks.iter().collect();
        blocks.sort_unstable_by_key(|(block, number)| (block.tid, block.ip, block.last, **number));
        for (block, number) in blocks {
            let sum = sums.counts.get(*number).copied().unwrap_or_default();
            let place = sums.names.get(block.place as usize);
            let is_conditional = block.class == Class::Conditional;
            let outcome = |count: u64| is_conditional.then_some(count);
            out.put(|row| {
                head(row, unit, key, block.tid)
                    .text(place.and_then(|(function, _)| function.as_deref()))
                    .text(place.and_then(|(_, file)| file.as_deref()))
                    .address(block.ip.0)
                    .address(block.last.0)
                    .text(block.class.name())
                    .number(sum.count)
                    .number(sum.instructions)
                    .number(outcome(sum.taken))
                    .number(outcome(sum.not_taken))
                    .number(outcome(sum.count - sum.taken - sum.not_taken));
            });
        }
    }
}

/// What tells blocks apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Block {
    tid: u32,
    place: u32,
    ip: Ip,
    last: Ip,
    class: Class,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    instructions: u64,
    taken: u64,
    not_taken: u64,
}

/// A function and its file.
type Name = (Option<String>, Option<String>);

/// What ran often is found again without being looked up: of so many blocks, by their addresses.
const RECENT: usize = 1 << 12;

#[derive(Default)]
struct Sums<'s> {
    blocks: FxHashMap<Block, usize>,
    counts: Vec<Sum>,
    /// Of the thread that runs, in the code that is in place.
    recent: Vec<Option<(Block, usize)>>,
    /// The functions of blocks, each once.
    names: Vec<Name>,
    numbers: FxHashMap<Name, u32>,
    places: Places<'s>,
    /// What places are called, by their numbers.
    called: FxHashMap<u32, u32>,
    /// The block that is open: where it begins, its last instruction, how many instructions.
    open: Option<(Ip, Executed, u64)>,
    /// The block that a conditional branch ended just now, and that branch.
    branch: Option<(usize, Executed)>,
}

impl<'s> Sums<'s> {
    fn look_at(&mut self, view: &ImageView<'s>) {
        if self.places.look_at(view) {
            self.called.clear();
            self.recent.clear();
        }
    }

    /// Adds instructions to the open block.
    fn extend(&mut self, ip: Ip, last: Executed, count: u64, tid: u32) {
        if let Some((number, branch)) = self.branch.take()
            && let Some(sum) = self.counts.get_mut(number)
        {
            let behind = branch.ip.0.wrapping_add(branch.len.into());
            match ip.0 == behind {
                true => sum.not_taken += 1,
                false => sum.taken += 1,
            }
        }
        match &mut self.open {
            Some((_, open, sum)) => {
                *open = last;
                *sum += count;
            }
            None => self.open = Some((ip, last, count)),
        }
        if last.class.needs_packet() {
            self.close(tid);
        }
    }

    fn place(&mut self, ip: Ip) -> u32 {
        let Self {
            places,
            names,
            numbers,
            called,
            ..
        } = self;
        let number = places.of(ip);
        if let Some(name) = called.get(&number) {
            return *name;
        }
        let name = places.get(number);
        let name = name.map(|place| (place.function.clone(), place.file.clone()));
        let name = name.unwrap_or_default();
        let name = *numbers.entry(name).or_insert_with_key(|name| {
            names.push(name.clone());
            names.len() as u32 - 1
        });
        called.insert(number, name);
        name
    }

    /// The number of a block of a thread that began in the code that is in place.
    fn number(&mut self, ip: Ip, last: &Executed, tid: u32) -> usize {
        if self.recent.is_empty() {
            self.recent.resize(RECENT, None);
        }
        let slot = (ip.0 ^ ip.0 >> 12 ^ last.ip.0 << 4) as usize % RECENT;
        if let Some(Some((block, number))) = self.recent.get(slot)
            && (block.ip, block.last, block.class, block.tid) == (ip, last.ip, last.class, tid)
        {
            return *number;
        }
        let block = Block {
            tid,
            place: self.place(ip),
            ip,
            last: last.ip,
            class: last.class,
        };
        let counts = &mut self.counts;
        let number = *self.blocks.entry(block).or_insert_with(|| {
            counts.push(Sum::default());
            counts.len() - 1
        });
        if let Some(slot) = self.recent.get_mut(slot) {
            *slot = Some((block, number));
        }
        number
    }

    /// Ends the block that is open.
    fn close(&mut self, tid: u32) {
        let Some((ip, last, count)) = self.open.take() else {
            return;
        };
        let number = self.number(ip, &last, tid);
        if let Some(sum) = self.counts.get_mut(number) {
            sum.count += 1;
            sum.instructions += count;
        }
        self.branch = (last.class == Class::Conditional).then_some((number, last));
    }
}
