//! The functions of a unit of debugging information.

use gimli::{Abbreviation, AttributeValue, DW_TAG_subprogram, EntriesRaw, UnitOffset, UnitRef};

use crate::line_table::SourceFunction;
use crate::lines::Reader;

type Value = AttributeValue<Reader>;

/// What an entry says of a function.
#[derive(Debug, Default)]
struct Entry {
    low_pc: Option<Value>,
    high_pc: Option<Value>,
    file: Option<Value>,
    line: Option<Value>,
    origin: Option<Value>,
    specification: Option<Value>,
}

impl Entry {
    fn read(raw: &mut EntriesRaw<'_, Reader>, of: &Abbreviation) -> gimli::Result<Self> {
        let mut entry = Self::default();
        for spec in of.attributes() {
            let value = match spec.name() {
                gimli::DW_AT_low_pc => &mut entry.low_pc,
                gimli::DW_AT_high_pc => &mut entry.high_pc,
                gimli::DW_AT_decl_file => &mut entry.file,
                gimli::DW_AT_decl_line => &mut entry.line,
                gimli::DW_AT_abstract_origin => &mut entry.origin,
                gimli::DW_AT_specification => &mut entry.specification,
                _ => {
                    raw.skip_attributes(std::slice::from_ref(spec))?;
                    continue;
                }
            };
            let read = raw.read_attribute(*spec)?.value();
            value.get_or_insert(read);
        }
        Ok(entry)
    }

    fn at(unit: UnitRef<'_, Reader>, offset: UnitOffset) -> Option<Self> {
        let mut raw = unit.entries_raw(Some(offset)).ok()?;
        let of = raw.read_abbreviation().ok()??;
        Self::read(&mut raw, of).ok()
    }

    /// The function, if it has code; its file is numbered as in its unit.
    fn function(self, unit: UnitRef<'_, Reader>) -> Option<SourceFunction> {
        let address = |value| unit.attr_address(value).ok().flatten();
        let start = address(self.low_pc.clone()?)?;
        let end = match self.high_pc.clone() {
            Some(value) => match value.udata_value() {
                Some(len) => start.checked_add(len)?,
                None => address(value)?,
            },
            None => start,
        };
        let (mut file, mut line) = (None, None);
        let mut entry = self;
        // An instance refers to what it is of, and that may to a declaration.
        for _ in 0..4 {
            file = file.or_else(|| match entry.file.take()? {
                AttributeValue::FileIndex(file) => Some(file),
                value => value.udata_value(),
            });
            line = line.or_else(|| entry.line.take()?.udata_value());
            let Some(AttributeValue::UnitRef(offset)) = entry.origin.or(entry.specification) else {
                break;
            };
            let Some(next) = Self::at(unit, offset) else {
                break;
            };
            entry = next;
        }
        let number = |number: Option<u64>| u32::try_from(number?).ok();
        Some(SourceFunction {
            start,
            end,
            declared: number(file).zip(number(line)),
        })
    }
}

/// All functions of a unit that have code. What stands before something damaged counts.
pub(crate) fn functions_of(unit: UnitRef<'_, Reader>) -> Vec<SourceFunction> {
    let mut found = Vec::new();
    if let Ok(mut raw) = unit.entries_raw(None) {
        while let Ok(true) = read_next(&mut raw, unit, &mut found) {}
    }
    found
}

/// Reads an entry; `false` at the end.
fn read_next(
    raw: &mut EntriesRaw<'_, Reader>,
    unit: UnitRef<'_, Reader>,
    found: &mut Vec<SourceFunction>,
) -> gimli::Result<bool> {
    if raw.is_empty() {
        return Ok(false);
    }
    if let Some(of) = raw.read_abbreviation()? {
        if of.tag() == DW_TAG_subprogram {
            found.extend(Entry::read(raw, of)?.function(unit));
        } else {
            raw.skip_attributes(of.attributes())?;
        }
    }
    Ok(true)
}
