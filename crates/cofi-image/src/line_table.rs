//! All lines and functions of a file that its debugging information knows, whether they ran or not.

use crate::contents::Contents;
use crate::file::CodeFile;
use crate::line_reader::TableReader;
use crate::wanted_code::WantedCode;

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
#[non_exhaustive]
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
        Self::of_wanted(file, WantedCode::all())
    }

    /// What the table of a file has about the code at some of its own addresses, which come in order: the functions that hold them, and all rows of these.
    /// Of a large program that is much less to read, and to hold, than the whole table.
    #[must_use]
    pub fn of_code(file: &CodeFile, addresses: &[u64]) -> Option<Self> {
        Self::of_wanted(file, WantedCode::at(addresses))
    }

    /// The same, but with all functions.
    #[must_use]
    pub fn of_code_and_functions(file: &CodeFile, addresses: &[u64]) -> Option<Self> {
        Self::of_wanted(file, WantedCode::at(addresses).with_all_functions())
    }

    fn of_wanted(file: &CodeFile, wanted: WantedCode<'_>) -> Option<Self> {
        let is_code = |address: u64| {
            let segments = file.segments();
            segments.iter().any(|segment| {
                let inside = address.checked_sub(segment.address);
                segment.executable && inside.is_some_and(|inside| inside < segment.len)
            })
        };
        file.find_with_debug(|contents| Self::read(contents, is_code, wanted))
    }

    fn read(
        contents: &Contents,
        is_code: impl Fn(u64) -> bool,
        wanted: WantedCode<'_>,
    ) -> Option<Self> {
        let (files, mut rows, mut functions) =
            TableReader::of(contents, is_code, wanted)?.read_all();
        rows.sort_by_key(|row| row.start);
        functions.sort_by_key(|function| function.start);
        functions.dedup_by_key(|function| function.start);
        Some(Self {
            files,
            rows,
            functions,
        })
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

    /// Two source files, and as many functions: of code of one function the other's rows are not read.
    #[test]
    fn of_code_only_its_functions_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("one.c"), "int one(int n)\n{\n    return n + 1;\n}\n").unwrap();
        let main = "int one(int);\nint two(int n)\n{\n    return n + 2;\n}\nint main(void)\n{\n    return one(two(3));\n}\n";
        std::fs::write(path("main.c"), main).unwrap();
        // With a table of the units' addresses, and without.
        for (name, has_aranges) in [("aranges", true), ("none", false)] {
            let other = path("one.c");
            let flags = ["-O0", "-g", other.to_str().unwrap()];
            if !cofi_test::compile(&path("main.c"), &path(name), &flags) {
                return;
            }
            if !has_aranges {
                let mut strip = std::process::Command::new("objcopy");
                strip
                    .args(["--remove-section", ".debug_aranges"])
                    .arg(path(name));
                if !strip.status().is_ok_and(|status| status.success()) {
                    continue;
                }
            }
            let file = FileStore::new().file(&path(name));
            let all = LineTable::of(&file).expect("lines");
            let mut seen = 0;
            for function in all.functions() {
                // Not the first address: who stands within the function needs its first row, too.
                let some = LineTable::of_code(&file, &[function.start + 1]).expect("lines");
                assert_eq!(some.functions().len(), 1, "{name}");
                assert_eq!(some.functions()[0].start, function.start);
                let rows: Vec<_> = all
                    .rows()
                    .iter()
                    .filter(|row| (function.start..function.end).contains(&row.start))
                    .map(|row| {
                        (
                            row.start,
                            row.len,
                            &all.files()[row.file as usize],
                            row.line,
                        )
                    })
                    .collect();
                let found = some.rows().iter();
                let found: Vec<_> = found
                    .map(|row| {
                        (
                            row.start,
                            row.len,
                            &some.files()[row.file as usize],
                            row.line,
                        )
                    })
                    .collect();
                assert_eq!(found, rows, "{name}");
                seen += rows.len();
                let more = LineTable::of_code_and_functions(&file, &[function.start + 1]);
                let more = more.expect("lines");
                assert_eq!(more.rows().len(), some.rows().len(), "{name}");
                let places = |table: &LineTable| {
                    let functions = table.functions().iter();
                    let declared = functions.map(|function| {
                        let (file, line) = function.declared.expect("a line");
                        (function.start, table.files()[file as usize].clone(), line)
                    });
                    declared.collect::<Vec<_>>()
                };
                assert_eq!(places(&more), places(&all), "{name}");
            }
            assert_eq!(seen, all.rows().len(), "{name}");
            let none = LineTable::of_code(&file, &[]).expect("a table");
            assert!(none.rows().is_empty() && none.functions().is_empty());
        }
    }

    #[test]
    fn what_is_no_program_has_no_table() {
        let file = CodeFile::from_bytes("bytes", vec![0x7f; 64]);
        assert!(LineTable::of(&file).is_none());
    }
}
