//! Which function holds an address of a file.

use std::collections::HashMap;
use std::fmt;
use std::ops;

use object::elf::{FileHeader32, FileHeader64, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};
use object::read::elf::{ElfFile, FileHeader, Sym, SymbolTable};
use object::{Endianness, FileKind, Object, ObjectSection, ReadRef, SectionFlags};

use crate::contents::FromFile;

/// A demangled name is cut off here: a mangled one can stand for one that is longer without bound.
const NAME_LIMIT: usize = 4096;

/// A function, as seen from an address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Symbol<'a> {
    /// Its name as the symbol table spells it.
    pub name: &'a str,
    /// Its first address, in the file's own terms.
    pub start: u64,
    /// How far into the function the address lies.
    pub offset: u64,
}

impl Symbol<'_> {
    /// The name as the source spelt it.
    pub fn demangled(&self) -> String {
        demangle(self.name)
    }
}

/// A Rust or C++ symbol name as the source spelt it; any other name as it is.
///
/// ```
/// assert_eq!(cofi_image::demangle("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"), "core::fmt::Write::write_fmt");
/// assert_eq!(cofi_image::demangle("_ZN3foo3barEi"), "foo::bar(int)");
/// assert_eq!(cofi_image::demangle("main"), "main");
/// ```
pub fn demangle(name: &str) -> String {
    let mut out = Bounded(String::new());
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // The alternate form leaves out the hash.
        if fmt::write(&mut out, format_args!("{rust:#}")).is_ok() {
            return out.0;
        }
    } else if name.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::Symbol::new(name)
        && symbol
            .structured_demangle(&mut out, &cpp_demangle::DemangleOptions::new())
            .is_ok()
    {
        return out.0;
    }
    name.to_owned()
}

/// Refuses to grow past [`NAME_LIMIT`].
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > NAME_LIMIT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// The functions of one file as ranges that do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    /// By `start`.
    ranges: Vec<Range>,
    /// Names that give way to better ones of the same address, by address.
    others: Vec<(u64, NamePlace)>,
    names: String,
}

/// Where a name stands in [`Symbols::names`].
type NamePlace = (u32, u32);

#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
    /// Start of the function, which the range may be a later part of.
    function: u64,
    name: NamePlace,
}

/// A function as the symbol table tells it.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    start: u64,
    /// Zero when the table does not say.
    size: u64,
    /// The higher one names a range that several symbols claim.
    rank: u8,
    name: NamePlace,
}

impl Symbols {
    /// Functions that are known otherwise: start, size, name.
    pub(crate) fn of_ranges<'n>(functions: impl IntoIterator<Item = (u64, u64, &'n str)>) -> Self {
        let mut names = String::new();
        let mut candidates = Vec::new();
        for (start, size, name) in functions {
            let from = names.len();
            let Ok(to) = u32::try_from(from + name.len()) else {
                break;
            };
            if size == 0 {
                continue;
            }
            names.push_str(name);
            candidates.push(Candidate {
                start,
                size,
                rank: 0,
                name: (from as u32, to),
            });
        }
        Self {
            ranges: flatten(candidates, &[]).0,
            // What else was called so before is none of its names.
            others: Vec::new(),
            names,
        }
    }

    /// Every function: its name and its first address.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&str, u64)) {
        self.for_each_range(|name, range| visit(name, range.start));
    }

    /// Every function: its name and its addresses, up to the end of its last part.
    pub(crate) fn for_each_range(&self, mut visit: impl FnMut(&str, ops::Range<u64>)) {
        let later = self
            .ranges
            .iter()
            .filter(|range| range.start != range.function);
        // Parts come by address: the last one of a function is kept.
        let ends: HashMap<u64, u64> = later.map(|part| (part.function, part.end)).collect();
        let first = |range: &&Range| range.start == range.function;
        for range in self.ranges.iter().filter(first) {
            if let Some(name) = self.name(range.name) {
                let end = ends.get(&range.function).copied().unwrap_or(range.end);
                visit(name, range.start..end);
            }
        }
    }

    /// Every other name of a function: it, the function's name, its first address.
    pub(crate) fn for_each_other(&self, mut visit: impl FnMut(&str, &str, u64)) {
        for (start, other) in &self.others {
            let index = self
                .ranges
                .binary_search_by_key(start, |range| range.start)
                .ok();
            let range = index.and_then(|index| self.ranges.get(index));
            let range = range.filter(|range| range.function == *start);
            let names = range.and_then(|range| self.name(*other).zip(self.name(range.name)));
            if let Some((other, name)) = names {
                visit(other, name, *start);
            }
        }
    }

    fn name(&self, (from, to): NamePlace) -> Option<&str> {
        self.names.get(from as usize..to as usize)
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn at(&self, address: u64) -> Option<Symbol<'_>> {
        let index = self
            .ranges
            .partition_point(|range| range.start <= address)
            .checked_sub(1)?;
        let range = self.ranges.get(index).filter(|range| address < range.end)?;
        Some(Symbol {
            name: self.name(range.name)?,
            start: range.function,
            offset: address - range.function,
        })
    }

    fn parse_class<'data, E, R>(data: R) -> Symbols
    where
        E: FileHeader<Endian = Endianness>,
        R: ReadRef<'data>,
    {
        let Ok(file) = ElfFile::<E, R>::parse(data) else {
            return Symbols::default();
        };
        // Hostile tables can name one long string any number of times in part; honest ones share few tails.
        let limit = data.len().map_or(0, |len| {
            (len as usize).saturating_mul(2).saturating_add(1 << 16)
        });
        let mut collector = Collector {
            code: code_ranges(&file),
            limit: limit.min(u32::MAX as usize),
            ..Collector::default()
        };
        collector.collect(file.endian(), file.elf_symbol_table());
        if collector.candidates.is_empty() {
            collector.collect(file.endian(), file.elf_dynamic_symbol_table());
        }
        let (ranges, others) = flatten(collector.candidates, &collector.code);
        Symbols {
            ranges,
            others,
            names: collector.names,
        }
    }
}

impl FromFile for Symbols {
    /// Reads the symbol table, or the dynamic one when there is no other. A file that has neither, is damaged or is
    /// not ELF has no symbols.
    fn parse<'data, R: ReadRef<'data>>(data: R) -> Symbols {
        match FileKind::parse(data) {
            Ok(FileKind::Elf32) => Self::parse_class::<FileHeader32<Endianness>, R>(data),
            Ok(FileKind::Elf64) => Self::parse_class::<FileHeader64<Endianness>, R>(data),
            _ => Symbols::default(),
        }
    }
}

/// First and one-past-last addresses of the sections that hold code, ordered.
fn code_ranges<'data, E, R>(file: &ElfFile<'data, E, R>) -> Vec<(u64, u64)>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let executable = |flags| match flags {
        SectionFlags::Elf { sh_flags, .. } => sh_flags.contains(object::elf::SHF_EXECINSTR),
        _ => false,
    };
    let mut code: Vec<(u64, u64)> = file
        .sections()
        .filter(|section| executable(section.flags()))
        .map(|section| {
            (
                section.address(),
                section.address().saturating_add(section.size()),
            )
        })
        .collect();
    code.sort_unstable();
    code
}

#[derive(Default)]
struct Collector {
    code: Vec<(u64, u64)>,
    candidates: Vec<Candidate>,
    names: String,
    /// Where names of the string table stand in `names`.
    known: HashMap<u32, NamePlace>,
    limit: usize,
}

impl Collector {
    fn collect<'data, E, R>(&mut self, endian: Endianness, table: &SymbolTable<'data, E, R>)
    where
        E: FileHeader<Endian = Endianness>,
        R: ReadRef<'data>,
    {
        self.known.clear();
        for symbol in table.iter() {
            let kind = symbol.st_type();
            let function = kind == STT_FUNC || kind == STT_GNU_IFUNC;
            if symbol.is_undefined(endian) || !(function || kind == STT_NOTYPE) {
                continue;
            }
            let start = symbol.st_value(endian).into();
            // A label of hand-written code has no type, and neither have the linker's marks in data.
            if !function && (symbol.is_absolute(endian) || code_end(&self.code, start).is_none()) {
                continue;
            }
            let Some(name) = self.name(endian, table, symbol) else {
                continue;
            };
            let size = symbol.st_size(endian).into();
            let flags = u8::from(function) << 3
                | u8::from(size != 0) << 2
                | u8::from(!symbol.is_weak()) << 1
                | u8::from(!symbol.is_local());
            // As perf has it: of `malloc` and `__libc_malloc`, the name that people know.
            let rank = flags << 4 | (15 - self.underscores(name));
            self.candidates.push(Candidate {
                start,
                size,
                rank,
                name,
            });
        }
    }

    /// With how many underscores a name begins, up to 15.
    fn underscores(&self, (from, to): NamePlace) -> u8 {
        let name = self.names.get(from as usize..to as usize);
        let name = name.unwrap_or_default().bytes();
        name.take(15).take_while(|byte| *byte == b'_').count() as u8
    }

    fn name<'data, E, R>(
        &mut self,
        endian: Endianness,
        table: &SymbolTable<'data, E, R>,
        symbol: &E::Sym,
    ) -> Option<NamePlace>
    where
        E: FileHeader<Endian = Endianness>,
        R: ReadRef<'data>,
    {
        let offset = symbol.st_name(endian);
        if let Some(name) = self.known.get(&offset) {
            return Some(*name);
        }
        let bytes = table
            .symbol_name(endian, symbol)
            .ok()
            .filter(|bytes| !bytes.is_empty())?;
        let name = String::from_utf8_lossy(bytes);
        if self.names.len() + name.len() > self.limit {
            return None;
        }
        let from = u32::try_from(self.names.len()).ok()?;
        self.names.push_str(&name);
        let range = (from, u32::try_from(self.names.len()).ok()?);
        self.known.insert(offset, range);
        Some(range)
    }
}

/// End of the code section that holds `address`.
fn code_end(code: &[(u64, u64)], address: u64) -> Option<u64> {
    let index = code
        .partition_point(|(start, _)| *start <= address)
        .checked_sub(1)?;
    code.get(index)
        .map(|(_, end)| *end)
        .filter(|end| address < *end)
}

/// Gives every address to one symbol. A symbol inside another one keeps its own range; one without a size reaches
/// to the next symbol, and is dropped inside one that has a size: it is a label there. The other names of what starts at one address come beside.
fn flatten(
    mut candidates: Vec<Candidate>,
    code: &[(u64, u64)],
) -> (Vec<Range>, Vec<(u64, NamePlace)>) {
    // The best name first among those that start together.
    candidates.sort_by(|a, b| (a.start, b.rank, a.name).cmp(&(b.start, a.rank, b.name)));
    let mut others = Vec::new();
    candidates.dedup_by(|next, kept| {
        let is_other = next.start == kept.start;
        if is_other && next.name != kept.name {
            others.push((next.start, next.name));
        }
        is_other
    });
    others.shrink_to_fit();

    let mut sweep = Sweep::default();
    for (index, candidate) in candidates.iter().enumerate() {
        sweep.advance(candidate.start);
        let end = if candidate.size == 0 {
            if !sweep.open.is_empty() {
                continue;
            }
            let next = candidates
                .get(index + 1)
                .map_or(u64::MAX, |next| next.start);
            code_end(code, candidate.start).map_or(next, |end| end.min(next))
        } else {
            candidate.start.saturating_add(candidate.size)
        };
        sweep.open.push(Range {
            start: candidate.start,
            end,
            function: candidate.start,
            name: candidate.name,
        });
    }
    sweep.advance(u64::MAX);
    (sweep.done, others)
}

/// Goes up the addresses with the symbols that cover the current one, the innermost last.
#[derive(Default)]
struct Sweep {
    open: Vec<Range>,
    done: Vec<Range>,
}

impl Sweep {
    /// Settles everything below `to`.
    fn advance(&mut self, to: u64) {
        while let Some(top) = self.open.last_mut() {
            let end = top.end.min(to);
            if top.start < end {
                match self.done.last_mut() {
                    Some(last) if last.end == top.start && last.function == top.function => {
                        last.end = end
                    }
                    _ => self.done.push(Range { end, ..*top }),
                }
                top.start = end;
            }
            if top.end > to {
                break;
            }
            let reached = top.start;
            self.open.pop();
            if let Some(outer) = self.open.last_mut() {
                outer.start = outer.start.max(reached);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(start: u64, size: u64, rank: u8, name: u32) -> Candidate {
        Candidate {
            start,
            size,
            rank,
            name: (name, name + 1),
        }
    }

    fn flat(candidates: &[Candidate]) -> Vec<(u64, u64, u32)> {
        let code = [(0, 1000)];
        let (ranges, _) = flatten(candidates.to_vec(), &code);
        ranges
            .iter()
            .map(|range| (range.start, range.end, range.name.0))
            .collect()
    }

    #[test]
    fn nested_aliased_and_unsized_symbols() {
        assert_eq!(
            flat(&[candidate(10, 20, 8, 0), candidate(15, 5, 8, 1)]),
            [(10, 15, 0), (15, 20, 1), (20, 30, 0)]
        );
        assert_eq!(
            flat(&[candidate(10, 5, 8, 0), candidate(10, 5, 9, 1)]),
            [(10, 15, 1)]
        );
        assert_eq!(
            flat(&[
                candidate(10, 0, 0, 0),
                candidate(50, 0, 0, 1),
                candidate(60, 10, 8, 2),
                candidate(64, 0, 0, 3)
            ]),
            [(10, 50, 0), (50, 60, 1), (60, 70, 2)]
        );
        assert_eq!(
            flat(&[candidate(10, 0, 0, 0)]),
            [(10, 1000, 0)],
            "up to the end of its section"
        );
        assert_eq!(flat(&[candidate(10, u64::MAX, 0, 0)]), [(10, u64::MAX, 0)]);
    }

    #[test]
    fn long_names_are_left_mangled() {
        // Every argument is a pair of the argument before it, so that each is twice as long.
        let mut name = String::from("_Z1fSt4pairIiiE");
        assert_eq!(demangle(&name), "f(std::pair<int, int>)");
        for level in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXY".chars() {
            name += &format!("S_IS{level}_S{level}_E");
        }
        assert_eq!(demangle(&name), name);
        assert_eq!(demangle("_Z"), "_Z");
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
    }

    proptest! {
        #[test]
        fn every_address_gets_the_innermost_symbol(
            list in prop::collection::vec((0u64..200, 1u64..60), 0..30),
        ) {
            let candidates: Vec<_> = (0u32..).zip(&list).map(|(i, &(start, size))| candidate(start, size, 0, i)).collect();
            let code = [(0, 1000)];
            let (ranges, _) = flatten(candidates.clone(), &code);
            for pair in ranges.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
            }
            let mut seen = std::collections::HashSet::new();
            let unique: Vec<_> = candidates.iter().filter(|c| seen.insert(c.start)).collect();
            for address in 0..300 {
                let innermost = unique
                    .iter()
                    .filter(|c| c.start <= address && address < c.start + c.size)
                    .max_by_key(|c| c.start)
                    .map(|c| c.name.0);
                let found = ranges.iter().find(|r| r.start <= address && address < r.end).map(|r| r.name.0);
                prop_assert_eq!(found, innermost, "at {}", address);
            }
        }
    }
}
