//! Names of code that a process generated: the text `/tmp/perf-PID.map`.

use std::sync::{Arc, OnceLock};

use crate::file::CodeFile;
use crate::symbols::{Symbol, Symbols};

/// The functions that a process says it has generated, a line each: `START SIZE NAME`, the numbers hexadecimal. It is read when the
/// first name is wanted.
#[derive(Debug)]
pub struct PerfMap {
    file: Arc<CodeFile>,
    symbols: OnceLock<Symbols>,
}

impl PerfMap {
    /// The map that is in `file`.
    #[must_use]
    pub fn new(file: Arc<CodeFile>) -> Self {
        Self {
            file,
            symbols: OnceLock::new(),
        }
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &Arc<CodeFile> {
        &self.file
    }

    /// The function at `address`.
    pub fn at(&self, address: u64) -> Option<Symbol<'_>> {
        self.symbols.get_or_init(|| self.read()).at(address)
    }

    /// Every function: its name and its first address.
    pub fn for_each_function(&self, visit: impl FnMut(&str, u64)) {
        self.symbols.get_or_init(|| self.read()).for_each(visit);
    }

    fn read(&self) -> Symbols {
        let Ok(bytes) = self.file.bytes() else {
            return Symbols::default();
        };
        let text = String::from_utf8_lossy(&bytes);
        // Where several lines tell of one place, the last is right: the first of those that begin there is taken.
        Symbols::of_ranges(text.lines().rev().filter_map(line))
    }
}

/// Start, size, name.
fn line(line: &str) -> Option<(u64, u64, &str)> {
    let hexadecimal = |text: &str| {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        u64::from_str_radix(digits, 16).ok()
    };
    let (start, rest) = line.trim().split_once(' ')?;
    let (size, name) = rest.trim_start().split_once(' ')?;
    Some((hexadecimal(start)?, hexadecimal(size)?, name.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts() {
        let text = "7000 20 old name\n0x8000 0x10 two words\nnonsense\n7000 10 new\n9000 zz no\n";
        let map = PerfMap::new(CodeFile::from_bytes("map", text.as_bytes().to_vec()));
        let name = |address| map.at(address).map(|symbol| (symbol.name, symbol.offset));
        assert_eq!(name(0x7004), Some(("new", 4)));
        assert_eq!(name(0x7014), None);
        assert_eq!(name(0x8001), Some(("two words", 1)));
        assert_eq!(name(0x9000), None);
    }
}
