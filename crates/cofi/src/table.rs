//! Tables for people.

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};
use console::Term;

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

/// How many columns the terminal has to which output goes; nothing if it goes elsewhere.
pub(crate) fn width_of(output: &Term) -> Option<usize> {
    if !output.is_term() {
        return None;
    }
    let told = std::env::var("COLUMNS").ok();
    let told = told.and_then(|columns| columns.trim().parse().ok());
    let measured = || output.size_checked().map(|(_, columns)| columns.into());
    told.or_else(measured).filter(|columns| *columns > 0)
}

/// A text of at most so many letters, in whose middle something is left out if it is longer.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(1);
    let (begin, end) = (kept.div_ceil(2), kept / 2);
    let mut short: String = text.chars().take(begin).collect();
    short.push('…');
    short.extend(text.chars().skip(count - end));
    short
}

/// A text of at most so many letters, of which the end is left out if it is longer.
pub(crate) fn begin_of(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// A text of at most so many letters, of which the beginning is left out if it is longer.
pub(crate) fn end_of(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let kept = text.chars().skip(count - most.saturating_sub(1));
    std::iter::once('…').chain(kept).collect()
}

/// A column of a table that may have to fit a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    head: &'static str,
    is_left: bool,
    /// Names in it may be shortened.
    is_name: bool,
    /// They are shortened at the front: of a path the end tells more.
    is_path: bool,
    /// No name is made shorter than this.
    shortest: usize,
    /// It may be left out; those with a higher number first.
    spare: u8,
}

impl Column {
    /// Numbers.
    pub(crate) const fn number(head: &'static str) -> Self {
        Self {
            head,
            is_left: false,
            is_name: false,
            is_path: false,
            shortest: SHORTEST,
            spare: 0,
        }
    }

    /// Numbers that may be left out where there is no room; those with a higher number first, and those with the same one together.
    pub(crate) const fn spare(head: &'static str, spare: u8) -> Self {
        Self {
            spare,
            ..Self::number(head)
        }
    }

    /// Words, which are short.
    pub(crate) const fn words(head: &'static str) -> Self {
        Self {
            is_left: true,
            ..Self::number(head)
        }
    }

    /// Names, which are shortened where there is no room.
    pub(crate) const fn name(head: &'static str) -> Self {
        Self {
            is_left: true,
            is_name: true,
            ..Self::number(head)
        }
    }

    /// Paths, which are shortened at the front where there is no room, but not by much.
    pub(crate) const fn path(head: &'static str) -> Self {
        Self {
            is_path: true,
            shortest: 32,
            ..Self::name(head)
        }
    }
}

/// No name is made shorter than this.
const SHORTEST: usize = 12;

/// The lines of a table that fits so many columns, as far as leaving out columns and shortening names can help.
pub(crate) fn fitted(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for (i, column) in columns.iter().enumerate() {
        let cells = rows.iter().filter_map(|row| row.get(i));
        let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widths.push(longest.max(column.head.chars().count()));
    }
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    if let Some(width) = width {
        // A space on either side of each.
        let total = |shown: &[usize], widths: &[usize]| -> usize {
            shown.iter().map(|i| widths[*i] + 2).sum()
        };
        let at_least = |shown: &[usize]| {
            let mut least = widths.clone();
            for i in shown.iter().filter(|i| columns[**i].is_name) {
                least[*i] =
                    least[*i].min(columns[*i].shortest.max(columns[*i].head.chars().count()));
            }
            total(shown, &least)
        };
        while at_least(&shown) > width
            && let Some(most) = shown.iter().map(|i| columns[*i].spare).max()
            && most > 0
        {
            shown.retain(|i| columns[*i].spare != most);
        }
        // The last first: what stands behind a function is its file.
        for i in shown.iter().rev().filter(|i| columns[**i].is_name) {
            let excess = total(&shown, &widths).saturating_sub(width);
            let least = columns[*i].shortest.max(columns[*i].head.chars().count());
            widths[*i] -= excess.min(widths[*i].saturating_sub(least));
        }
    }
    let heads: Vec<_> = shown.iter().map(|i| columns[*i].head).collect();
    let left: Vec<_> = (0..shown.len())
        .filter(|place| columns[shown[*place]].is_left)
        .collect();
    let mut list = table(&heads, &left);
    for row in rows {
        list.add_row(shown.iter().map(|i| {
            let cell = row.get(*i).map_or("", String::as_str);
            match (columns[*i].is_name, columns[*i].is_path) {
                (true, false) => shortened(cell, widths[*i]),
                (true, true) => end_of(cell, widths[*i]),
                (false, _) => cell.to_owned(),
            }
        }));
    }
    lines(&list)
}

#[cfg(test)]
mod tests {
    use super::{Column, begin_of, end_of, fitted, shortened};

    #[test]
    fn both_ends_of_a_name_show() {
        assert_eq!(shortened("abcdefghij", 10), "abcdefghij");
        assert_eq!(shortened("abcdefghij", 7), "abc…hij");
        assert_eq!(shortened("abcdefghij", 6), "abc…ij");
        assert_eq!(shortened("äöüß", 3), "ä…ß");
        assert_eq!(shortened("abc", 1), "…");
        assert_eq!(shortened("abc", 0), "…");
    }

    #[test]
    fn one_end_of_a_text_shows() {
        assert_eq!(
            (begin_of("abcd", 4), end_of("äöüß", 4)),
            ("abcd".into(), "äöüß".into())
        );
        assert_eq!(
            (begin_of("abcd", 3), end_of("äöüß", 3)),
            ("ab…".into(), "…üß".into())
        );
        assert_eq!(
            (begin_of("ab", 0), end_of("ab", 0)),
            ("…".into(), "…".into())
        );
    }

    #[test]
    fn columns_are_left_out_before_a_path_is_made_short() {
        let columns = [
            Column::path("source file"),
            Column::number("lines"),
            Column::spare("outcomes", 1),
        ];
        let rows = [vec![
            "/a/long/path/to/a/folder/of/some/source.rs".into(),
            "7".into(),
            "1".into(),
        ]];
        let text =
            |width| console::strip_ansi_codes(&fitted(&columns, &rows, Some(width))).into_owned();
        let has = |width, name| text(width).contains(name);
        assert!(has(80, " /a/long") && has(80, "outcomes"));
        assert!(has(55, "…/path/to/a/folder/of/some/source.rs") && has(55, "outcomes"));
        assert!(has(45, "…/path/to/a/folder/of/some/source.rs") && !has(45, "outcomes"));
    }

    #[test]
    fn a_table_fits_where_names_can_be_shortened() {
        let columns = [
            Column::number("count"),
            Column::spare("more", 1),
            Column::name("function"),
            Column::name("file"),
        ];
        let row = |name: &str| vec!["1,000".into(), "7".into(), name.into(), "libc.so.6".into()];
        let rows = [row("f"), row(&"x".repeat(100))];
        let longest = |width| {
            let text = fitted(&columns, &rows, width);
            let text = console::strip_ansi_codes(&text).into_owned();
            let lines = text.lines().map(|line| line.chars().count());
            (lines.max().unwrap_or(0), text)
        };
        assert_eq!(longest(None).0, 125);
        assert_eq!(longest(Some(200)).0, 125);
        for width in [60, 80, 100] {
            let (got, text) = longest(Some(width));
            assert_eq!(got, width - 1, "{text}");
            assert!(
                text.contains("libc.so.6") && text.contains("more"),
                "{text}"
            );
        }
        let (got, text) = longest(Some(36));
        assert!(got <= 36 && !text.contains("more"), "{text}");
        assert!(text.contains("xxxxxx…xxxxx"), "{text}");
    }
}
