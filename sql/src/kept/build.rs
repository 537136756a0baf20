//! What is to be kept of a recording, gathered by decoding all of it.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use cofi_analysis::{
    Call, CallEnd, CallMoment, CallNames, CallStates, CallTracer, CallVisitor, CheckOptions,
    RanBlock, RanPath, survey,
};
use cofi_flow::Event;
use cofi_insn::Class;
use cofi_packet::StreamOffset;
use cofi_session::{Session, Stream, Task};
use rustc_hash::FxHashMap;

use super::ranges::Packed;
use super::{Chunk, Entry, Kept, KeptStream, Named};
use crate::functions::{PartTimes, part_size};

/// For so many bytes of packets one range of addresses is kept, if there are as many: so what is kept is small beside the packets.
const BYTES_A_RANGE: usize = 64;
/// So many ranges of a chunk are always kept if there are as many, and no more than so many.
const FEWEST: usize = 64;
const MOST: usize = 4096;

/// So many blocks of paths are remembered. Paths that come when there are more are told block by block.
const MOST_IN_PATHS: usize = 1 << 22;

impl Kept {
    /// Decodes all streams, by so many threads.
    pub(crate) fn build(session: &Session<'_>, threads: NonZeroUsize) -> Self {
        let streams = session.streams().iter();
        Self {
            streams: streams
                .map(|stream| KeptStream::build(session, stream, threads))
                .collect(),
            sum: 0,
        }
    }
}

impl KeptStream {
    fn build(session: &Session<'_>, stream: &Stream<'_>, threads: NonZeroUsize) -> Self {
        let mut options = CheckOptions::default();
        options.threads = threads;
        // What a processor's stream is about follows from what stands before: it is one chunk.
        options.segment = match stream.key().cpu() {
            None => part_size(stream),
            Some(_) => NonZeroUsize::MAX,
        };
        let mut tracer = CallTracer::new(session, stream);
        let mut gather = Gather::default();
        let mut states = CallStates::default();
        let mut chunks = Vec::new();
        let never = AtomicBool::new(false);
        survey(session, &[stream], options, &never, &|_| {}, |_, found| {
            if !chunks.is_empty() {
                tracer.go_on();
            }
            gather.number += 1;
            gather.has_run = chunks.is_empty();
            let mut chunk = Chunk {
                start: found.range.start.0,
                code: Packed::default(),
                places: Packed::default(),
                left: Packed::default(),
                state: None,
                clock: None,
                era: gather.era_number(),
                is_sure: false,
            };
            if let Some(state) = states.push(&tracer) {
                chunk.state = Some(state as u32);
                chunk.clock = tracer.saved_clock().map(Box::new);
            }
            let mut flow = session.decode_within(stream, found.range.clone());
            while tracer.follow(&mut flow, &mut gather) {}
            let end = found.range.end.0.min(stream.len() as u64);
            if found.range.end.0 == u64::MAX {
                tracer.finish(&mut gather);
            }
            gather.end_chunk(&mut chunk, end.saturating_sub(found.range.start.0) as usize);
            chunks.push(chunk);
        });
        Self {
            chunks,
            places: gather.names.list,
            functions: gather.functions.list,
            entries: gather.entries,
            dictionary: tracer.dictionary(),
            states,
            times: PartTimes::read(session, stream, threads),
            has_errors: tracer.has_errors(),
            deeper: gather.deeper,
        }
    }
}

/// Names, each once.
#[derive(Default)]
struct Interned {
    list: Vec<Named>,
    numbers: FxHashMap<Named, u32>,
}

impl Interned {
    fn number(&mut self, name: Named) -> u32 {
        let list = &mut self.list;
        *self.numbers.entry(name).or_insert_with_key(|name| {
            list.push(name.clone());
            list.len() as u32 - 1
        })
    }
}

/// A distinct block.
#[derive(Debug)]
struct Block {
    /// The chunk in which it was counted last.
    seen: Cell<u32>,
    ranges: Box<[RangeInclusive<u64>]>,
    /// The functions of its instructions.
    places: Box<[u32]>,
    /// A block of the flow ends with it: only the trace tells what comes next.
    is_end: bool,
}

/// Blocks that follow each other often.
#[derive(Debug)]
struct Path {
    seen: Cell<u32>,
    blocks: Box<[Rc<Block>]>,
    is_end: bool,
}

#[derive(Debug)]
enum Ran {
    Block(Rc<Block>),
    Path(Rc<Path>),
}

/// Gathers what ran in a chunk.
#[derive(Default)]
struct Gather {
    /// The number of the chunk, from 1 on.
    number: u32,
    ranges: Vec<RangeInclusive<u64>>,
    places: Vec<u32>,
    is_sure: bool,
    /// What ran since a block began for certain.
    open: Vec<Ran>,
    /// Something ran in the chunk.
    has_run: bool,
    blocks: Vec<Option<Rc<Block>>>,
    generation: u64,
    paths: Vec<Option<Rc<Path>>>,
    path_generation: u64,
    in_paths: usize,
    /// The blocks since a path ended.
    path: Vec<Rc<Block>>,
    names: Interned,
    /// Of each entry, the chunk in which a call of it was left last.
    left_in: Vec<u32>,
    left: Vec<u32>,
    entries: Vec<Entry>,
    entry_numbers: FxHashMap<(usize, u64), u32>,
    functions: Interned,
    deeper: Vec<u32>,
    /// The depth of the outermost call that was open before the era.
    lowest: i32,
}

impl Gather {
    fn era_number(&self) -> u32 {
        self.deeper.len() as u32
    }

    fn count(ranges: &mut Vec<RangeInclusive<u64>>, places: &mut Vec<u32>, block: &Block) {
        ranges.extend(block.ranges.iter().cloned());
        places.extend_from_slice(&block.places);
        // A chunk of much code is made shorter now and then.
        if places.len() >= 1 << 20 {
            places.sort_unstable();
            places.dedup();
        }
    }

    fn note(&mut self, block: &Block) {
        if block.seen.replace(self.number) != self.number {
            Self::count(&mut self.ranges, &mut self.places, block);
        }
    }

    /// Only the trace told what comes next, or something happened: a block begins.
    fn begin_block(&mut self) {
        self.open.clear();
        self.is_sure = true;
    }

    /// What is kept of the chunk of so many bytes. What it ended with may be told by the first packets of the next.
    fn end_chunk(&mut self, chunk: &mut Chunk, bytes: usize) {
        let ranges = std::mem::take(&mut self.ranges);
        let most = (bytes / BYTES_A_RANGE).clamp(FEWEST, MOST);
        chunk.code = Packed::of_ranges(ranges, most);
        let sorted = |numbers: &mut Vec<u32>| {
            let mut numbers = std::mem::take(numbers);
            numbers.sort_unstable();
            numbers.dedup();
            Packed::of(numbers.into_iter().map(u64::from))
        };
        chunk.places = sorted(&mut self.places);
        chunk.left = sorted(&mut self.left);
        chunk.is_sure = std::mem::take(&mut self.is_sure);
        for ran in &self.open {
            match ran {
                Ran::Block(block) => Self::count(&mut self.ranges, &mut self.places, block),
                Ran::Path(path) => {
                    for block in &path.blocks {
                        Self::count(&mut self.ranges, &mut self.places, block);
                    }
                }
            }
        }
    }
}

impl Gather {
    /// A block that was not seen before.
    fn block(&mut self, block: &RanBlock<'_>) -> Rc<Block> {
        let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
        let mut places = Vec::new();
        let view = block.view();
        let mut last: Option<Named> = None;
        block.for_each(|ip, len, _| {
            let end = ip.0.saturating_add(u64::from(len.max(1)) - 1);
            match ranges.last_mut() {
                Some(range) if range.end().checked_add(1) == Some(ip.0) => {
                    *range = *range.start()..=end;
                }
                _ => ranges.push(ip.0..=end),
            }
            let place = view.place(ip);
            let function = place.as_ref().and_then(|place| {
                let symbol = place.symbol_or_stub();
                symbol.map(|symbol| symbol.demangled())
            });
            let file = place.map(|place| place.owner().to_string_lossy().into_owned());
            let name = (function, file);
            if last.as_ref() != Some(&name) {
                places.push(self.names.number(name.clone()));
                last = Some(name);
            }
        });
        Rc::new(Block {
            seen: Cell::new(0),
            ranges: ranges.into(),
            places: places.into(),
            is_end: block.last_class().is_some_and(Class::needs_packet),
        })
    }
}

impl CallVisitor for Gather {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        if call.number < 0 {
            self.lowest = self.lowest.min(call.depth);
        }
    }

    fn leave(&mut self, call: &Call, _: &CallEnd, names: &CallNames) {
        let key = (call.function.index(), call.ip.0);
        let number = match self.entry_numbers.get(&key) {
            Some(number) => *number,
            None => {
                let function = names.name(call.function).map(str::to_owned);
                let file = names.file(call.function);
                let file = file.map(|file| file.to_string_lossy().into_owned());
                let entry = names.entry(call).map(|ip| ip.0);
                self.entries.push(Entry {
                    function: self.functions.number((function, file)),
                    ip: call.ip.0,
                    address: names.address(call.function).or(entry),
                });
                let number = self.left_in.len() as u32;
                self.left_in.push(0);
                self.entry_numbers.insert(key, number);
                number
            }
        };
        if let Some(seen) = self.left_in.get_mut(number as usize)
            && *seen != self.number
        {
            *seen = self.number;
            self.left.push(number);
        }
    }

    fn all_left(&mut self, _: Task, _: &CallNames) {
        let deeper = std::mem::take(&mut self.lowest).min(0);
        self.deeper.push(deeper.unsigned_abs());
    }

    fn wants_blocks(&self) -> bool {
        true
    }

    fn ran(&mut self, ran: &RanBlock<'_>) {
        if ran.generation() != self.generation {
            self.generation = ran.generation();
            self.blocks.clear();
        }
        let number = ran.number();
        let known = self.blocks.get(number).cloned().flatten();
        let block = match known {
            Some(block) => block,
            None => {
                let block = self.block(ran);
                if self.blocks.len() <= number {
                    self.blocks.resize(number + 1, None);
                }
                if let Some(slot) = self.blocks.get_mut(number) {
                    *slot = Some(block.clone());
                }
                block
            }
        };
        self.has_run = true;
        self.note(&block);
        if block.is_end {
            self.begin_block();
        } else {
            self.open.push(Ran::Block(block.clone()));
        }
        self.path.push(block);
    }

    fn path_ended(&mut self, number: Option<usize>, generation: u64) {
        let blocks = std::mem::take(&mut self.path);
        if generation != self.path_generation {
            self.path_generation = generation;
            self.paths.clear();
            self.in_paths = 0;
        }
        let Some(number) = number else { return };
        if self.in_paths + blocks.len() > MOST_IN_PATHS {
            return;
        }
        self.in_paths += blocks.len();
        if self.paths.len() <= number {
            self.paths.resize(number + 1, None);
        }
        if let Some(slot) = self.paths.get_mut(number) {
            *slot = Some(Rc::new(Path {
                seen: Cell::new(0),
                is_end: blocks.iter().any(|block| block.is_end),
                blocks: blocks.into(),
            }));
        }
    }

    fn ran_path(&mut self, ran: &RanPath) -> bool {
        if ran.generation() != self.path_generation {
            return false;
        }
        let Some(path) = self.paths.get(ran.number()).cloned().flatten() else {
            return false;
        };
        if path.seen.replace(self.number) != self.number {
            for block in &path.blocks {
                self.note(block);
            }
        }
        if path.is_end {
            self.begin_block();
        }
        self.has_run = true;
        // What stands before the last end in it is told too often, which excludes nothing.
        let is_last = |ran: &Ran| matches!(ran, Ran::Path(last) if Rc::ptr_eq(last, &path));
        if !self.open.last().is_some_and(is_last) {
            self.open.push(Ran::Path(path));
        }
        true
    }

    fn event(&mut self, _: &Event, _: &CallMoment, _: StreamOffset, _: Option<Class>) {
        // What a PSB+ tells is no event to whoever has read what stands before.
        if self.has_run {
            self.begin_block();
        }
    }
}
