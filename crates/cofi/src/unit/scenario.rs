//! What every scenario says, whatever the unit: what it is about, what should come out, where it begins.

use super::reader::{Field, Mistake, Read, Table};

/// The expected output.
pub(super) struct Expect {
    pub(super) text: String,
    /// Where the text stands in the file.
    pub(super) at: usize,
}

/// The format whose unit is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UnitName {
    IntelPt,
    Rtit,
}

/// The keys `title`, `table`, `section` and `note`, for people; `unit`, `expect` and `ip`.
pub(super) fn about(document: &Table<'_>) -> Read<(UnitName, Option<Expect>, u64)> {
    for key in ["title", "table", "section", "note"] {
        if let Some(field) = document.get(key) {
            field.text()?;
        }
    }
    let unit = match document.get("unit") {
        Some(field) => field.choice(&[("pt", UnitName::IntelPt), ("rtit", UnitName::Rtit)])?,
        None => UnitName::IntelPt,
    };
    let expect = match document.get("expect") {
        Some(field) => Some(Expect {
            text: field.text()?.to_owned(),
            at: field.at,
        }),
        None => None,
    };
    let ip = match document.get("ip") {
        Some(field) => field.number()?,
        None => 0x1000,
    };
    Ok((unit, expect, ip))
}

/// What is to happen.
pub(super) fn operations<'t>(document: &Table<'t>) -> Read<Field<'t>> {
    document
        .get("op")
        .ok_or_else(|| Mistake::new(0, "there are no operations: [[op]]"))
}
