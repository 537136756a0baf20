//! What ran oftener in one of two recordings, by function and line.

use super::Side;
use crate::coverage::sources::is_of_system;
use cofi_analysis::diff::FileMatches;
use cofi_analysis::{FileCode, FileKey, SourceLines};
use cofi_session::compact;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// A line of the source, and how often control came to it in each recording.
#[derive(Clone, Debug)]
pub(crate) struct LineCounts {
    pub(crate) file: String,
    /// Its number in each recording, where it is known.
    pub(crate) lines: [Option<u32>; 2],
    pub(crate) counts: [u64; 2],
}

/// A function.
#[derive(Clone, Debug, Default)]
pub(crate) struct FunctionCounts {
    /// None for code that is of no function.
    pub(crate) name: Option<String>,
    pub(crate) file: Option<PathBuf>,
    pub(crate) insns: [u64; 2],
    pub(crate) calls: [u64; 2],
    pub(crate) lines: Vec<LineCounts>,
}

/// What ran oftener in one recording.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// The greatest differences first.
    pub(crate) functions: Vec<FunctionCounts>,
}

/// A file's number in both recordings, or its path, if it was not compared.
type FileName = Result<u32, Option<PathBuf>>;

/// A function of both recordings.
type FunctionName = (FileName, Option<String>);

impl Differences {
    pub(crate) fn of(sides: &[Side<'_, '_>; 2], matches: &FileMatches, only: Option<&str>) -> Self {
        let mut functions: HashMap<FunctionName, FunctionCounts> = HashMap::new();
        let number = |side: usize, path: Option<&Path>| -> FileName {
            let number = path.and_then(|path| matches.number(side, path));
            number.ok_or_else(|| path.map(Path::to_owned))
        };
        let is_wanted = |path: Option<&Path>| {
            only.is_none_or(|text| path.is_some_and(|path| path.to_string_lossy().contains(text)))
        };
        for (index, side) in sides.iter().enumerate() {
            for function in &side.summary.functions {
                let path = function.file.as_deref();
                if !is_wanted(path) {
                    continue;
                }
                let name = function.is_named.then(|| function.name.clone());
                let key = (number(index, path), name.clone());
                let counts = functions.entry(key).or_insert_with(|| FunctionCounts {
                    name,
                    file: function.file.clone(),
                    ..FunctionCounts::default()
                });
                counts.insns[index] += function.instructions;
                counts.calls[index] += function.entries;
            }
        }
        functions.retain(|_, counts| {
            counts.insns[0] != counts.insns[1] || counts.calls[0] != counts.calls[1]
        });
        // Lines are counted in the function in which they stand.
        let mut lines: BTreeMap<LineName, LineCounts> = BTreeMap::new();
        let is_read = |code: &&FileCode| !is_of_system(code.path()) && is_wanted(Some(code.path()));
        let [a, b] = sides;
        // (Files without build ids may have changed between the recordings.)
        let is_same = |one: &FileCode, other: &FileCode| {
            one.key() == other.key() && matches!(one.key(), FileKey::BuildId(_))
        };
        for one in a.files.iter().filter(is_read) {
            let mut others = b.files.iter().filter(is_read);
            let other = others.find(|other| is_same(one, other));
            add_lines(&number, [Some(one), other], &mut lines);
        }
        for other in b.files.iter().filter(is_read) {
            let mut ones = a.files.iter().filter(is_read);
            if !ones.any(|one| is_same(one, other)) {
                add_lines(&number, [None, Some(other)], &mut lines);
            }
        }
        for ((file, function, ..), line) in lines {
            if line.counts[0] != line.counts[1]
                && let Some(counts) = functions.get_mut(&(file, Some(function)))
            {
                counts.lines.push(line);
            }
        }
        let mut functions: Vec<FunctionCounts> = functions.into_values().collect();
        for function in &mut functions {
            compact::sort_by(&mut function.lines, |a, b| {
                (&a.file, a.lines).cmp(&(&b.file, b.lines))
            });
        }
        compact::sort_by(&mut functions, |a, b| {
            let key = |counts: &FunctionCounts| {
                // The program's own before those of libraries.
                let is_own = counts
                    .file
                    .as_deref()
                    .is_some_and(|path| !is_of_system(path));
                (!is_own, Reverse(counts.insns[0].abs_diff(counts.insns[1])))
            };
            let names = |counts: &FunctionCounts| (counts.name.clone(), counts.file.clone());
            key(a).cmp(&key(b)).then_with(|| names(a).cmp(&names(b)))
        });
        Self { functions }
    }
}

/// The file of code, the function and which of that name it is, and the line, counted from the function's on. Not the source file: another build
/// may have been made in another folder.
type LineName = (FileName, String, usize, i64);

/// Adds the lines of a file that ran in one of the recordings, or in both.
fn add_lines(
    number: &impl Fn(usize, Option<&Path>) -> FileName,
    codes: [Option<&FileCode>; 2],
    lines: &mut BTreeMap<LineName, LineCounts>,
) {
    let Some(code) = codes.into_iter().flatten().next() else {
        return;
    };
    let source = match codes {
        // What ran in neither does not differ. Of another build the lines are wanted to which they correspond.
        [Some(one), Some(other)] => {
            let mut addresses = [one.addresses(), other.addresses()].concat();
            addresses.sort_unstable();
            SourceLines::of_code_and_functions(code.file(), &addresses)
        }
        _ => SourceLines::of(code.file()),
    };
    let Some(source) = source else {
        return;
    };
    let all = source.functions(code);
    // The functions of each source file, by the line where they are declared.
    let mut declared: HashMap<u32, BTreeMap<u32, (&str, usize)>> = HashMap::new();
    let mut names: HashMap<&str, usize> = HashMap::new();
    for function in &all {
        let which = names.entry(&function.name).or_default();
        *which += 1;
        if let Some((source, line)) = function.declared {
            let lines = declared.entry(source).or_default();
            lines.insert(line, (&function.name, *which));
        }
    }
    for (side, code) in codes.into_iter().enumerate() {
        let Some(code) = code else {
            continue;
        };
        let file = number(side, Some(code.path()));
        for ((index, line), count) in source.counts(code) {
            let functions = declared.get(&index);
            let function = functions.and_then(|functions| functions.range(..=line).next_back());
            let (Some((first, (name, which))), Some(path)) =
                (function, source.files().get(index as usize))
            else {
                continue;
            };
            let from_first = i64::from(line) - i64::from(*first);
            let key = (file.clone(), (*name).to_owned(), *which, from_first);
            let counts = lines.entry(key).or_insert_with(|| LineCounts {
                file: path.clone(),
                lines: [None, None],
                counts: [0, 0],
            });
            counts.lines[side] = Some(line);
            counts.counts[side] += count.count;
        }
    }
}
