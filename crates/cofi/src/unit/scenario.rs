//! What every scenario says, whatever the unit: what it is about, what should come out, where it begins.

use super::reader::{Field, Mistake, Read, Table};

/// What should come out, as far as the scenario says.
pub(super) struct Expected {
    /// Of `[start]`.
    pub(super) start: Option<Expect>,
    /// Of the operations.
    pub(super) operations: Option<Expect>,
}

/// An expected output.
pub(super) struct Expect {
    /// The key under which it stands.
    pub(super) key: &'static str,
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

/// The keys `title`, `table`, `section` and `note`, for people; `unit`, `expect_start`, `expect` and `ip`.
pub(super) fn about(document: &Table<'_>) -> Read<(UnitName, Expected, u64)> {
    for key in ["title", "table", "section", "note"] {
        if let Some(field) = document.get(key) {
            field.text()?;
        }
    }
    let unit = match document.get("unit") {
        Some(field) => field.choice(&[("pt", UnitName::IntelPt), ("rtit", UnitName::Rtit)])?,
        None => UnitName::IntelPt,
    };
    let text = |key| match document.get(key) {
        Some(field) => Ok(Some(Expect {
            key,
            text: field.text()?.to_owned(),
            at: field.at,
        })),
        None => Ok(None),
    };
    let expect = Expected {
        start: text("expect_start")?,
        operations: text("expect")?,
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

/// The key `output`: whether stores are listed, and no packets.
pub(super) fn lists_stores(document: &Table<'_>) -> Read<bool> {
    match document.get("output") {
        Some(field) => field.choice(&[("packets", false), ("stores", true)]),
        None => Ok(false),
    }
}
