//! Which file of one recording is which of another, and of those that were built anew, which function is which.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofi_image::{CodeFile, LineTable};
use cofi_insn::{Class, LinearDecoder};
use cofi_packet::{ExecMode, Ip};
use cofi_session::compact;

use super::Level;
use crate::coverage::{FileCode, FileKey};

/// How code of a file is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileMatch {
    /// It is the same file in both: by offset.
    Same,
    /// It is another build: so many of its functions that ran have the same instructions in both, and so many do not and are compared by line,
    /// and so many by offset, since lines are not known.
    Rebuilt {
        /// Functions whose instructions are laid out alike.
        alike: u64,
        /// Functions that are compared by the lines of their source.
        by_line: u64,
        /// Functions that are compared by offset although they are not alike.
        by_offset: u64,
    },
    /// Only one of the two recordings ran it.
    Alone,
}

/// A file, and how it was compared.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ComparedFile {
    /// Its path in the first recording, or else in the second.
    pub path: PathBuf,
    /// The path in the second recording, if it is another.
    pub other: Option<PathBuf>,
    /// How.
    pub how: FileMatch,
}

/// How the instructions of a function are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// By how far into the function they are.
    Offset,
    /// By their lines, counted from where the function is declared, if that is known.
    Line(Option<(u32, u32)>),
    /// Not at all.
    Whole,
}

/// A function of a file.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) start: u64,
    /// The same number in both recordings.
    pub(super) number: u32,
    pub(super) how: How,
}

/// What is known of a file of one recording.
#[derive(Clone, Debug)]
pub(super) enum Role {
    /// It is not compared.
    LeftOut,
    /// By offset.
    Exact(u32),
    /// By functions, and what they say. By offset in the file.
    Functions(Arc<FunctionTable>),
}

#[derive(Debug)]
pub(super) struct FunctionTable {
    pub(super) file: u32,
    list: Vec<Function>,
    pub(super) lines: Option<LineTable>,
    /// Code that is of no function is compared as one.
    pub(super) keeps_others: bool,
}

impl FunctionTable {
    pub(super) fn at(&self, offset: u64) -> Option<&Function> {
        let next = self
            .list
            .partition_point(|function| function.start <= offset);
        self.list.get(next.checked_sub(1)?)
    }
}

/// The files of two recordings.
#[derive(Debug)]
pub struct FileMatches {
    roles: [HashMap<FileKey, Role>; 2],
    /// Files that ran in neither as far as was counted.
    next: u32,
    list: Vec<ComparedFile>,
    /// By number: the path in the first recording, or else in the second.
    numbers: [HashMap<PathBuf, u32>; 2],
    pub(super) level: Level,
    within: Option<String>,
    functions: HashMap<(u32, String, u32), u32>,
}

impl FileMatches {
    /// What of two recordings ran, as [`Tally::take_code`](crate::Tally::take_code) counts it.
    #[must_use]
    pub fn new<'f>(
        a: &'f [FileCode],
        b: &'f [FileCode],
        level: Level,
        within: Option<&str>,
    ) -> Self {
        let mut this = Self {
            roles: [HashMap::new(), HashMap::new()],
            next: 0,
            list: Vec::new(),
            numbers: [HashMap::new(), HashMap::new()],
            level,
            within: within.map(str::to_owned),
            functions: HashMap::new(),
        };
        // What a process generated is no file of its own: it goes by its name, or by its bytes.
        let files = |list: &'f [FileCode]| -> Vec<&'f FileCode> {
            list.iter().filter(|code| is_elf(code)).collect()
        };
        for (x, y) in pairs(&files(a), &files(b)) {
            this.add(x, y);
        }
        this
    }

    /// How files were compared, those of most instructions first.
    #[must_use]
    pub fn list(&self) -> &[ComparedFile] {
        &self.list
    }

    /// A number that a file has in both recordings: `side` 0 is the first.
    #[must_use]
    pub fn number(&self, side: usize, path: &Path) -> Option<u32> {
        self.numbers.get(side)?.get(path).copied()
    }

    fn is_within(&self, path: &Path) -> bool {
        let path = path.to_string_lossy();
        self.within.as_ref().is_none_or(|text| path.contains(text))
    }

    fn add(&mut self, a: Option<&FileCode>, b: Option<&FileCode>) {
        let number = self.next;
        self.next += 1;
        let [first, second] = [a, b].map(|code| code.map(|code| code.path().to_owned()));
        for (numbers, path) in self.numbers.iter_mut().zip([&first, &second]) {
            if let Some(path) = path {
                numbers.entry(path.clone()).or_insert(number);
            }
        }
        let other = second
            .clone()
            .filter(|path| first.as_ref().is_some_and(|first| first != path));
        let Some(path) = first.or(second) else {
            return;
        };
        let is_within =
            self.is_within(&path) || other.as_ref().is_some_and(|other| self.is_within(other));
        let (how, roles) = match (a, b) {
            _ if !is_within => (None, [Role::LeftOut, Role::LeftOut]),
            (Some(a), Some(b)) => {
                let is_same = is_same(a, b);
                if is_same && self.level == Level::Instructions {
                    (
                        Some(FileMatch::Same),
                        [Role::Exact(number), Role::Exact(number)],
                    )
                } else {
                    let (how, roles) = self.by_functions(number, a, b, is_same);
                    (Some(how), roles)
                }
            }
            _ if self.level == Level::Instructions => (
                Some(FileMatch::Alone),
                [Role::Exact(number), Role::Exact(number)],
            ),
            (a, b) => {
                let Some(code) = a.or(b) else {
                    return;
                };
                let (_, roles) = self.by_functions(number, code, code, true);
                (Some(FileMatch::Alone), roles)
            }
        };
        if let Some(how) = how {
            self.list.push(ComparedFile { path, other, how });
        }
        for ((code, role), map) in [a, b].into_iter().zip(roles).zip(&mut self.roles) {
            if let Some(code) = code {
                map.insert(code.key().clone(), role);
            }
        }
    }

    fn function_number(&mut self, file: u32, name: &str, which: u32) -> u32 {
        let next = self.functions.len() as u32;
        let key = (file, name.to_owned(), which);
        *self.functions.entry(key).or_insert(next)
    }

    /// Files whose functions are set side by side.
    fn by_functions(
        &mut self,
        file: u32,
        a: &FileCode,
        b: &FileCode,
        is_same: bool,
    ) -> (FileMatch, [Role; 2]) {
        let codes = [a, b];
        let bodies = codes.map(Bodies::of);
        let lines = match self.level {
            Level::Functions => [None, None],
            _ => codes.map(|code| LineTable::of(code.file())),
        };
        let has_lines = lines.iter().all(Option::is_some);
        let declared = |side: usize, start: u64| {
            let address = codes.get(side)?.file().address_of_offset(start)?;
            let functions = lines.get(side)?.as_ref()?.functions();
            let index = functions.binary_search_by_key(&address, |function| function.start);
            functions.get(index.ok()?)?.declared
        };
        let (mut alike, mut by_line, mut by_offset) = (0, 0, 0);
        let mut lists = [Vec::new(), Vec::new()];
        for side in 0..2 {
            for (key, (start, end)) in &bodies[side].named {
                let other = bodies[1 - side].named.get(key);
                let number = self.function_number(file, &key.0, key.1);
                let how = match self.level {
                    Level::Functions => How::Whole,
                    Level::Lines if has_lines => How::Line(declared(side, *start)),
                    Level::Lines => How::Whole,
                    Level::Instructions => {
                        let ran = |code: &FileCode, (start, end): (u64, u64)| {
                            !code.between(start, end).is_empty()
                        };
                        let ran = ran(codes[side], (*start, *end))
                            || other.is_some_and(|other| ran(codes[1 - side], *other));
                        let is_alike = other.is_some_and(|other| {
                            !ran || bodies[side].body(*start, *end)
                                == bodies[1 - side].body(other.0, other.1)
                        });
                        let how = match is_alike {
                            true => How::Offset,
                            false if has_lines => How::Line(declared(side, *start)),
                            false => How::Offset,
                        };
                        if ran && side == 0 && other.is_some() {
                            match (is_alike, how) {
                                (true, _) => alike += 1,
                                (false, How::Line(_)) => by_line += 1,
                                (false, _) => by_offset += 1,
                            }
                        }
                        how
                    }
                };
                lists[side].push(Function {
                    start: *start,
                    number,
                    how,
                });
            }
        }
        let how = match is_same {
            true => FileMatch::Same,
            false => FileMatch::Rebuilt {
                alike,
                by_line,
                by_offset,
            },
        };
        let keeps_others = self.level == Level::Functions;
        let mut lines = lines.into_iter();
        let roles = lists.map(|mut list| {
            compact::sort_by_key(&mut list, |function: &Function| function.start);
            Role::Functions(Arc::new(FunctionTable {
                file,
                list,
                lines: lines.next().flatten(),
                keeps_others,
            }))
        });
        (how, roles)
    }

    /// How code of a file is compared; none if nothing is known of the file.
    pub(super) fn role(&mut self, side: usize, file: &CodeFile) -> Role {
        let key = FileKey::of(file);
        let Some(roles) = self.roles.get(side) else {
            return Role::LeftOut;
        };
        if let Some(role) = roles.get(&key) {
            return role.clone();
        }
        // It was not counted; the same file of the other recording may have been.
        if let Some(role) = self.roles.get(1 - side).and_then(|roles| roles.get(&key)) {
            return role.clone();
        }
        let role = match self.is_within(file.path()) {
            true => Role::Exact(self.next),
            false => Role::LeftOut,
        };
        self.next += 1;
        for roles in &mut self.roles {
            roles.insert(key.clone(), role.clone());
        }
        role
    }
}

/// Whether two files are one, in two recordings.
fn is_same(a: &FileCode, b: &FileCode) -> bool {
    if a.key() != b.key() {
        return false;
    }
    if matches!(a.key(), FileKey::BuildId(_)) || Arc::ptr_eq(a.file(), b.file()) {
        return true;
    }
    // The path says nothing of what was there when.
    match (a.file().bytes(), b.file().bytes()) {
        (Ok(a), Ok(b)) => a == b,
        _ => true,
    }
}

/// The files that belong together.
fn pairs<'f>(
    a: &[&'f FileCode],
    b: &[&'f FileCode],
) -> Vec<(Option<&'f FileCode>, Option<&'f FileCode>)> {
    let mut rest: Vec<&FileCode> = b.to_vec();
    let mut partners: Vec<Option<&FileCode>> = vec![None; a.len()];
    let rules: [fn(&FileCode, &FileCode) -> bool; 4] = [
        |a, b| a.key() == b.key(),
        |a, b| a.path().file_name() == b.path().file_name(),
        |a, b| library(a).is_some() && library(a) == library(b),
        |a, b| is_program(a) && is_program(b),
    ];
    for rule in rules {
        for (code, partner) in a.iter().zip(&mut partners) {
            if partner.is_none()
                && let Some(index) = rest.iter().position(|other| rule(code, other))
            {
                *partner = Some(rest.remove(index));
            }
        }
    }
    let alone = rest.into_iter().map(|code| (None, Some(code)));
    let both = a
        .iter()
        .zip(partners)
        .map(|(code, partner)| (Some(*code), partner));
    both.chain(alone).collect()
}

fn is_elf(code: &FileCode) -> bool {
    !code.file().segments().is_empty()
}

/// The name of a library without its version.
fn library(code: &FileCode) -> Option<&str> {
    let name = code.path().file_name().and_then(OsStr::to_str)?;
    Some(name.split_once(".so")?.0)
}

/// Whether a program may begin in it, and it is no library.
fn is_program(code: &FileCode) -> bool {
    if library(code).is_some() {
        return false;
    }
    let mut found = false;
    code.file()
        .for_each_function(|name, _| found |= matches!(name, "main" | "_start"));
    found
}

/// The functions of a file, and their code.
struct Bodies<'f> {
    code: &'f FileCode,
    /// By name, and which of that name.
    named: BTreeMap<(String, u32), (u64, u64)>,
}

impl<'f> Bodies<'f> {
    fn of(code: &'f FileCode) -> Self {
        let mut starts: BTreeMap<u64, String> = BTreeMap::new();
        code.file().for_each_function(|name, offset| {
            let known = starts.entry(offset).or_insert_with(|| name.to_owned());
            if name < known.as_str() {
                name.clone_into(known);
            }
        });
        let ends: Vec<u64> = starts.keys().copied().skip(1).collect();
        let segments = code.file().segments();
        let end_of = |start: u64| {
            let segment = segments.iter().find_map(|segment| {
                let end = code
                    .file()
                    .offset_of_address(segment.address)?
                    .checked_add(segment.len)?;
                (start < end).then_some(end)
            });
            segment.unwrap_or(u64::MAX)
        };
        let mut counts: HashMap<String, u32> = HashMap::new();
        let ends = ends.into_iter().map(Some).chain([None]);
        let named = starts.into_iter().zip(ends).map(|((start, name), next)| {
            let count = counts.entry(name.clone()).or_default();
            *count += 1;
            let end = next.unwrap_or_else(|| end_of(start));
            ((name, *count), (start, end))
        });
        Self {
            named: named.collect(),
            code,
        }
    }

    /// The instructions of a function: their lengths and classes, and where in the function direct branches lead. Without what fills the space
    /// behind it.
    fn body(&self, start: u64, end: u64) -> Vec<(u8, Class, Option<u64>)> {
        /// No function is longer.
        const MOST: u64 = 1 << 20;
        let len = end.saturating_sub(start).min(MOST);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let read = self.code.file().read_at(start, &mut bytes);
        bytes.truncate(read);
        let mode = self
            .code
            .insns()
            .first()
            .map_or(ExecMode::Bits64, |insn| insn.mode);
        let mut decoder = LinearDecoder::new(&bytes, Ip(start), mode);
        let (mut list, mut used, mut at) = (Vec::new(), 0, 0_usize);
        while let Ok(insn) = decoder.decode_next() {
            let inside = |target: Ip| {
                let offset = target.0.checked_sub(start)?;
                (offset < len).then_some(offset)
            };
            list.push((insn.len, insn.class, insn.target.and_then(inside)));
            // Padding is NOPs and INT3.
            let first = bytes.get(at).copied();
            let nop = bytes
                .get(at..at + usize::from(insn.len))
                .is_some_and(|insn| {
                    insn.windows(2).any(|pair| pair == [0x0f, 0x1f]) || insn.last() == Some(&0x90)
                });
            if !nop && first != Some(0xcc) {
                used = list.len();
            }
            at += usize::from(insn.len);
        }
        list.truncate(used);
        list
    }
}
