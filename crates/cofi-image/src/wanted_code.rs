//! What of a file's debugging information is wanted: that of all code, or of the code at some addresses.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{DebugAranges, Dwarf, Unit};

use crate::line_table::{LineRow, SourceFunction};
use crate::lines::Reader;

/// What of a file's debugging information is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedCode<'a> {
    /// Addresses of the file's code, in order; or none, which is all there is.
    addresses: Option<&'a [u64]>,
    /// All functions are wanted, and of these addresses only the rows.
    all_functions: bool,
}

impl<'a> WantedCode<'a> {
    pub(crate) const fn all() -> Self {
        Self {
            addresses: None,
            all_functions: true,
        }
    }

    pub(crate) const fn at(addresses: &'a [u64]) -> Self {
        Self {
            addresses: Some(addresses),
            all_functions: false,
        }
    }

    pub(crate) const fn with_all_functions(mut self) -> Self {
        self.all_functions = true;
        self
    }

    pub(crate) const fn is_all(self) -> bool {
        self.addresses.is_none()
    }

    pub(crate) const fn has_all_functions(self) -> bool {
        self.all_functions
    }

    /// Whether any of the code there is wanted.
    fn is_in(self, range: Range<u64>) -> bool {
        let Some(addresses) = self.addresses else {
            return true;
        };
        let first = addresses.partition_point(|address| *address < range.start);
        let first = addresses.get(first);
        first.is_some_and(|address| *address < range.end)
    }

    /// Whether any of the code of these rows is wanted.
    pub(crate) fn is_in_any(self, rows: &[LineRow]) -> bool {
        self.is_all() || rows.iter().any(|row| self.is_in(row.start..row.end()))
    }

    /// Of the rows and functions of a unit those that are needed to tell of what is wanted: the functions that hold it, and all their rows, since what a row
    /// is counted for follows from those before it in its function.
    pub(crate) fn keep(
        self,
        mut rows: Vec<LineRow>,
        mut functions: Vec<SourceFunction>,
    ) -> (Vec<LineRow>, Vec<SourceFunction>) {
        if self.is_all() {
            return (rows, functions);
        }
        rows.sort_by_key(|row| row.start);
        functions.sort_by_key(|function| function.start);
        functions.dedup_by_key(|function| function.start);
        let all = self.all_functions.then(|| functions.clone());
        let mut functions = functions.into_iter().peekable();
        let (mut kept, mut holding) = (Vec::new(), Vec::new());
        let mut rest = rows.as_slice();
        while let Some(first) = rest.first() {
            let mut function = None;
            while let Some(next) = functions.next_if(|next| next.start <= first.start) {
                function = Some(next);
            }
            let next = functions.peek().map(|next| next.start);
            let is_of_it = |row: &LineRow| next.is_none_or(|next| row.start < next);
            let (of_it, others) = rest.split_at(rest.partition_point(is_of_it));
            rest = others;
            let end = of_it.iter().map(LineRow::end).max();
            // Up to the next row, so that no row before these is taken for what has none.
            let end = end.max(others.first().map(|row| row.start));
            if self.is_in(first.start..end.unwrap_or(first.start)) {
                kept.extend_from_slice(of_it);
                holding.extend(function);
            }
        }
        (kept, all.unwrap_or(holding))
    }
}

/// Which units have code that is wanted.
#[derive(Debug, Default)]
pub(crate) struct WantedUnits(HashMap<u64, bool>);

impl WantedUnits {
    /// As a file's table of the addresses of its units tells, which may leave units out.
    pub(crate) fn of(aranges: &DebugAranges<Reader>, wanted: WantedCode<'_>) -> Self {
        let mut units: HashMap<u64, bool> = HashMap::new();
        let mut headers = aranges.headers();
        // What could be read before an error counts.
        while let Ok(Some(header)) = headers.next() {
            let offset = header.debug_info_offset().0 as u64;
            let is_wanted = units.entry(offset).or_default();
            let mut entries = header.entries();
            loop {
                match entries.next() {
                    Ok(Some(entry)) => {
                        let range = entry.range();
                        *is_wanted |= wanted.is_in(range.begin..range.end);
                    }
                    Ok(None) => break,
                    Err(_) => {
                        // Who knows what stands behind it.
                        *is_wanted = true;
                        break;
                    }
                }
            }
        }
        Self(units)
    }

    /// Whether the unit at an offset has code that is wanted, if the table tells.
    pub(crate) fn at(&self, offset: u64) -> Option<bool> {
        self.0.get(&offset).copied()
    }
}

/// Whether a unit has code that is wanted, as it tells itself; one that does not tell may have.
pub(crate) fn is_unit_wanted(
    dwarf: &Dwarf<Reader>,
    unit: &Unit<Reader>,
    wanted: WantedCode<'_>,
) -> bool {
    if wanted.is_all() {
        return true;
    }
    let Ok(mut ranges) = dwarf.unit_ranges(unit) else {
        return true;
    };
    let mut has_any = false;
    loop {
        match ranges.next() {
            Ok(Some(range)) if wanted.is_in(range.begin..range.end) => return true,
            Ok(Some(_)) => has_any = true,
            Ok(None) => return !has_any,
            Err(_) => return true,
        }
    }
}
