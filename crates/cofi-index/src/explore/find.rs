//! Where something runs next, or ran before.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cofi_analysis::{
    Call, CallEnd, CallNames, CallTracer, CallVisitor, OpenCall, RanBlock, RanPath,
};
use cofi_image::{CodeFile, LineFinder, LineRow, LineTable, Place};
use cofi_packet::Ip;
use cofi_session::{ThreadFlow, compact};

use super::walk::Walker;
use super::{Explorer, FileLines, PlaceRange};
use crate::row::{FunctionNumber, Row};

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// A call of a function begins.
    Function(FunctionNumber),
    /// An instruction runs.
    Ip(Ip),
    /// A line of the source begins to run: in each function, and each place where it was inlined, the first of its instructions, as debuggers have it.
    Line {
        /// The file, as the debugging information names it.
        file: String,
        /// The line.
        line: u32,
    },
    /// Trace is missing.
    Gap,
}

/// What a text may mean.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hit {
    /// A function whose name holds it.
    Function(FunctionNumber),
    /// An address.
    Address(Ip),
    /// A line of a source file whose name ends so.
    Line {
        /// The file, as the debugging information names it.
        file: String,
        /// The line.
        line: u32,
    },
}

/// Code of a line: a file, and where in it stretches of the line begin.
type LineCode = Vec<(Arc<CodeFile>, Vec<u64>)>;

/// What to look for in the code.
enum Wanted {
    Function(FunctionNumber),
    Ip(Ip),
    Code(LineCode),
}

impl Explorer<'_> {
    /// The next place where a target runs, or the one before; none if there is none, or if `cancel` says so.
    pub fn find(
        &mut self,
        row: usize,
        at: u64,
        target: &Target,
        forward: bool,
        cancel: &dyn Fn() -> bool,
    ) -> Option<u64> {
        let index = self.index.clone();
        let known = index.rows.get(row)?;
        let wanted = match target {
            Target::Gap => {
                let mut gaps = known.gaps.iter().map(|gap| gap.at);
                return match forward {
                    true => gaps.find(|gap| *gap > at),
                    false => gaps.rfind(|gap| *gap < at),
                };
            }
            Target::Function(function) => Wanted::Function(*function),
            Target::Ip(ip) => Wanted::Ip(*ip),
            Target::Line { file, line } => Wanted::Code(self.code_of_line(file, *line)),
        };
        if matches!(&wanted, Wanted::Code(code) if code.is_empty()) {
            return None;
        }
        let mut lines = std::mem::take(&mut self.lines);
        let first = known.chunk_at(at);
        let mut chunks: Box<dyn Iterator<Item = usize>> = match forward {
            true => Box::new(first..known.chunks.len()),
            false => Box::new((0..=first).rev()),
        };
        let found = chunks.find_map(|chunk| {
            if cancel() {
                return Some(None);
            }
            if !may_hold(known, chunk, &wanted) {
                return None;
            }
            let places = known.places_of(chunk);
            let range = match forward {
                true => at.saturating_add(1).max(places.start)..places.end,
                false => places.start..at.min(places.end),
            };
            if range.is_empty() {
                return None;
            }
            let mut walker = Finder {
                numbers: index.numbers.get(row)?,
                wanted: &wanted,
                range: range.clone(),
                forward,
                found: None,
                ahead: 0,
                at: 0,
                lines: &mut lines,
                blocks: HashMap::new(),
                holding: HashSet::new(),
                lacking: HashSet::new(),
                is_lacking: true,
            };
            self.walk(row, &places, &mut walker);
            walker.found.map(Some)
        });
        self.lines = lines;
        found?
    }

    fn code_of_line(&mut self, file: &str, line: u32) -> LineCode {
        let mut found = LineCode::new();
        for code in self.code_with_lines() {
            let (code, table) = &*code;
            let number = table.files().iter().position(|name| name == file);
            let Some(number) = number else {
                continue;
            };
            let rows = table.rows();
            let is_it = |row: &LineRow| row.line == line && row.file as usize == number;
            let mut starts = Vec::new();
            let mut end = None;
            for row in rows.iter().filter(|row| is_it(row)) {
                // Rows of one line that stand next to each other are one stretch.
                if end != Some(row.start) {
                    starts.extend(code.offset_of_address(row.start));
                }
                end = Some(row.end());
            }
            if !starts.is_empty() {
                found.push((code.clone(), starts));
            }
        }
        found
    }

    /// What a text may mean, at most so many things: the functions whose names hold it, upper and lower case alike, most instructions first;
    /// an address (`0x…`); a line of a source file (`file.c:12`).
    pub fn search(&mut self, text: &str, most: usize) -> Vec<Hit> {
        let text = text.trim();
        if text.is_empty() {
            return Vec::new();
        }
        let mut hits = Vec::new();
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        if let Some(ip) = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            hits.push(Hit::Address(Ip(ip)));
        }
        if let Some((name, line)) = text.rsplit_once(':')
            && let Ok(line) = line.parse::<u32>()
        {
            for code in self.code_with_lines() {
                let (_, table) = &*code;
                for (number, file) in table.files().iter().enumerate() {
                    let is_it = file.ends_with(name)
                        && table
                            .rows()
                            .iter()
                            .any(|row| row.file as usize == number && row.line == line);
                    let hit = Hit::Line {
                        file: file.clone(),
                        line,
                    };
                    if is_it && !hits.contains(&hit) {
                        hits.push(hit);
                    }
                }
            }
        }
        let lower = text.to_lowercase();
        let index = self.index.clone();
        let functions = index.functions.iter().zip(0..);
        let mut named: Vec<_> = functions
            .filter(|(function, _)| function.name.to_lowercase().contains(&lower))
            .map(|(function, number)| {
                let is_exact = function.name.eq_ignore_ascii_case(text);
                (std::cmp::Reverse((is_exact, function.instructions)), number)
            })
            .collect();
        compact::sort_by(&mut named, Ord::cmp);
        hits.extend(named.into_iter().map(|(_, number)| Hit::Function(number)));
        hits.truncate(most);
        hits
    }

    /// The first line of a source file, from one on, of which there is code in the files of code that ran. The file is the one of this path, or else the only
    /// one whose path ends so; its name is given as the debugging information has it.
    pub fn line_at_or_behind(&mut self, path: &str, line: u32) -> Option<(String, u32)> {
        let tables = self.code_with_lines();
        let all = || tables.iter().flat_map(|code| code.1.files());
        let name = match all().find(|file| *file == path) {
            Some(name) => name.clone(),
            None => {
                let is_end = |file: &&String| std::path::Path::new(path).ends_with(file);
                all().find(is_end)?.clone()
            }
        };
        let mut best: Option<u32> = None;
        for code in &tables {
            let (_, table) = &**code;
            let number = table.files().iter().position(|file| *file == name);
            let rows = table.rows().iter();
            let lines = rows.filter(|row| Some(row.file as usize) == number && row.line >= line);
            if let Some(found) = lines.map(|row| row.line).min() {
                best = Some(best.map_or(found, |known| known.min(found)));
            }
        }
        Some((name, best?))
    }

    /// Whether code that ran was made of a source file, by the name that the debugging information has for it.
    pub fn has_source(&mut self, name: &str) -> bool {
        let tables = self.code_with_lines();
        let mut files = tables.iter().flat_map(|code| code.1.files());
        files.any(|file| file == name)
    }

    /// The files of code that ran and have lines, each with them.
    fn code_with_lines(&mut self) -> Vec<Arc<FileLines>> {
        if let Some(known) = &self.tables {
            return known.clone();
        }
        let names: HashSet<_> = {
            let functions = self.index.functions.iter();
            functions
                .filter_map(|function| function.file.clone())
                .collect()
        };
        let files = self.session.code_files();
        let ran = files.filter(|file| names.contains(&*file.path().to_string_lossy()));
        let tables: Vec<_> = ran
            .filter_map(|file| Some(Arc::new((file.clone(), LineTable::of(file)?))))
            .collect();
        self.tables = Some(tables.clone());
        tables
    }
}

/// Whether a chunk may hold what is looked for.
fn may_hold(row: &Row, chunk: usize, wanted: &Wanted) -> bool {
    match (wanted, row.sums.get(chunk)) {
        (Wanted::Function(function), Some(sums)) => {
            sums.get(*function).is_some_and(|sum| sum.calls > 0)
        }
        _ => true,
    }
}

struct Finder<'a> {
    numbers: &'a [FunctionNumber],
    wanted: &'a Wanted,
    range: PlaceRange,
    forward: bool,
    found: Option<u64>,
    ahead: u64,
    at: u64,
    lines: &'a mut LineFinder,
    /// Which instructions of a block are wanted.
    blocks: HashMap<(u64, usize), Vec<u32>>,
    /// Paths that hold none.
    holding: HashSet<(u64, usize)>,
    lacking: HashSet<(u64, usize)>,
    is_lacking: bool,
}

impl Finder<'_> {
    fn take(&mut self, at: u64) {
        if self.range.contains(&at) && (self.found.is_none() || !self.forward) {
            self.found = Some(at);
        }
    }

    fn is_wanted(&mut self, block: &RanBlock<'_>, ip: Ip) -> bool {
        let code = match self.wanted {
            Wanted::Function(_) => return false,
            Wanted::Ip(wanted) => return ip == *wanted,
            Wanted::Code(code) => code,
        };
        let Some(place) = block.view().place(ip) else {
            return false;
        };
        let mut files = code
            .iter()
            .filter(|(file, _)| Arc::ptr_eq(file, &place.file));
        files.any(|(_, starts)| {
            if !starts.contains(&place.offset) {
                return false;
            }
            let here = instance(self.lines, &place);
            let mut before = starts.iter().filter(|start| **start < place.offset);
            // Of several stretches in one instance of a function, the first counts.
            !before.any(|start| {
                let back = place.offset - start;
                let other = block.view().place(Ip(ip.0.wrapping_sub(back)));
                other.is_some_and(|other| {
                    Arc::ptr_eq(&other.file, &place.file)
                        && other.offset == *start
                        && instance(self.lines, &other) == here
                })
            })
        })
    }
}

/// Which function a place is in, and at which place that was inlined.
fn instance(lines: &mut LineFinder, place: &Place) -> (Option<u64>, Option<u64>) {
    let inlined = lines.inlined(place);
    let symbol = place.symbol().map(|symbol| symbol.start);
    (symbol, inlined.last().map(|inlined| inlined.instance))
}

impl Walker for Finder<'_> {
    fn begin(&mut self, _: u64, _: &mut dyn Iterator<Item = OpenCall>) {}

    fn piece(&mut self, ahead: u64, tracer: &CallTracer<'_>, _: &mut ThreadFlow<'_>) -> bool {
        (self.ahead, self.at) = (ahead, tracer.instructions());
        self.at < self.range.end && (self.found.is_none() || !self.forward)
    }
}

impl CallVisitor for Finder<'_> {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        if let Wanted::Function(wanted) = self.wanted
            && self.numbers.get(call.function.index()) == Some(wanted)
        {
            self.take(call.begin.insns.wrapping_sub(self.ahead));
        }
    }

    fn leave(&mut self, _: &Call, _: &CallEnd, _: &CallNames) {}

    fn wants_blocks(&self) -> bool {
        !matches!(self.wanted, Wanted::Function(_))
    }

    fn ran(&mut self, block: &RanBlock<'_>) {
        let at = self.at;
        self.at += block.len() as u64;
        let key = (block.generation(), block.number());
        if !self.blocks.contains_key(&key) {
            let (mut wanted, mut number) = (Vec::new(), 0);
            block.for_each(|ip, _, _| {
                if self.is_wanted(block, ip) {
                    wanted.push(number);
                }
                number += 1;
            });
            self.blocks.insert(key, wanted);
        }
        let wanted = self.blocks.get(&key).cloned().unwrap_or_default();
        self.is_lacking &= wanted.is_empty();
        for number in wanted {
            self.take(at + u64::from(number));
        }
    }

    fn path_ended(&mut self, number: Option<usize>, generation: u64) {
        let is_lacking = std::mem::replace(&mut self.is_lacking, true);
        if let Some(number) = number {
            match is_lacking {
                true => self.lacking.insert((generation, number)),
                false => self.holding.insert((generation, number)),
            };
        }
    }

    fn ran_path(&mut self, path: &RanPath) -> bool {
        let is_lacking = self.lacking.contains(&(path.generation(), path.number()));
        if is_lacking {
            self.at += path.len() as u64;
        }
        is_lacking
    }
}
