//! Tables for people.

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};

/// A table with these heads. Columns are set to the right, but for those in `left`.
pub(crate) fn table(heads: &[&str], left: &[usize]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(
        heads
            .iter()
            .map(|head| Cell::new(head).add_attribute(Attribute::Bold)),
    );
    for (index, column) in table.column_iter_mut().enumerate() {
        if !left.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The table's lines, without the spaces at their ends.
pub(crate) fn lines(table: &Table) -> String {
    let lines: Vec<_> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.join("\n")
}
