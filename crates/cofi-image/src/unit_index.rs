//! Which unit of debugging information tells of an address, so that only those need be read of which something is wanted.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{DebugInfoOffset, Dwarf, Reader as _, Section as _, Unit, UnitType};

use crate::lazy::LazyReader;

/// Where the code of units lies.
#[derive(Debug, Default)]
pub(crate) struct UnitIndex {
    /// By the end.
    ranges: Vec<UnitRange>,
}

#[derive(Debug)]
struct UnitRange {
    range: Range<u64>,
    /// The least begin of this and those behind it.
    least: u64,
    unit: Range<usize>,
}

impl UnitIndex {
    /// Of the units of a file: as the table of their addresses tells, or as each tells itself if it is not in there. Units are read one by one and not kept.
    /// None if the table is damaged.
    pub(crate) fn of(mut dwarf: Dwarf<LazyReader>) -> Option<Self> {
        let mut known = aranges(&dwarf).ok()?;
        let units = dwarf.debug_info.reader().clone();
        let mut ranges = Vec::new();
        let mut at = 0;
        while let Some(len) = unit_len(&units, at) {
            let end = at.checked_add(len)?;
            let offset = usize::try_from(at).ok()?;
            let found = match known.remove(&DebugInfoOffset(offset)) {
                Some(found) => found,
                None => {
                    let Some(unit) = units.part(at, len) else {
                        break;
                    };
                    dwarf.debug_info = unit.into();
                    ranges_of(&dwarf).unwrap_or_default()
                }
            };
            let unit = offset..usize::try_from(end).ok()?;
            let found = found.into_iter();
            ranges.extend(found.map(|range| (range.end, offset, range.start, unit.clone())));
            at = end;
        }
        ranges.sort_unstable_by_key(|(end, offset, ..)| (*end, *offset));
        let mut least = u64::MAX;
        let mut ranges: Vec<UnitRange> = ranges
            .into_iter()
            .rev()
            .map(|(end, _, start, unit)| {
                least = least.min(start);
                UnitRange {
                    range: start..end,
                    least,
                    unit,
                }
            })
            .collect();
        ranges.reverse();
        Some(Self { ranges })
    }

    /// The units that may have code at an address: where each stands in `.debug_info`.
    pub(crate) fn at(&self, address: u64) -> impl Iterator<Item = Range<usize>> {
        let first = self
            .ranges
            .partition_point(|unit| unit.range.end <= address);
        let rest = self.ranges.iter().skip(first);
        let rest = rest.take_while(move |unit| unit.least <= address);
        let holds = move |unit: &&UnitRange| unit.range.start <= address;
        rest.filter(holds).map(|unit| unit.unit.clone())
    }
}

/// How many bytes the unit has that begins at `at`.
fn unit_len(units: &LazyReader, at: u64) -> Option<u64> {
    let rest = (units.len() as u64).checked_sub(at)?;
    let mut head = units.part(at, rest.min(12))?;
    let (len, format) = head.read_initial_length().ok()?;
    u64::from(format.initial_length_size()).checked_add(len as u64)
}

/// The ranges of each unit that the table has.
fn aranges(dwarf: &Dwarf<LazyReader>) -> gimli::Result<HashMap<DebugInfoOffset, Vec<Range<u64>>>> {
    let mut known: HashMap<DebugInfoOffset, Vec<Range<u64>>> = HashMap::new();
    let mut headers = dwarf.debug_aranges.headers();
    while let Some(header) = headers.next()? {
        let mut entries = header.entries();
        let mut found = Vec::new();
        // An error that is not the last ends nothing: a length may overflow.
        while let Some(entry) = entries.next().transpose() {
            if let Ok(entry) = entry
                && entry.length() != 0
            {
                found.push(entry.range().begin..entry.range().end);
            }
        }
        if !found.is_empty() {
            known
                .entry(header.debug_info_offset())
                .or_default()
                .extend(found);
        }
    }
    Ok(known)
}

/// The ranges that the unit at hand tells itself, or else those of the sequences of its lines.
fn ranges_of(dwarf: &Dwarf<LazyReader>) -> gimli::Result<Vec<Range<u64>>> {
    let Some(header) = dwarf.units().next()? else {
        return Ok(Vec::new());
    };
    // What only others refer to has no code.
    if matches!(
        header.type_(),
        UnitType::Type { .. } | UnitType::SplitType { .. } | UnitType::Partial
    ) {
        return Ok(Vec::new());
    }
    let unit = dwarf.unit(header)?;
    let mut found = Vec::new();
    let mut ranges = dwarf.unit_ranges(&unit)?;
    while let Some(range) = ranges.next()? {
        if range.begin < range.end {
            found.push(range.begin..range.end);
        }
    }
    if found.is_empty() {
        found = sequences_of(&unit).unwrap_or_default();
    }
    Ok(found)
}

fn sequences_of(unit: &Unit<LazyReader>) -> gimli::Result<Vec<Range<u64>>> {
    let Some(program) = unit.line_program.clone() else {
        return Ok(Vec::new());
    };
    // Most units that tell no ranges have no code.
    if program.header().raw_program_buf().is_empty() {
        return Ok(Vec::new());
    }
    let (_, sequences) = program.sequences()?;
    let ranges = sequences.into_iter();
    Ok(ranges
        .map(|sequence| sequence.start..sequence.end)
        .collect())
}
