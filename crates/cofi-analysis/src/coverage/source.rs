//! Counts of lines, branches and functions of the source, from counts of instructions.

use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use cofi_image::{CodeFile, LineRow, LineTable, SourceFunction, demangle};
use cofi_insn::{Class, LinearDecoder};
use cofi_packet::Ip;
use cofi_session::compact;
use rustc_hash::{FxHashMap, FxHashSet};

use super::file::{FileCode, InsnCount};

/// A line of a source file: which of [`SourceCover::files`], and the number.
pub type SourcePlace = (u32, u32);

/// How often a line ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LineCount {
    /// How often control came to it.
    pub count: u64,
    /// How many instructions of it ran, each as often as it did.
    pub insns: u64,
    /// Its conditional branches, by address, also those that never ran.
    pub branches: Vec<InsnCount>,
}

/// How often a function ran.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionCover {
    /// Its name, demangled.
    pub name: String,
    /// Where it is declared.
    pub declared: Option<SourcePlace>,
    /// Where its code begins and ends in the file.
    pub start: u64,
    /// The offset behind its code.
    pub end: u64,
    /// How often its first instruction ran.
    pub calls: u64,
    /// How many of its own instructions ran, each as often as it did.
    pub insns: u64,
}

/// What of a file's source ran, and what did not.
#[derive(Debug, Default)]
pub struct SourceCover {
    /// The source files, as the debugging information names them.
    pub files: Vec<String>,
    /// All lines that have code, also those that never ran.
    pub lines: BTreeMap<SourcePlace, LineCount>,
    /// All functions of the symbol table, by where they begin, also those that never ran.
    pub functions: Vec<FunctionCover>,
    /// Whether there is debugging information.
    pub has_lines: bool,
    /// By address: which line code is of.
    rows: Vec<Row>,
}

impl SourceCover {
    /// What the debugging information and the symbols of a file make of its counts.
    #[must_use]
    pub fn of(code: &FileCode) -> Self {
        let Some(lines) = SourceLines::of(code.file()) else {
            return Self {
                functions: functions(code, &[]),
                ..Self::default()
            };
        };
        let places = Places::of(code, &lines.rows);
        Self {
            lines: places.lines(code, Which::All),
            functions: functions(code, &lines.functions),
            has_lines: true,
            files: lines.files,
            rows: lines.rows,
        }
    }

    /// The same of the lines and functions alone in which something ran: `lines` are those of the code at least that did, as [`SourceLines::of_code`] has them.
    /// It has neither functions nor branches that never ran.
    #[must_use]
    pub fn of_ran(code: &FileCode, lines: SourceLines) -> Self {
        Self {
            lines: Places::of(code, &lines.rows).lines(code, Which::Ran),
            functions: Vec::new(),
            has_lines: true,
            files: lines.files,
            rows: lines.rows,
        }
    }

    /// The same with all functions, but of the lines only those in which something ran: `lines` are those of the code at least that did, as
    /// [`SourceLines::of_code_and_functions`] has them. It has no branches.
    #[must_use]
    pub fn of_ran_and_functions(code: &FileCode, lines: SourceLines) -> Self {
        Self {
            functions: functions(code, &lines.functions),
            ..Self::of_ran(code, lines)
        }
    }

    /// The line of the code at one of the file's own addresses.
    #[must_use]
    pub fn line_at(&self, address: u64) -> Option<SourcePlace> {
        line_at(&self.rows, address)
    }

    /// The function whose code holds an offset of the file.
    #[must_use]
    pub fn function_at(&self, offset: u64) -> Option<&FunctionCover> {
        let next = self
            .functions
            .partition_point(|function| function.start <= offset);
        let function = self.functions.get(next.checked_sub(1)?)?;
        (offset < function.end).then_some(function)
    }
}

/// The lines of a file's code, without what ran of them: the same that [`SourceCover`] counts.
#[derive(Debug, Default)]
pub struct SourceLines {
    files: Vec<String>,
    rows: Vec<Row>,
    functions: Vec<SourceFunction>,
}

impl SourceLines {
    /// Those of a file; none if there is no debugging information.
    #[must_use]
    pub fn of(file: &CodeFile) -> Option<Self> {
        LineTable::of(file).map(Self::from)
    }

    /// Those of the code at some of a file's own addresses, which come in order: of a large program they are much less to read than all.
    #[must_use]
    pub fn of_code(file: &CodeFile, addresses: &[u64]) -> Option<Self> {
        LineTable::of_code(file, addresses).map(Self::from)
    }

    /// The same, but with all functions.
    #[must_use]
    pub fn of_code_and_functions(file: &CodeFile, addresses: &[u64]) -> Option<Self> {
        LineTable::of_code_and_functions(file, addresses).map(Self::from)
    }

    /// The source files, as the debugging information names them.
    #[must_use]
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// How often control came to each line, and what ran of it, of all that are here. Branches are left out.
    #[must_use]
    pub fn counts(&self, code: &FileCode) -> BTreeMap<SourcePlace, LineCount> {
        Places::of(code, &self.rows).lines(code, Which::Lines)
    }

    /// All functions of the symbol table, by where they begin, also those that never ran.
    #[must_use]
    pub fn functions(&self, code: &FileCode) -> Vec<FunctionCover> {
        functions(code, &self.functions)
    }

    /// The source file and the line of the code at one of the file's own addresses.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<(&str, u32)> {
        let (file, line) = line_at(&self.rows, address)?;
        Some((self.files.get(file as usize)?, line))
    }
}

impl From<LineTable> for SourceLines {
    fn from(table: LineTable) -> Self {
        let (files, rows, functions) = table.into_parts();
        Self {
            files,
            rows: rows_of(rows, &functions),
            functions,
        }
    }
}

fn line_at(rows: &[Row], address: u64) -> Option<SourcePlace> {
    let next = rows.partition_point(|row| row.start <= address);
    let row = rows.get(next.checked_sub(1)?)?;
    let (_, place) = row.line()?;
    (address < row.end()).then_some(place)
}

/// The functions of a file, by offset.
fn functions(code: &FileCode, declared: &[SourceFunction]) -> Vec<FunctionCover> {
    let file = code.file();
    let mut starts: BTreeMap<u64, (String, u64)> = BTreeMap::new();
    file.for_each_function_range(|name, range| {
        let named = || (demangle(name), range.end);
        starts.entry(range.start).or_insert_with(named);
    });
    let declared = |start: u64| -> Option<&SourceFunction> {
        let address = file.address_of_offset(start)?;
        let index = declared.binary_search_by_key(&address, |function| function.start);
        declared.get(index.ok()?)
    };
    let offsets: Vec<u64> = starts.keys().copied().collect();
    let ends = offsets.iter().skip(1).copied().chain([u64::MAX]);
    let mut list = Vec::new();
    for ((start, (name, last)), next) in starts.into_iter().zip(ends) {
        let source = declared(start);
        let place = source.and_then(|source| source.declared);
        let len = source.map(|source| source.end.saturating_sub(source.start));
        let len = len.filter(|len| *len > 0);
        // What follows without a symbol, as most of a stripped library does, is not the function's.
        let last = len.map_or(last, |len| start.saturating_add(len).min(last));
        let end = last.min(next);
        list.push(FunctionCover {
            name,
            declared: place,
            start,
            end,
            calls: code.at(start).map_or(0, |insn| insn.times),
            insns: code.between(start, end).iter().map(|insn| insn.times).sum(),
        });
    }
    list
}

/// Of which line, in which function, code is: functions by number, from 1 on. A line that is in several functions (a template, a function that was
/// inlined) is counted in each.
type LineOf = (u32, SourcePlace);

/// A row of a line table, as its line is counted. As large as a [`LineRow`], so that one list is made of the other in its place.
#[derive(Clone, Copy, Debug)]
struct Row {
    start: u64,
    len: u32,
    function: u32,
    /// If the line is 0, it has none.
    place: SourcePlace,
}

impl Row {
    const fn end(&self) -> u64 {
        self.start.saturating_add(self.len as u64)
    }

    /// Its line, if it has one.
    fn line(&self) -> Option<LineOf> {
        (self.place.1 != 0).then_some((self.function, self.place))
    }
}

/// Each row of a line table, with its line, if it has one.
fn rows_of(rows: Vec<LineRow>, functions: &[SourceFunction]) -> Vec<Row> {
    let mut functions = (1..).zip(functions).peekable();
    // The function whose rows come, and the line of its first row.
    let mut current: Option<(u32, &SourceFunction, SourcePlace, bool)> = None;
    let placed = rows.into_iter().map(|row| {
        while let Some((number, function)) = functions.next_if(|(_, next)| next.start <= row.start)
        {
            let begins = function.start == row.start;
            current = Some((number, function, (row.file, row.line), begins));
        }
        let mut place = (row.file, row.line);
        let mut of = 0;
        if let Some((number, function, first, begins)) = &mut current {
            of = *number;
            // Functions are declared where their name is: there the compilers that count themselves count calls.
            *begins &= place == *first;
            let declared = function.declared.filter(|at| at.0 == place.0);
            if let Some(declared) = declared.filter(|_| *begins && row.line != 0) {
                place = declared;
            }
        }
        Row {
            start: row.start,
            len: row.len,
            function: of,
            place,
        }
    });
    placed.collect()
}

/// Of which lines counts are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// Of all, with all branches.
    All,
    /// Of all, without branches.
    Lines,
    /// Of those that ran, without branches.
    Ran,
}

/// The lines of a file's code.
struct Places<'r> {
    /// Each row, by address.
    rows: &'r [Row],
    /// The instructions that ran, with theirs.
    insns: Vec<Option<LineOf>>,
    /// Which of them begin a row.
    begins: Vec<bool>,
}

impl<'r> Places<'r> {
    fn of(code: &FileCode, rows: &'r [Row]) -> Self {
        let mut at = 0;
        let insns = code.insns().iter().map(|insn| {
            let address = code.file().address_of_offset(insn.offset)?;
            // Instructions come by offset, which is by address but for the odd file.
            if rows.get(at).is_some_and(|row| row.start > address) {
                at = 0;
            }
            at += rows
                .get(at..)?
                .iter()
                .take_while(|row| row.end() <= address)
                .count();
            let row = rows.get(at)?;
            (row.start <= address).then(|| row.line())?
        });
        let insns = insns.collect();
        let begins = code.insns().iter().map(|insn| {
            let address = code.file().address_of_offset(insn.offset);
            let begins = |address| rows.binary_search_by_key(&address, |row| row.start).is_ok();
            address.is_some_and(begins)
        });
        let begins = begins.collect();
        Self {
            rows,
            insns,
            begins,
        }
    }

    /// How often control came to each line, and what ran of it.
    fn lines(&self, code: &FileCode, which: Which) -> BTreeMap<SourcePlace, LineCount> {
        let mut lines: BTreeMap<SourcePlace, LineCount> = BTreeMap::new();
        if which != Which::Ran {
            let places = self.rows.iter().filter_map(Row::line);
            let mut places: Vec<SourcePlace> = places
                .map(|(_, place)| place)
                .collect::<FxHashSet<_>>()
                .into_iter()
                .collect();
            places.sort_unstable();
            lines = places
                .into_iter()
                .map(|place| (place, LineCount::default()))
                .collect();
        }
        for (insn, line) in code.insns().iter().zip(&self.insns) {
            if let Some((_, place)) = line {
                lines.entry(*place).or_default().insns += insn.times;
            }
        }
        for ((_, place), count) in self.counts(code) {
            lines.entry(place).or_default().count += count;
        }
        if which == Which::All {
            for branch in self.branches(code) {
                let line = lines.entry(branch.1).or_default();
                line.branches.push(branch.0);
            }
        }
        lines
    }

    /// All conditional branches that have a line. Rows begin and end with instructions.
    fn branches(&self, code: &FileCode) -> Vec<(InsnCount, SourcePlace)> {
        let Some(mode) = code.insns().first().map(|insn| insn.mode) else {
            return Vec::new();
        };
        let file = code.file();
        let mut found = Vec::new();
        let mut bytes = Vec::new();
        // Damaged tables may have any number of rows for the same code.
        let mut budget = file.size().map_or(0, |size| size.saturating_mul(2));
        for row in self.rows {
            let start = file.offset_of_address(row.start);
            let (Some((_, place)), Some(start)) = (row.line(), start) else {
                continue;
            };
            let size = u64::from(row.len);
            if size > budget {
                continue;
            }
            budget -= size;
            bytes.resize(size as usize, 0);
            let len = file.read_at(start, &mut bytes);
            let mut decoder =
                LinearDecoder::new(bytes.get(..len).unwrap_or_default(), Ip(start), mode);
            loop {
                let offset = decoder.ip().0;
                let Ok(insn) = decoder.decode_next() else {
                    break;
                };
                if insn.class == Class::Conditional {
                    let never = InsnCount::never(offset, insn.len, mode, insn.class);
                    found.push((code.at(offset).copied().unwrap_or(never), place));
                }
            }
        }
        found
    }

    /// How often control came to each line, as gcov counts it: to the blocks that end with the line, from blocks that do not, and round within
    /// the line. A line with which no block ends ran as often as the blocks that hold it.
    fn counts(&self, code: &FileCode) -> HashMap<LineOf, u64> {
        let blocks = self.blocks(code);
        let block_at = |offset| {
            let index = blocks.binary_search_by_key(&offset, |block: &Block| block.start);
            blocks.get(index.ok()?)
        };
        let mut counts: HashMap<LineOf, u64> = HashMap::new();
        // What comes from a block that ends with the same line: by the block to which it leads, and by the line.
        let mut inner: FxHashMap<u64, u64> = FxHashMap::default();
        let mut arcs: HashMap<LineOf, Vec<Arc>> = HashMap::new();
        for block in &blocks {
            let next = block_at(block.last.end()).filter(|_| block.falls > 0);
            let next = next.map(|next| (next, block.falls.min(next.times)));
            let target = block
                .jump
                .and_then(|(target, times)| Some((block_at(target)?, times)));
            for (to, times) in next.into_iter().chain(target) {
                if let Some(line) = block.line.filter(|_| to.line == block.line) {
                    let (from, to) = (block.start, to.start);
                    *inner.entry(to).or_default() += times;
                    arcs.entry(line).or_default().push(Arc { from, to, times });
                }
            }
        }
        for (line, arcs) in arcs {
            *counts.entry(line).or_default() += rounds(&arcs);
        }
        let mut ends: HashSet<LineOf> = HashSet::new();
        for block in blocks.iter().filter(|block| !block.lines.is_empty()) {
            if let Some(line) = block.line {
                let inner = inner.get(&block.start).copied().unwrap_or(0);
                *counts.entry(line).or_default() += block.times.saturating_sub(inner);
                ends.insert(line);
            }
        }
        for block in &blocks {
            for (index, line) in block.lines.iter().enumerate() {
                let is_first = block.lines.iter().position(|other| other == line) == Some(index);
                if is_first && !ends.contains(line) {
                    *counts.entry(*line).or_default() += block.times;
                }
            }
        }
        counts
    }

    /// The instructions that ran, in pieces that are come to at the first and left at the last.
    fn blocks(&self, code: &FileCode) -> Vec<Block> {
        let jumps: FxHashMap<u64, (u64, u64)> = code
            .insns()
            .iter()
            .filter_map(|insn| {
                let times = match insn.class {
                    Some(Class::Conditional) => insn.taken,
                    Some(Class::DirectJump) => insn.times,
                    _ => return None,
                };
                Some((insn.offset, (code.decode(insn)?.target?.0, times)))
            })
            .collect();
        let targets: FxHashSet<u64> = jumps.values().map(|(target, _)| *target).collect();
        let mut blocks: Vec<Block> = Vec::new();
        let insns = code.insns().iter().zip(&self.insns).zip(&self.begins);
        for ((insn, line), begins) in insns {
            let goes_on = blocks.last_mut().filter(|block| {
                let last = &block.last;
                last.end() == insn.offset
                    && last.class.is_none()
                    && last.times == insn.times
                    && !targets.contains(&insn.offset)
            });
            let block = match goes_on {
                Some(block) => block,
                None => {
                    blocks.push(Block {
                        start: insn.offset,
                        times: insn.times,
                        last: *insn,
                        lines: Vec::new(),
                        line: *line,
                        falls: 0,
                        jump: None,
                    });
                    let Some(block) = blocks.last_mut() else {
                        continue;
                    };
                    block
                }
            };
            block.last = *insn;
            block.line = *line;
            block.falls = fall_through(insn);
            block.jump = jumps.get(&insn.offset).copied();
            // Code that somebody put behind a row without saying so (the counters of `--coverage`) begins no statement.
            if let Some(line) = line.filter(|_| *begins) {
                block.lines.push(line);
            }
        }
        blocks
    }
}

/// How often control went from a block to another of the same line.
#[derive(Clone, Copy, Debug)]
struct Arc {
    from: u64,
    to: u64,
    times: u64,
}

/// How often control went round within a line: along an arc that leads back, and along others from there to where it begins. Each arc counts
/// for as many rounds as it was gone along; the shortest rounds come first.
fn rounds(arcs: &[Arc]) -> u64 {
    /// No line that a person wrote has more.
    const MOST: usize = 256;
    if arcs.len() > MOST {
        return 0;
    }
    let mut left: Vec<u64> = arcs.iter().map(|arc| arc.times).collect();
    let mut back: Vec<usize> = (0..arcs.len())
        .filter(|arc| arcs[*arc].to <= arcs[*arc].from)
        .collect();
    compact::sort_by_key(&mut back, |arc| arcs[*arc].from - arcs[*arc].to);
    let mut sum = 0;
    for back in back {
        while left[back] > 0
            && let Some((way, times)) = widest(arcs, &left, arcs[back].to, arcs[back].from)
        {
            let times = times.min(left[back]);
            for arc in way.iter().chain([&back]) {
                left[*arc] -= times;
            }
            sum += times;
        }
    }
    sum
}

/// The arcs from one block to another of which the one that is left least often is left most often, and how often that is.
fn widest(arcs: &[Arc], left: &[u64], from: u64, to: u64) -> Option<(Vec<usize>, u64)> {
    // By which arc a block was come to.
    let mut known: HashMap<u64, Option<usize>> = HashMap::new();
    let mut open = BinaryHeap::from([(u64::MAX, from, None)]);
    while let Some((times, at, by)) = open.pop() {
        if known.contains_key(&at) {
            continue;
        }
        known.insert(at, by);
        if at == to {
            let mut way = Vec::new();
            let mut by = by;
            while let Some(arc) = by {
                way.push(arc);
                by = known.get(&arcs[arc].from).copied().flatten();
            }
            return Some((way, times));
        }
        for (index, arc) in arcs.iter().enumerate() {
            if arc.from == at && left[index] > 0 {
                open.push((times.min(left[index]), arc.to, Some(index)));
            }
        }
    }
    None
}

/// Instructions that run one behind the other.
#[derive(Debug)]
struct Block {
    start: u64,
    times: u64,
    last: InsnCount,
    /// The lines that begin in it, in order.
    lines: Vec<LineOf>,
    /// The line of its last instruction.
    line: Option<LineOf>,
    /// How often control went on with the next instruction.
    falls: u64,
    /// Where it may jump, and how often it did.
    jump: Option<(u64, u64)>,
}

/// How often control went on behind an instruction with the next.
const fn fall_through(insn: &InsnCount) -> u64 {
    match insn.class {
        Some(Class::DirectJump | Class::IndirectJump | Class::Return) => 0,
        Some(Class::Conditional) => insn.times.saturating_sub(insn.taken),
        // (A call that does not return makes no difference: the next one ran less often.)
        _ => insn.times,
    }
}
