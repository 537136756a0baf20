//! The names of a kernel's functions as the kernel itself lists them: `/proc/kallsyms`, or the `System.map` of its build.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::symbols::Symbol;
use crate::tree::UPPER_HALF;

/// How much of a line an error shows.
const SHOWN: usize = 100;

/// The functions of one kernel and its modules, by their addresses.
///
/// The text is a line a symbol: `ADDRESS TYPE NAME`, and for a module's `[MODULE]` behind it. Only symbols of code (types `t`,
/// `T`, `w`, `W`) in the upper half of the address space name anything. A function reaches to the next symbol, of any type,
/// of the same module; the last one of a module to the end of the page after its first.
///
/// ```
/// use cofi_image::Kallsyms;
///
/// let text = b"ffffffff81000000 T startup_64\nffffffff81000040 t verify_cpu\nffffffffc0000000 t hello\t[greeter]\n";
/// let kernel = Kallsyms::parse(text)?;
/// let (symbol, owner) = kernel.at(0xffff_ffff_8100_0044).unwrap();
/// assert_eq!((symbol.name, symbol.offset), ("verify_cpu", 4));
/// assert_eq!(owner, std::path::Path::new("[kernel]"));
/// # Ok::<(), cofi_image::KallsymsError>(())
/// ```
#[derive(Debug, Default)]
pub struct Kallsyms {
    /// By `start`, each of which is there once.
    functions: Vec<Function>,
    names: String,
    /// `[kernel]`, then each `[MODULE]`.
    owners: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug)]
struct Function {
    start: u64,
    end: u64,
    /// Where its name stands in `names`.
    name: (u32, u32),
    owner: u32,
}

/// Why a text tells no names of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KallsymsError {
    /// There is no symbol in it.
    #[error("it is empty: no line names a symbol")]
    Empty,
    /// The kernel that wrote it hides its addresses.
    #[error(
        "all addresses in it are zero, because the kernel hid them from whoever read it: as root, \
         `echo 0 > /proc/sys/kernel/kptr_restrict`, then read /proc/kallsyms again"
    )]
    Hidden,
    /// None of its symbols is a function of a 64-bit kernel.
    #[error(
        "it names no code in the kernel's half of the address space (0x8000000000000000 and up)"
    )]
    NoCode,
    /// A line is none of those that the kernel writes.
    #[error("line {line} is not `ADDRESS TYPE NAME [MODULE]`: {text:?}")]
    Malformed {
        /// The line's number, from 1 on.
        line: usize,
        /// Its beginning.
        text: String,
    },
    /// Names take more than 4 GiB.
    #[error("it is larger than 4 GiB")]
    TooLarge,
}

/// A line, taken apart.
struct Line<'t> {
    address: u64,
    kind: u8,
    name: &'t str,
    /// With its brackets.
    module: Option<&'t str>,
}

impl<'t> Line<'t> {
    fn parse(line: &'t str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
        let module = words.next();
        let is_module = |word: &str| word.len() > 2 && word.starts_with('[') && word.ends_with(']');
        let &[kind] = kind.as_bytes() else {
            return None;
        };
        let is_sound = words.next().is_none()
            && module.is_none_or(is_module)
            && (kind.is_ascii_alphabetic() || kind == b'?')
            // A sign would be taken for part of a number.
            && address.bytes().all(|byte| byte.is_ascii_hexdigit())
            && !line.chars().any(|c| c.is_control() && !c.is_ascii_whitespace());
        Some(Line {
            address: u64::from_str_radix(address, 16).ok()?,
            kind,
            name,
            module,
        })
        .filter(|_| is_sound)
    }

    fn is_code(&self) -> bool {
        matches!(self.kind, b't' | b'T' | b'w' | b'W')
    }
}

/// A symbol while the list is made. The order is by address, and of one address by how well the name fits: a strong one
/// before a weak one, a global one before a local one, the one with fewest underscores before it, the longest. So perf has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    start: u64,
    is_data: bool,
    is_weak: bool,
    is_local: bool,
    underscores: u32,
    len: Reverse<u32>,
    name: u32,
    owner: u32,
}

impl Kallsyms {
    /// Reads the text of `/proc/kallsyms` or of a `System.map`.
    ///
    /// # Errors
    /// When a line is malformed, or no line names code of a kernel.
    pub fn parse(text: &[u8]) -> Result<Self, KallsymsError> {
        if u32::try_from(text.len()).is_err() {
            return Err(KallsymsError::TooLarge);
        }
        let mut kernel = Self {
            owners: vec!["[kernel]".into()],
            ..Self::default()
        };
        let mut known: HashMap<&str, u32> = HashMap::new();
        let mut marks = Vec::new();
        let (mut any, mut hidden) = (false, true);
        for (number, bytes) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            let line = std::str::from_utf8(bytes).ok().and_then(Line::parse);
            let Some(line) = line else {
                let shown: String = String::from_utf8_lossy(bytes)
                    .trim()
                    .chars()
                    .take(SHOWN)
                    .collect();
                return Err(KallsymsError::Malformed {
                    line: number,
                    text: shown,
                });
            };
            any = true;
            hidden &= line.address == 0;
            if line.address < UPPER_HALF {
                continue;
            }
            let owner = line.module.map_or(0, |module| {
                *known.entry(module).or_insert_with(|| {
                    kernel.owners.push(module.into());
                    kernel.owners.len() as u32 - 1
                })
            });
            // The text is no longer than 4 GiB.
            let name = kernel.names.len() as u32;
            if line.is_code() {
                kernel.names.push_str(line.name);
            }
            marks.push(Mark {
                start: line.address,
                is_data: !line.is_code(),
                is_weak: line.kind.eq_ignore_ascii_case(&b'w'),
                is_local: line.kind.is_ascii_lowercase(),
                underscores: line.name.bytes().take_while(|byte| *byte == b'_').count() as u32,
                len: Reverse(line.name.len() as u32),
                name,
                owner,
            });
        }
        if !any {
            return Err(KallsymsError::Empty);
        }
        if hidden {
            return Err(KallsymsError::Hidden);
        }
        marks.sort_unstable();
        kernel.functions = functions(&marks, kernel.owners.len());
        kernel.names.shrink_to_fit();
        if kernel.functions.is_empty() {
            return Err(KallsymsError::NoCode);
        }
        Ok(kernel)
    }

    /// The function that holds `address`, and what it belongs to: `[kernel]` or `[MODULE]`.
    pub fn at(&self, address: u64) -> Option<(Symbol<'_>, &Path)> {
        self.symbol(self.find(address)?, address)
    }

    /// The number of the function that holds `address`.
    pub(crate) fn find(&self, address: u64) -> Option<usize> {
        let index = self
            .functions
            .partition_point(|function| function.start <= address)
            .checked_sub(1)?;
        let function = self.functions.get(index)?;
        (address < function.end).then_some(index)
    }

    /// The function of that number, seen from an address in it.
    pub(crate) fn symbol(&self, index: usize, address: u64) -> Option<(Symbol<'_>, &Path)> {
        let function = self.functions.get(index)?;
        let (from, to) = function.name;
        let symbol = Symbol {
            name: self.names.get(from as usize..to as usize)?,
            start: function.start,
            offset: address.checked_sub(function.start)?,
        };
        Some((symbol, self.owners.get(function.owner as usize)?))
    }

    /// Every function: its name and its first address.
    pub fn for_each_function(&self, mut visit: impl FnMut(&str, u64)) {
        for function in &self.functions {
            let (from, to) = function.name;
            if let Some(name) = self.names.get(from as usize..to as usize) {
                visit(name, function.start);
            }
        }
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether there are none, which no parsed text yields.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

/// The functions among `marks`, which are in order, one an address.
fn functions(marks: &[Mark], owners: usize) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    // Of each owner the lowest address seen so far, going down, and the one above it.
    let mut above: Vec<(Option<u64>, Option<u64>)> = vec![(None, None); owners];
    for mark in marks.iter().rev() {
        let Some((lowest, next)) = above.get_mut(mark.owner as usize) else {
            continue;
        };
        if *lowest != Some(mark.start) {
            *next = lowest.replace(mark.start);
        }
        if mark.is_data {
            continue;
        }
        let function = Function {
            start: mark.start,
            end: next.unwrap_or_else(|| page_after(mark.start)),
            name: (mark.name, mark.name + mark.len.0),
            owner: mark.owner,
        };
        match functions.last_mut() {
            // The better name comes later on the way down.
            Some(last) if last.start == mark.start => *last = function,
            _ => functions.push(function),
        }
    }
    functions.reverse();
    functions
}

/// The end of the page after that of `address`; what perf takes for the end of a last symbol.
fn page_after(address: u64) -> u64 {
    (address | 0xfff).saturating_add(0x1001)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(kernel: &Kallsyms, address: u64) -> Option<(&str, u64, &str)> {
        let (symbol, owner) = kernel.at(address)?;
        assert_eq!(symbol.start + symbol.offset, address);
        Some((symbol.name, symbol.offset, owner.to_str()?))
    }

    const BASE: u64 = 0xffff_ffff_8100_0000;
    const MODULE: u64 = 0xffff_ffff_c000_0000;

    const TEXT: &str = "\
0000000000000000 A fixed_percpu_data
0000000000001000 T startup_32
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000000 t a_local_one
ffffffff81000100 W weak_one
ffffffff81000200 D data
ffffffff81000300 T last
ffffffffc0000000 t init_module_a\t[a]
ffffffffc0000080 t b_one\t[b]
ffffffffc00000c0 d b_data\t[b]
ffffffffc0000100 t a_two\t[a]
";

    #[test]
    fn edges() {
        let kernel = Kallsyms::parse(TEXT.as_bytes()).unwrap();
        assert_eq!(kernel.len(), 6);
        assert!(!kernel.is_empty());
        for (address, expected) in [
            (0, None),
            (0x1000, None),
            (BASE - 1, None),
            (BASE, Some(("startup_64", 0, "[kernel]"))),
            (BASE + 0xff, Some(("startup_64", 0xff, "[kernel]"))),
            (BASE + 0x100, Some(("weak_one", 0, "[kernel]"))),
            (BASE + 0x1ff, Some(("weak_one", 0xff, "[kernel]"))),
            (BASE + 0x200, None),
            (BASE + 0x2ff, None),
            (BASE + 0x300, Some(("last", 0, "[kernel]"))),
            (BASE + 0x1fff, Some(("last", 0x1cff, "[kernel]"))),
            (BASE + 0x2000, None),
            (MODULE - 1, None),
            (MODULE, Some(("init_module_a", 0, "[a]"))),
            (MODULE + 0x7f, Some(("init_module_a", 0x7f, "[a]"))),
            (MODULE + 0x80, Some(("b_one", 0, "[b]"))),
            (MODULE + 0xbf, Some(("b_one", 0x3f, "[b]"))),
            (MODULE + 0xc0, None),
            (MODULE + 0x100, Some(("a_two", 0, "[a]"))),
            (u64::MAX, None),
        ] {
            assert_eq!(named(&kernel, address), expected, "{address:#x}");
        }
    }

    #[test]
    fn order_line_ends_and_the_last_address() {
        let text =
            "\r\nFFFFFFFFFFFFFFFF t top\r\nffffffff81000010 t b\r\n\r\nffffffff81000000 t a\r\n";
        let kernel = Kallsyms::parse(text.as_bytes()).unwrap();
        assert_eq!(named(&kernel, BASE + 15), Some(("a", 15, "[kernel]")));
        assert_eq!(named(&kernel, u64::MAX - 1).unwrap().0, "b");
        // One past the last address is no number.
        assert_eq!(named(&kernel, u64::MAX), None);
    }

    #[test]
    fn the_best_of_several_names() {
        let best = |lines: &[&str]| {
            let lines: Vec<_> = lines
                .iter()
                .map(|line| format!("ffffffff81000000 {line}\n"))
                .collect();
            let kernel = Kallsyms::parse(lines.concat().as_bytes()).unwrap();
            assert_eq!(kernel.len(), 1);
            kernel.at(BASE).unwrap().0.name.to_owned()
        };
        assert_eq!(best(&["W weak", "t local"]), "local");
        assert_eq!(best(&["t local_one", "T global"]), "global");
        assert_eq!(best(&["T __two_of_them", "T _one", "T none"]), "none");
        assert_eq!(best(&["T short", "T longest", "T longer_"]), "longest");
        assert_eq!(best(&["D in_data", "t local"]), "local");
    }

    #[test]
    fn what_tells_no_names() {
        let parse = |text: &str| Kallsyms::parse(text.as_bytes()).unwrap_err();
        assert_eq!(parse(""), KallsymsError::Empty);
        assert_eq!(parse("\n \r\n"), KallsymsError::Empty);
        let zeros = "0000000000000000 T _stext\n0000000000000000 t hello\t[greeter]\n";
        assert_eq!(parse(zeros), KallsymsError::Hidden);
        let message = KallsymsError::Hidden.to_string();
        assert!(
            message.contains("echo 0 > /proc/sys/kernel/kptr_restrict"),
            "{message}"
        );
        assert_eq!(parse("c0100000 T _stext\n"), KallsymsError::NoCode);
        assert_eq!(parse("ffffffff81000000 D data\n"), KallsymsError::NoCode);
    }

    #[test]
    fn malformed_lines() {
        for line in [
            "ffffffff81000000",
            "ffffffff81000000 T",
            "ffffffff81000000 TT name",
            "ffffffff81000000 1 name",
            "0xffffffff81000000 T name",
            "+fffffff81000000 T name",
            "fffffffff81000000 T name",
            "ffffffff81000000 T name module",
            "ffffffff81000000 T name []",
            "ffffffff81000000 T name [module] more",
            "ffffffff81000000 T na\u{1b}me",
            "                 U undefined",
            "hello",
        ] {
            let text = format!("ffffffff81000000 T fine\r\n\r\n{line}\r\n");
            assert_eq!(
                Kallsyms::parse(text.as_bytes()).unwrap_err(),
                KallsymsError::Malformed {
                    line: 3,
                    text: line.trim().into()
                }
            );
        }
        let error = Kallsyms::parse(b"\x7fELF\xff\xfe").unwrap_err().to_string();
        assert!(error.contains("line 1 is not"), "{error}");
        let long = "x".repeat(1 << 20);
        let error = Kallsyms::parse(long.as_bytes()).unwrap_err().to_string();
        assert!(error.len() < 300, "{error}");
    }
}
