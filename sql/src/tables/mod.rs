//! The tables, each in the file of what its rows are about.

mod block_counts;
mod calls;
mod checks;
mod code;
mod events;
mod lines;
mod packet_stats;
mod recordings;
mod slices;
mod threads;

use std::fmt::Write;
use std::sync::Arc;

use cofi_session::StreamKey;

use crate::columns::{Column, Rows, number, text};
use crate::functions;
use crate::table::{Table, Unit};

/// All tables, in the order in which they are documented.
#[must_use]
pub fn all() -> Vec<Arc<dyn Table>> {
    vec![
        Arc::new(recordings::Recordings),
        Arc::new(recordings::Processes),
        Arc::new(threads::Threads),
        Arc::new(code::Mappings),
        Arc::new(code::CodeFiles),
        Arc::new(code::Functions),
        Arc::new(lines::Lines),
        Arc::new(calls::Calls),
        Arc::new(block_counts::BlockCounts),
        Arc::new(slices::Slices),
        Arc::new(events::Events),
        Arc::new(checks::Gaps),
        Arc::new(checks::Seals),
        Arc::new(packet_stats::PacketStats),
    ]
}

/// The column that all tables begin with.
pub(crate) const RECORDING: Column = text("recording", "the recording: FILE as it was given");
/// Those by which a stream is known.
pub(crate) const TID: Column = number(
    "tid",
    "the thread; NULL where no thread is known, as in a processor's stream before a switch tells one",
);
pub(crate) const CPU: Column = number("cpu", "the processor; NULL in a thread's own stream");
pub(crate) const OFFSET: Column = number(
    "stream_offset",
    "the byte of the stream at which its packet begins",
);

/// A thread, if it is known: a processor's stream begins without one, and bare packets have none.
fn tid_of(key: StreamKey, tid: u32) -> Option<u64> {
    let is_known = tid != 0 || key.tid().is_some();
    is_known.then_some(tid.into())
}

/// Gives a row the columns `recording`, `tid` and `cpu`.
pub(crate) fn head<'r>(row: &'r mut Rows, unit: &Unit, key: StreamKey, tid: u32) -> &'r mut Rows {
    row.text(unit.recording.name())
        .number(tid_of(key, tid))
        .number(key.cpu().map(u64::from))
}

/// All tables and their columns, as `docs/sql.md` has them.
#[must_use]
pub fn describe() -> String {
    let mut page = String::new();
    let tables = all().into_iter().map(|table| (table, ""));
    let functions = functions::all().into_iter();
    let functions = functions.map(|table| (table, "(recording, thread, from, to)"));
    for (table, arguments) in tables.chain(functions) {
        // Writing to a text does not fail.
        let _ = writeln!(
            page,
            "### `{}{arguments}`\n\n{}\n",
            table.name(),
            table.about()
        );
        page += "| column | type | what it is |\n|---|---|---|\n";
        for column in table.columns() {
            let (name, kind, about) = (column.name, column.kind.sql(), column.about);
            let _ = writeln!(page, "| `{name}` | {kind} | {about} |");
        }
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Names are a promise: who changes one changes the page, and sees that.
    #[test]
    fn the_page_has_all_tables_and_columns() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sql.md");
        let page = std::fs::read_to_string(page).expect("docs/sql.md");
        let (_, rest) = page.split_once("<!-- tables -->\n\n").expect("a begin");
        let (told, _) = rest.split_once("<!-- end of tables -->").expect("an end");
        assert!(
            told == describe(),
            "`cofi-sql tables` says what belongs there"
        );
    }

    #[test]
    fn names_are_fit_for_sql() {
        for table in all() {
            let names = table.columns().iter().map(|column| column.name);
            let names: Vec<&str> = names.chain([table.name()]).collect();
            let is_plain = |name: &&str| {
                name.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
            };
            assert!(names.iter().all(is_plain), "{names:?}");
            let distinct: BTreeSet<_> = table.columns().iter().map(|c| c.name).collect();
            assert_eq!(distinct.len(), table.columns().len(), "{}", table.name());
        }
    }
}
