//! All lines and functions of a file that its debugging information knows, whether they ran or not.

use gimli::{
    AttributeValue, DW_AT_abstract_origin, DW_AT_comp_dir, DW_AT_decl_file, DW_AT_decl_line,
    DW_AT_high_pc, DW_AT_low_pc, DW_AT_specification, DW_TAG_subprogram, DebuggingInformationEntry,
    Dwarf, EndianArcSlice, Reader as _, RunTimeEndian, SectionId, Unit, UnitRef,
};
use std::collections::HashMap;
use std::rc::Rc;

use crate::contents::Contents;
use crate::file::CodeFile;
use crate::lines::{Reader, dwarf_with, endian_of};
use crate::sections::{Parts, Sections};

/// Code that was compiled from one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRow {
    /// Its first address, in the file's own terms.
    pub start: u64,
    /// How many bytes it has.
    pub len: u32,
    /// Which of [`LineTable::files`].
    pub file: u32,
    /// The line, from 1 on; 0 where the compiler did not tell one.
    pub line: u32,
}

impl LineRow {
    /// The address behind it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.len as u64)
    }
}

/// A function as the source has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFunction {
    /// Its first address, in the file's own terms.
    pub start: u64,
    /// The address behind it, if it is in one piece.
    pub end: u64,
    /// Where it is declared: which of [`LineTable::files`], and the line.
    pub declared: Option<(u32, u32)>,
}

/// The lines of a file of code. Damaged debugging information gives as much as can be read.
#[derive(Debug, Default)]
pub struct LineTable {
    files: Vec<String>,
    rows: Vec<LineRow>,
    functions: Vec<SourceFunction>,
}

impl LineTable {
    /// That of a file, from itself or its file of debugging information; none if neither has line tables.
    #[must_use]
    pub fn of(file: &CodeFile) -> Option<Self> {
        let is_code = |address: u64| {
            let segments = file.segments();
            segments.iter().any(|segment| {
                let inside = address.checked_sub(segment.address);
                segment.executable && inside.is_some_and(|inside| inside < segment.len)
            })
        };
        file.find_with_debug(|contents| Self::read(contents, is_code))
    }

    fn read(contents: &Contents, is_code: impl Fn(u64) -> bool) -> Option<Self> {
        let sections = Sections::of(contents)?;
        let is_small = |id| {
            use SectionId::{DebugAbbrev, DebugAddr, DebugLine, DebugLineStr, DebugStrOffsets};
            let small = [
                DebugAbbrev,
                DebugAddr,
                DebugLine,
                DebugLineStr,
                DebugStrOffsets,
            ];
            small.contains(&id)
        };
        let mut reader = TableReader {
            dwarf: dwarf_with(&sections, contents, is_small)?,
            endian: endian_of(&sections),
            units: Parts::of(&sections, ".debug_info", contents),
            strings: Parts::of(&sections, ".debug_str", contents),
            is_code,
            numbers: HashMap::new(),
            programs: HashMap::new(),
            folder: None,
            table: Self::default(),
        };
        reader.read();
        let mut table = reader.table;
        table.rows.sort_by_key(|row| row.start);
        table.functions.sort_by_key(|function| function.start);
        table.functions.dedup_by_key(|function| function.start);
        Some(table)
    }

    /// The source files, as the debugging information names them.
    #[must_use]
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// All rows, by address. Each holds at least one byte.
    #[must_use]
    pub fn rows(&self) -> &[LineRow] {
        &self.rows
    }

    /// The functions that have code, by address.
    #[must_use]
    pub fn functions(&self) -> &[SourceFunction] {
        &self.functions
    }

    /// Which row holds an address.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&LineRow> {
        let next = self.rows.partition_point(|row| row.start <= address);
        let row = self.rows.get(next.checked_sub(1)?)?;
        (address < row.end()).then_some(row)
    }

    /// The source files, the rows and the functions, for whoever makes something else of them: a large program has millions of rows.
    #[must_use]
    pub fn into_parts(self) -> (Vec<String>, Vec<LineRow>, Vec<SourceFunction>) {
        (self.files, self.rows, self.functions)
    }
}

/// No path is longer.
const LONGEST: usize = 4096;

/// Reads the line table of each compilation unit, one unit after the other: of what tells of them nothing is kept.
struct TableReader<'c, F> {
    /// Without what is largest: the units, of which the one at hand is there, and the texts.
    dwarf: Dwarf<Reader>,
    endian: RunTimeEndian,
    units: Parts<'c>,
    strings: Parts<'c>,
    /// What the linker left out is said to be where no code is.
    is_code: F,
    numbers: HashMap<String, u32>,
    /// The files of each program that was run: many units may name one.
    programs: HashMap<usize, Rc<HashMap<u64, u32>>>,
    /// The folder in which the compiler ran for the unit at hand.
    folder: Option<String>,
    table: LineTable,
}

impl<F: Fn(u64) -> bool> TableReader<'_, F> {
    fn read(&mut self) {
        let mut at = 0;
        while let Some(len) = self.unit_len(at)
            && let Some(bytes) = self.units.read(at, len)
        {
            at += len;
            self.dwarf.debug_info = EndianArcSlice::new(bytes, self.endian).into();
            let Ok(Some(header)) = self.dwarf.units().next() else {
                break;
            };
            if let Ok(unit) = self.dwarf.unit(header) {
                self.folder = self.folder_of(&unit);
                let files = self.rows(&unit).unwrap_or_default();
                // What could be read before an error counts.
                let _ = self.functions(&unit, &files);
            }
        }
    }

    /// How many bytes the unit has that begins at `at`, which its first four tell, or the eight behind these.
    fn unit_len(&self, at: u64) -> Option<u64> {
        let rest = self.units.len().checked_sub(at)?;
        let bytes = self.units.read(at, rest.min(12))?;
        let mut head = EndianArcSlice::new(bytes, self.endian);
        let (len, format) = head.read_initial_length().ok()?;
        u64::from(format.initial_length_size()).checked_add(len as u64)
    }

    /// A text that debugging information refers to.
    fn text(&self, unit: &Unit<Reader>, value: AttributeValue<Reader>) -> Option<String> {
        let offset = match value {
            AttributeValue::DebugStrRef(offset) => offset,
            AttributeValue::DebugStrOffsetsIndex(index) => {
                let (format, base) = (unit.encoding().format, unit.str_offsets_base);
                let offsets = &self.dwarf.debug_str_offsets;
                offsets.get_str_offset(format, base, index).ok()?
            }
            value => {
                let text = self.dwarf.attr_string(unit, value).ok()?;
                return Some(text.to_string_lossy().ok()?.into_owned());
            }
        };
        let at = offset.0 as u64;
        let rest = self.strings.len().checked_sub(at)?;
        // Of one that is longer than a path can be, as much is enough as tells so.
        let bytes = self.strings.read(at, rest.min(LONGEST as u64 + 1))?;
        let is_too_long = (bytes.len() > LONGEST).then_some(bytes.len());
        let end = bytes.iter().position(|byte| *byte == 0).or(is_too_long)?;
        Some(String::from_utf8_lossy(bytes.get(..end)?).into_owned())
    }

    fn folder_of(&self, unit: &Unit<Reader>) -> Option<String> {
        let mut entries = unit.entries();
        let root = entries.next_dfs().ok()??;
        self.text(unit, root.attr_value(DW_AT_comp_dir)?)
    }

    fn file(&mut self, name: String) -> u32 {
        let next = self.table.files.len() as u32;
        let number = *self.numbers.entry(name.clone()).or_insert(next);
        if number == next {
            self.table.files.push(name);
        }
        number
    }

    /// Adds the rows of a unit, and gives the numbers of its files.
    fn rows(&mut self, unit: &Unit<Reader>) -> Option<Rc<HashMap<u64, u32>>> {
        let program = unit.line_program.clone()?;
        let offset = program.header().offset().0;
        if let Some(files) = self.programs.get(&offset) {
            return Some(files.clone());
        }
        let mut files: HashMap<u64, u32> = HashMap::new();
        let mut rows = program.rows();
        let mut open: Option<LineRow> = None;
        while let Ok(Some((header, row))) = rows.next_row() {
            let address = row.address();
            if let Some(before) = open.take() {
                // No statement has 4 GiB of code.
                let len = address.saturating_sub(before.start);
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                if len > 0 && (self.is_code)(before.start) {
                    self.table.rows.push(LineRow { len, ..before });
                }
            }
            if row.end_sequence() {
                continue;
            }
            let index = row.file_index();
            let file = match files.get(&index) {
                Some(file) => *file,
                None => {
                    let name = header.file(index).map(|file| self.path(unit, header, file));
                    let file = self.file(name.flatten().unwrap_or_else(|| "?".into()));
                    files.insert(index, file);
                    file
                }
            };
            let line = row.line().map_or(0, |line| line.get());
            open = Some(LineRow {
                start: address,
                len: 0,
                file,
                line: u32::try_from(line).unwrap_or(0),
            });
        }
        let files = Rc::new(files);
        self.programs.insert(offset, files.clone());
        Some(files)
    }

    /// The path of a source file: where the compiler ran, the folder, the name.
    fn path(
        &self,
        unit: &Unit<Reader>,
        header: &gimli::LineProgramHeader<Reader>,
        file: &gimli::FileEntry<Reader>,
    ) -> Option<String> {
        let mut path = self.folder.clone().unwrap_or_default();
        // Folder 0 is the one where the compiler ran.
        if file.directory_index() != 0
            && let Some(folder) = file.directory(header)
        {
            join(&mut path, &self.text(unit, folder)?);
        }
        join(&mut path, &self.text(unit, file.path_name())?);
        // Any number of files may share one long name.
        (path.len() <= LONGEST).then_some(path)
    }

    fn functions(
        &mut self,
        unit: &Unit<Reader>,
        files: &HashMap<u64, u32>,
    ) -> Result<(), gimli::Error> {
        let mut found = Vec::new();
        let unit_ref = unit.unit_ref(&self.dwarf);
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs()? {
            if entry.tag() == DW_TAG_subprogram
                && let Some(function) = function(unit_ref, entry)
                && (self.is_code)(function.start)
            {
                found.push(function);
            }
        }
        for (function, declared) in found
            .into_iter()
            .map(|found| (found.clone(), found.declared))
        {
            // (The number of a file is that of the unit until here.)
            let declared = declared.and_then(|(file, line)| {
                let number = files.get(&u64::from(file)).copied();
                let number = number.or_else(|| {
                    let header = unit.line_program.as_ref()?.header();
                    let name = self.path(unit, header, header.file(file.into())?)?;
                    Some(self.file(name))
                });
                Some((number?, line))
            });
            self.table.functions.push(SourceFunction {
                declared,
                ..function
            });
        }
        Ok(())
    }
}

/// A function that has code; its file is numbered as in its unit.
fn function(
    unit: UnitRef<'_, Reader>,
    entry: &DebuggingInformationEntry<Reader>,
) -> Option<SourceFunction> {
    let start = unit
        .attr_address(entry.attr_value(DW_AT_low_pc)?)
        .ok()
        .flatten()?;
    let end = match entry.attr_value(DW_AT_high_pc) {
        Some(value) => match value.udata_value() {
            Some(len) => start.checked_add(len)?,
            None => unit.attr_address(value).ok().flatten()?,
        },
        None => start,
    };
    let mut function = SourceFunction {
        start,
        end,
        declared: None,
    };
    let (mut file, mut line) = (None, None);
    let mut entry = entry.clone();
    // An instance refers to what it is of, and that may to a declaration.
    for _ in 0..4 {
        file = file.or_else(|| match entry.attr_value(DW_AT_decl_file)? {
            AttributeValue::FileIndex(file) => Some(file),
            value => value.udata_value(),
        });
        line = line.or_else(|| entry.attr_value(DW_AT_decl_line)?.udata_value());
        let of = [DW_AT_abstract_origin, DW_AT_specification];
        let of = of
            .into_iter()
            .find_map(|attribute| entry.attr_value(attribute));
        let Some(AttributeValue::UnitRef(offset)) = of else {
            break;
        };
        let Ok(next) = unit.entry(offset) else { break };
        entry = next;
    }
    if let (Some(file), Some(line)) = (file, line) {
        let numbers = (u32::try_from(file), u32::try_from(line));
        if let (Ok(file), Ok(line)) = numbers {
            function.declared = Some((file, line));
        }
    }
    Some(function)
}

/// Puts a path behind a folder.
fn join(path: &mut String, name: &str) {
    let name = name.strip_prefix("./").unwrap_or(name);
    if name == "." || name.is_empty() {
        return;
    }
    if name.starts_with('/') {
        path.clear();
    } else if !path.is_empty() && !path.ends_with('/') {
        path.push('/');
    }
    path.push_str(name);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileStore;

    #[test]
    fn all_lines_and_functions_of_a_program() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("table.c");
        let text = "static int never(int n)\n{\n    return n + 1;\n}\nint main(int c, char **v)\n{\n    if (c > 9)\n        c = never(c);\n    return c;\n}\n";
        std::fs::write(&source, text).unwrap();
        let program = folder.path().join("table");
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            if !cofi_test::compile(&source, &program, &["-O0", version]) {
                return;
            }
            let table = LineTable::of(&FileStore::new().file(&program)).expect("lines");
            let is_ours = |file: u32| table.files()[file as usize].ends_with("/table.c");
            let rows = table.rows().iter().filter(|row| is_ours(row.file));
            let mut lines: Vec<u32> = rows.clone().map(|row| row.line).collect();
            lines.sort_unstable();
            lines.dedup();
            assert_eq!(lines, [2, 3, 4, 6, 7, 8, 9, 10], "{version}");
            for row in rows {
                assert!(row.start < row.end());
                assert_eq!(table.at(row.start).map(|found| found.line), Some(row.line));
            }
            let functions = table.functions().iter();
            let declared = functions.filter_map(|function| function.declared);
            let declared: Vec<u32> = declared.map(|(_, line)| line).collect();
            assert_eq!(declared, [1, 5], "{version}");
        }
    }

    #[test]
    fn what_is_no_program_has_no_table() {
        let file = CodeFile::from_bytes("bytes", vec![0x7f; 64]);
        assert!(LineTable::of(&file).is_none());
    }
}
