//! The code of a function, with how often each of its instructions ran.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cofi_flow::Path;
use cofi_image::{ImageView, LineFinder, Place, SourceLine, Version};
use cofi_insn::Class;
use cofi_packet::{ExecMode, Ip, StreamOffset};
use cofi_session::{Session, Stream, ThreadFlow, compact};
use rustc_hash::FxHashMap;

use super::{Explorer, PlaceRange};
use crate::index::FunctionInfo;
use crate::row::FunctionNumber;

/// So many instructions are decoded to count.
const DECODED: u64 = 1 << 31;
/// A function has no more instructions than are listed.
const LISTED: usize = 1 << 16;

/// The code of a function.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Code {
    /// By their addresses; those that did not run between those that did are there, too.
    pub insns: Vec<CodeInsn>,
    /// All that ran in the ranges was counted.
    pub is_whole: bool,
    /// So many instructions were looked at.
    pub counted: u64,
}

/// An instruction, and how often it ran.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CodeInsn {
    /// Its address, in memory.
    pub ip: Ip,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// It as text.
    pub text: String,
    /// How often it ran.
    pub count: u64,
    /// Of a conditional branch: how often it was taken, and how often not, as far as that was seen.
    pub outcomes: Option<(u64, u64)>,
    /// The line of the source.
    pub source: Option<SourceLine>,
}

impl Explorer<'_> {
    /// The code of a function, wherever it stands in the symbols, as it ran in ranges of rows; of an inlined function, the code of it wherever it was
    /// inlined. Of ranges longer than is decoded at once, or where `cancel` says so, their beginnings are counted.
    pub fn code(
        &mut self,
        function: FunctionNumber,
        ranges: &[(usize, PlaceRange)],
        cancel: &(dyn Fn() -> bool + Sync),
    ) -> Code {
        let index = self.index.clone();
        let Some(info) = index.functions.get(function as usize) else {
            return Code::default();
        };
        let (mut left, mut is_whole, mut total) = (DECODED, true, 0);
        let mut parts = Vec::new();
        for (row, range) in ranges {
            let Some((known, stream)) = index.rows.get(*row).zip(self.session.streams().get(*row))
            else {
                continue;
            };
            let end = range.end.min(known.insns);
            let mut at = range.start;
            while at < end {
                let chunk = known.chunk_at(at);
                let places = known.places_of(chunk);
                let part = at..end.min(places.end);
                at = part.end.max(at + 1);
                let len = part.end - part.start;
                // Where it was not open, it did not run.
                let sums = known.sums.get(chunk);
                if info.is_named && sums.is_some_and(|sums| sums.get(function).is_none()) {
                    total += len;
                    continue;
                }
                if len > left {
                    is_whole = false;
                    break;
                }
                left -= len;
                let bytes = known.bytes_of(chunk);
                parts.push(Part {
                    stream,
                    bytes: StreamOffset(bytes.start)..StreamOffset(bytes.end),
                    begin: places.start,
                    places: part,
                });
            }
        }
        let (insns, counted) = self.count_all(info, &parts, cancel);
        is_whole &= counted == parts.len();
        let parts = parts.iter().take(counted);
        total += parts
            .map(|part| part.places.end - part.places.start)
            .sum::<u64>();
        let mut code = Code {
            is_whole,
            counted: total,
            ..Code::default()
        };
        self.list(insns, &mut code);
        code
    }

    /// Counts the instructions of a function in parts of rows, on all processors: what was counted, and in how many parts, the first ones.
    fn count_all(
        &mut self,
        info: &FunctionInfo,
        parts: &[Part<'_>],
        cancel: &(dyn Fn() -> bool + Sync),
    ) -> (Vec<Counted>, usize) {
        let session = self.session;
        let next = AtomicUsize::new(0);
        let work = |lines: &mut LineFinder| {
            let mut counter = Counter::new(info, lines);
            while !cancel()
                && let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed))
            {
                counter.part(session, part);
            }
            counter.finish()
        };
        let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let others = threads.min(parts.len()).saturating_sub(1);
        let lists = std::thread::scope(|scope| {
            let work = &work;
            let others: Vec<_> = (0..others)
                .map(|_| scope.spawn(move || work(&mut LineFinder::new())))
                .collect();
            let mut lists = vec![work(&mut self.lines)];
            for other in others {
                lists.push(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
            }
            lists
        });
        // Each takes the next part until there is none, or until nobody waits any more.
        let counted = next.into_inner().min(parts.len());
        (merged(lists), counted)
    }

    fn list(&mut self, mut list: Vec<Counted>, code: &mut Code) {
        compact::sort_by_key(&mut list, |insn| insn.ip);
        list.truncate(LISTED);
        let mut next: Option<(Place, Ip, ExecMode)> = None;
        for insn in list {
            let (ip, mode) = (insn.ip, insn.mode);
            // What stands between, if it is of the same function and its instructions lead here.
            if let Some((place, from, mode)) = next.take()
                && from < ip
                && ip.0 - from.0 < 1 << 12
            {
                self.between(&place, from, ip, mode, code);
            }
            let len = insn.bytes.len() as u64;
            next = Some((insn.place.forward(len), ip.wrapping_add(len), mode));
            code.insns.push(CodeInsn {
                ip,
                text: cofi_insn::text(&insn.bytes, ip, mode),
                bytes: insn.bytes,
                count: insn.count,
                outcomes: insn.is_conditional.then_some((insn.taken, insn.not_taken)),
                source: self.lines.at(&insn.place),
            });
        }
    }

    /// Instructions that did not run.
    fn between(&mut self, place: &Place, from: Ip, to: Ip, mode: ExecMode, code: &mut Code) {
        let mut bytes = vec![0; (to.0 - from.0) as usize];
        if place.file.read_at(place.offset, &mut bytes) < bytes.len() {
            return;
        }
        let mut found = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let Ok(insn) = cofi_insn::decode(&bytes[at..], from.wrapping_add(at as u64), mode)
            else {
                return;
            };
            let len = usize::from(insn.len);
            found.push(at..at + len);
            at += len;
        }
        if at != bytes.len() {
            return;
        }
        for range in found {
            let ip = from.wrapping_add(range.start as u64);
            let place = place.forward(range.start as u64);
            code.insns.push(CodeInsn {
                ip,
                text: cofi_insn::text(&bytes[range.clone()], ip, mode),
                bytes: bytes[range].to_vec(),
                count: 0,
                outcomes: None,
                source: self.lines.at(&place),
            });
        }
    }
}

/// A part of a row that is decoded to count.
struct Part<'s> {
    stream: &'s Stream<'s>,
    /// The chunk that holds it, and the place at which that begins.
    bytes: Range<StreamOffset>,
    begin: u64,
    places: PlaceRange,
}

/// What several have counted, together.
fn merged(lists: Vec<Vec<Counted>>) -> Vec<Counted> {
    let mut lists = lists.into_iter();
    let mut all = lists.next().unwrap_or_default();
    let numbered = all.iter().enumerate();
    let mut numbers: FxHashMap<_, _> = numbered.map(|(n, insn)| (insn.key(), n)).collect();
    for insn in lists.flatten() {
        match numbers.get(&insn.key()).and_then(|n| all.get_mut(*n)) {
            Some(known) => {
                known.count += insn.count;
                known.taken += insn.taken;
                known.not_taken += insn.not_taken;
            }
            None => {
                numbers.insert(insn.key(), all.len());
                all.push(insn);
            }
        }
    }
    all
}

/// Which instruction it is: its address, its mode, and where its code is.
type InsnKey = (Ip, ExecMode, usize, u64);

/// What was counted of an instruction.
#[derive(Clone, Debug)]
struct Counted {
    ip: Ip,
    mode: ExecMode,
    bytes: Vec<u8>,
    place: Place,
    count: u64,
    is_conditional: bool,
    taken: u64,
    not_taken: u64,
}

impl Counted {
    fn key(&self) -> InsnKey {
        let file = Arc::as_ptr(&self.place.file).addr();
        (self.ip, self.mode, file, self.place.offset)
    }
}

/// Where a conditional branch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Taken,
    NotTaken,
    Unseen,
}

/// A path, as far as it is of the function.
#[derive(Clone, Debug, Default)]
struct KnownPath {
    times: u64,
    insns: Vec<(u32, Outcome)>,
    first: Ip,
    /// Its last instruction, if that is a conditional branch: where it goes on if it is not taken, and which of those counted it is.
    last: Option<(Ip, u32)>,
}

struct Counter<'a> {
    info: &'a FunctionInfo,
    lines: &'a mut LineFinder,
    insns: Vec<Counted>,
    /// By its address, its mode and where its code is: which one it is; none if it is not of the function.
    numbers: FxHashMap<InsnKey, Option<u32>>,
    paths: FxHashMap<(u32, usize, usize), KnownPath>,
    /// The code that was in place.
    eras: Vec<(usize, Version)>,
    /// The conditional branch that ran last.
    last: Option<(Ip, u32)>,
}

impl<'a> Counter<'a> {
    fn new(info: &'a FunctionInfo, lines: &'a mut LineFinder) -> Self {
        Self {
            info,
            lines,
            insns: Vec::new(),
            numbers: FxHashMap::default(),
            paths: FxHashMap::default(),
            eras: Vec::new(),
            last: None,
        }
    }

    /// Decodes a part and counts what ran in it.
    fn part(&mut self, session: &Session<'_>, part: &Part<'_>) {
        let mut flow = session.decode_within(part.stream, part.bytes.clone());
        self.last = None;
        self.count(&mut flow, part.begin, &part.places);
    }

    /// Counts what ran in a part of the places of a chunk, which begins at `at`.
    fn count(&mut self, flow: &mut ThreadFlow<'_>, mut at: u64, part: &PlaceRange) {
        while at < part.end {
            let view = flow.view().clone();
            let era = (std::ptr::from_ref(view.space()).addr(), view.version());
            let known = self.eras.iter().position(|known| *known == era);
            let era = known.unwrap_or_else(|| {
                self.eras.push(era);
                self.eras.len() - 1
            });
            let item = flow.paths(|path| {
                let from = at;
                at += path.len() as u64;
                if at <= part.start || from >= part.end {
                    self.last = None;
                } else if from < part.start || at > part.end {
                    self.in_part(path, &view, from, part);
                } else {
                    self.whole(path, &view, era as u32);
                }
            });
            if item.is_none() {
                break;
            }
            self.last = None;
        }
    }

    /// A path ran.
    fn whole(&mut self, path: &Path<'_>, view: &ImageView<'_>, era: u32) {
        let Some(number) = path.number() else {
            let mut known = self.known(path, view);
            known.times = 1;
            self.went_to(known.first);
            self.last = known.last;
            self.add(&known);
            return;
        };
        let key = (era, number.generation(), number.index());
        let first = match self.paths.get_mut(&key) {
            Some(known) => {
                known.times += 1;
                (known.first, known.last)
            }
            None => {
                let mut known = self.known(path, view);
                known.times = 1;
                let ends = (known.first, known.last);
                self.paths.insert(key, known);
                ends
            }
        };
        self.went_to(first.0);
        self.last = first.1;
    }

    /// The branch before led here.
    fn went_to(&mut self, ip: Ip) {
        if let Some((behind, number)) = self.last.take()
            && let Some(insn) = self.insns.get_mut(number as usize)
        {
            match ip == behind {
                true => insn.not_taken += 1,
                false => insn.taken += 1,
            }
        }
    }

    fn known(&mut self, path: &Path<'_>, view: &ImageView<'_>) -> KnownPath {
        let mut known = KnownPath {
            first: path.ip(),
            ..KnownPath::default()
        };
        let mut branch: Option<(Ip, usize)> = None;
        path.for_each(|block| {
            if let Some((behind, index)) = branch.take()
                && let Some((_, outcome)) = known.insns.get_mut(index)
            {
                *outcome = match block.ip() == behind {
                    true => Outcome::NotTaken,
                    false => Outcome::Taken,
                };
            }
            known.last = None;
            block.for_each(|insn| {
                let is_conditional = insn.class == Class::Conditional;
                let number = self.number(insn.ip, insn.len, insn.mode, is_conditional, view);
                let Some(number) = number else {
                    return;
                };
                if is_conditional {
                    let behind = insn.ip.wrapping_add(u64::from(insn.len));
                    branch = Some((behind, known.insns.len()));
                    known.last = Some((behind, number));
                }
                known.insns.push((number, Outcome::Unseen));
            });
            // A conditional branch ends a block.
            if block
                .last()
                .is_none_or(|last| last.class != Class::Conditional)
            {
                (branch, known.last) = (None, None);
            }
        });
        known
    }

    /// A path of which a part is counted.
    fn in_part(&mut self, path: &Path<'_>, view: &ImageView<'_>, mut at: u64, part: &PlaceRange) {
        path.for_each(|block| {
            if part.contains(&at) {
                self.went_to(block.ip());
            }
            self.last = None;
            block.for_each(|insn| {
                if part.contains(&at) {
                    let is_conditional = insn.class == Class::Conditional;
                    let number = self.number(insn.ip, insn.len, insn.mode, is_conditional, view);
                    if let Some(number) = number
                        && let Some(counted) = self.insns.get_mut(number as usize)
                    {
                        counted.count += 1;
                        let behind = insn.ip.wrapping_add(u64::from(insn.len));
                        self.last = is_conditional.then_some((behind, number));
                    }
                }
                at += 1;
            });
        });
    }

    /// Which one an instruction is, if it is of the function.
    fn number(
        &mut self,
        ip: Ip,
        len: u8,
        mode: ExecMode,
        is_conditional: bool,
        view: &ImageView<'_>,
    ) -> Option<u32> {
        let place = view.place(ip)?;
        let file = Arc::as_ptr(&place.file).addr();
        let key = (ip, mode, file, place.offset);
        if let Some(known) = self.numbers.get(&key) {
            return *known;
        }
        let number = self.is_of_function(&place).then(|| {
            let mut bytes = [0; 15];
            let wanted = &mut bytes[..usize::from(len).min(15)];
            let read = place.file.read_at(place.offset, wanted);
            self.insns.push(Counted {
                ip,
                mode,
                bytes: bytes[..read.min(15)].to_vec(),
                place,
                count: 0,
                is_conditional,
                taken: 0,
                not_taken: 0,
            });
            self.insns.len() as u32 - 1
        });
        self.numbers.insert(key, number);
        number
    }

    fn is_of_function(&mut self, place: &Place) -> bool {
        let FunctionInfo {
            name,
            file,
            is_named,
            is_inlined,
            ..
        } = self.info;
        let owner = place.owner().to_string_lossy();
        if file.as_ref().is_some_and(|file| *file != owner) {
            return false;
        }
        if *is_inlined {
            let inlined = self.lines.inlined(place);
            return inlined.iter().any(|inlined| inlined.name == *name);
        }
        match place.symbol() {
            Some(symbol) => *is_named && symbol.demangled() == *name,
            None => !is_named,
        }
    }

    fn add(&mut self, path: &KnownPath) {
        for (number, outcome) in &path.insns {
            if let Some(insn) = self.insns.get_mut(*number as usize) {
                insn.count += path.times;
                match outcome {
                    Outcome::Taken => insn.taken += path.times,
                    Outcome::NotTaken => insn.not_taken += path.times,
                    Outcome::Unseen => {}
                }
            }
        }
    }

    fn finish(mut self) -> Vec<Counted> {
        for path in std::mem::take(&mut self.paths).into_values() {
            self.add(&path);
        }
        self.insns
    }
}
