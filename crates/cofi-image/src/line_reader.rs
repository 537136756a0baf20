//! Reads line tables and functions out of debugging information, one unit after the other.

use std::collections::HashMap;
use std::rc::Rc;

use gimli::{
    AttributeValue, DW_AT_comp_dir, DebugAranges, Dwarf, EndianArcSlice, Reader as _,
    RunTimeEndian, SectionId, Unit,
};

use crate::contents::Contents;
use crate::line_table::{LineRow, SourceFunction};
use crate::lines::{Reader, dwarf_with, endian_of};
use crate::sections::{Parts, Sections};
use crate::source_functions::functions_of;
use crate::wanted_code::{WantedCode, WantedUnits, is_unit_wanted};

/// No path is longer.
const LONGEST: usize = 4096;

/// Source files, rows and functions.
pub(crate) type Table = (Vec<String>, Vec<LineRow>, Vec<SourceFunction>);

/// Reads the line table of each compilation unit, one unit after the other: of what tells of them nothing is kept.
pub(crate) struct TableReader<'c, F> {
    /// Without what is largest: the units, of which the one at hand is there, and the texts.
    dwarf: Dwarf<Reader>,
    endian: RunTimeEndian,
    units: Parts<'c>,
    strings: Parts<'c>,
    /// What the linker left out is said to be where no code is.
    is_code: F,
    wanted: WantedCode<'c>,
    wanted_units: WantedUnits,
    numbers: HashMap<String, u32>,
    /// The files of each program that was run: many units may name one.
    programs: HashMap<usize, Rc<HashMap<u64, u32>>>,
    /// The folder in which the compiler ran for the unit at hand.
    folder: Option<String>,
    table: Table,
}

impl<'c, F: Fn(u64) -> bool> TableReader<'c, F> {
    /// Of a file; none if it has no line tables.
    pub(crate) fn of(contents: &'c Contents, is_code: F, wanted: WantedCode<'c>) -> Option<Self> {
        use SectionId::{
            DebugAbbrev, DebugAddr, DebugAranges as ArangesSection, DebugLine, DebugLineStr,
            DebugRanges, DebugRngLists, DebugStrOffsets,
        };
        let sections = Sections::of(contents)?;
        let endian = endian_of(&sections);
        let mut wanted_units = WantedUnits::default();
        // Without a table of the addresses of all units, each tells by itself what it has.
        let mut asks_units = false;
        if !wanted.is_all() {
            match sections.read(ArangesSection.name(), contents) {
                Some(bytes) => {
                    let table = DebugAranges::from(EndianArcSlice::new(bytes, endian));
                    wanted_units = WantedUnits::of(&table, wanted);
                }
                None => asks_units = true,
            }
        }
        let is_loaded = |id| match id {
            DebugAbbrev | DebugAddr | DebugLine | DebugLineStr | DebugStrOffsets => true,
            DebugRanges | DebugRngLists => asks_units,
            _ => false,
        };
        Some(Self {
            dwarf: dwarf_with(&sections, contents, is_loaded)?,
            endian,
            units: Parts::of(&sections, ".debug_info", contents),
            strings: Parts::of(&sections, ".debug_str", contents),
            is_code,
            wanted,
            wanted_units,
            numbers: HashMap::new(),
            programs: HashMap::new(),
            folder: None,
            table: Table::default(),
        })
    }

    /// Reads all units of which something is wanted. Rows and functions of each are in order, or in that of the unit.
    pub(crate) fn read_all(mut self) -> Table {
        let mut at = 0;
        while let Some(len) = self.unit_len(at) {
            let has_rows = self.wanted_units.at(at);
            let is_wanted = has_rows.unwrap_or(true) || self.wanted.has_all_functions();
            if is_wanted && self.unit(at, len, has_rows).is_none() {
                break;
            }
            at += len;
        }
        self.table
    }

    /// Reads a unit, which has rows that are wanted, if it is known whether it does. None if there is no unit.
    fn unit(&mut self, at: u64, len: u64, has_rows: Option<bool>) -> Option<()> {
        let bytes = self.units.read(at, len)?;
        self.dwarf.debug_info = EndianArcSlice::new(bytes, self.endian).into();
        let header = self.dwarf.units().next().ok()??;
        let Ok(unit) = self.dwarf.unit(header) else {
            return Some(());
        };
        let has_rows = has_rows.unwrap_or_else(|| is_unit_wanted(&self.dwarf, &unit, self.wanted));
        self.folder = self.folder_of(&unit);
        let mut rows = Vec::new();
        let mut files = Rc::default();
        if has_rows {
            files = self.rows(&unit, &mut rows).unwrap_or_default();
        }
        if !self.wanted.has_all_functions() && !self.wanted.is_in_any(&rows) {
            return Some(());
        }
        let functions = self.functions(&unit, &files);
        let (rows, functions) = self.wanted.keep(rows, functions);
        self.table.1.extend(rows);
        self.table.2.extend(functions);
        Some(())
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
        let next = self.table.0.len() as u32;
        let number = *self.numbers.entry(name.clone()).or_insert(next);
        if number == next {
            self.table.0.push(name);
        }
        number
    }

    /// Adds the rows of a unit, and gives the numbers of its files.
    fn rows(
        &mut self,
        unit: &Unit<Reader>,
        found: &mut Vec<LineRow>,
    ) -> Option<Rc<HashMap<u64, u32>>> {
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
                    found.push(LineRow { len, ..before });
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

    /// The functions of a unit that have code.
    fn functions(&mut self, unit: &Unit<Reader>, files: &HashMap<u64, u32>) -> Vec<SourceFunction> {
        let mut found = functions_of(unit.unit_ref(&self.dwarf));
        found.retain(|function| (self.is_code)(function.start));
        for function in &mut found {
            // (The number of a file is that of the unit until here.)
            function.declared = function.declared.and_then(|(file, line)| {
                let number = files.get(&u64::from(file)).copied();
                let number = number.or_else(|| {
                    let header = unit.line_program.as_ref()?.header();
                    let name = self.path(unit, header, header.file(file.into())?)?;
                    Some(self.file(name))
                });
                Some((number?, line))
            });
        }
        found
    }
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
